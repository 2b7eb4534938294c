"""Actions: what a compute element is given as the second argument of main(params, action).

    NEW -> OPEN     the first transport is added: only then the library is loaded
    OPEN -> CLOSED  close(), `with`, or the end of the process

Threads: any. A launcher configures transports from one thread while main() waits for them in another.

tests/python/test_disagg_action.py and test_disagg_runtime.py hold us to it.
"""
from __future__ import annotations

from _thread import RLock  # the same as threading.RLock, but importing threading takes milliseconds

from .runtime import Backend, Runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from typing import Any

    from weft._core import BlockingAction
    from weft._core import Runtime as _CoreRuntime

    from ._monitor import Monitor
    from .transport import LibdTransport

__all__ = ["LibdAction"]

TYPES = ("rdma", "rdma_server")
READY = 3  # what libd's add_transport() and config_transport() return of a transport that has all that it needs
# what libd, Scad's launchers and ours pass
WORDS = ("name", "plugins", "post_url", "server_url", "profile", "merged", "action_name", "activation_id",
         "function_activation_id", "app_activation_id", "weft")


def for_people(aid: str) -> str:
    """As much of an id as the library keeps."""
    return aid.replace("\0", " ").encode("utf-8", "replace")[:127].decode("utf-8", "ignore")


def checked(kw: dict[str, Any]) -> dict[str, Any]:
    """Keywords that are kept for others. TypeError: one is nearly one of ours, and would be without effect."""
    for word in kw:
        if word not in WORDS:
            import warnings

            from ._words import meant
            near = meant(word, ("cv", "aid", "transports", "backend", "runtime", *WORDS))
            if near:
                raise TypeError(f"LibdAction() takes no {word!r}{near}")
            warnings.warn(f"LibdAction() keeps {word!r} in kw, and nothing here uses it", RuntimeWarning, stacklevel=3)
    return kw


def complete(parts: dict[str, Any]) -> bool:
    """Whether a durl says all that a transport needs: where its element is; of a server, how much it serves."""
    if parts["impl"].endswith("_server"):
        return "size" in parts
    return (any(key in parts for key in ("url", "shm_id", "replicas", "token"))
            or (parts["impl"] == "rdma_local" and "size" in parts))


def same_element(name: str, named: str) -> bool:
    """Whether a durl of the element `named` may be where the transport `name` leads: `words` to `words@1`, but not `words@0`."""
    (name, _, copy), (named, _, other) = name.partition("@"), named.partition("@")
    return name == named and (not copy or not other or copy == other)


