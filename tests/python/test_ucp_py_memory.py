"""`ucp_py`: memory of messages, ordinary and of a GPU."""
import gc
import os
import random
import subprocess
import sys

import pytest

import ucp_py
import weft

np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def initialised():
    ucp_py.init()
    yield
    ucp_py.fin()


@pytest.fixture
def pair():
    """Two endpoints of this process, each other's peer."""
    other = []
    listener = ucp_py.start_listener(other.append, 0)
    ep = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
    while not other:
        ucp_py.progress()
    return ep, other[0]


def test_a_region_of_ordinary_memory():
    region = ucp_py.buffer_region()
    for early in (lambda: region.set_host_buffer("x", 1), lambda: region.check_host_buffer("x", 1)):
        with pytest.raises(weft.StateError, match="alloc_host"):
            early()
    region.alloc_host(100)
    assert not region.is_cuda
    assert region.check_host_buffer(0, 100) == 0
    region.set_host_buffer("x", 40)
    assert region.check_host_buffer(b"x", 40) == 0 and region.check_host_buffer(ord("x"),
                                                                                100) == 60 and region.check_host_buffer("y",
                                                                                                                        100) == 100
    assert region.return_obj() == b"x" * 40 + bytes(60)
    with pytest.raises(weft.InvalidError, match="100"):
        region.set_host_buffer("x", 101)
    for bad in ("xy", "", 256, None, 1.0, "\N{SNOWMAN}"):
        with pytest.raises(weft.InvalidError, match="character"):
            region.set_host_buffer(bad, 1)
    for bad in (-1, 1.0, None, "1"):
        with pytest.raises((weft.InvalidError, TypeError)):
            region.alloc_host(bad)
    with pytest.raises(MemoryError):
        region.alloc_host(1 << 62)
    region.free_host()
    region.free_host()
    assert region.return_obj() is None
    with pytest.raises(weft.StateError):
        region.check_host_buffer("x", 1)


def test_a_region_over_an_object():
    region = ucp_py.buffer_region()
    array = np.zeros(10, dtype="u1")
    region.populate_ptr(array)
    assert region.return_obj() is array
    region.set_host_buffer(7, 10)
    assert (array == 7).all() and region.check_host_buffer(7, 10) == 0
    region.populate_ptr(b"cannot be written")
    with pytest.raises(weft.InvalidError, match="written"):
        region.set_host_buffer("x", 1)
    with pytest.raises(weft.InvalidError, match="cannot be sent"):
        region.populate_ptr([1, 2])
    assert region.return_obj() == b"cannot be written"  # as it was


def test_messages_with_memory_of_their_own(pair):
    a, b = pair
    for n in (1, 100, 5000, 3_000_000):
        send, receive = ucp_py.ucp_msg(None), ucp_py.ucp_msg(None)
        send.alloc_host(n)
        receive.alloc_host(n)
        send.set_mem("s", n)
        future, request = a.send(send, n), b.recv_fast(receive, n)
        assert isinstance(future, ucp_py.CommFuture) and isinstance(request, ucp_py.ucp_comm_request)
        assert request.result() is receive and future.result() is send
        assert receive.query() == send.query() == 1
        assert receive.check_mem("s", n) == 0 and receive.get_comm_len() == send.get_comm_len() == n
        assert receive.get_obj() == b"s" * n
        send.free_host()
        receive.free_mem()
        assert receive.get_obj() is None
        with pytest.raises(weft.StateError, match="memory"):
            a.send_fast(send, n)


def test_a_part_of_a_message(pair):
    a, b = pair
    send, receive = ucp_py.ucp_msg(None), ucp_py.ucp_msg(None)
    send.alloc_host(100)
    receive.alloc_host(100)
    send.set_mem("s", 100)
    a.send_fast(send, 30)
    b.recv(receive, 100).result()
    assert receive.get_comm_len() == 30 and receive.get_obj() == b"s" * 30
    receive.alloc_host(100)
    a.send_fast(send, 40)
    with pytest.raises(weft.TruncatedError, match="40"):
        b.recv(receive, 30).result()
    with pytest.raises(weft.InvalidError, match="101"):
        a.send(send, 101)


