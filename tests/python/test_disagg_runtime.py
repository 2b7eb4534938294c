"""action.runtime: elements started and released through a backend; the local launcher's socket, with one that answers well,
badly and never."""
import json
import os
import socket
import threading

import pytest

import disagg
import weft
from disagg.launcher import Launcher

from elementside import BOUND, Own, action, memory, until


def test_what_is_invoked_can_be_used_and_is_gone_after_release():
    with memory(4096, "words") as element:
        backend = Own(element.durl, None)
        with action(backend=backend) as made:
            assert made.runtime.invoke("words", "more", {"limits": {"mem": "1M"}}) is None
            trans = made.get_transport("more", "rdma")
            trans.reg(8)
            trans.write(8, 0)
            assert trans.name == "more"
            made.runtime.invoke("count", "c")  # which computes
            with pytest.raises(MemoryError):
                made.get_transport("c", "rdma")
            made.runtime.release("more")
            with pytest.raises(weft.ClosedError):
                trans.read(8, 0)
            with pytest.raises(MemoryError):
                made.get_transport("more", "rdma")
            made.runtime.release("c")
        assert backend.asked == [("words", "more", {"limits": {"mem": "1M"}}), ("count", "c", {}), "more", "c"]


def test_a_transport_that_waits_is_configured_by_an_invoke():
    with memory(4096) as element, action("late;rdma_tcp;", backend=Own(element.durl)) as made:
        trans = made.get_transport("late", "rdma")
        made.runtime.invoke("mem", "late")
        trans.reg(8)
        trans.read(8, 0)
        assert made.get_transport("late", "rdma") is trans


def test_invoke_mem_says_a_size():
    with memory(4096) as element:
        backend = Own(element.durl)
        with action(backend=backend) as made:
            made.runtime.invokeMem("mem", "big", 4096.0)
            assert backend.asked == [("mem", "big", {"size": 4096})]
            for bad in (1.5, -1):
                with pytest.raises(ValueError):
                    made.runtime.invokeMem("mem", "x", bad)


def test_a_durl_keeps_its_name_under_another_one():
    with memory(4096, "words", named=True) as element:
        durl = f"words;rdma_tcp;size,4096;url,{element.uri};"  # which says no more than the name
        with action(backend=Own(durl, durl, "nonsense", "words;rdma_tcp;")) as made:
            for name in ("more", "another"):
                made.runtime.invoke("words", name)
            one, two = made.get_transport("more", "rdma"), made.get_transport("another", "rdma")
            one.reg(8)
            two.reg(8)
            one.buf[:] = b"the same"
            one.write(8, 0, timeout=BOUND)
            two.read(8, 0, timeout=BOUND)
            assert bytes(two.buf) == b"the same"
            for _ in range(2):
                with pytest.raises(ValueError):
                    made.runtime.invoke("words", "bad")
                with pytest.raises(MemoryError):
                    made.get_transport("bad", "rdma")


def test_what_a_backend_does_to_props_stays_with_it():
    class Greedy(Own):
        def invoke(self, template, trans, props):
            props["mine"] = 1
    props = {"limits": {}}
    with action(backend=Greedy()) as made:
        made.runtime.invoke("x", "y", props)
    assert props == {"limits": {}}


def test_a_backend_that_fails_does_not_keep_the_transport():
    class Broken(Own):
        def release(self, name):
            raise disagg.InvokeError("no")
    with memory(64) as element, action(backend=Broken(element.durl)) as made:
        made.runtime.invoke("mem", "x")
        trans = made.get_transport("x", "rdma")
        trans.reg(8)
        with pytest.raises(disagg.InvokeError):
            made.runtime.release("x")
        with pytest.raises(weft.ClosedError):
            trans.read(8, 0)


def test_names_are_names():
    with action(backend=Own()) as made:
        for bad in (lambda: made.runtime.invoke("", "x"), lambda: made.runtime.invoke("x", None),
                    lambda: made.runtime.invoke("x", "y", []), lambda: made.runtime.release(""), lambda: made.runtime.release(7)):
            with pytest.raises(TypeError):
                bad()


def test_without_a_launcher_there_is_a_sentence(monkeypatch):
    monkeypatch.delenv("WEFT_LAUNCHER", raising=False)
    monkeypatch.delenv("__OW_API_HOST", raising=False)
    with action() as made, pytest.raises(disagg.InvokeError, match="weft run"):
        made.runtime.invoke("x", "y")


def test_the_base_of_backends_does_nothing():
    with pytest.raises(NotImplementedError):
        disagg.Backend().invoke("a", "b", {})
    with pytest.raises(NotImplementedError):
        disagg.Backend().release("a")


