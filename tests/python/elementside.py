"""What the tests of elements share: memory elements in this process and in others, actions that use them, and waiting for
what is bound to happen."""
import contextlib
import os
import signal
import time

import disagg
from weft import _core

BOUND = 60

MEMORY = """
import sys
from weft import _core
rt = _core.Runtime(progress="thread", transports=sys.argv[1])
memory = _core.MemoryElement(rt, sys.argv[2], int(sys.argv[3]), **eval(sys.argv[4]))
print(memory.durl, flush=True)
sys.stdin.read()
memory.close()
rt._close()
"""


@contextlib.contextmanager
def runtime(transports="all", **options):
    """A blocking runtime with a thread of its own."""
    own = _core.Runtime(progress="thread", transports=transports, **options)
    try:
        yield own
    finally:
        own._close()


@contextlib.contextmanager
def memory(size, name="mem", transports="all", **options):
    """A memory element in this process, on a runtime of its own."""
    with runtime(transports) as own, _core.MemoryElement(own, name, size, **options) as element:
        yield element


@contextlib.contextmanager
def action(*durls, transports="all", heartbeat=None, **options):
    """An action with these transports, on a runtime of its own."""
    with runtime(transports, heartbeat=heartbeat) as own, disagg.LibdAction(None, "test", transports=durls, runtime=own,
                                                                            **options) as made:
        yield made


@contextlib.contextmanager
def pair(size=65536, buffer=4096, transports="all", **options):
    """A transport that is ready, with a buffer."""
    with memory(size, transports=transports, **options) as element, action(element.durl, transports=transports) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(buffer)
        assert trans.wait_ready(BOUND) == size
        yield trans


def elsewhere(child, size, name="mem", transports="all", **options):
    """A memory element in a process of its own, and its durl."""
    process = child(MEMORY, transports, name, str(size), repr(options))
    return process, process.stdout.readline().strip()


def mirrored(child, n, size=65536, **options):
    """Memory elements that are replicas of each other, and the durl of all of them."""
    made = [elsewhere(child, size, mirrored=True, **options) for _ in range(n)]
    parts = [_core.durl_parse(durl) for _, durl in made]
    whole = {**parts[0], "replicas": [place for part in parts for place in part["replicas"]]}
    return [process for process, _ in made], _core.durl_format(whole)


KINDS = ["mapped", "tcp", "replicas"]


@contextlib.contextmanager
def ready(kind, child, size):
    """A transport of one of these kinds that is ready, without a buffer."""
    paths = "tcp" if kind == "tcp" else "all"
    with contextlib.ExitStack() as stack:
        durl = (mirrored(child, 2, size)[1] if kind == "replicas"
                else stack.enter_context(memory(size, transports=paths)).durl)
        trans = stack.enter_context(action(durl, transports=paths)).get_transport("mem", "rdma")
        trans.wait_ready(BOUND)
        assert kind == "replicas" or (trans.stats()["path"] == "mapped") == (kind == "mapped")
        yield trans


class Own(disagg.Backend):
    """A backend that gives durls out of a list, and remembers what it was asked."""

    def __init__(self, *durls):
        self.durls, self.asked = list(durls), []

    def invoke(self, template, trans, props):
        self.asked.append((template, trans, props))
        return self.durls.pop(0)

    def release(self, name):
        self.asked.append(name)


def stop(process):
    """Stop all threads of a child. It is stopped when this returns."""
    def states():
        for task in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{task}/stat", encoding="ascii") as stat:
                yield stat.read().rpartition(")")[2].split()[0]
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: set(states()) == {"T"}, "stopping a process")


def go_on(process):
    """And let it go on."""
    os.kill(process.pid, signal.SIGCONT)


def until(true, what="it"):
    """Wait for what is bound to happen."""
    end = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.002)
