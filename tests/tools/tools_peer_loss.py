"""weft perf ends with a sentence and a failure when the other side is gone: at once if it was killed, in time if it stopped."""
# ctest: long computes
import os
import signal
import time

from lib import weft

LONG = ("--test", "tag_lat,tag_bw", "--size", "8,1048576", "--seconds", "20", "--json")
# Long before a heartbeat would tell of a death; and for a silence the bound of two seconds, the tick of a quarter of it, and room for a busy machine
AT_ONCE, SILENCE = 10, 5
AM = ("--iters", "100000000000", "--warmup", "0", "--json", "--size")


def lose(sig, victim, within, *args, test=LONG, env=None):
    """Start both sides, let them measure, send one a signal; the other must fail within so many seconds."""
    server, uri = weft.listen(*args, env=env)
    client = weft.start("perf", "--connect", uri, *test, *args, env=env)
    try:
        weft.let_work(server, client, within=60)
        assert client.poll() is None, "the client ended early: " + client.stderr.read()
        lost, left = (server, client) if victim == "server" else (client, server)
        os.kill(lost.pid, sig)
        start = time.monotonic()
        left.wait(timeout=within + 10)
        took = time.monotonic() - start
        said = left.stderr.read()
        assert left.returncode == 1, f"exit status {left.returncode}, not 1\n{said}"
        assert f"lost the {victim}" in said, f"it does not say who was lost: {said}"
        assert took <= within, f"it took {took:.1f} s, and {within} s are allowed"
    finally:
        weft.end(server, client)


def a_killed_server_fails_the_client_at_once():
    for tls in ("shm", "tcp"):
        lose(signal.SIGKILL, "server", AT_ONCE, "--transports", tls, "--heartbeat", "30s")


def a_killed_client_fails_the_server_at_once():
    for tls in ("shm", "tcp"):
        lose(signal.SIGKILL, "client", AT_ONCE, "--transports", tls, "--heartbeat", "30s")


def a_stopped_server_fails_the_client_within_the_heartbeat_bound():
    for tls in ("shm", "tcp"):
        lose(signal.SIGSTOP, "server", SILENCE, "--transports", tls, "--heartbeat", "2s")


def a_stopped_client_fails_the_server_within_the_heartbeat_bound():
    lose(signal.SIGSTOP, "client", SILENCE, "--transports", "shm", "--heartbeat", "2s")


def it_ends_the_same_way_in_thread_mode():
    lose(signal.SIGKILL, "server", AT_ONCE, "--mode", "thread", "--heartbeat", "30s")
    lose(signal.SIGSTOP, "server", SILENCE, "--mode", "thread", "--heartbeat", "2s")


def active_messages_end_the_same_way():
    handlers = ("8", "--test", "am_lat"), ("8", "--test", "am_rate", "--kept"), ("4M", "--test", "am_bw"), \
        ("4M", "--test", "am_lat", "--view", "--memory", "pool")
    for tls in ("shm", "tcp"):
        for what in handlers:
            for victim in ("server", "client"):
                lose(signal.SIGKILL, victim, AT_ONCE, "--transports", tls, "--heartbeat", "30s", test=AM + what)
    lose(signal.SIGSTOP, "client", SILENCE, "--transports", "shm", "--heartbeat", "2s", test=AM + handlers[0])
    lose(signal.SIGKILL, "server", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + handlers[0])
    lose(signal.SIGKILL, "client", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + handlers[1])


def remote_memory_ends_the_same_way():
    tests = ("8", "--test", "rma_put_lat"), ("8", "--test", "rma_get"), ("4M", "--test", "rma_put"), ("64", "--test", "rma_batch")
    for tls, path in (("shm", "mapped"), ("shm", "checked"), ("tcp", "checked")):
        for what in tests:
            for victim in ("server", "client"):
                lose(signal.SIGKILL, victim, AT_ONCE, "--transports", tls, "--heartbeat", "30s", test=AM + what + ("--path", path))
    lose(signal.SIGSTOP, "client", SILENCE, "--transports", "shm", "--heartbeat", "2s", test=AM + tests[0])
    lose(signal.SIGSTOP, "server", SILENCE, "--transports", "shm", "--heartbeat", "2s", test=AM + tests[1])
    lose(signal.SIGKILL, "server", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + tests[0])
    lose(signal.SIGKILL, "client", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + tests[2])


