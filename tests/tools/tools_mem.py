"""weft mem moves files into the memory of a server and out of it, whole, and says what is wrong when it cannot.

TEST_MEM_BYTES is the length of the large file: more than the window of transfers if nothing is said.
"""
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time

from lib import weft

LARGE = int(os.environ.get("TEST_MEM_BYTES", 45 << 20)) + 1
PATHS = {"mapped": ((), ()), "checked over shm": (("--unmapped",), ()), "checked over tcp": (("--transports", "tcp"), ("--transports", "tcp"))}


@contextlib.contextmanager
def a_server(*args, **kw):
    server, uri = weft.serve_memory(*args, **kw)
    try:
        yield uri
        assert server.poll() is None, "the server ended: " + server.stderr.read()
    finally:
        weft.end(server)


def data(n, seed=1):
    return random.Random(seed).randbytes(n)


def mem(*args, **kw):
    return weft.must("mem", *args, **kw)


def fails(status, *args, says=(), **kw):
    done = weft.run("mem", *args, **kw)
    assert done.returncode == status, f"weft mem {' '.join(args)}: exit status {done.returncode}, not {status}\n{done.stderr}"
    lines = [line for line in done.stderr.splitlines() if not line.startswith("weft: warn: ")]  # the library's own words
    assert len(lines) == 1, f"weft mem {' '.join(args)}: {len(lines)} lines instead of one sentence\n{done.stderr}"
    for word in says:
        assert word in lines[0], f"weft mem {' '.join(args)}: \"{word}\" is not in: {lines[0]}"
    return done


def piped(*args, give=b"", timeout=60):
    """The finished process, with bytes in and out."""
    return subprocess.run([weft.command(), "mem", *args], env=weft.environment(), input=give, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout, check=False)


def names(uri, *args):
    return mem("ls", "--server", uri, *args).splitlines()


def stats(uri):
    line, = weft.json_lines(mem("stat", "--server", uri, "--json"))
    return line


def files_come_back_as_they_were():
    for path, (server_args, client_args) in PATHS.items():
        with weft.scratch() as folder, a_server(*server_args) as uri:
            there, back = os.path.join(folder, "there"), os.path.join(folder, "back")
            for n in (0, 1, 4095, 4 << 20, LARGE):
                with open(there, "wb") as f:
                    f.write(data(n))
                name = f"file of {n}"
                line, = weft.json_lines(mem("put", there, name, "--server", uri, "--json", *client_args))
                assert (line["did"], line["name"], line["bytes"]) == ("put", name, n), line
                assert line["path"] == path.split()[0], line
                line, = weft.json_lines(mem("get", name, back, "--server", uri, "--json", *client_args))
                assert (line["did"], line["bytes"]) == ("get", n) and line["seconds"] > 0, line
                with open(back, "rb") as f:
                    assert f.read() == data(n), f"{n} bytes did not come back as they were ({path})"
                assert sorted(os.listdir(folder)) == ["back", "there"], os.listdir(folder)
                os.unlink(back)
                mem("rm", name, "--server", uri, *client_args)
            assert stats(uri)["used_bytes"] == 0, stats(uri)


def pipes_carry_what_files_do():
    with weft.scratch() as folder, a_server() as uri:
        for n in (0, 1, 4 << 20, LARGE):
            done = piped("put", "-", "piped", "--server", uri, "--replace", give=data(n))
            assert done.returncode == 0, done.stderr
            assert stats(uri)["blocks"] == 1, stats(uri)
            done = piped("get", "piped", "-", "--server", uri)
            assert done.returncode == 0 and done.stdout == data(n), f"{n} bytes did not come back: {done.stderr}"
            assert not done.stderr, done.stderr
        done = piped("get", "piped", "-", "--server", uri, "--json")
        assert done.stdout == data(LARGE) and json.loads(done.stderr)["bytes"] == LARGE, done.stderr
        # something that is no file and no pipe, and a pipe by its name
        mem("get", "piped", "/dev/null", "--server", uri)
        fifo = os.path.join(folder, "fifo")
        os.mkfifo(fifo)
        put = weft.start("mem", "put", fifo, "by name", "--server", uri)
        with open(fifo, "wb") as f:
            f.write(b"by ")
            f.flush()
            time.sleep(0.3)  # longer than one look at the pipe
            f.write(b"name")
        assert put.wait(timeout=30) == 0, put.stderr.read()
        weft.end(put)
        assert piped("get", "by name", "-", "--server", uri).stdout == b"by name"


