#!/usr/bin/env python3
"""The tables of docs/guide/ucx-py-endings.md, from two files of outcomes.

    tests/python/endings/table.py [--check]

ucx-py.json is what UCX-Py does, and weft.json what our `ucp` does; run.py writes both. The page is written by hand but for what
stands between its markers. Rows are calls, columns are ways to end a connection. An outcome is ours; a number leads to what
UCX-Py does, where that is something else, and why. Each difference needs a reason of REASONS (reasons.py), and each reason a
difference: else nothing is written.

`--check` writes nothing: exit status 1 if the page is not what the files give.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import reasons  # noqa: E402
import run  # noqa: E402

PAGE = os.path.join(HERE, "..", "..", "..", "docs", "guide", "ucx-py-endings.md")
MARKED = re.compile(r"(<!-- endings: (\w+) -->\n).*?(<!-- end -->)", re.S)

COLUMNS = {"close": "`close()`", "abort": "`abort()`", "drop": "last reference", "exit": "exit", "kill": "kill",
           "reset": "`ucp.reset()`"}
EVERY = [(op, when) for op in run.OPS for when in run.WHENS]
DURING = [(op, "during") for op in run.OPS]
QUIET = [cell for cell in EVERY if cell[0] == "recv" or cell[1] == "before"]  # no message is unread
# a row: its words for messages with tags, those for active messages, and where its outcomes stand: operation, when, name
ROWS = {
    "wait_recv": ("`recv()` that waits", "`am_recv()` that waits", [("recv", "during", "pending")]),
    "wait_send": ("`send()` of 16 MiB that waits", "`am_send()` of 16 MiB under way", [("large", "during", "pending")]),
    "came": ("`recv()` of a small message sent before", "`am_recv()` of one", [("send", "during", "recv")]),
    "came_large": ("`recv()` of 16 MiB whose `send()` waited", "`am_recv()` of 16 MiB", [("large", "during", "recv")]),
    "recv": ("`recv()` later", "`am_recv()` later", [("recv", "before", "first"), ("recv", "during", "recv"),
                                                      *((op, "during", "again") for op in run.OPS)]),
    "send": ("`send()` later", "`am_send()` later", [("send", "before", "first"), ("large", "before", "first"),
                                                      *((op, "during", "send") for op in run.OPS)]),
    "close": ("`close()` later", "the same", [(op, when, "close") for op, when in DURING]),
    "closed": ("`closed()`", "the same", [(op, when, "closed") for op, when in QUIET]),
    "callback": ("close callback", "the same", [(op, when, "callback") for op, when in QUIET]),
    "closed_small": ("`closed()` while a small message is unread", "the same", [("send", "during", "closed")]),
    "closed_large": ("`closed()` while 16 MiB are unread", "`closed()` while an active message of 16 MiB is unread",
                     [("large", "during", "closed")]),
    "end": ("the call itself", "the same", [(op, when, "end") for op, when in EVERY]),
}
OTHER = ("wait_recv", "wait_send", "came", "came_large", "recv", "send", "close", "closed", "callback", "closed_small",
         "closed_large")
# name: the side, the columns, the rows, with error handling or without
TABLES = {"other": ("other", ["close", "abort", "drop", "exit", "kill"], OTHER, ("on",)),
          "other_off": ("other", ["close", "abort", "drop", "exit", "kill"], OTHER, ("off",)),
          "ending": ("ending", ["close", "abort", "drop", "reset"], ("end", *OTHER[:-2]), ("on", "off"))}

PLAIN = {"nothing": "waits", "data": "the message", "no data": "returns, and the buffer is not filled", "done": "returns",
         "True": "`True`", "False": "`False`", "0": "not called", "1": "called", "blocked": "blocks the loop"}
STATUS = re.compile(r"(?:>|error|endpoint): (.*?)(?: \(_\))?$")


def label(text):
    """An outcome in the words of the table: the class of an exception, and for a UCXError the words that tell which."""
    if text in PLAIN:
        return PLAIN[text]
    if text.startswith(("returned ", "died: ", "exit ")):
        return text.split(": ")[-1] if text.startswith("died") else text.split(":")[0]
    kind, _, words = text.partition(": ")
    found = STATUS.search(words) if kind == "UCXError" else None
    return f"`{kind}`: {found.group(1)}" if found else f"`{kind}`"


def outcomes(cells, name, side, what):
    """What was seen of one thing in one cell, as labels; nothing where it could not be asked."""
    record = cells[name]
    texts = record["end"] if what == "end" else record.get(side, {}).get(what, [])
    return {label(text) for text in texts if text not in ("None", "killed")}


class Slot:
    """One field of a table: what we give, and where UCX-Py gives something else."""

    def __init__(self):
        self.ours, self.pairs = set(), set()

    def add(self, ours, theirs, where):
        self.ours |= ours
        if ours - theirs:
            self.pairs.add((" or ".join(sorted(theirs)), " or ".join(sorted(ours)), where))


def collect(ucx_py, weft):
    """Every slot: {(table, row, kind, how): Slot}."""
    slots = {}
    for table, (side, hows, rows, errors) in TABLES.items():
        for row in rows:
            for kind in run.KINDS:
                for how in hows:
                    slot = slots[table, row, kind, how] = Slot()
                    for op, when, what in ROWS[row][2]:
                        for progress in run.PROGRESS:
                            for handling in errors:
                                name = ".".join((kind, op, when, how, progress, handling))
                                if how == "drop" and what != "end" and weft[name]["end"] != ["done"]:
                                    continue  # something that waits holds the endpoint: it is no end
                                slot.add(outcomes(weft, name, side, what), outcomes(ucx_py, name, side, what),
                                         (side, row, kind, op, when, how, progress, handling))
    return slots


def alike(weft):
    """Sentences: where the progress modes differ, or error handling does for the side that ends; the page says that they do
    not."""
    found = []
    for name, record in weft.items():
        *cell, progress, handling = name.split(".")
        blocking = weft[".".join((*cell, "blocking", handling))]
        on = weft[".".join((*cell, progress, "on"))]
        for side in run.SIDES:
            for what in record.get(side, {}):
                seen = outcomes(weft, name, side, what)
                if seen != {label(text) for text in blocking[side][what] if text != "None"}:
                    found.append(f"{name}: {side}, {what} depends on the progress mode")
                if side == "ending" and seen != {label(text) for text in on[side][what] if text != "None"}:
                    found.append(f"{name}: {side}, {what} depends on error handling")
    return found


def reasoned(slots):
    """The differences in the order of their first appearance: {reason: (number, what UCX-Py gives)}; or an error."""
    numbers, missing = {}, []
    for slot in slots.values():
        for theirs, ours, where in sorted(slot.pairs):
            name = reasons.find(theirs, ours, where)
            if name is None:
                missing.append(f"no reason for this difference: {'.'.join(where)}: UCX-Py {theirs}, here {ours}")
                continue
            numbers.setdefault(name, (len(numbers) + 1, set()))[1].add(theirs)
    missing += [f"a reason without a difference: {name}" for name in reasons.REASONS if name not in numbers]
    if missing:
        raise SystemExit("\n".join(missing))
    return numbers


def field(slot, numbers):
    """The text of a slot."""
    if not slot.ours:
        return ""
    marks = sorted({numbers[reasons.find(theirs, ours, where)][0] for theirs, ours, where in slot.pairs})
    return " or ".join(sorted(slot.ours)) + "".join(f" [{n}]" for n in marks)


def rendered(table, slots, numbers):
    """One table. Where tags and active messages give the same, they share a line."""
    _, hows, rows, _ = TABLES[table]
    lines = ["| | " + " | ".join(COLUMNS[how] for how in hows) + " |", "|---" * (len(hows) + 1) + "|"]
    for row in rows:
        words, active, _ = ROWS[row]
        tag, am = ([field(slots[table, row, kind, how], numbers) for how in hows] for kind in run.KINDS)
        if tag == am:
            lines.append(f"| {words if active == 'the same' else f'{words}, {active}'} | " + " | ".join(tag) + " |")
        else:
            same = active == "the same"
            lines.append(f"| {words}{', tags' if same else ''} | " + " | ".join(tag) + " |")
            lines.append(f"| {f'{words}, active messages' if same else active} | " + " | ".join(am) + " |")
    return "".join(line + "\n" for line in lines)


def explained(numbers):
    """The table of differences."""
    lines = ["| | UCX-Py | why |", "|---|---|---|"]
    for name, (number, theirs) in numbers.items():
        lines.append(f"| [{number}] | {'; '.join(sorted(theirs))} | {reasons.REASONS[name].why} |")
    return "".join(line + "\n" for line in lines)


def made(runs):
    """What UCX-Py's outcomes were made with, in a sentence or two."""
    lines = []
    for ran in runs:
        note = f" {ran['note']}." if "note" in ran else ""
        lines.append(f"UCX-Py's outcomes: {ran['package']} with UCX {ran['ucx']} and Python {ran['python']}, {ran['system']} on "
                     f"{ran['machine']}, `run.py --repeat {ran['repeat']} --bound {ran['bound']:g}`.{note}\n")
    return "".join(lines)


def page(old, runs, ucx_py, weft):
    """The page with its tables as the files give them."""
    if found := alike(weft):
        raise SystemExit("\n".join(found))
    slots = collect(ucx_py, weft)
    numbers = reasoned(slots)
    parts = {table: rendered(table, slots, numbers) for table in TABLES} | {"differences": explained(numbers), "made": made(runs)}
    names = [m.group(2) for m in MARKED.finditer(old)]
    if sorted(names) != sorted(parts):
        raise SystemExit(f"the page has the markers {names}, and there are {list(parts)}")
    return MARKED.sub(lambda m: m.group(1) + parts[m.group(2)] + m.group(3), old)


def main():
    with open(PAGE, encoding="utf-8") as f:
        old = f.read()
    new = page(old, *run.read(os.path.join(HERE, "ucx-py.json")), run.load(os.path.join(HERE, "weft.json")))
    if "--check" in sys.argv[1:]:
        if new != old:
            sys.exit("docs/guide/ucx-py-endings.md is not what the outcomes give: run tests/python/endings/table.py")
        return
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(new)


if __name__ == "__main__":
    main()
