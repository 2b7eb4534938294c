"""What the tests of the command share: where it is, running it for a bounded time, and the count every test here ends with.

The command is TEST_WEFT_COMMAND, else `weft` in the build folder given as the first argument, else build/dev/weft.
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.append(os.path.join(ROOT, "tests", "lib"))


def command():
    if os.environ.get("TEST_WEFT_COMMAND"):
        return os.environ["TEST_WEFT_COMMAND"]
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "dev")
    return os.path.join(folder, "weft")


def elsewhere(args):
    """With TEST_RUN_ON=ssh, `weft run` starts its elements through an agent, as it does on other machines: tools_run_ssh.py."""
    if os.environ.get("TEST_RUN_ON") != "ssh" or args[:1] != ("run",) or "--check" in args or "--graph" in args:
        return args
    return (*args, "--on", "ssh://elsewhere", "--ssh", os.path.join(os.path.dirname(os.path.abspath(__file__)), "ssh"), "--weft", command())


class Skip(Exception):
    """Raised with the reason by a test that cannot run here."""


def environment(**more):
    """This environment without anyone's configuration."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "UCX_"))}
    env.update(more)
    return env


def on_paper(driver="paper", **more):
    """The environment in which there is a CUDA driver, made of paper; it works by itself, as a device does."""
    folder = os.path.join(os.path.dirname(os.path.abspath(command())), "tests", driver)
    if not os.path.exists(os.path.join(folder, "libcuda.so.1")):
        raise Skip(f"the CUDA driver made of paper is not built ({driver})")
    return environment(LD_LIBRARY_PATH=folder, PAPER_THREAD="10", **more)


def as_at_a_terminal():
    """For a child before it becomes the command: signals end it, also where a shell had this process ignore them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*args, env=None, stdin=subprocess.DEVNULL):
    return subprocess.Popen([command(), *elsewhere(args)], env=env or environment(), stdin=stdin, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=as_at_a_terminal)


def run(*args, env=None, timeout=60):
    """The finished process, with stdout and stderr as text."""
    return subprocess.run([command(), *elsewhere(args)], env=env or environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout, check=False)


def bench(name, *args, env=None):
    """A program of bench/ that was built beside the command, finished; skips where it was not."""
    path = os.path.join(os.path.dirname(command()), name)
    if not os.access(path, os.X_OK):
        raise Skip(f"there is no {path}")
    return subprocess.run([path, *args], env=env or environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def must(*args, **kw):
    done = run(*args, **kw)
    assert done.returncode == 0, f"weft {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def json_lines(text):
    """One object a line, and nothing else."""
    return [json.loads(line) for line in text.splitlines()]


def listen(*args, env=None):
    """A server on a port of its own: the process and its URI."""
    server = start("perf", "--listen", "tcp://127.0.0.1:0", "--json", *args, env=env)
    line = server.stdout.readline()
    if not line:
        server.wait(timeout=10)
        raise AssertionError("the server does not listen: " + server.stderr.read())
    return server, json.loads(line)["listening"]


def cpu_seconds(pid):
    """Of processor time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def state_of_thread(pid, thread):
    try:
        with open(f"/proc/{pid}/task/{thread}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "X"


def stop(pid):
    """Stop a process, and return when none of its threads runs any more: the signal alone is only on its way."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 20
    for thread in os.listdir(f"/proc/{pid}/task"):
        while state_of_thread(pid, thread) not in "TZX":
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.001)


def let_work(*processes, seconds=0.25, within=1.0):
    """Until all of them have used so much processor time, several times what it takes to start, or one eight times as much: then
    the others have little to do. For `within` seconds if they do not."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        used = [cpu_seconds(p.pid) for p in processes if p.poll() is None]
        if not used or min(used) >= seconds or max(used) >= 8 * seconds:
            return
        time.sleep(0.02)


def serve_memory(*args, size="256M", listen="tcp://127.0.0.1:0", env=None):
    """A memory server on a port of its own: the process and its URI."""
    server = start("mem", "serve", "--size", size, "--listen", listen, "--json", *args, env=env)
    line = server.stdout.readline()
    if not line:
        server.wait(timeout=10)
        raise AssertionError("the server does not listen: " + server.stderr.read())
    return server, json.loads(line)["listening"][0]


def serve_calls(*args, env=None):
    """A demo service: the process, and what it said of itself."""
    server = start("serve", "--json", *args, env=env)
    line = server.stdout.readline()
    if not line:
        server.wait(timeout=10)
        raise AssertionError("the service is not offered: " + server.stderr.read())
    return server, json.loads(line)


def end(*processes):
    for p in processes:
        if p.poll() is None:
            p.kill()
        p.communicate()


def on_a_terminal(*args, env=None, columns=0):
    """What the command writes to a terminal, and its exit status."""
    ours, theirs = pty.openpty()
    if columns:
        termios.tcsetwinsize(theirs, (24, columns))
    p = subprocess.Popen([command(), *args], env=dict(env or environment(), TERM="xterm"), stdin=subprocess.DEVNULL, stdout=theirs,
                         stderr=theirs)
    os.close(theirs)
    text, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline and select.select([ours], [], [], 30)[0]:
        try:
            got = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not got:
            break
        text += got
    os.close(ours)
    return p.wait(timeout=30), text.decode()


def shell_of_the_guide(page, at_least, PATH="", **more):
    """Run every piece of shell of a page, one after the other, with the command in the path, behind PATH."""
    with open(os.path.join(ROOT, "docs", "guide", page), encoding="utf-8") as f:
        blocks = re.findall(r"^```sh\n(.*?)^```", f.read(), re.M | re.S)
    assert len(blocks) >= at_least, "the shell of the guide is not where it was"
    with scratch() as folder:
        path = os.pathsep.join(filter(None, (PATH, os.path.dirname(os.path.abspath(command())), os.environ["PATH"])))
        done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "".join(blocks)],
                              cwd=folder, env=environment(PATH=path, **more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
        return done.stdout


def scratch():
    return tempfile.TemporaryDirectory(prefix="weft-tools-")


def main(*tests):
    """Run test functions; each raises AssertionError with what is wrong."""
    passed = failed = skipped = 0
    if not os.access(command(), os.X_OK):
        print(f"there is no {command()}")
        sys.exit(77)
    for test in tests:
        try:
            test()
            passed += 1
            print(f"ok   {test.__name__}", flush=True)
        except Skip as why:
            skipped += 1
            print(f"# skipped: {why}\nskip {test.__name__}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError) as why:
            failed += 1
            print(f"{type(why).__name__}: {why}\nFAIL {test.__name__}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 77 if skipped and not passed else 0)
