"""What `weft perf` measures, from Python.

    python -m weft.perf [--test LIST] [--size LIST] [--mode asyncio|uvloop|blocking|thread] ...

A server and a client, each in a process, exchange messages; the client decides what is measured and prints the figures. Without
--listen or --connect both run here, pinned to the first two cores. Each point is first run for growing numbers of messages, until
a run takes long enough to be believed. That is the warm-up; then it is measured for about --seconds. The names of tests and of
the fields of --json are those of `weft perf`:

    tag_lat    ping-pong; times are half of a round trip
    tag_bw     one way, with a window of sends that are not complete; the time ends when the receiver says that everything arrived
    tag_rate   the same for small messages, with a larger window
    am_lat     ping-pong of active messages
    awaits     256 tasks, each in a ping-pong of its own (not blocking): how many awaits a second that wait

tests/python/test_perf.py holds us to it.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import weft
import weft.blocking

from ._loops import Runner
from ._perf_sides import ASYNC, BLOCKING, CONTROL, MOST_N, MOST_SIZE, MOST_WINDOW, SIZES, TASKS, Failed, Plan, plan_of

WINDOWS = {"tag_bw": 32, "tag_rate": 256, "awaits": TASKS}


# --- one side -------------------------------------------------------------------------------------------------------------------

class Steps:
    """The steps of a client or a server, the same for both kinds of endpoints: each is a generator that yields what has to be
    awaited or done."""

    def __init__(self, args: argparse.Namespace, blocking: bool) -> None:
        self.args, self.tests = args, BLOCKING if blocking else ASYNC

    def serve(self, ep: Any) -> Any:
        while True:
            try:
                plan = plan_of((yield lambda: ep.recv(CONTROL, max_len=4096)))
                if plan.test not in self.tests:
                    raise Failed(f"{plan.test} has no blocking side: use --mode asyncio at both")
            except weft.ClosedError:
                return
            yield lambda plan=plan: self.tests[plan.test][1](ep, plan)

    def measure(self, ep: Any, test: str, size: int, out: Callable[[dict[str, Any]], None]) -> Any:
        window = TASKS if test == "awaits" else self.args.window or WINDOWS.get(test, 1)
        n, spent = (self.args.warmup if self.args.warmup is not None else self.args.iters // 10) if self.args.iters else 64, 0.0
        while True:
            n = max(n, 1)
            plan = Plan(test, size, max(n, window) if test in ("tag_bw", "tag_rate", "awaits") else n, window)
            final = spent >= self.args.seconds / 20 if not self.args.iters else spent > 0
            yield lambda plan=plan: ep.send(json.dumps(plan._asdict()).encode(), CONTROL)
            start = time.perf_counter()
            times = yield lambda plan=plan: self.tests[test][0](ep, plan)
            spent = time.perf_counter() - start
            if final:
                out(figures(self.args, plan, ep.info["transport"], times, spent))
                return
            if self.args.iters:
                n = self.args.iters
            elif spent >= self.args.seconds / 20:
                n = int(plan.n * self.args.seconds / spent) + 1
            else:
                n = min(plan.n * 4, MOST_N)


def figures(args: argparse.Namespace, plan: Plan, transport: str, times: list[float], seconds: float) -> dict[str, Any]:
    n = len(times) * plan.window if plan.test in ("tag_bw", "tag_rate", "awaits") else plan.n
    average = seconds / n if plan.test in ("tag_bw", "tag_rate", "awaits") else seconds / n / 2
    ranked = sorted(times)

    def rank(share: float) -> float:
        return round(ranked[min(int(share * len(ranked)), len(ranked) - 1)] * 1e6, 4)
    given = args.transports or ""
    return {"test": plan.test, "size": plan.size, "transports": given, "tls": given, "transport": transport, "mode": args.mode,
            "endpoints": 1,
            "seconds": round(seconds, 9), "window": plan.window, "outstanding": plan.window, "iterations": n,
            "avg_us": round(average * 1e6, 5),
            "p50_us": rank(0.5), "p90_us": rank(0.9), "p99_us": rank(0.99), "p99_9_us": rank(0.999),
            "max_us": round(ranked[-1] * 1e6, 4),
            "mb_s": round(plan.size / average / (1 << 20), 3), "msg_s": round(1 / average, 1)}


async def walk(steps: Any) -> Any:
    """Run steps in an event loop."""
    value = None
    try:
        while True:
            try:
                step = steps.send(value)
                value = await step()
            except weft.ClosedError as error:
                value = steps.throw(error)
    except StopIteration:
        pass


def run(args: argparse.Namespace, uri: str | None, out: Callable[[dict[str, Any]], None], points: list[tuple[str, int]]) -> None:
    """A server (uri is None) or the client of one."""
    options: dict[str, Any] = {"transports": args.transports}
    blocking = args.mode in ("blocking", "thread")
    steps = Steps(args, blocking)

    async def side() -> None:
        async with weft.Runtime(**options) as runtime:
            if uri is not None:
                async with await runtime.connect(uri, timeout=args.timeout, retry=False) as ep:
                    for point in points:
                        await walk(steps.measure(ep, *point, out))
                return
            listener = runtime.listen(args.listen or "tcp://127.0.0.1:0")
            print(json.dumps({"listening": listener.uri}), flush=True)
            while True:
                async with await listener.accept() as ep:
                    await walk(steps.serve(ep))
                if not args.forever:
                    return
    if not blocking:
        factory = None
        if args.mode == "uvloop":
            try:
                import uvloop  # type: ignore[import-not-found,unused-ignore]
            except ImportError:
                raise Failed("--mode uvloop needs uvloop, which is not installed: pip install uvloop") from None
            factory = uvloop.new_event_loop
        with Runner(loop_factory=factory) as runner:
            runner.run(side())
        return

    def do(each: Any) -> None:
        value = None
        try:
            while True:
                try:
                    step = each.send(value)
                    value = step()
                except weft.ClosedError as error:
                    value = each.throw(error)
        except StopIteration:
            pass
    with weft.blocking.Runtime(progress="caller" if args.mode == "blocking" else "thread", shards=1, **options) as runtime:
        if uri is not None:
            with runtime.connect(uri, timeout=args.timeout, retry=False) as ep:
                for point in points:
                    do(steps.measure(ep, *point, out))
            return
        listener = runtime.listen(args.listen or "tcp://127.0.0.1:0")
        print(json.dumps({"listening": listener.uri}), flush=True)
        while True:
            with listener.accept() as ep:
                do(steps.serve(ep))
            if not args.forever:
                return


# --- the command ----------------------------------------------------------------------------------------------------------------

def bytes_of(word: str) -> int:
    match = re.fullmatch(r"(\d+)([kMGT]?)", word)
    if not match:
        raise argparse.ArgumentTypeError(f"{word!r} is no size: 8, 4k, 1M")
    size = int(match[1]) << " kMGT".index(match[2] or " ") * 10
    if size > MOST_SIZE:
        raise argparse.ArgumentTypeError(f"{word} is more than 4G")
    return size


def sizes_of(text: str) -> list[int]:
    """8,4k,1M, or 8-1M for each power of two in between."""
    sizes = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        sizes.append(bytes_of(first))
        while dash and sizes[-1] * 2 <= bytes_of(last) and sizes[-1]:
            sizes.append(sizes[-1] * 2)
    return sizes


def tests_of(text: str) -> list[str]:
    for word in text.split(","):
        if word not in SIZES:
            raise argparse.ArgumentTypeError(f"there is no test {word!r}: {', '.join(SIZES)}")
    return text.split(",")


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def count(text: str) -> int:
    value = int(text)
    if not 0 < value <= MOST_N:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {MOST_N}")
    return value


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m weft.perf", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="URI", nargs="?", const="tcp://127.0.0.1:0", help="be the server, for one client")
    where.add_argument("--connect", metavar="URI", help="be the client of that server")
    add("--forever", action="store_true", help="with --listen: one client after another")
    add("--test", type=tests_of, default=["tag_lat", "tag_bw", "tag_rate"], metavar="LIST", help=f"of {', '.join(SIZES)} (the "
                                                                                                 f"first three)")
    add("--size", type=sizes_of, metavar="LIST", help="bytes of a message: 8,4k,1M or 8-1M (a few that suit the test)")
    add("--window", type=count, help="operations that may be incomplete at one time")
    add("--mode", choices=["asyncio", "uvloop", "blocking", "thread"], default="asyncio",
        help="blocking: whoever waits drives; thread: a thread of the runtime does")
    add("--transports", metavar="LIST", help="all, shm, tcp, or names of UCX's")
    add("--tls", metavar="LIST", help=argparse.SUPPRESS)
    add("--seconds", type=positive, default=1.0, help="about how long to measure each point (1)")
    add("--iters", type=count, default=0, help="exactly how many messages instead, after --warmup (a tenth)")
    add("--warmup", type=count)
    add("--timeout", type=positive, default=60.0, help="the longest that connecting may take")
    add("--no-pin", action="store_true", help="leave the choice of cores to the kernel")
    add("--json", action="store_true", help="one JSON object a line instead of a table")
    add("--plot", metavar="OUT.PNG", help="draw the figures (needs matplotlib)")
    args = parser.parse_args(argv)
    if args.tls is not None:
        print("weft.perf: --tls is now --transports; it will go in 0.3", file=sys.stderr)
        args.transports = args.tls
    if (args.window or 1) > MOST_WINDOW:
        parser.error(f"--window is at most {MOST_WINDOW}")
    if args.mode in ("blocking", "thread") and "awaits" in args.test:
        parser.error("awaits needs an event loop: --mode asyncio or uvloop")
    return args


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Latency and bandwidth over the size of messages."""
    import matplotlib  # type: ignore[import-not-found,import-untyped,unused-ignore]
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for axis, field, label, wanted in ((axes[0], "p50_us", "median, us", ("tag_lat", "am_lat")),
                                       (axes[1], "mb_s", "MiB/s", ("tag_bw", "tag_rate", "awaits"))):
        for test in wanted:
            mine = [row for row in rows if row["test"] == test]
            if mine:
                axis.plot([max(row["size"], 1) for row in mine], [row[field] for row in mine], "o-",
                          label=f"{test}, {mine[0]['mode']}")
        axis.set(xscale="log", yscale="log", xlabel="bytes", ylabel=label)
        axis.grid(True, which="both", alpha=0.3)
        if axis.lines:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def start(args: argparse.Namespace, core: int | None) -> tuple[subprocess.Popen[str], str]:
    """A server of our own."""
    command = [sys.executable, "-m", "weft.perf", "--listen", "--mode", args.mode]
    command += ["--transports", args.transports] if args.transports else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    if core is not None:
        os.sched_setaffinity(server.pid, {core})
    assert server.stdout
    line = server.stdout.readline()
    if not line:
        raise Failed(f"the server ended with status {server.wait(args.timeout)} before it listened")
    return server, json.loads(line)["listening"]


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    rows: list[dict[str, Any]] = []
    progress = sys.stderr.isatty()

    def out(row: dict[str, Any]) -> None:
        rows.append(row)
        if progress:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if args.json:
            print(json.dumps(row), flush=True)
            return
        if len(rows) == 1:
            print(f"{'test':10}{'bytes':>12}{'avg us':>12}{'p50':>12}{'p99':>12}{'max':>12}{'MiB/s':>12}{'msg/s':>14}",
                  flush=True)
        print(f"{row['test']:10}{row['size']:12}{row['avg_us']:12.3f}{row['p50_us']:12.3f}"
              f"{row['p99_us']:12.3f}{row['max_us']:12.1f}"
              f"{row['mb_s']:12.1f}{row['msg_s']:14.0f}", flush=True)
    server = None
    try:
        if args.plot:
            try:
                import matplotlib  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
            except ImportError:
                raise Failed("--plot needs matplotlib, which is not installed: pip install matplotlib") from None
        points = [(test, size) for test in args.test for size in args.size or sizes_of(SIZES[test])]
        if args.listen:
            run(args, None, out, points)
            return 0
        uri = args.connect
        if not uri:
            cores = sorted(os.sched_getaffinity(0))
            pinned = not args.no_pin and len(cores) > 1
            server, uri = start(args, cores[0] if pinned else None)
            if pinned:
                os.sched_setaffinity(0, {cores[1]})
        if progress:
            print("measuring ...", end="", file=sys.stderr, flush=True)
        run(args, uri, out, points)
        if args.plot:
            plot(rows, args.plot)
        return 0
    except (Failed, weft.WeftError, OSError) as error:
        print(f"weft.perf: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if server:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            assert server.stdout
            server.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
