"""The invoker of Scad's OpenWhisk, at __OW_INVOKER_API: release by DELETE, memory by POST. Each test says what Scad does."""
import json
import threading

import pytest

import disagg
import weft
from disagg.invoker import Invoker, place
from disagg.openwhisk import OpenWhisk

from elementside import BOUND, action, memory
from httpside import Site
from whiskside import Whisk, in_ms

VARIABLES = ("__OW_API_HOST", "__OW_API_KEY", "WEFT_LAUNCHER", "__OW_DEADLINE", "__OW_ACTIVATION_ID", "__OW_APP_ACTIVATION_ID",
             "__OW_FUNCTION_ACTIVATION_ID", "__OW_ACTION_NAME", "__OW_INVOKER_API")


@pytest.fixture
def site(monkeypatch):
    """An invoker, and an environment that names it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with Site() as made:
        monkeypatch.setenv("__OW_INVOKER_API", made.url)
        monkeypatch.setenv("__OW_FUNCTION_ACTIVATION_ID", "fun")
        monkeypatch.setenv("__OW_APP_ACTIVATION_ID", "app")
        monkeypatch.setenv("__OW_ACTION_NAME", "/guest/app/compute")
        yield made


def test_release_is_a_delete_at_the_invoker(site):
    # Scad: DELETE $__OW_INVOKER_API/activation/AID/transport/NAME, answered by 200 "ok", whatever it knows
    with memory(64) as element, action(element.durl) as made:
        made.aid = "the/id"
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        trans.read(8, 0)
        assert made.runtime.release("mem") is None
        with pytest.raises(weft.ClosedError):
            trans.read(8, 0)
    (asked,) = site.asked
    assert asked[:2] == ("DELETE", "/activation/the%2Fid/transport/mem") and asked[3] == "" and "authorization" not in asked[2]


def test_release_goes_there_beside_openwhisk_too(site, monkeypatch):
    # Scad: invoke and release both go to the invoker. Here memory is started by the REST API where that can be used
    monkeypatch.setenv("__OW_API_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("__OW_API_KEY", "user:password")
    with memory(64) as element, action(element.durl) as made:
        made.aid = "a1"
        assert isinstance(made.runtime.backend, OpenWhisk)
        made.runtime.release("mem")
    assert [one[:2] for one in site.asked] == [("DELETE", "/activation/a1/transport/mem")]


def test_without_the_variable_nobody_is_asked(site, monkeypatch):
    monkeypatch.setenv("__OW_API_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("__OW_API_KEY", "user:password")
    monkeypatch.delenv("__OW_INVOKER_API")
    with memory(64) as element, action(element.durl) as made:
        made.runtime.release("mem")
    assert site.asked == []


@pytest.mark.parametrize("status, good", [(200, True), (204, True), (404, True), (410, True), (403, False), (500, False), (302, False)])
def test_what_the_invoker_answers(site, status, good):
    site.status = status
    with memory(64) as element, action(element.durl) as made:
        made.aid = "a1"
        if good:
            made.runtime.release("mem")
        else:
            with pytest.raises(disagg.InvokeError, match=f"refused to release mem \\({status}\\)"):
                made.runtime.release("mem")
        with pytest.raises(MemoryError):  # it is released here, whatever was answered
            made.get_transport("mem", "rdma")
    assert len(site.asked) == 1


def test_memory_is_started_by_a_post(site):
    # Scad: {"swap": {"actionName", "functionActivationId", "appActivationId", "mem"}}, and the transport is one of rdma_uverbs_proxy
    with memory(64 << 10, "more") as element, action() as made:
        made.aid = "a1"
        assert made.runtime.invokeMem("words", "more", "64 KB") is None
        trans = made.get_transport("more", "rdma")
        assert trans.state == "waiting"
        made.config_transport("more", element.durl.partition(";rdma_tcp;")[2])  # which the invoker does by a PUT
        trans.reg(8)
        assert trans.write(8, 0, timeout=BOUND) == 0
        made.runtime.release("more")
    assert [one[:2] for one in site.asked] == [("POST", "/activation/a1/transport/more"), ("DELETE", "/activation/a1/transport/more")]
    assert json.loads(site.asked[0][3]) == {"swap": {"actionName": "/guest/app/words", "functionActivationId": "fun",
                                                     "appActivationId": "app", "mem": "65536 B"}}


def test_what_the_invoker_cannot_start(site):
    with action() as made:
        made.aid = "a1"
        for args, says in ((("words", "more"), "how large"), (("words", "more", {"params": {}, "size": 1}), "memory only"),
                           (("words", "more", {"type": "compute", "size": 1}), "memory only"), (("words", "a;b", {"size": 1}), "is no name"),
                           (("words", "more", {"sise": 1}), "did you mean")):
            with pytest.raises(disagg.InvokeError, match=says):
                made.runtime.invoke(*args)
        assert site.asked == []
        site.status = 500
        with pytest.raises(disagg.InvokeError, match="refused to start words \\(500\\)"):
            made.runtime.invokeMem("words", "more", "1 MB")
        assert made.raw_transports == {}
        made.aid = ""
        with pytest.raises(disagg.InvokeError, match="no id"):
            made.runtime.release("more")


def test_an_invoker_that_does_not_answer_is_given_up(site, monkeypatch):
    over = threading.Event()
    site.status = lambda handler: over.wait(BOUND) and None
    with action() as made:
        made.aid = "a1"
        made.runtime.backend.timeout = 0.1
        with pytest.raises(disagg.InvokeError, match=r" within 0\.\d+ s"):
            made.runtime.release("more")
        over.set()
        monkeypatch.setenv("__OW_DEADLINE", str(in_ms(-1)))
        with pytest.raises(disagg.InvokeError, match="deadline"):
            made.runtime.release("more")
    site.close()
    monkeypatch.delenv("__OW_DEADLINE")
    with action() as made:
        made.aid = "a1"
        with pytest.raises(disagg.InvokeError, match="nothing listens at"):
            made.runtime.release("more")


@pytest.mark.parametrize("text, found", [("http://172.17.0.1:8081", (False, "172.17.0.1", 8081, "")), ("localhost", (False, "localhost", 80, "")),
                                         ("10.0.0.1:81", (False, "10.0.0.1", 81, "")), ("https://x/y/", (True, "x", 443, "/y")),
                                         ("http://[::1]:5", (False, "::1", 5, ""))])
def test_places(text, found):
    assert place(text) == found


@pytest.mark.parametrize("text", ["", "http://", "ftp://x", "http://x:port", "http://u:p@x", "http://x?y", "http://x#y", "http://x y", "http://[::1"])
def test_places_that_are_none(text, site, monkeypatch):
    monkeypatch.setenv("__OW_INVOKER_API", text)
    with pytest.raises(disagg.InvokeError, match="__OW_INVOKER_API"), action() as made:
        Invoker(made)


def test_all_of_it_in_a_runtime():
    """A program as it is written for Scad: invokeMem with a unit, a transport that the invoker configures by its keys, release."""
    whole, configuring = {}, []

    def invoker(handler):
        if handler.command == "POST":
            def configure():
                configuring.append(whole["one"].put("abc", "more", whole["durl"].partition(";rdma_tcp;")[2]))
            threading.Thread(target=configure).start()
        return 200
    with Site(invoker) as made, memory(1 << 20, "memory") as element:
        one = whole["one"] = Whisk(__OW_INVOKER_API=made.url)
        whole["durl"] = element.durl
        try:
            one.loaded("""
                def main(params, action):
                    action.runtime.invokeMem("words", "more", "1 MB")
                    trans = action.get_transport("more", "rdma")
                    trans.reg(8)
                    trans.buf[:] = b"released"
                    written, view = trans.write(8, 0), trans.buf
                    view[:] = bytes(8)
                    trans.read(8, 0)
                    action.runtime.release("more")
                    return {"written": written, "read": bytes(view).decode()}
                """)
            assert one.run(activation_id="abc", api_key=None, function_activation_id="f", app_activation_id="p",
                           action_name="/guest/app/it") == (200, {"written": 0, "read": "released"})
        finally:
            one.close()
        assert configuring == [(200, {"ok": True})]
        assert [asked[:2] for asked in made.asked] == [("POST", "/activation/abc/transport/more"), ("DELETE", "/activation/abc/transport/more")]
        assert json.loads(made.asked[0][3])["swap"]["actionName"] == "/guest/app/words"
