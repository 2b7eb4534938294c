"""What goes wrong in `ucxx`: an exception for each status of UCX, all of them UCXError, and which of them an error of Weft is.

Texts begin with the words that UCX has for the status, because programs look for them.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import weft
from ucp import exceptions as ucp
from ucp._libs.exceptions import dropped


class UCXError(Exception):
    """All of them."""


class UCXNoMessageError(UCXError):
    """No message is there."""


class UCXNoResourceError(UCXError):
    """Something that is needed is used up."""


class UCXIOError(UCXError):
    """Input or output failed."""


class UCXNoMemoryError(UCXError):
    """There is no memory."""


class UCXInvalidParamError(UCXError):
    """An option or an argument is not valid."""


class UCXUnreachableError(UCXError):
    """There is no way to the peer, or nobody answered."""


class UCXInvalidAddrError(UCXError):
    """The bytes are no address of a worker."""


class UCXNotImplementedError(UCXError):
    """Nobody has made that yet."""


class UCXMessageTruncatedError(UCXError):
    """The message has not the length that was asked for."""


class UCXNoProgressError(UCXError):
    """Nothing moves."""


class UCXBufferTooSmallError(UCXError):
    """The buffer is too small."""


class UCXNoElemError(UCXError):
    """There is no such thing."""


class UCXSomeConnectsFailedError(UCXError):
    """Some connections failed."""


class UCXNoDeviceError(UCXError):
    """There is no such device."""


class UCXBusyError(UCXError):
    """Somebody else uses it: a port, for example."""


class UCXCanceledError(UCXError):
    """The operation was cancelled, or its endpoint ended while it was under way."""


class UCXShmemSegmentError(UCXError):
    """Shared memory failed."""


class UCXAlreadyExistsError(UCXError):
    """It is there already."""


class UCXOutOfRangeError(UCXError):
    """A number is out of its range."""


class UCXTimedOutError(UCXError):
    """The time is over."""


class UCXExceedsLimitError(UCXError):
    """A limit was reached."""


class UCXUnsupportedError(UCXError):
    """This machine or this build cannot do that."""


class UCXRejectedError(UCXError):
    """The peer refused."""


class UCXNotConnectedError(UCXError):
    """There is no connection."""


class UCXConnectionResetError(UCXError):
    """The peer closed, died, or does not answer any more."""


class UCXFirstLinkFailureError(UCXError):
    """A link failed. Weft does not use it."""


class UCXLastLinkFailureError(UCXError):
    """A link failed. Weft does not use it."""


class UCXFirstEndpointFailureError(UCXError):
    """An endpoint failed. Weft does not use it."""


class UCXEndpointTimeoutError(UCXError):
    """The peer did not answer in time."""


class UCXLastEndpointFailureError(UCXError):
    """An endpoint failed. Weft does not use it."""


class UCXCloseError(UCXError):
    """The endpoint, listener or worker was closed here before."""


class UCXConfigError(UCXError):
    """The configuration cannot be read."""


UCXCanceled = UCXCanceledError
UCXMsgTruncated = UCXMessageTruncatedError

# class, the number of the status in UCX, its words
_STATUSES: tuple[tuple[type[UCXError], int, str], ...] = (
    (UCXNoMessageError, -1, "No pending message"), (UCXNoResourceError, -2,
                                                    "No resources are available to initiate the operation"),
    (UCXIOError, -3, "Input/output error"), (UCXNoMemoryError, -4, "Out of memory"), (UCXInvalidParamError, -5,
                                                                                      "Invalid parameter"),
    (UCXUnreachableError, -6, "Destination is unreachable"), (UCXInvalidAddrError, -7, "Address not valid"),
    (UCXNotImplementedError, -8, "Function not implemented"), (UCXMessageTruncatedError, -9, "Message truncated"),
    (UCXNoProgressError, -10, "No progress"), (UCXBufferTooSmallError, -11, "Provided buffer is too small"),
    (UCXNoElemError, -12, "No such element"), (UCXSomeConnectsFailedError, -13,
                                               "Failed to connect some of the requested endpoints"),
    (UCXNoDeviceError, -14, "No such device"), (UCXBusyError, -15, "Device is busy"), (UCXCanceledError, -16, "Request canceled"),
    (UCXShmemSegmentError, -17, "Shared memory error"), (UCXAlreadyExistsError, -18, "Element already exists"),
    (UCXOutOfRangeError, -19, "Index out of range"), (UCXTimedOutError, -20, "Operation timed out"),
    (UCXExceedsLimitError, -21, "User-defined limit was reached"), (UCXUnsupportedError, -22, "Unsupported operation"),
    (UCXRejectedError, -23, "Operation rejected by remote peer"), (UCXNotConnectedError, -24, "Endpoint is not connected"),
    (UCXConnectionResetError, -25, "Connection reset by remote peer"), (UCXFirstLinkFailureError, -40, "First link failure"),
    (UCXLastLinkFailureError, -59, "Last link failure"), (UCXFirstEndpointFailureError, -60, "First endpoint failure"),
    (UCXLastEndpointFailureError, -89, "Last endpoint failure"), (UCXEndpointTimeoutError, -80, "Endpoint timeout"),
)
NUMBERS = {kind: number for kind, number, _ in _STATUSES}
_WORDS = {kind: words for kind, _, words in _STATUSES}
OK, IN_PROGRESS = 0, 1

_OF_UCP: tuple[tuple[type[BaseException], type[UCXError]], ...] = (
    (ucp.UCXCanceled, UCXCanceledError), (ucp.UCXConnectionReset, UCXConnectionResetError),
    (ucp.UCXMsgTruncated, UCXMessageTruncatedError), (ucp.UCXNotConnected, UCXNotConnectedError),
    (ucp.UCXUnreachable, UCXUnreachableError), (ucp.UCXCloseError, UCXCloseError), (ucp.UCXConfigError, UCXInvalidParamError),
)
_OF_WEFT: tuple[tuple[type[BaseException], type[UCXError]], ...] = (
    (weft.NoMemoryError, UCXNoMemoryError), (MemoryError, UCXNoMemoryError), (weft.CancelledError, UCXCanceledError),
    (weft.TruncatedError, UCXMessageTruncatedError), (weft.RefusedError, UCXNotConnectedError), (weft.AuthError,
                                                                                                 UCXRejectedError),
    (weft.RejectedError, UCXRejectedError), (weft.UnreachableError, UCXUnreachableError), (weft.AddressError, UCXBusyError),
    (weft.TimeoutError, UCXTimedOutError), (weft.LimitError, UCXExceedsLimitError), (weft.UnsupportedError, UCXUnsupportedError),
    (weft.InvalidError, UCXInvalidParamError), (weft.PeerError, UCXConnectionResetError), (weft.ClosedError,
                                                                                           UCXConnectionResetError),
)


def made(kind: type[UCXError], text: str) -> UCXError:
    """An exception whose text begins with UCX's words for it."""
    words = _WORDS.get(kind, "")
    return kind(f"{words}: {text}" if words and not text.startswith(words) else text)


