"""Memory of a GPU: what of `ucp_py` needs one. Where there is none, weft.UnsupportedError says so, and nothing else of `ucp_py` needs it.

tests/python/test_ucp_py_memory.py holds us to it.
"""
from __future__ import annotations

from typing import Any, NoReturn

import weft


def _none() -> NoReturn:
    raise weft.UnsupportedError("there is no GPU that could be used here: alloc_host() has ordinary memory")


def use_device(dev: int) -> None:
    """Have this thread use that GPU."""
    _none()


def alloc(n: int) -> Any:
    """That many bytes of the GPU."""
    _none()


def part(memory: Any, n: int) -> Any:
    """Its first bytes."""
    _none()


def write(memory: Any, data: bytes) -> None:
    """Put bytes at its beginning."""
    _none()


def read(memory: Any, n: int) -> bytes:
    """Its first bytes, copied."""
    _none()
