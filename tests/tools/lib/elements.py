"""What the tests of weft run share: directories of elements, an interpreter that is a stand-in, and looking for what was left running.

The stand-in speaks the launcher's protocol (docs/design/launcher.md) and nothing else: what is tested with it is the launcher alone, in every
build. Its `main(params, action)` finds in `action` the message it was started with (`run`), the socket (`socket`), functions that wait for the next
message (`next()`), say something (`say(object or bytes)`), and ask the launcher's socket (`launcher(object or bytes)`). Tests of the
whole use the Python package of the build, where there is one.
"""
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import time

from lib import weft

STAND_IN = """#!{python} -IS
import json, os, socket, sys, traceback
class Action:
    def __init__(self):
        self.socket = socket.socket(fileno=int(os.environ.pop("WEFT_ELEMENT_FD")))
        self.socket.set_inheritable(False)
        self.file = self.socket.makefile("rb")
        self.run = self.next()
    def next(self):
        line = self.file.readline()
        return json.loads(line) if line else None
    def say(self, what):
        self.socket.sendall(what if isinstance(what, bytes) else json.dumps(what).encode() + b"\\n")
    def launcher(self, what):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(os.environ["WEFT_LAUNCHER"])
            s.sendall(what if isinstance(what, bytes) else json.dumps(what).encode() + b"\\n")
            with s.makefile("rb") as f:
                line = f.readline()
            return json.loads(line) if line else None
assert sys.argv[1] == "-c" and "disagg.element" in sys.argv[2] and len(sys.argv) == 3, sys.argv
action = Action()
action.say({{"did": "begin"}})
try:
    names = {{"__name__": "element"}}
    for path in action.run["imports"] + [action.run["file"]]:
        path = os.path.join(os.environ.get("WEFT_ELEMENT_ROOT", ""), path)
        with open(path) as f:
            exec(compile(f.read(), path, "exec"), names)
    value = names["main"](action.run["params"], action)
    action.say({{"did": "result", "value": value}})
except BaseException as why:
    action.say({{"did": "error", "error": f"{{type(why).__name__}}: {{why}}", "traceback": traceback.format_exc()}})
    sys.exit(1)
"""


@functools.cache
def reads_elements():
    with weft.scratch() as folder:
        with open(os.path.join(folder, "a.o.py"), "w", encoding="ascii"):
            pass
        return "without libyaml" not in weft.run("run", "--check", folder).stderr


@contextlib.contextmanager
def directory(files, stand_in=True):
    """A folder with these files, and beside it the stand-in: gives the folder and what to say to weft run."""
    if not reads_elements():
        raise weft.Skip("weft was built without libyaml")
    with weft.scratch() as folder:
        elements = os.path.join(folder, "elements")
        os.mkdir(elements)
        for name, text in files.items():
            with open(os.path.join(elements, name), "w", encoding="utf-8") as f:
                f.write(textwrap.dedent(text))
        python = os.path.join(folder, "stand-in")
        with open(python, "w", encoding="ascii") as f:
            f.write(STAND_IN.format(python=sys.executable))
        os.chmod(python, 0o755)
        temp = os.path.join(folder, "tmp")
        os.mkdir(temp)
        yield elements, ("--python", python) if stand_in else ("--python", sys.executable)
        assert not os.listdir(temp), f"left behind: {os.listdir(temp)}"


def environment(elements, **more):
    """The run's own temporary folder, by which its processes are found and what it leaves behind."""
    return weft.environment(TMPDIR=os.path.join(os.path.dirname(elements), "tmp"), **more)


def run(elements, *args, env=None, timeout=60):
    done = weft.run("run", elements, *args, env=env or environment(elements), timeout=timeout)
    nothing_left(elements)
    return done


def results(elements, *args, env=None):
    """What weft run --json says of a run that went well."""
    done = run(elements, "--json", *args, env=env)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    line, = weft.json_lines(done.stdout)
    assert line["ok"] is True and "error" not in line, line
    return line


def fails(elements, *args, says=(), env=None, status=1):
    """What a run that fails says on standard error."""
    done = run(elements, *args, env=env)
    assert done.returncode == status, f"exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
    for word in says:
        assert word in done.stderr, f"\"{word}\" is not in: {done.stderr}"
    assert "token," not in done.stdout + done.stderr
    return done


def processes_of(elements):
    """Every process that has the run's temporary folder as its working directory or in its environment."""
    mark, found = os.path.join(os.path.dirname(elements), "tmp"), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                state = f.read().rpartition(")")[2].split()[0]
            with open(f"/proc/{pid}/environ", "rb") as f:
                ours = b"TMPDIR=" + mark.encode() in f.read().split(b"\0")
            if state != "Z" and int(pid) != os.getpid() and (ours or os.readlink(f"/proc/{pid}/cwd").startswith(mark)):
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    found.append((int(pid), f.read().replace(b"\0", b" ").decode()))
        except (OSError, IndexError):
            continue  # it ended meanwhile, or is somebody else's
    return found


def nothing_left(elements, seconds=10):
    """Processes that were killed may take a moment to be gone."""
    deadline = time.monotonic() + seconds
    while processes_of(elements):
        assert time.monotonic() < deadline, f"still running: {processes_of(elements)}"
        time.sleep(0.02)


def package():
    """The environment in which compute elements find disagg; Skip where this build has none."""
    build = os.path.dirname(os.path.abspath(weft.command()))
    path = os.path.join(build, "python")
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if not os.path.exists(os.path.join(path, "disagg", "element.py")):
        raise weft.Skip("this build has no Python package with disagg")
    libraries = subprocess.run(["ldd", weft.command()], stdout=subprocess.PIPE, text=True, check=True).stdout
    asan = re.search(r"=> (\S*libasan\S*)", libraries)
    if asan:
        env.update(LD_PRELOAD=asan[1], ASAN_OPTIONS="detect_leaks=0")
    done = subprocess.run([sys.executable, "-c", "import disagg"], env=weft.environment(**env), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise weft.Skip(f"disagg cannot be imported by {sys.executable}: {done.stderr.strip().splitlines()[-1]}")
    return env


def wait_for(what, seconds=30):
    """Until what() is true, whatever it gives."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"{what.__name__} did not come true"
        time.sleep(0.01)
    return found


def an_hour_later(folder):
    """What to add to the environment of a run for which time() is an hour ahead: what a dead run left is old then."""
    library = os.path.join(folder, "later.so")
    source = "#include <time.h>\ntime_t time(time_t *t) { struct timespec n; clock_gettime(CLOCK_REALTIME, &n); n.tv_sec += 3600;" \
             " if (t) *t = n.tv_sec; return n.tv_sec; }\n"
    if subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=source, text=True, check=False).returncode:
        raise weft.Skip("there is no compiler")
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": "verify_asan_link_order=0"}


def trace_of(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)["traceEvents"]
