"""UCXContext: options and features, from which workers are made.

Memory may be allocated, and its keys packed, before there is a worker: the context then has a runtime to do so, and the first
worker that is made takes it over.

tests/python/test_ucx_api.py and test_ucx_api_rma.py hold us to it.
"""
from __future__ import annotations

import logging
import os
import secrets
import sys
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import weft
from weft import _core

from ..exceptions import UCXConfigError
from . import options
from .exceptions import translated
from .manual_loop import ManualLoop
from .objects import Feature, UCXObject

if TYPE_CHECKING:
    from .rma import UCXMemoryHandle  # rma imports this file

_FEATURES = (Feature.TAG, Feature.WAKEUP, Feature.STREAM, Feature.AM, Feature.RMA)
SILENCE = 120.0  # a peer that is silent for these seconds is lost; UCX waits as long for one that is stopped or cut off
_HOLD = 24 * 3600.0  # how long a large message may wait for its receive: in effect for ever

_logger = logging.getLogger("ucx")


def get_current_options() -> dict[str, str]:
    """The options a context would have if it were made now, by their names without UCX_."""
    return options.current()


def get_ucx_version() -> tuple[int, int, int]:
    """The version of the UCX that Weft has under it."""
    numbers = [int(n) for n in weft.info().get("ucx_version", "").split(".") if n.isdigit()]
    numbers = (numbers + [0, 0, 0])[:3]
    return numbers[0], numbers[1], numbers[2]


def _name() -> str:
    program = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")[:60]
    return "".join(c if c.isascii() and c.isprintable() and c != " " else "_"
                   for c in program) + f"-{os.getpid()}-{secrets.token_hex(6)}"


class Driven:
    """A runtime of Weft and the loop that it has while nobody else drives it."""

    def __init__(self, context: UCXContext) -> None:
        self.hand, self.pid = ManualLoop(), os.getpid()
        try:
            self.runtime = _core.Runtime(loop=self.hand, name=_name(), transports=context._transports,  # type: ignore[arg-type]
                                         interfaces=context._interfaces, heartbeat=context._heartbeat, am_hold=_HOLD)
        except weft.InvalidError as error:
            raise UCXConfigError(str(error)) from error
        except weft.WeftError as error:
            raise translated(error) from error

    def close(self) -> None:
        """Of one that no worker took over."""
        if self.pid == os.getpid() and not self.runtime.closed:
            try:
                self.runtime._close()
            finally:
                self.hand.close()


class UCXContext(UCXObject):
    """Options, by their names with or without UCX_, over those of the environment; and what workers made from it will do."""

    def __init__(self, config_dict: Mapping[str, str] | None = None, feature_flags: Iterable[Feature] = _FEATURES) -> None:
        super().__init__()
        self._config, given = options.merged(config_dict or {})
        self._features = frozenset(feature_flags)
        for feature in self._features:
            if not isinstance(feature, Feature):
                raise TypeError(f"feature_flags has {feature!r}, which is no Feature")
        self._values = sum(f.value for f in self._features)
        # options that are not given are left to Weft's configuration
        self._transports = options.transports(self._config["TLS"]) if "TLS" in given else None
        devices = self._config["NET_DEVICES"]
        self._interfaces = devices if "NET_DEVICES" in given and devices != "all" else None
        self._heartbeat: float | None = None
        if "KEEPALIVE_INTERVAL" in given:
            interval = options.seconds(self._config["KEEPALIVE_INTERVAL"])
            self._heartbeat = 3600.0 if interval is None else min(max(3 * interval, 0.1), 3600.0)
        elif weft.config().get("WEFT_HEARTBEAT", ("", "default"))[1] == "default":
            self._heartbeat = SILENCE
        backlog = self._config["LISTENER_BACKLOG"]
        self._backlog = int(float(backlog)) if backlog not in ("auto", "inf") else None
        self._spare: Driven | None = None  # made before there was a worker
        _logger.info("UCP initiated using config: ")
        if _logger.isEnabledFor(logging.INFO):
            for name, value in self._config.items():
                _logger.info("  %s: %s", name, value)

    @property
    def cuda_support(self) -> bool:
        """True if memory on a GPU can be sent and received on this machine."""
        return "cuda" in weft.info().get("memory_kinds", "")

    def get_config(self) -> dict[str, str]:
        """All options and their values, by their names without UCX_."""
        self._check()
        return dict(self._config)

    def info(self) -> str:
        """What there is to say about it, for people."""
        self._check()
        facts = weft.info()
        lines = [f"# UCP context {hex(self._number)} on Weft {facts.get('version', '')}",
                 f"# transports: {self._transports or 'all'}, of {facts.get('transports', '')}",
                 f"# memory: {facts.get('memory_kinds', '')}",
                 f"# features: {' '.join(sorted(f.name for f in self._features))}"]
        return "\n".join(lines) + "\n"

    def map(self, mem: Any) -> UCXMemoryHandle:
        """Memory of an object for peers to read and write: see UCXMemoryHandle.map()."""
        from .rma import UCXMemoryHandle
        return UCXMemoryHandle.map(self, mem)

    def alloc(self, size: int) -> UCXMemoryHandle:
        """Fresh memory for peers to read and write: see UCXMemoryHandle.alloc()."""
        from .rma import UCXMemoryHandle
        return UCXMemoryHandle.alloc(self, size)

    def _spared(self) -> Driven:
        """The runtime that the first worker will have."""
        if self._spare is None:
            self._spare = Driven(self)
            self._spare_end = weakref.finalize(self, self._spare.close)
        return self._spare

    def _taken(self) -> Driven:
        """The runtime of a new worker."""
        spare, self._spare = self._spare, None
        if spare is None or spare.pid != os.getpid():
            return Driven(self)
        self._spare_end.detach()
        return spare

    def _close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def _need(self, feature: Feature) -> None:
        if not self._values & feature.value:
            raise ValueError(f"UCXContext must be created with `Feature.{feature.name}`")
