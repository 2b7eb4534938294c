"""Remote memory beside ucx_perftest, beside active messages, and beside Redis: what `bench/run --only rma` shows.

A read, a write or an atomic is timed whole, as ucx_perftest does it (ucp_get, ucp_fadd); ucp_put_lat and rma_put_lat are half of a
round trip."""
import statistics

import redis_side
from common import Failed, holds, ratios, show
from rows import Row, table, ucx, weft

KIB, MIB = 1 << 10, 1 << 20
REQUEST = 40  # bytes of the record that asks for a read


def mapped(name, unit, ours, theirs, size, bound, window=None):
    return Row("mapped, on one host", name, unit, weft(ours, "shm", size, window, path="mapped"),
               [(theirs, ucx(theirs, "shm", size, window), 1, bound)])


def checked(name, unit, ours, others):
    return Row("checked, over TCP", name, unit, ours, others)


def batched(part, tls, path):
    return Row(part, "64 B reads, batches of 256", "/s", weft("rma_batch", tls, 64, batch=256, path=path),
               [("single, 256 open", weft("rma_get", tls, 64, 256, path=path), 1, "")])


ROWS = [
    mapped("8 B get", "us", "rma_get", "ucp_get", 8, "<= 1.15"),
    mapped("8 B put, ping-pong", "us", "rma_put_lat", "ucp_put_lat", 8, "<= 1.15"),
    mapped("8 B put, one way", "/s", "rma_put", "ucp_put_bw", 8, ">= 0.87"),
    mapped("8 B fetch-add", "us", "rma_fadd", "ucp_fadd", 8, "<= 1.15"),
    mapped("8 B swap", "us", "rma_swap", "ucp_swap", 8, ""),
    mapped("8 B compare-and-swap", "us", "rma_cas", "ucp_cswap", 8, ""),
    mapped("4 KiB get", "us", "rma_get", "ucp_get", 4 * KIB, ""),
    mapped("1 MiB get", "MiB/s", "rma_get", "ucp_get", MIB, ">= 0.97"),
    mapped("64 MiB get", "MiB/s", "rma_get", "ucp_get", 64 * MIB, ">= 0.97"),
    mapped("1 MiB put", "MiB/s", "rma_put", "ucp_put_bw", MIB, ">= 0.97"),
    mapped("64 MiB put", "MiB/s", "rma_put", "ucp_put_bw", 64 * MIB, ">= 0.97"),
    batched("mapped, on one host", "shm", "mapped"),
    checked("4 KiB read", "us", weft("rma_get", "tcp", 4 * KIB, path="checked"), [
        ("weft's message", weft("am_lat", "tcp", REQUEST, answer=4 * KIB), 2, "<= 1.25"),
        ("ucp_am, 4 KiB", ucx("ucp_am_lat", "tcp", 4 * KIB), 2, ""),
        ("ucp_get", ucx("ucp_get", "tcp", 4 * KIB), 1, "")]),
    checked("1 MiB reads, 32 open", "MiB/s", weft("rma_get", "tcp", MIB, 32, path="checked"),
            [("ucp_get", ucx("ucp_get", "tcp", MIB, 32), 1, ">= 0.90")]),
    checked("64 B reads, 256 open", "/s", weft("rma_get", "tcp", 64, 256, path="checked"),
            [("ucp_get", ucx("ucp_get", "tcp", 64, 256), 1, ">= 5")]),
    batched("checked, over TCP", "tcp", "checked"),
    batched("checked, on one host", "shm", "checked"),
]

OPEN = (1, 16, 64, 256)
# what of weft stands beside Redis: name, transport, path, mode
WAYS = [
    ("mapped, spinning", "shm", "mapped", "caller"),
    ("checked, shm, spinning", "shm", "checked", "caller"),
    ("checked, TCP, spinning", "tcp", "checked", "caller"),
    ("mapped, own threads", "shm", "mapped", "thread"),
    ("checked, shm, own threads", "shm", "checked", "thread"),
    ("checked, TCP, own threads", "tcp", "checked", "thread"),
]


