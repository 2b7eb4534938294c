"""GPU buffers, with a CUDA driver made of paper in the place of the real one: test_foreign.py runs this in a process of its own.

Memory of that driver's devices is encoded, so that a plain memcpy of it shows.
"""
import ctypes
import os

import numpy
import pytest

import weft
import weft.blocking

DATA = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def driver():
    assert "cuda" in weft.memory_kinds()
    return ctypes.CDLL("libcuda.so.1")


def gpu(data, kind="cuda"):
    memory = weft.Memory(len(data), kind)
    assert memory.copy_from(data) == len(data)
    return memory


class Array:
    """What another package's array would be: its interface is as one says."""
    def __init__(self, memory, **entries):
        self.memory = memory
        self.__cuda_array_interface__ = {**memory.__cuda_array_interface__, **entries}
        for name in [n for n, v in entries.items() if v is KeyError]:
            del self.__cuda_array_interface__[name]


class ByDLPack:
    def __init__(self, memory, **wrong):
        self.memory, self.calls, self.wrong = memory, [], wrong

    def __dlpack_device__(self):
        return self.wrong.get("device", self.memory.__dlpack_device__())

    def __dlpack__(self, **kw):
        self.calls.append(kw)
        return self.memory.__dlpack__(**kw)


def test_memory_of_a_gpu(driver):
    memory = gpu(DATA)
    assert (memory.kind, len(memory), memory.nbytes, memory.__dlpack_device__()[0]) == ("cuda", len(DATA), len(DATA), 2)
    assert ctypes.string_at(memory.ptr, 16) != DATA[:16], "it is encoded"
    assert memory.tobytes() == DATA and memory.tobytes(5, 3) == DATA[5:8]
    memory.fill(7, 10, 100_000)
    assert memory.tobytes() == DATA[:10] + b"\7" * 100_000 + DATA[100_010:]
    into = bytearray(100)
    assert memory.copy_to(into, 100_000) == 100 and into[:20] == b"\7" * 10 + DATA[100_010:100_020]
    assert memory.copy_to(gpu(bytes(50))) == 50
    for call in (lambda: memoryview(memory), lambda: numpy.frombuffer(memory, "u1")):
        with pytest.raises((BufferError, ValueError), match="GPU|buffer"):
            call()
    with pytest.raises(weft.InvalidError, match="overlap"):
        memory.copy_from(memory)
    with pytest.raises(weft.RangeError):
        memory.copy_from(bytes(len(DATA) + 1))
    interface = memory.__cuda_array_interface__
    assert (interface["shape"], interface["data"], interface["version"]) == ((len(DATA),), (memory.ptr, False), 3)
    managed = gpu(b"both see it", "cuda-managed")
    assert bytes(managed) == b"both see it" and managed.__dlpack_device__()[0] == 13 and hasattr(managed,
                                                                                                 "__cuda_array_interface__")
    assert not hasattr(weft.Memory(1), "__cuda_array_interface__")
    assert weft.memory_kinds() == ["host", "huge", "pinned", "cuda", "cuda-managed", "cuda-async", "cuda-vmm", "cuda-fd"]


@pytest.mark.parametrize("kind", ["cuda-async", "cuda-vmm", "cuda-fd"])
def test_memory_of_a_pool_and_mapped_memory(driver, pair, kind):
    memory = gpu(DATA, kind)
    assert (memory.kind, memory.nbytes, memory.__dlpack_device__()[0]) == (kind, len(DATA), 2)
    assert memory.tobytes() == DATA and memory.__cuda_array_interface__["data"] == (memory.ptr, False)

    async def body(p):
        into = gpu(bytes(len(DATA)), kind)
        before = p.left.stats(), p.right.stats()
        sending = p.a.send(Array(memory), tag=1)
        assert await p.b.recv_into(into, tag=1) == len(DATA)
        await sending
        assert into.tobytes() == DATA
        after = p.left.stats(), p.right.stats()
        direct = kind == "cuda-fd" and p.a.info["transport"] == "shm"  # others can open it, so its receiver copies it alone
        for b, a in list(zip(before, after))[direct:]:
            assert a["device_copies"] > b["device_copies"], (b, a)
        ways = [name for name in ("device_direct", "device_relayed", "device_bounced", "device_staged")
                if any(a[name] > b[name] for b, a in zip(before, after))]
        assert ways and ("device_direct" in ways) == direct and "device_imports" in after[0], ways
    pair(body)


