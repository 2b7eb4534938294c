"""What Scad's binding promises its programs, clause by clause, with programs as they are written for it; and where libd was
weak."""
import os
import struct
import sys
import threading
import time

import pytest

import disagg
import ports
import weft

from elementside import BOUND, action, elsewhere, memory, pair, until

try:
    import numpy
except ImportError:
    numpy = None


def started(target, *args):
    """A thread that runs this; what it gave or raised is in the list."""
    came = []

    def run():
        try:
            came.append(target(*args))
        except BaseException as error:
            came.append(error)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


PROGRAM = '''
import struct
from disagg import *

def main(params, action):
    trans = action.get_transport('mem', 'rdma')
    trans.reg(params['size'] * 1.0)
    other = action.get_transport('other', 'rdma')
    other.reg(params['size'], trans)
    for i in range(16):
        struct.pack_into('<q', trans.buf, i * 8, i * i)
    trans.write(128, 0, 0)
    trans.buf[0:128] = bytes(128)
    trans.read(64, addr=64, offset=8)
    other.write(64, addr=0, offset=8)
    other.read(size=8, addr=8, offset=256)
    return list(struct.unpack_from('<8q', trans.buf, 8)) + list(struct.unpack_from('<q', other.buf, 256))
'''


def test_a_program_runs_as_it_is_written_while_the_runtime_configures_its_transports():
    names = {}
    exec(compile(PROGRAM, "program.o.py", "exec"), names)
    cv = threading.Condition()
    with memory(4096, "mem") as one, memory(4096, "other") as two:
        made = names["LibdAction"](cv, "4a7d3c", name="program", profile=1, activation_id="7")
        try:
            made.add_transport("mem;rdma_uverbs;size,4096;")
            made.add_transport("other;rdma_tcp;")
            thread, came = started(names["main"], {"size": 4096}, made)
            until(lambda: made.get_transport("mem", "rdma").stats()["waits"] == 1, "the program waits")
            assert not came
            for name, durl in (("other", two.durl), ("mem", one.durl)):  # in whatever order
                config, did = started(made.config_transport, name, durl)
                config.join(BOUND)
                assert did == [3]
            thread.join(BOUND)
            assert came == [[i * i for i in range(8, 16)] + [81]]
        finally:
            made.close()


def test_what_is_not_there_is_an_exception_of_the_right_kind():
    with action("mem;rdma_tcp;") as made:
        for name, ttype, kind in (("mem", "rdma_tcp", KeyError), ("mem", "", KeyError), ("mem", None, KeyError),
                                  ("none", "rdma", MemoryError),
                                  ("", "rdma", MemoryError), ("mem@0", "rdma", MemoryError), ("none", "smoke", KeyError)):
            with pytest.raises(kind) as said:
                made.get_transport(name, ttype)
            assert isinstance(said.value, Exception) and len(str(said.value)) > 20
        assert made.get_transport(name="mem", ttype="rdma") is made.get_transport("mem", "rdma") is made.get_transport("mem")


def test_reg_gives_nothing_and_waits_for_nothing():
    with action("a;rdma_tcp;", "b;rdma_tcp;") as made:  # neither is usable
        a, b = made.get_transport("a", "rdma"), made.get_transport("b", "rdma")
        assert a.reg(64) is None and a.reg(size=128.0) is None and b.reg(100, a) is None and b.reg(size=1e2, trans=a) is None
        assert (len(a.buf), len(b.buf)) == (128, 100) and a.state == b.state == "waiting"
        a.buf[99] = 7
        assert b.buf[99] == 7
        with pytest.raises(ValueError, match="2.5"):
            a.reg(2.5)
        assert len(a.buf) == 128


@pytest.mark.parametrize("way", ["mapped", "tcp"])
def test_numbers_of_any_kind_are_sizes_and_addresses(way):
    class Three:
        def __index__(self):
            return 3
    with pair(4096, 64, "all" if way == "mapped" else "tcp") as trans:
        trans.buf[:8] = b"abcdefgh"
        kinds = [4, 4.0, True + 3, Three()]
        if numpy is not None:
            kinds += [numpy.int64(4), numpy.uint8(4), numpy.float64(4), numpy.int32(4)]
        for at, size in enumerate(kinds):
            trans.write(size, addr=64 * at)
            trans.read(size, 64 * at, offset=size)
        trans.read(8, 64, 32)
        assert bytes(trans.buf[32:40]) == b"abcd\0\0\0\0"


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_call_says_what_is_missing_before_it_waits(call):
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        with pytest.raises(MemoryError, match="reg"):
            getattr(trans, call)(8, 0)  # it would wait for ever
        trans.reg(8)
        with pytest.raises(weft.RangeError):
            getattr(trans, call)(9, 0)  # outside of the buffer is known at once, too
        with pytest.raises(weft.RangeError):
            getattr(trans, call)(1, 0, offset=8)
        assert trans.stats()["waits"] == 0
        thread, came = started(getattr(trans, call), 8, 1 << 40)
        until(lambda: trans.stats()["waits"] == 1)
        with memory(4096) as element:
            made.config_transport("mem", element.durl)
            thread.join(BOUND)
        assert len(came) == 1 and isinstance(came[0], weft.RangeError)


