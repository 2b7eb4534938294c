"""disagg.element: one compute element. Launchers run it, by launched() or as python -m disagg.element, which takes longer.

Lines of JSON say what to run. They come over a socket that the process inherits, whose number is in WEFT_ELEMENT_FD, and answers
go there; without that variable lines come from stdin and answers go to the descriptor after --out. stdout is the program's.
docs/design/launcher.md has every line.

    {"do": "run", "file": ..., "params": ..., "transports": [...], "trace": 20000}
        ->  {"did": "begin"}, {"did": "trace", ...} if it was asked for, {"did": "stats", ...}, then {"did": "result", ...} or
            {"did": "error", "error": ..., "traceback": ...}; exit status 0 or 1
    {"do": "config", ...}, {"do": "terminate"}: at any time

A thread reads what comes after the first line. It starts fast: neither numpy nor asyncio, neither json nor threading nor the
library is loaded unless the element needs it. The thread that loads threading first is the main thread for Python, so the thread
that reads loads nothing.

Promise: one last line, whatever main() does and returns; no token of a durl, which is the key of its memory, in any of them.
A process that main() forked says none, and neither does one whose program put something else in the place of the socket.
tests/python/test_disagg_element.py and tests/python/test_disagg_hostile.py hold us to it.
"""
from __future__ import annotations

import os
import sys
from _thread import LockType, allocate_lock, start_new_thread

from ._lines import Lines, Lost, Refused, descriptors, field, message
from ._text import dumps
from .action import LibdAction
from .results import results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MODULE = "__element__"
ROOT = os.environ.pop("WEFT_ELEMENT_ROOT", "")  # not left to the library, which knows no such variable
DEEP = 400  # the deepest nesting of a result; the launcher accepts a bit more
ROWS = 500  # of the trace, in a line
LAST_MOST = 64 << 20  # bytes of the longest line that the launcher takes: RUN_LINE_MAX of tools/run/run.h
REGION = b"/memfd:weft-region"  # the memory file of an element's memory, in /proc


def load(said: dict[str, Any]) -> ModuleType:
    """The element's program, run up to its main(). Paths that are not whole are below WEFT_ELEMENT_ROOT, where a launcher on
    another machine has put the program."""
    file = field(said, "file", str, "")
    if not file:
        raise Refused("the launcher named no file to run")
    file = os.path.join(ROOT, file)
    path = field(said, "path", str, "")
    paths = [*([path] if path else []), *field(said, "paths", list, [])]
    sys.path[:0] = [os.path.normpath(os.path.join(ROOT, one)) for one in paths]
    module = type(sys)(MODULE)
    module.__file__ = file
    sys.modules[MODULE] = module
    sys.argv = [file]
    for one in [*field(said, "imports", list, []), file]:
        one = os.path.join(ROOT, one)
        try:
            with open(one, "rb") as f:
                source = f.read()
        except OSError as error:
            raise Refused(f"{one} cannot be read: {error.strerror}") from None
        exec(compile(source, one, "exec", dont_inherit=True), module.__dict__)
    return module


def takes_one(main: Callable[..., Any]) -> bool:
    """Whether it is main(params), as plain actions have it, and not main(params, action).

    Refused: it is a function of this file that takes neither one argument nor two.
    """
    code = getattr(main, "__code__", None)
    if code is None or hasattr(main, "__self__"):
        return False  # the call itself shows which arguments it takes
    more, kw_defaults = code.co_flags & 4, getattr(main, "__kwdefaults__", None) or {}
    needed = code.co_argcount - len(getattr(main, "__defaults__", None) or ())
    by_name = [name for name in code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
               if name not in kw_defaults]
    if needed > 2 or by_name or not (code.co_argcount or more):
        said = f"needs {', '.join(by_name)} by name" if by_name else f"takes {code.co_argcount} arguments"
        raise Refused(f"{code.co_filename}, line {code.co_firstlineno}: main {said}; it is called as main(params, action), or "
                      f"as main(params) "
                      "if it takes no more")
    return code.co_argcount == 1 and not more


def call(main: Callable[..., Any], params: Any, action: LibdAction) -> Any:
    """main(params, action), or main(params) where it takes no more; one that is a coroutine is run to its end."""
    value = main(params) if takes_one(main) else main(params, action)
    if hasattr(value, "__await__"):
        import asyncio

        async def awaited() -> Any:
            return await value
        return asyncio.run(awaited())
    return value


def same_name(value: dict[Any, Any]) -> tuple[Any, Any] | None:
    """Two keys of a dict that JSON writes alike, such as 1 and "1": a reader would have one of their values."""
    names: dict[str, Any] = {}
    if set(map(type, value)) <= {str}:
        return None  # the usual case, quickly
    for key in value:
        name = key if isinstance(key, str) else dumps({key: 0})[2:-5]
        if name in names:
            return names[name], key
        names[name] = key
    return None


