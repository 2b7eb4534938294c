"""Remote memory: UCXMemoryHandle exposes it, a PackedRemoteKey travels to whoever may use it, UCXRkey and RemoteMemory are what
they use.

Memory belongs to a context, and is exposed by each of its workers: a packed remote key has a region key for every worker there
is when it is packed, or for the first that will be if there is none, with where the memory begins. Memory of no bytes has a key
that names nothing. The region keys are Weft's: nobody else can make one, and every access is checked against what it names.
Addresses are the owner's, as in UCX, and an access outside of the memory is an error.

A key is unpacked without waiting; what is posted before the owner has answered waits for that. An access that is complete has
happened: after put_nb() the bytes are in the owner's memory, after get_nb() in ours; flush() of the endpoint or the worker tells
when all are.

Packed keys come from other processes: they are checked before they are one. tests/python/test_ucx_api_rma.py holds us to it.
"""
from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import weft
from weft import _core

from ..exceptions import UCXBaseException, UCXCanceled, UCXCloseError, UCXError
from .arr import Array, asarray
from .context import UCXContext
from .exceptions import translated
from .objects import Callback, Feature, UCXObject
from .request import UCXRequest, failure

if TYPE_CHECKING:
    from .endpoint import UCXEndpoint
    from .worker import UCXWorker

_HEAD = struct.Struct("<4sHHQQ")  # magic, version, number of region keys; address and length of the memory
_ENTRY = struct.Struct("<HH")     # lengths of the worker's name and of its region key
_MAGIC, _VERSION, _MOST = b"WFRK", 1, 1 << 16

Args = tuple[Any, ...] | None
Kwargs = dict[str, Any] | None


class UCXMemoryHandle(UCXObject):
    """Memory that peers can read and write, if they have its packed key. Made by alloc() or map()."""

    def __init__(self, context: UCXContext, memory: Array | None, size: int) -> None:
        super().__init__()
        context._check()
        context._need(Feature.RMA)
        self._context = context
        self._regions: dict[_core.Runtime, weft.Region] = {}
        if memory is not None:
            self._array: Array = memory
            if not self._array.contiguous:
                raise ValueError("the memory is not contiguous")
        else:
            runtime = _runtimes_of(context)[0]
            self._regions[runtime] = self._exposed(runtime, size)
            self._array = Array(self._regions[runtime])
        context._children.add(self)

    @classmethod
    def alloc(cls, context: UCXContext, size: int) -> UCXMemoryHandle:
        """Fresh memory, zeroed. Peers of the same user on the same host map it."""
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"the size is {size!r}, which is not a number of bytes")
        return cls(context, None if size else Array(bytearray()), size)

    @classmethod
    def map(cls, context: UCXContext, mem: Any) -> UCXMemoryHandle:
        """Memory of an object, held until the handle is closed. Of what is read-only, peers only get to read. It may have no
        bytes."""
        return cls(context, asarray(mem), 0)

    @property
    def mem_handle(self) -> int:
        """Its number."""
        return self.handle

    @property
    def address(self) -> int:
        """Where it begins, in this process."""
        self._check()
        return self._array.ptr

    @property
    def length(self) -> int:
        """How many bytes there are."""
        self._check()
        return self._array.nbytes

    @property
    def memory(self) -> Any:
        """The memory itself, as something with the buffer protocol."""
        self._check()
        return self._array._exposed

    def pack_rkey(self) -> PackedRemoteKey:
        """What another process needs to use it, over an endpoint to any worker that this context has now; if it has none, to the
        first that it will have."""
        return PackedRemoteKey.from_mem_handle(self)

    def _exposed(self, runtime: _core.Runtime, memory: Any) -> weft.Region:
        try:
            if isinstance(memory, int):
                return runtime._region(memory)  # type: ignore[no-any-return]
            return runtime._region(memory, rights="r" if self._array.readonly else "rw")  # type: ignore[no-any-return]
        except weft.WeftError as error:
            raise translated(error, "map memory") from error

    def _close(self) -> None:
        regions, self._regions = self._regions, {}
        for worker in _workers_of(self._context):
            region = regions.pop(worker._runtime, None)
            if region is not None and not worker._runtime.closed:
                try:
                    worker._leave(region.free())
                except weft.WeftError:
                    pass  # its runtime has already freed it
        for runtime, region in regions.items():  # one that no worker has taken over, or of a worker that is closed
            if not runtime.closed:
                region.free()


def _workers_of(context: UCXContext) -> list[UCXWorker]:
    from .worker import UCXWorker
    return sorted((w for w in context._children if isinstance(w, UCXWorker) and w._open), key=lambda w: w._number)


def _runtimes_of(context: UCXContext) -> list[_core.Runtime]:
    """Those of the workers that there are, or that of the first that will be."""
    workers = _workers_of(context)
    for worker in workers:
        worker._ready()
    return [worker._runtime for worker in workers] or [context._spared().runtime]


