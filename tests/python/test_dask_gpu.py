"""Dask and memory on a GPU: cuda_dask.py with a driver made of paper, and with the real one where there is a GPU; and arrays of CuPy
and tensors of PyTorch where they are installed."""
# ctest: long no-asan: it is about Python; the other tests of this folder try the extension with a sanitizer
import asyncio

import pytest

pytest.importorskip("distributed")
from distributed.comm import connect, listen  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

import weft  # noqa: E402
import weft.dask  # noqa: E402
from gpuside import passes, passes_on_paper, paths, since  # noqa: E402


def test_with_a_driver_made_of_paper():
    passes_on_paper("cuda_dask.py")


@pytest.fixture
def real():
    if "cuda" not in weft.memory_kinds():
        pytest.skip("there is no GPU here")


def test_with_the_real_driver(real):
    passes("cuda_dask.py")


def test_without_a_gpu_nothing_is_offered():
    if "cuda" in weft.memory_kinds():
        pytest.skip("this machine has a GPU")
    from weft import _dask_gpu as gpu
    assert all(gpu.allocator(word) is None for word in gpu.CHOICES)
    assert gpu.nbytes(b"1") is gpu.nbytes(bytearray(2)) is gpu.nbytes(memoryview(b"3")) is gpu.nbytes(weft.Memory(4)) is None


PEER = """
import asyncio, sys
from distributed.comm import connect
from distributed.protocol import to_serialize
async def main():
    comm = await connect(sys.argv[1])
    while True:
        x = (await comm.read())["x"]
        await comm.write({"x": to_serialize(x), "type": type(x).__name__})
asyncio.run(main())
"""


def echoed(run, child, things, same):
    """Each to another process and back, whose memory it then is."""
    async def body():
        others = asyncio.Queue()
        async with listen("weft://127.0.0.1:0", others.put) as listener:
            child(PEER, listener.contact_address)
            comm = await others.get()
            for x in things:
                before = paths(comm._home.runtime)
                writing = asyncio.create_task(comm.write({"x": to_serialize(x)}))
                got = await comm.read()
                await writing
                assert got["type"] == type(x).__name__ and type(got["x"]) is type(x)
                same(x, got["x"])
                if x.nbytes >= 1 << 20 and comm.extra_info["transport"] == "shm":
                    assert since(comm._home.runtime, before)["device_direct"] >= 1
            comm.abort()
    run(body())


def test_arrays_of_cupy(real, run, child):
    cupy = pytest.importorskip("cupy")
    whole = cupy.arange(4 << 20, dtype="f4").reshape(2048, 2048)

    def same(a, b):
        assert a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides and (a == b).all()
    echoed(run, child, [whole, cupy.asfortranarray(whole), whole[:1], cupy.arange(3), cupy.empty(0), cupy.array(5),
                        whole.astype("u1")], same)
    echoed(run, child, [whole[:, ::2]], lambda a, b: (a == b).all() or pytest.fail("not the same"))


def test_tensors_of_torch(real, run, child):
    torch = pytest.importorskip("torch")
    whole = torch.arange(4 << 20, dtype=torch.float32, device="cuda").reshape(2048, 2048)

    def same(a, b):
        assert a.device == b.device and a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
        assert torch.equal(a.detach(), b.detach())
        assert (a.grad is None) == (b.grad is None) and (a.grad is None or torch.equal(a.grad, b.grad))
    learnt = torch.ones(1 << 20, device="cuda", requires_grad=True)
    (learnt * 3).sum().backward()
    echoed(run, child, [whole, whole.t(), whole[:, ::2], whole.bfloat16(), whole > 5, torch.empty(0, device="cuda"),
                        torch.tensor(5, device="cuda"), learnt, torch.nn.Parameter(torch.ones(10, device="cuda")),
                        torch.arange(10), torch.complex(whole, whole).conj()], same)
