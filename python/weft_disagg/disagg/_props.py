"""The props of action.runtime.invoke(): what is different about the new element. The same words for every launcher of ours.

    params    the parameters of one that computes          type             "memory" or "compute" (OpenWhisk)
    size      bytes of one that is memory, or "64 MB"      grace, patience  seconds that memory waits for users (OpenWhisk)
    limits    {"mem": ...} is the same as size

A key that is none of these is refused: a misspelt `size` would give memory of the size of the template, and no error.
tests/python/test_scad_names.py and test_openwhisk_api.py hold us to it.
"""
from __future__ import annotations

from .runtime import InvokeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["check", "size_of"]

PROPS = ("params", "size", "limits", "type", "grace", "patience")
LIMITS = ("mem", "cpu", "storage", "time")


def _known(word: object, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        from ._words import meant
        raise InvokeError(f"{what} has {word!r}, which is none of {', '.join(known)}{meant(word, known)}")


def _bytes(value: Any, what: str) -> int:
    from . import _size
    try:
        return _size.of(value)
    except ValueError:
        raise InvokeError(f'props: {what} is neither a number of bytes nor a text such as "64M"') from None


def size_of(props: dict[str, Any]) -> int | None:
    """How large the memory shall be, if props say. InvokeError: they say two sizes, or none that is one."""
    limits = props.get("limits") or {}
    said = [_bytes(value, what) for value, what in ((limits.get("mem"), "limits.mem"), (props.get("size"), "size"))
            if value is not None]
    if len(set(said)) > 1:
        raise InvokeError(f"props: limits.mem is {said[0]} bytes and size is {said[1]}: say one of them")
    return said[0] if said else None


def check(props: dict[str, Any]) -> None:
    """InvokeError: there is a key that means nothing, or a value that cannot be right."""
    for word in props:
        _known(word, PROPS, "props")
    limits = props.get("limits")
    if limits is not None and not isinstance(limits, dict):
        raise InvokeError("props: limits is not a dict")
    for word in limits or {}:
        _known(word, LIMITS, "limits of props")
        if word != "mem":
            import warnings
            warnings.warn(f"props: limits.{word} is ignored: a new element has that of its template", RuntimeWarning,
                          stacklevel=5)
    params = props.get("params")
    if params is not None and not isinstance(params, dict):
        raise InvokeError("props: params is not a dict")
    size_of(props)