def test_the_gil_is_free_while_a_call_waits_and_while_much_is_copied():
    size = 1 << 20
    with memory(size) as element, action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(size)
        thread, came = started(trans.write, size, 0)
        until(lambda: trans.stats()["waits"] == 1)  # we run
        made.config_transport("mem", element.durl)
        until(lambda: came)
        assert came == [0]
        counted, stop, before = [0], threading.Event(), sys.getswitchinterval()

        def count():
            while not stop.is_set():
                counted[0] += 1
                time.sleep(0)
        other = threading.Thread(target=count)
        sys.setswitchinterval(BOUND)  # so that nobody gets the GIL who is not given it
        try:
            other.start()
            at, ran = counted[0], 0
            while ran < 3000 and counted[0] < at + 10:
                trans.read(size, 0)  # of mapped memory: it is over when it is posted
                ran += 1
            assert counted[0] >= at + 10
        finally:
            sys.setswitchinterval(before)
            stop.set()
            other.join(BOUND)


def test_buf_is_written_by_everything_that_writes_to_memory():
    with pair(4096, 64) as trans:
        trans.buf[0:4] = b"\1\2\3\4"
        trans.buf[4] = 5
        trans.buf[5:7] = bytearray(b"\6\7")
        struct.pack_into("<H", trans.buf, 7, 0x0908)
        assert bytes(trans.buf[0:9]) == bytes(range(1, 10)) and trans.buf[0:9].tobytes() == bytes(range(1, 10))
        with memoryview(trans.buf) as view, view.cast("Q") as words:
            words[2] = 1 << 63
        assert trans.buf[23] == 0x80 and trans.buf.nbytes == 64
        trans.write(24, 0)
        trans.read(24, 0, 32)
        assert trans.buf[32:56] == trans.buf[0:24]
        with pytest.raises(ValueError):
            trans.buf[0:4] = b"too long"
        with pytest.raises(IndexError):
            trans.buf[64] = 1
        with pytest.raises(struct.error):
            struct.pack_into("<Q", trans.buf, 60, 1)


@pytest.mark.skipif(numpy is None, reason="numpy is not installed")
def test_arrays_over_buf_see_what_is_read():
    with pair(4096, 256) as trans:
        asarray, frombuffer = numpy.asarray(trans.buf), numpy.frombuffer(trans.buf, dtype=numpy.float32, count=8, offset=32)
        assert asarray.dtype == numpy.uint8 and asarray.shape == (256,) and not asarray.flags.owndata
        frombuffer[:] = numpy.linspace(0, 7, 8, dtype=numpy.float32)
        trans.write(32, 0, 32)
        frombuffer[:] = -1
        trans.read(32, 0, 32)
        assert frombuffer.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] and asarray[36:40].tobytes() == struct.pack("<f", 1)
        numpy.ndarray((8, 8), "f4", trans.buf)[3, 3] = 2.5
        assert struct.unpack_from("<f", trans.buf, 4 * 27) == (2.5,)


@pytest.mark.parametrize("impl, form", [(impl, form) for impl in ("local", "shared", "tcp", "uverbs")
                                        for form in ("url", "later")] +
                         [("shared", "shm_id")])
