"""weft call calls functions of services by address and through a registry, with arguments of every kind, and says what is wrong when it cannot."""
import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import time

from lib import weft
import ports

KEY = "a key that is long enough for this"


class Service:
    """A service in a registry of its own."""

    def __init__(self, folder, env, processes, said):
        self.folder, self.env, self.processes, self.said = folder, env, processes, said
        uris = said[0]["listening"][0].split(",") if said else ["", ""]
        self.tcp, self.unix = uris[0], uris[-1]

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return path


@contextlib.contextmanager
def a_service(*args, instances=("one",), ends=False):
    with weft.scratch() as folder:
        registry = os.path.join(folder, "registry")
        os.mkdir(registry, 0o700)
        env = weft.environment(WEFT_REGISTRY="dir://" + registry)
        processes, said = [], []
        try:
            for instance in instances:
                p, line = weft.serve_calls("--instance", instance, *args, env=env)
                processes.append(p)
                said.append(line)
            yield Service(folder, env, processes, said)
            for p in processes:
                assert ends or p.poll() is None, "the service ended: " + p.stderr.read()
        finally:
            weft.end(*processes)


def call(s, *args, give=None, timeout=60):
    """The finished process; give: standard input."""
    how = {"input": give} if give is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run([weft.command(), "call", *args], env=s.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, check=False, **how)


def gives(s, want, *args, **kw):
    done = call(s, *args, **kw)
    assert done.returncode == 0 and not done.stderr, f"weft call {' '.join(args)}: exit status {done.returncode}\n{done.stderr}"
    assert done.stdout == want, f"weft call {' '.join(args)}: {done.stdout!r}, not {want!r}"


def an_object(s, *args, status=0, **kw):
    done = call(s, *args, "--json", **kw)
    assert done.returncode == status, f"weft call {' '.join(args)}: exit status {done.returncode}, not {status}\n{done.stderr}"
    line, = weft.json_lines(done.stdout)
    return line


def fails(s, status, *args, says=(), **kw):
    done = call(s, *args, **kw)
    assert done.returncode == status, f"weft call {' '.join(args)}: exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
    lines = [line for line in done.stderr.splitlines() if not line.startswith("weft: warn: ")]  # the library's own words
    assert len(lines) == 1, f"weft call {' '.join(args)}: {len(lines)} lines instead of one sentence\n{done.stderr}"
    for word in says:
        assert word in lines[0], f"weft call {' '.join(args)}: \"{word}\" is not in: {lines[0]}"
    return done


def functions_are_called_by_every_kind_of_address():
    with a_service() as s:
        gives(s, "42\n", "weft://calc/add", "25", "17")
        gives(s, "42\n", "weft://calc@one/add", "25", "17")
        gives(s, "42\n", "weft://calc#add", "25", "17")
        gives(s, "42\n", s.tcp + "/calc/add", "25", "17")
        gives(s, "42\n", s.tcp + "/add", "25", "17")
        gives(s, "42\n", s.tcp + "#calc@one/add", "25", "17")
        gives(s, "42\n", s.unix + "#calc/add", "25", "17")
        gives(s, "42\n", "tcp://127.0.0.1:1," + s.unix + "#calc/add", "25", "17")
        gives(s, "42\n", s.unix, "--function", "calc/add", "25", "17")
        gives(s, "42\n", "weft://calc", "--function", "add", "25", "17")
        gives(s, "42\n", "weft://calc", "--function", "add(x: i32, y: i32) -> i32", "25", "17")
        number = next(f["number"] for f in weft.json_lines(call(s, "--list", "weft://calc", "--json").stdout)
                      if f["signature"].startswith("add("))
        gives(s, "42\n", f"weft://calc/#{number}", "25", "17")
        registry = s.env["WEFT_REGISTRY"]
        s.env = weft.environment()
        gives(s, "42\n", "weft://calc/add", "25", "17", "--registry", registry)


