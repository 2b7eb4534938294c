"""disagg._text is JSON as the json package has it, whichever of its two halves does the work; and an element that does nothing
loads neither
json nor threading."""
import json
import math
import subprocess
import sys

import pytest

from disagg import _text

VALUES = [None, True, False, 0, -1, 10 ** 30, 1.5, -0.0, 1e300, "", "a\"\\\n\x00\x7f", "\u00e9\u20ac\U0001f600", [], {},
          [[], {}, [1, [2, [3]]]], {"a": {"b": [1, None]}, "": 1}, {0: 2, None: 3, True: 4, 1.5: 5}, (1, (2,)), ["x" * 100000]]
HALVES = pytest.mark.parametrize("half", [_text._quick, _text._slow])


@HALVES
def test_texts_are_those_of_json(half):
    read, write = half()
    for value in VALUES:
        for ascii_only in (False, True):
            text = write(value, ascii_only)
            assert text == json.dumps(value, ensure_ascii=ascii_only)
            assert read(text) == json.loads(text) and read(f" \t\r\n{text}\n ") == json.loads(text)


@HALVES
@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "{'a': 1}", "nul", "1 2", "[1] x", "NaN", "-Infinity", "[Infinity]",
                                  "\"\n\"",
                                  "\"\\x\"", "01", "\u00a01", "[" * 100000])
def test_what_is_no_json_is_refused(half, text):
    with pytest.raises((ValueError, RecursionError)):
        half()[0](text)


@HALVES
def test_values_that_are_no_json_are_refused(half):
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    for _ in range(100000):
        deep = [deep]
    write = half()[1]
    for value in ({1}, b"x", object(), {(1,): 2}, math.nan, [math.inf], circle, deep, 1j):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            write(value, False)


def test_letters_stay_letters_and_halves_of_letters_are_written_as_numbers():
    assert _text.dumps("\u00e9") == '"\u00e9"'
    assert _text.dumps(["\u00e9", "\ud800"]) == '["\\u00e9", "\\ud800"]'
    assert _text.loads('["\u00e9\U0001f600"]'.encode()) == ["\u00e9\U0001f600"]
    for text in (b"\xff", b'"\xed\xa0\x80"'):
        with pytest.raises(ValueError):
            _text.loads(text)


def test_an_element_that_does_nothing_loads_little():
    code = "import sys; before = set(sys.modules); import disagg.element; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                            capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert "disagg.element" in loaded
    assert not {"json", "re", "threading", "functools", "collections", "runpy", "weft", "weft._core", "numpy",
                "asyncio"} & set(loaded), loaded
