"""ucp._libs.ucx_api: memory of other processes."""
import array
import gc
import io
import os
import pickle
import random
import signal

import numpy as np
import pytest
from test_ucx_api import Both, Calls, until

from ucp import exceptions
from ucp._libs import ucx_api
from ucp._libs.arr import Array


@pytest.fixture(params=["sm", "tcp"])
def both(request):
    made = Both({"TLS": request.param})
    yield made
    made.close()


@pytest.fixture(params=["alloc", "map", "numpy"])
def memory(request, both):
    """Memory of the right, and the left's way to it."""
    context = both.contexts[1]
    if request.param == "alloc":
        return context.alloc(1 << 20)
    return context.map(bytearray(1 << 20)) if request.param == "map" else ucx_api.UCXMemoryHandle.map(context, np.zeros(1 << 17))


def remote(both, memory):
    packed = ucx_api.PackedRemoteKey.from_buffer(bytearray(memory.pack_rkey()))
    rkey = both.a.unpack_rkey(packed)
    return ucx_api.RemoteMemory(rkey, memory.address, memory.length)


def flush(both, of):
    calls = Calls()
    if of.flush(calls) is not None:
        both.until(lambda: calls)


def test_writing_and_reading(both, memory):
    there = remote(both, memory)
    assert there.length == memory.length == 1 << 20 and there.address == memory.address and isinstance(memory.mem_handle, int)
    here = memoryview(memory.memory).cast("B")
    for n in (1, 8, 4096, 1 << 20):
        data, back, calls = os.urandom(n), bytearray(n), Calls()
        request = there.put_nb(data, calls, (1,), {"x": 2})
        if request is not None:
            both.until(lambda: calls)
            assert calls == [(request, None, (1,), {"x": 2})]
        else:
            assert not calls
        assert here[:n] == data
        calls = Calls()
        if there.get_nb(Array(back), calls) is not None:
            both.until(lambda: calls)
        assert back == data


def test_offsets_and_sizes(both, memory):
    there = remote(both, memory)
    here = memoryview(memory.memory).cast("B")
    done = there.put_nbi(b"abcdef", size=3, offset=100)
    assert isinstance(done, bool)
    there.put_nb(b"xyz", None, offset=(1 << 20) - 3)
    flush(both, both.a)
    assert bytes(here[99:105]) == b"\0abc\0\0" and bytes(here[-4:]) == b"\0xyz"
    back = bytearray(b"......")
    assert isinstance(there.get_nbi(back, size=3, offset=101), bool)
    flush(both, both.left)
    assert back == b"bc\0..."
    for size, offset in ((4, (1 << 20) - 3), (1, 1 << 20), (1, -1), (0, 1 << 20), (-5, 0)):
        with pytest.raises((IndexError, ValueError)):
            there.put_nbi(b"abcd", size=size, offset=offset)


def test_the_functions_of_the_module(both, memory):
    rkey, calls, back = both.a.unpack_rkey(memory.pack_rkey()), Calls(), bytearray(5)
    assert rkey.ep is both.a
    if ucx_api.put_nb(Array(b"hello"), 5, memory.address + 7, rkey, calls) is not None:
        both.until(lambda: calls)
    ucx_api.put_nbi(b"world", 5, memory.address + 12, rkey)
    both.left.fence()
    flush(both, both.a)
    assert bytes(memoryview(memory.memory).cast("B")[7:17]) == b"helloworld"
    calls = Calls()
    if ucx_api.get_nb(back, 5, memory.address + 12, rkey, calls) is not None:
        both.until(lambda: calls)
    assert back == b"world"
    ucx_api.get_nbi(back, 5, memory.address + 7, rkey)
    flush(both, both.a)
    assert back == b"hello"
    for address in (memory.address - 1, memory.address + memory.length - 4, 0, 2**64 - 1):
        with pytest.raises(exceptions.UCXError):
            ucx_api.put_nb(b"hello", 5, address, rkey, None)
    for bad in (None, 7, memory):
        with pytest.raises(TypeError):
            ucx_api.put_nb(b"hello", 5, memory.address, bad, None)
    rkey.close()
    with pytest.raises(exceptions.UCXCloseError):
        ucx_api.put_nb(b"hello", 5, memory.address, rkey, None)


