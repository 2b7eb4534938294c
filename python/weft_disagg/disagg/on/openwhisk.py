"""The bridge to OpenWhisk: a process of the run is an activation. `weft run --on openwhisk DIR` starts it.

A process:     CREATING -> INVOKED    its action is there, and OpenWhisk has taken the invocation
               INVOKED -> JOINED      its container has called us (openwhisk_line.py): what was said to it until then is sent
               JOINED -> OVER         its agent said so; or the line ended, and the record of the activation says why
               INVOKED -> OVER        it was told to end before it had joined, or the record says that the activation ended
               CREATING -> OVER       there can be no action or no activation

With --address none there is no line. Then what the process is told is in the parameters of the invocation, and what it says in
the result and the logs of the record, which is polled. Memory elements need a line.

Actions are in a package of the run's own, which is deleted with them in the end: also if the launcher is killed. What a bridge
leaves that is killed itself, the next one on this machine deletes (openwhisk_actions.py). tests/python/test_on_openwhisk.py and
test_on_openwhisk_faults.py hold us to it.
"""
from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

from .bridge import Failed, Launcher, sentence
from .openwhisk_actions import Actions
from .openwhisk_api import HERE, PAUSE, Api, Busy, Refused, Trouble, find
from .openwhisk_line import Line, Listener
from .openwhisk_record import outcome, printed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from .._http import Secret

POLL = (0.25, 2.0)   # seconds between looks at an activation: the first, and the longest
INVOKING = 8         # requests at a time
REACH = 30.0         # seconds to reach an OpenWhisk that was there
SILENT = 60.0        # seconds without an answer about an activation: nothing is known of it
PING, UNHEARD = 2.0, 20.0
RECORD = 20.0        # seconds until the record of an activation has to be there that has hung up
JOINING = 10.0       # seconds until one calls of which it is not known whether it was invoked
CLOSING = 12.0       # seconds for the end of all; the launcher waits for 15
DELETING = 8.0       # of them
NOTE = 10.0          # seconds of waiting that are worth a word
SIGKILL, SIGTERM = 9, 15


class Process:
    """One that the launcher has said to start."""

    def __init__(self, number: int, start: dict[str, Any]) -> None:
        self.number, self.start = number, start
        self.label, self.memory = str(start.get("label", number)), bool(start.get("memory"))
        # cpu: OpenWhisk shares processors among containers, and an agent would take its own to be alone there
        self.lines: list[dict[str, Any]] = [{**start, "limits": {**(start.get("limits") or {}), "cpu": 0}}]
        self.activation = ""
        self.line: Line | None = None
        self.over = False
        self.running = self.called = False  # running in OpenWhisk, as far as is known
        self.invoked, self.changed = asyncio.Event(), asyncio.Event()


