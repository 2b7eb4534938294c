"""weft run says what is wrong with a directory of elements: which file, which line, and what was meant; and starts nothing then."""
import json
import os
import subprocess
import sys

from lib import elements, weft

COMPUTE = "def main(params, action):\n    return 1\n"
GOOD = {"split.o.py": "#@ dependents: [count]\n" + COMPUTE,
        "count.o.py": "#@ type: compute\n#@ corunning:\n#@   words:\n#@     trans: words\n#@     type: rdma\n#@ parallelism: 3\n" + COMPUTE,
        "reduce.o.py": "#!/usr/bin/env python3\n#@ parents:\n#@   - count\n#@   - split\n" + COMPUTE,
        "words.o.yaml": "type: memory\ncorunning:\n    - count\nlimits:\n    mem: 512 MB\n"}

# what is changed in a good directory, and what every line about it has to say
BROKEN = {
    "a parent that is not there": ({"reduce.o.py": "#@ parents: [split,\n#@   cuont]\n"}, ["reduce.o.py:2:", "cuont", "did you mean \"count\"?"]),
    "a dependent that is not there": ({"split.o.py": "#@ dependents: [nobody]\n"}, ["split.o.py:1:", "nobody"]),
    "memory that is not there": ({"count.o.py": "#@ corunning:\n#@   wrods: {trans: wrods}\n"},
                                 ["count.o.py:2:", "wrods.o.yaml", "\"words\"?", "--memory wrods=SIZE", "--transport"]),
    "a user that is not there": ({"words.o.yaml": "corunning: [cont]\n"}, ["words.o.yaml:1:", "cont", "\"count\"?"]),
    "a key twice": ({"split.o.py": "#@ parallelism: 1\n#@ parallelism: 2\n"}, ["split.o.py:2:", "twice"]),
    "a list that is none": ({"reduce.o.py": "#@ parents: {count: }\n"}, ["reduce.o.py:1:", "parents", "a mapping", "list"]),
    "names that are one": ({"reduce.o.py": "#@ parents: count, split\n"}, ["reduce.o.py:1:", "count, split", "no name of an element"]),
    "a program that it waits for": ({"count.o.py": "#@ corunning: {split: }\n"}, ["count.o.py:1:", "split", "together", "split -> count"]),
    "a program that waits for it, by way of memory": ({"split.o.py": "#@ dependents: [words]\n#@ corunning: [count]\n" + COMPUTE},
                                                      ["split.o.py:2:", "count", "split -> count"]),
    "memory between the same": ({"words.o.yaml": "parents: [count]\ndependents: [count]\n"}, ["words.o.yaml:", "count", "one of the two"]),
    "a single program to run with": ({"count.o.py": "#@ corunning: split\n"}, ["count.o.py:1:", "corunning", "split -> count"]),
    "a name of another": ({"split.o.py": "#@ name: spilt\n"}, ["split.o.py:1:", "spilt", "\"split\"", "file"]),
    "a type of another file": ({"words.o.yaml": "filetype: .py\n"}, ["words.o.yaml:1:", ".yaml"]),
    "a transport of its own and one to others": ({"count.o.py": "#@ corunning: [words]\n#@ withMerged:\n"
                                                                "#@   - {action: {name: words}, resources: {mem: 1}}\n" + COMPUTE},
                                                 ["count.o.py:3:", "two transports \"words\""]),
    "a size under two names": ({"split.o.py": "#@ withMerged: [{action: m, resources: {mem: 1, memory: 2}}]\n"},
                               ["split.o.py:1:", "memory", "two names"]),
    "merged without a name": ({"split.o.py": "#@ withMerged: [{action: {namespace: x}, resources: {mem: 1}}]\n"}, ["split.o.py:1:", "action: {name"]),
    "merged twice": ({"split.o.py": "#@ withMerged: [{action: m, resources: {mem: 1}}, {action: m, resources: {mem: 1}}]\n"},
                     ["split.o.py:1:", "two transports \"m\""]),
    "merged with nothing known": ({"split.o.py": "#@ withMerged: [{action: m, resources: {mem: 1}, elem: Gpu}]\n" + COMPUTE},
                                  ["split.o.py:1:", "Memory, Compute or Storage"]),
    "retries of what may not be repeated": ({"split.o.py": "#@ retries: 2\n" + COMPUTE}, ["split.o.py:1:", "retries", "idempotent: true"]),
    "and said so": ({"split.o.py": "#@ idempotent: false\n#@ retries: 0\n" + COMPUTE}, ["split.o.py:2:", "retries", "idempotent: true"]),
    "too many retries": ({"split.o.py": "#@ idempotent: true\n#@ retries: 101\n"}, ["split.o.py:2:", "retries", "0 to 100"]),
    "a truth that is none": ({"split.o.py": "#@ idempotent: 1\n"}, ["split.o.py:1:", "idempotent", "true or false"]),
    "two documents": ({"words.o.yaml": "limits: {mem: 1M}\n---\nlimits: {mem: 2M}\n"}, ["words.o.yaml:3:", "second document"]),
    "a merge of nothing": ({"words.o.yaml": "<<: x\n"}, ["words.o.yaml:1:", "<<"]),
    "a number that is none": ({"count.o.py": "#@ parallelism: many\n"}, ["count.o.py:1:", "parallelism", "1 to"]),
    "no copies": ({"count.o.py": "#@ parallelism: 0\n"}, ["count.o.py:1:", "parallelism"]),
    "fewer": ({"count.o.py": "#@ parallelism: -1\n"}, ["count.o.py:1:", "1 to 1024"]),
    "as many as nobody has": ({"count.o.py": "#@ parallelism: 1e9\n"}, ["count.o.py:1:", "1 to 1024"]),
    "no processors to speak of": ({"count.o.py": "#@ limits: {cpu: nan}\n"}, ["count.o.py:1:", "cpu"]),
    "less than no memory": ({"count.o.py": "#@ limits: {mem: -5M}\n"}, ["count.o.py:1:", "-5M"]),
    "no storage": ({"count.o.py": "#@ limits: {storage: 0G}\n"}, ["count.o.py:1:", "0G"]),
    "more memory than there is": ({"words.o.yaml": "limits: {mem: 100 TB}\n"}, ["words.o.yaml:1:", "100 TB", "below 64 TB"]),
    "and as a number": ({"words.o.yaml": "limits: {mem: 1e9}\n"}, ["words.o.yaml:1:", "1e9", "below 64 TB"]),
    "less than a byte": ({"words.o.yaml": "limits: {mem: 0.2 B}\n"}, ["words.o.yaml:1:", "0.2 B", "64 MB"]),
    "a number that C knows": ({"words.o.yaml": "limits: {mem: 0x10}\n"}, ["words.o.yaml:1:", "0x10"]),
    "none that C knows": ({"words.o.yaml": "limits: {mem: infinity}\n"}, ["words.o.yaml:1:", "infinity"]),
    "a unit of nobody": ({"words.o.yaml": "limits: {mem: 5 PB}\n"}, ["words.o.yaml:1:", "5 PB", "size is wanted"]),
    "two numbers": ({"words.o.yaml": "limits: {mem: 1 0}\n"}, ["words.o.yaml:1:", "1 0", "size is wanted"]),
    "two units": ({"words.o.yaml": "limits: {mem: 1 M B}\n"}, ["words.o.yaml:1:", "1 M B", "size is wanted"]),
    "a unit before a point": ({"count.o.py": "#@ parallelism: 1k.0\n"}, ["count.o.py:1:", "whole number from 1 to 1024"]),
    "half a copy": ({"count.o.py": "#@ parallelism: 1.5\n"}, ["count.o.py:1:", "whole number from 1 to 1024"]),
    "lists in lists": ({"words.o.yaml": "limits: {mem: 1M}\nx: " + "[" * 20000 + "\n"}, ["words.o.yaml:2:", "nested more than 64 deep"]),
    "and blocks": ({"words.o.yaml": "limits: {mem: 1M}\nx:\n  " + "- " * 20000 + "\n"}, ["words.o.yaml:3:", "nested more than 64 deep"]),
    "a time that is none": ({"count.o.py": "#@ limits: {time: soon}\n"}, ["count.o.py:1:", "time", "30s"]),
    "no time": ({"count.o.py": "#@ limits: {time: 0}\n"}, ["count.o.py:1:", "time", "30s"]),
    "a cpu that is none": ({"count.o.py": "#@ limits: {cpu: -1}\n"}, ["count.o.py:1:", "cpu"]),
    "not YAML": ({"split.o.py": "#@ type: compute\n\n\n#@ parents: [a\n#@ b: }\n"}, ["split.o.py:", "not YAML"]),
    "a lone word": ({"split.o.py": "#@ compute\n"}, ["split.o.py:1:", "KEY: VALUE"]),
    "a blank that is missing": ({"split.o.py": "#@type: compute\n"}, ["split.o.py:1:", "blank"]),
    "a program that is memory": ({"split.o.py": "#@ type: memory\n"}, ["split.o.py:1:", "split.o.yaml"]),
    "memory that computes": ({"words.o.yaml": "type: compute\n"}, ["words.o.yaml:1:", "words.o.py"]),
    "another type": ({"split.o.py": "#@ type: gpu\n"}, ["split.o.py:1:", "compute or memory"]),
    "two of one name": ({"words.o.py": COMPUTE}, ["words.o.", "two elements \"words\""]),
    "a name of no element": ({"a;b.o.py": COMPUTE}, ["a;b.o.py", "name"]),
    "the other ending": ({"more.o.yml": ""}, ["more.o.yml", ".o.yaml"]),
    "an import that is not there": ({"split.o.py": "#@ import: [common.py]\n"}, ["split.o.py:1:", "common.py", "No such file"]),
    "merged without a size": ({"split.o.py": "#@ withMerged: [{action: {name: mem}, elem: Memory}]\n"}, ["split.o.py:1:", "resources"]),
    "a zero byte": ({"split.o.py": "#@ type: compute\n\0"}, ["split.o.py", "zero byte"]),
    "too many replicas": ({"words.o.yaml": "replicas: 9\n"}, ["words.o.yaml:1:", "replicas"]),
}


