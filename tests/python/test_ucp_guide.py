"""What docs/guide/coming-from-ucx-py.md shows does what it says."""
import os
import re
import subprocess

import pytest

import ucp
import weft

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "coming-from-ucx-py.md")
SAYS = ["b'hello, world'\n", "by address\n"]


def text():
    with open(GUIDE, encoding="utf-8") as f:
        return f.read()


def blocks():
    return re.findall(r"```python\n(.*?)```", text(), re.S)


@pytest.mark.parametrize("n", range(len(blocks())))
def test_each_program_runs_and_says_nothing_else(child, n):
    process = child(blocks()[n], stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, SAYS[n])


def test_what_it_names_exists():
    for name in re.findall(r"`(?:await )?ucp\.(\w+)\(", text()):
        assert hasattr(ucp, name), name
    for name in re.findall(r"`(?:await )?weft\.(\w+)\(", text()):
        assert hasattr(weft, name), name
    for name in set(re.findall(r"`(UCX[A-Z][a-z]\w+)`", text())):
        assert hasattr(ucp.exceptions, name), name
