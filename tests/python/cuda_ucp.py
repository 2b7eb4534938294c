"""`ucp`, `ucp._libs.ucx_api`, `ucp_py` and `ucxx` and memory on a GPU: what is sent from there arrives there, and nothing of it is on
the host in between that Python could see. test_ucp_gpu.py runs this in a process of its own, with the real driver and with one
made of paper; the peer is another process, which sends everything back."""
import asyncio
import json
import subprocess
import sys
import time

import gpuside
import numpy
import pytest
from gpuside import DATA, empty, on_gpu, since
from program import environment
from ucpside import connected, fresh, server  # noqa: F401

import ucp
import ucp_py
import ucxx
import weft
from ucp._libs import ucx_api
from ucp._libs.arr import Array

assert "cuda" in weft.memory_kinds()
BIG = 1 << 20  # copied straight out of the sender's memory
SIZES = [1, 5000, 100_000, BIG, 3 * BIG]

SETUP = """
import gpuside
from gpuside import empty
"""
ECHO = """
n = int(bytes(await ep.recv_obj()))
for i in range(2):
    into = empty(n)
    await ep.recv(into)
    await ep.send(into)
await ep.recv(bytearray(1))
"""


def direct(runtime, before, n, times=2):
    """No payload went through the transport, and large ones not through the host."""
    ways = since(runtime, before)
    assert ways["device_direct"] == (times if n >= BIG else 0), ways
    return ways


@pytest.fixture(scope="module", autouse=True)
def allocations():
    """The arrays here are what CuPy's are: no buffer protocol, so nothing of Python can read them."""
    with pytest.raises(TypeError):
        memoryview(on_gpu(b"1"))


@pytest.mark.parametrize("n", SIZES)
def test_messages_of_ucp(run, child, n):
    async def body():
        process, port = server(child, ECHO, SETUP)
        ep = await ucp.create_endpoint("127.0.0.1", port)
        await ep.send_obj(str(n).encode())
        runtime = ucp.core._get_ctx().worker.runtime
        before = gpuside.paths(runtime)
        for i in range(2):
            into = empty(n)
            await ep.send(on_gpu(DATA[i:i + n]))
            await ep.recv(into)
            assert into.tobytes() == DATA[i:i + n]
        direct(runtime, before, n)
        await ep.send(b"!")
        await ep.close()
    ucp.init({"TLS": "shm"})
    run(body())


@pytest.mark.parametrize("n", SIZES)
def test_active_messages_and_objects_of_ucp(run, child, n):
    async def body():
        process, port = server(child, """
for i in range(2):
    got = await ep.am_recv()
    assert type(got).__name__ == "GpuArray", got
    await ep.am_send(got)
await ep.send_obj(await ep.recv_obj(allocator=empty))
await ep.recv(bytearray(1))
""", SETUP + "\nucp.register_am_allocator(empty, 'cuda')")
        ucp.register_am_allocator(empty, "cuda")
        ep = await ucp.create_endpoint("127.0.0.1", port)
        runtime = ucp.core._get_ctx().worker.runtime
        before = gpuside.paths(runtime)
        for i in range(2):
            await ep.am_send(on_gpu(DATA[i:i + n]))
            got = await ep.am_recv()
            assert isinstance(got, gpuside.GpuArray) and got.tobytes() == DATA[i:i + n]
        await ep.send_obj(on_gpu(DATA[5:5 + n]))
        got = await ep.recv_obj(allocator=empty)
        assert got.tobytes() == DATA[5:5 + n]
        direct(runtime, before, n, 3)
        await ep.send(b"!")
        await ep.close()
    ucp.init({"TLS": "shm"})
    run(body())


def test_a_forced_tag_and_a_part_of_an_array(run):
    async def body():
        ep = await ucp.create_endpoint_from_worker_address(ucp.get_worker_address())
        into = empty(BIG)
        await asyncio.gather(ep.send(on_gpu(DATA[:BIG]), tag=7, force_tag=True), ucp.recv(into, tag=7))
        assert into.tobytes() == DATA[:BIG]
        await ep.close()
    run(body())


