"""What docs/guide/coming-from-ucx-py.md shows does what it says."""
import re

import pytest
from guideside import programs, said, text

import ucp
import weft

PAGE = "coming-from-ucx-py.md"
SAYS = ["b'hello, world'\n", "by address\n"]


@pytest.mark.parametrize("n", range(len(programs(PAGE))))
def test_each_program_runs_and_says_nothing_else(child, n):
    assert said(child, programs(PAGE)[n]) == (0, SAYS[n])


def test_what_it_names_exists():
    for name in re.findall(r"`(?:await )?ucp\.(\w+)\(", text(PAGE)):
        assert hasattr(ucp, name), name
    for name in re.findall(r"`(?:await )?weft\.(\w+)\(", text(PAGE)):
        assert hasattr(weft, name), name
    for name in set(re.findall(r"`(UCX[A-Z][a-z]\w+)`", text(PAGE))):
        assert hasattr(ucp.exceptions, name), name
