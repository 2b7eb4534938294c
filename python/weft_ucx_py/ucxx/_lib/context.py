"""UCXContext, UCXConfig and UCXAddress: options and features, and the bytes by which a worker is found.

tests/python/test_ucxx.py holds us to it.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from ucp._libs import ucx_api
from ucp._libs.objects import Feature, _numbers
from ucp.exceptions import UCXBaseException

from ..exceptions import UCXInvalidAddrError, made, translated
from .objects import Numbered

if TYPE_CHECKING:
    from .worker import UCXWorker

logger = logging.getLogger("ucx")

_FEATURES = (Feature.TAG, Feature.WAKEUP, Feature.STREAM, Feature.AM, Feature.RMA)


def get_current_options() -> dict[str, str]:
    """The options a context would have if it were made now, by their names without UCX_."""
    try:
        return dict(ucx_api.get_current_options())
    except UCXBaseException as error:
        raise translated(error) from error


def get_ucx_version() -> tuple[int, int, int]:
    """The version of the UCX that Weft has under it; zeros where there is none."""
    return ucx_api.get_ucx_version()


class UCXConfig:
    """The options of UCX, with some of the program's own over them."""

    def __init__(self, user_options: Mapping[str, str] | None = None) -> None:
        self._config = UCXContext(dict(user_options or {})).config

    @property
    def config(self) -> dict[str, str]:
        """All options and their values, by their names without UCX_."""
        return dict(self._config)


class UCXContext(Numbered):
    """Options, and what workers made from it will do."""

    _inner: ucx_api.UCXContext

    def __init__(self, config_dict: Mapping[str, str] | None = None, feature_flags: Iterable[Feature] = _FEATURES) -> None:
        try:
            self._inner = ucx_api.UCXContext(dict(config_dict or {}), tuple(feature_flags))
        except UCXBaseException as error:
            raise translated(error) from error
        self._number = next(_numbers)
        if logger.isEnabledFor(logging.INFO):
            logger.info("UCP initiated using config: ")
            for name, value in self.config.items():
                logger.info("  %s, %s", name, value)

    @property
    def config(self) -> dict[str, str]:
        """All options and their values, by their names without UCX_."""
        return dict(self._inner.get_config())

    @property
    def feature_flags(self) -> int:
        """Its features, as the sum of their numbers."""
        return int(self._inner._values)

    @property
    def cuda_support(self) -> bool:
        """True if memory on a GPU can be sent and received: there is one, and UCX_TLS does not exclude it."""
        return bool(self._inner.cuda_support) and _allows_cuda(self.config["TLS"])

    @property
    def info(self) -> str:
        """What there is to say about it, for people."""
        return str(self._inner.info())


def _allows_cuda(tls: str) -> bool:
    words = [w.strip() for w in tls.split(",") if w.strip()]
    if words and words[0].startswith("^"):
        return not any(w.lstrip("^").startswith(("cuda", "gdr")) for w in words)
    return "all" in words or any(w.startswith(("cuda", "gdr")) for w in words)


class UCXAddress(bytes):
    """The bytes by which a worker is found: they can be compared, hashed, pickled, and sent as they are."""

    def __new__(cls, data: bytes) -> UCXAddress:
        try:
            ucx_api.UCXAddress(data)
        except UCXBaseException as error:
            raise made(UCXInvalidAddrError, str(error)) from error
        self = super().__new__(cls, data)
        self._number = next(_numbers)
        return self

    _number: int

    @classmethod
    def create_from_worker(cls, worker: UCXWorker) -> UCXAddress:
        """That of a worker."""
        return worker.address

    @classmethod
    def create_from_buffer(cls, buf: Any) -> UCXAddress:
        """From bytes that came from another process."""
        try:
            view = memoryview(buf)
        except TypeError:
            raise TypeError(f"an address is made from bytes, and this is {buf!r}") from None
        return cls(bytes(view))

    @property
    def address(self) -> int:
        """Its number: that of no other object of this process, ever."""
        return self._number

    @property
    def ucxx_ptr(self) -> int:
        """The same number."""
        return self._number

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return len(self)

    def tobytes(self) -> bytes:
        """The bytes."""
        return bytes(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, tuple[Any]]:
        return UCXAddress.create_from_buffer, (PickleBuffer(self) if protocol >= 5 else bytes(self),)

    def __repr__(self) -> str:
        return f"<ucxx UCXAddress {self[8:14].hex()}>"