def test_every_impl_serves_and_is_reached(impl, form):
    where = f"shm_id,scad-{os.getpid()}-{impl};" if form == "shm_id" else ""
    with action() as server, action() as user:
        durl = f"mem;rdma_{impl}_server;size,4096;{where}"
        server.add_transport(f"mem;rdma_{impl}_server;" if form == "later" else durl)
        mine = server.get_transport("mem", "rdma_server")
        if form == "later":
            assert mine.state == "waiting"
            server.config_transport("mem", durl)
        mine.wait_ready(BOUND)
        serving, served = started(mine.serve)
        url = next(part for part in mine.durl.split(";") if part.startswith("url,"))
        kinds = [impl] + (["uverbs_proxy"] if impl == "uverbs" else [])
        for kind in kinds:
            user.add_transport(f"mem;rdma_{kind};size,4096;{where or url + ';'}peerinfo,whatever;")
            trans = user.get_transport("mem", "rdma")
            trans.reg(16)
            trans.buf[:] = kind.encode().ljust(16)
            trans.write(16, 4080)
            assert bytes(mine.buf[4080:]) == kind.encode().ljust(16)
            user.release_transport("mem")
        assert not served
        server.terminate()
        serving.join(BOUND)
        assert served == [None]


def test_a_server_that_waits_for_its_size_is_ended_too():
    with action("mem;rdma_tcp_server;") as made:
        thread, came = started(made.get_transport("mem", "rdma_server").serve)
        time.sleep(0.05)
        assert not came
        made.terminate()
        thread.join(BOUND)
        assert len(came) == 1 and (came[0] is None or isinstance(came[0], weft.CancelledError))


def test_release_is_for_the_element_and_its_copies_and_for_nobody_else():
    with memory(64) as element, action() as made:
        durl = element.durl[len("mem"):]
        for name in ("mem", "mem@0", "mem@1", "memory", "me"):
            made.add_transport(name + durl)
        all_of_them = {name: made.get_transport(name, "rdma") for name in ("mem", "mem@0", "mem@1", "memory", "me")}
        for trans in all_of_them.values():
            trans.reg(8)
            trans.read(8, 0)
        with pytest.raises(LookupError):
            made.release_transport("m")
        made.release_transport("mem")
        for name, trans in all_of_them.items():
            if name in ("memory", "me"):
                trans.read(8, 0)
                assert made.get_transport(name, "rdma") is trans
                continue
            for use in (lambda: trans.read(8, 0), lambda: trans.write(8, 0), lambda: trans.reg(8), lambda: trans.buf,
                        lambda: trans.wait_ready()):
                with pytest.raises(weft.ClosedError):
                    use()
            with pytest.raises(MemoryError):
                made.get_transport(name, "rdma")
        told = made.stats()  # of what was released, too
        assert {name: one["reads"] for name, one in told.items()} == {"mem": 1, "mem@0": 1, "mem@1": 1, "memory": 2, "me": 2}
        made.add_transport("mem@0" + durl)
        again = made.get_transport("mem@0", "rdma")
        again.reg(4)
        again.read(4, 0)
        again.read(4, 0)
        told = made.stats()["mem@0"]
        assert (told["reads"], told["bytes_read"], told["len"]) == (3, 16, 64)
        made.release_transport("mem@0")  # of a copy alone
        assert made.get_transport("memory", "rdma").state == "ready"


def test_after_close_nothing_is_found():
    with memory(64) as element, action(element.durl) as made:
        made.get_transport("mem", "rdma").wait_ready(BOUND)
        made.close()
        with pytest.raises(MemoryError, match="closed"):
            made.get_transport("mem", "rdma")
        with pytest.raises(weft.ClosedError):
            made.add_transport(element.durl)
        with pytest.raises(weft.ClosedError):
            made.config_transport("mem", element.durl)
        with pytest.raises(LookupError):
            made.release_transport("mem")
        assert made.stats() == {} and made.profiled() == [] and "closed" in repr(made)
        made.record(3)
        made.terminate()


def test_close_ends_who_waits_elsewhere():
    with action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        thread, came = started(trans.read, 8, 0)
        until(lambda: trans.stats()["waits"] == 1)
        made.close()
        thread.join(BOUND)
        assert len(came) == 1 and isinstance(came[0], (weft.CancelledError, weft.ClosedError))


def test_close_is_a_good_end_for_who_serves():
    with action("s;rdma_tcp_server;size,64;") as made:
        server = made.get_transport("s", "rdma_server")
        server.wait_ready(BOUND)
        thread, came = started(server.serve)
        time.sleep(0.05)
        made.close()
        thread.join(BOUND)
        assert came == [None]


def test_the_condition_is_told_once_of_the_end():
    class Told(threading.Condition):
        times = 0

        def notify_all(self):
            super().notify_all()
            self.times += 1
    import disagg
    cv = Told()
    made = disagg.LibdAction(cv, "x")
    made.close()
    made.close()
    assert cv.times == 1