def check(files, *args):
    with elements.directory(files) as (folder, _):
        return elements.run(folder, *(args or ("--check",)))


def good_directories_are_good():
    done = check(GOOD)
    assert (done.returncode, done.stderr) == (0, "") and "4 elements" in done.stdout, done.stdout + done.stderr
    for text in ("", "# nothing\n", "#@\n", "#@ limits: {mem: 1}\r\r\n",
                 "#@ parents:\n#@ limits: {cpu: 0.5, mem: 640M, storage: 64 MB, time: 2h}\r\n"):
        done = check({"a.o.py": text + COMPUTE, "other.py": "#@ not: [ours", ".hidden.o.py": "#@ nor: this"})
        assert done.returncode == 0, f"{text!r}: {done.stderr}"
    merged = "#@ withMerged:\n#@   -\n#@     action:\n#@       namespace: whisk.system\n#@       name: \"mem1\"\n" \
             "#@     resources:\n#@       mem: 512M\n" \
             "#@       cpu: 0.5\n#@       storage: 64M\n#@     elem: Memory\n"
    assert check({"a.o.py": merged + COMPUTE}).returncode == 0


def old_line_ends_are_named():
    """CR alone ends a line for Python and for YAML, so that a head would be one line."""
    for name, text, line in (("a.o.py", b"#@ parallelism: 2\rdef main(params, action):\r    return 1\r", 1), ("m.o.yaml", b"limits:\r  mem: 1M\r", 1),
                             ("a.o.py", b"#@ parallelism: 2\n#@ limits: {mem: 1G}\rdef main(params): pass\n", 2),
                             ("a.o.py", b"# A program.\r#@ parallelism: 2\rdef main(params, action):\r    return 1\r", 1)):
        with elements.directory({"a.o.py": COMPUTE}) as (folder, python):
            with open(os.path.join(folder, name), "wb") as f:
                f.write(text)
            for args in (("--check",), python):
                elements.fails(folder, *args, says=[f"{name}:{line}: ", "carriage return", "LF or CRLF"])
    done = check({"a.o.py": "#@ limits: {mem: 1G}\n# Below its head a program may have them.\rx = 1\r" + COMPUTE})
    assert done.returncode == 0, done.stderr


