"""Memory of the library's kinds: copies, views, and what other packages see."""
import gc
import weakref

import numpy
import pytest

import weft


def kinds():
    return [kind for kind in weft.memory_kinds() if not kind.startswith("cuda")]


def test_the_kinds_of_every_machine():
    assert {"host", "huge", "pinned"} <= set(weft.memory_kinds())


@pytest.mark.parametrize("kind", kinds())
def test_memory_of_a_kind(kind):
    memory = weft.Memory(10_000, kind)
    assert (memory.kind, memory.nbytes, len(memory), memory.ptr % 64) == (kind, 10_000, 10_000, 0)
    assert repr(memory) == f"<weft.Memory of 10000 bytes, {kind}>"
    memory.fill()
    assert memory.tobytes() == bytes(10_000)
    view = numpy.frombuffer(memory, "u1")
    memory.fill(3, offset=5, n=2)
    assert view.sum() == 6 and view[5] == view[6] == 3
    assert memory.copy_from(b"hello", 100) == 5 and bytes(view[100:105]) == b"hello" == memory.tobytes(100, 5)
    into = numpy.zeros(5, "u1")
    assert memory.copy_to(into, 100) == 5 and bytes(into) == b"hello"
    assert memory.copy_to(weft.Memory(10_000)) == 10_000
    array = numpy.from_dlpack(memory)
    assert (array.dtype, array.shape) == ("u1", (10_000,)) and array.ctypes.data == memory.ptr
    assert memory.__dlpack_device__() == (1, 0) and not hasattr(memory, "__cuda_array_interface__")
    gone = weakref.ref(memory)
    del memory, view
    gc.collect()
    assert gone() and bytes(array[100:105]) == b"hello", "whoever sees it holds it"
    del array
    gc.collect()
    assert not gone()


def test_versions_of_dlpack():
    memory = weft.Memory(4)
    assert "dltensor_versioned" in repr(memory.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" in repr(memory.__dlpack__(max_version=(2, 5), stream=None, dl_device=(1, 0), copy=False))
    assert '"dltensor"' in repr(memory.__dlpack__()) and '"dltensor"' in repr(memory.__dlpack__(max_version=(0, 8)))
    with pytest.raises(BufferError, match="copy"):
        memory.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="another device"):
        memory.__dlpack__(dl_device=(2, 0))
    for bad in ({"max_version": 1}, {"max_version": (1,)}, {"max_version": ("a", "b")}, {"dl_device": "cpu"}, {"nonsense": 1}):
        with pytest.raises((TypeError, SystemError)):
            memory.__dlpack__(**bad)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert not gone(), "capsules that nobody took let go of it"


def test_bad_arguments():
    for bad in (-1, 2**63, 2**64):
        with pytest.raises(OverflowError, match="nbytes"):
            weft.Memory(bad)
    for bad in (None, "x", 1.5, []):
        with pytest.raises(TypeError):
            weft.Memory(bad)
    with pytest.raises(weft.NoMemoryError):
        weft.Memory(2**62)
    with pytest.raises(weft.UnsupportedError, match='no memory kind "nonsense": host, huge, pinned, cuda, '):
        weft.Memory(1, "nonsense")
    with pytest.raises((ValueError, TypeError)):
        weft.Memory(1, "a\0b")
    memory = weft.Memory(100)
    for call in (lambda: memory.tobytes(101), lambda: memory.tobytes(0, 101), lambda: memory.fill(0, 50, 51),
                 lambda: memory.copy_from(b"x", 100),
                 lambda: memory.copy_to(bytearray(101)), lambda: memory.tobytes(2**64 - 1, 2)):
        with pytest.raises(weft.RangeError, match="not within"):
            call()
    for call in (lambda: memory.fill(256), lambda: memory.fill(-1), lambda: memory.tobytes(-1)):
        with pytest.raises(OverflowError):
            call()
    with pytest.raises(weft.InvalidError, match="overlap"):
        memory.copy_to(memory)
    with pytest.raises(weft.InvalidError, match="read-only"):
        memory.copy_to(b"const")
    with pytest.raises(TypeError, match="buffer protocol"):
        memory.copy_from("text")
    assert weft.Memory(0).tobytes() == b"" and weft.Memory(0).copy_from(b"") == 0
    weft.Memory(0).fill(1)


def test_it_is_sent_and_received(pair):
    async def body(p):
        out, into = weft.Memory(100_000, "pinned"), weft.Memory(100_000, "huge")
        out.fill(9)
        sending = p.a.send(out)
        assert await p.b.recv_into(into) == 100_000 and into.tobytes() == b"\t" * 100_000
        await sending
        region = p.right.region(into)
        await (await p.a.attach(region.key())).write(b"x")
        assert into.tobytes(0, 1) == b"x"
    pair(body)
