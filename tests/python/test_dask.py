"""Dask on Weft: clusters whose workers are processes, what moves between them, and what becomes of them when one is killed.

The shuffles move SHUFFLE_MIB megabytes of frames each: a gigabyte, and less under a sanitizer.
"""
# ctest: long computes
import asyncio
import os
import re
import signal
import subprocess
import time

import pytest

pytest.importorskip("distributed")
dd = pytest.importorskip("dask.dataframe")
import dask  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from program import PYTHON, environment  # noqa: E402
from distributed import Client, LocalCluster, get_worker, wait  # noqa: E402

SHUFFLE_MIB = int(os.environ.get("SHUFFLE_MIB") or ("64" if "san" in os.environ.get("LD_PRELOAD", "") else "1024"))
GUIDE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "dask.md")
BOUND = 120


@pytest.fixture(autouse=True)
def quiet():
    with dask.config.set({"distributed.worker.memory.terminate": False, "distributed.comm.timeouts.connect": "60s"}):
        yield


@pytest.fixture
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, protocol="weft", processes=True, dashboard_address=None,
                      memory_limit=0) as made:
        yield made


@pytest.fixture
def client(cluster):
    with Client(cluster) as made:
        yield made


def transports(dask_worker):
    """How the worker's comms to others go."""
    return sorted({comm.extra_info.get("transport", "?") for comm in type(dask_worker.batched_stream.comm)._instances
                   if not comm.closed()})


def test_everything_goes_over_weft(client):
    info = client.scheduler_info()
    assert info["address"].startswith("weft://") and len(info["workers"]) == 2
    assert all(address.startswith("weft://") and w["nanny"].startswith("weft://") for address, w in info["workers"].items())
    assert set(map(tuple, client.run(transports).values())) == {("shm",)}
    assert len(set(client.run(os.getpid).values()) | {os.getpid()}) == 3


def test_tasks_and_their_failures(client):
    assert sum(client.gather(client.map(lambda x: x * x, range(1000)))) == sum(x * x for x in range(1000))
    with pytest.raises(ZeroDivisionError):
        client.submit(lambda: 1 / 0).result(timeout=BOUND)


def test_data_is_scattered_moved_and_gathered(client):
    arrays = [np.full(2_000_000, i, dtype="f8") for i in range(8)]
    there = client.scatter(arrays)
    one = list(client.scheduler_info()["workers"])[0]
    moved = [client.submit(lambda a: (a.sum(), a.flags.writeable), f, workers=[one], pure=False) for f in there]
    assert [s for s, _ in client.gather(moved)] == [2_000_000.0 * i for i in range(8)]
    back = client.gather(there)
    assert all((a == b).all() for a, b in zip(arrays, back))
    everywhere = client.scatter(arrays[3], broadcast=True)
    assert len(client.who_has(everywhere)[everywhere.key]) == 2


def test_many_small_tasks_between_workers(client):
    def tree(values):
        while len(values) > 1:
            values = [client.submit(lambda a, b: a + b, *values[i:i + 2]) for i in range(0, len(values), 2)]
        return values[0].result(timeout=BOUND)
    assert tree(client.map(lambda i: i, range(256))) == sum(range(256))


def test_a_worker_that_is_killed_is_replaced_and_its_work_done_again(client):
    futures = client.map(lambda i: i + 1, range(20), pure=False)
    wait(futures, timeout=BOUND)
    pids = client.run(os.getpid)
    victim, pid = next(iter(pids.items()))
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while victim in client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers)):
        assert time.monotonic() - began < BOUND
        time.sleep(0.05)
    assert client.gather(futures) == list(range(1, 21))  # what it had is computed again
    client.wait_for_workers(2, timeout=BOUND)
    assert pid not in client.run(os.getpid).values()


def test_a_worker_killed_while_others_fetch_from_it(client):
    a, b = client.scheduler_info()["workers"]
    big = client.submit(lambda: np.ones(20_000_000), workers=[a], allow_other_workers=True, pure=False)
    wait(big, timeout=BOUND)
    futures = [client.submit(lambda x, i: float(x[i]), big, i, workers=[b], allow_other_workers=True) for i in range(4)]
    os.kill(client.run(os.getpid, workers=[a])[a], signal.SIGKILL)
    assert client.gather(futures) == [1.0] * 4


