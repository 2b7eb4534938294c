"""What docs/guide/coming-from-ucxx.md shows does what it says."""
import re

import pytest
from guideside import programs, said, text

import ucxx

PAGE = "coming-from-ucxx.md"
SAYS = ["[b'hello', b'world']\n", "hello\n"]


@pytest.mark.parametrize("n", range(len(programs(PAGE))))
def test_each_program_runs_and_says_nothing_else(child, n):
    assert said(child, programs(PAGE)[n]) == (0, SAYS[n])


def test_what_it_names_exists():
    for name in re.findall(r"`(?:await )?(\w+)\(\)`", text(PAGE)):
        if name not in ("copy_to_host",):
            assert hasattr(ucxx, name) or hasattr(ucxx._lib_async.Endpoint, name), name
    for name in set(re.findall(r"`(UCX[A-Z][a-z]\w+)`", text(PAGE))):
        assert hasattr(ucxx.exceptions, name), name
    row = re.search(r"^\| endpoints \|(.*)$", text(PAGE), re.M).group(1)
    for name in re.findall(r"`(\w+)`", row):
        assert hasattr(ucxx._lib_async.Endpoint, name), name
    for mode in re.findall(r"^\| `([a-z-]+)`[,|]?.*\|", text(PAGE).partition("**Modes of progress**")[2].partition("**Endings**")[0], re.M):
        assert mode in ucxx._lib_async.continuous_ucx_progress.MODES, mode
