"""The results of a parent, as its children get them: a list of what its copies returned. If there is one copy, the list also
answers as that result, a dict.

Programs index them both ways: params["split"][0]["words"], and params["split"]["words"], which is natural for a parent of one
copy. With several copies the second form would have to choose one of them, and be wrong for the others without an error: it
raises. tests/python/test_disagg_element.py and test_scad_names.py hold us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import ItemsView, KeysView, ValuesView
    from typing import Any

__all__ = ["Results", "results"]


class Results(list):  # type: ignore[type-arg]
    """Results of copies, in their order. What a list has no answer to is asked of the only one there is."""

    __slots__ = ()

    def _only(self, what: str) -> Any:
        if len(self) != 1:
            raise TypeError(f"{what} is asked of the results of {len(self)} copies, which are a list: say which copy, as in "
                            "params[PARENT][0][KEY], or go through all of them")
        return super().__getitem__(0)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._only(f"[{key!r}]")[key]
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self._only(f"{key!r} in") if isinstance(key, str) else super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Of the only result."""
        return self._only(f"get({key!r})").get(key, default)

    def keys(self) -> KeysView[str]:
        """Of the only result."""
        found: KeysView[str] = self._only("keys()").keys()
        return found

    def values(self) -> ValuesView[Any]:
        """Of the only result."""
        found: ValuesView[Any] = self._only("values()").values()
        return found

    def items(self) -> ItemsView[str, Any]:
        """Of the only result."""
        found: ItemsView[str, Any] = self._only("items()").items()
        return found


def results(params: Any) -> Any:
    """The parameters of main(), in which lists of dicts answer both ways."""
    if not isinstance(params, dict):
        return params
    return {key: Results(value) if isinstance(value, list) and value and all(isinstance(one, dict) for one in value) else value
            for key, value in params.items()}
