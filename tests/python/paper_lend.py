"""Payloads in GPU memory that are lent where they are (DeviceView), with a CUDA driver made of paper: test_foreign.py runs this in a
process of its own."""
import asyncio
import gc
import os
import signal
import threading
import weakref

import pytest

import weft
import weft.blocking
from paper_cuda import DATA, Array, ByDLPack, driver, gpu  # noqa: F401: a fixture
from streamside import Cuda

N = len(DATA)
BOUND = 60

SENDER = """
import asyncio, sys, weft
async def main():
    data = bytes(range(256)) * 4096
    memory = weft.Memory(len(data), "cuda")
    memory.copy_from(data)
    async with await weft.connect(sys.argv[1]) as ep:
        while True:
            word = await ep.recv(tag=1)
            if word == b"write":
                memory.fill(7)
                await ep.send(b"written", tag=2)
            elif word == b"end":
                return
            else:
                sending = asyncio.ensure_future(ep.am_send(5, memory, header=b"head"))
                sending.add_done_callback(lambda op: ep.send(b"done", tag=3))
asyncio.run(main())
"""


def lent(test):
    """A test with two runtimes of one process, over shared memory: (pair, memory, Op of the send, Message)."""
    def run(driver, pair):  # noqa: F811
        async def body(p):
            if p.a.info["transport"] != "shm":
                return
            memory = gpu(DATA)
            sending = p.a.am_send(5, memory, header=b"head")
            await test(p, memory, sending, await p.b.am_recv(5))
        pair(body)
    run.__name__ = test.__name__
    return run


def said(p):
    return [{name: stats[name] for name in ("device_copies", "device_direct", "device_relayed", "device_bounced", "device_staged")}
            for stats in (p.left.stats(), p.right.stats())]


@lent
async def test_memory_of_a_gpu_is_read_where_it_is(p, memory, sending, message):
    before = said(p)
    view = await message.view_device(timeout=BOUND)
    assert said(p) == before
    assert isinstance(view, weft.DeviceView) and (view.nbytes, len(view), view.kind, view.ptr) == (N, N, "cuda", memory.ptr)
    assert repr(view) == f"<weft.DeviceView of {N} bytes, cuda>" and message.header == b"head" and message.nbytes == N
    assert view.tobytes() == DATA and view.tobytes(5, 3) == DATA[5:8]
    into = gpu(bytes(100))
    assert view.copy_to(into, 50) == 100 and into.tobytes() == DATA[50:150]
    assert view.__cuda_array_interface__ == memory.__cuda_array_interface__  # PyTorch refuses memory that says it is read-only
    assert view.__dlpack_device__() == memory.__dlpack_device__() == (2, 0)
    assert "dltensor_versioned" in repr(view.__dlpack__(max_version=(1, 0), stream=1)) and '"dltensor"' in repr(view.__dlpack__())
    with pytest.raises(BufferError, match="GPU"):
        memoryview(view)
    for name in ("fill", "copy_from"):
        assert not hasattr(view, name)
    assert not sending.done()
    view.release()
    await asyncio.wait_for(sending, BOUND)


@lent
async def test_it_is_given_back_once(p, memory, sending, message):
    view = await message.view_device()
    message.release()  # the view has it
    assert view.tobytes(0, 4) == DATA[:4] and not sending.done()
    view.release()
    view.release()
    await asyncio.wait_for(sending, BOUND)
    assert "released" in repr(view) and len(view) == N
    uses = [lambda: view.tobytes(), lambda: view.copy_to(bytearray(4)), lambda: view.__dlpack__(),
            lambda: view.__dlpack_device__(), lambda: view.__cuda_array_interface__, lambda: view.ptr, lambda: p.a.send(view)]
    for use in uses:
        with pytest.raises(weft.StateError, match="released"):
            use()
    for use in (message.read, message.view_device, lambda: message.read_into(memory), lambda: message.reject(1)):
        with pytest.raises(weft.StateError, match="DeviceView"):
            await use()


@lent
async def test_with_gives_it_back(p, memory, sending, message):
    with await message.view_device() as view:
        assert view.tobytes(0, 4) == DATA[:4]
    await asyncio.wait_for(sending, BOUND)


@lent
async def test_the_last_who_holds_it_gives_it_back(p, memory, sending, message):
    view = await message.view_device()
    gone, array = weakref.ref(view), Array(view)
    del view, message
    await asyncio.sleep(0.05)
    assert not sending.done() and gone().tobytes(0, 4) == DATA[:4]
    thread = threading.Thread(target=array.__dict__.clear)  # arrays go in any thread
    thread.start()
    thread.join()
    assert gone() is None
    await asyncio.wait_for(sending, BOUND)


