"""Names and words: what a program says leads where it says, or is refused. Each test says what libd does, which checks nothing."""
import json
import os
import subprocess
import sys
import threading
import warnings

import pytest

import disagg
import weft
from disagg import _size
from disagg.launcher import Launcher
from disagg.results import Results, results
from program import environment
from weft import _core

import ports
from elementside import BOUND, Own, action, elsewhere, memory


# --- what the module has

def test_the_names_that_libd_exports():
    # libd: LibdAction, LibdTransport, LibdTransportRDMA, LibdTransportRDMAServer
    names = {}
    exec("from disagg import *", names)
    assert names["LibdTransportRDMA"] is disagg.LibdRDMATransport and names["LibdTransportRDMAServer"] is disagg.LibdRDMAServer
    assert issubclass(names["LibdTransportRDMA"], names["LibdTransport"]) and set(disagg.__all__) <= set(dir(disagg))
    with action("a;rdma_local;size,64;", "b;rdma_tcp_server;size,64;") as made:
        assert isinstance(made.get_transport("a", "rdma"), disagg.LibdTransportRDMA)
        assert isinstance(made.get_transport("b", "rdma_server"), disagg.LibdTransportRDMAServer)


# --- add and config

def test_what_add_and_config_return():
    # libd: the state that the transport got to: 3, ready; 0, something is missing. -2 for an IMPL that is none, and a crash for a
    # durl that is none and a name that is none; here those are exceptions
    with memory(64) as element, action() as made:
        assert made.add_transport("own;rdma_local;size,64;") == 3
        assert made.add_transport("serves;rdma_tcp_server;size,64;") == 3
        assert made.add_transport(element.durl) == 3
        assert made.add_transport("nobody;rdma_tcp;url,tcp://127.0.0.1:1;") == 3  # libd does not wait for the connection either
        assert made.add_transport("waits;rdma_tcp;") == 0
        assert made.add_transport("sized;rdma_tcp;size,64;") == 0
        assert made.config_transport("waits", element.durl.partition(";rdma_tcp;")[2]) == 3
        assert made.config_transport("waits", element.durl.partition(";rdma_tcp;")[2]) == 3  # again
        for bad in (lambda: made.add_transport("x;smoke;"), lambda: made.add_transport("x"), lambda: made.config_transport("own", "?"),
                    lambda: made.config_transport("sized", "size,4;")):
            with pytest.raises(ValueError):
                bad()
        with pytest.raises(LookupError):
            made.config_transport("x", "size,64;")


def test_a_transport_does_not_lead_to_another_element():
    # libd: only the keys are read; a name is not looked at
    with memory(64, "a") as a, memory(64, "b") as b, action("a;rdma_tcp;", "b;rdma_tcp;", "a@0;rdma_tcp;") as made:
        for name, durl in (("a", b.durl), ("b", a.durl), ("a@0", b.durl), ("a@0", "a@1;rdma_tcp;url,tcp://127.0.0.1:1;")):
            with pytest.raises(ValueError, match="is that of the element '[ab](@1)?', and the transport"):
                made.config_transport(name, durl)
            assert made.get_transport(name, "rdma").state == "waiting"
        made.config_transport("a", a.durl)
        made.config_transport("a@0", a.durl)  # a memory element does not always know which copy it is
        made.config_transport("b", b.durl.partition(";rdma_tcp;")[2])
        written = {}
        for name in ("a", "b"):
            trans = made.get_transport(name, "rdma")
            trans.reg(1)
            trans.buf[:] = name.encode()
            trans.write(1, 0, timeout=BOUND)
            written[name] = trans
        for name, trans in written.items():
            trans.read(1, 0)
            assert bytes(trans.buf) == name.encode()
        made.get_transport("a@0", "rdma").reg(1)
        made.get_transport("a@0", "rdma").read(1, 0, timeout=BOUND)
        assert bytes(made.get_transport("a@0", "rdma").buf) == b"a"


def test_a_name_is_used_once():
    # libd: the second one takes the place of the first, which is lost
    with memory(64) as one, memory(64) as two, action(one.durl) as made:
        with pytest.raises(weft.StateError, match="already"):
            made.add_transport(two.durl)
        assert list(made.raw_transports) == ["mem"]


def test_a_transport_has_one_type():
    # libd: whatever was asked for first; another type is not looked at the second time
    with action("own;rdma_local;size,64;", "serves;rdma_tcp_server;size,64;") as made:
        for name, right, wrong in (("own", "rdma", "rdma_server"), ("serves", "rdma_server", "rdma")):
            made.get_transport(name, right)
            with pytest.raises(KeyError, match="other one"):
                made.get_transport(name, wrong)


