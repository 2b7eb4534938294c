"""Nothing of weft run stays behind, whichever way it ends: no process that an element has started, and no directory. What is not its own does."""
import contextlib
import os
import signal
import subprocess
import sys
import time

from lib import elements, weft

WORDS = "type: memory\nlimits: {mem: 1M}\n"

# children of an element that do all they can to be nobody's: another group, another session, no parent
DAEMON = """
import os, subprocess, sys, time
def daemon(args, **more):
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen(args, start_new_session=True, **more)
        os._exit(0)
    os.wait()
"""
HANGS = DAEMON + """
def main(params, action):
    subprocess.Popen(["sleep", "600"])
    daemon(["sleep", "600"])
    print("up", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def running(files, *args):
    with elements.directory(files) as (folder, python):
        p = weft.start("run", folder, *python, *args, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            elements.wait_for(lambda: sum("sleep 600" in a for _, a in elements.processes_of(folder)) == 2)
            yield p, folder
            elements.nothing_left(folder)
        finally:
            weft.end(p)


def scratch_of(folder):
    temp = os.path.join(os.path.dirname(folder), "tmp")
    return [os.path.join(temp, d) for d in os.listdir(temp)]


def guard_of(p):
    """The child of the launcher that is not an element."""
    def found():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                stat = f.read()
                if "(weft-run-guard)" in stat and int(stat.rpartition(")")[2].split()[1]) == p.pid:
                    return int(pid)
        return None
    return elements.wait_for(found)


def a_launcher_that_is_killed_leaves_nothing():
    with running({"a.o.py": "#@ corunning: {words: }\n" + HANGS, "words.o.yaml": WORDS}) as (p, folder):
        p.kill()
        p.communicate(timeout=30)
        elements.wait_for(lambda: not scratch_of(folder))


def even_with_all_of_its_group():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        p = subprocess.Popen([weft.command(), "run", folder, *python], env=elements.environment(folder), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert p.stdout.readline() == "up\n", p.stderr.read()
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate(timeout=30)
            elements.nothing_left(folder)
            elements.wait_for(lambda: not scratch_of(folder))
        finally:
            weft.end(p)


def the_next_run_sees_to_it_if_the_guard_was_killed_too():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("the guard is not the launcher's there, but its agent's")
    with running({"a.o.py": HANGS}) as (p, folder):
        os.kill(guard_of(p), signal.SIGKILL)
        p.kill()
        p.communicate(timeout=30)
        left, = scratch_of(folder)
        python = ("--python", os.path.join(os.path.dirname(folder), "stand-in"))
        with open(os.path.join(folder, "a.o.py"), "w", encoding="ascii") as f:
            f.write("def main(params, action):\n    return 1\n")
        env = elements.environment(folder)
        assert weft.run("run", folder, *python, env=env).returncode == 0
        assert scratch_of(folder) == [left], "it is too young to be told from one that is just being made"
        env = dict(env, **elements.an_hour_later(os.path.dirname(folder)))
        for name, mode in (("weft-run-kept00", 0o1700), ("weft-run-others", 0o755), ("weft-run-long-name", 0o700), ("other", 0o700)):
            os.mkdir(os.path.join(os.path.dirname(left), name))
            os.chmod(os.path.join(os.path.dirname(left), name), mode)
        os.symlink("/", os.path.join(os.path.dirname(left), "weft-run-symlnk"))
        other = subprocess.Popen([weft.command(), "run", folder, *python], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        assert other.wait(timeout=30) == 0
        assert not os.path.exists(left), "a dead run's directory was left"
        rest = sorted(map(os.path.basename, scratch_of(folder)))
        assert rest == ["other", "weft-run-kept00", "weft-run-long-name", "weft-run-others", "weft-run-symlnk"], rest
        subprocess.run(["rm", "-r", *scratch_of(folder)], check=True)


def one_that_runs_is_not_swept():
    with running({"a.o.py": HANGS}) as (p, folder):
        scratch, = scratch_of(folder)
        os.utime(scratch, (0, 0))
        library = subprocess.run(["sh", "-c", "command -v flock"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
        if library:
            assert subprocess.run([library, "-n", scratch, "true"], check=False).returncode == 1, "nobody has locked it"
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=30)
        assert p.returncode == 128 + signal.SIGTERM and not scratch_of(folder)


def what_hides_from_an_element_goes_with_the_run():
    text = DAEMON + "def main(params, action):\n    daemon(['sleep', '600'])\n    daemon(['sleep', '601'], env={})\n    return 1\n"
    with elements.directory({"a.o.py": text}) as (folder, python):
        assert elements.results(folder, *python)["results"] == {"a": [1]}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                assert f.read() != b"sleep\x00601\x00", "it is still there"


def what_ended_before_is_no_zombie():
    text = DAEMON + """
