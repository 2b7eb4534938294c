"""What TLS is measured with and against: bench/handshake, tls_echo and tls_shake, grpc_echo with certificates, and bench/encrypted.py, which takes
no figure of what was not encrypted."""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from lib import weft

BENCH = os.path.join(weft.ROOT, "bench")
sys.path.append(BENCH)
folder = tempfile.TemporaryDirectory(prefix="weft-bench-tls-")
other = tempfile.TemporaryDirectory(prefix="weft-bench-tls-")


def made():
    """How making certificates went, in both folders; "": well."""
    return "".join(weft.run("key", "cluster", at.name, "bench=127.0.0.1").stderr for at in (folder, other))


def there_are_certificates():
    if "OpenSSL" in said:
        raise weft.Skip(said.strip())
    assert not said, said


def line(name, *args, certs=folder):
    done = weft.bench(name, *args, "--certs", certs.name)
    assert done.returncode == 0, f"{name} {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def openssl_moves_what_it_says():
    for way, size, window in (("lat", 1, 1), ("lat", 100000, 1), ("bw", 64, 1), ("bw", 1 << 20, 1), ("echo", 64, 1), ("echo", 64, 1000),
                              ("echo", 1000, 3)):
        r = line("tls_echo", way, "--size", str(size), "--window", str(window), "--count", "50")
        assert (r["test"], r["size"], r["window"], r["iterations"]) == (way, size, window, 50), r
        assert abs(r["msg_s"] * r["avg_us"] - 1e6) < 1e4 and r["p50_us"] > 0, r


def they_meet_in_every_way():
    for program, ways in (("tls_shake", ("full", "resumed")), ("handshake", ("plain", "full", "resumed", "key"))):
        for way in ways:
            r = line(program, way, "--count", "35" if way == "full" else "10")  # more than a client has listeners
            assert (r["test"], r["count"]) == (way, 35 if way == "full" else 10), r
            assert r["cipher"] == ("" if way == "plain" else "TLS_AES_128_GCM_SHA256"), r
            assert r["avg_us"] > 0 and r["p50_us"] > 0 and r["cpu_us"] > 0, r


def grpc_answers_over_tls():
    for way, window in (("sync", 1), ("unary", 20), ("stream", 20)):
        r = line("grpc_echo", way, "--window", str(window), "--count", "100")
        assert (r["test"], r["window"], r["iterations"]) == (way, window, 100) and r["avg_us"] > 0, r


def certificates_are_needed_and_looked_at():
    mixed = tempfile.TemporaryDirectory(prefix="weft-bench-tls-")
    for name, of in (("ca.crt", other), ("bench.crt", folder), ("bench.key", folder)):
        os.symlink(os.path.join(of.name, name), os.path.join(mixed.name, name))
    for program, args in (("tls_echo", ("lat",)), ("tls_shake", ("full",)), ("handshake", ("full",)), ("grpc_echo", ("sync",))):
        if not os.access(os.path.join(os.path.dirname(weft.command()), program), os.X_OK):
            continue
        done = weft.bench(program, *args, "--count", "10", "--certs", mixed.name)
        assert done.returncode == 1 and done.stderr and not done.stdout, f"{program}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        if program != "grpc_echo":
            done = weft.bench(program, *args, "--count", "10")
            assert done.returncode == 2 and "--certs" in done.stderr, f"{program}: exit status {done.returncode}\n{done.stderr}"


def a_wrong_option_is_named():
    for program, way in (("tls_echo", "echo"), ("tls_shake", "full"), ("handshake", "full")):
        for args in ((), ("fast",), (way, "--certs"), (way, "--sise", "8"), (way, "--count", "0")):
            done = weft.bench(program, *args)
            assert done.returncode == 2 and done.stderr and not done.stdout, f"{program} {args}: exit status {done.returncode}\n{done.stderr}"
    done = weft.bench("tls_echo", "echo", "--certs", folder.name, "--size", "65537")
    assert done.returncode == 2 and "64 KiB" in done.stderr, done.stderr


def what_is_not_encrypted_has_no_figure():
    import common
    import encrypted
    loader = importlib.machinery.SourceFileLoader("run", os.path.join(BENCH, "run"))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
    loader.exec_module(run)
    bench = run.Bench(argparse.Namespace(weft=weft.command(), quick=True, rounds=1))
    bench.seconds = 0.02
    with encrypted.certificates(bench) as certs:
        r = encrypted.over_tls(certs, "tag_lat", 8)(bench)
        assert r["cipher"] == "TLS_AES_128_GCM_SHA256" and r["avg_us"] > 0, r
        assert not encrypted.plain("tag_lat", 8)(bench)["cipher"]
        without = {**encrypted.variables(certs), "WEFT_TLS": "off"}
        for wrong in (lambda: encrypted.checked(bench.weft_point("tag_lat", "tcp", 8, env=without), True),
                      lambda: encrypted.plain("tag_lat", 8, listen=encrypted.LISTEN, env=encrypted.variables(certs))(bench),
                      lambda: encrypted.checked(bench.weft_point("tag_lat", "shm", 8), False)):
            try:
                figures = wrong()
            except common.Failed:
                continue
            raise AssertionError(f"this is a figure: {figures}")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(word) for word in f.read().split()]


def a_server_that_dies_ends_it():
    path = os.path.join(os.path.dirname(weft.command()), "tls_echo")
    if not os.access(path, os.X_OK):
        raise weft.Skip(f"there is no {path}")
    for way in ("lat", "bw", "echo"):
        with subprocess.Popen([path, way, "--certs", folder.name, "--seconds", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as client:
            try:
                until = time.monotonic() + 20
                while not (found := children(client.pid)) and client.poll() is None and time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(found[0], signal.SIGKILL)
                out, err = client.communicate(timeout=30)
            finally:
                client.kill()
        assert client.returncode == 1 and err and not out, f"{way}: exit status {client.returncode}\n{out}{err}"


said = made() if os.access(weft.command(), os.X_OK) else ""
weft.main(there_are_certificates, *([openssl_moves_what_it_says, they_meet_in_every_way, grpc_answers_over_tls, certificates_are_needed_and_looked_at,
                                     a_wrong_option_is_named, what_is_not_encrypted_has_no_figure, a_server_that_dies_ends_it] if not said else []))
