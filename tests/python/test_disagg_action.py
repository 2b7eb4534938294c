"""Actions: transports by name, added and configured from any thread, released, terminated, closed; and what they keep for
profile()."""
import gc
import subprocess
import sys
import threading
import weakref

import pytest

import disagg
import weft
from weft import _core

from elementside import BOUND, action, elsewhere, memory, pair, runtime, until


def test_everything_comes_by_a_star():
    names = {}
    exec("from disagg import *", names)
    assert {"LibdAction", "LibdTransport", "LibdRDMATransport"} <= set(names)
    assert set(disagg.__all__) <= set(dir(disagg))
    with pytest.raises(AttributeError):
        disagg.nothing


def test_an_action_takes_what_scad_gives_it():
    cv = threading.Condition()
    with disagg.LibdAction(cv, "an-id", server_url="http://x", profile=3) as made:
        assert made.cv is cv and made.aid == "an-id" and made.kw == {"server_url": "http://x", "profile": 3}
        assert "an-id" in repr(made) and not made.terminated
    assert made.terminated


@pytest.mark.parametrize("aid", ["x" * 5000, "\u00e9" * 200, "a\0b", "\udc80", ""])
def test_any_text_may_be_an_id(aid):
    with action() as made:
        made.aid = aid
        made.add_transport("mem;rdma_tcp;")
        assert made.get_transport("mem", "rdma").state == "waiting"


def test_transports_are_cached_by_name():
    with action("a;rdma_tcp;", "b;rdma_tcp;") as made:
        a, b = made.get_transport("a", "rdma"), made.get_transport("b", "rdma")
        assert a is made.get_transport("a", "rdma") and a is not b
        assert isinstance(a, disagg.LibdRDMATransport) and (a.name, b.name) == ("a", "b")


def test_an_unknown_type_is_a_key_error_and_an_unknown_name_a_memory_error():
    with action("a;rdma_tcp;", "s;rdma_tcp_server;size,64;") as made:
        for name in ("a", "nobody"):
            with pytest.raises(KeyError, match="no type"):
                made.get_transport(name, "smoke")
        with pytest.raises(MemoryError, match="'b'"):
            made.get_transport("b", "rdma")
        for _ in range(2):  # before and after it is cached
            with pytest.raises(KeyError, match="other"):
                made.get_transport("a", "rdma_server")
            with pytest.raises(KeyError, match="other"):
                made.get_transport("s", "rdma")
            made.get_transport("a", "rdma")
            made.get_transport("s", "rdma_server")
    with disagg.LibdAction(None, "none") as none, pytest.raises(MemoryError):
        none.get_transport("a", "rdma")


def test_a_transport_is_added_once_and_configured_by_name():
    with action("a;rdma_tcp;") as made:
        with pytest.raises(weft.StateError):
            made.add_transport("a;rdma_tcp;")
        with pytest.raises(LookupError):
            made.config_transport("b", "b;rdma_tcp;url,tcp://127.0.0.1:1;")
        with pytest.raises(ValueError):
            made.config_transport("a", "a;rdma_tcp;")  # which says nothing
        assert made.get_transport("a", "rdma").state == "waiting"


class Told(threading.Condition):
    """A condition that counts what it was told."""

    def notify_all(self):
        super().notify_all()  # which says whether we have the lock
        self.times = getattr(self, "times", 0) + 1


def test_the_condition_is_told():
    cv = Told()
    with memory(64) as element, runtime() as own, disagg.LibdAction(cv, "x", runtime=own) as made:
        for i, step in enumerate([lambda: made.add_transport("mem;rdma_tcp;"), lambda: made.config_transport("mem", element.durl),
                                  made.terminate]):
            step()
            assert cv.times == i + 1


def test_calls_wait_until_a_thread_configures_the_transport():
    with memory(4096) as element, action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        trans.buf[:5] = b"hello"
        written = []
        thread = threading.Thread(target=lambda: written.append(trans.write(5, 100)))
        thread.start()
        until(lambda: trans.stats()["waits"] == 1, "the write waits")  # and this thread has the GIL meanwhile
        assert not written and trans.state == "waiting"
        made.config_transport("mem", element.durl)
        thread.join(BOUND)
        assert written == [0] and trans.state == "ready"
        trans.read(5, 100, offset=32)
        assert bytes(trans.buf[32:37]) == b"hello"


def test_without_a_buffer_it_raises_before_it_waits():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        for call in (trans.read, trans.write):
            with pytest.raises(MemoryError, match="reg"):
                call(4, 0)
        with pytest.raises(MemoryError, match="reg"):
            trans.buf
        with pytest.raises(MemoryError, match="reg"):
            trans.batch([("read", 4, 0)])
        assert trans.state == "waiting" and trans.stats()["waits"] == 0


