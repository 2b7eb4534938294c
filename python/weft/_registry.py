"""What registries have in them: entries and changes, as the extension makes them and people read them.
tests/python/test_registry.py holds it."""
from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """An instance of a service: `address` is where it is reached, `load` from 0 (idle) to 1000 (full), `data` bytes for
    whoever looks."""

    service: str
    instance: str
    address: str
    load: int
    data: bytes

    @property
    def functions(self) -> list[str]:
        """The signatures of its functions, where its data is what services of this library enter: a line for each, number and
        signature."""
        lines = self.data.decode("utf-8", "replace").splitlines()
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0].isdigit()]


class Change(NamedTuple):
    """What a watch tells: `kind` is "came", "changed" or "went"."""

    kind: str
    entry: Entry