# --- the launcher's socket

@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A launcher that answers with what a test says: bytes, or a function of the question."""
    path = str(tmp_path / "launcher")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    answers, asked = [], []

    def serve():
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(BOUND)
                asked.append(json.loads(peer.makefile("rb").readline()))
                answer = answers.pop(0)
                if answer is None:
                    until(lambda: answers, "the test is over")
                    continue
                try:
                    peer.sendall(answer)
                except OSError:
                    pass
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("WEFT_LAUNCHER", path)
    monkeypatch.delenv("__OW_API_HOST", raising=False)
    yield answers, asked, path
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    answers.append(b"")
    thread.join(BOUND)


def test_the_launcher_is_asked_by_its_socket(launcher):
    answers, asked, _ = launcher
    with memory(4096, "more") as element, action() as made:
        answers += [json.dumps({"ok": True, "durl": element.durl, "unknown": 1}).encode() + b"\n", b'{"ok": true}\n',
                    b'{"ok": true}\n']
        made.runtime.invoke("words", "more", {"size": 4096})
        trans = made.get_transport("more", "rdma")
        trans.reg(8)
        trans.read(8, 0)
        made.runtime.invoke("count", "two")
        made.runtime.release("more")
        with pytest.raises(weft.ClosedError):
            trans.read(8, 0)
    assert asked == [{"do": "invoke", "template": "words", "trans": "more", "props": {"size": 4096}},
                     {"do": "invoke", "template": "count", "trans": "two", "props": {}}, {"do": "release", "name": "more"}]


@pytest.mark.parametrize("answer, says", [(b'{"ok": false, "error": "there is no element"}\n', "there is no element"),
                                          (b'{"ok": false}\n', "did not say why"),
                                          (b"", "hung up"), (b'{"ok": tr', "hung up"), (b"nonsense\n", "no JSON"),
                                          (b"[1]\n", "does not say"),
                                          (b'{"ok": 1}\n', "does not say"), (b'{"ok": true, "durl": 5}\n', "no text"),
                                          (b"\xff\xfe\n", "no JSON"),
                                          (b"x" * (1 << 17), "longer"), (b"[" * 60000 + b"\n", "no JSON|longer|does not")])
def test_a_launcher_that_answers_badly(launcher, answer, says):
    answers, _, _ = launcher
    answers.append(answer)
    with action() as made, pytest.raises(disagg.InvokeError, match=says):
        made.runtime.invoke("x", "y")


def test_a_durl_of_the_launcher_that_is_none(launcher):
    launcher[0].append(b'{"ok": true, "durl": "nonsense"}\n')
    with action() as made, pytest.raises(ValueError):
        made.runtime.invoke("x", "y")


def test_a_launcher_that_never_answers_or_is_gone(launcher, tmp_path):
    answers, _, path = launcher
    answers.append(None)
    with pytest.raises(disagg.InvokeError, match="within"):
        Launcher(path, timeout=0.2).invoke("x", "y", {})
    with pytest.raises(disagg.InvokeError, match="still there"):
        Launcher(str(tmp_path / "nobody")).release("x")
    with pytest.raises(disagg.InvokeError):
        Launcher("x" * 500).release("x")


def test_a_launcher_that_answers_slowly_for_ever_is_given_up(tmp_path):
    path, stop = str(tmp_path / "slow"), threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def drip():
            with server.accept()[0] as peer:
                while not stop.wait(0.05):
                    try:
                        peer.sendall(b" ")
                    except OSError:
                        return
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(disagg.InvokeError, match="within"):
                Launcher(path, timeout=0.5).release("x")
        finally:
            stop.set()
            thread.join(BOUND)


def test_props_that_are_no_json_are_not_sent(launcher):
    with action() as made:
        for bad in ({"params": {"x": object()}}, {"params": {"x": float("nan")}}, {"params": {"x": b""}}):
            with pytest.raises(disagg.InvokeError, match="JSON"):
                made.runtime.invoke("x", "y", bad)
    assert not launcher[1]


def test_the_launcher_that_started_us_comes_first(monkeypatch, launcher):
    """Also where the environment names an OpenWhisk: `weft run --on openwhisk` is told by it where that is."""
    monkeypatch.setenv("__OW_API_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("__OW_API_KEY", "user:secret")
    with action() as made:
        assert isinstance(made.runtime.backend, Launcher)
    monkeypatch.delenv("WEFT_LAUNCHER")
    with action() as made:
        assert not isinstance(made.runtime.backend, Launcher)
