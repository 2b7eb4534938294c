"""Type hints become signatures, or a sentence that names the parameter."""
import os
import subprocess
import sys
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import Annotated, Any, NamedTuple, NewType, Optional

import numpy
import numpy.typing
import pytest

import weft
from weft import _core

Metres = NewType("Metres", float)


class Divided(NamedTuple):
    quotient: int
    rest: weft.u8


def signature(function, **options):
    service = weft.Service("t")
    service.function(**options)(function)
    return service.signatures[0]


def test_plain_types():
    def f(a: int, b: float, c: bool, d: str, e: bytes) -> None: ...
    assert signature(f) == "f(a: i64, b: f64, c: bool, d: string, e: [u8]) -> void"


@pytest.mark.parametrize("name", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"])
def test_exact_types(name):
    kind = getattr(weft, name)

    def f(a: kind, b: list[kind]) -> kind: ...
    assert signature(f) == f"f(a: {name}, b: [{name}]) -> {name}"


def test_what_is_annotated_otherwise_is_what_it_is():
    def f(a: Annotated[int, "a note"], b: Metres) -> Annotated[weft.f32, "another"]: ...
    assert signature(f) == "f(a: i64, b: f64) -> f32"


def test_vectors_and_tensors():
    def f(a: list[float], b: list[bool], c: weft.Tensor, d: numpy.ndarray, e: numpy.typing.NDArray[numpy.float32],
          g: list[weft.Tensor]) -> list[int]: ...
    assert signature(f) == "f(a: [f64], b: [bool], c: tensor, d: tensor, e: tensor, g: [tensor]) -> [i64]"


def test_results():
    def none() -> None: ...
    def two(a: str) -> tuple[str, weft.i32]: ...
    def one() -> tuple[str]: ...
    def named() -> Divided: ...
    assert signature(none) == "none() -> void"
    assert signature(two) == "two(a: string) -> (string, i32)"
    assert signature(one) == "one() -> string"
    assert signature(named) == "named() -> (quotient: i64, rest: u8)"


@pytest.mark.parametrize("hint", [Iterator[str], Iterable[str], Generator[str, None, None]])
def test_generators_give_streams(hint):
    def f(n: int) -> hint:
        yield "x"
    assert signature(f) == "f(n: i64) -> stream string"


@pytest.mark.parametrize("hint", [AsyncIterator[weft.u64], AsyncIterable[weft.u64], AsyncGenerator[weft.u64, None]])
def test_asynchronous_ones_too(hint):
    async def f() -> hint:
        yield 1
    assert signature(f) == "f() -> stream u64"


def test_streams_of_the_caller():
    async def total(by: float, values: AsyncIterator[list[float]]) -> float: ...
    def plain(values: Iterator[numpy.ndarray]) -> int: ...
    async def both(values: AsyncIterator[int]) -> AsyncIterator[int]:
        yield 1
    assert signature(total) == "total(by: f64, values: stream [f64]) -> f64"
    assert signature(plain) == "plain(values: stream tensor) -> i64"
    assert signature(both) == "both(values: stream i64) -> stream i64"


def test_a_default_is_for_callers_in_this_process():
    def f(a: int, b: int = 5) -> int: ...
    def g(a: int, request: weft.Request = None) -> int: ...
    assert signature(f, signature="f(a: i64, b: i64) -> i64") == "f(a: i64, b: i64) -> i64"
    assert signature(g) == "g(a: i64) -> i64"


def test_the_request_is_no_parameter_of_the_wire():
    async def f(request: weft.Request, a: int) -> int: ...
    def g(a: int, *, why: weft.Request) -> int: ...
    assert signature(f) == "f(a: i64) -> i64"
    assert signature(g) == "g(a: i64) -> i64"


def test_names_and_marks():
    def f(a: int) -> None: ...
    assert signature(f, name="calc.add", idempotent=True) == "calc.add(a: i64) -> void idempotent"
    assert signature(f, oneway=True) == "f(a: i64) -> void oneway"
    assert signature(f, signature="f(a: i64) -> void idempotent", idempotent=True) == "f(a: i64) -> void idempotent"


def test_a_signature_says_it_exactly():
    def f(a, b): ...
    assert signature(f, signature="add(a: i32, b:i32)->i32") == "add(a: i32, b: i32) -> i32"
    assert signature(f, signature="add(a: i32, b: i32) -> i32", name="sum") == "sum(a: i32, b: i32) -> i32"


def test_parameters_are_not_mixed_up_with_those_of_the_signature():
    def swapped(b, a): ...
    def one(x, a): ...
    def named(*, b, a): ...
    def other(x, y): ...
    for function in (swapped, one, named):
        with pytest.raises(TypeError, match="in the order of the signature"):
            signature(function, signature="sub(a: i64, b: i64) -> i64")
    assert signature(other, signature="sub(a: i64, b: i64) -> i64") == "sub(a: i64, b: i64) -> i64"


def test_methods_and_callable_objects():
    class Calc:
        def add(self, a: int) -> int: ...

        def __call__(self, a: float) -> float: ...
    assert signature(Calc().add) == "add(a: i64) -> i64"
    assert signature(Calc(), name="it") == "it(a: f64) -> f64"


def test_what_is_decorated_is_what_it_was():
    service = weft.Service("t")

    @service.function
    def add(a: int, b: int) -> int:
        return a + b
    assert add(2, 3) == 5 and list(service) == ["add"] and "add" in repr(service)
    service.remove("add")
    assert list(service) == []
    with pytest.raises(weft.NotFoundError, match="'add'"):
        service.remove("add")


def test_hints_that_are_text_are_read_where_the_function_is():
    Local = NewType("Local", int)
    service = weft.Service("t")

    @service.function
    def f(a: "Local", b: "list[weft.u8]", why: "weft.Request") -> "tuple[Local, Metres]": ...
    assert service.signatures == ["f(a: i64, b: [u8]) -> (i64, f64)"]


class Own:
    pass


BAD = [
    (Own, "parameter a is Own, which cannot be sent"),
    (dict[str, int], "parameter a is dict"),
    (Any, "parameter a is Any"),
    (Optional[int], "one type, and is never missing"),
    (int | str, "one type, and is never missing"),
    (list, r"say of what, such as list\[float\]"),
    (list[str], "a list of str"),
    (list[bytes], "a list of bytes"),
    (list[list[int]], "a list of list"),
    (list[Iterator[int]], "a stream is the last parameter"),
    (Iterator, "say of what"),
    (tuple[int, int], "which cannot be sent"),
    (None, "which cannot be sent"),
    ("nowhere.To_be_found", "cannot be read"),
    (typing.Callable[[int], int], "which cannot be sent"),
]


@pytest.mark.parametrize("hint, words", BAD, ids=[str(h) for h, _ in BAD])
def test_a_hint_that_cannot_be_sent(hint, words):
    def f(a): ...
    f.__annotations__ = {"a": hint, "return": None}
    with pytest.raises(TypeError, match=words) as error:
        signature(f)
    assert str(error.value).startswith("f: ")


RESULTS = [(Own, "the result is Own"), (tuple[int, ...], "say how many"), (tuple, "say of what"),
           (Iterator[int], "only a generator"), (dict, "the result is dict")]


@pytest.mark.parametrize("hint, words", RESULTS, ids=[str(h) for h, _ in RESULTS])
def test_a_result_that_cannot_be_sent(hint, words):
    def f(): ...
    f.__annotations__ = {"return": hint}
    with pytest.raises(TypeError, match=words):
        signature(f)


def test_what_else_is_refused_when_it_is_decorated():
    service = weft.Service("t")

    def no_hint(a) -> None: ...
    def no_result(a: int): ...
    def many(*a: int) -> None: ...
    def named(**a: int) -> None: ...
    def early(a: Iterator[int], b: int) -> None: ...
    def default(a: int, b: int = 5) -> None: ...
    def gives() -> int:
        yield 1
    def fine(a: int) -> int: ...
    async def coroutine() -> None: ...
    for function, words in ((no_hint, "parameter a has no type hint"), (no_result, "the result has no type hint"),
                            (many, "any number"),
                            (named, "any number"), (early, "parameter b comes after a stream"),
                            (default, "parameter b has a default"),
                            (gives, "a generator gives Iterator")):
        with pytest.raises(TypeError, match=words):
            service.function(function)
    for options, words in (({"signature": "f() -> void"}, "one more than the signature has"),
                           ({"signature": "f(a: i64, b: i64) -> void"}, "a parameter 'b' that the function has not"),
                           ({"signature": "f(a: i64) -> stream i64"}, "is no generator"),
                           ({"nonsense": 1}, "unexpected keyword argument 'nonsense'"), ({"fetch": True}, "needs a signature")):
        with pytest.raises(TypeError, match=words):
            service.function(**options)(fine)
    with pytest.raises(TypeError, match="runs in its event loop"):
        service.function(thread=True)(coroutine)
    for bad in ("f(a: i65) -> void", "f(a: i64", "", "f(a: i64) -> void x", "weft\0"):
        with pytest.raises((weft.InvalidError, ValueError)):
            service.function(signature=bad)(fine)
    with pytest.raises(weft.InvalidError):
        service.function(oneway=True)(fine)  # it has a result
    with pytest.raises(TypeError, match="cannot be called"):
        service.function(7)
    with pytest.raises(TypeError, match="positional arguments"):
        service.function(fine, fine)
    with pytest.raises((weft.InvalidError, TypeError)):
        service.function(name="1x")(fine)
    assert service.signatures == []
    service.function(fine)
    with pytest.raises(weft.StateError, match="has a function 'fine' already"):
        service.function(fine)


def test_codes_are_the_library_s():
    names = [name for name in dir(weft.codes) if name.isupper()]
    assert len(names) == 16
    for name in names:
        kind = getattr(weft.codes, "".join(part.capitalize() for part in name.split("_")))
        error = kind("why", value=3, category=256)
        assert isinstance(error, weft.CallError) and error.code == getattr(weft.codes, name) and error.code_name == name
        assert error.message == "why" and error.value == 3 and error.category == 256 and str(error) == f"{name}: why"
    assert weft.codes.NotFound().message == ""


def test_signatures_are_read_by_the_library():
    assert _core.Service.parse("a.b(x:[f64],y:stream u8)->(one:i8,string)") == (
        "a.b(x: [f64], y: stream u8) -> (one: i8, string)", "a.b", [("x", "[f64]", False), ("y", "u8", True)],
        [("one", "i8", False), ("", "string", False)])


USES = """
from collections.abc import AsyncIterator
import weft
import weft.blocking

service = weft.Service("typed")

@service.function
def add(a: weft.i32, b: weft.f32) -> weft.u8:
    return int(a + b)

@service.function(idempotent=True)
async def count(n: int, request: weft.Request) -> AsyncIterator[weft.u64]:
    print(request.left, request.peer)
    yield n

async def main() -> None:
    async with service.serve(threads=2) as server:
        print(server.uri, server.stats()["requests"])
        await server.drain(1.0)
    with service.serve() as blocking:
        blocking.drain(1.0)
    raise weft.codes.NotFound("x")

reveal_type(add(1, 2.0))
reveal_type(count)
add("x", 1)
"""


def test_type_checkers_see_the_function_as_it_was(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "uses.py").write_text(USES)
    env = {**os.environ, "LD_PRELOAD": "", "MYPYPATH": os.path.dirname(os.path.dirname(os.path.realpath(weft.__file__)))}
    said = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "uses.py"], cwd=tmp_path, env=env,
                          text=True, capture_output=True, timeout=170, check=False).stdout
    assert 'Revealed type is "int"' in said or 'Revealed type is "builtins.int"' in said, said
    assert "AsyncIterator[" in said and said.count("error:") == 1 and 'incompatible type "str"; expected "int"' in said, said
