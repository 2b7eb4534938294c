"""Whatever happens to OpenWhisk, to containers, to the bridge or to the launcher: the right result or a clear failure, and
nothing is left behind."""
# ctest: long no-asan timeout=3600: the C of the launcher is tested by tools_run_ssh; here it is about OpenWhisk
import contextlib
import json
import os
import random
import signal
import threading
import time

import pytest

from onside import Cloud, bridge_of, cloud, until  # noqa: F401  (a fixture)
from test_on_openwhisk import HANGS, SQUARES

GOOD = {"sum": sum(x * x for x in range(200))}
SMALL = {"a.o.py": "def main(params, action):\n    return 7\n",
         "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return params['a'][0] + 1\n"}
STAGES = {"greeting": ("GET", "/namespaces"), "limits": ("GET", "/limits"), "package": ("PUT", "/packages/"),
          "list": ("GET", "/packages?"), "action": ("PUT", "/actions/"), "invoke": ("POST", "/actions/"),
          "poll": ("GET", "/activations/"), "delete action": ("DELETE", "/actions/"), "delete package": ("DELETE", "/packages/")}
FAULTS = {"500": (500, {"error": "There was an error processing your request."}),
          "429": (429, {"error": "Too many requests in the last minute"}),
          "503": (503, {"error": "System is overloaded, try again later."}),
          "garbage": b"\x16\x03\x01 not HTTP\r\n\r\n", "closed": b"", "lost": "lost",
          "html": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/html\r\n\r\n<html></html>",
          "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
          "half": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"half\":"}


def at(stage, fault, times):
    """A fault in the first requests of a stage; `hit` says that it happened."""
    method, part = STAGES[stage]
    left = [times]
    lock = threading.Lock()

    def one(asked, path):
        right = asked == method and (path.endswith(part) if stage == "greeting" else part in path)
        with lock:
            if right and left[0] > 0:
                left[0] -= 1
                one.hit = True
                return fault(asked, path) if callable(fault) else fault
        return None
    one.hit = False
    return one


# --- OpenWhisk ----------------------------------------------------------------------------------------------------------------

def wrong_answers():
    """Every fault of an invocation, each fault in a third of the other stages; WHISK_ALL=1: in all of them."""
    return [(stage, fault) for i, stage in enumerate(STAGES) for j, fault in enumerate(FAULTS)
            if stage == "invoke" or (i + j) % 3 == 0 or os.environ.get("WHISK_ALL")]


@pytest.mark.parametrize("stage, fault", wrong_answers())
def test_one_answer_is_wrong(cloud, stage, fault):
    """The right result, or a sentence."""
    cloud.fault = at(stage, FAULTS[fault], 1)
    done = cloud.run(SMALL, "--json", *(("--address", "none") if stage == "poll" else ()))
    assert cloud.fault.hit
    said = json.loads(done.stdout)
    if done.returncode == 0:
        assert said["results"] == {"a": [7], "b": [8]}
    else:
        assert done.returncode == 1 and ("OpenWhisk" in done.stderr or cloud.host in done.stderr), done.stderr
        assert stage in ("greeting", "package", "action", "invoke", "poll"), done.stderr
    if fault == "429" or fault == "503":
        assert done.returncode == 0, done.stderr
    if stage == "invoke" and fault in ("500", "garbage", "closed", "half", "html"):
        # it may have been started: it is not started again
        assert "It is not known whether it was started" in done.stderr and len(cloud.activations) == 0, done.stderr
    if stage == "invoke" and fault == "lost":
        assert done.returncode == 0 and len(cloud.of("/a")) == 1, done.stderr  # it was, and it called


@pytest.mark.parametrize("stage", ["delete action", "delete package"])
def test_what_cannot_be_deleted_is_named_and_the_next_run_deletes_it(cloud, stage):
    cloud.fault = at(stage, (500, {"error": "no"}), 10**6)
    done = cloud.finish(cloud.start(SMALL), clean=False)
    name, = cloud.packages
    assert done.returncode == 0 and f"the package {name} is left in OpenWhisk" in done.stderr, done.stderr
    cloud.fault = None
    cloud.packages["weft-run-of-somebody"] = [{"key": "weft-run", "value": {"machine": "another", "pid": 1, "started": "1"}}]
    cloud.packages["weft-run-without"] = []
    assert cloud.finish(cloud.start(SMALL), clean=False).returncode == 0
    assert set(cloud.packages) == {"weft-run-of-somebody", "weft-run-without"} and not cloud.actions


@pytest.mark.parametrize("stage", ["greeting", "package", "action", "invoke"])
def test_openwhisk_hangs_and_the_run_is_given_up(cloud, stage):
    """By Ctrl-C, while a request waits for its answer."""
    cloud.fault = at(stage, "hang", 10**6)
    process = cloud.start(SMALL)
    until(lambda: cloud.fault.hit, "the request")
    process.send_signal(signal.SIGINT)
    done = cloud.finish(process)
    assert done.returncode == 128 + signal.SIGINT, done.stderr


