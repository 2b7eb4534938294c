"""ucxx as UCXX's users know it: messages, several at once, probes, active messages, listeners and their handlers, endings, options."""
# ctest: long no-asan: it is about Python; the other tests of this folder try the extension with a sanitizer
import asyncio
import gc
import logging

import numpy
import pytest

import ucxx
import weft
from ucp._libs.exceptions import translated
from ucxx import exceptions
from ucxx._lib import multi
from ucxx._lib.arr import Array
from ucxx.exceptions import (UCXCanceledError, UCXCloseError, UCXConnectionResetError, UCXError, UCXInvalidAddrError,
                             UCXInvalidParamError, UCXIOError, UCXMessageTruncatedError, UCXNoMemoryError)
from ucxx.types import Tag, TagMask, TagMaskFull
from ucxxside import MODES, connected, fresh, pair, until  # noqa: F401


# --- messages

@pytest.mark.parametrize("size", [0, 1, 8192, 3_000_000])
def test_bytes_arrive_as_they_were_sent(pair, size):  # noqa: F811
    async def body(p):
        data = (numpy.arange(size) % 251).astype("u1")
        for one, other in ((p.a, p.b), (p.b, p.a)):
            into = numpy.zeros_like(data)
            await asyncio.gather(one.send(data), other.recv(into))
            assert (into == data).all()
        await p.a.send_obj(b"an object")
        assert await p.b.recv_obj() == b"an object"
    pair(body)


def test_a_message_of_another_length_is_truncated(pair):  # noqa: F811
    async def body(p):
        await p.a.send(b"hey")
        with pytest.raises(UCXMessageTruncatedError, match=r"Message truncated: length mismatch: 3 \(got\) != 100 \(expected\)"):
            await p.b.recv(bytearray(100))
        await p.a.send(b"hey")
        with pytest.raises(UCXMessageTruncatedError, match="Message truncated"):
            await p.b.recv(bytearray(2))
        await p.a.send(b"still")
        await p.b.recv(into := bytearray(5))
        assert into == b"still"
    pair(body)


def test_tags_are_the_endpoints_own_or_forced(pair):  # noqa: F811
    async def body(p):
        one, two = bytearray(3), bytearray(3)
        receiving = [asyncio.ensure_future(p.b.recv(one, tag="one")), asyncio.ensure_future(p.b.recv(two, tag=("two", 2)))]
        await p.a.send(b"222", tag=("two", 2))
        await p.a.send(b"111", tag="one")
        await asyncio.gather(*receiving)
        assert (one, two) == (b"111", b"222")
        for tag in (2**64 - 1, Tag(7)):
            await asyncio.gather(p.a.send(b"333", tag=tag, force_tag=True), ucxx.recv(one, tag))
            assert one == b"333"
    pair(body)


def test_a_tag_is_a_number_of_64_bits():
    assert Tag(7) == 7 == Tag(7) and Tag(7) != Tag(8) and Tag(7) != "7" and hash(Tag(7)) == hash(7)
    assert Tag(7) != TagMask(7) and TagMaskFull == 2**64 - 1 and repr(TagMask(7)) == "UCXXTagMask(7)"
    for wrong in (-1, 2**64):
        with pytest.raises(OverflowError, match="not a number of 64 bits"):
            Tag(wrong)
    with pytest.raises(AttributeError, match="cannot be changed"):
        Tag(7).value = 8


def test_a_cancelled_receive_loses_no_message(pair):  # noqa: F811
    async def body(p):
        for wait in (p.b.recv(bytearray(4)), p.b.am_recv(), p.b.recv_multi()):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait, 0.01)
        await p.a.send(b"four")
        await p.b.recv(into := bytearray(4))
        assert into == b"four"
        await p.a.am_send(b"five5")
        assert bytes(await p.b.am_recv()) == b"five5"
        await p.a.send_multi([b"six"])
        assert [bytes(r) for r in await p.b.recv_multi()] == [b"six"]
    pair(body)


