"""Type hints of a function as a signature of the wire.

    int -> i64, float -> f64, bool, str -> string, bytes -> [u8]     weft.i8 ... weft.u64, weft.f32, weft.f64: exactly that
    list[T] -> [T]                                                   weft.Tensor, numpy arrays -> tensor
    AsyncIterator[T], Iterator[T] -> stream T                        tuple[A, B], a NamedTuple -> several results; None -> void

What cannot be a type of the wire raises TypeError, with a sentence that names the function and the parameter.
tests/python/test_service_hints.py holds us to it.
"""
from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

from . import _core


class Wire:
    """The type of the wire that an annotation stands for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"weft.{self.name}"


i8 = Annotated[int, Wire("i8")]
i16 = Annotated[int, Wire("i16")]
i32 = Annotated[int, Wire("i32")]
i64 = Annotated[int, Wire("i64")]
u8 = Annotated[int, Wire("u8")]
u16 = Annotated[int, Wire("u16")]
u32 = Annotated[int, Wire("u32")]
u64 = Annotated[int, Wire("u64")]
f32 = Annotated[float, Wire("f32")]
f64 = Annotated[float, Wire("f64")]

PLAIN: dict[Any, str] = {bool: "bool", int: "i64", float: "f64", str: "string", bytes: "[u8]", _core.Tensor: "tensor"}
STREAMS = (collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator, collections.abc.Iterator,
           collections.abc.Iterable, collections.abc.Generator)
WAITING = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
WANTED = "int, float, bool, str, bytes, weft.i8 to weft.u64, weft.f32, weft.f64, weft.Tensor, a numpy array, or a list of numbers"


class Kind(typing.NamedTuple):
    """A hint, read: the type of the wire, and what a value becomes on its way to the function."""
    type: str
    stream: bool = False
    waits: bool = False  # for a stream: it is a plain iterator, which waits
    list: bool = False
    array: bool = False  # a numpy array


def is_array(hint: Any) -> bool:
    """Is it an array of numpy's? Asked without importing numpy."""
    base = typing.get_origin(hint) or hint
    return isinstance(base, type) and base.__module__ == "numpy" and base.__name__ == "ndarray"


def read(hint: Any, where: str, streams: bool = False) -> Kind:
    """A hint as a type of the wire; `where` names it in what is raised."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for mark in args[1:]:
            if isinstance(mark, Wire):
                return Kind(mark.name)
        return read(args[0], where, streams)
    if isinstance(hint, typing.NewType):
        return read(hint.__supertype__, where, streams)
    try:
        if hint in PLAIN:
            return Kind(PLAIN[hint])
    except TypeError:
        pass  # not hashable, so not a type
    if is_array(hint):
        return Kind("tensor", array=True)
    if origin is list:
        item = read(args[0], where)
        if item.type == "string" or item.type.startswith("["):
            raise TypeError(f"{where} is a list of {show(args[0])}: vectors have numbers, bools or tensors as their items")
        return Kind(f"[{item.type}]", list=True, array=item.array)
    if origin in STREAMS:
        if not streams:
            raise TypeError(f"{where} is {show(hint)}: a stream is the last parameter, or the result, and of nothing else a part")
        item = read(args[0], where)
        return item._replace(stream=True, waits=origin in WAITING)
    if hint is list or hint is tuple or hint in STREAMS:
        raise TypeError(f"{where} is {show(hint)}: say of what, such as {show(hint)}[float]")
    if origin in (typing.Union, types.UnionType):
        raise TypeError(f"{where} is {show(hint)}: a value of the wire has one type, and is never missing; use {WANTED}")
    raise TypeError(f"{where} is {show(hint)}, which cannot be sent: use {WANTED}, or give the signature")


def show(hint: Any) -> str:
    """A hint as people wrote it."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def results(hint: Any, name: str, generator: bool) -> tuple[str, list[Kind]]:
    """The result of a function as the signature has it, and its kinds."""
    where = f"{name}: the result"
    if hint is None or hint is type(None):
        if generator:
            raise TypeError(f"{where} of a generator is Iterator[T] or AsyncIterator[T], not None")
        return "void", []
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not args or Ellipsis in args:
            raise TypeError(f"{where} is {show(hint)}: say how many there are, such as tuple[int, str], or use a list")
        kinds = [read(arg, f"{where} {i + 1}") for i, arg in enumerate(args)]
        return "(" + ", ".join(kind.type for kind in kinds) + ")" if len(kinds) > 1 else kinds[0].type, kinds
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        fields = typing.get_type_hints(hint, include_extras=True)
        kinds = [read(fields[field], f"{where} {field}") for field in hint._fields]
        return "(" + ", ".join(f"{field}: {kind.type}" for field, kind in zip(hint._fields, kinds, strict=True)) + ")", kinds
    kind = read(hint, where, streams=True)
    if kind.stream != generator:
        raise TypeError(f"{where} is {show(hint)}: " + ("a generator gives Iterator[T] or AsyncIterator[T]" if generator else
                                                        "only a generator, a function with yield, gives a stream"))
    return f"stream {kind.type}" if generator else kind.type, [kind]


class Slot(typing.NamedTuple):
    """Where a parameter of the function gets its value."""
    name: str
    what: str  # "value", "stream", "request"
    kind: Kind
    by_name: bool


def hints_of(function: Callable[..., Any], name: str, local: dict[str, Any] | None) -> dict[str, Any]:
    """The hints of a function, resolved where it was written."""
    target: Any = inspect.unwrap(function)
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, localns=local, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a type hint cannot be read: {error}; give the signature, or hints that the module "
                        f"knows") from None


def parameters(function: Callable[..., Any], name: str, hints: dict[str, Any], request: type,
               declared: list[tuple[str, str, bool]] | None) -> list[Slot]:
    """What each parameter of the function gets. `declared` are those of a signature that was given; without it the hints say."""
    slots: list[Slot] = []
    left = None if declared is None else list(declared)
    for parameter in inspect.signature(function).parameters.values():
        where = f"{name}: parameter {parameter.name}"
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{where} takes any number of arguments, which a signature cannot say: name them")
        hint = hints.get(parameter.name)
        if isinstance(hint, type) and issubclass(hint, request):
            slots.append(Slot(parameter.name, "request", Kind(""), by_name))
            continue
        if left is None:
            if hint is None:
                raise TypeError(f"{where} has no type hint: give it one, or give the signature")
            if parameter.default is not parameter.empty:
                raise TypeError(f"{where} has a default, which a signature cannot say: callers always give every argument; "
                                f"leave it out, or give the signature")
            kind = read(hint, where, streams=True)
        else:
            if not left:
                raise TypeError(f"{where} is one more than the signature has ({len(declared or ())} parameters)")
            said, type_, stream = left.pop(0)
            if parameter.name != said and parameter.name in {one for one, _, _ in declared or ()}:
                raise TypeError(f"{where} stands where the signature has {said!r}: arguments are passed in the order of the "
                                f"signature, and would be mixed up")
            base = typing.get_origin(hint) or hint
            items = is_array(hint) or (base in (list, *STREAMS) and any(map(is_array, typing.get_args(hint))))
            kind = Kind(type_, stream, base in WAITING, type_.startswith("[") and base is not _core.Tensor and not is_array(hint),
                        items)
        if any(slot.kind.stream for slot in slots):
            raise TypeError(f"{where} comes after a stream, which has to be the last parameter")
        slots.append(Slot(parameter.name, "stream" if kind.stream else "value", kind, by_name))
    if left:
        raise TypeError(f"{name}: the signature has a parameter {left[0][0]!r} that the function has not")
    return slots
