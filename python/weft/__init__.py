"""Weft: messages between processes and machines, for asyncio and for threads.

    async with weft.listen("tcp://127.0.0.1:0", handler) as listener: ...
    ep = await weft.connect(listener.uri)
    await ep.send(b"hello", tag=1)
    data = await ep.recv(tag=2)

`weft.blocking` has the same for programs without an event loop. Every failure is a WeftError; its class and `status` say which.
"""
from . import _core
from ._core import *  # noqa: F403  the exceptions, one per status
from ._core import Endpoint, Listener, Message, Op, WeftError, __version__
from ._runtime import Runtime, am_handler, connect, listen, runtime

__all__ = ["Endpoint", "Listener", "Message", "Op", "Runtime", "WeftError", "__version__", "am_handler", "config", "connect", "info",
           "listen", "runtime"]
__all__ += [name for name in vars(_core) if name.endswith("Error") and name not in __all__]


def config() -> dict[str, tuple[str, str]]:
    """Every configuration variable, as {name: (value, where it came from)}."""
    return {name: (value or "", source or "") for name, value, source, _ in _core.config()}


def info() -> dict[str, str]:
    """Facts about this build and this machine."""
    return {name: value or "" for name, value, _, _ in _core.info()}