def a_reader_that_goes_away_is_said():
    with a_server() as uri:
        assert piped("put", "-", "large", "--server", uri, give=data(LARGE)).returncode == 0
        get = subprocess.Popen([weft.command(), "mem", "get", "large", "-", "--server", uri], env=weft.environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        get.stdout.read(1)
        get.stdout.close()
        assert get.wait(timeout=30) == 1, get.returncode
        said = get.stderr.read()
        get.stderr.close()
        assert b"Broken pipe" in said, said


def what_is_there_is_not_overwritten_unasked():
    with weft.scratch() as folder, a_server() as uri:
        old, new = os.path.join(folder, "old"), os.path.join(folder, "new")
        for path in (old, new):
            with open(path, "w", encoding="ascii") as f:
                f.write(path)
        mem("put", old, "block", "--server", uri)
        fails(1, "put", new, "block", "--server", uri, says=["block", "--replace"])
        fails(1, "get", "block", new, "--server", uri, says=[new, "--force"])
        with open(new, encoding="ascii") as f:
            assert f.read() == new, "the file was overwritten"
        mem("put", new, "block", "--server", uri, "--replace")
        mem("get", "block", old, "--server", uri, "--force")
        with open(old, encoding="ascii") as f:
            assert f.read() == new, "the block was not replaced"
        part = os.path.join(folder, "third.part")
        with open(part, "w", encoding="ascii") as f:
            f.write("someone's")
        fails(1, "get", "block", part[:-5], "--server", uri, says=[part])
        with open(part, encoding="ascii") as f:
            assert f.read() == "someone's", "the part of another get was touched"


def wrong_names_and_files_are_said():
    with weft.scratch() as folder, a_server() as uri:
        target = os.path.join(folder, "target")
        fails(3, "get", "nothing", target, "--server", uri, says=["nothing", "no block"])
        assert not os.listdir(folder), os.listdir(folder)
        fails(3, "stat", "nothing", "--server", uri, says=["nothing"])
        assert piped("put", "-", "nothing else", "--server", uri).returncode == 0
        fails(3, "stat", "nothing", "--server", uri, says=["nothing"])
        fails(3, "rm", "nothing", "nothing else", "--server", uri, says=["nothing"])
        assert names(uri) == [], "rm stopped at the first one that is not there"
        fails(1, "put", target, "name", "--server", uri, says=[target, "No such file"])
        fails(1, "put", folder, "name", "--server", uri, says=[folder, "directory"])
        fails(1, "get", "name", folder, "--server", uri, says=[folder, "directory"])
        assert piped("put", "-", "name", "--server", uri).returncode == 0
        fails(1, "get", "name", os.path.join(folder, "no", "where"), "--server", uri, says=["where", "No such file"])
        fails(2, "put", target, "n" * 256, "--server", uri, says=["255", "256"])
        for wrong in ("\x1b[31m red", "line\n", os.fsdecode(b"\xff"), os.fsdecode(b"\xc0\x80"), "\x9b"):
            fails(2, "put", target, wrong, "--server", uri, says=["UTF-8"])
        assert piped("put", "-", "n" * 255, "--server", uri).returncode == 0
        assert names(uri, "nn") == ["n" * 255]


def no_server_is_said():
    fails(4, "ls", "--server", "tcp://127.0.0.1:1", says=["tcp://127.0.0.1:1", "weft mem serve"])
    fails(4, "ls", "--server", "unix://@weft-nobody-is-here", says=["weft-nobody-is-here"])
    fails(2, "ls", "--server", "carrier-pigeon://coop", says=["carrier-pigeon"])
    fails(2, "ls", says=["--server", "WEFT_MEM_SERVER"])
    server, uri = weft.listen()
    try:
        fails(4, "ls", "--server", uri, says=[uri, "weft mem serve"])
    finally:
        weft.end(server)


def blocks_are_listed():
    with a_server("--listen", "unix://@weft-tools-mem-" + str(os.getpid())) as uri:
        for name, n in (("b/two", 2), ("a", 1), ("b/one", 3 << 20), ("ü", 5)):
            assert piped("put", "-", name, "--server", uri, give=data(n)).returncode == 0
        assert names(uri) == ["a", "b/one", "b/two", "ü"], names(uri)
        assert names(uri, "b/") == ["b/one", "b/two"]
        assert names(uri, "none of them") == []
        lines = names(uri, "-l", "b/")
        assert re.match(r" +3\.0 MiB +\d+s shared +\d+ open  b/one$", lines[0]), lines
        got = weft.json_lines(mem("ls", "--server", uri, "--json"))
        assert [(e["name"], e["bytes"]) for e in got] == [("a", 1), ("b/one", 3 << 20), ("b/two", 2), ("ü", 5)], got
        for e in got:
            assert e["server"] == uri and e["owner"] == "shared" and e["age"] >= 0 and e["attached"] >= 0, e
            assert e["max_bytes"] >= e["bytes"], e
        line, = weft.json_lines(mem("stat", "b/two", "--server", uri, "--json"))
        assert line["name"] == "b/two" and line["bytes"] == 2, line
        assert re.search(r"bytes +3145728 \(3\.0 MiB\)", mem("stat", "b/one", "--server", uri))
        # another way to the same server
        other = "unix://@weft-tools-mem-" + str(os.getpid())
        assert weft.must("mem", "ls", "b/", env=weft.environment(WEFT_MEM_SERVER=other)).split() == ["b/one", "b/two"]


def statistics_count():
    with a_server("--unmapped", size="64M") as uri:
        before = stats(uri)
        assert (before["bytes"], before["used_bytes"], before["blocks"], before["clients"]) == (64 << 20, 0, 0, 1), before
        assert piped("put", "-", "counted", "--server", uri, give=data(1 << 20)).returncode == 0
        assert piped("get", "counted", "-", "--server", uri).returncode == 0
        after = stats(uri)
        assert after["blocks"] == after["shared_blocks"] == 1 and after["used_bytes"] >= 1 << 20, after
        assert after["bytes_written"] == after["bytes_read"] == 1 << 20 and after["writes"] >= 1 and after["reads"] >= 1, after
        assert after["uptime"] > before["uptime"] and after["allocs"] == 1, after
        text = mem("stat", "--server", uri)
        assert "64.0 MiB" in text and "1 shared" in text, text


def a_quota_is_kept_and_nothing_is_left():
    with weft.scratch() as folder, a_server("--quota-bytes", "2M", size="16M") as uri:
        path = os.path.join(folder, "file")
        with open(path, "wb") as f:
            f.write(data(3 << 20))
        fails(1, "put", path, "too much", "--server", uri, says=["too much", "quota"])
        assert names(uri) == [] and stats(uri)["used_bytes"] == 0 and stats(uri)["refused"] >= 1, stats(uri)
    with a_server(size="16M") as uri:
        done = piped("put", "-", "more and more", "--server", uri, give=data(20 << 20))
        assert done.returncode == 1 and b"room" in done.stderr, done.stderr
        assert names(uri) == [] and stats(uri)["used_bytes"] == 0, stats(uri)
        assert piped("put", "-", "fits", "--server", uri, give=data(10 << 20)).returncode == 0


def clients_do_not_disturb_each_other():
    with weft.scratch() as folder, a_server() as uri:
        for i in range(2):
            with open(os.path.join(folder, f"in{i}"), "wb") as f:
                f.write(data(LARGE, i))
        for _ in range(2):
            both = [weft.start("mem", "put", os.path.join(folder, f"in{i}"), f"block{i}", "--server", uri, "--replace") for i in range(2)]
            assert [p.wait(timeout=60) for p in both] == [0, 0], [p.stderr.read() for p in both]
            weft.end(*both)
            both = [weft.start("mem", "get", f"block{i}", os.path.join(folder, f"out{i}"), "--server", uri, "--force") for i in range(2)]
            assert [p.wait(timeout=60) for p in both] == [0, 0], [p.stderr.read() for p in both]
            weft.end(*both)
            for i in range(2):
                with open(os.path.join(folder, f"out{i}"), "rb") as f:
                    assert f.read() == data(LARGE, i), "the two got mixed"


def a_key_is_needed_where_others_can_connect():
    for uri in ("tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://127.0.0.1:0,tcp://0.0.0.0:0", "tcp://example.org:0"):
        fails(2, "serve", "--size", "1M", "--listen", uri, says=["--key-file", "--no-key-needed"])
    server, uri = weft.serve_memory("--no-key-needed", listen="tcp://0.0.0.0:0")
    weft.end(server)
    with weft.scratch() as folder:
        key = os.path.join(folder, "key")
        with open(key, "wb") as f:
            f.write(bytes(range(32)))
        os.chmod(key, 0o600)
        with a_server("--key-file", key, listen="tcp://0.0.0.0:0") as uri:
            uri = uri.replace("0.0.0.0", "127.0.0.1")
            fails(1, "ls", "--server", uri, says=["--key-file"])
            assert mem("ls", "--server", uri, "--key-file", key) == ""
            assert mem("ls", "--server", uri, env=weft.environment(WEFT_KEY_FILE=key)) == ""


def a_server_tells_what_it_does_and_ends_when_asked():
    for number in (signal.SIGINT, signal.SIGTERM):
        server, uri = weft.serve_memory("--stats-every", "200ms")
        try:
            assert piped("put", "-", "block", "--server", uri, give=b"bytes").returncode == 0
            line = json.loads(server.stdout.readline())
            while line["stats"]["blocks"] != 1:
                line = json.loads(server.stdout.readline())
            server.send_signal(number)
            assert server.wait(timeout=15) == 0, server.stderr.read()
            last = json.loads(server.stdout.read().splitlines()[-1])
            assert last["summary"]["allocs"] == 1, last
        finally:
            weft.end(server)
    server = weft.start("mem", "serve", "--size", "1M", "--listen", "tcp://127.0.0.1:0")
    try:
        assert server.stdout.readline().startswith("listening on tcp://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=15) == 0, server.stderr.read()
        assert "served for" in server.stdout.read()
    finally:
        weft.end(server)
    fails(1, "serve", "--size", "1M", "--listen", "tcp://203.0.113.1:0", "--no-key-needed", says=["203.0.113.1"])


def a_server_that_is_to_outlive_its_terminal_does():
    server = subprocess.Popen(["nohup", weft.command(), "mem", "serve", "--size", "1M", "--listen", "tcp://127.0.0.1:0", "--json"],
                              env=weft.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=weft.as_at_a_terminal)
    try:
        uri = json.loads(server.stdout.readline())["listening"][0]
        server.send_signal(signal.SIGHUP)
        assert names(uri) == [] and server.poll() is None, "it ended"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=15) == 0, server.stderr.read()
    finally:
        weft.end(server)


def progress_is_for_terminals():
    with weft.scratch() as folder, a_server() as uri:
        path = os.path.join(folder, "file")
        with open(path, "wb") as f:
            f.write(data(LARGE))
        rc, text = weft.on_a_terminal("mem", "put", path, "shown", "--server", uri)
        assert rc == 0 and "% [" in text and "/s" in text and "\r\033[K" in text, text
        rc, text = weft.on_a_terminal("mem", "get", "shown", path, "--server", uri, "--force")
        assert rc == 0 and "% [" in text, text
        for args in (("put", path, "plain"), ("get", "plain", path, "--force")):
            done = weft.run("mem", *args, "--server", uri)
            assert done.returncode == 0 and not done.stderr and "\r" not in done.stdout and "\033" not in done.stdout, done


def refused(*args, says):
    fails(2, *args, says=says, timeout=20)


def a_command_line_that_is_not_understood_is_refused():
    refused(says=["serve", "put", "get"])
    refused("gte", says=['"gte"', '"get"'])
    refused("zzzz", says=["--help"])
    refused("serve", says=["--size"])
    refused("serve", "--size", "lots", says=["lots", "4G"])
    refused("serve", "--size", "0", says=["--size", "0"])
    refused("serve", "--size", "1M", "--quota-bytes", "2M", says=["--quota-bytes"])
    refused("serve", "--size", "1M", "--lease", "soon", says=["soon"])
    refused("serve", "--size", "1M", "word", says=['"word"'])
    server = ("--server", "tcp://127.0.0.1:1")
    refused("put", "file", *server, says=["weft mem put FILE NAME"])
    refused("put", "a", "b", "c", *server, says=["weft mem put FILE NAME"])
    refused("rm", *server, says=["weft mem rm NAME"])
    refused("get", "name", "", "--fource", *server, says=["--fource", "--force"])
    refused("ls", "-x", *server, says=["-x"])
    refused("put", "a", "b", *server, *server, says=["--mirror"])
    refused("put", "a", "b", *server, "--mirror", says=["two or three"])
    refused("put", "a", "b", *(server * 4), "--mirror", says=["3", "4"])
    refused("put", "a", "b", *server, "--checksums", says=["--checksums", "--mirror"])
    refused("put", "a", "", *server, says=["name"])


def shards_serve_clients_at_the_same_time():
    for configured, words, want in ((None, ("--shards", "3"), 3), ("2", (), 2), ("2", ("--shards", "1"), 1), (None, (), 1)):
        env = weft.environment(**({"WEFT_SHARDS": configured} if configured else {}))
        with weft.scratch() as folder:
            server = weft.start("mem", "serve", "--size", "64M", "--listen", "tcp://127.0.0.1:0", "--json", "--stats-every", "0", *words,
                                env=env)
            try:
                said = json.loads(server.stdout.readline())
                assert said["shards"] == want, (words, configured, said)
                assert len(drivers(server.pid)) == want - 1, drivers(server.pid)
                uri, = said["listening"]
                path = os.path.join(folder, "there")
                with open(path, "wb") as f:
                    f.write(data(1 << 20))
                puts = [subprocess.Popen([weft.command(), "mem", "put", path, f"block {i}", "--server", uri], env=weft.environment(),
                                         stdout=subprocess.DEVNULL) for i in range(6)]
                assert [p.wait(60) for p in puts] == [0] * 6
                assert names(uri) == [f"block {i}" for i in range(6)]
                for i in range(6):
                    assert piped("get", f"block {i}", "-", "--server", uri).stdout == data(1 << 20)
                mem("rm", *(f"block {i}" for i in range(6)), "--server", uri)
                assert stats(uri)["blocks"] == 0
            finally:
                weft.end(server)
    fails(2, "serve", "--size", "1M", "--shards", "129", says=["--shards 129", "128"])


def drivers(pid):
    """The names of its threads that drive further shards."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as f:
            found += re.findall(r"^weft-\d+$", f.read(), re.M)
    return found


def help_fits_in_100_columns():
    for words in (["mem", "--help"], ["help", "mem"], ["mem", "help"], ["mem", "help", "put"],
                  *(["mem", c, "--help"] for c in ("serve", "put", "get", "ls", "stat", "rm"))):
        text = weft.must(*words)
        wide = [line for line in text.splitlines() if len(line) > 100]
        assert not wide, f"weft {' '.join(words)}: more than 100 columns\n" + "\n".join(wide)
    for option in ("size", "listen", "quota-bytes", "quota-blocks", "clients", "lease", "unmapped", "shards", "stats-every", "json"):
        assert f"--{option}" in weft.must("mem", "serve", "--help"), option
    assert "  -l " in weft.must("mem", "ls", "--help")


def words_after_two_dashes_are_names():
    with a_server() as uri:
        assert piped("put", "--server", uri, "--", "-", "--json", give=b"odd").returncode == 0
        assert names(uri) == ["--json"]
        assert piped("get", "--server", uri, "--", "--json", "-").stdout == b"odd"
        mem("rm", "--server", uri, "--", "--json")


def the_shell_of_the_guide_works():
    weft.shell_of_the_guide("memory-server.md", 3)


weft.main(files_come_back_as_they_were, pipes_carry_what_files_do, a_reader_that_goes_away_is_said,
          what_is_there_is_not_overwritten_unasked, wrong_names_and_files_are_said, no_server_is_said, blocks_are_listed,
          statistics_count, a_quota_is_kept_and_nothing_is_left, clients_do_not_disturb_each_other,
          a_key_is_needed_where_others_can_connect, a_server_tells_what_it_does_and_ends_when_asked,
          a_server_that_is_to_outlive_its_terminal_does, progress_is_for_terminals,
          shards_serve_clients_at_the_same_time, a_command_line_that_is_not_understood_is_refused, help_fits_in_100_columns,
          words_after_two_dashes_are_names,
          the_shell_of_the_guide_works)
