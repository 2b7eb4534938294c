"""ucp._libs.ucx_api: how endpoints end, as UCX-Py has it. What it does was seen by running it (0.45 with UCX 1.13)."""
import asyncio
import signal
import time

import pytest
from test_ucx_api import PEER, Both, Calls, until

import ucp
from ucp import exceptions
from ucp._libs import ucx_api
from ucpside import fresh  # noqa: F401


@pytest.fixture(params=["sm", "tcp"])
def both(request):
    made = Both({"TLS": request.param})
    yield made
    made.close()


# --- receives that wait


def test_a_loss_cancels_receives_and_they_are_counted(both):
    """In UCX-Py the receives of an endpoint that is lost are scheduled for cancelling; cancel_inflight_messages(), which its own event
    loop calls each time around, cancels those and says how many. Here they are cancelled by themselves."""
    tag, am, other = Calls(), Calls(), Calls()
    for i in range(3):
        ucx_api.tag_recv_nb(both.right, bytearray(1), 1, i, tag, ep=both.b)
    ucx_api.am_recv_nb(both.b, am)
    healthy = ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 0, other)
    assert both.right.cancel_inflight_messages() == 0  # nobody is lost: UCX-Py leaves them alone
    both.a.close()
    both.until(lambda: not both.b.is_alive())
    until(lambda: len(tag) == 3 and am, both.right)
    assert both.right.cancel_inflight_messages() == 4 and both.right.cancel_inflight_messages() == 0
    assert all(type(c[1]) is exceptions.UCXCanceled for c in tag + am)
    assert all("tag_recv_nb" in str(c[1]) for c in tag) and "am_recv" in str(am[0][1])
    assert am[0][0] is None and not healthy.closed() and not other


def test_closing_here_cancels_too_and_counts_for_nobody(both):
    calls = Calls()
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls, ep=both.b)
    ucx_api.am_recv_nb(both.b, calls)
    both.b.close()
    both.until(lambda: len(calls) == 2)
    assert all(type(c[1]) is exceptions.UCXCanceled for c in calls) and both.right.cancel_inflight_messages() == 0


# --- what it was lost to


def test_the_words_for_a_peer_that_closed(both):
    """UCX-Py: raise_on_error() is UCXConnectionReset, "Endpoint 0x... error: Connection reset by remote peer"; a send that waits is
    UCXError, "<name>: Connection reset by remote peer"."""
    sent = Calls()
    big = bytes(64 << 20)
    assert ucx_api.tag_send_nb(both.b, big, len(big), 1, sent, name="mine") is not None
    both.a.close()
    both.until(lambda: sent and not both.b.is_alive())
    assert type(sent[0][1]) is exceptions.UCXError and str(sent[0][1]).startswith("<mine>: Connection reset by remote peer")
    for _ in range(2):  # as often as one asks
        with pytest.raises(exceptions.UCXConnectionReset, match=rf"^Endpoint {both.b.handle:#x} error: Connection reset by remote peer"):
            both.b.raise_on_error()
    for post in (lambda: ucx_api.tag_send_nb(both.b, b"x", 1, 1, None), lambda: ucx_api.am_send_nbx(both.b, b"x", 1, None)):
        with pytest.raises(exceptions.UCXConnectionReset):
            post()


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_the_words_for_a_peer_that_is_gone(child, tls):
    """UCX-Py: UCXError, "Endpoint 0x... error: Endpoint timeout"."""
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    eps, told = [], []
    listener = ucx_api.UCXListener(worker, 0, lambda request: eps.append(
        ucx_api.UCXEndpoint.create_from_conn_request(worker, request, True)))
    process = child(PEER, str(listener.port), tls)
    until(lambda: eps, worker)
    eps[0].set_close_callback(lambda: told.append(1))
    process.send_signal(signal.SIGKILL)
    until(lambda: told, worker)
    with pytest.raises(exceptions.UCXError, match=rf"^Endpoint {eps[0].handle:#x} error: Endpoint timeout"):
        eps[0].raise_on_error()
    worker.close()


# --- without error handling


def test_without_error_handling(both):
    """UCX-Py: is_alive() stays True, raise_on_error() raises nothing, the close callback waits for close() here; what is sent fails
    with UCXError. Its receives then wait for ever; ours end."""
    accepted, told, calls = [], [], Calls()
    listener = ucx_api.UCXListener(both.right, 0, lambda request: accepted.append(
        ucx_api.UCXEndpoint.create_from_conn_request(both.right, request, False)))
    a = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", listener.port, False)
    both.until(lambda: accepted and a.endpoint.state == "up")
    b = accepted[0]
    b.set_close_callback(lambda: told.append(1))
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls, ep=b)
    ucx_api.am_recv_nb(b, calls)
    a.close()
    both.until(lambda: len(calls) == 2)
    assert all(type(c[1]) is exceptions.UCXCanceled for c in calls)
    assert b.is_alive() and not told and b.raise_on_error() is None and "lost" in repr(b)
    for post in (lambda: ucx_api.tag_send_nb(b, b"x", 1, 1, None), lambda: ucx_api.am_send_nbx(b, b"x", 1, None)):
        with pytest.raises(exceptions.UCXError, match="^<.*>: Connection reset by remote peer"):
            post()
    late = []
    b.set_close_callback(lambda: late.append(1))
    assert not late
    b.close()
    assert late == [1] and not told and not b.is_alive()


