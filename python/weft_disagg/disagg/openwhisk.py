"""The backend of OpenWhisk: elements are actions, and starting one is invoking it by the REST API.

The environment of the activation says where and as whom: __OW_API_HOST, __OW_API_KEY, and __OW_DEADLINE, by which everything here
ends. The runtime that runs the action (`weft element serve`) adds WEFT_ELEMENT_CALLBACK, its own address, and
WEFT_ELEMENT_CALLBACK_KEY, a secret of its own.

    invoke      POST /api/v1/namespaces/_/actions/TEMPLATE, without waiting for its end; the transport is added before, and waits
    configured  the memory element PUTs its durl to the runtime that runs us, at the URL it was given, which is for this transport
    release     the transport is gone (Runtime does that), so that the element sees its user go and ends

A stock OpenWhisk has no request that ends an activation: an element learns that it was released when its last user ends. Where
__OW_INVOKER_API is set, which Scad's OpenWhisk does, its invoker is told as well (invoker.py).

Promise: every call ends within its time, whatever answers; no request that may have been carried out is sent again; no key in any
text. tests/python/test_openwhisk_api.py and test_openwhisk_whole.py hold us to it.
"""
from __future__ import annotations

import json
import os
import time

from .runtime import Backend, InvokeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._http import Answer, Secret, Server
    from .action import LibdAction

__all__ = ["OpenWhisk", "backend"]

TIMEOUT = 60.0
AGAIN_MOST = 3
NAME_MOST = 256

REFUSALS = {
    400: "OpenWhisk does not understand the request for {what}",
    401: "OpenWhisk does not know the key in __OW_API_KEY: is it of another OpenWhisk, or was it changed?",
    403: "the key in __OW_API_KEY has no right to {what}",
    404: "there is no action {template}: `wsk action list` shows those that there are",
    405: "{where} does not take this request: is __OW_API_HOST an OpenWhisk?",
    408: "OpenWhisk waited for the request for {what} longer than it likes to",
    409: "OpenWhisk refuses to {what} because of a conflict: somebody may be changing the action; try again",
    413: "the parameters to {what} are larger than OpenWhisk takes: what is large belongs in a memory element",
    429: "OpenWhisk has had too many requests of this namespace to {what} now: wait, start fewer at once, or have the "
         "namespace's limits raised",
}


def unknown(said: str, post: bool) -> str:
    """A sentence about a request, with what that means for an element that was to be started."""
    return f"{said}{' ' if said.endswith('?') else '. '}It is not known whether it was started" if post else said


def deadline(timeout: float) -> float:
    """When everything has to be over, on the monotonic clock: after the timeout, and by the activation's deadline."""
    seconds = float(timeout)
    text = os.environ.get("__OW_DEADLINE", "")
    if text.isascii() and text.isdecimal() and len(text) < 16:
        seconds = min(seconds, int(text) / 1000 - time.time())
    if seconds <= 0:
        raise InvokeError("the deadline of this activation is over: nothing more is started in it")
    return time.monotonic() + seconds


def add_waiting(action: LibdAction, trans: str, impl: str) -> bool:
    """Add a transport that waits to be configured. False: it is there, and waits."""
    from weft._core import InvalidError, StateError
    if any(c in trans for c in ";,@/") or not trans.isprintable():
        raise InvokeError(f"{trans!r} is no name for a transport: it has none of ; , @ and /, and can be printed")
    try:
        action.add_transport(f"{trans};{impl};")
        return True
    except StateError:
        pass
    except InvalidError as error:
        raise InvokeError(f"{trans!r} is no name for a transport: {error}") from None
    try:
        state = action.get_transport(trans, "rdma").state
    except KeyError:
        state = "serving"
    if state != "waiting":
        raise InvokeError(f'"{trans}" is invoked already: release it first, or take another name')
    return False


def backend(action: LibdAction) -> OpenWhisk:
    """The OpenWhisk that the environment names. InvokeError: it does not say enough."""
    from ._http import Secret
    check = os.environ.get("__OW_IGNORE_CERTS", "").lower() not in ("1", "true", "yes")
    return OpenWhisk(action, os.environ.get("__OW_API_HOST", ""), Secret(os.environ.get("__OW_API_KEY", "")), check=check)


