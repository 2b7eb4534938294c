"""What a soak has seen: operations by kind and way, findings, and both as a table or as JSON."""
import json
import statistics
import threading
import time

TOLERATED = {"lost though alive"}  # told of, but no failure unless --strict


class Findings:
    def __init__(self):
        self.all, self.lock, self.began = [], threading.Lock(), time.monotonic()

    def add(self, kind, text):
        with self.lock:
            self.all.append({"kind": kind, "text": text, "at": round(time.monotonic() - self.began, 1)})

    def of(self, kind):
        with self.lock:
            return [f for f in self.all if f["kind"] == kind]

    def failures(self, strict):
        with self.lock:
            return [f for f in self.all if strict or f["kind"] not in TOLERATED]


class Counts:
    """How operations ended: "ok", "hit" (their own process was), "felt" (what befell a server), and what is a finding."""

    def __init__(self):
        self.rows, self.lock = {}, threading.Lock()

    def add(self, kind, way, outcome, seconds):
        with self.lock:
            row = self.rows.setdefault((kind, way), {"ok": 0, "hit": 0, "felt": 0, "bad": 0, "seconds": []})
            row[outcome] += 1
            if outcome == "ok":
                row["seconds"].append(seconds)

    def total(self, outcome=None):
        with self.lock:
            return sum(row[name] for row in self.rows.values() for name in ((outcome,) if outcome else ("ok", "hit", "felt", "bad")))

    def table(self):
        with self.lock:
            rows = []
            for (kind, way), row in sorted(self.rows.items()):
                times = sorted(row["seconds"])
                some = {"median_s": statistics.median(times), "p99_s": times[int(len(times) * 0.99)], "longest_s": times[-1]} if times else {}
                rows.append({"operation": kind, "over": way, **{k: row[k] for k in ("ok", "hit", "felt", "bad")},
                             **{k: round(some[k], 4) if some else None for k in ("median_s", "p99_s", "longest_s")}})
            return rows


def as_text(rows, columns):
    """Rows of dictionaries as a table."""
    cells = [columns, *[["-" if row[c] is None else str(row[c]) for c in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  " + "  ".join(line[i].ljust(w) if i < 2 else line[i].rjust(w) for i, w in enumerate(widths)) for line in cells)


def show(summary, as_json):
    if as_json:
        print(json.dumps(summary), flush=True)
        return
    print("\nOperations (hit: their own process was; felt: what befell a server; bad: a finding)")
    print(as_text(summary["operations"], ["operation", "over", "ok", "hit", "felt", "bad", "median_s", "p99_s", "longest_s"]))
    print("\nServers that lived: medians of the first and the last third, after the warm-up")
    print(as_text(summary["servers"], ["server", "what", "first", "last", "allowed"]))
    print("\n" + ", ".join(f"{n} x {kind}" for kind, n in sorted(summary["befell"].items())) + f"; {summary['restarts']} servers started again")
    for finding in summary["findings"]:
        word = "note" if finding["kind"] in TOLERATED and not summary["strict"] else "FINDING"
        print(f"{word} after {finding['at']} s: {finding['kind']}: {finding['text']}")
    print(f"{'failed' if summary['failed'] else 'passed'}: seed {summary['seed']}, {summary['minutes']:g} minutes, "
          f"{summary['counted']} operations", flush=True)
