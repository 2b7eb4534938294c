"""The running loop, and hashes that are the same in every process. Both are those of `ucp`."""
from ucp.utils import get_event_loop, hash64bits

__all__ = ["get_event_loop", "hash64bits"]