# --- several buffers

@pytest.mark.parametrize("count", [0, 1, 3, 100, 101, 250])
def test_several_buffers_arrive_as_one(pair, count):  # noqa: F811
    async def body(p):
        sent = [numpy.arange(i * 37 % 5000, dtype="u2") for i in range(count)]
        _, received = await asyncio.gather(p.a.send_multi(sent), p.b.recv_multi())
        assert len(received) == count
        for s, r in zip(sent, received):
            assert isinstance(r, numpy.ndarray) and (r.view("u2") == s).all()
    pair(body)


def test_receives_of_several_buffers_take_turns(pair):  # noqa: F811
    async def body(p):
        n = 12
        receiving = [asyncio.ensure_future(p.b.recv_multi()) for _ in range(n)]
        await asyncio.sleep(0)
        receiving[3].cancel()  # one that waits for its turn
        receiving[0].cancel()  # and the one whose turn it is
        await asyncio.gather(*(p.a.send_multi([bytes([i]) * 100_000, bytes([i])]) for i in range(n - 2)))
        got = [await r for i, r in enumerate(receiving) if i not in (0, 3)]
        for buffers in got:
            assert len(buffers) == 2 and len(buffers[0]) == 100_000 and (buffers[0] == buffers[1][0]).all()
        assert sorted(b[1][0] for b in got) == list(range(n - 2))
    pair(body)


@pytest.mark.parametrize("header, wrong", [
    (b"\0" * multi.HEADER, UCXIOError),
    (multi._HEAD.pack(multi.MAGIC, multi.SLOTS + 1, 0).ljust(multi.HEADER, b"\xff"), UCXIOError),
    (multi._HEAD.pack(multi.MAGIC, 3, 1).ljust(multi.HEADER, b"\0"), UCXIOError),
    (multi._HEAD.pack(multi.MAGIC, 1, 0) + multi._SLOT.pack(2**63, 0) + b"\0" * (multi.HEADER - 28), UCXNoMemoryError),
    (b"short", UCXMessageTruncatedError),
])
def test_a_header_from_a_peer_is_checked(run, header, wrong):
    async def body():
        p = await connected()
        await p.a.send(header)
        with pytest.raises(wrong):
            await p.b.recv_multi()
        await p.a.send_multi([b"go on"])
        assert [bytes(b) for b in await p.b.recv_multi()] == [b"go on"]
    run(body())


def test_only_lists_and_tuples_are_several_buffers(run):
    async def body():
        p = await connected()
        with pytest.raises(ValueError, match="must be a `list` or `tuple`"):
            await p.a.send_multi(b"bytes")
        with pytest.raises(ValueError, match="should be of `Array` type"):
            p.a._ep.tag_send_multi((b"bytes",), Tag(1))
    run(body())


# --- probes

def test_a_probe_tells_of_a_message_and_takes_it_out(pair):  # noqa: F811
    async def body(p):
        assert not p.b.tag_probe() and p.b.tag_probe().matched is False
        with pytest.raises(AttributeError, match="No message was matched"):
            p.b.tag_probe().length  # noqa: B018
        await p.a.send(b"first")
        await p.a.send(b"second")
        await until(lambda: p.b.tag_probe())
        found = p.b.tag_probe()
        assert (found.sender_tag, found.length, found.handle) == (Tag(p.b._tags["msg_recv"]), 5, None)
        taken = p.b.tag_probe(remove=True)
        assert taken.matched and taken.handle and "length=5" in repr(taken)
        await p.b.recv(second := bytearray(6))  # what was taken out meets no receive
        assert second == b"second"
        with pytest.raises(ValueError):
            await p.b.recv_with_handle(bytearray(3), taken)
        await p.b.recv_with_handle(first := bytearray(8), taken)  # longer memory will do
        assert first == b"first\0\0\0"
        with pytest.raises(ValueError, match="receive it once"):
            await p.b.recv_with_handle(first, taken)
        with pytest.raises(ValueError, match="must be matched"):
            await p.b.recv_with_handle(first, p.b.tag_probe())
    pair(body)


