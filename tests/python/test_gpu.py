"""Arrays and tensors of cupy and torch on a real GPU: messages, active messages, remote memory, and memory of ours that they see.

Skipped, with the reason, where there is no GPU; test_foreign.py has the same with a driver made of paper.
"""
import asyncio
import ctypes
import threading

import numpy
import pytest

import weft
import weft.blocking

if "cuda" not in weft.memory_kinds():
    pytest.skip("there is no GPU here", allow_module_level=True)

try:
    import torch
    if not torch.cuda.is_available():
        torch = None
except ImportError:
    torch = None
try:
    import cupy
except ImportError:
    cupy = None


class Cupy:
    name = "cupy"

    @staticmethod
    def put(array):
        return cupy.asarray(array)

    @staticmethod
    def get(array):
        return cupy.asnumpy(array)

    @staticmethod
    def busy(array):
        """Work that is still under way when this returns, and ends with every element one more."""
        with cupy.cuda.Stream(non_blocking=False):
            for _ in range(50):
                array += 2
                array -= 2
            array += 1
        return array


class Torch:
    name = "torch"

    @staticmethod
    def put(array):
        return torch.from_numpy(array).cuda()

    @staticmethod
    def get(tensor):
        return tensor.cpu().numpy()

    @staticmethod
    def busy(tensor):
        for _ in range(50):  # on the current stream: another one torch leaves to whoever used it to wait for
            tensor += 2
            tensor -= 2
        tensor += 1
        return tensor


class CudaInterface(Cupy):
    """cupy's arrays by __cuda_array_interface__ alone."""
    name = "interface"

    class Only:
        def __init__(self, array, stream=None):
            self.array, self.stream = array, stream  # the stream has to live as long as the interface names it
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    @staticmethod
    def put(array):
        return CudaInterface.Only(cupy.asarray(array))

    @staticmethod
    def get(only):
        return cupy.asnumpy(only.array)

    @staticmethod
    def busy(only):
        cupy.cuda.Stream.null.synchronize()  # a stream that does not block would begin before the array is there
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(50):
                only.array += 2
                only.array -= 2
            only.array += 1
            return CudaInterface.Only(only.array, stream)


class Ours:
    name = "weft"

    @staticmethod
    def put(array):
        memory = weft.Memory(array.nbytes, "cuda")
        memory.copy_from(array)
        return memory

    @staticmethod
    def get(memory):
        return numpy.frombuffer(memory.tobytes(), "f4")

    busy = None


PACKAGES = [p for p, there in ((Cupy, cupy), (Torch, torch), (CudaInterface, cupy), (Ours, True)) if there]
SIZES = [1, 1000, 100_000, 8 << 20]


@pytest.fixture(params=PACKAGES, ids=lambda p: p.name)
def package(request):
    return request.param


def some(n, seed=1):
    return numpy.random.default_rng(seed).random(n, "f4")


@pytest.mark.parametrize("n", SIZES)
def test_messages(pair, package, n):
    async def body(p):
        data = some(n)
        out, into = package.put(data), package.put(numpy.zeros(n, "f4"))
        sending = p.a.send(out, tag=1)
        assert await p.b.recv_into(into, tag=1) == data.nbytes
        await sending
        assert (package.get(into) == data).all()
        sending = p.a.send(out, tag=2)  # to the host, and back
        here = numpy.zeros(n, "f4")
        await p.b.recv_into(here, tag=2)
        await sending
        assert (here == data).all()
        into = package.put(numpy.zeros(n, "f4"))
        sending = p.a.send(here, tag=3)
        await p.b.recv_into(into, tag=3)
        await sending
        assert (package.get(into) == data).all()
    pair(body)


@pytest.mark.parametrize("n", SIZES)
def test_active_messages(pair, package, n):
    async def body(p):
        data = some(n, 2)
        out, into = package.put(data), package.put(numpy.zeros(n, "f4"))
        sending = p.a.am_send(1, out, header=b"head")
        message = await p.b.am_recv(1)
        assert message.header == b"head" and await message.read_into(into) == data.nbytes
        await sending
        assert (package.get(into) == data).all()
    pair(body)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mapped", [True, False])
