"""Dask's transport and memory on a GPU: frames that are there are sent from there and arrive there. test_dask_gpu.py runs this in
a process of its own, with the real driver and with one made of paper; the peer is another process."""
import asyncio
import contextlib
import signal
import struct

import dask
import gpuside
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from gpuside import DATA, GpuArray, on_gpu, since

import weft
import weft.dask

assert "cuda" in weft.memory_kinds()
gpuside.register()
BIG = 1 << 20  # copied straight out of the sender's memory
BOUND = 120


@pytest.fixture(autouse=True)
def ours():
    """Memory of Weft's own, whatever is installed here."""
    with dask.config.set({"distributed.comm.weft": {"gpu-memory": "weft", "transports": "shm"}}):
        yield


# answers each message with what came, who made it, and how payloads of the peer came to it
PEER = """
import asyncio, sys
import dask, gpuside
from distributed.comm import connect
from distributed.protocol import to_serialize
gpuside.register()
async def main():
    with dask.config.set({"distributed.comm.weft": {"gpu-memory": sys.argv[2], "transports": sys.argv[3]}}):
        comm = await connect(sys.argv[1])
        while True:
            runtime = comm._home.runtime
            before = gpuside.paths(runtime)
            message = await comm.read()
            came = gpuside.since(runtime, before)
            kinds = [getattr(x, "made_by", type(x).__name__) for x in message["x"]]
            await comm.write({"x": [to_serialize(x) for x in message["x"]], "kinds": kinds, "came": came})
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def peer(child, memory="weft", transports="shm", cuda=True, **options):
    """A comm to another process, which echoes; cuda: it finds the driver."""
    others = asyncio.Queue()
    with dask.config.set({"distributed.comm.weft.transports": transports}):
        async with listen("weft://127.0.0.1:0", others.put, **options) as listener:
            with pytest.MonkeyPatch.context() as patch:
                if not cuda:
                    patch.setenv("WEFT_CUDA", "off")
                process = child(PEER, listener.contact_address, memory, transports)
            comm = await others.get()
            comm.process = process
            yield comm
            comm.abort()


async def echo(comm, arrays, **how):
    """What comes back, what the peer says of it, and the ways that payloads went to us."""
    before = gpuside.paths(comm._home.runtime)
    writing = asyncio.create_task(comm.write({"x": [to_serialize(x) for x in arrays]}, **how))
    got = await comm.read()
    await writing
    return got["x"], list(got["kinds"]), got["came"], since(comm._home.runtime, before)


@pytest.mark.parametrize("transports", ["shm", "tcp"])
@pytest.mark.parametrize("n", [0, 1, 4096, 4097, 100_000, BIG, 3 * BIG])
def test_frames_stay_on_the_gpu(run, child, monkeypatch, n, transports):
    made = []
    host_array = weft._dask_frames.host_array
    monkeypatch.setattr(weft._dask_frames, "host_array", lambda size: made.append(size) or host_array(size))

    async def body():
        async with peer(child, transports=transports) as comm:
            assert comm.local_info["weft-gpu-frames"] is comm.remote_info["weft-gpu-frames"] is True
            made.clear()
            for i in range(2):
                (got,), kinds, there, here = await echo(comm, [on_gpu(DATA[i:i + n])])
                assert got.tobytes() == DATA[i:i + n] and kinds == ["cuda"] and got.made_by == "cuda" and got.nbytes == n
                assert not made, "memory of the host was made for a frame"
            if transports == "shm":  # the first one goes through the transport, while memory for relays is shared
                assert there["device_direct"] == here["device_direct"] == (1 if n >= BIG else 0), (there, here)
                assert there["device_staged"] == here["device_staged"] == 0, (there, here)
                assert here["device_relayed"] == (1 if n == 100_000 else 0), here
    run(body())


def test_frames_of_both_sorts_in_one_message(run, child):
    async def body():
        async with peer(child) as comm:
            sizes = [10, BIG, 0, 5000, 3 * BIG, 1, 70_000, BIG]
            sent = [on_gpu(DATA[i:i + n]) if i % 2 else np.frombuffer(DATA[i:i + n], "u1") for i, n in enumerate(sizes)]
            for _ in range(3):
                got, kinds, there, here = await echo(comm, sent)
                assert kinds == ["cuda" if i % 2 else "ndarray" for i in range(len(sizes))]
                assert [x.tobytes() for x in got] == [DATA[i:i + n] for i, n in enumerate(sizes)]
                assert there["device_direct"] == here["device_direct"] == 2
    run(body())


@pytest.mark.parametrize("how", ["the peer has no GPU", "the peer wants none", "this side wants none"])
def test_a_peer_without_a_gpu_gets_frames_of_the_host(run, child, how):
    async def body():
        ours, theirs = ("none", "weft") if how == "this side wants none" else ("weft", "none" if "wants" in how else "weft")
        with dask.config.set({"distributed.comm.weft.gpu-memory": ours}):
            async with peer(child, memory=theirs, cuda=how != "the peer has no GPU") as comm:
                for serializers in (None, ["cuda"], ["cuda", "dask", "pickle"], ("dask", "pickle")):
                    for n in (0, 100, BIG):
                        (got,), kinds, there, here = await echo(comm, [on_gpu(DATA[:n])], serializers=serializers)
                        assert kinds == ["dask"] and got.made_by == "dask"
                        assert (got.data if how == "the peer has no GPU" else got.tobytes()) == DATA[:n]
                        assert not any(there.values()) and not any(here.values())
    run(body())


def test_serializers_that_the_caller_chooses(run, child):
    async def body():
        async with peer(child) as comm:
            _, kinds, _, _ = await echo(comm, [on_gpu(DATA[:BIG])], serializers=["dask", "pickle"])
            assert kinds == ["dask"]
            _, kinds, _, _ = await echo(comm, [on_gpu(DATA[:BIG])], serializers=["cuda", "dask"])
            assert kinds == ["cuda"]
    run(body())


def test_one_that_passes_frames_on_wants_them_on_the_host(run, child):
    async def body():
        async with peer(child, deserialize=False) as comm:  # as a scheduler's
            assert comm.local_info["weft-gpu-frames"] is False and comm.remote_info["weft-gpu-frames"] is True
            others = asyncio.Queue()
            async with listen("weft://127.0.0.1:0", others.put) as listener:
                source = await connect(listener.contact_address)
                writing = asyncio.create_task(source.write({"x": [to_serialize(on_gpu(DATA[:BIG]))]}, serializers=["dask"]))
                message = await (await others.get()).read()
                await writing
            (got,), kinds, _, _ = await echo(comm, [message["x"][0]])
            assert kinds == ["dask"] and not isinstance(got, GpuArray)
            frames = got.frames
            assert b"".join(bytes(f) for f in frames) == DATA[:BIG]
    run(body())


def test_a_frame_of_a_gpu_that_is_not_as_announced(run):
    gpu, head = 1 << 63, b"WDK1\1\0\0\0"
    for size in (gpu, gpu + 3, (1 << 64) - 1):
        with pytest.raises(ValueError, match="only then"):
            weft.dask.unpack(head + struct.pack("<Q", size), gpuside.empty)
    for size in (gpu + 2, gpu + 1):
        with pytest.raises(ValueError, match="not taken"):
            weft.dask.unpack(head + struct.pack("<Q", size))

    async def body():
        for size, sent in ((gpu + 2 * BIG, DATA[:10]), (gpu + 20, DATA[:BIG]), (gpu + (1 << 62), b"")):
            others = asyncio.Queue()
            async with listen("weft://127.0.0.1:0", others.put) as listener, weft.Runtime() as stranger:
                ep = await stranger.connect(listener.contact_address.replace("weft:", "tcp:"))
                hello, *_ = weft.dask.pack([dask_dumps({"compression": None, "python": (3, 11, 0), "pickle-protocol": 5})])
                await ep.send(hello)
                comm = await others.get()
                await ep.send(head + struct.pack("<Q", size))
                sending = ep.send(on_gpu(sent) if sent else b"")
                with pytest.raises(CommClosedError):
                    await comm.read()
                with contextlib.suppress(weft.WeftError):
                    await sending
    run(body())


def dask_dumps(message):
    from distributed.protocol import dumps
    return dumps(message)[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stopped_under_way(run, child, how):
    async def body():
        with dask.config.set({"distributed.comm.weft.heartbeat": "1s"}):
            async with peer(child) as comm:
                await echo(comm, [on_gpu(DATA[:BIG])])
                comm.process.send_signal(how)
                with pytest.raises(CommClosedError):
                    for _ in range(100):
                        await comm.write({"x": [to_serialize(on_gpu(DATA[:BIG])) for _ in range(4)]})
                assert comm.closed()
    run(body())


def test_the_configuration():
    from weft import _dask_gpu as gpu
    for word in gpu.CHOICES:
        if word in ("rmm", "cupy") and not gpu._installed(word):
            with pytest.raises(ValueError, match="not installed"):
                gpu.allocator(word)
        else:
            made = gpu.allocator(word)
            assert (made is None) == (word == "none" or (word == "auto" and not any(map(gpu._installed, gpu._ARRAYS))))
    with pytest.raises(ValueError, match="gpu-memory"):
        gpu.allocator("paper")
    first = gpu.Allocator(("rmm", "weft"))  # what cannot be imported is passed over
    if not gpu._installed("rmm"):
        assert isinstance(first(10), weft.Memory) and first._names == ["weft"]
    with dask.config.set({"distributed.comm.weft": {"gpu_memory": "none"}}):  # as the environment has it
        assert weft.dask._options()[1] is None


def make(i, n):
    gpuside.register()
    return on_gpu(bytes([i]) * n)


def look(array, i, n):
    return array.made_by, array.tobytes() == bytes([i]) * n


def test_a_cluster(run):
    def ready(dask_worker):
        gpuside.register()

    with LocalCluster(n_workers=2, threads_per_worker=1, protocol="weft", processes=True, dashboard_address=None,
                      memory_limit=0) as cluster, Client(cluster) as client:
        a, b = client.scheduler_info()["workers"]
        client.run(ready)
        sizes = [1, 5000, BIG, 3 * BIG]
        there = [client.submit(make, i, n, workers=[a]) for i, n in enumerate(sizes)]
        wait(there, timeout=BOUND)
        moved = [client.submit(look, f, i, n, workers=[b]) for i, (f, n) in enumerate(zip(there, sizes))]
        assert client.gather(moved) == [("cuda", True)] * len(sizes)
        direct = client.run(lambda dask_worker: dask_worker.loop.asyncio_loop._weft_dask.runtime.stats()["device_direct"], workers=[b])
        assert direct[b] >= 2
        back = client.gather(there)  # through the scheduler, which has them on the host
        assert [look(x, i, n) for i, (x, n) in enumerate(zip(back, sizes))] == [("dask", True)] * len(sizes)
        straight = client.gather(there, direct=True)
        assert [look(x, i, n) for i, (x, n) in enumerate(zip(straight, sizes))] == [("cuda", True)] * len(sizes)
        mine = client.scatter([on_gpu(DATA[:BIG])], direct=True)
        assert client.submit(lambda x: (x.made_by, x.nbytes), mine[0], workers=[b]).result(timeout=BOUND)[1] == BIG
