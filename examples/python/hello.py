#!/usr/bin/env python3
"""Two Python processes greet each other with asyncio; and one of them calls functions of a service written in C, if the registry knows one.

    python3 examples/python/hello.py

The first is started by the second. Run it where the package is: after `pip install .`, or with PYTHONPATH=build/release/python.
"""
import asyncio
import os
import subprocess
import sys

import weft


async def greet(ep: weft.Endpoint) -> None:
    """What the listener does for each peer."""
    name = await ep.recv(tag=1)
    await ep.send(b"hello %s, this is process %d" % (name, os.getpid()), tag=2)


async def listen() -> None:
    async with weft.listen("tcp://127.0.0.1:0", greet) as listener:
        print(listener.uri, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the other closes our input


async def main(uri: str) -> None:
    async with asyncio.timeout(30), await weft.connect(uri) as ep:
        await ep.send(b"process %d" % os.getpid(), tag=1)
        print((await ep.recv(tag=2)).decode())
        print("over", ep.info["transport"])
    if os.environ.get("WEFT_REGISTRY"):
        async with asyncio.timeout(30), weft.client("weft://calc") as calc:
            print("calc.add(25, 17) =", await calc.add(25, 17))
            print("calc.primes(20) =", [n async for n in calc.primes(20)])


if sys.argv[1:] == ["listen"]:
    asyncio.run(listen())
else:
    with subprocess.Popen([sys.executable, __file__, "listen"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        asyncio.run(main(other.stdout.readline().strip()))
        other.communicate(timeout=30)
