"""disagg: what programs in elements, written for Scad, are given: actions and transports to memory elements.

    def main(params, action):
        trans = action.get_transport("mem", "rdma")
        trans.reg(4096)
        trans.buf[0:5] = b"hello"
        trans.write(5, addr=0)

`weft run DIR` runs a directory of such programs on this machine, and OpenWhisk runs them elsewhere: docs/guide/elements.md. What
is not asked for is not loaded: an element may live for a few milliseconds only.
"""
from .action import LibdAction
from .runtime import Backend, InvokeError, Runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .arrays import ElementArray
    from .transport import LibdRDMAServer, LibdRDMATransport, LibdTransport, LibdTransportRDMA, LibdTransportRDMAServer
else:
    _WHERE = {"ElementArray": "arrays", "LibdRDMAServer": "transport", "LibdRDMATransport": "transport",
              "LibdTransport": "transport", "LibdTransportRDMA": "transport", "LibdTransportRDMAServer": "transport"}

    def __getattr__(name):
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module
        found = globals()[name] = getattr(import_module("." + _WHERE[name], __name__), name)
        return found

    def __dir__():
        return sorted({*globals(), *_WHERE})

__all__ = ["Backend", "ElementArray", "InvokeError", "LibdAction", "LibdRDMAServer", "LibdRDMATransport", "LibdTransport",
           "LibdTransportRDMA", "LibdTransportRDMAServer", "Runtime"]
