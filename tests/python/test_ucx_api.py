"""ucp._libs.ucx_api: workers driven by hand, endpoints, tags, requests, and how they end."""
import os
import pickle
import select
import signal
import threading
import time

import pytest

from ucp import exceptions
from ucp._libs import ucx_api
from ucp._libs.arr import Array

BOUND = 30


def until(done, *workers):
    """Progress by hand until `done()`, or its bound."""
    end = time.monotonic() + BOUND
    while not done():
        assert time.monotonic() < end, "it did not happen"
        for worker in workers:
            worker.progress()


class Both:
    """Two workers, a listener, and an endpoint at either."""

    def __init__(self, options=None, features=None):
        kw = {} if features is None else {"feature_flags": features}
        self.contexts = [ucx_api.UCXContext(options or {}, **kw) for _ in range(2)]
        self.left, self.right = (ucx_api.UCXWorker(c) for c in self.contexts)
        accepted = []
        self.listener = ucx_api.UCXListener(self.right, 0, lambda request, out: out.append(
            ucx_api.UCXEndpoint.create_from_conn_request(self.right, request, True)), cb_args=(accepted,))
        self.a = ucx_api.UCXEndpoint.create(self.left, "127.0.0.1", self.listener.port, endpoint_error_handling=True)
        self.until(lambda: accepted and self.a.endpoint.state == "up")
        self.b = accepted[0]

    def until(self, done):
        until(done, self.left, self.right)

    def close(self):
        for context in self.contexts:
            context.close()


@pytest.fixture(params=["sm", "tcp"])
def both(request):
    made = Both({"TLS": request.param})
    assert made.a.endpoint.info["transport"] == {"sm": "shm", "tcp": "tcp"}[request.param]
    yield made
    made.close()


class Calls(list):
    """A callback that remembers what it was called with."""

    def __call__(self, request, exception, *args, **kwargs):
        self.append((request, exception, args, kwargs))


# --- tags

@pytest.mark.parametrize("size", [0, 1, 8, 8192, 3 << 20])
def test_messages_there_and_back(both, size):
    data, back = os.urandom(size), bytearray(size)
    for sender, at, receiver in ((both.a, both.right, both.b), (both.b, both.left, both.a)):
        got, sent = Calls(), Calls()
        request = ucx_api.tag_recv_nb(at, Array(back), size, 7, got, cb_args=(1, 2), cb_kwargs={"x": 3}, ep=receiver)
        assert request is not None and request.info["status"] == "pending" and not request.closed()
        out = ucx_api.tag_send_nb(sender, Array(data), size, tag=7, cb_func=sent, name="mine")
        both.until(lambda: got and (out is None or sent))
        assert got == [(request, None, (1, 2), {"x": 3})] and back == data
        assert request.closed() and request.info["status"] == "finished"
        assert not sent if out is None else [c[:2] for c in sent] == [(out, None)]


def test_what_is_complete_at_once(both):
    """A send calls nobody; a receive calls its callback before it returns None, as UCX-Py's does."""
    calls, buffer = Calls(), bytearray(5)
    assert ucx_api.tag_send_nb(both.a, Array(b"early"), 5, 1, calls) is None
    both.until(lambda: both.right.tag_probe(1))
    assert not calls
    assert ucx_api.tag_recv_nb(both.right, Array(buffer), 5, 1, calls, cb_args=(1,), cb_kwargs={"x": 2}) is None
    assert buffer == b"early" and len(calls) == 1 and calls[0][1:] == (None, (1,), {"x": 2})
    assert isinstance(calls[0][0], ucx_api.UCXRequest) and calls[0][0].closed() and not both.right._requests
    for _ in range(100):
        both.right.progress()
    assert len(calls) == 1 and not both.right.tag_probe(1)


