"""Several processes that all know each other: a server gathers the addresses of workers and hands them out, each worker
connects to all, runs a function, and the server gives their results back.

The server tells where it is in a file, or on stdout. What it and its workers tell each other is pickled: run it among processes
that trust each other only.

tests/python/test_ucxx_processes.py holds us to it.
"""
from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ucxx
from ucxx.utils import get_address

Wrapper = Callable[..., Any] | None


def get_allocator(object_type: str, rmm_init_pool_size: int, rmm_managed_memory: bool) -> ModuleType:
    """The module that makes arrays of a sort: "numpy", "cupy", or "rmm", which is cupy with memory of RMM."""
    import importlib
    if object_type == "numpy":
        return importlib.import_module("numpy")
    arrays = importlib.import_module("cupy")
    if object_type == "rmm":
        rmm = importlib.import_module("rmm")
        rmm.reinitialize(pool_allocator=True, managed_memory=rmm_managed_memory, initial_pool_size=rmm_init_pool_size)
        arrays.cuda.set_allocator(importlib.import_module("rmm.allocators.cupy").rmm_cupy_allocator)
    return arrays


async def send_pickled_msg(ep: Any, obj: Any) -> None:
    """Send an object, pickled."""
    await ep.send_obj(pickle.dumps(obj))


async def recv_pickled_msg(ep: Any) -> Any:
    """Receive what send_pickled_msg() sent, from a peer that is trusted."""
    return pickle.loads(await ep.recv_obj())


async def _gather(server_file: str | None, n_workers: int) -> dict[int, Any]:
    addresses: dict[int, tuple[str, int]] = {}
    results: dict[int, Any] = {}
    known, ended = asyncio.Event(), asyncio.Event()

    async def handle(ep: Any) -> None:
        rank, ip, port = await recv_pickled_msg(ep)
        addresses[rank] = (ip, port)
        if len(addresses) == n_workers:
            known.set()
        await known.wait()
        await send_pickled_msg(ep, addresses)
        results[rank] = await recv_pickled_msg(ep)
        if len(results) == n_workers:
            ended.set()

    listener = ucxx.create_listener(handle)
    text = json.dumps({"address": get_address(), "port": listener.port})
    if server_file is None:
        print(text, flush=True)
    else:
        with open(server_file, "w", encoding="utf-8") as file:
            file.write(text)
    await ended.wait()
    listener.close()
    return results


def _server_process(queue: Any, server_file: str | None, n_workers: int, ucx_options_list: dict[str, Any] | None) -> None:
    if ucx_options_list is not None:
        ucxx.init(ucx_options_list)
    results = asyncio.run(_gather(server_file, n_workers))
    for rank in range(n_workers):
        queue.put(results[rank])


def _started(wrapper: Wrapper, target: Callable[..., None], *args: Any) -> tuple[Any, Any, Any]:
    """A process of target(queue, *args), its queue, and the queue of its errors if there is a wrapper."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    errors = None if wrapper is None else context.Queue()
    process: Any = context.Process(target=target, args=(queue, *args)) if wrapper is None else context.Process(
        target=wrapper, args=(target, errors, queue, *args))
    process.start()
    return process, queue, errors


def _run_cluster_server(server_file: str | None, n_workers: int, ucx_options_list: dict[str, Any] | None = None,
                        error_wrapper: Wrapper = None) -> tuple[Any, ...]:
    """Start the server: its process and the queue of results; with `error_wrapper`, such as ucxx.testing.run_in_subprocess(),
    also the queue of its errors."""
    process, queue, errors = _started(error_wrapper, _server_process, server_file, n_workers, ucx_options_list)
    return (process, queue) if error_wrapper is None else (process, queue, errors)


def run_cluster_server(server_file: str | None, n_workers: int, ucx_options_list: dict[str, Any] | None = None) -> list[Any]:
    """Run the server, and wait: the results of all workers, by rank."""
    process, queue = _run_cluster_server(server_file, n_workers, ucx_options_list)
    results = [queue.get() for _ in range(n_workers)]
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the server of the cluster ended with {process.exitcode}")
    return results


async def _work(server_info: dict[str, Any], rank: int, func: Callable[..., Any], args: Any) -> Any:
    eps: dict[int, Any] = {}
    complete = asyncio.Event()
    n_workers = sys.maxsize

    def add(peer: int, ep: Any) -> None:
        eps[peer] = ep
        if len(eps) == n_workers - 1:
            complete.set()

    async def handle(ep: Any) -> None:
        add(pickle.loads(await ep.recv_obj()), ep)

    listener = ucxx.create_listener(handle)
    server = await ucxx.create_endpoint(server_info["address"], server_info["port"])
    await send_pickled_msg(server, (rank, get_address(), listener.port))
    addresses = await recv_pickled_msg(server)
    n_workers = len(addresses)
    for peer in range(rank + 1, n_workers):
        ep = await ucxx.create_endpoint(*addresses[peer])
        await ep.send_obj(pickle.dumps(rank))
        add(peer, ep)
    if len(eps) < n_workers - 1:
        await complete.wait()
    given = func(rank, eps, args)
    result = await given if inspect.isawaitable(given) else given
    await send_pickled_msg(server, result)
    listener.close()
    return result


def _worker_process(queue: Any, server_info: dict[str, Any], num_node_workers: int, rank: int, ucx_options_list: list[Any] | None,
                    ensure_cuda_device: bool, func: Callable[..., Any], args: Any) -> None:
    if ensure_cuda_device:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(args.devs[(rank % num_node_workers) % len(args.devs)])
    if ucx_options_list is not None:
        ucxx.init(ucx_options_list[rank])
    queue.put(asyncio.run(_work(server_info, rank, func, args)))


def _run_cluster_workers(server_info: str | dict[str, Any], num_workers: int, num_node_workers: int, node_idx: int,
                         worker_func: Callable[..., Any], worker_args: Any = None, ucx_options_list: list[Any] | None = None,
                         ensure_cuda_device: bool = False, error_wrapper: Wrapper = None) -> list[Any]:
    """Start the workers of one node, which call worker_func(rank, {rank: endpoint}, worker_args): their processes; with
    `error_wrapper`, each with the queue of its errors. `server_info` is the file of the server, or what is in it."""
    if isinstance(server_info, str):
        with open(server_info, encoding="utf-8") as file:
            server_info = json.load(file)
    if not isinstance(server_info, dict):
        raise ValueError("server_info must be the path to a server file, or a dictionary with the unpacked values.")
    started = []
    for number in range(num_node_workers):
        process, _, errors = _started(error_wrapper, _worker_process, server_info, num_node_workers,
                                      node_idx * num_node_workers + number, ucx_options_list, ensure_cuda_device, worker_func,
                                      worker_args)
        started.append(process if error_wrapper is None else (process, errors))
    return started


def run_cluster_workers(server_info: str | dict[str, Any], num_workers: int, num_node_workers: int, node_idx: int,
                        worker_func: Callable[..., Any], worker_args: Any = None, ucx_options_list: list[Any] | None = None,
                        ensure_cuda_device: bool = False) -> None:
    """Run the workers of one node, and wait for them."""
    for process in _run_cluster_workers(server_info, num_workers, num_node_workers, node_idx, worker_func, worker_args,
                                        ucx_options_list,
                                        ensure_cuda_device):
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a worker of the cluster ended with {process.exitcode}")
