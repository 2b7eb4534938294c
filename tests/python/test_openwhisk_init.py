"""POST /init of the OpenWhisk runtime: source, zips, elements and memory elements; once; and what cannot be an action."""
# ctest: long
import base64
import sys

import pytest

from disagg import _size
from disagg.serve import head

from whiskside import SENTINEL, Whisk, zipped


@pytest.fixture
def whisk():
    made = []

    def start(*args, **more):
        made.append(Whisk(*args, **more))
        return made[-1]
    yield start
    for one in made:
        one.close()


def test_source_is_loaded_once(whisk):
    one = whisk().loaded("print('loading')\ndef main(params): return {'sum': params['a'] + 1}")
    assert one.init("def main(params): return {}") == (403, {"error": "Cannot initialize the action more than once."})
    assert one.run({"a": 41}) == (200, {"sum": 42})
    out, err = one.printed()
    # no sentinel after /init: what it printed belongs to the first activation
    assert out == f"loading\n{SENTINEL}\n" and err == f"{SENTINEL}\n"


def test_another_function_than_main(whisk):
    one = whisk().loaded("def other(params): return {'it': 'other'}\ndef main(params): return {}", main="other")
    assert one.run() == (200, {"it": "other"})


@pytest.mark.parametrize("main", ["", None])
def test_main_is_the_default(whisk, main):
    assert whisk().loaded("def main(params): return {'it': 'main'}", main=main).run() == (200, {"it": "main"})


def test_unicode_is_kept(whisk):
    one = whisk().loaded("def main(params):\n    s = params['d'] + ' \u2603 ' + params['d']\n    print(s)\n    return "
                         "{'winter': s}")
    assert one.run({"d": "\u2744"}) == (200, {"winter": "\u2744 \u2603 \u2744"})
    assert one.printed()[0] == f"\u2744 \u2603 \u2744\n{SENTINEL}\n"


def test_variables_of_init(whisk):
    one = whisk().loaded("import os\nATLOAD = os.environ['A']\ndef main(params): return [ATLOAD, os.environ['N'], "
                         "os.environ['L']]",
                         env={"A": "text", "N": 5, "L": [1, None]})
    assert one.run() == (200, ["text", "5", "[1, null]"])


def test_a_zip_with_a_main_and_what_it_imports(whisk):
    one = whisk().loaded({"__main__.py": "import helper, os, pack.deep\ndef main(params): return {'two': helper.two() + "
                                         "pack.deep.ZERO,"
                                         " 'file': open('data/x.txt').read(), 'run': os.access('tool', os.X_OK)}",
                          "helper.py": "def two(): return 2", "pack/__init__.py": "", "pack/deep.py": "ZERO = 0", "data/": "",
                          "data/x.txt": "here",
                          "json.py": "raise RuntimeError('not the one of Python')",
                          "tool": ({"external_attr": 0o100755 << 16}, "")})
    assert one.run() == (200, {"two": 2, "file": "here", "run": True})


def test_a_zip_with_a_virtual_environment(whisk):
    import sys
    where = f"virtualenv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/packaged_here.py"
    one = whisk().loaded({"__main__.py": "import packaged_here\ndef main(params): return {'x': packaged_here.X}", where: "X = 7"})
    assert one.run() == (200, {"x": 7})


def test_an_element_with_its_head_and_the_files_it_imports(whisk):
    files = {"common.py": "BASE = 40\n", "it.o.py": """
        #@ type: compute
        #@ import:
        #@   - common.py
        #@ limits: {mem: 64M}
        def main(params, action):
            return {"n": BASE + params["parent"]["n"] + len(params["parent"]), "id": action.aid}
        """, "other.o.py": "raise RuntimeError"}
    one = whisk().loaded(files, name="guest/it")
    assert one.run({"parent": [{"n": 1}]}) == (200, {"n": 42, "id": "a1"})  # parents' results answer both ways


def test_the_only_element_of_a_zip_is_the_action(whisk):
    assert whisk().loaded({"some.o.py": "def main(params, action): return {'e': 1}"}, name="another").run() == (200, {"e": 1})


