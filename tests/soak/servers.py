"""The servers of a soak: started, started again when they were killed, and measured all the time; those that lived must not have grown."""
import json
import os
import signal
import statistics
import subprocess
import threading
import time

WARM_UP = 0.2      # of the time is not looked at
MORE_RSS = 0.15    # what the last third may have more than the first, of that,
MORE_RSS_KB = 3072  # or this many KiB, whichever is more
MORE_FDS = 0.10
MORE_FDS_N = 8
START = 60         # seconds to begin, and to end when asked


class Server:
    """A server with an address that it keeps. `steady` ones live from the beginning to the end."""

    def __init__(self, world, tag, words, listen, steady):
        self.world, self.tag, self.words, self.listen, self.steady = world, tag, words, list(listen), steady
        self.process, self.uris, self.samples, self.starts = None, [], [], 0

    def begin(self):
        """Start it, and wait until it says where it listens. What is wrong, or None."""
        out = self.world.path("log", f"{self.tag}.out")
        listen = [word for uri in self.listen for word in ("--listen", uri)]
        self.starts += 1
        with open(out, "wb") as to:
            self.process = self.world.start(self.tag, [self.world.weft, *self.words, "--json", *listen], f"{self.tag}.err", stdout=to,
                                            stdin=subprocess.DEVNULL)
        end = time.monotonic() + START
        while time.monotonic() < end:
            with open(out, encoding="utf-8") as f:
                line = f.readline()
            if line.endswith("\n"):
                self.uris = self.listen = json.loads(line)["listening"]
                return None
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        return f"{self.tag} did not begin (exit status {self.process.poll()}): {self.world.log(self.tag + '.err')}"

    def uri(self, kind):
        """tcp or unix."""
        return next(uri for uri in self.uris if uri.startswith(kind))

    def sample(self, now):
        """(when, KiB resident, descriptors), if it lives."""
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="ascii", errors="replace") as f:
                rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
            self.samples.append((now, rss, len(os.listdir(f"/proc/{self.process.pid}/fd"))))
        except (OSError, StopIteration):
            pass

    def growth(self, begin, end):
        """Medians of the first and the last third, and whether the last is too much: {"rss": (first, last, bad), "fds": ...}"""
        begin += WARM_UP * (end - begin)
        third = (end - begin) / 3
        first = [s for s in self.samples if begin <= s[0] < begin + third]
        last = [s for s in self.samples if end - third <= s[0] <= end]
        if len(first) < 3 or len(last) < 3:
            return {}
        rows = {}
        for name, at, part, least in (("rss", 1, MORE_RSS, MORE_RSS_KB), ("fds", 2, MORE_FDS, MORE_FDS_N)):
            a, b = (int(statistics.median(s[at] for s in third)) for third in (first, last))
            rows[name] = (a, b, b > a + max(part * a, least))
        return rows

    def end(self):
        """Ask it to end. What is wrong, or None."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(START)
        except subprocess.TimeoutExpired:
            return f"{self.tag} does not end within {START} s after SIGTERM"
        return f"{self.tag} ended with exit status {status}: {self.world.log(self.tag + '.err')}" if status else None


class Keeper(threading.Thread):
    """Starts servers again that were killed, and measures all of them once a second."""

    def __init__(self, servers, chaos, findings):
        super().__init__(name="keeper", daemon=True)
        self.servers, self.chaos, self.findings, self.over = servers, chaos, findings, threading.Event()

    def run(self):
        while not self.over.wait(1):
            self.look()

    def look(self):
        for server in self.servers:
            status = server.process.poll()
            if status is None:
                server.sample(time.monotonic())
                continue
            if not self.chaos.was_killed(server.process.pid):
                self.findings.add("ended by itself", f"{server.tag}, exit status {status}: {server.world.log(server.tag + '.err')}")
            pid = server.process.pid
            wrong = server.begin()
            if wrong and not self.chaos.was_killed(server.process.pid):
                self.findings.add("did not begin", wrong)
            if not wrong:
                self.chaos.back(server.tag, pid)

    def stop(self):
        self.over.set()
        self.join()
        self.look()  # all of them are there in the end
