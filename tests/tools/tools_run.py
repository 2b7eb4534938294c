"""weft run runs a directory of elements: in order, in copies, with what their parents gave; memory is there as long as it is used, and no longer.

With the stand-in of lib/elements.py, which is the launcher's half alone, and with the Python package of the build where there is one.
"""
import json
import os
import re
import shutil
import subprocess
import time

from lib import elements, weft

WORDS = "type: memory\nlimits: {mem: 1M}\n"


def results_go_from_parents_to_their_dependents():
    files = {"split.o.py": "#@ dependents: [count]\ndef main(params, action):\n    return {'seen': params, 'text': 'a\\u20ac\"\\n'}\n",
             "count.o.py": """
             #@ parallelism: 3
             #@ dependents: [reduce]
             import os
             def main(params, action):
                 run = action.run
                 assert (run["name"], run["copies"], run["id"]) == ("count", 3, f"count@{run['index']}"), run
                 assert os.environ["__OW_PAR"] == str(run["index"])
                 return [run["index"], params["split"][0]["text"]]
             """,
             "reduce.o.py": "#@ parents: [count, split]\ndef main(params, action):\n    return params\n",
             "alone.o.py": "def main(params, action):\n    return None\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--param", "k=[1, 2]", "--param", "name=two words", "--param", "k={\"x\": 1.5e3}")
        given = {"k": {"x": 1500}, "name": "two words"}
        split = {"seen": given, "text": "a\u20ac\"\n"}
        count = [[i, "a\u20ac\"\n"] for i in range(3)]
        assert said["results"] == {"split": [split], "count": count, "reduce": [given | {"split": [split], "count": count}], "alone": [None]}, said
        by_name = {e["name"]: e for e in said["elements"]}
        assert [by_name[n]["copies"] for n in ("alone", "count", "reduce", "split")] == [1, 3, 1, 1]
        assert all(e["state"] == "done" and e["seconds"] > 0 and e["cpu_seconds"] > 0 and e["peak_bytes"] > 1 << 20 for e in said["elements"]), said
        assert by_name["count"]["start"] + 2e-6 >= by_name["split"]["start"] + by_name["split"]["seconds"], said
        assert by_name["reduce"]["start"] + 2e-6 >= by_name["count"]["start"] + by_name["count"]["seconds"], said


def parameters_come_from_a_file_too():
    with elements.directory({"a.o.py": "def main(params, action):\n    return params\n"}) as (folder, python):
        path = os.path.join(os.path.dirname(folder), "params")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"a b": [None, True, {"x": "\u00e9"}], "k": 1}, f)
        said = elements.results(folder, *python, "--params", path, "--param", "k=2")
        assert said["results"]["a"] == [{"a b": [None, True, {"x": "\u00e9"}], "k": 2}], said


def large_results_arrive():
    files = {"a.o.py": "def main(params, action):\n    return 'x' * (8 << 20)\n",
             "b.o.py": "#@ parents: [a]\n#@ parallelism: 3\ndef main(params, action):\n    return len(params['a'][0])\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"]["b"] == [8 << 20] * 3


def both_sides_may_say_an_edge():
    files = {"a.o.py": "#@ dependents: [b]\ndef main(params, action):\n    return 1\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return params\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"]["b"] == [{"a": [1]}]


def imports_are_run_before():
    files = {"a.o.py": "#@ import: [one.py, two.py]\ndef main(params, action):\n    return both\n", "one.py": "first = 1\n",
             "two.py": "both = [first, 2]\n"}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"]["a"] == [[1, 2]]


# --- memory -----------------------------------------------------------------------------------------------------------------

TRANSPORTS = """
def main(params, action):
    durls = {}
    for durl in action.run["transports"]:
        durls[durl.split(";")[0]] = durl
    while any("url," not in durl and "rdma_local" not in durl for durl in durls.values()):
        message = action.next()
        assert message["do"] == "config", message
        durls[message["name"]] = message["durl"]
    assert all("token," in durl or "rdma_local" in durl for durl in durls.values())
    return {name: durl.partition("token,")[0] for name, durl in durls.items()}
"""


