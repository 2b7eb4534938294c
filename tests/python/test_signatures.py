"""Every public call says what it takes: inspect.signature() and help() work on it, the stubs agree, and its options are taken
by name."""
import ast
import glob
import importlib
import inspect
import os
import pydoc
import re

import pytest

import weft
from weft import _core

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STUBS = glob.glob(os.path.join(os.path.dirname(weft.__file__), "_core*.pyi"))
MODULES = ["weft", "weft.blocking", "weft.codes", "ucp", "ucp.comm", "ucp.core", "ucp.exceptions", "ucp.utils",
           "ucp._libs.ucx_api", "ucp_py", "ucxx", "ucxx._lib.libucxx", "ucxx.core", "ucxx.testing", "ucxx.utils",
           "disagg", "disagg.action", "disagg.element", "disagg.transport"]


def public(module):
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    return {name: getattr(module, name) for name in names}


OURS = ("weft", "ucp", "ucp_py", "ucxx", "disagg")
NOT_CALLED = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION: objects of the class come from a call of another


def ours(what):
    return (getattr(what, "__module__", None) or "").partition(".")[0] in OURS


def methods(cls):
    """Those that are not inherited from a class of Python's own."""
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if not name.startswith("_") and ours(owner) and callable(getattr(cls, name)):
            yield name, getattr(cls, name)


def calls(module):
    """(name, what can be called) of a module's public names and of their public methods."""
    for name, what in public(module).items():
        if not ours(what) or not callable(what):
            continue
        if not inspect.isclass(what):
            yield name, what
            continue
        if not what.__flags__ & NOT_CALLED and not issubclass(what, BaseException):
            yield name, what
        yield from ((f"{name}.{method}", function) for method, function in methods(what))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_call_has_a_signature(module):
    found = list(calls(importlib.import_module(module)))
    without = []
    for name, what in found:
        try:
            inspect.signature(what)
        except ValueError:
            without.append(name)
    assert found or module == "weft.codes"
    assert not without


def test_exceptions_that_programs_raise_have_one_too():
    assert str(inspect.signature(weft.CallError)) == "(code, message='', *, category=0, value=0)"
    assert list(inspect.signature(weft.codes.NotFound).parameters) == ["message", "category", "value"]
    assert "CallError(code, message='', *, category=0, value=0)" in pydoc.plain(pydoc.render_doc(weft.CallError))


@pytest.mark.parametrize("module", ["weft", "weft.blocking", "disagg"])
def test_help_shows_what_each_takes_and_does(module):
    for name, what in calls(importlib.import_module(module)):
        text = pydoc.plain(pydoc.render_doc(what))
        assert "(...)" not in text.splitlines()[2], f"{name}: {text}"
        assert inspect.getdoc(what), f"{name} has no docstring"
        assert "--\n" not in inspect.getdoc(what), f"{name}: the signature is not read: {what.__doc__!r}"


def functions():
    """(class or None, name): [the stubs' arguments], of all of them."""
    found = {}
    for path in STUBS:
        with open(path, encoding="utf-8") as f:
            for node in ast.parse(f.read()).body:
                for item in node.body if isinstance(node, ast.ClassDef) else [node]:
                    if isinstance(item, ast.FunctionDef) and not any(ast.unparse(d) == "property" for d in item.decorator_list):
                        found.setdefault((node.name if isinstance(node, ast.ClassDef) else None, item.name), []).append(item.args)
    return found


def written(args):
    """Names, kinds and defaults as the stubs have them."""
    places = args.posonlyargs + args.args
    defaults = [inspect.Parameter.empty] * (len(places) - len(args.defaults)) + [ast.literal_eval(d) for d in args.defaults]
    for i, (arg, default) in enumerate(zip(places, defaults)):
        yield arg.arg, (inspect.Parameter.POSITIONAL_ONLY if i < len(args.posonlyargs)
                        else inspect.Parameter.POSITIONAL_OR_KEYWORD), default
    if args.vararg:
        yield args.vararg.arg, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.empty
    for arg, default in zip(args.kwonlyargs, args.kw_defaults):
        yield arg.arg, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty if default is None else ast.literal_eval(default)
    if args.kwarg:
        yield args.kwarg.arg, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty


def test_the_stubs_agree_with_the_signatures():
    seen = 0
    for (cls, name), stubs in functions().items():
        if name.startswith("__") or (cls and not hasattr(_core, cls)):
            continue  # seen from blocking runtimes: the same types
        what = getattr(getattr(_core, cls) if cls else _core, name)
        if name.startswith("_") and not what.__text_signature__:
            continue
        real = [(p.name, p.kind, p.default) for p in inspect.signature(what).parameters.values()]
        wanted = list(written(stubs[0]))
        if cls and not (real and real[0][0] == "self"):
            wanted = wanted[1:]
        without_self = [w for w in wanted if w[0] != "self"], [r for r in real if r[0] != "self"]
        assert without_self[0] == without_self[1], f"{cls}.{name}"
        seen += 1
    assert seen > 200


def tables():
    """{function: {(names, how many are required, how many may go without a name)}} of the C code; "name" is of any function."""
    found = {}
    for path in glob.glob(os.path.join(SOURCE, "python", "weft", "_core", "*.c")):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        for fn, n, required, unnamed, names in re.findall(r'\{\s*("\w+"|(?:\w+->)?name),\s*(\d+),\s*(\d+),\s*(\d+),\s*\{([^}]*)\}', text):
            words = tuple(re.findall(r"N_(\w+)", names))
            assert len(words) == int(n), f"{path}: {fn}"
            found.setdefault(fn.strip('"') if fn[0] == '"' else "name", set()).add((words, int(required), int(unnamed)))
    return found


def test_the_options_of_the_stubs_are_taken_by_their_names():
    """As the tables say by which the C code sorts its arguments."""
    known, seen = tables(), 0
    for (cls, name), stubs in functions().items():
        if not cls or name not in known:
            continue
        args = [a for a in written(stubs[0]) if a[0] not in ("self", "cls")]
        if not args or any(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD) for _, kind, _ in args):
            continue
        wanted = (tuple(a[0] for a in args), sum(a[2] is inspect.Parameter.empty for a in args),
                  sum(a[1] is inspect.Parameter.POSITIONAL_OR_KEYWORD for a in args))
        assert wanted in known[name] | known.get("name", set()), f"{cls}.{name}: {wanted}, and {known[name]}"
        seen += 1
    assert seen > 100