def test_a_receive_is_the_workers(both):
    more = ucx_api.UCXEndpoint.create(both.left, "localhost", both.listener.port, True)
    calls, buffer = Calls(), bytearray(4)
    ucx_api.tag_recv_nb(both.right, Array(buffer), 4, 0x10, calls, tag_mask=0xF0)
    ucx_api.tag_send_nb(more, Array(b"mask"), 4, 0xA17, None)
    both.until(lambda: calls)
    assert buffer == b"mask" and calls[0][1] is None


def test_tags_are_64_bits_whatever_their_sign(both):
    calls, buffer = Calls(), bytearray(1)
    ucx_api.tag_recv_nb(both.right, Array(buffer), 1, -1, calls)
    ucx_api.tag_send_nb(both.a, Array(b"x"), 1, 2**64 - 1, None)
    both.until(lambda: calls)


@pytest.mark.parametrize("room", [3, 9])
def test_another_length_is_truncation(both, room):
    calls = Calls()
    ucx_api.tag_recv_nb(both.right, bytearray(room), room, 1, calls)
    ucx_api.tag_send_nb(both.a, b"sixsix", 6, 1, None)
    both.until(lambda: calls)
    assert isinstance(calls[0][1], exceptions.UCXMsgTruncated)
    ucx_api.tag_send_nb(both.a, b"sixsix", 6, 1, None)
    both.until(lambda: both.right.tag_probe(1))
    with pytest.raises(exceptions.UCXMsgTruncated):
        ucx_api.tag_recv_nb(both.right, bytearray(room), room, 1, calls)


def test_part_of_a_buffer(both):
    calls, buffer = Calls(), bytearray(b"-" * 8)
    ucx_api.tag_recv_nb(both.right, Array(buffer), 3, 1, calls)
    ucx_api.tag_send_nb(both.a, Array(b"abcdef"), 3, 1, None)
    both.until(lambda: calls)
    assert buffer == b"abc-----"
    for bad in (9, -1):
        with pytest.raises(ValueError):
            ucx_api.tag_recv_nb(both.right, Array(buffer), bad, 1, calls)


def test_a_callback_that_fails_is_logged_and_the_next_are_called(both, caplog):
    calls = Calls()

    def bad(request, exception):
        raise RuntimeError("in a callback")
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, bad)
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    for _ in range(2):
        ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
    both.until(lambda: calls)
    assert "in a callback" in caplog.text


def test_callbacks_may_post_and_not_progress(both):
    order = []

    def again(request, exception, left):
        order.append(left)
        both.right.progress()  # does nothing in here, and harms nobody
        if left:
            ucx_api.tag_send_nb(both.b, b"x", 1, left, None)
            ucx_api.tag_recv_nb(both.right, bytearray(1), 1, left, again, cb_args=(left - 1,))
            ucx_api.tag_send_nb(both.a, b"x", 1, left, None)
    again(None, None, 50)
    both.until(lambda: order[-1] == 0)
    assert order == list(range(50, -1, -1))


# --- cancelling, closing, loss

def test_cancelling(both):
    calls = Calls()
    request = ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    both.right.request_cancel(request)
    both.until(lambda: calls)
    assert isinstance(calls[0][1], exceptions.UCXCanceled) and request.closed()
    both.right.request_cancel(request)  # does nothing
    requests = [ucx_api.tag_recv_nb(both.right, bytearray(1), 1, i, calls, ep=both.b) for i in range(10)]
    calls.clear()
    for request in requests:
        both.right.request_cancel(request)
    both.until(lambda: len(calls) == 10)
    assert all(isinstance(c[1], exceptions.UCXCanceled) for c in calls) and all(r.closed() for r in requests)
    with pytest.raises(ValueError):
        both.left.request_cancel(request)
    with pytest.raises(TypeError):
        both.left.request_cancel(7)


def test_a_request_that_is_closed_calls_nobody(both):
    calls, after = Calls(), Calls()
    request = ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    request.close()
    assert request.closed()
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 2, after)
    for tag in (1, 2):
        ucx_api.tag_send_nb(both.a, b"x", 1, tag, None)
    both.until(lambda: after)
    assert not calls


