"""What tests of streams share: the CUDA driver made of paper as a program uses it, and streams as other packages have them."""
import ctypes

import pytest

from paper_cuda import driver  # noqa: F401: a fixture

DELAY = 20_000_000  # nanoseconds
NOT_READY = 600


class Paper(ctypes.Structure):
    """What the driver is told, and what it saw: tests/lib/cuda/paper.h."""
    _fields_ = [("lock", ctypes.c_char * 40), ("told", ctypes.c_int * 8),
                *((name, ctypes.c_uint) for name in "inits contexts streams live_streams copies live registered registers".split()),
                ("registered_bytes", ctypes.c_size_t), ("alloc_device", ctypes.c_int), ("default_waits", ctypes.c_uint),
                ("context_waits", ctypes.c_uint), ("copy_ns", ctypes.c_uint64), ("copy_ns_per_kib", ctypes.c_uint64),
                ("memory", ctypes.c_size_t), ("no_peer", ctypes.c_int),
                *((name, ctypes.c_uint) for name in "exports imports live_imports events live_events live_physical copies_by_engine "
                                                    "copies_by_kernel program_copies waits free_waits".split())]


class Cuda:
    """What a program does with its driver."""
    def __init__(self, library):
        self.library, self.paper = library, Paper.in_dll(library, "paper")
        self.contexts = []
        for device in range(2):
            ctx = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), device)
            self.contexts.append(ctx)

    def call(self, name, *args):
        status = getattr(self.library, name)(*args)
        assert status == 0, (name, status)

    def enter(self, device=0):
        self.call("cuCtxPushCurrent_v2", self.contexts[device])

    def leave(self):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self):
        handle = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(handle), 1)
        return handle.value

    def kernel(self, stream, memory, byte, delay=DELAY):
        self.call("paper_kernel", ctypes.c_void_p(stream), ctypes.c_void_p(memory.ptr), ctypes.c_size_t(memory.nbytes), byte,
                  ctypes.c_uint64(delay))

    def copy(self, stream, to, memory):
        self.call("cuMemcpyAsync", ctypes.c_void_p(to.ptr), ctypes.c_void_p(memory.ptr), ctypes.c_size_t(memory.nbytes),
                  ctypes.c_void_p(stream))

    def hold(self, stream):
        self.call("paper_hold", ctypes.c_void_p(stream))

    def release(self, stream):
        self.call("paper_release", ctypes.c_void_p(stream))

    def waits_back(self, stream):
        return self.library.cuStreamQuery(ctypes.c_void_p(stream)) == NOT_READY

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    @property
    def waits(self):
        return self.paper.waits, self.paper.default_waits, self.paper.context_waits

    @property
    def waits_for_programs(self):
        """Short accesses to remote memory are copied at once: that is a wait for a stream of the library's own."""
        return self.waits[1:]


@pytest.fixture
def cuda(driver):  # noqa: F811
    """In a context, as a thread of a program that uses the GPU is."""
    made = Cuda(driver)
    made.enter()
    yield made
    made.leave()


class Torch:
    def __init__(self, handle):
        self.cuda_stream = handle


class Cupy:
    def __init__(self, handle):
        self.ptr = handle


class ByProtocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle
