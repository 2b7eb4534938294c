"""disagg.openwhisk: elements invoked through OpenWhisk's REST API, with a server of our own that answers well, badly, slowly
and never."""
import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback

import pytest

import disagg
import ports
import weft
from disagg import openwhisk

from elementside import BOUND, action, memory, until

KEY = "23bc46b1-71f6-4ed5-8c54-816aa4f8c502:123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP"
CALLBACK_KEY = "a secret of the runtime"
AID = "0123456789abcdef"
ACTION = "/api/v1/namespaces/_/actions/"
INVOKE = "?blocking=false&result=false"
LOOK = "?code=false"


def answer(status, body, *headers):
    """The bytes of an HTTP answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


STARTED = answer(202, {"activationId": "f00"})
MEMORY = answer(200, {"name": "x", "annotations": [{"key": "exec", "value": "blackbox"}, {"key": "type", "value": "memory"}]})
COMPUTE = answer(200, {"name": "x", "annotations": [{"key": "type", "value": "compute"}]})


class StandIn:
    """A server on loopback. `answers` are bytes or functions of the socket, one for each connection; `asked` is what came."""

    def __init__(self, context=None):
        self.answers, self.asked, self.over, self.context = [], [], threading.Event(), context
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, ssl.SSLError), peer:
                peer.settimeout(BOUND)
                if self.context is None:
                    self._one(peer)
                else:
                    with self.context.wrap_socket(peer, server_side=True) as sock:
                        self._one(sock)

    def _one(self, sock):
        file = sock.makefile("rb")
        method, path, _ = file.readline().decode().split(" ")
        headers = {}
        while (line := file.readline().decode().rstrip("\r\n")):
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        body = file.read(int(headers.get("content-length", 0)))
        self.asked.append((method, path, headers, json.loads(body) if body else None))
        say = self.answers.pop(0)
        if isinstance(say, bytes):
            sock.sendall(say)
        else:
            say(sock)

    def close(self):
        self.over.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(BOUND)


@pytest.fixture
def there(monkeypatch):
    """The server, and an environment that names it."""
    server = StandIn()
    for name in ("WEFT_LAUNCHER", "__OW_DEADLINE", "__OW_IGNORE_CERTS", "__OW_ACTIVATION_ID", "__OW_APP_ACTIVATION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("__OW_API_HOST", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("__OW_API_KEY", KEY)
    monkeypatch.setenv("WEFT_ELEMENT_CALLBACK", "http://10.0.0.5:8080")
    monkeypatch.setenv("WEFT_ELEMENT_CALLBACK_KEY", CALLBACK_KEY)
    yield server
    server.close()


@contextlib.contextmanager
def acting(timeout=BOUND):
    """An action of an activation, that knows how long its requests may take."""
    with action() as made:
        made.aid = AID
        made.runtime.backend.timeout = timeout
        yield made


def shown(error):
    """All that an exception can show: its words, those it was caused by, and the variables of the frames that it keeps
    outside of this file."""
    text, todo = "", [error]
    while todo:
        one = todo.pop()
        text += repr(one) + "".join(traceback.format_exception(one))
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if frame.f_code.co_filename != __file__:
                text += repr(frame.f_locals)
        todo += [other for other in (one.__cause__, one.__context__) if other is not None]
    return text


def no_key_in(text):
    for secret in (KEY, KEY.split(":")[1], base64.b64encode(KEY.encode()).decode(), CALLBACK_KEY):
        assert secret not in text
    assert "?key=" not in text


def within(words, most, said):
    """Does it say so, with at most so many seconds? What was left of them may be a little less."""
    found = re.search(words + r" within ([0-9.]+) s", said)
    return found is not None and 0 < float(found[1]) <= most


def refused(made, *args):
    """What the InvokeError of an invoke says; it shows no key, and left no transport."""
    with pytest.raises(disagg.InvokeError) as caught:
        made.runtime.invoke(*args)
    no_key_in(shown(caught.value))
    with pytest.raises(MemoryError):
        made.get_transport(args[1], "rdma")
    return str(caught.value)


# --- what is asked

def test_a_memory_element_is_invoked_and_says_later_where_it_is(there):
    there.answers += [MEMORY, STARTED]
    with memory(4096, "more") as element, acting() as made:  # it was told the name that it has here
        assert made.runtime.invoke("words", "more", {"limits": {"mem": "64 MB"}}) is None
        trans = made.get_transport("more", "rdma")
        assert trans.state == "waiting"
        made.config_transport("more", element.durl)  # which the runtime does when it is told
        trans.reg(8)
        trans.write(8, 0, timeout=BOUND)
        assert made.runtime.backend.activations == {"more": "f00"}
        made.runtime.release("more")
        with pytest.raises(weft.ClosedError):
            trans.read(8, 0)
        assert made.runtime.backend.activations == {}
    look, invoke = there.asked
    assert look[:2] == ("GET", ACTION + "words" + LOOK) and look[3] is None
    assert invoke[:2] == ("POST", ACTION + "words" + INVOKE)
    for _, _, headers, _ in there.asked:
        assert headers["authorization"] == "Basic " + base64.b64encode(KEY.encode()).decode()
        assert headers["host"] == f"127.0.0.1:{there.port}"
    assert invoke[2]["content-type"] == "application/json"
    key = hmac.new(CALLBACK_KEY.encode(), f"{AID}/more".encode(), hashlib.sha256).hexdigest()
    assert invoke[3] == {"__weft": {"name": "more", "size": 64 << 20, "function_activation_id": AID,
                                    "configure": f"http://10.0.0.5:8080/action/{AID}/transport/more?key={key}"}}


def test_an_element_that_computes_is_given_its_params_and_nothing_else(there):
    there.answers += [COMPUTE, STARTED]
    with acting() as made:
        made.runtime.invoke("count", "c", {"params": {"a": [1, "é"]}})
        with pytest.raises(MemoryError):
            made.get_transport("c", "rdma")
        assert made.runtime.backend.activations == {"c": "f00"}
        made.runtime.release("c")
    assert there.asked[1][3] == {"a": [1, "é"]}


@pytest.mark.parametrize("props, look, kind", [({"type": "compute"}, None, "compute"),
                                               ({"type": "memory", "params": {"a": 1}}, None, "memory"),
                                               ({}, answer(200, {"annotations": []}), "memory"),
                                               ({}, answer(200, {"annotations": 7}), "memory"),
                                               ({}, answer(200, {"annotations": [7, {"key": "type", "value": "other"}]}),
                                                "memory"),
                                               ({"params": {}}, answer(200, {}), "compute"),
                                               ({"size": 64}, answer(403, {}), "memory"),
                                               ({"params": {"a": 1}}, MEMORY, "memory"), ({}, COMPUTE, "compute")])
def test_what_a_template_is(there, props, look, kind):
    there.answers += [STARTED] if look is None else [look, STARTED]
    with acting() as made:
        made.runtime.invoke("x", "t", props)
        if kind == "memory":
            assert made.get_transport("t", "rdma").state == "waiting"
        else:
            with pytest.raises(MemoryError):
                made.get_transport("t", "rdma")
    assert ("__weft" in there.asked[-1][3]) == (kind == "memory")
    assert len(there.asked) == 1 + (look is not None)


def test_a_template_is_looked_at_once(there):
    there.answers += [MEMORY, STARTED, STARTED]
    with acting() as made:
        made.runtime.invoke("x", "a")
        made.runtime.invoke("x", "b")
    assert [method for method, *_ in there.asked] == ["GET", "POST", "POST"]


@pytest.mark.parametrize("template, path", [("pkg/act", "_/actions/pkg/act"), ("/ns/act", "ns/actions/act"),
                                            ("/ns/pkg/act", "ns/actions/pkg/act"),
                                            ("/_/act", "_/actions/act"), ("a b?c#d%2f", "_/actions/a%20b%3Fc%23d%252f"),
                                            ("é", "_/actions/%C3%A9")])
def test_names_of_actions(there, template, path):
    there.answers += [STARTED]
    with acting() as made:
        made.runtime.invoke(template, "t", {"type": "compute"})
    assert there.asked[0][1] == "/api/v1/namespaces/" + path + INVOKE


@pytest.mark.parametrize("template", ["..", "a/..", "/../x", "/ns/../x", "a/b/c", "/ns", "/ns/", "/", "a//b", "a\nb",
                                      "a\r\nHost: x", "a\0",
                                      "x" * 300, "/ns/a/b/c", "./x", "\u2028"])
def test_names_that_are_none(there, template):
    with acting() as made:
        assert "no name of an action" in refused(made, template, "t")
    assert not there.asked


@pytest.mark.parametrize("host, where", [("host.example", "https://host.example:443"),
                                         ("host.example:8443", "https://host.example:8443"),
                                         ("http://h", "http://h:80"), ("https://h/", "https://h:443"),
                                         ("http://[::1]:3233", "http://[::1]:3233")])
def test_hosts(host, where):
    with action() as made:
        assert where in repr(openwhisk.OpenWhisk(made, host, KEY))
        no_key_in(repr(openwhisk.OpenWhisk(made, host, KEY)) + repr(vars(openwhisk.OpenWhisk(made, host, KEY))))


@pytest.mark.parametrize("host", ["ftp://h", "http://", "http://u:p@h", "http://h/api", "http://h?x", "http://h:port",
                                  "h:99999999", "h\r\nx",
                                  "http://[::1", "a b", ""])
def test_hosts_that_are_none(host):
    with action() as made, pytest.raises(disagg.InvokeError, match="__OW_API_HOST is not what") as caught:
        openwhisk.OpenWhisk(made, host, KEY)
    no_key_in(shown(caught.value))


@pytest.mark.parametrize("key, says", [("", "provide-api-key true"), ("nocolon", "USER:PASSWORD"),
                                       ("a:b\r\nX: y", "USER:PASSWORD"), ("a:é", "USER:PASSWORD")])
def test_keys_that_are_none(there, monkeypatch, key, says):
    monkeypatch.setenv("__OW_API_KEY", key)
    with action() as made, pytest.raises(disagg.InvokeError, match=says) as caught:
        made.runtime.invoke("x", "y")
    assert not key or key not in shown(caught.value)


@pytest.mark.parametrize("size", ["64", "M", "1.5G", "-1M", 0, -5, 1.5, True, [], "9" * 40 + "M", float("nan"), float("inf"),
                                  1 << 60, "1 XB", "1Mx"])
def test_sizes_that_are_none(there, size):
    with acting() as made:
        assert "size is neither" in refused(made, "x", "t", {"size": size, "type": "memory"})
        assert "limits.mem is neither" in refused(made, "x", "t", {"limits": {"mem": size}, "type": "memory"})
    assert not there.asked


@pytest.mark.parametrize("size, number", [("1k", 1024), ("64M", 64 << 20), ("64 MB", 64 << 20), ("2GiB", 2 << 30), (4096, 4096),
                                          (4096.0, 4096)])
def test_sizes(there, size, number):
    there.answers.append(STARTED)
    with acting() as made:
        made.runtime.invoke("x", "t", {"size": size, "type": "memory"})
    assert there.asked[0][3]["__weft"]["size"] == number


@pytest.mark.parametrize("props, says", [({"params": []}, "params is not"), ({"limits": 5}, "limits is not"),
                                         ({"type": "rdma"}, "type is neither"),
                                         ({"type": "memory", "params": {"x": object()}}, "JSON"),
                                         ({"type": "compute", "params": {"x": float("nan")}}, "JSON"),
                                         ({"type": "compute", "params": {"x": b""}}, "JSON")])
def test_props_that_are_none(there, props, says):
    with acting() as made:
        assert says in refused(made, "x", "t", props)
    assert not there.asked


@pytest.mark.parametrize("trans", ["a;b", "a,b", "a@0", "a/b", "a\nb", "x" * 2000])
def test_names_of_transports_that_are_none(there, trans):
    with acting() as made:
        assert "no name for a transport" in refused(made, "x", trans, {"type": "memory"})
    assert not there.asked


def test_a_name_that_is_in_use(there):
    there.answers += [STARTED, STARTED]
    with memory(64) as element, acting() as made:
        made.runtime.invoke("x", "t", {"type": "memory"})
        with pytest.raises(disagg.InvokeError, match="invoked already"):
            made.runtime.invoke("x", "t", {"type": "memory"})
        made.add_transport(element.durl)
        assert made.get_transport("mem", "rdma").wait_ready(BOUND) == 64
        with pytest.raises(disagg.InvokeError, match="invoked already"):
            made.runtime.invoke("x", "mem", {"type": "memory"})
        assert made.get_transport("mem", "rdma").state == "ready"
        made.runtime.release("t")
        made.runtime.invoke("x", "t", {"type": "memory"})
    assert len(there.asked) == 2


def test_a_transport_that_waits_is_taken_and_kept_if_that_fails(there):
    there.answers += [answer(500, {}), STARTED]
    with acting() as made:
        made.add_transport("late;rdma_tcp;")
        trans = made.get_transport("late", "rdma")
        with pytest.raises(disagg.InvokeError):
            made.runtime.invoke("x", "late", {"type": "memory"})
        made.runtime.invoke("x", "late", {"type": "memory"})
        assert made.get_transport("late", "rdma") is trans and trans.state == "waiting"


# --- where the answer says where the element is

@pytest.mark.parametrize("how", ["durl", "transports", "of several", "of the template"])
def test_an_answer_with_a_durl(there, monkeypatch, how):
    monkeypatch.delenv("WEFT_ELEMENT_CALLBACK")
    with memory(4096, "t") as element, acting() as made:
        said = {"durl": {"durl": element.durl}, "transports": {"transports": [element.durl]},
                "of several": {"activationId": "f00", "transports": ["other;rdma_tcp;", element.durl]},
                "of the template": {"durl": "x" + element.durl[1:]}}[how]
        there.answers.append(answer(200, said))
        made.runtime.invoke("x", "t", {"type": "memory"})
        assert made.get_transport("t", "rdma").wait_ready(BOUND) == 4096
    assert "configure" not in there.asked[0][3]["__weft"]


@pytest.mark.parametrize("said", [{"durl": "other;rdma_tcp;url,tcp://127.0.0.1:1;"},
                                  {"activationId": "f00", "transports": ["other;rdma_tcp;url,tcp://127.0.0.1:1;", "third;rdma_tcp;"]}])
def test_an_answer_with_the_durl_of_another_element(there, said):
    there.answers += [answer(202, said)]
    with acting() as made:
        assert "has durls of other" in refused(made, "words", "more", {"type": "memory"})


@pytest.mark.parametrize("said", [{"durl": 5}, {"durl": "nonsense"}, {"transports": ["token,secret"]}, {"transports": 7},
                                  {"transports": [None]}])
def test_an_answer_with_a_durl_that_is_none(there, said):
    there.answers.append(answer(200, {"activationId": "f00", **said}))
    with acting() as made:
        assert "a durl that is none" in refused(made, "x", "t", {"type": "memory"})


@pytest.mark.parametrize("lacking", ["WEFT_ELEMENT_CALLBACK", "WEFT_ELEMENT_CALLBACK_KEY"])
def test_without_a_runtime_that_can_be_told(there, monkeypatch, lacking):
    monkeypatch.delenv(lacking)
    there.answers.append(STARTED)
    with acting() as made:
        said = refused(made, "x", "t", {"type": "memory"})
        assert "f00" in said and "weft element serve" in said
        assert made.runtime.backend.activations == {}


# --- refusals

@pytest.mark.parametrize("status, says", [(400, "does not understand"), (401, "does not know the key in __OW_API_KEY"),
                                          (403, "has no right to invoke x"), (404, "there is no action x: `wsk action list`"),
                                          (405, "is __OW_API_HOST an OpenWhisk"), (408, "longer than"), (409, "a conflict"),
                                          (413, "belongs in a memory element"), (429, "too many requests"), (418, "never should"),
                                          (201, "never should"), (500, "failed to invoke x"), (502, "failed to invoke x"),
                                          (503, "failed to invoke x"), (504, "failed to invoke x")])
def test_refusals(there, status, says):
    there.answers += [answer(status, {"error": f"their words\x1b[31m {KEY}", "code": "abc"}), answer(status, b"<html>")]
    with acting() as made:
        said = refused(made, "x", "t", {"type": "memory"})
        assert says in said and f"({status}: their words [31m (key))" in said
        assert ("not known whether it was started" in said) == (status >= 500)
        assert says in refused(made, "x", "t", {"type": "compute"})
    assert len(there.asked) == 2


def test_a_refusal_to_look_is_one(there):
    there.answers += [answer(404, {"error": "The requested resource does not exist."})]
    with acting() as made:
        assert "there is no action words" in refused(made, "words", "t")
    assert len(there.asked) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(there, status):
    elsewhere = StandIn()
    try:
        there.answers += [answer(status, b"", f"Location: http://user:pw@127.0.0.1:{elsewhere.port}/x?secret=1")]
        with acting() as made:
            said = refused(made, "x", "t", {"type": "memory"})
            assert f"elsewhere ({status}), to http://127.0.0.1:{elsewhere.port}:" in said and "pw" not in said and "secret" not in said
        assert not elsewhere.asked and len(there.asked) == 1
    finally:
        elsewhere.close()


@pytest.mark.parametrize("location", [b"", b"Location: /path\r\n", b"Location: http://[::1\r\n", b"Location: \xff\xfe\r\n"])
def test_a_redirect_to_nowhere(there, location):
    there.answers += [b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + location + b"\r\n"]
    with acting() as made:
        assert "not sent there" in refused(made, "x", "t", {"type": "memory"})


# --- asked again

@pytest.mark.parametrize("status", [429, 503])
def test_it_comes_back_when_it_is_told_to(there, status):
    there.answers += [answer(status, {}, "Retry-After: 0"), answer(status, {}, "Retry-After: 0"), STARTED]
    with acting() as made:
        made.runtime.invoke("x", "t", {"type": "memory"})
    assert len(there.asked) == 3


@pytest.mark.parametrize("headers", [(), ("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT",), ("Retry-After: -1",),
                                     ("Retry-After: 9999999999",), ("Retry-After: 3600",)])
@pytest.mark.parametrize("status", [429, 503])
def test_it_does_not_come_back_otherwise(there, status, headers):
    there.answers += [answer(status, {}, *headers)]
    with acting() as made:
        refused(made, "x", "t", {"type": "memory"})
    assert len(there.asked) == 1


def test_it_does_not_come_back_for_ever(there):
    there.answers += [answer(429, {}, "Retry-After: 0")] * 10
    with acting() as made:
        assert "too many requests" in refused(made, "x", "t", {"type": "memory"})
    assert len(there.asked) == 3


@pytest.mark.parametrize("status", [500, 502, 504])
def test_what_may_have_been_carried_out_is_not_asked_again(there, status):
    there.answers += [answer(status, {}, "Retry-After: 0")]
    with acting() as made:
        refused(made, "x", "t", {"type": "memory"})
    assert len(there.asked) == 1


def test_an_action_that_is_told_to_end_does_not_wait_to_come_back(there):
    there.answers += [answer(429, {}, "Retry-After: 50")]
    with acting() as made:
        threading.Timer(0.1, made.terminate).start()
        began = time.monotonic()
        refused(made, "x", "t", {"type": "memory"})
        assert time.monotonic() - began < 40


# --- servers that are none

@pytest.mark.parametrize("say, says", [(b"", "hung up"), (b"HTTP/1.1 202 Acc", "no JSON object"),
                                       (b"nonsense\r\n\r\n", "does not speak HTTP: should the host begin with https"),
                                       (b"HTTP/1.1 202 A\r\nContent-Length: 100\r\n\r\n{", "hung up"),
                                       (b"HTTP/1.1 202 A\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "hung up"),
                                       (b"HTTP/1.1 202 A\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "hung up"),
                                       (b"HTTP/1.1 202 A\r\n" + b"X: y\r\n" * 200 + b"\r\n", "not speak HTTP"),
                                       (b"HTTP/1.1 202 A\r\nX: " + b"y" * 100000 + b"\r\n\r\n", "not speak HTTP"),
                                       (b"HTTP/1.1 99999 A\r\n\r\n", "not speak HTTP"),
                                       (b"\xff" * 100 + b"\r\n", "not speak HTTP"),
                                       (answer(202, b"nonsense"), "no JSON object"), (answer(202, b"[1]"), "no JSON object"),
                                       (answer(202, b""), "no JSON object"),
                                       (answer(202, b"\xff\xfe"), "no JSON object"),
                                       (answer(202, b"[" * 100000), "no JSON object"),
                                       (answer(202, {}), "without an activationId"),
                                       (answer(202, {"activationId": 5}), "without an activationId"),
                                       (answer(202, {"activationId": "a\nb"}), "without an activationId"),
                                       (answer(202, b"x" * ((1 << 20) + 1)), "more than 1048576 bytes")])
def test_answers_that_are_none(there, say, says):
    there.answers.append(say)
    with acting() as made, pytest.raises(disagg.InvokeError, match=says) as caught:
        made.runtime.invoke("x", "t", {"type": "memory"})
    no_key_in(shown(caught.value))
    assert "not known whether it was started" in str(caught.value)
    assert len(there.asked) == 1


def test_an_answer_without_end(there):
    def flood(sock):
        sock.sendall(b"HTTP/1.1 202 A\r\n\r\n")
        while not there.over.is_set():
            sock.sendall(b"x" * 65536)
    there.answers.append(flood)
    with acting() as made:
        assert "more than 1048576 bytes" in refused(made, "x", "t", {"type": "memory"})


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 202 A\r\nContent-Length: 100000\r\n\r\n"])
def test_a_server_that_trickles(there, head):
    def trickle(sock):
        sock.sendall(head)
        while not there.over.wait(0.02):
            sock.sendall(b"H")
    there.answers.append(trickle)
    with acting(timeout=0.5) as made:
        said = refused(made, "x", "t", {"type": "memory"})
        assert within("did not answer", 0.5, said) and "not known whether it was started" in said


def test_a_server_that_only_says_to_go_on(there):
    def go_on(sock):
        while not there.over.wait(0.01):
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    there.answers.append(go_on)
    with acting(timeout=0.5) as made:
        assert "did not answer within" in refused(made, "x", "t", {"type": "memory"})


def test_a_server_that_never_answers(there):
    there.answers.append(lambda sock: there.over.wait(BOUND))
    with acting(timeout=0.3) as made:
        assert within("did not answer", 0.3, refused(made, "x", "t", {"type": "memory"}))


def test_the_deadline_of_the_activation_bounds_it(there, monkeypatch):
    there.answers.append(lambda sock: there.over.wait(BOUND))
    monkeypatch.setenv("__OW_DEADLINE", str(int((time.time() + 0.5) * 1000)))
    with acting() as made:
        assert "did not answer within" in refused(made, "x", "t", {"type": "memory"})
        monkeypatch.setenv("__OW_DEADLINE", str(int((time.time() - 1) * 1000)))
        assert "deadline of this activation is over" in refused(made, "x", "t", {"type": "memory"})
    assert len(there.asked) == 1


def test_an_answer_to_a_request_that_was_not_read(there, monkeypatch):
    """A server that refuses what is too large may say so before it has read it, and hang up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = server.accept()
        with peer:
            peer.recv(1024)
            peer.sendall(answer(413, {"error": "too large"}))
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(BOUND)
            with contextlib.suppress(OSError):
                while peer.recv(1 << 20):
                    pass
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("__OW_API_HOST", f"http://127.0.0.1:{server.getsockname()[1]}")
    with server, acting() as made:
        assert "belongs in a memory element (413: too large)" in refused(made, "x", "t",
                                                                         {"type": "compute", "params": {"x": "y" * (8 << 20)}})
        thread.join(BOUND)