def test_closing_ends_what_waits_there_and_tells_the_peer(both):
    mine, theirs, told = Calls(), Calls(), []
    ucx_api.tag_recv_nb(both.left, bytearray(1), 1, 1, mine, ep=both.a)
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, theirs, ep=both.b)
    everyone = ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, theirs)
    both.a.set_close_callback(lambda: told.append("mine"))
    both.b.set_close_callback(lambda: told.append("theirs"))
    assert both.a.is_alive() and both.b.is_alive()
    both.a.close()
    assert told == ["mine"] and not both.a.is_alive() and both.a.closed()
    both.until(lambda: len(told) == 2 and mine and theirs)
    assert told == ["mine", "theirs"]
    assert isinstance(mine[0][1], exceptions.UCXCanceled) and isinstance(theirs[0][1], exceptions.UCXCanceled)
    assert len(theirs) == 1 and not everyone.closed()  # it is no endpoint's
    assert not both.b.is_alive()
    with pytest.raises(exceptions.UCXConnectionReset):
        both.b.raise_on_error()
    with pytest.raises(exceptions.UCXConnectionReset):
        ucx_api.tag_send_nb(both.b, b"x", 1, 1, None)
    with pytest.raises(exceptions.UCXCloseError):
        ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
    late = []
    both.b.set_close_callback(lambda: late.append(1))
    assert late == [1]
    both.a.close()
    both.b.close()
    assert told == ["mine", "theirs"]


def test_what_was_sent_before_closing_arrives(both):
    data = os.urandom(1 << 20)
    calls, got = Calls(), bytearray(1 << 20)
    for i in range(100):
        ucx_api.tag_send_nb(both.a, bytes([i]), 1, i, None)
    ucx_api.tag_recv_nb(both.right, got, len(got), 500, calls, ep=both.b)
    ucx_api.tag_send_nb(both.a, data, len(data), 500, None)
    both.a.close()
    both.until(lambda: calls and not both.b.is_alive())
    assert calls[0][1] is None and got == data
    one = bytearray(1)
    for i in range(100):
        assert ucx_api.tag_recv_nb(both.right, one, 1, i, calls, ep=both.b) is None and one[0] == i
    nothing = Calls()
    ucx_api.tag_recv_nb(both.right, one, 1, 777, nothing, ep=both.b)
    both.until(lambda: nothing)
    assert isinstance(nothing[0][1], exceptions.UCXCanceled)


def test_abort_is_for_those_in_a_hurry(both):
    told = []
    both.b.set_close_callback(lambda: told.append(1))
    both.a.abort()
    both.until(lambda: told)
    assert both.a.closed() and not both.b.is_alive()


