#!/usr/bin/env python3
"""Who is lost, and when, on a busy machine: nobody who is alive, and whoever is not within the bound.

    bench/alive.py [puts N] [silent SECONDS EACH] [stop N] [kill N] [partition N] [idle SECONDS]
                   [--at-once K] [--busy LOOPS] [--transports shm|tcp] [--build DIR]

puts N            N times `weft mem put` of 1 GiB to a server on this host: how many succeeded
silent S EACH     EACH peers in each progress mode, and in a callback, that sleep or compute for S seconds, all of them at the same time: how
                  many were kept
stop N, kill N    N peers are stopped or killed: how many were lost within the bound (the default heartbeat, 5 s; 250 ms), the median and the worst
partition N       the same with N hosts whose link is cut, over tcp, with the bound of stop. Hosts are network namespaces; where they cannot be
                  made, which needs root and ip(8), it says so and goes on
idle S            what of a core a connected process takes that does nothing

--at-once K peers (10) are stopped, killed or cut off in one run of a watching process, each at a random moment of one second. --busy LOOPS runs that
many busy loops beside all of it. Timings are never a failure; the exit status is 1 if somebody alive was lost.
"""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOUND = {"stop": 5.0, "kill": 0.25, "partition": 5.0}
NUMBERS = {"puts": 1, "silent": 2, "stop": 1, "kill": 1, "partition": 1, "idle": 1}  # how many each takes
CANNOT = 77


@contextlib.contextmanager
def busy(n):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for p in loops:
            p.kill()
            p.wait()


def puts(weft, n, tls):
    env = dict(os.environ, WEFT_TRANSPORTS=tls)
    with tempfile.TemporaryDirectory() as at:
        path = os.path.join(at, "data")
        with open(path, "wb") as f:
            f.truncate(1 << 30)
        uri = f"unix://@weft-alive-mem-{os.getpid()}"
        with subprocess.Popen([weft, "mem", "serve", "--listen", uri, "--size", "3G"], env=env, stdout=subprocess.DEVNULL) as server:
            try:
                def put(name):
                    return subprocess.run([weft, "mem", "put", path, name, "--server", uri, "--replace"], env=env, capture_output=True, text=True)

                well = 0
                for i in range(n):
                    done = put(f"block{i % 2}")
                    if done.returncode and i == 0 and "refused" in done.stderr:  # it was about to start
                        done = put("block0")
                    well += done.returncode == 0
                    if done.returncode:
                        print(f"put {i}: {done.stderr.strip()}", flush=True)
            finally:
                server.terminate()
    print(f"puts of 1 GiB: {well} of {n} succeeded", flush=True)
    return well == n


class Cannot(Exception):
    """It cannot be measured here, and why."""


def hit(alive, what, n, tls):
    """n peers are hit, as `what` says: the seconds until each of them was lost."""
    done = subprocess.run([alive, what, str(n), tls], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == CANNOT:
        raise Cannot(done.stderr.strip().splitlines()[-1])
    sys.stderr.write(done.stderr)
    done.check_returncode()
    return [float(line.split()[1]) for line in done.stdout.splitlines()]


def lost(alive, what, n, at_once, tls):
    took = []
    try:
        while len(took) < n:
            took += hit(alive, what, min(at_once, n - len(took)), tls)
    except Cannot as why:
        print(f"{what}: skipped: {why}", flush=True)
        return True
    early = sum(t < 0 for t in took)
    within = sum(0 <= t <= BOUND[what] for t in took)
    print(f"{what}: {within} of {n} within {BOUND[what]} s; median {statistics.median(took):.3f} s, worst {max(took):.3f} s"
          + (f"; {early} were lost before anything happened to them" if early else ""), flush=True)
    return not early


def tasks(words):
    """The words in pairs of what to measure and its numbers; a ValueError says what is wrong with them."""
    words, found = list(words), []
    while words:
        what = words.pop(0)
        if what not in NUMBERS:
            raise ValueError(f"{what} is not one of {', '.join(NUMBERS)}")
        numbers, words = words[:NUMBERS[what]], words[NUMBERS[what]:]
        if len(numbers) < NUMBERS[what] or not all(re.fullmatch(r"0*[1-9]\d*", n) for n in numbers):
            raise ValueError(f"{what} takes whole numbers: {NUMBERS[what]}")
        found.append((what, numbers))
    return found


def measure(what, numbers, args):
    """One of them; whether nobody was lost who was alive."""
    weft, alive = os.path.join(args.build, "weft"), os.path.join(args.build, "alive")
    if what == "puts":
        return puts(weft, int(numbers[0]), args.transports)
    if what in BOUND:
        return lost(alive, what, int(numbers[0]), args.at_once, "tcp" if what == "partition" else args.transports)
    return subprocess.run([alive, what, *numbers, args.transports]).returncode == 0


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--at-once", type=int, default=10, metavar="K")
    parser.add_argument("--busy", type=int, default=0, metavar="LOOPS")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), metavar="DIR")
    args = parser.parse_intermixed_args()
    if not 1 <= args.at_once <= 250:
        parser.error("--at-once is 1 to 250")
    try:
        todo = tasks(args.what)
    except ValueError as wrong:
        parser.error(str(wrong))
    with busy(args.busy):
        return 0 if all([measure(what, numbers, args) for what, numbers in todo]) else 1


if __name__ == "__main__":
    sys.exit(main())
