"""UCXContext: options and features, from which workers are made. It holds nothing else.

tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import weft

from . import options
from .objects import Feature, UCXObject

if TYPE_CHECKING:
    from .rma import UCXMemoryHandle  # rma imports this file

_FEATURES = (Feature.TAG, Feature.WAKEUP, Feature.STREAM, Feature.AM, Feature.RMA)
SILENCE = 120.0  # a peer that is silent for these seconds is lost; UCX waits as long for one that is stopped or cut off


def get_current_options() -> dict[str, str]:
    """The options a context would have if it were made now, by their names without UCX_."""
    return options.current()


def get_ucx_version() -> tuple[int, int, int]:
    """The version of the UCX that Weft has under it."""
    numbers = [int(n) for n in weft.info().get("ucx_version", "").split(".") if n.isdigit()]
    numbers = (numbers + [0, 0, 0])[:3]
    return numbers[0], numbers[1], numbers[2]


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

    def _need(self, feature: Feature) -> None:
        if not self._values & feature.value:
            raise ValueError(f"UCXContext must be created with `Feature.{feature.name}`")