def test_terminate_ends_who_waits_and_who_serves():
    with action("mem;rdma_tcp;", "s;rdma_tcp_server;size,4096;") as made:
        trans, server = made.get_transport("mem", "rdma"), made.get_transport("s", "rdma_server")
        trans.reg(64)
        ended = []

        def read():
            try:
                trans.read(4, 0)
            except weft.CancelledError as error:
                ended.append(error)

        def serve():
            ended.append(server.serve())
        threads = [threading.Thread(target=read), threading.Thread(target=serve)]
        for thread in threads:
            thread.start()
        until(lambda: trans.stats()["waits"] == 1)
        assert not made.terminated and not ended
        made.terminate()
        made.terminate()
        for thread in threads:
            thread.join(BOUND)
        assert len(ended) == 2 and None in ended and made.terminated
        with pytest.raises(weft.CancelledError):
            trans.read(4, 0)  # which waits no more


def test_an_action_that_was_terminated_early_waits_for_nothing():
    with action() as made:
        made.terminate()
        made.add_transport("mem;rdma_tcp;")
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        with pytest.raises(weft.CancelledError):
            trans.read(4, 0)


def test_served_memory_is_reached_by_another_action():
    with action("s;rdma_tcp_server;size,4096;") as made:
        server = made.get_transport("s", "rdma_server")
        assert isinstance(server, disagg.LibdRDMAServer)
        until(lambda: server.state == "ready")
        serving = threading.Thread(target=server.serve)
        serving.start()
        with action() as user:
            user.add_transport(server.durl)
            trans = user.get_transport("s", "rdma")
            trans.reg(16)
            trans.buf[:] = bytes(range(16))
            trans.write(16, 4080)
            trans.buf[:] = bytes(16)
            trans.read(16, 4080)
            assert bytes(trans.buf) == bytes(range(16))
            with pytest.raises(ValueError):
                trans.serve()
        with pytest.raises((ValueError, MemoryError)):
            server.reg(16)
        made.terminate()
        serving.join(BOUND)
        assert not serving.is_alive()


def test_after_release_every_use_raises():
    with memory(4096) as element, action(element.durl, "mem@1;rdma_tcp;", "memory;rdma_tcp;") as made:
        trans, second, other = (made.get_transport(name, "rdma") for name in ("mem", "mem@1", "memory"))
        trans.reg(64)
        second.reg(64)
        trans.wait_ready(BOUND)
        remote, view = trans.remote(), trans.buf
        made.release_transport("mem")
        for use in (lambda: trans.read(4, 0), lambda: trans.write(4, 0), lambda: trans.reg(64),
                    lambda: trans.batch([("read", 4, 0)]),
                    lambda: trans.fetch_add(0), lambda: trans.wait_ready(1), lambda: trans.remote(), lambda: remote.read(0, 4),
                    lambda: second.read(4, 0), lambda: trans.alloc(64), lambda: trans.flush(), lambda: trans.readv([(4, 0)])):
            with pytest.raises(weft.WeftError):
                use()
        assert trans.state == second.state == "released" and other.state == "waiting"
        view[0] = 7  # views are good for ever
        with pytest.raises(MemoryError):
            made.get_transport("mem", "rdma")
        with pytest.raises(LookupError):
            made.release_transport("mem")
        made.add_transport(element.durl)  # the name is free
        again = made.get_transport("mem", "rdma")
        assert again is not trans
        again.reg(8)
        again.read(8, 0)
        assert made.stats()["mem"]["reads"] == 1


def test_release_ends_who_waits():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        ended = []

        def read():
            try:
                trans.read(4, 0)
            except weft.ClosedError as error:
                ended.append(error)
        thread = threading.Thread(target=read)
        thread.start()
        until(lambda: trans.stats()["waits"] == 1)
        made.release_transport("mem")
        thread.join(BOUND)
        assert ended


def test_close_ends_everything_and_views_stay():
    with pair(buffer=64) as trans:
        made = trans.action
        view = trans.buf
        view[:3] = b"abc"
        made.close()
        made.close()
        for use in (lambda: trans.read(4, 0), lambda: trans.reg(8), lambda: trans.buf, lambda: trans.stats(),
                    lambda: trans.remote(),
                    lambda: made.add("x;rdma_tcp;"), lambda: made.configure("mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;"),
                    lambda: made.release("mem")):
            with pytest.raises(weft.ClosedError):
                use()
        assert (trans.state, trans.why, trans.nbytes) == ("released", weft.ClosedError, 0) and "released" in repr(trans)
        assert made.closed and made.terminated and made.terminate() is None
        assert bytes(view[:3]) == b"abc"


