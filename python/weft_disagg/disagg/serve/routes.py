"""Which request means what: the routes of OpenWhisk's runtimes, and those of Scad's.

    POST /init                        {"value": {"name", "main", "code", "binary", "env"}}
    POST /run                         {"value", "activation_id", "deadline", ..., "transports", ...}
    POST /action/AID                  {"name", "server_url", "transports"}: transports for an activation, which may come later
    POST /action/AID/transport        {"transport": durl}, or {"durl": durl}: one more
    PUT /action/AID/transport/NAME    {"name", "durl"}, with ?key=... for a transport that this runtime gave one
    POST, GET /action/AID/messages    what the transports of an activation have to say: {"ok": true, "messages": {NAME: text}}

tests/python/test_openwhisk_hostile.py and test_scad_openwhisk.py hold us to it.
"""
from __future__ import annotations

from .web import Refusal, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .runtime import Runtime

INIT, RUN, CONFIG = 48 << 20, 64 << 20, 64 << 10
NOTHING = ("there is nothing here but POST /init, POST /run, POST /action/ID, POST /action/ID/transport, PUT "
           "/action/ID/transport/NAME and POST /action/ID/messages")


class Routes:
    """The two questions that a web.Server asks. `runtime` is there before the first of them."""

    runtime: Runtime

    @staticmethod
    def route(request: Request) -> int:
        """How long the body may be."""
        wanted: tuple[str, ...] = ("POST",)
        if request.path in ("/init", "/run"):
            most = INIT if request.path == "/init" else RUN
        elif request.path.startswith("/action/"):
            _, name, what = parts_of(request.path)
            wanted = ("PUT",) if name else ("POST", "GET") if what == "messages" else wanted
            most = RUN if not what else CONFIG
        else:
            raise Refusal(404, NOTHING)
        if request.method not in wanted:
            allowed = " or ".join(wanted)
            raise Refusal(405, f"{request.path.split('/')[1]} is asked by {allowed}", allow=", ".join(wanted))
        return most

    def handle(self, request: Request) -> tuple[int, object]:
        """The answer."""
        if request.path in ("/init", "/run"):
            said = request.json()
            if request.path == "/run":
                return 200, self.runtime.run(said)
            self.runtime.init(said.get("value"))
            return 200, {"ok": True}
        aid, name, what = parts_of(request.path)
        if what == "messages":
            return 200, {"ok": True, "messages": self.runtime.messages(aid)}
        said = request.json()
        if not what:
            return self.runtime.add(aid, durls(said.get("transports")), again=True), {"ok": True}
        if not name:
            return self.runtime.add(aid, [durl_in(said, "transport")], again=False), {"ok": True}
        if said.get("name") not in (None, name):
            raise Refusal(400, f"the path names the transport {name[:80]!r}, and the body {str(said['name'])[:80]!r}")
        from urllib.parse import parse_qs
        keys = parse_qs(request.query, keep_blank_values=True, max_num_fields=16).get("key")
        return self.runtime.configure(aid, name, durl_in(said, "durl"), keys[0] if keys else None), {"ok": True}


def durl_in(said: dict[str, Any], key: str) -> str:
    """The durl in a body: Scad's invoker calls it `transport` where its launcher reads `durl`."""
    durl = said.get(key) if said.get(key) is not None else said.get("durl")
    if not isinstance(durl, str) or not durl:
        raise Refusal(400, f"the body should be {{\"{key}\": \"NAME;IMPL;...\"}}")
    return durl


def durls(value: object) -> list[str]:
    """A list of durls, which may be missing."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found) or len(found) > 1024:
        raise Refusal(400, "transports should be a list of durls")
    return found


def parts_of(path: str) -> tuple[str, str, str]:
    """The activation that a path names, the transport, and "transport", "messages" or "" for neither."""
    from urllib.parse import unquote
    parts = path.split("/")[2:]
    what = parts[1] if len(parts) > 1 else ""
    most = {"": 1, "messages": 2, "transport": 3}.get(what, 0)
    if len(parts) > most or not all(parts):
        raise Refusal(404, NOTHING)
    return unquote(parts[0]), unquote(parts[2]) if len(parts) > 2 else "", what
