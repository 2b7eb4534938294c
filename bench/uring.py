#!/usr/bin/env python3
"""io_uring beside epoll, as one thread of a server answers 64 B requests over TCP: what docs/design/io-uring.md is made of.

    bench/uring.py [--rounds 5] [--seconds 0.5] [--clients N] [--build build/release]

bench/peers/epoll_echo.c and bench/peers/uring_echo.c are measured one after the other, in an order that changes from round to round. Shown are
medians: requests a second, their ratio to epoll, and the processor time of the server for a request. The connections are spread over at most N
client processes, each with a core of its own; the default leaves a core for the server and one for the kernel's thread of sqpoll. Both programs
can be built by hand into a folder of their own: gcc -O2 -pthread -D_GNU_SOURCE -o DIR/epoll_echo bench/peers/epoll_echo.c
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOADS = [(1, 1), (14, 1), (100, 1), (1000, 1), (14, 64), (100, 64), (1000, 16)]  # connections, requests under way on each
SIDES = {
    "epoll": ("epoll_echo",),
    "plain": ("uring_echo", "--ring", "plain"),
    "coop": ("uring_echo", "--ring", "coop"),
    "defer": ("uring_echo", "--ring", "defer"),
    "defer, zc": ("uring_echo", "--ring", "defer", "--send", "zc"),
    "sqpoll": ("uring_echo", "--ring", "sqpoll"),
}


def measure(args, side, connections, window):
    """One run: its line of JSON, or None and the reason on stderr."""
    clients = max(n for n in range(1, args.clients + 1) if connections % n == 0)
    name, *more = SIDES[side]
    command = [os.path.join(args.build, name), *more, "--clients", clients, "--connections", connections // clients, "--window", window,
               "--seconds", args.seconds]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=180, check=False)
    if done.returncode:
        print(f"{side}: {(done.stderr.strip().splitlines() or ['no figures'])[0]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def row(args, sides, connections, window):
    found = {side: {} for side in sides}  # by round
    for n in range(args.rounds):
        for side in sides if n % 2 else reversed(sides):
            got = measure(args, side, connections, window)
            if got:
                found[side][n] = got
    epoll = found["epoll"]
    for side in sides:
        pairs = [(r, epoll[n]) for n, r in found[side].items() if n in epoll]
        if not pairs:
            print(f"{connections:>11} {window:>6}  {side:<10} failed", flush=True)
            continue
        rate = statistics.median(r["calls_s"] for r, _ in pairs)
        ratio = statistics.median(r["calls_s"] / e["calls_s"] for r, e in pairs)
        spent = statistics.median(r["server_us"] for r, _ in pairs)
        less = statistics.median(e["server_us"] / r["server_us"] for r, e in pairs)
        print(f"{connections:>11} {window:>6}  {side:<10} {rate:>11,.0f} {ratio:>7.2f} {spent:>11.3f} {less:>7.2f}", flush=True)


def main():
    cores = len(os.sched_getaffinity(0))
    p = argparse.ArgumentParser(prog="bench/uring.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--clients", type=int, default=max(1, min(14, cores - 2)), help="client processes at most")
    p.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="the folder with both programs")
    args = p.parse_args()
    # its thread would share a core with the server or with a client
    sides = [side for side in SIDES if side != "sqpoll" or cores > args.clients + 1]
    print(f"{cores} cores, Linux {os.uname().release}: one server thread, medians of {args.rounds} rounds, alternating\n")
    print(f"{'connections':>11} {'window':>6}  {'server':<10} {'requests/s':>11} {'ratio':>7} {'us/request':>11} {'less':>7}")
    for connections, window in LOADS:
        row(args, sides, connections, window)
    print("\nratio: requests a second beside epoll. less: how many times as much processor time epoll takes for a request.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
