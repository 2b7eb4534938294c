"""weft run --on ssh://: what it does here it does by an agent, too; machines that cannot be reached, speak otherwise or are lost are told of; and
two hosts of our own, by a real ssh."""
# ctest: long timeout=1200
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

from lib import elements, weft

import hosts  # tests/lib

HERE = os.path.dirname(os.path.abspath(__file__))
HANGS = "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(600)\n"


def the_same_tests_pass_by_an_agent():
    """Everything that a run does on this machine, through the lines to an agent."""
    for name in ("tools_run", "tools_run_invoke", "tools_run_hostile", "tools_run_loss", "tools_run_guard", "tools_run_given", "tools_run_dag",
                 "tools_run_lib", "tools_run_limits", "tools_run_linger"):
        done = subprocess.run([sys.executable, os.path.join(HERE, name + ".py"), *sys.argv[1:]], env=dict(os.environ, TEST_RUN_ON="ssh"),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
        assert done.returncode in (0, 77), f"{name} by an agent:\n{done.stdout}"
        passed = int(re.search(r"^(\d+) passed", done.stdout, re.M)[1])
        assert passed >= (3 if name == "tools_run_lib" else 5) or done.returncode == 77, done.stdout


def stand_in_for_ssh(folder, text):
    """A command in place of ssh."""
    path = os.path.join(os.path.dirname(folder), "ssh")
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return ("--ssh", path, "--weft", weft.command())


def a_host_that_cannot_be_reached_is_named():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        ssh = stand_in_for_ssh(folder, "echo 'ssh: connect to host nowhere: No route to host' >&2\nexit 255\n")
        elements.fails(folder, *python, "--on", "ssh://nowhere", *ssh, says=["nowhere", "No route to host", "could not be reached"])
        elements.fails(folder, *python, "--on", "ssh://nowhere", "--ssh", "/no/such/ssh", says=["/no/such/ssh", "cannot be executed"])
        _, path, *there = stand_in_for_ssh(folder, "echo $# words >&2\nexit 255\n")
        elements.fails(folder, *python, "--on", "ssh://nowhere", "--ssh", path + " -v" * 20, *there, says=["30 words"])


def wrong_words_of_on_are_told():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        for on, word in (("ssh://", "names the machines"), ("ssh://a,,b", "is not [USER@]HOST[:PORT]"), ("ssh://a:0", "\"a:0\" is not [USER@]HOST"),
                         ("ssh://-oProxyCommand=x", "is not [USER@]HOST"), ("ssh://me@-x", "is not [USER@]HOST"), ("telnet://a", "is none of"),
                         ("sshx", "is none of")):
            elements.fails(folder, *python, "--on", on, says=[word], status=2)


def an_option_that_would_do_nothing_is_refused():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        for option, wrong in (("--ssh", [(), ("--on", "dask"), ("--on", "openwhisk")]), ("--weft", [()]),
                              ("--image", [(), ("--on", "dask"), ("--on", "ssh://a")]), ("--address", [(), ("--on", "dask"), ("--on", "ssh://a")])):
            for on in wrong:
                elements.fails(folder, *python, *on, option, "x", says=[f"{option} is for --on", "would do nothing"], status=2)


def what_is_no_agent_is_told():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        ssh = stand_in_for_ssh(folder, "echo 'Welcome to this machine'\nsleep 600\n")
        elements.fails(folder, *python, "--on", "ssh://a", *ssh, says=["a: ", "is not a line of Weft", "shell"])
        ssh = stand_in_for_ssh(folder, "echo '{\"did\": \"ready\", \"version\": \"9.9.9\"}'\nexec cat >/dev/null\n")
        elements.fails(folder, *python, "--on", "ssh://a", *ssh, says=["version 9.9.9", "install the same"])
        ssh = stand_in_for_ssh(folder, "exec cat\n")  # says our own lines to us
        done = elements.run(folder, *python, "--on", "ssh://a", *ssh, "--timeout", "3s")
        assert done.returncode == 1 and "--timeout" in done.stderr, done.stderr


def no_interpreter_there_is_told():
    with elements.directory({"a.o.py": HANGS}) as (folder, _):
        ssh = plain_ssh(folder)
        elements.fails(folder, "--python", "/no/such/python", "--on", "ssh://a", *ssh, says=["no interpreter /no/such/python", "--python PATH"])


def plain_ssh(folder):
    """One whose machines are this one."""
    return stand_in_for_ssh(folder, open(os.path.join(HERE, "lib", "ssh"), encoding="utf-8").read())


def the_program_travels():
    """Modules, folders, also empty ones, what may be executed, what is hidden, and names that are not ASCII."""
    files = {"a.o.py": "import os\ndef main(params, action):\n    root = os.environ['WEFT_ELEMENT_ROOT']\n    found = {}\n"
                       "    for d, ds, fs in os.walk(root):\n"
                       "        for f in fs:\n            path = os.path.join(d, f)\n"
                       "            found[os.path.relpath(path, root)] = os.access(path, os.X_OK) and bool(os.stat(path).st_mode & 0o100)\n"
                       "        if not ds and not fs:\n            found[os.path.relpath(d, root)] = None\n"
                       "    return found\n"}
    with elements.directory(files) as (folder, python):
        for name in ("lib/deep/er/x.py", "data/größe.txt", "__pycache__/x.pyc", ".git/config", ".hidden", "empty", "tool.sh"):
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(bytes(range(256)) if name != "empty" else b"")
        os.chmod(os.path.join(folder, "tool.sh"), 0o755)
        os.mkdir(os.path.join(folder, "out"))
        os.symlink("tool.sh", os.path.join(folder, "link"))
        os.symlink("nowhere", os.path.join(folder, "dangling"))
        os.mkfifo(os.path.join(folder, "fifo"))
        ssh = plain_ssh(folder)
        said = elements.results(folder, *python, "--on", "ssh://a", *ssh)
        assert said["results"]["a"] == [{"a.o.py": False, "data/größe.txt": False, "empty": False, "lib/deep/er/x.py": False, ".hidden": False,
                                         "tool.sh": True, "link": True, "out": None}], said["results"]
        with open(os.path.join(folder, "large"), "wb") as f:
            f.truncate(65 << 20)
        elements.fails(folder, *python, "--on", "ssh://a", *ssh, says=["large: what is sent to every machine is 64 MiB and 10000 files"])


def a_key_of_the_user_is_the_key_there():
    """The bytes of --key-file, as they are; without it, one of the run."""
    tells = "import os\ndef main(params, action):\n    with open(os.environ['WEFT_KEY_FILE'], 'rb') as f:\n        return f.read().hex()\n"
    with elements.directory({"a.o.py": tells}) as (folder, python):
        key, ssh = os.path.join(os.path.dirname(folder), "key"), plain_ssh(folder)
        for data in (bytes(range(256)), b"0123456789abcdef", os.urandom(65536)):
            with open(key, "wb") as f:
                f.write(data)
            assert elements.results(folder, *python, "--on", "ssh://a", *ssh, "--key-file", key)["results"]["a"] == [data.hex()]
        env = elements.environment(folder, WEFT_KEY_FILE=key)
        assert elements.results(folder, *python, "--on", "ssh://a", *ssh, env=env)["results"]["a"] == [data.hex()]
        one, other = (elements.results(folder, *python, "--on", "ssh://a", *ssh)["results"]["a"] for _ in range(2))
        assert one != other and bytes.fromhex(one[0]).startswith(b"weft-key-1 ")
        for data in (b"short", os.urandom(65537)):
            with open(key, "wb") as f:
                f.write(data)
            elements.fails(folder, *python, "--on", "ssh://a", *ssh, "--key-file", key, says=["should have 16 to 65536"])
        os.unlink(key)
        elements.fails(folder, *python, "--on", "ssh://a", *ssh, env=env, says=["cannot be read"])


def memory_that_no_machine_has_is_not_started():
    files = {"a.o.py": "#@ corunning: [m]\ndef main(params, action):\n    action.next()\n", "m.o.yaml": "limits: {mem: 63 TB}\n"}
    with elements.directory(files) as (folder, python):
        elements.fails(folder, *python, "--on", "ssh://a", *plain_ssh(folder),
                       says=["memory element m cannot be started: its memory is 66060288 MiB, and that machine has"])


def a_machine_that_is_not_ready_is_named():
    with elements.directory({"a.o.py": HANGS}) as (folder, python):
        ssh = stand_in_for_ssh(folder, "exec sleep 600\n")
        start = time.monotonic()
        elements.fails(folder, *python, "--on", "ssh://far", *ssh, "--timeout", "1s", says=["--timeout", "far is not ready yet"])
        assert time.monotonic() - start < 30  # nobody waits until it has cleaned up: there is nothing


def agents(folder):
    """The agents of a run, and nothing else of it."""
    def is_one(pid):
        try:
            with open(f"/proc/{pid}/comm", encoding="ascii") as f:
                return f.read() != "weft-run-guard\n"
        except OSError:
            return False  # it has just ended
    return [pid for pid, words in elements.processes_of(folder) if "--agent" in words and is_one(pid)]


def until(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"{what.__name__} did not come true"
        time.sleep(0.02)
    return found


def running(folder, *args):
    """A launcher whose element says that it is up."""
    ssh = plain_ssh(folder)
    p = weft.start("run", folder, *args, "--on", "ssh://a,b", *ssh, env=elements.environment(folder))
    assert p.stdout.readline() == "up\n", p.stderr.read()
    return p


def an_agent_that_is_lost_ends_the_run():
    for how, word in ((signal.SIGKILL, "the connection to it ended"), (signal.SIGSTOP, "has not answered for 10 s")):
        with elements.directory({"a.o.py": HANGS, "b.o.py": HANGS}) as (folder, python):
            p = running(folder, *python)
            both = agents(folder)
            assert len(both) == 2, both
            os.kill(both[0], how)
            _, said = p.communicate(timeout=60)
            assert p.returncode == 1 and word in said and "was lost with" in said and "idempotent: true" in said, said
            with contextlib.suppress(ProcessLookupError):
                os.kill(both[0], signal.SIGCONT)
            elements.nothing_left(folder, seconds=60)
            until(lambda: not os.listdir(os.path.join(os.path.dirname(folder), "tmp")))


def a_launcher_that_is_killed_or_stopped_leaves_nothing():
    for how in (signal.SIGKILL, signal.SIGSTOP):
        with elements.directory({"a.o.py": HANGS}) as (folder, python):
            p = running(folder, *python)
            os.kill(p.pid, how)
            until(lambda: not agents(folder), seconds=90)  # one that is stopped is given up after half a minute
            if how == signal.SIGSTOP:
                os.kill(p.pid, signal.SIGCONT)
                _, said = p.communicate(timeout=60)
                assert p.returncode == 1 and "was lost with" in said, said
            else:
                p.communicate(timeout=60)
            elements.nothing_left(folder)
            until(lambda: not os.listdir(os.path.join(os.path.dirname(folder), "tmp")))


def an_agent_does_as_it_is_told_and_no_more():
    """Lines that make no sense are refused or ignored, and names of files do not lead out."""
    env = weft.environment()
    for line, word in (("nonsense", "is not a line of a launcher"),
                       ('{"do": "open", "version": "x", "key": "a2V5"}\n{"do": "file", "name": "../x", "data": ""}', "no name or no data"),
                       ('{"do": "open", "version": "x"}\n{"do": "file", "name": "/etc/x", "data": ""}', "no name or no data"),
                       ('{"do": "open", "version": "x"}\n{"do": "file", "name": "a/./x", "data": ""}', "no name or no data"),
                       ('{"do": "open", "version": "x"}\n{"do": "file", "name": "x", "data": "!"}', "cannot be written"),
                       ('{"do": "open", "version": "x"}\n{"do": "file", "name": "x", "data": ""}\n{"do": "file", "name": "x", "data": ""}',
                        "cannot be written"),
                       ('{"do": "tell", "n": 1, "line": "x"}\n{"do": "signal", "n": 0, "number": 9}\n{"do": "ping"}', '"did":"pong"')):
        done = subprocess.run([weft.command(), "run", "--agent"], input=line + "\n", env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=60, check=False)
        assert word in done.stdout.replace(": ", ":").replace(word.replace(": ", ":"), word), (line, done.stdout, done.stderr)
        assert done.returncode == 0, done


SHARED = """
#@ parallelism: 4
#@ corunning: {words: }
import os, socket
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(8 << 20)
    me = int(os.environ["__OW_PAR"])
    trans.buf[:4] = bytes([me + 1] * 4)
    trans.write(4, me * 4)
    trans.read(8 << 20, 0)
    return [socket.gethostname(), trans.stats()["mapped"] if "mapped" in trans.stats() else None]
"""
SUM = """
#@ parents: [share]
#@ corunning: {words: }
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(16)
    trans.read(16, 0)
    return list(bytes(trans.buf))
"""


def two_hosts_by_a_real_ssh():
    package = elements.package()
    files = {"share.o.py": SHARED, "sum.o.py": SUM, "words.o.yaml": "type: memory\nlimits: {mem: 8M}\n"}
    try:
        command = os.path.abspath(weft.command())
        with hosts.Hosts(3) as (a, b, c), elements.directory(files, stand_in=False) as (folder, python):
            env = weft.environment(**package)
            ssh = hosts.ssh(os.path.dirname(folder), a, (b, c), env)
            before = {host: set(host.files()) for host in (a, b, c)}
            on = ("--on", f"ssh://root@{b.address},root@{c.address}", "--ssh", ssh, "--weft", command)
            done = a.run(command, "run", folder, *python, "--json", *on, env=env)
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            where = [name for name, _ in said["results"]["share"]]
            assert said["results"]["sum"] == [[1] * 4 + [2] * 4 + [3] * 4 + [4] * 4], said
            assert set(where) == {"host1", "host2"}, where  # both machines had something to do, and not this one
            # nobody without the key of the run reaches the memory, and nothing stays
            for host in (a, b, c):
                assert set(host.files()) == before[host], host.files()
                assert not host.processes("--agent") and not host.processes("element"), host.name
            with open(os.path.join(folder, "share.o.py"), "a", encoding="utf-8") as f:
                f.write("    import time\n    time.sleep(600)\n".replace("    import", "main_ = main\ndef main(params, action):\n    import", 1))
            p = a.start(command, "run", folder, *python, *on, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until(lambda: len(b.processes("disagg.element")) + len(c.processes("disagg.element")) == 4)
            c.cut()
            _, said = p.communicate(timeout=120)
            assert p.returncode == 1 and f"was lost with {c.address}" in said, said
            until(lambda: not c.processes("--agent") and not b.processes("--agent"), seconds=90)  # it cannot know, and gives up by itself
            assert set(c.files()) == before[c] and set(b.files()) == before[b]
    except hosts.Unavailable as why:
        raise weft.Skip(str(why)) from None


weft.main(the_same_tests_pass_by_an_agent, a_host_that_cannot_be_reached_is_named, wrong_words_of_on_are_told,
          an_option_that_would_do_nothing_is_refused, what_is_no_agent_is_told,
          no_interpreter_there_is_told, the_program_travels, a_key_of_the_user_is_the_key_there,
          memory_that_no_machine_has_is_not_started, a_machine_that_is_not_ready_is_named, an_agent_that_is_lost_ends_the_run,
          a_launcher_that_is_killed_or_stopped_leaves_nothing, an_agent_does_as_it_is_told_and_no_more, two_hosts_by_a_real_ssh)
