"""Tags of ucp: what can be one, that processes agree on them, and that they choose."""
import asyncio
import enum
import subprocess
import sys

import numpy
import pytest

import ucp
from ucp.utils import hash64bits
from ucpside import connected, fresh, pair, server  # noqa: F401


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


TAGS = [0, 1, -1, 2**64, 2**200, "", "a", "word", b"a", b"", ("a", 1), ("a", ("b", 2)), 1.5, None, frozenset({"x", "y", "z"}),
        Colour.RED]


def test_equal_tags_are_one_and_others_are_not():
    assert len({hash64bits(7, tag) for tag in TAGS + [Colour.BLUE, "A", ("a", "1"), ("a1",), 2.5]}) == len(TAGS) + 5
    for same in ((1, True, 1.0, numpy.int64(1), numpy.uint8(1)), ("a", str(numpy.str_("a"))),
                 (b"ab", bytearray(b"ab"), memoryview(b"ab")), (frozenset("abc"), frozenset("cba"))):
        assert len({hash64bits(7, tag) for tag in same}) == 1
    assert all(0 <= hash64bits(tag) < 2**64 for tag in TAGS)
    assert hash64bits(1, 2) != hash64bits(2, 1) != hash64bits(12)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_every_process_has_the_same_hash(seed):
    program = "from ucp.utils import hash64bits; print(hash64bits(5, 'word'), hash64bits(5, b'b'), hash64bits(('x', frozenset({'p', 'q', 'r'}))))"
    import os
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}).stdout
    assert out.split() == [str(hash64bits(5, "word")), str(hash64bits(5, b"b")),
                           str(hash64bits(("x", frozenset({"p", "q", "r"}))))]


def test_tags_choose(pair):  # noqa: F811
    async def body(p):
        for i, tag in enumerate(TAGS):
            if tag is not None:
                await p.a.send(b"%04d" % i, tag=tag)
        await p.a.send(b"none")
        await p.b.recv(into := bytearray(4))
        assert into == b"none"
        for i, tag in reversed(list(enumerate(TAGS))):
            if tag is not None:
                await p.b.recv(into, tag=tag)
                assert into == b"%04d" % i
    pair(body)


def test_a_word_matches_in_another_process(run, child):
    process, port = server(child, "await ep.recv(b := bytearray(4), tag='question')\nawait ep.send(b, tag=('answer', 1))\nawait "
                                  "ep.recv(b)")

    async def body():
        ep = await ucp.create_endpoint("127.0.0.1", port)
        await ep.send(b"word", tag="question")
        await ep.recv(into := bytearray(4), tag=("answer", 1))
        assert into == b"word"
    run(body())


def test_what_cannot_be_a_tag(run):
    async def body():
        p = await connected()
        for bad in (object(), [1], {}, lambda: 0, ("a", object()), 1j):
            with pytest.raises(TypeError, match="every process"):
                await p.a.send(b"1", tag=bad)
            with pytest.raises(TypeError, match="every process"):
                await p.b.recv(bytearray(1), tag=bad)
        for bad in (-1, 2**64):
            with pytest.raises((ValueError, OverflowError)):
                await p.a.send(b"1", tag=bad, force_tag=True)
        with pytest.raises((TypeError, ValueError)):
            await p.a.send(b"1", tag="word", force_tag=True)
        await p.a.send(b"1")
        await p.b.recv(bytearray(1))
        assert p.b._finished_recv_count == 1 and p.a._send_count == 1  # what was refused does not count for close()
    run(body())


def test_a_forced_tag_is_used_as_it_is(pair):  # noqa: F811
    async def body(p):
        await p.a.send(b"raw", tag=0xabc, force_tag=True)
        await ucp.recv(into := bytearray(3), 0xabc)
        assert into == b"raw"
        receiving = asyncio.ensure_future(p.b.recv(into, tag=2**64 - 1, force_tag=True))
        await asyncio.sleep(0.005)
        await p.a.send(b"max", tag=2**64 - 1, force_tag=True)
        await receiving
        assert into == b"max"
    pair(body)


def test_endpoints_do_not_take_each_others_messages(run):
    async def body():
        p, q = await connected(), await connected()
        await p.a.send(b"p", tag=1)
        await q.a.send(b"q", tag=1)
        await q.b.recv(into := bytearray(1), tag=1)
        assert into == b"q"
        await p.b.recv(into, tag=1)
        assert into == b"p"
    run(body())


def test_many_different_tags_take_no_more_memory_than_a_few(run):
    async def body():
        p = await connected()
        for i in range(10_000):
            p.a._tag(p.a._msg_send, i, False)
        assert len(p.a._hashes) <= 4096
    run(body())