def test_remote_memory(pair, package, n, mapped):
    async def body(p):
        data = some(n, 3)
        out, into = package.put(data), package.put(numpy.zeros(n, "f4"))
        region = p.right.region(data.nbytes, mapped=mapped)
        remote = await p.a.attach(region.key())
        await remote.write(out)
        assert (numpy.frombuffer(region, "f4") == data).all()
        assert await remote.read_into(into) == data.nbytes and (package.get(into) == data).all()
        target = package.put(numpy.zeros(n, "f4"))
        exposed = p.right.region(target)
        there = await p.a.attach(exposed.key())
        await there.write(data)
        assert (package.get(target) == data).all() and await there.read() == data.tobytes()
        await exposed.free()
    pair(body)


def test_what_its_kernels_still_write_is_waited_for(pair, package):
    if package.busy is None:
        pytest.skip("memory of ours has no kernels")

    async def body(p):
        n = 16 << 20
        for i in range(3):
            out = package.put(numpy.full(n, i, "f4"))
            sending = p.a.send(package.busy(out), tag=1)
            into = numpy.zeros(n, "f4")
            await p.b.recv_into(into, tag=1)
            await sending
            assert (into == i + 1).all()
    pair(body)


def test_what_is_not_contiguous_is_refused(pair, package):
    if package is Ours:
        pytest.skip("memory of ours is in one piece")

    async def body(p):
        array = package.put(some(10_000).reshape(100, 100))
        if package is CudaInterface:
            array = CudaInterface.Only(array.array[:, ::2])
        else:
            array = array[:, ::2]
        with pytest.raises(weft.InvalidError, match="not contiguous"):
            p.a.send(array)
        assert p.left.under_way == 0
    pair(body)


def test_many_at_once(pair, package):
    async def body(p):
        data = [some(1000, i) for i in range(64)]
        out, into = [package.put(d) for d in data], [package.put(numpy.zeros(1000, "f4")) for _ in data]
        receiving = [p.b.recv_into(b, tag=i) for i, b in enumerate(into)]
        await asyncio.gather(*[p.a.send(b, tag=i) for i, b in enumerate(out)])
        await asyncio.gather(*receiving)
        assert all((package.get(b) == d).all() for b, d in zip(into, data))
        receiving = p.b.recv_many(into, tag=99)  # memory of a GPU is sent to where it is received: the sends wait for that
        await p.a.send_many(out, tag=99)
        assert await receiving == [4000] * 64
    pair(body)


def test_memory_of_ours_is_theirs_to_see():
    data = some(1000)
    memory = Ours.put(data)
    if cupy:
        for array in (cupy.asarray(memory), cupy.from_dlpack(memory)):
            assert array.data.ptr == memory.ptr and (cupy.asnumpy(array.view("f4")) == data).all()
        array[:4] = 7
        cupy.cuda.runtime.deviceSynchronize()
        assert memory.tobytes(0, 5)[:4] == b"\7" * 4
        memory.copy_from(data)
    if torch:
        tensor = torch.from_dlpack(memory)
        assert tensor.data_ptr() == memory.ptr and (tensor.view(torch.float32).cpu().numpy() == data).all()
    managed = weft.Memory(100, "cuda-managed")
    managed.fill(5)
    assert bytes(managed) == b"\5" * 100
    memory = weft.Memory(100, "cuda")
    memory.fill(9)
    assert memory.tobytes() == b"\t" * 100


def test_without_a_loop(package):
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        b = listener.accept(timeout=30)
        data = some(10_000)
        into = package.put(numpy.zeros(10_000, "f4"))
        got = []
        receiver = threading.Thread(target=lambda: got.append(b.recv_into(into, tag=1, timeout=30)))
        receiver.start()
        a.send(package.put(data), tag=1, timeout=30)  # which waits for the receive: memory of a GPU is not copied on the way
        receiver.join()
        assert got == [data.nbytes] and (package.get(into) == data).all()


LENDER = """
import sys, weft, weft.blocking
data = bytes(range(256)) * 65536
memory = weft.Memory(len(data), "cuda")
memory.copy_from(data)
with weft.blocking.connect(sys.argv[1], timeout=60) as ep:
    for _ in range(int(sys.argv[2])):
        ep.am_send(5, memory, timeout=60)
        ep.send(b"done", tag=1)
    ep.recv(tag=2, timeout=60)
"""


