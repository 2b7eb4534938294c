"""The action of a container: initialised once, then activated again and again, one activation at a time.

    EMPTY --/init--> LOADING --> READY --/run--> RUNNING --> READY
    LOADING --its code is bad--> EMPTY: another /init may be tried
    any --stop()--> STOPPED

The code runs in a process of its own (child.py), which stays from one activation to the next. One that dies is answered for, and
another one takes its place when the next activation comes. So does one whose activation did not end in time: Python's threads
cannot be killed, processes can.

Promise: every /run is answered by its deadline, and both streams then have the sentinel after all that was printed; nothing
secret is in errors and logs. tests/python/test_openwhisk_init.py, test_openwhisk_run.py and test_openwhisk_transport.py hold us
to it.
"""
from __future__ import annotations

import json
import os
import threading
import time

from .._callback import key_for
from . import code
from .child import Child, Late, Lost, reap_others
from .output import Output, Secrets
from .routes import durls
from .web import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOADING = 600.0       # seconds; the client of /init gives up earlier
LEAD, SHARE = 1.0, 0.2  # how long before the deadline an activation is told to end: seconds, or share of its time
WRITING = 5.0         # seconds for somebody to read the output
CONFIGURING = 10.0
EARLY, MOST_EARLY = 60.0, 256  # transports for future activations: seconds to keep them, how many
ENDING = 2.0
NOT_ENV = ("value", "transports")


class Activation:
    """One /run that is under way."""

    def __init__(self, number: int, ids: set[str], named: set[str]) -> None:
        self.number, self.ids, self.named = number, ids, named


