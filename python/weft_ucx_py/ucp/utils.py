"""What ucp's modules share: the logger, the event loop, and hashes that are the same in every process.

Promise: hash64bits() gives the same number in every process, whatever PYTHONHASHSEED is. tests/python/test_ucp_tags.py holds us
to it.
"""
from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import operator
import os
import socket
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

from ._libs.utils import format_bytes, format_time, get_address, parse_bytes, print_key_value, print_multi, print_separator

__all__ = ["format_bytes", "format_time", "get_address", "get_event_loop", "get_ucxpy_logger", "hash64bits", "hmean",
           "parse_bytes",
           "print_key_value", "print_multi", "print_separator"]


_T = TypeVar("_T")


# --- the log ---------------------------------------------------------------------------------------------------------


class _Origin(logging.Filter):
    """Gives every record the host and the time as the format has them."""

    def __init__(self) -> None:
        super().__init__()
        self.host = socket.gethostname()

    def filter(self, record: logging.LogRecord) -> bool:
        record.hostname, record.timestamp = self.host, f"{record.created:.6f}"
        return True


def get_ucxpy_logger() -> logging.Logger:
    """The logger "ucx", which writes lines such as `[time] [host:pid] UCXPY  DEBUG ...` to stderr; UCXPY_LOG_LEVEL is its level.

    It is the same logger each time, with one handler however often it is asked for.
    """
    logger = logging.getLogger("ucx")
    if not any(isinstance(f, _Origin) for h in logger.handlers for f in h.filters):
        handler = logging.StreamHandler()
        handler.addFilter(_Origin())
        handler.setFormatter(logging.Formatter("[%(timestamp)s] [%(hostname)s:%(process)d] UCXPY  %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        level = os.environ.get("UCXPY_LOG_LEVEL", "WARNING").strip().upper()
        try:
            logger.setLevel(int(level) if level.isdigit() else level)
        except ValueError:
            logger.setLevel(logging.WARNING)
            logger.warning('UCXPY_LOG_LEVEL is "%s", which is no level: DEBUG, INFO, WARNING, ERROR or CRITICAL', level)
    return logger


# --- loops -----------------------------------------------------------------------------------------------------------


def get_event_loop() -> asyncio.AbstractEventLoop:
    """The running event loop; outside of one, this thread's own, which is made if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loop = asyncio.get_event_loop()
        if not loop.is_closed():
            return loop
    except RuntimeError:
        pass
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


if sys.version_info >= (3, 11):
    async def within(seconds: float | None, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What a coroutine gives. TimeoutError if it takes longer than that."""
        async with asyncio.timeout(seconds):
            return await coroutine
else:
    class _Timeout(asyncio.TimeoutError, TimeoutError):
        """Both: in 3.10 asyncio has one of its own."""

    async def within(seconds: float | None, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What a coroutine gives. TimeoutError, and asyncio's, if it takes longer than that."""
        try:
            return await asyncio.wait_for(coroutine, seconds)
        except asyncio.TimeoutError:
            raise _Timeout from None


# --- numbers ---------------------------------------------------------------------------------------------------------


def _spelled(value: Any) -> bytes:
    """One spelling for equal values, and another for others: what hash() is within one process."""
    if value is None:
        return b"n"
    if isinstance(value, enum.Enum) and not isinstance(value, int):
        return b"e" + _spelled((type(value).__qualname__, value.name))
    if isinstance(value, str):
        return b"s%d:" % len(value) + value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return b"b%d:" % len(data) + data
    if isinstance(value, tuple):
        return b"t%d:" % len(value) + b"".join(map(_spelled, value))
    if isinstance(value, frozenset):
        return b"f%d:" % len(value) + b"".join(sorted(map(_spelled, value)))
    if isinstance(value, float):
        return b"i%d" % int(value) if value.is_integer() else b"d" + value.hex().encode()
    try:
        return b"i%d" % operator.index(value)
    except TypeError:
        raise TypeError(f"{type(value).__name__} has no hash that is the same in every process, so no peer could match it: use "
                        f"numbers, strings, "
                        "bytes, enumerations, None, or tuples and frozensets of those") from None


def hash64bits(*args: Any) -> int:
    """A hash of 64 bits, without sign, of numbers, strings, bytes, and tuples of such. Equal in every process."""
    return int.from_bytes(hashlib.blake2b(_spelled(args), digest_size=8).digest(), "little")


def hmean(a: Any) -> float:
    """The harmonic mean of numbers: what an average of rates is."""
    values = [float(x) for x in a]
    if not values:
        raise ValueError("there is no mean of nothing: give at least one number")
    if any(x < 0 for x in values):
        raise ValueError("a harmonic mean is of numbers that are not negative")
    return 0.0 if 0.0 in values else len(values) / sum(1 / x for x in values)
