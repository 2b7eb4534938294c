"""python -m disagg.serve.worker: the process that runs the code of an action, one activation after the other.

Lines over a socket that it inherits (WEFT_ELEMENT_FD) say what to do, as for a compute element; docs/design/launcher.md has them:

    {"do": "load", ...}                  once   {"did": "loaded"} or {"did": "error", ...}
    {"do": "run", "run": N, ...}                {"did": "begin"}, {"did": "stats"}, then {"did": "result"} or {"did": "error"},
                                                all with "run": N
    {"do": "config", "run": N, "ask": M, ...}   {"did": "config", "ask": M, "status": 200}, or another status and an "error"
    {"do": "add", "run": N, "ask": M, ...}      the same for new transports; "messages": what they all have to say
    {"do": "terminate", "run": N}               action.terminate(): what waits in the activation is ended
    {"do": "close", "run": N}                   action.close(): what is under way is ended, too

The code runs in the main thread; a second one listens. Modules and their globals stay from one activation to the next; variables
of the environment that came with an activation do not. The end of the socket is the end of this process, whatever its code is at.

Promise: one last line for each load and run, after everything that the code printed was flushed, unless the process dies; no
token of a durl, which is the key of its memory, in it. tests/python/test_openwhisk_run.py and test_openwhisk_transport.py hold us
to it.
"""
from __future__ import annotations

import json
import os
import sys
import threading
import time
from _queue import SimpleQueue

from .. import element
from .._lines import Lines, Refused, descriptors, field, message
from ..action import LibdAction, complete
from ..element import as_json, call, failure, moved, takes_one
from ..results import results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LAST = 2.0     # seconds between the end of the socket and the end of the process
OPENING = 5.0  # seconds that a new activation has to open its action
OURS = (__file__, element.__file__)
HIDDEN = ("WEFT_ELEMENT_CALLBACK", "WEFT_ELEMENT_CALLBACK_KEY")


class Forbidden(Exception):
    """A transport that needs a key; the sentence is for people."""


class Nobody(Exception):
    """There is no such transport."""


