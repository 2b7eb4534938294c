"""The timeline of weft run --trace has what elements do with memory: transfers and waits by transport, bytes, points; and the table counts memory
at the element that has it.

With the stand-in of lib/elements.py for what a program may say, true or not, and with the Python package of the build for the whole.
"""
import json
import os
import time

from lib import elements, weft

MIB = 1 << 20
WORDS = "type: memory\nlimits: {mem: 1M}\n"


def traced(files, *args, stand_in=True, **env):
    """What the run said, its events, and the text of the file."""
    with elements.directory(files, stand_in=stand_in) as (folder, python):
        path = os.path.join(os.path.dirname(folder), "trace.json")
        said = elements.results(folder, *python, "--trace", path, *args, env=elements.environment(folder, **env))
        with open(path, encoding="utf-8") as f:
            text = f.read()
        return said, json.loads(text)["traceEvents"], text


def threads(events):
    """Names by (process, thread) of the picture, and of processes."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return names, {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def spans(events, kind="transport"):
    names, _ = threads(events)
    return [(names[e["pid"], e["tid"]], e["name"], e) for e in events if e["ph"] == "X" and e["cat"] == kind]


# --- what a program may say ----------------------------------------------------------------------------------------------------

def says(rows, then="return 1", head=""):
    """An element that says rows, which are Python: `now` is the clock."""
    return f"{head}import time\ndef main(params, action):\n    now = time.monotonic_ns()\n    said = {rows}\n" \
           f"    for rows in (said if said and isinstance(said[0], dict) else [{{'rows': said}}]):\n" \
           f"        action.say({{'did': 'trace', **rows}})\n    {then}\n"


def rows_become_spans_points_and_counters():
    rows = "[['words', 'write', 4096, now, 0, 0], ['words', 'read', 100, now, 3000, 1000], ['', 'profile', -7, now, 0, 0]]"
    said, events, _ = traced({"a.o.py": says(rows, then="assert action.run['trace'] >= 10000; return 1", head="#@ corunning: {words: }\n")
                              .replace("now = time.monotonic_ns()", "now = time.monotonic_ns() - 5000"), "words.o.yaml": WORDS})
    names, processes = threads(events)
    found = {(track, name): e for track, name, e in spans(events)}
    assert set(found) == {("a: words", "write"), ("a: words", "read")}, found
    assert found["a: words", "write"]["args"] == {"bytes": 4096} and found["a: words", "read"]["dur"] == 2, found
    (_, name, wait), = spans(events, "wait")
    assert name == "wait" and wait["dur"] == 1 and abs(wait["ts"] + 1 - found["a: words", "read"]["ts"]) < 0.01, wait
    point, = [e for e in events if e["ph"] == "i"]
    assert point["name"] == "profile -7" and names[point["pid"], point["tid"]] == "a" and processes[point["pid"]] == "a", point
    counters = [e for e in events if e["ph"] == "C"]
    assert {processes[e["pid"]] for e in counters} == {"words"} and counters[-1]["args"]["bytes"] == 4196, counters
    start, run = (next(e for e in events if e["name"] == name and e["args"]["copy"] == "a") for name in ("start", "run"))
    assert all(start["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] for e in (wait, *found.values())), events


def without_trace_nobody_is_asked():
    with elements.directory({"a.o.py": "def main(params, action):\n    return 'trace' in action.run\n"}) as (folder, python):
        assert elements.results(folder, *python)["results"]["a"] == [False]


def calls_that_overlap_are_beside_each_other():
    rows = "[['m', 'read_async', 8, now, 900000, 0], ['m', 'read_async', 8, now + 100, 900000, 0], ['m', 'read', 8, now + 950000, 10, 0]]"
    _, events, _ = traced({"a.o.py": says(rows).replace("now = time.monotonic_ns()", "now = time.monotonic_ns(); time.sleep(0.01)")})
    assert sorted((track, name) for track, name, _ in spans(events)) == [("a: m", "read"), ("a: m", "read_async"), ("a: m (2)", "read_async")]


def nonsense_is_left_out():
    rows = ("[7, [], ['m'], ['m', 'read', 8, now, 0], ['m', 'read', -8, now, 0, 0], ['m', 'read', 8, now + 10**12, 0, 0], ['m', 'read', 8, 5, 0, 0],"
            " ['m', 'read', 8, now, 10**15, 0], ['m', 'read', 8, now, 5, 6], ['m', '<b>', 8, now, 0, 0], ['m' * 5000, 'read', 8, now, 0, 0],"
            " ['m', 'read', 10**30, now, 0, 0], ['m', 'read', 'x', now, 0, 0], [None, 'read', 8, now, 0, 0], ['m', 'read', 8, -1, 0, 0],"
            " {'m': 1}, ['m', 'read', 8, now, 0, 0]]")
    _, events, _ = traced({"a.o.py": says(rows)})
    assert [(track, name, e["args"]["bytes"]) for track, name, e in spans(events)][-1] == ("a: m", "read", 8)
    assert len(spans(events)) <= 2, spans(events)  # a text in place of the bytes is 0
    for rows in ("[{'rows': 5}]", "[{'rows': None, 'dropped': -1}]", "[{}]", "[{'rows': {}, 'dropped': 'x'}]"):
        _, events, _ = traced({"a.o.py": says(rows)})
        assert not spans(events), events


def there_are_no_more_than_fit():
    """Of a program that says a million, and of one that tells how many it did not say."""
    flood = "[{'rows': [['m', 'read', 1, now, 0, 0]] * 1000}] * 50 + [{'rows': [], 'dropped': 123}]"
    _, events, _ = traced({"a.o.py": says(flood)})
    note, = [e for e in events if e["ph"] == "i"]
    assert len(spans(events)) == 32768 and note["args"]["dropped"] == 50000 - 32768 + 123, note
    assert str(note["args"]["dropped"]) in note["name"], note


def secrets_are_not_in_it():
    files = {"a.o.py": """
        #@ corunning: {words: }
        import time
        def main(params, action):
            durl = action.run["transports"][0]
            if "token" not in durl:
                durl = action.next()["durl"]
            token = durl.split("token,")[1].split(";")[0]
            action.say({"did": "trace", "rows": [[name, "read", 8, time.monotonic_ns(), 0, 0] for name in (token, "y")]})
            return token[:40]
        """, "words.o.yaml": WORDS}
    said, events, text = traced(files)
    begins = said["results"]["a"][0]
    assert "a: y" in {track for track, _, _ in spans(events)} and len(begins) == 40
    assert begins not in text, "the key is in the trace"


def a_file_that_cannot_be_written_is_told_before_anything_starts():
    with elements.directory({"a.o.py": "def main(params, action):\n    print('ran', flush=True)\n"}) as (folder, python):
        done = elements.fails(folder, *python, "--trace", "/nowhere/trace.json", says=["--trace /nowhere/trace.json cannot be written"])
        assert "ran" not in done.stdout + done.stderr
        done = elements.run(folder, *python, "--trace", "/dev/full")
        assert done.returncode == 1 and "--trace /dev/full cannot be written" in done.stderr and "ran" in done.stdout, done.stderr


# --- with the Python package -----------------------------------------------------------------------------------------------------

def transfers_waits_bytes_and_points_are_in_it():
    package = elements.package()
    files = {"write.o.py": """
        #@ corunning: {words: }
        #@ parallelism: 2
        import asyncio, threading
        async def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(65536)
            action.profile(1)
            for i in range(10):
                trans.write(65536, i * 65536)
            await asyncio.gather(*[trans.read_async(4096, i * 4096, i * 4096) for i in range(8)])
            trans.batch([('read', 100, 0), ('write', 100, 0)])
            action.profile(2)
            action.add_transport('late;rdma_local;')
            late = action.get_transport('late', 'rdma')
            late.reg(64)
            threading.Timer(0.3, action.config_transport, ('late', 'size,4096;')).start()
            late.write(64, 0)
            action.runtime.invoke('words', 'more')
            more = action.get_transport('more', 'rdma')
            more.reg(8)
            more.write(8, 0)
            return 1
        """, "words.o.yaml": WORDS}
    said, events, text = traced(files, stand_in=False, **package)
    assert "token," not in text and "tcp://" not in text
    names, processes = threads(events)
    for copy in ("write@0", "write@1"):
        mine = [(track, name, e) for track, name, e in spans(events) if track.startswith(f"{copy}: ")]
        kinds = {(track.split(" (")[0], name): sum(1 for t, n, _ in mine if (t.split(" (")[0], n) == (track.split(" (")[0], name))
                 for track, name, _ in mine}
        assert kinds == {(f"{copy}: words", "write"): 10, (f"{copy}: words", "read_async"): 8, (f"{copy}: words", "batch"): 1,
                         (f"{copy}: late", "write"): 1, (f"{copy}: more", "write"): 1}, kinds
        assert {e["args"]["bytes"] for track, name, e in mine if name == "batch"} == {200}
        wait, = [e for track, _, e in spans(events, "wait") if track == f"{copy}: late"]
        assert wait["dur"] > 200_000, wait
        points = [(e["name"], e["ts"]) for e in events if e["ph"] == "i" and names[e["pid"], e["tid"]] == copy]
        assert [name for name, _ in points] == ["profile 1", "profile 2"] and points[0][1] < points[1][1], points
        last = max(e["ts"] for track, name, e in mine if name == "write" and track.endswith(": words"))
        assert points[0][1] < last < points[1][1], (points, last)
    moved = {processes[e["pid"]]: e["args"]["bytes"] for e in events if e["ph"] == "C"}
    figures = {e["name"]: e["bytes_read"] + e["bytes_written"] for e in said["elements"] if e["type"] == "memory"}
    assert moved == figures == {"words": 2 * (10 * 65536 + 8 * 4096 + 200), "write@0.more": 8, "write@1.more": 8}, (moved, figures)


def spans_of_a_thread_do_not_overlap():
    """But for waits and calls, which follow each other: viewers draw them wrong."""
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: }
        import threading
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(1 << 20)
            def work():
                for _ in range(50):
                    trans.write(1 << 20, 0)
            crew = [threading.Thread(target=work) for _ in range(4)]
            for one in crew:
                one.start()
            for one in crew:
                one.join()
        """, "words.o.yaml": WORDS}
    _, events, _ = traced(files, stand_in=False, **package)
    by_thread = {}
    for _, _, e in spans(events) + spans(events, "wait"):
        by_thread.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, by_thread.values())) >= 200
    for times in by_thread.values():
        times.sort()
        assert all(a[1] <= b[0] + 0.01 for a, b in zip(times, times[1:])), times


