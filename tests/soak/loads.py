"""What a soak has done all the time: clients in Python, commands, and programs in elements; and what to think of how each operation ended.

An operation that failed is well explained if its own process was hit, or a server that it used. Otherwise it is a finding: "lost though alive" if
it says that a peer or a server was lost, "failed for no reason" if it says anything else.
"""
import collections
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

from .world import ROOT, python

PYTHON_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.py")
TIMEOUT = 10                    # seconds, as the commands and the clients are told
SLACK = 30                      # more than its timeout that an operation may take on a machine that is busy
RUN_TIMEOUT = 60                # of a program in elements
LOST = re.compile(r"\blost\b|PeerError")


class Judge:
    def __init__(self, chaos, counts, findings):
        self.chaos, self.counts, self.findings = chaos, counts, findings

    def verdict(self, kind, way, own, servers, begin, end, bound, outcome, error, since=None, one_will_do=False):
        """Of one operation: outcome is "ok", "wrong" or "failed". True if it is ok.

        since: what befell from then on explains it. one_will_do: any of the servers is enough for it."""
        hits = self.chaos.hits({own}, since or begin, end)
        felt = [s for s in servers if self.chaos.hits({s}, since or begin, end)]
        if one_will_do and len(felt) < len(servers):
            felt = []
        waited = self.chaos.stopped_for({own, *servers}, begin, end)
        what = f"{kind} over {way} ({own} with {', '.join(servers) or 'nobody'})"
        if outcome == "wrong":
            self.findings.add("wrong bytes", f"{what}: {error}")
        elif end - begin > bound + waited:
            self.findings.add("too late", f"{what}: {end - begin:.1f} s, bound {bound} s, of others stopped {waited:.1f} s; {error}")
        elif outcome == "ok" or hits or felt:
            self.counts.add(kind, way, "ok" if outcome == "ok" else "hit" if hits else "felt", end - begin)
            return outcome == "ok"
        elif LOST.search(error):
            self.findings.add("lost though alive", f"{what}: {error}")
        else:
            self.findings.add("failed for no reason", f"{what}: {error}")
        self.counts.add(kind, way, "bad", end - begin)
        return False


