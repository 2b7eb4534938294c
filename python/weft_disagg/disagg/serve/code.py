"""What /init brings: the source of a program, a zip, or the YAML of a memory element; put into a folder of its own, within
bounds.

A zip is somebody else's: no name in it leads out of the folder, it has no links, and what it becomes is counted while it is
written, not believed. tests/python/test_openwhisk_init.py and test_openwhisk_hostile.py hold us to it.
"""
from __future__ import annotations

import os
import re
import stat
import sys

from .. import _size
from . import head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from zipfile import ZipFile, ZipInfo

FILES, BYTES = 20_000, 512 << 20
_MEMORY = re.compile(r"^type\s*:\s*[\"']?memory\b", re.MULTILINE)


class Unusable(Exception):
    """Code that cannot be an action; the sentence is for people."""


def wanted(value: object) -> dict[str, Any]:
    """The fields of /init, if they are what they should be. ValueError: one is not."""
    if not isinstance(value, dict):
        raise ValueError('/init wants {"value": {"name": ..., "main": ..., "code": ..., "binary": ..., "env": {...}}}')
    for key, kind, name in (("name", str, "a text"), ("main", str, "a text"), ("code", str, "a text"),
                            ("binary", bool, "true or false"), ("env", dict, "an object")):
        if value.get(key) is not None and not isinstance(value[key], kind):
            raise ValueError(f"{key} of /init should be {name}")
    for key in value.get("env") or {}:
        if not key or "=" in key or "\0" in key:
            raise ValueError(f"env of /init has {key[:40]!r}, which cannot be the name of a variable")
    return value


def short_name(name: str) -> str:
    """The action's name without its namespace and package."""
    return name.rstrip("/").rpartition("/")[2]


def unpack(value: dict[str, Any], folder: str) -> dict[str, Any]:
    """Put the code into a folder. What the process that runs it is told: {"file": ..., ...}, or {"memory": {...}}. Unusable:
    it cannot be run."""
    code, name = value.get("code") or "", short_name(value.get("name") or "") or "action"
    if not code.strip():
        raise Unusable("the action has no code")
    if value.get("binary"):
        unzip(code, folder)
        entry = find_entry(folder, name)
    elif _MEMORY.search(code) and not any(line.startswith("#@") for line in code.splitlines()):
        return {"memory": memory_of(code, name, "the code")}
    else:
        entry = "__main__.py"
        with open(os.path.join(folder, entry), "w", encoding="utf-8", errors="surrogatepass") as f:
            f.write(code)
    path = os.path.join(folder, entry)
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
    except OSError as error:
        raise Unusable(f"{entry} cannot be read: {error.strerror}") from None
    if entry.endswith(".o.yaml"):
        return {"memory": memory_of(text, entry.removesuffix(".o.yaml"), entry)}
    return {"file": path, "path": folder, "paths": environment(folder), "imports": imports(text, entry, folder),
            "main": value.get("main") or "main"}


def memory_of(text: str, name: str, where: str) -> dict[str, Any]:
    """What the YAML of a memory element says."""
    try:
        said = head.read(text)
    except head.NotYaml as error:
        raise Unusable(f"{where} of the memory element cannot be read: {error}") from None
    if said.get("type", "memory") != "memory":
        raise Unusable(f"{where} is of type {said['type']!r}: YAML alone is a memory element, a compute element is a program "
                       f"NAME.o.py")
    limits = said.get("limits")
    try:
        found = {"name": name, "size": _size.of_limit(limits["mem"] if isinstance(limits, dict) else "")}
        if "spare" in said:
            found["spare"] = _size.of_text(said["spare"])
    except (KeyError, ValueError):
        raise Unusable(f"{where} does not say how much memory: 'limits: {{mem: 64M}}' (and 'spare: 64M', if any)") from None
    return found


