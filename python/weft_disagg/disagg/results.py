"""The results of a parent, as its children get them: a list of what its copies returned, that also answers as the dict of the
first of them.

Programs index them both ways: params["split"][0]["words"], and params["split"]["words"], which is natural for a parent of one
copy. tests/python/test_disagg_element.py holds us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import ItemsView, KeysView, ValuesView
    from typing import Any

__all__ = ["Results", "results"]


class Results(list):  # type: ignore[type-arg]
    """Results of copies, in their order. What a list has no answer to is asked of the first one."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self[0][key]
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self[0] if isinstance(key, str) and self else super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Of the first result."""
        return self[0].get(key, default)

    def keys(self) -> KeysView[str]:
        """Of the first result."""
        found: KeysView[str] = self[0].keys()
        return found

    def values(self) -> ValuesView[Any]:
        """Of the first result."""
        found: ValuesView[Any] = self[0].values()
        return found

    def items(self) -> ItemsView[str, Any]:
        """Of the first result."""
        found: ItemsView[str, Any] = self[0].items()
        return found


def results(params: Any) -> Any:
    """The parameters of main(), in which lists of dicts answer both ways."""
    if not isinstance(params, dict):
        return params
    return {key: Results(value) if isinstance(value, list) and value and all(isinstance(one, dict) for one in value) else value
            for key, value in params.items()}
