"""The exceptions of `ucp`, and which of them an error of Weft is.

UCX has words for what becomes of a connection, and programs look for them: RESET if the peer closed it, TIMEOUT if the peer is
gone and did not say so, UNREACHABLE if there never was one. An operation that fails with one of them is a UCXError;
UCXConnectionReset is what a later operation of the endpoint gets.

A large active message waits at its sender until the peer receives it. A peer that closes before that drops it: RESET, too. A peer
whose allocator fails says so: NO_PLACE.

Promise: no exception of Weft's reaches a program through `ucx_api`. tests/python/test_ucx_api.py and test_ucx_ends.py hold us
to it.
"""
from __future__ import annotations

import asyncio

import weft

from ..exceptions import (UCXBaseException, UCXCanceled, UCXCloseError, UCXConfigError, UCXConnectionReset, UCXError,
                          UCXMsgTruncated, UCXNotConnected, UCXUnreachable, UCXWarning, log_errors)

__all__ = ["NO_PLACE", "RESET", "TIMEOUT", "UNREACHABLE", "UCXBaseException", "UCXCanceled", "UCXCloseError", "UCXConfigError",
           "UCXConnectionReset", "UCXError", "UCXMsgTruncated", "UCXNotConnected", "UCXUnreachable", "UCXWarning", "dropped",
           "log_errors", "translated"]

RESET, TIMEOUT, UNREACHABLE = "Connection reset by remote peer", "Endpoint timeout", "Destination is unreachable"
NO_PLACE = 1  # why a peer of ours rejects an active message
_NOT_TAKEN = 0xFFFF_FFFF  # WEFT_AM_NOT_TAKEN: it let go of the message before it received it

_CLASSES: tuple[tuple[type[BaseException], type[UCXBaseException]], ...] = (
    (asyncio.CancelledError, UCXCanceled),
    (weft.CancelledError, UCXCanceled),
    (weft.TruncatedError, UCXMsgTruncated),
    (weft.RefusedError, UCXNotConnected),
    (weft.AuthError, UCXNotConnected),
    (weft.UnreachableError, UCXUnreachable),
    (weft.AddressError, UCXUnreachable),
)

# a worker's address leads nowhere any more; which of them it is depends on how far connecting came
_GONE = (weft.PeerError, weft.ClosedError, weft.RefusedError, weft.UnreachableError, weft.AddressError, weft.TimeoutError)


def dropped(error: BaseException | None) -> bool:
    """True if this is what a send gets whose peer closed before it received the message."""
    return isinstance(error, weft.RejectedError) and getattr(error, "reason", 0) == _NOT_TAKEN


def _rejected(reason: int) -> str:
    if reason == NO_PLACE:
        return "the peer did not receive the message: its allocator failed, see register_am_allocator() there"
    return f"the peer rejected the message, with the reason {reason}"


def translated(error: BaseException, name: str | None = None, connecting: bool = False, by_address: bool = False
               ) -> UCXBaseException:
    """The exception of `ucp` for one of Weft; its text begins with what was being done. While connecting, silence is
    unreachable. by_address: the peer was connected to by its worker's address, for which UCX has fewer words."""
    if isinstance(error, UCXBaseException):
        return error
    text = str(error) or "the operation was cancelled"
    kind: type[UCXBaseException] | None = None
    if dropped(error):
        kind = UCXError
        text = f"{TIMEOUT if by_address else RESET} (the peer closed before it received the message)"
    elif isinstance(error, weft.RejectedError):
        text = _rejected(getattr(error, "reason", 0))
    elif by_address and isinstance(error, _GONE):
        kind = UCXError
        word = TIMEOUT if isinstance(error, (weft.PeerError, weft.ClosedError)) else f"{UNREACHABLE}, {TIMEOUT}"
        text = f"{word} (the worker with this address is gone: {text})"
    elif connecting and isinstance(error, (weft.TimeoutError, weft.PeerError, weft.ClosedError, weft.NotFoundError,
                                           weft.SystemFailureError)):
        kind = UCXUnreachable
    elif isinstance(error, (weft.PeerError, weft.ClosedError)):
        kind = UCXError
        text = f"{RESET if isinstance(error, weft.ClosedError) else TIMEOUT} ({text})"
    if kind is None:
        kind = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), UCXError)
    made = kind(f"<{name}>: {text}" if name else text)
    made.__cause__ = error
    return made