def imports(text: str, entry: str, folder: str) -> list[str]:
    """The files that an element's head names under `import`."""
    try:
        said = head.of_program(text).get("import") or []
    except head.NotYaml as error:
        raise Unusable(f"the head of {entry} cannot be read: {error}") from None
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise Unusable(f"import in the head of {entry} should be a list of files")
    for one in names:
        safe(one)
        if not os.path.isfile(os.path.join(folder, one)):
            raise Unusable(f"{entry} imports {one!r}, which did not come with it: put both into one zip")
    return [os.path.join(folder, one) for one in names]


def environment(folder: str) -> list[str]:
    """Where the packages of a zip with a virtual environment are, as OpenWhisk has them."""
    found = os.path.join(folder, "virtualenv", "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    return [found] if os.path.isdir(found) else []


def find_entry(folder: str, name: str) -> str:
    """Which file of a zip is the action."""
    names = sorted(os.listdir(folder))
    if name + ".o.py" in names and name + ".o.yaml" in names:
        raise Unusable(f"the zip has both {name}.o.py and {name}.o.yaml, and an element either computes or is memory")
    for one in ("__main__.py", name + ".o.py", name + ".o.yaml"):
        if one in names:
            return one
    for end in (".o.py", ".o.yaml"):
        found = [one for one in names if one.endswith(end)]
        if len(found) == 1:
            return found[0]
        if found:
            raise Unusable(f"the zip has {len(found)} elements, and none is named for the action: {name}{end} is looked for")
    raise Unusable("the zip has no __main__.py, and no element NAME.o.py or NAME.o.yaml, at its top")


# --- zips -----------------------------------------------------------------------------------------------------------------------

def safe(name: str) -> str:
    """A name in a zip that stays in the folder. Unusable: it does not."""
    parts = name.rstrip("/").split("/")
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ":" in parts[0] or any(part in ("", ".", "..")
                                                                                                  for part in parts):
        raise Unusable(f"a name in the zip leads elsewhere: {name[:80]!r}")
    if len(name.encode("utf-8", "surrogatepass")) > 1024 or len(parts) > 64:
        raise Unusable(f"a name in the zip is too long: {name[:40]!r}...")
    return name


def unzip(code: str, folder: str) -> None:
    """All of a zip in base64 into a folder."""
    import base64
    from io import BytesIO
    from zipfile import ZipFile
    try:
        data = base64.b64decode("".join(code.split()).encode("ascii"), validate=True)
    except (ValueError, UnicodeEncodeError):
        raise Unusable("the code is said to be binary, and is not base64") from None
    try:
        with ZipFile(BytesIO(data)) as zipped:
            entries = zipped.infolist()
            if len(entries) > FILES:
                raise Unusable(f"the zip has {len(entries)} files, and {FILES} are the most")
            left = BYTES
            for entry in entries:
                left = one(zipped, entry, folder, left)
    except Unusable:
        raise
    except OSError as error:
        raise Unusable(f"the zip cannot be unpacked: {error.strerror or 'it is damaged'}") from None
    except Exception as error:  # zipfile and zlib raise many kinds of errors for a damaged file
        raise Unusable(f"the code is said to be binary, and is no good zip: {str(error)[:80] or type(error).__name__}") from None


def one(zipped: ZipFile, entry: ZipInfo, folder: str, left: int) -> int:
    """One file of a zip; how many bytes may still come."""
    name, mode = safe(entry.filename), entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Unusable(f"the zip has something that is no file and no folder: {name[:80]!r} (links are not unpacked; zip "
                       f"without -y)")
    if entry.flag_bits & 1:
        raise Unusable(f"{name[:80]!r} in the zip is encrypted")
    if entry.compress_type not in (0, 8):
        raise Unusable(f"{name[:80]!r} in the zip is packed by a method that is not common: use deflate")
    path = os.path.join(folder, name)
    if entry.is_dir():
        os.makedirs(path, 0o700, exist_ok=True)
        return left
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    if os.path.lexists(path):
        raise Unusable(f"{name[:80]!r} is in the zip twice")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600 | mode & 0o100)
    with os.fdopen(fd, "wb") as out, zipped.open(entry) as data:
        while piece := data.read(1 << 18):
            left -= len(piece)
            if left < 0:
                raise Unusable(f"what is in the zip has more than {BYTES} bytes")
            out.write(piece)
    return left
