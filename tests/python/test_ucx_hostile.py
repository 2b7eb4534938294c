"""ucp._libs under bad arguments, forks, and wear: exceptions and never a crash, and nothing left behind."""
import gc
import os
import random
import sys

import pytest
from test_hostile import THINGS
from test_ucx_api import Both, Calls, until

from ucp import exceptions
from ucp._libs import ucx_api
from ucp._libs.arr import Array


@pytest.mark.parametrize("seed", range(4))
def test_every_entry_point_survives_every_argument(seed):
    rng = random.Random(seed)
    both = Both()
    address = both.right.get_address()
    memory = both.contexts[1].alloc(4096)
    rkey = both.a.unpack_rkey(memory.pack_rkey())
    there = ucx_api.RemoteMemory(rkey, memory.address, 4096)
    things = [*THINGS, memory, memory.pack_rkey(), rkey, memory.address, both.a, both.left, both.right, Array(b"abc"),
              Array(bytearray(9)), address, *both.contexts, ucx_api.Feature.TAG]
    functions = [ucx_api.tag_send_nb, ucx_api.tag_recv_nb, ucx_api.stream_send_nb, ucx_api.stream_recv_nb, ucx_api.am_send_nbx,
                 ucx_api.am_recv_nb,
                 ucx_api.UCXContext, ucx_api.UCXAddress.from_buffer, ucx_api.UCXEndpoint.create_from_worker_address,
                 ucx_api.UCXEndpoint.create_from_conn_request, ucx_api.UCXListener, Array, both.left.tag_probe,
                 both.left.request_cancel,
                 both.left.flush, both.left.register_am_allocator, both.a.flush, both.a.set_close_callback, both.a.unpack_rkey,
                 ucx_api.put_nb, ucx_api.get_nb, ucx_api.put_nbi, ucx_api.get_nbi, ucx_api.RemoteMemory, ucx_api.UCXIO,
                 ucx_api.PackedRemoteKey.from_buffer, both.contexts[0].map, there.put_nb, there.get_nb, there.put_nbi,
                 there.get_nbi]
    for _ in range(1500):
        function = rng.choice(functions)
        args = [rng.choice(things) for _ in range(rng.randrange(7))]
        if rng.random() < 0.5 and function in functions[:1] + functions[2:6]:
            args[:1] = [both.a]
        if rng.random() < 0.5 and function is ucx_api.tag_recv_nb:
            args[:1] = [both.right]
        try:
            function(*args)
        except Exception as error:
            assert not isinstance(error, SystemError), (function, args, error)
        if not rng.randrange(20):
            both.left.progress()
            both.right.progress()
    both.left.cancel_inflight_messages()
    both.right.cancel_inflight_messages()
    fresh = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", both.listener.port, True)
    calls, tag = Calls(), 0xABCDEF0123456789
    ucx_api.tag_recv_nb(both.right, bytearray(3), 3, tag, calls)
    ucx_api.tag_send_nb(fresh, b"yes", 3, tag, None)
    both.until(lambda: calls)
    assert calls[0][1] is None
    both.close()


def test_nothing_is_left_behind():
    def once():
        both = Both()
        calls = Calls()
        for i in range(30):
            ucx_api.tag_recv_nb(both.right, bytearray(100), 100, i, calls, ep=both.b)
            ucx_api.tag_send_nb(both.a, bytes(100), 100, i, None)
            ucx_api.stream_send_nb(both.a, bytes(1000), 1000, None)
            ucx_api.am_send_nbx(both.a, bytes(1000), 1000, None)
        ucx_api.am_recv_nb(both.b, calls)
        ucx_api.stream_recv_nb(both.b, bytearray(5000), 5000, calls)
        both.until(lambda: len(calls) >= 31)
        memory = both.contexts[1].alloc(1 << 16)
        there = ucx_api.RemoteMemory(both.a.unpack_rkey(memory.pack_rkey()), memory.address, 1 << 16)
        there.put_nb(bytes(1000), calls)
        there.get_nb(bytearray(1000), calls)
        both.until(lambda: len(calls) >= 33)
        both.a.flush(calls)
        ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 99, calls, ep=both.b)  # still waiting when it all ends
        both.left.init_blocking_progress_mode()
        both.close()
    for _ in range(3):
        once()
    gc.collect()
    files, objects, blocks = len(os.listdir("/proc/self/fd")), len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(30):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 1
    assert len(gc.get_objects()) < objects + 200 and sys.getallocatedblocks() < blocks + 3000


