"""What goes wrong in `ucp`: the exceptions of UCX-Py, by their names and families."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["UCXBaseException", "UCXCanceled", "UCXCloseError", "UCXConfigError", "UCXConnectionReset", "UCXError",
           "UCXMsgTruncated",
           "UCXNotConnected", "UCXUnreachable", "UCXWarning", "log_errors"]

_logger = logging.getLogger("ucx")


class UCXBaseException(Exception):
    """All of them."""


class UCXError(UCXBaseException):
    """What none of the others says."""


class UCXConfigError(UCXError):
    """An option that does not exist, or a value that it cannot have."""


class UCXWarning(UserWarning):
    """Something that works, and not as it should."""


class UCXCloseError(UCXBaseException):
    """The endpoint, listener or worker was closed here before."""


class UCXCanceled(UCXBaseException):
    """The operation was cancelled here, or its endpoint was closed here while it was under way."""


class UCXConnectionReset(UCXBaseException):
    """The peer closed, died, or does not answer any more."""


class UCXMsgTruncated(UCXBaseException):
    """The message has not the length that was asked for."""


class UCXNotConnected(UCXBaseException):
    """The peer refused the connection."""


class UCXUnreachable(UCXBaseException):
    """There is no way to the peer, or nobody answered."""


@contextlib.contextmanager
def log_errors(reraise_exception: bool = False) -> Iterator[None]:
    """Log what is raised inside, and keep it from going further unless `reraise_exception`."""
    try:
        yield
    except BaseException as error:
        _logger.exception(str(error))
        if reraise_exception or not isinstance(error, Exception):  # never swallow Ctrl-C
            raise
