"""weft run DAG.json: a whole program in one file, as Scad's tools write it and as people write it for them."""
import json
import os
import signal
import sys

from lib import elements, weft

ALL = "def main(params, action):\n    return params\n"


def obj(name, code=ALL, **more):
    """An object as wskgen writes it."""
    params = {"relationships": {"corunning": more.pop("corunning", []), "dependents": more.pop("dependents", []), "parents": more.pop("parents", [])},
              "runtimeType": more.pop("type", "compute"), "withMerged": more.pop("withMerged", [])}
    if "parallelism" in more:
        params["parallelism"] = more.pop("parallelism")
    made = {"annotations": [{"key": "exec", "value": "python"}], "exec": {"kind": "python:3", "code": code, "binary": True, "main": "main"},
            "limits": {"concurrency": 1, "logs": 10, "resources": {"cpu": 1.0, "mem": "512 MB", "storage": "512 MB"}, "timeout": 60000},
            "name": name, "parameters": [], "publish": False, "porusParams": params, "version": "0.0.1"}
    made.update(more)
    return made


def dag(*objects):
    return {"functions": [{"name": "app", "objects": list(objects), "publish": True}], "publish": True}


def run(what, *args, files=None, timeout=60):
    """weft run of that file, which others lie beside."""
    with elements.directory(files or {}) as (folder, python):
        path = os.path.join(folder, "dag.json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(what if isinstance(what, str) else json.dumps(what, indent=2))
        if "--check" in args:
            python = ("--python", sys.executable)  # the stand-in compiles nothing
        done = weft.run("run", path, *python, *args, env=elements.environment(folder), timeout=timeout)
        elements.nothing_left(folder)
        return done


def results(what, *args, files=None):
    done = run(what, "--json", *args, files=files)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def what_wskgen_writes_is_run():
    serve = "def main(_, action):\n    t = action.get_transport('memory', 'rdma_server')\n    t.serve()"
    said = results(dag(obj("first", "import os\ndef main(params, action):\n    return {'n': 5, 'at': action.run['file']}\n", dependents=["second"]),
                       obj("second", "def main(params, action):\n    return [params, action.run['copies'], sorted(action.run['transports'])]\n",
                           parents=["first"], parallelism=2, corunning=["mem"]),
                       obj("third", "# \u20ac \U0001f600 '\"\n" + ALL),
                       obj("mem", serve, type="memory", corunning=["second"], limits={"resources": {"mem": "1 MB"}})))
    first, = said["results"]["first"]
    assert first["n"] == 5 and first["at"].endswith("/first.o.py") and not os.path.exists(first["at"]), first
    assert said["results"]["second"] == [[{"first": [first]}, 2, ["mem;rdma_tcp;"]]] * 2 and said["results"]["third"] == [{}], said
    assert said["warnings"] == [] and {e["name"]: e["type"] for e in said["elements"]}["mem"] == "memory", said


def what_people_write_is_run():
    """Relations in the object itself, a function alone, no kind, another main, parameters, and tabs."""
    text = """{
\t"name": "alone", "objects": [{"name": "a", "exec": {"code": "def run(params, action):\\n    return params", "main": "run"},
\t\t\t"parameters": [{"key": "k", "value": {"x":[1,2]}}, {"key": "m", "value": 1}], "relationships":{"parents":[],
"dependents":["b"
]}}, {"name":"b","runtimeType":"COMPUTE","parallelism":2,"exec":{"code":"def main(params, action):\\n    return len(params['a'])"}}]}"""
    said = results(text, "--param", "m=2")
    assert said["results"] == {"a": [{"k": {"x": [1, 2]}, "m": 2}], "b": [1, 1]} and said["warnings"] == [], said


def modules_lie_beside_it():
    done = run(dag(obj("a", "import helper\n" + ALL)), "--check", files={"helper.py": "x = (\n", "b.o.py": "not Python ("})
    assert done.returncode == 1 and "helper.py:1: SyntaxError" in done.stderr and "\"a\" imports it" in done.stderr, done.stderr
    assert "b.o.py" not in done.stderr, "files beside a DAG are no elements of it"


def limits_are_limits():
    done = run(dag(obj("a", "import time\ndef main(params, action):\n    time.sleep(30)\n",
                       limits={"timeout": 300, "resources": {"mem": "64 MB"}})), "--json")
    assert done.returncode == 1 and "a" in json.loads(done.stdout)["error"] and json.loads(done.stdout)["seconds"] < 25, done.stdout
    shown = run(dag(obj("a"), obj("m", type="memory", corunning=["a"], limits={"resources": {"mem": 7}, "timeout": 5})), "--graph").stdout
    assert "m: memory, 7M, used by a" in shown, shown


WRONG = {
    "no JSON": ("{", ["dag.json: is not a JSON object"]),
    "a list": ("[]", ["dag.json: is not a JSON object"]),
    "nothing": ("{}", ["dag.json:1:", "neither \"functions\" nor \"objects\""]),
    "a function of nothing": ({"functions": [{"name": "f"}]}, ["the function has no \"objects\""]),
    "objects that are none": ({"objects": {}}, ["objects is not a list"]),
    "no objects": (dag(), ["dag.json: has no objects"]),
    "two functions": ({"functions": dag(obj("a"))["functions"] * 2}, ["more than one function"]),
    "another language": (dag(obj("a", exec={"kind": "nodejs:14", "code": "function main() {}"})), ["\"a\"", "nodejs:14", "only Python"]),
    "an archive": (dag(obj("a", exec={"kind": "python:3", "code": "UEsDBBQAAAA", "binary": True})), ["\"a\"", "archive"]),
    "no program": (dag(obj("a", exec=None)), ["\"a\"", "no exec"]),
    "a program that is none": (dag(obj("a", exec={"kind": "python:3", "code": 5})), ["\"a\"", "a text"]),
    "no name": (dag(obj("a;b")), ["letters, digits"]),
    "two of a name": (dag(obj("a"), obj("a")), ["two elements \"a\""]),
    "another type": (dag(obj("a", type="gpu")), ["runtimeType is compute or memory"]),
    "a stranger": (dag(obj("a", parents=["b"])), ["\"b\"", "of this DAG"]),
    "relations that are none": (dag(obj("a", parents={"b": 1})), ["parents is a mapping"]),
    "said in two places": (dag(obj("a", relationships={"parents": []})), ["\"relationships\" is there twice"]),
    "a main that is none": (dag(obj("a", exec={"code": ALL, "main": "a b"})), ["main is the name of a function"]),
    "a wrong timeout": (dag(obj("a", limits={"timeout": "long"})), ["timeout", "milliseconds"]),
    "a parameter twice": (dag(obj("a", parameters=[{"key": "k", "value": 1}] * 2)), ["\"k\" is there twice"]),
    "a parameter without a value": (dag(obj("a", parameters=[{"key": "k"}])), ["{\"key\": NAME"]),
    "a parameter of an element's name": (dag(obj("a", parameters=[{"key": "b", "value": 1}]), obj("b")), ["\"b\"", "name of an element"]),
    "a circle": (dag(obj("a", parents=["b"]), obj("b", parents=["a"])), ["circle"]),
    "a program that is no Python": (dag(obj("a", "x = 1\ndef main(params, action:\n")), ["dag.json: line 2 of the code of \"a\": SyntaxError"]),
    "a program without main": (dag(obj("a", "x = 1\n")), ["dag.json: the code of \"a\" has no function main"]),
    "a parallelism that is none": (dag(obj("a", parallelism=0)), ["parallelism is a whole number from 1"]),
}


def wrong_files_are_named():
    for what, (text, words) in WRONG.items():
        done = run(text, "--check")
        assert done.returncode == 1 and done.stderr.count("\n") == 1, f"{what}: {done.returncode} {done.stderr}"
        for word in [*words, "dag.json"]:
            assert word in done.stderr, f"{what}: \"{word}\" is not in: {done.stderr}"
    twice = json.dumps(dag(obj("a"))).replace('"publish": false', '"publish": false, "name": "b"')
    assert "an object has \"name\" twice" in run(twice, "--check").stderr
    twice = json.dumps(dag(obj("a", parameters=[{"key": "k", "value": {"x": 1}}]))).replace('"x": 1', '"x": 1, "x": 2')
    assert "has \"x\" twice" in run(twice, "--check").stderr
    done = run(dag(obj("a")), "--check", "--memory", "a=1M")
    assert done.returncode == 1 and "is an element already" in done.stderr, done.stderr


def what_is_ignored_is_told():
    said = json.loads(run(dag(obj("a", colour="red", limits={"resources": {"gpu": 1}, "tmieout": 5})), "--check", "--json").stdout)
    assert said["ok"] and [w["key"] for w in said["warnings"]] == ["colour", "tmieout", "gpu"], said
    assert {w["file"] for w in said["warnings"]} == {"dag.json"}, said
    assert "did you mean \"timeout\"?" in said["warnings"][1]["text"], said
    text = json.dumps(dag(obj("a", colour="red")), indent=2)
    line = next(i for i, one in enumerate(text.splitlines(), 1) if "colour" in one)
    assert f"warning: dag.json:{line}: \"colour\" is ignored" in run(text, "--check").stderr


def nothing_stays_of_one_that_is_killed():
    with elements.directory({}) as (folder, python):
        path = os.path.join(folder, "dag.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(dag(obj("a", "import time\ndef main(params, action):\n    print('up', flush=True)\n    time.sleep(60)\n")), f)
        p = weft.start("run", path, *python, env=elements.environment(folder))
        try:
            assert p.stdout.readline() == "up\n"
            p.send_signal(signal.SIGKILL)
            p.wait(timeout=20)
            elements.nothing_left(folder)
            temp = os.path.join(os.path.dirname(folder), "tmp")
            elements.wait_for(lambda: not os.listdir(temp))
        finally:
            weft.end(p)


def hostile_files_are_survived():
    deep = "[" * 400 + "]" * 400
    for what, text in {"deep": f'{{"functions": {deep}}}',
                       "zero": '{"functions": [{"objects": [{"name": "a\\u0000b", "exec": {"code": "a\\u0000"}}]}]}',
                       "halves": '{"functions": [{"objects": [{"name": "a", "exec": {"code": "\\ud800"}}]}]}',
                       "yaml": '{"objects": [{"name": "a", "relationships": {"parents": ["b\\"]\\nlimits: {mem: 1T}"]}, "exec": {"code": ""}}]}',
                       "long": '{"objects": [' + '{"name": "' + "x" * 100000 + '"}]}'}.items():
        done = run(text, "--check")
        assert done.returncode == 1 and "dag.json" in done.stderr, f"{what}: {done.returncode} {done.stderr[:300]}"


weft.main(what_wskgen_writes_is_run, what_people_write_is_run, modules_lie_beside_it, limits_are_limits, wrong_files_are_named,
          what_is_ignored_is_told, nothing_stays_of_one_that_is_killed, hostile_files_are_survived)