def test_the_context_probes_and_receives_by_handle(run):
    async def body():
        p = await connected()
        ctx, tag = p.b._ctx, Tag(99)
        await p.a.send(b"of the worker", tag=tag, force_tag=True)
        await until(lambda: ctx.tag_probe(tag))
        await ctx.recv_with_handle(into := bytearray(13), ctx.tag_probe(99, remove=True))
        assert into == b"of the worker"
    run(body())


# --- active messages

@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_an_active_message_is_an_array(pair, size):  # noqa: F811
    async def body(p):
        data = numpy.arange(size, dtype="u4")
        _, got = await asyncio.gather(p.a.am_send(data), p.b.am_recv())
        assert isinstance(got, numpy.ndarray) and got.dtype == numpy.uint8 and (got.view("u4") == data).all()
        assert p.b._ep.am_probe() is False
    pair(body)


# --- endings

def test_alive_and_closed_are_properties(run):
    async def body():
        p = await connected()
        assert p.a.alive is True and p.a.closed is False and p.listener.closed is False
        await p.a.close()
        assert p.a.alive is False and p.a.closed is True
        await until(lambda: p.b.closed)
        assert p.b.alive is False
        p.listener.close()
        assert p.listener.closed is True
        with pytest.raises(ValueError, match="closed"):
            p.listener.port  # noqa: B018
    run(body())


def test_what_each_call_gives_when_the_peer_has_closed(pair):  # noqa: F811
    async def body(p):
        waiting = [asyncio.ensure_future(w) for w in (p.b.recv(bytearray(1), tag="never"), p.b.recv_multi(tag="nor this"))]
        await asyncio.sleep(0)
        await p.a.send(b"before")
        await p.a.am_send(b"and this")
        await p.a.close()
        for wait in waiting:
            with pytest.raises(UCXCanceledError, match="Request canceled"):
                await wait
        await until(lambda: p.b.closed)
        await p.b.recv(into := bytearray(6))  # it had arrived
        assert into == b"before" and bytes(await p.b.am_recv()) == b"and this"
        for call in (p.b.recv(into), p.b.recv_multi(), p.b.am_recv(), p.b.send(b"x"), p.b.send_multi([b"x"]), p.b.am_send(b"x")):
            with pytest.raises(UCXConnectionResetError, match="Connection reset by remote peer"):
                await call
        p.b.abort()
        for call in (p.b.recv(into), p.b.send(b"x"), p.b.am_recv()):
            with pytest.raises(UCXCloseError, match="Endpoint closed"):
                await call
    pair(body)


def test_an_active_message_that_will_not_come_is_cancelled(pair):  # noqa: F811
    async def body(p):
        waiting = asyncio.ensure_future(p.b.am_recv())
        await asyncio.sleep(0)
        await p.a.close()
        with pytest.raises(UCXCanceledError, match="Request canceled"):
            await waiting
    pair(body)


def test_an_abort_cancels_what_waits_here_and_loses_nothing_that_was_sent(pair):  # noqa: F811
    async def body(p):
        waiting = [asyncio.ensure_future(w) for w in (p.a.recv(bytearray(1)), p.a.am_recv(), p.a.recv_multi(tag="m"))]
        await asyncio.sleep(0)
        sending = [asyncio.ensure_future(p.a.send(bytes([i]) * 300_000)) for i in range(3)]
        await asyncio.sleep(0)
        p.a.abort()
        for wait in waiting:
            with pytest.raises(UCXCanceledError):
                await wait
        for i in range(3):
            await p.b.recv(into := bytearray(300_000))
            assert into == bytes([i]) * 300_000
        await asyncio.gather(*sending)
    pair(body)