PEER = """
import sys
from ucp._libs import ucx_api
worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": sys.argv[2]}))
ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", int(sys.argv[1]), True)
ucx_api.tag_send_nb(ep, b"here", 4, 1, None)
while True:
    worker.progress()
"""


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_a_peer_that_is_killed(child, tls):
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    eps, calls, told = [], Calls(), []
    listener = ucx_api.UCXListener(worker, 0,
                                   lambda request: eps.append(ucx_api.UCXEndpoint.create_from_conn_request(worker, request,
                                                                                                           True)))
    process = child(PEER, str(listener.port), tls)
    ucx_api.tag_recv_nb(worker, bytearray(4), 4, 1, calls)
    until(lambda: calls, worker)
    calls.clear()
    eps[0].set_close_callback(lambda: told.append(1))
    requests = [ucx_api.tag_recv_nb(worker, bytearray(4), 4, i, calls, ep=eps[0]) for i in range(20)]
    requests.append(ucx_api.stream_recv_nb(eps[0], bytearray(4), 4, calls))
    requests.append(ucx_api.am_recv_nb(eps[0], calls))
    big = ucx_api.tag_send_nb(eps[0], bytes(1 << 24), 1 << 24, 3, calls)
    assert big is not None and eps[0].flush(calls) is not None
    process.send_signal(signal.SIGKILL)
    until(lambda: len(calls) == 24 and told, worker)
    kinds = [type(c[1]) for c in calls]
    # the stream and the send; receives; and the flush, for which there is nothing left to wait for
    assert [kinds.count(kind) for kind in (exceptions.UCXError, exceptions.UCXCanceled, type(None))] == [2, 21, 1]
    assert all("Endpoint timeout" in str(c[1]) for c in calls if c[1] is not None)
    assert told == [1] and all(r.closed() for r in requests) and worker.cancel_inflight_messages() == 21
    for post in (lambda: ucx_api.am_recv_nb(eps[0], calls), lambda: ucx_api.stream_recv_nb(eps[0], bytearray(1), 1, calls),
                 lambda: ucx_api.am_send_nbx(eps[0], b"x", 1, None), lambda: ucx_api.stream_send_nb(eps[0], b"x", 1, None)):
        with pytest.raises(exceptions.UCXError, match="Endpoint timeout"):
            post()
    worker.close()


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_a_peer_that_stops(child, tls):
    """It is not dead, and says nothing: lost after three intervals."""
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls, "KEEPALIVE_INTERVAL": "150ms"}))
    eps, calls = [], Calls()
    listener = ucx_api.UCXListener(worker, 0,
                                   lambda request: eps.append(ucx_api.UCXEndpoint.create_from_conn_request(worker, request,
                                                                                                           True)))
    process = child(PEER, str(listener.port), tls)
    ucx_api.tag_recv_nb(worker, bytearray(4), 4, 1, calls)
    until(lambda: calls, worker)
    ucx_api.tag_recv_nb(worker, bytearray(4), 4, 2, calls, ep=eps[0])
    process.send_signal(signal.SIGSTOP)
    until(lambda: len(calls) == 2, worker)
    assert isinstance(calls[1][1], exceptions.UCXCanceled) and not eps[0].is_alive()
    with pytest.raises(exceptions.UCXError, match="Endpoint timeout"):
        eps[0].raise_on_error()
    worker.close()


def test_nobody_is_there():
    worker = ucx_api.UCXWorker(ucx_api.UCXContext())
    ep, calls, told = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", 1, True), Calls(), []
    ep.set_close_callback(lambda: told.append(1))
    ucx_api.tag_recv_nb(worker, bytearray(1), 1, 1, calls, ep=ep)
    until(lambda: told and calls, worker)
    assert isinstance(calls[0][1], exceptions.UCXCanceled)
    with pytest.raises(exceptions.UCXError, match="refused"):
        ep.raise_on_error()
    with pytest.raises(exceptions.UCXNotConnected):  # by which create_endpoint() tells
        ucx_api.stream_send_nb(ep, b"x", 1, None)
    assert not ep.is_alive() and ep.info()
    for host, port in (("127.0.0.1", 0), ("127.0.0.1", 70000), ("127.0.0.1", "1"), ("a b", 1), ("tcp://x", 1), ("", 1)):
        with pytest.raises(exceptions.UCXBaseException):
            ucx_api.UCXEndpoint.create(worker, host, port, True)
    worker.close()
    with pytest.raises(exceptions.UCXCloseError):
        worker.progress()
    with pytest.raises(exceptions.UCXCloseError):
        ucx_api.UCXEndpoint.create(worker, "127.0.0.1", 1, True)


def test_closing_a_worker_closes_what_it_has(both):
    calls = Calls()
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    both.right.close()
    assert both.b.closed() and both.listener.closed() and isinstance(calls[0][1], exceptions.UCXCanceled)
    until(lambda: not both.a.is_alive(), both.left)
    with pytest.raises(exceptions.UCXCloseError):
        both.right.handle


# --- flush, and the numbers

