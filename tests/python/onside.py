"""What the tests of `weft run --on openwhisk` share: directories of elements, the command against a small OpenWhisk, and
a look at what is left behind."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

import weft
from controllerside import BOUND, KEY, Controller, until

COMMAND = os.path.abspath(os.environ.get("TEST_WEFT_COMMAND") or os.path.join(os.path.dirname(weft.__file__), "..", "..", "weft"))
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LONG = 4 * BOUND

if not os.access(COMMAND, os.X_OK):
    pytest.skip("the command weft was not built", allow_module_level=True)


class Cloud(Controller):
    """An OpenWhisk, and a folder for what is run on it and for what runs leave behind."""

    def __init__(self, folder, **how):
        self.folder, self._n = folder, 0
        self.temp = folder / "tmp"
        self.temp.mkdir()
        super().__init__(env={"PATH": os.path.dirname(COMMAND) + os.pathsep + os.environ["PATH"]}, **how)

    def program(self, files):
        """A directory with these files."""
        self._n += 1
        top = self.folder / f"program{self._n}"
        for name, text in files.items():
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return str(top)

    def environment(self, **more):
        """Of the command."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("__OW_", "WSK_"))}
        return {**env, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(self.temp), "HOME": str(self.folder),
                "__OW_API_HOST": self.host, "__OW_API_KEY": KEY, **more}

    def start(self, files, *args, on="openwhisk", image="example/weft", env=None):
        """The command, under way."""
        folder = files if isinstance(files, str) else self.program(files)
        words = [COMMAND, "run", folder, "--python", sys.executable, *(("--on", on) if on else ()),
                 *(("--image", image) if on and image else ()), *args]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                errors="replace", env=env or self.environment())

    def run(self, files, *args, **how):
        """The command, to its end; nothing is left of it."""
        return self.finish(self.start(files, *args, **how))

    def finish(self, process, clean=True):
        """What it says, to its end."""
        try:
            out, err = process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.kill()
            raise AssertionError(f"it hangs: {process.communicate()}") from None
        for text in (out, err):
            assert KEY not in text and KEY.split(":")[1] not in text and not re.search(r"token,[0-9a-zA-Z_-]{8}", text), text
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if clean:
            self.nothing_is_left(done)
        return done

    def results(self, files, *args, **how):
        """What a run that goes well says of itself in JSON."""
        done = self.run(files, "--json", *args, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        assert said["ok"] is True, said
        return said

    def fails(self, files, *args, says, status=1, **how):
        """A run that fails, and what it says."""
        done = self.run(files, *args, **how)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        for words in [says] if isinstance(says, str) else says:
            assert words in done.stderr, f"{words!r} is not in: {done.stderr}"
        return done

    # --- what is left

    def nothing_is_left(self, done=""):
        """No action and no package; activations end, and nothing of them runs in a container; no file."""
        until(lambda: not self.actions and not self.packages, f"the end of {[*self.actions, *self.packages]}; {done}")
        until(lambda: not self.running(), f"the end of {[one.action for one in self.running()]}; {done}")
        until(lambda: not self.inside(), f"the end of {self.inside()}; {done}")
        until(lambda: not os.listdir(self.temp), f"the end of {os.listdir(self.temp)}; {done}")

    def inside(self):
        """Processes and files that a run has in containers."""
        found = []
        for container in self.containers:
            if container.process.poll() is not None:
                continue
            found += [name for name in os.listdir(container.folder.name) if not name.startswith("weft-action-")]
            for pid in processes_in(container.folder.name):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().replace(b"\0", b" ").decode(errors="replace")
                    if words and "disagg.serve" not in words:
                        found.append(words)
        return found


def processes_in(folder):
    """Those that have it in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
            if f"TMPDIR={folder}".encode() in f.read().split(b"\0"):
                found.append(int(pid))
    return found


def bridge_of(process):
    """The process that speaks with OpenWhisk; 0: the command has ended."""
    def find():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{pid}/cmdline", "rb") as g:
                    if parent == process.pid and b"disagg.on.openwhisk" in g.read():
                        return int(pid)
        return 0
    found = until(lambda: find() or process.poll() is not None, "a bridge")
    return 0 if found is True else found


@pytest.fixture
def cloud(tmp_path):
    """An OpenWhisk of the usual limits."""
    with Cloud(tmp_path) as one:
        yield one