def a_unix_socket_with_a_path_is_called():
    with weft.scratch() as folder:
        path = os.path.join(folder, "a socket")
        with a_service("--listen", "unix://" + path) as s:
            gives(s, "42\n", f"unix://{path}#calc/add", "25", "17")
            assert call(s, "--list", f"unix://{path}#calc").returncode == 0
        odd = os.path.join(folder, "odd#name")
        with a_service("--listen", "unix://" + odd) as s:
            gives(s, "42\n", f"unix://{odd}", "--function", "calc/add", "25", "17")


def arguments_are_of_every_kind():
    with a_service() as s:
        gives(s, "-8\n", "weft://calc/add", "-5", "-3")
        gives(s, "-1\n", "weft://calc/sub", "b=3", "a=2")
        gives(s, "-1\n", "weft://calc/sub", "2", "b=3")
        gives(s, "1\n", "weft://calc/sub", "b=2", "3")
        gives(s, "0.5\n", "weft://calc/div", "1", "2")
        gives(s, "-inf\n", "weft://calc/div", "--", "-inf", "2")
        gives(s, "2\n", "weft://calc/mean", "[1, 2, 3]")
        gives(s, "2\n", "weft://calc/mean", "values=[1,2,3]")
        gives(s, "500.5\n", "weft://calc/mean", "-", give="\n".join(map(str, range(1, 1001))) + "\n")
        gives(s, "2\n", "weft://calc/mean", "@" + s.file("numbers", " [1, 2,\n 3]\n"))
        gives(s, "2\n", "weft://calc/mean", "values=@" + s.file("numbers", "1 2 3"))
        gives(s, "7\n", "weft://calc/add", "3", "-", give=" 4\n")
        gives(s, "Ä TEXT = WITH SPACES\n", "weft://calc/upper", "Ä text = with spaces")
        gives(s, "A=B\n", "weft://calc/upper", "a=b")
        gives(s, "TEXT=B\n", "weft://calc/upper", "text=text=b")
        gives(s, "\n", "weft://calc/upper", "")
        gives(s, "@FILE\n", "weft://calc/upper", "@@file")
        gives(s, "TWO\nLINES\n\n", "weft://calc/upper", "-", give="two\nlines\n")
        large = "abc\n" * 1_000_000
        gives(s, large.upper() + "\n", "weft://calc/upper", "@" + s.file("large", large))
        gives(s, "head: ab\ntail: c\n", "weft://calc/split", "abc", "2")
        gives(s, "", "weft://calc/sleep", "0")
        gives(s, "5\n", "weft://calc/add", "2", "0x3")


def npy(values, shape, kind="f4", code="f"):
    head = f"{{'descr': '<{kind}', 'fortran_order': False, 'shape': {shape!r}, }}"
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}{code}", *values)


