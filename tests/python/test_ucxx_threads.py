"""ucxx's workers among threads: one drives, others post and wait; functions of the program may use the worker; nothing is left behind."""
import asyncio
import gc
import os
import select
import threading
import time
import types
import weakref

import numpy
import pytest

import ucxx
from ucxx._lib import driver, libucxx as api
from ucxx._lib.arr import Array
from ucxx._lib_async.exchange_peer_info import _INFO
from ucxx._lib_async.utils import hash64bits
from ucxxside import BOUND, connected, fresh, server, spin_until, until  # noqa: F401


_INTRODUCTION = _INFO.pack(77, hash64bits("ucxx", 77))  # as an endpoint of asyncio introduces itself


def threads():
    return [t for t in threading.enumerate() if t.name == "ucxx progress"]


def listening(worker, **options):
    """A listener and the endpoints that came to it."""
    came = []
    listener = api.UCXListener.create(worker, 0, came.append, deliver_endpoint=True, **options)
    return listener, came


def two(worker):
    """Two endpoints of one worker, which a thread drives."""
    listener, came = listening(worker)
    a = api.UCXEndpoint.create(worker, "127.0.0.1", listener.port, endpoint_error_handling=True)
    spin_until(lambda: came)
    return a, came[0], listener


@pytest.fixture
def worker():
    made = api.UCXWorker(api.UCXContext())
    made.start_progress_thread()
    yield made
    made._close()


def wait(*requests):
    spin_until(lambda: all(r.completed for r in requests))
    for request in requests:
        request.check_error()


def test_a_thread_drives_what_nobody_waits_for(worker):
    a, b, listener = two(worker)
    into = bytearray(4)
    request = b.tag_recv(Array(into), api.UCXXTag(1))
    a.tag_send(Array(b"1234"), api.UCXXTag(1))
    spin_until(lambda: request._state.done)  # asking `completed` would help
    request.check_error()
    assert into == b"1234" and request.status == 0
    big = numpy.arange(3_000_000, dtype="u1")
    got = numpy.zeros_like(big)
    requests = a.tag_send(Array(big), 2), b.tag_recv(Array(got), 2)
    spin_until(lambda: all(r._state.done for r in requests))
    assert (got == big).all()


def test_messages_move_while_the_loop_is_busy(child):
    """A peer's large send completes while the only task of this program computes, and awaits nothing."""
    process, port = server(child, """
import numpy
await ep.recv(bytearray(1))
await ep.send(numpy.ones(32_000_000, "u1"))
print("sent", flush=True)
""")

    async def body():
        ep = await ucxx.create_endpoint("127.0.0.1", port)
        into = numpy.zeros(32_000_000, "u1")
        receiving = asyncio.ensure_future(ep.recv(into))
        await asyncio.sleep(0)
        await ep.send(b"x")
        assert process.stdout.readline() == "sent\n"  # the loop is kept until then
        await receiving
        assert into.all()
    asyncio.run(body())


@pytest.mark.parametrize("polling", [False, True])
def test_many_threads_use_one_worker(polling):
    worker = api.UCXWorker(api.UCXContext())
    worker.start_progress_thread(polling_mode=polling)
    a, b, listener = two(worker)
    wrong, n, each = [], 6, 150

    def work(number):
        try:
            for i in range(each):
                data = bytes([number, i % 251]) * (5 if i % 10 else 40_000)
                into = bytearray(len(data))
                wait(b.tag_recv(Array(into), number), a.tag_send(Array(data), number))
                assert into == data, (number, i)
        except BaseException as error:  # noqa: B902
            wrong.append(error)
    users = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for user in users:
        user.start()
    for user in users:
        user.join(BOUND)
    assert not wrong and not any(user.is_alive() for user in users)
    worker._close()


def test_loops_of_several_threads_share_a_context():
    ucxx.init(progress_mode="thread")
    wrong = []

    def work(number):
        async def body():
            p = await connected()
            for i in range(50):
                data = bytes([number, i]) * 1000
                _, _ = await asyncio.gather(p.a.send(data), p.b.recv(into := bytearray(2000)))
                assert into == data
            p.a.abort()
            p.b.abort()
            p.listener.close()
        try:
            asyncio.run(body())
        except BaseException as error:  # noqa: B902
            wrong.append(error)
    users = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(BOUND)
    assert not wrong and not any(user.is_alive() for user in users)
    ucxx.reset()


def test_a_loop_of_another_thread_is_told_so_where_a_loop_drives():
    ucxx.init(progress_mode="blocking")
    said = []

    async def body():
        p = await connected()

        def other():
            with pytest.raises(ucxx.exceptions.UCXError, match='the event loop of another thread(?s:.*)progress_mode="thread"'):
                asyncio.run(ucxx.create_endpoint("127.0.0.1", p.listener.port))
            said.append(True)
        await asyncio.to_thread(other)
    asyncio.run(body())
    assert said


