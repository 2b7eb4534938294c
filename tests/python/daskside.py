"""What the tests of `weft run --on dask` share: a cluster of processes, directories of elements, and the launcher."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from program import PYTHON, environment

BOUND = 120
BUILD = os.path.dirname(os.environ.get("TEST_WEFT_COMMAND") or os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "build", "dev", "weft"))
WEFT = os.path.join(BUILD, "weft")

SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
async def main():
    async with Scheduler(host=sys.argv[1], port=0, dashboard=False, dashboard_address=":0") as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(main())
"""
WORKER = """
import asyncio, sys
from distributed import Worker
async def main():
    async with Worker(sys.argv[1], host=sys.argv[2], nthreads=int(sys.argv[3]), dashboard=False, local_directory=sys.argv[4], memory_limit=0,
                      resources=eval(sys.argv[5])) as worker:
        print(worker.address, flush=True)
        await worker.finished()
asyncio.run(main())
"""


def env_of(folder):
    """The environment of everything: the package of the build, the command beside it, and a temporary folder of its own."""
    env = environment()
    env.update(TMPDIR=folder, PYTHONPATH=os.path.join(BUILD, "python"), PATH=BUILD + os.pathsep + env["PATH"])
    return env


class Cluster:
    """A scheduler and workers, each a process. `start` starts a process; by default on this machine."""

    args: tuple[str, ...] = ()  # more of the launcher's

    def __init__(self, folder, workers=2, threads=2, resources=None, places=None, python=None, env=None):
        self.folder = folder
        self.python, self.env = python or PYTHON, env or env_of(folder)
        self.places = places  # a host of tests/lib/hosts.py for the scheduler, and one for each worker
        self.scheduler = self.process(0, SCHEDULER, self.address_of(0))
        self.address = self.scheduler.stdout.readline().strip()
        assert self.address, "the scheduler did not start"
        self.workers, self.threads, self.resources = [], threads, resources or {}
        for _ in range(workers):
            self.add()

    def address_of(self, place):
        return self.places[place].address if self.places else "127.0.0.1"

    def process(self, place, program, *args):
        command = [*self.python, "-c", program, *args]
        log = open(os.path.join(self.folder, "cluster.log"), "ab")
        with log:
            if self.places:
                return self.places[place].start(*command, env=self.env, stdout=subprocess.PIPE, stderr=log, text=True)
            return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)

    def add(self):
        """One more worker."""
        n = len(self.workers) + 1
        worker = self.process(n, WORKER, self.address, self.address_of(n), str(self.threads), os.path.join(self.folder, f"dask{n}"),
                              repr(self.resources))
        worker.address = worker.stdout.readline().strip()
        assert worker.address, "a worker did not start"
        self.workers.append(worker)
        return worker

    @property
    def on(self):
        return "dask://" + self.address.removeprefix("tcp://")

    def close(self):
        for process in [*self.workers, self.scheduler]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            process.stdout.close()


@contextlib.contextmanager
def cluster(**options):
    """One in a folder of its own, in which nothing of a run may be left."""
    with tempfile.TemporaryDirectory(prefix="weft-on-") as folder:
        made = Cluster(folder, **options)
        try:
            yield made
            until(lambda: not left(folder), f"cleaning up: {left(folder)}")
        finally:
            made.close()
        # a scheduler that goes on after it was stopped may have started what nobody wants any more; its agents end with the workers
        until(lambda: not left(folder), f"cleaning up after the cluster: {left(folder)}")


def left(folder):
    """Scratch directories of runs, and processes of them."""
    found = [name for name in os.listdir(folder) if name.startswith("weft-run-")]
    mark = b"TMPDIR=" + folder.encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                ours = mark in f.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if ours and (b"--agent" in words or b"memory" in words or any(b"disagg" in word for word in words)):
                found.append((int(pid), b" ".join(words)[:200]))
        except OSError:
            continue
    return found


def write(folder, files):
    """A directory of elements."""
    path = tempfile.mkdtemp(dir=folder, prefix="elements-")
    for name, text in files.items():
        where = os.path.join(path, name)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "w", encoding="utf-8") as f:
            f.write(text)
    return path


def start(cluster, path, *args, on=None, text=True):
    """The launcher."""
    command = [WEFT, "run", path, "--on", on or cluster.on, "--python", sys.executable, "--weft", WEFT, *cluster.args, *args]
    if cluster.places:
        return cluster.places[0].start(*command, env=env_of(cluster.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text)
    return subprocess.Popen(command, env=env_of(cluster.folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=text)


def finish(process, timeout=BOUND):
    """Its exit status and what it said."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def run(cluster, path, *args, **kw):
    """What --json says of a run that goes well."""
    code, out, err = finish(start(cluster, path, "--json", *args, **kw))
    assert code == 0, f"exit status {code}\n{out}{err}"
    said = json.loads(out)
    assert said["ok"] is True, said
    said["err"] = err
    return said


def fails(cluster, path, *args, says=(), status=1, **kw):
    """What a run says that fails."""
    code, out, err = finish(start(cluster, path, *args, **kw))
    assert code == status, f"exit status {code}, not {status}\n{out}{err}"
    for word in says:
        assert word in err, f"{word!r} is not in: {err}"
    return out, err


def until(true, what="it", seconds=BOUND):
    """Wait for what is bound to happen."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)
    return found
