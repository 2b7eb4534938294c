"""reg, buf and what read and write return, as programs that were written for libd see them. Each test says what libd does: its
binding is a Cython class over `char *`, whose `buf` is a typed memoryview."""
import gc
import hashlib
import inspect
import io
import struct
import threading

import pytest

import weft

from elementside import BOUND, action, memory, pair, until

try:
    import numpy
except ImportError:
    numpy = None

needs_numpy = pytest.mark.skipif(numpy is None, reason="numpy is not installed")


# --- what calls return

@pytest.mark.parametrize("way", ["mapped", "tcp"])
def test_read_and_write_return_0(way):
    # libd: the status of the transfer, 0. A negative number for a failure, which is easy to overlook; here that is an exception
    with pair(4096, 64, "all" if way == "mapped" else "tcp") as trans:
        assert trans.write(8, 0) == 0 and trans.read(8, 0) == 0 and trans.read(size=0, addr=0, offset=64) == 0
        assert type(trans.read(8, 0)) is int
        assert trans.batch([("write", 8, 0), ("read", 8, 0)]) == 2
        with pytest.raises(weft.RangeError):
            trans.read(8, 4090)


def test_awaited_reads_and_writes_give_the_same(run):
    # libd has none
    async def main():
        with pair() as trans:
            assert await trans.write_async(8, 0) == 0 and await trans.read_async(8, 0) == 0
    run(main())


# --- reg, again

def test_a_second_reg_of_the_same_size_keeps_the_buffer():
    # libd: the same memory, with what is in it
    with pair(4096, 64) as trans:
        trans.buf[:4] = b"kept"
        view = trans.buf
        assert trans.reg(64) is None
        assert bytes(trans.buf[:4]) == b"kept"
        trans.write(4, 0)
        trans.buf[:4] = bytes(4)
        trans.read(4, 0)
        assert bytes(view[:4]) == b"kept"  # who looked at it before sees what is read now


def test_a_second_reg_of_a_smaller_size_keeps_the_first_bytes():
    # libd: the same memory; buf has the new size. Nothing is checked there: a read beyond it lands in the old memory, or not
    with pair(4096, 64) as trans:
        trans.buf[:] = bytes(range(64))
        whole = trans.buf
        trans.reg(16)
        assert len(trans.buf) == trans.buf.size == 16 and bytes(trans.buf) == bytes(range(16))
        assert trans.write(16, 0) == 0 and trans.read(8, 0, 8) == 0 and bytes(whole[8:16]) == bytes(range(8))
        for outside in (lambda: trans.read(17, 0), lambda: trans.write(1, 0, 16), lambda: trans.read(8, 0, 9),
                        lambda: trans.read(1, 0, 100), lambda: trans.batch([("read", 1, 0, 3), ("write", 4, 0, 14)]),
                        lambda: trans.readv([(8, 0), (9, 8)]), lambda: trans.writev([(1, 0, 16)]),
                        lambda: trans.read(1 << 63, 0, 1 << 63)):
            with pytest.raises(weft.RangeError, match="buffer"):
                outside()
        assert bytes(whole[16:]) == bytes(range(16, 64))
        mine = bytearray(64)
        trans.read_many([(0, mine)])  # which is not about the buffer
        trans.reg(64)
        assert bytes(trans.buf[16:]) == bytes(range(16, 64)) and trans.read(64, 0) == 0


def test_a_second_reg_of_a_larger_size_keeps_what_is_in_it():
    # libd: the same memory, and a view that goes on behind its end. Here there is more memory, and the bytes are in it
    with pair(4096, 16) as trans:
        trans.buf[:] = bytes(range(16))
        trans.reg(1 << 20)
        assert len(trans.buf) == 1 << 20 and bytes(trans.buf[:32]) == bytes(range(16)) + bytes(16)
        trans.write(32, 0)
        assert trans.read(4096, 0, (1 << 20) - 4096) == 0
        assert bytes(trans.buf[-4096:-4080]) == bytes(range(16))