def told(error: BaseException) -> tuple[str, str]:
    """What there is to say of an exception, from the action's own code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in OURS:
        trace = trace.tb_next
    return failure(error.with_traceback(trace))


def flush() -> None:
    """Everything that was printed is in the pipes: by Python, and by C code that uses stdio."""
    for stream in {id(one): one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        try:
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass  # the program closed or replaced it
    if "ctypes" in sys.modules:
        try:
            sys.modules["ctypes"].CDLL(None).fflush(None)
        except (AttributeError, OSError):
            pass


def durl_parts(durl: str) -> dict[str, Any]:
    """A durl, taken apart. ValueError: it is none."""
    from weft._core import durl_parse
    return durl_parse(durl)


class Worker:
    """What is loaded, and the activation that runs."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.pid = os.getpid()
        self.jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.main: Callable[..., Any] | None = None
        self.memory: dict[str, Any] | None = None
        self._saying = threading.Lock()
        self._changed = threading.Condition()
        self._action: LibdAction | None = None
        self._opened = self._done = self._over = 0  # counts of runs: action opened, done, time over
        self._until: float | None = None
        self._before: dict[str, str | None] = {}
        self._in_main = False

    def say(self, line: str) -> None:
        """A line for the runtime."""
        with self._saying:
            self.lines.say(line)

    # --- the listening thread

    def listen(self) -> None:
        """What the runtime says, until it is gone."""
        try:
            while (line := self.lines.read()) is not None:
                said = message(line)
                if said.get("do") in ("load", "run"):
                    self.jobs.put(said)
                elif said.get("do") in ("config", "add", "messages"):
                    self.say(json.dumps({"did": said["do"], "ask": said.get("ask"), **self.told_of(said)}))
                elif said.get("do") in ("terminate", "close"):
                    self.end(int(said["run"]), said["do"] == "close")
        except (OSError, Refused, KeyError, ValueError):
            pass
        self.jobs.put(None)
        with self._changed:
            action = self._action
        if action is not None:
            action.terminate()
        time.sleep(LAST)
        os._exit(1)

    def end(self, number: int, close: bool) -> None:
        """The time of an activation is over."""
        with self._changed:
            self._over = max(self._over, number)
            action = self._action if self._opened == number else None
        if action is not None:
            action.terminate()
            if close:
                action.close()

    def told_of(self, said: dict[str, Any]) -> dict[str, Any]:
        """Something about transports of the running activation; the status and the sentence that the one who said so gets."""
        number = said.get("run", 0)
        with self._changed:
            self._changed.wait_for(lambda: self._opened >= number or self._done >= number, OPENING)
            action = self._action if self._opened == number > self._done else None
        if action is None:
            return {"status": 404, "error": "there is no such activation here: it is over, or has not begun"}
        from weft._core import ClosedError, NotFoundError, StateError, WeftError
        try:
            how = {"config": self.config, "add": self.add, "messages": self.messages}[said["do"]]
            return {"status": 200, **how(action, said)}
        except (NotFoundError, ClosedError, Nobody):
            return {"status": 404, "error": f"there is no transport {str(said.get('name'))[:80]!r} in this activation"}
        except Forbidden as error:
            return {"status": 403, "error": str(error)}
        except (WeftError, ValueError, TypeError, OSError, Refused) as error:
            taken = isinstance(error, StateError) and said["do"] == "add"
            return {"status": 409 if taken else 400, "error": self.lines.clean(str(error))}

    def config(self, action: LibdAction, said: dict[str, Any]) -> dict[str, Any]:
        """Say where a transport leads."""
        name, durl = field(said, "name", str, ""), field(said, "durl", str, "")
        self.lines.know(durl)
        if not said.get("keyed") and name not in action._keyless:
            raise Forbidden("this transport is configured with a key: ?key=...") if name in action._types else Nobody
        action.config_transport(name, self.bounded(durl))
        return {}

    def add(self, action: LibdAction, said: dict[str, Any]) -> dict[str, Any]:
        """Add transports; `again`: those that are there stay as they are."""
        for durl in field(said, "durls", list, []):
            self.lines.know(durl)
            if not said.get("again") or durl.partition(";")[0] not in action._types:
                action.add_transport(self.bounded(durl))
        return {}

    @staticmethod
    def messages(action: LibdAction, said: dict[str, Any]) -> dict[str, Any]:
        """What the transports have to say, as far as they have."""
        all_of_them = {name: trans.get_msg() for name, trans in action.raw_transports.items()}
        return {"messages": {name: text for name, (size, text) in all_of_them.items() if size > 0}}

    def bounded(self, durl: str) -> str:
        """A durl whose operations end with the activation's time, where it says nothing else."""
        if self._until is None:
            return durl
        timeout = f"timeout_ms,{max(1, int(1000 * (self._until - time.time())))};"
        if "," in durl.partition(";")[0]:  # only key,value pairs, without name and type
            return durl if "timeout_ms," in durl else f"{durl.rstrip(';')};{timeout}"
        from weft._core import durl_format, durl_parse
        parts = durl_parse(durl)
        if parts.get("timeout_ms") or str(parts.get("impl", "")).endswith("_server"):
            return durl
        return durl_format(parts) + timeout

    # --- the main thread

    def loop(self) -> None:
        """Load, and run, and run."""
        while (said := self.jobs.get()) is not None:
            if said["do"] == "load":
                self.say(self.load(said))
            else:
                self.run(said)

    def load(self, said: dict[str, Any]) -> str:
        """Take in the code of the action."""
        try:
            for name, value in field(said, "env", dict, {}).items():
                os.environ[name] = value
            self.memory = said.get("memory")
            if self.memory is None:
                sys.path[:0] = field(said, "paths", list, [])
                os.chdir(field(said, "path", str, ""))
                module = element.load(said)
                name = field(said, "main", str, "main")
                self.main = getattr(module, name, None)
                if not callable(self.main):
                    raise Refused(f"the code has no function {name}(params), or {name}(params, action)")
                try:
                    import ctypes  # noqa: F401  (for flush(), and not during an activation)
                except ImportError:
                    pass
        except BaseException as error:
            self.not_a_copy()
            text, trace = told(error)
            flush()
            return json.dumps({"did": "error", "error": self.lines.told(text), "traceback": self.lines.told(trace)})
        self.not_a_copy()
        flush()
        return '{"did": "loaded"}'

    def not_a_copy(self) -> None:
        """A process that the code forked, and that came back from it, says nothing here."""
        if os.getpid() != self.pid:
            flush()
            os._exit(0)

    def environment(self, said: dict[str, Any]) -> None:
        """The variables of this activation in place of those of the last."""
        for name, before in self._before.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        env = field(said, "env", dict, {})
        self._before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        for name in HIDDEN:
            if name in env:
                os.unsetenv(name)  # only this process knows it, its children do not

    def run(self, said: dict[str, Any]) -> None:
        """One activation."""
        number, action, self._in_main = said["run"], None, False
        self.say(json.dumps({"did": "begin", "run": number}))
        try:
            deadline = said.get("deadline")
            self._until = deadline / 1000 if deadline is not None else None
            self.environment(said)
            action = self.open(said)
            last = f'{{"did": "result", "run": {number}, "value": {as_json(self.value(said, action))}}}'
        except BaseException as error:
            self.not_a_copy()
            text, trace = told(error)
            failed = {"did": "error", "run": number, "error": self.lines.told(text), "traceback": self.lines.told(trace)}
            if self._in_main and isinstance(error, Exception) and not isinstance(error, Refused):
                failed["raised"] = self.lines.told(str(error)) or type(error).__name__
            last = json.dumps(failed)
        self.not_a_copy()
        with self._changed:
            self._done, self._action = number, None
            self._changed.notify_all()
        stats: dict[str, dict[str, int]] = {}
        if action is not None:
            stats = moved(action)
            if action._monitor is not None and self._until is not None:  # posting the profile leaves time for the result
                action._monitor.within = min(action._monitor.within, max(self._until - time.time(), 0) / 2)
            action.close()
        flush()
        self.say(json.dumps({"did": "stats", "run": number, "transports": stats}))
        self.say(last)

    def open(self, said: dict[str, Any]) -> LibdAction:
        """The activation's action, which from now on can be configured and terminated."""
        action = LibdAction(threading.Condition(), field(said, "id", str, ""), **field(said, "kw", dict, {}))
        try:
            for durl in field(said, "transports", list, []):
                self.lines.know(durl)
                action.add_transport(self.bounded(durl))
            self.added(action, field(said, "added", list, []))
            if said.get("profile"):
                action.record(said["profile"])
            early = field(said, "early", list, [])
            for name, durl in zip(early[::2], early[1::2]):
                self.lines.know(durl)
                action.config_transport(name, self.bounded(durl))
        except BaseException:
            action.close()
            raise
        with self._changed:
            self._action, self._opened = action, said["run"]
            if self._over >= said["run"]:
                action.terminate()
            self._changed.notify_all()
        return action

    def added(self, action: LibdAction, durls: list[str]) -> None:
        """Transports that came before the activation. One that /run has as well is told where it leads, unless it knows."""
        for durl in durls:
            self.lines.know(durl)
            name = durl.partition(";")[0]
            if name not in action._types:
                action.add_transport(self.bounded(durl))
            elif not action._leads(name) and complete(durl_parts(durl)):
                action.config_transport(name, self.bounded(durl))

    def value(self, said: dict[str, Any], action: LibdAction) -> Any:
        """What the activation comes to."""
        params = said.get("params")
        if self.memory is not None:
            from .memory import serve
            return serve(action, self.memory, said)
        if self.main is None:
            raise Refused("no code is loaded")
        given = params if takes_one(self.main) else results(params)
        self._in_main = True
        value = call(self.main, given, action)
        self._in_main = False
        if not isinstance(value, (dict, list, tuple)):
            raise Refused(f"The action did not return a dictionary or an array, but {type(value).__name__}.")
        return value


def main() -> None:
    """Do what the runtime says, to its end."""
    worker = Worker(Lines(*descriptors([])))
    try:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a death is not lost
    except (AttributeError, ValueError):
        pass
    threading.Thread(target=worker.listen, name="disagg-serve", daemon=True).start()
    try:
        worker.loop()
    except ConnectionError:
        pass  # the runtime is gone
    except OSError:
        print("the action's code closed a descriptor that was not its own", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
