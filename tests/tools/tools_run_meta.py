"""Metadata as programs for Scad have it: what has a meaning is taken, what has none is ignored with a warning, and a transport is always named after
its element."""
import json
import os

from lib import elements, weft

COMPUTE = "def main(params, action):\n    return 1\n"
ORDER = "import time\ndef main(params, action):\n    at = time.monotonic()\n    time.sleep(0.05)\n    return [at, time.monotonic(), sorted(params)]\n"
GOOD = {"a.o.py": "#@ dependents: [b]\n" + COMPUTE, "b.o.py": COMPUTE, "m.o.yaml": "corunning: [b]\nlimits: {mem: 1M}\n"}

# what is changed in a good directory; the file, line and key of the one warning, and more that it says
IGNORED = {
    "a transport of another name": ({"b.o.py": "#@ corunning:\n#@   m:\n#@     trans: other\n"}, "b.o.py", 3, "trans", ["\"other\"", "\"m\""]),
    "a transport that is a list": ({"b.o.py": "#@ corunning: {m: {trans: [m]}}\n"}, "b.o.py", 1, "trans", ["a list"]),
    "a transport in a file of memory": ({"m.o.yaml": "corunning:\n  b: {trans: b}\n"}, "m.o.yaml", 2, "trans", ["\"b\"", "\"m\""]),
    "a transport of another type": ({"b.o.py": "#@ corunning: {m: {type: tcp}}\n"}, "b.o.py", 1, "type", ["tcp", "rdma"]),
    "more about a transport": ({"b.o.py": "#@ corunning: {m: {size: 5}}\n"}, "b.o.py", 1, "size", ["of a transport"]),
    "something behind a name": ({"b.o.py": "#@ corunning: {m: rdma}\n"}, "b.o.py", 1, "m", ["a single value", "{trans: NAME"]),
    "a key that nobody knows": ({"a.o.py": "import os\n#@ colour: red\n"}, "a.o.py", 2, "colour", ["of a compute element", "parallelism"]),
    "one that is misspelt": ({"a.o.py": "#@ dependets: [b]\n"}, "a.o.py", 1, "dependets", ["did you mean \"dependents\"?"]),
    "a key of memory": ({"a.o.py": "#@ replicas: 2\n"}, "a.o.py", 1, "replicas", ["of memory elements"]),
    "a key of programs": ({"m.o.yaml": "retries: 2\n"}, "m.o.yaml", 1, "retries", ["of compute elements"]),
    "a limit that nobody knows": ({"a.o.py": "#@ limits:\n#@   gpu: 1\n"}, "a.o.py", 2, "gpu", ["in limits"]),
    "memory with an end": ({"m.o.yaml": "limits: {mem: 1M, time: 30s}\n"}, "m.o.yaml", 1, "time", ["compute elements"]),
    "a name twice": ({"b.o.py": "#@ parents: [a, a]\n"}, "b.o.py", 1, "parents", ["\"a\" twice"]),
    "a program that is merged": ({"a.o.py": "#@ withMerged:\n#@   - {action: {name: x}, resources: {mem: 1M}, elem: Compute}\n"}, "a.o.py", 2,
                                 "withMerged", ["no memory"]),
    "more about what is merged": ({"a.o.py": "#@ withMerged: [{action: x, resources: {mem: 1M, gpu: 1}}]\n"}, "a.o.py", 1, "gpu", ["in resources"]),
    "memory after memory": ({"m.o.yaml": "parents: [n]\n", "n.o.yaml": ""}, "m.o.yaml", 1, "parents", ["\"n\"", "both are memory"]),
    "memory beside memory": ({"m.o.yaml": "corunning: [b, n]\n", "n.o.yaml": ""}, "m.o.yaml", 1, "corunning", ["\"n\"", "memory uses none"]),
    "itself": ({"a.o.py": "#@ corunning: [a]\n"}, "a.o.py", 1, "corunning", ["itself"]),
    "another language": ({"c.o.js": ""}, "c.o.js", 0, None, ["NAME.o.py"]),
}

