"""Endpoints, and what is under way on them: CommFuture and ucp_comm_request, to ask, wait for or await.

Every communication is an active message: the payload, and in the header the note of what it is. So a receive need not know how
long it will be, and one with memory of its own has the payload put there directly. Messages of an endpoint are received in the
order they were sent.

    header under way -> payload under way -> over      a receive; whoever drives makes the step
    payload under way -> over                          a send

Promise: a communication ends once, with its message or with the exception of what went wrong, however it is waited for; the
memory is held until then. tests/python/test_ucp_py.py holds us to it.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import weft

from . import _types
from ._core import CLOSE_WAIT, Core, call, core
from ._cuda import part
from ._memory import _length, buffer_region, ucp_msg

ID = 0x75637079  # the id of our active messages
TOO_LONG = 1     # the reason when a payload is refused


class _Communication:
    """A send or a receive, until it is over."""

    def __init__(self, own: Core, msg: ucp_msg) -> None:
        self._core = own
        self._msg = msg
        self._op: Any = None
        self._over = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []
        msg._request = self

    def ready(self) -> bool:
        """True if step() has something to do."""
        return not self._over and self._op.done()

    def step(self, _: object = None) -> None:
        """Whatever has come to its end is taken note of."""
        while self.ready():
            try:
                self._next(self._op.result())
            except asyncio.CancelledError as error:
                self._end(error)
            except Exception as error:
                self._end(error)

    def _watch(self, op: Any) -> None:
        self._op = op
        self._core.receiving.add(self)
        if op.done():
            self.step()
        else:
            op.add_done_callback(self.step)

    def _next(self, value: Any) -> None:
        raise NotImplementedError

    def _end(self, error: BaseException | None = None) -> None:
        self._over, self._error, self._op = True, error, None
        self._core.receiving.discard(self)
        if self._msg._request is self:
            self._msg._request = None  # break the reference cycle
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_over(self, callback: Callable[[], object]) -> None:
        """Have it called once it is over; at once if it is."""
        self.step()
        if self._over:
            callback()
            return
        self._callbacks.append(callback)
        if self not in self._core.receiving:  # a send: nobody looks at it but who waits for it
            self._watch(self._op)

    def _finish(self) -> ucp_msg:
        if self._error is not None:
            raise self._error
        return self._msg

    # --- the four names

    def done(self) -> bool:
        """True once it is over. Drives everything once."""
        if not self._over:
            self.step()
        if not self._over and not self._core.runtime.closed:
            self._core.drive()
            self.step()
        return self._over

    def result(self) -> ucp_msg:
        """Wait until it is over; the message, or the exception of what went wrong."""
        if not self._over:
            self.step()
        if not self._over:
            self._core.wait(self._look)
        return self._finish()

    def _look(self) -> bool:
        self.step()
        return self._over


class _Send(_Communication):
    def __init__(self, ep: Any, msg: ucp_msg, note: bytes, data: Any, nbytes: int) -> None:
        super().__init__(core(), msg)
        msg._length = nbytes
        self._op = ep.am_send(ID, data, note)  # it has no second step, so no callback is needed

    def _next(self, value: Any) -> None:
        self._end()


class _Receive(_Communication):
    def __init__(self, ep: Any, msg: ucp_msg, into: Any, most: int | None) -> None:
        super().__init__(core(), msg)
        self._into, self._most = into, most
        self._message: Any = None
        self._memory: Any = None
        self._watch(ep.am_recv(ID))

    def _next(self, value: Any) -> None:
        if self._message is None:
            self._header(value)
        else:
            self._payload(value)

    def _header(self, message: Any) -> None:
        """The payload may be long, and wait at the sender: have it put where it belongs."""
        self._message, n = message, message.nbytes
        try:
            _types.check(message.header, n)
            if self._most is not None and n > self._most:
                raise weft.TruncatedError(f"the message has {n} bytes, and there is room for {self._most}")
            if self._into is not None:
                self._memory = self._into
                op = message.read_into(self._into)
            else:
                self._memory = _types.memory_for(message.header, n)
                op = message.read() if self._memory is None else message.read_into(self._memory)
        except BaseException:
            message.reject(TOO_LONG)
            message.release()
            raise
        self._watch(op)

    def _payload(self, value: Any) -> None:
        note, n = self._message.header, self._message.nbytes
        self._message.release()
        if self._memory is None:
            self._memory = value
        region = self._msg._region
        if self._into is not None:
            region._received(note, n)
        else:
            region._set(self._memory, note, n)
        self._msg._length = n
        self._memory = self._into = None
        self._end()


class ucp_comm_request:
    """A send or a receive that is under way: done(), result(), or `await` it in asyncio."""

    def __init__(self, under_way: _Communication) -> None:
        self._under_way = under_way

    def done(self) -> bool:
        """True once it is over. Drives everything once."""
        return self._under_way.done()

    def result(self) -> ucp_msg:
        """Wait until it is over; the message, or the exception of what went wrong."""
        return self._under_way.result()

    def __await__(self) -> Generator[Any, None, ucp_msg]:
        under_way = self._under_way
        under_way.step()
        while not under_way._over:
            core()  # attach the loop that runs in this thread, so it drives
            try:
                yield from under_way._op.__await__()
            except weft.WeftError:
                pass  # step() reports it
            except asyncio.CancelledError:
                under_way.step()
                raise
            under_way.step()
        return under_way._finish()

    __iter__ = __await__


class CommFuture(ucp_comm_request):
    """The same, with what a concurrent.futures.Future has, which it was in 2019: it can be cancelled, and call a function."""

    def cancel(self) -> bool:
        """End it early. False: it is over, or too late for that. The memory is held until nobody uses it."""
        return bool(not self._under_way._over and self._under_way._op.cancel())

    def cancelled(self) -> bool:
        """True if it was ended early."""
        return self._under_way._over and isinstance(self._under_way._error, (asyncio.CancelledError, weft.CancelledError))

    def running(self) -> bool:
        """True until it is over. Drives nothing."""
        return not self._under_way._over

    def exception(self) -> BaseException | None:
        """Wait until it is over; what went wrong, or None."""
        try:
            self.result()
        except BaseException as error:
            if error is not self._under_way._error:
                raise  # somebody interrupts the wait
        return self._under_way._error

    def add_done_callback(self, fn: Callable[[CommFuture], object]) -> None:
        """Have fn(self) called once it is over, by whoever drives: progress(), a call that waits, or the loop; here if it is
        over. What fn raises is logged."""
        if not callable(fn):
            raise TypeError(f"the callback is a function of the future, and not a {type(fn).__name__}")
        self._under_way.when_over(lambda: call(fn, self))


class ucp_py_ep:
    """One connection to one peer: given to the function of a server, made by get_endpoint(), or made empty, to connect()."""

    def __init__(self) -> None:
        self._ep: Any = None
        self._core: Core | None = None

    def _take(self, own: Core, ep: Any) -> ucp_py_ep:
        self._core, self._ep = own, ep
        own.endpoints.add(self)
        return self

    def connect(self, ip: bytes | str, port: int, max_timeout: float | None = None) -> int:
        """Connect to a server; returns 0 when it has answered. weft.TimeoutError after max_timeout seconds, or 10."""
        own = core()
        if self._ep is not None:
            raise weft.StateError("the endpoint is connected already: make another")
        host = ip.decode("ascii", "replace") if isinstance(ip, (bytes, bytearray)) else ip
        if not isinstance(host, str):
            raise TypeError(f"the server's address is bytes or text, such as b'192.0.2.7', and not a {type(ip).__name__}")
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        op = own.runtime._connect(f"tcp://{host}:{_length(port, 'server_port')}", timeout=max_timeout, retry=False)
        try:
            # do not serve: a server function of this process may wait for messages of this endpoint
            own.wait(op.done, serve=False)
        except BaseException:
            op.cancel()
            raise
        self._take(own, op.result())
        return 0

    def _open(self) -> Any:
        core()
        if self._ep is None:
            raise weft.ClosedError("the endpoint is not connected, or was closed")
        return self._ep

    def _close(self) -> Any:
        ep, self._ep = self._ep, None
        if ep is None or self._core is None:
            return None
        self._core.endpoints.discard(self)
        return None if self._core.runtime.closed else self._core.close_endpoint(ep)

    def close(self) -> int:
        """Close it: everything that was sent arrives, receives that are under way end with weft.ClosedError. Returns 0.

        Outside of asyncio it waits for the peer, two seconds at most; in asyncio the loop does the rest.
        """
        own = self._core
        op = self._close()
        if own is not None and op is not None and own.attach() is None:
            own.wait(op.done, CLOSE_WAIT, serve=False)
        return 0

    # --- messages

    def _send(self, msg: ucp_msg, len: int) -> _Send:
        if not isinstance(msg, ucp_msg):
            raise TypeError(f"what is sent is a ucp_msg, and not a {type(msg).__name__}: send_msg() and send_obj() take objects")
        region, n = msg._region, _length(len)
        if region._memory is None:
            raise weft.StateError("the message has no memory: alloc_host(), alloc_cuda() or populate_ptr() gives it some")
        if region._note == b"raw":
            if n > region._capacity:
                raise weft.InvalidError(f"len is {n}, and the message has {region._capacity} bytes of memory")
            region._nbytes = region._capacity
        data, n = _types.cut(region._note, region._memory, region._nbytes, n, region.is_cuda)
        return _Send(self._open(), msg, region._note, data, n)

    def _recv(self, msg: ucp_msg, len: int) -> _Receive:
        if not isinstance(msg, ucp_msg):
            raise TypeError(f"what is received into is a ucp_msg, and not a {type(msg).__name__}: recv_msg() and recv_obj() "
                            f"take objects")
        region, n = msg._region, _length(len)
        if region._memory is None:
            return _Receive(self._open(), msg, None, n or None)
        if region.is_cuda:
            n = min(n, region._capacity)
            return _Receive(self._open(), msg, part(region._memory, n), n)
        view = memoryview(region._memory).cast("B")
        if view.readonly:
            raise weft.InvalidError("the memory belongs to an object that cannot be written to: "
                                    "receive into a bytearray or an array, or into memory of alloc_host()")
        n = min(n, view.nbytes)
        return _Receive(self._open(), msg, view[:n], n)

    def send(self, msg: ucp_msg, len: int) -> CommFuture:
        """Send the first bytes of a message."""
        return CommFuture(self._send(msg, len))

    def recv(self, msg: ucp_msg, len: int) -> CommFuture:
        """Receive into a message at most that many bytes; one that has no memory is given some, and then len 0 is no limit."""
        return CommFuture(self._recv(msg, len))

    def recv_future(self) -> CommFuture:
        """Receive whatever comes next, into memory made for it."""
        return CommFuture(_Receive(self._open(), ucp_msg(None), None, None))

    def send_fast(self, msg: ucp_msg, len: int) -> ucp_comm_request:
        """The same as send()."""
        return ucp_comm_request(self._send(msg, len))

    def recv_fast(self, msg: ucp_msg, len: int) -> ucp_comm_request:
        """The same as recv()."""
        return ucp_comm_request(self._recv(msg, len))

    def _send_obj(self, obj: Any, len: int | None) -> _Send:
        region = buffer_region()
        region.populate_ptr(obj)
        n = region._nbytes if len is None else _length(len)
        return self._send(ucp_msg(region), min(n, region._nbytes))

    def _recv_obj(self, obj: Any, len: int | None) -> _Receive:
        n = None if len is None else _length(len)
        region = buffer_region()
        if obj is not None and not isinstance(obj, (str, int, float)):
            region.populate_ptr(obj)
            if not region.is_cuda and memoryview(region._memory).readonly:
                region = buffer_region()
                n = None  # the object only shows what is expected, and its len is the size of a Python object
            else:
                return self._recv(ucp_msg(region), region._nbytes if n is None else n)
        elif obj is not None:
            n = None
        return _Receive(self._open(), ucp_msg(region), None, n or None)

    def send_msg(self, obj: Any, len: int | None = None) -> ucp_comm_request:
        """Send an object: bytes, bytearray, str, int, float, an array. Of bytes and bytearrays len can be a part; others always
        go whole, and a len
        that is more than they have, as sys.getsizeof() is, does no harm."""
        return ucp_comm_request(self._send_obj(obj, len))

    def recv_msg(self, obj: Any = None, len: int | None = None) -> ucp_comm_request:
        """Receive an object: into the memory of obj if that can be written to (a bytearray, an array), else into memory made
        for it."""
        return ucp_comm_request(self._recv_obj(obj, len))

    def send_obj(self, obj: Any, len: int | None = None) -> CommFuture:
        """The same as send_msg()."""
        return CommFuture(self._send_obj(obj, len))

    def recv_obj(self, obj: Any = None, len: int | None = None) -> CommFuture:
        """The same as recv_msg()."""
        return CommFuture(self._recv_obj(obj, len))


def get_endpoint(server_ip: bytes | str, server_port: int, max_timeout: float | None = None) -> ucp_py_ep:
    """Connect to a server, and wait until it has answered: weft.TimeoutError after max_timeout seconds, or 10; weft.RefusedError
    where nobody
    listens."""
    ep = ucp_py_ep()
    ep.connect(server_ip, server_port, max_timeout)
    return ep


def destroy_ep(ucp_ep: ucp_py_ep) -> int:
    """Close an endpoint: see ucp_py_ep.close()."""
    if not isinstance(ucp_ep, ucp_py_ep):
        raise TypeError(f"destroy_ep() takes a ucp_py_ep, and not a {type(ucp_ep).__name__}")
    return ucp_ep.close()


def get_obj_from_msg(msg: Any) -> Any:
    """The object of a message that was received."""
    if isinstance(msg, ucp_comm_request):
        msg = msg.result()
    if not isinstance(msg, ucp_msg):
        raise TypeError(f"get_obj_from_msg() takes the ucp_msg that a receive has given, and not a {type(msg).__name__}")
    return msg.get_obj()
