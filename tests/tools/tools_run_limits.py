"""limits of an element mean what people mean, by a cgroup and by watching; each one that is hit is named, and nothing of it stays behind.

Watching is tested where no cgroup can be made: as an ordinary user, or in a mount namespace in which /sys/fs/cgroup is empty and read-only.
"""
# ctest: long
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys

from lib import elements, weft

NO_CGROUPS = ["unshare", "--mount", "--", "sh", "-c", 'mount -t tmpfs -o ro none /sys/fs/cgroup && exec "$@"', "sh"]
MIB = 1 << 20


def command(way):
    return [*(NO_CGROUPS if way == "watching" and as_it_is() != "watching" else []), weft.command(), "run"]


def go(way, folder, *args, timeout=120, **env):
    done = subprocess.run([*command(way), folder, *args, "--json"], env=elements.environment(folder, **env), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, check=False)
    elements.nothing_left(folder)
    said, = weft.json_lines(done.stdout)
    by = set(said.get("limits_by", {}).values())
    assert not by or (by <= {"watching", "pinning"} if way == "watching" else all("cgroup" in one for one in by)), said["limits_by"]
    return done, said


@functools.cache
def as_it_is():
    """How a run here holds its memory, unless something is done about it."""
    with elements.directory({"a.o.py": "#@ limits: {mem: 1G}\ndef main(params, action):\n    return 1\n"}) as (folder, python):
        return elements.results(folder, *python)["limits_by"]["mem"]


