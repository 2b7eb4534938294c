"""`ucp`, `ucp_py` and `ucxx` and memory on a GPU, between processes: cuda_ucp.py with a driver made of paper, and with the real one
where there is a GPU; and the benchmark with CuPy, Numba, RMM and PyTorch where they are installed."""
# ctest: long
import importlib.util
import json
import subprocess
import sys

import pytest

import weft
from gpuside import passes, passes_on_paper
from program import environment


def test_with_a_driver_made_of_paper():
    passes_on_paper("cuda_ucp.py")


def test_with_the_real_driver():
    if "cuda" not in weft.memory_kinds():
        pytest.skip("there is no GPU here")
    passes("cuda_ucp.py")


@pytest.mark.parametrize("more", [[], ["--enable-am"], ["--reuse-alloc"], ["-l", "ucp-core"]])
@pytest.mark.parametrize("package", ["cupy", "torch", "numba", "rmm"])
def test_the_benchmark(package, more):
    if "cuda" not in weft.memory_kinds():
        pytest.skip("there is no GPU here")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run([sys.executable, "-m", "ucp.benchmarks.send_recv", "-o", package, "-n", "64MiB", "-s", "127.0.0.1", "--json",
                           *more], env=environment(), timeout=200, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bandwidth_median"] > 20e9, "it went through the host"


def test_the_benchmark_without_a_gpu():
    if "cuda" in weft.memory_kinds():
        pytest.skip("this machine has a GPU")
    for more in ([], ["--server-only"], ["-l", "ucp-core"]):
        done = subprocess.run([sys.executable, "-m", "ucp.benchmarks.send_recv", "-o", "weft", *more], env=environment(), timeout=100,
                              text=True, capture_output=True, check=False)
        assert done.returncode == 1 and "-o weft is memory of a GPU: there is no CUDA driver" in done.stderr
        assert "--server-only" not in more or "Traceback" not in done.stderr