@pytest.mark.parametrize("mode", MODES)
def test_the_close_callback_is_called_once(run, mode):
    async def body():
        p = await connected()
        calls = []
        p.b.set_close_callback(calls.append, cb_args=("b",))
        p.a.set_close_callback(lambda *, what: calls.append(what), cb_kwargs={"what": "a"})
        await p.a.close()
        await until(lambda: sorted(calls) == ["a", "b"])
        p.b.abort()
        await asyncio.sleep(0.01)
        assert sorted(calls) == ["a", "b"]
        q = await connected()
        await q.a.close()
        await until(lambda: q.b.closed)
        q.b.set_close_callback(calls.append, ("late",))  # it has ended already
        assert calls[-1] == "late"
        with pytest.raises(TypeError, match="a function"):
            q.b.set_close_callback(None)
    ucxx.init(progress_mode=mode)
    run(body())


def test_close_after_n_receives(run):
    async def body():
        p = await connected()
        for i in range(4):
            await p.a.send(b"%d" % i)
        p.b.close_after_n_recv(2)
        with pytest.raises(UCXError, match=r"close_after_n_recv has already been set to: 2 \(abs\)"):
            p.b.close_after_n_recv(1)
        await p.b.recv(bytearray(1))
        with pytest.raises(UCXError, match="has already been set"):
            p.b.close_after_n_recv(0, count_from_ep_creation=True)
        await p.b.recv(bytearray(1))
        assert p.b.closed
        q = await connected()
        await q.a.send(b"1")
        await q.b.recv(bytearray(1))
        with pytest.raises(UCXError, match="`n` cannot be less than current recv_count: 0"):
            q.b.close_after_n_recv(0, count_from_ep_creation=True)
        q.b.close_after_n_recv(1, count_from_ep_creation=True)
        assert q.b.closed
    run(body())


# --- listeners

@pytest.mark.parametrize("mode", MODES)
def test_a_listener_counts_its_handlers(run, mode, caplog):
    async def body():
        go, ended = asyncio.Event(), []

        async def handler(ep):
            await go.wait()
            ended.append(ep.uid)
        listener = ucxx.create_listener(handler)
        eps = [await ucxx.create_endpoint("127.0.0.1", listener.port) for _ in range(3)]
        await until(lambda: listener.active_clients == 3)
        go.set()
        await until(lambda: listener.active_clients == 0)
        assert len(set(ended)) == 3 and len(eps) == 3
    ucxx.init(progress_mode=mode)
    run(body())


def test_a_listener_that_goes_while_handlers_are_at_work_is_told_of(run, caplog, monkeypatch):
    async def body():
        go = asyncio.Event()

        async def handler(ep):
            await go.wait()
            await ep.send(b"done")
        listener = ucxx.create_listener(handler)
        ep = await ucxx.create_endpoint("127.0.0.1", listener.port)
        await until(lambda: listener.active_clients == 1)
        del listener
        gc.collect()
        assert "Listener object is being destroyed, but 1 client handler(s)" in caplog.text
        go.set()
        await ep.recv(bytearray(4))  # the handler goes on
    monkeypatch.setattr(logging.getLogger("ucx"), "propagate", True)
    run(body())


@pytest.mark.parametrize("plain", [True, False])
def test_what_a_handler_raises_is_logged_as_text(run, caplog, monkeypatch, plain):
    async def body():
        def function(ep):
            raise ValueError("a fault of the program")

        async def coroutine(ep):
            function(ep)
        listener = ucxx.create_listener(function if plain else coroutine)
        await ucxx.create_endpoint("127.0.0.1", listener.port)
        await until(lambda: "a fault of the program" in caplog.text)
        assert all(record.exc_info is None for record in caplog.records)
        await until(lambda: listener.active_clients == 0)
    monkeypatch.setattr(logging.getLogger("ucx"), "propagate", True)
    run(body())


# --- connecting