def test_a_message_without_memory_is_given_some(pair):
    a, b = pair
    region = ucp_py.buffer_region()
    array = np.arange(1000.0)
    region.populate_ptr(array)
    a.send(ucp_py.ucp_msg(region), array.nbytes)
    empty = ucp_py.ucp_msg(None)
    assert empty.query() == 1 and empty.get_comm_len() == 0
    future = b.recv(empty, 0)
    future.result()
    assert (ucp_py.get_obj_from_msg(empty) == array).all() and empty.get_comm_len() == array.nbytes


def test_a_message_that_is_under_way_says_so(pair):
    a, b = pair
    msg = ucp_py.ucp_msg(None)
    msg.alloc_host(10)
    b.recv_fast(msg, 10)
    assert msg.query() == 0
    a.send_msg(b"x" * 10)
    while not msg.query():
        pass
    assert msg.check_mem("x", 10) == 0


def test_memory_is_held_while_it_is_used(pair):
    a, b = pair
    msg = ucp_py.ucp_msg(None)
    msg.alloc_host(5_000_000)
    msg.set_mem("k", 5_000_000)
    send = a.send_fast(msg, 5_000_000)
    msg.free_mem()  # under way
    got = b.recv_future().result().get_obj()
    assert got.count(b"k") == 5_000_000
    send.result()


def test_objects_keep_their_memory(pair):
    a, b = pair
    into = bytearray(100)
    before = sys.getrefcount(into)
    receive = b.recv_msg(into, 100)
    with pytest.raises(BufferError):
        into.extend(b"more")
    a.send_msg(b"y" * 100).result()
    assert receive.result().get_obj() is into and into == b"y" * 100
    del receive
    ucp_py.progress()  # whoever was to be told has been
    assert sys.getrefcount(into) <= before


def test_messages_that_come_and_go_leave_nothing_behind(pair):
    a, b = pair

    def some(n):
        for i in range(n):
            request = a.send_msg(np.zeros(i % 7 * 1000), None)
            b.recv_future().result()
            request.result()
            b.recv_future().cancel()
            with pytest.raises(weft.TruncatedError):
                a.send_msg(b"too long")
                b.recv_msg(bytearray(1)).result()
            a.send_msg(i)
            assert b.recv_msg().result().get_obj() == i
        for _ in range(10):
            ucp_py.progress()
        gc.collect()
        assert not ucp_py._core._own.receiving and not ucp_py._core._own.runtime.under_way
        return len(gc.get_objects())
    before = some(50)
    assert some(200) < before + 100


def gpu():
    region = ucp_py.buffer_region()
    try:
        region.alloc_cuda(1)
    except weft.UnsupportedError:
        return False
    return True


def test_without_a_gpu_it_is_said():
    if gpu():
        pytest.skip("there is one")
    for call in (lambda: ucp_py.set_cuda_dev(0), lambda: ucp_py.buffer_region().alloc_cuda(10),
                 lambda: ucp_py.ucp_msg(None).alloc_cuda(10)):
        with pytest.raises(weft.UnsupportedError, match="GPU"):
            call()
    region = ucp_py.buffer_region()
    region.alloc_host(1)
    for call in (lambda: region.set_cuda_buffer("x", 1), lambda: region.check_cuda_buffer("x", 1)):
        with pytest.raises(weft.StateError, match="alloc_cuda"):
            call()
    with pytest.raises(weft.StateError, match="free_host"):
        region.free_cuda()
    region.free_host()
    region.free_cuda()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_arguments_there_is_an_exception_at_most(pair, seed):
    rng = random.Random(seed)
    a, b = pair
    region, msg = ucp_py.buffer_region(), ucp_py.ucp_msg(None)
    region.alloc_host(64)
    pool = [None, True, 0, 1, -1, 63, 1 << 62, 1 << 70, -(1 << 70), 1.5, float("nan"), "", "x", "text", b"", b"y", b"bytes",
            bytearray(10), memoryview(b"abc")[::2],
            np.zeros(3), np.zeros((2, 2)).T, np.array(None), [], {}, object(), int, msg, region, ucp_py.ucp_msg(region), a,
            lambda *_: None]
    calls = [f for o in (region, msg) for n in dir(o) if not n.startswith("_") and callable(f := getattr(o, n))]
    calls += [a.send, a.recv, a.send_fast, a.recv_fast, a.send_msg, a.recv_msg, a.send_obj, a.recv_obj, a.recv_future, a.connect,
              ucp_py.ucp_msg, ucp_py.get_obj_from_msg,
              ucp_py.set_cuda_dev, ucp_py.stop_listener, ucp_py.start_listener, ucp_py.ucp_py_ep]
    for _ in range(3000):
        try:
            rng.choice(calls)(*[rng.choice(pool) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3)))])
        except Exception as error:
            assert str(error), error
    ucp_py.stop_server()
    b.send_msg("still here").result()  # and everything works
    a.close()
    with pytest.raises(weft.ClosedError):
        while True:
            b.recv_future().result()


