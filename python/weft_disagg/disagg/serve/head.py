"""The YAML of elements: the lines `#@ ` of NAME.o.py, and NAME.o.yaml, as PyYAML reads it.

PyYAML is loaded when there is some to read: an action that is a plain program needs none. Every value that is no mapping or list
is a text, and nothing in it makes objects; what refers to something else (anchors), has a tag, is there twice or too deep is
refused with the number of its line. tests/python/test_openwhisk_init.py holds us to it.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEPTH = 32
LONGEST = 1 << 18


class NotYaml(ValueError):
    """What is wrong, and in which line."""


def _where(mark: Any) -> str:
    return f"line {mark.line + 1}: " if mark is not None else ""


class _Reader:
    """Values of what PyYAML has parsed."""

    def __init__(self, text: str, yaml: Any) -> None:
        self.yaml = yaml
        # the parser in Python: libyaml recurses in C, and a hostile text sets the depth
        self.events = yaml.parse(text, Loader=yaml.BaseLoader)

    def next(self) -> Any:
        return next(self.events)

    def document(self) -> Any:
        """The one value of the text; None: there is none."""
        found = None
        for event in self.events:
            if isinstance(event, self.yaml.DocumentStartEvent):
                if found is not None:
                    raise NotYaml(f"{_where(event.start_mark)}a second document begins")
                found = self.value(self.next(), 0)
        return found

    def value(self, event: Any, depth: int) -> Any:
        where = _where(event.start_mark)
        if depth > DEPTH:
            raise NotYaml(f"{where}too deep")
        if isinstance(event, self.yaml.AliasEvent) or event.anchor is not None or event.tag not in (None, "!"):
            raise NotYaml(f"{where}anchors, aliases and tags are more of YAML than elements have")
        if isinstance(event, self.yaml.ScalarEvent):
            return event.value
        if isinstance(event, self.yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := self.next(), self.yaml.SequenceEndEvent):
                items.append(self.value(event, depth + 1))
            return items
        pairs: dict[str, Any] = {}
        while not isinstance(event := self.next(), self.yaml.MappingEndEvent):
            key, where = self.value(event, depth + 1), _where(event.start_mark)
            if not isinstance(key, str):
                raise NotYaml(f"{where}a key is a text")
            if key in pairs:
                raise NotYaml(f"{where}{key[:40]!r} is there twice")
            pairs[key] = self.value(self.next(), depth + 1)
        return pairs


def read(text: str) -> dict[str, Any]:
    """What the YAML of an element says. NotYaml: it cannot be read."""
    if len(text) > LONGEST:
        raise NotYaml(f"it has {len(text)} characters, and {LONGEST} are the most")
    from importlib import import_module
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise NotYaml("PyYAML is not here, which reads it: install python3-yaml (Debian) or pyyaml (PyPI) in the image") from None
    try:
        found = _Reader(text, yaml).document()
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise NotYaml(f"{_where(getattr(error, 'problem_mark', None))}{problem}") from None
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise NotYaml("line 1: 'KEY: VALUE' is wanted")
    return found


def of_program(source: str) -> dict[str, Any]:
    """What the lines `#@ ` at the head of a program say; they keep their numbers."""
    lines = source.splitlines()
    if not any(line.startswith("#@") for line in lines):
        return {}
    return read("\n".join(line[2:].removeprefix(" ") if line.startswith("#@") else "" for line in lines).rstrip("\n"))
