"""Buffers of objects without the buffer protocol: DLPack on the host, hostile tensors, and GPU memory with a CUDA driver made
of paper."""
import ctypes
import gc
import os
import subprocess
import sys

import numpy
import pytest

import weft

PAPER = os.path.join(os.path.dirname(weft._core.__file__), "..", "..", "tests", "paper")
HERE = os.path.dirname(os.path.abspath(__file__))


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Old(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def numbers(of):
    return None if of is None else (ctypes.c_int64 * max(1, len(of)))(*of)


class Made:
    """An exporter of whatever tensor one says, which counts its deletions."""
    def __init__(self, memory, shape, strides=None, *, versioned=True, device=(1, 0), major=1, flags=0, name=None, **fields):
        self.memory, self.device, self.deleted, self.calls, self.versioned = memory, device, 0, [], versioned
        self.keep = numbers(shape), numbers(strides)
        t = {"data": ctypes.addressof(memory) if memory else None, "device_type": device[0], "device_id": device[1],
             "ndim": len(shape), "code": 1,
             "bits": 8, "lanes": 1, "shape": self.keep[0] and ctypes.cast(self.keep[0], ctypes.POINTER(ctypes.c_int64)),
             "strides": self.keep[1] and ctypes.cast(self.keep[1], ctypes.POINTER(ctypes.c_int64)), **fields}
        tensor = Tensor(**{k: v for k, v in t.items() if v is not None})
        self.deleter = DELETER(self.delete)
        self.managed = Versioned(major, 0, None, self.deleter, flags, tensor) if versioned else Old(tensor, None, self.deleter)
        self.name = name or (b"dltensor_versioned" if versioned else b"dltensor")

    def delete(self, managed):
        assert managed == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kw):
        self.calls.append(kw)
        if not self.versioned and "max_version" in kw:
            raise TypeError("unexpected keyword argument")
        return new(ctypes.addressof(self.managed), self.name, None)


def block(n, fill=b""):
    memory = (ctypes.c_char * n)()
    memory.raw = fill.ljust(n, b"\0")
    return memory


@pytest.mark.parametrize("versioned", [True, False])
def test_a_tensor_is_sent_received_and_given_back(pair, versioned):
    async def body(p):
        out = Made(block(24, bytes(range(24))), (2, 3), versioned=versioned, bits=16, byte_offset=2)
        into = Made(block(12), (12,), versioned=versioned)
        await p.a.send(out, tag=1)
        assert out.deleted == 1
        receiving = p.b.recv_into(into, tag=2)
        assert into.deleted == 0
        await p.a.send(await p.b.recv(tag=1), tag=2)
        assert await receiving == 12 and into.memory.raw == bytes(range(2, 14)) and into.deleted == 1
        assert all("stream" not in call for call in out.calls)
        await p.a.am_send(3, out)
        assert (await (await p.b.am_recv(3)).read()) == bytes(range(2, 14)) and out.deleted == 2
        region = p.right.region(100)
        remote = await p.a.attach(region.key())
        await remote.write(out, 50)
        assert await remote.read(50, 12) == bytes(range(2, 14)) and out.deleted == 3
    pair(body)


