"""Functions of services: how one is called with a request, how its stream of arguments is read, and how it is answered.
_serving.py runs them.

tests/python/test_service.py and test_service_streams.py hold us to it.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from . import _core, _hints, codes
from ._core import Request

END = object()


class WrongResult(Exception):
    """What a function gave is not what its signature says."""


class Function:
    """A function of a service: how it is called."""

    def __init__(self, name: str, signature: str, function: Callable[..., Any], kind: str, slots: list[_hints.Slot], number: int
                 | None,
                 thread: bool | None, into: Callable[[Request], Any] | None, fetch: bool, takes: list[tuple[str, bool]],
                 serial: bool = False) -> None:
        self.name, self.signature, self.function, self.kind = name, signature, function, kind
        self.slots, self.number, self.thread, self.into, self.fetch = slots, number, thread, into, fetch
        self.serial = serial
        values = [slot for slot in slots if slot.what == "value"]
        self.mask = sum(1 << i for i, slot in enumerate(values) if slot.kind.list)
        self.stream = next((slot for slot in slots if slot.what == "stream"), None)
        self.wants_request = any(slot.what == "request" for slot in slots) or into is not None
        self.simple = all(slot.what == "value" and not slot.by_name and not slot.kind.array for slot in slots)
        self.is_async = kind in ("coroutine", "async generator")
        self.streams = "generator" in kind

    def bind(self, values: tuple[Any, ...], request: Request, incoming: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function."""
        left = iter(values)
        args: list[Any] = []
        named: dict[str, Any] = {}
        for slot in self.slots:
            value: Any = request if slot.what == "request" else incoming if slot.what == "stream" else next(left)
            if slot.what == "value" and slot.kind.array:
                value = as_array(value)
            if slot.by_name:
                named[slot.name] = value
            else:
                args.append(value)
        return tuple(args), named

    def call(self, values: tuple[Any, ...], request: Request, incoming: Any = None) -> Any:
        """Call it: what comes is a result, a coroutine, or a generator."""
        if self.simple:
            return self.function(*values)
        args, named = self.bind(values, request, incoming)
        return self.function(*args, **named)

    def item(self, value: Any) -> Any:
        """A value of the caller's stream, as the function wants it."""
        return as_array(value) if self.stream is not None and self.stream.kind.array else value

    @property
    def item_mask(self) -> int:
        """1 if values of the caller's stream are lists."""
        return int(self.stream is not None and self.stream.kind.list)


def as_array(value: Any) -> Any:
    """A Tensor, or a list of them, as numpy has it, without a copy."""
    import numpy
    return [numpy.asarray(one) for one in value] if isinstance(value, list) else numpy.asarray(value)


# --- the caller's stream, as functions see it ---------------------------------------------------------------------------------


class Incoming:
    """In an event loop: `async for`."""

    def __init__(self, function: Function, request: Request) -> None:
        self._function, self._request, self._mask = function, request, function.item_mask
        self._array = function.stream is not None and function.stream.kind.array

    def __aiter__(self) -> Incoming:
        return self

    def __anext__(self) -> Any:
        return self._next() if self._array else self._request.recv(self._mask)

    async def _next(self) -> Any:
        return self._function.item(await self._request.recv(self._mask))


class IncomingInThread:
    """In a thread beside the event loop: `for`, whose receives are the loop's."""

    def __init__(self, function: Function, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self._function, self._request, self._loop = function, request, loop

    def __iter__(self) -> IncomingInThread:
        return self

    async def _one(self) -> Any:
        try:
            return await self._request.recv(self._function.item_mask)
        except StopAsyncIteration:
            return END

    def __next__(self) -> Any:
        value = asyncio.run_coroutine_threadsafe(self._one(), self._loop).result()
        if value is END:
            raise StopIteration
        return self._function.item(value)


class BlockingIncoming:
    """In a thread of a blocking runtime: `for`, and `async for` in coroutines that run there."""

    def __init__(self, function: Function, request: Request) -> None:
        self._function, self._request = function, request

    def __iter__(self) -> BlockingIncoming:
        return self

    def __next__(self) -> Any:
        return self._function.item(self._request.recv(self._function.item_mask))

    def __aiter__(self) -> BlockingIncoming:
        return self

    async def __anext__(self) -> Any:
        value = await asyncio.get_running_loop().run_in_executor(None, next, self, END)
        if value is END:
            raise StopAsyncIteration
        return value


# --- what becomes of a request --------------------------------------------------------------------------------------------------


def answer(function: Function, request: Request, result: Any) -> BaseException | None:
    """Reply with what the function returned. What it returns is to be reported."""
    if request.answered:
        return None  # the function answered itself, or nobody waits any more
    try:
        request.reply(result)
    except (_core.ClosedError, _core.ForkedError):
        return None  # the runtime is closed, and the callers know that
    except Exception as error:
        return fail(function, request, WrongResult(str(error)))
    return None


def fail(function: Function, request: Request, error: BaseException) -> BaseException | None:
    """Answer with what was raised. What it returns is to be reported: None if that is between the function and its caller."""
    told: BaseException | None = None
    if isinstance(error, _core.CallError):
        said = (error.code, error.message, error.category, error.value)
    elif isinstance(error, asyncio.CancelledError):
        said = (codes.CANCELLED, f"{function.name} was cancelled at the server", 0, 0)
    elif isinstance(error, WrongResult):
        told, said = error, (codes.INTERNAL, str(error), 0, 0)
    else:
        text = str(error)
        told, said = error, (codes.UNKNOWN, f"{type(error).__name__}: {text}" if text else type(error).__name__, 0, 0)
    if request.cancelled() and isinstance(error, _core.WeftError):
        told = None  # not a failure: the function noticed this way that the call is cancelled
    if not request.answered:
        try:
            request.fail(*said)
        except (_core.ClosedError, _core.ForkedError):
            pass
    return told


def send(request: Request, value: Any) -> Any:
    """The next value of a stream; one that is of another type is no failure of the caller's."""
    try:
        return request.send(value)
    except (TypeError, OverflowError, ValueError) as error:
        raise WrongResult(str(error)) from None