@pytest.mark.parametrize("wrap", [lambda m: m, Array, ByDLPack])
@pytest.mark.parametrize("n", [0, 1, 4000, 1 << 20])
def test_messages_from_gpu_to_gpu(driver, pair, wrap, n):
    async def body(p):
        out, into = gpu(DATA[:n]), gpu(bytes(n))
        sending = p.a.send(wrap(out), tag=1)
        assert await p.b.recv_into(wrap(into), tag=1) == n
        await sending
        assert into.tobytes() == DATA[:n]
        into.fill(0)
        sending = p.a.am_send(2, wrap(out), header=b"head")
        message = await p.b.am_recv(2)
        assert await message.read_into(wrap(into)) == n and into.tobytes() == DATA[:n]
        await sending
    pair(body)


@pytest.mark.parametrize("mapped", [True, False])
def test_remote_memory_from_and_to_gpus(driver, pair, mapped):
    async def body(p):
        out, into = gpu(DATA), gpu(bytes(len(DATA)))
        region = p.right.region(len(DATA), mapped=mapped)
        remote = await p.a.attach(region.key())
        await remote.write(out)
        assert bytes(region) == DATA
        assert await remote.read_into(Array(into)) == len(DATA) and into.tobytes() == DATA
        exposed = gpu(bytes(1000))
        over = p.right.region(exposed)
        there = await p.a.attach(over.key())
        await there.write(DATA[:500], 100)
        assert exposed.tobytes(100, 500) == DATA[:500] == await there.read(100, 500)
        assert await there.atomic_add(0, 5) == 0 and exposed.tobytes(0, 8) == b"\5" + bytes(7)
        with pytest.raises(BufferError, match="GPU"):
            memoryview(over)
        await over.free()
        managed = p.right.region(weft.Memory(100, "cuda-managed"))
        await (await p.a.attach(managed.key())).write(b"x" * 100)
        assert bytes(managed) == b"x" * 100
    pair(body)


def test_what_takes_no_turn_in_streams_waits_for_them(driver, pair):
    """Memory that is copied or exposed at once. Operations come behind their streams: paper_streams.py."""
    async def body(p):
        memory, here = gpu(DATA[:100]), weft.Memory(100)

        def waits(call):
            before = driver.paper_default_waits(), driver.paper_context_waits()
            call()
            return driver.paper_default_waits() - before[0], driver.paper_context_waits() - before[1]
        for call in (here.copy_from, p.right.region):
            assert waits(lambda: call(memory)) == (0, 0)
            assert waits(lambda: call(Array(memory, stream=None))) == (0, 0)
            assert waits(lambda: call(Array(memory, stream=1))) == (1, 0)
            assert waits(lambda: call(Array(memory, stream=2))) == (0, 1)
            assert waits(lambda: call(Array(memory, stream=0xdeadbeef))) == (0, 1)  # not followed: all of them are waited for
            assert waits(lambda: call(Array(memory, stream=KeyError))) == (1, 0)
            assert waits(lambda: call(Array(memory, version=2, stream=KeyError))) == (1, 0)
            tensor = ByDLPack(memory)
            assert waits(lambda: call(tensor)) == (1, 0) and tensor.calls == [{"max_version": (1, 0), "stream": 1}]
        assert here.tobytes() == DATA[:100]
    pair(body)


