"""epoll_echo and uring_echo, the servers on sockets that Weft is measured against, answer what they are asked, and end when a process of theirs does.

uring_echo is built where the kernel's headers have io_uring, and runs where the kernel lets a process use it."""
import json
import os
import signal
import subprocess
import time

from lib import weft

NO_RING = ("io_uring_setup: Operation not permitted", "io_uring_setup: Function not implemented")
KINDS = {"epoll_echo": ((),), "uring_echo": (("--ring", "plain"), ("--ring", "coop"), ("--ring", "defer"), ("--send", "zc"), ("--buffer", "100"))}


def figures(name, *args, **asked):
    for option, value in asked.items():
        args += ("--" + option, str(value))
    for seconds in ("0.1", "5"):  # a busy machine may have no answer in the first
        done = weft.bench(name, *args, "--seconds", seconds)
        if "had no answer" not in done.stderr:
            break
    if any(text in done.stderr for text in NO_RING):
        raise weft.Skip("this kernel lets nobody use io_uring")
    assert done.returncode == 0, f"{name} {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    assert r["calls_s"] > 0 and r["server_us"] > 0, r
    for option, value in asked.items():
        assert r[option] == value, r
    return r


def every_load(name):
    for more in KINDS[name]:
        figures(name, *more, threads=1, clients=1, connections=1, window=1, size=64)
        figures(name, *more, threads=3, clients=3, connections=7, window=16)
        figures(name, *more, threads=2, clients=1, connections=300)
    figures(name, "--client-threads", threads=2, clients=3, window=64)
    figures(name, "--spin", "--no-pin", clients=1, connections=2, size=1000)
    figures(name, clients=1, window=1024)  # 64 KiB: the most


def epoll_answers_every_load():
    every_load("epoll_echo")


def uring_answers_every_load():
    every_load("uring_echo")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(word) for word in f.read().split()]


def a_process_that_dies_ends_it():
    path = os.path.join(os.path.dirname(weft.command()), "epoll_echo")
    if not os.access(path, os.X_OK):
        raise weft.Skip(f"there is no {path}")
    for victim, said in ((0, "the server is gone"), (1, "a client is gone")):
        with subprocess.Popen([path, "--clients", "2", "--connections", "3", "--seconds", "60"], env=weft.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            try:
                until = time.monotonic() + 20
                while len(found := children(program.pid)) < 3 and time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(found[victim], signal.SIGKILL)
                out, err = program.communicate(timeout=30)
            finally:
                program.kill()
        assert program.returncode == 1 and not out, f"exit status {program.returncode}\n{out}{err}"
        assert said in err or (victim == 0 and err), err  # a client may be the first to miss the server
        for pid in found:
            assert not os.path.exists(f"/proc/{pid}"), f"process {pid} is left"


def a_wrong_option_is_refused():
    for name in KINDS:
        for args in (("--second", "1"), ("--seconds", "0"), ("--threads", "0"), ("--clients",), ("1",), ("--window", "1025"), ("--ring", "round")):
            done = weft.bench(name, *args)
            assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(epoll_answers_every_load, uring_answers_every_load, a_process_that_dies_ends_it, a_wrong_option_is_refused)
