"""What docs/guide/tensors.md and the part about lending of docs/guide/python-remote-memory.md show does what it says. The program that
the first is cut from runs in test_examples.py."""
import os
import re
import subprocess
import sys

import pytest

from gpuside import paper
from guideside import programs, text
from program import PYTHON, environment

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.parametrize("n", range(len(programs("tensors.md"))))
def test_each_piece_is_cut_from_the_program(n):
    with open(os.path.join(HERE, "..", "..", "examples", "python", "tensors.py"), encoding="utf-8") as f:
        whole = f.read().splitlines()
    piece = programs("tensors.md")[n].splitlines()
    assert len(piece) and any(whole[i:i + len(piece)] == piece for i in range(len(whole))), piece


def test_the_words_of_the_program_are_those_of_the_page():
    page = text("tensors.md")
    for name in ("device_direct", "device_relayed", "device_bounced", "device_staged", "device_imports"):
        assert f"`{name}`" in page


HEAD = """
import asyncio, torch, weft

async def main():
    async with weft.Runtime(transports="shm") as left, weft.Runtime(transports="shm") as right:
        listener = right.listen("tcp://127.0.0.1:0")
        accepting = listener.accept()
        other = await left.connect(listener.uri, timeout=60)
        ep = await accepting
        (out,) = torch.empty((1, 1 << 20), dtype=torch.float16, device="cuda")
        out.fill_(3)
        sending = other.am_send(1, out)
        await piece(ep)
        await asyncio.wait_for(sending, 60)

async def piece(ep):
"""
TAIL = """
    print(total, repr(view))

asyncio.run(main())
"""


def test_what_is_lent_is_read_and_given_back():
    if paper() is None:
        pytest.skip("the CUDA driver made of paper is not built")
    part = text("python-remote-memory.md").partition("### Lending GPU memory\n")[2]
    code = re.search(r"(?:^    .*\n)+", part, re.M)[0]
    assert "view_device()" in code and "release()" in code
    done = subprocess.run([*PYTHON, "-c", HEAD + code + TAIL], capture_output=True, text=True, timeout=120, check=False,
                          env=environment(LD_LIBRARY_PATH=paper(), PAPER_THREAD="10",
                                          PYTHONPATH=os.pathsep.join([os.path.join(HERE, "papertorch"), *sys.path])))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{float(3 << 20)} <weft.DeviceView of {1 << 20} bytes, released>\n", "")
