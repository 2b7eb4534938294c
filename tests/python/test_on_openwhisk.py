"""`weft run --on openwhisk DIR`: a directory of elements on a small OpenWhisk, with the same results as on this machine."""
# ctest: long no-asan timeout=1800: the C of the launcher is tested by tools_run_ssh; here it is about OpenWhisk
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from controllerside import KEY
from onside import COMMAND, LONG, ROOT, Cloud, cloud  # noqa: F401  (a fixture)

BOTH = pytest.mark.parametrize("how", [(), ("--address", "none")], ids=["line", "record"])
HANGS = "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(600)\n"

COPIES = {
    "split.o.py": """
        #@ type: compute
        def main(params, action):
            print("split", params["n"])
            return {"parts": [list(range(i, params["n"], 3)) for i in range(3)]}
        """,
    "add.o.py": """
        #@ parents: [split]
        #@ parallelism: 3
        import os
        import sys
        def main(params, action):
            i = int(os.environ["__OW_PAR"])
            print("add", i, file=sys.stderr)
            return {"sum": sum(params["split"]["parts"][i]), "empty": os.listdir(".")}
        """,
    "all.o.py": """
        #@ parents: [add]
        def main(params, action):
            return [sum(one["sum"] for one in params["add"]), [one["empty"] for one in params["add"]], params["text"]]
        """}

SQUARES = {
    "numbers.o.yaml": "type: memory\nlimits:\n  mem: 1 MB\n",
    "make.o.py": """
        #@ corunning: {numbers: {trans: numbers, type: rdma}}
        def main(params, action):
            trans = action.get_transport("numbers", "rdma")
            trans.reg(200)
            trans.buf[:] = bytes(range(200))
            trans.write(200, 0, 0)
            return {"n": 200}
        """,
    "square.o.py": """
        #@ parents: [make]
        #@ parallelism: 2
        #@ corunning: {numbers: {trans: numbers, type: rdma}}
        import os
        def main(params, action):
            half = params["make"][0]["n"] // 2
            trans = action.get_transport("numbers", "rdma")
            trans.reg(half)
            trans.read(half, half * int(os.environ["__OW_PAR"]), 0)
            return sum(x * x for x in trans.buf)
        """,
    "all.o.py": "#@ parents: [square]\ndef main(params, action):\n    return {'sum': sum(params['square'])}\n"}


def there_and_here(cloud, files, *args, how=()):
    """The same results on both; what the run there says of itself."""
    folder = files if isinstance(files, str) else cloud.program(files)
    there, here = cloud.results(folder, *args, *how), cloud.results(folder, *args, on=None)
    assert there["results"] == here["results"]
    assert [(e["name"], e["copies"], e["state"]) for e in there["elements"]] == [
        (e["name"], e["copies"], e["state"]) for e in here["elements"]]
    return there


# --- programs -----------------------------------------------------------------------------------------------------------------

def test_the_wordcount_example(tmp_path):
    with Cloud(tmp_path, limits={"maxActionMemory": 2048}) as cloud:
        said = there_and_here(cloud, os.path.join(ROOT, "examples", "wordcount"), "--param", "mib=1")
        assert said["results"]["top"][0]["words"] > 100_000
        text, = [e for e in said["elements"] if e["name"] == "text"]
        assert text["bytes_read"] >= 1 << 20 and text["bytes_written"] >= 1 << 20


@BOTH
def test_copies_get_the_results_of_their_parents(cloud, how):
    said = there_and_here(cloud, COPIES, "--param", "n=10", "--param", "text=\u00e9\u4e2d\U0001f600", how=how)
    assert said["results"]["all"] == [[45, [[], [], []], "\u00e9\u4e2d\U0001f600"]]
    assert all(e["cpu_seconds"] > 0 and e["peak_bytes"] > 1 << 20 and e["seconds"] > 0 for e in said["elements"])


def test_memory_is_shared_and_counted(cloud):
    said = there_and_here(cloud, SQUARES)
    assert said["results"]["all"] == [{"sum": sum(x * x for x in range(200))}]
    numbers, = [e for e in said["elements"] if e["name"] == "numbers"]
    assert (numbers["bytes_read"], numbers["bytes_written"]) == (200, 200)


