"""What docs/guide/elements.md shows of the module disagg does what it says. tests/tools/tools_run_examples.py runs what it
shows of the launcher."""
import json
import os
import re
import socket
import subprocess
import sys

import pytest

from elementside import BOUND, action, memory

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "elements.md")


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


@pytest.mark.parametrize("n, says", [(0, "b'hello'\n2\nhello\n0 1 6\nready 34\n"), (4, "b'hello'\n")])
def test_the_programs_about_transports_run_and_say_nothing_else(child, n, says):
    process = child(blocks()[n], stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, out) == (0, says), out


@pytest.mark.parametrize("n, value", [(1, 0), (2, sum(range(50)) + 3 + 0.0), (3, "hello")])
def test_the_elements_give_what_they_should(n, value, tmp_path):
    if n == 2:
        pytest.importorskip("numpy")
    path = tmp_path / "it.o.py"
    path.write_text(blocks()[n])
    ours, theirs = socket.socketpair()
    with memory(64 * 4096, spare=1 << 20) as element, ours:
        process = subprocess.Popen([sys.executable, "-m", "disagg.element"], pass_fds=[theirs.fileno()],
                                   env={**os.environ, "WEFT_ELEMENT_FD": str(theirs.fileno())})
        try:
            theirs.close()
            ours.settimeout(BOUND)
            ours.sendall(json.dumps({"do": "run", "file": str(path), "params": {}, "transports": [element.durl]}).encode()
                         + b"\n")
            said = [json.loads(line) for line in ours.makefile("rb")]
            assert said[-1] == {"did": "result", "value": value}
        finally:
            process.kill()
            process.wait(BOUND)


def test_sharing_is_as_said():
    with memory(64, "a") as a, memory(64, "b") as b, action(a.durl, b.durl) as made:
        one, two = made.get_transport("a", "rdma"), made.get_transport("b", "rdma")
        one.reg(64)
        two.reg(64, one)
        one.buf[:5] = b"hello"
        one.write(5, 0)
        one.buf[:5] = bytes(5)
        one.read(5, 0)
        two.write(5, 0)
        two.read(5, 0, 32)
        assert bytes(one.buf[32:37]) == b"hello"
