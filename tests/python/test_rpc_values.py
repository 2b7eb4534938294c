"""Objects as values and back: every type, what does not fit, what only looks like it, and memory that others look at."""
import array
import ctypes
import gc
import random
import sys
import weakref

import numpy
import pytest

import weft
from weft._core import _as_value as value

INTS = {f"{sign}{bits}": (-(1 << bits - 1) if sign == "i" else 0, (1 << bits - (sign == "i")) - 1) for sign in "iu"
        for bits in (8, 16, 32, 64)}


@pytest.mark.parametrize("type", INTS)
def test_whole_numbers_keep_their_value_to_the_edges_and_not_beyond(type):
    least, most = INTS[type]
    for n in (least, most, 0, 1, most // 3):
        assert value(type, n) == n
        assert value(f"[{type}]", [n, n]) == ([n, n] if type != "u8" else bytes([n, n]))
    for n in (least - 1, most + 1, 1 << 64, -(1 << 200)):
        with pytest.raises(OverflowError, match=rf"^f: argument x is -?\d+, which does not fit in {type}$"):
            value(type, n)
    with pytest.raises(OverflowError, match=rf"argument x\[1\] is {most + 1}, which"):
        value(f"[{type}]", [0, most + 1])
    for wrong in (1.0, "1", b"1", None, [1], 1j):
        with pytest.raises(TypeError, match=f"where {type} is wanted"):
            value(type, wrong)


def test_numbers_of_numpy_are_numbers():
    assert value("i32", numpy.int64(5)) == 5
    assert value("f32", numpy.float32(1.5)) == 1.5
    assert value("f64", numpy.int8(3)) == 3.0
    assert value("bool", numpy.bool_(True)) is True


def test_floats():
    assert value("f64", 0.1) == 0.1 and value("f64", 7) == 7.0
    assert value("f32", 0.5) == 0.5 and value("f32", float("inf")) == float("inf")
    assert value("f64", float("nan")) != value("f64", float("nan"))
    with pytest.raises(OverflowError, match="does not fit in f32"):
        value("f32", 1e39)
    with pytest.raises(OverflowError, match="does not fit in f64"):
        value("f64", 10 ** 400)
    with pytest.raises(TypeError, match="argument x is '1.5', where f64 is wanted"):
        value("f64", "1.5")


def test_truth_is_not_guessed():
    assert value("bool", True) is True and value("bool", False) is False
    for wrong in (1, 0, "true", None, []):
        with pytest.raises(TypeError, match="where bool is wanted"):
            value("bool", wrong)


def test_text_is_text():
    for text in ("", "hé", "\0", "x" * 5000, "\U0001f9f5"):
        assert value("string", text) == text
    with pytest.raises(TypeError, match="of type bytes, where string is wanted"):
        value("string", b"x")
    with pytest.raises(ValueError, match="UTF-8"):
        value("string", "\ud800")


def test_bytes():
    for data in (b"", b"\0abc", bytearray(b"x" * 5000), memoryview(b"abc"), [1, 2, 255], array.array("B", [7])):
        assert value("[u8]", data) == bytes(data)
    assert value("[u8]", memoryview(b"abcdef")[::2]) == b"ace"
    with pytest.raises(TypeError):
        value("[u8]", "text")


def test_vectors_from_whatever_has_items():
    for items in ([1, 2, 3], (1, 2, 3), range(1, 4), numpy.array([1, 2, 3]), numpy.array([1.0, 2.0, 3.0]),
                  array.array("d", [1, 2, 3]), numpy.arange(1, 7)[:3], numpy.array([1, 0, 2, 0, 3])[::2]):
        assert value("[f64]", items) == [1.0, 2.0, 3.0]
    assert value("[bool]", [True, False]) == [True, False] and value("[f32]", []) == []
    for wrong in ({}, {1, 2}, 5, "12", None, object(), numpy.float64(1)):
        with pytest.raises(TypeError, match=r"where \[f64\] is wanted"):
            value("[f64]", wrong)
    with pytest.raises(TypeError, match=r"argument x\[0\] is of type ndarray, where f64 is wanted"):
        value("[f64]", numpy.ones((2, 3)))


def test_items_that_run_code_while_they_are_read():
    items = []

    class Clears:
        def __index__(self):
            items.clear()
            return 1
    items.extend([Clears(), 2, 3])
    assert value("[i64]", items) == [1, 2, 3]

    class Raises:
        def __index__(self):
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        value("[i64]", [Raises()])


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_tensors_of_every_kind(dtype):
    a = numpy.arange(24).reshape(2, 3, 4).astype(dtype)
    for view in (a, a.T, a[:, ::-1], a[..., 1:3], a[1, 1], a[0, 0, 0], a[:0], numpy.broadcast_to(a[0, 0], (5, 4)),
                 numpy.asfortranarray(a)):
        t = value("tensor", numpy.asarray(view))
        assert isinstance(t, weft.Tensor) and t.shape == view.shape and t.nbytes == view.nbytes and t.ndim == view.ndim
        back = numpy.asarray(t)
        assert back.dtype == view.dtype and (back == view).all() and t.tobytes() == view.tobytes()
        assert value("tensor", t).tobytes() == view.tobytes()


def test_a_tensor_of_no_dimensions():
    t = value("tensor", numpy.array(5.5))
    assert t.shape == () and numpy.asarray(t) == 5.5
    with pytest.raises(TypeError):
        len(t)


def test_what_is_no_tensor():
    for wrong, words in ((numpy.array(["a"]), "format"), (numpy.zeros(3, ">i4"), "format"), (numpy.zeros(2, "i4,f4"), "format"),
                         (5, "DLPack"),
                         ([1], "DLPack"), ("x", "DLPack"), (numpy.zeros((1,) * 17), "16"), (numpy.zeros(2, "g"), "format"),
                         (numpy.zeros(4, "i4,i1")["f0"], "strides")):
        with pytest.raises((TypeError, ValueError), match=words):
            value("tensor", wrong)
    with pytest.raises(TypeError, match=r"argument x\[1\] is 7, where a tensor"):
        value("[tensor]", [numpy.ones(2), 7])


def test_dlpack_both_ways():
    class Only:
        """Nothing but DLPack."""
        def __init__(self, a):
            self.a = a

        def __dlpack__(self, **options):
            return self.a.__dlpack__(**options)

    t = value("tensor", Only(numpy.arange(6.0).reshape(2, 3)))
    assert (numpy.asarray(t) == numpy.arange(6.0).reshape(2, 3)).all()
    assert t.__dlpack_device__() == (1, 0)
    b = numpy.from_dlpack(t)
    del t
    gc.collect()
    assert (b == numpy.arange(6.0).reshape(2, 3)).all()

    class Broken:
        def __dlpack__(self, **options):
            return 5
    with pytest.raises(TypeError, match="gives no tensor"):
        value("tensor", Broken())


def test_a_capsule_that_nobody_takes_lets_go_of_its_tensor():
    t = value("tensor", numpy.ones(1000))
    before = sys.getrefcount(t)
    capsule = t.__dlpack__()
    assert sys.getrefcount(t) == before + 1
    del capsule
    assert sys.getrefcount(t) == before


def test_a_tensor_is_a_sequence():
    t = value("[i32]", [5, 6, 7])
    assert list(t) == [5, 6, 7] and t[1] == 6 and t[-1] == 7 and len(t) == 3 and list(t[1:]) == [6, 7] and 6 in t
    assert t == [5, 6, 7] and t == (5, 6, 7) and t != [5, 6] and t == value("[i64]", [5, 6, 7]) and t != 5
    assert repr(t) == "weft.Tensor([5, 6, 7], i32)" and t.dtype == "i32"
    assert value("tensor", numpy.ones((2, 2)))[1, 1] == 1.0
    with pytest.raises(IndexError):
        t[3]
    with pytest.raises(TypeError):
        hash(t)
    with pytest.raises(TypeError):
        weft.Tensor()


def test_what_was_viewed_is_let_go_of():
    data = bytearray(b"x" * 100)
    assert value("[u8]", data) == bytes(data)
    data.append(0)  # BufferError while anybody holds it

    class Array(numpy.ndarray):
        pass
    a = numpy.ones(10).view(Array)
    gone = weakref.ref(a)
    for wanted in ("tensor", "[f64]"):
        value(wanted, a)
    with pytest.raises(TypeError):
        value("[tensor]", [a, 5])
    del a
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore")
def test_strange_objects_are_refused_and_never_crash():
    class Lies:
        def __len__(self):
            return 10 ** 5

        def __getitem__(self, i):
            raise ValueError("none")

        def __index__(self):
            return "x"

        def __float__(self):
            return "x"

        def __bool__(self):
            raise ValueError

    class bool_(Lies):
        pass
    rng = random.Random(6)
    kinds = [*INTS, "f32", "f64", "bool", "string", "tensor"]
    kinds += [f"[{k}]" for k in kinds if k != "string"]
    things = [Lies(), bool_(), type, sys, lambda: 0, ctypes.c_int(5), (ctypes.c_char * 3)(), iter([1]), {1: 2}, frozenset(),
              10 ** 5000,
              float("nan"), "\udfff", numpy.array(None), numpy.ma.masked, memoryview(b""), memoryview(bytearray(8)).cast("d"),
              ..., NotImplemented,
              [[1]], [None], (Lies(),), numpy.zeros((0, 3)), numpy.datetime64("now"), numpy.recarray(2, "i4"),
              array.array("u", "ab")]
    for _ in range(2000):
        try:
            value(rng.choice(kinds), rng.choice(things))
        except (TypeError, ValueError, OverflowError) as error:
            assert str(error)


def test_the_code_of_an_error_by_number_or_by_name():
    error = weft.CallError("NOT_FOUND", "no such thing", category=300, value=-4)
    assert (error.code, error.code_name, error.message, error.category, error.value,
            error.ran) == (5, "NOT_FOUND", "no such thing", 300, -4, "")
    assert str(error) == "NOT_FOUND: no such thing" and str(weft.CallError(5)) == "NOT_FOUND"
    for wrong in (0, 17, "not_found", "", -1, 1 << 70):
        with pytest.raises(ValueError, match="neither a number from 1 to 16 nor a name"):
            weft.CallError(wrong)
    for wrong in (None, 1.5, b"x"):
        with pytest.raises(TypeError):
            weft.CallError(wrong)
