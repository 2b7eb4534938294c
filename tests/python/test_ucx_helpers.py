"""ucp._libs.utils_test: operations driven to their end, as UCX-Py's tests and benchmarks import them."""
import multiprocessing
import threading

import pytest
from test_ucx_api import Both, until

from ucp import exceptions
from ucp._libs import utils_test


@pytest.fixture(params=["sm", "tcp"])
def both(request):
    made = Both({"TLS": request.param})
    yield made
    made.close()


class Driven:
    """Somebody drives the other worker meanwhile."""

    def __init__(self, worker):
        self.worker, self.over = worker, threading.Event()
        self.thread = threading.Thread(target=self.go)

    def go(self):
        while not self.over.is_set():
            self.worker.progress()

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("size", [0, 8, 3 << 20])
def test_send_and_receive(both, size):
    data, got = bytes(i % 251 for i in range(size)), bytearray(size)

    def send():
        utils_test.blocking_send(both.left, both.a, data, tag=5)
        utils_test.blocking_flush(both.a)
        utils_test.blocking_flush(both.left)
    sending = threading.Thread(target=send)
    sending.start()
    utils_test.blocking_recv(both.right, both.b, got, tag=5)
    with Driven(both.right):
        sending.join(60)
    assert not sending.is_alive() and got == data


def test_what_is_there_already_is_received(both):
    """UCX-Py calls the callback of such a receive too: else nobody would ever know."""
    utils_test.blocking_send(both.left, both.a, b"early")
    both.until(lambda: both.right.tag_probe(0))
    got = bytearray(5)
    utils_test.blocking_recv(both.right, both.b, got)
    assert got == b"early"


def test_active_messages(both):
    for size in (0, 8, 3 << 20):
        with Driven(both.right):
            utils_test.blocking_am_send(both.left, both.a, bytes([7]) * size) if size < 1 << 20 else None
        if size >= 1 << 20:
            sending = threading.Thread(target=utils_test.blocking_am_send, args=(both.left, both.a, bytes([7]) * size))
            sending.start()
        assert utils_test.blocking_am_recv(both.right, both.b) == bytes([7]) * size
        if size >= 1 << 20:
            with Driven(both.right):
                sending.join(60)


@pytest.mark.parametrize("early", [False, True])
def test_without_waiting(both, early):
    """started_cb once before, completed_cb once after, whether or not it completes at once."""
    told, got = [], bytearray(4)

    def send():
        utils_test.non_blocking_send(both.left, both.a, b"soon", lambda: told.append("send"), lambda: told.append("sent"), tag=3)
    if early:
        send()
        both.until(lambda: both.right.tag_probe(3))
    utils_test.non_blocking_recv(both.right, both.b, got, lambda: told.append("recv"), lambda: told.append("received"), tag=3)
    if not early:
        send()
    both.until(lambda: len(told) == 4)
    for _ in range(100):
        both.right.progress()
    assert sorted(told) == ["received", "recv", "send", "sent"] and got == b"soon"
    assert told.index("recv") < told.index("received") and told.index("send") < told.index("sent")


def test_what_fails_is_raised(both):
    """UCX-Py's fail in an assertion inside the callback, where it is logged, and then wait for ever."""
    both.a.close()
    until(lambda: not both.b.is_alive(), both.right)
    with pytest.raises(exceptions.UCXCanceled):
        utils_test.blocking_recv(both.right, both.b, bytearray(1))
    with pytest.raises(exceptions.UCXConnectionReset):
        utils_test.blocking_am_recv(both.right, both.b)
    with pytest.raises(exceptions.UCXConnectionReset):
        utils_test.blocking_send(both.right, both.b, b"1")


def test_the_callbacks_by_their_names():
    finished, got = [False], [None]
    utils_test.blocking_handler(None, None, finished)
    utils_test.blocking_am_recv_handler(b"x", None, got)
    assert finished == [True] and got == [b"x"]
    for handler, out in ((utils_test.blocking_handler, finished), (utils_test.blocking_am_recv_handler, got)):
        with pytest.raises(AssertionError):
            handler(None, exceptions.UCXCanceled("x"), out)
    assert utils_test.mp is multiprocessing.get_context("spawn")
