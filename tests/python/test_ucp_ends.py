"""What a program sees of an ending through ucp, as UCX-Py has it. What it does was seen by running it (0.45 with UCX 1.13)."""
# ctest: computes
import asyncio
import gc
import io
import logging
import signal

import pytest

import ucp
from ucp.exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXConnectionReset, UCXError, UCXMsgTruncated
from ucpside import connected, fresh, pair, server  # noqa: F401


async def until(true, seconds=60):
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)


async def result_of(awaitable):
    """The exception, or what it gave."""
    try:
        return await awaitable
    except Exception as error:
        return error


# --- a peer that closes at once


@pytest.mark.parametrize("messages", [0, 1, 3])
def test_a_server_that_closes_before_the_client_has_its_endpoint(pair, messages):  # noqa: F811
    """The control message may be here before create_endpoint() has returned. UCX-Py keeps it, since it is a message with a tag: the
    client receives everything, a receive that waits is UCXCanceled, and nobody hears of a reset."""
    async def body(p):
        async def serve(ep):
            for i in range(messages):
                await ep.send(b"%04d" % i)
            await ep.close()

        async def client():
            ep = await ucp.create_endpoint("127.0.0.1", listener.port)
            for i in range(messages):
                await ep.recv(into := bytearray(4))
                assert into == b"%04d" % i
            return await result_of(ep.recv(bytearray(4)))
        listener = ucp.create_listener(serve)
        errors = [await client() for _ in range(30)] + await asyncio.gather(*(client() for _ in range(30)))
        assert {type(e) for e in errors} <= {UCXCanceled, UCXCloseError}
        if not messages:  # it is not known yet when the receive begins
            assert {type(e) for e in errors} == {UCXCanceled}
    pair(body)


def test_a_control_message_for_nobody_is_not_kept(run):
    """It lives as long as its connection, and only one of each."""
    async def body():
        p = await connected()
        header = ucp.endpoint._CTRL.pack(1, 2, 3)
        ctx = ucp.core._get_ctx()
        ctx._endpoints.pop(p.b._weft.id)  # as if it were not made yet
        for data in (header, header, b"short", b"x" * 4000):
            await p.a._weft.am_send(ucp.endpoint.CTRL_ID, header=data)
        await until(lambda: len(ctx._early_shutdowns) == 1)
        assert list(ctx._early_shutdowns.values()) == [header]
        ctx._endpoints[p.b._weft.id] = p.b
        p.a.abort()
        p.b.abort()
        p = None
        await asyncio.sleep(0.05)
        gc.collect()
        await until(lambda: gc.collect() >= 0 and not ctx._early_shutdowns)
    run(body())


# --- what waits, and what comes after


@pytest.mark.parametrize("how", ["abort", "close", "kill"])
def test_what_each_call_gives(run, child, how):
    """UCX-Py: receives that wait are UCXCanceled, with their name; a send that waits is UCXError; later calls tell what the endpoint was
    lost to, am_send() that it is closed. After the peer's close() ours say UCXCloseError where UCX-Py has an AttributeError."""
    process, port = server(child, """
await ep.recv(bytearray(2))
%s
await asyncio.sleep(1000)
""" % {"abort": "ep.abort()", "close": "await ep.close()", "kill": "import os; os.kill(os.getpid(), 9)"}[how])
    word = "Endpoint timeout" if how == "kill" else "Connection reset by remote peer"

    async def body():
        ep, called = await ucp.create_endpoint("127.0.0.1", port), []
        ep.set_close_callback(lambda: called.append(1))
        waiting = [asyncio.ensure_future(use) for use in (ep.recv(bytearray(10)), ep.am_recv(), ep.send(bytes(64 << 20), tag="no"))]
        await asyncio.sleep(0.02)
        await ep.send(b"go")
        received, active, sent = [await result_of(future) for future in waiting]
        assert type(received) is type(active) is UCXCanceled
        assert str(received).startswith(f"<[Recv #000] ep: {ep.uid:#x}, tag: 0x") and "nbytes: 10, type: <class 'bytearray'>>: " in str(
            received)
        assert "am_recv" in str(active)
        if how == "close":  # the control message closed it here: it may come before or after the send ends
            assert type(sent) in (UCXError, UCXCanceled)
        else:
            assert type(sent) is UCXError and word in str(sent) and str(sent).startswith("<[Send #000] ep: ")
        await until(ep.closed)
        await until(lambda: called)
        later = [await result_of(use) for use in (ep.recv(bytearray(1)), ep.send(b"1"), ep.am_recv())]
        kind = {"abort": UCXConnectionReset, "close": UCXCloseError, "kill": UCXError}[how]
        assert [type(error) for error in later] == [kind] * 3
        if how != "close":
            assert all(str(error).startswith(f"Endpoint {ep.uid:#x} error: {word}") for error in later)
        assert type(await result_of(ep.am_send(b"1"))) is UCXCloseError
        await ep.close()
        ep.abort()
        assert called == [1] and ep.ucx_info()
    run(body())