def tensors_are_text_and_files():
    with a_service() as s:
        gives(s, "f32 [[2.5, 5], [7.5, 10]]\n", "weft://calc/scale", "[[1, 2], [3, 4]]", "2.5")
        gives(s, "f64 [0.1, 0.2]\n", "weft://calc/scale", "f64 [0.1, 0.2]", "1")
        gives(s, "f32 15\n", "weft://calc/scale", "7.5", "2")
        gives(s, "f32 []\n", "weft://calc/scale", "[]", "2")
        line = an_object(s, "weft://calc/scale", "[[[1], [2]]]", "2")
        assert line["result"] == {"type": "f32", "shape": [1, 2, 1], "data": [[[2], [4]]]}, line
        path = s.file("in.npy", npy(range(6), (2, 3)))
        gives(s, "f32 [[0, 2, 4], [6, 8, 10]]\n", "weft://calc/scale", "@" + path, "2")
        out = os.path.join(s.folder, "out.npy")
        gives(s, "", "weft://calc/scale", "@" + path, "2", "--save", out)
        with open(out, "rb") as f:
            saved = f.read()
        assert saved[-24:] == struct.pack("<6f", *range(0, 12, 2)) and b"'shape': (2, 3, )" in saved and b"'<f4'" in saved, saved
        assert (len(saved) - 24) % 64 == 0, len(saved)
        gives(s, "f32 [[0, 2, 4], [6, 8, 10]]\n", "weft://calc/scale", "@" + out, "1")
        many = s.file("many.npy", npy([1.0] * 300_000, (300, 1000)))
        gives(s, "tensor f32 [300, 1000]\n", "weft://calc/scale", "@" + many, "2")
        assert an_object(s, "weft://calc/scale", "@" + many, "2")["result"] == {"type": "f32", "shape": [300, 1000], "data": None}
        gives(s, "", "weft://calc/scale", "@" + many, "2", "--save", out)
        assert os.path.getsize(out) == os.path.getsize(many)
        fails(s, 1, "weft://calc/scale", "i32 [1]", "2", says=["INVALID_ARGUMENT", "f32"])
        for wrong, word in (("[1, [2]]", "depth"), ("[[1], [2, 3]]", "length"), ("[1, 2", "]"), ("[1 2]", ","), ("[1] 2", "follows"),
                            ("[x]", "x"), ("[" * 17 + "]" * 17, "16")):
            fails(s, 2, "weft://calc/scale", wrong, "2", says=["argument 1", "scale(", word])
        good = npy(range(6), (2, 3))
        for name, data in (("short", good[:-1]), ("header", good[:40]), ("big", good.replace(b"<f4", b">f4")),
                           ("order", good.replace(b"False", b"True ")), ("shape", good.replace(b"(2, 3)", b"(2,-3)")),
                           ("zeros", b"\0\0\0")):
            fails(s, 2, "weft://calc/scale", "@" + s.file(name, data), "2", says=["argument 1", "npy"])


def streams_go_line_by_line():
    with a_service() as s:
        gives(s, "2\n3\n5\n7\n11\n13\n17\n19\n23\n29\n", "weft://calc/primes", "30")
        gives(s, "", "weft://calc/primes", "2")
        done = call(s, "weft://calc/primes", "100000")
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 9592 and done.stdout.endswith("\n99991\n"), done
        gives(s, "55\n", "weft://calc/total", give="".join(f"{i}\n" for i in range(1, 11)))
        gives(s, "6\n", "weft://calc/total", "1", "2", "3")
        gives(s, "0\n", "weft://calc/total", give="")
        gives(s, "6\n", "weft://calc/total", "-", give="1\n\n 2 \n3")
        gives(s, "16\n", "weft://calc/total", "10", "@" + s.file("values", "1\n2\n3\n"))
        gives(s, "50005000\n", "weft://calc/total", give="".join(f"{i}\n" for i in range(1, 10001)))
        lines = "".join(f"line {i} ü\n" for i in range(3000))
        gives(s, lines + "\nlast\n", "weft://calc/echo", give=lines + "\nlast")
        out = call(s, "weft://calc/primes", "6", "--json")
        assert [line.get("item") for line in weft.json_lines(out.stdout)] == [2, 3, 5, None], out.stdout
        assert weft.json_lines(out.stdout)[-1]["code"] == 0
        fails(s, 2, "weft://calc/total", give="1\nx\n3\n", says=["line 2", "values", '"x"', "total("])
        fails(s, 2, "weft://calc/total", "1", "y", says=["value 2", '"y"'])
        fails(s, 2, "weft://calc/total", "@/nonexistent", says=["/nonexistent"])
        fails(s, 2, "weft://calc/primes", "9", "--repeat", "3", says=["--repeat", "primes("])


def values_come_as_they_are_sent():
    with a_service() as s:
        p = subprocess.Popen([weft.command(), "call", "weft://calc/echo"], env=s.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, bufsize=1)
        try:
            for i in range(3):  # each answer before the next line
                p.stdin.write(f"{i}\n")
                p.stdin.flush()
                assert p.stdout.readline() == f"{i}\n"
            p.stdin.close()
            assert p.wait(timeout=30) == 0, p.stderr.read()
        finally:
            p.kill()
            p.stdout.close()
            p.stderr.close()
            p.wait()