def test_nobody_is_there(there, monkeypatch):
    port = ports.take()
    monkeypatch.setenv("__OW_API_HOST", f"http://127.0.0.1:{port}")
    with acting() as made:
        said = refused(made, "words", "t", {"type": "memory"})
        assert f"cannot be asked to invoke words: nothing listens at http://127.0.0.1:{port}" in said and "not known" not in said


def test_a_host_that_nobody_knows(there, monkeypatch):
    monkeypatch.setenv("__OW_API_HOST", "http://no-such-host.invalid")
    with acting() as made:
        assert "cannot be resolved" in refused(made, "x", "t", {"type": "memory"})


def test_a_resolver_that_does_not_answer(there, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: there.over.wait(BOUND) and [])
    with acting(timeout=0.2) as made:
        assert "the resolver does not answer" in refused(made, "x", "t", {"type": "memory"})


def test_a_host_that_is_silent(there, monkeypatch):
    """One whose queue of connections is full answers no more of them."""
    full, more = socket.socket(), []
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    for _ in range(8):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(full.getsockname())
        more.append(one)
    monkeypatch.setenv("__OW_API_HOST", f"http://127.0.0.1:{full.getsockname()[1]}")
    with acting(timeout=0.5) as made:
        said = refused(made, "x", "t", {"type": "memory"})
        assert within("could not be reached", 0.5, said)
    for one in (full, *more):
        one.close()