def test_in_order_of_posting(both, memory):
    there = remote(both, memory)
    for i in range(200):
        there.put_nbi(bytes([i]) * 64)
    back = bytearray(64)
    there.get_nbi(back)
    flush(both, both.a)
    assert back == bytes([199]) * 64


def test_a_key_before_the_connection(both, memory):
    """Neither connecting nor unpacking waits, and what is posted then gets there."""
    ep = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", both.listener.port, True)
    there = ucx_api.RemoteMemory(ep.unpack_rkey(memory.pack_rkey()), memory.address, memory.length)
    calls, back = Calls(), bytearray(4)
    assert there.put_nb(b"soon", calls) is not None and there.get_nb(back, calls) is not None
    cancelled = there.put_nb(b"no!!", calls, offset=100)
    both.left.request_cancel(cancelled)
    assert isinstance(calls[0][1], exceptions.UCXCanceled)
    both.until(lambda: len(calls) == 3)
    assert back == b"soon" and bytes(memoryview(memory.memory).cast("B")[100:104]) == b"\0\0\0\0"


def test_by_the_address_of_a_worker():
    context = ucx_api.UCXContext(feature_flags=(ucx_api.Feature.RMA,))
    early = context.alloc(100)  # there is no worker yet
    first = early.pack_rkey()
    workers = [ucx_api.UCXWorker(context) for _ in range(3)]
    other = ucx_api.UCXWorker(ucx_api.UCXContext(feature_flags=(ucx_api.Feature.RMA,)))
    late = context.alloc(100)
    for memory in (early, late):
        packed = pickle.loads(pickle.dumps(memory.pack_rkey()))
        assert packed == memory.pack_rkey() and hash(packed) == hash(memory.pack_rkey()) and packed.length == len(packed.key)
        if memory is early:  # that of the first worker is in both
            assert first != packed and set(first._read()[2].items()) < set(packed._read()[2].items())
        for i, worker in enumerate(workers):  # each of them can be asked
            ep = ucx_api.UCXEndpoint.create_from_worker_address(other, worker.get_address(), False)
            there = ucx_api.RemoteMemory(ep.unpack_rkey(packed), memory.address, memory.length)
            calls = Calls()
            if there.put_nb(bytes([i + 1]), calls, offset=i) is not None:
                until(lambda: calls, other, *workers)
                assert calls[0][1] is None
            ep.close()
        assert bytes(memoryview(memory.memory).cast("B")[:4]) == b"\1\2\3\0"
    other.close()
    context.close()


def test_what_is_read_only_is_only_read(both):
    memory = both.contexts[1].map(b"look, and do not touch")
    there, back, calls = remote(both, memory), bytearray(4), Calls()
    if there.get_nb(back, calls) is not None:
        both.until(lambda: calls)
    assert back == b"look"
    try:
        calls = Calls()
        there.put_nb(b"mine", calls)
        both.until(lambda: calls)
        error = calls[0][1]
    except exceptions.UCXBaseException as raised:
        error = raised
    assert isinstance(error, exceptions.UCXError)


def test_memory_that_is_taken_back(both):
    memory = both.contexts[1].alloc(4096)
    there = remote(both, memory)
    there.put_nbi(b"still")
    flush(both, both.a)
    memory.close()
    both.until(lambda: not both.right._leaving)
    with pytest.raises(exceptions.UCXCloseError):
        memory.address
    with pytest.raises(exceptions.UCXBaseException):
        calls = Calls()
        there.put_nb(b"late", calls)
        both.until(lambda: calls)
        raise calls[0][1]


def test_keys_that_are_none(both):
    memory = both.contexts[1].alloc(64)
    good = bytes(memory.pack_rkey())
    rng = random.Random(1)
    for bad in (b"", b"x", good[:-1], good + b"x", b"XXXX" + good[4:], bytes(64), bytes(1 << 20), good[:6] + b"\xff\xff"
                + good[8:]):
        with pytest.raises(exceptions.UCXError):
            ucx_api.PackedRemoteKey.from_buffer(bad)
        with pytest.raises(exceptions.UCXError):
            both.a.unpack_rkey(bad)
    for bad in (None, 7, "text"):
        with pytest.raises(TypeError):
            both.a.unpack_rkey(bad)
    # whatever the bytes, an error or nothing, and the owner's memory stays as it is unless the region key is whole
    for _ in range(300):
        at = rng.randrange(len(good))
        try:
            rkey = both.a.unpack_rkey(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1:])
            calls = Calls()
            if ucx_api.get_nb(bytearray(1), 1, memory.address, rkey, calls) is not None:
                both.until(lambda: calls)
        except exceptions.UCXBaseException:
            continue
    assert not any(memoryview(memory.memory).cast("B"))
    assert both.a.is_alive()