def test_parallel_memory_and_replicas(cloud):
    there_and_here(cloud, {
        "one.o.yaml": "type: memory\nparallelism: 2\nlimits: {mem: 64 KB}\n",
        "two.o.yaml": "type: memory\nreplicas: 2\nlimits: {mem: 64 KB}\n",
        "put.o.py": """
            #@ parallelism: 2
            #@ corunning: {one: }
            #@ dependents: [get]
            import os
            def main(params, action):
                trans = action.get_transport("one", "rdma")
                trans.reg(1)
                trans.buf[:] = bytes([7 + int(os.environ["__OW_PAR"])])
                trans.write(1, 5)
                return None
            """,
        "get.o.py": """
            #@ corunning: {one: , two: }
            def main(params, action):
                got = []
                for i in range(2):
                    trans = action.get_transport(f"one@{i}", "rdma")
                    trans.reg(1)
                    trans.read(1, 5)
                    got += bytes(trans.buf)
                two = action.get_transport("two", "rdma")
                two.reg(4)
                two.buf[:] = b"abcd"
                two.write(4, 100)
                two.buf[:] = b"...."
                two.read(4, 100)
                return [got, bytes(two.buf).decode()]
            """})


def test_elements_are_invoked_and_released(cloud):
    files = {
        "words.o.yaml": "type: memory\nlimits: {mem: 1 MB}\n",
        "double.o.py": "def main(params, action):\n    print('double', params.get('n'))\n    return 2 * params.get('n', 1)\n",
        "begin.o.py": """
            def main(params, action):
                action.runtime.invoke("double", "d", {"params": {"n": 21}})
                action.runtime.invoke("words", "more", {"size": 4096})
                trans = action.get_transport("more", "rdma")
                trans.reg(8)
                trans.buf[:5] = b"hello"
                trans.write(5, 4000)
                trans.read(5, 4000, 3)
                size, read = trans.wait_ready(30), bytes(trans.buf).decode()
                action.runtime.release("more")
                try:
                    trans.read(5, 4000)
                    after = "nothing"
                except Exception as error:
                    after = type(error).__name__
                try:
                    action.runtime.invoke("wrods", "x")
                    no = ""
                except RuntimeError as error:
                    no = str(error)
                action.runtime.invoke("words", "left", {"size": 4096})  # ends with us
                return [read, size, after, no]
            """}
    said = there_and_here(cloud, files)
    read, size, after, no = said["results"]["begin"][0]
    assert (read, size, after) == ("helhello", 4096, "ClosedError") and "there is no element" in no and "words" in no
    assert said["results"]["double"] == [2] and said["results"]["begin.d"] == [42], said["results"]


def test_modules_of_the_directory_come_along(cloud):
    there_and_here(cloud, {
        "common.py": "def twice(x):\n    return 2 * x\n", "sub/__init__.py": "", "sub/deep.py": "VALUE = 3\n",
        "first.py": "BASE = 100\n",
        "a.o.py": """
            #@ import: [first.py]
            import common
            from sub.deep import VALUE
            def main(params, action):
                return BASE + common.twice(VALUE)
            """}, how=("--address", "none"))


@BOTH
def test_whatever_is_a_result_arrives(cloud, how):
    there_and_here(cloud, {f"r{i}.o.py": f"def main(params, action):\n    return {value}\n" for i, value in enumerate(
        ["None", "7", "'text'", "[]", "{'error': 'this is no error'}", "{'__weft': 1, 'said': []}",
         "[[1, 2.5, True], {'a': '\\u00e9'}]"])}, how=how)


@BOTH
def test_a_copy_finds_nothing_of_the_one_before_it(cloud, how):
    """In the container of another copy, too: a process of its own, in a directory of its own."""
    files = {"a.o.py": """
        #@ parallelism: 4
        import os
        import sys
        def main(params, action):
            seen = getattr(sys, "seen", 0), os.environ.get("SEEN"), os.listdir(".")
            sys.seen = 1
            os.environ["SEEN"] = "1"
            open("file", "w").close()
            return seen
        """}
    said = cloud.results(files, "--jobs", "1", *how)
    assert said["results"]["a"] == [[0, None, []]] * 4
    assert len(cloud.containers) < 4  # one was used again