# and what is no reason for a warning
TAKEN = {
    "corunning as a list": {"b.o.py": "#@ corunning: [m]\n"},
    "programs that run together": {"b.o.py": "#@ corunning: [c, m]\n", "c.o.py": "#@ parents: [a]\n#@ corunning: [b]\n"},
    "and by a mapping": {"c.o.py": "#@ corunning: {b: {trans: b, type: rdma}}\n"},
    "a mapping in a file of memory": {"m.o.yaml": "corunning: {b: {trans: m, type: rdma}}\n"},
    "memory among dependents": {"a.o.py": "#@ dependents: [b, m]\n"},
    "memory among parents": {"b.o.py": "#@ parents: [a, m]\n"},
    "parents and dependents of memory": {"m.o.yaml": "parents: [a]\ndependents: [c]\ncorunning: [b]\n", "c.o.py": ""},
    "sizes without a unit": {"a.o.py": "#@ limits: {mem: 512, storage: 64}\n", "m.o.yaml": "limits:\n  mem: 1\nspare: 1\n"},
    "keys of the other kind with nothing behind": {"m.o.yaml": "withMerged: []\nimport:\nretries: ~\n", "a.o.py": "#@ replicas: {}\n"},
    "its own name and type of file": {"a.o.py": "#@ name: a\n#@ filetype: .py\n#@ type: Compute\n", "m.o.yaml": "name: m\nfiletype: .yaml\n"},
    "what may be repeated": {"a.o.py": "#@ idempotent: true\n#@ retries: 0\n", "b.o.py": "#@ idempotent: True\n", "c.o.py": "#@ idempotent: no\n"},
    "merges": {"a.o.py": "#@ limits: &l {mem: 100}\n#@ withMerged: [{action: x, resources: {<<: *l, cpu: 1}}]\n"},
    "an earlier form of Scad": {"a.o.py": "#@ withMerged:\n#@   -\n#@    action: \"\"\n#@    resources:\n#@      compute: 1.0\n#@      memory: 4096\n"
                                          "#@      storage: 1024\n#@    elem: Memory\n#@\n"},
}


def changed(change):
    return GOOD | {name: text + (COMPUTE if name.endswith(".py") else "") for name, text in change.items()}


def what_is_ignored_is_told():
    for what, (change, file, line, key, words) in IGNORED.items():
        with elements.directory(changed(change)) as (folder, python):
            done = elements.run(folder, "--check")
            where = f"{file}:{line}: " if line else f"{file}: "
            assert done.returncode == 0 and "1 warning\n" in done.stdout, f"{what}: {done.returncode} {done.stdout}{done.stderr}"
            assert done.stderr.startswith(f"weft run: warning: {where}") and done.stderr.count("\n") == 1, f"{what}: {done.stderr}"
            for word in [*words, "ignored"]:
                assert word in done.stderr, f"{what}: \"{word}\" is not in: {done.stderr}"
            said = json.loads(elements.run(folder, "--check", "--json").stdout)
            assert said["ok"] is True and said["problems"] == [], said
            assert [(w["file"], w["line"], w["key"]) for w in said["warnings"]] == [(file, line, key)], f"{what}: {said}"
            assert said["warnings"][0]["text"] in done.stderr, said
            strict = elements.run(folder, "--check", "--strict")
            assert (strict.returncode, strict.stdout) == (1, "") and strict.stderr.startswith(f"weft run: {where}"), f"{what}: {strict.stderr}"
    with elements.directory(changed(IGNORED["a key that nobody knows"][0])) as (folder, python):
        said = elements.results(folder, *python)
        assert [w["key"] for w in said["warnings"]] == ["colour"] and said["results"]["b"] == [1], said
        done = elements.fails(folder, *python, "--strict", says=["a.o.py:2:", "colour", "--strict"])
        assert done.stdout == "", "something was started"


def what_has_a_meaning_is_taken():
    for what, change in TAKEN.items():
        with elements.directory(changed(change)) as (folder, _):
            done = elements.run(folder, "--check", "--strict")
            assert (done.returncode, done.stderr) == (0, "") and "nothing wrong" in done.stdout, f"{what}: {done.stdout}{done.stderr}"


def problems_are_in_json_too():
    with elements.directory(changed({"b.o.py": "#@ parents: [c]\n#@ colour: red\n"})) as (folder, _):
        done = elements.run(folder, "--check", "--json")
        said = json.loads(done.stdout)
        assert done.returncode == 1 and said["ok"] is False and [w["key"] for w in said["warnings"]] == ["colour"], said
        assert [(p["file"], p["line"]) for p in said["problems"]] == [("b.o.py", 1)] and "\"c\"" in said["problems"][0]["text"], said


def numbers_alone_are_megabytes():
    files = {"a.o.py": "#@ corunning: [m]\n" + COMPUTE, "m.o.yaml": "limits: {mem: 3}\n"}
    with elements.directory(files) as (folder, _):
        assert "m: memory, 3M" in elements.run(folder, "--graph").stdout
    files["a.o.py"] = "#@ withMerged: [{action: \"\", resources: {memory: 2}, elem: Memory}]\n" \
                      "def main(params, action):\n    return action.run['transports']\n"
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python)["results"]["a"] == [["memory;rdma_local;size,2097152;"]]


