"""What a program sees when a connection of ucp ends, in the combinations that test_ucp_endings.py leaves out: without error
handling, and in the other progress mode."""
# ctest: long timeout=3600
import pytest

from endings import run as endings
from test_ucp_endings import again


@pytest.mark.parametrize("progress,errors", [("blocking", "off"), ("polling", "on"), ("polling", "off")])
@pytest.mark.parametrize("how", endings.HOWS)
@pytest.mark.parametrize("kind", endings.KINDS)
def test_an_ending_is_seen_as_it_was(kind, how, progress, errors):
    again(kind, how, progress, errors)
