"""An element that has returned and does not go: its result counts at once, its process is ended after a grace, and the table says so."""
# ctest: long
import json
import os
import re
import signal
import time

from lib import elements, weft

LINGERS = """
import os, sys, threading, time
def main(params, action):
    if params.get("stubborn"):
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(600,)).start()  # no daemon
    return os.getpid()
"""
# does not return before the first is gone, or a while has passed
LOOKS = """
import time
def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
"""


def rows(text):
    return dict(re.findall(r"^(\w+) +\d+ +(\w+(?: \w+)?(?:, ended after [\d.]+ m?s)?)  ", text, re.M))


def its_dependents_start_at_once():
    files = {"a.o.py": LINGERS, "b.o.py": "#@ parents: [a]\n" + LOOKS + "def main(params, action):\n    return gone(params['a'][0])\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--grace", "8s")
        a, b = said["elements"]
        assert said["results"]["b"] == [False], "b started when a was gone"
        assert (a["state"], b["state"]) == ("done", "done") and "ended_after" not in b and said["seconds"] > 8, said
        assert 7.9 < a["ended_after"] <= 8, a


def the_table_says_so():
    with elements.directory({"a.o.py": LINGERS, "b.o.py": "def main(params, action):\n    return 1\n"}) as (folder, python):
        for args in ((), ("--param", "stubborn=true")):
            done = elements.run(folder, *python, "--grace", "300ms", *args)
            assert done.returncode == 0 and not done.stderr, done.stderr
            assert rows(done.stdout) == {"a": "done, ended after 300 ms", "b": "done"}, done.stdout


def the_grace_is_five_seconds():
    with elements.directory({"a.o.py": LINGERS}) as (folder, python):
        said = elements.results(folder, *python)
        assert 4.9 < said["elements"][0]["ended_after"] <= 5 and said["seconds"] > 5, said


def one_that_goes_in_time_is_not_ended():
    files = {"a.o.py": "import threading, time\ndef main(params, action):\n    threading.Thread(target=time.sleep, args=(1,)).start()\n"
                       "    return 1\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--grace", "100s")
        assert "ended_after" not in said["elements"][0] and said["seconds"] >= 1, said
    with elements.directory({"a.o.py": "def main(params, action):\n    return 1\n"}) as (folder, python):
        assert "ended_after" not in elements.results(folder, *python, "--grace", "0")["elements"][0], "it ended by itself"


def it_does_not_take_a_job():
    files = {"a.o.py": LINGERS, "b.o.py": "#@ parents: [a]\n" + LOOKS + "def main(params, action):\n    return gone(params['a'][0])\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python, "--grace", "8s", "--jobs", "1")["results"]["b"] == [False]


def its_memory_lives_as_long_as_it_does():
    """Until it is gone, or its grace is over; not until its dependents are done."""
    look = LOOKS + """
import os
def main(params, action):
    memory, pid = params["a"][0]
    alive = not gone(memory)
    end = time.monotonic() + 40
    while not gone(memory) and time.monotonic() < end:
        time.sleep(0.01)
    return [alive, gone(memory)]
"""
    lingers = LINGERS.replace("return os.getpid()", "    ").rstrip() + """
    memory = None
    while not memory:
        for one in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{one}/stat") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{one}/cmdline", "rb") as f:
                    memory = int(one) if parent == os.getppid() and b"--report-fd" in f.read() else memory
            except OSError:
                pass
    return [memory, os.getpid()]
"""
    files = {"a.o.py": "#@ corunning: {words: }\n" + lingers, "b.o.py": "#@ parents: [a]\n" + look, "words.o.yaml": "limits: {mem: 1M}\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--grace", "5s")
        assert said["results"]["b"] == [[True, True]], said


def time_that_is_over_ends_only_what_stayed():
    """Every element is done: --timeout does not fail such a run, and limits.time is over with the result."""
    with elements.directory({"a.o.py": "#@ limits: {time: 4s}\n" + LINGERS}) as (folder, python):
        said = elements.results(folder, *python, "--grace", "100s", "--timeout", "6s")
        assert said["seconds"] < 60 and 0 < said["elements"][0]["ended_after"] < 6.1, said


def a_bad_end_after_a_result_is_told():
    for code, word in (("os._exit(3)", "exit status 3 after its result"), ("os.kill(os.getpid(), 11)", "SIGSEGV) after its result")):
        for pause in ("0", "0.5"):
            files = {"a.o.py": "import os, threading, time\n"
                               f"def late():\n    time.sleep({pause})\n    {code}\n"
                               "def main(params, action):\n    action.say({'did': 'result', 'value': 1})\n    late()\n"}
            with elements.directory(files) as (folder, python):
                done = elements.fails(folder, *python, says=[word])
                assert rows(done.stdout) == {"a": "failed"}, done.stdout


def a_signal_does_not_wait_for_it():
    files = {"a.o.py": LINGERS.replace("return os.getpid()", "print('up', flush=True)\n    return 1")}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, "--json", "--grace", "1000s", env=elements.environment(folder))
        try:
            assert p.stderr.readline() == "up\n"
            time.sleep(0.5)
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=60)
            said = json.loads(out)
            assert p.returncode == 130 and "SIGINT" in err and said["elements"][0]["state"] in ("done", "stopped"), out + err
        finally:
            weft.end(p)
        elements.nothing_left(folder)


def another_failure_takes_it_down():
    files = {"a.o.py": LINGERS, "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    1 / 0\n"}
    with elements.directory(files) as (folder, python):
        said = json.loads(elements.fails(folder, *python, "--json", "--grace", "1000s", says=["division"]).stdout)
        a, b = said["elements"]
        assert (a["state"], b["state"]) == ("done", "failed") and said["results"]["a"] and said["seconds"] < 100, said


def with_the_package_its_transports_are_closed_before():
    """Threads that main() left cannot use them any more, and the figures are there before the result."""
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: }
        import threading, time
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(4096)
            trans.write(4096, 0)
            def late():
                try:
                    while True:
                        trans.read(64, 0)
                        time.sleep(0.001)
                except Exception as why:
                    print('late', type(why).__name__, flush=True)
                time.sleep(600)
            threading.Thread(target=late).start()
            return 1
        """, "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return params['a']\n", "words.o.yaml": "limits: {mem: 1M}\n"}
    with elements.directory(files, stand_in=False) as (folder, python):
        done = elements.run(folder, *python, "--json", "--grace", "4s", env=elements.environment(folder, **package))
        said = json.loads(done.stdout)
        a = said["elements"][0]
        assert done.returncode == 0 and said["results"]["b"] == [[1]] and done.stderr == "late ClosedError\n", done.stdout + done.stderr
        assert 3.9 < a["ended_after"] <= 4 and a["bytes_written"] == 4096, a


weft.main(its_dependents_start_at_once, the_table_says_so, the_grace_is_five_seconds, one_that_goes_in_time_is_not_ended, it_does_not_take_a_job,
          its_memory_lives_as_long_as_it_does, time_that_is_over_ends_only_what_stayed, a_bad_end_after_a_result_is_told,
          a_signal_does_not_wait_for_it, another_failure_takes_it_down, with_the_package_its_transports_are_closed_before)
