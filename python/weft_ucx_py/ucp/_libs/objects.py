"""What the objects of `ucx_api` have in common: a number of their own, an end, and the features of a context.

tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import enum
import itertools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from ..exceptions import UCXCloseError

Callback = Callable[..., object]

_logger = logging.getLogger("ucx")
_numbers = itertools.count(0x10000, 0x10)


class Feature(enum.Enum):
    """What a context is used for; an operation of another feature is refused."""

    TAG = 1
    RMA = 2
    AMO32 = 4
    AMO64 = 8
    WAKEUP = 16
    STREAM = 32
    AM = 64


class AllocatorType(enum.IntEnum):
    """Where an allocator of active messages makes memory."""

    HOST = 0
    CUDA = 1
    UNSUPPORTED = 2


class UCXObject:
    """Something that is open until it is closed, what depends on it before it."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._open = True
        self._children: weakref.WeakSet[UCXObject] = weakref.WeakSet()

    @property
    def handle(self) -> int:
        """Its number: that of no other object of this process, ever."""
        self._check()
        return self._number

    @property
    def initialized(self) -> bool:
        """True until it is closed."""
        return self._open

    def closed(self) -> bool:
        """True once it is closed."""
        return not self._open

    def close(self) -> None:
        """Close it and what was made from it. More than once does nothing."""
        if not self._open:
            return
        for child in tuple(self._children):
            child.close()
        self._open = False
        self._close()

    def _close(self) -> None:
        """What closing it takes."""

    def _check(self) -> None:
        if not self._open:
            raise UCXCloseError(f"the {type(self).__name__} is closed")


def call_back(function: Callback | None, *args: Any, args_more: tuple[Any, ...] | None = None,
              kwargs: dict[str, Any] | None = None) -> None:
    """Call a program's function; what it raises is logged, since nobody could catch it."""
    if function is None:
        return
    try:
        if kwargs:
            function(*args, *(args_more or ()), **kwargs)
        elif args_more:
            function(*args, *args_more)
        else:
            function(*args)
    except Exception as error:
        _logger.exception(str(error))
