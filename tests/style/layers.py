"""The two rules of the house, read off the includes: look down only, and one door per room.

A room is a folder of src/; its door is the header that carries its name. base is open: any of its headers may be included by anyone.
The .c files right under src/ put the rooms of libweft together and may include every door of them. MAP.md has the picture.

store and element are another library, libweft-elements. It includes of libweft what is public, and of base the files that every library
has a copy of; libweft includes nothing of it.

src/fabric/ucx is a module, libweft_ucx.so, which the library loads and is not linked to: only it includes UCX, nobody includes its headers,
and it sees of the library no more than MODULE_SEES, and of base what has no state (or what it defines itself: log.h).
"""
import os
import re

from lib import checks

RANK = {"base": 0, "fabric": 1, "core": 2, "mem": 3, "conn": 4, "am": 5, "msg": 5, "registry": 5, "rma": 5, "rpc": 6, "extend": 6,
        "store": 7, "element": 8}
ELEMENTS = {"store", "element"}
# Headers of base that keep nothing for the whole process. CMakeLists.txt has the .c files: WEFT_TOOLBOX_SOURCES.
SHARED = {"alloc", "ascii", "bytes", "handle", "list", "map", "nearest", "opts", "rarely", "rng", "slots", "spares",
          "units", "uri", "utf8"}
# The room a public header speaks for. op.h is the fabric's too: it needs weft_iov_t.
PUBLIC = {"status": 0, "config": 0, "op": 1, "runtime": 2, "extend": 2, "mem": 3, "conn": 4, "policy": 4, "am": 5, "msg": 5, "registry": 5, "rma": 5,
          "types": 6, "rpc": 6, "service": 6, "function": 6, "function_parts": 6, "store": 7, "mirror": 7, "element": 8}
UMBRELLAS = ("weft", "elements")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
TOOLBOX = ("base/json.h", "base/nearest.h", "base/utf8.h")
UCX = ("ucp/", "uct/", "ucs/", "ucm/")
TLS = "src/fabric/tls/"  # the only place that names OpenSSL
MODULE = "src/fabric/ucx/"
MODULE_SEES = {"fabric/fabric.h", "fabric/module.h", "fabric/transfers.h"}
MODULE_BASE = {"alloc", "bytes", "clock", "list", "log", "map", "slots", "spares"}


def check_public_name(path, target, rank):
    name = target[len("weft/"):].rsplit(".", 1)[0]
    if name in UMBRELLAS:
        return f"{path}: <{target}> is for users; a room includes the topic headers it needs"
    if name not in PUBLIC:
        return f"{path}: <{target}> belongs to no room this test knows"
    if PUBLIC[name] > rank:
        return f"{path}: <{target}> speaks for a room above"
    return None


def check_room(path, room, sub, quote, target, have):
    """One include of a file in src/<room>/[<sub>/]; what is wrong with it, or None."""
    parts = target.split("/")
    if ".." in parts or target.startswith("/"):
        return f"{path}: \"{target}\": includes start at src/"
    if target.startswith(UCX) and not path.startswith(MODULE):
        return f"{path}: <{target}>: only fabric/ucx may include UCX"
    if target.startswith("openssl/") and not path.startswith(TLS):
        return f"{path}: <{target}>: only fabric/tls may include OpenSSL"
    if target.startswith("fabric/ucx/") and not path.startswith(MODULE):
        return f"{path}: \"{target}\": fabric/ucx is a module, and not linked to the library"
    if path.startswith(MODULE) and quote == '"':
        return check_module(path, target)
    if parts[0] == "weft":
        return check_public_name(path, target, RANK[room])
    if quote == "<":
        return None
    if len(parts) == 1:
        own = os.path.join(os.path.dirname(path), target)
        return None if own in have else f"{path}: \"{target}\": write it with its room"
    there = parts[0]
    if there not in RANK:
        return f"{path}: \"{target}\": there is no such room"
    if there == "base":
        kept = room in ELEMENTS and parts[1].rsplit(".", 1)[0] not in SHARED
        return f"{path}: \"{target}\": {room} is of another library than {there}, which keeps something there" if kept else None
    if there == room:
        return check_inside(path, room, sub, parts)
    if RANK[there] > RANK[room]:
        return f"{path}: \"{target}\" looks up: {room} is below {there}"
    if room in ELEMENTS and there not in ELEMENTS:
        return f"{path}: \"{target}\": {room} is of another library than {there}, and sees its public headers only"
    if RANK[there] == RANK[room]:
        return f"{path}: \"{target}\": {room} and {there} are siblings and never meet"
    if parts[1:] != [there + ".h"]:
        return f"{path}: \"{target}\" is not the door of {there}; that is {there}/{there}.h"
    return None


def check_module(path, target):
    parts = target.split("/")
    if target in MODULE_SEES or ("src/" + target).startswith(MODULE):
        return None
    if parts[0] == "base" and parts[1].removesuffix(".h") in MODULE_BASE:
        return None
    return f"{path}: \"{target}\" is the library's: a module sees {', '.join(sorted(MODULE_SEES))} and stateless parts of base"


