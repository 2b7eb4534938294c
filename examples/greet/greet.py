"""The program of the README in Python: without an argument it waits for a message, with an address it sends one there."""
import asyncio
import sys

import weft


async def main():
    if len(sys.argv) > 1:
        async with await weft.connect(sys.argv[1]) as ep:
            await ep.send(b"hello from Python", tag=1)
    else:
        async with weft.listen("tcp://127.0.0.1:13337") as listener, await listener.accept() as ep:
            print("received:", (await ep.recv(tag=1)).decode())

asyncio.run(main())
