"""Programs in Scad's style, written by somebody who only knew Scad's contract (tests/elements/programs), give the same results wherever they are
run: here, on a Dask cluster, by ssh on hosts of their own, and on a small OpenWhisk."""
# ctest: long computes no-asan no-tsan timeout=1800: the C of the launcher is tested by tools_run_ssh
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import pytest

import daskside
import hosts  # tests/lib
from daskside import WEFT
from onside import Cloud

PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "elements", "programs")
NAMES = sorted(name for name in os.listdir(PROGRAMS) if os.path.isdir(os.path.join(PROGRAMS, name)))
PARAMS = {"merge_sort": ("--param", "seed=2024")}
NUMPY = ("block_matmul",)


def command(name, *args):
    return [WEFT, "run", os.path.join(PROGRAMS, name), "--json", "--python", sys.executable, *PARAMS.get(name, ()), *args]


class Here:
    """This machine."""

    def __init__(self, stack):
        self.env = daskside.env_of(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-everywhere-")))

    def run(self, name):
        return subprocess.run(command(name), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)


class Dask:
    """A cluster of processes."""

    def __init__(self, stack):
        pytest.importorskip("distributed")
        self.cluster = stack.enter_context(daskside.cluster(workers=2, threads=4))
        self.env = daskside.env_of(self.cluster.folder)

    def run(self, name):
        return subprocess.run(command(name, "--on", self.cluster.on, "--weft", WEFT), env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120, check=False)


class Ssh:
    """Two hosts of their own, and a third from which they are reached."""

    def __init__(self, stack):
        try:
            self.hosts = stack.enter_context(hosts.Hosts(3))
            self.env = daskside.env_of("/nowhere")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-everywhere-"))
            self.ssh = hosts.ssh(folder, self.hosts[0], self.hosts[1:], self.env)
        except hosts.Unavailable as why:
            pytest.skip(str(why))

    def run(self, name):
        where = ",".join(f"root@{host.address}" for host in self.hosts[1:])
        return self.hosts[0].run(*command(name, "--on", f"ssh://{where}", "--ssh", self.ssh, "--weft", WEFT), env=self.env)


class OpenWhisk:
    """The stand-in of the other tests."""

    def __init__(self, stack):
        import pathlib
        self.cloud = stack.enter_context(Cloud(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-everywhere-")))))

    def run(self, name):
        return self.cloud.run(os.path.join(PROGRAMS, name), "--json", *PARAMS.get(name, ()))


@pytest.fixture(scope="module", params=[Here, Dask, Ssh, OpenWhisk], ids=lambda where: where.__name__.lower())
def place(request):
    with contextlib.ExitStack() as stack:
        yield request.param(stack)


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_the_same(place, name):
    if name in NUMPY:
        pytest.importorskip("numpy")
    with open(os.path.join(PROGRAMS, name, "expected.json"), encoding="utf-8") as f:
        expected = json.load(f)
    done = place.run(name)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = json.loads(done.stdout)["results"]
    assert {element: results[element] for element in expected} == expected