def check_inside(path, room, sub, parts):
    """A room may include what is its own. Each sub-folder of fabric is a room again, with a door; fabric/real.c joins them."""
    target = "/".join(parts)
    if len(parts) == 2 or parts[1] == sub:
        return None
    if sub:
        return f"{path}: \"{target}\": {room}/{sub} and {room}/{parts[1]} are siblings and never meet"
    if path.endswith(f"/{room}.h"):
        return f"{path}: \"{target}\": a door leads to no one implementation"
    if parts[2:] != [parts[1] + ".h"]:
        return f"{path}: \"{target}\" is not the door of {room}/{parts[1]}"
    return None


def check_root(path, quote, target):
    """src/*.c: every door, base, and the public headers."""
    parts = target.split("/")
    if target.startswith(UCX):
        return f"{path}: <{target}>: only fabric/ucx may include UCX"
    if quote == "<" or parts[0] == "base" or len(parts) == 1:
        return None
    if parts[0] not in RANK or parts[0] in ELEMENTS or parts[1:] != [parts[0] + ".h"]:
        return f"{path}: \"{target}\" is not a door"
    return None


def check_user(path, quote, target, have):
    """tools/ and examples/: <weft/...>, the system, and their own headers; tools/ also has a few of base, so that nothing is written twice."""
    if target.startswith(UCX):
        return f"{path}: <{target}>: only fabric/ucx may include UCX"
    if quote == "<":
        return None
    top = path.split("/")[0]
    if top == "tools" and target in TOOLBOX:
        return None
    if os.path.normpath(os.path.join(os.path.dirname(path), target)) in have or os.path.join(top, target) in have:
        return None
    return f"{path}: \"{target}\": {top}/ sees include/weft only"


def check_header(path, quote, target):
    """include/weft: the standard library, and other public headers that look down."""
    name = os.path.basename(path).rsplit(".", 1)[0]
    if quote == '"':
        return f"{path}: \"{target}\": an installed header includes <weft/...> only"
    if target.startswith(UCX):
        return f"{path}: <{target}>: only fabric/ucx may include UCX"
    if not target.startswith("weft/") or name in UMBRELLAS or path.endswith(".hpp"):
        return None
    if name not in PUBLIC:
        return f"{path}: tests/style/layers.py does not know which room this header speaks for"
    return check_public_name(path, target, PUBLIC[name])


def problems(root):
    found = []
    have = set(checks.files(root, ".", ".c", ".h", ".hpp"))
    have = {os.path.normpath(p) for p in have}
    for path in sorted(have):
        parts = path.split("/")
        for quote, target in INCLUDE.findall(checks.read(root, path)):
            what = None
            if parts[0] == "src" and len(parts) == 2:
                what = check_root(path, quote, target)
            elif parts[0] == "src":
                if parts[1] not in RANK:
                    what = f"{path}: there is no room {parts[1]}"
                else:
                    what = check_room(path, parts[1], parts[2] if len(parts) > 3 else None, quote, target, have)
            elif parts[0] in ("tools", "examples"):
                what = check_user(path, quote, target, have)
            elif parts[:2] == ["include", "weft"]:
                what = check_header(path, quote, target)
            if what:
                found.append(what)
    return found


def includes_look_down_and_go_through_doors():
    found = problems(checks.SOURCE)
    assert not found, "\n".join(found)


GOOD = {
    "include/weft/conn.h": "#include <stdint.h>\n#include <weft/op.h>\n",
    "include/weft/op.h": "#include <weft/status.h>\n",
    "include/weft/status.h": "",
    "src/open.c": '#include "conn/conn.h"\n#include "base/list.h"\n#include "msg/msg.h"\n#include <weft/weft.h>\n',
    "src/base/list.h": "#include <stddef.h>\n",
    "src/base/map.c": '#include "base/list.h"\n#include <weft/status.h>\n',
    "src/fabric/fabric.h": '#include "base/list.h"\n#include <weft/op.h>\n',
    "src/fabric/module.h": '#include "fabric/fabric.h"\n',
    "src/fabric/real.c": '#include "fabric/module.h"\n#include "fabric/shm/shm.h"\n',
    "src/fabric/shm/shm.h": '#include "fabric/fabric.h"\n',
    "src/fabric/ucx/internal.h": '#include "base/list.h"\n#include "fabric/module.h"\n',
    "src/fabric/ucx/am.c": '#include <ucp/api/ucp.h>\n#include "fabric/ucx/internal.h"\n#include "fabric/fabric.h"\n',
    "src/core/core.h": '#include "fabric/fabric.h"\n',
    "src/conn/conn.h": '#include "core/core.h"\n#include <weft/conn.h>\n',
    "src/conn/ep.h": '#include "conn/conn.h"\n',
    "src/conn/ep.c": '#include "conn/ep.h"\n#include "fabric/fabric.h"\n',
    "src/msg/msg.h": '#include "conn/conn.h"\n',
    "src/store/store.h": '#include <weft/conn.h>\n#include "base/list.h"\n',
    "src/element/io.c": '#include "store/store.h"\n#include <weft/conn.h>\n',
    "tools/main.c": '#include <weft/weft.h>\n#include "base/nearest.h"\n#include "common.h"\n',
    "tools/common.h": "",
}

