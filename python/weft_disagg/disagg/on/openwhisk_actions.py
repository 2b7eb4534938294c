"""The actions of a run on OpenWhisk: one for each element, in a package of the run's own, and their end.

    open()      the package is there, and what OpenWhisk allows is known
    make()      the action of an element is there; the first process of the element makes it
    close()     all of it is deleted

The package says by an annotation which process made it: a bridge deletes packages of bridges of its machine that are dead.
tests/python/test_on_openwhisk.py holds us to it.
"""
from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import socket
import time
import zipfile
from urllib.parse import quote

from .._http import Secret
from .bridge import Failed
from .openwhisk_api import HERE, Api, Busy, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIX = "weft-run-"
MAKING, OPENING, SWEEPING, AGAIN = 60.0, 40.0, 5.0, 0.5  # seconds
RUNTIME = 96              # MB that the runtime and the agent take beside the process
MEMORY = (128, 256, 512)  # MB of an action: the least, the usual, the most, where OpenWhisk does not say
TIME = 300_000            # ms: the longest, where OpenWhisk does not say
MIB = 1 << 20

MAIN = '''import os

try:
    from disagg.on.openwhisk_inside import run
except ImportError as error:
    raise ImportError(f"the image has no disagg that can take part in a run ({error}): build it again, of the version of the "
                      "launcher") from None


def main(params, action):
    return run(action, os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.jsonl"))
'''


def zipped(files: list[str]) -> str:
    """The program, the launcher's lines with its files, as the code of an action."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("__main__.py", MAIN)
        z.writestr("program.jsonl", "".join(line + "\n" for line in files))
    return base64.b64encode(out.getvalue()).decode()


# --- whose package ------------------------------------------------------------------------------------------------------------

def started(pid: int) -> str:
    """When a process began; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def machine() -> str:
    """Where process ids mean the same as here: this boot, this host, this namespace of them."""
    import hashlib
    words = [socket.gethostname()]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            words.append(f.read())
        words.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""  # not known: nothing of others is deleted
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]


def is_left(package: Any) -> bool:
    """Whether a package was made by a bridge of this machine that is dead."""
    if not isinstance(package, dict) or not str(package.get("name")).startswith(PREFIX):
        return False
    for note in package.get("annotations") or ():
        about = note.get("value") if isinstance(note, dict) and note.get("key") == "weft-run" else None
        if isinstance(about, dict) and about.get("machine") == machine() != "" and isinstance(about.get("pid"), int):
            return started(about["pid"]) != about.get("started")
    return False


# --- all of them --------------------------------------------------------------------------------------------------------------

