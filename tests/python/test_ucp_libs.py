"""ucp._libs.arr and ucp._libs.utils: arrays of every sort, and small helpers."""
import array
import ctypes
import mmap
import os
import socket

import numpy as np
import pytest

from ucp._libs import utils
from ucp._libs.arr import Array, asarray
from ucp._libs.manual_loop import ManualLoop


def buffers():
    yield b"bytes"
    yield bytearray(b"bytearray")
    yield memoryview(b"0123456789")[2:7]
    yield memoryview(bytearray(24)).cast("i", (2, 3))
    yield array.array("d", [1.0, 2.0])
    yield (ctypes.c_int * 4)()
    yield mmap.mmap(-1, 4096)
    yield b""
    for dtype in ("u1", "i4", "f8", "c16"):
        for shape in ((), (1,), (0,), (3,), (2, 3), (2, 3, 4), (1, 5, 1)):
            whole = np.arange(int(np.prod(shape)) or 1, dtype=dtype)[:int(np.prod(shape))].reshape(shape)
            yield whole
            yield whole.T
            if whole.ndim > 1:
                yield whole[:, ::2]
            if whole.ndim and len(whole):
                yield whole[::-1]
            frozen = whole.copy()
            frozen.setflags(write=False)
            yield frozen


@pytest.mark.parametrize("buffer", list(buffers()), ids=lambda b: f"{type(b).__name__}{getattr(b, 'shape', '')}")
def test_an_array_says_what_a_memoryview_says(buffer):
    a, v = Array(buffer), memoryview(buffer)
    for name in ("readonly", "itemsize", "ndim", "nbytes", "c_contiguous", "f_contiguous", "contiguous"):
        assert getattr(a, name) == getattr(v, name), name
    assert a.shape == v.shape and a.strides == v.strides and a.obj is v.obj and a.cuda is False
    if v.format != "Zd":
        n = np.asarray(v)
        if n.nbytes:
            assert a.ptr == n.__array_interface__["data"][0]
    with pytest.raises(AttributeError):
        a.__cuda_array_interface__


class Interface:
    """Memory that is told of in a dict."""

    def __init__(self, cuda=False, **kw):
        self.memory = np.arange(24, dtype="i4")
        told = {"shape": (4, 6), "typestr": "<i4", "data": (self.memory.ctypes.data, False), "version": 3, **kw}
        setattr(self, "__cuda_array_interface__" if cuda else "__array_interface__", told)


@pytest.mark.parametrize("cuda", [False, True])
def test_memory_told_of_in_a_dict(cuda):
    thing = Interface(cuda)
    a = Array(thing)
    assert (a.shape, a.strides, a.itemsize, a.ndim, a.nbytes, a.cuda, a.readonly) == ((4, 6), (24, 4), 4, 2, 96, cuda, False)
    assert a.obj is thing and a.ptr == thing.memory.ctypes.data and a.c_contiguous and not a.f_contiguous and a.contiguous
    told = a.__cuda_array_interface__ if cuda else a.__array_interface__
    assert told["shape"] == (4, 6) and told["data"][0] == a.ptr
    f = Array(Interface(cuda, strides=(4, 16)))
    assert f.f_contiguous and not f.c_contiguous and f.contiguous
    gaps = Array(Interface(cuda, shape=(2, 6), strides=(48, 4)))
    assert not gaps.contiguous and gaps.nbytes == 48
    with pytest.raises(ValueError, match="contiguous"):
        gaps._memory(48, False)
    part = a._memory(8, False)
    if cuda:
        assert part.__cuda_array_interface__["shape"] == (8,) and part.__cuda_array_interface__["data"][0] == a.ptr
    else:
        assert bytes(part) == thing.memory.tobytes()[:8] and bytes(a._memory(96, True)) == thing.memory.tobytes()


@pytest.mark.parametrize("bad", [{"shape": None}, {"shape": (-1,)}, {"shape": ("x",)}, {"typestr": "i"}, {"typestr": 4},
                                 {"typestr": "<ix"},
                                 {"data": None}, {"data": (1,)}, {"data": (0, False)}, {"data": "text"}, {"strides": (1,)},
                                 {"strides": (1, 2, 3)}])
