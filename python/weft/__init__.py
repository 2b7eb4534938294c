"""Weft: messages between processes and machines, for asyncio and for threads.

    async with weft.listen("tcp://127.0.0.1:0", handler) as listener: ...
    ep = await weft.connect(listener.uri)
    await ep.send(b"hello", tag=1)
    data = await ep.recv(tag=2)

`weft.blocking` has the same for programs without an event loop. Every failure is a WeftError; its class and `status` say which.
"""
try:
    from . import _core
except ImportError as error:  # the loader names the library, but not the package to install
    if "libsodi" in str(error):
        raise ImportError(f"{error}: weft stands on libsodium (Debian's package libsodium23)") from error
    raise
from ._core import (AddressError, AgainError, AuthError, CallError, CancelledError, Claim, ClosedError, CorruptError, DoneError,
                    Endpoint,
                    ForkedError, InvalidError, LimitError, Listener, Message, Method, NoMemoryError, NotFoundError, Op,
                    OwnedBuffer, PeerError,
                    PendingError, PermissionDeniedError, ProtocolError, RangeError, RefusedError, Registry, RejectedError,
                    Request, RightsError,
                    StaleError, StateError, Stream,
                    SystemFailureError, Tensor, TimeoutError, TruncatedError, UnreachableError, UnsupportedError, VersionError,
                    Watch, WeftError, __version__)
from ._core import (Action, Block, BufferView, DeviceView, Memory, MemoryElement, Mirror, Region, Remote, Store, StoreServer,
                    Transport, memory_kinds)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import codes
    from ._client import Client
    from ._hints import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
    from ._registry import Change, Entry
    from ._runtime import Notification, Runtime, am_handler, client, connect, listen, region, registry, runtime
    from ._serving import BlockingServer, Server
    from ._tls import TLS
    from .array import RemoteArray
    from .service import Service
else:
    # Loaded at first use: an element that runs for milliseconds must not load asyncio.
    _WHERE = {name: module for module, names in {
        "codes": "", "array": "RemoteArray", "service": "Service", "_client": "Client", "_registry": "Change Entry",
        "_serving": "BlockingServer Server", "_tls": "TLS", "_hints": "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64",
        "_runtime": "Notification Runtime am_handler client connect listen region registry runtime"}.items()
              for name in (module, *names.split())}

    def __getattr__(name):
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module
        module = import_module("." + _WHERE[name], __name__)
        found = globals()[name] = module if _WHERE[name] == name else getattr(module, name)
        return found

    def __dir__():
        return sorted({*globals(), *_WHERE})

__all__ = ["AddressError", "AgainError", "AuthError", "BlockingServer", "CallError", "CancelledError", "Change", "Claim",
           "Client", "ClosedError",
           "CorruptError", "DoneError", "Endpoint", "Entry", "ForkedError", "InvalidError", "LimitError", "Listener", "Message",
           "Method",
           "NoMemoryError", "NotFoundError", "Op", "OwnedBuffer", "PeerError", "PendingError", "PermissionDeniedError",
           "ProtocolError", "RangeError", "RefusedError",
           "Registry",
           "RejectedError",
           "Request", "RightsError", "Runtime", "Server", "Service", "StaleError", "StateError", "Stream", "SystemFailureError",
           "TLS", "Tensor",
           "TimeoutError", "TruncatedError", "UnreachableError", "UnsupportedError", "VersionError", "Watch", "WeftError",
           "__version__",
           "am_handler", "client", "codes", "config", "connect", "f32", "f64", "i16", "i32", "i64", "i8", "info", "listen",
           "registry",
           "runtime", "u16", "u32", "u64", "u8"]
__all__ += ["Action", "Block", "BufferView", "DeviceView", "Memory", "MemoryElement", "Mirror", "Notification", "Region",
            "Remote", "RemoteArray", "Store", "StoreServer",
            "Transport", "memory_kinds", "region"]


def config() -> dict[str, tuple[str, str]]:
    """Every configuration variable, as {name: (value, where it came from)}."""
    return {name: (value or "", source or "") for name, value, source, _ in _core.config()}


def info() -> dict[str, str]:
    """Facts about this build and this machine."""
    return {name: value or "" for name, value, _, _ in _core.info()}
