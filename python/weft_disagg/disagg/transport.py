"""Transports as programs have them: the extension's, with what takes Python to say.

reg, read, write, buf and their like are weft._core.Transport's own, so that a call of a program is a call of the extension.
tests/python/test_disagg_transport.py holds us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weft._core import BlockingTransport as _Transport

    from .arrays import ElementArray
else:
    from weft._core import Transport as _Transport

__all__ = ["LibdRDMAServer", "LibdRDMATransport", "LibdTransport", "LibdTransportRDMA", "LibdTransportRDMAServer"]


class LibdTransport(_Transport):
    """The link of an action to an element, by name. action.get_transport() gives them; they may be had before they are usable."""

    __slots__ = ()

    def get_msg(self) -> tuple[int, str]:
        """What the other side has to be told, and how long that is, as Scad's launchers ask for it: (0, ""), or a server's
        durl once it serves."""
        return 0, ""

    def describe(self) -> str:
        """What there is to say about its state: "" while it is usable, else a sentence."""
        state, why = self.state, self.why
        if state == "ready":
            return ""
        if state == "waiting":
            return f"the transport {self.name} waits to be told where its element is"
        said = f"the transport {self.name} is {state}"
        return said if why is None else f"{said}: {why.__doc__}"

    def __repr__(self) -> str:
        return f"<disagg.{type(self).__name__} {self.name!r}, {self.state}>"


class LibdRDMATransport(LibdTransport):
    """Of type "rdma": reads and writes the memory of an element."""

    __slots__ = ()

    def remote_array(self, dtype: Any, shape: int | tuple[int, ...], offset: int = 0, *, timeout: float
                     | None = None) -> ElementArray:
        """A numpy array in the element's memory, from `offset` bytes on: fetches what is read, writes back what was written on
        flush() and close().

        Waits for the element first. No buffer need be registered, and one that is stays as it is. `timeout` is for how many
        seconds that wait, and every fetch and flush, may take.
        """
        from .arrays import ElementArray
        self.wait_ready(timeout)
        return ElementArray(self, dtype, shape, offset, timeout=timeout)


class LibdRDMAServer(LibdTransport):
    """Of type "rdma_server": this process has the memory, and serve() serves it."""

    __slots__ = ()

    def get_msg(self) -> tuple[int, str]:
        """Its durl, with which config_transport() of others leads here, and how long that is; (0, "") before it serves."""
        durl = self.durl or ""
        return len(durl), durl


LibdTransportRDMA = LibdRDMATransport  # as libd calls them
LibdTransportRDMAServer = LibdRDMAServer
