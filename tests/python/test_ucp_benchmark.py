"""`python -m ucp.benchmarks.send_recv`, run as a user would."""
# ctest: computes
import importlib.util
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from ucp._libs.utils import get_address
from ucp.benchmarks import report, send_recv
from ucp.benchmarks.backends import base

COMMAND = [sys.executable, "-m", "ucp.benchmarks.send_recv"]
SHORT = ["--n-iter", "20", "--n-warmup-iter", "3"]


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def bench(*args, **more):
    done = subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=120, env=environment(**more))
    # as with UCX-Py, an endpoint whose peer closed a moment earlier says so in the log: on a busy machine that happens
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if "(probably already closed)" not in line)
    return done


def have(module):
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("args", [
    ["-l", "ucp-async"], ["-l", "ucp-async", "--enable-am"], ["-l", "ucp-async", "--reuse-alloc"],
                                  ["-l", "ucp-async", "--no-error-handling"],
    ["-l", "ucp-core"], ["-l", "ucp-core", "--enable-am"], ["-l", "ucp-core", "--delay-progress", "--max-outstanding", "5"],
    ["-l", "ucp-core", "--delay-progress", "--reuse-alloc"], ["-l", "ucp-core", "--no-error-handling"],
    ["-l", "ucp-core", "--enable-am", "--delay-progress", "--max-outstanding", "3"],
    ["-l", "ucp-async", "--max-outstanding", "5"], ["-l", "tornado"], ["-l", "tornado", "--reuse-alloc"]], ids=" ".join)
def test_every_backend_measures_what_it_was_asked_to(args):
    size = "8" if len(args) == 2 else "100kB"
    if "tornado" in args and not have("tornado"):
        pytest.skip("tornado is not installed")
    done = bench("-n", size, *SHORT, "--json", *args)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    result = json.loads(done.stdout)
    assert result["n_iter"] == len(result["latencies"]) == 20 and result["n_bytes"] == {"8": 8, "100kB": 100_000}[size]
    assert result["transfer"] == ("AM" if "--enable-am" in args else "TAG") and result["backend"] == args[1]
    assert 0 < result["latency_min"] <= result["latency_median"] <= result["latency_max"] < 60
    assert result["bandwidth_median"] > 0
    # 32 unless it is given, and only with --delay-progress, as in UCX-Py
    deep = int(args[args.index("--max-outstanding") + 1]) if "--max-outstanding" in args else 32
    assert result["max_outstanding"] == (deep if "--delay-progress" in args else 1)


def test_the_tables():
    done = bench("-n", "1MiB", *SHORT, "-b", "0", "-c", "0")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows = dict(re.findall(r"^(.*?)\s+\| (.*)$", done.stdout, re.M))
    assert rows["Iterations"] and rows["Bytes"] == "1.00 MiB" and rows["Object type"] == "numpy" and rows["Transfer API"] == "TAG"
    assert rows["Server CPU"] == "0" and rows["Client CPU"] == "0" and rows["Progress mode"] == "blocking"
    assert re.fullmatch(r"[\d.]+ .?i?B/s", rows["Bandwidth (average)"]) and re.fullmatch(r"\d+ ns", rows["Latency (median)"])
    assert all(re.fullmatch(r"[\d.]+ .?i?B/s, \d+ ns", rows[str(i)]) for i in range(20)) and "20" not in rows
    short = bench("-n", "8", *SHORT, "--no-detailed-report", UCXPY_NON_BLOCKING_MODE="1").stdout
    assert "Latency (median)" in short and "\n19 " not in short and "non-blocking" in short


def test_what_is_said_before_the_tables():
    """UCX-Py says where the server is and where the client connects, first; its address is get_address() unless it is given."""
    for args, address in (([], re.escape(get_address())), (["-s", "127.0.0.1"], r"127\.0\.0\.1")):
        done = bench("-n", "8", *SHORT, "-l", "ucp-core", *args)
        assert done.returncode == 0 and done.stderr == ""
        port = re.match(rf"Server Running at {address}:(\d+)\nClient connecting to server at {address}:(\d+)\nRoundtrip", done.stdout)
        assert port and port[1] == port[2] and "Delay progress            | False" in done.stdout
    delayed = bench("-n", "8", *SHORT, "-l", "ucp-core", "--delay-progress").stdout
    assert "Delay progress            | True (32)" in delayed


def test_verbose_prints_each_iteration():
    """-v of UCX-Py: "whether to print timings per iteration"."""
    plain = bench("-n", "8", *SHORT, "--no-detailed-report")
    verbose = bench("-n", "8", *SHORT, "--no-detailed-report", "-v")
    assert "\n19 " not in plain.stdout and "\n19 " in verbose.stdout and verbose.stderr == ""


PAPER = """
class KnockKnock:
    contention_metric = 0.25
    def __init__(self, polling_interval_micros):
        assert polling_interval_micros == 1
    def start(self):
        print("knocks", flush=True)
    def stop(self):
        print("knocked", flush=True)
"""


