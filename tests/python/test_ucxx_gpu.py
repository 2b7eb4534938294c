"""ucxx and memory on a GPU, with a driver made of paper, and with the real one where there is a GPU."""
import os
import subprocess
import sys

import pytest

import weft

PAPER = os.path.join(os.path.dirname(weft._core.__file__), "..", "..", "tests", "paper")
HERE = os.path.dirname(os.path.abspath(__file__))


def passes(**env):
    done = subprocess.run([sys.executable, "-X", "dev", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", os.path.join(HERE, "cuda_ucxx.py")],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}, timeout=300, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert " 0 skipped" in done.stdout


def test_with_a_driver_made_of_paper():
    if not os.path.exists(os.path.join(PAPER, "libcuda.so.1")):
        pytest.skip("the CUDA driver made of paper is not built")
    passes(LD_LIBRARY_PATH=PAPER, PAPER_THREAD="10")


def test_with_the_real_driver():
    if "cuda" not in weft.memory_kinds():
        pytest.skip("there is no GPU here")
    passes()
