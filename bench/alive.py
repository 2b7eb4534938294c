#!/usr/bin/env python3
"""Who is lost, and when, on a busy machine: nobody who is alive, and whoever is not within the bound.

    bench/alive.py [puts N] [silent SECONDS EACH] [stop N] [kill N] [idle SECONDS] [--busy LOOPS] [--tls shm|tcp] [--build DIR]

puts N            N times `weft mem put` of 1 GiB to a server on this host: how many succeeded
silent S EACH     EACH peers in each progress mode, and in a callback, that sleep or compute for S seconds: how many were kept
stop N, kill N    N peers are stopped or killed, one after the other: how many were lost within the bound (5 s; 250 ms), and the worst
idle S            what of a core a connected process takes that does nothing

--busy LOOPS runs that many busy loops beside all of it. Timings are never a failure; the exit status is 1 if somebody alive was lost.
"""
import argparse
import contextlib
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOUND = {"stop": 5.0, "kill": 0.25}


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
        with subprocess.Popen([weft, "mem", "serve", "--listen", uri, "--size", "6G"], env=env, stdout=subprocess.DEVNULL) as server:
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
    print(f"puts of 1 GiB: {well} of {n} succeeded")
    return well == n


def lost(alive, what, n, tls):
    out = subprocess.run([alive, what, str(n), tls], capture_output=True, text=True, check=True).stdout
    took = sorted(float(line.split()[2]) for line in out.splitlines())
    within = sum(t <= BOUND[what] for t in took)
    print(f"{what}: {within} of {len(took)} within {BOUND[what]} s; median {took[len(took) // 2]:.3f} s, worst {took[-1]:.3f} s")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--tls", default="shm,tcp")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    args = parser.parse_args()
    weft, alive = os.path.join(args.build, "weft"), os.path.join(args.build, "alive")
    words, good = iter(args.what), True
    with busy(args.busy):
        for word in words:
            if word == "puts":
                good = puts(weft, int(next(words)), args.tls) and good
            elif word == "silent":
                out = subprocess.run([alive, "silent", next(words), next(words), args.tls], stdout=subprocess.PIPE, text=True)
                print(out.stdout.splitlines()[-1])
                good = out.returncode == 0 and good
            elif word in BOUND:
                good = lost(alive, word, int(next(words)), args.tls) and good
            elif word == "idle":
                subprocess.run([alive, "idle", next(words), args.tls], check=True)
            else:
                parser.error(f"{word} is not one of puts, silent, stop, kill, idle")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