# with a real GPU, or with the driver of paper that the tests of the library have
ON_A_GPU = """
import ucp_py, weft
assert ucp_py.init() == 0
other = []
listener = ucp_py.start_listener(other.append, 0)
a = ucp_py.get_endpoint(b"127.0.0.1", listener.port)
while not other:
    ucp_py.progress()
b = other[0]

for n in (1, 5000, 3_000_000):
    for where in ("cuda", "host"):
        send, receive = ucp_py.ucp_msg(None), ucp_py.ucp_msg(None)
        (send.alloc_cuda if where == "cuda" else send.alloc_host)(n)
        (receive.alloc_cuda if where == "host" else receive.alloc_host)(n)  # to the other kind
        assert send.is_cuda != receive.is_cuda
        send.set_mem("g", n)
        assert send.check_mem("g", n) == 0 and send.check_mem("h", n) == n
        receive.set_mem("-", n)
        request = b.recv_fast(receive, n)
        a.send(send, n).result()
        assert request.result().get_comm_len() == n and receive.check_mem("g", n) == 0
        half = n // 2
        receive.set_mem("-", n)
        request = b.recv_fast(receive, n)
        a.send(send, half).result()
        assert request.result().get_comm_len() == half
        assert receive.check_mem("g", half) == 0 and receive.check_mem("-", n) == half
        send.free_mem()
        receive.free_mem()

region = ucp_py.buffer_region()
region.alloc_cuda(100)
assert region.is_cuda and isinstance(region.return_obj(), weft.Memory)
region.set_cuda_buffer("x", 100)
region.set_cuda_buffer("y", 40)
assert region.check_cuda_buffer("x", 100) == 40 and region.check_cuda_buffer("y", 40) == 0
for wrong in (lambda: region.set_host_buffer("x", 1), lambda: region.check_host_buffer("x", 1), region.free_host):
    try:
        wrong()
    except weft.StateError:
        continue
    raise AssertionError(wrong)
try:
    region.set_cuda_buffer("x", 101)
    raise AssertionError("too many")
except weft.InvalidError:
    pass
a.send_msg(region.return_obj(), 100)  # as an object of its own, which arrives in ordinary memory
got = ucp_py.get_obj_from_msg(b.recv_msg().result())
assert bytes(got) == b"y" * 40 + b"x" * 60, got
request = b.recv_msg(region.return_obj(), 100)  # and into one
a.send_msg(b"z" * 100).result()
request.result()
assert region.check_cuda_buffer("z", 100) == 0
region.free_cuda()

import ctypes
count = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
for dev in (*range(count.value), 0):
    assert ucp_py.set_cuda_dev(dev) == 0
    region.alloc_cuda(10)
    assert region.return_obj().__dlpack_device__() == (2, dev), dev
for wrong in (-1, count.value, "0", True):
    try:
        ucp_py.set_cuda_dev(wrong)
    except (weft.InvalidError, TypeError):
        continue
    raise AssertionError(wrong)
ucp_py.fin()
print("all of it")
"""


def test_on_a_gpu(child, monkeypatch):
    if not gpu():
        paper = os.path.join(os.path.dirname(weft.__file__), "..", "..", "tests", "paper")
        if not os.path.exists(os.path.join(paper, "libcuda.so.1")):
            pytest.skip("there is neither a GPU nor, in this build, a driver of paper")
        monkeypatch.setenv("LD_LIBRARY_PATH", os.path.abspath(paper))
        monkeypatch.setenv("PAPER_THREAD", "10")
    process = child(ON_A_GPU, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "all of it\n"), err
