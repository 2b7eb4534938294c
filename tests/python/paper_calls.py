"""Tensors of a GPU in calls, with a CUDA driver made of paper: test_rpc_client.py runs this in a process of its own."""
import asyncio
import ctypes
import sys

import numpy
import pytest

import weft
from callside import PROGRAM, TYPES, Process, environment

DATA = bytes(range(256)) * 40


def gpu(data):
    memory = weft.Memory(len(data), "cuda")
    assert memory.copy_from(data) == len(data) and ctypes.string_at(memory.ptr, 5) != data[:5], "it is encoded"
    return memory


@pytest.fixture(scope="module")
def types():
    service = Process([sys.executable, "-c", PROGRAM, " ".join(TYPES)], environment(WEFT_CUDA="off"))
    yield service
    service.kill()


def test_arguments_and_results(types):
    async def main():
        async with weft.client(types.uri, timeout=50) as client:
            for n in (10, 500, len(DATA)):
                memory = gpu(DATA[:n] or b"\0")
                assert (await client.echo_tensor(memory)).tobytes() == DATA[:n]
            for n in (5, 600, 5000):
                memory = gpu(bytes(8192))
                result = await client.tensors(n, into=memory)
                want = bytes(i % 251 for i in range(n))
                assert memory.tobytes(0, n) == want and memory.tobytes(n, 100) == bytes(100)
                assert result.__dlpack_device__()[0] == 2 and result.shape == (n,) and repr(result)
                for call in (lambda: memoryview(result), lambda: numpy.asarray(result, dtype="u1"), result.tobytes,
                             result.tolist):
                    with pytest.raises((BufferError, TypeError, ValueError)):
                        call()
                assert (await client.echo_tensor(result)).tobytes() == want
            vectors = gpu(bytes(8192))
            for n in (5, 5000):
                result = await client.echo_s_u8(DATA[:n], into=vectors)
                assert vectors.tobytes(0, n) == DATA[:n] if result.__dlpack_device__()[0] == 2 else result.tobytes() == DATA[:n]
            with pytest.raises(weft.TruncatedError):
                await client.tensors(600, into=gpu(bytes(100)))
    asyncio.run(main())