def transports_lead_to_their_memory():
    files = {"a.o.py": "#@ corunning: {words: {trans: words, type: rdma}}\n" + TRANSPORTS,
             "b.o.py": "#@ parents: [a]\n#@ parallelism: 3\n#@ corunning: {words: }\n" + TRANSPORTS,
             "c.o.py": "#@ withMerged: [{action: {name: own}, resources: {mem: 2M}, elem: Memory}]\n" + TRANSPORTS,
             "words.o.yaml": WORDS, "pair.o.yaml": "parallelism: 2\ncorunning: [b]\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python)["results"]
        url = re.compile(r"\w+;rdma_tcp;size,1048576;url,tcp://127\.0\.0\.1:\d+;")
        assert list(said["a"][0]) == ["words"] and url.match(said["a"][0]["words"]), said["a"]
        for i, b in enumerate(said["b"]):
            assert sorted(b) == ["pair"] * (i < 2) + ["pair@0", "pair@1", "words"], b
            assert b["words"].split(";")[3] == said["a"][0]["words"].split(";")[3], "not the same memory"
            assert i == 2 or b["pair"].split(";")[3] == b[f"pair@{i}"].split(";")[3] != b[f"pair@{1 - i}"].split(";")[3], b
            assert "size,134217728" in b["pair@1"], b
        assert said["c"][0] == {"own": "own;rdma_local;size,2097152;"}, said["c"]


def memory_lives_as_long_as_its_users():
    files = {"a.o.py": "#@ corunning: {early: , both: }\ndef main(params, action):\n    return 1\n",
             "b.o.py": "#@ parents: [a]\n#@ corunning: {both: , late: }\nimport time\ndef main(params, action):\n    time.sleep(0.3)\n",
             "c.o.py": "#@ parents: [b]\nimport time\ndef main(params, action):\n    time.sleep(0.3)\n",
             "early.o.yaml": WORDS, "both.o.yaml": WORDS, "late.o.yaml": WORDS, "nobody.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python)
        span = {e["name"]: (e["start"], e["start"] + e["seconds"]) for e in said["elements"]}
        assert span["early"][1] < span["b"][1] and span["early"][1] >= span["a"][1], span
        assert span["both"][0] < span["a"][1] and span["b"][1] <= span["both"][1] < span["c"][1], span
        assert span["late"][0] >= span["a"][1] and span["b"][1] <= span["late"][1] < span["c"][1], span
        assert {e["name"]: e["state"] for e in said["elements"]}["nobody"] == "unused", said


def memory_is_gone_when_its_last_user_is_done():
    """As processes have it, and not as the report does: later elements look for it."""
    look = """
def alive(name):
    import os
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                args = f.read().split(b"\\0")
            mine = os.path.dirname(os.readlink(f"/proc/{pid}/cwd")) == os.path.dirname(os.getcwd())
        except OSError:
            continue
        found += mine and args[1:5] == [b"element", b"memory", b"--name", name.encode()]
    return found
def gone(name):
    import time
    end = time.monotonic() + 20
    while alive(name):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
"""
    user = look + "def main(params, action):\n    import time\n    end = time.monotonic() + 20\n" \
                  "    while not alive('both') and time.monotonic() < end:\n        time.sleep(0.02)\n"
    files = {"a.o.py": "#@ corunning: {early: , both: }\n" + user + "    return alive('both')\n",
             "b.o.py": "#@ parents: [a]\n#@ corunning: {both: }\n" + user + "    return [gone('early'), alive('both')]\n",
             "c.o.py": "#@ parents: [b]\n" + look + "def main(params, action):\n    return gone('both')\n",
             "early.o.yaml": WORDS, "both.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"] == {"a": [1], "b": [[True, 1]], "c": [True]}


def each_has_a_directory_of_its_own():
    files = {"a.o.py": """
        #@ parallelism: 3
        import os
        def main(params, action):
            assert os.listdir() == [] and os.stat(".").st_mode & 0o777 == 0o700
            open("mine", "w").write("x")
            os.mkdir("d"); os.symlink("/etc/passwd", "d/link")
            return os.getcwd()
        """}
    with elements.directory(files) as (folder, python):
        where = elements.results(folder, *python)["results"]["a"]
        assert len(set(where)) == 3 and not any(map(os.path.exists, where)) and os.path.exists("/etc/passwd"), where
        done = elements.run(folder, *python, "--json", "--keep")
        kept = json.loads(done.stdout)["results"]["a"]
        assert all(os.path.exists(os.path.join(d, "mine")) for d in kept) and os.path.dirname(kept[0]) in done.stderr, done.stderr
        for d in kept:
            os.unlink(os.path.join(d, "mine"))
            os.unlink(os.path.join(d, "d", "link"))
            os.rmdir(os.path.join(d, "d"))
            os.rmdir(d)
        shutil.rmtree(os.path.dirname(kept[0]))


def jobs_bounds_how_many_run():
    files = {"a.o.py": "#@ parallelism: 6\nimport time\ndef main(params, action):\n    t = time.monotonic()\n    time.sleep(0.1)\n"
                       "    return [t, time.monotonic()]\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return len(params['a'])\n"}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--jobs", "2")["results"]
        at_once = max(sum(s <= t < e for s, e in said["a"]) for t, _ in said["a"])
        assert at_once <= 2 and said["b"] == [6], said


# --- what is shown ---------------------------------------------------------------------------------------------------------------

NOISY = {"a.o.py": "import sys\ndef main(params, action):\n    print('one\\ntwo')\n    print('odd', file=sys.stderr)\n"
                   "    sys.stdout.write('no end \\x1b[2J')\n    sys.stdout.flush()\n    return {'x': 1}\n"}


def what_elements_print_comes_as_it_is_in_a_pipe():
    with elements.directory(NOISY) as (folder, python):
        done = elements.run(folder, *python)
        assert done.returncode == 0 and done.stderr == "odd\n", done.stderr
        lines = done.stdout.splitlines()
        assert lines[:4] == ["one", "two", "no end \x1b[2J", 'a: {"x": 1}'], done.stdout
        assert re.match(r"element +copies +state +time +cpu +peak mem +read +written", lines[4]), done.stdout
        assert max(map(len, lines[4:])) < 80, "it does not fit on a terminal"
        assert re.match(r"a +1 +done +\d", lines[5]) and lines[6].startswith("done in "), done.stdout
        done = elements.run(folder, *python, "--json")
        assert done.stderr.splitlines() == ["one", "two", "odd", "no end \x1b[2J"] or sorted(done.stderr.splitlines()) == [
            "no end \x1b[2J", "odd", "one", "two"], done.stderr
        assert len(weft.json_lines(done.stdout)) == 1


def on_a_terminal_names_stand_before_lines_and_progress_is_shown():
    files = dict(NOISY, **{"b.o.py": "#@ parents: [a]\nimport time\ndef main(params, action):\n    time.sleep(0.5)\n"})
    with elements.directory(files) as (folder, python):
        status, text = weft.on_a_terminal("run", folder, *python, env=elements.environment(folder))
        assert status == 0, text
        for line in ("a | one\r\n", "a | two\r\n", "a | odd\r\n", "a | no end \\x1b[2J\r\n"):
            assert line in text, text
        assert re.search(r"  b +waiting", text) and re.search(r"  b +running +\d+ ms", text) and re.search(r"  a +done", text), text
        assert "\x1b[2J" not in text, "an element moved the cursor"
        elements.nothing_left(folder)


def the_timeline_has_every_copy():
    # the memory may be slower to start than its user, and then it ends without having served: the user waits for it
    files = {"a.o.py": "#@ corunning: {words: }\ndef main(params, action):\n    if 'token' not in action.run['transports'][0]:\n"
                       "        action.next()\n    return 1\n",
             "b.o.py": "#@ parents: [a]\n#@ parallelism: 2\ndef main(params, action):\n    return 1\n", "words.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        path = os.path.join(os.path.dirname(folder), "trace.json")
        elements.results(folder, *python, "--trace", path, "--param", "secret=hush")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        assert "token" not in text and "hush" not in text and "tcp://" not in text
        events = elements.trace_of(path)
        spans = [e for e in events if e["ph"] == "X"]
        assert sorted((e["name"], e["args"]["copy"]) for e in spans) == [
            ("run", "a"), ("run", "b@0"), ("run", "b@1"), ("serve", "words"), ("start", "a"), ("start", "b@0"), ("start", "b@1"),
            ("start", "words")], spans
        assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["args"]["exit_status"] == 0 for e in spans), spans
        assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"a", "b", "words"}
        arrows = [e["ph"] for e in events if e["name"] == "result"]
        assert arrows == ["s", "f"], events


def secrets_are_not_shown():
    files = {"a.o.py": """
        #@ corunning: {words: }
        import sys
        def main(params, action):
            durl = action.run["transports"][0]
            if "token" not in durl:
                durl = action.next()["durl"]
            print("here:", durl)
            print("again:", durl, durl, file=sys.stderr)
            raise RuntimeError(durl)
        """, "words.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        trace = os.path.join(os.path.dirname(folder), "trace.json")
        for args in ((), ("--json",)):
            done = elements.run(folder, *python, *args, "--trace", trace)
            text = done.stdout + done.stderr
            assert done.returncode == 1 and "here: words;rdma_tcp;" in text and text.count("token,(token);") >= 5, text
            assert not re.search(r"token,[0-9a-f]{16}", text), "a token was shown"
            with open(trace, encoding="utf-8") as f:
                assert "token" not in f.read()


def the_key_and_the_paths_hold_in_other_directories():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("elements elsewhere have the key of the run, and the paths of their machine")
    files = {"a.o.py": "import os\ndef main(params, action):\n    return [os.environ.get(n) for n in ('WEFT_KEY_FILE', 'PYTHONPATH')]\n"}
    with elements.directory(files) as (folder, python):
        key = os.path.join(os.path.dirname(folder), "key")
        with open(key, "w", encoding="ascii") as f:
            f.write("secret" * 8)
        os.chmod(key, 0o600)
        env = elements.environment(folder, PYTHONPATH="here:/there::x")
        said = elements.results(folder, *python, "--key-file", os.path.relpath(key), env=env)["results"]["a"][0]
        here = os.getcwd()
        assert said == [os.path.realpath(key), f"{here}/here:/there::{here}/x"], said


# --- with the Python package --------------------------------------------------------------------------------------------------------

SHARED = {
    "write.o.py": """
        #@ dependents: [read]
        #@ corunning: {words: {trans: words, type: rdma}}
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(4096)
            trans.buf[:5] = b'hello'
            trans.write(4096, 0, 0)
            return {'wrote': 5}
        """,
    "read.o.py": """
        #@ parallelism: 2
        #@ corunning: {words: {type: rdma}}
        import os
        def main(params, action):
            assert params['write'][0]['wrote'] == 5
            assert params['write']['wrote'] == 5
            trans = action.get_transport('words', 'rdma')
            trans.reg(4096.0)
            trans.read(4096, addr=0, offset=0)
            return [int(os.environ['__OW_PAR']), bytes(trans.buf[:6]).decode()]
        """,
    "words.o.yaml": "type: memory\ncorunning:\n    - write\n    - read\nlimits:\n    mem: 4 MB\n"}


def memory_is_shared_between_elements():
    package = elements.package()
    with elements.directory(SHARED, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))
        assert said["results"]["read"] == [[0, "hello\0"], [1, "hello\0"]], said
        moved = {e["name"]: (e["bytes_read"], e["bytes_written"]) for e in said["elements"]}
        assert moved == {"write": (0, 4096), "read": (8192, 0), "words": (8192, 4096)}, moved


def replicas_are_one_memory():
    package = elements.package()
    files = dict(SHARED, **{"words.o.yaml": "type: memory\nreplicas: 2\nlimits: {mem: 4 MB}\n"})
    with elements.directory(files, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))
        assert said["results"]["read"] == [[0, "hello\0"], [1, "hello\0"]], said


