"""The example programs in elements give what a plain program gives, and what docs/guide/elements.md shows runs as it stands there."""
import collections
import json
import os
import subprocess
import sys

from lib import elements, weft

EXAMPLES = os.path.join(weft.ROOT, "examples")


def program(name, file):
    """The names of an element's file."""
    names = {"__name__": "element"}
    path = os.path.join(EXAMPLES, name, file)
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), names)
    return names


def an_interpreter_with_numpy():
    for python in (os.path.join(weft.ROOT, "build", "venv", "bin", "python"), sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and not subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL, check=False).returncode:
            return python
    raise weft.Skip("there is no interpreter with numpy")


def run_example(name, *args, python=sys.executable):
    package = elements.package()
    files = {}
    for file in os.listdir(os.path.join(EXAMPLES, name)):
        with open(os.path.join(EXAMPLES, name, file), encoding="utf-8") as f:
            files[file] = f.read()
            if "LD_PRELOAD" in package:  # a sanitizer needs more memory than the program may have
                files[file] = files[file].replace("#@ limits:\n#@   mem: 256M\n", "")
    with elements.directory(files) as (folder, _):
        done = weft.run("run", folder, "--json", "--timeout", "250s", "--python", python, *args,
                        env=elements.environment(folder, **package), timeout=280)
        elements.nothing_left(folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert all(e["state"] == "done" for e in said["elements"]), said
    return said


def expected(words):
    counted = collections.Counter(words)
    most = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:10]
    return {"words": counted.total(), "different": len(counted), "most": [[w, n] for w, n in most]}


def words_are_counted():
    said = run_example("wordcount", "--param", "mib=8")
    text = b"".join(program("wordcount", "read.o.py")["made_up"](8))
    assert len(text) == 8 << 20 and said["results"]["read"][0]["size"] == len(text)
    assert said["results"]["top"] == [expected(text.decode().split())], said["results"]["top"]
    moved = {e["name"]: (e["bytes_read"], e["bytes_written"]) for e in said["elements"]}
    assert moved["read"][1] == len(text) and moved["count"][0] == len(text) and moved["text"][1] == len(text), moved
    assert moved["count"][1] == moved["top"][0] == sum(r["bytes"] for r in said["results"]["count"]), moved


def words_of_a_file_are_counted():
    with weft.scratch() as folder:
        for text in ("", "one", "one two\none", "\n\n  a b\n" * 1000, "long" * 3000 + " " + "x " * 5, "\u00e9t\u00e9 \u00e9 " * 9000):
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            said = run_example("wordcount", "--param", "file=" + path)
            assert said["results"]["top"] == [expected(text.replace("\n", " ").split())], (text[:40], said["results"]["top"])


ALONE = """
import json, os, sys
import numpy as np

class Transport:  # memory of this process, in place of an element's
    memory = bytearray(64 << 20)
    def reg(self, size):
        self.buf = memoryview(bytearray(size))
    def write(self, size, addr, offset=0):
        self.memory[addr:addr + size] = self.buf[offset:offset + size]

class Action:
    def get_transport(self, name, kind):
        return Transport()

names = {}
exec(open(sys.argv[1]).read(), names)
shape = names["main"]({"rows": 6000, "columns": 5, "seed": 3}, Action())
rows, columns = shape["rows"], shape["columns"]
data = np.frombuffer(Transport.memory, np.float64, rows * (columns + 1)).reshape(rows, columns + 1)
x, y, seen = data[:, :columns], data[:, columns], rows * 4 // 5
x = np.hstack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones((rows, 1))])
w = np.zeros(columns + 1)
for _ in range(25):
    w -= x[:seen].T @ (1 / (1 + np.exp(-x[:seen] @ w)) - y[:seen]) / seen
right = ((x[seen:] @ w > 0) == (y[seen:] > 0.5)).mean()
print(json.dumps({"weights": w.tolist(), "accuracy": float(right), "tested": rows - seen}))
"""


def the_regression_is_that_of_one_program():
    python = an_interpreter_with_numpy()
    said = run_example("logistic", "--param", "rows=6000", "--param", "columns=5", "--param", "seed=3", "--param", "steps=25", python=python)
    alone = json.loads(subprocess.run([python, "-c", ALONE, os.path.join(EXAMPLES, "logistic", "generate.o.py")], stdout=subprocess.PIPE, text=True,
                                      timeout=60, check=True).stdout)
    got, = said["results"]["test"]
    assert got["tested"] == alone["tested"] == 1200 and abs(got["accuracy"] - alone["accuracy"]) < 0.002 and got["accuracy"] > 0.8, (got, alone)
    assert all(abs(a - b) < 1e-5 for a, b in zip(got["weights"], alone["weights"], strict=True)), (got, alone)


def what_the_guide_shows_runs():
    package = elements.package()
    with weft.scratch() as folder:
        os.symlink(sys.executable, os.path.join(folder, "python3"))
        shown = weft.shell_of_the_guide("elements.md", 3, PATH=folder, **package)
    assert "4 elements, nothing wrong" in shown and 'all: {"sum": 328350}' in shown and "sum x2: compute, after make, uses numbers" in shown, shown


weft.main(words_are_counted, words_of_a_file_are_counted, the_regression_is_that_of_one_program, what_the_guide_shows_runs)