def against_ucx(bench):
    table(bench, "remote", ROWS, "Remote memory beside ucx_perftest and active messages")
    print("message: a small active message and an answer of 4 KiB, back and forth. ucp_am: 4 KiB both ways.\n"
          "open: posted and not yet complete. A put one way is complete when the bytes are in the owner's memory.\n")


def both(bench, tls, path, mode, n):
    """Reads and writes of 4 KiB a second, n open. Each in its own 4 KiB: writes to the same bytes would have to wait for each other."""
    more = {"path": path, "mode": mode, "region": n * 4 * KIB}
    return {"read_s": bench.weft_point("rma_get", tls, 4 * KIB, n, **more)["msg_s"],
            "write_s": bench.weft_point("rma_put", tls, 4 * KIB, n, **more)["msg_s"]}


def redis_round(bench, redis, n, odd):
    """One round with n open: what each way came to."""
    sides = [("redis, n connections", lambda: redis.point(4 * KIB, n, 1))]
    if n > 1:
        sides.append(("redis, pipelined", lambda: redis.point(4 * KIB, 1, n)))
    for name, tls, path, mode in WAYS:
        sides.append((name, lambda tls=tls, path=path, mode=mode: both(bench, tls, path, mode, n)))
    return {name: measure() for name, measure in (reversed(sides) if odd else sides)}


def against_redis(bench):
    rounds = min(5, bench.args.rounds)
    levels = (1, 64) if bench.args.quick else OPEN
    found = {n: [] for n in levels}
    if not redis_side.program():
        print("There is no Redis here (Debian: redis-tools): nothing to hold 4 KiB reads and writes against.\n")
        return
    try:
        with redis_side.serving(bench.on_core) as path:
            redis = redis_side.Redis(path, bench.on_core, bench.seconds)
            for r in range(rounds):
                for n in levels:
                    bench.progress(f"round {r + 1} of {rounds}: {n} beside Redis")
                    found[n].append(redis_round(bench, redis, n, r % 2))
    except Failed as e:
        bench.progress("")
        print(f"Beside Redis: failed: {e}\n"[:100])
        return
    bench.progress("")
    print(f"4 KiB reads and writes beside Redis GET and SET over a Unix socket: medians of {rounds} rounds\n")
    print(f"{'open':>4} {'what':<27} {'reads/s':>12} {'x redis':>9} {'writes/s':>12} {'x redis':>9}  bound on both")
    for n in levels:
        print_redis(bench, n, found[n])
    print("\nx redis: times the better of the two ways to drive Redis with that many open, in the same round. Redis and\n"
          "redis-benchmark sleep when they have nothing to do, as the rows with own threads do; the spinning ones keep both\n"
          "cores busy, and a mapped access needs the owner's processor for nothing. The bound is for the best way of a client\n"
          "on the same host, which is mapped; all others are shown beside it.\n")


def print_redis(bench, n, found):
    best = [{way: max(f[side][way] for side in f if side.startswith("redis")) for way in ("read_s", "write_s")} for f in found]
    names = [name for name in found[0] if name.startswith("redis")] + [way[0] for way in WAYS]
    for i, name in enumerate(names):
        line = f"{n if i == 0 else '':>4} {name:<27}"
        times = []
        for way in ("read_s", "write_s"):
            ours = [f[name][way] for f in found]
            _, ratio, _ = ratios(ours, [b[way] for b in best])
            times.append(ratio)
            line += f" {show(statistics.median(ours), '/s'):>12} {ratio:>9.2f}"
        bound = ">= 20" if name == WAYS[0][0] else ""
        held = holds(min(times), bound) if bound else None
        print(f"{line}  {bound}{' NO' if held is False else ''}".rstrip())
        bench.keep("redis", open=n, name=name, rounds=[f[name] for f in found], ratios=times, bound=bound, held=held)