def views(trans):
    yield "buf", trans.buf
    yield "a slice", trans.buf[2:3]
    yield "a cast", trans.buf.cast("Q")
    yield "a memoryview", memoryview(trans.buf)
    if numpy is not None:
        yield "an array", numpy.frombuffer(trans.buf, dtype="u4", count=1)


def test_a_buffer_that_somebody_looks_at_does_not_become_longer():
    # libd: the array over the old bytes and the new view are the same memory. Here they would not be: the array would show old
    # bytes, without an error. So that is refused, as Python refuses to resize a bytearray of which there is a view
    with pair(4096, 16) as trans:
        trans.buf[:5] = b"right"
        trans.write(5, 0)
        for kind, view in views(trans):
            with pytest.raises(BufferError, match="let go of those first"):
                trans.reg(17)
            assert len(trans.buf) == 16, kind
            trans.reg(16)
            trans.reg(3)
            trans.reg(16)
            del view
        gc.collect()
        trans.reg(17)
        assert bytes(trans.buf[:6]) == b"right\0"


def test_nor_does_one_that_is_shared():
    # libd: both keep the same memory
    with memory(4096) as one, memory(4096, "other") as two, action(one.durl, two.durl) as made:
        a, b = made.get_transport("mem", "rdma"), made.get_transport("other", "rdma")
        a.reg(64)
        b.reg(32, a)
        for trans in (a, b):
            with pytest.raises(BufferError):
                trans.reg(65)
        a.buf[:2] = b"ab"
        assert bytes(b.buf[:2]) == b"ab"


def test_nor_does_one_of_an_operation_under_way():
    # libd: one call at a time
    with memory(4096) as element, action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        thread = threading.Thread(target=trans.read, args=(8, 0))
        thread.start()
        try:
            until(lambda: trans.stats()["waits"] == 1)
            with pytest.raises(BufferError, match="operation"):
                trans.reg(9)
        finally:
            made.config_transport("mem", element.durl)
            thread.join(BOUND)
        trans.reg(9)
        assert trans.read(9, 0) == 0


def test_buf_of_a_shared_buffer_has_the_size_that_was_asked_for():
    # libd: the same
    with memory(4096) as one, memory(4096, "other") as two, action(one.durl, two.durl) as made:
        a, b = made.get_transport("mem", "rdma"), made.get_transport("other", "rdma")
        a.reg(64)
        b.reg(10, a)
        assert (len(a.buf), len(b.buf)) == (64, 10)
        b.buf[:] = b"0123456789"
        assert bytes(a.buf[:11]) == b"0123456789\0"
        with pytest.raises(weft.RangeError):
            b.write(11, 0)
        b.reg(64, a)
        a.reg(20)
        with pytest.raises(weft.RangeError, match="has 20 bytes"):
            b.reg(21, a)  # libd gives out all that is asked for
        assert len(b.buf) == 64 and b.write(64, 0) == 0
        b.reg(8, b)
        assert len(b.buf) == 8 and bytes(a.buf[:8]) == b"01234567"
        b.buf[0] = ord("x")
        assert a.buf[0] == ord("x")  # libd: reg without a transport keeps the memory it has, which is still the other's


def test_a_first_reg_of_nothing_and_then_of_something():
    with pair(4096, 0) as trans:
        assert trans.buf.size == 0 and list(trans.buf) == []
        trans.reg(8)
        assert bytes(trans.buf) == bytes(8)


# --- buf