def test_each_connection_has_a_time_limit_of_its_own(run):
    async def body():
        silent = weft.listen("tcp://127.0.0.1:0")  # which takes a connection and says nothing
        patient = asyncio.ensure_future(ucxx.create_endpoint("127.0.0.1", silent.port, connect_timeout=3600))
        with pytest.raises(TimeoutError):
            await ucxx.create_endpoint("127.0.0.1", silent.port, connect_timeout=0.05)
        assert not patient.done()
        patient.cancel()
        silent.close()
    run(body())


def test_where_nobody_listens(run):
    async def body():
        listener = ucxx.create_listener(lambda ep: None)
        port = listener.port
        listener.close()
        with pytest.raises((exceptions.UCXNotConnectedError, exceptions.UCXUnreachableError)):
            await ucxx.create_endpoint("127.0.0.1", port)
    run(body())


@pytest.mark.parametrize("junk", [b"\0" * 16, b"x" * 3])
def test_a_stranger_does_not_disturb_a_listener(run, junk):
    async def body():
        p = await connected(connect_timeout=0.5)
        async with weft.Runtime() as other:
            stranger = await other.connect(f"tcp://127.0.0.1:{p.listener.port}")
            await stranger.am_send(0x5543_5802, junk)  # bytes of the stream
            await until(lambda: p.listener.active_clients == 0)
        await p.a.send(b"fine")
        await p.b.recv(into := bytearray(4))
        assert into == b"fine"
    run(body())


def test_bytes_that_are_no_address():
    for junk in (b"", b"x" * 100, b"WFAD" + b"\xff" * 60, b"\0" * 10_000):
        with pytest.raises(UCXInvalidAddrError, match="Address not valid"):
            ucxx.get_ucx_address_from_buffer(junk)
    with pytest.raises(TypeError, match="made from bytes"):
        ucxx.get_ucx_address_from_buffer(7)


def test_an_endpoint_by_address_needs_a_forced_tag(run):
    async def body():
        ep = await ucxx.create_endpoint_from_worker_address(ucxx.get_worker_address())
        with pytest.raises(ValueError, match="force_tag=True"):
            await ep.send(b"x")
        await ep.send(b"to myself", tag=5, force_tag=True)
        await ucxx.recv(into := bytearray(9), 5)
        assert into == b"to myself"
        await ep.close()
    run(body())


# --- options, and the context

def test_the_modes_of_progress(monkeypatch):
    with pytest.raises(ValueError, match="Unknown progress mode 'sideways', valid modes are: 'blocking', 'polling', 'thread'"):
        ucxx.init(progress_mode="sideways")
    monkeypatch.setenv("UCXPY_PROGRESS_MODE", "blocking")
    ucxx.init()
    assert ucxx.core._get_ctx().progress_mode == "blocking"
    with pytest.raises(RuntimeError, match="already initiated"):
        ucxx.init()
    ucxx.reset()
    with pytest.raises(ValueError, match="Delayed submission requested, but 'blocking' does not support it"):
        ucxx.init(enable_delayed_submission=True)
    ucxx.init(enable_python_future=True)
    assert ucxx.core._get_ctx().worker.enable_python_future is False
    ucxx.reset()
    ucxx.init(progress_mode="thread", enable_python_future=True, enable_delayed_submission=False)
    worker = ucxx.core._get_ctx().worker
    assert worker.enable_python_future is True and worker.enable_delayed_submission is False


def test_options_of_ucx(monkeypatch):
    monkeypatch.setenv("UCX_SEG_SIZE", "4M")
    options = {"SEG_SIZE": "3M", "TLS": "tcp"}
    ucxx.init(options)
    assert ucxx.get_config()["SEG_SIZE"] == "3M" and ucxx.get_active_transports() == {"tcp"}
    ucxx.reset()
    ucxx.init(options, env_takes_precedence=True)
    assert ucxx.get_config()["SEG_SIZE"] == "4M" and options["SEG_SIZE"] == "3M"
    ucxx.reset()
    for wrong in ({"SEG_SIZE": "invalid-size"}, {"TLS": "pigeons"}):
        with pytest.raises(UCXInvalidParamError, match="Invalid parameter"):
            ucxx.init(wrong)
    for wrong in (0, -1, "soon"):
        with pytest.raises(ValueError, match="connect_timeout"):
            ucxx.init(connect_timeout=wrong)
    assert ucxx.get_active_transports() >= {"tcp", "posix", "self"}


