"""Arrays over replicas: elements killed while an array is fetched or flushed, all of them killed, stopped ones, and other
programs that write."""
# ctest: long
import os
import sys
import threading
import time

import pytest

import weft

from elementside import BOUND, action, elsewhere, go_on, mirrored, stop, until

numpy = pytest.importorskip("numpy")

SIZE = 65536
N = SIZE // 8

WRITER = """
import sys
from elementside import BOUND, action
with action(sys.argv[1], heartbeat=1) as made:
    trans = made.get_transport("mem", "rdma")
    with trans.remote_array("u8", 512, offset=int(sys.argv[2])) as array:
        n = 1
        array[...] = n
        array.flush()
        print("wrote", flush=True)
        while sys.argv[3] == "on":
            n += 1
            array[...] = n
            array.flush()
        sys.stdin.readline()
print("left", flush=True)
"""


def transport(made):
    trans = made.get_transport("mem", "rdma")
    trans.wait_ready(BOUND)
    return trans


def test_arrays_over_replicas_are_arrays(child):
    _, durl = mirrored(child, 2, SIZE)
    with action(durl) as made:
        trans = transport(made)
        trans.reg(64)
        trans.buf[:] = b"m" * 64
        model = numpy.zeros((64, 128), "u8")
        rng = numpy.random.default_rng(5)
        keys = [3, (slice(None), 7), (slice(10, 20), slice(None, None, 3)), ..., (5, 5), (slice(None, None, -2), slice(100, 128))]
        with trans.remote_array("u8", (64, 128), timeout=BOUND) as array:
            for _ in range(30):
                key = keys[rng.integers(len(keys))]
                if rng.integers(2):
                    model[key] = value = rng.integers(1 << 40, size=numpy.shape(model[key]), dtype="u8")
                    array[key] = value
                assert numpy.array_equal(array[key], model[key])
                if rng.integers(3) == 0:
                    array.flush()
                    array.refresh()
        assert bytes(trans.buf) == b"m" * 64  # the buffer that is registered has nothing to do with it
        trans.read(64, 0)
        assert bytes(trans.buf) == model.tobytes()[:64]
        stats = trans.stats()
        assert stats["replicas"] == 2 and stats["bytes_written"] > 0
    with action(durl) as made:
        assert numpy.array_equal(numpy.asarray(transport(made).remote_array("u8", (64, 128))), model)


def test_only_what_is_touched_moves(child):
    _, durl = mirrored(child, 2, SIZE)
    with action(durl) as made:
        trans = transport(made)
        with trans.remote_array("u8", (64, 128)) as array:
            assert not array[3].any() and trans.stats()["bytes_read"] == 1024
            assert not array[3, :50].any() and trans.stats()["bytes_read"] == 1024
            array[4, ::2] = 1
        stats = trans.stats()
        assert (stats["bytes_read"], stats["bytes_written"], stats["writes"]) == (1024, 512, 64)


def goes_on_though_one_is_killed(work, victim):
    """Do work(how often it was done) again and again in a thread, kill the process, and see it go on; how often it was done
    in the end."""
    done, wrong, enough = [0], [], threading.Event()

    def often():
        try:
            while not enough.is_set():
                work(done[0])
                done[0] += 1
        except BaseException as error:
            wrong.append(error)
    thread = threading.Thread(target=often)
    thread.start()
    try:
        until(lambda: done[0] > 1 or wrong)
        victim.kill()
        seen = done[0]
        until(lambda: done[0] > seen + 3 or wrong)
    finally:
        enough.set()
        thread.join(BOUND)
    assert not wrong and not thread.is_alive()
    return done[0]


@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed_while_it_is_fetched(child, victim):
    processes, durl = mirrored(child, 2, SIZE)
    model = numpy.arange(N, dtype="u8") * 3
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        array = trans.remote_array("u8", N, timeout=BOUND)
        array[...] = model
        array.flush()

        def fetch(_):
            array.refresh()
            assert numpy.array_equal(array[::2], model[::2]) and numpy.array_equal(array[100:2000], model[100:2000])
        goes_on_though_one_is_killed(fetch, processes[victim])
        array.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed_while_it_is_flushed(child, victim):
    """What flush() says was written is there, on the one that is left, for another program."""
    processes, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        array = trans.remote_array("u8", N, timeout=BOUND)

        def write(done):
            array[::2] = done + 1
            assert array.dirty == N // 2
            array.flush()
            assert array.dirty == 0
        done = goes_on_though_one_is_killed(write, processes[victim])
        array.close()
        array = trans.remote_array("u8", N)
        assert (array[::2] == done).all() and not array[1::2].any()
        array.close()


