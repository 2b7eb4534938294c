"""POST /run of the OpenWhisk runtime: results, the environment, output and sentinels, deadlines, and code that fails, crashes
and hangs."""
# ctest: long
import contextlib
import errno
import glob
import os
import signal
import subprocess
import time

import pytest

from disagg.serve import __main__ as serve_main

from whiskside import BOUND, SENTINEL, Whisk, in_ms

END = SENTINEL + "\n"


@pytest.fixture
def whisk():
    made = []

    def start(*args, **env):
        made.append(Whisk(*args, **env))
        return made[-1]
    yield start
    for one in made:
        one.close()


def test_before_init(whisk):
    status, said = whisk().run()
    assert status == 502 and "POST /init comes first" in said["error"]


def test_the_fields_become_variables_and_do_not_stay(whisk):
    one = whisk(__OW_API_HOST="http://127.0.0.1:1").loaded("""
        import os
        def main(params):
            return {k: v for k, v in os.environ.items() if k.startswith("__OW_")}
        """)
    status, said = one.run(deadline=(deadline := in_ms(50)), extra={"a": 1}, app_activation_id="app", function_activation_id="fn",
                           name="it")
    assert status == 200 and said == {
        "__OW_NAMESPACE": "guest", "__OW_ACTION_NAME": "/guest/it", "__OW_ACTIVATION_ID": "a1", "__OW_TRANSACTION_ID": "t1",
        "__OW_AID": "a1",
        "__OW_DEADLINE": str(deadline), "__OW_API_KEY": "guest:verysecret", "__OW_API_HOST": "http://127.0.0.1:1",
                                      "__OW_EXTRA": '{"a": 1}',
        "__OW_APP_ACTIVATION_ID": "app", "__OW_FUNCTION_ACTIVATION_ID": "fn", "__OW_NAME": "it"}
    status, said = one.ask("POST", "/run", {"value": {}, "activation_id": "b", "api_host": "http://127.0.0.1:2"})
    assert (status, said) == (200, {"__OW_ACTIVATION_ID": "b", "__OW_AID": "b", "__OW_API_HOST": "http://127.0.0.1:2"})
    assert one.ask("POST", "/run", {"value": {}}) == (200, {"__OW_API_HOST": "http://127.0.0.1:1"})


def test_globals_stay(whisk):
    one = whisk().loaded("N = [0]\ndef main(params):\n    N[0] += 1\n    return {'n': N[0]}")
    assert [one.run()[1]["n"] for _ in range(3)] == [1, 2, 3]


def test_plain_parameters_are_plain(whisk):
    one = whisk().loaded("def main(params): return {'type': type(params['x']).__name__}")
    assert one.run({"x": [{"a": 1}]}) == (200, {"type": "list"})


@pytest.mark.parametrize("value, wanted", [("{'a': 1}", {"a": 1}), ("[1, 'x', None]", [1, "x", None]), ("(1, 2)", [1, 2]),
                                           ("{}", {}), ("{'error': 'mine'}", {"error": "mine"})])
def test_results(whisk, value, wanted):
    assert whisk().loaded(f"def main(params): return {value}").run() == (200, wanted)


@pytest.mark.parametrize("value, says", [("None", "did not return a dictionary or an array"), ("5", "but int"),
                                         ("'text'", "but str"),
                                         ("{'a': {1, 2}}", "the result['a'] is of type set"),
                                         ("[float('nan')]", "the result[0] is nan"), ("{'a': b'x'}", "bytes")])
def test_what_is_no_result(whisk, value, says):
    one = whisk().loaded(f"def main(params): return {value}")
    status, said = one.run()
    assert status == 502 and list(said) == ["error"] and says in said["error"]
    out, err = one.printed()
    assert out == END and err.endswith(END) and says in err


def test_an_exception(whisk):
    one = whisk().loaded("def deep(): return 1 / 0\ndef main(params):\n    print('so far')\n    deep()")
    assert one.run() == (200, {"error": "division by zero"})
    out, err = one.printed()
    assert out == "so far\n" + END
    assert err.startswith("Traceback (most recent call last):\n") and "in deep" in err and err.endswith("ZeroDivisionError: division by zero\n" + END)
    assert "disagg" not in err
    assert one.run()[0] == 200 and one.printed()[1].count(SENTINEL) == 2  # the same process is there for the next one


def test_it_ends_itself(whisk):
    status, said = whisk().loaded("import sys\ndef main(params): sys.exit(4)").run()
    assert status == 502 and "sys.exit(4)" in said["error"]