def what_may_be_repeated_has_retries():
    with elements.directory(changed(TAKEN["what may be repeated"])) as (folder, _):
        shown = elements.run(folder, "--graph").stdout
        assert "a: compute, idempotent, 0 retries\n" in shown and "b: compute, idempotent, 3 retries, " in shown and "c: compute\n" in shown, shown


def a_merge_counts_where_nothing_else_is_said():
    files = {"a.o.py": "#@ corunning: [m]\n" + COMPUTE, "m.o.yaml": "limits: &l {mem: 3M, cpu: 1}\nspare: 1M\n<<: {spare: 2M, parallelism: 2}\n"}
    with elements.directory(files) as (folder, _):
        assert "m x2: memory, 3M" in elements.run(folder, "--graph").stdout


def memory_between_elements_is_an_order():
    """As Scad has it: memory that waits for a program is there after it, and who waits for memory waits for its users. No results come with that."""
    cases = {"the memory says it": {"m.o.yaml": "parents: [a]\ndependents: [c]\ncorunning: [b]\n", "a.o.py": "", "b.o.py": "", "c.o.py": ""},
             "the programs say it": {"m.o.yaml": "", "a.o.py": "#@ dependents: [m]\n", "b.o.py": "#@ corunning: [m]\n",
                                     "c.o.py": "#@ parents: [m]\n"},
             "and use it": {"m.o.yaml": "", "a.o.py": "#@ dependents: [m]\n#@ corunning: [m]\n", "b.o.py": "#@ corunning: [m]\n",
                            "c.o.py": "#@ parents: [m]\n#@ corunning: [m]\n"}}
    for what, files in cases.items():
        with elements.directory({n: t + (ORDER if n.endswith(".py") else "limits: {mem: 1M}\n") for n, t in files.items()}) as (folder, python):
            said = elements.results(folder, *python)["results"]
            (_, a_end, a), (b_start, b_end, b), (c_start, _, c) = (said[name][0] for name in "abc")
            assert a_end <= b_start and b_end <= c_start and a == b == c == [], f"{what}: {said}"
            shown = elements.run(folder, "--graph").stdout
            assert "b: compute, after a (by memory), uses m\n" in shown and "c: compute, after a (by memory), b (by memory)" in shown, shown
            assert '"a" -> "b" [style=dotted];' in elements.run(folder, "--graph", "dot").stdout


# written edges, memory with an order around it that contradicts them, the line of the warning, and who is named in it
CONTRADICTED = {
    "a user after a dependent": ({"a.o.py": "", "b.o.py": "#@ parents: [a]\n", "c.o.py": "#@ parents: [b]\n",
                                  "m.o.yaml": "corunning: [a, b, c]\ndependents: [b]\n"}, 2, ["\"c\"", "\"b\" starts"], "abc"),
    "a user before a parent": ({"a.o.py": "#@ dependents: [m]\n#@ parents: [b]\n", "b.o.py": "#@ corunning: [m]\n", "m.o.yaml": ""},
                               0, ["\"a\"", "\"b\" starts"], "ba"),
    "far away": ({"a.o.py": "", "b.o.py": "#@ parents: [a]\n", "c.o.py": "#@ parents: [b]\n", "d.o.py": "#@ parents: [c]\n",
                  "m.o.yaml": "corunning: [d]\ndependents: [a]\nparents: [c]\n"}, 2, ["(and so for 1 more)"], "abcd"),
    "the order around other memory": ({"a.o.py": "#@ corunning: [m]\n", "b.o.py": "#@ corunning: [n]\n", "m.o.yaml": "dependents: [b]\n",
                                       "n.o.yaml": "dependents: [a]\n"}, 1, ["memory \"n\"", "\"a\" starts"], "ab"),
}


