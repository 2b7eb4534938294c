"""A small OpenWhisk: namespaces, packages, actions, containers in which `disagg.serve` runs, activations and their records,
limits and errors, as the REST reference of OpenWhisk has them. On loopback.

A container runs one activation at a time and is used again for its action. What can be tested with it is what an action and a
client see of OpenWhisk; that the real one behaves so is written in its documents, and not tested here. What goes wrong on the way
is up to `fault`: see Controller.
"""
import base64
import contextlib
import http.server
import json
import os
import re
import secrets
import signal
import threading
import time
import urllib.parse

from whiskside import BOUND, SENTINEL, Whisk, in_ms

KEY = "23bc46b1-71f6-4ed5-8c54-816aa4f8c502:123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP"
PAYLOAD = 1 << 20   # bytes of the parameters of an invocation, and of a result
CODE = 48 << 20
NAME = re.compile(r"\A(\w|\w[\w@ .-]*[\w@.-]+)\Z", re.ASCII)
STATUS = ("success", "application error", "action developer error", "whisk internal error")
NOTHING = 404, {"error": "The requested resource does not exist."}


class Action:
    """What PUT made of it. `limits` are ms and MB."""

    def __init__(self, name, code, binary, annotations, limits, image=""):
        self.name, self.code, self.binary, self.image = name, code, binary, image
        self.annotations, self.limits = annotations, limits

    def shown(self):
        """As GET answers."""
        package, _, name = self.name.rpartition("/")
        return {"name": name, "namespace": f"guest/{package}" if package else "guest", "publish": False, "version": "0.0.1",
                "exec": {"kind": "blackbox", "image": self.image, "binary": self.binary}, "limits": self.limits, "parameters": [],
                "annotations": [{"key": key, "value": value} for key, value in self.annotations.items()]}


class Activation:
    """One that was started. `status` and `response` are what its container answered, `code` and `result` what OpenWhisk makes of
    it; all are there when it is over."""

    def __init__(self, aid, action, limits):
        self.aid, self.action, self.limits, self.over = aid, action, limits, threading.Event()
        self.status = self.response = self.container = self.end = None
        self.code, self.result, self.logs, self.start = 3, None, [], time.time()

    def wait(self):
        """What its container answered."""
        assert self.over.wait(BOUND), f"{self.action} did not end"
        return self.status, self.response

    def response_shown(self):
        """As a part of the record, and alone."""
        return {"result": self.result, "success": self.code == 0, "status": STATUS[self.code],
                "size": len(json.dumps(self.result))}

    def shown(self):
        """Its record."""
        start, end = int(1000 * self.start), int(1000 * self.end)
        return {"activationId": self.aid, "name": self.action.rpartition("/")[2], "namespace": "guest", "subject": "guest",
                "publish": False, "version": "0.0.1", "start": start, "end": end, "duration": end - start,
                "response": self.response_shown(), "logs": self.logs,
                "annotations": [{"key": "path", "value": f"guest/{self.action}"}, {"key": "kind", "value": "blackbox"},
                                {"key": "limits", "value": self.limits}, {"key": "timeout", "value": False}]}


