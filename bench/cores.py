"""Calls of many clients, on many cores: a part of `bench/run --only scaling`.

The server of `weft perf` has one shard or several, beside it is the least program on epoll with as many threads (bench/peers/epoll_echo.c), in
the same run. Both have as many client processes, connections and calls under way. Functions on threads of their service stand beside the
same functions on the driver (bench/pool_cost.c). The bounds are for 16 cores: with fewer there are fewer clients and shards, and no bounds."""
import os
import subprocess

from common import clean_env
from rows import Row, table

SIZE = 64
CORES = 16  # of the machine that the bounds are for
CLIENTS = 14
EACH = 128  # connections of a client that has many
PIPELINED = 64
SHARDS = (1, 2, 4, 8)


class Machine:
    """How many clients and shards fit on it, and whether this build knows shards."""

    def __init__(self, bench):
        self.cores = len(os.sched_getaffinity(0))
        self.clients = CLIENTS if self.cores >= CORES else max(2, self.cores - 2)
        self.few = min(8, self.clients)
        self.shards = [n for n in SHARDS if n <= self.cores]
        self.seconds = 0.25 if bench.args.quick else 0.5
        done = subprocess.run([bench.weft, "perf", "--help"], env=clean_env(), stdout=subprocess.PIPE, text=True, check=False)
        self.knows_shards = "--shards" in done.stdout

    def bound(self, text):
        return text if self.cores >= CORES else ""


def calls(m, tls, shards, clients, connections=1, window=1):
    """`window` calls are under way on each connection of each client."""
    if shards > 1 and not m.knows_shards:
        return None
    more = {"clients": clients, "mode": "thread"}
    if connections > 1:
        more["endpoints"] = connections
    if m.knows_shards:
        more["shards"] = shards
    # a window of rpc_rate is that of all endpoints of a client, which it uses in turn
    return lambda bench: bench.weft_point("rpc_rate", tls, SIZE, window * connections, seconds=m.seconds, **more)


def epoll(m, threads, clients, connections=1, window=1):
    def measure(bench):
        got = bench.one_line("epoll_echo", [bench.peer("epoll_echo"), "--threads", str(threads), "--clients", str(clients), "--connections",
                                            str(connections), "--window", str(window), "--seconds", str(m.seconds)])
        return {**got, "msg_s": got["calls_s"]}
    return measure


def beside_epoll(m, part, name, shards, bound, ratio_bound="", **load):
    others = [(f"epoll, {shards} thread{'s' if shards > 1 else ''}", epoll(m, shards, **load), 1, m.bound(ratio_bound))]
    return Row(part, f"{name}, {shards} shard{'s' if shards > 1 else ''}", "/s", calls(m, "tcp", shards, **load), others, m.bound(bound))


class Pool:
    """One run of pool_cost has the figures of two rows: what was not asked for yet is taken from the last run."""

    def __init__(self, m):
        self.m, self.left = m, {}

    def figures(self, what):
        def measure(bench):
            if what not in self.left:
                command = [bench.peer("pool_cost"), "--clients", str(self.m.clients), "--seconds", str(4 * self.m.seconds)]
                got = bench.one_line("pool_cost", command)
                self.left = {"inline": {"msg_s": got["inline_rate"]}, "pool": {"msg_s": got["pool_rate"]},
                             "longer": {"avg_us": got["pool_us"] - got["inline_us"], "inline_us": got["inline_us"], "pool_us": got["pool_us"]}}
            return self.left.pop(what)
        return measure


def rows(m):
    one, most = m.shards[0], m.shards[-1]
    some = [one] if one == most else [one, most]
    over_tcp, pool = "64 B calls over TCP", Pool(m)
    yield from (beside_epoll(m, over_tcp, f"{m.clients} clients", n, "", ">= 0.85", clients=m.clients) for n in m.shards)
    for n in some:
        goal = ">= 1.2e6" if n == most else ""
        yield beside_epoll(m, over_tcp, f"{m.few} x {EACH} clients", n, goal, clients=m.few, connections=EACH)
    for n in some:
        goal = ">= 8e6" if n == most else ""
        yield beside_epoll(m, over_tcp, f"{m.few}, {PIPELINED} open each", n, goal, clients=m.few, window=PIPELINED)
    for window, goal in ((1, ">= 4.5e6"), (PIPELINED, ">= 12e6")):
        for n in some:
            yield Row("64 B calls on shared memory", f"{m.few}, {window} open each, {n} shard{'s' if n > 1 else ''}", "/s",
                      calls(m, "shm", n, m.few, window=window), [], m.bound(goal if n == most else ""))
    yield Row("Functions on threads of their service", f"{m.clients} clients", "/s", pool.figures("pool"),
              [("on the driver", pool.figures("inline"), 1, m.bound(">= 0.5"))])
    yield Row("Functions on threads of their service", "one call, longer by", "us", pool.figures("longer"), [], m.bound("<= 5"))


def tables(bench):
    m = Machine(bench)
    if not bench.has_peer("epoll_echo"):
        print("There is no epoll_echo beside the command: `make build` makes it.\n")
        return
    if not m.knows_shards:
        print("This build of weft perf has no --shards: its rows with more than one say \"-\".\n")
    table(bench, "cores", list(rows(m)), "Calls on many cores", rounds=bench.args.rounds_asked or 5,
          where="a core for each process where there are enough")
    print(f"clients: processes; with {EACH} connections each in the rows that say so, otherwise with one. One call is under way on each connection\n"
          "where nothing else is said. epoll: bench/peers/epoll_echo.c, which has no frames, no failure detection and no flow control, and\n"
          "sleeps where it has nothing to do. longer by: the median round trip of one client with one call under way.\n"
          f"{'' if m.cores >= CORES else f'The bounds are for {CORES} cores; here are {m.cores}, and so there are none.'}\n")