def test_a_function_that_the_thread_calls_may_use_the_worker_and_wait_for_others(worker):
    """The thread waits for this one, and this one uses the worker: neither waits for ever."""
    used, go, done = threading.Event(), threading.Event(), []

    def came(conn_request):
        used.set()
        assert go.wait(BOUND)
        done.append(listener.create_endpoint_from_conn_request(conn_request, True))
    listener = api.UCXListener.create(worker, 0, came)
    ep = api.UCXEndpoint.create(worker, "127.0.0.1", listener.port, endpoint_error_handling=True)
    assert used.wait(BOUND)
    assert worker.info and worker.tag_probe(1).matched is False  # while the function waits
    go.set()
    spin_until(lambda: done)
    into = bytearray(3)
    wait(ep.tag_send(Array(b"abc"), 9), done[0].tag_recv(Array(into), 9))
    assert into == b"abc"


def test_the_start_callback_runs_in_the_thread_and_the_thread_may_stop_itself():
    worker, seen = api.UCXWorker(api.UCXContext()), []
    worker.set_progress_thread_start_callback(lambda *a, **k: seen.append((threading.current_thread().name, a, k)), (1,), {"b": 2})
    worker.start_progress_thread()
    worker.start_progress_thread()  # once
    spin_until(lambda: seen)
    assert seen == [("ucxx progress", (1,), {"b": 2})] and len(threads()) == 1
    listener = api.UCXListener.create(worker, 0, lambda ep: worker.stop_progress_thread(), deliver_endpoint=True)
    ep = api.UCXEndpoint.create(worker, "127.0.0.1", listener.port, endpoint_error_handling=True)
    spin_until(lambda: not threads())
    assert not worker.is_progress_thread_running() and ep.alive
    worker.progress()  # by hand from now on
    worker._close()


def turns(worker, monkeypatch):
    """How often the thread drives the worker, in a list."""
    made, drive = [], worker._thread._turn
    monkeypatch.setattr(worker._thread, "_turn", lambda *args: (made.append(1), drive(*args))[1])
    return made


def test_the_thread_sleeps_when_there_is_nothing_to_do(worker, monkeypatch):
    a, b, listener = two(worker)
    made = turns(worker, monkeypatch)
    for _ in range(3):
        into = bytearray(1)
        request = b.tag_recv(Array(into), 3)
        spin_until(lambda: worker._thread.armed, what="sleep")
        a.tag_send(Array(b"x"), 3)
        spin_until(lambda: request._state.done)
        spin_until(lambda: worker._thread.armed, what="sleep")
    before = len(made)
    time.sleep(0.3)
    assert len(made) - before < 20, "it drives though nothing happens"


def test_who_uses_the_worker_and_goes_does_not_leave_the_thread_asleep(worker, child):
    """Progress by hand disarms the worker. The thread, which sleeps without a limit, has to arm it again before the peer sends."""
    process, port = server(child, """
await ep.send(b"0", tag=9, force_tag=True)
for _ in range(5):
    await asyncio.to_thread(sys.stdin.readline)
    await ep.send(b"1", tag=9, force_tag=True)
""")
    ep = api.UCXEndpoint.create(worker, "127.0.0.1", port, endpoint_error_handling=True)
    introduction = bytearray(16)
    wait(ep.stream_send(Array(_INTRODUCTION)), ep.stream_recv(Array(introduction)))
    into = bytearray(1)
    wait(ep.tag_recv(Array(into), 9))
    for _ in range(5):
        request = ep.tag_recv(Array(into), 9)
        spin_until(lambda: worker._thread.armed, what="sleep")
        worker.progress()
        spin_until(lambda: worker._thread.armed, what="the arming")
        process.stdin.write("go\n")
        process.stdin.flush()
        spin_until(lambda: request._state.done)
    assert into == b"1"


def test_a_use_just_before_the_thread_sleeps_does_not_leave_it_asleep(monkeypatch):
    hold, there, go = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    class HeldUp:
        """A poll whose thread is held up just before it sleeps, as on a busy machine."""

        def __init__(self):
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, *timeout):
            if not timeout and hold.is_set():
                there.release()
                assert go.acquire(timeout=BOUND)
            return self._poll.poll(*timeout)
    monkeypatch.setattr(driver, "select", types.SimpleNamespace(poll=HeldUp, POLLIN=select.POLLIN))
    worker, told = api.UCXWorker(api.UCXContext()), threading.Event()
    hold.set()
    worker.start_progress_thread()
    assert there.acquire(timeout=BOUND)
    with worker:
        worker._inner._hand.call_soon(told.set)  # as what is over as soon as it is posted: whoever drives tells of it
    hold.clear()
    go.release()
    assert told.wait(BOUND), "the thread sleeps"
    worker._close()


def test_a_worker_that_nobody_holds_ends_with_its_thread():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        worker = api.UCXWorker(api.UCXContext())
        worker.start_progress_thread()
        listener, came = listening(worker)
        a = api.UCXEndpoint.create(worker, "127.0.0.1", listener.port, endpoint_error_handling=True)
        spin_until(lambda: came)
        pending = came[0].tag_recv(Array(bytearray(10)), 4)
        ref = weakref.ref(worker)
        came.clear()  # the listener's function holds it, and so the worker, in a circle
        del worker, a, listener
        gc.collect()
        spin_until(lambda: ref() is None or gc.collect() < 0)
        assert pending._state.done or pending._worker() is None
        del pending
    gc.collect()
    spin_until(lambda: not threads())
    spin_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before + 2, what="the end of all descriptors")


