"""A small OpenWhisk: actions, containers in which `disagg.serve` runs, activations, and as much of the REST API as actions use.
On loopback.

A container runs one activation at a time and is used again for its action. What can be tested with it is what an action sees of
OpenWhisk; that the real one behaves so is written in its documents, and not tested here.
"""
import base64
import contextlib
import http.server
import json
import os
import signal
import threading
import time
import urllib.parse

from whiskside import BOUND, Whisk, in_ms

KEY = "23bc46b1-71f6-4ed5-8c54-816aa4f8c502:123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP"


class Activation:
    """One that was started. `status` and `response` are there when it is over."""

    def __init__(self, aid, action):
        self.aid, self.action, self.over = aid, action, threading.Event()
        self.status = self.response = self.container = None

    def wait(self):
        """What its container answered."""
        assert self.over.wait(BOUND), f"{self.action} did not end"
        return self.status, self.response


class Controller:
    """The whole of it. `api_key` is what actions are given, `key` what is right."""

    def __init__(self, key=KEY, api_key=KEY):
        self.key, self.api_key = key, api_key
        self.actions, self.activations, self.containers, self._idle = {}, [], [], {}
        self._lock = threading.Lock()
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Its REST API."""

            def log_message(self, *args):
                pass

            def do_GET(self):
                ours.answer(self, None)

            def do_POST(self):
                ours.answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.host = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(BOUND)
        for one in self.containers:
            one.close()
        for one in self.activations:
            one.over.wait(BOUND)

    # --- what `wsk` does

    def create(self, name, code, **annotations):
        """wsk action create NAME CODE --annotation KEY VALUE"""
        self.actions[name] = (code, {"provide-api-key": True, **annotations})

    def invoke(self, name, params=None, seconds=BOUND):
        """wsk action invoke NAME: begins in a container of its own or in one that is warm."""
        with self._lock:
            activation = Activation(f"{len(self.activations):032x}", name)
            self.activations.append(activation)
        threading.Thread(target=self._run, args=(activation, params or {}, seconds), daemon=True).start()
        return activation

    def of(self, name):
        """The activations of an action so far."""
        with self._lock:
            return [one for one in self.activations if one.action == name]

    # --- containers

    def _container(self, name):
        with self._lock:
            warm = self._idle.setdefault(name, [])
            if warm:
                return warm.pop()
        made = Whisk()
        with self._lock:
            self.containers.append(made)
        made.loaded(self.actions[name][0], name=name)
        return made

    def _run(self, activation, params, seconds):
        try:
            container = activation.container = self._container(activation.action)
            more = {"api_key": self.api_key} if self.actions[activation.action][1]["provide-api-key"] else {"api_key": None}
            activation.status, activation.response = container.run(
                params, namespace="guest", action_name=f"/guest/{activation.action}", activation_id=activation.aid,
                                                                   deadline=in_ms(seconds),
                api_host=self.host, **more)
            with self._lock:
                self._idle[activation.action].append(container)
        except (OSError, AssertionError, ValueError) as error:
            activation.status, activation.response = 502, {"error": f"the container was lost: {error}"}
        finally:
            activation.over.set()

    def kill(self, activation):
        """End its container as the kernel would: everything in it, at once."""
        worker = activation.container.worker()
        os.killpg(worker, signal.SIGSTOP)  # or it may see that its runtime is gone, and end in good order
        activation.container.kill()
        with contextlib.suppress(ProcessLookupError):  # a container took it along
            os.killpg(worker, signal.SIGKILL)

    # --- the REST API

    def answer(self, handler, body):
        status, said = self._answer(handler, body)
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
        name = urllib.parse.unquote(parts.path).removeprefix("/api/v1/namespaces/_/actions/")
        if name not in self.actions:
            return 404, {"error": "The requested resource does not exist."}
        if body is None:
            return 200, {"name": name, "annotations": [{"key": key, "value": value} for key,
                                                       value in self.actions[name][1].items()]}
        assert urllib.parse.parse_qs(parts.query) == {"blocking": ["false"], "result": ["false"]}
        return 202, {"activationId": self.invoke(name, json.loads(body)).aid}


def until(true, what):
    """Wait for what is bound to happen; what it was."""
    end = time.monotonic() + BOUND
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
    return found
