"""Elements on the OpenWhisk runtime: transports that come with /run, that are configured while it blocks, and whose memory
dies; keys and secrets."""
# ctest: long
import glob
import hashlib
import hmac
import os
import signal
import subprocess
import sys
import time

import pytest

from elementside import elsewhere, memory, until
from whiskside import BOUND, SENTINEL, Whisk, in_ms


@pytest.fixture
def whisk():
    made = []

    def start(*args, **env):
        made.append(Whisk(*args, **env))
        return made[-1]
    yield start
    for one in made:
        one.close()


def state(path):
    with open(path, encoding="ascii") as f:
        return f.read().rpartition(")")[2].split()[0]


WRITES = """
    def main(params, action):
        trans = action.get_transport(params.get("trans", "mem"), "rdma")
        trans.reg(64)
        trans.buf[:5] = b"hello"
        print("waiting", flush=True)
        trans.write(5, 0)
        trans.read(5, 0, 32)
        return {"read": bytes(trans.buf[32:37]).decode(), "kw": sorted(action.kw), "profiled": len(action.profiled())}
    """


def test_transports_of_run(whisk):
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem:
        for _ in range(2):  # a transport of the last activation is not in the way of the next one's
            assert one.run(transports=[mem.durl], name="it", profile=8, function_activation_id="f", app_activation_id="p") == (
                200, {"read": "hello", "kw": ["app_activation_id", "function_activation_id", "name", "weft"], "profiled": 2})
    assert "token" not in "".join(one.printed())


@pytest.mark.parametrize("by", ["activation_id", "function_activation_id"])
def test_one_is_configured_while_it_waits(whisk, by):
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem, memory(4096, "other") as other, one.running(transports=["mem;rdma_tcp;"], **{by: "the/id"}) as answers:
        one.until_printed("waiting")
        status, said = one.put("the%2Fid", "mem", other.durl)
        assert status == 400 and "that of the element 'other'" in said["error"]
        assert one.put("nobody", "mem", mem.durl)[0] == 404
        assert one.put("the%2Fid", "more", mem.durl) == (404, {"error": "there is no transport 'more' in this activation"})
        for bad in ("junk", "mem;rdma_tcp;", "mem;rdma_nothing;", "mem;rdma_tcp;token,zz;"):
            status, said = one.put("the%2Fid", "mem", bad)
            assert status == 400 and said["error"], bad
        for body in ({}, {"durl": 5}, {"durl": ""}):
            assert one.ask("PUT", "/action/the%2Fid/transport/mem", body)[0] == 400
        assert one.put("the%2Fid", "mem", mem.durl) == (200, {"ok": True})
    assert answers[0][0] == 200 and answers[0][1]["read"] == "hello", answers
    assert one.put("the%2Fid", "mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;")[0] == 404  # it is over


def test_what_is_configured_before_the_run_is_kept_for_it(whisk):
    """Scad's controller does not wait for an activation to begin."""
    one = whisk()
    with memory(4096, "mem") as mem:
        assert one.put("a1", "mem", mem.durl) == (202, {"ok": True})
        one.loaded(WRITES)
        assert one.put("a2", "mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;")[0] == 202
        assert one.put("a1", "another", "mem;rdma_tcp;url,tcp://127.0.0.1:1;")[0] == 202  # the run has none of that name
        status, said = one.run(activation_id="a1", transports=["mem;rdma_tcp;"])
        assert status == 200 and said["read"] == "hello", said
    assert one.put("a1", "mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;")[0] == 404  # it is over
    assert one.put("a1", "mem", "mem;rdma_tcp;url,tcp://127.0.0.1:1;", "?key=" + "0" * 64)[0] == 404


def test_what_is_no_durl_fails_the_run_that_it_was_kept_for(whisk):
    one = whisk().loaded("def main(params, action): return {}")
    assert one.put("a1", "mem", "junk")[0] == 202
    status, said = one.run(activation_id="a1", transports=["mem;rdma_tcp;"])
    assert status == 502 and "durl" in said["error"], said
    assert one.run(activation_id="a2", transports=["mem;rdma_tcp;"]) == (200, {})


def test_not_all_that_is_said_before_a_run_is_kept(whisk):
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem:
        one.put("a1", "mem", mem.durl)
        for i in range(256):
            assert one.put(f"b{i}", "mem", mem.durl)[0] == 202
        status, said = one.run(activation_id="a1", transports=["mem;rdma_tcp;"], deadline=in_ms(2))
        assert status == 502, said


def test_keys_alone_configure(whisk):
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem, one.running(transports=["mem;rdma_tcp;"], activation_id="a1",
                                                   deadline=in_ms(50)) as answers:
        one.until_printed("waiting")
        assert one.put("a1", "mem", mem.durl.split(";", 2)[2]) == (200, {"ok": True})
    assert answers[0][0] == 200 and answers[0][1]["read"] == "hello", answers


