"""What the tests of GPU memory in Dask and `ucp` share: an array of bytes on a GPU, as another package would have it, and what the
runtime counts of payloads on a GPU."""
import os
import subprocess
import sys

import pytest

import weft

DATA = bytes(range(251)) * 20_000
PATHS = ("device_direct", "device_relayed", "device_bounced", "device_staged")


class GpuArray:
    """Bytes on a GPU. `made_by`: who made it here, a program, or a family of Dask's serializers."""

    def __init__(self, memory, made_by="program", **entries):
        self.memory, self.made_by = memory, made_by
        self.__cuda_array_interface__ = {**memory.__cuda_array_interface__, **entries}

    @property
    def nbytes(self):
        return self.memory.nbytes

    def tobytes(self):
        return self.memory.tobytes()


def on_gpu(data, **entries):
    memory = weft.Memory(len(data), "cuda")
    memory.copy_from(data)
    return GpuArray(memory, **entries)


def empty(n):
    return on_gpu(bytes(n))


def paths(runtime):
    """How many payloads and pieces went which way."""
    stats = runtime.stats()
    return {name: stats[name] for name in PATHS}


def since(runtime, before):
    return {name: n - before[name] for name, n in paths(runtime).items()}


def paper():
    """Where the driver made of paper is; None if it is not built."""
    path = os.path.abspath(os.path.join(os.path.dirname(weft._core.__file__), "..", "..", "tests", "paper"))
    return path if os.path.exists(os.path.join(path, "libcuda.so.1")) else None


def passes(file, **env):
    """Run a file of tests in a process of its own, with that environment: it may have another driver."""
    done = subprocess.run([sys.executable, "-X", "dev", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                           os.path.join(os.path.dirname(os.path.abspath(__file__)), file)],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}, timeout=800, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert " 0 skipped" in done.stdout


def passes_on_paper(file):
    if paper() is None:
        pytest.skip("the CUDA driver made of paper is not built")
    passes(file, LD_LIBRARY_PATH=paper(), PAPER_THREAD="10")


def register():
    """Have Dask know the array, as it knows CuPy's: on the GPU, and through the host."""
    from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
    from distributed.protocol.serialize import dask_deserialize, dask_serialize
    cuda_serialize.register(GpuArray, lambda x: ({}, [x]))
    dask_serialize.register(GpuArray, lambda x: ({}, [memoryview(x.tobytes())]))

    @cuda_deserialize.register(GpuArray)
    def from_gpu(header, frames):
        (frame,) = frames
        assert frame.kind == "cuda", frame
        return GpuArray(frame, "cuda")

    @dask_deserialize.register(GpuArray)
    def from_host(header, frames):
        if "cuda" in weft.memory_kinds():
            made = on_gpu(bytes(frames[0]))
            made.made_by = "dask"
            return made
        return OnHost(bytes(frames[0]))


class OnHost:
    """What becomes of it where there is no GPU."""
    made_by = "dask"

    def __init__(self, data):
        self.data = data
