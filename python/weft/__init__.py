"""Weft: messages between processes and machines, for asyncio and for threads.

    async with weft.listen("tcp://127.0.0.1:0", handler) as listener: ...
    ep = await weft.connect(listener.uri)
    await ep.send(b"hello", tag=1)
    data = await ep.recv(tag=2)

`weft.blocking` has the same for programs without an event loop. Every failure is a WeftError; its class and `status` say which.
"""
try:
    from . import _core
except ImportError as error:  # the loader names the library, and people want to know what to install
    if "libuc" in str(error) or "libsodium" in str(error):
        raise ImportError(f"{error}: weft stands on OpenUCX and libsodium (Debian's packages libucx0 and libsodium23)") from error
    raise
from ._core import (AddressError, AgainError, AuthError, CallError, CancelledError, ClosedError, CorruptError, Endpoint, ForkedError, InvalidError,
                    LimitError, Listener, Message, NoMemoryError, NotFoundError, Op, PeerError, ProtocolError, RangeError,
                    RefusedError, RejectedError, RightsError, StaleError, StateError, SystemFailureError, Tensor, TimeoutError,
                    TruncatedError, UnreachableError, UnsupportedError, VersionError, WeftError, __version__)
from ._runtime import Runtime, am_handler, connect, listen, runtime

__all__ = ["AddressError", "AgainError", "AuthError", "CallError", "CancelledError", "ClosedError", "CorruptError", "Endpoint",
           "ForkedError", "InvalidError", "LimitError", "Listener", "Message", "NoMemoryError", "NotFoundError", "Op",
           "PeerError", "ProtocolError", "RangeError", "RefusedError", "RejectedError", "RightsError", "Runtime",
           "StaleError", "StateError", "SystemFailureError", "Tensor", "TimeoutError", "TruncatedError", "UnreachableError",
           "UnsupportedError", "VersionError", "WeftError", "__version__", "am_handler", "config", "connect", "info",
           "listen", "runtime"]


def config() -> dict[str, tuple[str, str]]:
    """Every configuration variable, as {name: (value, where it came from)}."""
    return {name: (value or "", source or "") for name, value, source, _ in _core.config()}


def info() -> dict[str, str]:
    """Facts about this build and this machine."""
    return {name: value or "" for name, value, _, _ in _core.info()}
