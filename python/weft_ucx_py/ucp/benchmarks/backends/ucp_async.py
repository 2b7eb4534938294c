"""The benchmark with asyncio: `await ep.send()`, `await ep.recv()`."""
from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import ucp

from . import base


def _allocate(args: argparse.Namespace, memory: base.Memory) -> None:
    """Have active messages come into the memory that the user asked for."""
    if args.enable_am:
        ucp.register_am_allocator(memory.allocate, "host" if args.object_type == "numpy" else "cuda")


class Server(base.Server):
    """A listener whose one endpoint echoes."""

    def run(self, put: Callable[[int], Any]) -> None:
        asyncio.run(self._serve(put))

    async def _serve(self, put: Callable[[int], Any]) -> None:
        args, memory = self.args, base.memory(self.args, self.args.server_dev)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reused = memory.empty() if args.reuse_alloc else None

        async def echo(ep: ucp.Endpoint) -> None:
            for _ in range(self.rounds):
                if args.enable_am:
                    await ep.am_send(await ep.am_recv())
                else:
                    buffer = memory.empty() if reused is None else reused
                    await ep.recv(buffer)
                    await ep.send(buffer)
            await ep.close()

        async def handler(ep: ucp.Endpoint) -> None:
            if done.done():
                return
            try:
                await echo(ep)
                done.set_result(None)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)

        _allocate(args, memory)
        listener = ucp.create_listener(handler, port=args.port, endpoint_error_handling=args.error_handling)
        put(listener.port)
        await done
        listener.close()


class Client(base.Client):
    """One endpoint."""

    def run(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        return asyncio.run(self._measure(address, port, tell))

    async def _measure(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        args, memory = self.args, base.memory(self.args, self.args.client_dev)
        _allocate(args, memory)
        ep = await ucp.create_endpoint(address, port, endpoint_error_handling=args.error_handling)
        sent, reused = memory.message(), memory.empty()
        times: list[float] = []
        with self.watched(memory):
            for i in range(self.rounds):
                into = reused if args.reuse_alloc or args.enable_am else memory.empty()
                begin = perf_counter()
                if args.enable_am:
                    await ep.am_send(sent)
                    into = await ep.am_recv()
                else:
                    await ep.send(sent)
                    await ep.recv(into)
                end = perf_counter()
                self.took(i, end - begin, memory, (sent, into), times, tell)
        await ep.close()
        return times