HOSTILE = [("dict", None), ("dict", 7), ("dict", []), ("no dict of version", {"version": 4}),
           ("no dict of version", {"version": -1}), ("dict", {"version": "3"}),
           ("sound", {"shape": (-1,)}), ("sound", {"shape": (2**62, 2**62)}), ("sound", {"shape": (2**62, 4, 0)}),
           ("sound", {"shape": 7}), ("sound", {"shape": [1]}),
           ("sound", {"shape": (1.5,)}), ("sound", {"shape": (2**70,)}), ("sound", {"shape": (1,) * 17}),
           ("sound", {"shape": KeyError}),
           ("sound", {"typestr": ""}), ("sound", {"typestr": "|"}), ("sound", {"typestr": "u1"}), ("sound", {"typestr": "|O8"}),
           ("sound", {"typestr": "<f"}),
           ("sound", {"typestr": "<f-4"}), ("sound", {"typestr": "<f99999999999999"}), ("sound", {"typestr": 7}),
           ("sound", {"typestr": "\ud800"}),
           ("sound", {"data": None}), ("sound", {"data": 7}), ("sound", {"data": (1,)}), ("sound", {"data": ("x", False)}),
           ("sound", {"data": (-1, False)}),
           ("sound", {"data": (2**64, False)}), ("sound", {"strides": (1, 1)}), ("sound", {"strides": 7}),
           ("not contiguous", {"strides": (2,)}), ("not contiguous", {"strides": (-1,)}),
           ("not contiguous", {"shape": (2, 2), "strides": (4, 1)}),
           ("mask", {"mask": object()}), ("stream", {"stream": 0}), ("stream", {"stream": "x"}), ("stream", {"stream": -1}),
           ("stream", {"stream": True}), ("stream", {"stream": 1.5}), ("stream", {"stream": 2**64}),
           ("address", {"data": (0, False)}), ("address", {"data": (4096, False)}), ("address", {"data": (2**64 - 1, False)}),
           ("address", {"shape": (2**40,)}), ("address", {"shape": (2**63 - 1,)}), ("address", {"data": (id(DATA), False)})]


@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_hostile_interfaces_are_refused(driver, pair, n):
    sentence, entries = HOSTILE[n]

    async def body(p):
        memory = gpu(DATA[:100])
        array = Array(memory)
        if isinstance(entries, dict):
            array = Array(memory, **entries)
        else:
            array.__cuda_array_interface__ = entries
        for call in (lambda: p.a.send(array), lambda: p.b.recv_into(array), lambda: p.right.region(array)):
            with pytest.raises(weft.InvalidError, match=sentence):
                call()
    pair(body)


def test_read_only_and_empty(driver, pair):
    async def body(p):
        memory = gpu(DATA[:100])
        frozen = Array(memory, data=(memory.ptr, True))
        with pytest.raises(weft.InvalidError, match="read-only"):
            p.b.recv_into(frozen)
        await p.a.send(frozen)
        assert await p.b.recv() == DATA[:100]
        assert p.right.region(frozen, name="x") and (await p.a.find("x")).rights == "r"
        for entries in ({"shape": (0,), "data": (0, False)}, {"shape": (0, 5), "data": (None, False)},
                        {"shape": (5, 0), "strides": (1, 7)}):
            await p.a.send(Array(memory, **entries))
            assert await p.b.recv() == b""
        for entries in ({"shape": (5, 2), "typestr": "<f4"}, {"shape": (2, 5), "typestr": "<f4", "strides": (4, 8)},
                        {"shape": (), "typestr": "|V40"}):
            await p.a.send(Array(memory, **entries))
            assert await p.b.recv() == DATA[:40]
        with pytest.raises(weft.InvalidError, match="another|address"):
            p.a.send(ByDLPack(weft.Memory(10), device=(2, 0)))
        with pytest.raises(weft.InvalidError, match="another"):
            p.a.send(ByDLPack(memory, device=(1, 0)))
    pair(body)


def test_without_a_loop(driver):
    with weft.blocking.Runtime() as left, weft.blocking.Runtime() as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        b = listener.accept(timeout=30)
        into = gpu(bytes(5000))
        a.send(Array(gpu(DATA[:5000])), tag=1)
        assert b.recv_into(ByDLPack(into), tag=1) == 5000 and into.tobytes() == DATA[:5000]


def test_a_child_of_a_fork_is_told(driver):
    memory = gpu(b"parent's")
    pid = os.fork()
    if not pid:
        try:
            memory.tobytes()
        except weft.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