def main(params, action):
    for i in range(20):
        daemon(["true"])
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children") as f:
            if len(f.read().split()) <= 2:
                return "none"
        time.sleep(0.02)
    return "zombies"
"""
    with elements.directory({"a.o.py": text}) as (folder, python):
        if not os.path.exists("/proc/self/task/self/children") and not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            raise weft.Skip("this kernel does not tell children")
        assert elements.results(folder, *python)["results"] == {"a": ["none"]}


def one_that_never_stops_writing_holds_nobody_up():
    """It has the element's output and its socket, and is in no group of ours."""
    text = """
import os
def main(params, action):
    for fd in (1, 2, action.socket.fileno()):
        if os.fork() == 0:
            os.setsid()
            try:
                while True:
                    os.write(fd, b"x" * 65536 if fd < 3 else b'{"did": "stats"}\\n' * 1000)
            finally:
                os._exit(0)
    return 1
"""
    with elements.directory({"a.o.py": text}) as (folder, python):
        done = elements.run(folder, *python, "--json", "--timeout", "20s")
        assert done.returncode == 0 and '"a":[1]' in done.stdout.replace(" ", ""), done.stdout + done.stderr[-300:]


def others_are_left_alone():
    """One in the same directory, with the same environment but for the launcher, and a child of nobody."""
    with elements.directory({"a.o.py": "def main(params, action):\n    1 / 0\n"}) as (folder, python):
        env = dict(os.environ, WEFT_LAUNCHER="/tmp/weft-run-nobody/launcher")
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env, start_new_session=True) as other:
            try:
                elements.fails(folder, *python)
                time.sleep(0.05)
                assert other.poll() is None
            finally:
                other.kill()


def what_was_there_before_the_launcher_is_left_alone():
    """A shell with a child that becomes the launcher."""
    with elements.directory({"a.o.py": DAEMON + "def main(params, action):\n    daemon(['sleep', '600'])\n    return 1\n"}) as (folder, python):
        p = subprocess.Popen(["/bin/sh", "-c", 'sleep 300 >/dev/null 2>&1 & echo $!; exec "$0" "$@"', weft.command(), "run", folder, *python],
                             env=elements.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        other = int(p.stdout.readline())
        try:
            out, err = p.communicate(timeout=60)
            assert p.returncode == 0 and "a: 1" in out + err, (p.returncode, out, err)
            with open(f"/proc/{other}/cmdline", "rb") as f:
                assert f.read().split(b"\0")[0] == b"sleep"
            elements.wait_for(lambda: not [a for _, a in elements.processes_of(folder) if "sleep 600" in a])
        finally:
            weft.end(p)
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)


weft.main(a_launcher_that_is_killed_leaves_nothing, even_with_all_of_its_group, the_next_run_sees_to_it_if_the_guard_was_killed_too,
          one_that_runs_is_not_swept, what_hides_from_an_element_goes_with_the_run, what_ended_before_is_no_zombie,
          one_that_never_stops_writing_holds_nobody_up, others_are_left_alone,
          what_was_there_before_the_launcher_is_left_alone)
