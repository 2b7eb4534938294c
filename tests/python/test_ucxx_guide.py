"""What docs/guide/coming-from-ucxx.md shows does what it says."""
import os
import re
import subprocess

import pytest

import ucxx

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "coming-from-ucxx.md")
SAYS = ["[b'hello', b'world']\n", "hello\n"]


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
    for name in re.findall(r"`(?:await )?(\w+)\(\)`", text()):
        if name not in ("copy_to_host",):
            assert hasattr(ucxx, name) or hasattr(ucxx._lib_async.Endpoint, name), name
    for name in set(re.findall(r"`(UCX[A-Z][a-z]\w+)`", text())):
        assert hasattr(ucxx.exceptions, name), name
    row = re.search(r"^\| endpoints \|(.*)$", text(), re.M).group(1)
    for name in re.findall(r"`(\w+)`", row):
        assert hasattr(ucxx._lib_async.Endpoint, name), name
    for mode in re.findall(r"^\| `([a-z-]+)`[,|]?.*\|", text().partition("**Modes of progress**")[2].partition("**Endings**")[0], re.M):
        assert mode in ucxx._lib_async.continuous_ucx_progress.MODES, mode
