"""What benchmarks share: memory of a kind, and clusters of processes in which each has an endpoint to each other.

A cluster is one server and any number of workers, on one machine or on many. The server says where it listens, in a file or on
stdout, as {"address": ..., "port": ...}. Each worker tells it its rank and where it listens itself; once all have, the server
tells all of them about all; then they connect, run a function, and send what it returned to the server.

    a worker that goes away before it has sent its result      the server ends with an error, and says which rank
    a server that goes away                                    its workers end with an error
    a program that started them, and goes away                 they end

Results are data: numbers, text, bytes, None, lists, tuples, sets, dicts, and arrays of numpy (data.py). The port is open to
whoever can reach it, so nothing else is made of what comes in there.

tests/python/test_ucp_cluster.py holds us to it.
"""
from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import multiprocessing as mp
import multiprocessing.connection
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ucp._libs.utils import get_address

from .data import packed, unpacked

if TYPE_CHECKING:
    from ucp import Endpoint

logger = logging.getLogger("ucx")

_MOST = 1 << 30  # bytes of a message
_RESULT_BOUND = 0.2  # seconds between two looks at a server that should send results


# --- memory ---------------------------------------------------------------------------------------------------------------


def _wanted(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(f"{what} needs {module}, which cannot be imported here: {error}") from error


def get_allocator(object_type: str, rmm_init_pool_size: int | None, rmm_managed_memory: bool) -> ModuleType:
    """The module that makes arrays of a kind: numpy for "numpy", cupy for "cupy", and cupy with RMM's memory for "rmm"."""
    if object_type not in ("numpy", "cupy", "rmm"):
        raise ValueError(f'object_type is {object_type!r}: give "numpy", "cupy" or "rmm"')
    made: ModuleType = _wanted("numpy" if object_type == "numpy" else "cupy", f"memory of the kind {object_type}")
    if object_type == "rmm":
        rmm = _wanted("rmm", "memory of the kind rmm")
        rmm.reinitialize(pool_allocator=True, managed_memory=rmm_managed_memory, initial_pool_size=rmm_init_pool_size)
        made.cuda.set_allocator(_wanted("rmm.allocators.cupy", "memory of the kind rmm").rmm_cupy_allocator)
    return made


def _ensure_cuda_device(devs: list[int], rank: int) -> None:
    """Have this process use one GPU of a list, before anything else uses one."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devs[rank % len(devs)])
    _wanted("numba.cuda", "a worker with a GPU of its own").current_context()


# --- between processes ---------------------------------------------------------------------------------------------------


async def send_pickled_msg(ep: Endpoint, obj: Any) -> None:
    """Send data that recv_pickled_msg() receives. The names are UCX-Py's: what is sent is no pickle."""
    await ep.send_obj(packed(obj))


async def recv_pickled_msg(ep: Endpoint) -> Any:
    """Receive what send_pickled_msg() sent."""
    def room(n: int) -> bytearray:
        if n > _MOST:
            raise MemoryError
        return bytearray(n)
    return unpacked(bytes(await ep.recv_obj(allocator=room)))


def _end_with_parent() -> None:
    """Nobody would collect the result, or ever end this process."""
    parent = mp.parent_process()

    def watch() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


# --- the server ----------------------------------------------------------------------------------------------------------------


def _say_where(server_file: str | None, port: int) -> None:
    """In one piece: whoever waits for it reads as soon as there is something."""
    text = json.dumps({"address": get_address(), "port": port}).encode()
    if server_file is None:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), text)
        return
    fd = os.open(server_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


class _Gathering:
    """What the server knows: who is there, and what they have sent."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self.where: dict[int, tuple[str, int]] = {}
        self.results: dict[int, Any] = {}
        self.all_here = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, ep: Endpoint) -> None:
        """One worker, from its first word to its result."""
        who = "a worker"
        try:
            rank, ip, port = await recv_pickled_msg(ep)
            who = f"worker {rank}"
            if not isinstance(rank, int) or not 0 <= rank < self.n_workers or rank in self.where:
                raise RuntimeError(f"it is not one of {self.n_workers}, or is there already: every node needs an index of its "
                                   "own")
            self.where[rank] = (str(ip), int(port))
            if len(self.where) == self.n_workers:
                self.all_here.set()
            await self.all_here.wait()
            await send_pickled_msg(ep, self.where)
            self.results[rank] = await recv_pickled_msg(ep)
            if len(self.results) == self.n_workers and not self.over.done():
                self.over.set_result(None)
            await ep.close()
        except Exception as error:
            if who != "a worker" and not self.over.done():  # who never told its rank is none of ours
                self.over.set_exception(RuntimeError(f"{who} failed, or went away before it had sent its result: {error}"))


def _server_process(q: Any, server_file: str | None, n_workers: int, ucx_options_list: dict[str, str] | None) -> None:
    _end_with_parent()
    import ucp
    ucp.reset()  # a forked process may not use what its parent had
    if ucx_options_list is not None:
        ucp.init(ucx_options_list)

    async def run() -> dict[int, Any]:
        gathering = _Gathering(n_workers)
        listener = ucp.create_listener(gathering.serve)
        _say_where(server_file, listener.port)
        try:
            await gathering.over
        finally:
            listener.close()
        return gathering.results
    results = asyncio.run(run())
    for rank in range(n_workers):
        q.put(results[rank])


def _run_cluster_server(server_file: str | None, n_workers: int,
                        ucx_options_list: dict[str, str] | None = None) -> tuple[Any, Any]:
    """Start a server, and give its process and the queue in which the results of workers 0, 1, ... will be.

    server_file: where to say its address; None is stdout. n_workers: of the whole cluster. ucx_options_list: for ucp.init().
    """
    q: Any = mp.Queue()
    process = mp.Process(target=_server_process, args=(q, server_file, n_workers, ucx_options_list))
    process.start()
    return process, q


def _results(process: Any, q: Any, n_workers: int) -> list[Any]:
    """What the workers returned. RuntimeError if the server ended without it."""
    results: list[Any] = []
    while len(results) < n_workers:
        try:
            results.append(q.get(timeout=_RESULT_BOUND))
        except queue.Empty:
            if not process.is_alive() and q.empty():
                raise RuntimeError(f"the server ended with status {process.exitcode} before all workers had sent their results"
                                   ) from None
    return results


def run_cluster_server(server_file: str | None, n_workers: int, ucx_options_list: dict[str, str] | None = None) -> list[Any]:
    """Run a server to its end: what workers 0, 1, ... returned."""
    process, q = _run_cluster_server(server_file, n_workers, ucx_options_list)
    results = _results(process, q, n_workers)
    _join([process])
    return results


# --- the workers ---------------------------------------------------------------------------------------------------------------


def _worker_process(server_info: dict[str, Any], num_node_workers: int, rank: int, ucx_options_list: list[dict[str, str]] | None,
                    ensure_cuda_device: bool, func: Callable[[int, dict[int, Any], Any], Any], args: Any) -> None:
    _end_with_parent()
    if ensure_cuda_device:
        _ensure_cuda_device(args.devs, rank % num_node_workers)
    import ucp
    ucp.reset()  # a forked process may not use what its parent had
    if ucx_options_list is not None:
        ucp.init(ucx_options_list[rank])

    async def run() -> None:
        eps: dict[int, Any] = {}
        came = asyncio.Condition()

        async def peer(ep: Endpoint) -> None:
            first = bytearray(8)
            await ep.recv(first)
            async with came:
                eps[int.from_bytes(first, "little")] = ep
                came.notify_all()

        listener = ucp.create_listener(peer)
        server = await ucp.create_endpoint(server_info["address"], server_info["port"])
        await send_pickled_msg(server, (rank, get_address(), listener.port))
        where = await recv_pickled_msg(server)
        for other in range(rank + 1, len(where)):
            ep = await ucp.create_endpoint(*where[other])
            await ep.send(rank.to_bytes(8, "little"))
            async with came:
                eps[other] = ep
        async with came:
            await came.wait_for(lambda: len(eps) == len(where) - 1)
        logger.debug("worker %d runs", rank)
        result = func(rank, eps, args)
        if inspect.isawaitable(result):
            result = await result
        await send_pickled_msg(server, result)
        await server.close()
        listener.close()
    asyncio.run(run())


def _run_cluster_workers(server_info: str | dict[str, Any], num_workers: int, num_node_workers: int, node_idx: int,
                         worker_func: Callable[[int, dict[int, Any], Any], Any], worker_args: Any = None,
                         ucx_options_list: list[dict[str, str]] | None = None, ensure_cuda_device: bool = False) -> list[Any]:
    """Start the workers of one node, and give their processes.

    server_info: the server's file, or a dict with its "address" and "port". num_workers: of the whole cluster. num_node_workers:
    of this node; all nodes have as many. node_idx: which of the nodes this is, from 0 on. worker_func: called in each with its
    rank, the endpoints to all others by their rank, and `worker_args`; a function or a coroutine function. ucx_options_list: for
    ucp.init() of each. ensure_cuda_device: have each use one GPU of worker_args.devs.
    """
    if isinstance(server_info, str):
        with open(server_info) as file:
            server_info = json.load(file)
    if not isinstance(server_info, dict) or not {"address", "port"} <= server_info.keys():
        raise ValueError('server_info is the file of a server, or a dict with its "address" and its "port"')
    processes = []
    for i in range(num_node_workers):
        process = mp.Process(target=_worker_process, args=(server_info, num_node_workers, node_idx * num_node_workers + i,
                                                           ucx_options_list, ensure_cuda_device, worker_func, worker_args))
        process.start()
        processes.append(process)
    return processes


def _join(processes: list[Any]) -> None:
    """Wait for all. RuntimeError if one of them failed."""
    for process in processes:
        process.join()
    bad = [process.exitcode for process in processes if process.exitcode]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(processes)} processes failed, with status {', '.join(map(str, bad))}")


def run_cluster_workers(server_info: str | dict[str, Any], num_workers: int, num_node_workers: int, node_idx: int,
                        worker_func: Callable[[int, dict[int, Any], Any], Any], worker_args: Any = None,
                        ucx_options_list: list[dict[str, str]] | None = None, ensure_cuda_device: bool = False) -> None:
    """Run the workers of one node to their end: see _run_cluster_workers(). RuntimeError if one of them fails."""
    _join(_run_cluster_workers(server_info, num_workers, num_node_workers, node_idx, worker_func, worker_args, ucx_options_list,
                               ensure_cuda_device))