def test_code_that_never_loads(whisk):
    one = whisk(patch="import disagg.serve.runtime as r; r.LOADING = 4")
    status, said = one.init("import time; print('loading', flush=True); time.sleep(600)")
    assert status == 502 and "did not load within" in said["error"] and one.printed()[0] == f"loading\n{SENTINEL}\n"
    assert one.loaded("def main(params): return {}").run() == (200, {})


def test_the_process_cannot_be_started(whisk):
    one = whisk(patch="""
import disagg.serve.runtime as r
class Child(r.Child):
    n = 0
    def __init__(self, *args):
        Child.n += 1
        if Child.n == 2:
            raise OSError(11, "no more processes")
        super().__init__(*args)
r.Child = Child
""")
    assert one.init("import os; os._exit(1)")[0] == 502
    status, said = one.init("def main(params): return {}")
    assert status == 502 and "no more processes" in said["error"]
    assert one.loaded("def main(params): return {}").run() == (200, {})


BAD = {
    "no code": ("  \n", "has no code"),
    "syntax": ("def main(:\n", "SyntaxError"),
    "raises": ("print('before')\nraise RuntimeError('on purpose')", "RuntimeError: on purpose"),
    "exits": ("import sys; sys.exit(3)", "sys.exit(3)"),
    "dies": ("import os; os._exit(3)", "ended itself with status 3"),
    "crashes": ("import os; os.abort()", "SIGABRT"),
    "no main": ("def mian(params): pass", "no function main(params)"),
    "head": ("#@ import: [a, b\ndef main(p, a): pass", "line 1"),
    "import elsewhere": ("#@ import: [../../etc/passwd]\ndef main(p, a): pass", "leads elsewhere"),
    "import not there": ("#@ import:\n#@ - common.py\ndef main(p, a): pass", "did not come with it"),
    "memory without a size": ("type: memory\ncorunning: [a]\n", "limits: {mem: 64M}"),
    "memory that is no yaml": ("type: memory\n\tx: 1\n", "line 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_code_that_cannot_be_loaded(whisk, name):
    code, says = BAD[name]
    one = whisk()
    status, said = one.init(code)
    assert status == 502 and list(said) == ["error"] and says in said["error"], said
    out, err = one.printed()
    assert out == ("before\n" if name == "raises" else "") + SENTINEL + "\n" and err.endswith("\n" + SENTINEL + "\n")
    if name in ("syntax", "raises"):
        assert "__main__.py\", line " in err and err.count(says) == 1 and "disagg" not in err
    assert one.run()[0] == 502
    assert one.loaded("def main(params): return {'good': 1}").run() == (200, {"good": 1})  # another one may be tried


ZIPS = {
    "nothing in it": ({}, "no __main__.py"),
    "no entry": ({"lib/__main__.py": ""}, "no __main__.py"),
    "two elements": ({"a.o.py": "", "b.o.py": ""}, "none is named for the action"),
    "up": ({"__main__.py": "", "../evil.py": ""}, "leads elsewhere"),
    "up inside": ({"__main__.py": "", "a/../../evil.py": ""}, "leads elsewhere"),
    "absolute": ({"__main__.py": "", "/tmp/evil.py": ""}, "leads elsewhere"),
    "backslash": ({"__main__.py": "", "..\\evil.py": ""}, "leads elsewhere"),
    "link": ({"__main__.py": "", "link": ({"external_attr": 0o120777 << 16}, "/etc/passwd")}, "no file and no folder"),
    "device": ({"__main__.py": "", "dev": ({"external_attr": 0o020666 << 16}, "")}, "no file and no folder"),
    "file as folder": ({"__main__.py": "", "a": "", "a/b": ""}, "cannot be unpacked"),
    "packed strangely": ({"__main__.py": ({"compress_type": 12}, "x")}, "use deflate"),
}


@pytest.mark.parametrize("name", ZIPS)
def test_zips_that_are_refused(whisk, name, tmp_path):
    files, says = ZIPS[name]
    one = whisk(TMPDIR=str(tmp_path))
    status, said = one.init(files)
    assert status == 502 and says in said["error"], said
    assert [p for p in tmp_path.rglob("*")] == []  # nothing was left, here or beside


def test_what_is_no_zip(whisk):
    one = whisk()
    for code, says in (("%%%", "base64"), (base64.b64encode(b"def main(p): pass").decode(), "no good zip"),
                       (base64.b64encode(zipped({"__main__.py": "x" * 1000})[:-40]).decode(), "no good zip"),
                       ("\u2603", "base64")):
        status, said = one.init(code, binary=True)
        assert status == 502 and says in said["error"], said


def test_a_zip_whose_bytes_are_damaged(whisk):
    data = bytearray(zipped({"__main__.py": "def main(p): return {}\n" * 1000}))
    data[60:80] = bytes(20)
    status, said = whisk().init(base64.b64encode(bytes(data)).decode(), binary=True)
    assert status == 502 and "no good zip" in said["error"]


@pytest.mark.parametrize("value, says", [(None, "value"), ([], "value"), ({"code": 5}, "code of /init should be a text"),
                                         ({"binary": "yes"}, "true or false"), ({"env": [1]}, "env"),
                                         ({"code": "x", "env": {"a=b": "c"}}, "a=b"),
                                         ({"code": "x", "env": {"a": "b\0"}}, "zero"), ({"main": 1}, "main")])
def test_requests_that_make_no_sense(whisk, value, says):
    one = whisk()
    status, said = one.ask("POST", "/init", {"value": value})
    assert status == 400 and says in said["error"]
    assert one.loaded("def main(params): return {}").run() == (200, {})


# --- the head of elements

def test_yaml_of_elements_is_read():
    said = head.read("""---
# a comment
type: compute       # another
parents:
- a
- "b # c"
corunning:
    mem:  {trans: 'm', type: rdma}
    more:
        trans: x
        list: [1, [2, {k: v}], ]
withMerged:
  - action: {name: z}
    resources:
      mem: 64 MB
  - action:
empty:
""")
    assert said == {"type": "compute", "parents": ["a", "b # c"],
                    "corunning": {"mem": {"trans": "m", "type": "rdma"},
                                  "more": {"trans": "x", "list": ["1", ["2", {"k": "v"}]]}},
                    "withMerged": [{"action": {"name": "z"}, "resources": {"mem": "64 MB"}}, {"action": ""}], "empty": ""}
    assert head.read("# nothing\n") == {} and head.of_program("x = 1\n#@ type: compute\n#@\n#@ a: b\ny: 2\n") == {"type": "compute", "a": "b"}


@pytest.mark.parametrize("text", ["- a\n- b", "a: &x 1", "a: &x 1\nb: *x", "a: [1", "a: [1] 2", "a: 1\n  b: 2", "  a: 1\nb: 2",
                                  "a: 1\na: 2",
                                  "? [a]\n: 1", "a: 1\n---\na: 2",
                                  "just words", "\ta: 1", "a: \"x", "a: 'x' y'", "a: {b: 1]", "a: [" * 3, "a: " + "[" * 500,
                                  "a: !tag x",
                                  "a:\n" + "".join(" " * i + "- \n" for i in range(1, 80))])
def test_what_is_more_than_they_have_is_refused(text):
    with pytest.raises(head.NotYaml, match="line [0-9]+"):
        head.read(text)


def test_yaml_without_pyyaml_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert head.of_program("def main(params): return {}\n") == {}
    with pytest.raises(head.NotYaml, match="python3-yaml"):
        head.of_program("#@ type: compute\n")


def test_long_yaml_is_refused():
    with pytest.raises(head.NotYaml, match="the most"):
        head.read("a: " + "x" * (1 << 19))


def test_sizes():
    assert [_size.of_text(s) for s in ("64M", "1 MB", "2G", "1KiB", "3t")] == [64 << 20, 1 << 20, 2 << 30, 1024, 3 << 40]
    for bad in ("64", "", "M", "-1M", "0M", "1.5G", "99999999T", "1e3M", 64, None, ["1M"]):
        with pytest.raises(ValueError):
            _size.of_text(bad)