def test_large_parameters_and_results(whisk):
    one = whisk().loaded("def main(params): return {'x': params['x'] * 2}")
    text = "x" * (5 << 20)
    assert one.run({"x": text}) == (200, {"x": text * 2})


def test_coroutines(whisk):
    one = whisk().loaded("import asyncio\nasync def main(params):\n    await asyncio.sleep(0)\n    return {'a': 1}")
    assert one.run() == one.run() == (200, {"a": 1})


def test_the_sentinel_is_after_all_that_was_printed(whisk):
    one = whisk().loaded("""
        import ctypes, os, subprocess, sys
        def main(params):
            sys.stdout.write("python ")
            sys.stdout.flush()
            subprocess.run(["sh", "-c", "printf 'child '; printf 'child err ' >&2"], check=True)
            os.write(1, b"fd ")
            ctypes.CDLL(None).printf(b"stdio")     # it stays in a buffer of C's
            print("no end of a line", end="", file=sys.stderr)
            return {}
        """)
    for _ in range(3):
        assert one.run() == (200, {})
    out, err = one.printed()
    assert out == f"python child fd stdio\n{END}" * 3  # on a line of its own
    assert err == f"child err no end of a line\n{END}" * 3


def test_much_is_printed(whisk):
    one = whisk().loaded("""
        import sys
        def main(params):
            for i in range(20000):
                print("line", i)
            print("x" * 300000, end="")
            print("y" * 300000, file=sys.stderr)
            return {}
        """)
    assert one.run() == (200, {})
    out, err = one.printed()
    assert out == "".join(f"line {i}\n" for i in range(20000)) + "x" * 300000 + "\n" + END
    assert err == "y" * 300000 + "\n" + END


def test_one_at_a_time(whisk, tmp_path):
    one = whisk(TMPDIR=str(tmp_path)).loaded("""
        import os, time
        def main(params):
            print("running", flush=True)
            while not os.path.exists(params["gate"]):
                time.sleep(0.01)
            return {"done": 1}
        """)
    gate = str(tmp_path / "gate")
    with one.running({"gate": gate}) as answers:
        try:
            one.until_printed("running")
            status, said = one.run({"gate": gate})
            assert status == 409 and "one runs at a time" in said["error"] and not answers
            assert SENTINEL not in one.printed()[0]  # which would have ended the logs of the other one
        finally:
            open(gate, "w").close()
    os.unlink(gate)
    assert answers == [(200, {"done": 1})] and one.printed()[0] == "running\n" + END


CRASHES = {"_exit": ("os._exit(0)", "ended itself with status 0"), "abort": ("os.abort()", "SIGABRT"),
           "segfault": ("ctypes.string_at(0)", "SIGSEGV"), "killed": ("os.kill(os.getpid(), 9)", "too little memory"),
           "closes": ("os.closerange(3, 256)", "status 1"), "exec": ("os.execvp('true', ['true'])", "status 0")}


@pytest.mark.parametrize("name", CRASHES)
def test_code_that_takes_its_process_down(whisk, name):
    how, says = CRASHES[name]
    one = whisk().loaded(f"""
        import ctypes, os, time
        N = [0]
        def main(params):
            N[0] += 1
            if params.get("crash"):
                print("about to")
                {how}
            return {{"n": N[0]}}
        """)
    assert one.run() == (200, {"n": 1})
    status, said = one.run({"crash": 1})
    # as a sanitizer has it
    assert status == 502 and (says in said["error"] or (name == "segfault" and "status 1" in said["error"])), said
    assert one.run() == (200, {"n": 1})  # another process, with the same code
    assert one.printed()[0] == f"{END}about to\n{END}{END}" and one.printed()[1].count(SENTINEL) == 3


def test_the_process_is_killed_while_it_runs_and_while_it_does_not(whisk):
    one = whisk().loaded("""
        import time
        def main(params):
            if params.get("wait"):
                print("in", flush=True)
                time.sleep(600)
            return {}
        """)
    with one.running({"wait": 1}) as answers:
        one.until_printed("in")
        os.kill(one.worker(), signal.SIGKILL)
    status, said = answers[0]
    assert status == 502 and "signal 9" in said["error"]
    assert one.run() == (200, {})
    os.kill(one.worker(), signal.SIGKILL)
    first = one.run()  # it may be answered by the one that is dying
    assert first == (200, {}) or first[0] == 502
    assert one.run() == (200, {})


