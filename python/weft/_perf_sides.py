"""The two sides of each test of weft.perf, for asyncio and for threads that wait."""
from __future__ import annotations

import asyncio
import json
import mmap
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import weft
import weft.blocking

CONTROL, THERE, BACK, DONE = 1 << 60, 1, 2, 3
TASKS = 256
SIZES = {"tag_lat": "8,4k,1M", "tag_bw": "4k,64k,1M", "tag_rate": "8", "am_lat": "8", "awaits": "8"}
MOST_SIZE, MOST_N, MOST_WINDOW = 1 << 32, 1 << 32, 1 << 16


class Plan(NamedTuple):
    """One run: what the client tells the server."""
    test: str
    size: int
    n: int
    window: int


class Failed(Exception):
    """A sentence for people."""


def pages(size: int) -> Any:
    """Memory as `weft perf` has it: private pages, touched, that begin at one. Where a buffer lies changes how fast it is
    copied."""
    if size < 4096:
        return bytearray(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"w" * size
    return memory


def plan_of(data: bytes) -> Plan:
    """A plan from the other side, which may be anyone: checked before it is believed."""
    try:
        told = json.loads(data)
        plan = Plan(told["test"], told["size"], told["n"], told["window"])
    except (ValueError, TypeError, KeyError) as error:
        raise Failed(f"the other side sent a plan that is none: {error}") from None
    numbers = ((plan.size, 0, MOST_SIZE), (plan.n, 1, MOST_N), (plan.window, 1, MOST_WINDOW))
    known = isinstance(plan.test, str) and plan.test in SIZES
    if not known or not all(type(value) is int and least <= value <= most for value, least, most in numbers):
        raise Failed(f"the other side wants what cannot be measured: {plan}")
    return plan


class Pace:
    """The times of one message, averaged over a window."""

    def __init__(self, window: int) -> None:
        self.window, self.left, self.times = window, window, list[float]()
        self.last = time.perf_counter()

    def one(self) -> None:
        self.left -= 1
        if not self.left:
            now = time.perf_counter()
            self.times.append((now - self.last) / self.window)
            self.last, self.left = now, self.window


# --- asyncio: each side of each test; the client's gives the times of single messages -------------------------------------------

async def ping(ep: weft.Endpoint, plan: Plan) -> list[float]:
    buffer, times, clock = pages(plan.size), [], time.perf_counter
    for _ in range(plan.n):
        start = clock()
        await ep.send(buffer, THERE)
        await ep.recv_into(buffer, BACK)
        times.append((clock() - start) / 2)
    return times


async def pong(ep: weft.Endpoint, plan: Plan) -> None:
    buffer = pages(plan.size)
    for _ in range(plan.n):
        await ep.recv_into(buffer, THERE)
        await ep.send(buffer, BACK)


async def shared(n: int, window: int, act: Callable[[], Any], after: Callable[[], None] | None = None) -> None:
    """n operations, `window` of them at any time."""
    left = n

    async def task() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await act()
            if after:
                after()
    await asyncio.gather(*(task() for _ in range(min(window, n))))


async def give(ep: weft.Endpoint, plan: Plan) -> list[float]:
    buffer, pace = pages(plan.size), Pace(plan.window)
    await shared(plan.n, plan.window, lambda: ep.send(buffer, THERE), pace.one)
    await ep.recv(DONE)
    return pace.times


async def take(ep: weft.Endpoint, plan: Plan) -> None:
    buffer = pages(plan.size)
    await shared(plan.n, plan.window, lambda: ep.recv_into(buffer, THERE))
    await ep.send(b"", DONE)


async def am_ping(ep: weft.Endpoint, plan: Plan) -> list[float]:
    buffer, times, clock = pages(plan.size), [], time.perf_counter
    for _ in range(plan.n):
        start = clock()
        sending = ep.am_send(THERE, buffer)
        await (await ep.am_recv(BACK)).read_into(buffer)
        await sending
        times.append((clock() - start) / 2)
    return times


async def am_pong(ep: weft.Endpoint, plan: Plan) -> None:
    buffer = pages(plan.size)
    for _ in range(plan.n):
        await (await ep.am_recv(THERE)).read_into(buffer)
        await ep.am_send(BACK, buffer)


async def many_pings(ep: weft.Endpoint, plan: Plan) -> list[float]:
    pace = Pace(TASKS)

    async def task(tag: int) -> None:
        buffer = bytearray(plan.size)
        for _ in range(-(-plan.n // TASKS)):
            await ep.send(buffer, tag)
            await ep.recv_into(buffer, tag)
            pace.one()
    await asyncio.gather(*(task(16 + i) for i in range(TASKS)))
    return pace.times


async def many_pongs(ep: weft.Endpoint, plan: Plan) -> None:
    async def task(tag: int) -> None:
        buffer = bytearray(plan.size)
        for _ in range(-(-plan.n // TASKS)):
            await ep.recv_into(buffer, tag)
            await ep.send(buffer, tag)
    await asyncio.gather(*(task(16 + i) for i in range(TASKS)))


ASYNC: dict[str, tuple[Any, Any]] = {"tag_lat": (ping, pong), "tag_bw": (give, take), "tag_rate": (give, take),
                                     "am_lat": (am_ping, am_pong),
                                     "awaits": (many_pings, many_pongs)}


# --- blocking -------------------------------------------------------------------------------------------------------------------

def ping_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> list[float]:
    buffer, times, clock = pages(plan.size), [], time.perf_counter
    for _ in range(plan.n):
        start = clock()
        ep.send(buffer, THERE)
        ep.recv_into(buffer, BACK)
        times.append((clock() - start) / 2)
    return times


def pong_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> None:
    buffer = pages(plan.size)
    for _ in range(plan.n):
        ep.recv_into(buffer, THERE)
        ep.send(buffer, BACK)


def give_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> list[float]:
    buffers, times = [pages(plan.size)] * plan.window, []
    for _ in range(-(-plan.n // plan.window)):
        start = time.perf_counter()
        ep.send_many(buffers, THERE)
        times.append((time.perf_counter() - start) / plan.window)
    ep.recv(DONE)
    return times


def take_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> None:
    buffers = [pages(plan.size)] * plan.window
    for _ in range(-(-plan.n // plan.window)):
        ep.recv_many(buffers, THERE)
    ep.send(b"", DONE)


def am_ping_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> list[float]:
    buffer, times, clock = pages(plan.size), [], time.perf_counter
    for _ in range(plan.n):
        start = clock()
        ep.am_send(THERE, buffer)
        ep.am_recv(BACK).read_into(buffer)
        times.append((clock() - start) / 2)
    return times


def am_pong_blocking(ep: weft.blocking.Endpoint, plan: Plan) -> None:
    buffer = pages(plan.size)
    for _ in range(plan.n):
        ep.am_recv(THERE).read_into(buffer)
        ep.am_send(BACK, buffer)


BLOCKING: dict[str, tuple[Any, Any]] = {"tag_lat": (ping_blocking, pong_blocking), "tag_bw": (give_blocking, take_blocking),
                                        "tag_rate": (give_blocking, take_blocking),
                                        "am_lat": (am_ping_blocking, am_pong_blocking)}
