"""OpenWhisk's REST API, as far as a run needs it: where it is, who we are, one request and what its answer means.

Where: --on openwhisk://HOST, else __OW_API_HOST, else APIHOST of wsk's file (~/.wskprops, or what WSK_CONFIG_FILE names). Who:
the key is __OW_API_KEY, else AUTH of that file.

An answer is an object or a list; what is none raises one of three:

    Refused    OpenWhisk says no, and will say so again
    Busy       it did nothing, and asks to come again later (429, 503)
    Trouble    there is no answer, or one that makes no sense: the request may have been carried out, if `asked`

Promise: every request ends within its time; no key in any text. tests/python/test_on_openwhisk_api.py holds us to it.
"""
from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

from .._http import Answer, Problem, Secret, Server
from .bridge import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONE = 20.0           # seconds for a request
THREADS = 16
ANSWER = 64 << 20    # bytes: a record has a result and up to 10 MB of logs, more where the operator says so
PAUSE = (0.25, 10.0)  # seconds: the first and the longest between two tries
HERE = "/api/v1/namespaces/_"

REFUSALS = {
    400: "OpenWhisk does not accept the request to {what}",
    401: "OpenWhisk does not know the key in {key}: is it of another OpenWhisk, or was it changed?",
    403: "the key in {key} has no right to {what}",
    404: "{where} has nothing by that name when asked to {what}: is it an OpenWhisk?",
    405: "{where} does not take the request to {what}: is it an OpenWhisk?",
    409: "OpenWhisk refuses to {what} because of a conflict",
    413: "what OpenWhisk is sent to {what} is larger than it takes",
}


class Refused(Failed):
    """OpenWhisk says no. `status` is that of its answer, `theirs` its own words."""

    def __init__(self, said: str, status: int, theirs: str) -> None:
        super().__init__(said)
        self.status, self.theirs = status, theirs


class Trouble(Failed):
    """No answer, or none that makes sense. `asked`: the request may have been carried out. `answered`: there is an answer."""

    def __init__(self, said: str, asked: bool, answered: bool = True) -> None:
        super().__init__(said)
        self.asked, self.answered = asked, answered


class Busy(Trouble):
    """It did nothing. `after`: seconds, if it said when to come again."""

    def __init__(self, said: str, after: float | None) -> None:
        super().__init__(said, False)
        self.after = after


# --- where, and who we are ----------------------------------------------------------------------------------------------------

def properties(environ: Any) -> tuple[str, dict[str, str]]:
    """The path of wsk's file and what it says; {} if there is none."""
    path = environ.get("WSK_CONFIG_FILE") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".wskprops")
    found: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f.read(1 << 16).splitlines():
                name, equals, value = line.partition("=")
                if equals and not name.lstrip().startswith("#"):
                    found[name.strip().upper()] = value.strip().strip("'\"")
    except OSError:
        pass
    return path, found


def server(text: str, said_in: str, check: bool) -> Server:
    """`host`, `host:port` (by https), or with http:// or https:// before it. Failed: it is none of these."""
    from urllib.parse import urlsplit
    try:
        parts = urlsplit(text if "://" in text else "https://" + text)
        name, port = parts.hostname, parts.port
        good = all("!" <= c <= "~" for c in text) and parts.scheme in ("http", "https") and parts.path in ("", "/") and not (
            parts.query or parts.fragment)
        keyed = "@" in parts.netloc
    except ValueError:
        name, port, good, keyed, parts = None, None, False, False, urlsplit("")
    if keyed:
        raise Failed(f"the address of OpenWhisk in {said_in} has a key in it, which everybody sees: say the key in "
                     "__OW_API_KEY, or in ~/.wskprops")
    if not good or not name:
        raise Failed(f"the address of OpenWhisk in {said_in} is not what it should be: a host, or http:// or https:// and a "
                     "host, with a port if need be, and nothing after it")
    tls = parts.scheme == "https"
    return Server(name, port or (443 if tls else 80), tls, check, ANSWER, "machine")