def test_flush(both):
    assert both.a.flush(None) is None and both.left.flush(None) is None
    sent, flushed, other = Calls(), Calls(), Calls()
    data = bytes(4 << 20)
    assert ucx_api.tag_send_nb(both.a, data, len(data), 1, sent) is not None
    assert both.a.flush(flushed, (1,), {"x": 2}) is not None and both.left.flush(other) is not None
    both.left.progress()
    assert not sent and not flushed and not other
    ucx_api.tag_recv_nb(both.right, bytearray(len(data)), len(data), 1, Calls())
    both.until(lambda: flushed and other)
    assert sent and flushed[0][1:] == (None, (1,), {"x": 2})
    both.left.fence()


def test_numbers_are_unique(both):
    things = [both.left, both.right, both.a, both.b, both.listener, *both.contexts,
              ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, None)]
    assert len({t.handle for t in things}) == len(things) and all(isinstance(t.handle, int) for t in things)
    assert both.a.worker is both.left and both.left.context is both.contexts[0]
    assert "tcp" in both.a.info() or "shm" in both.a.info()
    assert "endpoints: 1" in both.left.info() and "features" in both.contexts[0].info()


# --- addresses

def test_worker_addresses():
    context = ucx_api.UCXContext()
    left, right = ucx_api.UCXWorker(context), ucx_api.UCXWorker(context)
    address = right.get_address()
    assert address is right.get_address() and address == ucx_api.UCXAddress.from_worker(right)
    again = ucx_api.UCXAddress.from_buffer(bytearray(address))
    assert again == address and hash(again) == hash(address) and pickle.loads(pickle.dumps(again)) == address
    assert memoryview(again).nbytes == again.length == len(address.buffer) and again != left.get_address()
    there, back = ucx_api.UCXEndpoint.create_from_worker_address(left, again, True), None
    calls, data = Calls(), bytearray(5)
    ucx_api.tag_recv_nb(right, data, 5, 1, calls)
    ucx_api.tag_send_nb(there, b"there", 5, 1, None)
    until(lambda: calls, left, right)
    assert data == b"there"
    back = ucx_api.UCXEndpoint.create_from_worker_address(right, left.get_address(), False)
    ucx_api.tag_recv_nb(left, data, 5, 2, calls)
    ucx_api.tag_send_nb(back, b"back!", 5, 2, None)
    until(lambda: len(calls) == 2, left, right)
    assert data == b"back!"
    # active messages and streams of one find the endpoint that was made to the same peer
    ucx_api.am_send_nbx(there, b"am", 2, None)
    ucx_api.stream_send_nb(there, b"stream", 6, None)
    stream = bytearray(6)
    ucx_api.am_recv_nb(back, calls)
    ucx_api.stream_recv_nb(back, stream, 6, calls)
    until(lambda: len(calls) == 4, left, right)
    assert stream == b"stream" and any(c[0] == b"am" for c in calls)
    there.close()
    back.close()
    context.close()


def test_a_worker_can_talk_to_itself():
    worker = ucx_api.UCXWorker(ucx_api.UCXContext())
    ep = ucx_api.UCXEndpoint.create_from_worker_address(worker, worker.get_address(), True)
    calls, data = Calls(), bytearray(4)
    ucx_api.tag_recv_nb(worker, data, 4, 1, calls)
    ucx_api.tag_send_nb(ep, b"self", 4, 1, None)
    until(lambda: calls, worker)
    assert data == b"self"
    worker.close()


def test_bytes_that_are_no_address():
    worker = ucx_api.UCXWorker(ucx_api.UCXContext())
    good = bytes(worker.get_address())
    for bad in (b"", b"x", good[:-1], good + b"x", b"XXXX" + good[4:], good[:4] + b"\x09\x00" + good[6:], bytes(100),
                bytes(1 << 20)):
        with pytest.raises(exceptions.UCXError):
            ucx_api.UCXAddress.from_buffer(bad)
    for bad in (None, 7, "text"):
        with pytest.raises(TypeError):
            ucx_api.UCXAddress.from_buffer(bad)
    for i in range(8, len(good)):  # whole, and nonsense inside: refused, or nobody is there
        made = ucx_api.UCXAddress.from_buffer(good[:i] + bytes([good[i] ^ 0x55]) + good[i + 1:])
        try:
            ucx_api.UCXEndpoint.create_from_worker_address(worker, made, True).close()
        except exceptions.UCXBaseException:
            pass
    worker.close()