class LibdAction:
    """The transports of a compute element by name, and the runtime that starts and releases elements.

    `cv`, a threading.Condition or None, is notified whenever a transport is added or configured and when the action is
    terminated. `aid` is the id of the activation, `server_url` is kept for whoever wants it. `transports` are durls to begin
    with; `backend` is who starts elements for `action.runtime`; `runtime` a blocking runtime in place of the process's own. Other
    keywords are kept in `kw`, for whoever runs the element; those that nobody uses are warned about.
    """

    def __init__(self, cv: threading.Condition | None = None, aid: str = "", server_url: str = "", *,
                 transports: Iterable[str] = (),
                 backend: Backend | None = None, runtime: _CoreRuntime | None = None, **kw: Any) -> None:
        self.cv = cv
        self.aid = str(aid)
        self.kw = {"server_url": server_url, **checked(kw)} if server_url else checked(kw)
        self.runtime = Runtime(self, backend)
        self._monitor = self._monitored()
        self._runtime = runtime
        self._lock = RLock()
        self._action: BlockingAction | None = None
        self._transports: dict[str, LibdTransport] = {}
        self._types: dict[str, str] = {}
        self._led: set[str] = set()
        self._keyless: set[str] = set()  # added by the program, and configured by an invoker of Scad's, which has no key
        self._released: list[LibdTransport] = []
        self._terminated = self._closed = False
        self._record = 0
        self._marks: list[tuple[str, str, int, float, float]] = []
        for durl in transports:
            self.add_transport(durl)

    def _monitored(self) -> Monitor | None:
        if not self.kw.get("plugins"):
            return None  # the usual case, for which nothing is loaded
        from ._monitor import Monitor, wanted
        if not wanted(self.kw):
            return None
        import atexit
        made = Monitor(self.kw["post_url"], self.aid, str(self.kw.get("name", "")))
        atexit.register(made.post)  # of an action that is not closed
        return made

    # --- what programs call

    def get_transport(self, name: str, ttype: str = "rdma") -> LibdTransport:
        """The transport of that name, the same object every time; `ttype` is "rdma" or "rdma_server". It may not be usable yet:
        calls on it wait.

        KeyError: there is no such type. MemoryError: there is no such transport.
        """
        if ttype not in TYPES:
            raise KeyError(f"there is no type of transports {ttype!r}: there are 'rdma' and 'rdma_server'")
        with self._lock:
            found = self._transports.get(name)
            if found is None:
                if not isinstance(name, str):
                    raise TypeError(f"the name of a transport is a str, and not {name!r}")
                found = self._find(name, ttype)
            elif (type(found).__name__ == "LibdRDMAServer") != (ttype == "rdma_server"):
                raise self._other_type(name, ttype)
            return found

    def _find(self, name: str, ttype: str) -> LibdTransport:
        if self._action is None:
            raise MemoryError(f"there is no transport {name!r}: this action has none"
                              + (", since it is closed" if self._closed else ""))
        from weft._core import InvalidError, NotFoundError

        from .transport import LibdRDMAServer, LibdRDMATransport
        try:
            found = (LibdRDMATransport if ttype == "rdma" else LibdRDMAServer)(self._action, name, ttype)
        except NotFoundError:
            raise MemoryError(f"there is no transport {name!r}: it is not among those that this element was given, or it was "
                              f"released") from None
        except InvalidError:
            raise self._other_type(name, ttype) from None
        self._transports[name] = found
        return found

    @staticmethod
    def _other_type(name: str, ttype: str) -> KeyError:
        return KeyError(f"the transport {name!r} is not of type {ttype!r}, but of the other one")

    # --- what launchers call

    def _open(self) -> BlockingAction:
        with self._lock:
            if self._closed:
                from weft import ClosedError
                raise ClosedError("the action is closed")
            if self._action is None:
                from weft import _core

                from ._process import runtime
                action: Any = _core.Action(self._runtime or runtime(), for_people(self.aid))
                action.profile(self._record)
                if self._terminated:
                    action.terminate()
                self._action = action
            opened: BlockingAction = self._action
            return opened

    def _tell(self) -> None:
        if self.cv is not None:
            with self.cv:
                self.cv.notify_all()

    def add_transport(self, durl: str) -> int:
        """Add a transport: `NAME;IMPL;[KEY,VALUE;]*`. One that says where its element is connects at once, any other waits for
        config_transport().

        3 for the first, 0 for the others, as libd has it.
        """
        self._open().add(durl)
        from weft._core import durl_parse
        parts = durl_parse(durl)
        name, whole = parts["name"], complete(parts)
        with self._lock:
            self._types[name] = TYPES[parts["impl"].endswith("_server")]
            if whole:
                self._led.add(name)
        self._tell()
        return READY if whole else 0

    def config_transport(self, name: str, durl: str) -> int:
        """Say where the element of a transport is, from any thread: calls that wait for it go on.

        The durl may be its keys alone: `url,...;size,...;`. 3, as libd has it. LookupError: there is no such transport.
        ValueError: the durl is none, or that of another element.
        """
        if isinstance(name, str) and isinstance(durl, str) and "," not in durl.partition(";")[0]:
            self._open()
            from weft._core import durl_parse
            named = durl_parse(durl)["name"]
            if name in self._types and not same_element(name, named):
                raise ValueError(f"the durl is that of the element {named!r}, and the transport {name!r} would read and write "
                                 "its memory: is it mixed up? The keys alone (url,...;token,...;) lead there all the same")
        return self._lead(name, durl)

    def _lead(self, name: str, durl: str) -> int:
        """The same, whatever the durl calls its element."""
        self._open().configure(name, durl)
        with self._lock:
            self._led.add(name)
        self._tell()
        return READY

    def _leads(self, name: str) -> bool:
        """Whether there is a transport of that name which was told where it leads."""
        with self._lock:
            return name in self._led

    @property
    def transports(self) -> dict[str, LibdTransport]:
        """Those that were asked for, by name."""
        with self._lock:
            return dict(self._transports)

    @property
    def raw_transports(self) -> dict[str, LibdTransport]:
        """All that were added and not released, by name."""
        with self._lock:
            return {name: self.get_transport(name, ttype) for name, ttype in self._types.items()}

    def terminate(self) -> None:
        """The action's time is over: calls that wait for a transport to become usable raise, and serve() returns. Any number
        of times."""
        with self._lock:
            self._terminated = True
            action = self._action
        if action is not None:
            action.terminate()
        self._tell()

    @property
    def terminated(self) -> bool:
        """True once it was terminated or closed."""
        return self._terminated or self._closed

    def profile(self, point: int = 0) -> None:
        """Mark a point of the program, by a number of its own: profiled() has when that was. The last 4096 are kept.

        With plugins="monitor" and post_url=URL it is posted there when the action is closed, as libd does.
        """
        if not isinstance(point, int):
            raise TypeError(f"the point of a profile is a number, and not {point!r}")
        from time import monotonic
        with self._lock:
            self._marks.append(("", "profile", point, monotonic(), 0.0))
            del self._marks[:-4096]
            if self._monitor is not None:
                told, none = self.stats(), {"bytes_written": 0, "bytes_read": 0}
                self._monitor.point(point, {name: (one["bytes_written"], one["bytes_read"]) for name in self._types
                                            for one in [told.get(name, none)]})

    def record(self, n: int) -> None:
        """Keep what the last `n` calls on transports took, for profiled(); 0 stops that. Those that are awaited are among them,
        as read_async and so on."""
        with self._lock:
            if self._action is not None:
                self._action.profile(n)
            elif not isinstance(n, int) or not 0 <= n <= 1 << 20:
                raise OverflowError(f"n is {n!r}, which is not between 0 and {1 << 20}")
            self._record = n

    def profiled(self) -> list[tuple[str, str, int, float, float]]:
        """Calls since record(n), and the points of profile(), in order: (transport, what, bytes, when it began on the monotonic
        clock, seconds).

        A point is ("", "profile", its number, when, 0.0).
        """
        with self._lock:
            action, marks = self._action, list(self._marks)
        rows = [] if action is None else action.profiled()
        return sorted(rows + marks, key=lambda row: row[3]) if marks else rows

    def release_transport(self, name: str) -> None:
        """Let go of an element's transports, `name` and all `name@i`: every use of them raises from now on. LookupError:
        there is none."""
        with self._lock:
            if self._action is None:
                from weft import NotFoundError
                raise NotFoundError(f"there is no transport {name!r}")
            self._action.release(name)
            for known in [k for k in self._types if k == name or k.startswith(name + "@")]:
                del self._types[known]
                self._led.discard(known)
                self._keyless.discard(known)
                if known in self._transports:
                    self._released.append(self._transports.pop(known))

    def stats(self) -> dict[str, dict[str, Any]]:
        """The counters of every transport that was asked for, by name; those of one that was released, too."""
        with self._lock:
            all_of_them = [*self._released, *self._transports.values()]
            told: dict[str, dict[str, Any]] = {}
            for trans in all_of_them:
                try:
                    now = trans.stats()
                except ConnectionError:
                    continue  # closed
                before = told.get(trans.name)
                if before is not None:  # an earlier transport of this name was released
                    now = {key: value + before[key] if isinstance(value, int) and key != "len" else value for key,
                           value in now.items()}
                told[trans.name] = now
            return told

    # --- its end

    def close(self) -> None:
        """End it with all of its transports, and wait until nothing of it is under way. Buffers that somebody looks at stay."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            action, self._action = self._action, None
            self._transports.clear()
            self._types.clear()
            self._led.clear()
        if action is not None:
            action.terminate()
            action.close()
        self._tell()
        if self._monitor is not None:
            import atexit
            self._monitor.post()
            atexit.unregister(self._monitor.post)

    def __enter__(self) -> LibdAction:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<disagg.LibdAction {self.aid!r}{', closed' if self._closed else ''}>"
