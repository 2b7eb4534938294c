"""`weft run --on dask`: elements as tasks of a Dask cluster, with the same results, words and clean-up as on one machine."""
# ctest: long computes no-asan no-tsan: the C of the launcher is tested by tools_run_ssh; here it is about Dask
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

distributed = pytest.importorskip("distributed")
import daskside  # noqa: E402
from daskside import fails, finish, run, start, until, write  # noqa: E402

HANGS = "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(600)\n"
MEMORY = "type: memory\nlimits: {mem: 1M}\n"
ADD = """
#@ parallelism: 4
#@ corunning: {words: {trans: words, type: rdma}}
import os
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(8)
    trans.fetch_add(0, 1 + int(os.environ["__OW_PAR"]))
    print("added", params["x"])
    return os.getpid()
"""
SUM = """
#@ parents: [add]
#@ corunning: {words: {trans: words, type: rdma}}
import helper
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(8)
    trans.read(8, 0)
    return {"sum": helper.number(trans.buf), "copies": len(params["add"])}
"""
HELPER = "def number(buf):\n    return int.from_bytes(bytes(buf), 'little')\n"
PROGRAM = {"add.o.py": ADD, "sum.o.py": SUM, "words.o.yaml": MEMORY, "helper.py": HELPER}


@pytest.fixture(scope="module")
def shared():
    with daskside.cluster() as made:
        yield made


def test_a_program_runs_as_it_does_here(shared):
    said = run(shared, write(shared.folder, PROGRAM), "--param", "x=5")
    assert said["results"]["sum"] == [{"sum": 10, "copies": 4}] and len(set(said["results"]["add"])) == 4, said
    assert said["err"].count("added 5") == 4, said["err"]
    states = {e["name"]: (e["state"], e["copies"]) for e in said["elements"]}
    assert states == {"add": ("done", 4), "sum": ("done", 1), "words": ("done", 1)}, states
    by_name = {e["name"]: e for e in said["elements"]}
    assert by_name["sum"]["bytes_read"] == 8 and by_name["add"]["cpu_seconds"] > 0 and by_name["add"]["peak_bytes"] > 1 << 20, by_name


def test_the_timeline_has_every_copy(shared):
    trace = os.path.join(shared.folder, "trace.json")
    run(shared, write(shared.folder, PROGRAM), "--param", "x=5", "--trace", trace)
    with open(trace, encoding="utf-8") as f:
        names = {e.get("args", {}).get("copy") for e in json.load(f)["traceEvents"] if e["ph"] == "X"}
    assert names >= {"add@0", "add@3", "sum", "words"}, names


def test_elements_start_others(shared):
    program = """
#@ corunning: {words: {trans: words, type: rdma}}
def main(params, action):
    action.runtime.invoke("words", "more", {"size": 4096})
    trans = action.get_transport("more", "rdma")
    trans.reg(5)
    trans.buf[:] = b"hello"
    trans.write(5, 100)
    trans.buf[:] = b"     "
    trans.read(5, 100)
    hello = bytes(trans.buf).decode()
    action.runtime.release("more")
    try:
        action.runtime.invoke("wrods", "x")
    except Exception as why:
        return [hello, str(why)]
"""
    said = run(shared, write(shared.folder, {"a.o.py": program, "words.o.yaml": MEMORY}))
    hello, why = said["results"]["a"][0]
    assert hello == "hello" and 'did you mean "words"?' in why, said


def test_a_failing_element_shows_its_traceback(shared):
    files = {"a.o.py": "def helper():\n    return 1 / 0\ndef main(params, action):\n    return helper()\n", "b.o.py": HANGS}
    out, err = fails(shared, write(shared.folder, files), says=["Traceback", "in helper", "a failed: ZeroDivisionError: division by zero"])
    assert "b " in out and "stopped" in out, out


def test_one_that_is_killed_is_told(shared):
    files = {"a.o.py": "import os\ndef main(params, action):\n    os.kill(os.getpid(), 9)\n"}
    fails(shared, write(shared.folder, files), says=["a was killed by signal 9 (SIGKILL) without a result"])


def test_a_program_that_does_not_load_is_told(shared):
    fails(shared, write(shared.folder, {"a.o.py": "import no_such_module\ndef main(params, action):\n    pass\n"}),
          says=["a failed: ModuleNotFoundError", "no_such_module"])


