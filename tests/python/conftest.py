"""What the tests of the package share: event loops of both kinds, pairs of connected endpoints, other processes, and a bound
on everything."""
import asyncio
import collections
import faulthandler
import os
import subprocess
import sys

import pytest

import weft
from program import PYTHON, environment

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))

try:
    import uvloop
except ImportError:
    uvloop = None

BOUND = 120
faulthandler.enable()


@pytest.fixture(autouse=True)
def bounded():
    """Whatever hangs ends the run and says where."""
    faulthandler.dump_traceback_later(3 * BOUND, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine in a loop of this kind, to its end or its bound."""
    if request.param == "uvloop" and uvloop is None:
        pytest.skip("uvloop is not installed")

    def go(coroutine):
        async def bound():
            async with asyncio.timeout(BOUND):
                return await coroutine
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            # development mode logs whatever takes a tenth of a second, as anything does on a busy machine; pytest keeps it, which
            # looks like a leak
            runner.get_loop().slow_callback_duration = BOUND
            return runner.run(bound())
    return go


Pair = collections.namedtuple("Pair", "a b left right listener")


async def connected(left, right, uri="tcp://127.0.0.1:0"):
    """Two endpoints of two runtimes, each other's peer."""
    listener = right.listen(uri)
    accepting = listener.accept()
    a = await left.connect(listener.uri)
    return Pair(a, await accepting, left, right, listener)


@pytest.fixture(params=["shm", "tcp"])
def pair(request, run):
    """Run an async function with two connected endpoints over this transport; nothing may be left under way by it."""
    def go(function, **options):
        async def inner():
            async with weft.Runtime(transports=request.param, **options) as left, weft.Runtime(transports=request.param,
                                                                                               **options) as right:
                p = await connected(left, right)
                assert p.a.info["transport"] == p.b.info["transport"] == request.param
                await function(p)
            assert left.under_way == right.under_way == 0
        run(inner())
    return go


@pytest.fixture
def child():
    """Start a Python program that prints lines and reads lines; it ends with the test."""
    children = []

    def start(text, *args, stderr=None, **more):
        process = subprocess.Popen([*PYTHON, "-c", text, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                   text=True, env=environment(**more))
        children.append(process)
        return process
    yield start
    for process in children:
        process.kill()
        process.communicate(timeout=BOUND)


def pytest_sessionfinish(session, exitstatus):
    """A file that was skipped whole is skipped, and not a mistake in its name."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and reporter and reporter.stats.get("skipped"):
        session.exitstatus = 77


def pytest_terminal_summary(terminalreporter):
    """The last line of every test of this project; and why something was skipped."""
    count = {word: len(terminalreporter.stats.get(word, ())) for word in ("passed", "failed", "skipped", "error")}
    for report in terminalreporter.stats.get("skipped", ()):
        terminalreporter.write_line(f"# skipped: {report.nodeid.rsplit('::')[-1]}: {report.longrepr[2].removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"{count['passed']} passed, {count['failed'] + count['error']} failed, {count['skipped']} skipped")
