"""`weft run --on dask` while parts of it are killed or stopped, at any time: the right result or a clear failure, and nothing is left behind.

ON_TRIALS is how often each is tried (2).
"""
# ctest: long computes no-asan no-tsan timeout=1800: the C of the launcher is tested by tools_run_ssh; here it is about Dask
import contextlib
import faulthandler
import json
import os
import random
import signal
import time

import pytest

pytest.importorskip("distributed")
import daskside  # noqa: E402
from daskside import finish, start, until, write  # noqa: E402

TRIALS = int(os.environ.get("ON_TRIALS", "2"))
SEED = int(os.environ.get("ON_SEED", "0")) or random.randrange(1 << 30)
LASTING = ("worker", "scheduler", "launcher", "bridge")  # they are there from the beginning
STEP = """
#@ parallelism: 3
#@ parents: [{parents}]
#@ idempotent: {idempotent}
#@ corunning: {{words: {{trans: words, type: rdma}}}}
import os, time
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(1 << 20)
    me = int(os.environ["__OW_PAR"])
    for k in range(20):
        trans.buf[:] = bytes([me + {step}]) * (1 << 20)
        trans.write(1 << 20, me << 20)
        trans.read(1 << 20, me << 20)
        assert bytes(trans.buf) == bytes([me + {step}]) * (1 << 20), "wrong bytes"
        time.sleep(0.02)
    return me + {step}
"""


def program(idempotent):
    word = "true" if idempotent else "false"
    return {"first.o.py": STEP.format(parents="", step=1, idempotent=word), "second.o.py": STEP.format(parents="first", step=7, idempotent=word),
            "words.o.yaml": "type: memory\nlimits: {mem: 3M}\n"}


def processes(folder, word):
    """Processes of the run in that folder with that word among their arguments."""
    mark, found = b"TMPDIR=" + folder.encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                ours = mark in f.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if ours and word in f.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def victims(made, launcher, what):
    if what == "launcher":
        return [launcher.pid]
    if what == "worker":
        return [random.choice(made.workers).pid]
    if what == "scheduler":
        return [made.scheduler.pid]
    return processes(made.folder, {"bridge": b"disagg.on.dask", "agent": b"--agent", "memory": b"\0memory\0", "element": b"disagg.element"}[what])[:1]


def judge(what, how, code, out, err):
    """The right result, or a failure that says what to know."""
    if code == 0:
        said = json.loads(out)
        assert said["results"]["first"] == [1, 2, 3] and said["results"]["second"] == [7, 8, 9], said
        return "right"
    if what == "launcher":
        assert code == -signal.SIGKILL or "lost" in err, (code, err)
        return "gone"
    assert code == 1, (code, err)
    sentences = [line for line in err.splitlines() if line.startswith("weft run: ")]
    assert sentences and not any("Traceback" in line or "wrong bytes" in line for line in sentences), err
    return "failed"


def hit(made, path, what, how, when):
    """One trial."""
    launcher = start(made, path, "--json")
    hurt = []
    while launcher.poll() is None and not victims(made, launcher, what):  # those that the run starts
        time.sleep(0.005)
    end = time.monotonic() + when
    while time.monotonic() < end and launcher.poll() is None:
        time.sleep(0.005)
    if launcher.poll() is None:
        hurt = victims(made, launcher, what)
    for pid in hurt:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
    if what == "launcher" and how == signal.SIGSTOP:  # its bridge keeps the run, which waits for it
        time.sleep(random.choice((0.1, 1, 12)))
        launcher.send_signal(signal.SIGCONT)
    code, out, err = finish(launcher)
    verdict = judge(what, how, code, out, err)
    for pid in hurt if how == signal.SIGSTOP else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return verdict if hurt else "untouched"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("what", ["worker", "agent", "memory", "element", "bridge", "launcher", "scheduler"])
def test_one_of_them_is(what, how):
    random.seed(f"{SEED}-{what}-{how}")
    if what == "element" and how == signal.SIGSTOP:
        pytest.skip("an element that stops is one that takes long: --timeout and limits.time are for that")
    counts = {}
    with contextlib.ExitStack() as stack:
        made = None
        for trial in range(TRIALS):
            faulthandler.dump_traceback_later(6 * daskside.BOUND, exit=True)  # each has its own time
            if made is None:
                made = stack.enter_context(daskside.cluster(workers=2, threads=2))
            idempotent = trial % 2 == 1
            verdict = hit(made, write(made.folder, program(idempotent)), what, how, random.uniform(0, 2 if what in LASTING else 0.7))
            counts[verdict] = counts.get(verdict, 0) + 1
            until(lambda made=made: not daskside.left(made.folder), f"cleaning up after {what} (seed {SEED}, trial {trial})")
            if what in ("worker", "scheduler", "agent"):  # the cluster is not whole any more
                stack.close()
                made = None
    print(f"{what} {how.name}: {counts}")
    assert what != "worker" or TRIALS < 4 or counts.get("right"), counts