def test_time_and_signals_take_it_down(shared):
    path = write(shared.folder, {"a.o.py": HANGS, "words.o.yaml": "corunning: [a]\n" + MEMORY})
    process = start(shared, path, "--timeout", "20s")
    assert process.stdout.readline() == "up\n"
    code, _, err = finish(process)
    assert code == 1 and "--timeout" in err and "still running: a" in err, err
    process = start(shared, path)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and "SIGINT" in err, err
    until(lambda: not daskside.left(shared.folder), "cleaning up")


def test_more_than_fits_waits_for_its_turn(shared):
    """The cluster has four threads, and these are ten."""
    files = {"a.o.py": "#@ parallelism: 10\nimport time\ndef main(params, action):\n    time.sleep(0.2)\n    return time.monotonic()\n"}
    said = run(shared, write(shared.folder, files))
    assert len(said["results"]["a"]) == 10


def test_memory_does_not_wait_for_those_that_wait_for_it(shared):
    """All threads are taken when the run begins, and are free all at once then. The elements must not get all of them before the memory."""
    go = os.path.join(shared.folder, "go")
    fill = {"fill.o.py": "#@ parallelism: 4\nimport os, time\ndef main(params, action):\n    print('up', flush=True)\n"
                         "    while not os.path.exists(params['go']):\n        time.sleep(0.02)\n"}
    first = start(shared, write(shared.folder, fill), "--param", f"go={go}")
    assert [first.stdout.readline() for _ in range(4)] == ["up\n"] * 4
    others = [start(shared, write(shared.folder, PROGRAM), "--param", "x=1", "--json") for _ in range(2)]
    with distributed.Client(shared.address, set_as_default=False) as client:
        until(lambda: sum("words" in str(key) for keys in client.processing().values() for key in keys) == 2, "submitting both")
    with open(go, "w", encoding="utf-8"):
        pass
    assert finish(first)[0] == 0
    for other in others:
        code, out, err = finish(other)
        assert code == 0 and json.loads(out)["results"]["sum"] == [{"sum": 10, "copies": 4}], err
    os.unlink(go)


def test_two_runs_at_a_time_share_the_threads(shared):
    both = [start(shared, write(shared.folder, PROGRAM), "--param", "x=1", "--json") for _ in range(2)]
    for process in both:
        code, out, err = finish(process)
        assert code == 0 and json.loads(out)["results"]["sum"] == [{"sum": 10, "copies": 4}], err


def test_memory_that_is_invoked_gets_a_thread(shared):
    """Four elements have all of them, and each invokes memory and waits for it."""
    program = """
#@ parallelism: 4
#@ corunning: {words: {trans: words, type: rdma}}
import os, time
def main(params, action):
    count = action.get_transport("words", "rdma")
    count.reg(8)
    count.fetch_add(0, 1)
    while count.fetch_add(0, 0) < 4:
        time.sleep(0.02)
    action.runtime.invoke("words", "more", {"size": 4096})
    trans = action.get_transport("more", "rdma")
    trans.reg(8)
    trans.fetch_add(0, 1 + int(os.environ["__OW_PAR"]))
    return trans.fetch_add(0, 0)
"""
    said = run(shared, write(shared.folder, {"a.o.py": program, "words.o.yaml": MEMORY}))
    assert said["results"]["a"] == [1, 2, 3, 4], said


def test_large_results_and_much_output_arrive(shared):
    files = {"a.o.py": "def main(params, action):\n    for i in range(20000):\n        print(i, 'x' * 100)\n    return 'y' * (8 << 20)\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return len(params['a'][0])\n"}
    said = run(shared, write(shared.folder, files))
    assert said["results"]["b"] == [8 << 20] and said["err"].count("\n") >= 20000


def test_what_is_not_text_arrives(shared):
    files = {"a.o.py": "import os, sys\ndef main(params, action):\n    os.write(1, bytes(range(256)) + b'\\n')\n    return 1\n"}
    process = start(shared, write(shared.folder, files), text=False)
    out, err = process.communicate(timeout=daskside.BOUND)
    assert process.returncode == 0 and bytes(range(256)) in out, err


def test_a_cluster_that_is_not_there_is_told(shared):
    path = write(shared.folder, {"a.o.py": HANGS})
    fails(shared, path, on="dask://127.0.0.1:1", says=["no Dask scheduler answers at 127.0.0.1:1"])