def test_closing_here(pair):  # noqa: F811
    """UCX-Py: whatever waits to receive is UCXCanceled; the texts name the operation."""
    async def body(p):
        q = await connected()
        for ep, end in ((p.a, "close"), (q.a, "abort")):
            waiting = [asyncio.ensure_future(ep.recv(bytearray(1))), asyncio.ensure_future(ep.am_recv())]
            await asyncio.sleep(0.005)
            if end == "close":
                await ep.close()
            else:
                ep.abort()
            errors = [await result_of(future) for future in waiting]
            assert [type(error) for error in errors] == [UCXCanceled] * 2
            assert "[Recv #000]" in str(errors[0]) and "tag: " in str(errors[0]) and "am_recv" in str(errors[1])
    pair(body)


def test_a_close_while_receives_wait(pair):  # noqa: F811
    """UCX-Py's test: gather(recv(), close()) is UCXCanceled on both sides, for messages and active messages."""
    async def body(p):
        for receive in (lambda ep: ep.recv(bytearray(8)), lambda ep: ep.am_recv()):
            pair_ = await connected()
            theirs = asyncio.ensure_future(result_of(receive(pair_.b)))
            await asyncio.sleep(0)
            with pytest.raises(UCXCanceled):
                await asyncio.gather(receive(pair_.a), pair_.a.close())
            assert type(await theirs) is UCXCanceled
    pair(body)


def test_a_message_of_another_length(run):
    """UCX-Py: "length mismatch: 3 (got) != 100 (expected)"."""
    async def body():
        p = await connected()
        for own in (False, True):
            await p.a.send(b"123", **({"tag": 5, "force_tag": True} if own else {}))
            with pytest.raises(UCXMsgTruncated, match=r"\[Recv #00\d\].*: length mismatch: 3 \(got\) != 100 \(expected\)"):
                await p.b.recv(bytearray(100), **({"tag": 5, "force_tag": True} if own else {}))
    run(body())


def test_information_after_the_end(run):
    """UCX-Py's test asks for ucx_info() after the last message, when the peer may have closed."""
    async def body():
        p = await connected()
        await p.a.send(b"1")
        await p.a.close()
        await p.b.recv(bytearray(1))
        await until(p.b.closed)
        assert isinstance(p.a.ucx_info(), str) and isinstance(p.b.ucx_info(), str)
    run(body())


# --- without error handling


def test_without_error_handling(run, child, caplog):
    """UCX-Py: the endpoint counts as alive until it is closed here, sends fail, and close() logs, to the root logger, that it could not
    tell the peer. Receives wait for ever there; ours end."""
    process, port = server(child, "await ep.recv(bytearray(1))\nimport os; os.kill(os.getpid(), 9)")

    async def body():
        ep, called = await ucp.create_endpoint("127.0.0.1", port, endpoint_error_handling=False), []
        ep.set_close_callback(lambda: called.append(1))
        waiting = asyncio.ensure_future(ep.recv(bytearray(10)))
        await ep.send(b"1")
        assert type(await result_of(waiting)) is UCXCanceled
        await until(lambda: ep._weft.closed)
        assert not ep.closed() and ep._ep.is_alive() and not called
        for use, name in ((ep.send(b"1"), "Send"), (ep.am_send(b"1"), "AM Send")):
            error = await result_of(use)
            assert type(error) is UCXError and f"<[{name} #00" in str(error) and "Endpoint timeout" in str(error)
        assert type(await result_of(ep.recv(bytearray(1)))) is UCXCanceled and type(await result_of(ep.am_recv())) is UCXCanceled
        assert not ep.closed() and not called
        await ep.close()
        assert ep.closed() and called == [1]
    with caplog.at_level(logging.WARNING):
        run(body())
    said = [r.getMessage() for r in caplog.records if r.name == "root"]
    assert len(said) == 1 and "(probably already closed): UCXError('<[Send shutdown] ep: 0x" in said[0]


def test_without_error_handling_a_peer_that_closes(run):
    """The control message ends it, and close() afterwards has nothing to say."""
    async def body():
        p = await connected(endpoint_error_handling=False)
        await p.a.send(b"1")
        await p.a.close()
        await p.b.recv(bytearray(1))
        await until(p.b.closed)
        await p.b.close()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        run(body())
    finally:
        logging.getLogger().removeHandler(handler)
    assert stream.getvalue() == ""


# --- workers by their address