def broken_ones_are_named():
    for what, (change, words) in BROKEN.items():
        done = check(GOOD | change)
        assert done.returncode == 1, f"{what}: exit status {done.returncode}\n{done.stderr}"
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("weft run: "), f"{what}: {done.stderr}"
        for word in words:
            assert word in lines[0], f"{what}: \"{word}\" is not in: {lines[0]}"


PROGRAMS = {
    "a bracket": ("\ndef main(params, action):\n    return (1\n", ["split.o.py:3:", "SyntaxError", "never closed"]),
    "a blank": ("def main(params, action):\nreturn 1\n", ["split.o.py:2:", "IndentationError"]),
    "a tab": ("def main(params, action):\n    if 1:\n\treturn 1\n", ["split.o.py:3:", "TabError"]),
    "not UTF-8": (b"x = '\xff'\n", ["split.o.py:", "SyntaxError"]),
    "no main": ("def mian(params, action):\n    return 1\n", ["split.o.py:", "no function main(params, action)"]),
}


def programs_that_are_not_python_are_named():
    """By --check, and before anything has run if some elements wait for others."""
    for what, (text, words) in PROGRAMS.items():
        with elements.directory(GOOD) as (folder, _):
            with open(os.path.join(folder, "split.o.py"), "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
            for args in (("--check",), ("--json",)):
                done = elements.run(folder, *args, "--python", sys.executable)
                lines = done.stderr.splitlines()
                assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), f"{what}: {done.returncode} {done.stdout}{done.stderr}"
                for word in words:
                    assert word in lines[0], f"{what}: \"{word}\" is not in: {lines[0]}"
    with elements.directory({"a.o.py": "#@ import: [b.py]\ndef main(params):\n    return 1\n", "b.py": "x = (\n"}) as (folder, _):
        done = elements.run(folder, "--check", "--python", sys.executable)
        assert done.returncode == 1 and "b.py:1: SyntaxError" in done.stderr, done.stderr
    for text in ("from other import *\n", "globals()['main'] = print\n", "import other as main\n", "exec('def main(p): pass')\n",
                 "class main:\n    def __init__(self, *a): pass\n", "\ufeffdef main(p): pass\n", "if True:\n    async def main(p): pass\n"):
        with elements.directory({"a.o.py": text}) as (folder, _):
            done = elements.run(folder, "--check", "--python", sys.executable)
            assert (done.returncode, done.stderr) == (0, ""), f"{text!r}: {done.stderr}"
    for python in ("/bin/false", "/bin/true", "/bin/cat", "/nonexistent"):  # what cannot tell is not held against them
        with elements.directory({"a.o.py": "x = (\n"}) as (folder, _):
            done = elements.run(folder, "--check", "--python", python)
            assert done.returncode == 0 and ("there is no interpreter" in done.stderr) == (python == "/nonexistent"), done.stderr


