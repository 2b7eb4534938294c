"""What the tables share: measurements that failed, a clean environment, ratios of one round, and figures as people read them."""
import os
import statistics


class Failed(Exception):
    """A measurement that did not come to a figure; the text says why."""


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UCX_", "WEFT_"))}
    env.update(more)
    return env


def show(value, metric):
    if metric in ("us", "p50 us"):
        return f"{value:.3f}" if value < 100 else f"{value:.1f}"
    if metric == "%":
        return f"{value:.2f}"
    if metric in ("ns", "KiB"):
        return f"{value:.1f}"
    return f"{value:,.0f}"


def ratios(ours, theirs):
    """The ratio of each round, their median, and both ends as text. A virtual machine's two cores may move closer to each other and
    further apart from one second to the next; the two figures of one round are neighbours in time, two medians need not be."""
    each = [w / u for w, u in zip(ours, theirs)]
    return each, statistics.median(each), f"({min(each):.2f}-{max(each):.2f})"


def holds(value, bound):
    sign, limit = bound.split()[:2]
    if sign == "<":
        return value < float(limit)
    return value <= float(limit) if sign == "<=" else value >= float(limit)
