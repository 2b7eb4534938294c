#!/usr/bin/env python3
"""What reads of an element's memory cost from Python, beside the C API and beside each other, in one run.

    bench/elements.py [--rounds N] [--build DIR] [--json]          bench/run --only elements runs it

The memory element is a process of its own (`weft element memory`). Measured in turns, round by round:

    4 KiB on one host    trans.read(4096, 0) and element_read, which is the same in C: the medians, in us
    2 MiB on one host    the same, as bandwidth, and the ratio of the two
    4 KiB over TCP       trans.read() one after the other, and 64 awaited at a time: rates, and the ratio

The package, the command and element_read are those of build/release, or of --build. Timings are never a failure.
"""
import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBD = {"4 KiB": 207.0, "4 KiB, RDMA": 3.6}  # us, from its authors and measured: shared by all figures below
DEEP = 64


@contextlib.contextmanager
def process(*args):
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        try:
            yield p
        finally:
            p.kill()


@contextlib.contextmanager
def memory(weft, tls, size):
    """A memory element, and its durl."""
    with process(weft, "element", "memory", "--size", str(size), "--name", "mem", "--transports", tls) as p:
        line = p.stdout.readline()
        if not line:
            sys.exit("the memory element did not start")
        yield next(word for word in line.split() if word.startswith("mem;"))


class C:
    """The same reads in C, in a process that waits for its turns."""

    def __init__(self, p, durl):
        self.p = p
        print(durl, file=p.stdin, flush=True)

    def reads(self, n):
        print(n, file=self.p.stdin, flush=True)
        return [float(word) for word in self.p.stdout.readline().split()]


def reads(trans, size, n):
    took = []
    for _ in range(n):
        began = time.perf_counter_ns()
        trans.read(size, 0)
        took.append((time.perf_counter_ns() - began) / 1e9)
    return took


async def deep(trans, size, n):
    """n reads, DEEP at a time: seconds."""
    left = n

    async def some():
        nonlocal left
        while left > 0:
            left -= 1
            await trans.read_async(size, 0)
    began = time.perf_counter()
    await asyncio.gather(*[some() for _ in range(DEEP)])
    return time.perf_counter() - began


@contextlib.contextmanager
def transport(durl, tls, size):
    import disagg
    from weft import _core
    runtime = _core.Runtime(progress="thread", transports=tls)
    try:
        with disagg.LibdAction(None, "bench", transports=[durl], runtime=runtime) as action:
            trans = action.get_transport("mem", "rdma")
            trans.reg(size)
            trans.wait_ready(10)
            yield trans
    finally:
        runtime._close()


def beside_c(opts, size, n):
    """Rounds of reads in Python and in C: two lists of medians."""
    python, c = [], []
    with memory(opts.weft, "all", size) as durl, process(opts.read, "all", str(size)) as p, transport(durl, "all", size) as trans:
        other = C(p, durl)
        assert trans.stats()["path"] == "mapped"
        for i in range(opts.rounds + 1):
            sides = [(python, lambda: reads(trans, size, n)), (c, lambda: other.reads(n))]
            for kept, how in sides if i % 2 else reversed(sides):
                took = statistics.median(how())
                if i:  # the first round warms up
                    kept.append(took)
    return python, c


def over_tcp(opts, size, n):
    """Rounds of reads one after the other and of awaited ones: two lists of rates."""
    one, many = [], []
    with memory(opts.weft, "tcp", size) as durl, transport(durl, "tcp", size) as trans:
        for i in range(opts.rounds + 1):
            rate_of_one = 1 / statistics.mean(reads(trans, size, n))
            rate_of_many = 4 * n / asyncio.run(deep(trans, size, 4 * n))
            if i:
                one.append(rate_of_one)
                many.append(rate_of_many)
    return one, many


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--json", action="store_true")
    opts = parser.parse_args()
    opts.weft, opts.read = os.path.join(opts.build, "weft"), os.path.join(opts.build, "element_read")
    sys.path.insert(0, os.path.join(opts.build, "python"))
    small, small_c = beside_c(opts, 4096, 2000)
    large, large_c = beside_c(opts, 2 << 20, 100)
    one, many = over_tcp(opts, 4096, 500)
    median = statistics.median
    figures = {"4 KiB on one host": {"us": round(median(small) * 1e6, 3), "c_us": round(median(small_c) * 1e6, 3),
                                     "beside_libd_on_tcp": round(LIBD["4 KiB"] / (median(small) * 1e6), 1)},
               "2 MiB on one host": {"gb_s": round((2 << 20) / median(large) / 1e9, 2), "c_gb_s": round((2 << 20) / median(large_c) / 1e9, 2),
                                     "ratio": round(median(b / a for a, b in zip(large, large_c)), 3)},
               "4 KiB over TCP": {"us": round(1e6 / median(one), 2), "one_after_the_other_s": round(median(one)),
                                  "awaited_64_deep_s": round(median(many)), "ratio": round(median(b / a for a, b in zip(one, many)), 2)}}
    if opts.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        print(f"{name:20}", "  ".join(f"{key} {value}" for key, value in row.items()))
    print(f"bounds: 4 KiB at most {LIBD['4 KiB, RDMA']} us, and 25 times faster than libd over TCP; 2 MiB at least 0.90 of C; "
          "awaited at least 5 times the rate")


if __name__ == "__main__":
    main()
