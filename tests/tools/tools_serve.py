"""weft serve offers a demo service, says where it is reached, and ends when it is asked to, with every call answered."""
import json
import os
import signal
import time

from lib import weft


def registry(folder):
    return weft.environment(WEFT_REGISTRY="dir://" + folder)


def call(env, *args, **kw):
    return weft.must("call", *args, env=env, **kw)


def refused(*args, says):
    done = weft.run("serve", *args, timeout=20)
    assert done.returncode == 2, f"weft serve {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    for word in says:
        assert word in lines[0], f"\"{word}\" is not in: {lines[0]}"


def it_says_where_it_is_reached():
    with weft.scratch() as folder:
        env = registry(folder)
        server = weft.start("serve", "--instance", "mill-3", env=env)
        try:
            line = server.stdout.readline()
            assert line.startswith("calc@mill-3 is reached at weft://calc,tcp://127.0.0.1:"), line
            uris = line.split()[-1].split(",")
            assert len(uris) == 3 and uris[2].startswith("unix://@"), uris
            assert call(env, uris[0] + "/add", "25", "17") == "42\n"
            assert call(env, uris[1] + "/calc/add", "25", "17") == "42\n"
            assert call(env, uris[2] + "#calc/add", "25", "17") == "42\n"
        finally:
            weft.end(server)
        server, said = weft.serve_calls("--no-registry", "--name", "other", "--listen", "tcp://127.0.0.1:0", "--listen",
                                        f"unix://@weft-tools-serve-{os.getpid()}", env=env)
        try:
            assert said["service"] == "other" and len(said["listening"]) == 2 and said["instance"], said
            assert call(env, said["listening"][0] + "/other/add", "25", "17") == "42\n"
            assert call(env, said["listening"][1] + "#other/add", "25", "17") == "42\n"
            assert weft.run("call", "weft://other/add", "1", "2", env=env).returncode == 4
        finally:
            weft.end(server)


