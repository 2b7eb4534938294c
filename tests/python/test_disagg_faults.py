"""Memory elements that die, stop and come back in the middle of things: an exception within the deadline, and with replicas
the right bytes."""
import os
import signal
import threading
import time

import pytest

import weft

from elementside import BOUND, action, elsewhere, mirrored, until

PATHS = {"mapped": "all", "tcp": "tcp"}


@pytest.fixture(params=list(PATHS))
def element(request, child):
    """A memory element in a process of its own, and a transport that is ready."""
    process, durl = elsewhere(child, 1 << 20, transports=PATHS[request.param])
    with action(durl, transports=PATHS[request.param], heartbeat=1) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(1 << 20)
        trans.wait_ready(BOUND)
        yield process, trans, made, durl


def test_killed_in_the_middle_of_reads(element):
    process, trans, _, _ = element
    count, ended, began = [0], [], threading.Event()

    def read():
        try:
            while True:
                trans.read(1 << 20 if count[0] % 2 else 4096, 0, timeout=10)
                count[0] += 1
                began.set()
        except weft.WeftError as error:
            ended.append(error)
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert began.wait(BOUND)
    process.kill()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()
    assert len(ended) == 2 and all(isinstance(e, (ConnectionError, TimeoutError)) for e in ended)
    until(lambda: trans.state in ("lost", "failed"))
    assert trans.why is not None and issubclass(trans.why, weft.WeftError) and trans.describe()
    began_at = time.monotonic()
    with pytest.raises(weft.WeftError):
        trans.read(8, 0)
    assert time.monotonic() - began_at < 5  # at once, and not after any deadline


def test_stopped_in_the_middle_of_writes(child):
    process, durl = elsewhere(child, 1 << 20, transports="tcp")
    with action(durl, transports="tcp", heartbeat=1) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(1 << 20)
        trans.wait_ready(BOUND)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises((weft.TimeoutError, weft.PeerError)):
                while True:
                    trans.write(1 << 20, 0, timeout=0.5)
            with pytest.raises(weft.WeftError):  # and one without a deadline is not left waiting
                while True:
                    trans.write(1 << 20, 0)
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_awaited_reads_end_too(run, child):
    import asyncio
    process, durl = elsewhere(child, 1 << 20, transports="tcp")

    async def use():
        with action(durl, transports="tcp", heartbeat=1) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(1 << 20)
            await trans.wait_ready_async(BOUND)

            async def read():
                while True:
                    await trans.read_async(4096, 0)
            tasks = [asyncio.ensure_future(read()) for _ in range(16)]
            await asyncio.sleep(0.02)
            process.kill()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(done, weft.WeftError)
    run(use())


def test_the_timeout_of_the_durl_bounds_what_has_none(child):
    process, durl = elsewhere(child, 4096, transports="tcp")
    with action(durl[:-1] + ";timeout_ms,300;", transports="tcp", heartbeat=30) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(4096)
        trans.wait_ready(BOUND)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises((TimeoutError, ConnectionError)):
                while True:
                    trans.read(4096, 0)
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_another_one_can_be_configured_in_its_place(element, child):
    process, trans, made, _ = element
    process.kill()
    process.wait(BOUND)
    until(lambda: trans.state in ("lost", "failed"))
    other, durl = elsewhere(child, 1 << 20)
    made.config_transport("mem", durl)
    trans.buf[:4] = b"back"
    trans.write(4, 0)
    trans.read(4, 0, 8)
    assert bytes(trans.buf[8:12]) == b"back" and trans.state == "ready" and trans.stats()["losses"] == 1


def test_views_and_buffers_survive_the_element(element):
    process, trans, _, _ = element
    view = trans.buf
    view[:4] = b"mine"
    process.kill()
    until(lambda: trans.state in ("lost", "failed"))
    with pytest.raises(weft.WeftError):
        trans.read(1 << 20, 0)
    assert bytes(view[:4]) == b"mine"
    trans.reg(64)
    assert len(trans.buf) == 64


def test_with_replicas_the_right_bytes_come_although_one_is_killed(child):
    processes, durl = mirrored(child, 2)
    with action(durl, heartbeat=1) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(65536)
        trans.wait_ready(BOUND)
        text = bytes(range(256)) * 256
        trans.buf[:] = text
        trans.write(65536, 0, timeout=BOUND)
        with pytest.raises(weft.WeftError):
            trans.fetch_add(0)  # which mirrors do not have
        with pytest.raises(weft.WeftError):
            trans.remote()
        wrong, count, stop = [], [0], threading.Event()

        def read():
            while not stop.is_set():
                trans.buf[:] = bytes(65536)
                trans.read(65536, 0, timeout=BOUND)
                if trans.buf != text:
                    wrong.append(count[0])
                count[0] += 1
        thread = threading.Thread(target=read)
        thread.start()
        until(lambda: count[0] > 3)
        processes[0].kill()
        seen = count[0]
        until(lambda: count[0] > seen + 20 or not thread.is_alive())
        stop.set()
        thread.join(BOUND)
        assert not wrong and count[0] > seen + 20
        stats = trans.stats()
        assert stats["takeovers"] >= 1


def test_replicas_are_read_by_those_who_come_later(child):
    _, durl = mirrored(child, 2)
    with action(durl) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        trans.buf[:5] = b"later"
        trans.write(64, 100, timeout=BOUND)
    with action(durl) as one, action(durl) as two:
        for made in (one, two):
            trans = made.get_transport("mem", "rdma")
            trans.reg(64)
            trans.read(64, 100, timeout=BOUND)
            assert bytes(trans.buf[:5]) == b"later"


def damage(process, text):
    """Change a byte of every copy of this text in the memory of a process. How many there were."""
    found = 0
    with open(f"/proc/{process.pid}/maps", encoding="ascii") as maps, open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as mem:
        for line in maps:
            if " rw-p " not in line or "[" in line:
                continue
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if last - first > 64 << 20:
                continue  # a sanitizer's
            mem.seek(first)
            bytes_there = mem.read(last - first)
            at = bytes_there.find(text)
            while at >= 0:
                mem.seek(first + at)
                mem.write(bytes([text[0] ^ 0xff]))
                found += 1
                at = bytes_there.find(text, at + 1)
    return found


def test_a_copy_that_was_damaged_is_passed_over(child):
    processes, durl = mirrored(child, 2)
    text = os.urandom(4096)
    with action(durl) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8192)
        for process in processes:  # whichever is read first
            trans.buf[:4096] = text
            trans.write(4096, 8192, timeout=BOUND)
            assert damage(process, text[1000:1032]) >= 1
            trans.read(4096, 8192, 4096, timeout=BOUND)
            assert bytes(trans.buf[4096:]) == text
        trans.write(4096, 8192, timeout=BOUND)
        assert all([damage(process, text[1000:1032]) for process in processes])
        with pytest.raises(weft.CorruptError):  # every copy is: not a wrong byte
            trans.read(4096, 8192, 4096, timeout=BOUND)
        trans.write(4096, 8192, timeout=BOUND)
        trans.read(4096, 8192, 4096, timeout=BOUND)
        assert bytes(trans.buf[4096:]) == text


def test_what_replicas_have_not_is_said(child):
    _, durl = mirrored(child, 2)
    with action(durl) as made:
        trans = made.get_transport("mem", "rdma")
        trans.wait_ready(BOUND)
        with pytest.raises(weft.UnsupportedError):
            trans.fetch_add(0, timeout=BOUND)
        with pytest.raises(weft.WeftError):
            trans.remote()