def parallel_memory_is_in_pairs():
    package = elements.package()
    files = {"a.o.py": """
        #@ parallelism: 3
        #@ corunning: {mem: {trans: mem, type: rdma}}
        import os
        def main(params, action):
            mine = int(os.environ['__OW_PAR'])
            own = action.get_transport('mem', 'rdma')
            own.reg(8)
            own.buf[:] = bytes([mine + 1]) * 8
            own.write(8, 0)
            same = action.get_transport(f'mem@{mine}', 'rdma')
            same.reg(8)
            same.read(8, 0)
            return list(same.buf)
        """, "b.o.py": """
        #@ parents: [a]
        #@ corunning: {mem: {trans: mem, type: rdma}}
        def main(params, action):
            seen = []
            for i in range(3):
                trans = action.get_transport(f'mem@{i}', 'rdma')
                trans.reg(8)
                trans.read(8, 0)
                seen.append(trans.buf[0])
            return seen
        """, "mem.o.yaml": "parallelism: 3\nlimits: {mem: 1M}\n"}
    with elements.directory(files, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))["results"]
        assert said == {"a": [[i + 1] * 8 for i in range(3)], "b": [[1, 2, 3]]}, said


def merged_memory_is_its_own():
    package = elements.package()
    files = {"a.o.py": """
        #@ withMerged: [{action: {namespace: whisk.system, name: mem1}, resources: {mem: 1M}, elem: Memory}]
        #@ parallelism: 2
        import os
        def main(params, action):
            trans = action.get_transport('mem1', 'rdma')
            trans.reg(16)
            trans.read(16, 0)
            first = bytes(trans.buf)
            trans.buf[:] = b'x' * 16
            trans.write(16, 0)
            trans.read(8, 4)
            return [first == bytes(16), bytes(trans.buf).decode()]
        """}
    with elements.directory(files, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))["results"]
        assert said["a"] == [[True, "x" * 16]] * 2, said