BAD = {
    "base looks up": ("src/base/bad.c", '#include "core/core.h"\n'),
    "base looks up through a public header": ("src/base/bad.c", "#include <weft/conn.h>\n"),
    "core looks up": ("src/core/bad.c", '#include "conn/conn.h"\n'),
    "core looks up in a header": ("src/core/bad.h", '#  include "msg/msg.h"\n'),
    "a private header of a lower room": ("src/msg/bad.c", '#include "conn/ep.h"\n'),
    "a fabric behind its door": ("src/core/bad.c", '#include "fabric/shm/shm.h"\n'),
    "siblings meet": ("src/am/bad.c", '#include "msg/msg.h"\n'),
    "fabrics meet": ("src/fabric/tcp/bad.c", '#include "fabric/shm/shm.h"\n'),
    "the fabric's door leads to one fabric": ("src/fabric/fabric.h", '#include "fabric/shm/shm.h"\n'),
    "the fabric goes around a door": ("src/fabric/real.c", '#include "fabric/shm/private.h"\n'),
    "the library includes a module": ("src/fabric/real.c", '#include "fabric/ucx/internal.h"\n'),
    "another fabric includes a module": ("src/fabric/tcp/bad.c", '#include "fabric/ucx/internal.h"\n'),
    "a module includes a private header": ("src/fabric/ucx/bad.c", '#include "fabric/shm/shm.h"\n'),
    "a module includes the fabric's insides": ("src/fabric/ucx/bad.c", '#include "fabric/transports.h"\n'),
    "a module includes another room": ("src/fabric/ucx/bad.c", '#include "core/core.h"\n'),
    "a module includes a part of base that has state": ("src/fabric/ucx/bad.c", '#include "base/config.h"\n'),
    "openssl outside its room": ("src/fabric/tcp/bad.c", "#include <openssl/ssl.h>\n"),
    "ucx outside its room": ("src/conn/bad.c", "#include <ucp/api/ucp.h>\n"),
    "ucx in another fabric": ("src/fabric/shm/bad.c", "#include <ucs/type/status.h>\n"),
    "ucx at the root": ("src/open.c", "#include <ucp/api/ucp.h>\n"),
    "the root opens a private header": ("src/open.c", '#include "conn/ep.h"\n'),
    "a way around through dots": ("src/core/bad.c", '#include "../conn/conn.h"\n'),
    "a bare name of another room": ("src/core/bad.c", '#include "ep.h"\n'),
    "libweft sees the elements": ("src/conn/bad.c", '#include "store/store.h"\n'),
    "the root sees the elements": ("src/open.c", '#include "element/element.h"\n'),
    "the elements see a door of libweft": ("src/store/bad.c", '#include "core/core.h"\n'),
    "the elements see a private header of libweft": ("src/element/bad.c", '#include "conn/ep.h"\n'),
    "the elements see what base keeps": ("src/store/bad.c", '#include "base/log.h"\n'),
    "an element sees a private header of the store": ("src/element/bad.c", '#include "store/state.h"\n'),
    "a header of libweft needs the elements": ("include/weft/conn.h", "#include <weft/store.h>\n"),
    "the umbrella of the elements inside": ("src/store/bad.c", "#include <weft/elements.h>\n"),
    "the library includes the simulated network": ("src/open.c", '#include "simnet/simnet.h"\n'),
    "an unknown room": ("src/attic/bad.c", '#include "base/list.h"\n'),
    "the umbrella inside": ("src/conn/bad.c", "#include <weft/weft.h>\n"),
    "a tool sees the inside": ("tools/bad.c", '#include "base/list.h"\n'),
    "an example sees base": ("examples/bad/bad.c", '#include "base/nearest.h"\n'),
    "an example sees the inside": ("examples/bad/bad.c", '#include "core/core.h"\n'),
    "a public header looks up": ("include/weft/status.h", "#include <weft/conn.h>\n"),
    "a public header opens the inside": ("include/weft/op.h", '#include "core/core.h"\n'),
}


def a_good_tree_has_no_problem():
    with checks.scratch() as root:
        checks.write_tree(root, GOOD)
        assert not problems(root), "\n".join(problems(root))


def every_bad_tree_is_caught():
    for name, (path, text) in BAD.items():
        with checks.scratch() as root:
            checks.write_tree(root, {**GOOD, path: text})
            found = problems(root)
            assert len(found) == 1 and found[0].startswith(path), f"{name}: {found or 'not caught'}"


checks.main(includes_look_down_and_go_through_doors, a_good_tree_has_no_problem, every_bad_tree_is_caught)