# --- what is printed ----------------------------------------------------------------------------------------------------------

@BOTH
def test_what_elements_print_is_shown(cloud, how):
    done = cloud.run({"a.o.py": """
        import os
        import sys
        def main(params, action):
            for i in range(2000):
                print("line", i)
            print("to stderr", file=sys.stderr)
            print("\\u00e9 \\U0001f600 \\tand a tab")
            os.write(1, b"bytes \\xff no text\\n")
            os.write(1, b"without an end")
        """}, *how)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("line ")] == [f"line {i}" for i in range(2000)]
    assert "\u00e9 \U0001f600 \tand a tab" in done.stdout and "to stderr" in done.stderr
    assert "without an end" in done.stdout and "no text" in done.stdout


def test_what_is_printed_comes_while_it_runs(cloud):
    process = cloud.start({"a.o.py": HANGS})
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert cloud.finish(process).returncode == 128 + signal.SIGINT


# --- what fails ---------------------------------------------------------------------------------------------------------------

@BOTH
def test_a_failing_element_shows_its_traceback(cloud, how):
    files = {"a.o.py": "def helper():\n    return 1 / 0\ndef main(params, action):\n    return helper()\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return 1\n"}
    done = cloud.fails(files, *how, says=["Traceback", 'a.o.py", line 2, in helper', "a failed: ZeroDivisionError: division by "
                                                                                     "zero"])
    assert done.stderr.count("ZeroDivisionError") == 2, done.stderr
    said = json.loads(cloud.fails(files, "--json", *how, says="division").stdout)
    assert said["ok"] is False and "helper" in said["failures"][0]["traceback"], said
    assert {e["name"]: e["state"] for e in said["elements"]} == {"a": "failed", "b": "not started"}


@BOTH
@pytest.mark.parametrize("code, says", [
    ("import os; os._exit(7)", "a ended with exit status 7 without a result"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "a was killed by signal 9 (SIGKILL)"),
    ("import sys; sys.exit(3)", "sys.exit(3)"),
    ("return {1, 2}", "main() returned what is not JSON"),
    ("import no_such_module", "ModuleNotFoundError")])
def test_the_ways_to_fail_are_told_as_at_home(cloud, how, code, says):
    cloud.fails({"a.o.py": f"def main(params, action):\n    {code}\n"}, *how, says=says)


def test_a_large_result_and_large_parameters_go_by_the_line(cloud):
    files = {"a.o.py": "def main(params, action):\n    return 'x' * (3 << 20)\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return len(params['a'][0])\n"}
    assert cloud.results(files)["results"]["b"] == [3 << 20]


def test_without_a_line_openwhisk_bounds_results_and_parameters(cloud):
    cloud.fails({"a.o.py": "def main(params, action):\n    return 'x' * (3 << 20)\n"}, "--address", "none",
                says=["a failed: its result has 3", "bytes, and this OpenWhisk takes 1048576: what is large belongs in a memory "
                                                    "element"])
    half = "def main(params, action):\n    return 'x' * 600_000\n"
    cloud.fails({"a.o.py": half, "b.o.py": half, "c.o.py": "#@ parents: [a, b]\ndef main(params, action):\n    return 1\n"},
                "--address", "none",
                says=["c failed: ", "with the results of its parents, have 1200", "belongs in a memory element"])


def test_without_a_line_there_is_no_memory_and_no_invoke(cloud):
    cloud.fails(SQUARES, "--address", "none", says=["numbers was lost", "memory elements need a line from their containers"])
    cloud.fails({"m.o.yaml": "type: memory\nlimits: {mem: 1 MB}\n",
                 "a.o.py": "def main(params, action):\n    action.runtime.invoke('m', 'x')\n"}, "--address", "none",
                says="nothing can be invoked: the run was started with --address none")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_everything_down(cloud, number):
    process = cloud.start({**SQUARES, "hangs.o.py": "#@ parallelism: 2\n#@ corunning: {numbers: }\n" + HANGS})
    for _ in range(2):
        assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    done = cloud.finish(process)
    assert done.returncode == 128 + number and "everything is taken down" in done.stderr