def test_a_receive_cancelled_after_its_message_came_gives_it_to_the_next(run):
    async def body():
        p = await connected()

        def posted():
            stats = ucp.core._get_ctx().worker.runtime.stats()
            return stats["ops_posted"] - stats["ops_completed"]
        for i in range(20):
            idle = posted()
            data, first = b"%08d" % i, empty(8) if i % 2 else bytearray(8)
            into = empty(8) if i % 4 < 2 else bytearray(8)
            receiving = asyncio.ensure_future(p.b.recv(first))
            await asyncio.sleep(0)
            op = p.a._weft.send(data, p.a._tags.msg_send)
            end = time.monotonic() + 20
            while posted() > idle:
                ucp.progress()  # completes it, and the loop has not told the task yet
                assert time.monotonic() < end
            assert (first.tobytes() if i % 2 else first) == data
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            await op
            assert p.b._kept
            await p.b.recv(into)
            assert (into.tobytes() if i % 4 < 2 else into) == data
        assert not p.b._kept
    run(body())


def test_what_is_kept_of_a_cancelled_receive(run):
    from ucp._buffers import copied, put, raw
    for data in (b"", b"1", DATA[:70_000]):
        for one in (on_gpu(data + b"more"), bytearray(data + b"more")):
            kept = copied(one, len(data))
            assert len(kept) == len(data)
            into = empty(len(data)), bytearray(len(data))
            for other in into:
                put(kept, raw(other))
            assert into[0].tobytes() == bytes(into[1]) == data


def test_parts_wait_for_the_stream_that_the_whole_waits_for():
    for entries, wanted in (({}, "same"), ({"stream": 1}, 1), ({"stream": None}, None)):
        whole = on_gpu(DATA[:100], **entries)
        interface = whole.__cuda_array_interface__
        if wanted == "same":
            interface.pop("stream", None)
        for part in (Array(whole)._memory(10, False), ucp_py._cuda.part(whole, 10)):
            told = part.__cuda_array_interface__
            assert told["shape"] == (10,) and told["data"][0] == whole.memory.ptr
            assert ("stream" in told) == ("stream" in interface) and told.get("stream") == interface.get("stream")


