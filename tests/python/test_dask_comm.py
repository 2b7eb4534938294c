"""Dask's transport by itself: comms between two listeners, what they carry, and how they end."""
# ctest: long no-asan: it is about Python; the other tests of this folder try the extension with a sanitizer
import asyncio
import contextlib
import gc
import os
import signal
import struct
import threading
import tomllib
import weakref

import pytest

pytest.importorskip("distributed")
import dask  # noqa: E402
import numpy as np  # noqa: E402
from distributed.comm import CommClosedError, connect, get_address_host_port, listen, resolve_address  # noqa: E402
from distributed.comm.core import FatalCommClosedError  # noqa: E402
from distributed.comm.registry import get_backend  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

import weft  # noqa: E402
import weft.dask  # noqa: E402

HERE = os.path.dirname(__file__)


@contextlib.asynccontextmanager
async def two(**config):
    """A comm, and the other side of it."""
    with dask.config.set({f"distributed.comm.weft.{name}": value for name, value in config.items()}):
        others = asyncio.Queue()
        async with listen("weft://127.0.0.1:0", others.put) as listener:
            comm = await connect(listener.contact_address)
            other = await others.get()
            yield comm, other
            comm.abort()
            other.abort()


@pytest.fixture(params=["shm", "tcp"])
def comms(request, run):
    """Run an async function with two comms that are each other's peer, over this transport."""
    def go(function, **config):
        async def inner():
            async with two(transports=request.param, **config) as (a, b):
                assert a.extra_info["transport"] == b.extra_info["transport"] == request.param
                await function(a, b)
        run(inner())
    return go


def test_the_entry_point_is_the_wheels():
    with open(os.path.join(HERE, "..", "..", "pyproject.toml"), "rb") as f:
        says = tomllib.load(f)["project"]["entry-points"]["distributed.comm.backends"]
    from importlib.metadata import entry_points
    assert {e.name: e.value for e in entry_points(group="distributed.comm.backends") if e.name == "weft"} == says
    assert isinstance(get_backend("weft"), weft.dask.Backend)


def test_addresses():
    assert get_address_host_port("weft://127.0.0.1:8786") == ("127.0.0.1", 8786)
    assert get_address_host_port("weft://[::1]:8786") == ("::1", 8786)
    assert resolve_address("weft://localhost:80") in ("weft://127.0.0.1:80", "weft://[::1]:80")
    backend = get_backend("weft")
    assert backend.get_address_host("127.0.0.1:1") == "127.0.0.1"
    assert backend.get_local_address_for("127.0.0.1:1") == "127.0.0.1"
    assert backend.get_local_address_for("[::1]:1") == "[::1]"


@pytest.mark.parametrize("sizes", [[], [0], [1], [4096], [4097], [0, 4097, 3, 1 << 20, 0], [5] * 1000, [4096] * 300])
def test_frames_are_packed_and_unpacked(sizes):
    frames = [os.urandom(n) for n in sizes]
    head, rest, n = weft.dask.pack(frames)
    assert n == len(head) + sum(v.nbytes for v in rest)
    got, missing = weft.dask.unpack(head)
    assert [v.nbytes for v in missing] == [v.nbytes for v in rest]
    for to, source in zip(missing, rest):
        to[:] = source
    assert [bytes(v) for v in got] == frames


@pytest.mark.parametrize("head", [b"", b"WDK1", b"WDK1\xff\xff\xff\xff", b"XXXX\0\0\0\0", b"WDK1\0\0\0\0more",
                                  b"WDK1\1\0\0\0" + struct.pack("<Q", 9) + b"abc",
                                  b"WDK1\1\0\0\0" + struct.pack("<Q", 1 << 63), b"WDK1\1\0\0\0"
                                  + struct.pack("<Q", (1 << 64) - 1)])
def test_a_head_that_is_none_is_refused(head):
    with pytest.raises((ValueError, MemoryError)):
        weft.dask.unpack(head)


def test_messages_both_ways(comms):
    async def body(a, b):
        array = np.arange(3_000_000, dtype="f8")
        for message in [1, "text", {"op": "x", "list": (1, 2, 3)},
                        {"data": to_serialize(array), "small": to_serialize(np.arange(5))}]:
            for source, to in ((a, b), (b, a)):
                writing = asyncio.create_task(source.write(message))
                got = await to.read()
                assert await writing > 0
                if isinstance(message, dict) and "data" in message:
                    assert (got["data"] == array).all() and got["data"].flags.writeable and (got["small"] == np.arange(5)).all()
                else:
                    assert got == message
        assert not a.closed() and not b.closed()
    comms(body)