def test_time_is_over(cloud):
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANGS
    cloud.fails({"a.o.py": stubborn}, "--timeout", "4s", says="the time is over (--timeout); still running: a")
    cloud.fails({"a.o.py": "#@ limits: {time: 2s}\n" + HANGS}, says="a takes longer than its limits.time, 2")


def test_without_a_line_an_activation_that_runs_on_is_told_of(tmp_path):
    with Cloud(tmp_path, limits={"maxActionTimeout": 20_000}) as cloud:
        done = cloud.fails({"a.o.py": HANGS}, "--timeout", "3s", "--address", "none",
                           says=["still running: a", "OpenWhisk has no request that ends an activation: a may run on, for at "
                                                     "most 20 s"])
        assert "was lost" not in done.stderr


# --- limits -------------------------------------------------------------------------------------------------------------------

@BOTH
def test_the_time_of_an_activation_is_over(tmp_path, how):
    with Cloud(tmp_path, limits={"maxActionTimeout": 4000}) as cloud:
        cloud.fails({"a.o.py": HANGS}, *how, says="a failed: the time of its activation is over: this OpenWhisk gives an action "
                                                  "4 s at most")
        if not how:
            cloud.fails({**SQUARES, "make.o.py": "#@ corunning: {numbers: }\n" + HANGS}, says="gives an action 4 s at most")


def test_limits_become_those_of_the_action(cloud):
    made = {}

    def look(method, path):
        made.update({name: (action.limits, action.annotations, action.image) for name, action in cloud.actions.items()})
    cloud.fault = look
    cloud.run({"m.o.yaml": "type: memory\nlimits: {mem: 200M}\nspare: 1M\n", "usual.o.py": "def main(params, action):\n    "
                                                                                           "return 1\n",
               "a.o.py": "#@ corunning: {m: }\n#@ limits: {mem: 300M}\ndef main(params, action):\n    return 1\n"})
    found = {name.partition("/")[2]: value for name, value in made.items()}
    assert found["m"][0]["memory"] == 201 + 96 and found["a"][0]["memory"] == 300 + 96 and found["usual"][0]["memory"] == 256
    assert {limits["timeout"] for limits, _, _ in found.values()} == {300000}
    assert {image for _, _, image in found.values()} == {"example/weft"}
    assert found["m"][1]["type"] == "memory" and found["a"][1]["type"] == "compute"
    assert not any(notes["provide-api-key"] for _, notes, _ in found.values())
    cloud.fails({"a.o.py": "#@ limits: {mem: 2G}\ndef main(params, action):\n    return 1\n"},
                says=["it needs a container of 2144 MB", "this OpenWhisk gives an action 512 at most"])


def test_few_activations_at_a_time_are_waited_for(tmp_path):
    with Cloud(tmp_path, concurrent=3) as cloud:
        files = {"m.o.yaml": "type: memory\nlimits: {mem: 1M}\n", "a.o.py": """
            #@ parallelism: 6
            #@ corunning: {m: }
            import time
            def main(params, action):
                time.sleep(0.2)
                return action.get_transport("m", "rdma").wait_ready(60)
            """}
        assert cloud.results(files)["results"]["a"] == [1 << 20] * 6


@BOTH
def test_nothing_secret_is_in_a_record_a_log_or_an_environment(cloud, how):
    files = {} if how else dict(SQUARES)
    files["looks.o.py"] = """
        import os
        def main(params, action):
            parent = f"/proc/{os.getppid()}/environ"
            with open(parent, "rb") as f:
                return [name for name in {**os.environ, **dict.fromkeys(f.read().decode().split("\\0"))}
                        if name.startswith(("__OW_API", "WEFT_ELEMENT_CALLBACK"))]
        """
    assert cloud.results(files, *how)["results"]["looks"] == [[]]
    texts = [text for one in cloud.containers for text in one.printed()] + [json.dumps(one.response) for one in cloud.activations]
    for text in texts:
        assert KEY.split(":")[1] not in text and "weft-key" not in text and "token," not in text, text


