"""Reads, writes and their like: where the bytes go, what is out of range, what arguments mean, and which of them wait without
the GIL."""
import itertools
import os
import signal
import sys
import threading
import time
import traceback

import pytest

import weft

from elementside import BOUND, action, elsewhere, memory, pair, until


@pytest.fixture(params=["mapped", "checked", "tcp"])
def trans(request):
    """A transport of this kind that is ready: 64 KiB of memory, a buffer of 8 KiB."""
    mapped = request.param == "mapped"
    with pair(65536, 8192, "tcp" if request.param == "tcp" else "all", mapped=mapped) as made:
        assert (made.stats()["path"] == "mapped") == mapped
        yield made


def look(trans, addr, size):
    """What the element has there, read by a buffer of its own size."""
    trans.read(size, addr, len(trans.buf) - size)
    return bytes(trans.buf[len(trans.buf) - size:])


def test_bytes_go_there_and_back(trans):
    trans.buf[:4] = b"abcd"
    assert trans.write(4, 1000) == 0
    assert look(trans, 998, 8) == b"\0\0abcd\0\0"
    trans.buf[:8] = bytes(8)
    assert trans.read(2, 1001, 3) == 0
    assert bytes(trans.buf[:8]) == b"\0\0\0bc\0\0\0"


def test_arguments_have_names_and_places(trans):
    trans.buf[:8] = b"01234567"
    trans.write(2, 0, 6)
    trans.write(size=2, addr=2, offset=4)
    trans.write(2, addr=4, offset=2)
    trans.write(2, 6, offset=0)
    trans.write(offset=0, addr=8, size=8)
    trans.write(2, 16)
    assert look(trans, 0, 18) == b"674523010123456701"
    trans.read(size=2, addr=8, timeout=BOUND)
    trans.read(2, addr=8)
    for bad in (lambda: trans.read(), lambda: trans.read(1), lambda: trans.read(1, 2, 3, 4), lambda: trans.read(1, 2, where=3),
                lambda: trans.read(1, 2, size=1), lambda: trans.read("1", 2), lambda: trans.read(None, 0),
                lambda: trans.read(1, None),
                lambda: trans.read([], 0), lambda: trans.write(1, 2, b""), lambda: trans.read(1, 2, timeout="soon")):
        with pytest.raises(TypeError):
            bad()


def test_whole_floats_are_numbers_and_others_are_not(trans):
    trans.reg(8192.0)
    assert len(trans.buf) == 8192
    trans.buf[:2] = b"xy"
    trans.write(2.0, 4.0, 0.0)
    assert look(trans, 4, 2) == b"xy"
    for bad in (1.5, float("nan"), float("inf"), -1.0, 1e300):
        with pytest.raises(ValueError):
            trans.reg(bad)
        with pytest.raises(ValueError):
            trans.read(bad, 0)
    for bad in (-1, 1 << 64, -(1 << 80)):
        with pytest.raises(OverflowError):
            trans.read(bad, 0)
        with pytest.raises(OverflowError):
            trans.read(1, bad)
    assert len(trans.buf) == 8192


def test_out_of_range_raises_and_touches_nothing(trans):
    before = bytes(range(256)) * 32
    trans.buf[:] = before
    trans.write(8192, 0)
    trans.write(8192, 65536 - 8192)
    for size, addr, offset in [(8193, 0, 0), (1, 0, 8192), (2, 0, 8191), (1 << 40, 0, 0), (1, 0, 1 << 63), (1, 65536, 0),
                               (2, 65535, 0),
                               (8192, 65536 - 8191, 0), (1, (1 << 64) - 1, 0), (8192, (1 << 64) - 8192, 0),
                               ((1 << 64) - 1, 1, 1)]:
        for call in (trans.read, trans.write):
            with pytest.raises(weft.RangeError):
                call(size, addr, offset)
    assert bytes(trans.buf) == before
    assert look(trans, 65536 - 8192, 8192) == look(trans, 0, 8192) == before
    trans.read(0, 65536, 8192)
    trans.write(0, 0, 0)