def test_many_messages_keep_their_order(comms):
    async def body(a, b):
        async def write():
            for i in range(500):
                await a.write({"n": i, "data": to_serialize(b"x" * (i * 97 % 40_000))})
        writing = asyncio.create_task(write())
        for i in range(500):
            message = await b.read()
            assert (message["n"], len(message["data"])) == (i, i * 97 % 40_000)
        await writing
    comms(body)


def test_frames_pass_through_undeserialized(run):
    async def body():
        others = asyncio.Queue()
        async with listen("weft://127.0.0.1:0", others.put, deserialize=False) as listener:
            comm = await connect(listener.contact_address)
            other = await others.get()
            array = np.arange(100_000)
            writing = asyncio.create_task(comm.write({"x": to_serialize(array)}))
            message = await other.read()
            await writing
            assert not isinstance(message["x"], np.ndarray)
            writing = asyncio.create_task(other.write(message))  # as a scheduler does
            assert (await comm.read())["x"].tolist() == array.tolist()
            await writing
    run(body())


def test_a_buffer_larger_than_a_shard_comes_in_one_piece(comms):
    async def body(a, b):
        array = np.ones(80 << 20, dtype="u1")  # Dask would cut it at 64 MiB
        writing = asyncio.create_task(a.write({"x": to_serialize(array)}))
        got = (await b.read())["x"]
        await writing
        assert got.nbytes == array.nbytes and got[-1] == 1
    comms(body)


def test_close_delivers_what_was_written_and_tells_the_peer(comms):
    async def body(a, b):
        for i in range(100):
            await a.write(i)
        await a.close()
        await a.close()
        assert a.closed()
        for i in range(100):
            assert await b.read() == i
        with pytest.raises(CommClosedError):
            await b.read()
        assert b.closed()
        for comm in (a, b):
            with pytest.raises(CommClosedError):
                await comm.read()
            with pytest.raises(CommClosedError):
                await comm.write(1)
    comms(body)


def test_a_close_that_nobody_awaits_closes(comms):
    async def body(a, b):
        a.close()
        with pytest.raises(CommClosedError):
            await b.read()
    comms(body)


def test_a_peer_that_does_not_read_sees_that_the_comm_is_closed(comms):
    async def body(a, b):
        await a.close()
        while not b.closed():
            await asyncio.sleep(0.001)
    comms(body)


def test_abort_ends_reads_and_writes_on_both_sides(comms):
    async def body(a, b):
        reads = [asyncio.create_task(c.read()) for c in (a, b)]
        # which nobody takes: b waits for it, and is aborted
        write = asyncio.create_task(a.write({"x": to_serialize(np.zeros(10_000_000))}))
        await asyncio.sleep(0)
        a.abort()
        a.abort()
        assert a.closed()
        for task in (*reads, write):
            with pytest.raises(CommClosedError):
                await task
        assert b.closed()
    comms(body)


def test_abort_from_another_thread(comms):
    async def body(a, b):
        reading = asyncio.create_task(b.read())
        thread = threading.Thread(target=a.abort)
        thread.start()
        with pytest.raises(CommClosedError):
            await reading
        thread.join()
    comms(body)


def test_a_cancelled_read_ends_the_comm(comms):
    async def body(a, b):
        reading = asyncio.create_task(b.read())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert b.closed()
        with pytest.raises(CommClosedError):
            await a.read()
    comms(body)


def test_a_comm_that_is_dropped_says_goodbye(run):
    async def body():
        async with two() as (_, other):
            pass
        others = asyncio.Queue()
        async with listen("weft://127.0.0.1:0", others.put) as listener:
            comm = await connect(listener.contact_address)
            other = await others.get()
            gone = weakref.ref(comm)
            del comm
            gc.collect()
            assert gone() is None
            with pytest.raises(CommClosedError):
                await other.read()
    run(body())