def test_only_the_remotes_of_what_was_released_are_gone():
    with memory(64) as element, action() as made:
        durl = element.durl[len("mem"):]
        remotes = {}
        for name in ("mem", "mem@1", "memory"):
            made.add_transport(name + durl)
            trans = made.get_transport(name, "rdma")
            trans.wait_ready(BOUND)
            remotes[name] = trans.remote()
        made.release_transport("mem")
        for name in ("mem", "mem@1"):
            with pytest.raises(weft.ClosedError):
                remotes[name].read(0, 8)
        assert remotes["memory"].read(0, 8) == bytes(8)
        made.close()
        with pytest.raises(weft.ClosedError):
            remotes["memory"].read(0, 8)


def test_a_buffer_is_not_shared_with_who_is_closed():
    with memory(64) as element, action(element.durl) as made:
        trans = made.get_transport("mem", "rdma")
        import disagg
        closed = disagg.LibdAction(None, "other", transports=["own;rdma_local;size,64;"], runtime=made._runtime)
        other = closed.get_transport("own", "rdma")
        other.reg(64)
        trans.reg(64, other)
        other.buf[:3] = b"abc"
        assert bytes(trans.buf[:3]) == b"abc"
        closed.close()
        with pytest.raises(weft.ClosedError):
            trans.reg(64, other)
        assert bytes(trans.buf[:3]) == b"abc"


@pytest.mark.skipif(numpy is None, reason="numpy is not installed")
def test_an_array_waits_for_its_element():
    with memory(800) as element, action("mem;rdma_tcp;") as made:
        trans = made.get_transport("mem", "rdma")
        thread, came = started(trans.remote_array, "f8", 100)
        until(lambda: trans.stats()["waits"] == 1)
        assert not came
        made.config_transport("mem", element.durl)
        thread.join(BOUND)
        with came[0] as array:
            array[99] = 5
        with trans.remote_array("f8", 100) as array:
            assert array[90:].tolist() == [0] * 9 + [5]


def test_profile_before_and_after_the_first_transport():
    with action() as made:
        made.record(2)
        made.add_transport("mem;rdma_local;size,64;")
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        trans.batch([("read", 16, 0), ("write", 16, 0)])
        trans.write(3, 0)
        trans.read(5, 0)
        assert [row[:3] for row in made.profiled()] == [("mem", "write", 3), ("mem", "read", 5)]
        made.record(8)  # again, from the beginning
        assert made.profiled() == []
        trans.batch([("read", 16, 0), ("write", 8, 0)])
        assert [row[:3] for row in made.profiled()] == [("mem", "batch", 24)]


# --- where libd is weak

@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_too_much_for_an_element_is_refused_and_the_element_lives(child, transports):
    process, durl = elsewhere(child, 64, transports=transports)
    with action(durl, transports=transports) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(4096)
        trans.buf[:] = b"x" * 4096
        for _ in range(3):
            with pytest.raises(weft.RangeError):
                trans.write(4096, 0)
            with pytest.raises(weft.RangeError):
                trans.read(65, 0)
        trans.read(64, 0)
        assert bytes(trans.buf[:64]) == bytes(64) and process.poll() is None


def test_more_than_a_mebibyte_goes_over_tcp_in_one_operation(child):
    size = (3 << 20) + 17
    _, durl = elsewhere(child, size, transports="tcp")
    with action(durl, transports="tcp") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(size)
        text = os.urandom(size)
        trans.buf[:] = text
        trans.write(size, 0, timeout=BOUND)
        trans.buf[:] = bytes(size)
        trans.read(size, 0, timeout=BOUND)
        assert trans.buf == text


def test_memory_is_not_had_without_its_region_key():
    with memory(4096) as element, action() as made:
        parts = [p for p in element.durl.split(";") if p and not p.startswith("token")]
        made.add_transport(";".join(parts) + ";timeout_ms,2000;")
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        with pytest.raises(weft.WeftError):
            trans.read(8, 0)
        assert element.stats()["users"] == 0


def test_a_new_action_after_the_process_runtime_was_closed():
    import disagg
    from disagg import _process
    for _ in range(2):
        with disagg.LibdAction(None, "x", transports=["mem;rdma_local;size,64;"]) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(8)
            trans.write(8, 0)
        _process.runtime()._close()


@pytest.mark.skipif("san" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer of gcc 12 does not let go of the lock of "
                    "its allocator in a child that is forked while another thread allocates")
