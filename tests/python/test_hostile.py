"""Whatever is passed to whatever takes arguments: an exception of Python's or ours, and the runtime goes on."""
import asyncio
import random

import pytest

import weft
from conftest import connected

SEED = 20240229


class Liar:
    """Claims much and keeps little of it."""
    def __index__(self):
        raise RuntimeError("no number after all")

    def __float__(self):
        return float("nan")

    def __bool__(self):
        raise RuntimeError("neither")

    def __len__(self):
        return -1

    def __iter__(self):
        yield b"x"
        raise RuntimeError("no more")

    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


THINGS = [None, 0, 1, -1, 2**63, 2**64 - 1, 2**64, 10**30, 1.5, float("nan"), float("inf"), -0.5, "", "text", "tcp://127.0.0.1:0",
          "\ud800", "a\0b",
          b"", b"bytes", bytearray(3), [], [b"x"], [1, 2], (), {}, object(), Liar(), print, int, True, memoryview(b"123"),
          range(3), ...]
NAMES = ["buffer", "buffers", "tag", "mask", "timeout", "max_len", "uri", "source", "handler", "id", "header", "context", "msg",
         "reason",
         "callback", "confirm", "urgent", "shared", "backlog", "nonsense", "", "memory", "name",
         "rights", "max_len", "mapped", "notify", "offset", "n", "lifetime", "size", "key", "path", "value", "width", "compare",
         "items", "size",
         "lease", "renew", "prefix", "replace", "stores", "store", "write", "force", "checksums", "kind", "blocks", "clients",
         "shared"]


def attack(rng, function):
    args = [rng.choice(THINGS) for _ in range(rng.randrange(4))]
    kw = {rng.choice(NAMES): rng.choice(THINGS) for _ in range(rng.randrange(4))}
    try:
        return function(*args, **kw)
    except Exception as error:  # anything but a crash; not BaseException: nothing here may stop the loop
        assert not isinstance(error, SystemError), (function, args, kw, error)
        return None


@pytest.mark.parametrize("seed", range(4))
def test_every_entry_point_survives_every_argument(run, seed):
    async def body():
        rng = random.Random(SEED + seed)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *unused: None)
        for _ in range(10):
            async with weft.Runtime(connect_timeout=0.2, close_timeout=0.5) as left, weft.Runtime(close_timeout=0.5) as right:
                listener = right.listen("tcp://127.0.0.1:0")
                accepting = listener.accept()
                a = await left.connect(listener.uri, timeout=60)
                b = await accepting
                await a.am_send(1, b"payload", header=b"head")
                m = await b.am_recv()
                op = b.recv(tag=12345)
                region = right.region(1000, name="region")
                remote = await a.find("region")
                server = right.store_server(1 << 20)
                store = await a.store()
                block = await store.alloc(100)
                mirror = await left.mirror("mirror", [store], size=100, write=True)
                targets = [a.send, a.recv, a.recv_into, a.send_many, a.recv_many, a.probe, a.am_send, a.am_recv, m.read,
                           m.read_into, m.reject,
                           left._connect, left._listen, left._am_handle, left.stats, left.endpoints, listener.accept,
                           op.add_done_callback,
                           op.remove_done_callback, op.result, op.exception, op.get_loop, weft._core.config, weft._core.info,
                           lambda *a, **k: weft._core.Runtime(*a, **k)._close(), a.__aexit__, listener.__aexit__,
                           left._region, a.attach, a.find, region.key, region.revoke, region.extend, region.__exit__, remote.read,
                           remote.read_into,
                           remote.write, remote.write_notify, remote.readv, remote.writev, remote.read_many, remote.write_many,
                           remote.atomic_add,
                           remote.atomic_cas, remote.flush, remote.fence, right.store_server, left.mirror, a.store, store.alloc,
                           store.open, store.remove,
                           store.list, store.query, store.renew, block.extend, block.share, block.key, mirror.read,
                           mirror.read_into, mirror.write,
                           mirror.add, server.__exit__, weft.Memory, weft.Memory(10).copy_from, weft.Memory(10).copy_to,
                           weft.Memory(10).fill, weft.Memory(10).tobytes, weft.Memory(10).__dlpack__]
                made = [attack(rng, rng.choice(targets)) for _ in range(300)]
                for thing in made:
                    if isinstance(thing, weft.Op):
                        attack(rng, thing.cancel)
                        thing.cancel()
                    elif isinstance(thing, weft.Listener):
                        thing.close()
                a.on_close = None
                for bad in (1, "x", Liar()):
                    with pytest.raises(TypeError):
                        a.on_close = bad
                a.abort()
                b.abort()
    run(body())


def test_the_names_of_arguments_are_checked(pair):
    async def body(p):
        with pytest.raises(TypeError, match="nonsense"):
            p.a.send(b"", nonsense=1)
        with pytest.raises(TypeError, match="twice"):
            p.a.send(b"", 1, **{"".join(["t", "ag"]): 2})
        with pytest.raises(TypeError, match="needs 'buffer'"):
            p.a.send()
        with pytest.raises(TypeError, match="without a name"):
            p.a.send(b"", 1, 2, 3)
        with pytest.raises(OverflowError, match="tag"):
            p.a.send(b"", -1)
        with pytest.raises(OverflowError, match="between 0 and 18446744073709551615"):
            p.a.send(b"", 2**64)
        with pytest.raises(ValueError, match="seconds"):
            p.a.recv(timeout=-1)
        with pytest.raises(OverflowError, match="id"):
            p.a.am_send(0xfff00000)
        assert p.left.under_way == 0
    pair(body)


def test_an_error_without_a_detail_has_none_of_an_earlier_call(run):
    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            p = await connected(left, right)
            await p.b.abort()
            with pytest.raises((weft.PeerError, weft.ClosedError)):
                await p.a.recv(tag=1, timeout=30)
            with pytest.raises(weft.InvalidError, match="nonsense"):
                left.connect("nonsense://here")
            with pytest.raises((weft.PeerError, weft.ClosedError)) as caught:
                await p.a.send(b"x" * 10)
            assert "nonsense" not in str(caught.value) and str(caught.value)
    run(body())
