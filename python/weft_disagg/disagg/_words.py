"""Words that programs pass to this package, and what is to be said of one that is not known.

Not loaded unless there is one. tests/python/test_scad_names.py holds us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["meant"]


def meant(word: object, known: Iterable[str]) -> str:
    """" (did you mean 'X'?)", or "" where nothing is near."""
    from difflib import get_close_matches
    near = get_close_matches(str(word), list(known), 1, 0.75)
    return f" (did you mean {near[0]!r}?)" if near else ""
