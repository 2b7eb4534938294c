"""zmq_echo and grpc_echo, which calls are measured against, answer what they are asked, one at a time and many, and end when their server does.
gRPC does so over TLS, too: tools_bench_tls.py.

They are built where WEFT_PEERS is on and their packages are there."""
import json
import os
import signal
import subprocess
import time

from lib import weft

WAYS = {"zmq_echo": ("tcp", "ipc"), "grpc_echo": ("unary", "sync", "stream")}


def path(name):
    return os.path.join(os.path.dirname(weft.command()), name)


def programs():
    return [name for name in WAYS if os.access(path(name), os.X_OK)]


def they_are_built():
    if not programs():
        raise weft.Skip("neither zmq_echo nor grpc_echo is there; cmake -DWEFT_PEERS=ON")


def run(name, *args):
    return subprocess.run([path(name), *args], env=weft.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def every_way_gives_a_line():
    for name in programs():
        for way in WAYS[name]:
            for size, window in ((64, 1), (0, 1), (64, 100), (100000, 3)):
                window = 1 if way == "sync" else window
                done = run(name, way, "--size", str(size), "--window", str(window), "--count", "200")
                assert done.returncode == 0, f"{name} {way} {size} {window}: exit status {done.returncode}\n{done.stderr}"
                r = json.loads(done.stdout)
                assert (r["test"], r["size"], r["window"], r["iterations"]) == (way, size, window, 200), r
                assert abs(r["msg_s"] * r["avg_us"] - 1e6) < 1e4 and r["p50_us"] > 0, r


def a_server_that_dies_ends_it():
    for name in programs():
        for way in WAYS[name]:
            with subprocess.Popen([path(name), way, "--seconds", "30"], env=weft.environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
                try:
                    time.sleep(0.5)
                    with open(f"/proc/{client.pid}/task/{client.pid}/children", encoding="ascii") as f:
                        server, = f.read().split()
                    os.kill(int(server), signal.SIGKILL)
                    out, err = client.communicate(timeout=20)
                finally:
                    client.kill()
            assert client.returncode == 1 and err and not out, f"{name} {way}: exit status {client.returncode}\n{out}{err}"


def a_wrong_option_is_named():
    for name in programs():
        for args in ((), ("fast",), (WAYS[name][0] + "x",), (WAYS[name][0], "--sise", "8"), (WAYS[name][0], "--window", "0")):
            done = run(name, *args)
            assert done.returncode == 2 and done.stderr and not done.stdout, f"{name} {args}: exit status {done.returncode}\n{done.stderr}"


weft.main(they_are_built, *([every_way_gives_a_line, a_server_that_dies_ends_it, a_wrong_option_is_named] if programs() else []))