def test_workers_come_and_go(cluster, client):
    cluster.scale(3)
    client.wait_for_workers(3, timeout=BOUND)
    assert sum(client.gather(client.map(lambda i: i, range(50), pure=False))) == sum(range(50))
    cluster.scale(1)
    while len(client.scheduler_info(n_workers=-1)["workers"]) > 1:
        time.sleep(0.05)
    assert client.submit(lambda: get_worker().address).result(timeout=BOUND).startswith("weft://")


def make(i, rows):
    """A part of a frame: keys that are all over the place, and what they must come to."""
    rng = np.random.default_rng(i)
    return pd.DataFrame({"key": rng.integers(0, 1 << 40, rows), "twice": 0, "x": rng.random(rows), "y": rng.random(rows)}).assign(
        twice=lambda f: f.key * 2)


def check(part):
    """Its rows, the sum of its keys modulo a prime, and whether rows are whole."""
    return pd.DataFrame({"rows": [len(part)], "keys": [int((part.key % 1000003).sum())],
                         "whole": [bool((part.key * 2 == part.twice).all())]})


@pytest.mark.parametrize("method", ["p2p", "tasks"])
def test_a_shuffle(client, method):
    parts = 16
    rows = SHUFFLE_MIB * (1 << 20) // (parts * 4 * 8)
    meta = make(0, 1)
    frame = dd.from_map(make, range(parts), rows=rows, meta=meta)
    began = time.monotonic()
    with dask.config.set({"dataframe.shuffle.method": method}):
        shuffled = frame.shuffle("key", npartitions=parts)
        told = shuffled.map_partitions(check, meta=check(meta)).compute()
    print(f"{method}: {SHUFFLE_MIB} MiB in {time.monotonic() - began:.1f} s")
    assert told.rows.sum() == rows * parts and told.whole.all() and (told.rows > 0).sum() > parts // 2
    assert told["keys"].sum() == sum(int((make(i, rows).key % 1000003).sum()) for i in range(parts))


def test_an_asynchronous_cluster_in_one_process():
    async def body():
        async with LocalCluster(n_workers=2, processes=False, protocol="weft", asynchronous=True,
                                dashboard_address=None) as cluster:
            async with Client(cluster, asynchronous=True) as client:
                assert cluster.scheduler_address.startswith("weft://")
                assert await client.gather(client.map(lambda i: i + 1, range(10))) == list(range(1, 11))
    asyncio.run(asyncio.wait_for(body(), BOUND))


def test_a_cluster_with_a_key():
    with dask.config.set({"distributed.comm.weft": {"key": "a secret that everyone here knows", "transports": "tcp"}}):
        with LocalCluster(n_workers=1, processes=True, protocol="weft",
                          dashboard_address=None) as cluster, Client(cluster) as client:
            assert client.submit(lambda: 7).result(timeout=BOUND) == 7
            assert set(map(tuple, client.run(transports).values())) == {("tcp",)}


def test_the_program_of_the_guide(tmp_path):
    with open(GUIDE, encoding="utf-8") as f:
        program = re.search(r"```python\n(.*?)```", f.read(), re.S).group(1)
    path = tmp_path / "program.py"  # a file, since workers are started from it
    path.write_text(program)
    # another test may have the port of Dask's dashboard; then Dask warns, and leaves a socket to the collector
    taken = ("-W", "ignore:Port 8787 is already in use", "-W", "ignore::ResourceWarning")
    done = subprocess.run([*PYTHON, *taken, str(path)], capture_output=True, text=True, timeout=BOUND, env=environment())
    # Dask gives its workers four seconds to end, which on a busy machine they may not
    said = [line for line in done.stderr.splitlines() if not re.search(r"nanny - WARNING - Worker process still alive", line)]
    assert (done.returncode, done.stdout, said) == (0, "weft 285\n", [])
