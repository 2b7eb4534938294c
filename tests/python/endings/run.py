#!/usr/bin/env python3
"""What a program sees of the end of a connection of ucp, found by ending it in every way.

    tests/python/endings/run.py [--out FILE] [--expect FILE] [CELL...]

A cell is one combination, KIND.OP.WHEN.HOW.PROGRESS.ERRORS: for example tag.recv.during.kill.blocking.on. Each has two processes
of its own (side.py), connected to each other: one ends the connection, the other does not. Both call the same operation, and the
end comes while it waits (`during`) or before it is called (`before`). With `during`, both then receive twice, send and close;
with `before`, the operation is the first call after the end.

It runs with whatever `ucp` the interpreter finds, which is how UCX-Py's own outcomes were found:

    PYTHON-OF-UCX-PY tests/python/endings/run.py --repeat 3 --note TEXT --out tests/python/endings/ucx-py.json
    PYTHONPATH=build/dev/python python3 tests/python/endings/run.py --repeat 3 --out tests/python/endings/weft.json

Each run of a cell is a JSON object on standard output. --out writes them all, those with the same outcomes in one line; an
outcome is a list there, since some are races: what was seen in the repetitions. The first line says what ran, and how.

With --expect, the cells are compared with a file, and waits are chosen by it: long ones for what must come, short ones for what
must not. A cell that differs runs again, with more patience; if it differs in each of three runs, that is printed, and the exit
status is 1.
"""
import argparse
import asyncio
import copy
import fnmatch
import itertools
import json
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL, LARGE = 8, 16 << 20

KINDS = ("tag", "am")
OPS = ("recv", "send", "large")
WHENS = ("during", "before")
HOWS = ("close", "abort", "reset", "drop", "exit", "kill")
PROGRESS = ("blocking", "polling")
ERRORS = ("on", "off")
DIMENSIONS = (KINDS, OPS, WHENS, HOWS, PROGRESS, ERRORS)
LATER = ("recv", "again", "send", "close")
SIDES = ("ending", "other")
GONE = ("exit", "kill")  # the side that ends is gone, and sees nothing

OPTIONS = ("repeat", "jobs", "bound", "settle", "pause", "ender", "transports", "note")  # what made a file
ABOUT = """
import json, platform, sys, ucp
about = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
if "weft" in sys.modules:
    about["package"] = f"Weft {sys.modules['weft'].__version__}"
else:
    about.update(package=f"UCX-Py {ucp.__version__}", ucx=".".join(map(str, ucp.get_ucx_version())))
print(json.dumps(about), file=sys.stderr)
"""

PATIENCE = 30.0  # seconds for what must come
STARTING = 120.0  # seconds for the connection
TRIES = 3


