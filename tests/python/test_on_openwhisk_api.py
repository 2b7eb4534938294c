"""Where OpenWhisk is, with which key, and what its answers mean, for `weft run --on openwhisk`."""
import asyncio
import json
import time
import traceback

import pytest

from controllerside import KEY, Controller
from disagg._http import Secret
from disagg.on.bridge import Failed
from disagg.on.openwhisk_api import Api, Busy, Refused, Trouble, find, server
from disagg.on.openwhisk_record import outcome, printed

SECRET = KEY.split(":")[1]


def ask(api, *words, **how):
    async def go():
        try:
            return await api.ask(*words, **how)
        finally:
            api.close()
    return asyncio.run(go())


# --- where, and as whom -------------------------------------------------------------------------------------------------------

def test_the_command_line_is_before_the_environment_and_that_before_the_file(tmp_path):
    props = tmp_path / ".wskprops"
    props.write_text("# APIHOST=https://no\nAPIVERSION=v1\nAPIHOST=https://file.example\nNAMESPACE=_\nAUTH=of:thefile\n")
    env = {"HOME": str(tmp_path)}
    assert str(find("", env).server) == "https://file.example:443" and find("", env).key_in == f"{props} (AUTH)"
    env["__OW_API_HOST"] = "http://environment.example:3233"
    assert str(find("", env).server) == "http://environment.example:3233"
    assert str(find("line.example:8443", env).server) == "https://line.example:8443"
    env["__OW_API_KEY"] = "some:body"
    assert find("", env).key_in == "__OW_API_KEY"
    other = tmp_path / "other"
    other.write_text("APIHOST='10.0.0.1'\nAUTH=\"a:b\"\n")
    assert str(find("", {"HOME": "/nowhere", "WSK_CONFIG_FILE": str(other)}).server) == "https://10.0.0.1:443"


def test_what_is_missing_is_asked_for(tmp_path):
    with pytest.raises(Failed, match="where is OpenWhisk.*--on openwhisk://HOST.*__OW_API_HOST.*wsk property set --apihost"):
        find("", {"HOME": str(tmp_path)})
    with pytest.raises(Failed, match="as whom.*__OW_API_KEY.*wsk property set --auth"):
        find("host", {"HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["http://", "ftp://host", "host/path", "http://host:x",
                         "host:99999", "ho st", "http://host?x", "http://[::1", "h\u00f6st"])
def test_an_address_that_is_none(text):
    with pytest.raises(Failed, match="the address of OpenWhisk in --on is not what it should be"):
        server(text, "--on", True)


def test_a_key_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(Failed, match="has a key in it, which everybody sees") as caught:
        server(f"https://{KEY}@host", "--on", True)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["nocolon", "a:b c", "a:\u00e9", "a:\n"])
def test_a_key_that_is_none(key):
    with pytest.raises(Failed, match="the key in __OW_API_KEY is not what it should be: USER:PASSWORD") as caught:
        find("host", {"__OW_API_KEY": key})
    assert key not in str(caught.value)


# --- answers ------------------------------------------------------------------------------------------------------------------

def api_of(controller, key=KEY):
    return Api(server(controller.host, "--on", True), Secret(key), "__OW_API_KEY")


@pytest.mark.parametrize("status, kind, says", [
    (400, Refused, "does not accept the request to look"), (401, Refused, "does not know the key in __OW_API_KEY"),
    (403, Refused, "has no right to look"), (404, Refused, "is it an OpenWhisk"), (405, Refused, "is it an OpenWhisk"),
    (409, Refused, "conflict"), (413, Refused, "larger than it takes"), (418,
     Refused, "never should"), (302, Refused, "sends requests elsewhere"),
    (429, Busy, "too busy to look"), (503, Busy, "too busy to look"), (500,
     Trouble, "failed to look"), (502, Trouble, "failed to look"),
    (504, Trouble, "failed to look")])
