"""weft mem leaves nothing half done: a server that is killed or stopped, a signal to the client, a client that is gone, a restart."""
# ctest: serial
import contextlib
import os
import random
import signal
import subprocess
import time

from lib import weft

CHUNK, WINDOW = 4 << 20, 8
LARGE = 96 << 20  # three windows: a part with less than two of them is in the middle
DATA = random.Random(7).randbytes(CHUNK) * (LARGE // CHUNK)


@contextlib.contextmanager
def a_server(*args, **kw):
    server, uri = weft.serve_memory(*args, size="256M", **kw)
    try:
        yield server, uri
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
        weft.end(server)


def put(uri, name, give):
    done = subprocess.run([weft.command(), "mem", "put", "-", name, "--server", uri], env=weft.environment(), input=give,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def names(uri):
    return weft.must("mem", "ls", "--server", uri).splitlines()


def until(seconds, true):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def size(path):
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


@contextlib.contextmanager
def a_get_in_the_middle(uri, target, *args):
    """A get that is stopped with some of its file written and more to ask for."""
    part = target + ".part"
    for _ in range(50):
        get = weft.start("mem", "get", "large", target, "--server", uri, "--force", *args)
        try:
            while get.poll() is None and size(part) <= 0:
                pass
            weft.stop(get.pid)
            if 0 < size(part) < LARGE - (WINDOW + 1) * CHUNK:
                yield get
                return
        except ProcessLookupError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(get.pid, signal.SIGCONT)
            weft.end(get)
        if os.path.exists(target):
            os.unlink(target)
    raise weft.Skip("no get was caught in the middle")


def ends(process, within, *statuses):
    process.wait(timeout=within)
    said = process.stderr.read()
    assert process.returncode in statuses, f"exit status {process.returncode}, not {statuses}\n{said}"
    return said


def a_killed_server_leaves_no_file():
    for args in ((), ("--unmapped",)):
        with weft.scratch() as folder, a_server(*args) as (server, uri):
            target = os.path.join(folder, "target")
            put(uri, "large", DATA)
            with a_get_in_the_middle(uri, target) as get:
                server.kill()
                server.wait()
                os.kill(get.pid, signal.SIGCONT)
                # a block that is mapped can be read to its end before the loss is noticed
                said = ends(get, 20, *((4,) if args else (0, 4)))
                if get.returncode == 0:
                    with open(target, "rb") as f:
                        assert f.read() == DATA, "the file is whole, but it is another one"
                    continue
                assert "large" in said and len(said.splitlines()) == 1, said
                assert not os.listdir(folder), os.listdir(folder)


def a_stopped_server_is_given_up():
    with weft.scratch() as folder, a_server("--unmapped") as (server, uri):
        target = os.path.join(folder, "target")
        put(uri, "large", DATA)
        with a_get_in_the_middle(uri, target, "--heartbeat", "2s") as get:
            weft.stop(server.pid)
            os.kill(get.pid, signal.SIGCONT)
            ends(get, 30, 4)
            assert not os.listdir(folder), os.listdir(folder)


def a_signal_leaves_no_file():
    for number in (signal.SIGINT, signal.SIGTERM):
        with weft.scratch() as folder, a_server() as (_, uri):
            target = os.path.join(folder, "target")
            put(uri, "large", DATA)
            with a_get_in_the_middle(uri, target) as get:
                os.kill(get.pid, number)
                os.kill(get.pid, signal.SIGCONT)
                said = ends(get, 20, 128 + number)
                assert not said, said
                assert not os.listdir(folder), os.listdir(folder)
            assert names(uri) == ["large"]


def a_block_that_is_removed_meanwhile_leaves_no_file():
    for args in ((), ("--unmapped",)):
        with weft.scratch() as folder, a_server(*args) as (_, uri):
            target = os.path.join(folder, "target")
            put(uri, "large", DATA)
            with a_get_in_the_middle(uri, target) as get:
                rm = weft.start("mem", "rm", "large", "--server", uri)  # it ends when what is under way has ended
                until(20, lambda: not names(uri))
                os.kill(get.pid, signal.SIGCONT)
                said = ends(get, 20, 1)
                assert "removed" in said, said
                ends(rm, 20, 0)
                weft.end(rm)
                assert not os.listdir(folder), os.listdir(folder)


def used(uri):
    return weft.json_lines(weft.must("mem", "stat", "--server", uri, "--json"))[0]["used_bytes"]


@contextlib.contextmanager
def a_put_in_the_middle(uri, *more):
    """A put whose pipe has brought some, and is held open: nobody sees what it has brought."""
    before = used(uri)
    p = subprocess.Popen([weft.command(), "mem", "put", "-", "half", "--server", uri, *more], env=weft.environment(), stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=weft.as_at_a_terminal)
    try:
        p.stdin.write(DATA[:3 * CHUNK + 1])
        p.stdin.flush()
        until(30, lambda: used(uri) >= before + 3 * CHUNK)
        assert "--replace" in more or "half" not in names(uri), names(uri)
        assert p.poll() is None, p.stderr.read()
        yield p
    finally:
        with contextlib.suppress(BrokenPipeError):
            p.stdin.close()
        p.stdin = None
        weft.end(p)


def a_signal_takes_a_put_back():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with a_server() as (_, uri):
            with a_put_in_the_middle(uri) as p:
                p.send_signal(number)
                said = ends(p, 20, 128 + number)
                assert not said, said
            assert names(uri) == [], names(uri)


def a_put_that_is_killed_leaves_nothing():
    with a_server("--lease", "1s") as (_, uri):
        with a_put_in_the_middle(uri) as p:
            p.kill()
            p.wait()
        until(20, lambda: used(uri) == 0)
        assert names(uri) == [], names(uri)


def a_replacement_that_fails_leaves_the_old_one():
    with weft.scratch() as folder, a_server() as (_, uri):
        put(uri, "half", b"the old one")
        with a_put_in_the_middle(uri, "--replace") as p:
            p.send_signal(signal.SIGINT)
            ends(p, 20, 128 + signal.SIGINT)
        target = os.path.join(folder, "target")
        weft.must("mem", "get", "half", target, "--server", uri)
        with open(target, "rb") as f:
            assert f.read() == b"the old one"


def a_put_into_a_killed_server_says_so():
    with a_server() as (server, uri):
        with a_put_in_the_middle(uri) as p:
            server.kill()
            server.wait()
            with contextlib.suppress(BrokenPipeError):
                p.stdin.write(DATA[:2 * CHUNK])
            ends(p, 30, 4)


def a_put_that_loses_its_server_for_a_while_leaves_nothing():
    with a_server("--lease", "600s") as (server, uri):
        with a_put_in_the_middle(uri, "--heartbeat", "500ms") as p:
            weft.stop(server.pid)
            with contextlib.suppress(BrokenPipeError):
                p.stdin.close()  # it wants to finish, and cannot
            said = p.stderr.readline()  # it has given the server up
            server.send_signal(signal.SIGCONT)
            p.wait(timeout=30)
            assert p.returncode == 4 and b"half" in said, (p.returncode, said)
        until(30, lambda: used(uri) == 0)
        assert names(uri) == [], names(uri)


def a_put_to_a_slow_pipe_keeps_its_lease():
    with a_server("--lease", "1s", "--heartbeat", "1s") as (_, uri):
        with a_put_in_the_middle(uri) as p:
            time.sleep(3)  # nothing comes for three leases
            p.stdin.write(b"the end")
            p.stdin.close()
            p.wait(timeout=30)
            assert p.returncode == 0, p.stderr.read()
        assert weft.json_lines(weft.must("mem", "stat", "half", "--server", uri, "--json"))[0]["bytes"] == 3 * CHUNK + 1 + 7


def a_client_that_is_killed_is_forgotten():
    with weft.scratch() as folder, a_server("--lease", "1s") as (server, uri):
        put(uri, "large", DATA)
        with a_get_in_the_middle(uri, os.path.join(folder, "target")) as get:
            get.kill()
            get.wait()
        until(20, lambda: weft.json_lines(weft.must("mem", "stat", "--server", uri, "--json"))[0]["clients"] == 1)
        line, = weft.json_lines(weft.must("mem", "stat", "large", "--server", uri, "--json"))
        assert line["bytes"] == LARGE, line
        assert server.poll() is None


def ours_in_dev_shm():
    return {n for n in os.listdir("/dev/shm") if "weft" in n} if os.path.isdir("/dev/shm") else set()


def a_restart_after_a_crash_finds_nothing_in_its_way():
    before = ours_in_dev_shm()
    with weft.scratch() as folder:
        listen = "unix://" + os.path.join(folder, "socket")
        for _ in range(2):
            with a_server(listen=listen) as (server, uri):
                put(uri, "large", DATA)
                assert names(uri) == ["large"], "memory of the server before this one"
                server.kill()
                server.wait()
        assert ours_in_dev_shm() <= before, ours_in_dev_shm() - before


def a_mirror_survives_a_server():
    with weft.scratch() as folder, a_server() as (first, one), a_server() as (_, two):
        both = ("--server", one, "--server", two)
        source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
        with open(source, "wb") as f:
            f.write(DATA[:2 * CHUNK + 5])
        for more in ((), ("--checksums",)):
            line, = weft.json_lines(weft.must("mem", "put", source, "twice", *both, "--mirror", "--replace", "--json", *more))
            assert line["path"] == "mirror" and line["bytes"] == 2 * CHUNK + 5, line
            weft.must("mem", "get", "twice", target, *both, "--mirror", "--force")
            with open(target, "rb") as f:
                assert f.read() == DATA[:2 * CHUNK + 5], "the mirror gave back something else"
        assert weft.run("mem", "put", source, "twice", *both, "--mirror").returncode == 1
        done = subprocess.run([weft.command(), "mem", "put", "-", "piped", *both, "--mirror"], env=weft.environment(), input=b"a pipe",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        first.kill()
        first.wait()
        done = weft.run("mem", "get", "twice", target, *both, "--mirror", "--force")
        assert done.returncode == 0 and one in done.stderr, done.stderr
        with open(target, "rb") as f:
            assert f.read() == DATA[:2 * CHUNK + 5], "the server that is left gave back something else"
        weft.must("mem", "rm", "twice", "piped", "--server", two)
        assert names(two) == []


weft.main(a_killed_server_leaves_no_file, a_stopped_server_is_given_up, a_signal_leaves_no_file,
          a_block_that_is_removed_meanwhile_leaves_no_file, a_signal_takes_a_put_back, a_put_that_is_killed_leaves_nothing,
            a_replacement_that_fails_leaves_the_old_one, a_put_into_a_killed_server_says_so,
          a_put_that_loses_its_server_for_a_while_leaves_nothing, a_put_to_a_slow_pipe_keeps_its_lease, a_client_that_is_killed_is_forgotten,
          a_restart_after_a_crash_finds_nothing_in_its_way, a_mirror_survives_a_server)
