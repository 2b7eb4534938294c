"""A client of the soak, in Python: calls, streams and blocks of memory, one operation after the other, each verified and told of on a line of JSON.

    client.py SEED TIMEOUT TRANSPORTS '[["calc-1", "tcp://..."], ...]' '[["mem-1", "tcp://..."], ...]'

It ends when its standard input does. SIGUSR1 writes where it is to standard error.
"""
import array
import asyncio
import faulthandler
import json
import random
import signal
import sys
import time

import weft


class Wrong(Exception):
    """Bytes that should have been others."""


class Client:
    def __init__(self, rng, timeout, transports, calcs, memories):
        self.rng, self.timeout, self.transports, self.calcs, self.memories = rng, timeout, transports, dict(calcs), dict(memories)
        self.runtime = weft.Runtime(transports=transports)
        self.clients, self.known, self.stores = {}, set(), {}
        self.well = {}  # when an operation at that memory server last went well: what has befallen since is felt by the next

    # --- calls ---------------------------------------------------------------------------------------------------------------------

    async def calc(self, server):
        if server not in self.clients:
            self.clients[server] = self.runtime.client(self.calcs[server], service="calc")
            self.known.discard(server)
        if server not in self.known:
            await self.clients[server].ready()
            self.known.add(server)
        return self.clients[server]

    async def call(self, server):
        calc, rng = await self.calc(server), self.rng
        which = rng.randrange(4)
        if which == 0:
            text = "".join(rng.choices("abcdefghij ", k=int(10 ** rng.uniform(0, 5))))
            same(await calc.upper(text, timeout=self.timeout), text.upper())
        elif which == 1:
            a, b = rng.randrange(1 << 29), rng.randrange(1 << 29)
            same(await calc.add(a, b, timeout=self.timeout, once=rng.random() < 0.5), a + b)
        elif which == 2:
            pairs = [(rng.randrange(1000), rng.randrange(1000)) for _ in range(50)]
            same(await calc.add.many(pairs, timeout=self.timeout), [a + b for a, b in pairs])
        else:
            image = array.array("f", [float(rng.randrange(1 << 20)) for _ in range(rng.choice((1, 100, 20000)))])
            same(memoryview(await calc.scale(image, 2.0, timeout=self.timeout)).tobytes(), array.array("f", [2 * x for x in image]).tobytes())

    async def stream(self, server):
        calc, rng = await self.calc(server), self.rng
        lines = [f"{i} " + "x" * rng.randrange(200) for i in range(rng.choice((1, 50, 500)))]
        async with calc.echo.stream(timeout=self.timeout) as stream:
            sends = asyncio.gather(*[stream.send(line) for line in lines], stream.end())
            got = [line async for line in stream]
            await sends
        same(got, lines)

    # --- memory --------------------------------------------------------------------------------------------------------------------

    async def store(self, server):
        if server not in self.stores:
            ep = await self.runtime.connect(self.memories[server], timeout=self.timeout)
            self.stores[server] = (ep, await ep.store(), [])
        return self.stores[server]

    async def block(self, server):
        """Allocated, written in pieces, read in others; given a name, found by it, removed. A few are left to the lease."""
        (_, store, left), rng = await self.store(server), self.rng
        data = rng.randbytes(int(10 ** rng.uniform(0, 6)))
        block = await store.alloc(len(data), timeout=self.timeout)
        half = rng.randrange(len(data) + 1)
        await block.remote.write(data[:half], 0, timeout=self.timeout)
        await block.remote.write(data[half:], half, timeout=self.timeout)
        same(await block.remote.read(timeout=self.timeout), data)
        name = f"py/{rng.getrandbits(64):x}"
        await block.share(name, timeout=self.timeout)
        found = await store.open(name, timeout=self.timeout)
        at = rng.randrange(len(data))
        same(await found.remote.read(at, len(data) - at, timeout=self.timeout), data[at:])
        await store.remove(name, timeout=self.timeout)
        if rng.random() < 0.1:
            left.append(await store.alloc(1000, timeout=self.timeout))
        if len(left) > 4:
            await left.pop(0).free(timeout=self.timeout)

    def forget(self, server):
        """What went wrong is begun anew."""
        if server in self.stores:
            self.stores.pop(server)[0].abort()

    # --- one after the other -------------------------------------------------------------------------------------------------------

    async def one(self):
        kind = self.rng.choice(("call", "call", "stream", "block"))
        server = self.rng.choice(sorted(self.memories if kind == "block" else self.calcs))
        begin = time.monotonic()
        said = {"op": kind, "over": self.transports, "server": server, "begin": begin, "outcome": "ok", "error": ""}
        said["since"] = self.well.get(server, begin) if server in self.stores else begin
        try:
            async with asyncio.timeout(self.timeout):
                await getattr(self, kind)(server)
        except Wrong as error:
            said.update(outcome="wrong", error=str(error))
        except Exception as error:  # whatever it is, the parent judges it
            said.update(outcome="failed", error=f"{type(error).__name__}: {error}")
            self.forget(server)
        said["end"] = time.monotonic()
        if said["outcome"] == "ok":
            self.well[server] = said["end"]
        print(json.dumps(said), flush=True)

    async def work(self):
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), over.set)
        while not over.is_set():
            await self.one()
            try:
                await asyncio.wait_for(over.wait(), self.rng.uniform(0, 0.06))
            except TimeoutError:
                pass
        loop.remove_reader(sys.stdin.fileno())
        for client in self.clients.values():
            await client.close()
        for _, store, _ in self.stores.values():
            try:
                await store.close()
            except weft.WeftError:
                pass  # its server may just have been lost
        await self.runtime.close()


def same(got, want):
    if got == want:
        return
    n = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), "the end") if hasattr(want, "__len__") else 0
    raise Wrong(f"got {str(got)[:60]!r}, not {str(want)[:60]!r}; they differ at {n}")


async def main():
    seed, timeout, transports, calcs, memories = sys.argv[1:]
    await Client(random.Random(int(seed)), float(timeout), transports, json.loads(calcs), json.loads(memories)).work()


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    asyncio.run(main())