def test_buf_has_what_views_have_and_what_arrays_have():
    # libd: Cython's memoryview: size, shape, strides, nbytes, itemsize, ndim, T, copy() and more; its items are chars, format c,
    # so that numpy.asarray makes S1 of it and buf[0] is from -128 to 127. Here it is of format B, bytes are 0 to 255
    with pair(4096, 32) as trans:
        buf = trans.buf
        assert (buf.size, buf.nbytes, len(buf), buf.shape, buf.strides, buf.itemsize, buf.ndim) == (32, 32, 32, (32,), (1,), 1, 1)
        assert (buf.format, buf.readonly, buf.contiguous, buf.c_contiguous, buf.f_contiguous) == ("B", False, True, True, True)
        assert buf.T is buf and buf.suboffsets == () and memoryview(buf.obj).nbytes == 32
        buf[:3] = b"\xff\x80a"
        assert buf[0] == 255 and buf[-32:-29].tolist() == [255, 128, 97] and buf[:3].hex() == "ff8061" == bytes(buf[:3]).hex()
        assert buf[:3].hex("-", bytes_per_sep=1) == "ff-80-61" and buf[1:3].tobytes() == b"\x80a" == buf[1:3].tobytes(order="C")
        copied = buf.copy()
        copied[0] = 1
        assert type(copied) is type(buf) and copied.size == 32 and buf[0] == 255 and copied[1:] == buf[1:]
        assert list(buf[:2]) == [255, 128] and 97 in buf and 98 not in buf and sum(buf[:3]) == 480 and max(buf) == 255
        assert buf.toreadonly().readonly
        with pytest.raises(TypeError):
            buf.toreadonly()[0] = 1
        assert "32 bytes" in repr(buf)
        for name in ("copy", "tobytes", "tolist", "hex", "cast", "release", "toreadonly"):
            assert inspect.signature(getattr(type(buf), name)) and getattr(buf, name).__doc__


def test_slices_of_it_are_of_the_same_kind():
    with pair(4096, 32) as trans:
        part = trans.buf[8:16]
        assert type(part) is type(trans.buf) and part.size == 8 and part.T.shape == (8,)
        part[2:4][:] = b"in"
        assert bytes(trans.buf[10:12]) == b"in"
        steps = trans.buf[::4]
        assert steps.size == 8 and steps.strides == (4,) and not steps.contiguous
        steps[:] = range_of(8)
        assert bytes(trans.buf[::4]) == range_of(8) == steps.tobytes() == bytes(steps.copy())
        back = trans.buf[7::-1]
        assert back.tolist() == trans.buf[:8].tolist()[::-1]
        back[:] = range_of(8)
        assert trans.buf[:8].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
        trans.buf[::4] = 9
        assert steps.tolist() == [9] * 8 and trans.buf[1] == 6
        trans.buf[...] = bytes(32)
        assert trans.buf[...] == trans.buf and trans.buf[...].size == 32 and steps[0] == 0


def range_of(n):
    return bytes(range(n))


def test_what_can_be_assigned():
    # libd: what has a buffer of as many items, whatever they are; or one number for all
    with pair(4096, 16) as trans:
        buf = trans.buf
        for value in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), trans.buf[4:8].copy(), memoryview(b"abcd").cast("c"),
                      memoryview(b"abcd").cast("b")):
            if len(value) == 4 and bytes(value) == bytes(4):
                value[:] = b"abcd"
            buf[4:8] = 0
            buf[4:8] = value
            assert bytes(buf[3:9]) == b"\0abcd\0"
        buf[:] = 255
        assert bytes(buf) == b"\xff" * 16
        buf[0:0] = b""
        buf[5:5] = 1
        buf[:] = 0
        assert bytes(buf) == bytes(16)
        for bad, error in ((b"abc", ValueError), (b"abcde", ValueError), (memoryview(b"abcde").cast("b"), ValueError), ("abcd", TypeError),
                           (256, ValueError), (-1, ValueError), (1 << 80, ValueError), (1.0, TypeError), (None, TypeError),
                           ([1, 2, 3, 4], TypeError)):
            with pytest.raises(error):
                buf[4:8] = bad
        for bad in (256, -1):  # libd: -128 to 127
            with pytest.raises(ValueError):
                buf[0] = bad
        with pytest.raises(IndexError):
            buf[16]
        with pytest.raises(IndexError):
            buf[-17] = 1
        with pytest.raises(TypeError):
            buf["a"]
        with pytest.raises(TypeError):
            del buf[0]
        assert bytes(buf) == bytes(16)


