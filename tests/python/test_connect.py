"""Listening, connecting, closing, and peers that go."""
import asyncio
import os
import signal

import pytest

import weft

PEER = """
import asyncio, sys, weft
async def main():
    ep = await weft.connect(sys.argv[1])
    await ep.send(b"here", tag=1)
    print("sent", flush=True)
    await ep.recv(tag=2)
asyncio.run(main())
"""


def test_as_the_readme_has_it(run):
    async def body():
        async def handler(ep):
            await ep.send(await ep.recv(tag=1), tag=2)
        async with weft.listen("tcp://127.0.0.1:0", handler) as listener:
            assert listener.port and listener.uri.endswith(str(listener.port))
            async with await weft.connect(listener.uri) as ep:
                assert ep.state == "up" and not ep.closed and ep.info["same_host"]
                await ep.send(b"hello", tag=1)
                assert await ep.recv(tag=2) == b"hello"
            assert ep.closed and ep.state == "closed"
        assert listener.closed
    run(body())


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "unix://@weft-test-python"])
def test_addresses(run, uri):
    async def body():
        try:
            listener = weft.listen(uri)
        except weft.AddressError:
            pytest.skip(f"{uri} cannot be listened on here")
        accepting = listener.accept()
        ep = await weft.connect(listener.uri)
        peer = await accepting
        await peer.send(b"x")
        assert await ep.recv() == b"x"
        listener.close()
        with pytest.raises(weft.ClosedError):
            listener.accept()
    run(body())


@pytest.mark.parametrize("uri, error", [("tcp://127.0.0.1:1", weft.RefusedError), ("nonsense", weft.InvalidError),
                                        ("tcp://127.0.0.1:99999", ValueError), ("unix://@nobody-is-here", weft.WeftError)])
def test_what_cannot_be_reached(run, uri, error):
    async def body():
        with pytest.raises(error):
            await weft.connect(uri, timeout=5, retry=False)
    run(body())


def test_a_server_that_starts_later_is_found(run):
    async def body():
        uri = f"unix://@weft-test-python-later-{os.getpid()}"
        connecting = asyncio.ensure_future(weft.connect(uri, timeout=20))
        await asyncio.sleep(0.2)
        assert not connecting.done()
        async with weft.listen(uri) as listener:
            ep = await connecting
            other = await listener.accept(timeout=20)
            ep.abort()
            other.abort()
    run(body())


def test_what_kept_a_connect_from_succeeding_is_said(run):
    async def body():
        with pytest.raises(weft.RefusedError, match="tcp://127.0.0.1:1"):
            await weft.connect("tcp://127.0.0.1:1", retry=False)
        with pytest.raises(weft.TimeoutError, match="tcp://127.0.0.1:1"):
            await weft.connect("tcp://127.0.0.1:1", timeout=0.2)
    run(body())


def test_the_peer_closes(pair):
    async def body(p):
        told = []
        p.b.on_close = told.append
        waiting = p.b.recv(tag=1)
        await p.a.send(b"last", tag=2)
        assert await p.a.close() in (0, 1)
        assert await p.a.close() == 0
        with pytest.raises(weft.ClosedError):
            await waiting
        assert await p.b.recv(tag=2) == b"last"  # what was sent before is still there
        while not told:
            await asyncio.sleep(0.001)
        assert told == [p.b] and p.b.closed and p.b.on_close is None
        with pytest.raises(weft.ClosedError):
            p.a.send(b"x")
        with pytest.raises(weft.WeftError):
            await p.b.send(b"x")
    pair(body)


def test_abort_is_an_error_to_the_peer(pair):
    async def body(p):
        waiting, own = p.b.recv(tag=1), p.a.recv(tag=1)
        await p.a.abort()
        with pytest.raises(weft.PeerError):
            await waiting
        with pytest.raises(weft.CancelledError):
            await own
    pair(body)


def test_a_dropped_endpoint_says_goodbye(run):
    async def body():
        listener = weft.listen("tcp://127.0.0.1:0")
        accepting = listener.accept()
        await weft.connect(listener.uri)  # and drops it
        peer = await accepting
        with pytest.raises(weft.ClosedError):
            await peer.recv(timeout=20)
    run(body())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_a_peer_that_is_killed_or_stopped_is_noticed(run, child, how, transports):
    async def body():
        async with weft.Runtime(transports=transports, heartbeat=1) as runtime:
            listener = runtime.listen("tcp://127.0.0.1:0")
            process = child(PEER, listener.uri)
            ep = await listener.accept(timeout=30)
            assert await ep.recv(tag=1) == b"here"
            waiting = [ep.recv(tag=i) for i in range(100)] + [ep.am_recv()]
            process.send_signal(how)
            for op in waiting:
                with pytest.raises(weft.PeerError):
                    await op
            assert ep.closed and ep.state == "failed"
    run(body())


def test_accepts_that_wait_when_the_listener_closes(run):
    async def body():
        listener = weft.listen("tcp://127.0.0.1:0")
        waiting = listener.accept()
        listener.close()
        with pytest.raises(weft.ClosedError):
            await waiting
    run(body())


def test_a_listener_with_a_handler_has_no_accept(run):
    async def body():
        listener = weft.listen("tcp://127.0.0.1:0", print)
        with pytest.raises(weft.StateError, match="handler"):
            listener.accept()
    run(body())


def test_keys_must_agree(run):
    async def body():
        async with weft.Runtime(key=b"k" * 32) as right, weft.Runtime(key=b"l" * 32) as left, weft.Runtime(key=b"k" * 32) as good:
            listener = right.listen("tcp://127.0.0.1:0")
            with pytest.raises(weft.AuthError):
                await left.connect(listener.uri)
            ep = await good.connect(listener.uri)
            assert ep.info["authenticated"]
    run(body())


def test_a_random_key_as_bytes_and_as_the_line_of_its_file_is_the_same(run):
    async def body():
        key = bytes(range(100, 132))
        line = b"weft-key-1 " + key.hex().encode() + b"\n"
        async with weft.Runtime(key=key,
                                key_random=True) as right, weft.Runtime(key=line) as left, weft.Runtime(key=key) as typed:
            listener = right.listen("tcp://127.0.0.1:0")
            assert (await left.connect(listener.uri)).info["authenticated"]
            with pytest.raises(weft.AuthError):
                await typed.connect(listener.uri)
        with pytest.raises(weft.InvalidError, match="31 bytes"):
            weft.Runtime(key=key[:31], key_random=True)
        with pytest.raises(weft.InvalidError, match="weft key new"):
            weft.Runtime(key=line[:30])
    run(body())


def test_the_repr_of_an_endpoint_names_the_peer(pair):
    async def body(p):
        said = repr(p.a)
        assert p.listener.uri.rsplit(":", 1)[1] in said and p.right.name in said and said.endswith(", up>"), said
        assert p.left.name in repr(p.b)
        await p.a.close()
        assert repr(p.a) == f"<weft.Endpoint {p.a.id}, closed>"
    pair(body)


@pytest.mark.parametrize("call", [lambda: weft.connect("tcp://127.0.0.1:1"), lambda: weft.listen("tcp://127.0.0.1:0"),
                                  lambda: weft.runtime(), lambda: weft.client("tcp://127.0.0.1:1")])
def test_without_an_event_loop_the_error_names_the_blocking_package(call):
    with pytest.raises(RuntimeError, match="weft.blocking"):
        call()
