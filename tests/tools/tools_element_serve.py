"""weft element serve becomes Python's action runtime, or says in a sentence why it cannot. The runtime itself: tests/python/test_openwhisk_*.py."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request

from lib import weft

PYTHON = os.path.join(weft.ROOT, "build", "venv", "bin", "python")


def python():
    """An interpreter that has the package of this build, and the environment for it."""
    folder = os.path.join(os.path.dirname(os.path.abspath(weft.command())), "python")
    if not os.path.exists(os.path.join(folder, "weft", "_core.abi3.so")):
        raise weft.Skip("the Python package is not built here")
    found = PYTHON if os.path.exists(PYTHON) else sys.executable
    return found, weft.environment(PYTHONPATH=folder)


def refused(*args, says, status, env=None):
    done = weft.run("element", "serve", *args, env=env)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stderr}"
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("weft element serve: "), done.stderr
    for word in says:
        assert word in done.stderr, f"\"{word}\" is not in: {done.stderr}"


def what_is_not_understood_is_named():
    refused("--prot", "1", says=["--prot", "--port"], status=2)
    refused("--port", "x", says=["--port x", "65535"], status=2)
    refused("--port", "70000", says=["70000"], status=2)
    refused("--ready-fd", "77", says=["77"], status=2)
    refused(*["--port", "1"] * 20, "--python", "no-such-python", says=["no-such-python"], status=1)  # the last one counts
    assert "--address" in weft.must("element", "serve", "--help") and "serve" in weft.must("element", "--help")


def python_is_missing():
    refused("--python", "no-such-python", says=["no-such-python", "--python PATH"], status=1)
    refused("--python", "/no/such/python", says=["/no/such/python"], status=1)
    with tempfile.TemporaryDirectory() as empty:
        refused(says=["python3"], status=1, env=weft.environment(PATH=empty))


def the_package_is_missing():
    env = weft.environment(PYTHONPATH="", PYTHONNOUSERSITE="1")
    done = subprocess.run([sys.executable, "-P", "-c", "import disagg"], env=env, capture_output=True, check=False, timeout=60)
    if done.returncode == 0:
        raise weft.Skip("the interpreter of these tests has the package")
    refused("--python", sys.executable, says=["disagg", "install", "--python PATH"], status=1, env=env)


def a_port_in_use_is_said():
    path, env = python()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused("--python", path, "--host", "127.0.0.1", "--port", port, says=[port, "in use", "--port N"], status=1, env=env)
    refused("--python", path, "--host", "not an address", says=["not an address"], status=1, env=env)


def it_runs_actions_and_ends_when_told():
    path, env = python()
    for number in (signal.SIGTERM, signal.SIGINT):
        p = weft.start("element", "serve", "--python", path, "--host", "127.0.0.1", "--port", "0", env=env)
        try:
            where = p.stdout.readline().strip()
            assert where.startswith("http://127.0.0.1:"), where

            def ask(route, said):
                request = urllib.request.Request(where + route, json.dumps(said).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            assert ask("/init", {"value": {"code": "def main(params): return {'twice': 2 * params['n']}"}}) == {"ok": True}
            assert ask("/run", {"value": {"n": 21}}) == {"twice": 42}
            p.send_signal(number)
            out, err = p.communicate(timeout=20)
            sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n"
            assert (p.returncode, out, err) == (0, sentinel, sentinel), (p.returncode, out, err)
        finally:
            weft.end(p)


weft.main(what_is_not_understood_is_named, python_is_missing, the_package_is_missing, a_port_in_use_is_said, it_runs_actions_and_ends_when_told)
