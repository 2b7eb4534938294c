#!/usr/bin/env python3
"""The page of figures and its plot, from the numbers of a run: `bench/run --json FILE`, then bench/page.py FILE.

Writes docs/performance.md and docs/pictures/performance.svg. Every ratio is "times as fast": above 1 Weft is faster, whatever the unit.
"""
import json
import os
import statistics
import sys

import gpu

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECTIONS = [  # of bench/run, in the order of the page
    ("compare", "Tag messages", "Weft beside `ucx_perftest`, whose error handling is off."),
    ("active", "Active messages", "Weft beside `ucx_perftest`, and beside the least program on UCP that does the same (`bench/peers/raw_echo.c`)."),
    ("remote", "Remote memory", "Mapped: the owner's memory is mapped on the same host. Checked: the owner does and checks each access."),
    ("calls", "Calls", "Each system is driven in the way that suits it best."),
    ("tls", "Over TLS", "TCP on loopback, TLS 1.3 by certificates on both sides: Weft beside itself without TLS, the least program on OpenSSL "
     "(`bench/peers/tls_echo.c`)\nand gRPC with TLS. Meeting: one thread drives both sides. `bench/run --only tls` measures these rows alone."),
    ("cores", "Many cores", "64 B calls of many client processes, beside the least program on epoll that does it (`bench/peers/epoll_echo.c`)."),
    ("python", "Python", "The package `weft` beside the C API and raw UCX."),
]
OTHERS = {"ucx": "raw UCX", "raw": "least program on UCP"}
FIELD = {"us": "avg_us", "p50 us": "p50_us", "/s": "msg_s", "msg/s": "msg_s", "MiB/s": "mb_s", "ns": "ns", "%": "percent",
         "KiB": "kib"}
SMALLER = ("us", "p50 us", "ns", "%", "KiB")  # a smaller figure is a faster one

# What the plot shows: section, part or transport, name, beside, label
PLOT = [
    ("compare", "shm", "8 B latency", "ucx", "8 B message and answer, shared memory, beside UCX"),
    ("compare", "tcp", "64 B rate, 256 in flight", "ucx", "64 B messages a second, TCP, beside UCX"),
    ("active", "shm", "8 B rate", "ucx", "8 B active messages a second, shared memory, beside UCX"),
    ("compare", "shm", "1 MiB bandwidth", "ucx", "1 MiB messages, shared memory, beside UCX"),
    ("remote", "mapped, on one host", "8 B get", "ucp_get", "8 B remote read on one host, beside UCX"),
    ("remote", "checked, over TCP", "64 B reads, 256 open", "ucp_get", "64 B remote reads a second, TCP, beside UCX"),
    ("redis", 64, "mapped, spinning", "redis", "4 KiB reads a second on one host, beside Redis"),
    ("calls", "64 B there and back, on shared memory", "one at a time, the median", "gRPC, callback", "one call at a time on one host, beside gRPC"),
    ("calls", "64 B there and back, on shared memory", "many, each at its best", "gRPC, callback", "calls a second on one host, beside gRPC"),
    ("calls", "64 B there and back, over TCP", "1000 open", "ZeroMQ", "requests a second over TCP, beside ZeroMQ"),
]


def figure(value, unit):
    """A figure with its unit, as people read it."""
    if unit in ("us", "p50 us"):
        return f"{value * 1000:.0f} ns" if value < 1 else f"{value:.1f} us"
    if unit == "MiB/s":
        return f"{value / 1024:.1f} GiB/s"
    if unit in ("/s", "msg/s"):
        return f"{value / 1e6:.2f} million/s" if value >= 1e5 else f"{value:,.0f}/s"
    return f"{value:.1f} {unit}" if unit != "%" else f"{value:.2f} %"


def by_row(points, section):
    """{(part, name): (unit, {side: [value of each round]})} in the order of the run."""
    rows = {}
    for p in points:
        if p["section"] == section:
            row = rows.setdefault((p.get("part") or p["tls"], p["name"]), (p["unit"], {}))
            row[1].setdefault(p["side"], []).append(p["figures"][FIELD[p["unit"]]] * p.get("scale", 1))
    return rows


def faster(ours, theirs, unit):
    """The median of the rounds' ratios: how many times as fast we are."""
    return statistics.median(t / o if unit in SMALLER else o / t for o, t in zip(ours, theirs))


def times(ratio):
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def place(part):
    return {"shm": "shared memory", "tcp": "TCP"}.get(part, part)


def table(points, section, title, about):
    lines = [f"## {title}\n", about + "\n", "| what | where | Weft | beside | that | times as fast |", "|---|---|---|---|---|---|"]
    for (part, name), (unit, sides) in by_row(points, section).items():
        ours = sides.get("weft", [])
        others = [(side, values) for side, values in sides.items() if side != "weft"]
        for side, values in others or [(None, None)]:
            beside = "| - | - | - |" if side is None else (
                f"| {OTHERS.get(side, side)} | {figure(statistics.median(values), unit)} | **{times(faster(ours, values, unit))}** |")
            lines.append(f"| {name} | {place(part)} | {figure(statistics.median(ours), unit)} {beside}")
    return "\n".join(lines) + "\n"


