"""The exceptions of `ucp`, and which of them an error of Weft is.

Promise: no exception of Weft's reaches a program through `ucx_api`. tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import asyncio

import weft

from ..exceptions import (UCXBaseException, UCXCanceled, UCXCloseError, UCXConfigError, UCXConnectionReset, UCXError,
                          UCXMsgTruncated, UCXNotConnected, UCXUnreachable, UCXWarning, log_errors)

__all__ = ["UCXBaseException", "UCXCanceled", "UCXCloseError", "UCXConfigError", "UCXConnectionReset", "UCXError",
           "UCXMsgTruncated",
           "UCXNotConnected", "UCXUnreachable", "UCXWarning", "log_errors", "translated"]

_CLASSES: tuple[tuple[type[BaseException], type[UCXBaseException]], ...] = (
    (asyncio.CancelledError, UCXCanceled),
    (weft.CancelledError, UCXCanceled),
    (weft.PeerError, UCXConnectionReset),
    (weft.ClosedError, UCXConnectionReset),
    (weft.TruncatedError, UCXMsgTruncated),
    (weft.RefusedError, UCXNotConnected),
    (weft.AuthError, UCXNotConnected),
    (weft.UnreachableError, UCXUnreachable),
    (weft.AddressError, UCXUnreachable),
)


def translated(error: BaseException, name: str | None = None, connecting: bool = False) -> UCXBaseException:
    """The exception of `ucp` for one of Weft; its text begins with what was being done. While connecting, silence is
    unreachable."""
    if isinstance(error, UCXBaseException):
        return error
    text = str(error) or "the operation was cancelled"
    if name:
        text = f"<{name}>: {text}"
    if connecting and isinstance(error, (weft.TimeoutError, weft.PeerError, weft.ClosedError, weft.NotFoundError,
                                         weft.SystemFailureError)):
        made: UCXBaseException = UCXUnreachable(text)
    else:
        made = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), UCXError)(text)
    made.__cause__ = error
    return made
