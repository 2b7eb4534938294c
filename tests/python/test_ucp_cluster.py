"""ucp.benchmarks.utils, asyncssh and cudf_merge: clusters of processes, in which workers and servers go away."""
# ctest: computes
import json
import multiprocessing
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import time

import numpy
import pytest

from ucp._libs.utils import get_address
from ucp.benchmarks import cudf_merge, utils
from ucp.benchmarks.data import packed, unpacked
from ucp.benchmarks.frames import Frames

MERGE = [sys.executable, "-m", "ucp.benchmarks.cudf_merge"]
BOUND = 120


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def wait_for_file(path, process):
    until = time.monotonic() + BOUND
    while not (os.path.exists(path) and os.path.getsize(path)):
        assert process.is_alive() and time.monotonic() < until
        time.sleep(0.01)
    with open(path) as file:
        return json.load(file)


def end(processes):
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(BOUND)


# --- the functions of workers: of the module, so that any way of starting processes finds them


async def exchange_ranks(rank, eps, args):
    for other, ep in sorted(eps.items()):
        await ep.send(numpy.array([rank * args], dtype="u4"))
    got = {}
    for other, ep in sorted(eps.items()):
        into = numpy.empty(1, dtype="u4")
        await ep.recv(into)
        got[other] = int(into[0])
    return {"rank": rank, "got": got, "array": numpy.arange(rank), "words": ("a", {1, 2}), "seconds": numpy.float64(1.5)}


def nothing(rank, eps, args):
    return None


def dies(rank, eps, args):
    if rank == args:
        os.kill(os.getpid(), signal.SIGKILL)


class Stranger:
    def __reduce__(self):
        return os.system, ("touch /nowhere",)


def returns_a_stranger(rank, eps, args):
    return Stranger()


# --- data


DATA = [None, True, 0, -5, 1 << 80, 1.5, float("inf"), "text \N{SNOWMAN}", b"\0\xff", bytearray(b"x"), 1 + 2j, [], [1, [2, None]], (), (1, (2,)),
        {1, 2}, frozenset("ab"), {}, {"a": {"b": [1]}}, {1: 2, (3, 4): "x", None: 1}, {"=tuple": [1]}, {"=": 1, "a": 2}, {"array": 3}]
ARRAYS = [numpy.arange(6).reshape(2, 3), numpy.zeros((0, 4)), numpy.array(7.5), numpy.array(["ab", "c"]), numpy.array([True]),
          numpy.arange(4, dtype=">i2")[::2], numpy.array(["2024-01-01"], dtype="M8[ns]"), numpy.float32(2.5), numpy.int64(-3)]


def test_data_comes_back_as_it_was():
    for obj in DATA:
        again = unpacked(packed(obj))
        assert type(again) is type(obj) and again == obj
    for obj in ARRAYS:
        again = unpacked(packed(obj))
        assert type(again) is type(obj) and again.dtype == obj.dtype and again.shape == obj.shape and (again == obj).all()
    assert unpacked(packed({"nested": DATA}))["nested"] == DATA
    for bad in (Stranger(), object(), [Stranger()], numpy.array([None]), numpy.zeros(2, dtype=[("a", "i4")]), print, int):
        with pytest.raises(TypeError):
            packed(bad)


def test_bytes_that_are_no_data():
    for bad in (b"", b"no", b"[1,", b"\xff\xfe", pickle.dumps(Stranger()), b'{"=print": 1}', b'{"=array": 1}', b'{"=array": ["O", [1], "AA=="]}',
                b'{"=array": ["<f8", [1000000000000], ""]}', b'{"=array": ["<i4", [-1, -1], "AAAAAA=="]}', b'{"=set": [[1]]}',
                b'{"=complex": [1, 2, 3]}', b'{"=bytes": 5}', b"[" * 100_000):
        with pytest.raises(ValueError, match="no data of ours"):
            unpacked(bad)


# --- clusters


def test_each_has_an_endpoint_to_each_other(tmp_path):
    """UCX-Py's functions: a server that gathers, workers of two nodes, and what they return in the order of their ranks."""
    path = str(tmp_path / "server.json")
    server, queue = utils._run_cluster_server(path, 4)
    workers = []
    try:
        info = wait_for_file(path, server)
        assert info.keys() == {"address", "port"} and info["address"] == get_address()
        for node, where in ((0, path), (1, info)):  # by the file, and by what is in it
            workers += utils._run_cluster_workers(where, 4, 2, node, exchange_ranks, 10)
        results = utils._results(server, queue, 4)
        utils._join([*workers, server])
    finally:
        end([*workers, server])
    for rank, result in enumerate(results):
        assert result["rank"] == rank and result["got"] == {other: other * 10 for other in range(4) if other != rank}
        assert (result["array"] == numpy.arange(rank)).all() and result["words"] == ("a", {1, 2}) and result["seconds"] == 1.5


def _blocking_server(path, pipe):
    pipe.send(utils.run_cluster_server(path, 2))


