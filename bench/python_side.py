#!/usr/bin/env python3
"""The Python package beside the C API on this machine, in one run.

    scripts/venv python bench/python_side.py [--rounds N] [--quick] [--only WORD] [--json FILE]

Every point is measured from Python (this file, in two processes) and by `weft perf --fork`, one after the other, for several rounds; what is
shown are medians, bests and their ratios. The package is that of build/release/python, or what PYTHONPATH says. Timings are never a failure.
"""
import argparse
import asyncio
import json
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "release")
sys.path.append(os.path.join(BUILD, "python"))

import weft  # noqa: E402
import weft.blocking  # noqa: E402

TIMEOUT = 120
MIB = 1 << 20
WINDOW = 32
CHUNK = 16  # round trips between two looks at the clock; the median of these is what a quiet moment gives


# --- one side of each measurement: asyncio -------------------------------------------------------------------------------------

async def pong(ep, n):
    buf = bytearray(8)
    for _ in range(n // CHUNK * CHUNK):
        await ep.recv_into(buf, tag=1)
        await ep.send(buf, tag=2)


async def ping(ep, n):
    buf, times = bytearray(8), []
    for _ in range(n // CHUNK):
        start = time.perf_counter()
        for _ in range(CHUNK):
            await ep.send(buf, tag=1)
            await ep.recv_into(buf, tag=2)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / CHUNK / 2 * 1e6


async def many(ep, n, act):
    """256 tasks, each awaiting one operation after the other."""
    async def task():
        for _ in range(n // 256):
            await act()
    await asyncio.gather(*(task() for _ in range(256)))


async def take(ep, n):
    buf = bytearray(8)
    start = time.process_time()
    await many(ep, n, lambda: ep.recv_into(buf, tag=1))
    await ep.send(b"%f" % (time.process_time() - start), tag=2)


async def give(ep, n):
    """Messages per second of processor time of the side that used more: others may be using the cores."""
    start = time.process_time()
    await many(ep, n, lambda: ep.send(b"12345678", tag=1))
    used = time.process_time() - start
    return n // 256 * 256 / max(used, float(await ep.recv(tag=2)))


async def pong_many(ep, n):
    """256 tasks, each answering what comes with its tag: here every await has to wait."""
    async def task(i):
        buf = bytearray(8)
        for _ in range(n // 256):
            await ep.recv_into(buf, tag=i)
            await ep.send(buf, tag=i)
    start = time.process_time()
    await asyncio.gather(*(task(i) for i in range(256)))
    await ep.send(b"%f" % (time.process_time() - start), tag=1000)


async def ping_many(ep, n):
    """Messages received per second of processor time of the side that used more; as many were sent."""
    async def task(i):
        buf = bytearray(8)
        for _ in range(n // 256):
            await ep.send(buf, tag=i)
            await ep.recv_into(buf, tag=i)
    start = time.process_time()
    await asyncio.gather(*(task(i) for i in range(256)))
    used = time.process_time() - start
    return n // 256 * 256 / max(used, float(await ep.recv(tag=1000)))


async def window(act, n):
    """WINDOW operations under way at all times, as `weft perf` has it."""
    async def task():
        for _ in range(n // WINDOW):
            await act()
    await asyncio.gather(*(task() for _ in range(WINDOW)))


def pages():
    """Memory as `weft perf` has it: private pages, touched, that begin at one. Where a buffer lies changes how fast it is copied."""
    buf = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buf[:] = b"w" * MIB
    return buf


async def take_large(ep, n):
    buf = pages()
    await window(lambda: ep.recv_into(buf, tag=1), n)
    await ep.send(b"", tag=2)


async def give_large(ep, n):
    buf = pages()
    start = time.perf_counter()
    await window(lambda: ep.send(buf, tag=1), n)
    await ep.recv(tag=2)
    return n // WINDOW * WINDOW / (time.perf_counter() - start)


# --- and blocking ---------------------------------------------------------------------------------------------------------------

def pong_blocking(ep, n):
    buf = bytearray(8)
    for _ in range(n // CHUNK * CHUNK):
        ep.recv_into(buf, 1)
        ep.send(buf, 2)


def ping_blocking(ep, n):
    buf, times = bytearray(8), []
    for _ in range(n // CHUNK):
        start = time.perf_counter()
        for _ in range(CHUNK):
            ep.send(buf, 1)
            ep.recv_into(buf, 2)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / CHUNK / 2 * 1e6


# --- two processes --------------------------------------------------------------------------------------------------------------

def loop_side(pipe, work, n, options, connect, use_uvloop):
    async def main():
        async with weft.Runtime(**options) as runtime:
            if connect:
                ep = await runtime.connect(pipe.recv())
            else:
                listener = runtime.listen("tcp://127.0.0.1:0")
                pipe.send(listener.uri)
                ep = await listener.accept()
            async with ep:
                await work(ep, max(n // 10, 256))
                pipe.send(await work(ep, n))
                if not connect:  # the one who measures closes first
                    try:
                        await ep.recv(tag=99)
                    except weft.WeftError:
                        pass
    if use_uvloop:
        import uvloop
        uvloop.install()
    asyncio.run(main())


def blocking_side(pipe, work, n, options, connect, unused):
    with weft.blocking.Runtime(**options) as runtime:
        if connect:
            ep = runtime.connect(pipe.recv())
        else:
            pipe.send((listener := runtime.listen("tcp://127.0.0.1:0")).uri)
            ep = listener.accept(timeout=10)
        with ep:
            work(ep, n // 10)
            pipe.send(work(ep, n))
            if not connect:
                try:
                    ep.recv(tag=99)
                except weft.WeftError:
                    pass


def measure(side, server, client, n, options, use_uvloop=False):
    spawn = multiprocessing.get_context("fork")
    (here_s, there_s), (here_c, there_c) = spawn.Pipe(), spawn.Pipe()
    cores = sorted(os.sched_getaffinity(0))[:2]
    processes = []
    for core, pipe, work, connect in ((cores[0], there_s, server, False), (cores[-1], there_c, client, True)):
        def run(core=core, pipe=pipe, work=work, connect=connect):
            os.sched_setaffinity(0, {core})
            side(pipe, work, n, options, connect, use_uvloop)
        processes.append(spawn.Process(target=run))
        processes[-1].start()
    try:
        assert here_s.poll(TIMEOUT), "the server did not listen"
        here_c.send(here_s.recv())
        assert here_c.poll(TIMEOUT), "no end"
        return here_c.recv()
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def perf(test, size, transport, seconds):
    """The C API's figure: half round trip in us, messages per second, or MiB/s."""
    out = subprocess.run([os.path.join(BUILD, "weft"), "perf", "--fork", "--json", "--tls", transport, "--test", test, "--size", str(size),
                          "--seconds", str(seconds)], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if out.returncode:
        sys.exit(f"weft perf: {out.stderr}")
    row = json.loads(out.stdout.strip().splitlines()[-1])
    return row[{"tag_lat": "p50_us", "tag_rate": "msg_s", "tag_bw": "mb_s"}[test]]


def op_cost(n):
    """Nanoseconds to post a message that is complete at once and to await it, less what an empty await costs."""
    async def main():
        async with weft.Runtime(transports="shm") as runtime:
            listener = runtime.listen("unix://@weft-bench-%d" % os.getpid())
            accepting = listener.accept()
            ep = await runtime.connect(listener.uri)
            peer = await accepting
            buf, best = b"12345678", 1e9
            for _ in range(20):
                start = time.perf_counter()
                for _ in range(n):
                    await ep.send(buf, 1)
                best = min(best, (time.perf_counter() - start) / n * 1e9)
                sink = bytearray(8)
                for _ in range(n):
                    await peer.recv_into(sink, 1)
            await ep.close()
            return best
    return asyncio.run(main())


def row(name, mine, c):
    """Medians, bests and both ratios: where other work comes and goes the medians of few rounds can be of different moments."""
    best = min if name.endswith("us") else max
    medians, bests = [statistics.median(x) for x in (mine, c)], [best(x) for x in (mine, c)]
    return (f"{name:42} median {medians[0]:12.2f} C {medians[1]:12.2f} ratio {medians[0] / medians[1]:5.2f}"
            f"   best {bests[0]:12.2f} C {bests[1]:12.2f} ratio {bests[0] / bests[1]:5.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    scale = 10 if args.quick else 1
    shm, tcp = {"transports": "shm"}, {"transports": "tcp"}
    points = [
        ("asyncio 8 B latency, shm, us", lambda: measure(loop_side, pong, ping, 50000 // scale, shm), ("tag_lat", 8, "shm")),
        ("asyncio 8 B latency, tcp, us", lambda: measure(loop_side, pong, ping, 30000 // scale, tcp), ("tag_lat", 8, "tcp")),
        ("uvloop 8 B latency, shm, us", lambda: measure(loop_side, pong, ping, 50000 // scale, shm, True), ("tag_lat", 8, "shm")),
        ("asyncio 256 awaits, shm, msg/s per core", lambda: measure(loop_side, take, give, 400000 // scale, shm), ("tag_rate", 8, "shm")),
        ("asyncio 256 ping-pongs, shm, msg/s per core", lambda: measure(loop_side, pong_many, ping_many, 200000 // scale, shm),
         ("tag_rate", 8, "shm")),
        ("asyncio 1 MiB bandwidth, shm, MiB/s", lambda: measure(loop_side, take_large, give_large, 4000 // scale, shm), ("tag_bw", MIB, "shm")),
        ("asyncio 1 MiB bandwidth, tcp, MiB/s", lambda: measure(loop_side, take_large, give_large, 2000 // scale, tcp), ("tag_bw", MIB, "tcp")),
        ("blocking 8 B latency, shm, us", lambda: measure(blocking_side, pong_blocking, ping_blocking, 100000 // scale,
                                                          {"progress": "caller", **shm}), ("tag_lat", 8, "shm")),
        ("blocking 8 B latency, tcp, us", lambda: measure(blocking_side, pong_blocking, ping_blocking, 30000 // scale,
                                                          {"progress": "caller", **tcp}), ("tag_lat", 8, "tcp")),
    ]
    table = {}
    for name, ours, theirs in points:
        if args.only not in name:
            continue
        mine, c = [], []
        for _ in range(args.rounds):
            mine.append(ours())
            c.append(perf(*theirs, 1 / scale))
        table[name] = {"python": mine, "c": c}
        print(row(name, mine, c), flush=True)
    if args.only in "post and completion":
        table["post and completion, ns"] = {"python": [op_cost(1000)], "c": []}
        print(f"{'post and completion, ns':42} best   {table['post and completion, ns']['python'][0]:12.0f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(table, out, indent=1)


if __name__ == "__main__":
    main()