def test_dropped_objects_close_themselves():
    both = Both()
    fresh = ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", both.listener.port, True)
    both.until(lambda: fresh.endpoint.state == "up")
    told = []
    both.b.set_close_callback(lambda: told.append(1))
    both.a = None  # the last of it
    gc.collect()
    both.until(lambda: told)
    both.listener = None
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    worker = ucx_api.UCXWorker(ucx_api.UCXContext())
    worker.init_blocking_progress_mode()
    del worker
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files
    both.close()


def test_a_forked_process_is_told_so():
    both = Both()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (both.left.progress, lambda: ucx_api.tag_send_nb(both.a, b"x", 1, 1, None),
                         lambda: ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, None)):
                try:
                    call()
                except exceptions.UCXBaseException:
                    pass
            own = Both()  # and may have its own
            calls = Calls()
            ucx_api.tag_recv_nb(own.right, bytearray(1), 1, 1, calls)
            ucx_api.tag_send_nb(own.a, b"x", 1, 1, None)
            until(lambda: calls, own.left, own.right)
            own.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    calls = Calls()
    ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, calls)
    ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
    both.until(lambda: calls)
    both.close()


ENDS = """
import sys
from ucp._libs import ucx_api
worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": sys.argv[2]}))
ep = ucx_api.UCXEndpoint.create(worker, "127.0.0.1", int(sys.argv[1]), True)
data = bytes(range(256)) * 4096
ucx_api.tag_send_nb(ep, data, len(data), 1, None)
"""


@pytest.mark.parametrize("tls", ["sm", "tcp"])
def test_what_was_sent_before_the_end_of_a_program_arrives(child, tls):
    """It neither closes nor waits: leaving does."""
    worker = ucx_api.UCXWorker(ucx_api.UCXContext({"TLS": tls}))
    eps, calls, got = [], Calls(), bytearray(1 << 20)
    listener = ucx_api.UCXListener(worker, 0,
                                   lambda request: eps.append(ucx_api.UCXEndpoint.create_from_conn_request(worker, request,
                                                                                                           True)))
    process = child(ENDS, str(listener.port), tls)
    ucx_api.tag_recv_nb(worker, got, len(got), 1, calls)
    until(lambda: calls, worker)
    assert calls[0][1] is None and got == bytes(range(256)) * 4096
    until(lambda: process.poll() is not None, worker)
    assert process.returncode == 0
    worker.close()


@pytest.mark.parametrize("what", ["message", "listener", "close", "am"])
def test_closing_everything_from_inside_a_callback(what):
    both, told = Both(), []

    def end(*unused):
        both.right.close()
        told.append(1)
        with pytest.raises(exceptions.UCXCloseError):
            both.right.progress()
    if what == "message":
        ucx_api.tag_recv_nb(both.right, bytearray(1), 1, 1, end, ep=both.b)
        ucx_api.tag_send_nb(both.a, b"x", 1, 1, None)
    elif what == "listener":
        listener = ucx_api.UCXListener(both.right, 0, end)
        ucx_api.UCXEndpoint.create(both.left, "127.0.0.1", listener.port, True)
    elif what == "close":
        both.b.set_close_callback(end)
        both.a.close()
    else:
        ucx_api.am_recv_nb(both.b, end)
        ucx_api.am_send_nbx(both.a, b"x", 1, None)
    until(lambda: told or both.left.progress() < 0 or (not both.right.closed() and both.right.progress() < 0))
    assert told == [1] and both.b.closed()
    both.close()