def test_the_blocking_functions(tmp_path):
    path = str(tmp_path / "server.json")
    ours, theirs = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=_blocking_server, args=(path, theirs))
    server.start()
    try:
        wait_for_file(path, server)
        assert utils.run_cluster_workers(path, 2, 2, 0, nothing) is None
        assert ours.poll(BOUND) and ours.recv() == [None, None]
        server.join(BOUND)
        assert server.exitcode == 0
    finally:
        end([server])


def _server_that_should_fail(path, pipe):
    try:
        utils.run_cluster_server(path, 2)
        pipe.send("no error")
    except RuntimeError as error:
        pipe.send(str(error))


@pytest.mark.parametrize("func,args", [(dies, 1), (returns_a_stranger, None)])
def test_a_worker_that_fails_ends_the_server(tmp_path, func, args):
    """With UCX-Py the server waits for ever, and makes whatever object a worker sends it."""
    path = str(tmp_path / "server.json")
    ours, theirs = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=_server_that_should_fail, args=(path, theirs))
    server.start()
    workers = []
    try:
        wait_for_file(path, server)
        workers = utils._run_cluster_workers(path, 2, 2, 0, func, args)
        assert ours.poll(BOUND) and "before all workers had sent their results" in ours.recv()
        if func is dies:
            with pytest.raises(RuntimeError, match="processes failed"):
                utils._join(workers)
    finally:
        end([*workers, server])


def test_a_server_that_goes_away_ends_its_workers(tmp_path):
    path = str(tmp_path / "server.json")
    server, _ = utils._run_cluster_server(path, 3)
    workers = []
    try:
        wait_for_file(path, server)
        workers = utils._run_cluster_workers(path, 3, 2, 0, nothing)  # the third never comes
        time.sleep(0.5)  # not needed for the result: most often they are connected by now
        server.kill()
        for worker in workers:
            worker.join(BOUND)
        assert all(worker.exitcode not in (0, None) for worker in workers)
    finally:
        end([*workers, server])


def test_who_has_no_rank_is_not_listened_to(tmp_path, run):
    """The port is open to anybody: a stranger, or one who says nothing, does not end the run."""
    import ucp
    path = str(tmp_path / "server.json")
    server, queue = utils._run_cluster_server(path, 2)
    workers = []
    try:
        info = wait_for_file(path, server)

        async def strange():
            for data in (pickle.dumps(Stranger()), b"nothing"):
                ep = await ucp.create_endpoint(info["address"], info["port"])
                await ep.send_obj(data)
                await ep.close()
            (await ucp.create_endpoint(info["address"], info["port"])).abort()
        run(strange())
        ucp.reset()
        workers = utils._run_cluster_workers(info, 2, 2, 0, nothing)
        assert utils._results(server, queue, 2) == [None, None]
        utils._join([*workers, server])
    finally:
        end([*workers, server])


def test_what_is_no_server():
    for bad in ({"address": "127.0.0.1"}, 7, None):
        with pytest.raises(ValueError, match="address"):
            utils._run_cluster_workers(bad, 2, 2, 0, nothing)
    with pytest.raises(OSError):
        utils._run_cluster_workers("/no/such/file", 2, 2, 0, nothing)


def test_memory_by_its_kind():
    assert utils.get_allocator("numpy", None, False) is numpy
    with pytest.raises(ValueError, match="tape"):
        utils.get_allocator("tape", None, False)
    for kind in ("cupy", "rmm"):
        try:
            __import__("cupy")
        except ImportError:
            with pytest.raises(RuntimeError, match="needs cupy"):
                utils.get_allocator(kind, None, False)


# --- cudf_merge, with pandas


def pandas():
    pytest.importorskip("pandas")


def test_tables_in_bins_merge_to_the_same():
    """Whatever the bins, each key is in one of them: the merges of all bins are the merge of the whole."""
    pandas()
    frames, n, rows = Frames(cpu=True), 4, 5000
    builds = [frames.chunk(i, rows, n, "build", 0.3) for i in range(n)]
    others = [frames.chunk(i, rows, n, "other", 0.3) for i in range(n)]
    assert all(len(t) == rows and t["key"].is_unique for t in builds + others)
    whole = frames.merged(frames.joined(builds), frames.joined(others))
    assert len(whole) == n * n * int(rows // n * 0.3)
    binned = [[frames.bins(t, n) for t in tables] for tables in (builds, others)]
    parts = [frames.merged(*(frames.joined([bins[i] for bins in tables]) for tables in binned)) for i in range(n)]
    assert sum(map(len, parts)) == len(whole) and all(len(p) > len(whole) / n / 2 for p in parts)
    assert set(frames.joined(parts)["key"]) == set(whole["key"])


def merge(*args, **more):
    return subprocess.run([*MERGE, *args], capture_output=True, text=True, timeout=BOUND, env=environment(**more))


def test_merging_on_one_machine(tmp_path):
    pandas()
    profile = tmp_path / "profile"
    done = merge("--cpu", "--chunks-per-dev", "2", "-d", "0,1", "-c", "100000", "--iter", "2", "--warmup-iter", "1", "--profile",
                 str(profile), "--collect-garbage")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if " | " in line]
    table = {row[0].strip(): row[1].strip() for row in rows}
    assert "cuDF merge benchmark" in done.stdout and table["Rows per chunk"] == "100000" and table["Device(s)"] == "CPU-only"
    assert re.fullmatch(r"[\d.]+ .?i?B/s", table["Bandwidth"]) and table["Data processed per iter"] == "12.21 MiB"
    assert [row[0].strip() for row in rows[-3:]] == ["Run", "0", "1"]
    assert sorted(os.listdir(tmp_path)) == [f"profile.{i}" for i in range(4)]