def test_what_cannot_be_exposed(both):
    context = both.contexts[1]
    for size in (-1, None, "x", 2.5):
        with pytest.raises((ValueError, TypeError)):
            context.alloc(size)
    for bad in (None, 7, "text", np.zeros((4, 4))[:, ::2]):
        with pytest.raises((ValueError, TypeError)):
            context.map(bad)
    with pytest.raises(ValueError, match="Feature.RMA"):
        ucx_api.UCXContext(feature_flags=(ucx_api.Feature.TAG,)).alloc(10)
    with pytest.raises(TypeError):
        ucx_api.RemoteMemory(None, 0, 10)


OWNER = """
import sys
from ucp._libs import ucx_api
context = ucx_api.UCXContext({"TLS": sys.argv[2]})
worker = ucx_api.UCXWorker(context)
ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", int(sys.argv[1]), True)
memory = context.map(bytearray(1 << 26)) if sys.argv[2] == "tcp" else context.alloc(1 << 26)
packed = memory.pack_rkey()
ucx_api.tag_send_nb(ep, len(packed).to_bytes(8, "little"), 8, 1, None)
ucx_api.tag_send_nb(ep, packed, len(packed), 2, None)
ucx_api.tag_send_nb(ep, memory.address.to_bytes(8, "little"), 8, 3, None)
while True:
    worker.progress()
"""


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_an_owner_that_is_killed(child, tls):
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    eps = []

    def recv(tag, n):
        calls, buffer = Calls(), bytearray(n)
        if ucx_api.tag_recv_nb(worker, buffer, n, tag, calls) is not None:
            until(lambda: calls, worker)
        return buffer
    listener = ucx_api.UCXListener(worker, 0,
                                   lambda request: eps.append(ucx_api.UCXEndpoint.create_from_conn_request(worker, request,
                                                                                                           True)))
    process = child(OWNER, str(listener.port), tls)
    packed = recv(2, int.from_bytes(recv(1, 8), "little"))
    there = ucx_api.RemoteMemory(eps[0].unpack_rkey(packed), int.from_bytes(recv(3, 8), "little"), 1 << 26)
    calls, data = Calls(), bytes(1 << 26)
    if there.put_nb(b"x", calls) is not None:
        until(lambda: calls, worker)
    calls.clear()
    posted = [there.put_nb(data, calls) for _ in range(8)] if tls == "tcp" else []
    process.send_signal(signal.SIGKILL)
    until(lambda: not eps[0].is_alive() and len(calls) == sum(p is not None for p in posted), worker)
    assert all(c[1] is None or isinstance(c[1], exceptions.UCXError) and "Endpoint timeout" in str(c[1]) for c in calls)
    if tls == "tcp":
        assert any(c[1] is not None for c in calls)
    with pytest.raises(exceptions.UCXError, match="Endpoint timeout"):
        there.put_nb(b"x", None)
    worker.close()


# --- as a file

def drive(both):
    """UCXIO drives its own worker and waits: the other needs somebody."""
    import threading
    stop = threading.Event()

    def go():
        while not stop.is_set():
            both.right.progress()
    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return stop, thread