def ports_of(pid):
    """Addresses, as the kernel writes them, at which a process listens over TCP."""
    own, found = set(), []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass  # it was closed meanwhile
    for table in ("tcp", "tcp6"):
        if os.path.exists(f"/proc/net/{table}"):
            with open(f"/proc/net/{table}", encoding="ascii") as f:
                rows = [line.split() for line in f.readlines()[1:]]
            found += [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return sorted(found, key=len)


def one_more_port_is_opened_for_data_over_tcp():
    server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0")
    try:
        call(None, said["listening"][0] + "/calc/add", "1", "2", "--transports", "shm")
        assert ports_of(server.pid) == ["0100007F"], ports_of(server.pid)
        call(None, said["listening"][0] + "/calc/add", "1", "2", "--transports", "tcp")
        named, data = ports_of(server.pid)
        assert named == "0100007F" and not data.strip("0"), (named, data)
        call(None, said["listening"][0] + "/calc/add", "1", "2", "--transports", "tcp")
        assert len(ports_of(server.pid)) == 2, "it is one port for all peers"
    finally:
        weft.end(server)
    server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0", env=weft.environment(WEFT_INTERFACES="lo"))
    try:
        call(weft.environment(WEFT_INTERFACES="lo"), said["listening"][0] + "/calc/add", "1", "2", "--transports", "tcp")
        assert all(a.strip("0") for a in ports_of(server.pid)), "WEFT_INTERFACES says where"
    finally:
        weft.end(server)


def every_function_works():
    for threads, shards in (("0", "1"), ("0", "4"), ("3", "4")):
        with weft.scratch() as folder:
            env = registry(folder)
            server, _ = weft.serve_calls("--threads", threads, "--shards", shards, env=env)
            try:
                for want, *words in (("42", "add", "25", "17"), ("8", "sub", "25", "17"), ("-425", "mul", "25", "-17"), ("2.5", "div", "5", "2"),
                                     ("2", "mean", "[1, 2, 3]"), ("ABC", "upper", "abc"), ("head: a\ntail: bc", "split", "abc", "1"),
                                     ("f32 [2, 4]", "scale", "[1, 2]", "2"), ("f64 [[2]]", "scale", "f64 [[1]]", "2"), ("1", "count"),
                                     ("2\n3", "primes", "5"), ("6", "total", "1", "2", "3"), ("x\ny", "echo", "x", "y")):
                    got = call(env, "weft://calc/" + words[0], *words[1:])
                    assert got == want + "\n", f"{words}: {got!r}"
                assert call(env, "weft://calc/sleep", "1") == "" and call(env, "weft://calc/log", "a") == ""
                for code, *words in (("OUT_OF_RANGE", "add", "2147483647", "1"), ("OUT_OF_RANGE", "sub", "-2147483648", "1"),
                                     ("OUT_OF_RANGE", "mul", "65536", "65536"), ("INVALID_ARGUMENT", "div", "1", "0"),
                                     ("INVALID_ARGUMENT", "mean", "[]"), ("OUT_OF_RANGE", "split", "abc", "4"),
                                     ("INVALID_ARGUMENT", "split", "ä", "1"), ("INVALID_ARGUMENT", "scale", "u8 [1]", "1")):
                    done = weft.run("call", "weft://calc/" + words[0], *words[1:], env=env)
                    assert done.returncode == 1 and code in done.stderr, (words, done)
                # large arguments and results, which travel by themselves
                path = os.path.join(folder, "large")
                with open(path, "w", encoding="ascii") as f:
                    f.write("abcdefgh" * 500_000)
                assert call(env, "weft://calc/upper", "@" + path) == "ABCDEFGH" * 500_000 + "\n"
                assert server.poll() is None, server.stderr.read()
            finally:
                weft.end(server)


def shards_share_the_connections():
    server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0", "--shards", "3")
    try:
        assert said["shards"] == 3, said
        where = said["listening"][0] + "/calc/"
        slow = [weft.start("call", where + "sleep", "60000", "--timeout", "1s") for _ in range(6)]  # cancelled when their time is over
        calls = [weft.start("call", where + "echo", "--timeout", "60s", stdin=weft.subprocess.PIPE) for _ in range(6)]
        for i, one in enumerate(calls):  # all at the same time, and each is answered while it is open
            one.stdin.write(f"{i}\n")
            one.stdin.flush()
            assert one.stdout.readline() == f"{i}\n"
        assert shard_threads(server.pid) == ["weft-1", "weft-2"]  # the first is "weft", as all of its command are
        for one in slow:
            out, err = one.communicate(timeout=60)
            assert one.returncode == 4 and "deadline" in err, (one.returncode, out, err)
        server.send_signal(signal.SIGTERM)
        for i, one in enumerate(calls):  # the drain waits for streams that are open
            one.stdin.write("last\n")
            one.stdin.close()
            assert one.stdout.read() == "last\n" and one.wait(60) == 0, one.stderr.read()
        out, err = server.communicate(timeout=60)
        assert server.returncode == 0 and not err, (server.returncode, err)
        summary = json.loads(out.splitlines()[-1])["summary"]
        assert summary["answered"] == 6 and summary["late"] + summary["cancelled"] == 6, summary
        shards = summary["shards"]
        assert len(shards) == 3 and all(s["ams_received"] >= 4 and 0 <= s["busy"] <= 1 and "connections" in s for s in shards), shards
    finally:
        weft.end(server)


def shard_threads(pid):
    """The names of its threads that drive further shards."""
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as f:
            names.append(f.read().strip())
    return sorted(n for n in names if n.startswith("weft-") and n[5:].isdigit())


def shards_are_as_configured_for_servers_alone():
    cores = len(os.sched_getaffinity(0))
    for words, configured, want in ((("--shards", "0"), None, min(cores, 128)), ((), "3", 3), (("--shards", "2"), "3", 2), ((), None, 1)):
        env = weft.environment(**({"WEFT_SHARDS": configured} if configured else {}))
        server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0", *words, env=env)
        try:
            assert said["shards"] == want, (words, configured, said)
            assert call(env, said["listening"][0] + "/calc/add", "25", "17") == "42\n"  # a client has one, and works
        finally:
            weft.end(server)
    server = weft.start("serve", "--no-registry", "--shards", "2")
    try:
        assert "is reached at" in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        out, _ = server.communicate(timeout=60)
        assert [line.split(":")[0] for line in out.splitlines()[1:]] == ["shard 0", "shard 1"], out
    finally:
        weft.end(server)
    refused("--shards", "129", says=["--shards 129", "128"])
    refused("--shards", "many", says=["--shards many"])


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def it_drains_when_it_is_asked_to_end():
    for number in (signal.SIGINT, signal.SIGTERM):
        with weft.scratch() as folder:
            env = registry(folder)
            server, said = weft.serve_calls(env=env)
            try:
                alone = descriptors(server)
                slow = weft.start("call", "weft://calc/sleep", "1500", "--json", env=env)
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline and descriptors(server) == alone:
                    time.sleep(0.05)  # the caller is not connected yet
                time.sleep(0.5)
                server.send_signal(number)
                while time.monotonic() < deadline and weft.run("call", "--list", "--json", env=env).stdout:
                    time.sleep(0.05)  # it leaves the registry at once
                assert time.monotonic() < deadline, "it is still in the registry"
                out, err = slow.communicate(timeout=30)
                assert slow.returncode == 0 and json.loads(out)["ran"] == "ran", (out, err)
                out, err = server.communicate(timeout=30)
                assert server.returncode == 0 and not err, (server.returncode, err)
                summary = json.loads(out.splitlines()[-1])["summary"]
                assert summary["answered"] >= 1 and summary["failed"] == 0, summary
                assert not [f for f in os.listdir(folder) if said["instance"] in f], os.listdir(folder)
            finally:
                weft.end(server)


def a_second_signal_ends_it_at_once():
    with weft.scratch() as folder:
        env = registry(folder)
        server, _ = weft.serve_calls(env=env)
        try:
            alone, deadline = descriptors(server), time.monotonic() + 20
            slow = weft.start("call", "weft://calc/sleep", "60000", "--timeout", "50s", env=env)
            while time.monotonic() < deadline and descriptors(server) == alone:
                time.sleep(0.05)
            time.sleep(0.5)
            server.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.poll() is None, "it did not wait for the call"
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=10) == -signal.SIGTERM, server.returncode
            slow.communicate(timeout=30)
            assert slow.returncode == 4, slow.returncode
        finally:
            weft.end(server)


