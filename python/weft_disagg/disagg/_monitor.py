"""Points of a program for Scad's collector of profiles: LibdAction(..., plugins="monitor", post_url=URL), and what /run says in
`profile`.

    object=AID&name=NAME&point_1=MILLISECONDS,CPU,PAGES,TRANSPORT,WRITTEN,READ,...&point_2=...

A form, posted when the action is closed or the program ends, as libd's monitor posts it: the time since the machine started, the
share of a processor since the point before, resident pages, and for each transport bytes written and read so far. It is posted
within seconds or not at all: nothing that happens to it fails the action. tests/python/test_scad_profile.py holds us to it.
"""
from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Monitor", "wanted"]

WITHIN = 2.0         # seconds for all of it
POINTS = 4096        # the most that are kept
BODY = 62 << 10      # bytes of a form; libd has as many


def wanted(kw: dict[str, Any]) -> bool:
    """Whether the keywords of an action ask for it."""
    plugins = kw.get("plugins") or ()
    return "monitor" in ([plugins] if isinstance(plugins, str) else plugins) and isinstance(kw.get("post_url"), str)


def resident() -> int:
    """Pages."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def processor() -> float:
    """Seconds of processor time that this process and its children took."""
    took = os.times()
    return took.user + took.system + took.children_user + took.children_system


class Monitor:
    """The points of one action. `within` is how many seconds posting them may take."""

    def __init__(self, url: str, aid: str, name: str) -> None:
        self.url, self.within = url, WITHIN
        self._head = f"object={quoted(aid)}&name={quoted(name)}"
        self._points: list[str] = []
        self._cpu, self._when = processor(), time.clock_gettime(time.CLOCK_BOOTTIME)

    def point(self, number: int, moved: dict[str, tuple[int, int]]) -> None:
        """Mark one; `moved` has bytes written and read by transport."""
        cpu, when = processor(), time.clock_gettime(time.CLOCK_BOOTTIME)
        share = (cpu - self._cpu) / (when - self._when) if when > self._when else 0.0
        self._cpu, self._when = cpu, when
        words = [str(int(when * 1000)), f"{share:f}", str(resident())]
        for name, (written, read) in moved.items():
            words += [quoted(name), str(written), str(read)]
        self._points.append(f"&point_{number}=" + ",".join(words))
        del self._points[:-POINTS]

    def bodies(self) -> list[str]:
        """The forms that are to be posted: one, unless it is longer than a form should be."""
        found, points = [self._head], self._points
        self._points = []
        for point in points:
            if len(found[-1]) + len(point) > BODY:
                found.append(self._head)
            found[-1] += point
        return found

    def post(self) -> None:
        """Post what there is. Nothing is raised."""
        bodies, until = self.bodies(), time.monotonic() + self.within
        try:
            said = posted(self.url, bodies, until)
        except Exception as error:  # whatever it is, it must not be the end of the action
            said = f"{type(error).__name__}: {error}"
        if said:
            try:
                print(f"disagg: the profile was not posted: {said}", file=sys.stderr)
            except (AttributeError, OSError, ValueError):
                pass  # the program closed it


def quoted(text: str) -> str:
    """As part of a form. A slash may stay."""
    from urllib.parse import quote
    return quote(text, safe="/@:", errors="replace")


def posted(url: str, bodies: list[str], until: float) -> str:
    """POST them all, by then; why that did not work, or "" where it did."""
    from urllib.parse import urlsplit

    from ._http import Problem, Secret, Server
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or not all("!" <= c <= "~" for c in url):
        return f"{url[:200]!r} is not a URL to post to"
    server = Server(host, port or (443 if parts.scheme == "https" else 80), parts.scheme == "https")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    for body in bodies:
        try:
            status = server.ask("POST", path, Secret(body), None, until, "application/x-www-form-urlencoded").status
        except Problem as problem:
            return str(problem)
        if not 200 <= status < 300:
            return f"{server} answered {status}"
    return ""