def server(host: str, check: bool) -> Server:
    """What __OW_API_HOST says: `host`, `host:port` (by https), or with http:// or https:// before it."""
    from urllib.parse import urlsplit

    from ._http import Server
    text = host if "://" in host else "https://" + host
    try:
        parts = urlsplit(text)
        name, port = parts.hostname, parts.port
        good = not any(c <= " " or c == "\x7f"
                       for c in host) and "@" not in parts.netloc and not parts.query and not parts.fragment
    except ValueError:
        name, port, good, parts = None, None, False, urlsplit("")
    if not good or not name or parts.scheme not in ("http", "https") or parts.path not in ("", "/"):
        raise InvokeError("__OW_API_HOST is not what it should be: a host, or http:// or https:// and a host, with a port if "
                          "need be, "
                          "and nothing after it")
    tls = parts.scheme == "https"
    return Server(name, port or (443 if tls else 80), tls, check)


def path_of(template: str) -> str:
    """The path of an action by its name: NAME, PACKAGE/NAME, or /NAMESPACE/ before either."""
    from urllib.parse import quote
    parts = template.split("/")
    namespace = "_"
    if template.startswith("/"):
        namespace, parts = (parts[1:2] or [""])[0], parts[2:]
    for part in (namespace, *parts):
        if not part or part in (".", "..") or len(part) > NAME_MOST or not part.isprintable():
            parts = []
    if not 1 <= len(parts) <= 2:
        raise InvokeError(f"{template[:NAME_MOST]!r} is no name of an action: it is NAME or PACKAGE/NAME, "
                          "or /NAMESPACE/NAME or /NAMESPACE/PACKAGE/NAME")
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/actions/{'/'.join(quote(part, safe='') for part in parts)}"


