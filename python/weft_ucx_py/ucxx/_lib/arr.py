"""Array: the memory of an object, on the host or on a GPU. It is that of `ucp`."""
from ucp._libs.arr import Array, asarray

__all__ = ["Array", "asarray"]
