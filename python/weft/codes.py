"""The codes of calls, gRPC's, and an exception for each: what a function raises is what its caller gets.

    raise weft.codes.NotFound("there is no such key")

is the same as raise weft.CallError(weft.codes.NOT_FOUND, "there is no such key"). The caller gets a weft.CallError, whose `code`
tells them apart.
"""
from __future__ import annotations

from ._core import CallError

CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16


class _ByCode(CallError):
    _code = UNKNOWN

    def __init__(self, message: str = "", *, category: int = 0, value: int = 0) -> None:
        super().__init__(self._code, message, category=category, value=value)


class Cancelled(_ByCode):
    """It was given up, by whoever began it or by the function."""
    _code = CANCELLED


class Unknown(_ByCode):
    """Nothing better is known; what a function gives that raised an exception of another kind."""
    _code = UNKNOWN


class InvalidArgument(_ByCode):
    """An argument can never be right, whatever the state of the server."""
    _code = INVALID_ARGUMENT


class DeadlineExceeded(_ByCode):
    """There was not enough time for it."""
    _code = DEADLINE_EXCEEDED


class NotFound(_ByCode):
    """What was asked for is not there."""
    _code = NOT_FOUND


class AlreadyExists(_ByCode):
    """What was to be made is there already."""
    _code = ALREADY_EXISTS


class PermissionDenied(_ByCode):
    """The caller is known, and may not do this."""
    _code = PERMISSION_DENIED


class ResourceExhausted(_ByCode):
    """A limit was reached; later it may work."""
    _code = RESOURCE_EXHAUSTED


class FailedPrecondition(_ByCode):
    """The server is not in the state that it needs, and trying again does not help."""
    _code = FAILED_PRECONDITION


class Aborted(_ByCode):
    """Somebody else was in the way; the caller may try again from the beginning."""
    _code = ABORTED


class OutOfRange(_ByCode):
    """Past the end, or beyond what a number can be."""
    _code = OUT_OF_RANGE


class Unimplemented(_ByCode):
    """The server does not do this."""
    _code = UNIMPLEMENTED


class Internal(_ByCode):
    """Something is broken at the server."""
    _code = INTERNAL


class Unavailable(_ByCode):
    """The server does not answer such calls now; another may."""
    _code = UNAVAILABLE


class DataLoss(_ByCode):
    """Data is lost or corrupt."""
    _code = DATA_LOSS


class Unauthenticated(_ByCode):
    """The server does not know who calls."""
    _code = UNAUTHENTICATED
