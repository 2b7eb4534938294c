"""The YAML of elements: the lines `#@ ` of NAME.o.py, and NAME.o.yaml. As much of YAML as those have, without a package for it.

Mappings and lists by indentation, [a, b] and {a: b} within a line, plain and quoted texts, comments. Whatever else there is (anchors, tags, texts
over several lines) is refused with the number of its line. Every value that is no mapping or list is a text.
tests/python/test_openwhisk_init.py holds us to it.
"""
from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEPTH = 32
LARGEST = 1 << 46
_SIZE = re.compile(r"([0-9]{1,20})(?:([kmgt])(?:i?b)?)", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"""("[^"\\]*"|'[^']*'|[^\s\[\]{},"'#&*!|>%@`:-][^:\[\]{},"'#]*?)\s*:(?:\s+|$)""")


class NotYaml(ValueError):
    """What is wrong, and in which line."""


class _Line:
    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number, self.indent, self.text = number, indent, text


def _plain(text: str) -> str:
    """A line without its comment."""
    quote = ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'" and (i == 0 or text[i - 1] in " [{,:"):
            quote = c
        elif c == "#" and (i == 0 or text[i - 1] in " \t"):
            return text[:i].rstrip()
    return text.rstrip()


def _unquoted(text: str, number: int) -> str:
    if text[:1] in ("\"", "'"):
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or (text[0] == '"' and "\\" in text):
            raise NotYaml(f"line {number}: the text {text[:40]!r} does not end where it should, or has an escape, which is not read here")
        return text[1:-1]
    if text[:1] in tuple("&*!|>%@`"):
        raise NotYaml(f"line {number}: {text[:40]!r} is more of YAML than elements have")
    return text


class _Flow:
    """[...], {...} and texts within a line."""

    def __init__(self, text: str, number: int) -> None:
        self.text, self.number, self.at = text, number, 0

    def fail(self, wanted: str) -> NotYaml:
        return NotYaml(f"line {self.number}: {wanted} is wanted at {self.text[self.at:self.at + 20]!r}")

    def skip(self) -> str:
        while self.text[self.at:self.at + 1] in (" ", "\t"):
            self.at += 1
        return self.text[self.at:self.at + 1]

    def value(self, depth: int = 0) -> Any:
        if depth > DEPTH:
            raise NotYaml(f"line {self.number}: too deep")
        c = self.skip()
        if c == "[":
            found: list[Any] = []
            self.at += 1
            while self.skip() != "]":
                found.append(self.value(depth + 1))
                self.comma("]")
            self.at += 1
            return found
        if c == "{":
            pairs: dict[str, Any] = {}
            self.at += 1
            while self.skip() != "}":
                key = self.word(":,}")
                if self.skip() != ":":
                    raise self.fail("a ':'")
                self.at += 1
                pairs[key] = "" if self.skip() in (",", "}") else self.value(depth + 1)
                self.comma("}")
            self.at += 1
            return pairs
        return self.word(",]}")

    def comma(self, end: str) -> None:
        c = self.skip()
        if c == ",":
            self.at += 1
        elif c != end:
            raise self.fail(f"',' or {end!r}")

    def word(self, ends: str) -> str:
        c, begin = self.skip(), self.at
        if c and c in "\"'":
            end = self.text.find(c, self.at + 1)
            if end < 0:
                raise self.fail(f"another {c}")
            self.at = end + 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ends + "[{":
                self.at += 1
        word = self.text[begin:self.at].rstrip()
        if not word:
            raise self.fail("a text")
        return _unquoted(word, self.number)


class _Block:
    """Lines by indentation."""

    def __init__(self, lines: list[_Line]) -> None:
        self.lines, self.at = lines, 0

    def value(self, indent: int, depth: int) -> Any:
        if depth > DEPTH:
            raise NotYaml(f"line {self.lines[self.at].number}: too deep")
        first = self.lines[self.at]
        return self.list(indent, depth) if first.text == "-" or first.text.startswith("- ") else self.mapping(indent, depth)

    def nested(self, indent: int, depth: int, lists: bool) -> Any:
        """What stands below a line: deeper than that, or a list at its own depth."""
        if self.at < len(self.lines):
            below = self.lines[self.at]
            if below.indent > indent or (lists and below.indent == indent and (below.text == "-" or below.text.startswith("- "))):
                return self.value(below.indent, depth + 1)
        return ""

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.at < len(self.lines) and self.lines[self.at].indent == indent and not self.lines[self.at].text.startswith("- "):
            line = self.lines[self.at]
            match = _KEY.match(line.text)
            if match is None:
                raise NotYaml(f"line {line.number}: 'KEY: VALUE' is wanted, and not {line.text[:40]!r}")
            key, rest = _unquoted(match[1], line.number), line.text[match.end():].strip()
            if key in found:
                raise NotYaml(f"line {line.number}: {key[:40]!r} is there twice")
            self.at += 1
            found[key] = self.scalar(rest, line) if rest else self.nested(indent, depth, True)
        self.ended(indent)
        return found

    def list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self.at < len(self.lines) and self.lines[self.at].indent == indent and (self.lines[self.at].text + " ").startswith("- "):
            line = self.lines[self.at]
            rest = line.text[1:].lstrip()
            if rest and _KEY.match(rest):  # the first of a mapping's lines
                self.lines[self.at] = _Line(line.number, indent + len(line.text) - len(rest), rest)
                found.append(self.mapping(self.lines[self.at].indent, depth + 1))
                continue
            self.at += 1
            found.append(self.scalar(rest, line) if rest else self.nested(indent, depth, False))
        return found

    def scalar(self, text: str, line: _Line) -> Any:
        if text[0] not in "[{":
            return _unquoted(text, line.number)
        flow = _Flow(text, line.number)
        found = flow.value()
        if flow.skip():
            raise flow.fail("the end of the line")
        return found

    def ended(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise NotYaml(f"line {self.lines[self.at].number}: it is indented more than what it belongs to")


def read(text: str) -> dict[str, Any]:
    """What the YAML of an element says. NotYaml: it cannot be read."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        shown = _plain(line.lstrip(" "))
        if line.lstrip(" ").startswith("\t"):
            raise NotYaml(f"line {number}: it is indented by a tab")
        if shown and not (shown in ("---", "...") and not line.startswith(" ")):
            lines.append(_Line(number, len(line) - len(line.lstrip(" ")), shown))
    if not lines:
        return {}
    block = _Block(lines)
    found = block.value(lines[0].indent, 0)
    if block.at < len(lines):
        raise NotYaml(f"line {lines[block.at].number}: it is indented less than what it belongs to")
    if not isinstance(found, dict):
        raise NotYaml(f"line {lines[0].number}: 'KEY: VALUE' is wanted")
    return found


def of_program(source: str) -> dict[str, Any]:
    """What the lines `#@ ` at the head of a program say; they keep their numbers."""
    return read("\n".join(line[2:].removeprefix(" ") if line.startswith("#@") else "" for line in source.splitlines()))


def size(text: object) -> int:
    """Bytes of "64M", "1 MB", "2G". ValueError: it is none."""
    match = _SIZE.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    found = int(match[1]) << 10 * (1 + "kmgt".index(match[2].lower())) if match else 0
    if not 0 < found < LARGEST:
        raise ValueError(f"{text!r} is not a size with its unit: 512M, 64 MB, 2G")
    return found