def standard_streams_may_be_closed():
    files = {"a.o.py": "#@ corunning: {words: }\nimport os\ndef main(params, action):\n    print('x')\n"
                       "    open(os.environ['ANSWER'], 'w').write('ran')\n", "words.o.yaml": WORDS}
    with elements.directory(files) as (folder, python):
        answer = os.path.join(os.path.dirname(folder), "answer")
        done = subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", weft.command(), "run", folder, *python, "--timeout", "20s"],
                              env=elements.environment(folder, ANSWER=answer), timeout=60, check=False)
        elements.nothing_left(folder)
        with open(answer, encoding="ascii") as f:
            assert (done.returncode, f.read()) == (1, "ran")  # it ran, and its output is nowhere


def a_run_of_nothing_is_quick():
    """Not a measurement: bench/launch.py is. Here only that nothing waits for a timer."""
    with elements.directory({"a.o.py": "def main(params, action):\n    pass\n"}) as (folder, python):
        times = []
        for _ in range(5):
            t = time.monotonic()
            elements.results(folder, *python)
            times.append(time.monotonic() - t)
        assert min(times) < 5, times


weft.main(results_go_from_parents_to_their_dependents, parameters_come_from_a_file_too, large_results_arrive, both_sides_may_say_an_edge,
          imports_are_run_before, transports_lead_to_their_memory, memory_lives_as_long_as_its_users,
          memory_is_gone_when_its_last_user_is_done, each_has_a_directory_of_its_own,
          jobs_bounds_how_many_run, what_elements_print_comes_as_it_is_in_a_pipe, on_a_terminal_names_stand_before_lines_and_progress_is_shown,
          the_timeline_has_every_copy, secrets_are_not_shown, the_key_and_the_paths_hold_in_other_directories, memory_is_shared_between_elements,
          replicas_are_one_memory, parallel_memory_is_in_pairs, merged_memory_is_its_own, standard_streams_may_be_closed,
          a_run_of_nothing_is_quick)
