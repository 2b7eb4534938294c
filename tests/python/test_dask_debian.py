"""Debian's Dask (python3-distributed) on Weft, through `ucp`: `protocol="ucx"`, with Debian's interpreter and workers in
processes of their own.

The shuffle moves SHUFFLE_MIB megabytes: a gigabyte, and less under a sanitizer.
"""
# ctest: long computes
import os
import subprocess

import pytest

PYTHON = "/usr/bin/python3"
BOUND = 170
SHUFFLE_MIB = int(os.environ.get("SHUFFLE_MIB") or ("64" if "san" in os.environ.get("LD_PRELOAD", "") else "1024"))

HEAD = """
import os, signal, sys, time
import numpy as np
from distributed import Client, LocalCluster, wait

BOUND = 120

def cluster():
    return LocalCluster(n_workers=2, threads_per_worker=1, protocol="ucx", processes=True, dashboard_address=None, memory_limit=0)

"""

WORK = """
def main():
    with cluster() as made, Client(made) as client:
        workers = list(client.scheduler_info()["workers"])
        assert all(a.startswith("ucx://") for a in workers + [made.scheduler_address]) and len(workers) == 2
        print(len({os.getpid(), *client.run(os.getpid).values()}), "processes")
        assert all(client.run(lambda: "ucp" in sys.modules).values()), "something else than ucp was used"
        assert client.gather(client.map(lambda x: x * x, range(500))) == [x * x for x in range(500)]
        try:
            client.submit(lambda: 1 / 0).result()
        except ZeroDivisionError:
            print("failed as it should")
        arrays = [np.full(2_000_000, i, dtype="f8") for i in range(4)]
        there = client.scatter(arrays)
        sums = [client.submit(lambda a: a.sum(), f, workers=[workers[0]]) for f in there]  # half of them have to be fetched
        assert client.gather(sums) == [2_000_000.0 * i for i in range(4)]
        assert all((a == b).all() for a, b in zip(arrays, client.gather(there)))
    print("closed")
"""

KILL = """
def main():
    with cluster() as made, Client(made) as client:
        futures = client.map(lambda i: i + 1, range(20), pure=False)
        wait(futures, timeout=BOUND)
        victim, pid = next(iter(client.run(os.getpid).items()))
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + BOUND
        while victim in client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers)):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert client.gather(futures) == list(range(1, 21))  # what it had is computed again
        client.wait_for_workers(2, timeout=BOUND)
        assert pid not in client.run(os.getpid).values()
    print("replaced")
"""

SHUFFLE = """
import dask.dataframe as dd
import pandas as pd

def make(i, rows):
    rng = np.random.default_rng(i)
    frame = pd.DataFrame({"key": rng.integers(0, 1 << 40, rows), "x": rng.random(rows), "y": rng.random(rows)})
    frame.insert(1, "twice", frame.key * 2)
    return frame

def check(part):
    return pd.DataFrame({"rows": [len(part)], "keys": [int((part.key % 1000003).sum())], "whole": [bool((part.key * 2 == part.twice).all())]})

def main():
    with cluster() as made, Client(made) as client:
        parts = 16
        rows = int(sys.argv[1]) * (1 << 20) // (parts * 4 * 8)
        frame = dd.from_map(make, range(parts), rows=rows, meta=make(0, 1))
        told = frame.shuffle("key", npartitions=parts, shuffle="tasks").map_partitions(check, meta=check(make(0, 1))).compute()
        assert told.rows.sum() == rows * parts and told.whole.all() and (told.rows > 0).sum() > parts // 2
        assert told["keys"].sum() == sum(int((make(i, rows).key % 1000003).sum()) for i in range(parts))
    print("shuffled")
"""

TAIL = """
if __name__ == "__main__":
    main()
"""


def program(tmp_path, text, *args):
    """Run it with Debian's interpreter, from a file, since workers are started from it; what it said."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + text + TAIL)
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen([PYTHON, str(path), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=BOUND)
    finally:
        try:
            os.killpg(process.pid, 9)  # its workers, if it could not end them
        except ProcessLookupError:
            pass
    assert process.returncode == 0, err
    return out.splitlines()


@pytest.fixture(scope="module", autouse=True)
def debian():
    asked = subprocess.run([PYTHON, "-c", "import distributed, dask.dataframe; print(distributed.__version__)"],
                           capture_output=True, text=True, timeout=60) \
        if os.path.exists(PYTHON) else None
    if asked is None or asked.returncode:
        pytest.skip("Debian's python3-distributed, python3-dask and python3-pandas are not installed")
    if not asked.stdout.startswith("202"):
        pytest.skip(f"distributed is {asked.stdout.strip()}")
    year, month = map(int, asked.stdout.split(".")[:2])
    if (year, month) >= (2025, 1):
        pytest.skip(f"distributed {asked.stdout.strip()} has no use for ucp any more")


def test_work_is_done_and_data_moved(tmp_path):
    assert program(tmp_path, WORK) == ["3 processes", "failed as it should", "closed"]


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    assert program(tmp_path, KILL) == ["replaced"]


def test_a_shuffle(tmp_path):
    assert program(tmp_path, SHUFFLE, str(SHUFFLE_MIB)) == ["shuffled"]
