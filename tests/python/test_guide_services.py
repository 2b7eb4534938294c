"""What docs/guide/python-services.md shows does what it says."""
import os
import re
import subprocess

import pytest

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "python-services.md")


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


@pytest.mark.parametrize("n", range(len(blocks())))
def test_it_parses(n):
    compile(blocks()[n], "python-services.md", "exec")


PROGRAMS = [("asyncio.run", "42\n[2, 3, 5, 7, 11, 13, 17, 19]\n"), ("time.sleep", "rested\n")]


@pytest.mark.parametrize("mark, says", PROGRAMS)
def test_the_programs_run_and_say_nothing_else(child, mark, says):
    process = child(next(b for b in blocks() if mark in b), stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, says)


def test_what_is_cut_from_programs_declares_what_it_says():
    """The pieces that are no programs, with what they leave out."""
    import numpy
    import weft
    scope = {"service": weft.Service("t"), "weft": weft, "numpy": numpy, "shared_memory": bytearray}
    for block in blocks():
        if "import" not in block:
            exec(block, scope)
    assert scope["service"].signatures == ["scale(image: tensor, by: f32) -> tensor idempotent",
                                           "ask(question: string) -> string",
                                           "store(values: tensor) -> void"]
