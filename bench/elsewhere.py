#!/usr/bin/env python3
"""What it costs to run elements on other machines, in one run.

    bench/elsewhere.py [--rounds N] [--build DIR] [--python PATH] [--json]

Measured in turns: a run of 100 elements that each read 64 MiB of a memory element, here and on a Dask cluster of four workers
on this machine; how long after the command the first element runs on that cluster; and, with root, 64 MiB read by an element
from memory on another host (network namespaces, tests/lib/hosts.py), beside `weft perf --test rma_get --size 64M` between the
same two. What is shown are medians and bests. The interpreter needs Dask: --python, or that of build/venv. Timings are never a
failure.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests", "lib"), os.path.join(ROOT, "tests", "python")]

MANY = """
#@ parallelism: 100
#@ corunning: {mem: {type: rdma}}
def main(params, action):
    trans = action.get_transport("mem", "rdma")
    trans.reg(64 << 20)
    trans.read(64 << 20, 0)
"""
FIRST = """
import time
def main(params, action):
    return time.time()
"""
READ = """
#@ parallelism: 2
#@ corunning: {mem: {type: rdma}}
import time
SIZE = 64 << 20
def main(params, action):
    trans = action.get_transport("mem", "rdma")
    trans.reg(SIZE)
    trans.read(8, 0)
    if trans.stats()["path"] == "mapped":
        return None
    trans.read(SIZE, 0)
    t = time.perf_counter()
    for _ in range(20):
        trans.read(SIZE, 0)
    return 20 * SIZE / (time.perf_counter() - t) / 2**20
"""
MEMORY = "limits: {mem: 64M}\n"


def weft(args, *words, **kw):
    there = ["--weft", args.weft] if "--on" in words else []
    done = subprocess.run([args.weft, "run", "--python", args.python, *there, "--json", *words], env=args.env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, timeout=300, check=False, **kw)
    if done.returncode:
        sys.exit(f"weft run ended with status {done.returncode}")
    return json.loads(done.stdout)


def program(folder, name, **files):
    path = os.path.join(folder, name)
    os.mkdir(path)
    for file, text in files.items():
        with open(os.path.join(path, file.replace("_", ".")), "w", encoding="utf-8") as f:
            f.write(text)
    return path


def runs(args, folder):
    """Here and on Dask, in turns."""
    import daskside
    many = program(folder, "many", read_o_py=MANY, mem_o_yaml=MEMORY)
    first = program(folder, "first", a_o_py=FIRST)
    here, there, began = [], [], []
    cluster = daskside.Cluster(folder, workers=4, threads=1, python=[args.python], env=args.env)
    try:
        for _ in range(args.rounds):
            here.append(weft(args, many)["seconds"])
            there.append(weft(args, many, "--on", cluster.on)["seconds"])
            start = time.time()
            began.append((weft(args, first, "--on", cluster.on)["results"]["a"][0] - start) * 1e3)
    finally:
        cluster.close()
    return [("100 elements read 64 MiB each, here", "s", here), ("the same on a Dask cluster", "s", there),
            ("the first element runs on it after", "ms", began)]


def between_hosts(args, folder):
    """64 MiB from another host, by an element and by weft perf."""
    import daskside
    import hosts
    path = program(folder, "far", read_o_py=READ, mem_o_yaml=MEMORY)
    element, perf = [], []
    try:
        with hosts.Hosts(3) as places:
            cluster = daskside.Cluster(folder, workers=2, threads=1, places=places, python=[args.python], env=args.env)
            for _ in range(args.rounds):
                process = places[0].start(args.weft, "run", path, "--on", cluster.on, "--python", args.python, "--weft", args.weft, "--json",
                                          env=args.env, stdout=subprocess.PIPE, text=True)
                out, _ = process.communicate(timeout=300)
                element += [rate for rate in json.loads(out)["results"]["read"] if rate]
                server = places[1].start(args.weft, "perf", "--listen", f"tcp://{places[1].address}:0", "--json", env=args.env,
                                         stdout=subprocess.PIPE, text=True)
                uri = json.loads(server.stdout.readline())["listening"]
                done = places[2].run(args.weft, "perf", "--connect", uri, "--test", "rma_get", "--size", "64M", "--json", env=args.env)
                server.wait(60)
                perf.append(json.loads(done.stdout.splitlines()[-1])["mb_s"])
            cluster.close()
    except hosts.Unavailable as why:
        print(why, file=sys.stderr)
        return []
    return [("64 MiB from another host, an element", "MiB/s", element), ("the same by weft perf", "MiB/s", perf)]


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--python", default=os.path.join(ROOT, "build", "venv", "bin", "python"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.weft = os.path.join(os.path.abspath(args.build), "weft")
    args.env = dict(os.environ, PYTHONPATH=os.path.join(os.path.abspath(args.build), "python"))
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        rows = [*runs(args, folder), *between_hosts(args, folder)]
    for name, unit, values in rows:
        best = (max if unit == "MiB/s" else min)(values)
        if args.json:
            print(json.dumps({"name": name, "unit": unit, "median": statistics.median(values), "best": best, "values": values}))
        else:
            print(f"{name:45} {statistics.median(values):9.2f} {unit:6} best {best:9.2f}")
    by_name = {name: statistics.median(values) for name, _, values in rows}
    if not args.json:
        print(f"Dask / here: {by_name['the same on a Dask cluster'] / by_name['100 elements read 64 MiB each, here']:.2f}")
        if "the same by weft perf" in by_name:
            print(f"element / weft perf: {by_name['64 MiB from another host, an element'] / by_name['the same by weft perf']:.2f}")


if __name__ == "__main__":
    main()
