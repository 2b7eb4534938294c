"""What the tests of the OpenWhisk runtime share: one as a process, asked over real HTTP, and what it printed.

WEFT_TEST_IMAGE=NAME runs the image of that name (docker/openwhisk/Dockerfile) in a container instead, on the host's network, and
every test that uses this asks that. What reaches into the process itself is skipped then.
"""
import base64
import contextlib
import glob
import http.client
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zipfile

import pytest

BOUND = 60
SENTINEL = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"
IMAGE = os.environ.get("WEFT_TEST_IMAGE")
QUIET = 0.3  # what a container prints comes by way of two other programs; after this long without more it is all there


def in_ms(seconds):
    """A deadline so many seconds from now."""
    return int(1000 * (time.time() + seconds))


class Whisk:
    """A runtime on a port of its own."""

    def __init__(self, *args, patch="", **env):
        self.folder = tempfile.TemporaryDirectory()
        self.files = [tempfile.TemporaryFile("w+b") for _ in range(2)]
        self.runs, self.name = 0, ""
        self.port = self._container(args, patch, env) if IMAGE else self._process(args, patch, env)

    def _process(self, args, patch, env):
        start = ["-m", "disagg.serve"]
        if patch:
            start = ["-c", f"import sys\n{patch}\nfrom disagg.serve.__main__ import main\nsys.exit(main(sys.argv[1:]))"]
        ours, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-P", *start, "--host", "127.0.0.1", "--port", "0", "--ready-fd", str(theirs), *args],
            pass_fds=[theirs], stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1],
            env={**{k: v for k, v in os.environ.items() if not k.startswith("__OW_")}, "PYTHONPATH": os.pathsep.join(sys.path),
                 "TMPDIR": self.folder.name, **env})
        os.close(theirs)
        with os.fdopen(ours) as f:
            line = f.readline()
        assert line, self.printed()
        return int(line)

    def _container(self, args, patch, env):
        if patch:
            pytest.skip("a container is as it is")
        self.name = f"weft-test-{os.getpid()}-{secrets.token_hex(4)}"
        words = []
        for key, value in env.items():
            words += ["--env", f"{key}={value}"]
            if key == "TMPDIR":
                os.chmod(value, 0o777)  # it is not root who writes there
                words += ["--volume", f"{value}:{value}"]
        self.process = subprocess.Popen(["docker", "run", "--rm", "--network", "host", "--name", self.name, *words, IMAGE, "weft",
                                         "element",
                                         "serve", "--host", "127.0.0.1", "--port", "0", *args],
                                        stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1])
        end = time.monotonic() + BOUND
        while b"\n" not in (line := self._read()[0]):
            assert time.monotonic() < end and self.process.poll() is None, self._read()
            time.sleep(0.01)
        return int(line.split(b"\n")[0].rpartition(b":")[2])

    def ask(self, method, path, body=None, timeout=BOUND):
        """The status and what the answer says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.getheader("Content-Type") == "application/json"
            return answer.status, json.loads(text)
        finally:
            connection.close()

    def init(self, code, **more):
        """POST /init with source, or with a zip of the files of a dict."""
        if isinstance(code, dict):
            code, more = base64.b64encode(zipped(code)).decode(), {"binary": True, **more}
        else:
            code = textwrap.dedent(code)
        return self.ask("POST", "/init", {"value": {"name": "it", "main": "main", "code": code, "binary": False, "env": {},
                                                    **more}})

    def loaded(self, code, **more):
        """The same, and it has to work."""
        status, said = self.init(code, **more)
        assert (status, said) == (200, {"ok": True}), (said, self.printed())
        return self

    def run(self, params=None, **more):
        """POST /run."""
        self.runs += 1
        return self.ask("POST", "/run", {"value": params or {}, "namespace": "guest", "action_name": "/guest/it",
                                         "transaction_id": "t1",
                                         "activation_id": f"a{self.runs}", "deadline": in_ms(BOUND),
                                         "api_key": "guest:verysecret", **more})

    @contextlib.contextmanager
    def running(self, params=None, **more):
        """A /run in a thread; its answer, when it is there, is in the list."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.run(params, **more)))
        thread.start()
        try:
            yield answers
        finally:
            thread.join(BOUND)
            assert not thread.is_alive()

    @contextlib.contextmanager
    def running_lost(self):
        """A /run in a thread that is not answered: the runtime is killed."""
        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.run()
        thread = threading.Thread(target=ask)
        thread.start()
        yield
        thread.join(BOUND)
        assert not thread.is_alive()

    def put(self, aid, name, durl, query=""):
        """PUT a transport."""
        return self.ask("PUT", f"/action/{aid}/transport/{name}{query}", {"name": name, "durl": durl})

    def _read(self):
        found = []
        for f in self.files:
            f.seek(0)
            found.append(f.read())
        return found

    def printed(self):
        """stdout and stderr so far."""
        found = self._read()
        if self.name:
            end, before = time.monotonic() + BOUND, []
            while found != before and time.monotonic() < end:
                time.sleep(QUIET)
                before, found = found, self._read()
            found[0] = found[0].partition(b"\n")[2]  # the line that says where it listens
        return [text.decode() for text in found]

    def until_printed(self, text, which=0):
        """Wait for the action to print it."""
        end = time.monotonic() + BOUND
        while text not in self.printed()[which]:
            assert time.monotonic() < end, self.printed()
            assert self.process.poll() is None, self.printed()
            time.sleep(0.005)

    def worker(self):
        """The process id of the one that runs the code."""
        found, pid = [], self.process.pid
        if self.name:
            pid = subprocess.run(["docker", "inspect", "--format", "{{.State.Pid}}", self.name], check=True, capture_output=True,
                                 text=True, timeout=BOUND).stdout.strip()
        for path in glob.glob(f"/proc/{pid}/task/*/children"):  # a child belongs to the thread that made it
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path, encoding="ascii") as f:
                found += [int(word) for word in f.read().split()]
        assert len(set(found)) == 1, found
        return found[0]

    def kill(self):
        """SIGKILL to the runtime itself; in a container that is the end of everything in it."""
        if self.name:
            subprocess.run(["docker", "kill", self.name], check=True, capture_output=True, timeout=BOUND)
        else:
            self.process.kill()
        self.process.wait(BOUND)

    def end(self):
        """SIGTERM, and its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)

    def close(self):
        """End it, and look that it left nothing behind."""
        if self.process.poll() is None:
            self.end()
        left = os.listdir(self.folder.name) if self.process.returncode == 0 else []
        for f in self.files:
            f.close()
        self.folder.cleanup()
        assert left == [], left


def zipped(files):
    """A zip: names to texts, bytes, or (ZipInfo's fields, text)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in files.items():
            fields, text = text if isinstance(text, tuple) else ({}, text)
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in fields.items():
                setattr(info, key, value)
            z.writestr(info, textwrap.dedent(text) if isinstance(text, str) else text)
    return out.getvalue()