def test_openwhisk_is_too_busy_for_ever(cloud):
    """It is waited for, which is told, and the run can be given up."""
    cloud.concurrent = 0
    process = cloud.start(SMALL)
    line = process.stderr.readline()
    assert "too busy to invoke a (429: Too many concurrent requests in flight (count: 1, allowed: 0).); a and others wait" in line
    process.send_signal(signal.SIGINT)
    assert cloud.finish(process).returncode == 128 + signal.SIGINT and not cloud.activations


def test_openwhisk_dies_while_elements_run(cloud):
    """What runs has its line to the launcher, and needs no controller."""
    process = cloud.start({"a.o.py": "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(3)\n  "
                                     "  return 7\n"}, "--json")
    assert process.stderr.readline() == "up\n"
    cloud.die()
    done = cloud.finish(process, clean=False)
    assert done.returncode == 0 and json.loads(done.stdout)["results"] == {"a": [7]}, done.stderr
    assert "is left in OpenWhisk" in done.stderr and "the next run from this machine deletes it" in done.stderr
    until(lambda: not cloud.running() and not cloud.inside(), "the end of all activations")


def test_openwhisk_dies_before_the_next_element(cloud):
    def killer(method, path):
        if method == "POST" and path.partition("?")[0].endswith("/b"):
            threading.Thread(target=cloud.die).start()
            return "hang"
        return None
    cloud.fault = killer
    done = cloud.finish(cloud.start(SMALL), clean=False)
    assert done.returncode == 1 and "b failed: OpenWhisk" in done.stderr, done.stderr


def test_nothing_that_is_an_openwhisk(cloud):
    process = cloud.start(SMALL, env=cloud.environment(__OW_API_HOST="http://127.0.0.1:1"))
    done = cloud.finish(process)
    assert done.returncode == 1
    assert "nothing listens at http://127.0.0.1:1: is the address right, and does the server there run?" in done.stderr


@pytest.mark.parametrize("answer", [(200, {"a": 1}), (404, {"error": "no"}), (405, {"error": "no"}), (418, {}), (200, [1, 2])])
def test_something_else_that_speaks_http(cloud, answer):
    cloud.fault = lambda method, path: answer
    cloud.fails(SMALL, says="is it")


def test_an_activation_without_an_id(cloud):
    for said in ({}, {"activationId": 7}, {"activationId": "../../x"}, []):
        cloud.fault = at("invoke", (202, said), 1)
        cloud.fails(SMALL, says="answered without an activationId")


def test_records_that_make_no_sense(cloud):
    """The activation ended, and what OpenWhisk says of it is not what it should be."""
    for said in ({}, {"response": 7}, {"response": {"status": "success"}}, {"logs": 7, "response": {"result": 7, "status": 7}},
                 {"logs": [7, None], "response": {"result": {"error": [1]}}},
                 {"response": {"result": {"said": [7, {"did": "over"}]}}}):
        cloud.fault = at("poll", (200, said), 10**6)
        done = cloud.fails({"a.o.py": "def main(params, action):\n    return 7\n"}, "--address", "none", says="a ")
        assert "bridge" not in done.stderr, done.stderr


def test_a_record_that_comes_late(tmp_path):
    with Cloud(tmp_path, delay=3.0) as cloud:
        assert cloud.results(SMALL, "--address", "none")["results"] == {"a": [7], "b": [8]}


@pytest.mark.parametrize("result, says", [
    ("whisk internal error", "was lost with"), ("The action exhausted its memory and was aborted.", "its container had 256 MB"),
    ("The action did not initialize and exited unexpectedly.", "exited unexpectedly"),
    ("Failed to pull container image 'x'.", "Failed to pull")])
def test_what_openwhisk_says_of_an_activation_is_passed_on(cloud, result, says):
    status = "whisk internal error" if result == "whisk internal error" else "action developer error"
    cloud.fault = at("poll", (200, {"response": {"status": status, "result": {"error": result}}, "logs": []}), 10**6)
    cloud.fails({"a.o.py": "def main(params, action):\n    return 7\n"}, "--address", "none", says=says)


# --- containers ---------------------------------------------------------------------------------------------------------------

def test_a_container_dies_with_an_element(cloud):
    process = cloud.start({"a.o.py": HANGS})
    assert process.stdout.readline() == "up\n"
    cloud.kill(cloud.activations[0])
    done = cloud.finish(process)
    assert done.returncode == 1, done.stderr
    assert "a was lost with activation" in done.stderr and "`idempotent: true`" in done.stderr, done.stderr