@pytest.mark.parametrize("versioned", [True, False])
def test_orders_and_emptiness(pair, versioned):
    async def body(p):
        memory = block(24, bytes(range(24)))
        for shape, strides in (((2, 3, 4), None), ((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (1, 2, 6)), ((24, 1), (1, 77)), ((), None),
                               ((1,) * 16, None)):
            made = Made(memory, shape, strides, versioned=versioned)
            await p.a.send(made, tag=1)
            assert len(await p.b.recv(tag=1)) == int(numpy.prod(shape)) and made.deleted == 1
        for shape in ((0,), (3, 0, 5)):
            made = Made(None, shape, (7,) * len(shape), versioned=versioned)
            await p.a.send(made, tag=1)
            assert await p.b.recv(tag=1) == b"" and made.deleted == 1
    pair(body)


HOSTILE = [
    ("not contiguous", {"shape": (2, 3), "strides": (4, 1)}),
    ("not contiguous", {"shape": (6,), "strides": (2,)}),
    ("not contiguous", {"shape": (6,), "strides": (-1,)}),
    ("negative", {"shape": (-1,)}),
    ("negative", {"shape": (2, -(2**63))}),
    ("64 bits", {"shape": (2**62, 4)}),
    ("64 bits", {"shape": (2**62, 4, 0)}),
    ("no memory", {"shape": (2**61, 4)}),
    ("dimensions", {"shape": (1,) * 17}),
    ("dimensions", {"shape": (1,), "ndim": -1}),
    ("no shape", {"shape": (1,), "drop_shape": True}),
    ("no memory", {"shape": (1,), "data": 0}),
    ("no memory", {"shape": (1,), "byte_offset": 2**64 - 1}),
    ("", {"shape": (1,), "code": 77}),
    ("", {"shape": (1,), "bits": 3}),
    ("", {"shape": (1,), "bits": 0}),
    ("", {"shape": (1,), "lanes": 0}),
    ("another", {"shape": (1,), "device_type": 2}),
]


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_hostile_tensors_are_refused_and_left_alone(pair, versioned, n):
    async def body(p):
        sentence, fields = HOSTILE[n]
        fields = dict(fields)
        drop = fields.pop("drop_shape", False)
        made = Made(block(100), versioned=versioned, **fields)
        if drop:
            made.managed.tensor.shape = None
        if "data" in fields:
            made.managed.tensor.data = None
        for call in (lambda: p.a.send(made, tag=1), lambda: p.b.recv_into(made, tag=1), lambda: p.right.region(made)):
            with pytest.raises(weft.InvalidError, match=sentence):
                call()
        assert made.deleted == 0  # the capsule was not consumed: it is its maker's
        assert p.left.under_way == p.right.under_way == 0
    pair(body)


def test_versions_flags_names_and_devices(pair):
    async def body(p):
        memory = block(10)
        with pytest.raises(weft.UnsupportedError, match="version 2"):
            p.a.send(Made(memory, (10,), major=2))
        frozen = Made(memory, (10,), flags=1)
        with pytest.raises(weft.InvalidError, match="read-only"):
            p.b.recv_into(frozen)
        await p.a.send(frozen)
        assert await p.b.recv() == bytes(10) and frozen.deleted == 1
        for name in (b"used_dltensor", b"tensor", None):
            made = Made(memory, (10,), name=name or b"x")
            made.name = name
            with pytest.raises(TypeError, match="no tensor"):
                p.a.send(made)
        for device in ((7, 0), (-1, 0), (0, 0), (10**6, 0)):
            with pytest.raises(weft.UnsupportedError, match="type"):
                p.a.send(At(device))
        for device in (1, "cpu", (1,), (1, 2, 3), ("a", 0), None, (2**70, 0)):
            with pytest.raises((TypeError, OverflowError)):
                p.a.send(At(device))
        for answer in (None, 7, b"", object(), RuntimeError("trouble")):
            with pytest.raises((TypeError, RuntimeError)):
                p.a.send(Answers(answer))
        shared = Made(memory, (10,))
        capsule = shared.__dlpack__()
        first = Answers(capsule)
        await p.a.send(first)
        await p.b.recv()
        with pytest.raises(TypeError, match="no tensor"):  # a capsule is consumed once
            p.a.send(first)
        assert shared.deleted == 1
    pair(body)


class At:
    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kw):
        raise AssertionError("not asked for")


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **kw):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_cancelling_holds_the_tensor(pair):
    async def body(p):
        made = Made(block(10), (10,))
        op = p.b.recv_into(made, tag=1)
        op.cancel()
        while p.right.under_way:
            await p.a.send(b"", tag=2)
            await p.b.recv(tag=2)
        assert made.deleted == 1
    pair(body)


def test_what_has_no_gpu_says_so(pair):
    if "cuda" in weft.memory_kinds():
        pytest.skip("this machine has a GPU")

    class Claims:
        __cuda_array_interface__ = {"version": 3, "shape": (1,), "typestr": "|u1", "data": (4096, False), "strides": None}

    async def body(p):
        for thing in (Claims(), At((2, 0)), At((13, 0))):
            with pytest.raises(weft.UnsupportedError, match="CUDA"):
                p.a.send(thing)
        with pytest.raises(TypeError, match="neither"):
            p.a.send(Claims)
        for stream in (1, 2, 4096, Stream()):
            for call in (lambda: p.a.send(b"x", stream=stream), lambda: p.a.send_many([b"x"], stream=stream),
                         lambda: p.a.am_send(1, stream=stream), lambda: p.b.recv_into(bytearray(1), stream=stream)):
                with pytest.raises(weft.UnsupportedError, match="CUDA"):
                    call()
        await p.a.send(b"x", stream=None)
        assert await p.b.recv_into(bytearray(1), stream=None) == 1
        assert p.left.under_way == p.right.under_way == 0
    pair(body)


class Stream:
    cuda_stream = 0


@pytest.mark.parametrize("file", ["paper_cuda.py", "paper_streams.py", "paper_lend.py"])
def test_gpu_memory_with_a_driver_made_of_paper(file):
    if not os.path.exists(os.path.join(PAPER, "libcuda.so.1")):
        pytest.skip("the CUDA driver made of paper is not built")
    child = subprocess.run([sys.executable, "-X", "dev", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                            os.path.join(HERE, file)],
                           env={**os.environ, "LD_LIBRARY_PATH": PAPER, "PAPER_THREAD": "10",
                                "PYTHONPATH": os.pathsep.join(sys.path)},
                           timeout=150, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.returncode == 0, child.stdout
    assert " 0 skipped" in child.stdout


def test_nothing_is_left_of_them():
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Made)]