def find(where: str, environ: Any = os.environ) -> Api:
    """The OpenWhisk that --on and the environment name. Failed: they do not say enough."""
    path, said = properties(environ)
    for text, said_in in ((where, "--on"), (environ.get("__OW_API_HOST", ""), "__OW_API_HOST"), (said.get("APIHOST", ""), path)):
        if text:
            break
    else:
        raise Failed("where is OpenWhisk? Say so by --on openwhisk://HOST, in __OW_API_HOST, or by `wsk property set --apihost "
                     f"HOST`, which writes it to {path}")
    for key, key_in in ((Secret(environ.get("__OW_API_KEY", "")), "__OW_API_KEY"),
                        (Secret(said.pop("AUTH", "")), f"{path} (AUTH)")):
        if key.text:
            break
    else:
        raise Failed(f"as whom? The key of OpenWhisk is in __OW_API_KEY, or in {path}, where `wsk property set --auth KEY` puts "
                     "it")
    check = environ.get("__OW_IGNORE_CERTS", "").lower() not in ("1", "true", "yes")
    return Api(server(text, said_in, check), key, key_in)


# --- requests -----------------------------------------------------------------------------------------------------------------

class Api:
    """One OpenWhisk. `key_in` says where its key is from."""

    def __init__(self, where: Server, key: Secret, key_in: str) -> None:
        from base64 import b64encode
        if ":" not in key.text or not key.text.isascii() or not key.text.isprintable() or " " in key.text:
            raise Failed(f"the key in {key_in} is not what it should be: USER:PASSWORD")
        self.server, self.key_in = where, key_in
        self._authorization = Secret("Basic " + b64encode(key.text.encode()).decode())
        self._hidden = [key, Secret(key.text.partition(":")[2]), Secret(self._authorization.text[6:])]
        self._threads = ThreadPoolExecutor(THREADS, "weft-openwhisk")

    async def ask(self, method: str, path: str, what: str, body: Secret | None = None, seconds: float = ONE) -> Any:
        """One request, once. Refused, Busy, Trouble."""
        def in_thread() -> tuple[Answer | None, Problem | None]:
            try:
                return self.server.ask(method, path, body, self._authorization, time.monotonic() + seconds), None
            except Problem as problem:
                return None, problem
        answer, problem = await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)
        if answer is None:
            assert problem is not None
            raise Trouble(self._clean(f"OpenWhisk was asked to {what}, and {problem}" if problem.asked
                                      else f"OpenWhisk cannot be asked to {what}: {problem}"), problem.asked, False)
        return self._read(answer, what)

    async def patiently(self, method: str, path: str, what: str, body: Secret | None = None, seconds: float = 60.0) -> Any:
        """The same, for a request that does no harm if it is sent again: until there is an answer, or the time is over."""
        until, pause = time.monotonic() + seconds, PAUSE[0]
        said = None  # by OpenWhisk: it tells more than that there was no time left for the last request
        while True:
            try:
                return await self.ask(method, path, what, body, max(0.1, min(ONE, until - time.monotonic())))
            except Trouble as error:
                said = error if error.answered or said is None else said
                wait = error.after if isinstance(error, Busy) and error.after is not None else pause
                if time.monotonic() + wait >= until:
                    raise said from None
                await asyncio.sleep(wait)
                pause = min(2 * pause, PAUSE[1])

    def close(self) -> None:
        """No more requests. Those that are under way are left to their own time."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, answer: Answer, what: str) -> Any:
        status, said = answer.status, None
        try:
            said = json.loads(answer.body)
        except (ValueError, RecursionError):
            pass
        words = said.get("error") if isinstance(said, dict) else None
        theirs = self._clean(words) if isinstance(words, str) else ""
        told = f" ({status}: {theirs})" if theirs else f" ({status})"
        if status in (429, 503):
            after = answer.headers.get("retry-after", "")
            raise Busy(f"OpenWhisk is too busy to {what}{told}",
                       float(after) if after.isascii() and after.isdecimal() and len(after) < 6 else None)
        if 300 <= status < 400:
            raise Refused(f"{self.server} sends requests elsewhere{told}: they are not sent there, since the key would go with "
                          "them", status,
                          theirs)
        if status in REFUSALS:
            raise Refused(REFUSALS[status].format(what=what, key=self.key_in, where=self.server) + told, status, theirs)
        if status >= 500:
            raise Trouble(f"OpenWhisk failed to {what}{told}", True)
        if status not in (200, 202):
            raise Refused(f"{self.server} answered with what OpenWhisk never should{told} when asked to {what}: is it one?",
                          status, theirs)
        if not isinstance(said, (dict, list)):
            raise Trouble(f"{self.server} answered with what is no JSON when asked to {what}: is it an OpenWhisk?", True)
        return said

    def _clean(self, text: str) -> str:
        """Words from outside: without the key, which they may repeat, and of a length to read."""
        for secret in self._hidden:
            if secret.text:
                text = text.replace(secret.text, "(key)")
        return "".join(c if c.isprintable() else " " for c in text[:600])
