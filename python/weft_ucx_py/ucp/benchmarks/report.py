"""What a run of the benchmark came to: as tables, as JSON, and as a picture."""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Any

from ucp._libs.utils import format_bytes, format_time, print_key_value, print_separator
from ucp.utils import hmean


class Missing(Exception):
    """A package that the user's choice needs is not installed; the text says which."""


def of(args: argparse.Namespace, times: list[float], wall: float | None = None, contention: float | None = None
       ) -> dict[str, Any]:
    """Everything that is to be said of a run. A round trip carries the bytes twice; latency is half of its time.

    wall: how long all of them took, if several were under way at one time: then the average bandwidth is over that.
    """
    halves = [t / 2 for t in times]
    rates = [args.n_bytes / t if t > 0 else 0.0 for t in halves]
    return {
        "n_bytes": args.n_bytes, "n_iter": args.n_iter, "n_warmup_iter": args.n_warmup_iter, "object_type": args.object_type,
        "reuse_alloc": args.reuse_alloc, "transfer": "AM" if args.enable_am else "TAG", "backend": args.backend,
        "progress": "non-blocking" if args.backend == "ucp-core" or "UCXPY_NON_BLOCKING_MODE" in os.environ else "blocking",
        "delay_progress": args.delay_progress, "max_outstanding": args.max_outstanding if args.delay_progress else 1,
        "gil_contention": contention, "UCX_TLS": os.environ.get("UCX_TLS", "all"),
        "UCX_NET_DEVICES": os.environ.get("UCX_NET_DEVICES", "all"),
        "bandwidth_average": 2 * args.n_bytes * len(times) / wall if wall else hmean(rates),
            "bandwidth_median": statistics.median(rates),
        "latency_average": statistics.fmean(halves), "latency_median": statistics.median(halves),
        "latency_min": min(halves), "latency_max": max(halves), "latencies": halves,
    }


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"


def _cpu(core: int | None) -> str:
    return "affinity not set" if core is None or core < 0 else str(core)


def print_text(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """The tables."""
    rows = [("Iterations", f"{args.n_iter}"), ("Bytes", format_bytes(args.n_bytes)), ("Object type", args.object_type),
            ("Reuse allocation", f"{args.reuse_alloc}"), ("Backend", args.backend), ("Transfer API", result["transfer"]),
            ("Progress mode", result["progress"]), ("UCX_TLS", result["UCX_TLS"]), ("UCX_NET_DEVICES", result["UCX_NET_DEVICES"])]
    if args.backend == "ucp-core":
        rows.append(("Delay progress", f"True ({args.max_outstanding})" if args.delay_progress else "False"))
    if args.object_type == "numpy":
        rows += [("Device(s)", "CPU-only"), ("Server CPU", _cpu(args.server_cpu_affinity)),
                 ("Client CPU", _cpu(args.client_cpu_affinity))]
    else:
        rows += [("Device(s)", f"{args.server_dev}, {args.client_dev}")]
    print("Roundtrip benchmark")
    print_separator(separator="=")
    for key, value in rows:
        print_key_value(key=key, value=value)
    print_separator(separator="=")
    print_key_value(key="Bandwidth (average)", value=_rate(result["bandwidth_average"]))
    print_key_value(key="Bandwidth (median)", value=_rate(result["bandwidth_median"]))
    print_key_value(key="Latency (average)", value=f"{result['latency_average'] * 1e9:.0f} ns")
    print_key_value(key="Latency (median)", value=f"{result['latency_median'] * 1e9:.0f} ns")
    if result["gil_contention"] is not None:
        print_key_value(key="GIL contention", value=f"{result['gil_contention']}")
    if args.verbose or not args.no_detailed_report:
        print_separator(separator="=")
        print_key_value(key="Iterations", value="Bandwidth, Latency")
        print_separator(separator="-")
        for i, half in enumerate(result["latencies"]):
            rate = args.n_bytes / half if half > 0 else 0.0
            print_key_value(key=str(i), value=f"{_rate(rate)}, {half * 1e9:.0f} ns")


def print_json(result: dict[str, Any]) -> None:
    """One object in one line; times in seconds, rates in bytes per second."""
    json.dump(result, sys.stdout)
    print()


def plot(result: dict[str, Any], path: str) -> None:
    """Latency of each iteration, and how they are spread."""
    try:
        import matplotlib
    except ImportError:
        raise Missing("--plot needs matplotlib, which is not installed: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    micros = [t * 1e6 for t in result["latencies"]]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 1), sharey=True)
    left.plot(micros, ".", markersize=3)
    left.axhline(result["latency_median"] * 1e6, linewidth=1, color="0.5")
    left.set_xlabel("iteration")
    left.set_ylabel("half round trip, us")
    left.set_title(f"{result['backend']}, {format_bytes(result['n_bytes'])}, {result['transfer']}: median "
                   f"{format_time(result['latency_median'])}")
    right.hist(micros, bins=min(60, max(5, len(micros) // 5)), orientation="horizontal")
    right.set_xlabel("iterations")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