def test_profile_may_be_where_scads_monitor_posts_to(whisk):
    one = whisk().loaded("def main(params, action): return {k: action.kw[k] for k in ('post_url', 'plugins')}")
    assert one.run(profile="http://127.0.0.1:1/") == (200, {"post_url": "http://127.0.0.1:1/", "plugins": "monitor"})


INVOKES = """
    import os
    def main(params, action):
        action.add_transport("more;rdma_tcp;")             # as runtime.invoke() does
        print(os.environ["WEFT_ELEMENT_CALLBACK"], os.environ["WEFT_ELEMENT_CALLBACK_KEY"][:4], flush=True)
        with open(params["file"], "w") as f:
            f.write(os.environ["WEFT_ELEMENT_CALLBACK_KEY"])
        trans = action.get_transport("more", "rdma")
        trans.reg(8)
        trans.write(8, 0)
        return {"ok": True}
    """


def test_a_transport_that_the_action_added_needs_its_key(whisk, tmp_path):
    one = whisk(TMPDIR=str(tmp_path)).loaded(INVOKES)
    file = tmp_path / "key"
    with memory(4096, "more") as mem, one.running({"file": str(file)}) as answers:
        one.until_printed("http://")
        assert one.printed()[0].split()[0] == f"http://127.0.0.1:{one.port}"
        end = time.monotonic() + BOUND
        while not file.exists() or len(file.read_text()) < 64:
            assert time.monotonic() < end and not answers, answers
            time.sleep(0.005)
        secret = file.read_text()

        def key(text):
            return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        assert one.put("a1", "more", mem.durl)[0] == 403
        assert one.put("a1", "more", mem.durl, "?key=")[0] == 403
        assert one.put("a1", "more", mem.durl, "?key=" + key("a1/less"))[0] == 403
        assert one.put("a1", "more", mem.durl, "?key=" + key("a2/more"))[0] == 403
        assert one.put("a1", "more", mem.durl, "?key=%ff%00")[0] == 403
        assert one.put("a1", "less", mem.durl, "?key=" + key("a1/less"))[0] == 404
        assert not answers
        assert one.put("a1", "more", mem.durl, "?key=" + key("a1/more")) == (200, {"ok": True})
    assert answers == [(200, {"ok": True})]


def test_a_wrong_key_for_a_transport_of_run_is_refused(whisk):
    one = whisk().loaded(WRITES)
    with memory(4096, "mem") as mem, one.running(transports=["mem;rdma_tcp;"]) as answers:
        one.until_printed("waiting")
        assert one.put("a1", "mem", mem.durl, "?key=" + "0" * 64)[0] == 403
        assert one.put("a1", "mem", mem.durl)[0] == 200
    assert answers[0][0] == 200


def test_the_key_is_not_for_what_the_action_starts(whisk):
    one = whisk().loaded("""
        import os, subprocess, sys
        def main(params):
            text = "import os, sys; print([k for k in os.environ if k.startswith('WEFT_ELEMENT')], file=sys.stderr)"
            told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stderr
            with open("/proc/self/environ") as f:
                return {"child": told.strip(), "proc": "CALLBACK" in f.read(), "here": "WEFT_ELEMENT_CALLBACK_KEY" in os.environ}
        """)
    assert one.run() == one.run() == (200, {"child": "[]", "proc": False, "here": True})


def test_no_secret_is_printed(whisk):
    one = whisk().loaded("""
        import os, sys
        def main(params, action):
            print("out", params["durl"], os.environ["__OW_API_KEY"], os.environ["WEFT_ELEMENT_CALLBACK_KEY"])
            sys.stdout.write(os.environ["__OW_API_KEY"][:7])
            sys.stdout.flush()
            sys.stdout.write(os.environ["__OW_API_KEY"][7:])           # in two pieces, and a line that does not end
            print("x" * 100000 + params["durl"], file=sys.stderr)
            raise RuntimeError(f"{params['durl']} {os.environ['__OW_API_KEY']} {os.environ['WEFT_ELEMENT_CALLBACK_KEY']}")
        """)
    with memory(4096, "mem") as mem:
        token = [part[6:] for part in mem.durl.split(";") if part.startswith("token,")][0]
        status, said = one.run({"durl": mem.durl}, transports=[mem.durl], api_key="23bc46b1-71f6:passw0rdpassw0rd")
    everything = said["error"] + "".join(one.printed())
    assert status == 200 and list(said) == ["error"]
    assert token not in everything and "passw0rd" not in everything
    assert everything.count("(secret)") + everything.count("(token)") >= 9
    assert one.printed()[0].endswith(f"(secret)\n{SENTINEL}\n")


# --- time and death