class OpenWhisk(Backend):
    """Starts elements by OpenWhisk's REST API. `timeout` bounds each call, in seconds; so does the activation's deadline.

    `activations` has the id of each activation that was started, by the name that it was invoked as: `wsk activation get ID` says
    what became of it.
    """

    def __init__(self, action: LibdAction, host: str, key: str | Secret, *, check: bool = True, timeout: float = TIMEOUT) -> None:
        from base64 import b64encode

        from ._http import Secret
        hidden = key if isinstance(key, Secret) else Secret(key)
        del key  # from here on no local variable has it
        if not hidden.text:
            raise InvokeError("__OW_API_KEY is not set: OpenWhisk gives an action its key only if that has the annotation: "
                              "`wsk action update NAME --annotation provide-api-key true`")
        if ":" not in hidden.text or not hidden.text.isascii() or not hidden.text.isprintable() or " " in hidden.text:
            raise InvokeError("__OW_API_KEY is not what it should be: USER:PASSWORD")
        self._action = action
        self._server = server(host, check)
        self._authorization = Secret("Basic " + b64encode(hidden.text.encode()).decode())
        self._hidden = [hidden, Secret(hidden.text.partition(":")[2]), Secret(self._authorization.text[6:])]
        self._kinds: dict[str, str] = {}
        self.timeout = timeout
        self.activations: dict[str, str] = {}
        if not check and self._server.tls:
            import warnings
            warnings.warn(f"__OW_IGNORE_CERTS is set: whoever is between here and {self._server} can read and use the key",
                          RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<disagg.OpenWhisk {getattr(self, '_server', 'that is none')}>"

    # --- what Runtime calls

    def invoke(self, template: str, trans: str, props: dict[str, Any]) -> str | None:
        """Start an action like `template`. The durl of its memory if the answer has it; None: it computes, or says where it is
        later.

        `props`: `params` are the parameters of the new activation, `size` or `limits: {mem: ...}` the size of a memory element,
        and `type`, "memory" or "compute", what it is. Without that the annotation `type` of the action says it; without either it
        is memory, unless it is given `params`. `grace` and `patience` are how many seconds memory waits for others after its last
        user, and for the first one.
        """
        from ._props import check, size_of
        until = deadline(self.timeout)
        path = path_of(template)
        check(props)
        params, size = props.get("params"), size_of(props)
        if "__weft" in (params or {}):
            raise InvokeError("props: params has \"__weft\", which is not yours: it is how memory is told where its user is")
        if self._kind(template, path, props, until) == "compute":
            self._invoke(template, trans, path, self._body(params, None), until)
            return None
        body = self._body(params, self._about(trans, size, props))
        added = self._add(trans)
        try:
            durl = self._durl(self._invoke(template, trans, path, body, until), trans, template)
            if durl is None and not self._heard():
                raise InvokeError(f"{template} was started as {self.activations[trans]}, and cannot say where it is: "
                                  "this action has to be run by `weft element serve`, which sets WEFT_ELEMENT_CALLBACK")
        except BaseException:
            self.activations.pop(trans, None)
            if added:
                self._action.release_transport(trans)
            raise
        return durl

    def release(self, name: str) -> None:
        """Let go of what was invoked as `name`: its transports are released already, by which a memory element sees that it is
        not used any more.

        OpenWhisk is not asked. Scad's invoker is, where there is one. An element that computes ends by itself.
        """
        self.activations.pop(name, None)
        if os.environ.get("__OW_INVOKER_API"):
            from .invoker import Invoker
            Invoker(self._action).release(name)

    # --- what is sent

    def _about(self, trans: str, size: int | None, props: dict[str, Any]) -> dict[str, Any]:
        """What a memory element is told: the name it has here, its size, and where to say where it is."""
        about: dict[str, Any] = {"name": trans}
        if size is not None:
            about["size"] = size
        about.update({key: props[key] for key in ("grace", "patience") if key in props})
        aid = self._action.aid or os.environ.get("__OW_ACTIVATION_ID", "")
        if aid:
            about["function_activation_id"] = aid
        if os.environ.get("__OW_APP_ACTIVATION_ID"):
            about["app_activation_id"] = os.environ["__OW_APP_ACTIVATION_ID"]
        if self._heard():
            from urllib.parse import quote

            from ._callback import key_for
            key = key_for(os.environ["WEFT_ELEMENT_CALLBACK_KEY"], aid, trans)
            url = os.environ["WEFT_ELEMENT_CALLBACK"].rstrip("/")
            about["configure"] = f"{url}/action/{quote(aid, safe='')}/transport/{quote(trans, safe='')}?key={key}"
        return about

    def _heard(self) -> bool:
        """Whether the runtime that runs us can be told where an element is."""
        aid = self._action.aid or os.environ.get("__OW_ACTIVATION_ID")
        return bool(aid and os.environ.get("WEFT_ELEMENT_CALLBACK") and os.environ.get("WEFT_ELEMENT_CALLBACK_KEY"))

    @staticmethod
    def _body(params: dict[str, Any] | None, about: dict[str, Any] | None) -> Secret:
        """The parameters of the new activation; a secret, since a memory element is given the right to configure our
        transport."""
        from ._http import Secret
        wrong = ""
        try:
            return Secret(json.dumps({**(params or {}), **({} if about is None else {"__weft": about})}, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            wrong = str(error)
        del about
        raise InvokeError(f"props can be sent to OpenWhisk as JSON only: {wrong}")

    def _add(self, trans: str) -> bool:
        """Add the transport, before anybody can configure it. False: it is there, and waits."""
        if trans in self.activations:
            raise InvokeError(f'"{trans}" is invoked already: release it first, or take another name')
        return add_waiting(self._action, trans, "rdma_tcp")

    def _kind(self, template: str, path: str, props: dict[str, Any], until: float) -> str:
        """Whether a template is memory or computes."""
        kind = props.get("type")
        if kind is not None:
            if kind not in ("memory", "compute"):
                raise InvokeError('props: type is neither "memory" nor "compute"')
            return str(kind)
        if template not in self._kinds:
            self._kinds[template] = self._annotated(template, path, until)
        return self._kinds[template] or ("compute" if props.get("params") is not None else "memory")

    def _annotated(self, template: str, path: str, until: float) -> str:
        answer = self._ask("GET", path + "?code=false", None, f"look at {template}", until)
        if answer.status in (403, 405, 501):
            return ""  # the key may only invoke
        said = self._read(answer, template, f"look at {template}", False)
        notes = said.get("annotations")
        for note in notes if isinstance(notes, list) else []:
            if isinstance(note, dict) and note.get("key") == "type" and note.get("value") in ("memory", "compute"):
                return str(note["value"])
        return ""

    def _invoke(self, template: str, trans: str, path: str, body: Secret, until: float) -> dict[str, Any]:
        what = f"invoke {template}"
        said = self._read(self._ask("POST", path + "?blocking=false&result=false", body, what, until), template, what, True)
        aid = said.get("activationId")
        if isinstance(aid, str) and aid.isprintable() and len(aid) <= NAME_MOST:
            self.activations[trans] = aid
        elif self._durl(said, trans, template) is None:
            raise InvokeError(unknown(f"{self._server} answered without an activationId when asked to {what}: is __OW_API_HOST "
                                      f"an OpenWhisk?", True))
        else:
            self.activations[trans] = ""
        return said

    @staticmethod
    def _durl(said: dict[str, Any], trans: str, template: str) -> str | None:
        """The durl in an answer, if there is one: an OpenWhisk of Scad's may say at once where the element is, by the name that
        it has here or by that of its template."""
        from weft._core import durl_parse
        found = [said["durl"]] if "durl" in said else said.get("transports") or []
        named = {}
        for durl in found if isinstance(found, list) else [found]:
            wrong = not isinstance(durl, str)
            try:
                named[durl_parse(durl)["name"]] = durl
            except (TypeError, ValueError):
                wrong = True
            if wrong:
                raise InvokeError("OpenWhisk's answer has a durl that is none: is it of another version?")
        mine = named.get(trans) or named.get(template.rpartition("/")[2])
        if named and mine is None:
            raise InvokeError(f"OpenWhisk's answer has durls of {', '.join(sorted(named))}, and none of {trans} or {template}")
        return mine

    # --- requests

    def _ask(self, method: str, path: str, body: Secret | None, what: str, until: float) -> Answer:
        """The answer to a request; asked again while it says that it did nothing and when to come back, and there is time."""
        from ._http import Problem
        for tries in range(1, AGAIN_MOST + 1):
            wrong: Problem | None = None
            try:
                answer = self._server.ask(method, path, body, self._authorization, until)
            except Problem as problem:
                wrong = problem
            if wrong is not None:
                said = self._clean(str(wrong))
                if not wrong.asked:
                    raise InvokeError(f"OpenWhisk cannot be asked to {what}: {said}")
                raise InvokeError(unknown(f"OpenWhisk was asked to {what}, and {said}", method == "POST"))
            after = answer.headers.get("retry-after", "")
            seconds = after.isascii() and after.isdecimal() and len(after) <= 6
            if answer.status not in (429, 503) or tries == AGAIN_MOST or not seconds:
                return answer
            if not self._pause(int(after), until):
                return answer
        raise AssertionError

    def _pause(self, seconds: float, until: float) -> bool:
        """Wait, for as long as the action is not told to end. False: there is no time for that."""
        end = time.monotonic() + seconds
        if end >= until:
            return False
        while (rest := end - time.monotonic()) > 0:
            if self._action.terminated:
                return False
            time.sleep(min(rest, 0.05))
        return True

    def _read(self, answer: Answer, template: str, what: str, post: bool) -> dict[str, Any]:
        """The object in an answer. InvokeError: it is a refusal, or none."""
        status = answer.status
        said: Any = None
        try:
            said = json.loads(self._without_key(answer.body.decode()))
        except (ValueError, RecursionError):
            pass
        words = said.get("error") if isinstance(said, dict) else None
        theirs = f" ({status}: {self._clean(words)})" if isinstance(words, str) and words else f" ({status})"
        if 300 <= status < 400:
            raise InvokeError(f"{self._server} sends requests elsewhere{theirs}, to {self._place(answer)}: they are not sent "
                              f"there, since the key "
                              "would go with them. If that is your OpenWhisk, say so in __OW_API_HOST")
        if status in REFUSALS:
            raise InvokeError(REFUSALS[status].format(what=what, template=template, where=self._server) + theirs)
        if status >= 500:
            raise InvokeError(unknown(f"OpenWhisk failed to {what}{theirs}", post))
        if status not in (200, 202):
            raise InvokeError(f"OpenWhisk answered with what it never should{theirs} when asked to {what}: is __OW_API_HOST an "
                              f"OpenWhisk?")
        if not isinstance(said, dict):
            raise InvokeError(unknown(f"{self._server} answered with what is no JSON object when asked to {what}: "
                                      "is __OW_API_HOST an OpenWhisk?", post))
        return said

    def _place(self, answer: Answer) -> str:
        from urllib.parse import urlsplit
        try:
            parts = urlsplit(answer.headers.get("location", ""))
            place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else "another path"
        except ValueError:
            place = "a place that is none"
        return self._clean(place)

    def _without_key(self, text: str) -> str:
        """Words from outside, which may have been told the key and say it again."""
        for secret in self._hidden:
            if secret.text:
                text = text.replace(secret.text, "(key)")
        return text

    def _clean(self, text: str) -> str:
        """Words from outside, of a length to read, that can be printed."""
        return "".join(c if c.isprintable() else " " for c in self._without_key(text)[:500])
