"""Tables whose rows hold a figure of Weft beside those of others: measured in alternating order for several rounds, as medians and ratios."""
import collections
import statistics

from common import Failed, holds, ratios, show

FIELD = {"us": "avg_us", "p50 us": "p50_us", "/s": "msg_s", "MiB/s": "mb_s", "ns": "ns", "%": "percent", "KiB": "kib"}

# others: (what it is, how it is measured, by what its figure is multiplied, bound on ours / that); bound: on our figure itself.
# ours is None: this build cannot do it, and the row says "-".
Row = collections.namedtuple("Row", "part name unit ours others bound", defaults=("",))


def weft(test, tls, size, window=None, **more):
    return lambda bench: bench.weft_point(test, tls, size, window, **more)


def ucx(test, tls, size, window=None):
    return lambda bench: bench.ucx_point(test, tls, size, window)


def best_rate(*points):
    """The point with the highest rate."""
    return lambda bench: max((point(bench) for point in points), key=lambda figures: figures["msg_s"])


def measure_row(bench, section, row, n):
    """All sides of a row, in an order that changes from round to round."""
    sides = [("weft", row.ours, 1)] + [(name, how, scale) for name, how, scale, _ in row.others]
    got = {}
    for name, how, scale in sides if n % 2 else reversed(sides):
        figures = how(bench)
        got[name] = figures[FIELD[row.unit]] * scale
        bench.keep(section, part=row.part, name=row.name, unit=row.unit, scale=scale, round=n, side=name, figures=figures)
    return got


def table(bench, section, rows, title, rounds=None, where="one core for each side"):
    """Measure and print all rows, under a head for each part."""
    rounds = rounds or bench.args.rounds
    found, broken, failures = [[] for _ in rows], {}, collections.Counter()
    for n in range(rounds):
        for i, row in enumerate(rows):
            if i in broken or not row.ours:
                continue
            bench.progress(f"round {n + 1} of {rounds}: {row.name}, {row.part}")
            try:
                found[i].append(measure_row(bench, section, row, n))
            except Failed as e:
                failures[i] += 1
                if failures[i] > rounds // 3:
                    broken[i] = str(e)
    bench.progress("")
    print(f"{title}: medians of {rounds} rounds, alternating, {where}\n")
    head = f"{'what':<27} {'unit':>6} {'beside':<20} {'that':>10} {'weft':>10} {'ratio':>7}  {'(low-high)':<13} bound"
    part = None
    for i, row in enumerate(rows):
        if row.part != part:
            part = row.part
            print(f"{part}\n{head}")
        if i in broken:
            print(f"{row.name:<27} {row.unit:>6} failed: {broken[i]}"[:100])
        elif not row.ours:
            print(f"{row.name:<27} {row.unit:>6} {'-':<20} {'-':>10} {'-':>10} {'-':>7}")
        else:
            print_row(bench, section, row, found[i])
    print()


def print_row(bench, section, row, found):
    ours = [f["weft"] for f in found]
    median = statistics.median(ours)
    if row.bound or not row.others:
        held = holds(median, row.bound) if row.bound else None
        print(f"{row.name:<27} {row.unit:>6} {'-':<20} {'-':>10} {show(median, row.unit):>10} {'-':>7}  {'':<13} {row.bound}"
              f"{' NO' if held is False else ''}".rstrip())
        bench.keep(section + " compared", part=row.part, name=row.name, beside=None, figure=median, bound=row.bound, held=held)
    for i, (other, _, _, bound) in enumerate(row.others):
        theirs = [f[other] for f in found]
        _, ratio, spread = ratios(ours, theirs)
        held = holds(ratio, bound) if bound else None
        name = row.name if i == 0 and not row.bound else ""
        print(f"{name:<27} {row.unit:>6} {other:<20} {show(statistics.median(theirs), row.unit):>10} "
              f"{show(median, row.unit):>10} {ratio:>7.3f}  {spread:<13} {bound}"
              f"{' NO' if held is False else ''}".rstrip())
        bench.keep(section + " compared", part=row.part, name=row.name, beside=other, ratio=ratio, bound=bound, held=held)
