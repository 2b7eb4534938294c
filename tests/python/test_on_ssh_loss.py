"""`weft run --on ssh://` while parts of it are killed or stopped, at any time: the right result or a clear failure, and nothing is left behind.

The machines are this one, by a stand-in for ssh; tests/tools/tools_run_ssh.py has hosts of their own and a real one. ON_TRIALS is how
often each is tried (2).
"""
# ctest: long no-asan no-tsan timeout=1800: the C of the launcher is tested by tools_run_ssh; here it is about the moments
import faulthandler
import os
import random
import signal
import tempfile

import pytest

from daskside import BOUND, left, until, write
from test_on_dask_loss import SEED, TRIALS, hit, program

SSH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "lib", "ssh")


class Machines:
    """Two of them."""

    on, places, args = "ssh://a,b", None, ("--ssh", SSH)

    def __init__(self, folder):
        self.folder = folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("what", ["agent", "memory", "element", "launcher"])
def test_one_of_them_is(what, how):
    random.seed(f"{SEED}-{what}-{how}")
    if what == "element" and how == signal.SIGSTOP:
        pytest.skip("an element that stops is one that takes long: --timeout and limits.time are for that")
    counts = {}
    with tempfile.TemporaryDirectory(prefix="weft-on-") as folder:
        made = Machines(folder)
        for trial in range(TRIALS):
            faulthandler.dump_traceback_later(6 * BOUND, exit=True)  # each has its own time
            path = write(folder, program(idempotent=trial % 2 == 1))
            # agents give a launcher up that is silent for half a minute
            verdict = hit(made, path, what, how, random.uniform(0, 1.2), stops=(0.1, 1, 35))
            counts[verdict] = counts.get(verdict, 0) + 1
            until(lambda: not left(folder), f"cleaning up after {what} (seed {SEED}, trial {trial}): {left(folder)}")
    print(f"{what} {how.name}: {counts}")