@pytest.mark.parametrize("durl", ["mem;rdma_tcp;urls,tcp://127.0.0.1:1;", "mem;rdma_tcp;Size,4096;", "mem;rdma_tcp;tokens,00;"])
def test_keys_of_a_durl_that_nobody_knows_are_refused(durl):
    # libd: they are kept and not looked at, so that the transport waits for ever
    with action() as made:
        with pytest.raises(ValueError, match="did you mean"):
            made.add_transport(durl)
        assert made.raw_transports == {}


def test_memory_that_is_smaller_than_its_durl_says_is_not_used():
    # libd: nothing is checked. Here it may be another element that listens there now
    with memory(4096, named=True) as element, action() as made:
        made.add_transport(f"mem;rdma_tcp;size,8192;url,{element.uri};")
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        with pytest.raises(weft.RangeError):
            trans.read(8, 0, timeout=BOUND)
        made.config_transport("mem", f"size,4096;url,{element.uri};")
        assert trans.read(8, 0, timeout=BOUND) == 0


def test_a_durl_of_an_earlier_run_opens_nothing(child):
    # libd: whoever listens at the port answers
    port = ports.take()
    process, durl = elsewhere(child, 4096, uri=f"tcp://127.0.0.1:{port}")
    process.kill()
    process.wait(BOUND)
    process, again = elsewhere(child, 4096, uri=f"tcp://127.0.0.1:{port}")
    assert _core.durl_parse(durl)["url"] == _core.durl_parse(again)["url"]
    with action() as made:
        made.add_transport("old;" + durl.partition(";")[2])
        trans = made.get_transport("old", "rdma")
        trans.reg(8)
        with pytest.raises(weft.WeftError) as said:
            trans.read(8, 0, timeout=BOUND)
        assert isinstance(said.value, (weft.StaleError, weft.AuthError, weft.NotFoundError)), said.value
        made.add_transport("new;" + again.partition(";")[2])
        made.get_transport("new", "rdma").reg(8)
        assert made.get_transport("new", "rdma").read(8, 0, timeout=BOUND) == 0


# --- keywords

def test_keywords_of_an_action_that_are_nearly_right_are_refused():
    # libd: every keyword is taken, and those that it does not know do nothing
    for word, right in (("transport", "transports"), ("runtimes", "runtime"), ("post_ur", "post_url"), ("plugin", "plugins"),
                        ("backends", "backend"), ("server_ulr", "server_url")):
        with pytest.raises(TypeError, match=f"did you mean '{right}'"):
            disagg.LibdAction(None, "x", **{word: []})


