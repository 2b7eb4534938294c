"""What a backend of the benchmark is: a server that echoes what it receives, and a client that measures round trips.

The server says which port it listens on by put(port), and ends when its one client is done. The client gives the time of each
round trip in seconds, and fails if what came back is not what was sent.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ..utils import get_allocator

TOLD_EVERY = 0.2  # seconds between two progress reports


class Memory:
    """Buffers of the kind the user asked for, by numpy, or by cupy with its own memory or that of rmm."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.n = args, args.n_bytes
        self.xp: Any = self.module(args)

    def module(self, args: argparse.Namespace) -> Any:
        """What makes the buffers."""
        return get_allocator(args.object_type, args.rmm_init_pool_size, args.rmm_managed_memory)

    def message(self) -> Any:
        """Bytes to send, which are no others' by chance."""
        return (self.xp.arange(self.n, dtype="u8") % 251).astype("u1")

    def allocate(self, n: int) -> Any:
        """So many bytes."""
        return self.xp.empty(n, dtype="u1")

    def empty(self) -> Any:
        """Where to receive."""
        return self.allocate(self.n)

    def same(self, a: Any, b: Any) -> bool:
        """Whether two buffers hold the same bytes."""
        return bool((a == b).all())


class Torch(Memory):
    """Tensors of PyTorch on a GPU."""

    def module(self, args: argparse.Namespace) -> Any:
        return importlib.import_module("torch")

    def message(self) -> Any:
        return (self.xp.arange(self.n, dtype=self.xp.int64, device="cuda") % 251).to(self.xp.uint8)

    def allocate(self, n: int) -> Any:
        return self.xp.empty(n, dtype=self.xp.uint8, device="cuda")


class Numba(Memory):
    """Arrays of Numba on a GPU."""

    def module(self, args: argparse.Namespace) -> Any:
        return importlib.import_module("numba.cuda")

    def message(self) -> Any:
        return self.xp.to_device((numpy.arange(self.n, dtype="u8") % 251).astype("u1"))

    def allocate(self, n: int) -> Any:
        return self.xp.device_array(n, dtype="u1")

    def same(self, a: Any, b: Any) -> bool:
        return bool((a.copy_to_host() == b.copy_to_host()).all())


class Weft(Memory):
    """Memory of a GPU by Weft itself: no other package is needed."""

    def module(self, args: argparse.Namespace) -> Any:
        weft = importlib.import_module("weft")
        try:
            weft.Memory(1, "cuda")
        except weft.UnsupportedError as error:
            raise OSError(f"-o weft is memory of a GPU: {error}") from error
        return weft

    def message(self) -> Any:
        made = self.allocate(self.n)
        made.copy_from((numpy.arange(self.n, dtype="u8") % 251).astype("u1"))
        return made

    def allocate(self, n: int) -> Any:
        return self.xp.Memory(n, "cuda")

    def same(self, a: Any, b: Any) -> bool:
        return bool(a.tobytes() == b.tobytes())


def memory(args: argparse.Namespace, device: int) -> Memory:
    """What makes the buffers of one of the two processes, on that GPU if they are on one."""
    if args.object_type != "numpy":  # before anything uses a GPU
        seen = [d for d in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d]
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[device] if device < len(seen) else str(device)
    kinds: dict[str, type[Memory]] = {"torch": Torch, "numba": Numba, "weft": Weft}
    return kinds.get(args.object_type, Memory)(args)


class Side(ABC):
    """One of the two processes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rounds: int = args.n_iter + args.n_warmup_iter


class Server(Side):
    """Echoes every message of one client."""

    @abstractmethod
    def run(self, put: Callable[[int], Any]) -> None:
        """Listen, say where, and serve to the end."""


class Client(Side):
    """Sends messages and receives them back. `wall`: seconds that all that counts took, where several are under way at one
    time. `contention`: how much of the time another thread would have waited for the interpreter, from 0 to 1."""

    wall: float | None = None
    contention: float | None = None

    def took(self, round_: int, seconds: float, memory: Memory, sent_and_came: tuple[Any, Any], times: list[float],
             tell: Callable[[int], Any]) -> None:
        """A round trip is over: its time counts if it is not of the warm-up; what the first and the last one brought is
        looked at."""
        if round_ >= self.args.n_warmup_iter:
            times.append(seconds)
        if round_ in (0, self.rounds - 1) and not memory.same(*sent_and_came):
            raise Wrong(round_)
        tell(round_ + 1)

    @contextlib.contextmanager
    def watched(self, memory: Memory) -> Iterator[None]:
        """Around all round trips: what the user wants to have watched."""
        knocker = None
        if self.args.report_gil_contention:  # in as short steps as can be: else small messages show none
            knocker = importlib.import_module("gilknocker").KnockKnock(polling_interval_micros=1)
            knocker.start()
        if self.args.cuda_profile:
            memory.xp.cuda.profiler.start()
        try:
            yield
        finally:
            if self.args.cuda_profile:
                memory.xp.cuda.profiler.stop()
            if knocker is not None:
                knocker.stop()
                self.contention = float(knocker.contention_metric)

    @abstractmethod
    def run(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        """Seconds of each round trip that counts; tell(n) after each."""


class Wrong(Exception):
    """What came back is not what was sent."""

    def __init__(self, round_: int) -> None:
        super().__init__(f"round trip {round_}: what came back is not what was sent")
