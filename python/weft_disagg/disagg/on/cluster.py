"""A run on a Dask cluster: elements are its tasks, memory elements its actors.

An element:    held -> submitted      the memory that it uses has a place; one that uses none is submitted at once
               submitted -> placed    a worker has begun its task and asked; what was said to it until then is sent there
               placed -> over         its agent said so, or its worker is lost, which is told as such
               any -> over            it was told to end before it had a place

Which worker is the scheduler's choice, by the resources that `limits` ask for where workers declare any of these names; an
element that uses memory is sent to the memory's host while there is a free thread there. Memory needs a thread only to start, and
must not wait for one that an element has which waits for it: so memory goes first, and if elements of this run are running, one
of them gives its thread back (_room). Everything goes through the scheduler: a launcher need not be reachable from workers, and
workers need no port of ours. worker.py is the other half.

A worker is lost when the scheduler cannot reach it, or when it has not answered a poll for SILENT seconds.
tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import json
import os
import sys

from .bridge import Failed, Launcher, quietly, sentence, warn
from .reach import REACH, Own, client_of, distributed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL = 1.0
SILENT = 10.0
LOOK = 5.0
INSTALL = "install Weft and its disagg package there, the same version as here"
NOTES = 4  # looks, and what is waited for is told
ROOM = 1.0
FIRST = 100  # Dask's priority of memory; elements have 0
SIGKILL, SIGTERM = 9, 15


class Element:
    """One that the launcher has said to start."""

    def __init__(self, number: int, start: dict[str, Any]) -> None:
        self.number, self.start = number, start
        self.lines: list[str] = []
        self.key, self.tries = "", 0
        self.host = ""  # it has, or is to have, a thread of its workers
        self.worker: Worker | None = None
        self.future: Any = None
        self.over = False


class Worker:
    """A worker of the cluster that has something of the run: what is to be said to it, in order, and what it tells."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster, self.address = cluster, address
        self.elements: dict[int, Element] = {}
        self.out: list[str] = []
        self.more = asyncio.Event()
        self.lost = False
        self.tasks = [asyncio.ensure_future(self._post()), asyncio.ensure_future(self._poll())]

    def say(self, *lines: str) -> None:
        """To its agent."""
        self.out += lines
        self.more.set()

    async def _call(self, op: str, within: float, **what: Any) -> Any:
        """A request to it."""
        return await asyncio.wait_for(self.cluster.call(self.address, op, **what), within)

    async def _post(self) -> None:
        try:
            while True:
                await self.more.wait()
                self.more.clear()
                lines, self.out = self.out, []
                if lines and not await self._call("weft_post", SILENT, lines=lines):
                    raise Failed("it has lost the run")
        except Exception as error:
            self.lose(error)

    async def _poll(self) -> None:
        try:
            while True:
                lines = await self._call("weft_poll", POLL + SILENT, seconds=POLL)
                if lines is None:
                    raise Failed("it has lost the run")
                for line in lines:
                    self.cluster.heard(self, line)
                await self.cluster.launcher.drained()
        except Exception as error:
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Nothing is known of it any more."""
        if self.lost:
            return
        self.lost = True
        if self.cluster.client.status != "running":
            self.cluster.lose("the connection to it ended")
        why = ("it has not answered for 10 s" if isinstance(error, asyncio.TimeoutError) else
               "the scheduler cannot reach it" if isinstance(error, OSError) else sentence(error))
        self.stop()
        self.cluster.workers.pop(self.address, None)
        self.cluster.avoided.add(self.address)
        for element in list(self.elements.values()):
            self.cluster.over(element, lost=why)

    def stop(self) -> None:
        """Say and ask no more."""
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()


class Cluster:
    """The elements of the run, and the workers that have any."""

    def __init__(self, launcher: Launcher, where: str) -> None:
        self.launcher, self.where = launcher, where
        self.run = os.urandom(8).hex()
        self.elements: dict[int, Element] = {}
        self.workers: dict[str, Worker] = {}
        self.client: Any = None
        self.own: Own | None = None
        self.setup: list[str] = []
        self.plugin = ""
        self.addresses: list[str] = []  # of all workers
        self.avoided: set[str] = set()  # of workers that do not answer
        self.threads: dict[str, int] = {}  # of a host
        self.taken: dict[str, int] = {}  # of them, by elements of the run
        self.held: dict[int, list[Element]] = {}  # by the number of the memory that they wait for
        self.resources: dict[str, float] = {}  # the most that a worker declares of each
        self.looks: list[asyncio.Future[None]] = []
        self.lost = False

    # --- beginning and end

    async def open(self, opening: list[str], command: str) -> None:
        """Reach the cluster, and bring the run to its workers."""
        try:
            dask = distributed()
            from .worker import TOPIC, Run
        except ImportError as error:
            raise Failed(f"{error}: pip install distributed installs Dask for {sys.executable}") from None
        if not self.where:
            self.own = Own()
        self.client = await client_of(dask, self.where, await self.own.open(dask) if self.own else None)
        self.setup = opening
        self.client.subscribe_topic(TOPIC, self._asked)
        plugin = Run(self.run, opening, command)
        register = getattr(self.client, "register_plugin", None) or self.client.register_worker_plugin
        try:
            told = await asyncio.wait_for(register(plugin), REACH)
        except asyncio.TimeoutError:
            raise Failed("the workers of the cluster do not answer") from None
        except Exception as error:
            raise Failed(f"the workers cannot take part ({sentence(error)}): {INSTALL}") from None
        finally:
            self.plugin = plugin.name  # some may have it
        for worker, said in (told or {}).items():
            if isinstance(said, dict) and said.get("status") == "error":
                raise Failed(f"{worker} cannot take part ({said.get('exception')}): {INSTALL}")
        await self._look()
        self.looks = [asyncio.ensure_future(self.patience()), asyncio.ensure_future(self._room())]

    async def _look(self) -> None:
        """What the workers have."""
        from inspect import signature
        known_words = signature(distributed().Scheduler.identity).parameters
        all_of_them = {"n_workers": -1} if "n_workers" in known_words else {}  # from 2025 on
        known = await asyncio.wait_for(self.client.scheduler.identity(**all_of_them), SILENT)
        self.threads, self.resources, self.addresses = {}, {}, list(known["workers"])
        for address, info in known["workers"].items():
            host = host_of(address)
            self.threads[host] = self.threads.get(host, 0) + int(info.get("nthreads", 1))
            for name, amount in (info.get("resources") or {}).items():
                self.resources[name] = max(amount, self.resources.get(name, 0.0))

    async def close(self) -> None:
        """Take the run away from all workers; those that are lost do it themselves."""
        for worker in list(self.workers.values()):
            worker.stop()
        for look in self.looks:
            look.cancel()
        if self.client is not None:
            for element in self.elements.values():
                element.future = None
            try:
                if self.lost:
                    raise Failed("the scheduler is lost")
                await asyncio.wait_for(self._take_away(), 12)
            except KeyError:
                pass  # none has it
            except Exception as error:
                warn(f"the workers may not all have cleaned up yet ({sentence(error)}); they do so by themselves within half a "
                     f"minute")
            await quietly(asyncio.wait_for(self.client.close(), 5))
        if self.own is not None:
            await self.own.close()

    async def _take_away(self) -> None:
        """All agents end, and what they have to say then is told: where --keep left directories."""
        async def end(worker: Worker) -> None:
            for line in await self.call(worker.address, "weft_end"):
                if json.loads(line).get("did") == "note":
                    self.launcher.pass_on(line)
        ends = asyncio.gather(*(quietly(end(worker)) for worker in self.workers.values()))
        await asyncio.wait({ends}, timeout=3)  # one that does not answer must not keep the others from it
        if self.plugin:
            await self.client.unregister_worker_plugin(self.plugin)
        await asyncio.wait({ends}, timeout=1)

    async def call(self, address: str, op: str, **what: Any) -> Any:
        """A request to a worker, by way of the scheduler: workers may be where only it reaches them."""
        answers = await self.client.scheduler.broadcast(msg={"op": op, "run": self.run, **what}, workers=[address])
        return answers[address]

    # --- what the launcher says

    def told(self, text: str, said: dict[str, Any]) -> None:
        """One line."""
        number = said.get("n")
        if said.get("do") == "start":
            self._start(Element(number, said), text)  # type: ignore[arg-type]
            return
        element = self.elements.get(number)  # type: ignore[arg-type]
        if element is None or element.over:
            return
        if element.worker is not None:
            element.worker.say(text)
        elif said.get("do") == "signal":
            self.over(element, status=SIGKILL if said.get("number") == SIGKILL else SIGTERM)
        else:
            element.lines.append(text)

    def _start(self, element: Element, text: str) -> None:
        self.elements[element.number] = element
        element.lines.append(text)
        self._begin(element)

    def _begin(self, element: Element) -> None:
        """Submit it, or hold it until the memory that it uses has a place: memory needs a thread to start in."""
        for number in () if element.start.get("memory") else element.start.get("near") or ():
            memory = self.elements.get(number)
            if memory is not None and not memory.over and memory.worker is None:
                self.held.setdefault(number, []).append(element)
                return
        self._submit(element)

    def _let_go(self, memory: Element) -> None:
        """Nothing waits for the place of that memory any more."""
        for element in self.held.pop(memory.number, ()):
            if not element.over:
                self._begin(element)

    def _take(self, element: Element, host: str) -> None:
        """A thread of that host is, or will be, the element's; no host: none is."""
        if element.host:
            self.taken[element.host] -= 1
        element.host = "" if element.start.get("memory") else host
        if element.host:
            self.taken[host] = self.taken.get(host, 0) + 1

    def _submit(self, element: Element) -> None:
        """Let Dask find a place for it."""
        from .worker import Memory
        from .worker import element as task
        start = element.start
        element.tries += 1
        element.key = f"{start['label']}-{self.run}-{element.number}.{element.tries}"
        try:
            resources = self._resources(start.get("limits") or {})
        except Failed as error:
            self.over(element, error=str(error))
            return
        options: dict[str, Any] = {"key": element.key, "pure": False}
        if resources:
            options["resources"] = resources
        near = self._near(start)
        self._take(element, host_of(near[0]) if near else "")
        if near:
            options.update(workers=near, allow_other_workers=True)
        elif self.avoided and self._others():
            options.update(workers=self._others())
        if start.get("memory"):
            element.future = self.client.submit(Memory, self.run, element.number, actor=True, priority=FIRST, **options)
        else:
            element.future = self.client.submit(task, self.run, element.number, **options)
        loop = asyncio.get_running_loop()  # Dask calls from a thread
        element.future.add_done_callback(lambda future: loop.call_soon_threadsafe(self._done, element, future))

    def _resources(self, limits: dict[str, Any]) -> dict[str, float]:
        """Of the limits, those that workers declare as resources."""
        wanted: dict[str, float] = {}
        for limit, names in (("cpu", ("cpu", "CPU")), ("mem", ("mem", "memory", "MEMORY")), ("storage", ("storage", "STORAGE"))):
            amount = float(limits.get(limit) or 0)
            for name in names if amount else ():
                if name in self.resources:
                    if amount > self.resources[name]:
                        raise Failed(f"it asks for {limit} {amount:g}, and no worker of the cluster has more than {name}="
                                     f"{self.resources[name]:g}")
                    wanted[name] = amount
        return wanted

    def _near(self, start: dict[str, Any]) -> list[str]:
        """The workers on the host of memory that it shares, if there is a free thread."""
        for number in start.get("near") or ():
            other = self.elements.get(number)
            if other is None or other.worker is None:
                continue
            host = host_of(other.worker.address)
            if start.get("memory") or self.taken.get(host, 0) < self.threads.get(host, 1):
                return [a for a in self._others() if host_of(a) == host]
        return []

    # --- what workers say

    def _asked(self, event: Any) -> None:
        """A task has begun there: may it?"""
        said = event[1] if isinstance(event, (tuple, list)) else event
        if not isinstance(said, dict) or said.get("run") != self.run:
            return
        element, address = self.elements.get(said["n"]), said["worker"]
        if element is None or element.over or element.worker is not None:
            asyncio.ensure_future(self._refuse(address, said["n"]))
            return
        worker = self.workers.get(address)
        if worker is None:
            worker = self.workers[address] = Worker(self, address)
        element.worker = worker
        worker.elements[element.number] = element
        worker.say(*element.lines)
        element.lines = []
        self._take(element, host_of(address))
        self._let_go(element)

    async def _refuse(self, address: str, number: int) -> None:
        try:
            await self.call(address, "weft_refuse", number=number)
        except Exception:
            pass  # it is gone, too

    def heard(self, worker: Worker, line: str) -> None:
        """A line of an agent."""
        said = json.loads(line)
        did, element = said.get("did"), self.elements.get(said.get("n"))
        if did == "gone":
            worker.lose(Failed("its agent ended"))
        elif did in ("failed", "note"):
            self.launcher.pass_on(line)
        elif did == "ready":
            version = self.version()
            if said.get("version") != version:
                self.launcher.say(did="failed", error=f"{worker.address} has version {said.get('version')} of Weft, and this is "
                                  f"{version}: install the same on both")
        elif element is None or element.over or element.worker is not worker:
            pass
        elif did == "started":
            self.launcher.say(**{**said, "where": worker.address})
        elif did == "over":
            self.forget(element)
            self.launcher.pass_on(line)
        else:
            self.launcher.pass_on(line)

    @staticmethod
    def version() -> str:
        """Of what is here."""
        from weft import __version__
        return str(__version__)

    def lose(self, why: str) -> None:
        """The scheduler is lost, and the run with it."""
        if not self.lost:
            self.lost = True
            self.launcher.say(did="failed", error=f"the scheduler of the cluster is lost: {why}")

    # --- what takes long

    async def patience(self) -> None:
        """Now and then: does the scheduler answer, and do the workers that elements wait for? Say what is waited for, if it takes
        long: elements that wait for each other may need more threads."""
        said, looks = "", 0
        while True:
            await asyncio.sleep(LOOK)
            looks += 1
            waiting = [e for e in self.elements.values() if not e.over and e.worker is None]
            try:
                await self._look()
                if waiting:
                    await self._look_after(waiting)
            except Exception as error:
                self.lose("it has not answered for 10 s" if isinstance(error, asyncio.TimeoutError) else
                          "the connection to it ended" if isinstance(error, OSError) else sentence(error))
                return
            if not waiting or looks % NOTES:
                continue
            names = [e.start["label"] for e in waiting]
            running = sum(1 for e in self.elements.values() if not e.over and e.worker is not None)
            first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            text = (f"{len(names)} processes of elements ({first}) wait for a free thread of the cluster; {running} run, and its "
                    f"workers have {sum(self.threads.values())}")
            if text != said:
                said = text
                self.launcher.say(did="note", text=text)

    async def _look_after(self, waiting: list[Element]) -> None:
        """Dask waits minutes for a worker that is stopped or cut off, also with what it has not begun. Elements that wait
        for such a worker are submitted once more, for others."""
        processing = await asyncio.wait_for(self.client.scheduler.processing(), SILENT)
        at = {element: address for address, keys in processing.items() for element in waiting
              if any(str(key) == element.key for key in keys)}
        silent = set()
        for address in set(at.values()) | self.avoided:
            try:
                await asyncio.wait_for(self.call(address, "weft_alive"), SILENT)
                self.avoided.discard(address)
            except Exception:
                silent.add(address)
        self.avoided |= silent
        for element, address in at.items():
            if address in silent and not element.over and element.worker is None:
                if not self._others():
                    self.over(element, lost=f"{address} does not answer, and there is no other worker")
                else:
                    text = f"{address} does not answer; {element.start['label']} waits for another worker"
                    self.launcher.say(did="note", text=text)
                    self._cancel(element)
                    self._submit(element)

    async def _room(self) -> None:
        """Memory that waits for a thread while elements of this run have some: they may have invoked it, and wait for it."""
        waited: set[str] = set()
        while True:
            await asyncio.sleep(ROOM)
            wait = {e.key for e in self.elements.values() if e.start.get("memory") and not e.over and e.worker is None}
            waited, both = wait, wait & waited
            if not both or not any(e.host for worker in self.workers.values() for e in worker.elements.values()):
                continue
            try:
                processing = await asyncio.wait_for(self.client.scheduler.processing(), SILENT)
                for address, keys in processing.items():
                    count = sum(str(key) in both for key in keys)
                    if count and address not in self.avoided:
                        await asyncio.wait_for(self.call(address, "weft_room", count=count), SILENT)
            except Exception:
                pass  # patience() finds out who is lost
            waited = set()  # a thread may need a while

    def _others(self) -> list[str]:
        """The workers that are not known to be silent."""
        return [address for address in self.addresses if address not in self.avoided]

    def _done(self, element: Element, future: Any) -> None:
        """Dask has no more to do with a task."""
        if element.over or future is not element.future or future.status != "error":
            return

        async def why() -> None:
            error = await future.exception()
            if not element.over:
                self.over(element, error=f"Dask could not run it: {sentence(error)}")
        asyncio.ensure_future(why())

    def over(self, element: Element, **how: Any) -> None:
        """An element is over, and no agent says so."""
        if element.over:
            return
        self.forget(element)
        status = how.pop("status", 1 << 8 if "error" in how else SIGKILL)
        self.launcher.say(did="over", n=element.number, status=status, **how)

    def forget(self, element: Element) -> None:
        """It is over."""
        element.over = True
        if element.worker is not None:
            element.worker.elements.pop(element.number, None)
        if element.worker is None or element.worker.lost:
            self._cancel(element)
        element.future = None
        element.lines = []
        self._take(element, "")
        self._let_go(element)

    @staticmethod
    def _cancel(element: Element) -> None:
        """Dask shall not start it, or not again."""
        future, element.future = element.future, None
        if future is not None:
            asyncio.ensure_future(quietly(future.cancel()))


def host_of(address: str) -> str:
    """Of "tcp://10.0.0.1:4711"."""
    return address.split("://", 1)[-1].rsplit(":", 1)[0]