@pytest.mark.parametrize("backend", ["ucp-async", "ucp-core", "tornado"])
def test_contention(tmp_path, backend):
    """What gilknocker measures, which is not ours: a module of paper shows that it is asked, around the round trips, and told of."""
    if backend == "tornado" and not have("tornado"):
        pytest.skip("tornado is not installed")
    (tmp_path / "gilknocker.py").write_text(PAPER)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = bench("-n", "8", *SHORT, "-l", backend, "--report-gil-contention", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("knocks\n") < done.stdout.index("knocked\n") < done.stdout.index("Roundtrip")
    assert re.search(r"^GIL contention +\| 0.25$", done.stdout, re.M)


def test_a_server_and_a_client_of_their_own():
    server = subprocess.Popen([*COMMAND, "--server-only", "-n", "8", *SHORT], stdout=subprocess.PIPE, text=True,
                              env=environment())
    try:
        address, port = re.fullmatch(r"Server Running at (\S+):(\d+)\n", server.stdout.readline()).groups()
        assert address == get_address()
        done = bench("--client-only", "-p", port, "-n", "8", *SHORT, "--json")
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["latencies"]) == 20
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()


def test_progress_is_for_a_terminal():
    master, slave = pty.openpty()
    process = subprocess.Popen([*COMMAND, "-n", "8", "--n-iter", "200000000"], stdout=slave, stderr=slave, stdin=slave,
                               env=environment(), start_new_session=True)
    os.close(slave)
    try:
        said, until = b"", time.monotonic() + 60
        while b"round trips" not in said and time.monotonic() < until:
            if select.select([master], [], [], 1)[0]:
                said += os.read(master, 4096)
        assert re.search(rb"\r\d+ of 200000010 round trips", said), said
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        os.close(master)


@pytest.mark.parametrize("args,word", [
    (["-n", "many"], "many"), (["-n", "0"], "one byte"), (["--n-iter", "0"], "at least 1"),
                                       (["--n-warmup-iter", "-1"], "negative"),
    (["--server-only", "--client-only"], "choose one"), (["--client-only"], "needs -p"), (["-l", "pigeon"], "pigeon"),
    (["--delay-progress"], "ucp-core"), (["--cuda-profile"], "-o cupy"), (["--rmm-managed-memory"], "-o rmm"),
                                       (["-o", "tape"], "tape"),
    (["--max-outstanding", "0"], "at least 1"), (["-l", "tornado", "--enable-am"], "tornado"),
                                       (["--no-such"], "no-such"), (["--n-it", "3"], "n-it")])
def test_what_makes_no_sense_is_said_so(args, word):
    done = bench(*args)
    assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr


def test_what_is_not_installed_is_said_so():
    for module, args in (("cupy", ["-o", "cupy"]), ("rmm", ["-o", "rmm"]), ("matplotlib", ["--plot", "x.png"]),
                         ("gilknocker", ["--report-gil-contention"])):
        if not have(module):
            done = bench(*args)
            assert done.returncode == 2 and "not installed" in done.stderr and "pip install" in done.stderr


def test_a_cpu_that_is_not_there():
    done = bench("-n", "8", *SHORT, "-c", "100000")
    assert done.returncode != 0 and "CPU 100000" in done.stderr and "Traceback" not in done.stderr
    done = bench("-n", "8", *SHORT, "-b", "100000")
    assert done.returncode != 0 and "CPU 100000" in done.stderr


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib")
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer cannot follow the exceptions of matplotlib's C++, and ends the program")
    path = tmp_path / "out.png"
    done = bench("-n", "8", *SHORT, "--json", "--plot", str(path))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 2000


def test_a_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(report.Missing, match="pip install matplotlib"):
        report.plot(report.of(send_recv.parse_args(["-n", "8", "--n-iter", "2"]), [1e-6, 2e-6]), "x.png")


def test_the_figures_are_right():
    args = send_recv.parse_args(["-n", "1000", "--n-iter", "3"])
    result = report.of(args, [2e-3, 4e-3, 8e-3])
    assert result["latency_median"] == 2e-3 and result["latency_average"] == pytest.approx(7e-3 / 3)
    assert result["bandwidth_median"] == pytest.approx(500_000) and result["bandwidth_average"] == pytest.approx(3 / (1e-6
                                                                                                                      + 2e-6 + 4e-6))
    assert report.of(args, [2e-3, 4e-3, 8e-3], wall=1e-2)["bandwidth_average"] == pytest.approx(600_000)


def test_what_came_back_is_looked_at():
    memory = base.memory(send_recv.parse_args(["-n", "600"]), None)
    message, other = memory.message(), memory.message()
    assert memory.same(message, other) and message.nbytes == memory.empty().nbytes == 600
    other[599] += 1
    assert not memory.same(message, other)
    assert "not what was sent" in str(base.Wrong(4))
