"""What docs/guide/python-calls.md shows does what it says."""
import os
import re
import subprocess
import textwrap

import pytest

from callside import calc, serve  # noqa: F401

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "python-calls.md")


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


def says(child, text, uri):
    process = child(text.replace("tcp://127.0.0.1:13337", uri), stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


def test_the_programs_run(child, calc):
    assert says(child, blocks()[0], calc.uri) == (0, "42\n('warp', ' and weft')\n2 3 5 7 11 13 17 19 ")
    assert says(child, blocks()[1], calc.uri) == (0, "42 [2, 3, 5, 7, 11, 13, 17, 19]\n")


HEAD = """
import asyncio, numpy, weft
async def main():
    calc = await weft.client("tcp://127.0.0.1:13337")
"""
TAIL = """
    print(*[name for name in ("sums", "add") if name in locals()])
    if "brighter" in locals():
        assert (brighter == 1.5).all()
    if "sums" in locals():
        assert sums == [3, 7, 11]
    if "add" in locals():
        assert await add(1, 2) == 3
    await calc.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("n", range(2, len(blocks())))
def test_the_pieces_run(child, n, tmp_path):
    said = {"div(": "INVALID_ARGUMENT nothing can be divided by 0\n", "total": "4.0\n", "registry": "mill-3"}
    piece = blocks()[n].replace("dir:///run/weft", f"dir://{tmp_path}")
    service = serve("--instance", "mill-3", WEFT_REGISTRY=f"dir://{tmp_path}")
    try:
        code, out = says(child, HEAD + textwrap.indent(piece, "    ") + TAIL, service.uri)
    finally:
        service.kill()
    assert code == 0, out
    for mark, words in said.items():
        if mark in piece:
            assert words in out