def loses_a_key(value: Any) -> bool:
    """Whether some dict in a value that is JSON has two such keys. Fast: few dicts have keys that are no texts."""
    left = [value]
    while left:
        one = left.pop()
        inside = one.values() if isinstance(one, dict) else one
        if isinstance(one, dict) and same_name(one):
            return True
        if any(issubclass(kind, (dict, list, tuple)) for kind in set(map(type, inside))):
            left += [each for each in inside if isinstance(each, (dict, list, tuple))]
    return False


def offender(value: Any, where: str = "the result", depth: int = 0) -> str:
    """Which part of a value is not JSON."""
    if depth > DEEP:
        return f"the result is nested more than {DEEP} deep"
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                return f"{where} has the key {key!r}, which is a {type(key).__name__}"
            if isinstance(key, float) and key - key != 0:
                return f"{where} has the key {key}"
        if two := same_name(value):
            return f"{where} has the keys {two[0]!r} and {two[1]!r}, which are one name in JSON"
        for key, one in value.items():
            said = offender(one, f"{where}[{key!r}]", depth + 1)
            if said:
                return said
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            said = offender(one, f"{where}[{i}]", depth + 1)
            if said:
                return said
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"{where} is {value}"
    elif not isinstance(value, (str, int, float, bool, type(None))):
        return f"{where} is of type {type(value).__name__}"
    return ""


def as_json(value: Any) -> str:
    """What main() returned, for the launcher."""
    try:
        text = dumps(value)
        if text.count("[") + text.count("{") > DEEP and (said := offender(value)):  # the check is slow, and few results need it
            raise Refused(f"main() returned what the launcher does not take: {said}")
        if "{" in text and isinstance(value, (dict, list, tuple)) and loses_a_key(value):
            raise ValueError
        return text
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        said = "" if isinstance(error, RecursionError) or "Circular" in str(error) else offender(value)
        raise Refused(f"main() returned what is not JSON: {said or error}. Return dicts, lists, texts, finite numbers, True, "
                      f"False and None; "
                      "a numpy array by .tolist(), bytes through a memory element") from None


def failure(error: BaseException) -> tuple[str, str]:
    """What there is to say of an exception: a line, and the traceback from the element's program on."""
    if isinstance(error, Refused):
        return str(error), ""
    import traceback
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    if isinstance(error, SystemExit):
        return f"the element ended itself by sys.exit({error.code!r}) before main() returned", "".join(lines)
    if isinstance(error, SyntaxError):  # str(error) has file and line in one line
        return f"{type(error).__name__}: {error}", "".join(lines)
    return "".join(traceback.format_exception_only(type(error), error)).strip(), "".join(lines)


def listen(lines: Lines, action: LibdAction, listening: LockType) -> None:
    """In a thread: what the launcher says while main() runs."""
    listening.release()
    try:
        while (line := lines.read()) is not None:
            try:
                hear(lines, action, message(line))
            except Exception as error:  # this line is wrong, the next one may be right
                print(lines.clean(f"disagg.element: {error}"), file=sys.stderr)
    except (OSError, Refused):
        pass
    action.terminate()  # the launcher is gone


def hear(lines: Lines, action: LibdAction, said: dict[str, Any]) -> None:
    """One line."""
    if said.get("do") == "config":
        durl = field(said, "durl", str, "")
        lines.know(durl)
        name = field(said, "name", str, "")
        if action._action is None and not action._closed:  # config_transport() would load the library in this thread
            raise Refused(f"the launcher configures the transport {name!r}, and this element has none")
        try:
            action._lead(name, durl)  # the launcher knows which element it means, whatever that is called
        except Exception:
            if not action._closed:  # else main() returned meanwhile, and nobody needs it
                raise
    elif said.get("do") == "terminate":
        action.terminate()


def kilobytes(text: bytes, name: bytes, start: int = 0) -> int:
    """The bytes that a line "Name:  123 kB" of /proc says; 0 if there is none."""
    at = text.find(name, start)
    return int(text[at + len(name):text.index(b"kB", at)]) << 10 if at >= 0 else 0


def own_peak() -> int:
    """The most memory that this process had, without the memory of elements that is mapped now: others have that."""
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.fsencode(os.readlink(f"/proc/self/fd/{fd}")).startswith(REGION):
                own.add(os.stat(f"/proc/self/fd/{fd}").st_ino)
        except OSError:
            pass  # the one of the list itself
    with open("/proc/self/smaps", "rb") as f:
        maps = f.read()
    with open("/proc/self/status", "rb") as f:
        peak = kilobytes(f.read(), b"\nVmHWM:")
    at = maps.find(REGION)
    while at >= 0:
        if int(maps[maps.rindex(b"\n", 0, at) + 1:at].split()[4]) not in own:
            peak -= kilobytes(maps, b"\nRss:", at)
        at = maps.find(REGION, at + 1)
    return peak


