"""The part of a run that is on a worker of a Dask cluster: an agent (`weft run --agent`), which starts elements there.

The plugin brings the run to every worker, also to those that come later. The agent is started with the first element. An
element is a task of Dask's, `element()`, which waits in its thread until the process is over; memory is an actor, `Memory`,
since Dask leaves workers with actors alone when it scales down. If memory needs a thread to start in, and elements have all of
them, then a task waits on outside of Dask's threads (make_room): its element may be waiting for that memory. A task first asks
the bridge whether it may start (Dask starts a task once more when its worker is lost, and an element that is not idempotent must
not be), by an event of the scheduler. From then on lines go both ways: the bridge calls post(), and poll(), which waits for what
there is to tell.

A run whose bridge has not polled for a while is over: the agent hears nothing, kills what it started, and ends.
tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import threading
import time

from .bridge import find_weft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    class WorkerPlugin: ...

    def secede() -> None: ...
else:
    from distributed import WorkerPlugin, secede

TOPIC = "weft-run"
BATCH = 1 << 20  # characters that one poll brings, about
FULL = 8 << 20  # characters that wait to be polled: the agent is not read on
PING = 2.0
SILENT = 10.0  # seconds in which an agent must have said something
OVER, PONG = '{"did": "over"', '{"did": "pong"'  # as agents write them
CLOSING = 10.0

_hosts: dict[str, Host] = {}


class Host:
    """A run on this worker."""

    def __init__(self, worker: Any, run: str, setup: list[str], command: str) -> None:
        self.worker, self.run, self.setup, self.command = worker, run, setup, command
        self.lock = threading.Condition()
        self.agent: subprocess.Popen[bytes] | None = None
        self.errors: threading.Thread | None = None
        self.told: list[str] = []
        self.size = 0
        self.said: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self.over: set[int] = set()
        self.ended = self.closing = False
        self.waiting = self.leaving = 0  # threads of Dask's that wait for a process; how many of them are to be given back
        self.pinged = self.heard = 0.0
        self.wake: asyncio.Event | None = None

    # --- the agent

    def begin(self) -> None:
        """Start the agent, once."""
        with self.lock:
            if self.agent is not None or self.ended:
                return
            address = self.worker.address.split("://", 1)[-1].rsplit(":", 1)[0].strip("[]")
            weft = find_weft(self.command)
            self.agent = subprocess.Popen([weft, "run", "--agent", "--address", address, "--python", sys.executable],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          start_new_session=True)
            self.heard = time.monotonic()
            threading.Thread(target=self._read, args=(self.agent.stdout,), name="weft-run", daemon=True).start()
            threading.Thread(target=self._write, args=(self.agent.stdin,), name="weft-run-lines", daemon=True).start()
            self.errors = threading.Thread(target=self._read_errors, args=(self.agent.stderr,), name="weft-run-errors",
                                           daemon=True)
            self.errors.start()
        self.write([*self.setup, '{"do": "begin"}'])

    def write(self, lines: list[str]) -> None:
        """Lines for the agent, from any thread. It may be stopped, and the worker's loop must not wait for it."""
        self.said.put(lines)

    def _write(self, stream: Any) -> None:
        try:
            while (lines := self.said.get()) is not None:
                stream.write("".join(line + "\n" for line in lines).encode())
                stream.flush()
            stream.close()  # it takes that for `close`
        except (OSError, ValueError):
            pass  # it has ended: its output says so

    def _read(self, stream: Any) -> None:
        for raw in stream:
            self.heard = time.monotonic()
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if line.startswith(OVER):
                number = json.loads(line).get("n")
                with self.lock:
                    self.over.add(number)
                    self.lock.notify_all()
            if not line.startswith(PONG):
                self.tell(line)
        with self.lock:
            self.ended = True
            self.lock.notify_all()
        self.tell(json.dumps({"did": "gone"}))

    def _read_errors(self, stream: Any) -> None:
        for raw in stream:
            text = raw.decode("utf-8", "replace").rstrip("\n").removeprefix("weft run: ")
            self.tell(json.dumps({"did": "note", "text": f"{self.worker.address}: {text}"}))

    # --- to the bridge

    def tell(self, line: str) -> None:
        """Keep a line for the next poll. In a thread of ours: waits while there is too much."""
        with self.lock:
            while self.size > FULL and not self.ended:
                self.lock.wait(1.0)
            self.told.append(line)
            self.size += len(line)
        if self.wake is not None:
            self.worker.loop.add_callback(self.wake.set)

    async def poll(self, seconds: float) -> list[str]:
        """What there is to tell; waits for it that long. In the worker's loop."""
        if self.wake is None:
            self.wake = asyncio.Event()
        now = time.monotonic()
        if now - self.pinged > PING:
            if self.agent is not None and not self.ended and self.size <= FULL:
                if now - self.pinged > 3 * PING:
                    self.heard = now  # this process was held up itself
                elif now - self.heard > SILENT:
                    self.agent.kill()  # it is stopped; its guard cleans up, and the end of its lines is told
            self.pinged = now
            self.write(['{"do": "ping"}'])
        self.wake.clear()
        if not self.told:
            try:
                await asyncio.wait_for(self.wake.wait(), seconds)
            except asyncio.TimeoutError:
                pass
        with self.lock:
            size = count = 0
            while not self.closing and count < len(self.told) and (not count or size < BATCH):
                size += len(self.told[count])
                count += 1
            lines, self.told = self.told[:count], self.told[count:]
            self.size -= size
            self.lock.notify_all()
        return lines

    # --- elements

    def ask(self, number: int) -> None:
        """May it start here? The answer is its first line."""
        self.worker.log_event(TOPIC, {"run": self.run, "n": number, "worker": self.worker.address})

    def wait(self, number: int) -> None:
        """Until a process is over, or the agent is."""
        counts = True
        with self.lock:
            self.waiting += 1
            while number not in self.over and not self.ended:
                if counts and self.leaving:
                    counts = False
                    self.waiting -= 1
                    self.leaving -= 1
                    secede()  # Dask has another thread instead of this one now
                else:
                    self.lock.wait(60)
            if counts:
                self.waiting -= 1
                self.leaving = min(self.leaving, self.waiting)

    def make_room(self, count: int) -> int:
        """Give back to Dask so many threads in which nothing happens but waiting. Returns how many there are."""
        with self.lock:
            count = min(count, self.waiting - self.leaving)
            self.leaving += count
            self.lock.notify_all()
        return count

    def refuse(self, number: int) -> None:
        """It was not started."""
        with self.lock:
            self.over.add(number)
            self.lock.notify_all()

    # --- the end

    def close(self) -> None:
        """End the agent with all that it has started, and wait for that."""
        with self.lock:
            self.ended = True
            self.lock.notify_all()
            agent = self.agent
        if agent is None:
            return
        self.said.put(None)
        try:
            agent.wait(CLOSING)
        except subprocess.TimeoutExpired:
            agent.kill()  # its guard cleans up
            agent.wait()
        if self.errors is not None:
            self.errors.join(1.0)  # its last words: an element may have kept its standard error

    def rest(self) -> list[str]:
        """What nobody has polled."""
        with self.lock:
            lines, self.told = self.told, []
        return lines


