"""Elements on OpenWhisk, whole: programs that invoke, use and release memory, over a small OpenWhisk that runs them in
`disagg.serve`."""
# ctest: long
import json
import re

import pytest

from controllerside import KEY, Controller, until

MEMORY = """
type: memory
limits:
  mem: 1 MB
"""

USES = """
def main(params, action):
    action.runtime.invoke("words", "more", {"size": 4096, "grace": 0.2, "patience": 5})
    trans = action.get_transport("more", "rdma")
    trans.reg(64)
    trans.buf[:5] = b"hello"
    trans.write(5, 4000, 0, timeout=30)
    trans.read(5, 4000, 32)
    read, size = bytes(trans.buf[32:37]).decode(), trans.wait_ready(30)
    action.runtime.release("more")
    try:
        trans.read(5, 4000)
        after = "nothing"
    except Exception as error:
        after = type(error).__name__
    return {"read": read, "size": size, "after": after}
"""

# by itself, and not with its deadline; one that was used for a moment only may not have noticed
UNUSED = ("unused", "nobody came")


def nothing_is_told(controller):
    """No authentication key and no region key is in what containers print, or in what activations answer."""
    texts = [text for one in controller.containers for text in one.printed()] + [json.dumps(one.response)
                                                                                 for one in controller.activations]
    for text in texts:
        assert KEY not in text and KEY.split(":")[1] not in text
        assert not re.search(r"token,[0-9a-zA-Z_-]{8}|key=[0-9a-f]{16}", text), text


def test_memory_is_invoked_used_and_released_and_ends():
    with Controller() as controller:
        controller.create("words", MEMORY, type="memory")
        controller.create("uses", USES)
        assert controller.invoke("uses").wait() == (200, {"read": "hello", "size": 4096, "after": "ClosedError"})
        status, said = controller.of("words")[0].wait()
        assert (status, said["name"]) == (200, "more") and said["ended"] in UNUSED, said
        # once more, in the same containers
        assert controller.invoke("uses").wait()[0] == 200
        assert controller.of("words")[1].wait()[1]["ended"] in UNUSED
        assert len(controller.containers) == 2
        nothing_is_told(controller)


def test_memory_that_was_never_released_ends_with_its_user():
    with Controller() as controller:
        controller.create("words", MEMORY, type="memory")
        controller.create("uses", """
            def main(params, action):
                action.runtime.invoke("words", "a", {"grace": 0.2, "patience": 5})
                action.runtime.invoke("words", "b", {"size": 64, "grace": 0.2, "patience": 5})
                a, b = action.get_transport("a", "rdma"), action.get_transport("b", "rdma")
                return {"a": a.wait_ready(30), "b": b.wait_ready(30), "ids": sorted(action.runtime.backend.activations)}
            """)
        assert controller.invoke("uses").wait() == (200, {"a": 1 << 20, "b": 64, "ids": ["a", "b"]})
        for one in controller.of("words"):
            assert one.wait()[1]["ended"] in UNUSED, one.wait()


def test_an_element_that_computes_is_invoked():
    with Controller() as controller:
        controller.create("double", """
            def main(params):
                return {"twice": 2 * params["n"], "others": sorted(set(params) - {"n"})}
            """, type="compute")
        controller.create("begins", """
            def main(params, action):
                action.runtime.invoke("double", "d", {"params": {"n": 21}})
                return {"id": action.runtime.backend.activations["d"]}
            """)
        status, said = controller.invoke("begins").wait()
        assert status == 200
        double = controller.of("double")[0]
        assert double.aid == said["id"] and double.wait() == (200, {"twice": 42, "others": []})


def test_a_container_that_dies_leaves_nobody_waiting():
    with Controller() as controller:
        controller.create("words", MEMORY, type="memory")
        controller.create("uses", """
            import time
            def main(params, action):
                action.runtime.invoke("words", "more")
                trans = action.get_transport("more", "rdma")
                trans.reg(4096)
                trans.write(4096, 0, timeout=30)
                print("written", flush=True)
                try:
                    while True:
                        trans.read(4096, 0)
                except ConnectionError as error:
                    return {"error": type(error).__name__, "state": trans.state}
            """)
        uses = controller.invoke("uses")
        until(lambda: uses.container is not None, "a container")
        uses.container.until_printed("written")
        controller.kill(controller.of("words")[0])
        status, said = uses.wait()
        assert status == 200 and said["error"] in ("PeerError", "UnreachableError", "RefusedError", "ClosedError"), said


def test_a_memory_element_that_dies_before_it_said_where_it_is():
    """Nobody can know; the activation's deadline is the bound."""
    with Controller() as controller:
        controller.create("words", "def main(params):\n    import os\n    os._exit(3)\n", type="memory")
        controller.create("uses", """
            def main(params, action):
                action.runtime.invoke("words", "more")
                trans = action.get_transport("more", "rdma")
                trans.reg(64)
                try:
                    trans.read(64, 0, timeout=params["timeout"])
                except TimeoutError:
                    return {"state": trans.state, "says": trans.describe()}
            """)
        status, said = controller.invoke("uses", {"timeout": 0.5}).wait()
        assert (status, said["state"]) == (200, "waiting") and "waits to be told" in said["says"]
        status, said = controller.invoke("uses", {"timeout": None}, seconds=4).wait()
        assert status == 502 and "time was over" in said["error"], said
        assert controller.of("words")[0].wait()[0] == 502


@pytest.mark.parametrize("key, says", [("some:body", "does not know the key in __OW_API_KEY"), (None, "provide-api-key true")])
def test_a_key_that_is_wrong_or_not_given(key, says):
    with Controller(api_key=key) as controller:
        controller.create("words", MEMORY, type="memory")
        controller.create("uses", USES, **({} if key else {"provide-api-key": False}))
        status, said = controller.invoke("uses").wait()
        assert status == 200 and says in said["error"], said
        assert not controller.of("words")
        nothing_is_told(controller)


def test_an_action_that_is_not_there():
    with Controller() as controller:
        controller.create("uses", USES)
        status, said = controller.invoke("uses").wait()
        assert status == 200 and "there is no action words: `wsk action list`" in said["error"]


def test_a_stranger_cannot_say_where_the_memory_is():
    with Controller() as controller:
        # one that says nothing
        controller.create("words", "import time\ndef main(params):\n    time.sleep(0.5)\n    return {}\n", type="memory")
        controller.create("uses", """
            def main(params, action):
                action.runtime.invoke("words", "more")
                trans = action.get_transport("more", "rdma")
                print("invoked", flush=True)
                try:
                    trans.wait_ready(3)
                except TimeoutError:
                    return {"state": trans.state}
            """)
        uses = controller.invoke("uses")
        until(lambda: uses.container is not None, "a container")
        uses.container.until_printed("invoked")
        stranger = "more;rdma_tcp;url,tcp://127.0.0.1:9;"
        for query in ("", "?key=", "?key=" + "0" * 64):
            assert uses.container.put(uses.aid, "more", stranger, query)[0] == 403
        assert uses.wait() == (200, {"state": "waiting"})


def test_an_element_that_is_released_before_it_came_ends():
    with Controller() as controller:
        controller.create("words", MEMORY, type="memory")
        controller.create("uses", """
            def main(params, action):
                action.runtime.invoke("words", "more", {"patience": 0.5})
                action.runtime.release("more")
                return {}
            """)
        assert controller.invoke("uses").wait() == (200, {})
        status, said = controller.of("words")[0].wait()
        assert status == 502 and "could not be told" in said["error"] or said["ended"] == "nobody came", said
        nothing_is_told(controller)
