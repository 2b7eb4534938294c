"""What docs/guide/python-remote-memory.md shows does what it says."""
import os
import re
import subprocess

import pytest

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "python-remote-memory.md")
SAID = ["[0. 1. 2. 3.] b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'\n0 5\n", "2.5 25.0\n(1000, 1000)\n", "['notes'] b'remember'\n",
        "b'\\x07hello\\x07' [7 7 7]\n"]


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


@pytest.mark.parametrize("n", range(len(SAID)))
def test_each_program_says_what_it_should_and_nothing_else(child, n):
    process = child(blocks()[n], stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, SAID[n])


def test_there_are_no_others():
    assert len(blocks()) == len(SAID)
