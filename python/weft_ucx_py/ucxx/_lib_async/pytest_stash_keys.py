"""Where a test leaves its time limit for those who ask compute_timeouts(). For pytest; nothing else imports it."""
import pytest

ASYNCIO_PLUGIN_TIMEOUT_STASH_KEY = pytest.StashKey[float]()