def test_what_waits_is_ended_by_the_deadline(whisk):
    one = whisk().loaded(WRITES)
    begun = time.time()
    status, said = one.run(transports=["mem;rdma_tcp;"], deadline=in_ms(3))
    assert status == 502 and ("CancelledError" in said["error"]
                              or "TimeoutError" in said["error"]) and "time was over" in said["error"], said
    assert time.time() - begun > 0.5
    before = one.worker()
    assert one.run({"trans": "nobody"})[0] == 200 and one.worker() == before  # it ended by itself, and the process stays


def test_what_is_under_way_is_ended_by_the_deadline(whisk, child, tmp_path):
    """A memory element that is stopped, over TCP: it answers nothing, and is not known to be lost yet."""
    process, durl = elsewhere(child, 1 << 20, transports="tcp")
    one = whisk(WEFT_TRANSPORTS="tcp", TMPDIR=str(tmp_path)).loaded("""
        import os, time
        def main(params, action):
            trans = action.get_transport("mem", "rdma")
            trans.reg(1 << 20)
            trans.read(1, 0)
            print("stop it", flush=True)
            while not os.path.exists(params["gate"]):
                time.sleep(0.005)
            trans.read(1 << 20, 0)
            return {"late": True}
        """)
    gate = tmp_path / "gate"
    try:
        with one.running({"gate": str(gate)}, transports=[durl], deadline=in_ms(3)) as answers:
            one.until_printed("stop it")
            process.send_signal(signal.SIGSTOP)
            until(lambda: all(state(path) == "T" for path in glob.glob(f"/proc/{process.pid}/task/*/stat")), "the stop")
            gate.touch()
        status, said = answers[0]
        assert status == 502 and any(word in said["error"] for word in ("TimeoutError", "ClosedError", "CancelledError",
                                                                        "PeerError")), said
    finally:
        process.send_signal(signal.SIGCONT)
    assert "deadline has passed" not in said["error"]  # it was an exception in main(), and not the end of its process


@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_memory_that_dies_while_it_is_read(whisk, child, transports):
    process, durl = elsewhere(child, 1 << 20, transports=transports)
    one = whisk(**({"WEFT_TRANSPORTS": "tcp"} if transports == "tcp" else {})).loaded("""
        def main(params, action):
            trans = action.get_transport("mem", "rdma")
            trans.reg(1 << 20)
            print("reading", flush=True)
            while True:
                trans.read(1 << 20, 0)
        """)
    with one.running(transports=[durl], deadline=in_ms(50)) as answers:
        one.until_printed("reading")
        time.sleep(0.05)
        process.kill()
        process.wait(BOUND)
    status, said = answers[0]
    assert status == 200 and "the peer is lost" in said["error"] and "time was over" not in said["error"], said


def test_an_element_that_serves(whisk):
    one = whisk().loaded("""
        def main(params, action):
            trans = action.get_transport("mem", "rdma_server")
            print("serving", flush=True)
            trans.serve()
            return {"served": True}
        """)
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        port = int(f.read().split()[0]) - 1 - os.getpid() % 1000
    user = """
import disagg, sys
action = disagg.LibdAction(None, "user", transports=[sys.argv[1]])
trans = action.get_transport("mem", "rdma")
trans.reg(5)
trans.buf[:] = b"there"
trans.write(5, 100, timeout=30)
trans.buf[:] = bytes(5)
trans.read(5, 100, timeout=30)
print(bytes(trans.buf).decode())
action.close()
"""
    with one.running(transports=[f"mem;rdma_tcp_server;size,4096;url,tcp://127.0.0.1:{port};"], deadline=in_ms(5)) as answers:
        one.until_printed("serving")
        done = subprocess.run([sys.executable, "-c", user, f"mem;rdma_tcp;url,tcp://127.0.0.1:{port};"], check=True,
                              timeout=BOUND, text=True,
                              stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.stdout == "there\n"
    assert answers == [(200, {"served": True})]  # told to end before its deadline, serve() returned


@pytest.mark.parametrize("more, says", [({"transports": "x"}, "list of durls"), ({"transports": [5]}, "list of durls"),
                                        ({"profile": [1]}, "profile"),
                                        ({"profile": -1}, "profile"), ({"activation_id": 5}, "activation_id"),
                                        ({"deadline": "soon"}, "deadline"),
                                        ({"deadline": -1}, "deadline"), ({"deadline": True}, "deadline"),
                                        ({"api_key": "a\0b"}, "zero")])
def test_fields_that_make_no_sense(whisk, more, says):
    one = whisk().loaded("def main(params): return {}")
    status, said = one.run(**more)
    assert status == 400 and says in said["error"]
    assert one.run() == (200, {})


def test_a_durl_that_is_none_is_an_error_of_the_activation(whisk):
    one = whisk().loaded("def main(params, action): return {}")
    status, said = one.run(transports=["junk"])
    assert status == 502 and "InvalidError" in said["error"]
    assert one.run() == (200, {}) and one.printed()[0].count(SENTINEL) == 2