def moved(action: LibdAction) -> dict[str, Any]:
    """What is told last: operations and bytes by transport, and the peak of memory, where the kernel's own would mislead."""
    stats = action.stats()
    said: dict[str, Any] = {"did": "stats", "transports": {
        name: {key: told[key] for key in ("reads", "writes", "bytes_read", "bytes_written")} for name, told in stats.items()}}
    if any(told["path"] == "mapped" for told in stats.values()):
        try:
            said["peak_bytes"] = own_peak()
        except (OSError, ValueError, IndexError):
            pass  # a /proc that is not as it was: the launcher has figures of its own
    return said


def trace(action: LibdAction) -> tuple[list[list[Any]], int]:
    """Calls on transports and points of profile(), in order: [transport, what, bytes or the point, when it began, how long it
    took, how long of that it waited for the element], in nanoseconds; and how many earlier ones are not among them."""
    calls, rows = action._action.recorded() if action._action is not None else (0, [])
    points = [["", what, point, int(when * 1e9), 0, 0] for _, what, point, when, _ in action._marks]
    return sorted([*map(list, rows), *points], key=lambda row: row[3]), calls - len(rows)


def say_trace(lines: Lines, action: LibdAction) -> None:
    """In lines of bounded length."""
    from time import monotonic_ns
    rows, dropped = trace(action)
    for at in range(0, len(rows), ROWS):
        lines.say(lines.clean(dumps({"did": "trace", "now": monotonic_ns(), "rows": rows[at:at + ROWS]})))
    if dropped:
        lines.say(dumps({"did": "trace", "rows": [], "dropped": dropped}))


def flush() -> None:
    """What the program printed is in the pipes."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the program closed it


def leave(lines: Lines, error: BaseException | None) -> None:
    """The end of a process that the program forked, and that came back from main() or out of it by an exception. What runs at the
    end of an interpreter belongs to the process that was forked from."""
    status = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = (error.code or 0) & 255
    elif error is not None:
        text, trace = failure(error)
        status = 1
        try:
            sys.stderr.write(lines.told(f"{error.code}\n" if isinstance(error, SystemExit) else trace or f"{text}\n"))
        except (AttributeError, OSError, ValueError):
            pass  # the program closed it
    flush()
    os._exit(status)


def run(lines: Lines) -> int:
    """The whole life of an element; its exit status."""
    action: LibdAction | None = None
    traced = 0
    listening = allocate_lock()
    try:
        first = lines.read()
        if first is None:
            raise Refused("the launcher hung up before it said what to run")
        said = message(first)
        if said.get("do") != "run":
            raise Refused("the first thing a launcher says is what to run")
        lines.say('{"did": "begin"}')
        action = LibdAction(None, str(said.get("id", "")), name=str(said.get("name", "")))
        traced = field(said, "trace", int, 0)
        if traced:
            action.record(traced)
        for durl in field(said, "transports", list, []):
            lines.know(durl)
            action.add_transport(durl)
        listening.acquire()
        try:
            # not the module threading: it takes longer to load than this whole file
            start_new_thread(listen, (lines, action, listening))
        except RuntimeError:  # a limit, of memory or of threads
            listening.release()
            raise
        module = load(said)
        main = getattr(module, "main", None)
        if not callable(main):
            raise Refused(f"{module.__file__} has no function main(params, action)")
        value = call(main, results(field(said, "params", dict, {})), action)
        if lines.forked:
            leave(lines, None)
        last = '{"did": "result", "value": ' + as_json(value) + "}"
        if len(last) >= LAST_MOST // 4 and len(last.encode()) > LAST_MOST:
            raise Refused(f"the result has {len(last.encode()) >> 20} MiB as JSON, and {LAST_MOST >> 20} is the most: put large "
                          "data into a memory element, and return what the next element needs to find it there")
        status = 0
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the launcher waits for the last line
        if lines.forked:
            leave(lines, error)
        text, trace = failure(error)
        last = dumps({"did": "error", "error": lines.told(text), "traceback": lines.told(trace)})
        status = 1
    stats: dict[str, Any] = {"did": "stats", "transports": {}}
    try:
        if action is not None:
            if traced:
                say_trace(lines, action)
            stats = moved(action)
            action.close()
        flush()
        lines.say(dumps(stats))
        lines.say(last)
    finally:  # also where the launcher is gone, or the program closed the socket
        listening.acquire()  # the interpreter crashes if it ends while a thread is starting
    return status


def main(argv: list[str]) -> int:
    """Run what the launcher says."""
    lines = Lines(*descriptors(argv))
    try:
        return run(lines)
    except BrokenPipeError:
        return 1  # the launcher is gone
    except Lost as error:
        try:
            os.write(2, f"disagg.element: {error}\n".encode())
        except OSError:
            pass  # closed, too
        return 1


def launched() -> None:
    """For python -c: the same as python -m disagg.element, without the milliseconds of runpy."""
    if sys.path and not sys.path[0]:
        sys.path[0] = os.getcwd()  # as with -m, because the program may change its directory
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