GONE = """
import asyncio, sys, ucp
async def main():
    print(bytes(ucp.get_worker_address()).hex(), flush=True)
    sys.stdin.readline()
    ucp.reset()
    print("gone", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


@pytest.mark.parametrize("use,kind", [("send", UCXError), ("am_send", UCXError), ("recv", UCXCanceled), ("am_recv", UCXCanceled)])
def test_a_worker_that_is_gone(run, child, use, kind):
    """UCX-Py: sends are UCXError with "Endpoint timeout", receives UCXCanceled; and reset() is done when it returns."""
    process = child(GONE)
    address = ucp.get_ucx_address_from_buffer(bytes.fromhex(process.stdout.readline()))

    async def body():
        ep = await ucp.create_endpoint_from_worker_address(address)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "gone\n"  # nothing of ours runs meanwhile
        calls = {"send": lambda: ep.send(b"1", tag=0, force_tag=True), "recv": lambda: ep.recv(bytearray(1), tag=0, force_tag=True),
                 "am_send": lambda: ep.am_send(b"1"), "am_recv": ep.am_recv}
        error = await result_of(calls[use]())
        assert type(error) is kind and ("Endpoint timeout" in str(error) or kind is UCXCanceled)
        await until(ep.closed)
        for name in ("send", "recv", "am_recv"):
            with pytest.raises(UCXError, match="Endpoint timeout"):
                await calls[name]()
        with pytest.raises(UCXCloseError):
            await ep.am_send(b"1")
        await ep.close()
    run(body())


def test_a_worker_that_was_gone_before(run, child):
    process = child(GONE)
    address = ucp.get_ucx_address_from_buffer(bytes.fromhex(process.stdout.readline()))
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "gone\n"

    async def body():
        ep = await ucp.create_endpoint_from_worker_address(address)
        with pytest.raises(UCXError, match="Destination is unreachable|Endpoint timeout"):
            await ep.send(b"1", tag=1, force_tag=True)
    run(body())


def test_a_receive_with_a_tag_for_all_is_ended_by_its_own_endpoint_only(run):
    """UCX-Py: recv(force_tag=True) takes a message of any peer, and ends with the endpoint that it was called on, not with another."""
    async def body():
        p, q = await connected(), await connected()
        first, second = bytearray(3), bytearray(3)
        mine = asyncio.ensure_future(p.b.recv(first, tag=5, force_tag=True))
        anyone = asyncio.ensure_future(ucp.recv(second, 6))
        await asyncio.sleep(0.01)
        q.a.abort()
        await until(q.b.closed)
        await asyncio.sleep(0.02)
        assert not mine.done() and not anyone.done()
        r = await connected()
        await r.a.send(b"two", tag=6, force_tag=True)
        await anyone
        await r.a.send(b"one", tag=5, force_tag=True)  # by another peer than the endpoint's own
        await mine
        assert first == b"one" and second == b"two"
        # on an endpoint that has ended: a message that is there is received, else it is said why
        await r.a.send(b"xyz", tag=7, force_tag=True)
        await until(lambda: ucp.core._get_ctx().worker.tag_probe(7))
        await q.b.recv(first, tag=7, force_tag=True)
        assert first == b"xyz"
        with pytest.raises(UCXConnectionReset, match="Connection reset by remote peer"):
            await q.b.recv(first, tag=7, force_tag=True)
        mine = asyncio.ensure_future(p.b.recv(first, tag=8, force_tag=True))
        await asyncio.sleep(0.01)
        p.a.abort()
        error = await result_of(mine)
        assert type(error) is UCXCanceled and "[Recv #001]" in str(error)
    run(body())


# --- the context


def test_reset_while_something_is_open(run):
    """UCX-Py: "Trying to reset UCX but not all Endpoints and/or Listeners are closed()"."""
    async def body():
        p = await connected()
        with pytest.raises(UCXError, match=r"Trying to reset UCX but not all Endpoints and/or Listeners are closed\(\)"):
            ucp.reset()
        p.a.abort()
        p.b.abort()
        p.listener.close()
        ucp.reset()
    run(body())


def test_reset_is_done_when_it_returns(run):
    """If it has to wait for nobody, in a loop as outside of one: whoever connects then is refused."""
    async def body():
        listener = ucp.create_listener(lambda ep: None)
        port = listener.port
        listener.close()
        runtime = ucp.core._get_ctx().worker.runtime
        ucp.reset()
        assert runtime.closed
        with pytest.raises(UCXBaseException):
            await ucp.create_endpoint("127.0.0.1", port)
    run(body())


def test_init_says_what_it_does_at_info():
    """UCX-Py: the options at INFO, nothing at ERROR; and a second init() is a RuntimeError."""
    logger, stream = logging.getLogger("ucx"), io.StringIO()
    handler, level = logging.StreamHandler(stream), logger.level
    logger.addHandler(handler)
    try:
        for wanted in (logging.ERROR, logging.INFO):
            logger.setLevel(wanted)
            ucp.reset()
            ucp.init({"SEG_SIZE": "7K"})
            assert bool(stream.getvalue()) == (wanted == logging.INFO)
        assert "UCP initiated using config" in stream.getvalue() and "  SEG_SIZE: 7K\n" in stream.getvalue()
        with pytest.raises(RuntimeError, match="UCX is already initiated"):
            ucp.init()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_transports_by_the_names_of_ucx():
    """UCX-Py: a set, in which shared memory is posix."""
    for tls, names in (("posix", {"posix"}), ("tcp", {"tcp"}), ("posix,tcp", {"posix", "tcp"}), ("sm", {"posix"})):
        ucp.reset()
        ucp.init({"TLS": tls})
        assert ucp.get_active_transports() == names
    ucp.reset()
    ucp.init()
    assert type(ucp.get_active_transports()) is set and {"posix", "tcp"} <= ucp.get_active_transports()
