"""Two endpoints tell each other their tags, over the stream of the connection.

Every byte of it comes from the peer: a hash says that it is one of ours. tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import asyncio
import struct
from typing import Any

from ucxx._lib.arr import Array

from .utils import hash64bits

_INFO = struct.Struct("<QQ")  # message tag, and its hash


async def exchange_peer_info(endpoint: Any, msg_tag: int, listener: bool, connect_timeout: float = 5.0) -> dict[str, int]:
    """Tell the peer our tag and learn its own: {"msg_tag": ...}. TimeoutError if it takes longer than `connect_timeout`
    seconds."""
    mine = _INFO.pack(msg_tag, hash64bits("ucxx", msg_tag))
    theirs = bytearray(_INFO.size)
    async with asyncio.timeout(connect_timeout):
        await endpoint.stream_send(Array(mine)).wait()
        await endpoint.stream_recv(Array(theirs)).wait()
    peer_tag, check = _INFO.unpack(theirs)
    if check != hash64bits("ucxx", peer_tag):
        who = "the peer" if listener else "the listener"
        raise RuntimeError(f"{who} did not introduce itself as ucxx does: it speaks another protocol, or is of another version")
    return {"msg_tag": peer_tag, "checksum": check}
