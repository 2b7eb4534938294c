"""What a program sees when a connection of ucp ends: endings/run.py ends connections in every way, and what both sides then see
is what endings/weft.json has and the guide says.

endings/ucx-py.json is what UCX-Py does. Here are the endings in blocking mode with error handling; test_ucp_endings_all.py has
the other three quarters.
"""
# ctest: long timeout=1800
import json
import os
import subprocess
import sys

import pytest

from endings import run as endings
from program import environment

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "endings")
OURS, UCX_PY = os.path.join(HERE, "weft.json"), os.path.join(HERE, "ucx-py.json")


def program(name, *args):
    """One of the programs, to its end: (exit status, what it said)."""
    done = subprocess.run([sys.executable, "-B", os.path.join(HERE, name), *args], env=environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


def again(kind, how, progress, errors):
    """Those cells again. A difference that is wanted: run.py --repeat 3 --out weft.json, then table.py."""
    status, out, words = program("run.py", "--expect", OURS, "--settle", "0.4", "--short", "0.6",
                                 f"{kind}.*.{how}.{progress}.{errors}")
    assert status == 0, words
    ran = {json.loads(line)["cell"] for line in out.splitlines()}
    assert ran == {f"{kind}.{op}.{when}.{how}.{progress}.{errors}" for op in endings.OPS for when in endings.WHENS}


@pytest.mark.parametrize("how", endings.HOWS)
@pytest.mark.parametrize("kind", endings.KINDS)
def test_an_ending_is_seen_as_it_was(kind, how):
    again(kind, how, "blocking", "on")


def test_both_files_have_every_combination():
    for path in (OURS, UCX_PY):
        assert list(endings.load(path).keys() - set(endings.names())) == []
        assert set(endings.names()) - endings.load(path).keys() == set()


def test_both_files_say_what_ran():
    """UCX-Py's outcomes are of use only with its version and that of UCX."""
    for path, package in ((OURS, "Weft "), (UCX_PY, "UCX-Py 0.45")):
        runs, _ = endings.read(path)
        assert runs
        for ran in runs:
            assert ran["package"].startswith(package) and ran["python"] and ran["repeat"] >= 1 and ran["bound"] >= 1
            assert package == "Weft " or ran["ucx"].startswith("1.")


def test_the_guide_has_these_outcomes():
    status, _, words = program("table.py", "--check")
    assert status == 0, words


@pytest.mark.parametrize("what,wrong", [("pending", "data"), ("closed", "False"), ("send", "UCXError: Endpoint closed")])
def test_a_difference_is_found(tmp_path, what, wrong):
    """The comparison itself: with one outcome changed in the file, the program says which, and fails."""
    name = "tag.recv.during.abort.blocking.on"
    record = endings.load(OURS)[name]
    was = record["other"][what]
    record["other"][what] = [wrong]
    changed = os.path.join(tmp_path, "changed.json")
    endings.save(changed, [], {name: record})
    status, _, words = program("run.py", "--expect", changed, "--settle", "0.1", name)
    assert status == 1 and f"{name}: other, {what}: {was[0]}, not {wrong}" in words