@pytest.mark.parametrize("n", SIZES)
def test_callbacks(n):
    """ucx_api: tags, active messages and the stream, of two workers here."""
    context = ucx_api.UCXContext({"TLS": "shm"})
    left, right = ucx_api.UCXWorker(context), ucx_api.UCXWorker(context)
    came, eps = [], []
    listener = ucx_api.UCXListener(right, 0, lambda request: eps.append(
        ucx_api.UCXEndpoint.create_from_conn_request(right, request, True)))
    a = ucx_api.UCXEndpoint.create(left, "127.0.0.1", listener.port, True)

    def until(true):
        for _ in range(1_000_000):
            if true():
                return
            left.progress()
            right.progress()
        raise AssertionError("it takes too long")
    until(lambda: eps)
    b = eps[0]

    def done(result, error):
        assert error is None, error
        came.append(result)
    before = gpuside.paths(right.runtime)
    for i in range(2):
        into = Array(empty(n))
        came.clear()
        sent = ucx_api.tag_send_nb(a, Array(on_gpu(DATA[i:i + n])), n, 5, done)
        ucx_api.tag_recv_nb(right, into, n, 5, done)
        until(lambda: len(came) == (1 if sent is None else 2))
        assert into.obj.tobytes() == DATA[i:i + n]
    right.register_am_allocator(empty, ucx_api.AllocatorType.CUDA)
    came.clear()
    sent = ucx_api.am_send_nbx(a, Array(on_gpu(DATA[3:3 + n])), n, lambda _, error: came.append(error))
    got = []
    ucx_api.am_recv_nb(b, lambda message, error: got.append(message if error is None else error))
    until(lambda: got and (sent is None or came))
    assert got[0].tobytes() == DATA[3:3 + n]
    direct(right.runtime, before, n, 3)
    came.clear()
    pieces = [n // 3, n - n // 3 - n // 4, n // 4]
    out = ucx_api.stream_send_nb(a, Array(on_gpu(DATA[:n])), n, lambda _, error: None)
    into = [on_gpu(bytes(k)) if i != 1 else numpy.zeros(k, "u1") for i, k in enumerate(pieces)]
    wanted = sum(1 for buffer, k in zip(into, pieces) if k and ucx_api.stream_recv_nb(b, Array(buffer), k, done) is not None)
    until(lambda: len(came) == wanted and (out is None or not out._pending))
    assert b"".join(x.tobytes() for x in into) == DATA[:n]
    for thing in (a, b, listener, left, right):
        thing.close()


def test_ucp_py(child):
    process = child("""
import ucp_py, gpuside, sys
ucp_py.init()
def serve(ep):
    for n in map(int, sys.argv[1].split(",")):
        into = gpuside.empty(n)
        before = gpuside.paths(ucp_py._core.core().runtime)
        for i in range(2):
            ep.recv_msg(into).result()
            ep.send_msg(into).result()
        ways = gpuside.since(ucp_py._core.core().runtime, before)
        assert ways["device_direct"] == (2 if n >= 1 << 20 else 0), (n, ways)
    ep.recv_msg().result()
    ucp_py.stop_listener(listener)
    done.append(1)
done = []
listener = ucp_py.start_listener(serve, 0)
print(listener.port, flush=True)
while not done:
    ucp_py.progress()
ucp_py.fin()
print("all of it", flush=True)
""", ",".join(map(str, SIZES)))
    ucp_py.init()
    ep = ucp_py.get_endpoint(b"127.0.0.1", int(process.stdout.readline()), max_timeout=60)
    runtime = ucp_py._core.core().runtime
    for n in SIZES:
        before, into = gpuside.paths(runtime), empty(n)
        for i in range(2):
            sent = on_gpu(DATA[i:i + n], strides=(1,))  # which says of itself that it is contiguous
            ep.send_msg(sent).result()
            assert ucp_py.get_obj_from_msg(ep.recv_msg(into).result()) is into
            assert into.tobytes() == DATA[i:i + n]
        direct(runtime, before, n)
    with pytest.raises(weft.InvalidError, match="contiguous"):
        ep.send_msg(on_gpu(DATA[:100], shape=(50,), strides=(2,)))
    ep.send_msg(on_gpu(DATA[:24], shape=(2, 3), typestr="<f4", strides=(12, 4))).result()
    ucp_py.destroy_ep(ep)
    ucp_py.fin()
    assert process.stdout.readline() == "all of it\n"


@pytest.mark.parametrize("n", SIZES)
def test_ucxx(run, child, n):
    async def body():
        process, port = server(child, ECHO + "await ep.send_multi(await ep.recv_multi())\nawait ep.recv(bytearray(1))\n", SETUP,
                               package="ucxx")
        ep = await ucxx.create_endpoint("127.0.0.1", port)
        await ep.send_obj(str(n).encode())
        runtime = ucxx.core._get_ctx().worker._inner.runtime
        before = gpuside.paths(runtime)
        for i in range(2):
            into = empty(n)
            await ep.send(on_gpu(DATA[i:i + n]))
            await ep.recv(into)
            assert into.tobytes() == DATA[i:i + n]
        await ep.send(bytearray(1))
        await ep.send_multi([on_gpu(DATA[:n]), b"host", on_gpu(DATA[9:9 + n])])
        first, host, second = await ep.recv_multi()
        assert first.copy_to_host().tobytes() == DATA[:n] and second.copy_to_host().tobytes() == DATA[9:9 + n]
        assert bytes(host) == b"host"
        direct(runtime, before, n, 4)
        await ep.send(bytearray(1))
        await ep.close()
    ucxx.init({"TLS": "shm,cuda_ipc"}, progress_mode="blocking")
    run(body())
    ucxx.reset()


@pytest.mark.parametrize("backend", ["ucp-async", "ucp-core"])
@pytest.mark.parametrize("more", [[], ["--enable-am"], ["--reuse-alloc"], ["-n", "100"]])
def test_the_benchmark(backend, more):
    done = subprocess.run([sys.executable, "-m", "ucp.benchmarks.send_recv", "-o", "weft", "-n", "2MiB", "--n-iter", "5", "--n-warmup-iter",
                           "2", "-l", backend, "-s", "127.0.0.1", "--json", *more], env=environment(), timeout=100, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["object_type"] == "weft" and result["bandwidth_average"] > 0 and len(result["latencies"]) == 5