def memory_larger_than_the_machine_is_refused():
    files = {"a.o.py": "#@ corunning: {m: }\n" + COMPUTE, "m.o.yaml": "limits: {mem: 30T}\n"}
    with elements.directory(files) as (folder, python):
        assert elements.run(folder, "--check").returncode == 0, "it may be meant for another machine"
        done = elements.fails(folder, *python, says=["m.o.yaml", "31457280 MiB", "this machine has"])
        assert done.stdout == "", done.stdout
        said = json.loads(elements.fails(folder, *python, "--json").stdout)
        assert said["ok"] is False and "31457280 MiB" in said["error"], said
    with elements.directory({"a.o.py": COMPUTE}) as (folder, python):
        elements.fails(folder, *python, "--memory", "m=30T", says=["--memory m: its memory is 31457280 MiB"])


def odd_directories():
    with elements.directory({"a.o.py": COMPUTE}) as (folder, python):
        above = os.path.dirname(folder)
        os.symlink("loop", os.path.join(above, "loop"))
        done = weft.run("run", os.path.join(above, "loop"))
        assert done.returncode == 1 and "symbolic links" in done.stderr, done.stderr
        done = weft.run("run", os.path.join(folder, "a.o.py", "below"))
        assert done.returncode == 1 and "Not a directory" in done.stderr, done.stderr
        os.symlink("b.o.py", os.path.join(folder, "b.o.py"))
        done = elements.run(folder, "--check")
        assert done.returncode == 1 and "b.o.py: cannot be read" in done.stderr and "symbolic links" in done.stderr, done.stderr
        os.unlink(os.path.join(folder, "b.o.py"))
        odd = os.path.join(above, "with blanks \u20ac and 'quotes\"")
        os.rename(folder, odd)
        os.symlink(odd, folder)
        os.chmod(odd, 0o555)
        try:
            for path, where in ((folder, above), (odd, "/"), (".", odd), (os.path.basename(odd) + "/", above)):
                env = {k: v for k, v in elements.environment(folder).items() if k != "HOME"}
                done = subprocess.run([weft.command(), "run", *python, "--json", path], cwd=where, env=env, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                assert done.returncode == 0 and json.loads(done.stdout)["results"] == {"a": [1]}, f"{path}: {done.stderr}"
        finally:
            os.chmod(odd, 0o755)


def no_python_is_told():
    with elements.directory({"a.o.py": COMPUTE}) as (folder, _):
        env = dict(elements.environment(folder), PATH=folder)
        done = subprocess.run([os.path.abspath(weft.command()), "run", folder], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "python3" in done.stderr and "--python" in done.stderr and not done.stdout, done.stdout + done.stderr


def unreadable_files_are_named():
    if os.geteuid() == 0:
        raise weft.Skip("root reads everything")
    with elements.directory({"a.o.py": COMPUTE}) as (folder, _):
        os.chmod(os.path.join(folder, "a.o.py"), 0)
        done = elements.run(folder, "--check")
        assert done.returncode == 1 and "a.o.py: cannot be read: Permission denied" in done.stderr, done.stderr


def all_mistakes_are_told_at_once():
    done = check({"a.o.py": "#@ parents: [b, c]\n#@ colour: red\n", "m.o.yaml": "limits: {mem: x}\nparallelism: -1\n"})
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 5, done.stderr


def a_circle_is_told_as_a_path():
    done = check({"a.o.py": "#@ dependents: [b]\n", "b.o.py": "#@ dependents: [c]\n", "c.o.py": "#@ dependents: [d]\n",
                  "d.o.py": "#@ dependents: [b]\n"})
    assert done.returncode == 1 and "b -> c -> d -> b" in done.stderr and "a ->" not in done.stderr, done.stderr
    done = check({"a.o.py": "#@ parents: [a]\n"})
    assert done.returncode == 1 and "a -> a" in done.stderr, done.stderr
    many = {f"n{i}.o.py": f"#@ dependents: [n{(i + 1) % 2000}]\n" for i in range(2000)}
    done = check(many)
    assert done.returncode == 1 and done.stderr.count(" -> ") == 2000, done.stderr[:300]


def what_is_wrong_is_not_started():
    files = {"a.o.py": "import os\nopen(os.environ['TMPDIR'] + '/ran', 'w')\n" + COMPUTE, "b.o.py": "#@ parents: [nobody]\n"}
    with elements.directory(files) as (folder, python):
        done = elements.run(folder, *python)
        assert done.returncode == 1 and "nobody" in done.stderr, done.stderr


def the_graph_is_shown():
    done = check(GOOD, "--graph")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["words", "split", "count x3", "reduce"], done.stdout
    assert "512M, used by count" in lines[0] and "after split, uses words" in lines[2] and "after count, split" in lines[3], done.stdout
    dot = check(GOOD, "--graph", "dot").stdout
    assert dot.startswith("digraph") and '"split" -> "count";' in dot and '"count" -> "words"' in dot and '"count x3"' in dot, dot
    assert dot.count('"split" -> "reduce"') == 1, dot


def a_directory_that_is_none():
    for args, words in (((), ["which directory"]), (("/nonexistent",), ["/nonexistent", "No such file"])):
        done = weft.run("run", *args)
        assert done.returncode in (1, 2) and all(word in done.stderr for word in words), done.stderr
    done = check({"readme": ""})
    assert done.returncode == 1 and ".o.py" in done.stderr and ".o.yaml" in done.stderr, done.stderr
    done = check({"m.o.yaml": ""})
    assert done.returncode == 1 and "nothing to run" in done.stderr, done.stderr
    with elements.directory({}) as (folder, _):
        os.mkdir(os.path.join(folder, "a.o.py"))
        os.mkfifo(os.path.join(folder, "b.o.py"))
        done = elements.run(folder, "--check")
        assert done.returncode == 1 and "a.o.py: is not a file" in done.stderr and "b.o.py: is not a file" in done.stderr, done.stderr


def wrong_options_are_named():
    with elements.directory(GOOD) as (folder, _):
        params = os.path.join(os.path.dirname(folder), "params")
        for text, args, words in (
                ("", ["--jobs", "0"], ["--jobs 0"]), ("", ["--timeout", "soon"], ["soon", "30s"]), ("", ["--param", "k"], ["NAME=VALUE"]),
                ("[1]", ["--params", params], ["JSON object"]), ("{", ["--params", params], ["JSON object"]), ("", ["--params", "/no"], ["/no"]),
                ("", ["--graph", "dto"], ["dto", "dot"]), ("", ["two"], ["two"]), ("", ["--tarce", "x"], ["--trace"])):
            with open(params, "w", encoding="ascii") as f:
                f.write(text)
            done = elements.run(folder, *args)
            assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, f"{args}: {done.returncode} {done.stderr}"
            for word in words:
                assert word in done.stderr, f"{args}: {done.stderr}"
        done = elements.run(folder, "--python", "no-such-python")
        assert done.returncode == 1 and "no-such-python" in done.stderr, done.stderr
        done = elements.run(folder, "--param", "count=1")
        assert done.returncode == 1 and "count" in done.stderr and "name of an element" in done.stderr, done.stderr
    assert "--trace" in weft.must("run", "--help") == weft.must("help", "run")


def hostile_yaml_is_survived():
    bombs = {"aliases": "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)),
             "itself": "parents: &p [*p]\n", "a mapping of itself": "limits: &l {cpu: *l}\n", "deep": "parents: " + "[" * 5000,
             "tags": "type: !!python/object/apply:os.system [id]\n", "merge": "<<: {type: memory}\n", "long": "x" * 70000,
             "bytes": "type: \x01\n", "nested keys": "{[a]: b}\n", "two documents": "type: memory\n---\ntype: memory\n"}
    for what, text in bombs.items():
        done = check({"m.o.yaml": text, "a.o.py": COMPUTE})
        assert done.returncode in (0, 1), f"{what}: exit status {done.returncode}\n{done.stderr[:500]}"
        assert done.returncode == 0 or "m.o.yaml" in done.stderr, f"{what}: {done.stderr[:500]}"


weft.main(good_directories_are_good, old_line_ends_are_named, broken_ones_are_named, programs_that_are_not_python_are_named,
          memory_larger_than_the_machine_is_refused,
          odd_directories, no_python_is_told, unreadable_files_are_named, all_mistakes_are_told_at_once, a_circle_is_told_as_a_path,
          what_is_wrong_is_not_started, the_graph_is_shown, a_directory_that_is_none, wrong_options_are_named, hostile_yaml_is_survived)