# --- listeners

def test_listeners(both, monkeypatch):
    assert both.listener.ip == "0.0.0.0" and both.listener.port > 0 and not both.listener.closed()
    with pytest.raises(exceptions.UCXError):
        ucx_api.UCXListener(both.left, both.listener.port, print)
    for port in (-1, 65536, None):
        with pytest.raises(exceptions.UCXError):
            ucx_api.UCXListener(both.left, port, print)
    with pytest.raises(TypeError):
        ucx_api.UCXListener(both.left, 0, None)
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    local = ucx_api.UCXListener(both.left, 0, print)
    assert local.ip == "127.0.0.1"
    both.listener.close()
    ep = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", both.listener.port, True)
    both.until(lambda: not ep.is_alive())


def test_a_request_becomes_one_endpoint():
    context = ucx_api.UCXContext()
    left, right = ucx_api.UCXWorker(context), ucx_api.UCXWorker(context)
    came = []
    listener = ucx_api.UCXListener(right, 0, came.append)
    ep = ucx_api.UCXEndpoint.create(left, "127.0.0.1", listener.port, True)
    for word in (b"am one", b"am two"):
        ucx_api.am_send_nbx(ep, word, 6, None)
    until(lambda: came, left, right)
    for _ in range(100):
        left.progress()
        right.progress()
    assert "127.0.0.1" in came[0].client_address or "unix" in came[0].client_address
    with pytest.raises(ValueError):
        ucx_api.UCXEndpoint.create_from_conn_request(left, came[0], True)
    peer = ucx_api.UCXEndpoint.create_from_conn_request(right, came[0], True)
    got = Calls()
    for _ in range(2):
        ucx_api.am_recv_nb(peer, got)
    until(lambda: len(got) == 2, left, right)
    assert [c[0] for c in got] == [b"am one", b"am two"]  # they came before there was an endpoint
    with pytest.raises(exceptions.UCXError):
        ucx_api.UCXEndpoint.create_from_conn_request(right, came[0], True)
    with pytest.raises(TypeError):
        ucx_api.UCXEndpoint.create_from_conn_request(right, 7, True)
    listener.close()
    other = ucx_api.UCXListener(right, 0, lambda request: None)  # and drops it
    refused = ucx_api.UCXEndpoint.create(left, "127.0.0.1", other.port, True)
    until(lambda: not refused.is_alive(), left, right)
    context.close()


# --- sleeping

@pytest.mark.parametrize("tls", ["sm", "tcp"])
@pytest.mark.parametrize("size", [8, 8192, 1 << 20])
def test_arm_and_sleep(child, tls, size):
    """Half of the sleeps are entered right after a post on an armed worker: the wake-up that UCX-Py lost."""
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    fd = worker.init_blocking_progress_mode()
    assert fd == worker.epoll_file_descriptor == worker.epoll_fd
    eps, calls, slept = [], Calls(), 0
    listener = ucx_api.UCXListener(worker, 0,
                                   lambda request: eps.append(ucx_api.UCXEndpoint.create_from_conn_request(worker, request,
                                                                                                           True)))
    child(ECHO, str(listener.port), tls, str(size), "200")

    def sleep_until(done):
        nonlocal slept
        end = time.monotonic() + BOUND
        while not done():
            assert time.monotonic() < end
            if worker.arm():
                slept += 1
                assert select.select([fd], [], [], BOUND)[0], "nobody woke us"
            worker.progress()
    sleep_until(lambda: eps)
    data, back = os.urandom(size), bytearray(size)
    for i in range(200):
        calls.clear()
        while not worker.arm():
            worker.progress()
        out, got = Calls(), Calls()
        sent = ucx_api.tag_send_nb(eps[0], data, size, 1, out)  # armed: whoever sleeps now must be woken
        here = ucx_api.tag_recv_nb(worker, back, size, 2, got, ep=eps[0])
        if i % 2:
            assert select.select([fd], [], [], BOUND)[0], "a post on an armed worker left it asleep"
        sleep_until(lambda: (sent is None or out) and (here is None or got))
        assert back == data
    assert slept > 10
    worker.close()


