"""Why our `ucp` gives something else than UCX-Py at an ending: one reason for each kind of difference.

A difference is what UCX-Py gives and what we give, in the words of the table, and where: the side that sees it, the row of the
table, and the parts of the cell's name. The first reason that fits is the reason. table.py refuses a difference without a reason,
and a reason without a difference.
"""
import re
from typing import NamedTuple


class Reason(NamedTuple):
    """What it fits, as regular expressions of the whole text, and the sentence in the guide."""

    theirs: str
    ours: str
    where: str  # SIDE.ROW.KIND.OP.WHEN.HOW.PROGRESS.ERRORS
    why: str


REASONS = {
    "closed_here": Reason(
        r".*`(Attribute|Assertion)Error`.*", r"`UCXCloseError`", r".*",
        "Better: the endpoint is closed on this side. UCX-Py means to raise `UCXCloseError`, and fails before that."),
    "close_finishes": Reason(
        r"`UCXError`: Endpoint timeout|`True`|returns, and the buffer is not filled|waits", r"waits|`False`|the message",
        r"\w+\.\w+\.tag\.large\.during\.close\..*",
        "Better: `close()` lets a `send()` that has begun finish. It waits until the peer receives the message, and the "
        "peer's endpoint is closed after that."),
    "not_filled": Reason(
        r".*returns, and the buffer is not filled.*", r".*", r".*",
        "Better: the sender is gone, and the bytes never came. UCX-Py's `recv()` returns as if they had come."),
    "abort_cancels": Reason(
        r".*", r"`UCXCanceled`", r"ending\.wait_send\.tag\.large\.during\.abort\..*",
        "Better: `abort()` ends a `send()` that waits, at once. UCX-Py's ends when the peer's end comes, and never without error "
        "handling."),
    "am_recv_later": Reason(
        r"waits", r".*", r"other\.recv\.am\..*\.on",
        "Better: UCX-Py takes an endpoint that has ever received an active message for one that has another."),
    "polling": Reason(
        r"waits", r"`UCXCanceled`", r"other\.wait_recv\..*\.polling\.on",
        "Better: with `blocking_progress_mode=False`, UCX-Py does not end receives that wait."),
    "still_there": Reason(
        r".*", r".*", r"\w+\.\w+\.tag\.large\.during\.(drop|reset)\..*\.off",
        "Better: nothing has ended, since something waits. UCX-Py does not receive a large message in blocking mode "
        "without error handling."),
    "nothing_waits": Reason(
        r"waits", r".*", r"\w+\.\w+\..*\.off",
        "Better: without error handling UCX-Py does not learn that the peer has gone."),
    "close_raises": Reason(
        r"`UCXError`: Endpoint timeout", r"returns", r"other\.close\..*\.off",
        "Better: there is nobody left to tell, and `close()` logs that as a warning."),
    "message_first": Reason(
        r"`UCXError`: Endpoint timeout", r"the message", r"other\.came(_large)?\..*\.close\..*\.off",
        "Better: UCX-Py has received the message, then cannot close as the peer asked, and raises that."),
    "callback": Reason(
        r"not called", r"called", r"other\.callback\..*\.close\..*\.off",
        "Better: the callback is called once, whoever closes."),
    "words": Reason(
        r"`UCXError`: Endpoint timeout", r"`UCXError`: Connection reset by remote peer", r"other\.(send|wait_send)\..*\.off",
        "Only the words differ: Weft knows that the peer closed. UCX-Py does not, without error handling."),
    "am_large": Reason(
        r".*", r".*", r"\w+\.\w+\.am\.large\..*",
        "A large active message waits for the peer's `am_recv()`. UCX-Py's event loop takes it as soon as it comes, "
        "so that `am_send()` returns, and `am_recv()` gives it after the end, too. Do not let both sides send large active "
        "messages before they receive."),
}


def find(theirs, ours, where):
    """The name of the reason, or None."""
    for name, reason in REASONS.items():
        if all(re.fullmatch(pattern, text) for pattern, text in ((reason.theirs, theirs), (reason.ours, ours),
                                                                 (reason.where, ".".join(where)))):
            return name
    return None
