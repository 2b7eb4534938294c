"""action.runtime: starting elements while a program runs, and letting them go.

Who does that is a backend: the local launcher that started this element (launcher.py), OpenWhisk (openwhisk.py), the invoker of
Scad's OpenWhisk (invoker.py), or one of the program's own. tests/python/test_disagg_runtime.py holds us to it.
"""
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .action import LibdAction

__all__ = ["Backend", "InvokeError", "Runtime"]


class InvokeError(RuntimeError):
    """An element could not be started or released; the sentence says why."""


class Backend:
    """Who starts elements."""

    def invoke(self, template: str, trans: str, props: dict[str, Any]) -> str | None:
        """Start an element like `template`. The durl of its memory; None: it has none, or its transport is configured later."""
        raise NotImplementedError

    def release(self, name: str) -> None:
        """Let go of the element that was invoked as `name`."""
        raise NotImplementedError


def find(action: LibdAction) -> Backend:
    """The backend that the environment names: the launcher that started this element, else OpenWhisk. InvokeError: none."""
    path = os.environ.get("WEFT_LAUNCHER")
    if path:
        from .launcher import Launcher
        return Launcher(path)
    if os.environ.get("__OW_INVOKER_API") and not (os.environ.get("__OW_API_HOST") and os.environ.get("__OW_API_KEY")):
        from .invoker import Invoker
        return Invoker(action)
    if os.environ.get("__OW_API_HOST"):
        from importlib import import_module
        try:
            there = import_module(".openwhisk", __package__)
        except ModuleNotFoundError:
            raise InvokeError("__OW_API_HOST is set, and this package has no disagg.openwhisk: install one that has") from None
        found: Backend = there.backend(action)
        return found
    raise InvokeError("nothing here can start elements: run the program with `weft run DIR`, or on OpenWhisk (which sets "
                      "__OW_API_HOST)")


class Runtime:
    """Starts elements and lets them go, for the program of an action."""

    def __init__(self, action: LibdAction, backend: Backend | None = None) -> None:
        self._action = action
        self._backend = backend

    @property
    def backend(self) -> Backend:
        """Who does it: what the action was given, else what the environment names. Looked for when it is first needed."""
        if self._backend is None:
            self._backend = find(self._action)
        return self._backend

    def invoke(self, template: str, trans: str, props: dict[str, Any] | None = None) -> None:
        """Start a new element like the existing one `template`, and add the transport `trans` to it; `props` is what is different
        about it.

        For a memory element action.get_transport(trans, "rdma") can be used when this returns; it may have to wait for the
        element yet.
        """
        for what, text in (("template", template), ("trans", trans)):
            if not isinstance(text, str) or not text:
                raise TypeError(f"{what} is {text!r}, and should be a name")
        if props is not None and not isinstance(props, dict):
            raise TypeError(f"props is {props!r}, and should be a dict")
        if self._action._leads(trans):  # it would lead to the new element, and its users would not know
            raise InvokeError(f'"{trans}" is invoked already, or is a transport of this element: release it first, or take '
                              "another name")
        durl = self.backend.invoke(template, trans, dict(props or {}))
        if durl is not None:
            adopt(self._action, trans, durl)

    def invokeMem(self, template: str, trans: str, size: float | str) -> None:
        """The same for a memory element of `size` bytes: a number, or a text such as "64 MB"."""
        from . import _size
        self.invoke(template, trans, {"size": _size.of(size)})

    def release(self, name: str) -> None:
        """Let go of an element: every use of its transports raises from now on, whatever its backend has to say."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {name!r}, and should be the name of an element")
        try:
            self._action.release_transport(name)
        except LookupError:
            pass  # an element without memory has no transport
        self.backend.release(name)


def adopt(action: LibdAction, name: str, durl: str) -> None:
    """Give an action the transport `name` to where `durl` leads, whatever that calls its element."""
    from weft._core import NotFoundError, durl_parse
    try:
        action._lead(name, durl)
    except NotFoundError:  # keep the name in the durl: replicas and named memory are found by it
        action.add_transport(f"{name};{durl_parse(durl)['impl']};")
        try:
            action._lead(name, durl)
        except BaseException:
            action.release_transport(name)
            raise