@pytest.mark.parametrize("cuda", [False, True])
def test_dicts_that_lie(bad, cuda):
    with pytest.raises((ValueError, TypeError)):
        Array(Interface(cuda, **bad))


@pytest.mark.parametrize("nothing", [None, 7, "text", object(), [1, 2], {}])
def test_what_has_no_memory(nothing):
    with pytest.raises(ValueError, match="no memory"):
        Array(nothing)


def test_arrays_read_back_as_numpy():
    for source in (np.arange(6, dtype="f8").reshape(2, 3), np.arange(5, dtype="i2"), bytearray(b"abc")):
        a = Array(source)
        assert (np.array(a, copy=True) == np.asarray(source if not isinstance(source, bytearray)
                                                     else np.frombuffer(source, "u1"))).all()


@pytest.mark.parametrize("cuda", [False, True])
def test_pieces(cuda):
    a = Array(Interface(cuda))
    pieces = list(a._pieces(90, 40))
    if cuda:
        told = [p.__cuda_array_interface__ for p in pieces]
        assert [(t["data"][0] - a.ptr, t["shape"]) for t in told] == [(0, (40,)), (40, (40,)), (80, (10,))]
    else:
        assert b"".join(pieces) == np.arange(24, dtype="i4").tobytes()[:90]


def test_asarray():
    a = Array(b"x")
    assert asarray(a) is a and asarray(b"y").nbytes == 1


def test_parts_of_memory():
    a = Array(np.asfortranarray(np.arange(6, dtype="u1").reshape(2, 3)))
    assert bytes(a._memory(2, False)) == b"\0\3" and bytes(a._memory(0, False)) == b""
    odd = np.zeros(3, dtype=[("a", "<i4"), ("b", ">f8")])
    odd["a"] = 1, 2, 3
    assert bytes(Array(odd)._memory(16, False)) == odd.tobytes()[:16] and bytes(Array(odd)._flat(36)) == odd.tobytes()
    assert bytes(Array(np.array(7, "i4"))._flat(4)) == b"\7\0\0\0"
    assert bytes(Array(np.arange(3, dtype="c16"))._flat(48)) == np.arange(3, dtype="c16").tobytes()
    growing = bytearray(b"abcd")
    part = Array(growing)._memory(2, True)
    with pytest.raises(BufferError):
        growing.extend(b"more")  # it is held as long as the part is
    del part
    with pytest.raises(ValueError):
        a._memory(7, False)
    with pytest.raises(ValueError, match="read-only"):
        Array(b"abc")._memory(3, True)


# --- helpers

def test_format_bytes():
    assert [utils.format_bytes(n) for n in (0, 1, 1234, 12345678, 1234567890, 1234567890000, 1234567890000000)] == \
        ["0 B", "1 B", "1.21 kiB", "11.77 MiB", "1.15 GiB", "1.12 TiB", "1.10 PiB"]


def test_format_time():
    assert [utils.format_time(t) for t in (1, 0.001234, 0.00012345, 123.456, 0)] == ["1.00 s", "1.23 ms", "123.45 us", "123.46 s",
                                                                                     "0.00 us"]


@pytest.mark.parametrize("text, n", [("100", 100), ("100 MB", 100_000_000), ("100M", 100_000_000), ("5kB", 5000),
                                     ("5.4 kB", 5400), ("1kiB", 1024),
                                     ("1KiB", 1024), ("1Mi", 1 << 20), ("1e6", 1_000_000), ("1e6 kB", 10**9), ("MB", 10**6),
                                     (123, 123),
                                     ("5GB", 5 * 10**9), ("2 TiB", 2 << 40), (".5 GB", 5 * 10**8), (1.9, 1), ("1B", 1)])
def test_parse_bytes(text, n):
    assert utils.parse_bytes(text) == n