class Run(WorkerPlugin):
    """Brings a run to a worker, and takes it away again."""

    def __init__(self, run: str, setup: list[str], command: str) -> None:
        self.name = f"weft-run-{run}"
        self.run, self.lines, self.command = run, setup, command

    def setup(self, worker: Any) -> None:
        """A worker of the cluster has it now."""
        find_weft(self.command)  # now, and not when an element is to start
        _hosts[self.run] = Host(worker, self.run, self.lines, self.command)
        worker.handlers.update(weft_post=post, weft_poll=poll, weft_refuse=refuse, weft_alive=alive, weft_room=room, weft_end=end)

    async def teardown(self, worker: Any) -> None:
        """The run is over, or the worker ends."""
        host = _hosts.pop(self.run, None)
        if host is not None:
            await asyncio.to_thread(host.close)


def element(run: str, number: int) -> None:
    """The task of a compute element: it takes as long as the element does."""
    host = _hosts[run]
    host.begin()
    host.ask(number)
    host.wait(number)


class Memory:
    """The actor of a memory element. It is there as long as the element is."""

    def __init__(self, run: str, number: int) -> None:
        host = _hosts[run]
        host.begin()
        host.ask(number)


# What the bridge calls, as requests to the worker: functions that it would send (Client.run) leave a line in the log each time.

def post(run: str, lines: list[str]) -> bool:
    """Lines of the bridge for the agent here. False: the run is not here."""
    host = _hosts.get(run)
    if host is None or host.ended:
        return False
    host.write(lines)
    return True


def alive(run: str) -> bool:
    """Whether the run is here."""
    return run in _hosts


def refuse(run: str, number: int) -> None:
    """A task must not start its element."""
    host = _hosts.get(run)
    if host is not None:
        host.refuse(number)


async def poll(run: str, seconds: float) -> list[str] | None:
    """What there is to tell of the run here. None: it is not here any more."""
    host = _hosts.get(run)
    return None if host is None else await host.poll(seconds)


def room(run: str, count: int) -> None:
    """So many memory elements of the run wait here for a thread to start in. Elements of this run give theirs, or of others."""
    for host in sorted(_hosts.values(), key=lambda host: host.run != run):
        count -= host.make_room(count)


async def end(run: str) -> list[str]:
    """End what the run has here; the last words of its agent."""
    host = _hosts.get(run)
    if host is None:
        return []
    host.closing = True  # a poll that nobody waits for any more must not take the last words
    await asyncio.to_thread(host.close)
    return host.rest()