def a_key_is_needed_where_others_can_connect():
    for uri in ("tcp://0.0.0.0:0", "TCP://0.0.0.0:0", "unix://@weft-test-x,tcp://0.0.0.0:0"):
        refused("--listen", uri, says=[uri.split(",")[-1], "--key-file", "--no-key-needed", "call every function"])
    with weft.scratch() as folder:
        server, said = weft.serve_calls("--listen", "tcp://0.0.0.0:0", "--no-key-needed", env=registry(folder))
        weft.end(server)
        assert said["listening"], said


def what_is_wrong_is_said():
    refused("--threads", "many", says=["--threads", "many"])
    refused("--nmae", "x", says=["--nmae", "--name"])
    refused("word", says=["word"])
    refused("--registry", "dir:///x", "--no-registry", says=["--registry", "--no-registry"])
    refused("--heartbeat", "1ns", says=["--heartbeat"])
    with weft.scratch() as folder:
        env = registry(folder)
        for args, words in ((("--name", "a b"), ["a b"]), (("--name", "weft.x"), ["weft.x"]),
                            (("--listen", "pigeon://x"), ["\"pigeon\" is not tcp, tls or unix"]), (("--registry", "pigeons://coop"), ["pigeons"])):
            done = weft.run("serve", *args, env=env)
            assert done.returncode in (1, 2) and all(w in done.stderr for w in words), (args, done)
        server, said = weft.serve_calls("--listen", "tcp://127.0.0.1:0", env=env)
        try:
            done = weft.run("serve", "--listen", said["listening"][0], env=env)
            assert done.returncode == 1 and said["listening"][0] in done.stderr, done
        finally:
            weft.end(server)


def the_shell_of_the_guide_works():
    weft.shell_of_the_guide("command-line.md", 3)


weft.main(it_says_where_it_is_reached, one_more_port_is_opened_for_data_over_tcp, every_function_works, shards_share_the_connections,
          shards_are_as_configured_for_servers_alone, it_drains_when_it_is_asked_to_end,
          a_second_signal_ends_it_at_once, a_key_is_needed_where_others_can_connect, what_is_wrong_is_said, the_shell_of_the_guide_works)
