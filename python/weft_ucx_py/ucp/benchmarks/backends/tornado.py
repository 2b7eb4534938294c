"""The benchmark with Tornado's streams over TCP: what a program without ucp gets."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient
from tornado.tcpserver import TCPServer

from . import base


class Server(base.Server):
    """A TCP server that echoes."""

    def run(self, put: Callable[[int], Any]) -> None:
        asyncio.run(self._serve(put))

    async def _serve(self, put: Callable[[int], Any]) -> None:
        args, memory = self.args, base.memory(self.args, self.args.server_dev)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rounds = self.rounds

        class Echo(TCPServer):
            async def handle_stream(self, stream: IOStream, address: Any) -> None:
                try:
                    reused = memory.empty() if args.reuse_alloc else None
                    for _ in range(rounds):
                        buffer = memory.empty() if reused is None else reused
                        await stream.read_into(buffer.data)
                        await stream.write(buffer.data)
                    if not done.done():
                        done.set_result(None)
                except StreamClosedError as error:
                    if not done.done():
                        done.set_exception(error)

        server = Echo(max_buffer_size=max(100 << 20, 2 * args.n_bytes))
        server.listen(args.port or 0, address="0.0.0.0")
        put(next(iter(server._sockets.values())).getsockname()[1])
        await done
        server.stop()


class Client(base.Client):
    """One stream."""

    def run(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        return asyncio.run(self._measure(address, port, tell))

    async def _measure(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        args, memory = self.args, base.memory(self.args, self.args.client_dev)
        stream = await TCPClient().connect(address, port, max_buffer_size=max(100 << 20, 2 * args.n_bytes))
        sent, reused = memory.message(), memory.empty()
        times: list[float] = []
        with self.watched(memory):
            for i in range(self.rounds):
                into = reused if args.reuse_alloc else memory.empty()
                begin = perf_counter()
                await stream.write(sent.data)
                await stream.read_into(into.data)
                end = perf_counter()
                self.took(i, end - begin, memory, (sent, into), times, tell)
        stream.close()
        return times