# --- endings at once


def test_who_closes_right_after_create_has_been_there(both, child):
    """UCX-Py's close() waits until it is connected: the server gets an endpoint, and its close callback."""
    accepted, told = [], []

    def came(request):
        accepted.append(ucx_api.UCXEndpoint.create_from_conn_request(both.right, request, True))
        accepted[-1].set_close_callback(lambda: told.append(1))
    listener = ucx_api.UCXListener(both.right, 0, came)
    for i in range(10):
        ep = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", listener.port, True)
        ep.close()
        assert ep.closed() and not ep.is_alive()
    both.until(lambda: len(told) == 10)
    process = child("""
import sys
from ucp._libs import ucx_api
worker = ucx_api.UCXWorker(ucx_api.UCXContext(feature_flags=(ucx_api.Feature.TAG,)))
ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", int(sys.argv[1]), True)
ep.close()
worker.progress()
""", str(listener.port))
    until(lambda: len(told) == 11, both.right, both.left)
    assert process.wait(60) == 0


def test_who_closes_right_after_create_and_nobody_is_there():
    worker = ucx_api.UCXWorker(ucx_api.UCXContext())
    ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", 1, True)
    ep.close()
    until(lambda: not worker._later, worker)
    begin = time.monotonic()
    worker.close()
    assert time.monotonic() - begin < 4  # it waits for nobody


def test_a_flush_waits_for_the_connection(both):
    """UCX-Py's test takes for granted that flush() of an endpoint that was just made gives a request."""
    done, failed = Calls(), Calls()
    ep = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", both.listener.port, True)
    request = ep.flush(done, (1,))
    assert request is not None and request.info["status"] == "pending"
    nobody = ucx_api.UCXEndpoint.create_from_worker_address(both.left, both.left.get_address(), True)
    assert nobody.flush(done) is not None
    both.until(lambda: len(done) == 2)
    assert {c[1] for c in done} == {None} and ep.flush(None) is None
    lost = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", 1, True)
    if lost.flush(failed) is not None:
        both.until(lambda: failed)
        assert isinstance(failed[0][1], exceptions.UCXBaseException)


def test_what_is_known_of_an_endpoint_that_is_closed(both):
    before = both.a.info()
    both.a.close()
    assert "closed" in both.a.info() and before.splitlines()[0] == both.a.info().splitlines()[0]
    both.until(lambda: not both.b.is_alive())
    assert both.b.info()


# --- workers by their address


ANSWER = """
import sys
from ucp._libs import ucx_api
from ucp._libs.utils_test import blocking_recv
worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": sys.argv[1]}))
print(bytes(worker.get_address()).hex(), flush=True)
peer = ucx_api.UCXEndpoint.create_from_worker_address(worker, bytes.fromhex(sys.stdin.readline()), True)
buffer = bytearray(4)
blocking_recv(worker, peer, buffer, tag=1)
for i in range(20):
    ucx_api.tag_send_nb(peer, bytes(buffer), 4, 2 + i, None)
"""


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_the_last_words_of_a_worker_come_before_its_end(child, tls):
    """A worker that ends has two connections to another: the one it made, by which it sends, and the one the other made, whose end
    cancels the receives there. What it sent arrives first, as in UCX, which has one connection for both."""
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    for _ in range(8):
        process = child(ANSWER, tls)
        address = ucx_api.UCXAddress.from_buffer(bytes.fromhex(process.stdout.readline()))
        ep = ucx_api.UCXEndpoint.create_from_worker_address(worker, address, True)
        calls, buffers = Calls(), [bytearray(4) for _ in range(20)]
        for i, buffer in enumerate(buffers):
            ucx_api.tag_recv_nb(worker, buffer, 4, 2 + i, calls, ep=ep)
        print(bytes(worker.get_address()).hex(), file=process.stdin, flush=True)
        ucx_api.tag_send_nb(ep, b"word", 4, 1, None)
        until(lambda: len(calls) == 20, worker)
        assert [c[1] for c in calls] == [None] * 20 and all(buffer == b"word" for buffer in buffers)
        until(lambda: not ep.is_alive(), worker)
        assert process.wait(60) == 0
        ep.close()
    worker.close()


# --- the address of a worker that is gone


def test_progress_alone_shows_that_a_worker_is_gone(child):
    """UCX-Py: UCXError with "Destination is unreachable" or "Endpoint timeout", in a loop of ucp.progress() that never gives asyncio
    its turn."""
    process = child("""
import sys
from ucp._libs import ucx_api
worker = ucx_api.UCXWorker(ucx_api.UCXContext())
print(bytes(worker.get_address()).hex(), flush=True)
sys.stdin.readline()
""")
    address = ucx_api.UCXAddress.from_buffer(bytes.fromhex(process.stdout.readline()))
    process.kill()
    process.wait(60)

    async def main():
        ep = await ucp.create_endpoint_from_worker_address(address)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ep._ep.raise_on_error()
            ucp.progress()
    with pytest.raises(exceptions.UCXError, match="Destination is unreachable|Endpoint timeout"):
        asyncio.run(main())