def memory_is_counted_at_its_element():
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: }
        def main(params, action):
            own = bytearray(b'x') * (40 << 20)
            trans = action.get_transport('words', 'rdma')
            trans.reg(1 << 20)
            trans.wait_ready(60)
            for i in range(params['mib']):
                trans.write(1 << 20, i << 20)
            return [trans.stats()['path'], len(own)]
        """, "words.o.yaml": "limits: {mem: 512M}\n"}
    for mib in (300, 0):
        with elements.directory(files, stand_in=False) as (folder, python):
            said = elements.results(folder, *python, "--param", f"mib={mib}", env=elements.environment(folder, **package))
        a, words = said["elements"]
        assert said["results"]["a"] == [["mapped", 40 * MIB]], said
        assert mib * MIB <= words["peak_bytes"] < (mib + 2) * MIB, words
        assert a["peak_bytes"] > 40 * MIB and (a["peak_bytes"] < 200 * MIB or "LD_PRELOAD" in package), a


def memory_of_one_that_is_killed_is_seen_too():
    """It says nothing of it: the launcher has looked."""
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: }
        import os, time
        def main(params, action):
            own = bytearray(b'x') * (40 << 20)
            trans = action.get_transport('words', 'rdma')
            trans.reg(1 << 20)
            for i in range(300):
                trans.write(1 << 20, i << 20)
            time.sleep(1.5)
            os.kill(os.getpid(), 9)
        """, "words.o.yaml": "limits: {mem: 512M}\n"}
    with elements.directory(files, stand_in=False) as (folder, python):
        said = json.loads(elements.fails(folder, *python, "--json", env=elements.environment(folder, **package)).stdout)
    a, words = said["elements"]
    assert 300 * MIB <= words["peak_bytes"] < 302 * MIB, words
    assert a["peak_bytes"] > 40 * MIB and (a["peak_bytes"] < 200 * MIB or "LD_PRELOAD" in package), a


def a_trace_costs_little():
    """Not a measurement: only that twenty thousand calls and their rows do not take minutes."""
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: }
        def main(params, action):
            trans = action.get_transport('words', 'rdma')
            trans.reg(64)
            for i in range(30000):
                trans.write(64, 0)
        """, "words.o.yaml": WORDS}
    began = time.monotonic()
    _, events, text = traced(files, stand_in=False, **package)
    assert len(spans(events)) == 20000 and len(text) < 20 << 20 and time.monotonic() - began < 60
    assert [e["args"]["dropped"] for e in events if e["ph"] == "i"] == [10000]


weft.main(rows_become_spans_points_and_counters, without_trace_nobody_is_asked, calls_that_overlap_are_beside_each_other, nonsense_is_left_out,
          there_are_no_more_than_fit, secrets_are_not_in_it, a_file_that_cannot_be_written_is_told_before_anything_starts,
          transfers_waits_bytes_and_points_are_in_it, spans_of_a_thread_do_not_overlap, memory_is_counted_at_its_element,
          memory_of_one_that_is_killed_is_seen_too, a_trace_costs_little)