class Load(threading.Thread):
    """Operations one after the other, until it is told to stop."""

    def __init__(self, name, world, rng, judge):
        super().__init__(name=name, daemon=True)
        self.world, self.rng, self.judge, self.over = world, rng, judge, threading.Event()
        self.n = 0

    def run(self):
        while not self.over.is_set():
            try:
                self.one()
            except Exception as error:  # a mistake of the soak's own must not look like a quiet run
                self.judge.findings.add("the soak failed", f"{self.name}: {type(error).__name__}: {error}")
                return
            self.over.wait(self.rng.uniform(*self.pause))

    def stop(self):
        self.over.set()

    def tag(self):
        self.n += 1
        return f"{self.name}-{self.n}"

    def command(self, tag, *args, bound, data=None):
        """Run a command to its end, or kill it if it does not come: (exit status, stdout, stderr, begin, end)."""
        begin = time.monotonic()
        process = subprocess.Popen([self.world.weft, *args], env=self.world.environment(tag), cwd=self.world.path("data"),
                                   stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while True:
            try:
                out, err = process.communicate(data, timeout=1)
                return process.returncode, out, err.decode(errors="replace").strip(), begin, time.monotonic()
            except subprocess.TimeoutExpired:
                data = None
                if time.monotonic() - begin > 3 * bound + 3 * self.judge.chaos.stopped_for({tag}, begin, time.monotonic()):
                    process.kill()  # the judge finds it too late


# --- commands --------------------------------------------------------------------------------------------------------------------------------------


class Calls(Load):
    """weft call: functions and streams."""
    pause = (0.05, 0.4)

    def __init__(self, name, world, rng, judge, servers):
        super().__init__(name, world, rng, judge)
        self.servers = servers

    def one(self):
        rng, way = self.rng, self.rng.choice(("shm", "tcp"))
        by_name = rng.random() < 0.4
        server = rng.choice(self.servers)
        base = "weft://calc/" if by_name else server.uri("tcp") + "/calc/" if rng.random() < 0.5 else server.uri("unix") + "#calc/"
        used = [s.tag for s in self.servers] if by_name else [server.tag]
        tag = self.tag()
        options = ["--transports", way, "--timeout", f"{TIMEOUT}s", *(["--once"] if rng.random() < 0.3 else [])]
        if rng.random() < 0.7:
            text = "".join(rng.choices("abcdefghij", k=int(10 ** rng.uniform(0, 4))))
            kind, data, want, words = "weft call", None, text.upper().encode() + b"\n", [base + "upper", text]
        else:
            data = "".join(f"{i} {rng.getrandbits(32):x}\n" for i in range(rng.choice((1, 100, 2000)))).encode()
            kind, want, words, options = "weft call, stream", data, [base + "echo", "-"], options[:4]
        status, out, err, begin, end = self.command(tag, "call", *words, *options, bound=TIMEOUT + SLACK, data=data)
        outcome = "failed" if status else "ok" if out == want else "wrong"
        self.judge.verdict(kind, way, tag, used, begin, end, TIMEOUT + SLACK, outcome, f"exit status {status}: {err or out[:80]}")


class Files(Load):
    """weft mem: files into blocks and back, on one server or on two."""
    pause = (0.05, 0.4)

    def __init__(self, name, world, rng, judge, servers):
        super().__init__(name, world, rng, judge)
        self.servers = servers

    def one(self):
        rng, way = self.rng, self.rng.choice(("shm", "tcp"))
        mirror = len(self.servers) > 1 and rng.random() < 0.3
        servers = rng.sample(self.servers, 2) if mirror else [rng.choice(self.servers)]
        where = [word for s in servers for word in ("--server", s.uri(rng.choice(("tcp", "unix"))))]
        tag, bound = self.tag(), 30 + SLACK
        options = [*where, "--transports", way, "--timeout", f"{TIMEOUT}s", *(["--mirror"] if mirror else [])]
        path, name = self.world.path("data", tag), f"file/{tag}"
        data = rng.randbytes(int(10 ** rng.uniform(1, 6.5)))
        with open(path, "wb") as f:
            f.write(data)
        kinds = ("weft mem put", "weft mem get", "weft mem rm")
        checksums = ["--checksums"] if mirror and rng.random() < 0.5 else []
        began = time.monotonic()
        for kind, words in zip(kinds, (["put", path, name, *checksums], ["get", name, path + ".got", "--force"], ["rm", name]), strict=True):
            if words[0] == "rm":
                options = [*where, "--transports", way]
            status, _, err, begin, end = self.command(tag, "mem", *words, *options, bound=bound)
            outcome = "failed" if status else "ok"
            if words[0] == "get" and not status:
                outcome = "ok" if digest(path + ".got") == hashlib.sha256(data).digest() else "wrong"
            # a block goes with its server, at any time since it was put
            if not self.judge.verdict(kind + (", mirror" if mirror else ""), way, tag, [s.tag for s in servers], begin, end, bound, outcome,
                                      f"exit status {status}: {err}", began, mirror and words[0] == "get"):
                break
        for left in (path, path + ".got", path + ".got.part"):
            if os.path.exists(left):
                os.unlink(left)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").digest()


class Runs(Load):
    """weft run: a program in elements, whose result is known."""
    pause = (0.5, 3)
    example = os.path.join(ROOT, "examples", "wordcount")

    def __init__(self, name, world, rng, judge):
        super().__init__(name, world, rng, judge)
        names = {"__name__": "element"}
        with open(os.path.join(self.example, "read.o.py"), encoding="utf-8") as f:
            exec(compile(f.read(), "read.o.py", "exec"), names)
        counted = collections.Counter(b"".join(names["made_up"](1)).decode().split())
        most = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:10]
        self.want = [{"words": counted.total(), "different": len(counted), "most": [[w, n] for w, n in most]}]

    def one(self):
        tag, bound = self.tag(), RUN_TIMEOUT + SLACK
        status, out, err, begin, end = self.command(tag, "run", self.example, "--param", "mib=1", "--json", "--timeout", f"{RUN_TIMEOUT}s",
                                                    "--python", python(), bound=bound)
        outcome = "failed"
        if not status:
            outcome = "ok" if json.loads(out)["results"]["top"] == self.want else "wrong"
        self.judge.verdict("weft run", "all", tag, [], begin, end, bound, outcome, f"exit status {status}: {err[-300:]}")
        left = self.world.gone(tag, 30)
        if left:
            hits = "; ".join(f"{e.kind}: {e.words}" for e in self.judge.chaos.hits({tag}, begin, end))
            self.judge.findings.add("left running", f"{tag}, 30 s after its launcher ended ({hits}): " + ", ".join(p.words() for p in left))
            for process in left:
                with process.held(self.world.run.encode()) as fd:
                    if fd is not None:
                        signal.pidfd_send_signal(fd, signal.SIGKILL)