def test_two_runs_do_not_disturb_each_other(cloud):
    one, two = (cloud.start(COPIES, "--json", "--param", f"n={n}", "--param", "text=x") for n in (10, 20))
    done = [cloud.finish(process, clean=False) for process in (one, two)]
    assert [json.loads(each.stdout)["results"]["all"][0][0] for each in done] == [45, 190], done
    cloud.nothing_is_left()


def test_a_trace_and_the_table_name_every_element(cloud, tmp_path):
    trace = tmp_path / "trace.json"
    done = cloud.run(SQUARES, "--trace", str(trace))
    assert done.returncode == 0
    for name in ("all", "make", "numbers", "square"):
        assert f"\n{name} " in "\n" + done.stdout and f'"{name}' in trace.read_text()


def test_keep_says_that_it_keeps_nothing(cloud):
    done = cloud.run({"a.o.py": "def main(params, action):\n    return 1\n"}, "--keep")
    assert done.returncode == 0 and "--keep keeps nothing on OpenWhisk" in done.stderr


# --- the command line ---------------------------------------------------------------------------------------------------------

def test_what_is_missing_is_asked_for(cloud):
    small = {"a.o.py": "def main(params, action):\n    return 1\n"}
    done = cloud.finish(cloud.start(small, image=None))
    assert done.returncode == 1 and "which image runs the actions? --image NAME says so" in done.stderr
    none = {key: value for key, value in cloud.environment().items() if not key.startswith("__OW_")}
    done = cloud.finish(cloud.start(small, env=none))
    assert done.returncode == 1 and "where is OpenWhisk? Say so by --on openwhisk://HOST" in done.stderr
    done = cloud.finish(cloud.start(small, env={**none, "__OW_API_HOST": cloud.host}))
    assert done.returncode == 1 and "as whom? The key of OpenWhisk is in __OW_API_KEY" in done.stderr
    done = cloud.finish(cloud.start(small, env=cloud.environment(__OW_API_KEY="some:body")))
    assert done.returncode == 1 and "does not know the key in __OW_API_KEY" in done.stderr
    done = cloud.finish(cloud.start(small, "--address", "http://x"))
    assert done.returncode == 1 and "--address http://x is not HOST or HOST:PORT" in done.stderr
    (cloud.folder / ".wskprops").write_text(f"APIHOST={cloud.host}\nAUTH={KEY}\n")
    assert cloud.finish(cloud.start(small, env=none)).returncode == 0
    assert cloud.results(small, on="openwhisk://" + cloud.host)["results"] == {"a": [1]}


def test_the_guide_s_commands_run_the_guide_s_program(tmp_path):
    """That of docs/guide/elements.md, by those of docs/guide/openwhisk.md."""
    shells = []
    for name in ("elements", "openwhisk"):
        with open(os.path.join(ROOT, "docs", "guide", name + ".md"), encoding="utf-8") as f:
            shells.append(re.findall(r"```sh\n(.*?)```", f.read(), re.S))
    program, whole = shells[0][0], shells[1][1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "wsk").write_text('#!/bin/sh\nprintf "APIHOST=%s\\nAUTH=%s\\n" "$4" "$6" > "$HOME/.wskprops"\n')
    (tmp_path / "bin" / "wsk").chmod(0o755)
    with Cloud(tmp_path) as cloud:
        env = {key: value for key, value in cloud.environment(KEY=KEY).items() if not key.startswith("__OW_")}
        env["PATH"] = os.pathsep.join([str(tmp_path / "bin"), os.path.dirname(COMMAND), env["PATH"]])
        commands = whole.replace("openwhisk.example.org", cloud.host).replace("weft run", f"weft run --python {sys.executable}")
        done = subprocess.run(["bash", "-e"], input=program + commands, cwd=tmp_path, env=env, capture_output=True, text=True,
                              timeout=LONG, check=False)
        assert done.returncode == 0 and 'all: {"sum": 328350}' in done.stdout, done.stdout + done.stderr
        cloud.nothing_is_left(done)
