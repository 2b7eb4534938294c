"""python -m disagg.element: what a launcher says to it and hears from it; programs that work, fail, lie, hang and are hostile."""
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from disagg.results import Results, results

from elementside import BOUND, memory


class Element:
    """An element as a process, and our end of its socket."""

    def __init__(self, folder):
        self.folder = folder
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(BOUND)
        self.lines = self.ours.makefile("rb")
        self.process = subprocess.Popen([sys.executable, "-X", "dev", "-m", "disagg.element"], pass_fds=[theirs.fileno()],
                                        stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
                                        env={**os.environ, "WEFT_ELEMENT_FD": str(theirs.fileno()),
                                             "PYTHONPATH": os.pathsep.join(sys.path)})
        theirs.close()

    def say(self, what):
        self.ours.sendall(what if isinstance(what, bytes) else json.dumps(what).encode() + b"\n")

    def run(self, text, params=None, **more):
        path = os.path.join(self.folder, "it.o.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
        self.say({"do": "run", "name": "it", "id": "it@0", "index": 0, "copies": 1, "file": path, "path": str(self.folder),
                  "imports": [],
                  "params": params or {}, "transports": [], **more})
        return self

    def hear(self):
        line = self.lines.readline()
        return json.loads(line) if line else None

    def end(self):
        """All that is left to hear, its exit status, stdout and stderr."""
        said = []
        while (line := self.hear()) is not None:
            said.append(line)
        out, err = self.process.communicate(timeout=BOUND)
        return said, self.process.returncode, out, err


@pytest.fixture
def element(tmp_path):
    made = []

    def start():
        made.append(Element(tmp_path))
        return made[-1]
    yield start
    for one in made:
        one.process.kill()
        one.process.communicate(timeout=BOUND)
        one.lines.close()
        one.ours.close()


def outcome(said):
    assert [line["did"] for line in said[:-1]] == ["begin", "stats"], said
    return said[-1]


def test_main_gets_its_parameters_and_its_result_arrives(element):
    said, status, out, err = element().run("""
        #@ type: compute
        import os, sys
        print("to the user")
        def main(params, action):
            print(sys.argv[0][-7:], __name__ != "__main__", os.environ.get("WEFT_ELEMENT_FD"))
            return {"twice": params["k"] * 2, "list": [1, None, True, "\\u00e9", 1.5]}
        """, {"k": 21}).end()
    assert outcome(said) == {"did": "result", "value": {"twice": 42, "list": [1, None, True, "\u00e9", 1.5]}}
    assert status == 0 and out == "to the user\nit.o.py True None\n" and not err


def test_transports_are_used_and_what_moved_is_told(element):
    with memory(8192, "words") as words:
        said, status, _, err = element().run("""
            def main(params, action):
                trans = action.get_transport("words", "rdma")
                trans.reg(4096)
                trans.buf[:5] = b"hello"
                trans.write(4096, 0)
                trans.read(100, 0, 1000)
                return bytes(trans.buf[1000:1005]).decode()
            """, transports=[words.durl, "unused;rdma_tcp;"]).end()
    assert outcome(said) == {"did": "result", "value": "hello"} and status == 0, err
    assert said[1].pop("peak_bytes", 1) > 0  # where it was mapped
    assert said[1] == {"did": "stats", "transports": {"words": {"reads": 1, "writes": 1, "bytes_read": 100,
                                                                "bytes_written": 4096}}}


def test_a_transport_is_configured_while_main_waits(element):
    with memory(4096, "late") as late:
        one = element().run("""
            def main(params, action):
                trans = action.get_transport("late", "rdma")
                trans.reg(8)
                print("waiting", flush=True)
                trans.write(8, 0)
                return trans.state
            """, transports=["late;rdma_tcp;"])
        assert one.process.stdout.readline() == "waiting\n"
        for bad in (b"nonsense\n", b"[]\n", b'{"do": "config", "name": "nobody", "durl": "x;rdma_tcp;"}\n',
                    b'{"do": "config", "name": 5}\n',
                    b'{"do": "dance"}\n', b'{"do": "config", "name": "late", "durl": "junk"}\n'):
            one.say(bad)  # none of which ends it
        one.say({"do": "config", "name": "late", "durl": late.durl})
        said, status, _, err = one.end()
    assert outcome(said) == {"did": "result", "value": "ready"} and status == 0
    assert err.count("disagg.element:") >= 3


@pytest.mark.parametrize("how", ["terminate", "hang up"])
def test_a_wait_ends_when_the_launcher_says_so_or_is_gone(element, how):
    one = element().run("""
        def main(params, action):
            trans = action.get_transport("never", "rdma")
            trans.reg(8)
            print("waiting", flush=True)
            try:
                trans.read(8, 0)
            except Exception as error:
                print(type(error).__name__, flush=True)
                raise
        """, transports=["never;rdma_tcp;"])
    assert one.process.stdout.readline() == "waiting\n"
    if how == "terminate":
        one.say({"do": "terminate"})
        assert "CancelledError" in outcome(one.end()[0])["error"]
    else:
        one.ours.shutdown(socket.SHUT_RDWR)
        out, _ = one.process.communicate(timeout=BOUND)
        assert out == "CancelledError\n"
    assert one.process.returncode == 1


def test_a_failure_shows_its_traceback(element):
    said, status, _, err = element().run("""
        def inner():
            return 1 / 0
        def main(params, action):
            return inner()
        """).end()
    last = outcome(said)
    assert last["did"] == "error" and last["error"] == "ZeroDivisionError: division by zero" and status == 1
    assert "it.o.py\", line 3, in inner" in last["traceback"] and "1 / 0" in last["traceback"] and "disagg" not in last["traceback"]


@pytest.mark.parametrize("text, says", [("def main(params, action): return {1, 2}", "the result is of type set"),
                                        ("def main(params, action): return {'a': [1, {'b': b'x'}]}",
                                         r"the result['a'][1]['b'] is of type bytes"),
                                        ("def main(params, action): return [float('nan')]", "the result[0] is nan"),
                                        ("def main(params, action): return {(1, 2): 3}", "has the key (1, 2)"),
                                        ("def main(params, action):\n    x = []\n    x.append(x)\n    return x", "Circular"),
                                        ("def main(params, action):\n    x = []\n    for _ in range(100000): x = [x]\n    "
                                         "return x", "not JSON"),
                                        ("def main(params):\n    x = []\n    for _ in range(250): x = [{'a': x}]\n    return x",
                                         "more than 400 deep"),
                                        ("def main(params, action): return object", "of type type")])
def test_what_is_not_json_gives_a_sentence(element, text, says):
    said, status, _, _ = element().run(text).end()
    last = outcome(said)
    assert last["did"] == "error" and says in last["error"] and not last["traceback"] and status == 1


@pytest.mark.parametrize("text, says", [("x = 1", "has no function main"), ("main = 5", "has no function main"),
                                        ("def main(:", "SyntaxError"),
                                        ("import nobody_has_this", "ModuleNotFoundError"),
                                        ("raise ValueError('early')", "ValueError: early"),
                                        ("def main(params, action): import sys; sys.exit(3)", "sys.exit(3)"),
                                        ("def main(params, action): raise KeyboardInterrupt", "KeyboardInterrupt"),
                                        ("def main(params, action): raise BaseException('odd')", "odd"),
                                        ("\0", "null bytes|SyntaxError"),
                                        ("def main(): pass", "it.o.py, line 1: main takes 0 arguments"),
                                        ("\n\ndef main(a, b, c): pass", "it.o.py, line 3: main takes 3 arguments"),
                                        ("def main(a, b, *, c): pass", "needs c by name")])
def test_programs_that_do_not_run(element, text, says):
    said, status, _, _ = element().run(text).end()
    last = outcome(said)
    assert last["did"] == "error" and any(word in last["error"] + last["traceback"] for word in says.split("|")), last
    assert status == 1


@pytest.mark.parametrize("head", ["(params)", "(params, action)", "(params, action, more=1)", "(*all)", "(params, *rest)",
                                  "(params=1, action=2)",
                                  "(params, action, *, more=1)", "(**all)"])
def test_arguments_that_main_may_have(element, head):
    said, status, _, _ = element().run(f"def main{head}: return 1").end()
    assert (outcome(said)["did"], status) == (("error", 1) if head == "(**all)" else ("result", 0)), said


def test_elements_that_end_at_once_end_well(element):
    """While the thread that listens to the launcher is still beginning."""
    for _ in range(10):
        said, status, _, err = element().run("def main(params): pass").end()
        assert outcome(said) == {"did": "result", "value": None} and status == 0, err


def test_no_region_key_is_shown(element):
    with memory(4096, "words") as words:
        token = next(part for part in words.durl.split(";") if part.startswith("token,"))[6:]
        said, _, out, err = element().run("""
            def main(params, action):
                raise RuntimeError("it is " + params["durl"])
            """, {"durl": words.durl}, transports=[words.durl]).end()
    assert token not in json.dumps(said) + err and "(token)" in outcome(said)["error"]


def test_main_may_take_the_parameters_alone_or_be_a_coroutine(element):
    assert outcome(element().run("def main(params): return params['k']", {"k": 5}).end()[0])["value"] == 5
    assert outcome(element().run("def main(*both): return len(both)").end()[0])["value"] == 2
    with memory(4096, "words") as words:
        said, _, _, err = element().run("""
            import asyncio
            async def main(params, action):
                trans = action.get_transport("words", "rdma")
                trans.reg(64)
                await asyncio.gather(*[trans.write_async(8, 8 * i) for i in range(8)])
                return trans.stats()["writes"]
            """, transports=[words.durl]).end()
        assert outcome(said)["value"] == 8, err


def test_imports_and_neighbours(element, tmp_path):
    (tmp_path / "common.py").write_text("BASE = 40\n")
    (tmp_path / "helper.py").write_text("def two(): return 2\n")
    said, _, _, _ = element().run("""
        import dataclasses, helper
        @dataclasses.dataclass
        class Pair:
            a: int
        def main(params, action):
            return Pair(BASE + helper.two()).a
        """, imports=[str(tmp_path / "common.py")]).end()
    assert outcome(said)["value"] == 42
    said, _, _, _ = element().run("def main(p, a): pass", imports=[str(tmp_path / "nobody.py")]).end()
    assert "nobody.py cannot be read" in outcome(said)["error"]


def test_a_transport_that_is_configured_after_main_returned_is_no_matter():
    from disagg import LibdAction
    from disagg import element as module
    with open(os.devnull, "wb") as null:
        lines, line = module.Lines(0, null.fileno()), {"do": "config", "name": "m", "durl": "m;rdma_tcp;url,tcp://127.0.0.1:1;"}
        with pytest.raises(module.Refused, match="has none"):
            module.hear(lines, LibdAction(None, "empty"), line)
        action = LibdAction(None, "full", transports=["m;rdma_tcp;"])
        with pytest.raises(LookupError):
            module.hear(lines, action, {**line, "name": "other"})
        action.close()
        module.hear(lines, action, line)


def test_libraries_are_found_after_the_directory_and_in_their_order(element, tmp_path):
    for folder, names in ((".", ["first"]), ("lib", ["first", "second"]), ("more", ["first", "second", "third"])):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in names:
            (tmp_path / folder / f"{name}.py").write_text(f"WHERE = {folder!r}\n")
    said, _, _, _ = element().run("""
        import first, second, third
        def main(params, action):
            return [first.WHERE, second.WHERE, third.WHERE]
        """, paths=[str(tmp_path / "lib"), str(tmp_path / "more")]).end()
    assert outcome(said)["value"] == [".", "lib", "more"]
    said, _, _, _ = element().run("def main(p, a): pass", paths="lib").end()
    assert "'paths'" in outcome(said)["error"] and "a list of texts" in outcome(said)["error"]


def test_results_of_parents_answer_both_ways(element):
    said, _, _, _ = element().run("""
        def main(params, action):
            p, q = params["one"], params["split"]
            return [p["n"], q[1]["n"], [one["n"] for one in q], p.get("x", "none"), "n" in p, sorted(p.keys()), len(q), params["plain"],
                    params["names"]]
        """, {"one": [{"n": 1}], "split": [{"n": 1}, {"n": 2}], "plain": 5, "names": ["a", "b"]}).end()
    assert outcome(said)["value"] == [1, 2, [1, 2], "none", True, ["n"], 2, 5, ["a", "b"]]
    assert results([1]) == [1] and not isinstance(results({"a": []})["a"], Results)
    one = Results([{"a": 1}])
    assert (list(one.values()), list(one.items()), one[0:1], {"a": 1} in one, "b" in one) == ([1], [("a", 1)], [{"a": 1}], True,
                                                                                              False)
    with pytest.raises(KeyError):
        one["b"]
    with pytest.raises(TypeError, match="0 copies"):
        Results()["a"]


@pytest.mark.parametrize("first, says", [(b"nonsense\n", "no JSON"), (b"[]\n", "no JSON object"),
                                         (b'{"do": "dance"}\n', "first thing"),
                                         (b'{"do": "run"}\n', "no file"), (b'{"do": "run", "file": 5}\n', "should be a text"),
                                         (b'{"do": "run", "file": "/nobody/has/this"}\n', "cannot be read"),
                                         (b"\xff\n", "no JSON"),
                                         (b'{"do": "run", "file": "x", "transports": [5]}\n', "list of texts"),
                                         (b'{"do": "run", "file": "x", "transports": ["junk"]}\n', "InvalidError"),
                                         (b"[" * 100000 + b"\n", "no JSON")])
def test_a_launcher_that_makes_no_sense(element, first, says):
    one = element()
    one.say(first)
    said, status, _, _ = one.end()
    assert said[-1]["did"] == "error" and says in said[-1]["error"] and status == 1


def test_a_launcher_that_says_nothing(element):
    one = element()
    one.ours.shutdown(socket.SHUT_WR)
    said, status, _, _ = one.end()
    assert "hung up" in said[-1]["error"] and status == 1


def test_one_that_is_killed_says_nothing_more(element):
    one = element().run("import time\ndef main(p, a):\n    print('in', flush=True)\n    time.sleep(60)")
    assert one.process.stdout.readline() == "in\n"
    one.process.send_signal(signal.SIGKILL)
    said, status, _, _ = one.end()
    assert [line["did"] for line in said] == ["begin"] and status == -signal.SIGKILL


def test_the_socket_is_not_for_what_the_program_starts(element):
    said, _, out, err = element().run("""
        import os, subprocess, sys
        def main(params, action):
            text = "import os; fds = ['/proc/self/fd/' + n for n in os.listdir('/proc/self/fd')]\\n" + \
                "print([os.readlink(f) for f in fds if os.path.exists(f)])"
            return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, close_fds=False).stdout
        """).end()
    assert "socket" not in outcome(said)["value"], err


def test_large_results_arrive(element):
    said, status, _, _ = element().run("def main(p, a): return 'x' * (20 << 20)").end()
    assert len(outcome(said)["value"]) == 20 << 20 and status == 0


def test_a_program_that_closes_its_streams(element):
    said, status, _, _ = element().run("import sys\ndef main(p, a):\n    sys.stdout.close()\n    sys.stderr = None\n    return 1").end()
    assert outcome(said)["value"] == 1


def test_lines_may_come_from_stdin(tmp_path):
    path = tmp_path / "it.o.py"
    path.write_text("def main(params, action): print('mine'); return 7")
    ours, theirs = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-m", "disagg.element", "--out", str(theirs)],
                              input=json.dumps({"do": "run", "file": str(path)}) + "\n", pass_fds=[theirs], capture_output=True,
                              text=True, timeout=BOUND, check=True)
    finally:
        os.close(theirs)
    with open(ours, encoding="utf-8") as f:
        assert json.loads(f.read().splitlines()[-1]) == {"did": "result", "value": 7}
    assert done.stdout == "mine\n"


