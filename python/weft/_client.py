"""Clients: the functions of a service as methods of an object, for event loops and for threads that wait.

What costs time is the extension's: client.add(25, 17) never comes through here. tests/python/test_rpc_client.py holds it.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any

from . import _core


def _signatures(lines: str) -> list[str]:
    return [line.partition(" ")[2] for line in lines.splitlines()]


class _Base(_core.Client):
    """What both kinds of client have."""

    def __init__(self, runtime: _core.Runtime, uri: str, *, service: str | None = None, instance: str | None = None,
                 registry: _core.Registry | None = None, tries: int | None = None, instances: int | None = None,
                 timeout: float | None = None, reconnect: float | None = None) -> None:
        super().__init__(runtime, uri, service=service, instance=instance, registry=registry, tries=tries, instances=instances,
                         timeout=timeout, reconnect=reconnect)
        if service is None and uri.startswith("weft://"):
            service = uri.removeprefix("weft://").partition("@")[0]
        self._service = service or ""  # "": the functions of all services


class Client(_Base):
    """The functions of a service, in an event loop: `await client.add(25, 17)`.

    It can be used at once: a function is asked for its signature when it is first called. `async with`, or `await client`, waits
    for a server and learns all of them, so that functions with streams of arguments can be used, too. Names that the class has
    itself are had by client.method("close").
    """

    async def ready(self) -> Client:
        """Wait for a server, and learn the signatures of its functions."""
        self._learn(await self._functions(self._service))
        return self

    async def functions(self) -> list[str]:
        """The signatures of all functions of the service."""
        return _signatures(await self._functions(self._service))

    async def close(self) -> None:
        """End it: calls under way end with ClosedError."""
        await self._close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.ready().__await__()

    async def __aenter__(self) -> Client:
        try:
            return await self.ready()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class BlockingClient(_Base):
    """The functions of a service, for threads that wait: `client.add(25, 17)`. Any thread may use it."""

    def functions(self) -> list[str]:
        """The signatures of all functions of the service."""
        return _signatures(self._functions(self._service))

    def close(self) -> None:
        """End it: calls under way, in other threads, end with ClosedError."""
        self._close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


async def _each(op: _core.Op[Any]) -> AsyncIterator[Any]:
    """What `async for` goes through where a call of a function of which only the name is known turns out to be a stream."""
    stream = await op
    if not isinstance(stream, _core.Stream):
        raise TypeError(f"`async for` goes through a stream, and this operation gave {type(stream).__name__}")
    async with stream:
        async for value in stream:
            yield value