PEER = """
import asyncio, sys, numpy
from distributed.comm import connect
from distributed.protocol import to_serialize
async def main():
    comm = await connect(sys.argv[1])
    await comm.write("here")
    print("wrote", flush=True)
    await comm.write({"x": to_serialize(numpy.zeros(50_000_000))})
    await comm.read()
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_a_peer_that_is_killed_or_stopped_ends_the_comm(run, child, how, transports):
    async def body():
        with dask.config.set({"distributed.comm.weft": {"transports": transports, "heartbeat": "1s"}}):
            others = asyncio.Queue()
            async with listen("weft://127.0.0.1:0", others.put) as listener:
                process = child(PEER, listener.contact_address)
                comm = await others.get()
                assert await comm.read() == "here"
                writing = asyncio.create_task(comm.write({"x": to_serialize(np.zeros(5_000_000))}))
                process.send_signal(how)
                with pytest.raises(CommClosedError):
                    await comm.read()
                    await comm.read()  # the first of them may have arrived
                with pytest.raises(CommClosedError):
                    await writing
                assert comm.closed()
    run(body())


@pytest.mark.parametrize("what", [[b"garbage"], [b""], [b"WDK1\1\0\0\0" + struct.pack("<Q", 200), b"only this"],
                                  [b"WDK1\1\0\0\0" + struct.pack("<Q", 2), b"longer than it was said to be"], [b"WDK1\0\0\0\0"],
                                  [b"WDK1\1\0\0\0" + struct.pack("<Q", 7) + b"\xc1!!"]])
def test_a_peer_that_is_no_dask_ends_its_own_comm_only(run, what):
    async def body():
        others = asyncio.Queue()
        async with listen("weft://127.0.0.1:0", others.put) as listener:
            async with weft.Runtime() as stranger:
                ep = await stranger.connect(listener.contact_address.replace("weft:", "tcp:"))
                for message in what:
                    await ep.send(message)
                with pytest.raises(weft.PeerError):
                    while True:
                        await ep.recv(timeout=30)  # the listener's handshake, and then the end
            comm = await connect(listener.contact_address)
            assert (await others.get()).peer_address != comm.peer_address
    run(body())


def test_nobody_listens(run):
    async def body():
        with pytest.raises(OSError):
            await connect("weft://127.0.0.1:1", timeout=0.5)
        with pytest.raises(ValueError):
            await connect("weft://127.0.0.1:nonsense", timeout=0.5)
    run(body())


def test_an_address_in_use_is_said_as_dask_expects(run):
    async def body():
        import errno
        async with listen("weft://127.0.0.1:0", print) as listener:
            with pytest.raises(OSError) as caught:
                await listen(listener.listen_address, print)
            assert caught.value.errno == errno.EADDRINUSE
            with pytest.raises(OSError) as caught:
                await listen("weft://192.0.2.1:0", print)
            assert caught.value.errno != errno.EADDRINUSE
    run(body())


def test_a_listener_at_every_address_has_one_to_be_reached_at(run):
    async def body():
        listener = listen("weft://0.0.0.0:0", print, default_host="127.0.0.1")
        with pytest.raises(ValueError, match="start"):
            listener.listen_address
        await listener
        port = listener.listen_address.rpartition(":")[2]
        assert listener.listen_address == f"weft://0.0.0.0:{port}" and listener.contact_address == f"weft://127.0.0.1:{port}"
        listener.stop()
        listener.stop()
        with pytest.raises(OSError):
            await connect(listener.contact_address, timeout=0.3)
    run(body())


def test_encryption_is_not_pretended(run):
    async def body():
        with pytest.raises(RuntimeError, match="does not know with which certificates"):
            listen("weft://127.0.0.1:0", print, require_encryption=True)
        async with listen("weft://127.0.0.1:0", print) as listener:
            with pytest.raises(RuntimeError, match="does not know with which certificates"):
                await connect(listener.contact_address, require_encryption=True)
    run(body())


def test_a_key_keeps_strangers_out(run):
    async def body():
        async with two(key="k" * 32) as (a, b):
            assert a.extra_info["authenticated"] and b.extra_info["authenticated"]
            async with weft.Runtime(key=b"l" * 32) as stranger:
                with pytest.raises(weft.AuthError):
                    await stranger.connect(b.local_address.replace("weft:", "tcp:"))
                door = stranger.listen("tcp://127.0.0.1:0")
                with pytest.raises(FatalCommClosedError):
                    await connect(door.uri.replace("tcp:", "weft:"), timeout=5)
    run(body())


def test_a_word_of_the_configuration_that_nobody_knows(run):
    async def body():
        with dask.config.set({"distributed.comm.weft": {"transport": "shm"}}):
            with pytest.raises(ValueError, match="transports"):
                await listen("weft://127.0.0.1:0", print)
    run(body())


def test_comms_that_come_and_go_leave_nothing_behind(run):
    async def body():
        async def serve(comm):
            with contextlib.suppress(CommClosedError):
                while True:
                    await comm.read()
                    await comm.write("taken")
        async with listen("weft://127.0.0.1:0", serve) as listener:
            async def once(how):
                comm = await connect(listener.contact_address)
                writing = asyncio.create_task(comm.write({"x": to_serialize(np.zeros(10_000))}))
                await comm.read()
                await writing
                await comm.close() if how else comm.abort()
            for i in range(20):
                await once(i % 2)

            async def counted():
                while asyncio.get_running_loop()._weft_dask.runtime.endpoints() or asyncio.get_running_loop()._weft_dask.closing:
                    await asyncio.sleep(0.001)
                gc.collect()
                return len(gc.get_objects())
            before = await counted()
            for i in range(60):
                await once(i % 2)
            while await counted() > before + 200:  # some of it until the loop has gone round
                await asyncio.sleep(0.1)
    run(body())
