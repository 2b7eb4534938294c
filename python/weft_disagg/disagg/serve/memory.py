"""An activation of a memory element: some memory that is served while it has users, and for a while before and after.

Whoever invoked it learns its durl by a PUT to the URL that came in the parameters:

    "__weft": {"name": "more", "configure": "http://10.0.0.5:8080/action/AID/transport/more?key=...",
               "size": 1048576, "grace": 10, "patience": 60}

It ends when it has had users and has none for `grace` seconds, when nobody came for `patience` seconds, or with the activation's
time; the result says which. With a server's durl among its transports (Scad's controller gives it one) it serves that, until
it is told to end.

Promise: memory is zero at first and given back in the end; the durl goes to that one URL. tests/python/test_openwhisk_memory.py
holds us to it.
"""
from __future__ import annotations

import json
import os
import socket
import time

from .. import _size
from .._lines import Refused
from .._process import runtime
from .._words import meant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..action import LibdAction

GRACE, PATIENCE, LOOK = 10.0, 60.0, 0.05
TELLING, ONE_TRY = 20.0, 5.0
AGAIN = (404, 408, 409, 429)  # the runtime may not be ready yet; the same for failures (5xx)
MISSED = 3.0  # after these seconds a missing transport stays missing: released, or its activation is over
LISTEN = "tcp://0.0.0.0:0"
ASKED = ("name", "configure", "size", "grace", "patience", "function_activation_id", "app_activation_id")


