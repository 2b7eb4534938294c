"""Memory servers: leases, blocks, mirrors; in event loops and in threads; and servers and clients that are lost."""
import asyncio
import contextlib
import gc
import os
import signal

import numpy
import pytest

import weft
import weft.blocking

SERVER = """
import asyncio, weft
async def main():
    rt = weft.Runtime(heartbeat=0.3)
    listener = rt.listen("tcp://127.0.0.1:0", lambda ep: kept.append(ep))
    server = rt.store_server(64 << 20, lease=1)
    print(listener.uri, flush=True)
    await asyncio.sleep(120)
kept = []
asyncio.run(main())
"""


def test_blocks_from_their_making_to_their_end(pair):
    async def body(p):
        server = p.right.store_server(1 << 20)
        async with await p.a.store() as store:
            assert len(store.id) == 16 and store.info["state"] == "WEFT_OK" and store.endpoint is p.a and not store.closed
            block = await store.alloc(1000, "numbers")
            assert (len(block), block.nbytes, block.store) == (1000, 1000, store)
            remote = block.remote
            assert remote is block.remote and remote.endpoint is p.a
            assert await remote.read() == bytes(1000)
            await remote.write(b"hello", 5)
            other = await store.open("numbers")
            assert await other.remote.read(5, 5) == b"hello"
            assert await block.extend(2000) == 2000 and len(block) == 2000
            longer = block.remote
            assert longer is not remote and await longer.read(0, 10) == await remote.read(0, 10)
            with pytest.raises(weft.RangeError):
                await block.extend(1999)
            by_key = await p.a.attach(block.key())
            assert len(by_key) == 2000
            rows = await store.list()
            assert [(r["name"], r["len"], r["ours"], r["shared"]) for r in rows] == [("numbers", 2000, True, False)]
            assert await store.list("x") == [] and len(await store.list("num")) == 1
            stats = await store.query()
            assert (stats["blocks"], stats["clients"], stats["bytes"]) == (1, 1, 1 << 20) == (server.stats["blocks"], 1,
                                                                                              server.stats["bytes"])
            with pytest.raises(weft.StateError):
                await store.alloc(1, "numbers")
            with pytest.raises(weft.LimitError):
                await store.alloc(2 << 20)
            with pytest.raises(weft.NotFoundError):
                await store.open("nothing")
            await block.free()
            for dead in (remote, longer):
                with pytest.raises(weft.ClosedError):
                    dead.read()
            for call in (block.key, lambda: block.remote, block.free, lambda: block.extend(1)):
                with pytest.raises(weft.ClosedError, match="the block is closed"):
                    call()
            with pytest.raises(weft.StaleError):
                await by_key.read(0, 1)
            named = await store.alloc(0)
            await named.share("shared")
            await store.remove("shared")
            with pytest.raises(weft.NotFoundError):
                await store.remove("shared")
            await store.renew()
        assert store.closed
        with pytest.raises(weft.ClosedError, match="the store is closed"):
            store.list()
        await server.close()
        await server.close()
        with pytest.raises(weft.UnsupportedError):
            await p.a.store()
    pair(body)


def test_shared_blocks_and_coming_back(pair):
    async def body(p):
        p.right.keep = p.right.store_server(1 << 20, lease=20)
        store = await p.a.store(lease=10)
        assert store.info["lease"] == 10
        mine, shared = await store.alloc(10, "mine"), await store.alloc(10, "shared", shared=True)
        await mine.remote.write(b"0123456789")
        await shared.remote.write(b"abcdefghij")
        who = store.id
        store.leave()
        store.leave()
        back = await p.a.store(id=who)
        assert await (await back.open("mine")).remote.read() == b"0123456789"
        await back.close()
        fresh = await p.a.store()
        assert fresh.id != who and [r["name"] for r in await fresh.list()] == ["shared"]
        new = await fresh.alloc(3)
        await new.remote.write(b"new")
        await new.share("shared", replace=True)
        assert await (await fresh.open("shared")).remote.read() == b"new"
        manual = await p.a.store(renew=False, lease=0.05)
        await manual.alloc(1, "short")
        while any(r["name"] == "short" for r in await fresh.list()):
            await asyncio.sleep(0.01)
        for bad in (b"", b"x", bytes(17), "text", 7):
            with pytest.raises((weft.InvalidError, TypeError)):
                p.a.store(id=bad)
    pair(body)