def test_a_forked_copy_says_nothing(whisk):
    one = whisk().loaded("import os\ndef main(params):\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    return "
                         "{'child': pid == 0}")
    assert one.run() == one.run() == (200, {"child": False})


# --- deadlines

@pytest.mark.parametrize("how", ["time.sleep(600)", "while True: pass", "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, "
                                                                        "65)); time.sleep(600)"])
def test_code_that_does_not_end_in_time(whisk, how):
    one = whisk().loaded(f"""
        import signal, time
        def main(params):
            if params.get("hang"):
                print("hanging", flush=True)
                {how}
            return {{"ok": 1}}
        """)
    before = one.worker()
    begun = time.time()
    status, said = one.run({"hang": 1}, deadline=in_ms(1))
    assert status == 502 and "deadline" in said["error"] and time.time() - begun >= 0.99
    assert one.printed()[0] == "hanging\n" + END
    assert one.run() == (200, {"ok": 1})
    assert one.worker() != before and not os.path.exists(f"/proc/{before}")


def running_with(argument):
    """The processes that have it as their last argument, of this host and of its containers."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path, "rb") as f:
            if f.read().endswith(argument.encode() + b"\0"):
                found.append(path)
    return found


def test_what_it_started_goes_with_it(whisk):
    seconds = f"600.{os.getpid():08d}{time.monotonic_ns()}"  # by which it is found, also where its id is another
    end = time.monotonic() + BOUND
    with subprocess.Popen(["sleep", seconds]) as ours:
        while len(running_with(seconds)) != 1 and time.monotonic() < end:  # its arguments can be read a moment after it is there
            time.sleep(0.01)
        found = running_with(seconds)
        ours.kill()
    assert len(found) == 1
    one = whisk().loaded(f"""
        import subprocess
        def main(params):
            p = subprocess.Popen(["sleep", "{seconds}"])
            print("begun", flush=True)
            p.wait()
        """)
    assert one.run(deadline=in_ms(1))[0] == 502
    assert one.printed()[0].startswith("begun\n")
    end = time.monotonic() + BOUND
    while running_with(seconds):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_deadline_that_is_over(whisk):
    one = whisk().loaded("def main(params): return {}")
    status, said = one.run(deadline=in_ms(-5))
    assert status == 502 and "passed before" in said["error"]
    assert one.run() == (200, {})


def test_the_action_is_told_before_the_deadline(whisk):
    one = whisk().loaded("""
        import time
        def main(params, action):
            while not action.terminated:
                time.sleep(0.005)
            return {"in time": True}
        """)
    assert one.run(deadline=in_ms(3)) == (200, {"in time": True})


# --- the end

def test_sigterm_tells_the_activation_and_answers_it(whisk, tmp_path):
    one = whisk(TMPDIR=str(tmp_path)).loaded("""
        import time
        def main(params, action):
            print("in", flush=True)
            while not action.terminated:
                time.sleep(0.005)
            return {"told": True}
        """)
    assert list(tmp_path.iterdir())
    with one.running() as answers:
        one.until_printed("in")
        assert one.end() == 0
    assert answers == [(200, {"told": True})] and list(tmp_path.iterdir()) == []


def test_sigterm_ends_one_that_does_not_listen(whisk):
    one = whisk().loaded("import time\ndef main(params):\n    print('in', flush=True)\n    time.sleep(600)")
    with one.running() as answers:
        one.until_printed("in")
        worker = one.worker()
        assert one.end() == 0
    assert answers[0][0] == 502 and one.printed()[1].endswith(END) and not os.path.exists(f"/proc/{worker}")
    assert "told to end" in answers[0][1]["error"] and "memory" not in answers[0][1]["error"]


def test_nowhere_to_write_is_said(monkeypatch, capsys):
    """As in a container that is read-only."""
    def refuse(path, mode):
        raise OSError(errno.EROFS, "Read-only file system", path)
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(SystemExit) as end:
        serve_main.new_folder()
    said = capsys.readouterr().err
    assert end.value.code == 1 and "--tmpfs /tmp" in said and "TMPDIR" in said and said.count("\n") == 1


def test_the_process_goes_with_the_runtime(whisk):
    one = whisk().loaded("import time\ndef main(params):\n    print('in', flush=True)\n    time.sleep(600)")
    worker = one.worker()
    try:
        with one.running_lost():
            one.until_printed("in")
            one.kill()
        end = time.monotonic() + BOUND
        while os.path.exists(f"/proc/{worker}"):
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        subprocess.run(["kill", "-9", str(worker)], check=False, stderr=subprocess.DEVNULL)