def test_large_ones_go_in_one_piece(trans):
    big = 4 << 20
    with memory(big) as element, action(element.durl) as made:
        large = made.get_transport("mem", "rdma")
        large.reg(big)
        text = os.urandom(1 << 16)
        for at in range(0, big, len(text)):
            large.buf[at:at + len(text)] = text
        large.write(big, 0)
        large.buf[:] = bytes(big)
        large.read(big, 0)
        assert large.buf == text * (big // len(text))


def test_batches_are_reads_and_writes_in_one(trans):
    trans.buf[:8] = b"abcdefgh"
    assert trans.batch([("write", 4, 100), ("write", 4, 200, 4)]) == 2
    assert trans.batch([["read", 4, 200, 16], ("read", 4, 100, 20)]) == 2
    assert bytes(trans.buf[16:24]) == b"efghabcd"
    assert trans.batch([]) == 0 and trans.batch(iter([("read", 1, 0)])) == 1
    with pytest.raises(weft.RangeError, match="item 1 of 3"):
        trans.batch([("read", 4, 0), ("write", 4, 65535), ("read", 4, 8)], timeout=BOUND)
    before = trans.stats()["reads"]
    with pytest.raises(weft.RangeError):  # outside of the buffer: none of it
        trans.batch([("read", 4, 0), ("read", 4, 0, 8190)])
    assert trans.stats()["reads"] == before
    for bad in ([3], [()], [("read",)], [("read", 1)], [("read", 1, 2, 3, 4)], [("read", None, 0)], 7, None, ["read"]):
        with pytest.raises(TypeError):
            trans.batch(bad)
    with pytest.raises(ValueError, match="wipe"):
        trans.batch([("wipe", 1, 2)])
    with pytest.raises(weft.LimitError):
        trans.batch([("read", 1, 0)] * 65537)


def test_pieces_are_gathered_and_scattered(trans):
    trans.buf[:9] = b"aabbbcccc"
    assert trans.writev([(2, 0), (3, 100), (4, 200)]) == 3
    assert (look(trans, 0, 3), look(trans, 100, 4), look(trans, 200, 5)) == (b"aa\0", b"bbb\0", b"cccc\0")
    assert trans.readv([(4, 200), (2, 0)], 50) == 2
    assert bytes(trans.buf[50:56]) == b"ccccaa"
    assert trans.readv([(1, 100, 70), (1, 0), (1, 200)], offset=60) == 3
    assert (trans.buf[70], bytes(trans.buf[60:62])) == (ord("b"), b"ac")
    with pytest.raises(OverflowError):
        trans.readv([((1 << 64) - 1, 0), (1, 0)], offset=1)
    with pytest.raises(TypeError, match="addr"):
        trans.readv([(1,)])
    with pytest.raises(weft.RangeError):
        trans.writev([(8192, 0), (1, 0)])


def test_atomics_give_the_value_before(trans):
    assert trans.fetch_add(64) == 0
    assert trans.fetch_add(64, 41) == 1
    assert trans.fetch_add(addr=64, value=-2, timeout=BOUND) == 42
    assert trans.compare_swap(64, 7, 1) == 40
    assert trans.compare_swap(64, expected=40, desired=-1) == 40
    assert trans.fetch_add(64, 0) == (1 << 64) - 1
    assert look(trans, 64, 8) == b"\xff" * 8
    for bad in (lambda: trans.fetch_add(1 << 40), lambda: trans.fetch_add(65532), lambda: trans.fetch_add(3),
                lambda: trans.compare_swap(65536, 0, 0)):
        with pytest.raises(weft.WeftError):
            bad()
    with pytest.raises(weft.WeftError, match="an atomic operation on 8 bytes is at a multiple of 8, and 4 is none"):
        trans.fetch_add(4, 1)
    for bad in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            trans.fetch_add(64, bad)
    for bad in (lambda: trans.fetch_add(), lambda: trans.fetch_add(0, 1.5), lambda: trans.compare_swap(0, 1),
                lambda: trans.compare_swap(0, None, 1)):
        with pytest.raises(TypeError):
            bad()


def test_atomics_of_threads_add_up(trans):
    def add():
        for _ in range(200):
            trans.fetch_add(8)
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert trans.fetch_add(8, 0) == 800


def test_flush_waits_for_what_was_posted(trans):
    done = []

    def write():
        for i in range(50):
            trans.write(8192, i * 100)
        done.append(1)
    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert trans.flush() is None
    thread.join(BOUND)
    assert done and trans.flush(timeout=BOUND) is None


def test_what_is_known_of_it(trans):
    assert trans.name == "mem" and trans.state == "ready" and trans.why is None and trans.nbytes == 65536 and trans.durl is None
    assert trans.describe() == "" and trans.get_msg() == (0, "") and "ready" in repr(trans)
    before = trans.stats()
    trans.read(100, 0)
    trans.write(50, 0)
    trans.fetch_add(0)
    with pytest.raises(weft.RangeError):
        trans.read(1, 1 << 40)
    now = trans.stats()
    assert {key: now[key] - before[key] for key in ("reads", "writes", "atomics", "bytes_read", "bytes_written", "failed")} == {
        "reads": 1, "writes": 1, "atomics": 1, "bytes_read": 100, "bytes_written": 50, "failed": 1}
    assert now["len"] == 65536 and now["connects"] == 1 and now["losses"] == 0


def test_what_cannot_be_reached_says_so():
    with action("a;rdma_tcp;", "b;rdma_tcp;size,64;url,tcp://127.0.0.1:1;timeout_ms,300;") as made:
        a, b = made.get_transport("a", "rdma"), made.get_transport("b", "rdma")
        assert a.state == "waiting" and "waits" in a.describe() and a.nbytes == 0
        with pytest.raises(TimeoutError):
            a.wait_ready(0.01)
        with pytest.raises(TimeoutError):
            a.wait_ready(timeout=0.01)
        with pytest.raises(weft.WeftError):
            b.wait_ready()  # the durl's timeout
        b.reg(8)
        with pytest.raises(weft.WeftError, match="b"):
            b.read(4, 0)
        assert b.describe() and b.state in ("connecting", "lost")


def test_a_deadline_ends_a_wait():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        for call in (lambda: trans.read(4, 0, timeout=0.01), lambda: trans.write(4, 0, 0, timeout=0.01),
                     lambda: trans.fetch_add(0, timeout=0.01),
                     lambda: trans.batch([("read", 4, 0)], timeout=0.01), lambda: trans.readv([(4, 0)], timeout=0.01)):
            with pytest.raises(TimeoutError):
                call()


def test_others_run_while_one_waits():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        ended = threading.Event()

        def read():
            with pytest.raises(weft.WeftError):
                trans.read(4, 0)
            ended.set()
        threading.Thread(target=read).start()
        until(lambda: trans.stats()["waits"] == 1)
        count = sum(1 for _ in itertools.islice(itertools.count(), 100000))  # with the GIL
        assert count == 100000 and not ended.is_set()
        made.release_transport("mem")
        assert ended.wait(BOUND)


def test_a_signal_ends_a_wait():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            trans.read(4, 0)
        with pytest.raises(TimeoutError):  # and it can be used as before
            trans.read(4, 0, timeout=0.01)


def test_the_wait_of_a_thread_ends_with_the_runtime():
    from elementside import runtime
    import disagg
    with runtime() as own:
        made = disagg.LibdAction(None, "x", transports=["mem;rdma_tcp;"], runtime=own)
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        ended = []

        def read():
            try:
                trans.read(4, 0)
            except weft.WeftError as error:
                ended.append(type(error))
        thread = threading.Thread(target=read)
        thread.start()
        until(lambda: trans.stats()["waits"] == 1)
        own._close()
        thread.join(BOUND)
        assert ended == [weft.ClosedError]
        with pytest.raises(weft.ClosedError):
            trans.read(4, 0)
        made.close()


def test_a_forked_child_is_told_so():
    with pair() as trans:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                trans.read(4, 0)
            except weft.ForkedError:
                status = 0
            except BaseException as error:
                print(repr(error), file=sys.stderr)
            finally:
                os._exit(status)
        end = time.monotonic() + BOUND
        while True:
            got, status = os.waitpid(pid, os.WNOHANG)
            if got:
                break
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        assert status == 0
        trans.read(4, 0)

def told_so(trans, server, own):
    """In a forked child: every call on what the parent has says so."""
    assert trans.state == server.state == "released" and trans.why is weft.ForkedError and trans.durl is server.durl is None
    for use in (lambda: trans.stats(), lambda: trans.buf, lambda: server.buf, lambda: trans.reg(8), lambda: trans.read(8, 0),
                lambda: trans.remote(),
                lambda: trans.alloc(5), lambda: trans.flush(), lambda: own.add("x;rdma_tcp;"), lambda: own.release("mem"),
                lambda: own.configure("mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;"), lambda: weft._core.Transport(own, "mem"),
                own.close):
        with pytest.raises(weft.ForkedError):
            use()
    own.terminate()


def test_a_child_that_is_forked_while_threads_are_busy_is_told_and_never_hangs():
    with memory(1 << 16) as element, action(element.durl, "s;rdma_tcp_server;size,64;") as made:
        trans, server = made.get_transport("mem", "rdma"), made.get_transport("s", "rdma_server")
        trans.reg(1 << 16)
        trans.wait_ready(BOUND)
        view, stop = trans.buf, threading.Event()

        def work():
            while not stop.is_set():
                trans.read(1 << 15, 0)  # posted without the GIL
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        signal.alarm(BOUND)  # ends it
                        told_so(trans, server, made._action)
                        view[0] = 1  # what is here can be looked at
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(status)
                assert os.waitpid(pid, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join(BOUND)
        assert trans.state == "ready"


def test_alloc_is_memory_at_the_same_element(child):
    process, durl = elsewhere(child, 4096, spare=1 << 20)
    with action(durl) as made:
        trans = made.get_transport("mem", "rdma")
        with trans.alloc(1000) as block:
            assert block.nbytes == 1000 and block.store is None and block.remote.endpoint is None
            block.remote.write(b"hello", 995)
            assert block.remote.read(990, 10) == b"\0" * 5 + b"hello"
            with pytest.raises(weft.RangeError):
                block.remote.write(b"hello", 996)
            second = trans.alloc(1000.0, timeout=BOUND)
            assert second.remote.read() == bytes(1000)
            second.free()
        with pytest.raises(weft.ClosedError):
            block.remote
        with pytest.raises(weft.LimitError):
            trans.alloc(1 << 30)
        kept = trans.alloc(64)
        made.release_transport("mem")
        with pytest.raises(weft.WeftError):
            kept.remote.write(b"x", 0, timeout=BOUND)
    with pair(4096) as trans, pytest.raises(weft.WeftError):
        trans.alloc(10)  # it has no spare


USER = """
import sys
import disagg
action = disagg.LibdAction(None, "user", transports=[sys.argv[1]])
trans = action.get_transport("mem", "rdma")
kept = [trans.alloc(100000, lease=1.5), trans.alloc(300000)]
kept[0].remote.write(b"mine", 0)
print("there", flush=True)
sys.stdin.read()
"""


def test_what_was_allocated_goes_when_its_lease_is_over(child):
    with memory(4096, spare=1 << 20, lease=600) as element:
        def used():
            return element.stats()["used_bytes"]
        empty = used()
        user = child(USER, element.durl)
        assert user.stdout.readline() == "there\n"
        full = used()
        assert full >= empty + 400000
        time.sleep(3)  # twice the lease; but its user is there
        assert used() == full
        user.kill()
        user.wait(BOUND)
        until(lambda: used() <= full - 100000, "the lease is over")
        assert used() >= empty + 300000  # that of the other is not
        with action(element.durl) as made:
            assert made.get_transport("mem", "rdma").alloc(100000).remote.read(0, 4) == bytes(4)


def test_what_cannot_be_allocated():
    with memory(4096, spare=1 << 20) as element, action(element.durl) as made:
        trans = made.get_transport("mem", "rdma")
        for bad in (lambda: trans.alloc(), lambda: trans.alloc(None), lambda: trans.alloc("8"), lambda: trans.alloc(8, 5),
                    lambda: trans.alloc(8, lease="long")):
            with pytest.raises(TypeError):
                bad()
        for bad in (lambda: trans.alloc(1.5), lambda: trans.alloc(8, lease=-1), lambda: trans.alloc(8, lease=float("nan"))):
            with pytest.raises(ValueError):
                bad()
        kept = [trans.alloc(64, lease=lease) for lease in (None, 0, 1e-9, 1, 1e6, float("inf"))]
        assert [block.nbytes for block in kept] == [64] * 6
        with pytest.raises(weft.LimitError):
            kept += [trans.alloc(64, lease=1 + i) for i in range(40)]  # of different lengths


def test_the_remote_is_the_elements_memory(trans):
    remote = trans.remote()
    assert remote is trans.remote() and remote.nbytes == 65536 and remote.endpoint is None
    remote.write(b"by remote", 77)
    assert look(trans, 77, 9) == b"by remote"
    remote.drop()
    again = trans.remote()
    assert again is not remote and again.read(77, 2) == b"by"
    with pytest.raises(weft.ClosedError):
        remote.read(0, 1)
    trans.action.close()
    with pytest.raises(weft.ClosedError):
        again.read(0, 1)
    with action("mem;rdma_tcp;") as made, pytest.raises(weft.StateError):
        made.get_transport("mem", "rdma").remote()


def test_transports_of_an_event_loop_give_operations(run):
    async def use():
        async with weft.Runtime() as own:
            with memory(4096) as element:
                async with weft.Action(own, "x") as made:
                    made.add(element.durl)
                    trans = weft.Transport(made, "mem")
                    with pytest.raises(MemoryError):
                        await trans.read(4, 0)
                    trans.reg(64)
                    assert await trans.wait_ready() == 4096
                    trans.buf[:4] = b"loop"
                    await trans.write(4, 10)
                    await trans.read_async(4, 10, 20)
                    assert bytes(trans.buf[20:24]) == b"loop" and await trans.fetch_add(0) == 0
                    with pytest.raises(weft.RangeError):
                        await trans.read(8, 4090)
                with pytest.raises(weft.ClosedError):
                    await trans.read(4, 0)
                async with weft.MemoryElement(own, "own", 64) as mine:
                    assert weft._core.durl_parse(mine.durl)["name"] == "own"
    run(use())