def test_objects_that_go_let_go(pair):
    async def body(p):
        server = p.right.store_server(1 << 20)
        store = await p.a.store()
        remote = (await store.alloc(100)).remote
        gc.collect()
        assert await remote.read(0, 1) == b"\0", "a remote holds its block"
        p.a.store()
        store.alloc(100)
        await store.query()
        gc.collect()
        del remote, store
        gc.collect()
        while server.stats["clients"]:
            await asyncio.sleep(0.001)
        assert server.stats["blocks"] == 0
    pair(body)


def test_bad_arguments(pair):
    async def body(p):
        for bad in (lambda: p.right.store_server(), lambda: p.right.store_server(0), lambda: p.right.store_server(-1),
                    lambda: p.right.store_server(1, lease=-1),
                    lambda: p.right.store_server(1, blocks=2**32)):
            with pytest.raises((weft.InvalidError, TypeError, OverflowError, ValueError)):
                bad()
        server = p.right.store_server(1 << 20)
        with pytest.raises(weft.StateError):
            p.right.store_server(1 << 20)
        store = await p.a.store()
        for bad in (lambda: store.alloc(-1), lambda: store.alloc(), lambda: store.alloc(1, "a\0b"), lambda: store.alloc(1, 7),
                    lambda: store.alloc(1, "x" * 300),
                    lambda: store.open(None), lambda: store.open("a\0"), lambda: store.list(7),
                    lambda: store.alloc(1, shared=True)):
            with pytest.raises((weft.WeftError, TypeError, OverflowError)):
                await bad()
        for bad in (lambda: p.left.mirror("m", []), lambda: p.left.mirror("m", [store] * 4), lambda: p.left.mirror("m", [p.a]),
                    lambda: p.left.mirror("m", 7),
                    lambda: p.right.mirror("m", [store]), lambda: p.left.mirror("a\0b", [store])):
            with pytest.raises((weft.InvalidError, TypeError)):
                bad()
        with pytest.raises(weft.NotFoundError):
            await p.left.mirror("m", [store])
        assert server.stats["blocks"] == 0
    pair(body)


def test_a_mirror_in_one_process(run):
    async def body():
        async with weft.Runtime() as rt, weft.Runtime() as one, weft.Runtime() as two:
            stores, kept = [], []
            for server in (one, two):
                listener = server.listen("tcp://127.0.0.1:0", kept.append)
                kept.append(server.store_server(1 << 20))
                stores.append(await (await rt.connect(listener.uri)).store())
            data = os.urandom(100_000)
            async with await rt.mirror("m", stores, size=100_000, write=True, checksums=True) as writer:
                assert writer.info["members"] == ["up", "up"] and writer.info["writer"] and len(writer) == 100_000
                await writer.write(data)
                await writer.write(numpy.full(10, 7, "u1"), 50)
                async with await rt.mirror("m", stores) as reader:
                    assert await reader.read(0, 50) == data[:50] and await reader.read(50, 10) == b"\7" * 10
                    into = bytearray(1000)
                    assert await reader.read_into(into, 60) == 1000 and into == data[60:1060]
                    with pytest.raises(weft.RightsError):
                        await reader.write(b"x")
                    with pytest.raises(weft.RangeError):
                        reader.read(99_999, 2)
                    with pytest.raises(weft.RangeError):
                        await reader.read_into(bytearray(2), 99_999)
                with pytest.raises(weft.StateError):
                    await rt.mirror("m", stores, size=10, write=True)
            assert writer.closed
            with pytest.raises(weft.ClosedError, match="the mirror is closed"):
                writer.read()
    run(body())


def test_a_member_of_a_mirror_is_killed(run, child):
    servers = [child(SERVER) for _ in range(3)]
    uris = [s.stdout.readline().strip() for s in servers]

    async def body():
        async with weft.Runtime(heartbeat=0.3, close_timeout=1) as rt:
            stores = [await (await rt.connect(uri)).store() for uri in uris]
            mirror = await rt.mirror("m", stores[:2], size=1 << 20, write=True, lease=0.5)
            data = os.urandom(1 << 20)
            await mirror.write(data)
            servers[0].send_signal(signal.SIGKILL)
            assert await mirror.read() == data
            await mirror.write(b"after", 100)
            assert await mirror.read(100, 5) == b"after" and mirror.info["members"].count("up") == 1
            await mirror.add(stores[2])
            assert mirror.info["members"].count("up") == 2
            servers[1].send_signal(signal.SIGKILL)
            assert await mirror.read(98, 9) == data[98:100] + b"after" + data[105:107]
    run(body())


