"""The backend of the local launcher: `weft run` listens on a Unix socket that WEFT_LAUNCHER names.

One line of JSON each way: docs/design/launcher.md. What comes back is checked here, and its length and the time it takes are
bounded. tests/python/test_disagg_runtime.py holds us to it.
"""
from __future__ import annotations

import json
import socket
import time

from .runtime import Backend, InvokeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Launcher"]

LINE_MOST = 1 << 16


class Launcher(Backend):
    """Asks the launcher that started this element. `timeout` bounds each request, in seconds."""

    def __init__(self, path: str, timeout: float = 60.0) -> None:
        self.path = path
        self.timeout = timeout

    def invoke(self, template: str, trans: str, props: dict[str, Any]) -> str | None:
        """Start an element; the durl of its memory, or None for one that computes."""
        from ._props import check
        check(props)
        durl = self._ask({"do": "invoke", "template": template, "trans": trans, "props": props}).get("durl")
        if durl is not None and not isinstance(durl, str):
            raise InvokeError("the launcher's answer has a durl that is no text: is it of another version?")
        return durl

    def release(self, name: str) -> None:
        """Let go of an element."""
        self._ask({"do": "release", "name": name})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            line = json.dumps(question, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvokeError(f"props can be sent to the launcher as JSON only: {error}") from None
        try:
            answer = json.loads(self._exchange(line.encode() + b"\n"))
        except (ValueError, RecursionError):
            raise InvokeError("the launcher's answer is no JSON: is it of another version?") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise InvokeError("the launcher's answer does not say whether it did that: is it of another version?")
        if not answer["ok"]:
            raise InvokeError(str(answer.get("error") or "the launcher refused, and did not say why"))
        return answer

    def _exchange(self, line: bytes) -> bytes:
        until, got = time.monotonic() + self.timeout, b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.settimeout(self.timeout)
                s.connect("\0" + self.path[1:] if self.path.startswith("@") else self.path)
                s.sendall(line)
                while b"\n" not in got:
                    s.settimeout(max(until - time.monotonic(), 0.001))
                    more = s.recv(LINE_MOST)
                    if not more:
                        raise InvokeError("the launcher hung up without an answer")
                    got += more
                    if len(got) > LINE_MOST:
                        raise InvokeError("the launcher's answer is longer than any should be")
        except TimeoutError:
            raise InvokeError(f"the launcher did not answer within {self.timeout:g} s") from None
        except OSError as error:
            raise InvokeError(f"the launcher cannot be asked ({error}): is `weft run` still there?") from None
        return got.partition(b"\n")[0]
