"""The benchmark with callbacks and without asyncio: ucp._libs.ucx_api, driven by worker.progress().

One round trip is on its way at one time; with --delay-progress up to --max-outstanding of them are.
"""
from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ucp._libs import ucx_api
from ucp._libs.arr import Array
from ucp.exceptions import UCXBaseException

from . import base

TAG = 0x62656e6368  # "bench"


def depth(args: argparse.Namespace) -> int:
    """How many round trips may be on their way at one time."""
    return int(args.max_outstanding) if args.delay_progress else 1


class _Driver:
    """A worker, and how many of its operations are under way."""

    def __init__(self, args: argparse.Namespace, memory: base.Memory) -> None:
        self.args, self.memory = args, memory
        self.worker = ucx_api.UCXWorker(ucx_api.UCXContext({}))
        self.error: BaseException | None = None
        self.ep: Any = None
        if args.enable_am:
            kind = ucx_api.AllocatorType.HOST if args.object_type == "numpy" else ucx_api.AllocatorType.CUDA
            self.worker.register_am_allocator(memory.allocate, kind)

    def until(self, true: Callable[[], bool]) -> None:
        """Drive until it is so, or an operation has failed."""
        progress = self.worker.progress
        while not true():
            progress()
            if self.error is not None:
                raise self.error

    def send(self, buffer: Any, done: Callable[[], Any]) -> None:
        """Post a send; done() is called once it is complete."""
        array = Array(buffer)
        if self.args.enable_am:
            self._posted(ucx_api.am_send_nbx(self.ep, array, array.nbytes, cb_func=self._told, cb_args=(done,)), done)
        else:
            self._posted(ucx_api.tag_send_nb(self.ep, array, array.nbytes, TAG, cb_func=self._told, cb_args=(done,)), done)

    def recv(self, into: Any, done: Callable[[Any], Any]) -> None:
        """Post a receive; done(what came) is called once it is complete."""
        if self.args.enable_am:
            ucx_api.am_recv_nb(self.ep, cb_func=self._given, cb_args=(done,))
            return
        array = Array(into)
        ucx_api.tag_recv_nb(self.worker, array, array.nbytes, TAG, cb_func=self._told, cb_args=(lambda: done(into),), ep=self.ep)

    def _posted(self, request: Any, done: Callable[[], Any]) -> None:
        if request is None:
            done()

    def _told(self, request: Any, exception: BaseException | None, done: Callable[[], Any]) -> None:
        if exception is not None:
            self.error = exception
        else:
            done()

    def _given(self, received: Any, exception: BaseException | None, done: Callable[[Any], Any]) -> None:
        if exception is not None:
            self.error = exception
        else:
            done(received)


class Server(base.Server):
    """A listener whose one endpoint echoes."""

    def run(self, put: Callable[[int], Any]) -> None:
        args, memory = self.args, base.memory(self.args, self.args.server_dev)
        driver = _Driver(args, memory)
        deepest = depth(args)
        arrived: deque[Any] = deque()
        state = {"posted": 0, "sent": 0}

        def accept(request: Any) -> None:
            if driver.ep is None:
                driver.ep = ucx_api.UCXEndpoint.create_from_conn_request(driver.worker, request, args.error_handling)

        def sent() -> None:
            state["sent"] += 1

        listener = ucx_api.UCXListener(worker=driver.worker, port=args.port or 0, cb_func=accept)
        put(listener.port)
        driver.until(lambda: driver.ep is not None)
        spare = [memory.empty() for _ in range(deepest)] if args.reuse_alloc else []
        while state["sent"] < self.rounds:
            seen = state["sent"]  # before posting: a post may also complete sends
            while state["posted"] < self.rounds and state["posted"] - state["sent"] < deepest:
                into = None if args.enable_am else spare[state["posted"] % deepest] if spare else memory.empty()
                state["posted"] += 1
                driver.recv(into, arrived.append)
            while arrived:
                driver.send(arrived.popleft(), sent)
            driver.until(lambda: bool(arrived) or state["sent"] > seen)
        try:  # the client closes once it has everything
            driver.until(lambda: bool(driver.ep.endpoint.closed))
        except UCXBaseException:
            pass
        driver.worker.close()


class Client(base.Client):
    """One endpoint."""

    def run(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        args, memory = self.args, base.memory(self.args, self.args.client_dev)
        driver = _Driver(args, memory)
        driver.ep = ucx_api.UCXEndpoint.create(driver.worker, address, port, args.error_handling)
        sent = memory.message()
        times: list[float] = []
        with self.watched(memory):
            self._rounds(driver, memory, sent, args.n_warmup_iter, 0, [], tell)
            begin = perf_counter()
            self._rounds(driver, memory, sent, args.n_iter, args.n_warmup_iter, times, tell)
            if depth(args) > 1:
                self.wall = perf_counter() - begin
        driver.ep.close()
        driver.worker.close()
        return times

    def _rounds(self, driver: _Driver, memory: base.Memory, message: Any, rounds: int, before: int, times: list[float],
                tell: Callable[[int], Any]) -> None:
        args = self.args
        deepest, begun = depth(args), deque[float]()
        state = {"posted": 0, "sent": 0, "done": 0}
        spare = [memory.empty() for _ in range(deepest)] if args.reuse_alloc else []

        def sent() -> None:
            state["sent"] += 1

        def came(buffer: Any) -> None:
            times.append(perf_counter() - begun.popleft())
            if state["done"] in (0, rounds - 1) and not memory.same(message, buffer):
                driver.error = base.Wrong(before + state["done"])
            state["done"] += 1
            tell(before + state["done"])

        while state["done"] < rounds:
            seen = state["done"]
            while state["posted"] < rounds and state["posted"] - state["done"] < deepest:
                into = None if args.enable_am else spare[state["posted"] % deepest] if spare else memory.empty()
                state["posted"] += 1
                begun.append(perf_counter())
                driver.recv(into, came)
                driver.send(message, sent)
            driver.until(lambda: state["done"] > seen)
        driver.until(lambda: state["sent"] >= rounds)
