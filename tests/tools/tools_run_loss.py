"""Whatever happens to an element or to the launcher, weft run says so, takes the rest down in order, and leaves nothing running."""
# ctest: long
import json
import os
import re
import signal
import subprocess
import sys
import time

from lib import elements, weft

HANGS = "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(600)\n"
WORDS = "type: memory\nlimits: {mem: 1M}\n"


def a_failing_element_shows_its_traceback():
    files = {"a.o.py": "#@ corunning: {words: }\ndef helper():\n    return 1 / 0\ndef main(params, action):\n    return helper()\n",
             "words.o.yaml": WORDS,
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return 1\n", "c.o.py": HANGS}
    with elements.directory(files) as (folder, python):
        done = elements.fails(folder, *python, says=["Traceback", "a.o.py\", line 3, in helper", "a failed: ZeroDivisionError: division by zero"])
        states = dict(re.findall(r"^(\w+) +\d+ +(\w+(?: \w+)?) ", done.stdout, re.M))
        assert states == {"a": "failed", "b": "not started", "c": "stopped", "words": "stopped"}, done.stdout
        assert done.stderr.count("failed") == 1, done.stderr
        said = json.loads(elements.fails(folder, *python, "--json").stdout)
        assert said["ok"] is False and "division by zero" in said["error"] and "helper" in said["failures"][0]["traceback"], said


def a_program_that_does_not_load_is_named():
    for text, word in (("def main(:\n", "SyntaxError"), ("import no_such_module\n", "ModuleNotFoundError"), ("x = 1\n", "main")):
        with elements.directory({"a.o.py": text}) as (folder, python):
            elements.fails(folder, *python, says=["a failed:", word])


def a_mistake_in_a_program_is_shown_once():
    package = elements.package()
    with elements.directory({"a.o.py": "\ndef main(params):\n    return (1\n"}, stand_in=False) as (folder, python):
        done = elements.fails(folder, *python, says=["a failed: SyntaxError: '(' was never closed (a.o.py, line 3)"],
                              env=elements.environment(folder, **package))
        assert done.stderr.count("return (1") == 1, done.stderr


def is_the_failure(label, how, done):
    """The JSON of a run names one failed process, and why."""
    (failure,) = json.loads(done.stdout)["failures"]
    assert failure["element"] == label and how in failure["error"], failure


def killed_elements_are_told():
    for number, name in ((signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV")):
        files = {"a.o.py": f"import os\ndef main(params, action):\n    os.kill(os.getpid(), {int(number)})\n", "b.o.py": HANGS}
        with elements.directory(files) as (folder, python):
            how = f"a was killed by signal {int(number)} ({name})"
            elements.fails(folder, *python, says=[how])
            is_the_failure("a", how, elements.fails(folder, *python, "--json"))


def one_that_ends_without_a_word_is_told():
    for code, word in (("os._exit(0)", "exit status 0 without a result"), ("os._exit(7)", "exit status 7"), ("sys.exit(3)", "SystemExit")):
        with elements.directory({"a.o.py": f"import os, sys\ndef main(params, action):\n    {code}\n"}) as (folder, python):
            elements.fails(folder, *python, says=[word])
            is_the_failure("a", word, elements.fails(folder, *python, "--json"))
    with elements.directory({"a.o.py": HANGS}) as (folder, _):
        elements.fails(folder, "--python", "/bin/false", says=["exit status 1 before it began", "disagg.element",
                                                                'pip install ".[disagg]"', "--python"])


def one_that_hangs_ends_with_the_time():
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANGS
    files = {"a.o.py": stubborn, "b.o.py": "#@ parallelism: 2\n" + HANGS, "words.o.yaml": "corunning: [a]\n" + WORDS}
    with elements.directory(files) as (folder, python):
        elements.fails(folder, *python, "--timeout", "4s", says=["--timeout", "a, b@0, b@1"])


def one_that_takes_longer_than_its_time_is_named():
    files = {"a.o.py": "#@ limits: {time: 1s}\n#@ parallelism: 2\nimport os, time\ndef main(params, action):\n"
                       "    if os.environ['__OW_PAR'].endswith('1'):\n        time.sleep(600)\n    return 1\n",
             "b.o.py": "#@ limits: {time: 10m}\n" + HANGS, "c.o.py": HANGS}
    with elements.directory(files) as (folder, python):
        done = elements.fails(folder, *python, "--timeout", "100s", says=["a@1 takes longer than its limits.time, 1"])
        states = dict(re.findall(r"^(\w+) +\d+ +(\w+(?:: time limit 1.00 s)?) ", done.stdout, re.M))
        assert states == {"a": "failed: time limit 1.00 s", "b": "stopped", "c": "stopped"}, done.stdout
        assert "--timeout" not in done.stderr, done.stderr


def one_that_waits_for_its_turn_takes_no_time():
    """The time of a copy begins with its process, and not when others like it do."""
    files = {"a.o.py": "#@ limits: {time: 20s}\n#@ parallelism: 3\nimport time\ndef main(params, action):\n    time.sleep(0.2)\n    return 1\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python, "--jobs", "1")["results"]["a"] == [1, 1, 1]


def one_that_ended_in_time_is_not_late_because_the_launcher_is():
    """Ctrl-Z, say: elements go on, and what they did is looked at before the clock is."""
    files = {"a.o.py": "#@ limits: {time: 6s}\nimport time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(1)\n"
                       "    return 1\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return params['a']\n"}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            assert "up" in p.stdout.readline()
            p.send_signal(signal.SIGSTOP)
            time.sleep(7)
            p.send_signal(signal.SIGCONT)
            out, err = p.communicate(timeout=60)
            assert p.returncode == 0 and "b: [1]" in out and not err, out + err
        finally:
            p.kill()
            p.communicate()


def a_time_ends_one_whose_output_nobody_reads():
    files = {"a.o.py": "#@ limits: {time: 2s}\ndef main(params, action):\n    while True:\n        print('x' * 1000, flush=True)\n"}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            p.stdout.readline()
            assert p.wait(timeout=60) == 1 and "limits.time" in p.stderr.read()
        finally:
            p.kill()
            p.communicate()


def one_that_is_stopped_ends_too():
    files = {"a.o.py": "import os, signal\ndef main(params, action):\n    os.kill(os.getpid(), signal.SIGSTOP)\n"}
    with elements.directory(files) as (folder, python):
        elements.fails(folder, *python, "--timeout", "500ms", says=["--timeout"])


def what_elements_start_goes_with_them():
    files = {"a.o.py": "import subprocess\ndef main(params, action):\n    subprocess.Popen(['sleep', '600'])\n"
                       "    subprocess.Popen(['sh', '-c', 'sleep 600 & sleep 600'])\n    return 1\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"] == {"a": [1]}


def memory_that_is_killed_ends_the_run():
    files = {"a.o.py": "#@ corunning: {words: }\n" + HANGS, "words.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            # it may be slower than "up"
            memory, = elements.wait_for(lambda: [pid for pid, args in elements.processes_of(folder) if " element memory " in args])
            os.kill(memory, signal.SIGKILL)
            out, err = p.communicate(timeout=30)
            assert p.returncode == 1 and "memory element words was killed by signal 9 (SIGKILL)" in err, out + err
            elements.nothing_left(folder)
        finally:
            weft.end(p)


def a_replica_that_is_killed_does_not():
    files = {"a.o.py": "#@ corunning: {words: }\nimport os\ndef main(params, action):\n    print('up', flush=True)\n"
                       "    while not os.path.exists('go'):\n        pass\n    return 1\n", "words.o.yaml": "replicas: 2\n" + WORDS}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            elements.wait_for(lambda: len([a for _, a in elements.processes_of(folder) if "--mirrored" in a]) == 2)
            os.kill(next(pid for pid, args in elements.processes_of(folder) if "--mirrored" in args), signal.SIGKILL)
            assert "was killed by signal 9 (SIGKILL); the other replicas serve on" in p.stderr.readline()
            where = next(os.readlink(f"/proc/{pid}/cwd") for pid, args in elements.processes_of(folder) if "disagg.element" in args)
            with open(os.path.join(where, "go"), "w", encoding="ascii"):
                pass
            out, err = p.communicate(timeout=30)
            assert p.returncode == 0, out + err
            elements.nothing_left(folder)
        finally:
            weft.end(p)


def a_signal_takes_all_down_in_order():
    files = {"a.o.py": "#@ corunning: {words: }\n#@ parallelism: 2\n" + HANGS, "words.o.yaml": WORDS}
    for number in (signal.SIGINT, signal.SIGTERM):
        with elements.directory(files) as (folder, python):
            trace = os.path.join(os.path.dirname(folder), "trace.json")
            p = weft.start("run", folder, *python, "--trace", trace, env=elements.environment(folder))
            try:
                assert p.stdout.readline() == p.stdout.readline() == "up\n", p.stderr.read()
                p.send_signal(number)
                out, err = p.communicate(timeout=30)
                assert p.returncode == 128 + number and number.name in err and "stopped" in out, f"{p.returncode} {out}{err}"
                ends = {e["args"]["copy"]: e["ts"] + e["dur"] for e in elements.trace_of(trace) if e["ph"] == "X"}
                assert ends["words"] > max(ends["a@0"], ends["a@1"]), ends
                elements.nothing_left(folder)
            finally:
                weft.end(p)


def elements_are_asked_before_they_are_killed():
    files = {"a.o.py": "def main(params, action):\n    print('up', flush=True)\n    message = action.next()\n"
                       "    print('told', message['do'], flush=True)\n"}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=30)
            assert out.startswith("told terminate\n") and p.returncode == 130, out + err
        finally:
            weft.end(p)
        elements.nothing_left(folder)


def a_second_signal_is_impatient():
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANGS
    with elements.directory({"a.o.py": stubborn}) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            p.send_signal(signal.SIGINT)
            assert "SIGINT" in p.stderr.readline()
            p.send_signal(signal.SIGTERM)
            p.communicate(timeout=30)
            assert p.returncode == 130, p.returncode
        finally:
            weft.end(p)
        elements.nothing_left(folder)


def no_descriptors_left_is_told():
    files = {"a.o.py": "#@ parallelism: 40\n#@ corunning: {words: }\n" + HANGS, "words.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        for most in range(8, 60, 3):
            shell = ["bash", "-c", f'ulimit -n {most} && exec "$@"', "bash", weft.command(), "run", folder, *python, "--timeout", "30s"]
            done = subprocess.run(shell, env=elements.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=60, check=False)
            elements.nothing_left(folder)
            assert done.returncode == 1 and "Too many open files" in done.stderr, f"{most}: {done.returncode} {done.stderr}"


def only_its_own_are_killed():
    """A process in a group and a session of its own, started by nobody of the run, in the middle of it."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        with elements.directory({"a.o.py": "def main(params, action):\n    1 / 0\n", "b.o.py": HANGS}) as (folder, python):
            elements.fails(folder, *python)
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def a_reader_that_does_not_read_holds_no_signal_up():
    """A pager, say, that is at the first page: neither Ctrl-C nor --timeout wait for it."""
    files = {"a.o.py": "def main(params, action):\n    while True:\n        print('x' * 1000, flush=True)\n"}
    for args, status in (((), 130), (("--timeout", "1s"), 1)):
        with elements.directory(files) as (folder, python):
            p = weft.start("run", folder, *python, *args, env=elements.environment(folder))
            try:
                p.stdout.readline()
                if not args:
                    time.sleep(0.3)
                    p.send_signal(signal.SIGINT)
                assert p.wait(timeout=30) == status, p.returncode
                assert ("SIGINT" if not args else "--timeout") in p.stderr.read()
            finally:
                p.kill()
                p.wait()
                p.stdout.close()
                p.stderr.close()
            elements.nothing_left(folder)


def a_reader_that_goes_away_ends_the_run():
    files = {"a.o.py": "import time\ndef main(params, action):\n    for i in range(100000):\n        print('x' * 1000, flush=True)\n"
                       "    time.sleep(600)\n"}
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            p.stdout.readline()
            p.stdout.close()
            assert p.wait(timeout=30) == 1
            assert "standard output" in p.stderr.read()
        finally:
            p.kill()
            p.wait()
            p.stderr.close()
        elements.nothing_left(folder)


# --- with the Python package -------------------------------------------------------------------------------------------------------

def whole(files, *args, says):
    package = elements.package()
    with elements.directory(files, stand_in=False) as (folder, python):
        began = time.monotonic()
        done = elements.fails(folder, *python, *args, says=says, env=elements.environment(folder, **package))
        return done, time.monotonic() - began


def writing_out_of_range_is_an_error():
    whole({"a.o.py": """
        #@ corunning: {words: {trans: words, type: rdma}}
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(8192)
            trans.write(4096, (1 << 20) - 64, 0)
        """, "words.o.yaml": WORDS}, says=["Traceback", "trans.write", "a failed:"])


def what_is_not_json_is_an_error():
    for value in ("{1, 2}", "float('nan')", "object()", "b'x'", "{(1, 2): 3}"):
        whole({"a.o.py": f"def main(params, action):\n    return {value}\n"}, says=["a failed:", "JSON"])


def hanging_in_a_read_ends_with_the_time():
    """A transport that nobody ever configures."""
    whole({"a.o.py": """
        def main(params, action):
            action.add_transport('never;rdma_tcp;')
            trans = action.get_transport('never', 'rdma')
            trans.reg(64)
            trans.read(64, 0)
        """}, "--timeout", "2s", says=["--timeout", "still running: a"])


def memory_killed_in_the_middle_of_reads_is_an_exception():
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: {trans: words, type: rdma}}
        import time
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(65536)
            trans.read(65536, 0)
            print('up', flush=True)
            end = time.monotonic() + 60
            try:
                while time.monotonic() < end:
                    trans.read(65536, 0)
            except Exception as why:
                print('raised', type(why).__name__, flush=True)
                raise
        """, "words.o.yaml": WORDS}
    with elements.directory(files, stand_in=False) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder, **package))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            os.kill(next(pid for pid, args in elements.processes_of(folder) if " element memory " in args), signal.SIGKILL)
            out, err = p.communicate(timeout=40)
            assert p.returncode == 1 and "memory element words was killed" in err, out + err
            assert "token," not in out + err
        finally:
            weft.end(p)
        elements.nothing_left(folder)


def a_replica_killed_in_the_middle_of_reads_leaves_the_right_bytes():
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: {trans: words, type: rdma}}
        import os, time
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(65536)
            pattern = bytes(range(256)) * 256
            trans.buf[:] = pattern
            trans.write(65536, 0)
            print('up', flush=True)
            reads, end = 0, time.monotonic() + 60
            while not os.path.exists('go') and time.monotonic() < end:
                trans.buf[:] = bytes(65536)
                trans.read(65536, 0)
                if bytes(trans.buf) != pattern:
                    return 'other bytes'
                reads += 1
            for _ in range(100):  # and after it
                trans.buf[:] = bytes(65536)
                trans.read(65536, 0)
                if bytes(trans.buf) != pattern:
                    return 'other bytes in the end'
            return reads > 0
        """, "words.o.yaml": "replicas: 2\n" + WORDS}
    for which in (0, 1):
        with elements.directory(files, stand_in=False) as (folder, python):
            p = weft.start("run", folder, *python, "--json", env=elements.environment(folder, **package))
            try:
                assert p.stderr.readline() == "up\n", p.stderr.read()
                mirrored = sorted(pid for pid, args in elements.processes_of(folder) if "--mirrored" in args)
                os.kill(mirrored[which], signal.SIGKILL)
                assert "the other replicas serve on" in p.stderr.readline()
                where = next(os.readlink(f"/proc/{pid}/cwd") for pid, args in elements.processes_of(folder) if "disagg.element" in args)
                with open(os.path.join(where, "go"), "w", encoding="ascii"):
                    pass
                out, err = p.communicate(timeout=90)
                assert p.returncode == 0 and json.loads(out)["results"]["a"] == [True], out + err
            finally:
                weft.end(p)
            elements.nothing_left(folder)


weft.main(a_failing_element_shows_its_traceback, a_program_that_does_not_load_is_named, a_mistake_in_a_program_is_shown_once,
          killed_elements_are_told,
          one_that_ends_without_a_word_is_told, one_that_hangs_ends_with_the_time,
          one_that_takes_longer_than_its_time_is_named, one_that_waits_for_its_turn_takes_no_time,
          one_that_ended_in_time_is_not_late_because_the_launcher_is,
          a_time_ends_one_whose_output_nobody_reads, one_that_is_stopped_ends_too, what_elements_start_goes_with_them,
          memory_that_is_killed_ends_the_run, a_replica_that_is_killed_does_not, a_signal_takes_all_down_in_order,
          elements_are_asked_before_they_are_killed, a_second_signal_is_impatient,
          no_descriptors_left_is_told, only_its_own_are_killed, a_reader_that_does_not_read_holds_no_signal_up,
          a_reader_that_goes_away_ends_the_run,
          writing_out_of_range_is_an_error, what_is_not_json_is_an_error,
          hanging_in_a_read_ends_with_the_time, memory_killed_in_the_middle_of_reads_is_an_exception,
          a_replica_killed_in_the_middle_of_reads_leaves_the_right_bytes)