def test_a_receive_that_nobody_holds_gives_its_message_to_the_next(worker):
    a, b, listener = two(worker)
    b.tag_recv(Array(bytearray(3)), 5)  # dropped at once
    gc.collect()
    into = bytearray(3)
    wait(a.tag_send(Array(b"abc"), 5), b.tag_recv(Array(into), 5))
    assert into == b"abc"


def test_requests_in_flight_are_cancelled_and_counted(worker):
    a, b, listener = two(worker)
    requests = [b.tag_recv(Array(bytearray(1)), i) for i in range(5)] + [b.am_recv()]
    assert worker.cancel_inflight_requests() == 6
    spin_until(lambda: all(r.completed for r in requests))
    for request in requests:
        with pytest.raises(api.UCXCanceledError):
            request.check_error()
        assert request.status == -16


@pytest.mark.parametrize("mode", ["thread", "blocking"])
def test_a_killed_peer_ends_what_waits_for_it(child, mode):
    process, port = server(child, "await ep.send(b'here')\nawait asyncio.Event().wait()")
    ucxx.init(progress_mode=mode)

    async def body():
        ep, calls = await ucxx.create_endpoint("127.0.0.1", port), []
        ep.set_close_callback(calls.append, (1,))
        await ep.recv(bytearray(4))
        waiting = [asyncio.ensure_future(w) for w in (ep.recv(bytearray(1)), ep.am_recv(), ep.recv_multi(tag=2),
                                                      ep.send(numpy.zeros(50_000_000, "u1")))]
        await asyncio.sleep(0)
        process.kill()
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), BOUND)
        assert [type(e) for e in ends[:3]] == [ucxx.exceptions.UCXCanceledError] * 3
        assert isinstance(ends[3], (ucxx.exceptions.UCXConnectionResetError, ucxx.exceptions.UCXEndpointTimeoutError))
        await until(lambda: calls == [1])
        assert not ep.alive
        with pytest.raises((ucxx.exceptions.UCXConnectionResetError, ucxx.exceptions.UCXEndpointTimeoutError)):
            await ep.send(b"x")
    asyncio.run(body())


@pytest.mark.parametrize("mode", ["thread", "blocking"])
def test_receives_end_without_error_handling_too(child, mode):
    process, port = server(child, "await asyncio.Event().wait()")
    ucxx.init(progress_mode=mode)

    async def body():
        ep = await ucxx.create_endpoint("127.0.0.1", port, endpoint_error_handling=False)
        waiting = [asyncio.ensure_future(w) for w in (ep.recv(bytearray(1)), ep.recv_multi(tag=2), ep.am_recv())]
        await asyncio.sleep(0)
        process.kill()
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), BOUND)
        assert [type(e) for e in ends] == [ucxx.exceptions.UCXCanceledError] * 3
        ep.abort()
    asyncio.run(body())


def test_a_child_of_a_fork_is_told_so_and_may_begin_anew():
    ucxx.init(progress_mode="thread")
    ucxx.get_worker_address()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"nothing"
        try:
            try:
                ucxx.get_worker_address()
            except ucxx.exceptions.UCXError as error:
                said = b"told" if "forked" in str(error) else str(error).encode()
            ucxx.reset()

            async def body():
                p = await connected()
                await p.a.send(b"child")
                await p.b.recv(bytearray(5))
            asyncio.run(body())
            said += b", and began anew"
        except BaseException as error:  # noqa: B902
            said += repr(error).encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read() == b"told, and began anew"
    os.waitpid(pid, 0)
    ucxx.reset()


SENDER = """
import sys
from ucxx._lib import libucxx as api
from ucxx._lib.arr import Array
from ucxx._lib_async.exchange_peer_info import _INFO
from ucxx._lib_async.utils import hash64bits
worker = api.UCXWorker(api.UCXContext())
ep = api.UCXEndpoint.create_from_worker_address(worker, api.UCXAddress(bytes.fromhex(sys.argv[1])), True)
for i in range(3):
    request = ep.tag_send(Array(b"message %d" % i), 7)
    while not request.completed:
        worker.progress()
"""


def test_a_message_outlives_the_peer_that_reached_us_by_address(child):
    """The peer has sent, closed and ended before the receive is posted."""
    worker = api.UCXWorker(api.UCXContext())
    process = child(SENDER, bytes(worker.address).hex())
    spin_until(lambda: process.poll() is not None, worker)
    spin_until(lambda: worker.tag_probe(7).matched, worker)
    spin_until(lambda: worker._inner._unread, worker, "the end of the connection")
    for i in range(3):
        into = bytearray(9)
        request = worker.tag_recv(Array(into), 7)
        spin_until(lambda: request.completed, worker)
        request.check_error()
        assert into == b"message %d" % i
    worker.tag_recv(Array(bytearray(1)), 8)
    assert not worker._inner._unread, "a connection is kept though nothing of it waits"
    worker._close()