class Controller:
    """The whole of it. `api_key` is what actions are given, `key` what is right, `env` what containers have in their environment.

    `fault(method, path)` is asked before every request. None: nothing goes wrong. (status, object): the answer, and nothing is
    done. bytes: an answer that is none. "hang": none at all. "lost": the request is carried out, and its answer is lost.
    """

    def __init__(self, key=KEY, api_key=KEY, fault=None, per_minute=10**6, concurrent=10**6, limits=None, env=None, delay=0.0):
        self.key, self.api_key, self.fault, self.env, self.delay = key, api_key, fault, env or {}, delay
        self.per_minute, self.concurrent = per_minute, concurrent
        self.limits = {"minActionMemory": 128, "maxActionMemory": 512, "minActionTimeout": 100, "maxActionTimeout": 300000,
                       "invocationsPerMinute": per_minute, "concurrentInvocations": concurrent, **(limits or {})}
        self.actions, self.packages, self.activations, self.containers, self._idle = {}, {}, [], [], {}
        self.asked = []  # every request: (method, path)
        self._invoked = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Its REST API."""

            def log_message(self, *args):
                pass

            def do_GET(self):
                with contextlib.suppress(ConnectionError):  # one that was killed does not wait for its answer
                    ours.answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            do_POST = do_PUT = do_DELETE = do_GET

        class Server(http.server.ThreadingHTTPServer):
            """Of daemon threads: one may hang."""

            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.host = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.die()
        for one in self.containers:
            one.close()
        for one in self.activations:
            one.over.wait(BOUND)

    def die(self):
        """The controller is gone; activations go on."""
        if not self._ending.is_set():
            self._ending.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(BOUND)

    # --- what `wsk` does

    def create(self, name, code, **annotations):
        """wsk action create NAME CODE --annotation KEY VALUE"""
        self.actions[name] = Action(name, code, False, {"provide-api-key": True, **annotations},
                                    {"timeout": 60000, "memory": 256})

    def invoke(self, name, params=None, seconds=None):
        """wsk action invoke NAME: begins in a container of its own or in one that is warm."""
        action = self.actions[name]
        seconds = seconds if seconds is not None else action.limits["timeout"] / 1000
        with self._lock:
            activation = Activation(secrets.token_hex(16), name, action.limits)
            self.activations.append(activation)
            self._invoked.append(time.monotonic())
        threading.Thread(target=self._run, args=(activation, action, params or {}, seconds), daemon=True).start()
        return activation

    def of(self, name):
        """The activations of an action so far; "/NAME": in whichever package."""
        with self._lock:
            return [one for one in self.activations if one.action == name or name[0] == "/" and one.action.endswith(name)]

    def running(self):
        """Those that are not over."""
        with self._lock:
            return [one for one in self.activations if not one.over.is_set()]

    # --- containers

    def _container(self, action):
        """One that is warm, or new: and then what it said to /init if that was no."""
        with self._lock:
            warm = self._idle.setdefault(action.name, [])
            if warm:
                return warm.pop(), None
        made = Whisk(**self.env)
        made.shown = [0, 0]
        with self._lock:
            self.containers.append(made)
        said = made.ask("POST", "/init", {"value": {"name": action.name, "main": "main", "code": action.code if action.binary
                                                    else textwrapped(action.code), "binary": action.binary, "env": {}}})
        return made, None if said[0] == 200 else said

    def _run(self, activation, action, params, seconds):
        container = None
        try:
            container, no = self._container(action)
            activation.container = container
            if no is not None:
                activation.status, activation.response = no
                activation.code, activation.result = 2, {"error": no[1]["error"]}
                return
            more = {"api_key": self.api_key} if action.annotations.get("provide-api-key") else {"api_key": None}
            activation.status, activation.response = container.run(
                params, namespace="guest", action_name=f"/guest/{action.name}", activation_id=activation.aid,
                deadline=in_ms(seconds), api_host=self.host, **more)
            activation.code, activation.result = judged(activation.status, activation.response)
            with self._lock:
                self._idle[action.name].append(container)
        except (OSError, AssertionError, ValueError) as error:
            activation.status, activation.response = 502, {"error": f"the container was lost: {error}"}
            activation.code, activation.result = 2, {"error": "The action did not produce a valid response and exited "
                                                              "unexpectedly."}
        finally:
            if container is not None:
                activation.logs = logs_of(container)
            activation.end = time.time()
            time.sleep(self.delay)  # the record is written later
            activation.over.set()

    def kill(self, activation):
        """End its container as the kernel would: everything in it, at once."""
        until(lambda: activation.container, "its container")  # it may still be made
        worker = activation.container.worker()
        os.killpg(worker, signal.SIGSTOP)  # or it may see that its runtime is gone, and end in good order
        activation.container.kill()
        with contextlib.suppress(ProcessLookupError):  # a container took it along
            os.killpg(worker, signal.SIGKILL)

    # --- the REST API

    def answer(self, handler, body):
        """One request."""
        self.asked.append((handler.command, handler.path))
        fault = self.fault and self.fault(handler.command, handler.path)
        if fault == "hang":
            self._ending.wait(2 * BOUND)
            return
        if isinstance(fault, bytes):
            handler.wfile.write(fault)
            return
        status, said = fault if isinstance(fault, tuple) else self._answer(handler, body)
        if fault == "lost":
            return
        if status >= 400 and isinstance(said, dict):
            said = {"code": secrets.token_hex(16), **said}
        text = json.dumps(said).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _answer(self, handler, body):
        if handler.headers.get("Authorization") != "Basic " + base64.b64encode(self.key.encode()).decode():
            return 401, {"error": "The supplied authentication is invalid"}
        parts = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        names = [urllib.parse.unquote(one) for one in parts.path.split("/")]
        if names[:4] != ["", "api", "v1", "namespaces"]:
            return NOTHING
        if names[4:] in ([], [""]):
            return (200, ["guest"]) if handler.command == "GET" else (405, {"error": "HTTP method not allowed, supported "
                                                                                     "methods: GET"})
        if names[4] not in ("_", "guest"):
            return 403, {"error": "The supplied authentication is not authorized to access this resource."}
        kinds = {"actions": self._actions, "packages": self._packages, "activations": self._activations, "limits": self._limits}
        kind = kinds.get(names[5] if len(names) > 5 else "")
        return kind(handler.command, names[6:], query, body) if kind else NOTHING

    def _limits(self, method, names, query, body):
        if method != "GET" or names:
            return 405, {"error": "HTTP method not allowed, supported methods: GET"}
        return 200, self.limits

    def _packages(self, method, names, query, body):
        if not names:
            every = [{"name": name, "binding": False, "publish": False, "namespace": "guest", "version": "0.0.1",
                      "annotations": notes}
                     for name, notes in sorted(self.packages.items())]
            return 200, every[int(query.get("skip", 0)):][:int(query.get("limit", 30))]
        name, inside = names[0], [one for one in self.actions if one.startswith(names[0] + "/")]
        if method == "PUT":
            if not NAME.match(name):
                return 400, {"error": "The name of the entity contains illegal characters."}
            if name in self.packages and query.get("overwrite") != "true":
                return 409, {"error": "resource already exists"}
            self.packages[name] = json.loads(body).get("annotations", [])
        elif name not in self.packages:
            return NOTHING
        elif method == "DELETE":
            if inside and query.get("force") != "true":
                return 409, {"error": f"Package not empty (contains {len(inside)} entities). Set force param or delete package "
                                      "contents."}
            for one in inside:
                del self.actions[one]
            return 200, {"name": name, "annotations": self.packages.pop(name)}
        return 200, {"name": name, "annotations": self.packages[name], "feeds": [],
                     "actions": [{"name": one.partition("/")[2], "version": "0.0.1"} for one in inside]}

    def _actions(self, method, names, query, body):
        if not names:
            return 200, [action.shown() for action in self.actions.values()][:int(query.get("limit", 30))]
        name = "/".join(names)
        if len(names) > 2 or len(names) == 2 and names[0] not in self.packages:
            return NOTHING
        if method == "PUT":
            return self._put(name, query, body)
        if name not in self.actions:
            return NOTHING
        if method == "DELETE":
            return 200, self.actions.pop(name).shown()
        if method == "GET":
            return 200, self.actions[name].shown()
        return self._activate(name, query, body)

    def _put(self, name, query, body):
        said = json.loads(body)
        made, limits = said.get("exec") or {}, {"timeout": 60000, "memory": 256, "logs": 10, **(said.get("limits") or {})}
        if not NAME.match(name.rpartition("/")[2]):
            return 400, {"error": "The name of the entity contains illegal characters."}
        if name in self.actions and query.get("overwrite") != "true":
            return 409, {"error": "resource already exists"}
        if made.get("kind") != "blackbox" or not isinstance(made.get("image"), str):
            return 400, {"error": "The request content was malformed:\n'image' must be a string defined in 'exec' for "
                                  "'blackbox' actions"}
        if len(made.get("code", "")) > CODE:
            return 413, {"error": f"Request larger than allowed: {len(made['code'])} > {CODE} bytes."}
        for what, unit in (("memory", "MB"), ("timeout", "milliseconds")):
            least, most = (self.limits.get(f"{end}Action{what.capitalize()}", other) for end, other in (("min", 1), ("max", 512)))
            if limits[what] > most:
                return 400, {"error": f"The request content was malformed:\n{what} {limits[what]} {unit} exceeds allowed "
                                      f"threshold of {most}"}
            if limits[what] < least:
                return 400, {"error": f"The request content was malformed:\n{what} {limits[what]} {unit} below allowed "
                                      f"threshold of {least}"}
        notes = {note["key"]: note["value"] for note in said.get("annotations") or []}
        self.actions[name] = Action(name, made.get("code", ""), bool(made.get("binary")), {"provide-api-key": False, **notes},
                                    limits, made["image"])
        return 200, self.actions[name].shown()

    def _activate(self, name, query, body):
        assert query == {"blocking": "false", "result": "false"}
        if len(body) > PAYLOAD:
            return 413, {"error": f"Request larger than allowed: {len(body)} > {PAYLOAD} bytes."}
        with self._lock:
            recent = sum(1 for when in self._invoked if when > time.monotonic() - 60)
        if recent >= self.per_minute:
            return 429, {"error": f"Too many requests in the last minute (count: {recent + 1}, allowed: {self.per_minute})."}
        running = len(self.running())
        if running >= self.concurrent:
            return 429, {"error": f"Too many concurrent requests in flight (count: {running + 1}, allowed: {self.concurrent})."}
        return 202, {"activationId": self.invoke(name, json.loads(body)).aid}

    def _activations(self, method, names, query, body):
        if method != "GET":
            return 405, {"error": "HTTP method not allowed, supported methods: GET"}
        with self._lock:
            every = {one.aid: one for one in self.activations if one.over.is_set()}
        if not names:
            shown = [one.shown() for one in every.values() if query.get("name", one.action) == one.action]
            shown.sort(key=lambda one: -one["start"])
            return 200, shown[int(query.get("skip", 0)):][:int(query.get("limit", 30))]
        if not re.match(r"^[0-9a-f]{32}$", names[0]):
            return 400, {"error": "The activation id is not valid."}
        if names[0] not in every:
            return NOTHING
        one = every[names[0]]
        parts = {"": one.shown, "result": one.response_shown, "logs": lambda: {"logs": one.logs}}
        found = parts.get("/".join(names[1:]))
        return (200, found()) if found else NOTHING


def textwrapped(code):
    """As whiskside has it: code in tests is indented."""
    import textwrap
    return textwrap.dedent(code)


def judged(status, response):
    """What OpenWhisk makes of an answer to /run: the code of the activation's status, and its result."""
    size = len(json.dumps(response))
    if size > PAYLOAD:
        return 1, {"error": f"The action produced a response that exceeded the allowed length: {size} > {PAYLOAD} bytes. "
                            f"The truncated response was: {json.dumps(response)[:1024]}"}
    if status == 200:
        return (1, {"error": response["error"]}) if isinstance(response, dict) and "error" in response else (0, response)
    return 2, {"error": response.get("error", "The action did not produce a valid JSON or JSON Array response.")}


def logs_of(container):
    """What a container printed since it was last asked, up to the sentinels."""
    found = []
    for which, (stream, text) in enumerate(zip(("stdout", "stderr"), container.printed())):
        more = text[container.shown[which]:]
        container.shown[which] = len(text)
        found += [f"2026-01-01T00:00:00.000000000Z {stream}: {line}" for line in more.splitlines() if line != SENTINEL]
    return found


def until(true, what, seconds=BOUND):
    """Wait for what is bound to happen; what it was."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
    return found