def test_keywords_of_an_action_that_nobody_knows_are_kept_and_warned_about():
    with pytest.warns(RuntimeWarning, match="'colour' in kw"):
        made = disagg.LibdAction(None, "x", colour="red")
    assert made.kw == {"colour": "red"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disagg.LibdAction(None, "x", "http://x", name="n", profile="http://y", activation_id="1")


# --- results of parents

def test_results_of_one_copy_are_also_its_dict():
    # Scad: a list; programs index it as a dict, and as a list
    one = results({"p": [{"n": 1, "error": ""}]})["p"]
    assert one["n"] == one[0]["n"] == one.get("n") == 1 and "n" in one and "x" not in one and dict(one) == {"n": 1, "error": ""}
    assert one.get("x", 5) == 5 and list(one) == [{"n": 1, "error": ""}] and {**one} == one[0]
    with pytest.raises(KeyError):
        one["x"]


def test_results_of_several_copies_are_not_taken_for_those_of_the_first():
    # Scad: a list. The dict of the first copy would be wrong for all others
    many = results({"p": [{"n": 1}, {"n": 2}]})["p"]
    for use in (lambda: many["n"], lambda: many.get("n"), lambda: "n" in many, lambda: many.keys(), lambda: many.values(),
                lambda: many.items(), lambda: dict(many), lambda: {**many}):
        with pytest.raises(TypeError, match="2 copies"):
            use()
    assert [one["n"] for one in many] == [1, 2] and many[1]["n"] == 2 and many[-1:] == [{"n": 2}] and {"n": 1} in many
    assert json.loads(json.dumps(many)) == [{"n": 1}, {"n": 2}] and isinstance(many, list) and isinstance(many, Results)


# --- invoke

def test_sizes_with_a_unit():
    # Scad: invokeMem(template, trans, "64 MB") goes to the invoker, which reads MB, KB, GB, B, M, K, G in either case
    for text, size in (("64 MB", 64 << 20), ("64MB", 64 << 20), ("64m", 64 << 20), ("2 GB", 2 << 30), ("512 kb", 512 << 10),
                       ("4096 B", 4096), ("100b", 100), ("1 GiB", 1 << 30), (4096.0, 4096), (1, 1)):
        assert _size.of(text) == size
        backend = Own(None)
        with action(backend=backend) as made:
            made.runtime.invokeMem("mem", "more", text)
        assert backend.asked == [("mem", "more", {"size": size})]
    with action(backend=Own()) as made:
        for bad in ("64", "MB", "64 XB", "-1 MB", "1.5 GB", "0 MB", "64 MBB", "", 1.5, -1, 0, True, None, "99999999 TB"):
            with pytest.raises(ValueError):
                made.runtime.invokeMem("mem", "more", bad)


def test_props_that_are_nearly_right_are_refused():
    # Scad: there is no check. A size that is not read gives memory of the template's size
    launcher = Launcher("/nowhere")
    for props, says in (({"sise": 4096}, "did you mean 'size'"), ({"limit": {"mem": 1}}, "did you mean 'limits'"),
                        ({"limits": {"meme": "1M"}}, "did you mean 'mem'"), ({"colour": 1}, "'colour', which is none of params"),
                        ({"limits": 5}, "limits is not a dict"), ({"params": []}, "params is not a dict"),
                        ({"size": "1 MB", "limits": {"mem": "2 MB"}}, "say one of them"), ({"size": "much"}, "neither a number")):
        with pytest.raises(disagg.InvokeError, match=says):
            launcher.invoke("mem", "more", props)
    for props in ({}, {"size": 1}, {"size": "1 MB", "limits": {"mem": 1 << 20}}, {"params": {"anything": 1}, "type": "compute"},
                  {"grace": 1, "patience": 2}):
        with pytest.raises(disagg.InvokeError, match="still there"):  # the launcher, which is asked
            launcher.invoke("mem", "more", props)
    with pytest.warns(RuntimeWarning, match="limits.cpu is ignored"), pytest.raises(disagg.InvokeError):
        launcher.invoke("mem", "more", {"limits": {"cpu": 2}})


def test_a_transport_that_is_in_use_is_not_led_elsewhere_by_an_invoke():
    # Scad: the transport is added once more, and its users go on with the new element
    with memory(64, "mem") as mem, memory(64, "new") as new:
        backend = Own(new.durl, new.durl)
        with action(mem.durl, "waits;rdma_tcp;", backend=backend) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(4)
            trans.buf[:] = b"mine"
            trans.write(4, 0)
            with pytest.raises(disagg.InvokeError, match="take another name"):
                made.runtime.invoke("new", "mem")
            assert backend.asked == []
            trans.buf[:] = bytes(4)
            trans.read(4, 0)
            assert bytes(trans.buf) == b"mine"
            made.runtime.invoke("new", "waits")
            made.runtime.release("mem")
            made.runtime.invoke("new", "mem")  # the name is free
            again = made.get_transport("mem", "rdma")
            again.reg(4)
            again.read(4, 0)
            assert bytes(again.buf) == bytes(4)


# --- the environment

@pytest.mark.parametrize("name, says", [("WEFT_ELEMENT_URL", "did you mean WEFT_ELEMENT_URI"), ("WEFT_LAUNCHR", "did you mean WEFT_LAUNCHER"),
                                        ("WEFT_ELEMENT_URI", None)])
def test_variables_that_are_nearly_right_are_warned_about(name, says):
    code = "import disagg; disagg.LibdAction(None, 'x', transports=['mem;rdma_local;size,64;']).close()"
    done = subprocess.run([sys.executable, "-c", code], env={**environment(), name: "tcp://127.0.0.1:0"}, capture_output=True, text=True,
                          timeout=BOUND, check=True)
    if says is None:
        assert name not in done.stderr
    else:
        assert says in done.stderr


# --- exceptions of main

def test_an_exception_of_main_fails_an_element_of_a_run(tmp_path):
    # Scad's rundisagg: the traceback ends the script. In its OpenWhisk it is a result: see test_openwhisk_run.py
    file = tmp_path / "bad.o.py"
    file.write_text("def main(params, action): raise ValueError('no')")
    ours, theirs = os.pipe()
    process = subprocess.Popen([sys.executable, "-m", "disagg.element", "--out", str(theirs)], stdin=subprocess.PIPE, pass_fds=[theirs],
                               env=environment())
    os.close(theirs)
    said = []
    with os.fdopen(ours) as lines:
        reading = threading.Thread(target=lambda: said.extend(json.loads(line) for line in lines))
        reading.start()
        process.stdin.write(json.dumps({"do": "run", "file": str(file)}).encode() + b"\n")
        process.stdin.flush()
        reading.join(BOUND)
        process.stdin.close()
        assert process.wait(BOUND) == 1 and said[-1]["did"] == "error" and said[-1]["error"] == "ValueError: no"
