#!/usr/bin/env python3
"""What an element costs to launch on this machine, in one run.

    bench/launch.py [--rounds N] [--build DIR] [--json]            bench/run --only elements runs it

Measured in turns: the interpreter that does nothing (`python -c pass`); `weft run` of one element that does nothing, and of a chain of eleven,
whose difference by ten is what one more element costs; the same with a memory element that each of them reads. What is shown are medians and
bests. The package and the command are those of build/release, or of --build. Timings are never a failure.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHAIN = 11


def write(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.write(text)


def chain(folder, n, memory):
    """n elements one after the other, each of which does nothing, or reads a page."""
    for i in range(n):
        head = f"#@ parents: [e{i - 1}]\n" if i else ""
        body = "    pass\n"
        if memory:
            head += "#@ corunning: {mem: {trans: mem, type: rdma}}\n"
            body = "    trans = action.get_transport('mem', 'rdma')\n    trans.reg(4096)\n    trans.read(4096, 0)\n"
        write(folder, f"e{i}.o.py", head + "def main(params, action):\n" + body)
    if memory:
        write(folder, "mem.o.yaml", "limits: {mem: 1M}\n")
    return folder


def timed(args, env):
    """In ms. Waits without a timeout of subprocess's, which would only look now and then: after 31.5 ms, 63.5 ms and so on."""
    start = time.perf_counter()
    with subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as p:
        bound = threading.Timer(120, p.kill)
        bound.start()
        status = p.wait()
        took = (time.perf_counter() - start) * 1e3
        bound.cancel()
    if status:
        sys.exit(f"{' '.join(args)} ended with status {status}")
    return took


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--json", action="store_true")
    opts = parser.parse_args()
    weft, package = os.path.join(opts.build, "weft"), os.path.abspath(os.path.join(opts.build, "python"))
    env = dict(os.environ, PYTHONPATH=package)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):  # an installed package has its bytecode, and so should this one
        env.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        programs = {"python": [sys.executable, "-c", "pass"]}
        for name, memory in (("nothing", False), ("reads", True)):
            for n in (1, CHAIN):
                path = chain(os.path.join(folder, f"{name}{n}"), n, memory)
                programs[f"{name} {n}"] = [weft, "run", "--python", sys.executable, path]
        times = {name: [] for name in programs}
        for args in programs.values():  # once unmeasured, so that everything is in the page cache
            timed(args, env)
        for _ in range(opts.rounds):
            for name, args in programs.items():
                times[name].append(timed(args, env))
    rows = {"python that does nothing": times["python"], "weft run of one element that does nothing": times["nothing 1"],
            "one more element": [(b - a) / (CHAIN - 1) for a, b in zip(times["nothing 1"], times[f"nothing {CHAIN}"])],
            "weft run of one element that reads a page": times["reads 1"],
            "one more element that reads a page": [(b - a) / (CHAIN - 1) for a, b in zip(times["reads 1"], times[f"reads {CHAIN}"])]}
    figures = {name: {"median_ms": round(statistics.median(t), 2), "best_ms": round(min(t), 2)} for name, t in rows.items()}
    over = [b - a for a, b in zip(times["python"], times["nothing 1"])]
    figures["an element beyond the interpreter"] = {"median_ms": round(statistics.median(over), 2), "best_ms": round(min(over), 2)}
    if opts.json:
        print(json.dumps(figures))
        return
    for name, f in figures.items():
        print(f"{name:45} {f['median_ms']:8.1f} ms   (best {f['best_ms']:.1f})")


if __name__ == "__main__":
    main()