# --- TLS

@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """One for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    where = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                    "2",
                    "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(where / "key"), "-out",
                    str(where / "cert")],
                   check=True, capture_output=True, timeout=BOUND)
    return where


@pytest.fixture
def tls(there, certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    server = StandIn(context)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("__OW_API_HOST", f"127.0.0.1:{server.port}")  # https is what is meant
    yield server
    server.close()


def test_a_certificate_that_is_trusted(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))
    tls.answers += [STARTED]
    with acting() as made:
        made.runtime.invoke("x", "t", {"type": "memory"})
    assert tls.asked[0][2]["host"] == f"127.0.0.1:{tls.port}"


def test_a_certificate_that_is_not(tls):
    with acting() as made:
        said = refused(made, "x", "t", {"type": "memory"})
        assert "is not to be trusted" in said and "SSL_CERT_FILE" in said and "__OW_IGNORE_CERTS" in said
    assert not tls.asked


def test_a_certificate_for_another_host(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))
    monkeypatch.setenv("__OW_API_HOST", f"localhost:{tls.port}")
    with acting() as made:
        assert "is not to be trusted" in refused(made, "x", "t", {"type": "memory"})
    assert not tls.asked


def test_certificates_that_are_ignored_are_warned_of(tls, monkeypatch):
    monkeypatch.setenv("__OW_IGNORE_CERTS", "true")
    tls.answers += [STARTED]
    with pytest.warns(RuntimeWarning, match="__OW_IGNORE_CERTS"), acting() as made:
        made.runtime.invoke("x", "t", {"type": "memory"})
    assert len(tls.asked) == 1


def test_tls_with_one_that_does_not_speak_it(there, monkeypatch):
    monkeypatch.setenv("__OW_API_HOST", f"https://127.0.0.1:{there.port}")

    def serve():
        peer, _ = server.accept()
        with peer:
            peer.recv(1024)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with socket.create_server(("127.0.0.1", 0)) as server, acting() as made:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        made.runtime.backend._server.port = server.getsockname()[1]
        assert "does not speak TLS" in refused(made, "x", "t", {"type": "memory"})
        thread.join(BOUND)


def test_tls_that_trickles(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))

    def trickle(sock):
        while not tls.over.wait(0.02):
            sock.sendall(b"H")
    tls.answers.append(trickle)
    with acting(timeout=1) as made:
        assert within("did not answer", 1, refused(made, "x", "t", {"type": "memory"}))


def test_a_handshake_that_never_ends(there, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("__OW_API_HOST", f"https://127.0.0.1:{silent.getsockname()[1]}")
        with acting(timeout=0.3) as made:
            assert within("could not be reached", 0.3, refused(made, "x", "t", {"type": "memory"}))


def test_no_thread_and_no_socket_is_left(there):
    there.answers += [STARTED] * 21
    with acting() as made:
        made.runtime.invoke("x", "first", {"type": "memory"})
        threads, sockets = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for i in range(20):
            made.runtime.invoke("x", f"t{i}", {"type": "compute"})
        assert threading.active_count() == threads
        until(lambda: len(os.listdir("/proc/self/fd")) <= sockets, "that the other side has closed its own, too")