class PackedRemoteKey(bytes):
    """The key to memory of another process, as bytes that can be sent to it, compared, hashed and pickled."""

    def __new__(cls, data: bytes) -> PackedRemoteKey:
        made = super().__new__(cls, data)
        made._read()  # raises if it is not valid
        return made

    @classmethod
    def from_buffer(cls, buffer: Any) -> PackedRemoteKey:
        """From bytes that came from another process."""
        try:
            view = memoryview(getattr(buffer, "_exposed", buffer))
        except TypeError:
            raise TypeError(f"a packed key is made from bytes, and this is {buffer!r}") from None
        if view.nbytes > _MOST:
            raise UCXError(f"{view.nbytes} bytes are no packed key: give what UCXMemoryHandle.pack_rkey() gave")
        return cls(bytes(view))

    @classmethod
    def from_mem_handle(cls, mem: UCXMemoryHandle) -> PackedRemoteKey:
        """That of memory of ours."""
        mem._check()
        runtimes = _runtimes_of(mem._context) if mem.length else []
        parts = [_HEAD.pack(_MAGIC, _VERSION, len(runtimes), mem.address, mem.length)]
        for runtime in runtimes:
            if runtime not in mem._regions:
                mem._regions[runtime] = mem._exposed(runtime, mem._array._exposed)
            name, key = runtime.name.encode(), mem._regions[runtime].key()
            parts += [_ENTRY.pack(len(name), len(key)), name, key]
        return cls(b"".join(parts))

    @property
    def key(self) -> bytes:
        """The bytes."""
        return bytes(self)

    @property
    def length(self) -> int:
        """How many bytes the key has."""
        return len(self)

    def _read(self) -> tuple[int, int, dict[str, bytes]]:
        """Where the memory begins, how long it is, and the region key of each worker by the worker's name."""
        wrong = UCXError("these bytes are no packed key, or not the whole of it: give what UCXMemoryHandle.pack_rkey() gave")
        if not _HEAD.size <= len(self) <= _MOST:
            raise wrong
        magic, version, count, base, size = _HEAD.unpack_from(self)
        if magic != _MAGIC or version != _VERSION or bool(count) != bool(size) or base + size > 1 << 64:
            raise wrong
        keys, at = {}, _HEAD.size
        for _ in range(count):
            if len(self) - at < _ENTRY.size:
                raise wrong
            n, m = _ENTRY.unpack_from(self, at)
            at += _ENTRY.size
            if len(self) - at < n + m:
                raise wrong
            keys[self[at:at + n].decode("utf-8", "replace")] = bytes(self[at + n:at + n + m])
            at += n + m
        if at != len(self):
            raise wrong
        return base, size, keys

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return PackedRemoteKey.from_buffer, (bytes(self),)

    def __repr__(self) -> str:
        return f"<ucp PackedRemoteKey of {len(self)} bytes>"


class UCXRkey(UCXObject):
    """The key to memory at the other end of an endpoint. What is done with it before the owner has answered waits."""

    def __init__(self, ep: UCXEndpoint, rkey: PackedRemoteKey) -> None:
        super().__init__()
        ep._usable()
        ep._worker._context._need(Feature.RMA)
        self._base, self._length, self._region_keys = PackedRemoteKey.from_buffer(rkey)._read()
        self._ep = ep
        self._remote: weft.Remote | None = None
        self._why: UCXBaseException | None = None
        self._waiting: list[_Access] = []
        ep._rkeys.add(self)
        ref = weakref.ref(self)
        if ep._connecting is not None and not ep._connecting.done():
            ep._connecting.add_done_callback(lambda _: _attach(ref))
        else:
            self._attach()

    @property
    def ep(self) -> UCXEndpoint:
        """The endpoint it was unpacked for."""
        return self._ep

    def _attach(self) -> None:
        if not self._open:
            return
        if self._ep._lost_to() is not None or not self._ep._open:
            self._failed(self._ep._status or UCXCloseError("the endpoint is closed"))
            return
        if not self._region_keys:
            return  # memory of no bytes: nobody has to be asked
        try:
            # the key of the worker at the other end; with only one region key, that one
            key = self._region_keys.get(self._ep._endpoint.info["peer_name"])
            if key is None:
                if len(self._region_keys) > 1:
                    self._failed(UCXError("the key is of memory of other workers than the one at the other end of this endpoint"))
                    return
                key = next(iter(self._region_keys.values()))
            op = self._ep._endpoint.attach(key)
        except weft.WeftError as error:
            self._failed(translated(error, "unpack_rkey"))
            return
        if op.done():
            self._attached(op)
        else:
            ref = weakref.ref(self)
            op.add_done_callback(lambda done: _attached(ref, done))

    def _attached(self, op: weft.Op[weft.Remote]) -> None:
        error = failure(op, "unpack_rkey")
        if error is not None:
            self._failed(error)
            return
        remote = op.result()
        if not self._open:
            remote.drop()
            return
        self._remote = remote
        waiting, self._waiting = self._waiting, []
        for access in waiting:
            access._begin(remote)

    def _failed(self, why: UCXBaseException) -> None:
        self._why = why
        waiting, self._waiting = self._waiting, []
        for access in waiting:
            access._finish(why)

    def _fence(self) -> None:
        if self._remote is not None:
            try:
                self._remote.fence()
            except weft.WeftError:
                pass  # it is gone, and nothing more is posted on it

    def _close(self) -> None:
        if not self._ep._worker._runtime.closed and self._remote is not None:
            self._remote.drop()
        self._remote = None
        self._failed(UCXCanceled("the remote key was closed"))