@lent
async def test_what_uses_it_is_not_disturbed(p, memory, sending, message):
    view = await message.view_device()
    capsule = view.__dlpack__(max_version=(1, 0))
    for _ in range(2):
        with pytest.raises(BufferError, match="1 of them"):
            view.release()
    with pytest.raises(BufferError):
        with view:
            pass
    del capsule
    receiving = p.b.am_recv(6)
    for thing in (view, ByDLPack(view)):  # an operation that reads it
        on = p.b.am_send(7, thing)
        with pytest.raises(BufferError):
            view.release()
        there = await p.a.am_recv(7)
        assert await there.read() == DATA
        await on
    receiving.cancel()
    region = p.right.region(view)
    assert (await (await p.a.attach(region.key())).read(0, 10)) == DATA[:10]
    with pytest.raises(BufferError):
        view.release()
    await region.free()
    for call in (lambda: p.b.recv_into(view), lambda: p.right.region(view, rights="rw")):
        with pytest.raises(weft.WeftError, match="read only|read-only"):
            call()
    assert p.left.under_way == 1
    view.release()
    await asyncio.wait_for(sending, BOUND)


@pytest.mark.parametrize("n, kind", [(1000, "cuda"), (N // 4, "cuda"), (N, "host"), (N, "pinned"), (N, "cuda-async"), (0, "cuda")])
def test_what_cannot_be_lent_says_what_to_do(driver, pair, n, kind):  # noqa: F811
    async def body(p):
        sending = p.a.am_send(5, gpu(DATA[:n], kind))
        message = await p.b.am_recv(5)
        with pytest.raises(weft.UnsupportedError, match=r"cannot be lent: .*read_into\(\) copies it"):
            await message.view_device()
        into = gpu(bytes(n))
        assert await message.read_into(into) == n and into.tobytes() == DATA[:n]
        await sending
    pair(body)


def test_another_host_lends_nothing(driver, pair):  # noqa: F811
    async def body(p):
        sending = p.a.am_send(5, gpu(DATA))
        message = await p.b.am_recv(5)
        if p.a.info["transport"] == "tcp":
            with pytest.raises(weft.UnsupportedError, match="cannot be lent"):
                await message.view_device()
        assert await message.read() == DATA
        with pytest.raises(weft.StateError):
            await message.view_device()
        await sending
    pair(body)


@lent
async def test_an_operation_that_nobody_looks_at_leaves_it_to_the_message(p, memory, sending, message):
    message.view_device()
    await asyncio.sleep(0.05)
    assert not sending.done()
    message.release()
    await asyncio.wait_for(sending, BOUND)


@lent
async def test_a_message_that_was_released_meanwhile_gives_no_view(p, memory, sending, message):
    op = message.view_device()
    message.release()
    with pytest.raises(weft.StateError, match="released"):
        await op
    await asyncio.wait_for(sending, BOUND)


def test_handlers_lend(driver, pair):  # noqa: F811
    async def body(p):
        if p.a.info["transport"] != "shm":
            return
        views = []

        async def handler(message):
            views.append(await message.view_device())
        p.right.am_handler(5, handler)
        sendings = [p.a.am_send(5, gpu(DATA)) for _ in range(3)]
        while len(views) < 3:
            await asyncio.sleep(0.001)
        assert all(view.tobytes() == DATA for view in views) and not any(op.done() for op in sendings)
        views.clear()
        await asyncio.gather(*sendings)
    pair(body)


async def other(child, run):
    """With a sender that is another process: (its endpoint, the process, a function that gets a message)."""
    async with weft.listen("tcp://127.0.0.1:0") as listener:
        process = child(SENDER, listener.uri)
        ep = await listener.accept(timeout=BOUND)

        async def get():
            await ep.send(b"send", tag=1)
            return await ep.am_recv(5, timeout=BOUND)
        await run(ep, process, get)


def test_memory_of_another_process(driver, run, child):  # noqa: F811
    async def body(ep, process, get):
        for _ in range(2):
            view = await (await get()).view_device()
            assert view.tobytes() == DATA
            with pytest.raises(weft.TimeoutError):
                await ep.recv(tag=3, timeout=0.1)
            view.release()
            assert await ep.recv(tag=3, timeout=BOUND) == b"done"
        view = await (await get()).view_device()
        await ep.send(b"write", tag=1)
        await ep.recv(tag=2, timeout=BOUND)
        assert view.tobytes(0, 10) == b"\7" * 10  # it is the sender's memory itself
        del view
        assert await ep.recv(tag=3, timeout=BOUND) == b"done"
        await ep.send(b"end", tag=1)
    run(other(child, body))
    gc.collect()
    assert Cuda(driver).paper.live_imports == 0


def test_it_stays_when_its_sender_is_killed(driver, run, child):  # noqa: F811
    async def body(ep, process, get):
        view, unused = await (await get()).view_device(), await get()
        process.send_signal(signal.SIGKILL)
        process.wait(BOUND)
        with pytest.raises(weft.PeerError):
            await ep.recv(tag=9, timeout=BOUND)
        assert view.tobytes() == DATA
        with pytest.raises(weft.PeerError):
            await unused.view_device()
        view.release()
        view.release()
    run(other(child, body))
    assert Cuda(driver).paper.live_imports == 0


@pytest.mark.parametrize("how", ["release", "last", "thread"])
def test_it_stays_when_its_runtime_is_closed(driver, run, child, how):  # noqa: F811
    kept = []

    async def body(ep, process, get):
        kept.append(await (await get()).view_device())
        kept.append(await get())
        kept.append(kept[1].view_device())  # complete, and nobody asked for it
    run(other(child, body))
    view, message, op = kept
    assert Cuda(driver).paper.live_imports == 1
    assert view.tobytes() == DATA and view.__cuda_array_interface__["data"] == (view.ptr, False)
    for call in (message.view_device, op.result):
        with pytest.raises((weft.StateError, weft.ClosedError)):
            call()
    kept.clear()
    if how == "release":
        view.release()
    elif how == "thread":
        thread = threading.Thread(target=view.release)
        thread.start()
        thread.join()
    else:
        capsule = view.__dlpack__()
        del view
        assert Cuda(driver).paper.live_imports == 1
        del capsule
    assert Cuda(driver).paper.live_imports == 0


def test_without_a_loop(driver):  # noqa: F811
    with weft.blocking.Runtime(transports="shm") as left, weft.blocking.Runtime(transports="shm") as right:
        listener = right.listen("tcp://127.0.0.1:0")
        a = left.connect(listener.uri, timeout=30)
        b = listener.accept(timeout=30)
        memory, sent = gpu(DATA), threading.Event()

        def send():
            a.am_send(5, memory, timeout=BOUND)
            sent.set()
        for how in ("release", "drop", "thread"):
            sent.clear()
            thread = threading.Thread(target=send)
            thread.start()
            view = b.am_recv(5, timeout=BOUND).view_device(timeout=BOUND)
            assert view.tobytes() == DATA and not sent.wait(0.05)
            if how == "release":
                view.release()
            elif how == "drop":
                del view
            else:
                other = threading.Thread(target=view.release)
                other.start()
                other.join()
            assert sent.wait(BOUND)
            thread.join()
        thread = threading.Thread(target=lambda: a.am_send(5, gpu(DATA[:1000]), timeout=BOUND))
        thread.start()
        message = b.am_recv(5, timeout=BOUND)
        with pytest.raises(weft.UnsupportedError):
            message.view_device()
        assert message.read() == DATA[:1000]
        thread.join()


def test_a_cycle_with_a_view_is_collected(driver, run):  # noqa: F811
    gone = []

    async def body():
        async with weft.Runtime(transports="shm") as left, weft.Runtime(transports="shm") as right:
            listener = right.listen("tcp://127.0.0.1:0")
            accepting = listener.accept()
            a = await left.connect(listener.uri)
            b = await accepting
            sending = a.am_send(5, gpu(DATA))
            right.held = await (await b.am_recv(5)).view_device()
            gone.append(weakref.ref(right.held))
            await right.close()
            with pytest.raises(weft.WeftError):
                await sending
    run(body())
    gc.collect()
    assert gone[0]() is None


@lent
async def test_a_child_of_a_fork_is_told(p, memory, sending, message):
    view = await message.view_device()
    pid = os.fork()
    if not pid:
        try:
            view.tobytes()
        except weft.ForkedError:
            view.release()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0 and not sending.done() and view.tobytes(0, 4) == DATA[:4]
    view.release()
    await asyncio.wait_for(sending, BOUND)


def test_it_is_made_by_messages_alone():
    with pytest.raises(TypeError):
        weft.DeviceView()
