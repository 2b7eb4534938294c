"""Every entry point of the extension, with whatever arguments: no crash, no SystemError, no hang. fuzz_args.py is the program
that calls.

WEFT_FUZZ_SECONDS is how long each kind runs (5), WEFT_FUZZ_SEED where the seeds begin.
"""
# ctest: long computes
import faulthandler
import os
import subprocess
import sys

import pytest

SECONDS = float(os.environ.get("WEFT_FUZZ_SECONDS", 5))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", 1))
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_args.py")
PIECE = 60  # a child lasts no longer: it begins anew with the next seed


@pytest.mark.parametrize("kind", ["loop", "threads", "blocking"])
def test_whatever_is_passed_there_is_an_exception_and_no_crash(kind):
    faulthandler.dump_traceback_later(SECONDS + 300, exit=True)  # in place of the bound of other tests
    left, seed = SECONDS, SEED
    while left > 0:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WEFT_INTERFACES": "lo", "WEFT_LOG": "none"}
        child = subprocess.run([sys.executable, "-X", "dev", PROGRAM, str(seed), str(min(left, PIECE)), kind], env=env,
                               capture_output=True, text=True, timeout=PIECE + 200, check=False)
        assert child.returncode == 0, f"{kind}, seed {seed}: status {child.returncode}\n{child.stdout[-3000:]}\n{child.stderr[-6000:]}"
        assert "episodes" in child.stdout
        left, seed = left - PIECE, seed + 1
