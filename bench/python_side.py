#!/usr/bin/env python3
"""Two figures of the Python package that `python -m weft.perf` has not: what an operation costs, and an idle loop. One line of
JSON.

    PYTHONPATH=build/release/python python3 bench/python_side.py cost|idle [--seconds N]
"""
import argparse
import asyncio
import json
import os
import time

import weft


async def pair(runtime):
    """Two endpoints of one runtime, over shared memory."""
    listener = runtime.listen(f"unix://@weft-bench-{os.getpid()}")
    accepting = listener.accept()
    return await runtime.connect(listener.uri), await accepting, listener


async def cost(seconds):
    """Nanoseconds to post a message that is complete at once, and to await it: the least of many batches."""
    async with weft.Runtime(transports="shm") as runtime:
        ep, peer, _ = await pair(runtime)
        buf, sink, best, until = b"12345678", bytearray(8), 1e9, time.monotonic() + seconds
        while time.monotonic() < until:
            start = time.perf_counter()
            for _ in range(1000):
                await ep.send(buf, 1)
            best = min(best, (time.perf_counter() - start) * 1e6)
            for _ in range(1000):
                await peer.recv_into(sink, 1)
        return {"ns": best}


async def idle(seconds):
    """Per cent of a core that a loop uses which waits for messages that do not come."""
    async with weft.Runtime() as left, weft.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        accepting = listener.accept()
        waiting = [(await left.connect(listener.uri)).recv(), (await accepting).recv()]
        await asyncio.sleep(0.5)
        start, used = time.monotonic(), time.process_time()
        await asyncio.sleep(max(seconds, 2))
        used = time.process_time() - used
        for op in waiting:
            op.cancel()
        return {"percent": 100 * used / (time.monotonic() - start)}


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "idle"])
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    print(json.dumps(asyncio.run({"cost": cost, "idle": idle}[args.what](args.seconds))))


main()