def test_an_element_that_may_is_started_again(cloud):
    if "there is no key" in cloud.run(
        {"a.o.py": "#@ idempotent: true\ndef main(params, action):\n    return 1\n"}, "--check").stderr:
        pytest.skip("this weft does not read `idempotent` yet")
    marker = cloud.folder / "marker"
    process = cloud.start({"a.o.py": f"""
        #@ idempotent: true
        #@ retries: 2
        import os, time
        def main(params, action):
            if not os.path.exists({str(marker)!r}):
                open({str(marker)!r}, "w").close()
                print("up", flush=True)
                time.sleep(600)
            return 7
        """}, "--json")
    assert process.stderr.readline() == "up\n"
    cloud.kill(cloud.activations[0])
    done = cloud.finish(process)
    assert done.returncode == 0 and json.loads(done.stdout)["results"] == {"a": [7]}, done.stderr
    assert "is started again" in done.stderr


def test_a_container_dies_with_memory(cloud):
    process = cloud.start({**SQUARES, "hangs.o.py": """
        #@ corunning: {numbers: {trans: numbers, type: rdma}}
        import time
        def main(params, action):
            trans = action.get_transport("numbers", "rdma")
            trans.reg(1)
            trans.read(1, 0, 0)  # it serves
            print("up", flush=True)
            time.sleep(600)
        """})
    assert process.stdout.readline() == "up\n"
    cloud.kill(cloud.of("/numbers")[0])
    done = cloud.finish(process)
    assert done.returncode == 1 and "memory element numbers was lost with activation" in done.stderr, done.stderr


def test_a_container_stops(cloud):
    """Nothing comes from it any more, and nobody hangs up."""
    process = cloud.start({"a.o.py": HANGS})
    assert process.stdout.readline() == "up\n"
    container = cloud.activations[0].container
    with stopped(*everything_in(container)):
        done = cloud.finish(process, clean=False)
        assert done.returncode == 1 and "its container has not answered for 20 s" in done.stderr, done.stderr
    cloud.nothing_is_left()


def everything_in(container):
    from onside import processes_in
    return processes_in(container.folder.name)


@contextlib.contextmanager
def stopped(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_containers_that_do_not_reach_the_launcher(tmp_path):
    with Cloud(tmp_path) as cloud:
        cloud.fails(SMALL, "--address", "240.0.0.1", says=[
            "a failed: its activation failed (application error): this container could not reach the launcher at 240.0.0.1:",
            "--address HOST:PORT", "--address none"])


def test_an_image_without_the_command(tmp_path):
    with Cloud(tmp_path) as cloud:
        cloud.env["PATH"] = "/nowhere"
        for how in ((), ("--address", "none")):
            cloud.fails(
    SMALL,
    *how,
    says=[
        "the image cannot run elements: the command weft is neither beside",
         "docker/openwhisk/Dockerfile"])


def test_an_image_of_another_version(tmp_path):
    with Cloud(tmp_path) as cloud:
        cloud.env["PYTHONPATH"] = str(tmp_path)  # without our packages nothing would start: disagg is there, and has no `on`
        import disagg
        (tmp_path / "disagg").mkdir()
        for name in os.listdir(os.path.dirname(disagg.__file__)):
            if name != "on":
                os.symlink(os.path.join(os.path.dirname(disagg.__file__), name), tmp_path / "disagg" / name)
        os.symlink(os.path.dirname(__import__("weft").__file__), tmp_path / "weft")
        cloud.fails(SMALL, says=["the image has no disagg that can take part in a run", "build it again"])


# --- the launcher and the bridge ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage", [*STAGES, "running"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_launcher_is_killed(cloud, stage, number):
    """At every stage: the bridge cleans up."""
    files = {**SQUARES, "hangs.o.py": "#@ corunning: {numbers: }\n" + HANGS} if stage == "running" else SMALL
    started = []

    def kill(method, path):
        until(lambda: started, "the launcher")
        started[0].send_signal(number)
    if stage != "running":
        cloud.fault = at(stage, kill, 1)
    process = cloud.start(files, *(("--address", "none") if stage == "poll" else ()))
    started.append(process)
    if stage == "running":
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
    done = cloud.finish(process)
    assert done.returncode in (-number, 128 + number, 0), done


@pytest.mark.parametrize("stage", ["greeting", "package", "action", "invoke", "running", "delete action"])
def test_the_launcher_is_stopped_for_a_while(cloud, stage):
    slow = {**SQUARES, "all.o.py": "#@ parents: [square]\nimport time\ndef main(params, action):\n    print('up', flush=True)\n "
                                   "   time.sleep(1)\n"
                                   "    return {'sum': sum(params['square'])}\n"}
    started = []

    def stop(method, path):
        until(lambda: started, "the launcher")
        started[0].send_signal(signal.SIGSTOP)
    if stage != "running":
        cloud.fault = at(stage, stop, 1)
    process = cloud.start(slow, "--json")
    started.append(process)
    if stage == "running":
        assert process.stderr.readline() == "up\n"
        process.send_signal(signal.SIGSTOP)
    else:
        until(lambda: cloud.fault.hit, "the request")
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    done = cloud.finish(process)
    assert done.returncode == 0 and json.loads(done.stdout)["results"]["all"] == [GOOD], done.stderr


# the first ends meanwhile, and what waits to be read is not lost; the second waits to be read on, which is not silence
@pytest.mark.parametrize("lines, seconds", [(10_000, 8), (40_000, 23)])
def test_the_launcher_is_stopped_while_an_element_prints(cloud, lines, seconds):
    process = cloud.start({"a.o.py": f"""
        def main(params, action):
            for i in range({lines}):
                print("line", i, "x" * 100)
            return 7
        """}, "--json")
    assert process.stderr.readline().startswith("line 0 ")
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)
    done = cloud.finish(process)
    assert done.returncode == 0 and json.loads(done.stdout)["results"] == {"a": [7]}, done.stderr[-2000:]
    assert done.stderr.splitlines()[-1].startswith(f"line {lines - 1} ")