def test_a_file(both, memory):
    there = remote(both, memory)
    stop, thread = drive(both)
    try:
        with ucx_api.UCXIO(memory.address, 100, there._rkey) as file:
            assert isinstance(file, io.RawIOBase) and file.readable() and file.writable() and file.seekable()
            assert file.write(b"0123456789") == 10 and file.tell() == 10
            assert file.seek(5) == 5 and file.read(3) == b"567"
            assert file.seek(-4, io.SEEK_CUR) == 4 and file.seek(-3, io.SEEK_END) == 97
            assert file.write(b"abcdef") == 3 and file.write(b"more") == 0 and file.read(1) == b""
            # UCX-Py keeps within the memory: what is before it is its beginning, what is after it is its end
            assert file.seek(1000) == 100 and file.read() == b"" and file.seek(1000, io.SEEK_END) == 100
            assert file.seek(-1) == 0 and file.seek(-200, io.SEEK_CUR) == 0 and file.seek(-200, io.SEEK_END) == 0
            assert file.seek(0) == 0 and len(file.readall()) == 100
            numbers = array.array("i", [0, 0])
            file.seek(0)
            assert file.readinto(numbers) == 8 and numbers.tobytes() == b"01234567"
            with pytest.raises(ValueError):
                file.seek(0, 9)
            with pytest.raises(ValueError):
                file.readinto(b"read-only")
        with pytest.raises(ValueError):
            file.read(1)
        with io.BufferedRandom(ucx_api.UCXIO(memory.address, memory.length, there._rkey)) as file:
            for i in range(1000):
                file.write(b"%04d\n" % i)
            file.seek(0)
            assert [file.readline() for _ in range(1000)] == [b"%04d\n" % i for i in range(1000)]
    finally:
        stop.set()
        thread.join(20)


# --- before there is a worker, and of no bytes


def test_keys_that_are_packed_before_there_is_a_worker(both):
    """In UCX memory is the context's: its key can be packed before there is a worker, and used over an endpoint to the one made then."""
    context = ucx_api.UCXContext()
    made, mapped = context.alloc(100), context.map(bytearray(b"mapped before"))
    packed = [memory.pack_rkey() for memory in (made, mapped)]
    assert [memory.pack_rkey() for memory in (made, mapped)] == packed
    worker = ucx_api.UCXWorker(context)
    ep = ucx_api.UCXEndpoint.create_from_worker_address(both.left, worker.get_address(), True)
    there = [ucx_api.RemoteMemory(ep.unpack_rkey(key), memory.address, memory.length)
             for key, memory in zip(packed, (made, mapped))]
    calls, back = Calls(), bytearray(6)
    for memory in there:
        if memory.put_nb(b"hello!", calls) is not None:
            until(lambda: len(calls) == 1, both.left, worker)
            assert calls.pop()[1] is None
    if there[1].get_nb(back, calls) is not None:
        until(lambda: calls, both.left, worker)
    assert back == b"hello!" and bytes(memoryview(made.memory).cast("B")[:7]) == b"hello!\0"
    assert bytes(memoryview(mapped.memory).cast("B")) == b"hello! before"
    context.close()


def test_contexts_that_never_have_a_worker():
    for end in ("close", "forget"):
        context = ucx_api.UCXContext()
        memory = context.alloc(1000)
        memory.pack_rkey()
        runtime = context._spare.runtime
        if end == "close":
            context.close()
        del context, memory
        gc.collect()
        assert runtime.closed


def test_memory_of_no_bytes(both):
    """UCX has a handle of length 0 for it, whose key can be packed and unpacked; there is nothing to read or write."""
    context = both.contexts[1]
    for memory in (context.map(b""), context.map(array.array("i")), context.alloc(0), ucx_api.UCXContext().map(b"")):
        packed = ucx_api.PackedRemoteKey.from_buffer(bytearray(memory.pack_rkey()))
        assert memory.length == 0 and packed == memory.pack_rkey() and pickle.loads(pickle.dumps(packed)) == packed
        rkey = both.a.unpack_rkey(packed)
        there = ucx_api.RemoteMemory(rkey, memory.address, memory.length)
        assert there.put_nb(b"", None) is None and there.get_nbi(bytearray()) is True
        with pytest.raises(IndexError):
            there.put_nb(b"x", None)
        with pytest.raises(exceptions.UCXError):
            ucx_api.put_nb(b"x", 1, memory.address, rkey, None)
        rkey.close()
        memory.close()
    good = bytes(context.alloc(10).pack_rkey())
    with pytest.raises(exceptions.UCXError):  # a length without a region, and a region without a length
        ucx_api.PackedRemoteKey.from_buffer(good[:6] + bytes(2) + good[8:24])
    with pytest.raises(exceptions.UCXError):
        ucx_api.PackedRemoteKey.from_buffer(good[:16] + bytes(8) + good[24:])