@pytest.mark.parametrize("where, says", [
    ("/no/such/file.json", "there is no file /no/such/file.json"),
    ("{folder}/text", "text is not JSON"),
    ("{folder}/list", "list has no address of a scheduler"),
    ("{folder}", "cannot be read"),
    ("foo", "no Dask scheduler answers at foo (ValueError: missing port number"),
    ("tls://127.0.0.1:1", "set distributed.comm.tls.ca-file, .client.cert and .client.key"),
    ("bogus://127.0.0.1:1", "no Dask scheduler answers at bogus://127.0.0.1:1"),
])
def test_an_address_that_is_none_is_told_in_one_sentence(shared, tmp_path, where, says):
    (tmp_path / "text").write_text("tcp://127.0.0.1:1")
    (tmp_path / "list").write_text("[1]")
    out, err = fails(shared, write(shared.folder, {"a.o.py": HANGS}), on="dask://" + where.format(folder=tmp_path), says=[says])
    assert err.count("\n") == 1 and err.startswith("weft run: dask://"), err


def test_certificates_that_are_not_there_are_told(shared, tmp_path):
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    env = {**daskside.env_of(shared.folder), **{tls + what: str(tmp_path / "none.pem") for what in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")}}
    path = write(shared.folder, {"a.o.py": HANGS})
    done = subprocess.run([daskside.WEFT, "run", path, "--on", "dask://tls://127.0.0.1:1", "--python", sys.executable], env=env,
                          capture_output=True, text=True, timeout=daskside.BOUND, check=False)
    assert done.returncode == 1 and "certificates of TLS" in done.stderr and "FileNotFoundError" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_slash_after_the_address_is_taken(shared):
    said = run(shared, write(shared.folder, {"a.o.py": "def main(params, action):\n    return 1\n"}), on=shared.on + "/")
    assert said["results"]["a"] == [1], said


def test_a_file_of_the_scheduler_is_read(shared, tmp_path):
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": shared.address}))
    said = run(shared, write(shared.folder, {"a.o.py": "def main(params, action):\n    return 1\n"}), on=f"dask://{path}")
    assert said["results"]["a"] == [1], said


def test_a_server_that_is_no_scheduler_is_told(shared):
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = start(shared, write(shared.folder, {"a.o.py": HANGS}), on=f"dask://127.0.0.1:{other.getsockname()[1]}")
        other.settimeout(daskside.BOUND)
        with other.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            code, _, err = finish(process)
    assert code == 1 and "no Dask scheduler answers at 127.0.0.1:" in err and err.count("\n") == 1, err


@pytest.mark.parametrize("waits", ["for an answer", "to try again"])
def test_a_signal_ends_it_while_nobody_answers(shared, waits):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        process = start(shared, write(shared.folder, {"a.o.py": HANGS}), on=f"dask://127.0.0.1:{mute.getsockname()[1]}")
        mute.settimeout(daskside.BOUND)
        with mute.accept()[0] as connection:
            if waits == "to try again":
                connection.close()
            process.send_signal(signal.SIGTERM)
            code, _, err = finish(process)
    assert code == 143 and "SIGTERM" in err and err.count("\n") == 1, err


def test_an_interpreter_without_dask_is_told(shared, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
    python.chmod(0o755)
    path = write(shared.folder, {"a.o.py": HANGS})
    command = [daskside.WEFT, "run", path, "--on", shared.on, "--python", str(python)]
    done = subprocess.run(command, env=daskside.env_of(shared.folder), capture_output=True, text=True, timeout=daskside.BOUND, check=False)
    assert done.returncode == 1 and "pip install distributed" in done.stderr, done.stderr


def test_a_cluster_of_its_own(tmp_path):
    """--on dask, without an address, brings up workers on this machine. They need no weft in PATH, and nobody cares for the port of
    Dask's dashboard."""
    folder = str(tmp_path)
    path = write(folder, PROGRAM)
    env = {**daskside.env_of(folder), "PATH": "/usr/bin:/bin"}
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else has it
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        done = subprocess.run([daskside.WEFT, "run", path, "--on", "dask", "--python", sys.executable, "--json", "--param", "x=1"], env=env,
                              capture_output=True, text=True, timeout=daskside.BOUND, check=False)
    assert done.returncode == 0 and "weft run: dask" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["results"]["sum"] == [{"sum": 10, "copies": 4}]
    until(lambda: not daskside.left(folder), "cleaning up")
    assert os.listdir(folder) == [os.path.basename(path)], os.listdir(folder)


def test_a_cluster_of_its_own_goes_with_its_launcher(tmp_path):
    folder = str(tmp_path)
    path = write(folder, {"a.o.py": HANGS})
    process = subprocess.Popen([daskside.WEFT, "run", path, "--on", "dask", "--python", sys.executable], env=daskside.env_of(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.kill()
    finish(process)
    until(lambda: not daskside.left(folder), "cleaning up")
    until(lambda: os.listdir(folder) == [os.path.basename(path)], "removing the files of the cluster")


def test_what_is_kept_is_told(shared):
    files = {"a.o.py": "#@ parallelism: 4\ndef main(params, action):\n    open('mark', 'w').close()\n"}
    try:
        code, _, err = finish(start(shared, write(shared.folder, files), "--keep"))
        kept = re.findall(r"^weft run: (tcp://[^ ]+): the working directories are in (/.*)$", err, re.M)
        assert code == 0 and {address for address, _ in kept} <= {worker.address for worker in shared.workers}, err
        assert sum(len(glob.glob(os.path.join(path, "*", "mark"))) for path in {path for _, path in kept}) == 4, err
    finally:
        for path in glob.glob(os.path.join(shared.folder, "weft-run-*")):
            shutil.rmtree(path)


def test_limits_are_resources_where_workers_declare_them():
    with daskside.cluster(workers=1, threads=4, resources={"cpu": 2}) as made:
        files = {"a.o.py": "#@ limits: {cpu: 1}\n#@ parallelism: 4\nimport time\ndef main(params, action):\n    t = time.monotonic()\n"
                           "    time.sleep(0.3)\n    return [t, time.monotonic()]\n"}
        spans = run(made, write(made.folder, files))["results"]["a"]
        most = max(sum(a <= t < b for a, b in spans) for t, _ in spans)
        assert most <= 2, spans
        files = {"a.o.py": "#@ limits: {cpu: 3}\n" + HANGS}
        fails(made, write(made.folder, files), says=["asks for cpu 3", "no worker of the cluster has more than cpu=2"])


def test_a_worker_that_comes_later_takes_part():
    with daskside.cluster(workers=0) as made:
        process = start(made, write(made.folder, PROGRAM), "--json", "--param", "x=1")
        made.add()
        code, out, err = finish(process)
        assert code == 0 and json.loads(out)["results"]["sum"] == [{"sum": 10, "copies": 4}], err


def test_a_worker_without_weft_is_told(tmp_path):
    with daskside.cluster(workers=1) as made:
        path = write(made.folder, {"a.o.py": HANGS})
        done = subprocess.run([daskside.WEFT, "run", path, "--on", made.on, "--python", sys.executable, "--weft", "/no/such/weft"],
                              env=daskside.env_of(made.folder), capture_output=True, text=True, timeout=daskside.BOUND, check=False)
        assert done.returncode == 1 and "/no/such/weft" in done.stderr and "a " in done.stdout + done.stderr, done.stderr


def test_what_the_guide_shows_runs(tmp_path):
    """docs/guide/elements-elsewhere.md, with this interpreter as python3."""
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "guide", "elements-elsewhere.md")
    with open(page, encoding="utf-8") as f:
        blocks = re.findall(r"^```sh\n(.*?)^```", f.read(), re.M | re.S)
    assert blocks, "the shell of the guide is not where it was"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    env = daskside.env_of(str(tmp_path))
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    done = subprocess.run(["bash", "-euc", "".join(blocks)], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=daskside.BOUND, check=False)
    assert done.returncode == 0 and "sum: 14" in done.stdout, done.stdout + done.stderr
    until(lambda: not daskside.left(str(tmp_path)), "cleaning up")


def test_time_spent_waiting_for_a_thread_does_not_count(shared):
    """limits.time begins when the element does; at the end of --timeout those that wait are named apart."""
    files = {"a.o.py": "#@ parallelism: 12\n#@ limits: {time: 14s}\nimport time\ndef main(params, action):\n    time.sleep(5)\n    return 1\n"}
    started = time.monotonic()
    said = run(shared, write(shared.folder, files))
    assert said["results"]["a"] == [1] * 12
    assert time.monotonic() - started > 14, "all of them ran at once: this proves nothing"
    files = {"a.o.py": "#@ parallelism: 12\n" + HANGS}
    fails(shared, write(shared.folder, files), "--timeout", "6s", says=["still running: a@", "; waiting for a place elsewhere: a@"])
