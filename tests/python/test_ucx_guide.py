"""What docs/guide/ucx-api.md shows does what it says."""
import os
import re
import subprocess

import ports

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "ucx-api.md")


def blocks():
    with open(GUIDE, encoding="utf-8") as f:
        return re.findall(r"```python\n(.*?)```", f.read(), re.S)


def test_they_parse():
    for block in blocks():
        compile(block, "ucx-api.md", "exec")


def test_the_two_programs_talk(child):
    port = str(ports.take())
    server, client = (b.replace("13337", port) for b in blocks()[:2])
    server = child(server.replace("while not gone", "print('listening', flush=True)\nwhile not gone"), stderr=subprocess.STDOUT)
    assert server.stdout.readline() == "listening\n"
    client = child(client, stderr=subprocess.STDOUT)
    out, _ = client.communicate(timeout=60)
    assert (client.returncode, out) == (0, "b'hello'\n")
    out, _ = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, "")