# --- clients in Python ------------------------------------------------------------------------------------------------------------------------------


class Client(Load):
    """A client in Python, started again when it was killed; what it tells of each operation is judged here."""
    pause = (0.1, 1)
    bound = TIMEOUT + SLACK

    def __init__(self, name, world, rng, judge, transports, calcs, memories):
        super().__init__(name, world, rng, judge)
        self.transports, self.calcs, self.memories, self.process, self.ended = transports, calcs, memories, None, set()

    def one(self):
        """The life of one."""
        tag, chaos = self.tag(), self.judge.chaos
        servers = [json.dumps([[s.tag, s.uri(self.rng.choice(("tcp", "unix")))] for s in some]) for some in (self.calcs, self.memories)]
        words = [python(), PYTHON_CLIENT, str(self.rng.getrandbits(32)), str(TIMEOUT), self.transports, *servers]
        self.process = self.world.start(tag, words, tag + ".err", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        heard = [time.monotonic()]
        watch = threading.Thread(target=self.watch, args=(tag, self.process, heard), daemon=True)
        watch.start()
        if self.over.is_set():
            self.process.stdin.close()
        for line in self.process.stdout:
            heard[0] = time.monotonic()
            try:
                said = json.loads(line)
            except ValueError:
                continue  # it was killed in the middle of a line
            self.judge.verdict("python " + said["op"], said["over"], tag, [said["server"]], said["begin"], said["end"], self.bound, said["outcome"],
                               said["error"], said["since"])
        status = self.process.wait()
        watch.join()
        if status and not chaos.was_killed(self.process.pid) and self.process.pid not in self.ended:
            self.judge.findings.add("ended by itself", f"{tag}, exit status {status}: {self.world.log(tag + '.err', 12)}")

    def watch(self, tag, process, heard):
        """One that says nothing for longer than its bound hangs."""
        while process.poll() is None:
            time.sleep(0.5)
            now = time.monotonic()
            quiet = now - heard[0]
            tags = {tag, *[s.tag for s in (*self.calcs, *self.memories)]}
            if quiet > 2 * self.bound and quiet > 2 * self.bound + self.judge.chaos.stopped_for(tags, heard[0], now):
                process.send_signal(signal.SIGUSR1)
                time.sleep(2)
                self.judge.findings.add("hangs", f"{tag} said nothing for {quiet:.0f} s: {self.world.log(tag + '.err', 20)}")
                self.ended.add(process.pid)
                process.kill()
                process.wait()

    def stop(self):
        self.over.set()
        if self.process and self.process.stdin:
            try:
                self.process.stdin.close()
            except OSError:
                pass


def all_of(world, seed, judge, calcs, memories):
    """What two processors can do."""
    def rng(name):
        return random.Random(f"{seed} {name}")
    loads = [Calls("calls", world, rng("calls"), judge, calcs), Files("files", world, rng("files"), judge, memories)]
    loads += [Client("client_" + way, world, rng(way), judge, way, calcs, memories) for way in ("shm", "tcp")]
    return [*loads, Runs("run", world, rng("run"), judge)]
