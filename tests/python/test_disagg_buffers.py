"""trans.buf: a view of the registered buffer that everything writes through, shared by those who ask for that, and kept by
who looks at it."""
import gc
import struct

import pytest

import weft

from elementside import BOUND, action, memory, pair, runtime, until

try:
    import numpy
except ImportError:
    numpy = None


def test_it_is_a_writable_view_of_bytes():
    with pair(buffer=100) as trans:
        view = trans.buf
        assert isinstance(view, weft.BufferView) and isinstance(view.obj, weft._core._TransportBuffer)
        assert (view.format, view.ndim, view.shape, view.itemsize, view.readonly, view.contiguous) == ("B", 1, (100,), 1, False,
                                                                                                       True)
        assert bytes(view) == bytes(100)
        view[10:15] = b"slice"
        struct.pack_into("<Q", trans.buf, 16, 1 << 40)
        assert bytes(trans.buf[10:15]) == b"slice" and struct.unpack_from("<Q", view, 16) == (1 << 40,)
        view.release()
        assert trans.buf[10] == ord("s")  # the others' view is theirs


def test_a_buffer_of_no_bytes():
    with pair(buffer=0) as trans:
        assert len(trans.buf) == 0
        trans.read(0, 0)
        with pytest.raises(weft.RangeError):
            trans.read(1, 0)


@pytest.mark.skipif(numpy is None, reason="numpy is not installed")
def test_arrays_are_over_it_without_a_copy():
    with pair(buffer=800) as trans:
        a, b = numpy.asarray(trans.buf), numpy.frombuffer(trans.buf, dtype="f8")
        assert a.dtype == numpy.uint8 and a.flags.writeable and b.flags.writeable and numpy.shares_memory(a, b)
        b[:] = numpy.arange(100)
        trans.write(800, 0)
        a[:] = 0
        trans.read(800, 0)
        assert b.tolist() == list(range(100))


def test_transports_share_a_buffer():
    with memory(4096) as one, memory(4096, "other") as two, action(one.durl, two.durl) as made:
        a, b = made.get_transport("mem", "rdma"), made.get_transport("other", "rdma")
        with pytest.raises(MemoryError, match="share"):
            b.reg(64, a)
        a.reg(64)
        assert b.reg(64, trans=a) is None
        a.buf[:4] = b"both"
        assert bytes(b.buf[:4]) == b"both"
        b.write(4, 0)
        a.buf[:4] = bytes(4)
        b.read(4, 0)
        assert bytes(a.buf[:4]) == b"both"
        a.write(4, 0)
        with pytest.raises(weft.RangeError):
            b.reg(65, a)
        a.reg(8)  # b has all that it had
        assert bytes(b.buf[:4]) == b"both" and len(b.buf) == 64
        b.reg(8, b)
        b.reg(8, None)
        assert len(b.buf) == 8


def test_what_cannot_be_registered():
    with pair(buffer=16) as trans:
        for bad in (lambda: trans.reg(), lambda: trans.reg(None), lambda: trans.reg("8"), lambda: trans.reg(8, 5),
                    lambda: trans.reg(8, size=8), lambda: trans.reg(8, object())):
            with pytest.raises(TypeError):
                bad()
        for size in (1 << 63, 1 << 62, 1 << 50):
            with pytest.raises(MemoryError):
                trans.reg(size)
        assert len(trans.buf) == 16
        with pair(buffer=16) as other, pytest.raises(ValueError):
            trans.reg(16, other)  # of another runtime


def test_views_outlive_everything():
    with memory(4096) as element, runtime() as own:
        import disagg
        made = disagg.LibdAction(None, "x", transports=[element.durl], runtime=own)
        trans = made.get_transport("mem", "rdma")
        trans.reg(1 << 20)
        view = trans.buf
        trans.read(4096, 0)
        made.close()
        own._close()
        del trans, made
        gc.collect()
        view[:] = b"x" * len(view)
        assert bytes(view[-3:]) == b"xxx"


def test_a_server_looks_at_the_memory_it_serves():
    with action("s;rdma_tcp_server;size,4096;", "late;rdma_tcp_server;") as made:
        server, late = made.get_transport("s", "rdma_server"), made.get_transport("late", "rdma_server")
        server.wait_ready(BOUND)
        view = server.buf
        assert (view.format, view.ndim, view.shape, view.readonly) == ("B", 1, (4096,), False) and bytes(view) == bytes(4096)
        with pytest.raises(MemoryError, match="how much"):
            late.buf
        made.config_transport("late", "late;rdma_tcp_server;size,64;")
        late.wait_ready(BOUND)
        assert len(late.buf) == 64
        with action() as user:
            user.add_transport(server.durl)
            trans = user.get_transport("s", "rdma")
            trans.reg(64)
            trans.buf[:5] = b"there"
            trans.write(5, 4000)
            assert bytes(view[4000:4005]) == b"there"
            struct.pack_into("<Q", server.buf, 8, 1 << 40)
            trans.read(8, 8)
            assert struct.unpack_from("<Q", trans.buf) == (1 << 40,)
            assert trans.fetch_add(16, 3) == 0 and view[16] == 3


@pytest.mark.parametrize("end", ["release", "close", "runtime", "forget"])
def test_views_of_served_memory_outlive_it(end):
    with runtime() as own:
        import disagg
        made = disagg.LibdAction(None, "x", transports=["s;rdma_tcp_server;size,1048576;"], runtime=own)
        server = made.get_transport("s", "rdma_server")
        server.wait_ready(BOUND)
        view = server.buf
        view[:4] = b"kept"
        if end == "release":
            made.release_transport("s")
            with pytest.raises(weft.ClosedError):
                server.buf
        elif end == "close":
            made.close()
        elif end == "runtime":
            own._close()
        del made, server
        gc.collect()
    assert bytes(view[:4]) == b"kept"
    view[:] = b"x" * len(view)
    assert bytes(view[-3:]) == b"xxx"


def test_served_memory_that_was_looked_at_goes_with_the_last_view():
    def mapped():
        with open("/proc/self/maps", encoding="ascii") as f:
            return sum(int(b, 16) - int(a, 16) for a, b in (line.split()[0].split("-") for line in f))
    with runtime() as own:
        import disagg
        before = None
        for i in range(12):
            with disagg.LibdAction(None, "x", transports=["s;rdma_tcp_server;size,67108864;"], runtime=own) as made:
                server = made.get_transport("s", "rdma_server")
                server.wait_ready(BOUND)
                view = server.buf
                view[0] = 1
            del view, server
            if i == 1:
                before = mapped()
        until(lambda: mapped() - before < 128 << 20, "all but the last are unmapped")  # of 640 MiB


def test_registering_again_and_again_leaks_nothing():
    import resource
    text = b"x" * (1 << 20)
    with pair(buffer=16) as trans:
        for _ in range(50):
            trans.reg(1 << 20)
            trans.buf[:] = text
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(200):
            trans.reg(1 << 20)
            trans.buf[:] = text
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # of 200 MiB that went through it