def translated(error: BaseException, by_address: bool = False) -> UCXError:
    """The exception of `ucxx` for one of `ucp` or of Weft. `by_address`: of an endpoint that was made from the address of a
    worker, which has no listener to refuse anything: a worker that is not there does not answer."""
    if isinstance(error, UCXError):
        return error
    kind = next((ours for theirs, ours in _OF_UCP if isinstance(error, theirs)), None)
    if kind is None:  # ucp says only UCXError; what Weft said is its cause
        causes = [error, *([error.__cause__] if error.__cause__ is not None else [])]
        kind = next((ours for cause in causes for theirs, ours in _OF_WEFT if isinstance(cause, theirs)), UCXError)
        if any(map(dropped, causes)):
            kind = UCXConnectionResetError
    if kind is UCXError:  # ucp may say it in the words of UCX
        kind = next((ours for ours, _, words in _STATUSES if words in str(error)), kind)
    if by_address and kind in (UCXNotConnectedError, UCXUnreachableError, UCXTimedOutError):
        kind = UCXEndpointTimeoutError
    result = made(kind, str(error) or type(error).__name__)
    result.__cause__ = error
    return result


def status_of(error: BaseException | None) -> int:
    """The number that UCX has for how something ended."""
    return OK if error is None else NUMBERS.get(type(error), -3)  # type: ignore[arg-type]


__all__ = ["UCXAlreadyExistsError", "UCXBufferTooSmallError", "UCXBusyError", "UCXCanceled", "UCXCanceledError", "UCXCloseError",
           "UCXConfigError", "UCXConnectionResetError", "UCXEndpointTimeoutError", "UCXError", "UCXExceedsLimitError",
           "UCXFirstEndpointFailureError", "UCXFirstLinkFailureError", "UCXIOError", "UCXInvalidAddrError",
           "UCXInvalidParamError",
           "UCXLastEndpointFailureError", "UCXLastLinkFailureError", "UCXMessageTruncatedError", "UCXMsgTruncated",
           "UCXNoDeviceError",
           "UCXNoElemError", "UCXNoMemoryError", "UCXNoMessageError", "UCXNoProgressError", "UCXNoResourceError",
           "UCXNotConnectedError", "UCXNotImplementedError", "UCXOutOfRangeError", "UCXRejectedError", "UCXShmemSegmentError",
           "UCXSomeConnectsFailedError", "UCXTimedOutError", "UCXUnreachableError", "UCXUnsupportedError"]
