"""Libraries beside the elements: their own directory, lib in it, and --path, in this order; for imports, for `import` keys, and for --check."""
import json
import os
import sys

from lib import elements, weft

COMPUTE = "def main(params, action):\n    return 1\n"


def put(folder, files):
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def paths_are_told_in_their_order():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("elsewhere the paths are others")
    with elements.directory({"a.o.py": "def main(params, action):\n    return [action.run['path'], action.run['paths']]\n"}) as (folder, python):
        assert elements.results(folder, *python)["results"]["a"] == [[folder, []]]
        above = os.path.dirname(folder)
        put(above, {"one/x": "", "two/x": "", "elements/lib/x": ""})
        os.symlink("one", os.path.join(above, "link"))
        link = os.path.relpath(os.path.join(above, "link"))
        said = elements.results(folder, *python, "--path", os.path.join(above, "two"), "--path", link)
        assert said["results"]["a"] == [[folder, [f"{folder}/lib", f"{above}/two", f"{above}/one"]]], said


def elements_import_them():
    package = elements.package()
    files = {"a.o.py": "#@ dependents: [b]\nimport own, ours, theirs\nfrom pack.deep import WHERE\ndef main(params, action):\n"
                       "    return [own.WHERE, ours.WHERE, theirs.WHERE, WHERE]\n",
             "b.o.py": "#@ import: [named.py, further.py]\ndef main(params, action):\n    return [NAMED, FURTHER]\n",
             "own.py": "WHERE = 'directory'\n"}
    with elements.directory(files, stand_in=False) as (folder, python):
        above = os.path.dirname(folder)
        put(folder, {f"lib/{name}.py": "WHERE = 'lib'\n" for name in ("own", "ours")})
        put(folder, {"lib/named.py": "NAMED = 'lib'\n", "lib/pack/__init__.py": "", "lib/pack/deep.py": "WHERE = 'deep'\n"})
        put(above, {f"more/{name}.py": "WHERE = 'path'\n" for name in ("own", "ours", "theirs")})
        put(above, {"more/named.py": "NAMED = 'path'\n", "more/further.py": "FURTHER = 'path'\n"})
        args = (*python, "--path", os.path.join(above, "more"))
        said = elements.results(folder, *args, env=elements.environment(folder, **package))["results"]
        assert said == {"a": [["directory", "lib", "path", "deep"]], "b": [["lib", "path"]]}, said
        one = weft.run("run", os.path.join(folder, "a.o.py"), *args, "--json", env=elements.environment(folder, **package))
        assert json.loads(one.stdout)["results"]["a"] == said["a"], one.stdout + one.stderr
        with open(os.path.join(folder, "dag.json"), "w", encoding="utf-8") as f:
            json.dump({"objects": [{"name": "a", "exec": {"code": files["a.o.py"]}}]}, f)
        one = weft.run("run", os.path.join(folder, "dag.json"), *args, "--json", env=elements.environment(folder, **package))
        assert json.loads(one.stdout)["results"]["a"] == said["a"], one.stdout + one.stderr


def check(folder, *args):
    return elements.run(folder, "--check", "--python", sys.executable, *args)


def imports_that_are_nowhere_are_named():
    with elements.directory({"a.o.py": "#@ import: [common.py]\n" + COMPUTE}) as (folder, _):
        put(folder, {"lib/other.py": ""})
        done = check(folder)
        assert done.returncode == 1 and "a.o.py:1: import: common.py cannot be read" in done.stderr and "--path" in done.stderr, done.stderr


def libraries_are_compiled_too():
    files = {"a.o.py": "import os, sys, json\nimport pack.deep, missing\nfrom . import nothing\nfrom more import thing\n" + COMPUTE,
             "b.o.py": "try:\n    import broken\nexcept SyntaxError:\n    pass\ndef main(params, action):\n    import broken\n"}
    with elements.directory(files) as (folder, _):
        above = os.path.dirname(folder)
        put(folder, {"lib/pack/__init__.py": "from .near import x\n", "lib/pack/near.py": "x = 1\n", "lib/pack/deep.py": "import far\n",
                     "lib/broken.py": "x = (\n", "lib/sys.py": "no Python (\n", "lib/os.py": "no Python (\n", "lib/unused.py": "no Python (\n"})
        put(above, {"path/far.py": "import pack, more\n", "path/more/__init__.py": "", "path/more/thing.py": "def f():\n    return 1\n"})
        done = check(folder, "--path", os.path.join(above, "path"))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        put(above, {"path/more/thing.py": "def f():\nreturn 1\n"})
        done = check(folder, "--path", os.path.join(above, "path"))
        assert done.returncode == 1 and "thing.py:2: IndentationError" in done.stderr and "\"a\" imports it" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and check(folder).returncode == 0, done.stderr
        put(folder, {"lib/pack/near.py": "x = \n"})
        done = check(folder)
        assert done.returncode == 1 and "near.py:1: SyntaxError" in done.stderr, done.stderr


weft.main(paths_are_told_in_their_order, elements_import_them, imports_that_are_nowhere_are_named, libraries_are_compiled_too)