def test_all_are_killed_and_what_is_not_written_is_known(child):
    processes, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        array = trans.remote_array("u8", N, timeout=20)
        array[...] = 1
        array.flush()
        array[10:20] = 7
        done, ended = [0], []

        def fetch():
            try:
                while True:
                    array.refresh()
                    assert (array[::2][10:] == 1).all()
                    done[0] += 1
            except weft.WeftError as error:
                ended.append(error)
        thread = threading.Thread(target=fetch)
        thread.start()
        until(lambda: done[0] > 1 or ended)
        began = time.monotonic()
        for process in processes:
            process.kill()
        thread.join(BOUND)
        assert not thread.is_alive() and time.monotonic() - began < 30
        assert len(ended) == 1 and isinstance(ended[0], (ConnectionError, TimeoutError))
        for use in (array.flush, array.close):
            with pytest.raises((ConnectionError, TimeoutError)):
                use()
            assert array.dirty == 10 and not array.closed and array[10:20].tolist() == [7] * 10
        array.refresh()
        assert array.fetched == 10  # what is dirty stays, whatever cannot be fetched
        with pytest.raises((ConnectionError, TimeoutError)):
            array[0]
        array._closed = True  # what was written is lost


def test_all_are_killed_while_it_is_flushed(child):
    processes, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        array = trans.remote_array("u8", N, timeout=20)
        rounds, ended = [0], []

        def write():
            try:
                while True:
                    array[::2] = rounds[0]
                    array.flush()
                    rounds[0] += 1
            except weft.WeftError as error:
                ended.append(error)
        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: rounds[0] > 1 or ended)
        for process in processes:
            process.kill()
        thread.join(BOUND)
        assert not thread.is_alive() and isinstance(ended[0], (ConnectionError, TimeoutError))
        assert array.dirty > 0 and (array[::2] == rounds[0]).all()
        array._closed = True  # what was written is lost


def test_none_answers_and_the_deadline_is_kept_and_then_all_is_written(child):
    processes, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=30) as made:
        trans = transport(made)
        array = trans.remote_array("u8", N)
        array[...] = 1
        array.flush()
        array[::2] = 2
        array.timeout = 0.3
        for process in processes:
            stop(process)
        try:
            began = time.monotonic()
            with pytest.raises((TimeoutError, ConnectionError)):
                array.flush()
            assert time.monotonic() - began < 20 and array.dirty == N // 2
        finally:
            for process in processes:
                go_on(process)
        array.timeout = None
        end = time.monotonic() + BOUND
        while array.dirty:  # it is found again
            assert time.monotonic() < end
            try:
                array.flush()
            except (TimeoutError, ConnectionError):
                time.sleep(0.05)
        array.refresh()
        array.timeout = BOUND
        assert (array[::2] == 2).all() and (array[1::2] == 1).all()
        array.close()


def with_path(monkeypatch):
    """The programs of this file import what stands beside it."""
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        monkeypatch.syspath_prepend(here)


def test_another_program_writes_first(child, monkeypatch):
    """The other one is the writer; ours becomes it when it flushes, and neither loses what it wrote."""
    with_path(monkeypatch)
    _, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        with trans.remote_array("u8", N, timeout=BOUND) as array:
            assert array[0] == 0
            array[5] = 5
            other = child(WRITER, durl, "4096", "once")
            assert other.stdout.readline() == "wrote\n"
            array.flush()
            assert not array[512:520].any() or (array[512:520] == 1).all()
            array.refresh()
            assert (array[512:1024] == 1).all() and array[5] == 5 and array[0] == 0
            array[600] = 6
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "left\n"
        with trans.remote_array("u8", N, timeout=BOUND) as array:
            assert array[600] == 6 and array[601] == 1 and array[5] == 5


def test_another_program_writes_all_the_time(child, monkeypatch):
    """They take turns. Whoever has too little time for that is told why, and what to do."""
    with_path(monkeypatch)
    _, durl = mirrored(child, 2, SIZE)
    with action(durl, heartbeat=1) as made:
        trans = transport(made)
        array = trans.remote_array("u8", 512)
        other = child(WRITER, durl, "4096", "on")
        assert other.stdout.readline() == "wrote\n"
        array[...] = 9
        array.timeout = 1e-6
        with pytest.raises(weft.TimeoutError, match="one program writes at a time.*try again, with more time"):
            array.flush()
        assert array.dirty == 512
        array.timeout = BOUND
        for i in range(3):
            array[...] = 10 + i
            array.flush()
            array.refresh()
            assert (array[...] == 10 + i).all()
        other.kill()
        array.refresh()
        assert (array[...] == 12).all()
        theirs = trans.remote_array("u8", 512, offset=4096, timeout=BOUND)[...]
        assert theirs[0] >= 1 and (theirs[0] - theirs[-1]) in (0, 1)  # one flush of its may have been cut short
        array.close()


def test_more_than_one_operation_knows_what_is_done(child):
    """4096 pieces go in one operation: what those before the one that failed have written is not dirty any more."""
    process, durl = elsewhere(child, 80000, transports="tcp")
    with action(durl, transports="tcp", heartbeat=1) as made:
        trans = transport(made)

        class Dies:
            """A transport whose element is killed between two operations."""
            nbytes = trans.nbytes

            def write_many(self, pieces, *, timeout=None):
                trans.write_many(pieces, timeout=timeout)
                process.kill()
                process.wait(BOUND)

            def read_many(self, pieces, *, timeout=None):
                raise AssertionError("nothing has to be fetched")

        from disagg.arrays import ElementArray
        array = ElementArray(Dies(), "u1", 80000)
        array[::2] = 1
        with pytest.raises((ConnectionError, TimeoutError)):
            array.flush()
        assert array.dirty == 40000 - 4096 and not array._dirty[:8192].any()
        array._closed = True  # what was written is lost