@needs_numpy
def test_arrays_of_one_byte_items_can_be_assigned():
    # libd: the same. An array of larger items of which there are as many is written beyond the slice there; here it is refused
    with pair(4096, 16) as trans:
        for dtype in ("u1", "i1", "S1", "?"):
            trans.buf[:] = 0
            array = numpy.ones(4, "u1").view(dtype)
            trans.buf[4:8] = array
            assert bytes(trans.buf[3:9]) == b"\0\1\1\1\1\0", dtype
            trans.buf[0:16:4] = array
            assert trans.buf[12] == 1
        trans.buf[:] = range_of(16)
        trans.buf[2:10] = numpy.asarray(trans.buf)[0:8].view("i1")  # which overlap
        assert bytes(trans.buf[:12]) == bytes([0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11])
        for array in (numpy.ones(4, "i4"), numpy.ones(1, "i4"), numpy.ones((2, 2), "i1"), numpy.ones(4, "f8")):
            with pytest.raises((ValueError, NotImplementedError)):
                trans.buf[4:8] = array
        trans.buf[4:8] = numpy.int64(7)  # a number
        assert trans.buf[4:8].tolist() == [7] * 4


@needs_numpy
def test_arrays_over_it_are_without_a_copy():
    # libd: dtype S1; programs make .view(dtype) of it, which is the same here
    with pair(4096, 64) as trans:
        array = numpy.asarray(trans.buf)
        assert array.dtype == numpy.uint8 and array.shape == (64,) and array.flags.writeable and not array.flags.owndata
        array.view("f8")[:2] = [1.5, 2.5]
        assert struct.unpack_from("<2d", trans.buf) == (1.5, 2.5)
        numpy.frombuffer(trans.buf, "f4", 1, 16)[0] = 3
        part = numpy.asarray(trans.buf[16:20]).view("f4")
        assert part[0] == 3 and numpy.shares_memory(part, array)
        assert numpy.ndarray((2,), "f8", trans.buf)[1] == 2.5
        numpy.array(trans.buf)[:] = 9  # a copy
        numpy.asarray(trans.buf.copy())[:] = 9
        assert array[0] == 0
        assert trans.buf[:4] == array[:4] and bytes(array[:4].data) == trans.buf[:4]


def test_everything_that_takes_bytes_takes_it():
    with pair(4096, 8) as trans:
        struct.pack_into("@I", trans.buf, 0, 0x64636261)
        assert struct.unpack_from("@I", trans.buf[0:4])[0] == 0x64636261 == int.from_bytes(trans.buf[:4], "little")
        assert bytes(trans.buf[:4]) == b"abcd" and str(trans.buf[:4], "ascii") == "abcd" and b"".join([trans.buf[:2], b"!"]) == b"ab!"
        assert b"x" + trans.buf[:1] == b"xa" and bytearray(trans.buf[:2]) == b"ab" and hashlib.sha1(trans.buf[:4]).hexdigest()
        file = io.BytesIO()
        file.write(trans.buf[:4])
        file.seek(0)
        assert file.readinto(trans.buf[4:]) == 4 and bytes(trans.buf) == b"abcdabcd"
        assert trans.buf[:4] == b"abcd" and b"abcd" == trans.buf[:4] and trans.buf[:4] == trans.buf[4:] and trans.buf[:4] != b"abc"
        assert trans.buf != 5 and not trans.buf == "abcdabcd"
        with pytest.raises(TypeError):
            trans.buf < b"z"
        with pytest.raises(TypeError):
            {trans.buf: 1}
        mine = bytearray(4)
        trans.write(8, 0)
        trans.read_many([(0, trans.buf[4:8]), (4, mine)])
        assert mine == b"abcd"


def test_a_view_can_be_let_go_of():
    with pair(4096, 8) as trans:
        with trans.buf as view, view.cast("I") as words:
            words[0] = 1
        assert "released" in repr(view)
        for use in (lambda: view[0], lambda: view.size, lambda: bytes(view), lambda: view.shape, lambda: view[0:2], lambda: len(view),
                    lambda: view.__setitem__(slice(0, 1), 1)):
            with pytest.raises(ValueError, match="released"):
                use()
        view.release()
        assert trans.buf[0] == 1
        trans.reg(16)  # nobody looks at it


def test_without_a_buffer_there_is_no_buf():
    # libd: AttributeError
    with action("mem;rdma_tcp;") as made, pytest.raises(MemoryError, match="reg"):
        made.get_transport("mem", "rdma").buf
