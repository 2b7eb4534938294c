"""python -m disagg.element: programs that fork, that close what is not theirs, and that return or raise what a line cannot carry."""
import os
import re
import resource
import subprocess
import sys

import pytest

from disagg._lines import TEXT_MOST, Lines
from disagg.element import DEEP, LAST_MOST, as_json

from elementside import memory
from test_disagg_element import element, outcome  # noqa: F401  the fixture


# --- a process that the program forked


@pytest.mark.parametrize("child, status, says", [("return {'who': 'child'}", 0, ""), ("return {1, 2}", 0, ""),
                                                 ("raise ValueError('its own')", 1, "ValueError: its own"),
                                                 ("sys.exit()", 0, ""), ("sys.exit(7)", 7, ""), ("sys.exit('word')", 1, "word"),
                                                 ("sys.stderr = None; raise ValueError", 1, "")])
@pytest.mark.parametrize("traced", [0, 1000])
def test_a_forked_child_says_nothing_to_the_launcher(element, child, status, says, traced):  # noqa: F811
    with memory(4096, "words") as words:
        said, ended, out, err = element().run(f"""
            import os, sys
            def main(params, action):
                trans = action.get_transport("words", "rdma")
                trans.reg(64)
                trans.write(64, 0)
                sys.stdout.reconfigure(line_buffering=False, write_through=False)
                pid = os.fork()
                if not pid:
                    print("the child's")
                    {child}
                how = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                trans.read(64, 0)  # the child's end was no end of the parent's transports
                return {{"who": "parent", "child": how, "reads": trans.stats()["reads"]}}
            """, transports=[words.durl], trace=traced).end()
    assert [line["did"] for line in said] == ["begin", *["trace"] * bool(traced), "stats", "result"], said
    assert said[-1]["value"] == {"who": "parent", "child": status, "reads": 1} and ended == 0, err
    assert out == "the child's\n" and says in err and (says or "Traceback" not in err), err


def test_a_child_that_outlives_main_or_is_forked_while_the_program_loads(element):  # noqa: F811
    said, status, out, _ = element().run("""
        import os
        ready, go = os.pipe()
        if not os.fork():
            os.close(go)
            os.read(ready, 1)  # until the parent is gone
            def main(params, action): return "child"
        else:
            def main(params, action): return "parent"
        """).end()
    assert outcome(said) == {"did": "result", "value": "parent"} and status == 0


def test_a_child_that_fails_while_the_program_loads(element):  # noqa: F811
    said, status, _, err = element().run("""
        import os
        if not os.fork():
            raise OSError("in the child")
        how = os.waitstatus_to_exitcode(os.wait()[1])
        def main(params, action): return how
        """).end()
    assert outcome(said) == {"did": "result", "value": 1} and status == 0 and "OSError: in the child" in err


def test_what_the_end_of_the_interpreter_does_is_done_once(element):  # noqa: F811
    said, _, out, _ = element().run("""
        import atexit, os
        atexit.register(print, "the end")
        def main(params, action):
            if os.fork():
                os.wait()
        """).end()
    assert outcome(said)["value"] is None and out == "the end\n"


# --- the socket


@pytest.mark.parametrize("close", ["os.closerange(3, 100)", "os.close(3)",
                                   "[os.close(n) for n in range(3, 100) if is_socket(n)]"])
def test_low_descriptors_are_the_programs(element, tmp_path, close):  # noqa: F811
    said, status, _, err = element().run(f"""
        import os, stat
        def is_socket(n):
            try:
                return stat.S_ISSOCK(os.fstat(n).st_mode)
            except OSError:
                return False
        def main(params, action):
            try:
                {close}
            except OSError:
                pass
            with open(params["path"], "w") as f:
                f.write("mine")
                return f.fileno()
        """, {"path": str(tmp_path / "mine")}).end()
    assert outcome(said)["value"] < 100 and status == 0, err
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("instead", ["pass", "f = os.open(params['path'], os.O_RDWR | os.O_CREAT); os.dup2(f, fd)",
                                     "kept = socket.socketpair(); os.dup2(kept[0].fileno(), fd); sys.kept = kept"])
