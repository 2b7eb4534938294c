"""Which request means what: the routes of OpenWhisk's runtimes, and Scad's.

    POST /init                        {"value": {"name", "main", "code", "binary", "env"}}
    POST /run                         {"value", "activation_id", "deadline", ..., "transports", ...}
    PUT /action/AID/transport/NAME    {"name", "durl"}, with ?key=... for a transport that this runtime gave one

tests/python/test_openwhisk_hostile.py holds us to it.
"""
from __future__ import annotations

from .web import Refusal, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .runtime import Runtime

INIT, RUN, CONFIG = 48 << 20, 64 << 20, 64 << 10


class Routes:
    """The two questions that a web.Server asks. `runtime` is there before the first of them."""

    runtime: Runtime

    @staticmethod
    def route(request: Request) -> int:
        """How long the body may be."""
        if request.path in ("/init", "/run"):
            wanted, most = "POST", INIT if request.path == "/init" else RUN
        elif request.path.startswith("/action/"):
            transport(request.path)
            wanted, most = "PUT", CONFIG
        else:
            raise Refusal(404, "there is nothing here but POST /init, POST /run and PUT /action/ID/transport/NAME")
        if request.method != wanted:
            raise Refusal(405, f"{request.path.split('/')[1]} is asked by {wanted}", allow=wanted)
        return most

    def handle(self, request: Request) -> tuple[int, object]:
        """The answer."""
        said = request.json()
        if request.path == "/init":
            self.runtime.init(said.get("value"))
            return 200, {"ok": True}
        if request.path == "/run":
            return 200, self.runtime.run(said)
        aid, name = transport(request.path)
        durl = said.get("durl")
        if not isinstance(durl, str) or not durl:
            raise Refusal(400, "the body should be {\"name\": ..., \"durl\": \"NAME;IMPL;...\"}")
        from urllib.parse import parse_qs
        keys = parse_qs(request.query, keep_blank_values=True, max_num_fields=16).get("key")
        return self.runtime.configure(aid, name, durl, keys[0] if keys else None), {"ok": True}


def transport(path: str) -> tuple[str, str]:
    """The activation and the transport that a path names."""
    from urllib.parse import unquote
    parts = path.split("/")
    if len(parts) != 5 or parts[3] != "transport" or not parts[2] or not parts[4]:
        raise Refusal(404, "a transport is at /action/ID/transport/NAME")
    return unquote(parts[2]), unquote(parts[4])
