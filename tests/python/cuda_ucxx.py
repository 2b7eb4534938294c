"""ucxx and memory on a GPU: what is sent from there arrives there, or on the host where UCXX has it so. test_ucxx_gpu.py runs this in a process of
its own, with the real driver and with one made of paper."""
import asyncio

import numpy
import pytest

import ucxx
import weft
from ucxx._lib.memory import EAGER, CudaBuffer
from ucxxside import connected, fresh  # noqa: F401

assert "cuda" in weft.memory_kinds()


def gpu(data):
    memory = weft.Memory(len(data), "cuda")
    memory.copy_from(data)
    return memory


def data_of(size, seed=0):
    return ((numpy.arange(size) + seed) % 251).astype("u1")


@pytest.mark.parametrize("mode", ["thread", "blocking"])
@pytest.mark.parametrize("size", [1, 8191, 100_000, 5_000_000])
def test_messages_from_and_to_a_gpu(run, size, mode):
    async def body():
        p = await connected()
        data = data_of(size)
        into = weft.Memory(size, "cuda")
        await asyncio.gather(p.a.send(gpu(data)), p.b.recv(into))
        assert into.tobytes() == data.tobytes()
        host = numpy.zeros(size, "u1")
        await asyncio.gather(p.b.send(into), p.a.recv(host))
        assert (host == data).all()
    ucxx.init(progress_mode=mode)
    run(body())


@pytest.mark.parametrize("size", [1, EAGER - 1, EAGER, 3_000_000])
def test_an_active_message_is_on_the_gpu_from_the_threshold_on(run, size):
    async def body():
        p = await connected()
        data = data_of(size, 3)
        _, got = await asyncio.gather(p.a.am_send(gpu(data)), p.b.am_recv())
        if size < EAGER:
            assert isinstance(got, numpy.ndarray) and (got == data).all()
        else:
            assert isinstance(got, CudaBuffer) and got.__cuda_array_interface__["shape"] == (size,) and got.nbytes == len(got) == size
            assert (got.copy_to_host() == data).all()
            into = numpy.zeros(size + 5, "u1")
            assert got.copy_to_host(into) is into and (into[:size] == data).all()
            with pytest.raises(ValueError, match=f"Need space for {size} bytes"):
                got.copy_to_host(numpy.zeros(size - 1, "u1"))
    run(body())


def test_several_buffers_of_both_sorts(run):
    async def body():
        p = await connected()
        sizes = [0, 10, 300_000, 7, 1_000_000]
        host = [data_of(n, n) for n in sizes]
        sent = [gpu(h) if i % 2 else h for i, h in enumerate(host)]
        _, got = await asyncio.gather(p.a.send_multi(sent), p.b.recv_multi())
        for i, (h, g) in enumerate(zip(host, got)):
            assert isinstance(g, CudaBuffer if i % 2 and len(h) else numpy.ndarray)
            assert ((g.copy_to_host() if isinstance(g, CudaBuffer) else g) == h).all()
        await asyncio.gather(p.b.send_multi(got), p.a.recv_multi())  # what came can be sent on
    run(body())


def test_tls_that_excludes_the_gpu_refuses_its_memory(run):
    async def body():
        p = await connected()
        assert ucxx.core._get_ctx().context.cuda_support is False and p.a._ep._worker.cuda_buffer_type == "none"
        with pytest.raises(ValueError, match="UCX_TLS excludes it"):
            await p.a.send(gpu(b"123"))
    ucxx.init({"TLS": "^cuda"})
    run(body())