def test_a_server_that_is_killed_ends_everything_under_way(run, child):
    server = child(SERVER)
    uri = server.stdout.readline().strip()

    async def body():
        async with weft.Runtime(heartbeat=0.3, close_timeout=1) as rt:
            store = await (await rt.connect(uri)).store()
            block = await store.alloc(16 << 20)
            into = bytearray(16 << 20)
            working = [asyncio.ensure_future(f()) for f in (lambda: repeat(lambda: block.remote.read_into(into)),
                                                            lambda: repeat(lambda: store.query()),
                                                            lambda: repeat(lambda: block.extend(16 << 20)))]
            await asyncio.sleep(0.05)
            server.send_signal(signal.SIGKILL)
            done, late = await asyncio.wait(working, timeout=30)
            assert not late and all(isinstance(t.exception(), (weft.PeerError, weft.ClosedError)) for t in done), done
            assert store.info["state"] in ("WEFT_ERR_PEER", "WEFT_ERR_CLOSED")
            into.append(0)

    async def repeat(call):
        while True:
            await call()
            await asyncio.sleep(0)
    run(body())


def test_a_client_that_is_killed_loses_its_blocks(run, child):
    async def body():
        async with weft.Runtime(heartbeat=0.3) as rt:
            kept = []
            listener = rt.listen("tcp://127.0.0.1:0", kept.append)
            server = rt.store_server(1 << 20, lease=0.5)
            client = child("""
import asyncio, sys, weft
async def main():
    store = await (await weft.connect(sys.argv[1])).store()
    block = await store.alloc(1000, "mine")
    print("ready", flush=True)
    await asyncio.sleep(120)
asyncio.run(main())
""", listener.uri)
            await asyncio.to_thread(client.stdout.readline)
            assert server.stats["blocks"] == 1
            client.kill()
            while server.stats["blocks"]:
                await asyncio.sleep(0.01)
            assert server.stats["expired_clients"] == 1
    run(body())


def test_everything_ends_with_its_runtime(pair):
    async def body(p):
        server = p.right.store_server(1 << 20)
        store = await p.a.store()
        block = await store.alloc(100, "x")
        remote = block.remote
        mirror = await p.left.mirror("m", [store], size=100, write=True)
        unasked = [p.a.store(), store.alloc(1), store.open("x")]
        await asyncio.sleep(0.05)
        under_way = [remote.read(), store.query(), mirror.read()]
        await p.left.close()
        for thing in (store, block, remote, mirror):
            assert thing.closed
        for op in under_way:
            with contextlib.suppress(weft.WeftError):
                await op
        for op in unasked:
            with pytest.raises(weft.WeftError):
                op.result()
        await p.right.close()
        assert server.closed
        del unasked
    pair(body)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_same_without_a_loop(transport):
    with weft.blocking.Runtime(transports=transport) as left, weft.blocking.Runtime(transports=transport) as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        _b = listener.accept(timeout=30)
        with right.store_server(1 << 20) as server, a.store(timeout=30) as store:
            with store.alloc(100, "x", timeout=30) as block:
                block.remote.write(b"hello")
                assert block.extend(200) == 200 and block.remote.read(0, 5) == b"hello"
            assert block.closed
            assert [r["name"] for r in store.list()] == ["x"] and store.query()["blocks"] == 1
            store.open("x").share("y")
            store.remove("y")
            array = weft.RemoteArray(store.alloc(800).remote, "f8", 100)
            array[3] = 2.5
            assert array[:5].sum() == 2.5
            with left.mirror("m", [store], size=10_000, write=True) as mirror:
                mirror.write(b"x" * 100)
                assert mirror.read(50, 60) == b"x" * 50 + bytes(10)
            with pytest.raises(weft.NotFoundError):
                store.open("nothing")
        assert server.closed and store.closed


def test_what_a_store_left_behind_knows_that_its_endpoint_is_gone(pair):
    """Blocks and mirrors keep a store that was closed or left; its endpoint can go meanwhile."""
    async def body(p):
        server = p.right.store_server(1 << 20)
        for leave in (True, False):
            a = await p.left.connect(p.listener.uri)
            store = await a.store()
            block = await store.alloc(100)
            mirror = await p.left.mirror(f"left behind {leave}", [store], size=100, write=True)
            if leave:
                store.leave()
            else:
                await store.close()
            a.abort()
            while p.left.stats()["endpoints"] > 1:
                await asyncio.sleep(0.001)
            with pytest.raises(weft.WeftError):
                await block.extend(200)
            del block, mirror, store
        del server
    pair(body)
