"""What examples/python shows does what it says."""
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from gpuside import paper
from program import PYTHON, environment
from weft import _core

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "python")
EXAMPLE = os.path.join(EXAMPLES, "hello.py")
COMMAND = os.path.join(os.path.dirname(_core.__file__), "..", "..", "weft")  # the package of a build folder has it beside it


def run(registry):
    done = subprocess.run([*PYTHON, EXAMPLE], capture_output=True, text=True, timeout=120, check=False,
                          env=environment(WEFT_REGISTRY=registry))
    assert not done.returncode and not done.stderr, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_two_processes_greet_each_other():
    lines = run("")
    assert lines[0].startswith("hello process ") and lines[1:] == ["over shm"], lines


def test_and_call_a_service_written_in_c(tmp_path):
    if not os.path.exists(COMMAND):
        pytest.skip("the command is not built here")
    registry = f"dir://{tmp_path}"
    with subprocess.Popen([COMMAND, "serve"], env={**os.environ, "WEFT_REGISTRY": registry}, stdout=subprocess.PIPE,
                          text=True) as service:
        try:
            assert service.stdout.readline()  # it says where it is once it can be found
            assert run(registry)[2:] == ["calc.add(25, 17) = 42", "calc.primes(20) = [2, 3, 5, 7, 11, 13, 17, 19]"]
        finally:
            service.kill()


# --- tensors.py ---------------------------------------------------------------------------------------------------------------


def tensors(*args, first="", **env):
    """Run it; (its exit status, the lines that it says, what it says on stderr). first: a folder with modules of ours."""
    done = subprocess.run([*PYTHON, os.path.join(EXAMPLES, "tensors.py"), *args], capture_output=True, text=True, timeout=400,
                          check=False, env=environment(PYTHONPATH=os.pathsep.join([str(first), *sys.path]), **env))
    return done.returncode, done.stdout.splitlines(), done.stderr


SPEED = r"\d+\.\d\d ms, \d+\.\d GB/s"


def right(said, lent):
    """Is it what it should say?"""
    code, lines, errors = said
    assert (code, errors) == (0, ""), said
    assert re.fullmatch(rf"copied, while both compute: {SPEED}", lines[1]) and re.fullmatch(rf"copied: {SPEED}", lines[2]), lines
    if lent:
        assert re.fullmatch(rf"lent, nothing copied: \d+\.\d\d ms; read there: {SPEED}", lines[3]), lines
        assert "'device_direct': " in lines[4] and not re.search("device_(relayed|bounced|staged)", lines[4]), lines
    else:
        assert lines[3].startswith("not lent: ") and "read_into()" in lines[3] and lines[4] == "{}", lines
    assert lines[5:] == ["every sum is right"], lines


def on_paper():
    """The environment of a program on the driver made of paper."""
    if paper() is None:
        pytest.skip("the CUDA driver made of paper is not built")
    return {"LD_LIBRARY_PATH": paper(), "PAPER_THREAD": "10"}


def test_tensors_without_a_gpu():
    said = tensors("--rounds", "2", WEFT_CUDA="off")
    right(said, lent=False)
    assert said[1][0] == ("32 layers of 256 tokens, 0.034 GB, in memory of Weft, host: there is no GPU here, or no NVIDIA driver; "
                          "nothing can be lent")


def test_tensors_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')")
    said = tensors("--rounds", "2", "--layers", "3", "--tokens", "512", first=tmp_path, **on_paper())
    right(said, lent=True)
    assert said[1][0] == ("3 layers of 512 tokens, 0.006 GB, in memory of Weft, cuda: PyTorch is not installed "
                          "(pip install torch)")


def test_tensors_and_streams():
    said = tensors("--rounds", "2", first=os.path.join(HERE, "papertorch"), **on_paper())
    right(said, lent=True)
    assert said[1][0].endswith("in tensors of PyTorch paper on a driver made of paper")


def test_layers_that_are_too_short_are_copied():
    code, lines, errors = tensors("--tokens", "64", "--layers", "5", first=os.path.join(HERE, "papertorch"), **on_paper())
    assert (code, errors, lines[-1]) == (0, "", "every sum is right") and lines[3].startswith("not lent: "), (lines, errors)


@pytest.mark.parametrize("when, says", [("empty", "prefill ended with status -9 before it connected"), ("fill_", "PeerError: ")])
def test_a_prefill_that_is_killed_is_told_of(tmp_path, when, says):
    (tmp_path / "torch.py").write_text(f"""
import os, runpy, signal, sys
globals().update(runpy.run_path({os.path.join(HERE, "papertorch", "torch.py")!r}))
def end(self, value=1, **kw):
    if value:
        os.kill(os.getpid(), signal.SIGKILL)
if "--uri" in sys.argv:
    if {when!r} == "empty":
        empty = end
    else:
        Tensor.fill_ = end
""")
    code, lines, errors = tensors(first=tmp_path, **on_paper())
    assert code == 1 and len(lines) == 1 and errors.startswith(says) and "Traceback" not in errors, (lines, errors)


def test_tensors_on_a_real_gpu():
    if os.environ.get("TEST_WEFT_GPU") != "1":
        pytest.skip("TEST_WEFT_GPU=1 runs it on a real GPU")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    code, lines, errors = tensors()
    print(*lines, errors, sep="\n")
    right((code, lines, "" if code == 0 else errors), lent=True)  # PyTorch may warn of something of its own
    assert "in tensors of PyTorch" in lines[0], lines