def test_a_forked_child_has_a_runtime_of_its_own(child):
    process = child(FORKS)
    out, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, out) == (0, "child b'child'\nparent b'paren' 0\n"), out


FORKS = """
import os
import disagg

def use(text):
    with disagg.LibdAction(None, "x", transports=["mem;rdma_local;size,64;"]) as action:
        trans = action.get_transport("mem", "rdma")
        trans.reg(8)
        trans.buf[:5] = text
        trans.write(8, 0)
        trans.buf[:] = bytes(8)
        trans.read(8, 0)
        return bytes(trans.buf[:5])

before = disagg.LibdAction(None, "before", transports=["mem;rdma_local;size,64;"])
trans = before.get_transport("mem", "rdma")
trans.reg(8)
trans.write(8, 0)
pid = os.fork()
if pid == 0:
    print("child", use(b"child"), flush=True)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
trans.read(8, 0)
print("parent", use(b"paren"), status)
"""


# --- launchers as Scad has them

def test_an_element_is_found_by_where_it_is_whatever_it_is_called():
    """A server on every address and a client that is told later, by keys alone, as Scad's own examples have them."""
    port = ports.take()
    with action() as server, action() as user:
        server.add_transport(f"server;rdma_tcp_server;url,tcp://*:{port};size,4096;")
        mine = server.get_transport("server", "rdma_server")
        mine.wait_ready(BOUND)
        assert user.add_transport("client1;rdma_tcp;") == 0
        trans = user.get_transport("client1", "rdma")
        trans.reg(4)
        thread, came = started(trans.write, 4, 0)
        assert user.config_transport("client1", f"url,tcp://localhost:{port};size,4096;") == 3
        thread.join(BOUND)
        assert came == [0] and trans.state == "ready"
        trans.buf[:] = struct.pack("@I", 2333)
        trans.write(4, addr=0, offset=0)
        assert struct.unpack_from("@I", mine.buf) == (2333,)


def test_keys_alone_have_the_transports_name_and_impl():
    with action() as made:
        made.add_transport("mem;rdma_local;")
        made.config_transport("mem", "size,64;")
        trans = made.get_transport("mem", "rdma")
        trans.wait_ready(BOUND)
        made.add_transport("size,8;rdma_local;size,64;")  # a name like any other
        with pytest.raises(weft.InvalidError, match="no key"):
            made.config_transport("mem", "size,64;colour,red;")
        with pytest.raises(weft.InvalidError, match="at most"):
            made.config_transport("mem", "size,64;peerinfo," + "x" * 9000)
        with pytest.raises(weft.NotFoundError):
            made.config_transport("nobody", "size,64;")


def test_a_launcher_asks_all_transports_for_their_messages():
    with action() as server, action() as made:
        server.add_transport("mine;rdma_tcp_server;")
        made.add_transport("mine;rdma_tcp;")
        made.add_transport("waits;rdma_tcp;")
        assert made.transports == {} and sorted(made.raw_transports) == ["mine", "waits"]
        assert {name: t.get_msg() for name, t in made.raw_transports.items()} == {"mine": (0, ""), "waits": (0, "")}
        server.config_transport("mine", "size,4096;")
        server.get_transport("mine", "rdma_server").wait_ready(BOUND)
        size, msg = server.raw_transports["mine"].get_msg()
        assert size == len(msg) > 0
        made.config_transport("mine", msg)
        trans = made.get_transport("mine", "rdma")
        trans.wait_ready(BOUND)
        assert trans is made.raw_transports["mine"] and trans.get_msg() == (0, "")
        made.release_transport("waits")
        assert sorted(made.raw_transports) == ["mine"] and sorted(made.transports) == ["mine"]


def test_points_of_a_program_are_marked():
    made = disagg.LibdAction(threading.Condition(), "0000", "http://localhost:2400", name="it", plugins="monitor")
    with made:
        made.profile(7)
        made.add_transport("mem;rdma_local;size,64;")
        made.record(4)
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        trans.write(8, 0)
        made.profile(-1)
        rows = made.profiled()
        assert [row[:3] for row in rows] == [("", "profile", 7), ("mem", "write", 8), ("", "profile", -1)]
        assert rows[0][3] <= rows[1][3] <= rows[2][3] and made.kw == {"server_url": "http://localhost:2400", "name": "it",
                                                                      "plugins": "monitor"}
        with pytest.raises(TypeError):
            made.profile("x")
        for point in range(5000):
            made.profile(point)
        assert len([row for row in made.profiled() if row[1] == "profile"]) == 4096