@pytest.mark.parametrize("how", ["return 1", "raise ValueError", "sys.stderr.close(); return 1"])
def test_what_is_not_the_socket_gets_nothing(element, tmp_path, instead, how):  # noqa: F811
    said, status, _, err = element().run(f"""
        import os, socket, stat, sys
        def main(params, action):
            fd, = (n for n in map(int, os.listdir('/proc/self/fd')) if n >= 100 and os.path.exists(f'/proc/self/fd/{{n}}')
                   and stat.S_ISSOCK(os.fstat(n).st_mode))
            os.close(fd)
            {instead}
            {how}
        """, {"path": str(tmp_path / "other")}).end()
    assert [line["did"] for line in said] == ["begin"] and status == 1
    assert not (tmp_path / "other").exists() or (tmp_path / "other").read_text() == ""
    if "close" not in how:
        last, = (line for line in err.splitlines() if line.startswith("disagg.element: "))
        assert "closes only what it has opened" in last and "Traceback" not in err


def test_few_descriptors_are_enough(tmp_path):
    """Where the limit is below the number that the socket would get."""
    path = tmp_path / "it.o.py"
    path.write_text("def main(params, action): return 7")
    ours, theirs = os.pipe()
    try:
        subprocess.run([sys.executable, "-m", "disagg.element", "--out", str(theirs)], pass_fds=[theirs], text=True,
                       input='{"do": "run", "file": "%s"}\n' % path, timeout=60, check=True,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    finally:
        os.close(theirs)
    with open(ours, encoding="utf-8") as f:
        assert f.read().splitlines()[-1] == '{"did": "result", "value": 7}'


# --- results


@pytest.mark.parametrize("value, says", [("{1: 'a', '1': 'b'}", "the result has the keys 1 and '1'"),
                                         ("{'x': [{}, {None: 1, 'null': 2}]}", "the result['x'][1] has the keys None and 'null'"),
                                         ("({'k': {True: 1, 'true': 2}},)", "the result[0]['k'] has the keys True and 'true'"),
                                         ("[[{1.0: 1, '1.0': 2}]]", "the result[0][0] has the keys 1.0 and '1.0'"),
                                         ("{'1': 1, 1: 2}", "the keys '1' and 1"), ("{float('nan'): 1}", "has the key nan")])
def test_keys_that_are_one_name_in_json_are_refused(element, value, says):  # noqa: F811
    said, status, _, _ = element().run(f"def main(params, action): return {value}").end()
    last = outcome(said)
    assert last["did"] == "error" and says in last["error"] and "Return dicts" in last["error"] and status == 1, last


def test_other_keys_are_taken():
    assert as_json({1: "a", "2": {None: [({3: 4},)]}}) == '{"1": "a", "2": {"null": [[{"3": 4}]]}}'
    assert as_json([{"a": i} for i in range(DEEP)] + [{1: 2, 3: 4}]).endswith('{"1": 2, "3": 4}]')


def test_a_result_that_is_too_large_names_memory_elements(element):  # noqa: F811
    said, status, _, _ = element().run(f"def main(params, action): return 'x' * {LAST_MOST}").end()
    last = outcome(said)
    assert last["did"] == "error" and "64 MiB" in last["error"] and "memory element" in last["error"], last
    assert not last["traceback"] and status == 1


# --- errors


def test_zeros_in_an_error_are_shown(element):  # noqa: F811
    last = outcome(element().run(r"def main(params, action): raise RuntimeError('a\0b')").end()[0])
    assert last["error"] == r"RuntimeError: a\0b" and r"RuntimeError: a\0b" in last["traceback"] and "\0" not in last["traceback"]


def test_long_errors_are_cut_in_the_middle(element):  # noqa: F811
    said, _, _, _ = element().run("def main(params, action): raise RuntimeError('begin' + 'x' * 10000000 + 'end')").end()
    last = outcome(said)
    for text in (last["error"], last["traceback"]):
        assert TEXT_MOST < len(text) < TEXT_MOST + 100 and "RuntimeError: begin" in text and text.strip().endswith("end")
        assert re.search(r"\.\.\. \(\d+ letters are left out here\) \.\.\.", text)


def test_a_cut_shows_no_half_of_a_token():
    with open(os.devnull, "wb") as null:
        lines = Lines(0, null.fileno())
    lines.know("m;rdma_tcp;token," + "s" * 4000 + ";")
    for at in range(TEXT_MOST // 2 - 4000, TEXT_MOST // 2, 500):
        assert "ss" not in lines.told("." * at + "s" * 4000 + "." * TEXT_MOST)