def serve(action: LibdAction, element: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """All of it; what the activation's result is."""
    if said.get("transports"):
        if not any(ttype == "rdma_server" for ttype in action._types.values()):
            raise Refused("a memory element was given transports, and none of them is a server "
                          "(NAME;rdma_tcp_server;size,...;): it would serve nothing")
        return serve_transports(action, element["name"])
    asked = said["kw"].get("weft") or {}
    for word in asked:
        if word not in ASKED:
            raise Refused(f"\"__weft\" has {word!r}, which is none of {', '.join(ASKED)}{meant(word, ASKED)}")
    name, url = asked.get("name") or element["name"], asked.get("configure")
    if not isinstance(name, str) or not isinstance(url, str):
        raise Refused("a memory element has to be told where its durl goes: the parameter \"__weft\": {\"name\": ..., "
                      "\"configure\": URL}, "
                      "which action.runtime.invoke() gives it")
    target = parts_of(url)
    size, grace, patience = wanted(asked, "size", element["size"]), seconds(asked, "grace", GRACE), seconds(asked, "patience",
                                                                                                            PATIENCE)
    from weft import _core
    made: Any = _core.MemoryElement(runtime(), name, size, uri=os.environ.get("WEFT_ELEMENT_URI") or LISTEN,
                                    spare=element.get("spare", 0))
    try:
        left = TELLING if said.get("deadline") is None else min(TELLING, 0.8 * (said["deadline"] / 1000 - time.time()))
        tell(action, target, name, reachable(made.durl, str(said.get("address", ""))), left)
        why = until_unused(action, made, grace, patience)
        return {"name": name, "ended": why, "stats": made.stats()}
    finally:
        made.close()


def serve_transports(action: LibdAction, name: str) -> dict[str, Any]:
    """The memory that /run itself describes."""
    assert action.cv is not None
    with action.cv:
        action.cv.wait_for(lambda: action.terminated)
    return {"name": name, "ended": "told to", "stats": {}}


def wanted(asked: dict[str, Any], key: str, default: int) -> int:
    """A number of bytes."""
    value = asked.get(key, default)
    try:
        return _size.of(value)
    except ValueError:
        raise Refused(f"{key} of \"__weft\" is {json.dumps(value)[:40]}, which is not a number of bytes") from None


def seconds(asked: dict[str, Any], key: str, default: float) -> float:
    """A time."""
    value = asked.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 86400:
        raise Refused(f"{key} of \"__weft\" is {json.dumps(value)[:40]}, which is not a number of seconds")
    return float(value)


def reachable(durl: str, address: str) -> str:
    """The durl with this container's address where it says any."""
    from weft._core import durl_format, durl_parse
    parts = durl_parse(durl)
    shown = f"[{address}]" if ":" in address else address
    if shown and parts.get("url"):
        parts["url"] = ",".join(one.replace("tcp://0.0.0.0:", f"tcp://{shown}:").replace("tcp://[::]:", f"tcp://{shown}:")
                                for one in parts["url"].split(","))
    return durl_format(parts)


def until_unused(action: LibdAction, made: Any, grace: float, patience: float) -> str:
    """Wait for the end; why it is one."""
    assert action.cv is not None
    had, quiet = False, time.monotonic()
    while True:
        stats, now = made.stats(), time.monotonic()
        # the last condition: a user came and left between two checks
        if stats["users"] or stats["connections"] or (not had and stats["accepted"]):
            had, quiet = True, now
        elif now - quiet >= (grace if had else patience):
            return "unused" if had else "nobody came"
        with action.cv:
            if action.terminated:
                return "told to"
            action.cv.wait(LOOK)


# --- telling the durl -----------------------------------------------------------------------------------------------------------

def parts_of(url: str) -> tuple[bool, str, int, str]:
    """TLS or not, host, port, and path with query. Refused: it is not the URL of a transport, and nothing is sent there."""
    from urllib.parse import urlsplit
    wrong = "configure of \"__weft\" is not the URL of a transport: http://HOST:PORT/action/ID/transport/NAME?key=..."
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        raise Refused(wrong) from None
    path = split.path + ("?" + split.query if split.query else "")
    if (split.scheme not in ("http", "https") or not host or split.username is not None or not split.path.startswith("/action/")
            or "/transport/" not in split.path or len(url) > 4096 or not all("!" <= c <= "~" for c in url)):
        raise Refused(wrong)
    return split.scheme == "https", host, port or (443 if split.scheme == "https" else 80), path


def tell(action: LibdAction, target: tuple[bool, str, int, str], name: str, durl: str, seconds: float) -> None:
    """Send the durl there, within that time. Refused: it did not arrive, and why; with neither the durl nor the key in it."""
    assert action.cv is not None
    missed = time.monotonic() + MISSED
    until, pause, why = time.monotonic() + seconds, 0.05, ""
    while not action.terminated:
        try:
            status = put(target, json.dumps({"name": name, "durl": durl}).encode(), min(until, time.monotonic() + ONE_TRY))
            if status == 200:
                return
            why = f"it answered {status}"
            if (status not in AGAIN and status < 500) or (status == 404 and time.monotonic() > missed):
                break
        except TimeoutError:
            why = "it did not answer"
        except (OSError, ValueError) as error:
            why = f"{getattr(error, 'strerror', None) or 'it does not speak HTTP'}"
        if time.monotonic() + pause >= until:
            break
        with action.cv:
            action.cv.wait_for(lambda: action.terminated, pause)
        pause = min(2 * pause, 1.0)
    raise Refused(f"the durl could not be told to {target[1]} port {target[2]}, where the one who invoked this element waits "
                  f"for it: "
                  f"{why or 'the activation was ended'}")


def put(target: tuple[bool, str, int, str], body: bytes, until: float) -> int:
    """PUT, by then; the status of the answer."""
    tls, host, port, path = target
    with socket.create_connection((host, port), max(until - time.monotonic(), 0.01)) as plain:
        sock: socket.socket = plain
        if tls:
            import ssl
            sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        with sock:
            shown = f"[{host}]" if ":" in host else host
            sock.sendall(f"PUT {path} HTTP/1.1\r\nHost: {shown}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
                         f"{len(body)}\r\n"
                         "Connection: close\r\n\r\n".encode() + body)
            got = b""
            while b"\r\n" not in got and len(got) < 4096:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                sock.settimeout(left)
                more = sock.recv(4096)
                if not more:
                    break
                got += more
    words = got.split(b"\r\n")[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError
    return int(words[1])