def test_a_server_and_nodes_of_their_own(tmp_path):
    pandas()
    path, common = str(tmp_path / "where"), ["--cpu", "--chunks-per-dev", "2", "-c", "1000", "--num-workers", "4"]
    server = subprocess.Popen([*MERGE, "--server", "--server-file", path, *common], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=environment())
    try:
        until = time.monotonic() + BOUND
        while not (os.path.exists(path) and os.path.getsize(path)):
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        with open(path) as file:
            info = json.load(file)
        first = subprocess.Popen([*MERGE, *common, "--node-idx", "0", "--server-file", path], env=environment())
        second = merge(*common, "--node-idx", "1", "--server-address", f"{info['address']}:{info['port']}")
        assert second.returncode == 0 and first.wait(BOUND) == 0, second.stderr
        out, error = server.communicate(timeout=BOUND)
        assert server.returncode == 0 and "Throughput" in out, error
    finally:
        server.kill()
        server.communicate()


FAKE_SSH = """#!/bin/sh
# an ssh that runs the command here, and tells what it was asked for
echo "$@" >>"%s"
while [ "$1" != "--" ]; do shift; done
[ "$2" = "far" ] && { echo "far: no route to host" >&2; exit 255; }
exec sh -c "$3"
"""


@pytest.fixture
def ssh(tmp_path):
    """A command ssh; gives its environment, and the file in which it tells."""
    log, program = tmp_path / "log", tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH % log)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}, log


def test_hosts_by_ssh(ssh):
    pandas()
    path, log = ssh
    done = merge("--cpu", "--hosts", "one,two,three", "--chunks-per-dev", "2", "-c", "1000", **path)
    assert done.returncode == 0 and "Throughput" in done.stdout, done.stderr
    calls = log.read_text().splitlines()
    assert len(calls) == 3 and all(c.startswith("-o BatchMode=yes -- ") for c in calls)
    asked = {c.split(" -- ")[1].split()[0]: c for c in calls}
    assert "--server" in asked["one"] and "--node-idx 0" in asked["two"] and "--node-idx 1" in asked["three"]


@pytest.mark.parametrize("hosts", ["far,two", "one,far,three"])
def test_a_host_that_cannot_be_reached(ssh, hosts):
    """The sentence of ssh, and everything that was started is ended."""
    pandas()
    done = merge("--cpu", "--hosts", hosts, "--chunks-per-dev", "2", "-c", "1000", **ssh[0])
    assert done.returncode == 1 and "no route to host" in done.stderr and "Traceback" not in done.stderr


def test_commands_to_start_by_hand():
    done = merge("--hosts", "one,two,three", "--print-commands-only", "-d", "0,1", "--rmm-init-pool-size", "1000", "--cuda-profile")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3
    assert lines[0].startswith("[one] Server command line: ") and "--server " in lines[0] + " " and "--num-workers 4" in lines[0]
    assert all(f"[{host}] Worker command line: " in line and f"--node-idx {i} " in line and "--rmm-init-pool-size 1000" in line
               for i, (host, line) in enumerate(zip(("two", "three"), lines[1:])))
    assert "REPLACE WITH SERVER ADDRESS" in lines[1] and "--cuda-profile" in lines[2]


@pytest.mark.parametrize("args,word", [
    (["-d", "x"], "numbers"), (["-d", "0"], "even"), (["--chunks-per-dev", "3"], "even"), (["--server"], "--num-workers"),
    (["--server-address", "x:1", "--num-workers", "2"], "--node-idx"),
    (["--server-address", "x", "--num-workers", "2", "--node-idx", "0"], "HOST:PORT"), (["--hosts", "one"], "at least one"),
    (["--hosts", "one,two", "--server"], "leave out"), (["--hosts", "one,two", "--server-file", "x"], "server-file"),
    (["--cpu", "--cuda-profile", "--chunks-per-dev", "2"], "GPUs"), (["--iter", "0"], "at least 1")])
def test_what_makes_no_sense_is_said_so(args, word, capsys):
    with pytest.raises(SystemExit) as ended:
        cudf_merge.parse_args(args)
    assert ended.value.code == 2 and word in capsys.readouterr().err


def test_what_is_not_installed_is_said_so():
    try:
        __import__("cudf")
    except ImportError:
        done = merge("--chunks-per-dev", "2")
        assert done.returncode == 1 and "cudf" in done.stderr and "--cpu" in done.stderr and "Traceback" not in done.stderr