def clean():
    """The environment, without settings of UCX and Weft but one: what close() lets finish may take as long as a busy machine
    does."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(("UCX", "WEFT_"))}, "WEFT_CLOSE_TIMEOUT": "600s"}


def names():
    return [".".join(cell) for cell in itertools.product(*DIMENSIONS)]


class Child:
    """One process. Once it is blocked or gone, that is the answer to everything."""

    def __init__(self, process, grace):
        self.process, self.state, self.grace = process, None, grace

    async def ask(self, *command, bound):
        """The answer to a command; `blocked` if there is none, long after the bound."""
        if self.state is None:
            try:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                line = await asyncio.wait_for(self.process.stdout.readline(), 2 * bound + self.grace)
                if line:
                    return json.loads(line)
                await self.ended()
            except asyncio.TimeoutError:
                self.state = "blocked"
            except ConnectionError:
                await self.ended()
        return self.state

    async def ended(self):
        """Wait for its end: how it ended."""
        try:
            code = await asyncio.wait_for(self.process.wait(), STARTING)
        except asyncio.TimeoutError:
            self.state = "blocked"
            return self.state
        self.state = f"died: {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        return self.state

    async def kill(self):
        if self.process.returncode is None:
            try:
                self.process.kill()
            except ProcessLookupError:
                pass
        await self.process.wait()


class Cell:
    """One run of one combination."""

    def __init__(self, name, args, expected, patience):
        self.name = name
        self.kind, self.op, self.when, self.how, self.progress, self.errors = name.split(".")
        self.args, self.expected, self.patience = args, expected, patience
        known = expected and [expected["end"], *(texts for side in SIDES for texts in expected.get(side, {}).values())]
        # until a process counts as blocked
        self.grace = 5.0 if not known or any("blocked" in texts for texts in known) else PATIENCE
        self.saw = {"end": None, "ending": {}, "other": {}}
        self.late = False  # something that had to come did not: it differs already, and nothing else is waited for as long

    # --- how long to wait

    def bound(self, side, what):
        """For an outcome: long if something must come, else as long as was asked for."""
        if self.expected is None:
            return self.args.bound
        known = self.expected["end"] if what == "end" else self.expected.get(side, {}).get(what, ["nothing"])
        return self.args.short * self.patience if self.late or set(known) & {"nothing", "blocked"} else PATIENCE

    def settle(self, side):
        """For closed() and the callback."""
        if self.expected is None:
            return self.args.settle
        known = self.expected.get(side, {})
        sure = known.get("closed") in (["True"], ["None"]) and known.get("callback") == ["1"]
        return PATIENCE if sure and not self.late else self.args.settle * self.patience

    def pause(self, side):
        """For an operation that may complete by itself: small messages do."""
        if self.expected is None:
            return self.args.pause if self.op == "recv" else self.args.settle
        return PATIENCE if self.expected[side]["posted"] == ["done"] else self.args.pause * self.patience

    # --- the two sides

    async def start(self, letter, peer):
        environment = clean()
        if self.args.transports:
            environment["UCX_TLS"] = self.args.transports
        options = {"kind": self.kind, "progress": self.progress, "errors": self.errors, "letter": letter, "peer": peer}
        log = subprocess.DEVNULL if not self.args.logs else open(os.path.join(self.args.logs, f"{self.name}.{letter}"), "wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-B", os.path.join(HERE, "side.py"), json.dumps(options), env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        if self.args.logs:
            log.close()
        return Child(process, self.grace)

    async def run(self):
        """What was seen: the outcome of the end itself, and what each side saw."""
        ender, other = await self.start("e", "o"), await self.start("o", "e")
        try:
            server, client = (ender, other) if self.args.ender == "server" else (other, ender)
            port = await server.ask("listen", bound=STARTING)
            if not isinstance(port, int):
                raise RuntimeError(f"{self.name}: no listener: {port}")
            answers = [await client.ask("connect", port, bound=STARTING)]
            answers += await asyncio.gather(client.ask("warm", True, bound=STARTING), server.ask("warm", False, bound=STARTING))
            if answers != ["done"] * 3:
                raise RuntimeError(f"{self.name}: no connection: {answers}")
            await self.body({"ending": ender, "other": other})
        finally:
            await ender.kill()
            await other.kill()
        return self.saw

    async def both(self, sides, what):
        """Ask each side that is there the same, at the same time."""
        async def one(name, child):
            self.saw[name][what[0]] = answer = await child.ask(*what[1](name), bound=what[2](name))
            known = self.expected.get(name, {}).get(what[0], ()) if self.expected else ("nothing",)
            self.late = self.late or answer == "blocked" or answer == "nothing" and "nothing" not in known
        await asyncio.gather(*(one(name, child) for name, child in sides.items()))

    async def body(self, sides):
        op, size = ("send", LARGE) if self.op == "large" else (self.op, SMALL)
        if self.when == "during":
            await self.both(sides, ("posted", lambda s: ("post", op, size), lambda s: STARTING))
            await self.both(sides, ("posted", lambda s: ("waits", self.pause(s)), self.pause))
        watched = dict(sides)
        ender = watched.pop("ending") if self.how in GONE else sides["ending"]
        bound = self.bound(None, "end")
        if self.how == "kill":
            ender.process.send_signal(signal.SIGKILL)
            await ender.ended()
            self.saw["end"] = "killed"
        elif self.how == "exit":
            ender.process.stdin.write(b'["exit"]\n')
            try:
                self.saw["end"] = await asyncio.wait_for(ender.ended(), bound + self.grace)
            except asyncio.TimeoutError:
                self.saw["end"] = "blocked"
        else:
            self.saw["end"] = await ender.ask("end", self.how, bound, bound=bound)
        if self.when == "during":
            await self.both(watched, ("pending", lambda s: ("pending", self.bound(s, "pending")),
                                      lambda s: self.bound(s, "pending")))
        await self.both(watched, ("settled", lambda s: ("settle", self.settle(s)), self.settle))
        if self.how == "drop" and ender.state is None:
            del watched["ending"]  # it has no endpoint to call anything on
        if self.when == "before":
            await self.both(watched, ("first", lambda s: ("call", op, size, self.bound(s, "first")),
                                      lambda s: self.bound(s, "first")))
            return
        for name in LATER:
            await self.both(watched, (name, lambda s: self.later(s, name, size), lambda s: self.bound(s, name)))

    def later(self, side, name, size):
        bound = self.bound(side, name)
        if name == "close":
            return "close", bound
        return "call", "send" if name == "send" else "recv", size if name == "recv" else SMALL, bound


def flat(saw):
    """The outcomes as texts; whether the endpoint counted as closed, and how often its callback was called, one by one."""
    result = {"end": str(saw["end"])}
    for side in SIDES:
        seen = {}
        for what, answer in saw[side].items():
            if what == "settled":
                closed, called = answer if isinstance(answer, list) else (answer, answer)
                seen["closed"], seen["callback"] = str(closed), str(called)
            else:
                seen[what] = str(answer)
        if seen:
            result[side] = seen
    return result


def merge(into, result):
    """Add a run's outcomes to those of others."""
    union(into, {what: {k: [v] for k, v in seen.items()} if isinstance(seen, dict) else [seen] for what, seen in result.items()})