def an_order_around_memory_never_makes_a_circle():
    for what, (files, line, words, order) in CONTRADICTED.items():
        with elements.directory({n: t + (ORDER if n.endswith(".py") else "limits: {mem: 1M}\n") for n, t in files.items()}) as (folder, python):
            said = elements.results(folder, *python)
            spans = [said["results"][name][0] for name in order]
            assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False)), f"{what}: {said}"
            warning, = said["warnings"]
            assert warning["line"] == line and all(word in warning["text"] for word in words), f"{what}: {said['warnings']}"
    written = {"a.o.py": "#@ parents: [b]\n" + COMPUTE, "b.o.py": "#@ parents: [a]\n#@ corunning: [m]\n" + COMPUTE, "m.o.yaml": "parents: [a]\n"}
    with elements.directory(written) as (folder, _):
        elements.fails(folder, "--check", says=["circle", "a -> b -> a"])
    many = {f"n{i}.o.py": (f"#@ parents: [n{i - 1}]\n" if i else "") + "#@ corunning: [m]\n" for i in range(500)}
    with elements.directory(many | {"m.o.yaml": "dependents: [n250]\nparents: [n100]\n"}) as (folder, _):
        done = elements.run(folder, "--check", "--python", "/bin/true")
        assert done.returncode == 0 and done.stderr.count("\n") == 1 and "(and so for 348 more)" in done.stderr, done.stderr


def a_program_of_scads_users_runs():
    """Written without a look at Weft; its heads have all that published programs have."""
    package = elements.package()
    files, where = {}, os.path.join(weft.ROOT, "tests", "elements", "programs", "lenient")
    for file in os.listdir(where):
        with open(os.path.join(where, file), encoding="utf-8") as f:
            files[file] = f.read()
    with elements.directory(files, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))
        for name, value in json.loads(files["expected.json"]).items():
            assert said["results"][name] == value, said["results"]


CROSSED = {  # as a published program has it: each `trans` is the name of other memory
    "write.o.py": """
        #@ dependents: [read]
        #@ corunning:
        #@   one: {trans: two, type: rdma}
        #@   two: {trans: one, type: rdma}
        def main(params, action):
            for name in ('one', 'two'):
                trans = action.get_transport(name, 'rdma')
                trans.reg(16)
                trans.buf[:3] = name.encode()
                trans.write(16, 0)
        """,
    "read.o.py": """
        #@ corunning: [one, two]
        def main(params, action):
            seen = []
            for name in ('one', 'two'):
                trans = action.get_transport(name, 'rdma')
                trans.reg(16)
                trans.read(16, 0)
                seen.append(bytes(trans.buf[:3]).decode())
            return seen
        """,
    "one.o.yaml": "limits: {mem: 1M}\n", "two.o.yaml": "limits: {mem: 1M}\n"}


def names_that_cross_lead_nowhere_else():
    package = elements.package()
    with elements.directory(CROSSED, stand_in=False) as (folder, python):
        said = elements.results(folder, *python, env=elements.environment(folder, **package))
        assert said["results"]["read"] == [["one", "two"]], said
        assert [(w["file"], w["line"], w["key"]) for w in said["warnings"]] == [("write.o.py", 4, "trans"), ("write.o.py", 5, "trans")], said
    files = dict(CROSSED, **{"read.o.py": CROSSED["read.o.py"].replace("'two')", "'three')")})
    with elements.directory(files, stand_in=False) as (folder, python):
        elements.fails(folder, *python, env=elements.environment(folder, **package), says=["read failed: MemoryError", "'three'"])


def hostile_merges_are_survived():
    wide = "a: &a {mem: 1M}\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join([f'*{chr(97 + i)}'] * 30)}]}}\n" for i in range(8))
    for what, text in {"wide": wide + "limits: {<<: *i}\n", "itself": "limits: &l {<<: *l}\n", "in a list": "limits: &l {<<: [*l, *l]}\n"}.items():
        with elements.directory({"m.o.yaml": text, "a.o.py": COMPUTE}) as (folder, _):
            done = elements.run(folder, "--check")
            assert done.returncode == 1 and "m.o.yaml" in done.stderr and "<<" in done.stderr, f"{what}: {done.returncode} {done.stderr[:300]}"


def a_long_name_is_harmless():
    with elements.directory({"a.o.py": "#@ \"\\e[31m" + "x" * 500 + "\": 1\n" + COMPUTE}) as (folder, _):
        done = elements.run(folder, "--check", "--json")
        assert done.returncode == 0 and "\x1b" not in done.stderr + done.stdout and "\\x1b[31m" in done.stderr, done.stderr
        assert os.path.basename(folder) not in json.loads(done.stdout)["warnings"][0]["file"]


weft.main(what_is_ignored_is_told, what_has_a_meaning_is_taken, problems_are_in_json_too, numbers_alone_are_megabytes,
          what_may_be_repeated_has_retries, a_merge_counts_where_nothing_else_is_said, memory_between_elements_is_an_order,
          an_order_around_memory_never_makes_a_circle, a_program_of_scads_users_runs,
          names_that_cross_lead_nowhere_else,
          hostile_merges_are_survived, a_long_name_is_harmless)
