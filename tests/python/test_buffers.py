"""Anything with memory can be sent and received into; what cannot is refused with a sentence."""
import array
import ctypes
import mmap

import pytest

import weft

numpy = pytest.importorskip("numpy", reason="numpy is not installed")


def test_all_kinds_of_buffers_can_be_sent(pair):
    async def body(p):
        m = mmap.mmap(-1, 4096)
        m[:3] = b"abc"
        for buf in (b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4], array.array("B", b"abc"), (ctypes.c_char * 3)(*b"abc"),
                    numpy.frombuffer(b"abc", dtype="u1"), memoryview(m)[:3], numpy.array([[97], [98], [99]], dtype="u1")):
            await p.a.send(buf, tag=1)
            assert await p.b.recv(tag=1) == b"abc"
        m.close()
    pair(body)


def test_all_kinds_of_buffers_can_be_received_into(pair):
    async def body(p):
        for buf in (bytearray(3), memoryview(bytearray(3)), array.array("B", b"..."), (ctypes.c_char * 3)(), numpy.zeros(3, "u1"),
                    mmap.mmap(-1, 3)):
            await p.a.send(b"abc", tag=1)
            assert await p.b.recv_into(buf, tag=1) == 3
            assert bytes(memoryview(buf).cast("B")) == b"abc"
    pair(body)


def test_arrays_of_any_type_and_shape_that_lie_in_one_piece(pair):
    async def body(p):
        for order in "CF":
            out = numpy.arange(600_000, dtype="f8").reshape(600, 1000).copy(order)
            into = numpy.zeros_like(out, order=order)
            sending = p.a.send(out, tag=1)
            assert await p.b.recv_into(into, tag=1) == out.nbytes
            await sending
            assert (into == out).all()
    pair(body)


def test_what_is_not_contiguous_is_refused(pair):
    async def body(p):
        for buf in (numpy.zeros((4, 4))[:, 1], numpy.zeros(10)[::2], memoryview(bytearray(10))[::2]):
            with pytest.raises(weft.InvalidError, match="not contiguous"):
                p.a.send(buf, tag=1)
            with pytest.raises(ValueError, match="not contiguous"):
                p.b.recv_into(buf, tag=1)
        assert p.left.under_way == p.right.under_way == 0
    pair(body)


def test_what_is_read_only_is_not_received_into(pair):
    async def body(p):
        frozen = numpy.zeros(4)
        frozen.flags.writeable = False
        for buf in (b"1234", frozen, memoryview(b"1234")):
            with pytest.raises(weft.InvalidError, match="read-only"):
                p.b.recv_into(buf, tag=1)
        await p.a.send(frozen, tag=1)
        assert len(await p.b.recv(tag=1)) == 32
    pair(body)


def test_what_has_no_memory_is_a_type_error(pair):
    async def body(p):
        for thing in (None, 7, "text", [1], object()):
            with pytest.raises(TypeError, match="buffer protocol"):
                p.a.send(thing, tag=1)
    pair(body)
