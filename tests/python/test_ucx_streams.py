"""ucp._libs.ucx_api: streams and active messages."""
import os
import random

import pytest
from test_ucx_api import Both, Calls

from ucp import exceptions
from ucp._libs import ucx_api
from ucp._libs.arr import Array
from ucp._libs.stream import PIECE


@pytest.fixture(params=["sm", "tcp"])
def both(request):
    made = Both({"TLS": request.param})
    yield made
    made.close()


def wait(both, request, calls):
    if request is not None:
        both.until(lambda: calls)


@pytest.mark.parametrize("seed", range(3))
def test_every_byte_once_and_in_order(both, seed):
    rng = random.Random(seed)
    data = rng.randbytes(3_000_000)
    sent, sending, at = Calls(), 0, 0
    while at < len(data):
        n = min(rng.choice([1, 7, 100, 5000, 70_000, PIECE, PIECE + 1, 900_000]), len(data) - at)
        if ucx_api.stream_send_nb(both.a, data[at:at + n], n, sent, cb_args=(at,)) is not None:
            sending += 1
        at += n
    got, at = bytearray(len(data)), 0
    view = memoryview(got)
    while at < len(data):
        n = min(rng.choice([1, 3, 1000, 65_536, 300_000, 1_000_000]), len(data) - at)
        calls = Calls()
        wait(both, ucx_api.stream_recv_nb(both.b, view[at:at + n], n, calls), calls)
        assert not calls or calls[0][1] is None
        at += n
    assert got == data
    both.until(lambda: len(sent) == sending)
    assert all(c[1] is None for c in sent)


def test_receives_posted_first_are_served_in_order(both):
    calls, buffers = Calls(), [bytearray(n) for n in (3, 1, 4, 1, 5)]
    requests = [ucx_api.stream_recv_nb(both.b, b, len(b), calls, cb_args=(i,)) for i, b in enumerate(buffers)]
    assert all(requests) and not calls
    ucx_api.stream_send_nb(both.a, b"abcde", 5, None)
    both.until(lambda: len(calls) == 2)
    ucx_api.stream_send_nb(both.a, b"fghijklmn", 9, None)
    both.until(lambda: len(calls) == 5)
    assert [c[2][0] for c in calls] == [0, 1, 2, 3, 4] and b"".join(buffers) == b"abcdefghijklmn"


def test_both_directions_at_once(both):
    data = os.urandom(1 << 20)
    got, calls = {}, Calls()
    for ep in (both.a, both.b):
        ucx_api.stream_send_nb(ep, data, len(data), None)
        got[ep] = bytearray(len(data))
        ucx_api.stream_recv_nb(ep, got[ep], len(data), calls)
    both.until(lambda: len(calls) == 2)
    assert got[both.a] == got[both.b] == data


def test_what_nobody_asks_for_is_bounded(both):
    """The sender is held back; it does not fill our memory."""
    sent, data, posted = Calls(), bytes(PIECE), 0
    for _ in range(200):
        posted += ucx_api.stream_send_nb(both.a, data, len(data), sent) is not None
    for _ in range(2000):
        both.left.progress()
        both.right.progress()
    assert len(sent) < posted
    assert both.right.runtime.stats()["am_held_bytes"] <= 2 << 20
    calls, got = Calls(), bytearray(200 * PIECE)
    wait(both, ucx_api.stream_recv_nb(both.b, got, len(got), calls), calls)
    both.until(lambda: len(sent) == posted)


def test_arrays_of_any_sort_in_a_stream(both):
    np = pytest.importorskip("numpy")
    for source in (np.asfortranarray(np.arange(600_000, dtype="f8").reshape(300, 2000)), np.arange(9, dtype=">i4"), np.array(3.5),
                   np.array([(1, 2.5)], dtype=[("a", "<i2"), ("b", "<f8")])):
        into, calls = np.empty_like(source), Calls()
        ucx_api.stream_send_nb(both.a, source, source.nbytes, None)
        wait(both, ucx_api.stream_recv_nb(both.b, into, into.nbytes, calls), calls)
        assert (into == source).all()


def test_the_end_of_a_stream(both):
    ucx_api.stream_send_nb(both.a, b"last words", 10, None)
    both.a.close()
    both.until(lambda: not both.b.is_alive())
    calls, got = Calls(), bytearray(10)
    assert ucx_api.stream_recv_nb(both.b, got, 10, calls) is None and got == b"last words"
    with pytest.raises(exceptions.UCXConnectionReset):
        ucx_api.stream_recv_nb(both.b, got, 1, calls)


def test_closing_and_cancelling_a_stream(both):
    calls = Calls()
    first = ucx_api.stream_recv_nb(both.b, bytearray(4), 4, calls)
    ucx_api.stream_recv_nb(both.b, bytearray(4), 4, calls)
    both.right.request_cancel(first)
    assert isinstance(calls[0][1], exceptions.UCXCanceled)
    both.b.close()
    both.until(lambda: len(calls) == 2)
    assert isinstance(calls[1][1], exceptions.UCXCanceled)
    with pytest.raises(exceptions.UCXCloseError):
        ucx_api.stream_recv_nb(both.b, bytearray(1), 1, calls)


def test_a_stranger_does_not_say_how_much_memory_we_take(both):
    from ucp._libs.worker import STREAM_ID
    calls = Calls()
    ucx_api.stream_recv_nb(both.b, bytearray(10), 10, calls)
    sent = both.a.endpoint.am_send(STREAM_ID, bytes(PIECE + 1))
    both.until(lambda: calls and sent.done())
    assert isinstance(calls[0][1], exceptions.UCXError)
    with pytest.raises(exceptions.UCXError):  # there is a hole in it now
        ucx_api.stream_recv_nb(both.b, bytearray(10), 10, calls)
    ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
    both.until(lambda: both.right.tag_probe(1))