class Runtime:
    """The action. `callback` is the URL at which others reach this runtime, `address` this container's address."""

    def __init__(self, folder: str, address: str) -> None:
        self.folder, self.address = folder, address
        self.callback = ""
        self.key = os.urandom(32).hex()
        self.secrets = Secrets()
        self.secrets.add(self.key)
        self.out, self.err = Output(1, self.secrets), Output(2, self.secrets)
        self._lock = threading.Lock()
        self._state = "EMPTY"
        self._load: dict[str, Any] = {}
        self._child: Child | None = Child(self.out.write_fd, self.err.write_fd)  # it starts before /init arrives
        self._activation: Activation | None = None
        # (when, activation, transport or "" for one that is to be added, durl)
        self._early: list[tuple[float, str, str, str]] = []
        self._over: list[str] = []  # ids of the last activations
        self._runs = 0

    # --- /init

    def init(self, value: object) -> None:
        """Take the code in. Refusal: 403 it was done, 400 the request is wrong, 502 the code is."""
        try:
            said = code.wanted(value)
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        with self._lock:
            if self._state != "EMPTY":
                raise Refusal(403, "Cannot initialize the action more than once.")
            self._state = "LOADING"
        try:
            self._init(said)
        except Exception as error:
            self.drop_child()
            empty(self.folder)
            no = error if isinstance(error, Refusal) else self.failed(502, f"Initialization has failed: {ours(error)}", "")
            self.move("LOADING", "EMPTY")
            raise no from None
        self.move("LOADING", "READY")

    def _init(self, said: dict[str, Any]) -> None:
        os.makedirs(self.folder, 0o700, exist_ok=True)
        env = {name: value if isinstance(value, str) else json.dumps(value) for name, value in (said.get("env") or {}).items()}
        if any("\0" in value for value in env.values()):
            raise Refusal(400, "env of /init has a value with a zero in it")
        try:
            self._load = {"do": "load", "env": env, **code.unpack(said, self.folder)}
        except code.Unusable as error:
            raise self.failed(502, f"Initialization has failed: {error}", "") from None
        try:
            why, trace = self.ready(time.monotonic() + LOADING)
        except Late:
            why, trace = f"the code did not load within {LOADING:g} s", ""
        if why:
            raise self.failed(502, f"Initialization has failed: {why}", trace)

    def ready(self, until: float | None) -> tuple[str, str]:
        """There is a process with the code in it; or why there is none, and the traceback. Late."""
        if self._child is None:
            self._child = Child(self.out.write_fd, self.err.write_fd)
        child = self._child
        if child.loaded:
            return "", ""
        try:
            child.send(self._load, until)
            while (said := child.answer(until)).get("did") not in ("loaded", "error"):
                pass
        except Lost as lost:
            self.drop_child()
            return f"{lost} while its code was loaded", ""
        if said["did"] == "error":
            self.drop_child()
            return str(said.get("error")), str(said.get("traceback") or "")
        child.loaded = True
        return "", ""

    # --- /run

    def run(self, said: dict[str, Any]) -> str:
        """One activation; its result as JSON. Refusal: 409 there is one, 502 it failed."""
        line, activation, until = self.understood(said)
        begun = time.monotonic()
        with self._lock:
            if self._state != "READY":
                raise Refusal(*{"EMPTY": (502, "The action is not initialized: POST /init comes first."),
                                "LOADING": (409, "The action is being initialized."),
                                "RUNNING": (409, "An activation is running, and one runs at a time here."),
                                "STOPPED": (503, "The runtime is ending.")}[self._state])
            self._state = "RUNNING"
            self._runs += 1
            activation.number = line["run"] = self._runs
            self._activation = activation
            early = [(name, durl) for when, aid, name, durl in self._early if aid in activation.ids and begun - when < EARLY]
            line["added"] = [durl for name, durl in early if not name]
            activation.named |= {durl.partition(";")[0] for durl in line["added"]}
            line["early"] = [text for name, durl in early if name in activation.named for text in (name, durl)]
            self._early = [one for one in self._early if one[1] not in activation.ids]
        text, trace = "", ""
        try:
            value, text, trace = self.activate(line, begun, until)
        except Exception as error:  # an error in our code must still end the activation
            self.drop_child()
            text = f"The action could not be run: {ours(error)}"
        if text:
            no = self.failed(502, text, trace)
        else:
            self.end_of_logs(trace)
        with self._lock:
            self._activation = None
            self._over = [*activation.ids, *self._over][:16]
        self.move("RUNNING", "READY")
        if self._child is not None:
            reap_others(self._child.pid)
        if text:
            raise no
        return json.dumps(value)

    def understood(self, said: dict[str, Any]) -> tuple[dict[str, Any], Activation, float | None]:
        """What /run says, checked: the line for the child, the activation, and its deadline on our clock."""
        params = said.get("value")
        if params is None:
            params = {}
        if not isinstance(params, (dict, list)):
            raise Refusal(400, "value of /run should be an object: the parameters of the activation")
        transports = durls(said.get("transports"))
        for key in ("activation_id", "function_activation_id", "app_activation_id", "name"):
            if said.get(key) is not None and not isinstance(said[key], str):
                raise Refusal(400, f"{key} of /run should be a text")
        profile = said.get("profile") or 0
        if not isinstance(profile, (int, str)) or isinstance(profile, int) and not 0 <= profile <= 1 << 20:
            raise Refusal(400, "profile of /run should be where Scad's monitor posts to, or how many calls are to be recorded")
        deadline, until = milliseconds(said.get("deadline")), None
        if deadline is not None:
            until = time.monotonic() + deadline / 1000 - time.time()
        if isinstance(said.get("api_key"), str):
            self.secrets.add(said["api_key"])
            self.secrets.add(said["api_key"].partition(":")[2])
        for durl in transports:
            self.secrets.add_durl(durl)
        weft: Any = {}
        if isinstance(params, dict) and isinstance(params.get("__weft"), dict):
            weft = params["__weft"]
            params = {key: one for key, one in params.items() if key != "__weft"}
            if isinstance(weft.get("configure"), str):
                self.secrets.add(weft["configure"].partition("key=")[2])
        aid = said.get("activation_id") or said.get("function_activation_id") or ""
        kw = {key: said[key] for key in ("name", "function_activation_id", "app_activation_id") if said.get(key) is not None}
        if isinstance(said.get("action_name"), str):  # as Scad's launcher has it
            kw["name"] = "/".join(said["action_name"].split("/")[-2:])
        if isinstance(profile, str):
            kw, profile = {**kw, "post_url": profile, "plugins": "monitor"}, 0
        line = {"do": "run", "id": aid, "params": params, "transports": transports, "profile": profile, "deadline": deadline,
                "env": {**environment(said), "WEFT_ELEMENT_CALLBACK": self.callback, "WEFT_ELEMENT_CALLBACK_KEY": self.key},
                "kw": {**kw, "weft": weft}, "address": self.address}
        ids = {one for one in (said.get("activation_id"), said.get("function_activation_id")) if one}
        return line, Activation(0, ids, {durl.partition(";")[0] for durl in transports}), until

    def activate(self, line: dict[str, Any], begun: float, until: float | None) -> tuple[Any, str, str]:
        """Run it in the child: the value, or an error and its traceback."""
        lead = None if until is None else min(LEAD, SHARE * max(until - begun, 0))
        over = False
        if until is not None and until <= begun:
            return None, ("The deadline had passed before the activation began: are the clocks of this machine and of "
                          "OpenWhisk's "
                          "right?"), ""
        try:
            why, trace = self.ready(until)
            if why:
                return None, f"the action's code could not be loaded again: {why}", trace
            child = self._child
            assert child is not None
            child.send(line, until)
            # steps: let it run; end calls that wait; end calls that are under way
            steps = [None] if until is None or lead is None else [until - lead, until - lead / 2, until]
            for number, step in enumerate(steps):
                try:
                    return self.outcome(child, line["run"], step, over)
                except Late:
                    over = True
                    if number + 1 < len(steps):
                        child.send({"do": "close" if number else "terminate", "run": line["run"]}, until)
            raise Late
        except Late:
            self.drop_child()
            return None, "The action did not end in time: its deadline has passed, and its process was ended.", ""
        except Lost as lost:
            self.drop_child()
            if self._state == "STOPPED":
                return None, "The action did not return: the runtime was told to end, and ended the action's process.", ""
            return None, f"The action did not return: {lost}" + ("" if str(lost).endswith("?") else "."), ""

    def outcome(self, child: Child, number: int, until: float | None, over: bool) -> tuple[Any, str, str]:
        """The last line of an activation. Late, Lost."""
        while True:
            said = child.answer(until)
            if said.get("run") != number:
                continue
            if said.get("did") == "result" and isinstance(said.get("value"), (dict, list)):
                return said["value"], "", ""
            if said.get("did") in ("error", "result"):
                late, trace = " (the activation's time was over)" if over else "", str(said.get("traceback") or "")
                if isinstance(said.get("raised"), str) and not over:  # by the program: a result, as in Scad's runtime
                    return {"error": self.secrets.clean(said["raised"])}, "", trace + ("" if trace.endswith("\n") else "\n")
                return None, str(said.get("error") or "the action's result is not one") + late, trace

    # --- /action/AID...

    def later(self, aid: str, name: str, many: list[str]) -> bool:
        """Whether the activation may be yet to come: then these durls are kept for it."""
        with self._lock:
            if self._activation is not None or self._state == "STOPPED" or aid in self._over:
                return False
            now = time.monotonic()
            self._early = [*self._early, *((now, aid, name, durl) for durl in many)][-MOST_EARLY:]
            return True

    def running(self, aid: str) -> tuple[Activation, Child]:
        """The activation that runs, and its process. Refusal: 404 it is another one."""
        with self._lock:
            activation, child = self._activation, self._child
        if activation is None or child is None or aid not in activation.ids:
            raise Refusal(404, "there is no such activation here: it is over, or has not begun")
        return activation, child

    def ask(self, child: Child, said: dict[str, Any]) -> dict[str, Any]:
        """What the process of the running activation has to say. Refusal: it is gone, or does not want that."""
        try:
            got = child.ask(said, CONFIGURING)
        except Late:
            raise Refusal(503, "the action does not let itself be told; try again") from None
        except Lost:
            raise Refusal(404, "there is no such activation here: its process ended") from None
        status = got.get("status")
        if status != 200:
            raise Refusal(status if status in (400, 403, 404, 409) else 400, self.secrets.clean(str(got.get("error"))))
        return got

    def configure(self, aid: str, name: str, durl: str, key: str | None) -> int:
        """Say where a transport of the running activation leads: 200. Refusal: 404 there is none of them, 403 the key, 400 the
        durl.

        Scad's controller may say so before the activation comes: 202, and what it said is kept for that. Whoever has a key knows
        the activation.
        """
        self.secrets.add_durl(durl)
        if key is None and self.later(aid, name, [durl]):
            return 202
        activation, child = self.running(aid)
        if key is not None:
            import hmac
            if not hmac.compare_digest(key_for(self.key, aid, name).encode(), key.encode("utf-8", "surrogatepass")):
                raise Refusal(403, "the key is not that of this transport")
        self.ask(child, {"do": "config", "run": activation.number, "name": name, "durl": durl,
                         "keyed": key is not None or name in activation.named})
        return 200

    def add(self, aid: str, many: list[str], again: bool) -> int:
        """Give the activation more transports: 200, or 202 if it is yet to come. Refusal: 409 there is one of that name, unless
        it is said `again`; 400 a durl; 404 the activation is over."""
        for durl in many:
            self.secrets.add_durl(durl)
        if self.later(aid, "", many):
            return 202
        activation, child = self.running(aid)
        self.ask(child, {"do": "add", "run": activation.number, "durls": many, "again": again})
        activation.named |= {durl.partition(";")[0] for durl in many}
        return 200

    def messages(self, aid: str) -> dict[str, str]:
        """What the transports of the running activation have to say. Refusal: 404 there is no such activation."""
        activation, child = self.running(aid)
        found = self.ask(child, {"do": "messages", "run": activation.number}).get("messages")
        return {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}

    # --- the end

    def stop(self) -> None:
        """Tell what runs to end, wait a little for it, and end it."""
        with self._lock:
            state, self._state = self._state, "STOPPED"
            activation, child = self._activation, self._child
        if activation is not None and child is not None:
            until = time.monotonic() + ENDING
            try:
                child.send({"do": "terminate", "run": activation.number}, until)
            except (Late, Lost):
                pass
            while self._activation is not None and time.monotonic() < until:
                time.sleep(0.01)
        if child is not None:
            child.close()
        until = time.monotonic() + ENDING
        while self._activation is not None and state == "RUNNING" and time.monotonic() < until:
            time.sleep(0.01)  # its request is being answered
        empty(self.folder)

    # --- what all of it needs

    def move(self, before: str, after: str) -> None:
        """To another state, unless it was stopped meanwhile."""
        with self._lock:
            if self._state == before:
                self._state = after

    def drop_child(self) -> None:
        """The process is of no use any more."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def failed(self, status: int, text: str, trace: str) -> Refusal:
        """Say it on stderr, end the logs, and make the answer of it."""
        said = trace or text  # the last line of a traceback has the message
        self.end_of_logs(said + ("" if said.endswith("\n") else "\n"))
        return Refusal(status, self.secrets.clean(text))

    def end_of_logs(self, error: str) -> None:
        """The sentinels, after all that was printed. Where nobody reads that, the answer does not wait for ever."""
        until = time.monotonic() + WRITING
        for done in [self.err.mark(error), self.out.mark()]:
            done.wait(max(until - time.monotonic(), 0))


def ours(error: Exception) -> str:
    """What went wrong on this side of the socket."""
    if isinstance(error, OSError) and error.strerror:
        return f"there can be no process or folder for it: {error.strerror}"
    return f"{type(error).__name__} in the runtime itself"


def milliseconds(value: object) -> float | None:
    """A deadline: OpenWhisk sends a number or its digits."""
    if value is None or value == "":
        return None
    try:
        found = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        found = -1.0
    if not 0 <= found < 1e15:
        raise Refusal(400, "deadline of /run should be milliseconds since 1970")
    return found


def environment(said: dict[str, Any]) -> dict[str, str]:
    """The fields of /run as variables: __OW_ACTIVATION_ID and so on."""
    found = {}
    for key, value in said.items():
        if key in NOT_ENV or value is None or not key.isascii() or not key.isidentifier() or len(key) > 64:
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if "\0" in text:
            raise Refusal(400, f"{key} of /run has a zero in it")
        found["__OW_" + key.upper()] = text
    if "__OW_ACTIVATION_ID" in found:
        found["__OW_AID"] = found["__OW_ACTIVATION_ID"]  # as Scad's launcher calls it
    return found


def empty(folder: str) -> None:
    """Remove a folder with all that is in it."""
    import shutil
    shutil.rmtree(folder, ignore_errors=True)
