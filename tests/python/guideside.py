"""What the tests of the guide share: the text of a page, the programs in it, and what one of them says."""
import os
import re
import subprocess

GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide")


def text(page):
    with open(os.path.join(GUIDE, page), encoding="utf-8") as f:
        return f.read()


def programs(page):
    """The programs in Python that a page shows."""
    return re.findall(r"```python\n(.*?)```", text(page), re.S)


def said(child, program):
    """Run one; (its exit status, what it said on stdout and stderr)."""
    process = child(program, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out