@functools.cache
def ways():
    """Those that can be tested here."""
    if as_it_is() == "watching":
        return ["watching"]
    can = subprocess.run([*NO_CGROUPS, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
    return ["cgroup", "watching"] if can else ["cgroup"]


def cgroups():
    """Names of all directories of runs, this one's and others'."""
    return {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith("weft-run-")}


def held(files, *args, stand_in=True, **env):
    """What it said, by way; its cgroups are gone, which the elements name by returning or printing their directory."""
    for way in ways():
        with elements.directory(files, stand_in=stand_in) as (folder, python):
            done, said = go(way, folder, *python, *args, **env)
            for name in set(re.findall(r"weft-run-\w{6}", done.stdout + done.stderr)):
                assert name not in cgroups(), f"{name} was left"
            yield way, done, said


def one(said, name="a"):
    return next(e for e in said["elements"] if e["name"] == name)


def is_over(done, said, name, most):
    """The run failed because of that limit, and says so everywhere."""
    assert done.returncode == 1 and one(said)["state"] == "failed" and said["ok"] is False, said
    assert (one(said)["limit"]["name"], one(said)["limit"]["bytes"]) == (name, most), said
    assert said["error"].startswith(f"a is over its {'memory' if name == 'mem' else name} limit") and f"{most // MIB} MiB" in said["error"], said
    assert [(f["element"], f["error"]) for f in said["failures"]] == [("a", said["error"])], said
    assert said["error"] in done.stderr and done.stderr.count("is over its") == 1, done.stderr


# --- memory ------------------------------------------------------------------------------------------------------------------

TAKE = """
def take(mib):
    taken = bytearray(mib << 20)
    for i in range(0, len(taken), 4096):
        taken[i] = 1
    return taken
"""


def memory_over_its_limit_ends_the_element():
    files = {"a.o.py": "#@ limits: {mem: 64M}\nimport os, time\n" + TAKE +
                       "def main(params, action):\n    print(os.getcwd(), flush=True)\n    kept = take(400)\n    time.sleep(600)\n",
             "b.o.py": "import time\ndef main(params, action):\n    time.sleep(600)\n"}
    for _, done, said in held(files):
        is_over(done, said, "mem", 64 * MIB)
        assert one(said, "b")["state"] == "stopped" and "limit" not in one(said, "b"), said


def a_child_counts_too():
    """Its own memory, and that of one which has left its parent."""
    child = "import subprocess, sys\nCODE = '''" + TAKE + "\nimport time\nkept = take(400)\nprint('took', flush=True)\ntime.sleep(600)'''\n"
    for start in ("subprocess.run([sys.executable, '-c', CODE])", "subprocess.run(['sh', '-c', '\"$0\" -c \"$1\" & wait', sys.executable, CODE])"):
        files = {"a.o.py": "#@ limits: {mem: 64M}\n" + child + f"import time\ndef main(params, action):\n    {start}\n    time.sleep(600)\n"}
        for _, done, said in held(files):
            is_over(done, said, "mem", 64 * MIB)


def memory_below_its_limit_is_left_alone():
    files = {"a.o.py": "#@ limits: {mem: 128M}\nimport os\n" + TAKE + "def main(params, action):\n    return [len(take(64)), os.getcwd()]\n"}
    for _, done, said in held(files):
        assert done.returncode == 0 and said["results"]["a"][0][0] == 64 * MIB and "limit" not in one(said), done.stderr


def pages_shared_by_a_fork_count_once():
    files = {"a.o.py": "#@ limits: {mem: 128M}\nimport os, time\n" + TAKE + """
def main(params, action):
    kept = take(60)
    children = []
    for _ in range(6):
        pid = os.fork()
        if not pid:
            time.sleep(1.5)
            os._exit(len(kept) != 60 << 20)
        children.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in children]
"""}
    for _, done, said in held(files):
        assert done.returncode == 0 and said["results"]["a"] == [[0] * 6], done.stderr


def another_kill_is_no_limit():
    files = {"a.o.py": "#@ limits: {mem: 64M}\nimport os\ndef main(params, action):\n    os.kill(os.getpid(), 9)\n"}
    for _, done, said in held(files):
        assert done.returncode == 1 and "limit" not in one(said) and "a was killed by signal 9 (SIGKILL)" in said["error"], said
    files = {"a.o.py": "#@ limits: {mem: 64M}\ndef main(params, action):\n    1 / 0\n"}
    for _, done, said in held(files):
        assert "limit" not in said["error"] and "limit" not in one(said), said


def addresses_are_free():
    """Libraries take many more addresses than memory: no resource limit of the process is set."""
    look = """
import mmap, resource
def main(params, action):
    taken = [mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | 0x4000) for _ in range(8)]  # MAP_NORESERVE
    return [resource.getrlimit(r) for r in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)]
"""
    files = {"free.o.py": look, "a.o.py": "#@ limits: {mem: 64M, storage: 1M, cpu: 0.5}\n" + look}
    for _, done, said in held(files):
        assert done.returncode == 0 and said["results"]["a"] == said["results"]["free"], done.stderr + done.stdout


def the_table_names_it():
    for limits, code, words in (("mem: 64M", "kept = bytearray(b'x') * (400 << 20); time.sleep(600)", "failed: memory limit 64 MiB"),
                                ("storage: 1M", "open('x', 'wb').write(bytes(2 << 20)); time.sleep(600)", "failed: storage limit 1 MiB"),
                                ("time: 1s", "time.sleep(600)", "failed: time limit 1.00 s")):
        files = {"a.o.py": f"#@ limits: {{{limits}}}\nimport time\ndef main(params, action):\n    {code}\n"}
        with elements.directory(files) as (folder, python):
            done = elements.fails(folder, *python)
            assert re.search(rf"^a +1 +{words}  ", done.stdout, re.M), done.stdout
            assert "limit" in json.loads(elements.fails(folder, *python, "--json").stdout)["elements"][0]


def an_output_that_nobody_reads_hides_nothing():
    """A pager at its first page: the launcher waits for it, and looks all the same."""
    files = {"a.o.py": "#@ limits: {mem: 64M}\nimport threading, time\n" + TAKE + """
def main(params, action):
    def late():
        time.sleep(1)
        kept.append(take(400))
        time.sleep(600)
    kept = []
    threading.Thread(target=late, daemon=True).start()
    while True:
        print("x" * 1000, flush=True)
"""}
    for way in ways():
        with elements.directory(files) as (folder, python):
            p = subprocess.Popen([*command(way), folder, *python], env=elements.environment(folder), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                p.stdout.readline()
                assert p.wait(timeout=60) == 1
                assert "is over its memory limit" in p.stderr.read()
            finally:
                weft.end(p)
            elements.nothing_left(folder)


# --- storage -----------------------------------------------------------------------------------------------------------------

def storage_over_its_limit_ends_the_element():
    hangs = "    time.sleep(600)\n"
    for code in ("open('x', 'wb').write(bytes(2 << 20))",                                  # one file
                 "[open(f'x{i}', 'wb').write(bytes(10000)) for i in range(200)]",           # many
                 "os.makedirs('a/b/c'); open('a/b/c/x', 'wb').write(bytes(2 << 20))",       # below
                 "f = open('x', 'wb'); os.unlink('x'); f.write(bytes(2 << 20)); f.flush()",  # no name
                 "subprocess.run(['sh', '-c', 'head -c 2000000 /dev/zero > x'])"):          # a child's
        files = {"a.o.py": "#@ limits: {storage: 1M}\nimport os, subprocess, time\ndef main(params, action):\n"
                           f"    print(os.getcwd(), flush=True)\n    {code}\n{hangs}"}
        for _, done, said in held(files):
            is_over(done, said, "storage", MIB)
            assert one(said)["limit"]["used_bytes"] > MIB, said


def what_was_written_before_the_result_counts():
    """However quick the element is: its dependents do not start."""
    files = {"a.o.py": "#@ limits: {storage: 1M}\ndef main(params, action):\n    open('x', 'wb').write(bytes(2 << 20))\n    return 1\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    print('b ran', flush=True)\n"}
    for _, done, said in held(files):
        is_over(done, said, "storage", MIB)
        assert "b ran" not in done.stderr and one(said, "b")["state"] == "not started", done.stderr


def storage_below_its_limit_is_left_alone():
    files = {"a.o.py": """
        #@ limits: {storage: 8M}
        import os
        def main(params, action):
            with open("sparse", "wb") as f:
                f.truncate(1 << 40)
            for i in range(50):  # what is removed takes no space
                with open("again", "wb") as f:
                    f.write(bytes(1 << 20))
                os.unlink("again")
            with open("x", "wb") as f:
                f.write(bytes(4 << 20))
            for i in range(20):
                os.link("x", f"x{i}")
            os.symlink("/", "root")
            return os.getcwd()
        """}
    for _, done, said in held(files):
        assert done.returncode == 0 and "limit" not in one(said), done.stderr


# --- processors --------------------------------------------------------------------------------------------------------------

def processors_are_shared_out():
    os.nice(2)  # the part of an element is one of what the launcher has
    busy = """
import os, time
def main(params, action):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass
    return [os.getcwd(), len(os.sched_getaffinity(0)), os.nice(0)]
"""
    for way, done, said in held({"a.o.py": "#@ limits: {cpu: 0.25}\n" + busy}):
        _, cpus, nice = said["results"]["a"][0]
        if way == "watching":
            assert (cpus, nice) == (1, min(19, os.nice(0) + 6)), said
        else:
            share = one(said)["cpu_seconds"] / one(said)["seconds"]  # it would use a whole one; on a busy machine it may not get its part
            assert share < 0.6 and (one(said).get("throttled_seconds", 0) > 0 or share < 0.24), said
            assert (cpus, nice) == (len(os.sched_getaffinity(0)), os.nice(0)), said


# --- with the Python package ---------------------------------------------------------------------------------------------------

def with_numpy():
    """An interpreter that has it."""
    build = os.path.dirname(os.path.dirname(os.path.abspath(weft.command())))
    for python in (os.path.join(build, "venv", "bin", "python"), sys.executable, "/usr/bin/python3"):  # the first has OpenBLAS in it
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return python
    raise weft.Skip("there is no numpy")


def plain_package():
    package = elements.package()
    if "LD_PRELOAD" in package:
        raise weft.Skip("the address sanitizer takes more memory than the limit")
    return package


def numpy_works_in_256_mib():
    """On 64 processors it has 64 threads, and each of them reserves addresses: it hung."""
    package, python = plain_package(), with_numpy()
    files = {"a.o.py": """
        #@ limits: {mem: 256M}
        import os
        import numpy
        def main(params, action):
            a = numpy.arange(512 * 512, dtype='f8').reshape(512, 512)
            return [float((a @ a)[1, 1]), os.getcwd()]
        """}
    for _, done, said in held(files, "--python", python, "--timeout", "100s", OPENBLAS_NUM_THREADS="64", **package, stand_in=False):
        assert done.returncode == 0 and said["results"]["a"][0][0] == sum((512 + k) * (512 * k + 1) for k in range(512)), done.stderr


SHARED = """
    import os, time
    def main(params, action):
        trans = action.get_transport('words', 'rdma')
        trans.reg(1 << 20)
        for i in range(512):
            trans.buf[0:8] = i.to_bytes(8, 'little')
            trans.write(1 << 20, i << 20)
        for i in (0, 511):
            trans.read(8, i << 20)
            assert int.from_bytes(trans.buf[:8], 'little') == i
        print('mapped', trans.stats()['path'], os.getcwd(), flush=True)
        {then}
        return trans.stats()['path']
    """


def memory_elements_do_not_count():
    """Although this process is the first to touch all of their pages."""
    package = plain_package()
    files = {"a.o.py": "#@ limits: {mem: 64M}\n#@ corunning: {words: }\n" + SHARED.format(then="time.sleep(1)").replace("\n    ", "\n"),
             "words.o.yaml": "limits: {mem: 512M}\n"}
    for _, done, said in held(files, **package, stand_in=False):
        assert done.returncode == 0 and said["results"]["a"] == ["mapped"], done.stderr


def but_what_is_beside_them_does():
    package = plain_package()
    for then in ("kept = bytearray(b'x') * (200 << 20); time.sleep(600)",
                 "trans.reg(200 << 20); trans.buf[:] = b'x' * (200 << 20); time.sleep(600)",  # a buffer is its own, although it is shared
                 "action.add_transport('own;rdma_local;size,209715200;'); own = action.get_transport('own'); own.reg(1 << 20)\n"
                 "        for i in range(200): own.write(1 << 20, i << 20)\n        time.sleep(600)"):  # and so is memory that it serves
        files = {"a.o.py": "#@ limits: {mem: 64M}\n#@ corunning: {words: }\n" + SHARED.format(then=then).replace("\n    ", "\n"),
                 "words.o.yaml": "limits: {mem: 512M}\n"}
        for _, done, said in held(files, **package, stand_in=False):
            assert "mapped mapped" in done.stderr, done.stderr
            is_over(done, said, "mem", 64 * MIB)


def merged_memory_is_added_to_the_limit():
    package = plain_package()
    files = {"a.o.py": """
        #@ limits: {mem: 64M}
        #@ withMerged: [{action: {name: own}, resources: {mem: 200M}, elem: Memory}]
        import time
        def main(params, action):
            own = action.get_transport('own', 'rdma')
            own.reg(1 << 20)
            for i in range(200):
                own.write(1 << 20, i << 20)
            time.sleep(1)
            if params['more']:
                kept = bytearray(b'x') * (100 << 20)
                time.sleep(600)
            return 1
        """}
    for _, done, said in held(files, "--param", "more=0", **package, stand_in=False):
        assert done.returncode == 0 and said["results"]["a"] == [1], done.stderr
    for _, done, said in held(files, "--param", "more=1", **package, stand_in=False):
        is_over(done, said, "mem", 264 * MIB)


def memory_that_was_invoked_does_not_count():
    package = plain_package()
    then = "action.runtime.invoke('words', 'more'); trans = action.get_transport('more', 'rdma'); trans.reg(1 << 20)\n" \
           "        for i in range(512): trans.write(1 << 20, i << 20)\n        time.sleep(1)"
    files = {"a.o.py": "#@ limits: {mem: 64M}\n#@ corunning: {words: }\n" + SHARED.format(then=then).replace("\n    ", "\n"),
             "words.o.yaml": "limits: {mem: 512M}\n"}
    for _, done, said in held(files, **package, stand_in=False):
        assert done.returncode == 0 and said["results"]["a"] == ["mapped"], done.stderr


# --- what stays behind ---------------------------------------------------------------------------------------------------------

def needs_cgroups():
    if as_it_is() == "watching":
        raise weft.Skip("no cgroup can be made here")


def a_process_that_an_element_left_is_gone_with_its_cgroup():
    """It is in a session of its own, in the element's cgroup, and lives until the run ends."""
    needs_cgroups()
    files = {"a.o.py": "#@ limits: {mem: 64M, cpu: 0.5}\nimport os, subprocess\ndef main(params, action):\n"
                       "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n    return os.getcwd()\n",
             "b.o.py": "#@ parents: [a]\n#@ limits: {mem: 64M}\nimport glob, time\ndef main(params, action):\n"
                       "    scratch = params['a'][0].split('/')[-2]\n"
                       "    for _ in range(200):\n"
                       "        left = [open(p).read().split() for p in glob.glob(f'/sys/fs/cgroup/**/{scratch}/0-a/cgroup.procs', recursive=True)]\n"
                       "        if all(len(pids) < 2 for pids in left):\n"
                       "            break\n"
                       "        time.sleep(0.1)  # a has given its result, and has not exited yet\n"
                       "    return left\n"}
    for way, done, said in held(files):
        assert done.returncode == 0, done.stderr
        if way == "cgroup":
            left = said["results"]["b"][0]
            assert left and all(len(pids) == 1 for pids in left), f"it was not there any more: {left}"


def running_in_a_cgroup(folder, python):
    p = weft.start("run", folder, *python, env=elements.environment(folder))
    assert p.stdout.readline() == "up\n", p.stderr.read()
    scratch, = os.listdir(os.path.join(os.path.dirname(folder), "tmp"))
    assert scratch in cgroups(), "it is in no cgroup"
    return p, scratch


HANGS = {"a.o.py": "#@ limits: {mem: 64M, cpu: 0.5}\nimport subprocess, time\ndef main(params, action):\n"
                   "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n    print('up', flush=True)\n    time.sleep(600)\n"}


def a_launcher_that_is_killed_leaves_no_cgroup():
    needs_cgroups()
    with elements.directory(HANGS) as (folder, python):
        p, scratch = running_in_a_cgroup(folder, python)
        p.kill()
        p.communicate(timeout=30)
        elements.wait_for(lambda: scratch not in cgroups())
        elements.nothing_left(folder)
        elements.wait_for(lambda: not os.listdir(os.path.join(os.path.dirname(folder), "tmp")))


def the_next_run_removes_them_if_the_guard_was_killed_too():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("the guard is not the launcher's there, but its agent's")
    needs_cgroups()
    with elements.directory(HANGS) as (folder, python):
        p, scratch = running_in_a_cgroup(folder, python)
        guard = elements.wait_for(lambda: [pid for pid in filter(str.isdigit, os.listdir("/proc")) if is_guard_of(pid, p.pid)])
        os.kill(int(guard[0]), signal.SIGKILL)
        p.kill()
        p.communicate(timeout=30)
        later = elements.an_hour_later(os.path.dirname(folder))
        with open(os.path.join(folder, "a.o.py"), "w", encoding="ascii") as f:
            f.write("def main(params, action):\n    return 1\n")
        done = weft.run("run", folder, *python, env=elements.environment(folder, **later))
        assert done.returncode == 0, done.stderr
        assert scratch not in cgroups(), "a dead run's cgroup was left"
        elements.nothing_left(folder)


@contextlib.contextmanager
def scope_of_a_user():
    """A cgroup of version 2 that belongs to nobody, as systemd-run --user --scope -p Delegate=yes makes one, and a command that runs another one
    there, as nobody."""
    needs_cgroups()
    if as_it_is() != "cgroup v2" or os.geteuid() != 0:
        raise weft.Skip("this takes root, and cgroups of version 2")
    scope, user = f"/sys/fs/cgroup/weft-test-{os.getpid()}", 65534
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', scope]
    user_s = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    if subprocess.run([*user_s, sys.executable, weft.command(), "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                      check=False).returncode not in (0, 1):
        raise weft.Skip("nobody cannot run the interpreter")
    os.mkdir(scope)
    try:
        for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(os.path.join(scope, name), user, user)
        yield scope, [*enter, *user_s, weft.command(), "run"], user
    finally:
        os.rmdir(scope)


def below(scope):
    return [name for name in os.listdir(scope) if os.path.isdir(os.path.join(scope, name))]


def give(folder, user):
    """The directory of a test, with what is in it."""
    for where, folders, names in os.walk(os.path.dirname(folder)):
        for name in (*folders, *names, "."):
            os.chown(os.path.join(where, name), user, user)


def a_user_has_cgroups_in_a_scope_of_his_own():
    files = {"a.o.py": "#@ limits: {mem: 64M, cpu: 0.5}\nimport os\n" + TAKE + "def main(params, action):\n    taken = take(params['mib'])\n"
                       "    return open('/proc/self/cgroup').read()\n"}
    with scope_of_a_user() as (scope, command_there, user):
        for mib in (10, 400):
            with elements.directory(files) as (folder, python):
                give(folder, user)
                done = subprocess.run([*command_there, folder, *python, "--param", f"mib={mib}", "--json"], env=elements.environment(folder),
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
                elements.nothing_left(folder)
                said = json.loads(done.stdout)
                assert set(said["limits_by"].values()) == {"cgroup v2"}, said["limits_by"]
                if mib == 10:
                    assert done.returncode == 0 and os.path.basename(scope) in said["results"]["a"][0], done.stdout
                else:
                    is_over(done, said, "mem", 64 * MIB)
                assert not below(scope), below(scope)
        for guard_too in (False, True):
            with elements.directory(HANGS) as (folder, python):
                give(folder, user)
                p = subprocess.Popen([*command_there, folder, *python], env=elements.environment(folder), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                try:
                    assert p.stdout.readline() == "up\n", p.stderr.read()
                    assert len(below(scope)) == 2, below(scope)
                    if guard_too:
                        guard = elements.wait_for(lambda: [pid for pid in filter(str.isdigit, os.listdir("/proc")) if is_guard_of(pid, p.pid)])
                        os.kill(int(guard[0]), signal.SIGKILL)
                    p.kill()
                    p.communicate(timeout=30)
                    if guard_too:  # the next run does it, wherever it is
                        later = elements.an_hour_later(os.path.dirname(folder))
                        with open(os.path.join(folder, "a.o.py"), "w", encoding="ascii") as f:
                            f.write("def main(params, action):\n    return 1\n")
                        give(folder, user)
                        done = subprocess.run([*command_there[4:], folder, *python], env=elements.environment(folder, **later),
                                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
                        assert done.returncode == 0, done.stderr
                    elements.wait_for(lambda: not below(scope))
                    elements.nothing_left(folder)
                    elements.wait_for(lambda: not os.listdir(os.path.join(os.path.dirname(folder), "tmp")))
                finally:
                    weft.end(p)


def is_guard_of(pid, launcher):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        stat = f.read()
        return "(weft-run-guard)" in stat and int(stat.rpartition(")")[2].split()[1]) == launcher
    return False


weft.main(memory_over_its_limit_ends_the_element, a_child_counts_too, memory_below_its_limit_is_left_alone, pages_shared_by_a_fork_count_once,
          another_kill_is_no_limit, addresses_are_free, the_table_names_it, an_output_that_nobody_reads_hides_nothing,
          storage_over_its_limit_ends_the_element, what_was_written_before_the_result_counts, storage_below_its_limit_is_left_alone,
          processors_are_shared_out, numpy_works_in_256_mib, memory_elements_do_not_count, but_what_is_beside_them_does,
          merged_memory_is_added_to_the_limit, memory_that_was_invoked_does_not_count, a_process_that_an_element_left_is_gone_with_its_cgroup,
          a_launcher_that_is_killed_leaves_no_cgroup, the_next_run_removes_them_if_the_guard_was_killed_too,
          a_user_has_cgroups_in_a_scope_of_his_own)