@pytest.mark.parametrize("text", ["5 foos", "", ".", "kk", "-3", "1 2", "e5", "1..2"])
def test_parse_bytes_refuses(text):
    with pytest.raises(ValueError):
        utils.parse_bytes(text)


def test_tables(capsys):
    utils.print_separator()
    utils.print_separator("=", 10)
    utils.print_key_value("key", "value")
    utils.print_key_value("k", 1, key_length=3)
    utils.print_multi(["a", "b", 3], key_length=4)
    assert capsys.readouterr().out == "-" * 80 + "\n" + "=" * 10 + "\nkey                       | value\nk   | 1\na    | b    | 3   \n"
    with pytest.raises(ValueError):
        utils.print_multi(["one"])


def test_addresses_of_interfaces(monkeypatch):
    assert utils.get_address("lo") == "127.0.0.1"
    monkeypatch.delenv("UCXPY_IFNAME", raising=False)
    socket.inet_aton(utils.get_address())
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    assert utils.get_address() == "127.0.0.1"
    for bad in ("", "no-such-interface", "x" * 500, "a\0b"):
        with pytest.raises((OSError, ValueError)):
            utils.get_address(bad)


# --- the loop that is driven by hand

def test_the_hand_loop():
    loop, said = ManualLoop(), []
    loop.call_soon(said.append, 1)
    loop.call_soon(said.append, 2).cancel()
    later = loop.call_later(0, said.append, 3)
    assert not loop.asleep() and loop.run() == 3 and said == [1, 3] and later.cancelled() and loop.run() == 0

    def more():
        assert loop.run() == 0  # not inside of one
        loop.call_soon(said.append, 4)
    loop.call_soon(more)
    assert loop.run() == 1 and said == [1, 3] and loop.run() == 1 and said == [1, 3, 4]
    loop.call_later(1000, said.append, 5).cancel()
    assert loop.asleep() and not loop.is_running()
    loop.call_soon(said.append, 6)
    import select
    assert select.select([loop.fileno()], [], [], 5)[0] and loop.run() == 1
    loop.call_later(0.01, said.append, 7)
    assert loop.asleep() and select.select([loop.fileno()], [], [], 5)[0] and loop.run() == 1 and said[-1] == 7
    r, w = os.pipe()
    loop.add_reader(r, print)
    loop.asleep()
    assert not select.select([loop.fileno()], [], [], 0)[0]
    os.write(w, b"x")
    assert select.select([loop.fileno()], [], [], 5)[0]
    assert loop.remove_reader(r) and not loop.remove_reader(r)
    loop.close()
    loop.close()
    assert loop.is_closed()
    os.close(r)
    os.close(w)


def test_the_hand_loop_logs_what_fails(caplog):
    loop, said = ManualLoop(), []
    loop.call_soon(lambda: 1 // 0)
    loop.call_soon(said.append, 1)
    loop.run()
    loop.call_exception_handler({"message": "of a handler"})
    assert said == [1] and "division" in caplog.text and "of a handler" in caplog.text


@pytest.mark.parametrize("items", ["<i4", ">i4", "<u2", ">f8", "<f2", "?", "S3", "V5", "<c8", "i1", [("a", "<i4"), ("b", ">f8")], "M8[s]"])
def test_numpy_sees_the_items_that_there_are(items):
    """Byte order, structures and texts too: arrays of any kind came back as unsigned numbers in little-endian order, without an error."""
    raw = np.arange(240, dtype="u1")
    whole = raw[:raw.size // np.dtype(items).itemsize * np.dtype(items).itemsize].view(items)
    try:
        made = Array(whole)
    except ValueError:
        assert items == "M8[s]"  # which has no buffer format
        return
    back = np.asarray(made)
    assert back.dtype == whole.dtype and back.tobytes() == whole.tobytes()


@pytest.mark.parametrize("code, typestr", [("b", "|i1"), ("B", "|u1"), ("H", "<u2"), ("i", "<i4"), ("d", "<f8")])
def test_so_it_does_without_numpy(code, typestr):
    assert Array(array.array(code, [1, 2])).__array_interface__["typestr"] == typestr