def redis(points):
    rows = [p for p in points if p["section"] == "redis"]
    if not rows:
        return ""
    lines = ["## Beside Redis\n", "4 KiB reads and writes a second beside GET and SET over a Unix socket. "
             "Redis sleeps when it has nothing to do, as the rows with own\nthreads do; "
             "the others spin. Each is held against the better way to drive Redis with that many requests open.\n",
             "| open | Weft | reads | times as fast | writes | times as fast |", "|---|---|---|---|---|---|"]
    for p in rows:
        if not p["name"].startswith("redis"):
            reads, writes = (statistics.median(r[way] for r in p["rounds"]) for way in ("read_s", "write_s"))
            lines.append(f"| {p['open']} | {p['name']} | {figure(reads, '/s')} | **{times(p['ratios'][0])}** | {figure(writes, '/s')} "
                         f"| **{times(p['ratios'][1])}** |")
    return "\n".join(lines) + "\n"


def threads(points):
    rows = [p for p in points if p["section"] == "threads"]
    lines = ["## Who drives\n", "8 B, half of a round trip, by who drives the runtime; and what an idle runtime uses of a core.\n",
             "| where | driven by | half round trip | idle |", "|---|---|---|---|"]
    lines += [f"| {place(p['tls'])} | {'the caller' if p['mode'] == 'caller' else 'its own thread'} | {figure(p['latency']['avg_us'], 'us')} "
              f"| {p['idle']['cpu_percent']:.2f} % |" for p in rows]
    return "\n".join(lines) + "\n" if rows else ""


def growth(points):
    lines = ["## As work grows\n", "8 B messages, and 64 B calls, one way, by how many endpoints or clients share them.\n",
             "| what | where | how many | a second | memory of each, client / server |", "|---|---|---|---|---|"]
    for p in points:
        if p["section"] in ("endpoints", "clients"):
            f = p["figures"]
            what, n = ("messages", p["endpoints"]) if p["section"] == "endpoints" else ("calls", p["clients"])
            lines.append(f"| {what} | {place(p['tls'])} | {n} | {figure(f['msg_s'], '/s')} "
                         f"| {f['endpoint_bytes'] / 1024:.0f} / {f['peer_endpoint_bytes'] / 1024:.0f} KiB |")
    return "\n".join(lines) + "\n" if len(lines) > 4 else ""


def bars(points):
    """(label, ratio) of what the plot shows and this run has."""
    found = []
    for section, part, name, beside, label in PLOT:
        if section == "redis":
            ratio = next((p["ratios"][0] for p in points if p["section"] == "redis" and p["open"] == part and p["name"] == name), None)
        else:
            unit, sides = by_row(points, section).get((part, name), (None, {}))
            ratio = faster(sides["weft"], sides[beside], unit) if beside in sides else None
        if ratio:
            found.append((label, ratio))
    return found


def plot(found):
    """Bars on a logarithmic scale, as SVG: one is as fast as the other. It follows a reader's light or dark."""
    import math
    left, width, step = 440, 420, 34
    most = max(10, *(ratio for _, ratio in found))
    scale = width / math.log10(most)

    def at(ratio):
        return left + scale * max(0.0, math.log10(ratio))
    height = 70 + step * len(found)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" font-family="sans-serif" font-size="14">',
           "<style>text{fill:#24292f}.line{stroke:#d0d7de}.bar{fill:#0969da}.one{stroke:#57606a}"
           "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line{stroke:#30363d}.bar{fill:#58a6ff}.one{stroke:#8b949e}}</style>",
           '<text x="10" y="22" font-weight="bold">Weft, times as fast (longer is better)</text>']
    for power in range(int(math.log10(most)) + 1):
        x = at(10 ** power)
        out.append(f'<line class="{"one" if power == 0 else "line"}" x1="{x:.0f}" x2="{x:.0f}" y1="36" y2="{height - 24}"/>'
                   f'<text x="{x:.0f}" y="{height - 8}" text-anchor="middle">{10 ** power}</text>')
    for i, (label, ratio) in enumerate(found):
        y = 42 + step * i
        out.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{label}</text>'
                   f'<rect class="bar" x="{left}" y="{y}" width="{max(2, at(ratio) - left):.0f}" height="24" rx="3"/>'
                   f'<text x="{max(left + 2, at(ratio)) + 6:.0f}" y="{y + 17}">{times(ratio)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def page(run):
    about, points = run["machine"], run["points"]
    head = f"""# Performance

Figures of one run of `bench/run`: {about["cpu"]}, a virtual machine with {about["cores"]} cores, Linux {about["kernel"].split("-")[0]}.
Each row is measured in alternating order for {run["rounds"]} rounds, one core for each side. Shown are medians;
**times as fast** is the median of each round's ratio, and that is what travels to other machines. It has one direction: above
1 Weft is faster. Weft runs with failure detection and flow control on.

`make bench` measures them again; `bench/run --json FILE` and `bench/page.py FILE` write this page and its plot.

![How many times as fast as others](pictures/performance.svg)

Latencies are half of a round trip, total time divided by messages, unless a row says otherwise. Rates are one way. GiB is 2^30 bytes.

"""
    parts = [table(points, section, title, text) for section, title, text in SECTIONS if by_row(points, section)]
    return head + "\n".join(part for part in [*parts, redis(points), threads(points), growth(points)] if part)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as f:
        run = json.load(f)
    os.makedirs(os.path.join(ROOT, "docs", "pictures"), exist_ok=True)
    with open(gpu.PAGE, encoding="utf-8") as f:
        of_gpus = gpu.section(f.read())  # of another machine
    for path, text in (("docs/performance.md", page(run) + of_gpus), ("docs/pictures/performance.svg", plot(bars(run["points"])))):
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as f:
            f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
