"""The Python package beside the C API and raw UCX: what `bench/run --only python` shows.

Python's figures are those of `python -m weft.perf`, the C API's of `weft perf`, UCX's of ucx_perftest: the same message, the same two cores."""
import importlib.util
import os
import sys

from rows import Row, table, ucx, weft

MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))


def python(test, tls, size, window=None, mode="asyncio"):
    def measure(bench):
        command = [sys.executable, "-m", "weft.perf", "--json", "--test", test, "--size", str(size), "--mode", mode,
                   "--seconds", str(bench.seconds)]
        return bench.one_line("weft.perf", command + (["--window", str(window)] if window else []), WEFT_TRANSPORTS=tls, PYTHONPATH=folder(bench))
    return measure


def side(what, seconds):
    def measure(bench):
        command = [sys.executable, os.path.join(HERE, "python_side.py"), what, "--seconds", str(seconds)]
        return bench.one_line("python_side.py", bench.on_core(1, command), PYTHONPATH=folder(bench))
    return measure


def folder(bench):
    """Of the package, beside the command."""
    return os.path.join(os.path.dirname(os.path.abspath(bench.weft)), "python")


def above(tls):
    """By how much a blocking half round trip is longer than the C API's."""
    def measure(bench):
        return {"p50_us": python("tag_lat", tls, 8, mode="blocking")(bench)["p50_us"] - weft("tag_lat", tls, 8)(bench)["p50_us"]}
    return measure


def lone(tls, mode, bound, over_ucx):
    part = f"8 B, half round trip, {'on shared memory' if tls == 'shm' else 'over TCP'}"
    others = [("raw UCX", ucx("tag_lat", tls, 8), 1, over_ucx)] if over_ucx is not None else []
    return Row(part, mode, "p50 us", python("tag_lat", tls, 8, mode=mode), others + [("the C API", weft("tag_lat", tls, 8), 1, "")], bound)


def bandwidth(tls):
    return Row("1 MiB messages, one way", f"asyncio, {tls}", "MiB/s", python("tag_bw", tls, MIB),
               [("the C API", weft("tag_bw", tls, MIB), 1, ">= 0.90")])


def rows(bench):
    loops = ("asyncio", "uvloop") if importlib.util.find_spec("uvloop") else ("asyncio",)
    over = {"shm": "<= 26", "tcp": "<= 3.3"} if bench.ucx else {"shm": None, "tcp": None}
    return [
        *(lone(tls, mode, bound, over[tls]) for tls, bound in (("shm", "<= 8"), ("tcp", "<= 14")) for mode in loops),
        lone("shm", "blocking", "", None), Row("8 B, half round trip, on shared memory", "blocking, above C", "p50 us", above("shm"), [], "<= 1"),
        lone("tcp", "blocking", "", None), Row("8 B, half round trip, over TCP", "blocking, above C", "p50 us", above("tcp"), [], "<= 1"),
        Row("8 B messages on shared memory", "256 tasks that send", "/s", python("tag_rate", "shm", 8, 256), [], ">= 600000"),
        Row("8 B messages on shared memory", "256 tasks, ping-pong", "/s", python("awaits", "shm", 8), []),
        bandwidth("shm"), bandwidth("tcp"),
        Row("one core", "post and completion", "ns", side("cost", bench.seconds), [], "< 200"),
        Row("one core", "idle, of a core", "%", side("idle", 2), [], "< 1"),
    ]


def tables(bench):
    if not os.path.exists(os.path.join(folder(bench), "weft", "_core.abi3.so")):
        print("The Python package is not built here, and so left out (python3-dev).\n")
        return
    table(bench, "python", sorted(rows(bench), key=lambda row: row.part), "The Python package beside the C API and raw UCX")
    print("blocking: whoever waits drives, as in the C API's. 256 tasks that send: each awaits one send after the other, the peer has as many that\n"
          "receive. ping-pong: each sends and awaits the answer; as many messages go the other way. idle: two runtimes that wait.\n")