def union(into, record):
    """Add a cell's outcomes to what is known of it."""
    for what, known in record.items():
        if isinstance(known, dict):
            union(into.setdefault(what, {}), known)
        else:
            into[what] = sorted({*into.get(what, ()), *known})


def differences(name, result, expected):
    """Sentences: what a run gave that none of the stored runs did."""
    found = []
    if result["end"] not in expected["end"]:
        found.append(f"{name}: the end: {result['end']}, not {' or '.join(expected['end'])}")
    for side in SIDES:
        seen, known = result.get(side, {}), expected.get(side, {})
        for what in sorted({*seen, *known}):
            if seen.get(what) not in known.get(what, [None]):
                found.append(f"{name}: {side}, {what}: {seen.get(what)}, not {' or '.join(known.get(what, ['asked']))}")
    return found


def about(args):
    """What runs, and how: for the first line of a file."""
    done = subprocess.run([sys.executable, "-B", "-c", ABOUT], env=clean(), stderr=subprocess.PIPE, text=True, check=True)
    options = {name: getattr(args, name) for name in OPTIONS}
    return {**json.loads(done.stderr.splitlines()[-1]), **{k: v for k, v in options.items() if v is not None}}


def read(path):
    """A file of outcomes: (what ran, what is known of each cell)."""
    cells = {}
    with open(path, encoding="utf-8") as f:
        ran = json.loads(f.readline())["ran"]
        for line in f:
            record = json.loads(line)
            for name in record.pop("cells"):
                cells[name] = copy.deepcopy(record)
    return ran, cells


def load(path):
    return read(path)[1]


def save(path, ran, cells):
    """One line for those that have the same outcomes."""
    groups = {}
    for name in sorted(cells, key=names().index):
        groups.setdefault(json.dumps(cells[name], sort_keys=True), []).append(name)
    with open(path, "w", encoding="utf-8") as f:
        print(json.dumps({"ran": ran}), file=f)
        for text, same in groups.items():
            print(json.dumps({"cells": same, **json.loads(text)}), file=f)


async def attempt(name, args, expected, patience):
    """One run. A connection that cannot be made is tried again: it is not what this is about."""
    for left in reversed(range(TRIES)):
        try:
            return flat(await Cell(name, args, expected, patience).run())
        except RuntimeError as error:
            print(error, file=sys.stderr)
            if not left:
                raise


async def work(args, chosen, expected):
    """Run the cells, a few at a time; (what was seen, what differs)."""
    gate, seen, wrong = asyncio.Semaphore(args.jobs), {}, []

    async def one(name):
        async with gate:
            known = expected[name] if expected else None
            result = await attempt(name, args, known, 1)
            merge(seen.setdefault(name, {}), result)
            print(json.dumps({"cell": name, **result}), flush=True)
            if known and (found := differences(name, result, known)):
                again.setdefault(name, found)

    again = {}
    for _ in range(args.repeat):
        await asyncio.gather(*map(one, chosen))
    for name, found in again.items():
        if wrong:  # one is certain: that the others differed once is told, too
            wrong += [f"{sentence} (seen once)" for sentence in found]
            continue
        for patience in (5, 10):  # alone, and with more patience
            result = await attempt(name, args, expected[name], patience)
            found = differences(name, result, expected[name])
            if not found:
                break
        else:
            wrong += found
            merge(seen[name], result)
    return seen, wrong


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cells", nargs="*", metavar="CELL",
                        help="those whose names have one of these in them, with * for anything; all, without")
    parser.add_argument("--note", help="more to know about what runs, for the first line of the file")
    parser.add_argument("--out", help="write all outcomes to this file")
    parser.add_argument("--add", action="store_true", help="keep the outcomes that it has already")
    parser.add_argument("--expect", help="compare with this file")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    parser.add_argument("--bound", type=float, default=5, help="seconds for an outcome, without --expect")
    parser.add_argument("--short", type=float, default=1, help="seconds for what must not come, with --expect")
    parser.add_argument("--settle", type=float, default=1, help="seconds for an end to be noticed, if it may not be")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds for an operation to begin")
    parser.add_argument("--ender", choices=("client", "server"), default="client", help="who of both ends the connection")
    parser.add_argument("--transports", help="UCX_TLS of both")
    parser.add_argument("--logs", help="a folder for what the processes print")
    return parser.parse_args()


def main():
    args = parsed()
    expected = load(args.expect) if args.expect else None
    chosen = [name for name in names() if not args.cells or any(fnmatch.fnmatchcase(name, f"*{word}*") for word in args.cells)]
    seen, wrong = asyncio.run(work(args, chosen, expected))
    if args.out:
        ran, known = read(args.out) if args.add and os.path.exists(args.out) else ([], {})
        for name, record in seen.items():
            union(known.setdefault(name, {}), record)
        save(args.out, [*ran, about(args)], known)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