def test_the_bridge_is_killed(cloud):
    """The run fails; what the bridge made goes with the next run of this machine."""
    process = cloud.start({**SQUARES, "hangs.o.py": "#@ corunning: {numbers: }\n" + HANGS})
    assert process.stdout.readline() == "up\n"
    os.kill(bridge_of(process), signal.SIGKILL)
    done = cloud.finish(process, clean=False)
    assert done.returncode == 1 and "the connection to it ended" in done.stderr, done.stderr
    until(lambda: not cloud.running() and not cloud.inside(), "the end of all activations")
    assert len(cloud.packages) == 1
    assert cloud.results(SMALL)["results"]["b"] == [8]  # and nothing is left


def test_the_bridge_is_told_to_end(cloud):
    process = cloud.start({**SQUARES, "hangs.o.py": "#@ corunning: {numbers: }\n" + HANGS})
    assert process.stdout.readline() == "up\n"
    os.kill(bridge_of(process), signal.SIGTERM)
    assert cloud.finish(process).returncode == 1


def test_the_bridge_stops(cloud):
    process = cloud.start({"a.o.py": HANGS})
    assert process.stdout.readline() == "up\n"
    os.kill(bridge_of(process), signal.SIGSTOP)
    done = cloud.finish(process, clean=False)
    assert done.returncode == 1 and "it has not answered for 10 s" in done.stderr, done.stderr
    until(lambda: not cloud.running() and not cloud.inside(), "the end of all activations")
    assert cloud.results(SMALL)["results"]["b"] == [8]


# --- at any moment --------------------------------------------------------------------------------------------------------------

def kill_container(cloud, process, chance, part=""):
    """One in which something runs, if there is any."""
    running = [one for one in cloud.running() if one.container is not None and one.action.endswith(part)]
    if running:
        with contextlib.suppress(AssertionError, OSError):  # it has just ended
            cloud.kill(chance.choice(running))


def stop_launcher(cloud, process, chance):
    process.send_signal(signal.SIGSTOP)
    time.sleep(2 * chance.random())
    process.send_signal(signal.SIGCONT)


def kill_bridge(cloud, process, chance):
    pid = bridge_of(process)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


HITS = {"launcher killed": lambda cloud, process, chance: process.kill(), "launcher stopped": stop_launcher, "container": kill_container,
        "launcher told to end": lambda cloud, process, chance: process.terminate(),
        "memory": lambda cloud, process, chance: kill_container(cloud, process, chance, "/numbers"),
        "bridge": kill_bridge}


@pytest.mark.parametrize("seed", range(int(os.environ.get("WHISK_SEEDS", "3"))))
@pytest.mark.parametrize("what", HITS)
def test_at_any_moment(cloud, what, seed):
    """WHISK_SEEDS=50 tries more of them."""
    chance = random.Random(f"{what} {seed}")
    process = cloud.start(SQUARES, "--json")
    time.sleep(3 * chance.random())
    if process.poll() is None:
        HITS[what](cloud, process, chance)
    done = cloud.finish(process, clean=what != "bridge")
    if what == "bridge":  # nobody could clean up: the next run does
        until(lambda: not cloud.running() and not cloud.inside(), "the end of all activations")
        assert cloud.results(SMALL)["results"]["b"] == [8]
    if done.returncode == 0:
        assert json.loads(done.stdout)["results"]["all"] == [GOOD], done
    elif done.returncode == 1:
        assert "weft run: " in done.stderr and json.loads(done.stdout)["ok"] is False, done
    else:
        assert (what, done.returncode) in (("launcher killed", -9), ("launcher told to end", 143), ("launcher told to end", -15)), done
    if what == "launcher stopped":
        assert done.returncode == 0, done
