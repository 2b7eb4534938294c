"""What docs/guide/python.md shows does what it says."""
import os
import re
import subprocess

import pytest

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "python.md")


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


@pytest.mark.parametrize("n", range(len(blocks())))
def test_it_parses(n):
    compile(blocks()[n], "python.md", "exec")


def test_the_first_program_runs_and_says_nothing_else(child):
    process = child(blocks()[0], stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "b'hello'\n")


def test_the_blocking_program_runs_beside_a_server(child):
    server = child("""
import asyncio, weft
async def main():
    listener = weft.listen("tcp://127.0.0.1:0")
    print(listener.uri, flush=True)
    ep = await listener.accept()
    await ep.send(await ep.recv(tag=1), tag=2)
    await asyncio.wait([ep.recv(tag=3)], timeout=60)
asyncio.run(main())
""")
    uri = server.stdout.readline().strip()
    program = next(b for b in blocks() if "weft.blocking" in b).replace("tcp://127.0.0.1:13337", uri)
    client = child(program, stderr=subprocess.STDOUT)
    out, _ = client.communicate(timeout=60)
    assert (client.returncode, out) == (0, "b'hello'\n")
