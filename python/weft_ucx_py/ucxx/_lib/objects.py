"""What objects of `ucxx` have in common: two numbers, and the switches that Weft does not need.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

from ucp._libs.objects import UCXObject


class Numbered:
    """An object around one of `ucp`: each of the two has a number."""

    _inner: UCXObject
    _number: int

    @property
    def handle(self) -> int:
        """Its number: that of no other object of this process, ever."""
        return self._inner.handle

    @property
    def ucxx_ptr(self) -> int:
        """Another number of its own."""
        return self._number


class MadeWith:
    """An object that knows what it was made with."""

    _delayed: bool
    _futures: bool

    @property
    def enable_delayed_submission(self) -> bool:
        """What it was made with. Weft does not need it: threads that post do not wait for the one that drives."""
        return self._delayed

    @property
    def enable_python_future(self) -> bool:
        """What it was made with. Weft does not need it: who awaits is woken in any case."""
        return self._futures
