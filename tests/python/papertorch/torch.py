"""As much of PyTorch as examples/python/tensors.py uses, for machines without it: tensors of bytes in GPU memory of the driver made
of paper. Its kernels run late in their streams, as real ones do. test_examples.py puts it in PyTorch's place."""
import ctypes
import math
import types

import weft

__version__ = "paper"
float16, float64 = "<u1", "<u8"  # one byte is enough to be counted
DELAY = 2_000_000                # nanoseconds that a kernel takes

assert "cuda" in weft.memory_kinds()
library = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()


def call(name, *args):
    status = getattr(library, name)(*args)
    assert status == 0, (name, status)


call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxPushCurrent_v2", context)


class Stream:
    def __init__(self):
        handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(handle), 1)
        self.cuda_stream = handle.value


class CurrentStream:
    """with torch.cuda.stream(...)"""
    now = [1]  # the handles: of the default stream at first

    def __init__(self, stream):
        self.handle = stream.cuda_stream

    def __enter__(self):
        self.now.append(self.handle)

    def __exit__(self, *error):
        self.now.pop()


def wait(stream, for_stream):
    """Have a stream wait for what another was given so far."""
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, ctypes.c_void_p(for_stream))
    call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
    call("cuEventDestroy_v2", event)


class Tensor:
    """Bytes in GPU memory: a weft.Memory, or what is lent."""

    def __init__(self, memory, capsule=None):
        self.memory, self.capsule = memory, capsule

    @property
    def __cuda_array_interface__(self):
        raise TypeError("PyTorch has it for some types only")

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream is not None and stream != CurrentStream.now[-1]:
            wait(stream, CurrentStream.now[-1])
        return self.memory.__dlpack__(max_version=max_version)

    def numel(self):
        return self.memory.nbytes

    def view(self, what):
        assert what == float16 or math.prod(what) == self.numel()
        return self

    def fill_(self, value):
        call("paper_kernel", ctypes.c_void_p(CurrentStream.now[-1]), ctypes.c_void_p(self.memory.ptr),
             ctypes.c_size_t(self.numel()), value, ctypes.c_uint64(DELAY))

    def sum(self, dtype):
        assert dtype == float64
        result = weft.Memory(self.numel(), "pinned")
        result.fill(0)
        copied_to.append(result)
        stream = CurrentStream.now[-1]
        call("cuMemcpyAsync", ctypes.c_void_p(result.ptr), ctypes.c_void_p(self.memory.ptr), ctypes.c_size_t(self.numel()),
             ctypes.c_void_p(stream))

        def item():
            call("cuStreamSynchronize", ctypes.c_void_p(stream))
            return float(sum(result.tobytes()))
        return types.SimpleNamespace(item=item)


copied_to = []  # memory that copies under way need


def synchronize():
    call("cuCtxSynchronize")
    copied_to.clear()


def empty(shape, dtype, device):
    assert dtype == float16 and device == "cuda"
    return [Tensor(weft.Memory(math.prod(shape[1:]), "cuda")) for _ in range(shape[0])]


def from_dlpack(thing):
    assert thing.__dlpack_device__() == (2, 0)
    return Tensor(thing, thing.__dlpack__(stream=CurrentStream.now[-1], max_version=(1, 0)))


cuda = types.SimpleNamespace(Stream=Stream, stream=CurrentStream, is_available=lambda: True,
                             get_device_name=lambda: "a driver made of paper", mem_get_info=lambda: (96 << 20, 1 << 30),
                             synchronize=synchronize)