# An endpoint holds the functions that it calls after it has connected. They must not hold the keys.

def _attach(ref: weakref.ref[UCXRkey]) -> None:
    rkey = ref()
    if rkey is not None:
        rkey._attach()


def _attached(ref: weakref.ref[UCXRkey], op: weft.Op[weft.Remote]) -> None:
    rkey = ref()
    if rkey is not None:
        rkey._attached(op)
    elif op.exception() is None:
        op.result().drop()


class _Access(UCXRequest):
    """A read or a write, perhaps one that waits for its key."""

    __slots__ = ("_post", "_rkey")

    _rkey: UCXRkey
    _post: Callable[[weft.Remote], weft.Op[Any]]

    def _end(self, why: str) -> bool:
        if self not in self._rkey._waiting:
            return super()._end(why)
        self._rkey._waiting.remove(self)
        self._finish(UCXCanceled(f"<{self._name}>: {why}"))
        return True

    def _begin(self, remote: weft.Remote) -> None:
        try:
            op = self._post(remote)
        except weft.WeftError as error:
            self._finish(translated(error, self._name))
            return
        if op.done():
            self._finish(failure(op, self._name))
        else:
            self._follow(op)


def _access(name: str, buffer: Any, nbytes: int, remote_addr: int, rkey: UCXRkey, cb_func: Callback | None, cb_args: Args,
            cb_kwargs: Kwargs) -> UCXRequest | None:
    if not isinstance(rkey, UCXRkey):
        raise TypeError(f"{rkey!r} is no UCXRkey: unpack one with UCXEndpoint.unpack_rkey()")
    rkey._check()
    ep = rkey._ep
    ep._usable()
    if rkey._why is not None:
        raise rkey._why
    reading = name.startswith("get")
    memory = asarray(buffer)._memory(nbytes, reading)
    offset = remote_addr - rkey._base
    if not 0 <= offset <= rkey._length - nbytes:
        raise UCXError(f"<{name}>: {nbytes} bytes at {remote_addr:#x} are not inside of the {rkey._length} at {rkey._base:#x}")
    if not nbytes:
        return None

    def post(remote: weft.Remote) -> weft.Op[Any]:
        return remote.read_into(memory, offset) if reading else remote.write(memory, offset)
    if rkey._remote is not None:
        try:
            op = post(rkey._remote)
        except weft.WeftError as error:
            raise translated(error, name) from error
        if op.done():
            wrong = failure(op, name)
            if wrong is not None:
                raise wrong
            return None
        return UCXRequest(ep._worker, ep, cb_func, cb_args, cb_kwargs, name, True)._follow(op)
    request = _Access(ep._worker, ep, cb_func, cb_args, cb_kwargs, name, True)
    request._rkey, request._post = rkey, post
    rkey._waiting.append(request)
    return request


def put_nb(buffer: Any, nbytes: int, remote_addr: int, rkey: UCXRkey, cb_func: Callback | None, cb_args: Args = None,
           cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Write the first `nbytes` of a buffer to an address of the owner's. Complete when they are there."""
    return _access(name or "put_nb", buffer, nbytes, remote_addr, rkey, cb_func, cb_args, cb_kwargs)


def get_nb(buffer: Any, nbytes: int, remote_addr: int, rkey: UCXRkey, cb_func: Callback | None, cb_args: Args = None,
           cb_kwargs: Kwargs = None, name: str | None = None) -> UCXRequest | None:
    """Read `nbytes` from an address of the owner's into a buffer. Complete when they are here."""
    return _access(name or "get_nb", buffer, nbytes, remote_addr, rkey, cb_func, cb_args, cb_kwargs)


def put_nbi(buffer: Any, nbytes: int, remote_addr: int, rkey: UCXRkey) -> bool:
    """Write, and hear of it by a flush. True if it is complete. What goes wrong later is logged."""
    return _access("put_nbi", buffer, nbytes, remote_addr, rkey, _logged, ("put_nbi",), None) is None


def get_nbi(buffer: Any, nbytes: int, remote_addr: int, rkey: UCXRkey) -> bool:
    """Read, and hear of it by a flush. True if it is complete. What goes wrong later is logged."""
    return _access("get_nbi", buffer, nbytes, remote_addr, rkey, _logged, ("get_nbi",), None) is None


def _logged(request: UCXRequest, error: UCXBaseException | None, name: str) -> None:
    if error is not None:
        import logging
        logging.getLogger("ucx").error("%s failed: %s", name, error)
