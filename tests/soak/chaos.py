"""What happens to processes: killed, stopped and let go on, stopped and killed. At random, by one seed; and what that explains afterwards."""
import bisect
import heapq
import os
import select
import signal
import threading
import time

PAUSE = 1.5       # seconds between two, on average
LONGEST = 8.0     # of a stop
SHORT = 2.0       # of a stop of one that must live: well within the heartbeat of 5 s
STOPPED_MOST = 2  # at one time
AFTER = 3.0       # so long after it was over, or the server was back, others may still feel it
KINDS = (("kill", 5), ("stop", 3), ("stop and kill", 2))


class Event:
    def __init__(self, tag, pid, kind, at, until, words):
        self.tag, self.pid, self.kind, self.at, self.until, self.words = tag, pid, kind, at, until, words


def send(fd, number):
    """A signal to the process of a pidfd. One that kills is waited for: whoever looks afterwards finds it dead."""
    signal.pidfd_send_signal(fd, number)
    if number == signal.SIGKILL:
        select.select([fd], [], [], 10)


class Chaos(threading.Thread):
    """`spared` are the tags of those that are only stopped, and not for long; `servers` those that are started again, and tell back() so."""

    def __init__(self, world, rng, spared, servers):
        super().__init__(name="chaos", daemon=True)
        self.world, self.rng, self.spared, self.servers = world, rng, spared, servers
        self.events, self.over, self.lock = [], threading.Event(), threading.Lock()
        self.due = []  # (when, order, event, descriptor, signal): what is stopped now
        self.count = {}

    # --- doing ------------------------------------------------------------------------------------------------------------------

    def run(self):
        following = time.monotonic() + self.rng.expovariate(1 / PAUSE)
        while not self.over.is_set():
            now = time.monotonic()
            if now >= following:
                self.hit_one()
                following = now + self.rng.expovariate(1 / PAUSE)
            self.finish(now)
            self.over.wait(max(0.01, min([following, *[d[0] for d in self.due[:1]]]) - time.monotonic()))
        self.finish(float("inf"))

    def pick(self):
        """First of which kind, then which: elements are many, servers few."""
        by_kind = {}
        stopped = {d[2].pid for d in self.due}
        for process in self.world.processes():
            if process.pid not in stopped:
                by_kind.setdefault(process.tag.split("-")[0], []).append(process)
        if not by_kind:
            return None
        return self.rng.choice(sorted(by_kind[self.rng.choice(sorted(by_kind))], key=lambda p: p.pid))

    def hit_one(self):
        process = self.pick()
        if process is None:
            return
        kind = self.rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
        spared = process.tag in self.spared
        if spared:
            kind = "stop"
        if kind != "kill" and len(self.due) >= STOPPED_MOST:
            return
        length = self.rng.uniform(0.05, SHORT if spared else LONGEST) if kind != "kill" else 0
        words, now = process.words(), time.monotonic()
        event = Event(process.tag, process.pid, kind, now, now if kind == "kill" and process.tag not in self.servers else float("inf"), words)
        with self.lock:  # before it happens: whoever feels it at once finds it
            self.events.append(event)
        with process.held(self.world.run.encode()) as fd:
            if fd is None:
                with self.lock:
                    self.events.remove(event)
                return
            send(fd, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind != "kill":
                heapq.heappush(self.due, (now + length, len(self.events), event, os.dup(fd), signal.SIGCONT if kind == "stop" else signal.SIGKILL))
        self.count[kind] = self.count.get(kind, 0) + 1

    def finish(self, now):
        while self.due and self.due[0][0] <= now:
            _, _, event, fd, number = heapq.heappop(self.due)
            try:
                send(fd, number)
            except ProcessLookupError:
                pass
            os.close(fd)
            if event.kind == "stop" or event.tag not in self.servers:
                with self.lock:
                    event.until = time.monotonic()

    def stop(self):
        self.over.set()
        self.join()

    # --- explaining -------------------------------------------------------------------------------------------------------------

    def back(self, tag, pid):
        """A server that was hit is there again, as another process: until now it was not."""
        with self.lock:
            for event in self.events:
                if event.tag == tag and event.pid == pid and event.kind != "stop":
                    event.until = time.monotonic()

    def hits(self, tags, begin, end):
        """What befell these between the two, or so short before that it can still be felt."""
        with self.lock:
            first = bisect.bisect_left([e.at for e in self.events], begin - 120)
            return [e for e in self.events[first:] if e.tag in tags and e.at <= end and e.until + AFTER >= begin]

    def was_killed(self, pid):
        with self.lock:
            return any(e.pid == pid and e.kind != "stop" for e in self.events)

    def stopped_for(self, tags, begin, end):
        """For how many seconds some of them were stopped, all together."""
        return sum(max(0, min(e.until, end) - max(e.at, begin)) for e in self.hits(tags, begin, end))