def a_call_that_is_over_does_not_wait_for_its_input():
    with a_service(ends=True) as s:
        p = subprocess.Popen([weft.command(), "call", "weft://calc/echo"], env=s.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        try:
            p.stdin.write("x\n")
            p.stdin.flush()
            assert p.stdout.readline() == "x\n"
            s.processes[0].kill()
            assert p.wait(timeout=30) == 4, p.returncode
            said = p.stderr.read()
            assert "may have run" in said or "ran" in said, said
        finally:
            p.kill()
            for f in (p.stdin, p.stdout, p.stderr):
                with contextlib.suppress(BrokenPipeError):
                    f.close()
            p.wait()


def an_endless_stream_ends_with_its_reader():
    with a_service() as s:
        p = subprocess.Popen([weft.command(), "call", "weft://calc/primes", str(1 << 62)], env=s.env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=weft.as_at_a_terminal)
        assert p.stdout.readline() == "2\n"
        p.stdout.close()
        assert p.wait(timeout=30) == 1, p.returncode
        p.stderr.close()
        p = subprocess.Popen([weft.command(), "call", "weft://calc/primes", str(1 << 62)], env=s.env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=weft.as_at_a_terminal)
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        assert p.wait(timeout=30) == 130, p.returncode
        assert not p.stderr.read()
        p.stderr.close()
        gives(s, "3\n", "weft://calc/add", "1", "2")


def json_says_all_of_it():
    with a_service() as s:
        line = an_object(s, "weft://calc/add", "25", "17")
        assert (line["result"], line["code"], line["code_name"], line["message"], line["ran"], line["status"]) == \
            (42, 0, "OK", "", "ran", "WEFT_OK"), line
        assert line["tries"] == 1 and 0 < line["seconds"] < 60 and line["transport"] == "shm", line
        assert line["server"] and "://" in line["server"], line
        assert line["cipher"] is None and line["identity"] is None, line
        assert an_object(s, "weft://calc/add", "25", "17", "--transports", "tcp")["transport"] == "tcp"
        line = an_object(s, "weft://calc/div", "1", "0", status=1)
        assert (line["result"], line["code"], line["code_name"], line["ran"]) == (None, 3, "INVALID_ARGUMENT", "ran"), line
        assert "divided" in line["message"], line
        assert an_object(s, "weft://calc/split", "äb", "2")["result"] == {"head": "ä", "tail": "b"}
        assert an_object(s, "weft://calc/upper", 'a "quoted"\n\\ line')["result"] == 'A "QUOTED"\n\\ LINE'
        zero = s.file("zero", b"a\0b")
        assert an_object(s, "weft://calc/upper", "@" + zero)["result"] == "A\0B"
        assert an_object(s, "weft://calc/div", "inf", "1")["result"] == "inf"
        assert an_object(s, "weft://calc/sleep", "0")["result"] is None
        line = an_object(s, "weft://calc/sleep", "60000", "--timeout", "300ms", status=4)
        assert line["code_name"] == "DEADLINE_EXCEEDED" and line["ran"] in ("ran", "may have run"), line
        line = an_object(s, "weft://calc/nothing", status=3)
        assert line["code_name"] == "UNIMPLEMENTED" and line["ran"] == "did not run", line


def wrong_arguments_are_named():
    with a_service() as s:
        before = an_object(s, "weft://calc/count")["result"]
        signature = "add(a: i32, b: i32) -> i32"
        fails(s, 2, "weft://calc/add", "25", "x17", says=["argument 2", signature, '"b"', "x17", "i32"])
        fails(s, 2, "weft://calc/add", "25", "1.5", says=["argument 2", "1.5"])
        fails(s, 2, "weft://calc/add", "99999999999", "1", says=["argument 1", "range"])
        fails(s, 2, "weft://calc/add", "25", says=[signature, "missing", '"b"'])
        fails(s, 2, "weft://calc/add", "b=3", says=[signature, "missing", '"a"'])
        fails(s, 2, "weft://calc/add", "1", "2", "3", says=[signature, '"3"', "2 arguments"])
        fails(s, 2, "weft://calc/add", "a=1", "a=2", says=['"a"', "twice"])
        fails(s, 2, "weft://calc/add", "1", "c=2", says=[signature, '"c"'])
        fails(s, 2, "weft://calc/mean", "[1, 2", says=["argument 1", "mean(", "]"])
        fails(s, 2, "weft://calc/mean", "@" + s.file("words", "1 2 three"), says=["argument 1", "three"])
        fails(s, 2, "weft://calc/upper", "@" + s.file("latin", b"\xe4"), says=["upper(", "UTF-8"])
        fails(s, 2, "weft://calc/upper", "@/nonexistent", says=["/nonexistent", "No such file"])
        fails(s, 2, "weft://calc/add", "-", "-", says=["-", "twice"], give="1")
        fails(s, 2, "weft://calc/upper", "x", "--save", "", says=["--save"])
        fails(s, 2, "weft://calc/split", "abc", "1", "--save", "x", says=["--save", "split("])
        assert an_object(s, "weft://calc/count")["result"] == before + 1, "something ran"


def failures_of_functions_are_said():
    with a_service() as s:
        fails(s, 1, "weft://calc/div", "1", "0", says=["calc/div", "INVALID_ARGUMENT", "divided by 0"])
        fails(s, 1, "weft://calc/add", "2147483647", "1", says=["OUT_OF_RANGE", "i32"])
        fails(s, 4, "weft://calc/sleep", "60000", "--timeout", "300ms", says=["calc/sleep", "deadline", "--timeout"])
        fails(s, 3, "weft://calc/ad", "1", "2", says=["ad", "add"])
        fails(s, 3, s.tcp + "/calc/mena", says=["mena", "mean"])
        fails(s, 3, s.tcp + "/clac/add", "1", "2", says=["clac"])
        fails(s, 3, "weft://calc", "--function", "add(a: f64, b: f64) -> f64", "1", "2",
              says=["add(a: f64, b: f64) -> f64", "add(a: i32, b: i32) -> i32"])
        fails(s, 2, "weft://calc", "--function", "add(a: f46) -> f64", "1", says=["f46"])
        fails(s, 3, "weft://calc/#99999", says=["99999"])


def nobody_is_said():
    with a_service() as s:
        fails(s, 4, "weft://clac/add", "1", "2", says=['"clac"', '"calc"', "--list", s.env["WEFT_REGISTRY"]])
        fails(s, 4, "weft://calc@on/add", "1", "2", says=['"on"', '"one"'])
        fails(s, 4, "weft://zzzzzz/add", "1", "2", says=['"zzzzzz"', "--wait"])
        began = time.monotonic()
        fails(s, 4, "weft://zzzzzz/add", "1", "2", "--wait", "--timeout", "500ms", says=["zzzzzz"])
        assert time.monotonic() - began >= 0.5
        fails(s, 4, "tcp://127.0.0.1:1/calc/add", "1", "2", says=["tcp://127.0.0.1:1", "refused", "weft serve"])
        fails(s, 4, "unix://@weft-nobody-is-here#add", "1", "2", says=["weft-nobody-is-here"])
        fails(s, 4, "weft://calc/add", "1", "2", "--registry", "dir:///nonexistent/registry", says=["nonexistent"])


def a_service_that_comes_later_is_waited_for():
    with weft.scratch() as folder:
        os.mkdir(os.path.join(folder, "r"), 0o700)
        env = weft.environment(WEFT_REGISTRY="dir://" + os.path.join(folder, "r"))
        port = ports.take()
        waits = [weft.start("call", uri, "25", "17", "--wait", "--timeout", "30s", env=env)
                 for uri in ("weft://calc/add", f"tcp://127.0.0.1:{port}/calc/add")]
        time.sleep(0.3)
        server, _ = weft.serve_calls("--listen", f"tcp://127.0.0.1:{port}", env=env)
        try:
            for p in waits:
                out, err = p.communicate(timeout=30)
                assert p.returncode == 0 and out == "42\n", err
        finally:
            weft.end(server, *waits)


def a_killed_server_is_said():
    with a_service(ends=True) as s:
        p = weft.start("call", "weft://calc/sleep", "60000", "--timeout", "50s", "--json", env=s.env)
        time.sleep(0.5)
        s.processes[0].kill()
        out, err = p.communicate(timeout=30)
        assert p.returncode == 4, f"exit status {p.returncode}\n{err}"
        assert "may have run" in err and json.loads(out)["ran"] == "may have run", (out, err)
        s.processes[0].wait()
        fails(s, 4, "weft://calc/add", "1", "2", says=["calc"])


def a_stopped_server_is_given_up():
    with a_service(ends=True) as s:
        p = weft.start("call", "weft://calc/sleep", "60000", "--timeout", "50s", "--heartbeat", "500ms", env=s.env)
        time.sleep(0.5)
        s.processes[0].send_signal(signal.SIGSTOP)
        try:
            _, err = p.communicate(timeout=30)
            assert p.returncode == 4 and "may have run" in err, f"exit status {p.returncode}\n{err}"
        finally:
            s.processes[0].send_signal(signal.SIGCONT)


def another_instance_takes_over():
    with a_service(instances=("one", "two"), ends=True) as s:
        seen = {an_object(s, f"weft://calc@{name}/add", "1", "2")["server"] for name in ("one", "two")}
        assert len(seen) == 2, seen
        s.processes[0].kill()
        s.processes[0].wait()
        for _ in range(5):
            gives(s, "3\n", "weft://calc/add", "1", "2")
        fails(s, 4, "weft://calc@one/add", "1", "2", says=['"one"'])


def a_wrong_key_is_said():
    with weft.scratch() as folder:
        files = []
        for name, text in (("right", KEY), ("wrong", KEY[::-1])):
            files.append(os.path.join(folder, name))
            with open(os.open(files[-1], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
                f.write(text)
        with a_service("--key-file", files[0]) as s:
            gives(s, "3\n", "weft://calc/add", "1", "2", "--key-file", files[0])
            gives(s, "3\n", s.tcp + "/calc/add", "1", "2", "--key-file", files[0])
            fails(s, 1, s.tcp + "/calc/add", "1", "2", "--key-file", files[1], says=["authentication", "--key-file"])
            fails(s, 1, s.tcp + "/calc/add", "1", "2", says=["authentication", "--key-file"])
            # the library's client tries again and again; a person is told
            began = time.monotonic()
            fails(s, 1, "weft://calc/add", "1", "2", "--key-file", files[1], "--timeout", "60s", says=["authentication", "--key-file"])
            fails(s, 1, "weft://calc@one/add", "1", "2", "--timeout", "60s", says=["authentication", "did not run"])
            assert time.monotonic() - began < 30, "it waited for what will not come"


def calls_are_made_once():
    with a_service() as s:
        assert an_object(s, "weft://calc/count", "--once")["result"] == 1
        assert an_object(s, "weft://calc/count", "--once")["result"] == 2
        gives(s, "", "weft://calc/log", "a line")
        assert s.processes[0].stdout.readline() == "log: a line\n"
        gives(s, "", "weft://calc/log", "\x1b[31m\nred")
        assert s.processes[0].stdout.readline() == "log: \\x1b[31m red\n"


def a_server_does_not_move_the_cursor():
    with a_service() as s:
        text = "a\x1b[2J\x9b1m\x07ü\tb"
        rc, out = weft.on_a_terminal("call", "weft://calc/upper", text, env=s.env)
        assert rc == 0 and out == "A\\x1b[2J\\xc2\\x9b1M\\x07ü\tB\r\n", (rc, out)
        gives(s, text.replace("a", "A").replace("m", "M").replace("b", "B") + "\n", "weft://calc/upper", text)
        rc, out = weft.on_a_terminal("call", "weft://calc/add", "1", "2", "--repeat", "3000", env=s.env)
        assert rc == 0 and "3000 calls in " in out, out


def repeated_calls_are_measured():
    with a_service() as s:
        done = call(s, "weft://calc/add", "25", "17", "--repeat", "500")
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 2 and lines[0] == "42" and lines[1].startswith("500 calls in "), done
        one, all_ = weft.json_lines(call(s, "weft://calc/count", "--repeat", "500", "--json").stdout)
        assert one["result"] == 1 and all_["calls"] == 500, (one, all_)
        assert 0 < all_["p50_us"] <= all_["p90_us"] <= all_["p99_us"] <= all_["p999_us"] <= all_["max_us"], all_
        assert math.isclose(all_["calls_s"], 500 / all_["seconds"], rel_tol=0.01), all_
        assert an_object(s, "weft://calc/count")["result"] == 501
        fails(s, 1, "weft://calc/div", "1", "0", "--repeat", "10", says=["INVALID_ARGUMENT"])
        fails(s, 2, "weft://calc/upper", "-", "--repeat", "10", says=["--repeat", "@FILE"], give="x")


def who_offers_what_is_listed():
    with a_service(instances=("one", "two")) as s:
        lines = call(s, "--list").stdout.splitlines()
        assert len(lines) == 2 and lines[0].startswith("calc@one  load ") and lines[1].startswith("calc@two  load "), lines
        assert s.tcp in lines[0] and s.unix in lines[0], lines
        got = weft.json_lines(call(s, "--list", "--json").stdout)
        assert [(e["service"], e["instance"]) for e in got] == [("calc", "one"), ("calc", "two")], got
        assert all(0 <= e["load"] <= 1000 and "tcp://" in e["address"] for e in got), got
        out = call(s, "--list", "weft://calc").stdout
        assert out.count("  add(a: i32, b: i32) -> i32\n") == 1 and "calc@one" in out and "calc@two" in out, out
        assert "  primes(below: u64) -> stream u64\n" in out and "  log(line: string) -> void oneway\n" in out, out
        assert "calc@two" not in call(s, "--list", "weft://calc@one").stdout
        for uri in (s.tcp, s.tcp + "/calc", s.unix, s.unix + "#calc@one"):
            out = call(s, "--list", uri).stdout
            assert out.startswith("calc@one") and "\n  add(a: i32, b: i32) -> i32\n" in out, out
        got = weft.json_lines(call(s, "--list", s.tcp, "--json").stdout)
        assert {"add(a: i32, b: i32) -> i32", "total(values: stream f64) -> f64"} <= {e["signature"] for e in got}, got
        assert all(e["service"] == "calc" and e["number"] for e in got), got
        fails(s, 4, "--list", "weft://clac", says=['"clac"', '"calc"'])
        fails(s, 3, "--list", s.tcp + "/clac", says=['"clac"', '"calc"'])
        fails(s, 2, "--list", "weft://calc/add", says=['"add"'])
        fails(s, 2, "--list", s.tcp, "--watch", says=["registry"])
    with weft.scratch() as folder:
        s = Service(folder, weft.environment(WEFT_REGISTRY="dir://" + folder), [], [])
        done = call(s, "--list")
        assert done.returncode == 0 and not done.stdout and "nobody" in done.stderr, done
        done = call(s, "--list", "--json")
        assert done.returncode == 0 and not done.stdout and not done.stderr, done


def changes_are_watched():
    with a_service(ends=True) as s:
        for how, end in ((("--list", "--watch", "--json"), signal.SIGINT), (("--list", "weft://calc", "--watch", "--json"), signal.SIGTERM)):
            p = weft.start("call", *how, env=s.env)
            other = None
            try:
                first = json.loads(p.stdout.readline())
                assert (first["change"], first["instance"]) == ("came", "one"), first
                other, _ = weft.serve_calls("--instance", "two", env=s.env)
                seen = set()
                while ("came", "two") not in seen:
                    line = json.loads(p.stdout.readline())
                    seen.add((line["change"], line["instance"]))
                other.kill()
                while ("went", "two") not in seen:
                    line = json.loads(p.stdout.readline())
                    seen.add((line["change"], line["instance"]))
                p.send_signal(end)
                assert p.wait(timeout=15) == 0, p.stderr.read()
            finally:
                weft.end(p, *([other] if other else []))


def a_command_line_that_is_not_understood_is_refused():
    s = Service("", weft.environment(), [], [])

    def refused(*args, says):
        fails(s, 2, *args, says=says, timeout=20)

    refused(says=["weft://calc/add", "--list"])
    refused("calc/add", says=["calc/add", "weft://"])
    refused("weft://calc", "1", says=["which function", "--function"])
    refused("weft://calc/", "1", says=["which function", "behind weft://calc/,"])
    refused("tcp://127.0.0.1:1", "1", says=["which function", "behind tcp://127.0.0.1:1#SERVICE/,"])
    refused("tcp://127.0.0.1:1/calc/", "1", says=["which function", "behind tcp://127.0.0.1:1#calc/,"])
    refused("http://x/y", "1", says=['"http"', "not a scheme", "tcp://HOST:PORT"])
    refused("unix:///run/calc/add", "1", says=["which function", "#"])
    refused("weft://ca lc/add", says=["ca lc"])
    refused("weft:///add", says=["name of a service"])
    refused("weft://calc/add", "--function", "sub", says=["twice"])
    refused("carrier-pigeon://coop#add", says=["carrier-pigeon"])
    refused("weft://calc/add", "--timeout", "soon", says=["--timeout", "soon"])
    refused("weft://calc/add", "--repeat", "0", says=["--repeat", "0"])
    refused("weft://calc/add", "--tiemout", "1s", says=["--tiemout", "--timeout"])
    refused("weft://calc/add", "--watch", says=["--watch", "--list"])
    refused("weft://calc/add", "--registry", "pigeons://coop", "1", "2", says=["pigeons"])
    refused("--list", "weft://calc", "more", says=["more"])
    refused("--list", "--once", says=["--list", "--once"])
    refused("weft://calc/add", "-x", says=["-x"])


def help_fits_in_100_columns():
    for words in (["call", "--help"], ["help", "call"], ["serve", "--help"], ["help", "serve"]):
        text = weft.must(*words)
        wide = [line for line in text.splitlines() if len(line) > 100]
        assert not wide, f"weft {' '.join(words)}: more than 100 columns\n" + "\n".join(wide)
    for option in ("list", "watch", "function", "timeout", "once", "wait", "repeat", "save", "json", "registry", "key-file", "transports",
                   "heartbeat"):
        assert f"--{option} " in weft.must("call", "--help"), option


weft.main(functions_are_called_by_every_kind_of_address, a_unix_socket_with_a_path_is_called, arguments_are_of_every_kind,
          tensors_are_text_and_files, streams_go_line_by_line, values_come_as_they_are_sent, a_call_that_is_over_does_not_wait_for_its_input,
          an_endless_stream_ends_with_its_reader, json_says_all_of_it, wrong_arguments_are_named, failures_of_functions_are_said,
          nobody_is_said, a_service_that_comes_later_is_waited_for, a_killed_server_is_said, a_stopped_server_is_given_up,
          another_instance_takes_over, a_wrong_key_is_said, calls_are_made_once, a_server_does_not_move_the_cursor,
          repeated_calls_are_measured, who_offers_what_is_listed,
          changes_are_watched, a_command_line_that_is_not_understood_is_refused, help_fits_in_100_columns)