@pytest.mark.parametrize("args, env", [([], {}), (["--out"], {}), (["--out", "x"], {}), (["--out", "77"], {}),
                                       ([], {"WEFT_ELEMENT_FD": "-1"}), ([], {"WEFT_ELEMENT_FD": "99"})])
def test_people_who_run_it_are_told_what_it_is(args, env):
    done = subprocess.run([sys.executable, "-m", "disagg.element", *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=BOUND, check=False, env={**os.environ, **env})
    assert done.returncode == 1 and done.stderr.startswith("disagg.element: ") and "Traceback" not in done.stderr


def test_it_loads_no_more_than_it_needs(tmp_path):
    path = tmp_path / "it.o.py"
    path.write_text("import sys\ndef main(params, action):\n"
                    "    return [m for m in ('asyncio', 'numpy', 'weft', 'typing', 'socket', 'traceback', 'inspect') if m in "
                    "sys.modules]")
    ours, theirs = os.pipe()
    try:
        subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}; from disagg import element; "
                        f"sys.exit(element.main(['--out', '{theirs}']))"], input=json.dumps({"do": "run", "file": str(path)})
                       + "\n", pass_fds=[theirs], text=True, timeout=BOUND, check=True)
    finally:
        os.close(theirs)
    with open(ours, encoding="utf-8") as f:
        assert json.loads(f.read().splitlines()[-1]) == {"did": "result", "value": []}


def test_the_first_transport_does_not_wait_for_the_kernel():
    """Registering for membarrier() takes some twenty milliseconds in a process with threads, so that it is done before there
    are any."""
    code = "import ctypes; from disagg._process import runtime; c = ctypes.CDLL(None); had = c.syscall(324, 512, 0); kept = runtime(); " \
           "print(had, c.syscall(324, 512, 0))"  # MEMBARRIER_CMD_GET_REGISTRATIONS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    before, after = map(int, done.stdout.split())
    if os.uname().machine != "x86_64" or before < 0:
        pytest.skip("this kernel does not tell what is registered")
    assert not before & 4 and after & 4, "MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED"