def test_a_reset_says_what_is_open(run):
    async def body():
        p = await connected()
        with pytest.raises(UCXError, match=r"Trying to reset UCX but not all Endpoints and/or Listeners are closed\(\)(?s:.*)Endpoint"):
            ucxx.reset()
        assert ucxx.core._ctx is None
        await p.a.send(b"they go on")
        await p.b.recv(bytearray(10))
        p.a.abort()
        p.b.abort()
        p.listener.close()
    run(body())


@pytest.mark.parametrize("mode", ["thread", "blocking"])
def test_several_loops_one_after_the_other(mode):
    async def make():
        return await connected()

    async def use(p, i):
        await p.a.send(b"%d" % i)
        await p.b.recv(into := bytearray(1))
        assert into == b"%d" % i
        await p.b.am_send(b"back")
        assert bytes(await p.a.am_recv()) == b"back"
    ucxx.init(progress_mode=mode)
    p = asyncio.run(make())
    for i in range(3):
        asyncio.run(use(p, i))


# --- exceptions

def test_every_exception_of_ucxx_is_there():
    names = [n for n in dir(exceptions) if n.startswith("UCX")]
    assert len(names) == 35
    for name in names:
        assert issubclass(getattr(exceptions, name), UCXError)
    assert exceptions.UCXCanceled is UCXCanceledError and exceptions.UCXMsgTruncated is UCXMessageTruncatedError
    numbers = list(exceptions.NUMBERS.values())
    assert len(set(numbers)) == len(numbers) and all(n < 0 for n in numbers)
    assert all(hasattr(ucxx._lib.libucxx, name) for name in names)


@pytest.mark.parametrize("theirs, ours", [(weft.NoMemoryError, "UCXNoMemoryError"), (weft.TimeoutError, "UCXTimedOutError"),
                                          (weft.LimitError, "UCXExceedsLimitError"), (weft.AddressError, "UCXBusyError"),
                                          (weft.PeerError, "UCXConnectionResetError"), (weft.AuthError, "UCXRejectedError"),
                                          (weft.StateError, "UCXError")])
def test_an_error_of_weft_becomes_one_of_ucxx(theirs, ours):
    error = exceptions.translated(theirs("the words"))
    assert type(error).__name__ == ours and "the words" in str(error) and error.__cause__ is not None


@pytest.mark.parametrize("reason, ours", [(0xFFFF_FFFF, "UCXConnectionResetError"), (7, "UCXRejectedError")])
def test_a_peer_that_closed_before_it_received_is_no_refusal(reason, ours):
    error = weft.RejectedError("the words")
    error.reason = reason
    for given in (error, translated(error, "am_send")):
        assert type(exceptions.translated(given)).__name__ == ours


def test_a_port_in_use_is_busy(run):
    async def body():
        listener = ucxx.create_listener(lambda ep: None)
        with pytest.raises(exceptions.UCXBusyError, match="Device is busy"):
            ucxx.create_listener(lambda ep: None, port=listener.port)
    run(body())


def test_a_context_without_a_feature_says_so():
    api = ucxx._lib.libucxx
    worker = api.UCXWorker(api.UCXContext(feature_flags=(api.Feature.STREAM,)))
    ep = api.UCXEndpoint.create_from_worker_address(worker, worker.address, endpoint_error_handling=True)
    for call in (lambda: ep.tag_send(Array(b"x"), Tag(1)), lambda: ep.tag_recv_multi(Tag(1)), lambda: worker.tag_probe(Tag(1))):
        with pytest.raises(ValueError, match="UCXContext must be created with `Feature.TAG`"):
            call()
    with pytest.raises(RuntimeError, match="0 bytes"):
        ep.stream_send(Array(b""))
