"""Arrays over an element's memory: what is read is fetched once, what is written goes back, and nothing else moves."""
import gc
import warnings

import pytest

import weft

from elementside import BOUND, action, memory, pair

numpy = pytest.importorskip("numpy")


@pytest.fixture
def trans():
    """A transport whose traffic is counted by the element, since nothing is mapped; no buffer is registered."""
    with memory(80000, mapped=False) as element, action(element.durl) as made:
        got = made.get_transport("mem", "rdma")
        got.wait_ready(BOUND)
        yield got, element


def moved(element):
    stats = element.stats()
    return stats["bytes_read"], stats["bytes_written"]


def test_only_what_is_touched_moves(trans):
    trans, element = trans
    with trans.remote_array("f8", (100, 100)) as array:
        assert (array.shape, array.ndim, array.size, array.nbytes, len(array), array.dtype) == ((100, 100), 2, 10000, 80000, 100,
                                                                                                numpy.float64)
        assert moved(element) == (0, 0)
        assert array[7].tolist() == [0.0] * 100 and moved(element) == (800, 0)
        assert array[7, 5] == 0.0 and array[7, 10:20].sum() == 0 and moved(element) == (800, 0)  # it is here
        assert array[:, 3].sum() == 0 and moved(element) == (800 + 99 * 8, 0)
        array[50, 50] = 5.0
        array[7] = numpy.arange(100)
        assert moved(element)[1] == 0 and array.dirty == 101
        array.flush()
        assert moved(element)[1] == 101 * 8 and array.dirty == 0
        array.flush()
        assert moved(element)[1] == 101 * 8
        array[60:62] += 1  # fetched, changed, written
        assert array.fetched == 100 + 99 + 1 + 198
    assert moved(element)[1] == 301 * 8 and array.closed
    with trans.remote_array("f8", (100, 100)) as again:
        assert again[50, 50] == 5.0 and again[7].tolist() == list(range(100)) and (again[60:62] == 1).all() and again[59, 0] == 0
    with pytest.raises(ValueError, match="closed"):
        array[0]


def test_writes_of_others_beside_ours_stay(trans):
    trans, _ = trans
    with trans.remote_array("u8", 1000) as ours, trans.remote_array("u8", 1000) as theirs:
        ours[0:1000:2] = 1
        theirs[1:1000:2] = 2
        ours.flush()
        theirs.flush()
        assert ours[1] == 2 and ours[:10].tolist() == [1, 2] * 5
        theirs[1] = 9
        theirs.flush()
        assert ours[1] == 2  # as it was fetched
        ours[3] = 7
        ours.refresh()
        assert ours[1] == 9 and ours[3] == 7  # what is not flushed stays


def test_it_is_as_numpy_would_have_it(trans):
    trans, _ = trans
    rng = numpy.random.default_rng(3)
    model = numpy.zeros((8, 9, 10), "i4")
    keys = [0, -1, (1, 2), (1, 2, 3), slice(2, 6), (slice(None), 3), (..., 4), (slice(None, None, 2), slice(8, 2, -3)), ...,
            (slice(0, 0),), (None, 3), (slice(None), slice(1, 8, 3), slice(None, None, -1)), ()]
    with trans.remote_array("i4", (8, 9, 10), offset=400) as array:
        for _ in range(60):
            key = keys[rng.integers(len(keys))]
            if rng.integers(2):
                value = rng.integers(1 << 20, size=numpy.shape(model[key]), dtype="i4")
                model[key] = value
                array[key] = value
            got = array[key]
            assert numpy.array_equal(got, model[key]) and numpy.shape(got) == numpy.shape(model[key])
            if rng.integers(3) == 0:
                array.flush()
                array.refresh()
        assert numpy.array_equal(numpy.asarray(array), model) and numpy.asarray(array, "f8").dtype == numpy.float64
    with trans.remote_array("i4", (8, 9, 10), 400) as array:
        assert numpy.array_equal(array[...], model)


def test_more_pieces_than_one_operation_takes(trans):
    trans, element = trans
    with trans.remote_array("u1", 80000) as array:
        array[::2] = 1  # 40000 pieces, of which 4096 go in one
    assert moved(element) == (0, 40000)
    with trans.remote_array("u1", 80000) as array:
        assert array[::2].all() and moved(element) == (40000, 40000)
        assert not array[1::2].any() and moved(element) == (80000, 40000)


def test_what_is_no_index_and_no_array(trans):
    trans, _ = trans
    with trans.remote_array("f8", (10, 10)) as array:
        for bad in ([1, 2], numpy.zeros(10, bool), "x", 1.5, True):
            with pytest.raises((TypeError, IndexError)):
                array[bad]
            with pytest.raises((TypeError, IndexError)):
                array[bad] = 1
        with pytest.raises(IndexError):
            array[10]
        with pytest.raises(ValueError):
            array[0] = [1, 2, 3]
        assert array.dirty == 0
        mine = array[0]
        mine[:] = 7
        assert array[0, 0] == 0  # an index gives a copy
    for dtype, shape, offset in [("f8", 10001, 0), ("f8", 10000, 8), ("O", 1, 0), ("f8", -1, 0), ("f8", 1, -8)]:
        with pytest.raises(ValueError):
            trans.remote_array(dtype, shape, offset)
    empty = trans.remote_array("f8", (0, 5))
    assert empty[...].shape == (0, 5)
    empty.close()


def test_what_was_not_written_back_is_said(trans):
    trans, element = trans
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        array = trans.remote_array("f8", 10)
        array[3] = 1
        del array
        gc.collect()
    assert any(issubclass(w.category, ResourceWarning) and "1 elements" in str(w.message) for w in said)
    with pytest.raises(ZeroDivisionError), trans.remote_array("f8", 10) as array:
        array[3] = 1
        raise ZeroDivisionError
    assert array.closed and moved(element)[1] == 0  # half of what was meant is not written


def test_an_element_that_is_gone_fails_and_keeps_what_is_dirty():
    with pair(4096) as trans:
        array = trans.remote_array("f8", 10)
        array[3] = 1
        trans.action.release("mem")
        for use in (array.flush, array.close, lambda: array[5]):
            with pytest.raises(weft.ClosedError):
                use()
        assert array.dirty == 1 and array[3] == 1
        array._closed = True
