"""The stubs say what the extension has, and nothing else."""
# ctest: computes
import ast
import glob
import os
import subprocess
import sys

import pytest

import weft
from weft import _core

STUBS = glob.glob(os.path.join(os.path.dirname(weft.__file__), "_core*.pyi"))


def members(node):
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            yield item.name
        elif isinstance(item, ast.AnnAssign):
            yield item.target.id


def classes():
    found = {}
    for path in STUBS:
        with open(path, encoding="utf-8") as f:
            found.update((n.name, n) for n in ast.parse(f.read()).body if isinstance(n, ast.ClassDef))
    return found


ONLY_TYPES = {"BlockingClaim", "BlockingMessage", "BlockingRegion", "BlockingRemote",
              # the same types, seen from blocking runtimes
              "BlockingStoreServer", "BlockingStore", "BlockingBlock", "BlockingMirror"}
ONLY_TYPES |= {"BlockingAction", "BlockingTransport", "BlockingMemoryElement"}


@pytest.mark.parametrize("name", sorted(set(classes()) - ONLY_TYPES))
def test_what_the_stubs_promise_is_there(name):
    real = getattr(_core, name)
    for member in members(classes()[name]):
        if name == "WeftError" or (name, member) == ("RejectedError", "reason"):
            continue  # set on the classes or on what is raised
        if member == "__buffer__":  # which Python itself can see from 3.12 on
            memoryview(_core._as_value("[i32]", [1]))
            continue
        assert hasattr(real, member), f"{name}.{member}"


def test_what_is_there_is_in_the_stubs():
    stubs = classes()
    for name, real in vars(_core).items():
        if not isinstance(real, type):
            continue
        known = set(members(stubs[name])) | (set(members(stubs["WeftError"])) if issubclass(real, weft.WeftError) else set())
        for member in vars(real):
            assert member in known or member.startswith("_"), f"{name}.{member}"


def test_the_bases_of_the_exceptions_are_as_written():
    for name, node in classes().items():
        real = getattr(_core, name, None)
        if real is None or not issubclass(real, weft.WeftError):
            continue
        assert [b.__name__ for b in real.__bases__] == [b.attr if isinstance(b, ast.Attribute) else b.id for b in node.bases]


# by their real place: in the build folder the modules are links, each of which would be a module of its own
PACKAGES = os.path.dirname(os.path.dirname(os.path.realpath(weft.__file__)))


MYPYPATH = os.pathsep.join([PACKAGES, os.path.join(PACKAGES, "weft_ucx_py"), os.path.join(PACKAGES, "weft_disagg")])


def mypy(where, *what):
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, *what], capture_output=True,
                          text=True,
                          timeout=300, check=False, cwd=where, env={**os.environ, "LD_PRELOAD": "", "MYPYPATH": MYPYPATH})
    return done.stdout + done.stderr


def test_mypy_accepts_the_packages_strictly():
    said = mypy(PACKAGES, "-p", "weft", "-p", "ucp", "-p", "ucp_py", "-p", "ucxx", "-p", "disagg")
    assert said.startswith("Success"), said


USES = """
import weft

async def uses(ep: weft.Endpoint) -> int:
    await ep.send(b"x", tag=1)
    data = await ep.recv(tag=2)
    reveal_type(data)
    return await ep.recv_into(bytearray(10)){wrong}
"""


def test_mypy_knows_what_the_calls_give(tmp_path):
    for wrong, part in (("", 'bytes"'), (' + "x"', "Unsupported operand types")):
        (tmp_path / "uses.py").write_text(USES.format(wrong=wrong))
        said = mypy(tmp_path, "uses.py")
        assert part in said and ("error" in said) == bool(wrong), said