def test_a_status_has_a_sentence(status, kind, says):
    with Controller(fault=lambda method, path: (status, {"error": f"its words {KEY}"})) as controller:
        with pytest.raises(kind) as caught:
            ask(api_of(controller), "GET", "/x", "look")
        assert says in str(caught.value) and "its words (key)" in str(caught.value)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("raw", [
    b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n77",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000])
def test_an_answer_that_is_none_is_trouble(raw):
    with Controller(fault=lambda method, path: raw) as controller:
        with pytest.raises(Trouble) as caught:
            ask(api_of(controller), "POST", "/x", "look", Secret("{}"))
        assert caught.value.asked


def test_one_that_does_not_answer_is_trouble_in_time():
    with Controller(fault=lambda method, path: "hang") as controller:
        with pytest.raises(Trouble, match="did not answer within"):
            ask(api_of(controller), "GET", "/x", "look", seconds=0.3)


def test_nobody_there_was_not_asked():
    with Controller() as controller:
        api = api_of(controller)
    with pytest.raises(Trouble, match="nothing listens at") as caught:
        ask(api, "GET", "/x", "look")
    assert not caught.value.asked and not isinstance(caught.value, Busy)


def test_patience_ends():
    async def go(api, seconds):
        try:
            return await api.patiently("GET", "/api/v1/namespaces", "look", seconds=seconds)
        finally:
            api.close()
    answers = [(503, {}), (500, {}), b"", (429, {})]
    with Controller(fault=lambda method, path: answers.pop(0) if answers else None) as controller:
        assert asyncio.run(go(api_of(controller), 60)) == ["guest"] and len(controller.asked) == 5
    with Controller(fault=lambda method, path: (500, {"error": "always"})) as controller, pytest.raises(Trouble, match="always"):
        asyncio.run(go(api_of(controller), 1.0))

    def once(_method, _path):  # and then nothing more comes in time
        if controller.asked[1:]:
            time.sleep(3)
        return 500, {"error": "first"}
    with Controller(fault=once) as controller, pytest.raises(Trouble, match="first"):
        asyncio.run(go(api_of(controller), 1.0))


def test_a_large_answer_is_read():
    """A record has a result, and logs of up to 10 MB."""
    logs = ["x" * 1000] * 12_000
    with Controller(fault=lambda method, path: (200, {"logs": logs})) as controller:
        assert ask(api_of(controller), "GET", "/x", "look", seconds=60)["logs"] == logs


def test_requests_are_those_of_the_reference():
    """The small OpenWhisk of these tests answers as the REST reference says: what it is asked for is in it."""
    with Controller() as controller:
        api = api_of(controller)

        async def go():
            base = "/api/v1/namespaces/_"
            assert await api.ask("GET", f"{base}/limits", "x") == controller.limits
            notes = json.dumps({"annotations": [{"key": "a", "value": 1}]})
            await api.ask("PUT", f"{base}/packages/p?overwrite=true", "x", Secret(notes))
            with pytest.raises(Refused, match="already exists"):
                await api.ask("PUT", f"{base}/packages/p", "x", Secret("{}"))
            body = {
    "exec": {
        "kind": "blackbox",
        "image": "i",
        "code": "def main(params):\n    return {'n': params['n'] + 1}\n",
         "binary": False}}
            assert (await api.ask("PUT", f"{base}/actions/p/a", "x", Secret(json.dumps(body))))["namespace"] == "guest/p"
            for wrong in ({"exec": {"kind": "blackbox"}}, {**body, "limits": {"memory": 5000}},
                          {**body, "limits": {"timeout": 1}}):
                with pytest.raises(Refused, match="400"):
                    await api.ask("PUT", f"{base}/actions/p/b", "x", Secret(json.dumps(wrong)))
            with pytest.raises(Refused, match="illegal characters"):
                await api.ask("PUT", f"{base}/actions/p/%3Fb", "x", Secret(json.dumps(body)))
            with pytest.raises(Refused, match="does not exist"):
                await api.ask("PUT", f"{base}/actions/q/b", "x", Secret(json.dumps(body)))
            with pytest.raises(Refused, match="not empty"):
                await api.ask("DELETE", f"{base}/packages/p", "x")
            with pytest.raises(Refused, match="413"):
                large = Secret(json.dumps({"n": "x" * (1 << 20)}))
                await api.ask("POST", f"{base}/actions/p/a?blocking=false&result=false", "x", large)
            said = await api.ask("POST", f"{base}/actions/p/a?blocking=false&result=false", "x", Secret('{"n": 1}'))
            one, = controller.activations
            assert said == {"activationId": one.aid} and one.wait() == (200, {"n": 2})
            record = await api.ask("GET", f"{base}/activations/{one.aid}", "x")
            assert record["response"]["status"] == "success" and record["response"]["result"] == {"n": 2} and record["logs"] == []
            assert (await api.ask("GET", f"{base}/activations/{one.aid}/result", "x"))["success"] is True
            assert await api.ask("GET", f"{base}/activations/{one.aid}/logs", "x") == {"logs": []}
            assert [each["activationId"] for each in await api.ask("GET", f"{base}/activations?limit=1", "x")] == [one.aid]
            assert [each["name"] for each in (await api.ask("GET", f"{base}/packages/p", "x"))["actions"]] == ["a"]
            for path, words in (("activations/" + "0" * 32, "404"), ("activations/x", "400"), ("nothing", "404")):
                with pytest.raises(Refused, match=words):
                    await api.ask("GET", f"{base}/{path}", "x")
            with pytest.raises(Refused, match="403"):
                await api.ask("GET", "/api/v1/namespaces/other/actions", "x")
            await api.ask("DELETE", f"{base}/actions/p/a", "x")
            await api.ask("DELETE", f"{base}/packages/p", "x")
        asyncio.run(go())
        api.close()
        assert not controller.actions and not controller.packages
    with Controller() as controller, pytest.raises(Refused, match="401"):
        ask(api_of(controller, "some:body"), "GET", "/api/v1/namespaces", "look")


# --- records ------------------------------------------------------------------------------------------------------------------

def failed(words, status="action developer error"):
    return outcome({"response": {"status": status, "success": False, "result": {"error": words}}}, 256)


def test_a_record_says_how_it_went():
    said = [{"did": "heard"}, {"did": "over"}]
    assert outcome({"response": {"status": "success", "result": {"said": said}}}, 1).said == said
    assert outcome({"response": {"status": "application error", "result": {"error": {"said": [*said, 7]}}}}, 1).said == said
    assert failed("The action exceeded its time limits of 300000 milliseconds.").late
    assert failed("The action did not end in time: its deadline has passed, and its process was ended.").late
    assert failed("The action exhausted its memory and was aborted.").error == (
        "The action exhausted its memory and was aborted (its container had 256 MB)")
    assert "its result has 3145 bytes, and this OpenWhisk takes 1024" in failed(
        "The action produced a response that exceeded the allowed length: 3145 > 1024 bytes. The truncated response was: x").error
    assert failed("Failed to provision resources to run the action.", "whisk internal error").lost
    assert failed("The action did not produce a valid response and exited unexpectedly.").lost
    assert failed("Failed to pull it").error == "its activation failed (action developer error): Failed to pull it"
    for nothing in ({}, {"response": 7}, {"response": {"status": "success", "result": {}}}, {"response": {"result": 7}}):
        assert outcome(nothing, 1).lost == "its activation ended, and did not say how it went"


def test_a_log_has_two_streams():
    logs = [
    "2026-01-01T00:00:00.123Z stdout: a: b",
    "2026-01-01T00:00:00.123456789Z      stderr: c",
    "2026-01-01T00:00:00Z stdout:",
    "no time",
     7]
    assert list(printed(logs)) == [(1, "a: b"), (2, "c"), (1, ""), (2, "no time"), (2, "7")]
    assert list(printed(None)) == list(printed({"a": 1})) == []
