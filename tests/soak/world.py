"""The place of a soak: a folder of its own, the environment of everything that is started there, and which processes that made.

Every process has SOAK_RUN in its environment, and those of one operation SOAK_OP, which their children inherit: so what is running, and what was left
running, is read from /proc, whoever started it.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def environ(pid):
    """The environment that a process was started with; {} if it is gone, a zombie, or another's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(pair.split(b"=", 1) for pair in f.read().split(b"\0") if b"=" in pair)
    except OSError:
        return {}


def arguments(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


class Process:
    """A process of the soak, held so that its number cannot become another's meanwhile."""

    def __init__(self, pid, tag):
        self.pid, self.tag = pid, tag

    @contextlib.contextmanager
    def held(self, run):
        """A descriptor of it, or None if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            yield None
            return
        try:
            yield fd if environ(self.pid).get(b"SOAK_RUN") == run else None
        finally:
            os.close(fd)

    def words(self):
        """What it is, for people."""
        words = [w.decode(errors="replace") for w in arguments(self.pid)]
        return " ".join([os.path.basename(words[0]), *words[1:4]])[:80] if words else "?"


class World:
    def __init__(self, build, seed):
        self.build, self.seed = os.path.abspath(build), seed
        self.weft = os.path.join(self.build, "weft")
        self.run = f"{os.getpid()}-{seed}"
        self.folder = tempfile.mkdtemp(prefix="weft-soak-")
        for name in ("registry", "tmp", "data", "log"):
            os.mkdir(self.path(name), 0o700)
        self.shm = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        self.key = self.path("key")
        subprocess.run([self.weft, "key", "new", self.key], check=True, stdout=subprocess.DEVNULL, timeout=60)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self, tag):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "UCX_", "SOAK_"))}
        env.update(SOAK_RUN=self.run, SOAK_OP=tag, WEFT_REGISTRY="dir://" + self.path("registry"), WEFT_KEY_FILE=self.key,
                   TMPDIR=self.path("tmp"), PYTHONPATH=os.path.join(self.build, "python"), PYTHONDONTWRITEBYTECODE="1")
        return env

    def start(self, tag, args, log, **kw):
        """A process whose errors go to that log."""
        with open(self.path("log", log), "ab") as err:
            return subprocess.Popen(args, env=self.environment(tag), cwd=self.path("data"), stderr=err, **kw)

    def log(self, name, lines=6):
        """The end of a log."""
        try:
            with open(self.path("log", name), encoding="utf-8", errors="replace") as f:
                return "".join(f.readlines()[-lines:]).strip()
        except OSError:
            return ""

    def processes(self):
        """All that run, this one excepted."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                env = environ(name)
                if env.get(b"SOAK_RUN") == self.run.encode():
                    found.append(Process(int(name), env.get(b"SOAK_OP", b"?").decode()))
        return found

    def gone(self, tag, seconds):
        """Wait until nothing of an operation runs; those that still do then."""
        end = time.monotonic() + seconds
        while True:
            left = [p for p in self.processes() if p.tag == tag]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    # --- what is left ----------------------------------------------------------------------------------------------------------

    def left_processes(self):
        end = time.monotonic() + 20
        while self.processes() and time.monotonic() < end:
            time.sleep(0.2)
        return [f"process {p.pid} of {p.tag}: {p.words()}" for p in self.processes()]

    def left_sockets(self):
        """Abstract and other Unix sockets that have our name in them."""
        with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
            lines = f.read().splitlines()[1:]
        return [f"socket {line.split()[7]}" for line in lines if len(line.split()) > 7 and (self.run in line or self.folder in line)]

    def left_files(self):
        found = [f"registry: {name}" for name in sorted(os.listdir(self.path("registry")))]
        found += [f"TMPDIR: {name}" for name in sorted(os.listdir(self.path("tmp")))]
        found += [f"socket file: {name}" for name in sorted(os.listdir(self.folder)) if name.endswith(".sock")]
        if os.path.isdir("/dev/shm"):
            found += [f"/dev/shm: {name}" for name in sorted(set(os.listdir("/dev/shm")) - self.shm) if "weft" in name]
        return found

    def end(self, keep):
        """Whatever happened: nothing of ours runs on."""
        for process in self.processes():
            with process.held(self.run.encode()) as fd:
                if fd is not None:
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def python():
    """The interpreter that this is, which the package was built for or can do with."""
    return sys.executable
