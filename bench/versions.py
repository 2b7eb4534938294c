"""Two builds of Weft beside each other, row by row: what `bench/run --before WEFT` shows.

Weft's rows of the tables for messages, active messages, remote memory, calls and Python, and some of those for threads and growing work, are measured
with both builds, one after the other, in an order that changes from round to round. The ratio is how many times as fast the present build is: above 1
it is faster, whatever the unit. UCX, the peers and elements are not run."""
import copy
import re
import statistics

import calls
import package
import remote
from common import Failed, show
from rows import FIELD, Row, weft

LESS_IS_BETTER = ("us", "p50 us", "ns", "%")
KIB = 1 << 10


def beside_redis():
    """4 KiB reads and writes in the ways that stand beside Redis."""
    for name, tls, path, mode in remote.WAYS:
        for n in (1, 64):
            more = {"path": path, "mode": mode, "region": n * 4 * KIB}
            for what, test in (("reads", "rma_get"), ("writes", "rma_put")):
                yield Row("remote", f"4 KiB {what}, {n} open, {name}", "/s", weft(test, tls, 4 * KIB, n, **more), [])


def as_work_grows():
    for tls in ("shm", "tcp"):
        yield Row("threads", f"8 B latency, own thread, {tls}", "p50 us", weft("tag_lat", tls, 8, mode="thread"), [])
        for n in (10, 100):
            yield Row("scaling", f"8 B rate, {n} endpoints, {tls}", "/s", weft("tag_rate", tls, 8, endpoints=n, outstanding=256), [])
            yield Row("scaling", f"64 B calls, {n} clients, {tls}", "/s", weft("rpc_rate", tls, 64, 1000, endpoints=n), [])
        for n in (1, 100, 10000):
            yield Row("scaling", f"8 B rate, {n} outstanding, {tls}", "/s", weft("tag_rate", tls, 8, outstanding=n), [])


def of_points(part, points):
    unit = {"msg/s": "/s"}
    for p in points:
        yield Row(part, f"{p.name}, {p.tls}, {part}", unit.get(p.metric, p.metric), weft(p.ours, p.tls, p.size, p.window, **dict(p.more)), [])


def all_rows(bench, points):
    """points: (part, points of the tables beside ucx_perftest)."""
    for part, some in points:
        yield from of_points(part, some)
    for row in (*remote.ROWS, *calls.rows(bench), *package.rows(bench)):
        if "above C" in row.name:
            continue  # a difference of two figures: it has no ratio
        yield row._replace(name=f"{row.name}, {row.part}")
    yield from beside_redis()
    yield from as_work_grows()


def speed(unit, before, after):
    return before / after if unit in LESS_IS_BETTER else after / before


def measure(row, sides, n):
    figures = [row.ours(side)[FIELD[row.unit]] for side in (sides if n % 2 else reversed(sides))]
    return figures if n % 2 else figures[::-1]


def print_row(bench, row, found):
    before, after = [f[0] for f in found], [f[1] for f in found]
    each = sorted(speed(row.unit, *f) for f in found)
    best = min if row.unit in LESS_IS_BETTER else max
    medians = speed(row.unit, statistics.median(before), statistics.median(after))
    bests = speed(row.unit, best(before), best(after))
    quarter = len(each) // 4
    print(f"{row.name[:58]:<58} {row.unit:>6} {show(statistics.median(before), row.unit):>12} {show(statistics.median(after), row.unit):>12} "
          f"{statistics.median(each):>6.3f}  ({each[quarter]:.2f}-{each[-1 - quarter]:.2f}) {medians:>8.3f} {bests:>6.3f}", flush=True)
    bench.keep("versions", name=row.name, unit=row.unit, rounds=found, ratio=statistics.median(each), medians=medians, bests=bests)


def table(bench, before, points, wanted):
    """`before`: the command of the other build. `wanted`: a regular expression for the names of rows, or None."""
    old = copy.copy(bench)
    old.weft = before
    rows = [row for row in all_rows(bench, points) if not wanted or re.search(wanted, row.name)]
    found, failed = [[] for _ in rows], {}
    for n in range(bench.args.rounds):
        for i, row in enumerate(rows):
            bench.progress(f"round {n + 1} of {bench.args.rounds}: {row.name}")
            try:
                found[i].append(measure(row, (old, bench), n))
            except Failed as e:
                failed[i] = str(e)
    bench.progress("")
    print(f"Before and after: {bench.args.rounds} rounds, alternating; ratios above 1: the present build is faster\n")
    print(f"{'what':<58} {'unit':>6} {'before':>12} {'after':>12} {'ratio':>6}  (quartiles) {'medians':>8} {'bests':>6}")
    for i, row in enumerate(rows):
        if found[i]:
            print_row(bench, row, found[i])
        else:
            print(f"{row.name[:58]:<58} failed: {failed.get(i)}")
    print("\nratio: the median of the rounds' ratios; medians, bests: the ratio of the medians and of the best figures.\n")
