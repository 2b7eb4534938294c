"""JSON for elements, without what the json package loads: that is a third of what an element that does nothing costs beyond its
interpreter.

The work is done by the interpreter's own _json, as the json package has it done. Where that module is missing, or is not as it
was, the json package does it: the same texts and the same values either way, and ValueError or RecursionError for what is no
JSON. NaN and infinities are none. tests/python/test_disagg_text.py holds us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["dumps", "loads"]

BLANK = " \t\n\r"


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _default(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _How:  # the attributes that the scanner reads from a decoder
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, staticmethod(_constant)


def _quick() -> tuple[Any, Any]:
    """Both ways by _json; ImportError or whatever else: it cannot be used."""
    import _json
    how: Any = _How
    scan = _json.make_scanner(how)

    def read(text: str) -> Any:
        try:
            value, end = scan(text, len(text) - len(text.lstrip(BLANK)))
        except StopIteration:
            raise ValueError("there is no value") from None
        if text[end:].strip(BLANK):
            raise ValueError("there is more than one value")
        return value

    def write(value: Any, ascii_only: bool) -> str:
        how = _json.encode_basestring_ascii if ascii_only else _json.encode_basestring
        return "".join(_json.make_encoder({}, _default, how, None, ": ", ", ", False, False, False)(value, 0))

    if (read(' {"a": [1, -2.5, "\\u00e9", null]} ') != {"a": [1, -2.5, "\u00e9", None]}
            or write([{"a": "\u00e9"}, 1.5], True) != '[{"a": "\\u00e9"}, 1.5]'):
        raise ImportError("_json is not what it was")
    return read, write


def _slow() -> tuple[Any, Any]:
    """Both ways by the json package."""
    import json
    return (lambda text: json.loads(text, parse_constant=_constant),
            lambda value, ascii_only: json.dumps(value, allow_nan=False, ensure_ascii=ascii_only))


try:
    _read, _write = _quick()
except Exception:  # it uses private parts of the interpreter, which may change
    _read, _write = _slow()


def loads(text: bytes) -> Any:
    """The value that a text in UTF-8 is."""
    return _read(text.decode())


def dumps(value: Any) -> str:
    """A text that can be encoded in UTF-8: with the letters that are in the value, unless some of them are halves of one."""
    text: str = _write(value, False)
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        text = _write(value, True)
    return text