ECHO = """
import select, sys
from ucp._libs import ucx_api
port, tls, size, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", port, True)
fd = worker.init_blocking_progress_mode()
def wait(request, done):
    while request is not None and not done:
        if worker.arm():
            select.select([fd], [], [], 60)
        worker.progress()
for _ in range(times):
    done, buffer = [], bytearray(size)
    wait(ucx_api.tag_recv_nb(worker, buffer, size, 1, lambda *a: done.append(a), ep=ep), done)
    done = []
    wait(ucx_api.tag_send_nb(ep, buffer, size, 2, lambda *a: done.append(a)), done)
worker.close()
"""


def test_a_sleeper_wakes_for_deadlines():
    """Nothing comes but the time at which a connection that nobody answers is given up."""
    import socket
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)  # accepts, and never says a word
        os.environ["WEFT_CONNECT_TIMEOUT"] = "300ms"
        try:
            worker = ucx_api.UCXWorker(ucx_api.UCXContext())
        finally:
            del os.environ["WEFT_CONNECT_TIMEOUT"]
        fd = worker.init_blocking_progress_mode()
        ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", deaf.getsockname()[1], True)
        end = time.monotonic() + BOUND
        while ep.is_alive():
            assert time.monotonic() < end
            if worker.arm():
                assert select.select([fd], [], [], BOUND)[0]
            worker.progress()
        with pytest.raises(exceptions.UCXError, match="deadline"):
            ep.raise_on_error()
        with pytest.raises(exceptions.UCXUnreachable):
            ucx_api.stream_send_nb(ep, b"x", 1, None)
        worker.close()


def test_threads_may_drive_it_in_turn(both):
    calls = Calls()
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    thread = threading.Thread(target=lambda: (ucx_api.tag_send_nb(both.a, b"x", 1, 1, None), both.until(lambda: calls)))
    thread.start()
    thread.join(BOUND)
    assert calls and calls[0][1] is None


# --- options and features

def test_options(monkeypatch):
    for name in [n for n in os.environ if n.startswith("UCX_")]:
        monkeypatch.delenv(name)
    assert ucx_api.UCXContext().get_config()["TLS"] == "all" == ucx_api.get_current_options()["TLS"]
    monkeypatch.setenv("UCX_SEG_SIZE", "2M")
    assert ucx_api.UCXContext().get_config()["SEG_SIZE"] == "2M" == ucx_api.get_current_options()["SEG_SIZE"]
    assert ucx_api.UCXContext({"SEG_SIZE": "3M"}).get_config()["SEG_SIZE"] == "3M"
    assert ucx_api.UCXContext({"UCX_TCP_TX_SEG_SIZE": "1M"}).get_config()["TCP_TX_SEG_SIZE"] == "1M"
    for bad in ({"UNKNOWN_OPTION": "3M"}, {"SEG_SIZE": "invalid-size"}, {"TLS": "carrier_pigeon"}, {"TLS": ""}, {"TLS": "^all"},
                {"TLS": 7}, {7: "x"}, {"MEMTYPE_CACHE": "perhaps"}, {"KEEPALIVE_INTERVAL": "soon"}, {"NUM_EPS": "many"}):
        with pytest.raises(exceptions.UCXConfigError):
            ucx_api.UCXContext(bad)
    monkeypatch.setenv("UCX_SEG_SIZE", "nonsense")
    with pytest.raises(exceptions.UCXConfigError):
        ucx_api.UCXContext()


