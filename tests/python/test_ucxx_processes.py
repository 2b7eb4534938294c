"""ucxx between processes: clusters that know each other, processes that fail, and the helpers that tests of programs use."""
import asyncio
import json
import multiprocessing
import os

import pytest

import ucxx
from ucxx.benchmarks import utils
from ucxx.testing import join_processes, run_in_subprocess, terminate_process, wait_requests
from ucxxside import BOUND, fresh, server, spin_until  # noqa: F401


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """A machine may have no other interface."""
    monkeypatch.setenv("UCXPY_IFNAME", "lo")


async def ranks(rank, eps, factor):
    """Tell everybody the own rank, and add up those of the others."""
    got = [bytearray(1) for _ in eps]
    await asyncio.gather(*(ep.send(bytes([rank])) for ep in eps.values()), *(ep.recv(b) for ep, b in zip(eps.values(), got)))
    return factor * sum(b[0] for b in got)


def test_a_cluster_whose_workers_all_know_each_other(tmp_path):
    place, n = str(tmp_path / "server"), 4
    process, queue = utils._run_cluster_server(place, n)
    spin_until(lambda: os.path.exists(place) and os.path.getsize(place))
    with open(place, encoding="utf-8") as file:
        info = json.load(file)
    workers = [w for node in range(2) for w in utils._run_cluster_workers(info if node else place, n, 2, node, ranks, 10)]
    assert [queue.get(timeout=BOUND) for _ in range(n)] == [10 * (6 - rank) for rank in range(n)]
    join_processes([process, *workers], BOUND)
    for each in (process, *workers):
        terminate_process(each)
    with pytest.raises(ValueError, match="server_info must be"):
        utils._run_cluster_workers(7, n, 1, 0, ranks)


def fails():
    raise ValueError("what went wrong")


def test_what_a_process_raises_is_told_where_it_is_ended():
    context = multiprocessing.get_context("spawn")
    errors = context.Queue()
    process = context.Process(target=run_in_subprocess, args=(fails, errors))
    process.start()
    join_processes([process], BOUND)
    with pytest.raises(RuntimeError, match=r"(?s)exit code: 1.*Subprocess traceback:.*ValueError: what went wrong"):
        terminate_process(process, error_queue=errors)


def sleeps():
    while True:
        os.read(0, 1)


def test_a_process_that_does_not_end_is_killed():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=sleeps)
    process.start()
    join_processes([process], 0.01)
    with pytest.raises(RuntimeError, match="exit code: -9|exit code: 1"):
        terminate_process(process, kill_wait=BOUND)


@pytest.mark.parametrize("mode", ["blocking", "thread"])
def test_requests_are_waited_for(mode):
    api = ucxx._lib.libucxx
    worker, came = api.UCXWorker(api.UCXContext()), []
    if mode == "thread":
        worker.start_progress_thread()
    listener = api.UCXListener.create(worker, 0, came.append, deliver_endpoint=True)
    ep = api.UCXEndpoint.create(worker, "127.0.0.1", listener.port, endpoint_error_handling=True)
    spin_until(lambda: came, None if mode == "thread" else worker)
    into = bytearray(5)
    wait_requests(worker, mode, [came[0].tag_recv(ucxx._lib.arr.Array(into), 1), ep.tag_send(ucxx._lib.arr.Array(b"hello"), 1)])
    assert into == b"hello"
    short = came[0].tag_recv(ucxx._lib.arr.Array(bytearray(2)), 1)
    ep.tag_send(ucxx._lib.arr.Array(b"hello"), 1)
    with pytest.raises(api.UCXMessageTruncatedError):
        wait_requests(worker, mode, short)
    worker._close()


def test_tags_match_in_processes_with_other_hashes(child, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    process, port = server(child, "await ep.send(b'by name', tag='name')\nawait ep.recv(bytearray(1))")

    async def body():
        ep = await ucxx.create_endpoint("127.0.0.1", port)
        await ep.recv(into := bytearray(7), tag="name")
        assert into == b"by name"
        await ep.send(b"1")
    asyncio.run(body())