class Actions:
    """Those of this run. `seconds` is how long an activation may take."""

    def __init__(self, api: Api, image: str, files: list[str]) -> None:
        self.api, self.image, self.files = api, image, files
        self.package = PREFIX + os.urandom(8).hex()
        self.seconds = TIME / 1000
        self._memory = MEMORY
        self._code = ""
        self._made: dict[tuple[str, int], asyncio.Future[str]] = {}
        self._names: set[str] = set()
        self._opened = False
        self._opening: asyncio.Future[Any] | None = None
        self._sweeping: asyncio.Future[None] | None = None

    def path(self, name: str) -> str:
        """Of an action, in the paths of the API."""
        return f"{self.package}/{quote(name, safe='')}"

    async def open(self) -> None:
        """Make the package. Failed: OpenWhisk says no, or nothing, within OPENING: the launcher waits for a minute."""
        until = time.monotonic() + OPENING

        def left() -> float:
            return max(1.0, until - time.monotonic())
        await self._greet(until)
        try:
            limits = await self.api.patiently("GET", f"{HERE}/limits", "say what it allows", seconds=left())
        except Refused:
            limits = {}  # of an older version
        self._learn(limits if isinstance(limits, dict) else {})
        about = {"machine": machine(), "pid": os.getpid(), "started": started(os.getpid())}
        body = {"namespace": "_", "name": self.package, "publish": False, "annotations": [
            {"key": "description", "value": "a run of weft run --on openwhisk, which deletes it in the end"},
            {"key": "weft-run", "value": about}]}
        self._opened = True
        self._opening = asyncio.ensure_future(self.api.patiently(
            "PUT", f"{HERE}/packages/{self.package}?overwrite=true", "make a package for the run", Secret(json.dumps(body)),
            left()))
        self._code = await asyncio.to_thread(zipped, self.files)
        self.files = []
        await asyncio.shield(self._opening)
        self._sweeping = asyncio.ensure_future(self._sweep())

    async def _greet(self, until: float) -> None:
        """The first request: what is wrong with the address or the key shows at once."""
        while True:
            try:
                said = await self.api.ask("GET", "/api/v1/namespaces", "say whose namespace the key is for")
                break
            except Busy as error:
                wait = error.after if error.after is not None else 1.0
                if time.monotonic() + wait > until:
                    raise
                await asyncio.sleep(wait)
        if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
            raise Failed(f"{self.api.server} answered with what is no list of namespaces: is it an OpenWhisk?")

    def _learn(self, limits: dict[str, Any]) -> None:
        def number(name: str, default: int) -> int:
            value: Any = limits.get(name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1 << 40
            return int(value) if good else default
        least, most = number("minActionMemory", MEMORY[0]), number("maxActionMemory", MEMORY[2])
        self._memory = (least, min(max(MEMORY[1], least), most), most)
        self.seconds = number("maxActionTimeout", TIME) / 1000

    async def _sweep(self) -> None:
        """Delete what dead bridges of this machine left."""
        try:
            packages = await self.api.ask("GET", f"{HERE}/packages?limit=200", "list packages")
            for package in packages if isinstance(packages, list) else ():
                if is_left(package):
                    name = str(package["name"])
                    there = await self.api.ask("GET", f"{HERE}/packages/{quote(name, safe='')}", f"look into {name}")
                    inside = [str(one.get("name")) for one in there.get("actions") or () if isinstance(one, dict)]
                    await self._delete(name, inside, time.monotonic() + SWEEPING)
        except (Failed, AttributeError):
            pass  # the next run tries it again

    # --- one action

    def megabytes(self, memory: bool, start: dict[str, Any]) -> int:
        """What the container of a process may have."""
        limits = start.get("limits") or {}
        size = int(limits.get("mem") or 0) + (int(start.get("spare") or 0) if memory else 0)
        if not size:
            return self._memory[1]
        return max(self._memory[0], -(-size // MIB) + RUNTIME)

    async def make(self, label: str, memory: bool, start: dict[str, Any]) -> str:
        """The name of the action for a process, which is there. Failed."""
        mb = self.megabytes(memory, start)
        if mb > self._memory[2]:
            raise Failed(f"it needs a container of {mb} MB (its limits: mem, and {RUNTIME} for the runtime), and this OpenWhisk "
                         f"gives an action {self._memory[2]} at most")
        base = re.sub(r"@\d+", "", label)
        wanted = self._made.get((base, mb))
        if wanted is None:
            wanted = self._made[base, mb] = asyncio.ensure_future(self._make(base, memory, mb))
        return await asyncio.shield(wanted)

    async def _make(self, base: str, memory: bool, mb: int) -> str:
        name = re.sub(r"[^A-Za-z0-9_@.-]", "_", base)[:200]
        name = name if re.match(r"[A-Za-z0-9_]", name) else "_" + name
        while name in self._names:
            name += f"-{mb}"
        self._names.add(name)
        body = {"namespace": "_", "name": name,
                "exec": {"kind": "blackbox", "image": self.image, "code": self._code, "binary": True},
                "limits": {"memory": mb, "timeout": int(1000 * self.seconds)},
                "annotations": [{"key": "provide-api-key", "value": False}, {"key": "weft-run", "value": base},
                                {"key": "type", "value": "memory" if memory else "compute"}]}
        try:
            await self.api.patiently("PUT", f"{HERE}/actions/{self.path(name)}?overwrite=true", f"make an action for {base}",
                                     Secret(json.dumps(body)), MAKING)
        except Refused as error:
            if error.status == 413:
                size = 3 * len(self._code) // 4 >> 10
                raise Failed(f"{error}: the directory is {size} KiB as a zip. Keep data elsewhere") from None
            raise
        return name

    # --- the end

    async def close(self, until: float) -> str:
        """Delete all of it, by then on the monotonic clock; a sentence if that did not work."""
        if not self._opened:
            return ""
        making = [one for one in (*self._made.values(), self._opening, self._sweeping) if one is not None and not one.done()]
        if making:  # what is made after it was deleted would stay
            await asyncio.wait(making, timeout=max(0.0, until - time.monotonic()) / 2)
        try:
            await self._delete(self.package, sorted(self._names), until)
        except Failed as error:
            return (f"the package {self.package} is left in OpenWhisk ({error}): the next run from this machine deletes it, or "
                    "`wsk package delete` after its actions")
        return ""

    async def _delete(self, package: str, names: list[str], until: float) -> None:
        await asyncio.gather(*(self._gone(f"actions/{package}/{quote(name, safe='')}", f"delete {package}/{name}", until)
                               for name in names))
        await self._gone(f"packages/{quote(package, safe='')}", f"delete {package}", until)

    async def _gone(self, path: str, what: str, until: float) -> None:
        """Delete one of them; try again whatever the answer is, unless that is final."""
        while True:
            try:
                await self.api.patiently("DELETE", f"{HERE}/{path}", what, None, max(1.0, until - time.monotonic()))
                return
            except Refused as error:
                if error.status == 404:
                    return
                if error.status in (401, 403) or time.monotonic() + AGAIN > until:
                    raise
                await asyncio.sleep(AGAIN)  # somebody else may be changing it, which is a conflict
