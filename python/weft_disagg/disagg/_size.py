"""Sizes of memory as people and programs write them: a number of bytes, or a text with its unit, as `weft run` reads it.

tests/python/test_openwhisk_init.py, test_openwhisk_memory.py and test_openwhisk_api.py hold us to it.
"""
from __future__ import annotations

import re

__all__ = ["of", "of_limit", "of_text"]

LARGEST = 1 << 46
_TEXT = re.compile(r"([0-9]{1,20})(?:([kmgt])(?:i?b)?|b)", re.ASCII | re.IGNORECASE)


def of_text(text: object) -> int:
    """Bytes of "64M", "1 MB", "2G", "512 B". ValueError: it is none."""
    match = _TEXT.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    found = int(match[1]) << 10 * "bkmgt".index((match[2] or "b").lower()) if match else 0
    if not 0 < found < LARGEST:
        raise ValueError(f"{text!r} is not a size with its unit: 512M, 64 MB, 2G")
    return found


def of(value: object) -> int:
    """Bytes of such a text, or of a number, which may be an integral float. ValueError: it is none."""
    if isinstance(value, str):
        return of_text(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < LARGEST or value != int(value):
        raise ValueError(f"{value!r} is not a number of bytes")
    return int(value)


def of_limit(text: object) -> int:
    """Bytes of such a text in the metadata of an element, where a number without a unit means MB, as in Scad. ValueError."""
    return of_text(f"{text}M" if isinstance(text, str) and text.strip().isdecimal() and text.isascii() else text)
