"""The invoker of Scad's OpenWhisk, which an activation reaches at __OW_INVOKER_API: it lets go of elements, and starts memory.

    release     DELETE $__OW_INVOKER_API/activation/AID/transport/NAME
    invoke      POST to the same path: {"swap": {"actionName", "functionActivationId", "appActivationId", "mem"}}

The transport is added before the POST, and waits: the invoker says where the element is by PUT /action/AID/transport/NAME. Where
OpenWhisk's REST API can be used (__OW_API_HOST and __OW_API_KEY) elements are started by that, and this is for release alone:
Scad's own memory pool is reached by libd's RDMA messages, which Weft does not speak.

Promise: every call ends within its time and by the activation's deadline. tests/python/test_scad_invoker.py holds us to it.
"""
from __future__ import annotations

import json
import os

from .runtime import Backend, InvokeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .action import LibdAction

__all__ = ["Invoker"]

TIMEOUT = 20.0
GONE = (404, 410)  # it does not know the element: there is nothing to let go of


def place(text: str) -> tuple[bool, str, int, str]:
    """What __OW_INVOKER_API says: TLS or not (https:// says so), host, port, and what comes before /activation."""
    from urllib.parse import urlsplit
    try:
        parts = urlsplit(text if "://" in text else "http://" + text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if (not host or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query or parts.fragment
            or not all("!" <= c <= "~" for c in text)):
        raise InvokeError("__OW_INVOKER_API is not what it should be: http:// and a host, with a port if need be")
    tls = parts.scheme == "https"
    return tls, host, port or (443 if tls else 80), parts.path.rstrip("/")


class Invoker(Backend):
    """Asks the invoker that __OW_INVOKER_API names. `timeout` bounds each request, in seconds; so does the activation's
    deadline."""

    def __init__(self, action: LibdAction, timeout: float = TIMEOUT) -> None:
        from ._http import Server
        tls, host, port, self._path = place(os.environ.get("__OW_INVOKER_API", ""))
        self._action, self._server, self.timeout = action, Server(host, port, tls), timeout

    def invoke(self, template: str, trans: str, props: dict[str, Any]) -> str | None:
        """Start memory like `template`; None: the invoker says later where it is. `props` has to say its size."""
        from ._props import check, size_of
        from .openwhisk import add_waiting
        check(props)
        size = size_of(props)
        if size is None:
            raise InvokeError('the invoker has to be told how large the memory shall be: props {"size": "64 MB"}')
        if props.get("params") is not None or props.get("type") == "compute":
            raise InvokeError("the invoker starts memory only: elements that compute are started by OpenWhisk's REST API, which "
                              "needs __OW_API_HOST and __OW_API_KEY")
        name = os.environ.get("__OW_ACTION_NAME", "").rpartition("/")
        body = {"swap": {"actionName": f"{name[0]}{name[1]}{template}",
                         "functionActivationId": os.environ.get("__OW_FUNCTION_ACTIVATION_ID", ""),
                         "appActivationId": os.environ.get("__OW_APP_ACTIVATION_ID", ""), "mem": f"{size} B"}}
        added = add_waiting(self._action, trans, "rdma_uverbs_proxy")
        self._action._keyless.add(trans)
        try:
            status = self._ask("POST", trans, body, f"start {template}")
            if not 200 <= status < 300:
                raise InvokeError(f"the invoker at {self._server} refused to start {template} ({status})")
        except BaseException:
            if added:
                self._action.release_transport(trans)
            raise
        return None

    def release(self, name: str) -> None:
        """Let go of an element. InvokeError: the invoker could not be told."""
        status = self._ask("DELETE", name, None, f"release {name}")
        if not 200 <= status < 300 and status not in GONE:
            raise InvokeError(f"the invoker at {self._server} refused to release {name} ({status})")

    def _ask(self, method: str, name: str, body: Any, what: str) -> int:
        from urllib.parse import quote

        from ._http import Problem, Secret
        from .openwhisk import deadline
        aid = self._action.aid or os.environ.get("__OW_ACTIVATION_ID", "")
        if not aid:
            raise InvokeError(f"the invoker cannot be asked to {what}: this action has no id of an activation")
        path = f"{self._path}/activation/{quote(aid, safe='')}/transport/{quote(name, safe='')}"
        try:
            return self._server.ask(method, path, None if body is None else Secret(json.dumps(body)), None,
                                    deadline(self.timeout)).status
        except Problem as problem:
            raise InvokeError(f"the invoker cannot be asked to {what}: {problem}") from None