def test_close_while_threads_move_bytes():
    for _ in range(5):
        with memory(1 << 20) as element, action(element.durl) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(1 << 20)
            trans.wait_ready(BOUND)
            moved, go = [0] * 3, threading.Event()

            def work(i):
                go.wait(BOUND)
                try:
                    while True:
                        trans.read(1 << 20 if i else 64, 0)
                        moved[i] += 1
                except weft.WeftError:
                    pass
            threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
            for thread in threads:
                thread.start()
            go.set()
            until(lambda: min(moved) > 2)
            made.close()
            for thread in threads:
                thread.join(BOUND)
                assert not thread.is_alive()


def test_the_last_operations_are_profiled():
    with pair() as trans:
        made = trans.action
        assert made.profiled() == []
        made.profile(3)
        for size in (1, 2, 3, 4):
            trans.read(size, 0)
        trans.write(5, 0)
        rows = made.profiled()
        assert [row[:3] for row in rows] == [("mem", "read", 3), ("mem", "read", 4), ("mem", "write", 5)]
        assert all(0 <= row[4] < BOUND for row in rows) and rows[0][3] <= rows[1][3] <= rows[2][3]
        made.profile(0)
        trans.read(1, 0)
        assert made.profiled() == []
        for bad in (-1, 1 << 30):
            with pytest.raises(OverflowError):
                made.profile(bad)
    with action() as made:
        made.record(2)
        with pytest.raises(OverflowError):
            made.record(-1)
        made.add_transport("a;rdma_local;size,64;")
        trans = made.get_transport("a", "rdma")
        trans.reg(8)
        trans.read(8, 0)
        assert [row[:3] for row in made.profiled()] == [("a", "read", 8)]


def test_local_memory_needs_no_element():
    with action("scratch;rdma_local;size,4096;") as made:
        trans = made.get_transport("scratch", "rdma")
        trans.reg(8)
        trans.buf[:] = b"12345678"
        trans.write(8, 4088)
        trans.buf[:] = bytes(8)
        trans.read(8, 4088)
        assert bytes(trans.buf) == b"12345678"


def test_configuring_again_leads_elsewhere(child):
    one, two = (elsewhere(child, 64) for _ in range(2))
    with action(one[1]) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        trans.buf[:] = b"the one "
        trans.write(8, 0)
        remote = trans.remote()
        made.config_transport("mem", two[1])
        with pytest.raises(weft.ClosedError):
            remote.read(0, 8)
        trans.wait_ready(BOUND)
        trans.read(8, 0)
        assert bytes(trans.buf) == bytes(8)
        made.config_transport("mem", one[1])
        trans.read(8, 0)
        assert bytes(trans.buf) == b"the one "


def test_the_runtime_of_the_process_is_made_when_it_is_needed():
    text = ("import sys, disagg\n"
            "a = disagg.LibdAction(None, 'x')\n"
            "print('weft._core' in sys.modules, 'asyncio' in sys.modules, 'numpy' in sys.modules)\n"
            "a.add_transport('s;rdma_local;size,64;')\n"
            "t = a.get_transport('s', 'rdma'); t.reg(8); t.write(8, 0)\n"
            "print('weft._core' in sys.modules, 'asyncio' in sys.modules, 'numpy' in sys.modules)\n")
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", text], capture_output=True, text=True, timeout=BOUND,
                          check=True)
    assert done.stdout.split() == ["False"] * 3 + ["True", "False", "False"] and not done.stderr


def test_nothing_is_left_behind():
    with memory(4096) as element, runtime() as own:
        refs = []
        for _ in range(20):
            made = disagg.LibdAction(None, "x", transports=[element.durl], runtime=own)
            trans = made.get_transport("mem", "rdma")
            trans.reg(64)
            trans.read(8, 0)
            refs += [weakref.ref(made), weakref.ref(trans)]
            made.close()
            del made, trans
        gc.collect()
        assert not [r for r in refs if r() is not None]
        until(lambda: element.stats()["users"] == 0)


def test_an_action_that_is_forgotten_is_closed():
    with memory(4096) as element, runtime() as own:
        made = _core.Action(own, "x")
        made.add(element.durl)
        trans = _core.Transport(made, "mem")
        trans.wait_ready(BOUND)
        assert element.stats()["users"] == 1
        del made, trans
        gc.collect()
        until(lambda: element.stats()["users"] == 0)


@pytest.mark.parametrize("args", [(), (None,), (1, 2), (object(), "x")])
def test_what_is_no_runtime_opens_no_action(args):
    with pytest.raises(TypeError):
        _core.Action(*args)
    with pytest.raises(TypeError):
        _core.MemoryElement(*args)
    with pytest.raises(TypeError):
        _core.Transport(*args)
