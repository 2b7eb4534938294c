"""python -m weft.perf, run as a user would. Figures are looked at for being figures, never for being good."""
# ctest: computes
import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import BOUND

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
FIELDS = {"test", "size", "transports", "tls", "transport", "mode", "endpoints", "seconds", "window", "outstanding", "iterations", "avg_us",
          "p50_us", "p90_us",
          "p99_us", "p99_9_us", "max_us", "mb_s", "msg_s"}


def perf(*words, status=0):
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-m", "weft.perf", "--no-pin", *words], env=ENV, text=True,
                          capture_output=True, timeout=3 * BOUND, check=False)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("mode", ["asyncio", "uvloop", "blocking", "thread"])
@pytest.mark.parametrize("tls", ["shm", "tcp"])
def test_every_test_in_every_mode(mode, tls):
    if mode == "uvloop":
        pytest.importorskip("uvloop")
    tests = ["tag_lat", "tag_bw", "tag_rate", "am_lat"] + (["awaits"] if mode in ("asyncio", "uvloop") else [])
    done = perf("--json", "--mode", mode, "--transports", tls, "--test", ",".join(tests), "--size", "0,8,70k", "--iters", "50",
                "--window", "8")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["test"], row["size"]) for row in rows] == [(test, size) for test in tests for size in (0, 8, 70 << 10)]
    for row in rows:
        assert set(row) == FIELDS and row["transport"] == row["transports"] == row["tls"] == tls and row["mode"] == mode and row["iterations"] >= 48
        assert 0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= row["max_us"] and row["avg_us"] > 0 and row["msg_s"] > 0
    assert "measuring" not in done.stderr  # progress is for terminals


def test_the_table_and_time():
    done = perf("--seconds", "0.05", "--test", "tag_lat", "--size", "8-32")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["test", "bytes", "avg", "us", "p50", "p99", "max", "MiB/s", "msg/s"]
    assert [line.split()[:2] for line in lines[1:]] == [["tag_lat", "8"], ["tag_lat", "16"], ["tag_lat", "32"]]


def test_a_server_and_a_client(tmp_path):
    server = subprocess.Popen([sys.executable, "-m", "weft.perf", "--listen", "--forever"], env=ENV, stdout=subprocess.PIPE,
                              text=True)
    try:
        uri = json.loads(server.stdout.readline())["listening"]
        for _ in range(2):
            assert len(perf("--connect", uri, "--json", "--iters", "20", "--test", "tag_lat").stdout.splitlines()) == 3
        client = subprocess.Popen([sys.executable, "-m", "weft.perf", "--connect", uri, "--seconds", "100", "--test", "tag_lat",
                                   "--size", "8"],
                                  env=ENV, stderr=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(1)
        server.send_signal(signal.SIGKILL)
        _, said = client.communicate(timeout=BOUND)
        assert client.returncode == 1 and said.startswith("weft.perf: ")
    finally:
        server.kill()
        server.communicate()


def test_what_a_hostile_client_asks_for():
    from weft import perf as module
    for bad in (b"", b"\xff", b"[]", b"7", b'{"test": "tag_lat"}', b'{"test": "tag_lat", "size": -1, "n": 1, "window": 1}',
                b'{"test": "tag_lat", "size": 1e400, "n": 1, "window": 1}', b'{"test": "__class__", "size": 1, "n": 1, '
                                                                            b'"window": 1}',
                b'{"test": "tag_bw", "size": 1, "n": 1, "window": 99999999}', b'{"test": ["tag_lat"], "size": 1, "n": 1, '
                                                                              b'"window": 1}'):
        with pytest.raises(module.Failed):
            module.plan_of(bad)


@pytest.mark.parametrize("words, says", [(["--test", "nonsense"], "no test 'nonsense'"), (["--size", "many"], "no size"),
                                         (["--size", "9999G"], "more than"), (["--seconds", "nan"], "seconds"),
                                         (["--transp", "shm"], "--transp"),
                                         (["--iters", "0"], "between"), (["--window", "100000"], "at most"),
                                         (["--mode", "thread", "--test", "awaits"], "event loop")])
def test_what_is_not_understood(words, says):
    assert says in perf(*words, status=2).stderr


def test_nobody_there():
    assert "weft.perf: " in perf("--connect", "tcp://127.0.0.1:1", status=1).stderr


def test_the_plot(tmp_path):
    path = tmp_path / "out.png"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "matplotlib, which is not installed" in perf("--plot", str(path), status=1).stderr
        assert not path.exists()
        return
    subprocess.run([sys.executable, "-m", "weft.perf", "--iters", "20", "--plot", str(path)], env=ENV, check=True, timeout=BOUND,
                   stdout=subprocess.DEVNULL)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_old_name_of_transports_works_and_warns():
    done = perf("--json", "--tls", "tcp", "--test", "tag_lat", "--size", "8", "--iters", "10")
    assert done.stderr == "weft.perf: --tls is now --transports; it will go in 0.3\n"
    assert json.loads(done.stdout)["transport"] == "tcp"
