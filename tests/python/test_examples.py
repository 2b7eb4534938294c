"""What examples/python shows does what it says."""
import os
import subprocess

import pytest

from program import PYTHON, environment
from weft import _core

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python", "hello.py")
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
