"""Endpoints count what they have received, so that they can close after so many messages: those of `ucp` and of `ucxx`.

tests/python/test_ucp_close.py and test_ucxx.py hold us to it.
"""
from __future__ import annotations

from .exceptions import UCXError


class Counting:
    """An endpoint that counts."""

    _finished_recv_count: int
    _close_after_n_recv: int | None
    _refusal: type[Exception] = UCXError

    def abort(self) -> None:
        """Close it now."""
        raise NotImplementedError

    def close_after_n_recv(self, n: int, count_from_ep_creation: bool = False) -> None:
        """Close it, as abort() does, once `n` more messages are received: or `n` in all, if they are counted from its
        creation."""
        if not count_from_ep_creation:
            n += self._finished_recv_count
        if self._close_after_n_recv is not None:
            raise self._refusal(f"close_after_n_recv has already been set to: {self._close_after_n_recv} (abs)")
        if n < self._finished_recv_count:
            raise self._refusal(f"`n` cannot be less than current recv_count: {n} (abs) < {self._finished_recv_count} (abs)")
        if n == self._finished_recv_count:
            self.abort()
        else:
            self._close_after_n_recv = n

    def _received(self) -> None:
        """One more."""
        self._finished_recv_count += 1
        if self._close_after_n_recv is not None and self._finished_recv_count >= self._close_after_n_recv:
            self.abort()
