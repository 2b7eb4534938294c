"""Data as text, and back: what processes of a cluster tell each other. No pickle, so nothing of a stranger's choice is made.

JSON has numbers, text, None, lists, and dicts whose keys are text. What else there is, tuples, sets, bytes, complex numbers,
other dicts, and arrays and numbers of numpy, is a dict with one key, the name of its type, which no dict of a program can be
taken for.

tests/python/test_ucp_cluster.py holds us to it.
"""
from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy

_ARRAY = re.compile(r"[<>|][biufcSUmM?]\d{1,5}(\[\d{0,4}[a-zA-Z]{1,2}\])?")
_MARK = "="  # before the name of a type


def _plain(obj: Any) -> Any:
    if obj is None or isinstance(obj, (bool, int, float, str)) and not isinstance(obj, numpy.generic):
        return obj
    if isinstance(obj, (numpy.ndarray, numpy.generic)):
        array = numpy.ascontiguousarray(obj)
        if not _ARRAY.fullmatch(array.dtype.str):
            raise TypeError(f"an array of {array.dtype} cannot be sent: numbers, dates and strings of a fixed length can")
        kind = "number" if isinstance(obj, numpy.generic) else "array"
        return {_MARK + kind: [array.dtype.str, list(numpy.shape(obj)), base64.b64encode(array.tobytes()).decode()]}
    if isinstance(obj, list):
        return [_plain(item) for item in obj]
    if isinstance(obj, (tuple, set, frozenset)):
        return {_MARK + type(obj).__name__: [_plain(item) for item in obj]}
    if isinstance(obj, (bytes, bytearray)):
        return {_MARK + type(obj).__name__: base64.b64encode(obj).decode()}
    if isinstance(obj, complex):
        return {_MARK + "complex": [obj.real, obj.imag]}
    if isinstance(obj, dict):
        if all(isinstance(key, str) and not key.startswith(_MARK) for key in obj):
            return {key: _plain(value) for key, value in obj.items()}
        return {_MARK + "dict": [[_plain(key), _plain(value)] for key, value in obj.items()]}
    raise TypeError(f"a {type(obj).__name__} is not data: send numbers, text, bytes, lists, tuples, sets, dicts, or arrays of "
                    "numpy")


def _array(value: Any) -> Any:
    dtype, shape, text = value
    if not _ARRAY.fullmatch(dtype):
        raise ValueError(f"an array of {dtype!r} is none of ours")
    return numpy.frombuffer(base64.b64decode(text), dtype=dtype).reshape([int(n) for n in shape]).copy()


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "array": _array, "number": lambda v: _array(v)[()], "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict,
    "bytes": base64.b64decode, "bytearray": lambda v: bytearray(base64.b64decode(v)), "complex": lambda v: complex(*v)}


def _made(items: dict[str, Any]) -> Any:
    for key, value in items.items():
        if key.startswith(_MARK):
            return _MAKERS[key[len(_MARK):]](value)
    return items


def packed(obj: Any) -> bytes:
    """Data as bytes. TypeError if it is none."""
    return json.dumps(_plain(obj)).encode()


def unpacked(data: bytes) -> Any:
    """What packed() had. ValueError if these bytes are not from there."""
    try:
        return json.loads(data, object_hook=_made)
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"these bytes are no data of ours: {error!r}") from error