@pytest.mark.parametrize("tls, want", [("all", None), ("tcp", "tcp"), ("sm", "shm"),
                                       ("tcp,sm,self,cuda_copy,cuda_ipc", "tcp,shm"), ("cuda", "shm,tcp"), ("^cuda_ipc", None),
                                       ("^tcp", "shm"), ("^posix,sysv", "tcp"), ("rc,sm", "rc,shm"), ("posix,cma", "shm")])
def test_transports(tls, want):
    assert ucx_api.UCXContext({"TLS": tls})._transports == want


def test_what_else_reaches_weft():
    context = ucx_api.UCXContext({"NET_DEVICES": "lo", "KEEPALIVE_INTERVAL": "200ms", "LISTENER_BACKLOG": "17"})
    assert context._interfaces == "lo" and context._backlog == 17 and abs(context._heartbeat - 0.6) < 1e-9
    ucx_api.UCXWorker(context).close()


def test_the_version():
    version = ucx_api.get_ucx_version()
    assert isinstance(version, tuple) and len(version) == 3 and version >= (1, 0, 0)


@pytest.mark.parametrize("feature", [ucx_api.Feature.TAG, ucx_api.Feature.STREAM, ucx_api.Feature.AM])
def test_features(feature):
    context = ucx_api.UCXContext(feature_flags=(feature,))
    worker = ucx_api.UCXWorker(context)
    ep = ucx_api.UCXEndpoint.create_from_worker_address(worker, worker.get_address(), False)
    message = Array(bytearray(10))
    posts = {ucx_api.Feature.TAG: (lambda: ucx_api.tag_send_nb(ep, message, 10, 0, None),
                                   lambda: ucx_api.tag_recv_nb(worker, message, 10, 0, None)),
             ucx_api.Feature.STREAM: (lambda: ucx_api.stream_send_nb(ep, message, 10, None),
                                      lambda: ucx_api.stream_recv_nb(ep, message, 10, None)),
             ucx_api.Feature.AM: (lambda: ucx_api.am_send_nbx(ep, message, 10, None), lambda: ucx_api.am_recv_nb(ep, None),
                                  ep.am_probe)}
    for of, calls in posts.items():
        for call in calls:
            if of is feature:
                call()
            else:
                with pytest.raises(ValueError, match=f"UCXContext must be created with `Feature.{of.name}`"):
                    call()
    with pytest.raises(TypeError):
        ucx_api.UCXContext(feature_flags=("TAG",))
    with pytest.raises(TypeError):
        ucx_api.UCXWorker("context")
    context.close()


# --- in an event loop

def test_an_event_loop_can_drive_it(run):
    import asyncio

    async def body():
        both = Both()
        loop = asyncio.get_running_loop()
        calls = Calls()
        ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
        for worker in (both.left, both.right):
            worker.attach(loop)
            worker.attach(loop)
        assert both.left.runtime.loop is loop and both.left.arm() and "an event loop" in both.left.info()
        ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
        while not calls:
            both.left.progress()
            await asyncio.sleep(0)
        op = both.right.runtime.recv_any(5)
        await both.a.endpoint.send(b"native", tag=5)
        assert await op == b"native"
        both.left.detach()
        both.right.detach()
        calls.clear()
        ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
        ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
        both.until(lambda: calls)
        for worker in (both.left, both.right):
            worker.attach(loop)
        both.close()
    run(body())


def test_a_worker_outlives_its_loop():
    import asyncio
    both = Both()

    async def body():
        both.left.attach(asyncio.get_running_loop())
    asyncio.run(body())
    calls = Calls()
    ucx_api.tag_recv_nb(both.left, bytearray(1), 1, 1, calls)
    ucx_api.tag_send_nb(both.b, b"x", 1, 1, None)
    both.until(lambda: calls)
    both.close()
