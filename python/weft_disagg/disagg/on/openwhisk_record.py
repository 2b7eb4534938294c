"""What the record of an activation means for a process of a run: GET /namespaces/_/activations/ID, when the activation has ended.

Its `response` has a `status` ("success", "application error", "action developer error", "whisk internal error") and a `result`;
its `logs` are lines with a time and a stream. Nothing in it is believed to be of the right kind.
tests/python/test_on_openwhisk_api.py holds us to it.
"""
from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LOG = re.compile(r"^\d{4}-\d\d-\d\dT\S+\s+(stdout|stderr): ?(.*)$", re.S)
TOO_LONG = re.compile(r"exceeded the allowed length: (\d+) > (\d+) bytes")
LATE = ("exceeded its time limits", "did not end in time: its deadline has passed")


class Outcome:
    """How it went: one of `said` (lines of the agent), `late`, `error` (it would go wrong again), `lost` (its container was)."""

    def __init__(self, said: list[dict[str, Any]] | None = None, late: bool = False, error: str = "", lost: str = "") -> None:
        self.said, self.late, self.error, self.lost = said, late, error, lost


def outcome(record: dict[str, Any], megabytes: int) -> Outcome:
    """Of an activation that did not say how it went by a line; `megabytes` is what its container had."""
    response = record.get("response")
    response = response if isinstance(response, dict) else {}
    status, result = str(response.get("status")), response.get("result")
    error = result.get("error") if isinstance(result, dict) else None
    told = error if isinstance(error, dict) else result
    if isinstance(told, dict) and isinstance(told.get("said"), list):
        return Outcome(said=[one for one in told["said"] if isinstance(one, dict)])
    words = error if isinstance(error, str) else json.dumps(error or result)
    words = words[:500]
    long = TOO_LONG.search(words)
    if long is not None:
        return Outcome(error=f"its result has {long[1]} bytes, and this OpenWhisk takes {long[2]}: what is large belongs in a "
                             "memory element")
    if any(one in words for one in LATE):
        return Outcome(late=True)
    if "exhausted its memory" in words:
        return Outcome(error=f"{words.rstrip('.')} (its container had {megabytes} MB)")
    if status == "whisk internal error" or "exited unexpectedly" in words:
        return Outcome(lost=f"{words.rstrip('.')} ({status})")
    if not error:
        return Outcome(lost="its activation ended, and did not say how it went")
    return Outcome(error=f"its activation failed ({status}): {words}")


def printed(logs: Any) -> Iterator[tuple[int, str]]:
    """The lines of a log: 1 for standard output, 2 for error, and the text."""
    for line in logs if isinstance(logs, list) else ():
        found = LOG.match(str(line))
        stream, text = (found[1], found[2]) if found else ("stderr", str(line))
        yield 2 if stream == "stderr" else 1, text.rstrip("\n")