def operations_in_streams_end_the_same_way():
    env = weft.on_paper()
    for what in (("8", "--test", "tag_lat"), ("1M", "--test", "tag_bw"), ("8", "--test", "am_lat"), ("1M", "--test", "am_bw", "--kept"),
                 ("1M", "--test", "rma_put")):
        for victim in ("server", "client"):
            for kind in ("host", "cuda"):
                lose(signal.SIGKILL, victim, AT_ONCE, "--heartbeat", "30s", test=AM + what + ("--stream", "--memory", kind), env=env)
        lose(signal.SIGSTOP, "server", SILENCE, "--heartbeat", "2s", test=AM + what + ("--stream",), env=env)


def calls_end_the_same_way():
    tests = ("64", "--test", "rpc_lat"), ("64", "--test", "rpc_rate"), ("16M", "--test", "rpc_tensor")
    for tls in ("shm", "tcp"):
        for what in tests:
            for victim in ("server", "client"):
                lose(signal.SIGKILL, victim, AT_ONCE, "--transports", tls, "--heartbeat", "30s", test=AM + what)
    lose(signal.SIGSTOP, "client", SILENCE, "--transports", "shm", "--heartbeat", "2s", test=AM + tests[0])
    lose(signal.SIGSTOP, "server", SILENCE, "--transports", "shm", "--heartbeat", "2s", test=AM + tests[1])
    lose(signal.SIGKILL, "server", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + tests[1])
    lose(signal.SIGKILL, "client", AT_ONCE, "--mode", "thread", "--heartbeat", "30s", test=AM + tests[2])


def a_server_that_keeps_survives_a_killed_client():
    server, uri = weft.listen("--keep", "--heartbeat", "2s")
    client = weft.start("perf", "--connect", uri, *LONG)
    try:
        weft.let_work(server, client, within=60)
        client.kill()
        client.wait()
        weft.must("perf", "--connect", uri, "--test", "tag_lat", "--size", "8", "--iters", "100", timeout=30)
        assert server.poll() is None, "the server ended: " + server.stderr.read()
    finally:
        weft.end(server, client)


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError as e:
        raise weft.Skip("this kernel does not list the children of a process") from e


def a_killed_child_fails_the_fork():
    both = weft.start("perf", "--fork", *LONG)
    try:
        time.sleep(0.7)
        os.kill(children(both.pid)[0], signal.SIGKILL)
        both.wait(timeout=15)
        said = both.stderr.read()
        assert both.returncode == 1 and "lost the server" in said and "signal 9" in said, f"exit status {both.returncode}\n{said}"
    finally:
        weft.end(both)


def a_killed_parent_leaves_no_child():
    both = weft.start("perf", "--fork", *LONG)
    time.sleep(0.7)
    child = children(both.pid)[0]
    weft.end(both)
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        with open(f"/proc/{child}/stat", encoding="ascii") as f:
            if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                return
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}"), "the server process lives on"


def nobody_there_is_said_at_once():
    start = time.monotonic()
    done = weft.run("perf", "--connect", "tcp://127.0.0.1:1", "--iters", "1")
    assert done.returncode == 1 and "--listen" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"
    assert time.monotonic() - start < 15, "it took too long"
    done = weft.run("perf", "--listen", "tcp://203.0.113.1:0")
    assert done.returncode == 1 and "203.0.113.1" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"
    done = weft.run("perf", "--connect", "carrier-pigeon://coop", "--iters", "1")
    assert done.returncode == 2 and "carrier-pigeon" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"
    done = weft.run("perf", "--fork", "--transports", "carrier-pigeon", "--iters", "1")
    assert done.returncode == 2 and "carrier-pigeon" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"


weft.main(a_killed_server_fails_the_client_at_once, a_killed_client_fails_the_server_at_once,
          a_stopped_server_fails_the_client_within_the_heartbeat_bound,
          a_stopped_client_fails_the_server_within_the_heartbeat_bound,
          it_ends_the_same_way_in_thread_mode, active_messages_end_the_same_way, remote_memory_ends_the_same_way,
          operations_in_streams_end_the_same_way, calls_end_the_same_way, a_server_that_keeps_survives_a_killed_client,
          a_killed_child_fails_the_fork,
          a_killed_parent_leaves_no_child, nobody_there_is_said_at_once)
