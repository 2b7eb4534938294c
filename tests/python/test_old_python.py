"""Python 3.10, the oldest that works: no name of a later one is used, and where a 3.10 is at hand the wheels for it are built and run.

The extension has the limited API from 3.11 on; for 3.10 it is a binary of its own. CI's interpreter is newer, so what mypy says of 3.10
counts everywhere, and the rest where pyenv or the system has one.
"""
# ctest: long computes timeout=1800
import glob
import os
import shutil
import subprocess

import pytest
from test_types import PACKAGES, mypy
from test_wheel import PROGRAM, SOURCE, call, clean

UCP = """
import asyncio, ucp, weft.blocking
from weft._loops import Runner

async def main():
    async def echo(ep):
        await ep.send_obj(await ep.recv_obj())
    listener = ucp.create_listener(echo)
    ep = await ucp.create_endpoint("127.0.0.1", listener.port)
    await ep.send_obj(b"by 3.10")
    print(bytes(await ep.recv_obj()).decode())
    await ep.close()

with Runner() as runner:
    left = []
    async def first():
        left.append(asyncio.ensure_future(asyncio.sleep(1000)))
        return 7
    assert runner.run(first()) == 7 and not left[0].done()  # a task outlives the coroutine that made it, and ends with the loop
    assert runner.get_loop() is left[0].get_loop()
    runner.run(main())
assert left[0].cancelled()

import socket
with socket.socket() as silent:
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    async def in_vain():
        ucp.reset()
        ucp.init(connect_timeout=0.2)
        await ucp.create_endpoint("127.0.0.1", silent.getsockname()[1])
    for kind in (asyncio.TimeoutError, TimeoutError):  # they are two there
        try:
            asyncio.run(in_vain())
            raise SystemExit("no timeout")
        except kind:
            pass
"""


def test_no_later_name_is_used():
    """typeshed knows since when each name of the library is there."""
    said = mypy(PACKAGES, "--python-version", "3.10", "-p", "weft", "-p", "ucp", "-p", "ucp_py", "-p", "disagg")
    assert said.startswith("Success"), said


def old_python():
    for path in [shutil.which("python3.10"), *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.10*/bin/python3.10")))]:
        if path and not subprocess.run([path, "-c", "import venv, sysconfig, os; assert os.path.exists(sysconfig.get_path('include') + "
                                        "'/Python.h')"], capture_output=True, check=False).returncode:
            return path
    return None


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment of 3.10 with the wheels."""
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the wheel has no sanitizer")
    if old_python() is None:
        pytest.skip("there is no Python 3.10 with its headers here")
    where = tmp_path_factory.mktemp("old")
    call(old_python(), "-m", "venv", str(where / "venv"), env=clean())
    python = str(where / "venv" / "bin" / "python")
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"--config-settings=build-dir={where}/build",
         "--no-deps", SOURCE, env=clean())
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", os.path.join(SOURCE, "python", "weft_ucx_py"),
         os.path.join(SOURCE, "python", "weft_disagg"), env=clean())
    return python


def test_the_wheel_is_for_3_10_alone(installed):
    said = call(installed, "-c", "import weft._core; print(weft._core.__file__)", env=clean()).strip()
    assert os.path.basename(said).startswith("_core.cpython-310-")


def test_programs_run(installed, tmp_path):
    assert call(installed, "-c", PROGRAM, env=clean(), cwd=tmp_path).startswith("through a wheel 0.")
    assert call(installed, "-X", "dev", "-W", "error", "-c", UCP, env=clean(), cwd=tmp_path) == "by 3.10\n"
    for module in ("ucp_py", "disagg", "disagg.serve", "weft.perf", "weft.array", "weft.service"):
        call(installed, "-c", f"import {module}", env=clean(), cwd=tmp_path)