def test_nothing_is_complete_at_once(both):
    assert ucx_api.stream_send_nb(both.a, b"", 0, None) is None
    assert ucx_api.stream_recv_nb(both.b, bytearray(0), 0, None) is None
    with pytest.raises(ValueError):
        ucx_api.stream_recv_nb(both.b, b"read-only", 9, None)


# --- active messages

@pytest.mark.parametrize("size", [0, 1, 8192, 2 << 20])
def test_active_messages(both, size):
    data, calls, sent = os.urandom(size), Calls(), Calls()
    request = ucx_api.am_recv_nb(both.b, calls, cb_args=(1,), cb_kwargs={"x": 2})
    assert request is not None and not both.b.am_probe()
    out = ucx_api.am_send_nbx(both.a, Array(data), size, sent)
    both.until(lambda: calls and (out is None or sent))
    assert calls == [(data, None, (1,), {"x": 2})] and isinstance(calls[0][0], bytearray) and request.closed()
    out = ucx_api.am_send_nbx(both.a, data, size, sent)
    both.until(lambda: both.b.am_probe())
    calls.clear()
    if ucx_api.am_recv_nb(both.b, calls) is None:
        assert calls, "one that is here is given at once"
    both.until(lambda: calls)
    assert calls[0][0] == data and not both.b.am_probe()


def test_active_messages_keep_their_order(both):
    calls = Calls()
    for i in range(50):
        ucx_api.am_send_nbx(both.a, bytes([i]) * (i * 1000 + 1), i * 1000 + 1, None)
    for _ in range(50):
        ucx_api.am_recv_nb(both.b, calls)
    both.until(lambda: len(calls) == 50)
    assert sorted(c[0][0] for c in calls) == list(range(50))
    assert [len(c[0]) for c in sorted(calls, key=lambda c: c[0][0])] == [i * 1000 + 1 for i in range(50)]


def test_allocators(both):
    made = []

    def allocate(n):
        made.append(n)
        return memoryview(bytearray(n))
    both.right.register_am_allocator(allocate, ucx_api.AllocatorType.HOST)
    calls = Calls()
    ucx_api.am_recv_nb(both.b, calls)
    ucx_api.am_send_nbx(both.a, b"four", 4, None)
    both.until(lambda: calls)
    assert made == [4] and isinstance(calls[0][0], memoryview) and calls[0][0] == b"four"
    for function, kind, error in ((None, ucx_api.AllocatorType.HOST, TypeError),
                                  (bytearray, ucx_api.AllocatorType.UNSUPPORTED, exceptions.UCXError),
                                  (bytearray, 7, exceptions.UCXError)):
        with pytest.raises(error):
            both.right.register_am_allocator(function, kind)


@pytest.mark.parametrize("allocator", [lambda n: 1 // 0, lambda n: bytearray(n - 1), lambda n: bytes(n), lambda n: None])
def test_allocators_that_fail(both, allocator):
    both.right.register_am_allocator(allocator, ucx_api.AllocatorType.HOST)
    calls = Calls()
    ucx_api.am_recv_nb(both.b, calls)
    ucx_api.am_send_nbx(both.a, b"x" * 100_000, 100_000, None)
    both.until(lambda: calls)
    # an error, and never as if it were the message
    assert calls[0][0] is None and isinstance(calls[0][1], exceptions.UCXBaseException)
    both.right.register_am_allocator(bytearray, ucx_api.AllocatorType.HOST)
    ucx_api.am_send_nbx(both.a, b"good", 4, None)
    ucx_api.am_recv_nb(both.b, calls)
    both.until(lambda: len(calls) == 2)
    assert calls[1][:2] == (b"good", None)


def test_a_message_on_a_gpu_needs_its_allocator(both):
    from ucp._libs.worker import AM_ID
    calls = Calls()
    ucx_api.am_recv_nb(both.b, calls)
    both.a.endpoint.am_send(AM_ID, b"data", bytes([ucx_api.AllocatorType.CUDA]))
    both.until(lambda: calls)
    assert isinstance(calls[0][1], exceptions.UCXError) and "allocator" in str(calls[0][1])
    both.right.register_am_allocator(bytearray, ucx_api.AllocatorType.CUDA)  # wherever it likes
    both.a.endpoint.am_send(AM_ID, b"data", bytes([ucx_api.AllocatorType.CUDA]))
    ucx_api.am_recv_nb(both.b, calls)
    both.a.endpoint.am_send(AM_ID, b"odd", b"\xff\xff\xff")  # whatever a stranger writes there
    ucx_api.am_recv_nb(both.b, calls)
    both.until(lambda: len(calls) == 3)
    assert [c[0] for c in calls[1:]] == [b"data", b"odd"]


def test_receives_of_active_messages_end(both):
    calls = Calls()
    request = ucx_api.am_recv_nb(both.b, calls)
    both.right.request_cancel(request)
    assert calls[0][0] is None and isinstance(calls[0][1], exceptions.UCXCanceled)
    dropped = ucx_api.am_recv_nb(both.b, calls)
    dropped.close()
    ucx_api.am_recv_nb(both.b, calls)
    ucx_api.am_send_nbx(both.a, b"for the next", 12, None)
    both.until(lambda: len(calls) == 2)
    assert calls[1][0] == b"for the next"
    ucx_api.am_recv_nb(both.b, calls)
    ucx_api.am_send_nbx(both.a, b"last", 4, None)
    both.a.close()
    both.until(lambda: len(calls) == 3 and not both.b.is_alive())
    assert calls[2][0] == b"last"
    with pytest.raises(exceptions.UCXConnectionReset):
        ucx_api.am_recv_nb(both.b, calls)
    assert len(calls) == 3