class Run:
    """The processes of the run."""

    def __init__(self, launcher: Launcher, where: str) -> None:
        self.launcher, self.where = launcher, where
        self.opening: dict[str, Any] = {}
        self.files: list[str] = []
        self.processes: dict[int, Process] = {}
        self.api: Api | None = None
        self.actions: Actions | None = None
        self.listener: Listener | None = None
        self._sending = asyncio.Semaphore(INVOKING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._noted: set[str] = set()

    def task(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something meanwhile."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note(self, text: str, once: str = "") -> None:
        """For people."""
        if once not in self._noted:
            self._noted.add(once or text)
            self.launcher.say(did="note", text=text)

    # --- beginning and end

    async def open(self) -> None:
        """Find OpenWhisk, and make the package of the run."""
        try:
            self.api = find(self.where)
            image = self.opening.get("image") or ""
            if not image:
                raise Failed("which image runs the actions? --image NAME says so; docker/openwhisk/Dockerfile of Weft makes one")
            if self.opening.get("keep"):
                self.note("--keep keeps nothing on OpenWhisk: containers are not ours")
            address = str(self.opening.get("address") or "")
            if address != "none":
                self.listener = Listener(self._wanted, self._joined)
                await self.listener.open(address, (self.api.server.host, self.api.server.port))
            self.actions = Actions(self.api, image, self.files)
            self.files = []
            await self.actions.open()
            self.launcher.say(did="ready", version=version())
            if self.listener is not None:
                self.task(self._keep())
        except Failed as error:
            self.launcher.say(did="failed", error=str(error))

    async def close(self) -> None:
        """End what is left, and delete the actions."""
        lines = [p.line for p in self.processes.values() if p.line is not None and not p.line.ended]
        on = [p.label for p in self.processes.values() if p.running]
        for p in self.processes.values():
            p.over = True
            p.changed.set()
        for line in lines:
            line.say('{"do": "close"}')
        until = time.monotonic() + CLOSING
        while time.monotonic() < until - DELETING and (any(not line.ended for line in lines) or self._expected()):
            await asyncio.sleep(0.02)
        for line in lines:
            line.close()
        if self.actions is not None:
            said = await self.actions.close(until)
            if said:
                self.note(said)  # what we print is not shown any more
        if on and self.listener is None:
            self.note(f"OpenWhisk has no request that ends an activation: {', '.join(on[:8])}{', ...' if len(on) > 8 else ''} "
                      f"may run on, for at most {self.actions.seconds if self.actions else 300:g} s")
        if self.listener is not None:
            await self.listener.close()
        for task in list(self._tasks):
            task.cancel()
        if self.api is not None:
            self.api.close()

    def _expected(self) -> bool:
        """Whether activations that nobody wants any more may still call: they are told to leave, and need not find out."""
        return self.listener is not None and any(p.running and not p.called for p in self.processes.values())

    # --- what the launcher says

    def told(self, text: str, said: dict[str, Any]) -> None:
        """One line."""
        do, number = said.get("do"), said.get("n")
        if do == "open":
            self.opening = said
        elif do == "file":
            self.files.append(text)
        elif do == "begin":
            self.task(self.open())
        elif do == "start" and isinstance(number, int):
            p = self.processes[number] = Process(number, said)
            self.task(self._carry(p))
        elif isinstance(number, int) and number in self.processes and not self.processes[number].over:
            self._pass(self.processes[number], text, said)

    def _pass(self, p: Process, text: str, said: dict[str, Any]) -> None:
        if p.line is not None:
            p.line.say(text)
        elif said["do"] == "signal":
            self.over(p, status=SIGKILL if said.get("number") == SIGKILL else SIGTERM)
        elif self.listener is None and p.activation:
            pass  # nothing reaches it there; a signal comes soon
        else:
            p.lines.append(said)
            p.changed.set()

    # --- a process

    async def _carry(self, p: Process) -> None:
        """Its life."""
        assert self.actions is not None
        try:
            if self.listener is None:
                await self._whole(p)
            name = await self.actions.make(p.label, p.memory, p.start)
            for number in p.start.get("near") or ():
                if number in self.processes and not p.memory:
                    await self.processes[number].invoked.wait()  # where activations are few, memory goes first
            if await self._invoke(p, name):
                p.invoked.set()
                await self._watch(p)
        except Failed as error:
            self.fail(p, str(error))
        except Exception as error:  # an error in our code must not leave the launcher waiting
            self.fail(p, f"the bridge to OpenWhisk failed ({sentence(error)})")
        finally:
            p.invoked.set()

    async def _whole(self, p: Process) -> None:
        """Without a line all that it needs has to be known before."""
        if p.memory:
            raise Failed("memory elements need a line from their containers to the launcher, and --address none says that "
                         "there is none")
        while not p.over and not any(line["do"] == "tell" for line in p.lines):
            await p.changed.wait()
            p.changed.clear()

    def _body(self, p: Process) -> Secret:
        """The parameters of its invocation."""
        from .._http import Secret
        opening = {key: self.opening[key] for key in ("version", "key", "weft") if key in self.opening}
        about: dict[str, Any] = {"n": p.number, "open": {"do": "open", **opening, "keep": False}}
        if self.listener is not None:
            about.update(line=self.listener.place, key=self.listener.key(p.number))
        else:
            about.update(lines=p.lines)
        return Secret(json.dumps({"__weft": about}))

    async def _invoke(self, p: Process, name: str) -> bool:
        """Invoke its action, once; wait where OpenWhisk has enough to do. False: it is not wanted any more."""
        assert self.api is not None and self.actions is not None
        path, what = f"{HERE}/actions/{self.actions.path(name)}?blocking=false&result=false", f"invoke {p.label}"
        body = self._body(p)
        began, pause = time.monotonic(), PAUSE[0]
        async with self._sending:
            while not p.over:
                try:
                    p.running = True  # from now on it may be
                    said = await self.api.ask("POST", path, what, body)
                    break
                except Busy as error:
                    wait = error.after if error.after is not None else pause
                    if time.monotonic() - began > NOTE:
                        self.note(f"{error}; {p.label} and others wait until there are fewer", "busy")
                except Refused as error:
                    p.running = False
                    if error.status == 413:
                        raise Failed(f"{error}: its parameters, with the results of its parents, have {len(body.text)} bytes. "
                                     "What is large belongs in a memory element") from None
                    raise
                except Trouble as error:
                    if error.asked:
                        return await self._unknown(p, str(error))
                    p.running, wait = False, pause
                    if time.monotonic() - began > REACH:
                        raise
                p.running = False
                until, pause = time.monotonic() + wait, min(2 * pause, PAUSE[1])
                while not p.over and time.monotonic() < until:
                    await asyncio.sleep(min(0.25, wait))
            else:
                return False
        activation = said.get("activationId") if isinstance(said, dict) else None
        if not isinstance(activation, str) or not activation.isalnum() or len(activation) > 256:
            raise Failed(f"{self.api.server} answered without an activationId when asked to {what}: is it an OpenWhisk? It is "
                         "not known whether it was started")
        p.activation = activation
        if self.listener is None:  # nobody else says so before it is over
            self.launcher.say(did="started", n=p.number, where=f"activation {activation}")
        return True

    async def _unknown(self, p: Process, why: str) -> bool:
        """The answer to an invocation was lost: was it carried out? If it calls, yes."""
        until = time.monotonic() + (JOINING if self.listener is not None else 0)
        while p.line is None and not p.over and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if p.line is None and not p.over:
            raise Failed(f"{why}. It is not known whether it was started, and it is not started again")
        return True

    async def _watch(self, p: Process) -> None:
        """Until it is over: by its line, or by the record of its activation."""
        assert self.api is not None
        pause, silent, late, why = POLL[0], 0.0, 0.0, ""
        while not p.over:
            p.changed.clear()
            if p.line is not None and not p.line.ended:
                await p.changed.wait()
                pause = POLL[0]
                continue
            now = time.monotonic()
            record = None
            try:
                record = await self.api.ask("GET", f"{HERE}/activations/{p.activation}", f"say what became of {p.label}")
                silent = 0.0
            except Refused as error:
                if error.status == 404:  # it has not ended
                    silent = 0.0
                elif self.listener is None:
                    raise
                else:  # it may call all the same
                    silent, why = silent or now, str(error)
            except Trouble as error:
                silent, why = silent or now, str(error)
            if p.line is not None:
                late = late or now + RECORD
            if isinstance(record, dict) and (p.line is None or p.line.ended):
                await self._recorded(p, record)
            elif late and now > late:
                self.over(p, lost="the connection to its container ended")
            elif silent and now - silent > SILENT:
                self.over(p, lost=f"nothing was heard of it for {SILENT:g} s: {why}")
            if p.over:
                break
            try:
                await asyncio.wait_for(p.changed.wait(), pause)
            except asyncio.TimeoutError:
                pause = min(1.5 * pause, POLL[1])

    # --- what containers say

    def _wanted(self, number: int) -> bool:
        """The activation of a process calls."""
        p = self.processes.get(number)
        if p is None:
            return False
        p.called = True
        return not p.over and p.line is None

    def _joined(self, number: int, line: Line) -> Coroutine[Any, Any, None]:
        """It has joined: what was said to it so far is sent, before anything else can be; what reads its lines."""
        p = self.processes[number]
        p.line = line
        p.activation = p.activation or line.activation  # the answer to the invocation may come later
        line.say(*(json.dumps(one) for one in p.lines))
        p.lines = []
        p.changed.set()
        return self._read(p, line)

    async def _read(self, p: Process, line: Line) -> None:
        try:
            async for text in line.lines():
                try:
                    said = json.loads(text)
                    assert isinstance(said, dict)
                except (ValueError, AssertionError, RecursionError):
                    break  # not an agent: nothing it says is worth more
                self.heard(p, text, said)
                line.held = True
                await self.launcher.drained()
                line.held, line.heard_at = False, time.monotonic()
        except OSError:
            pass
        finally:
            line.close()
            p.changed.set()

    def heard(self, p: Process, text: str, said: dict[str, Any]) -> None:
        """A line of its agent, or of what runs that."""
        did = said.get("did")
        if p.over:
            return
        if did == "ready":
            if said.get("version") != version():
                self.launcher.say(did="failed", error=f"the image has version {said.get('version')} of Weft, and this is "
                                                      f"{version()}: build it again")
        elif did == "gone":
            if said.get("late"):
                self.late(p)
            elif said.get("unable"):
                self.fail(p, str(said.get("why")))
            else:
                self.over(p, lost=str(said.get("why")))
        elif did == "note":
            self.note(f"{p.label}: {said.get('text')}")
        elif did == "failed":
            self.fail(p, str(said.get("error")))
        elif said.get("n") != p.number:
            pass
        elif did == "started":
            self.launcher.say(**{**said, "where": f"activation {p.activation}"})
        elif did in ("heard", "printed", "asked"):
            self.launcher.pass_on(text)
        elif did == "over":
            self.forget(p)
            self.launcher.pass_on(text)

    async def _keep(self) -> None:
        """Notice containers that are there and say nothing."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(PING)
            now = time.monotonic()
            held = max(0.0, now - before - 2 * PING)  # we were stopped ourselves
            before = now
            for p in list(self.processes.values()):
                line = p.line
                if line is None or line.ended:
                    continue
                line.heard_at += held
                if now - line.heard_at > UNHEARD and not line.held:
                    self.over(p, lost=f"its container has not answered for {UNHEARD:g} s")
                else:
                    line.say('{"do": "ping"}')

    # --- records

    async def _recorded(self, p: Process, record: dict[str, Any]) -> None:
        """OpenWhisk says that an activation ended, and nobody else has."""
        assert self.actions is not None
        p.running = False
        if p.line is None:
            await self._printed(p, record)
        how = outcome(record, self.actions.megabytes(p.memory, p.start))
        if how.late:
            self.late(p)
        elif how.error:
            self.fail(p, how.error)
        elif how.lost:
            self.over(p, lost=how.lost)
        else:
            for said in how.said or ():
                self.heard(p, json.dumps(said), said)
            self.over(p, lost="its activation ended before it did")  # unless it was among them

    async def _printed(self, p: Process, record: dict[str, Any]) -> None:
        """What is in the logs of an activation."""
        assert self.api is not None
        logs = record.get("logs")
        if not logs:  # some installations keep them elsewhere
            try:
                said = await self.api.ask("GET", f"{HERE}/activations/{p.activation}/logs", f"show the logs of {p.label}")
                logs = said.get("logs") if isinstance(said, dict) else None
            except Failed:
                pass
        for stream, text in printed(logs):
            if not p.over:
                self.launcher.say(did="printed", n=p.number, stream=stream, line=text)

    # --- ends

    def late(self, p: Process) -> None:
        """The time of its activation is over."""
        assert self.actions is not None
        self.fail(p, f"the time of its activation is over: this OpenWhisk gives an action {self.actions.seconds:g} s at most")

    def fail(self, p: Process, why: str) -> None:
        """It is over, by no fault of a machine. Of memory the launcher tells why only if it was lost."""
        self.over(p, **({"lost": why} if p.memory else {"error": why}))

    def over(self, p: Process, **how: Any) -> None:
        """It is over, and its agent did not say so."""
        if p.over:
            return
        self.forget(p)
        status = how.pop("status", 1 << 8 if "error" in how else SIGKILL)
        self.launcher.say(did="over", n=p.number, status=status, **how)

    def forget(self, p: Process) -> None:
        """It is over."""
        p.over = True
        p.lines = []
        p.changed.set()
        if p.line is not None and not p.line.ended:
            p.line.say('{"do": "close"}')


def version() -> str:
    """Of what is here."""
    from weft import __version__
    return str(__version__)


async def main(where: str) -> None:
    """All of it."""
    launcher = await Launcher.connect()
    run = Run(launcher, where)

    async def listen() -> None:
        async for text, said in launcher.lines():
            run.told(text, said)
    listening = asyncio.ensure_future(listen())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, listening.cancel)
    try:
        await listening
    except asyncio.CancelledError:
        pass
    finally:
        await run.close()
        await launcher.close()


def bridge() -> None:
    """For python -c."""
    asyncio.run(main(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # requests that are still under way would be waited for