def seen(view):
    """It as each package sees it: its name, and the bytes."""
    yield "weft", view.tobytes()
    if torch:
        for name, tensor in (("dlpack", torch.from_dlpack(view)), ("interface", torch.as_tensor(view, device="cuda"))):
            assert tensor.is_cuda and tensor.data_ptr() == view.ptr
            yield f"torch {name}", tensor.cpu().numpy().tobytes()
    if cupy:
        for name, array in (("dlpack", cupy.from_dlpack(view)), ("interface", cupy.asarray(view))):
            assert array.data.ptr == view.ptr
            yield f"cupy {name}", cupy.asnumpy(array).tobytes()


def test_memory_of_another_process_is_lent(run, child):
    data, kept = bytes(range(256)) * 65536, []

    async def body():
        async with weft.Runtime(transports="shm") as runtime:
            listener = runtime.listen("tcp://127.0.0.1:0")
            child(LENDER, listener.uri, "3")
            ep = await listener.accept(timeout=60)
            for _ in range(2):
                before = runtime.stats()["device_copies"]
                view = await (await ep.am_recv(5, timeout=60)).view_device(timeout=60)
                assert runtime.stats()["device_copies"] == before
                for name, got in seen(view):
                    assert got == data, name
                with pytest.raises(weft.TimeoutError):
                    await ep.recv(tag=1, timeout=0.1)
                view.release()
                assert await ep.recv(tag=1, timeout=60) == b"done"
            kept.append(await (await ep.am_recv(5, timeout=60)).view_device(timeout=60))
    run(body())
    for name, got in seen(kept[0]):  # the runtime is closed, and the sender goes
        assert got == data, name
    kept[0].release()


class Driver:
    """Streams of the driver itself, for machines without cupy and torch. What they are given takes its time: copies."""
    def __init__(self):
        self.library, self.ctx = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.ctx), 0)

    def call(self, name, *args):
        assert getattr(self.library, name)(*args) == 0, name

    def __enter__(self):
        self.call("cuCtxPushCurrent_v2", self.ctx)
        return self

    def __exit__(self, *error):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self):
        handle = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(handle), 1)
        return handle.value

    def copy(self, stream, to, memory, times=1):
        for _ in range(times):
            self.call("cuMemcpyAsync", ctypes.c_void_p(to.ptr), ctypes.c_void_p(memory.ptr), ctypes.c_size_t(memory.nbytes),
                      ctypes.c_void_p(stream))

    def write(self, stream, to, before, memory):
        """Have `before` in it for some time, and then `memory`."""
        self.copy(stream, to, before, 200)
        self.copy(stream, to, memory)

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))


class Named:
    """Memory of ours whose interface names a stream."""
    def __init__(self, memory, stream):
        self.memory = memory
        self.__cuda_array_interface__ = {**memory.__cuda_array_interface__, "stream": stream}


@pytest.mark.parametrize("n", [1000, 16 << 20])
@pytest.mark.parametrize("how", ["named", "given", "both", "legacy", "thread", "default"])
def test_operations_take_their_turn_in_streams(pair, how, n):
    async def body(p):
        with Driver() as cuda:
            data = some(n)
            stream, other = cuda.stream(), cuda.stream()
            behind = {"legacy": 1, "thread": 2, "default": 1}.get(how, stream)
            before, final, into = [Ours.put(array) for array in (numpy.zeros(n, "f4"), data, numpy.zeros(n, "f4"))]
            out, seen = Ours.put(numpy.ones(n, "f4")), weft.Memory(data.nbytes, "pinned")
            cuda.write(behind, out, before, final)
            buffer = out if how in ("given", "default") else Named(out, behind)
            receiving = p.b.recv_into(into, tag=1, stream=other)
            cuda.copy(other, seen, into)
            sending = p.a.send(buffer, tag=1, stream={"given": stream, "both": cuda.stream(), "default": 1}.get(how))
            assert await receiving == data.nbytes
            await sending
            cuda.synchronize(other)
            assert seen.tobytes() == data.tobytes()
            into.fill(0)
            region = p.right.region(data.nbytes)
            there = await p.a.attach(region.key())
            cuda.write(behind, out, before, final)
            await there.writev([buffer], stream=behind if how in ("given", "default") else None)
            assert bytes(region) == data.tobytes()
            await there.read_into(into, stream=other)
            cuda.copy(other, seen, into)
            cuda.synchronize(other)
            assert seen.tobytes() == data.tobytes()
            op = p.b.recv_into(into, tag=2, stream=other)
            op.cancel()
            while p.right.under_way:
                await asyncio.sleep(0)
            cuda.synchronize(other)
    pair(body)
