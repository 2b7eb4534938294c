"""What a backend of the benchmark is: a server that echoes what it receives, and a client that measures round trips.

The server says which port it listens on by put(port), and ends when its one client is done. The client gives the time of each
round trip in seconds, and fails if what came back is not what was sent.
"""
from __future__ import annotations

import argparse
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

TOLD_EVERY = 0.2  # seconds between two progress reports


class Memory:
    """Buffers of the kind the user asked for, by numpy, cupy or rmm."""

    def __init__(self, args: argparse.Namespace, device: int | None) -> None:
        self.args, self.n = args, args.n_bytes
        self.xp: Any = importlib.import_module("numpy" if args.object_type == "numpy" else "cupy")
        if args.object_type != "numpy":
            self.xp.cuda.runtime.setDevice(device or 0)
        if args.object_type == "rmm":
            importlib.import_module("rmm").reinitialize(pool_allocator=True, managed_memory=args.rmm_managed_memory,
                                                        initial_pool_size=args.rmm_init_pool_size, devices=device or 0)
            self.xp.cuda.set_allocator(importlib.import_module("rmm.allocators.cupy").rmm_cupy_allocator)

    def message(self) -> Any:
        """Bytes to send, which are no others' by chance."""
        return (self.xp.arange(self.n, dtype="u8") % 251).astype("u1")

    def empty(self) -> Any:
        """Where to receive."""
        return self.xp.empty(self.n, dtype="u1")

    def same(self, a: Any, b: Any) -> bool:
        """Whether two buffers hold the same bytes."""
        return bool((a == b).all())


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
    time."""

    wall: float | None = None

    @abstractmethod
    def run(self, address: str, port: int, tell: Callable[[int], Any]) -> list[float]:
        """Seconds of each round trip that counts; tell(n) after each."""


class Wrong(Exception):
    """What came back is not what was sent."""

    def __init__(self, round_: int) -> None:
        super().__init__(f"round trip {round_}: what came back is not what was sent")
