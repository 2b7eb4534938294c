"""The options of UCX, as `UCX_*` variables or in a dict: which there are, what values they may have, and which of them say
something to Weft.

Weft has its own way of moving bytes, so most of UCX's options have nothing to adjust: they are accepted, checked and shown. Those
that have are TLS (which transports may be used), NET_DEVICES (which network devices), KEEPALIVE_INTERVAL (how long a peer may be
silent) and LISTENER_BACKLOG. An option that UCX does not have, or a value of the wrong sort, is a UCXConfigError.

tests/python/test_ucx_api.py holds us to it.
"""
from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..exceptions import UCXConfigError

_logger = logging.getLogger("ucx")

# name, kind of value, default: as UCX prints them for UCP
_TABLE = """
NET_DEVICES text all | SHM_DEVICES text all | ACC_DEVICES text all | SELF_DEVICES text all | TLS text all | PROTOS text all
ALLOC_PRIO text md:sysv,md:posix,huge,thp,md:*,mmap,heap | SOCKADDR_TLS_PRIORITY text rdmacm,tcp,sockcm | SOCKADDR_AUX_TLS text ud
SELECT_DISTANCE_MD text cuda_cpy | MEMTYPE_REG_WHOLE_ALLOC_TYPES text cuda | RNDV_MEMTYPE_DIRECT_SIZE size inf
WARN_INVALID_CONFIG bool y
BCOPY_THRESH size auto | RNDV_THRESH text auto | RNDV_SEND_NBR_THRESH size 256K | RNDV_THRESH_FALLBACK size inf
RNDV_PERF_DIFF number 1.000
MULTI_LANE_MAX_RATIO number 4.000 | MAX_EAGER_RAILS number 1 | MAX_EAGER_LANES number 1 | MAX_RNDV_RAILS number 2
MAX_RNDV_LANES number 2
RNDV_SCHEME text auto | RKEY_PTR_SEG_SIZE size 512K | ZCOPY_THRESH size auto | BCOPY_BW text auto | ATOMIC_MODE text guess
ADDRESS_DEBUG_INFO bool n | MAX_WORKER_ADDRESS_NAME number 32 | USE_MT_MUTEX bool n | ADAPTIVE_PROGRESS bool y | SEG_SIZE size 8K
TM_THRESH size 1K | TM_MAX_BB_SIZE size 1K | TM_FORCE_THRESH size 8K | TM_SW_RNDV bool n | NUM_EPS number auto
NUM_PPN number auto
RNDV_FRAG_SIZE text host:512K,cuda:4M | RNDV_FRAG_ALLOC_COUNT text host:128,cuda:128 | RNDV_FRAG_MEM_TYPE text host
RNDV_PIPELINE_SEND_THRESH size inf | RNDV_PIPELINE_SHM_ENABLE bool y | FLUSH_WORKER_EPS bool y | UNIFIED_MODE bool n
CM_USE_ALL_DEVICES bool y
LISTENER_BACKLOG number auto | PROTO_ENABLE bool n | PROTO_REQUEST_RESET bool n | KEEPALIVE_INTERVAL time 20s
KEEPALIVE_NUM_EPS number 128
DYNAMIC_TL_SWITCH_INTERVAL text inf | DYNAMIC_TL_PROGRESS_FACTOR number 10 | RESOLVE_REMOTE_EP_ID bool off
PROTO_INDIRECT_ID bool auto
RNDV_PUT_FORCE_FLUSH bool n | SA_DATA_VERSION text v1 | RKEY_MPOOL_MAX_MD number 2 | RX_MPOOL_SIZES text 64,1K
ADDRESS_VERSION text v1
RCACHE_ENABLE bool try | PROTO_INFO text n | MEMTYPE_CACHE bool try | GVA_ENABLE text auto
EXPORTED_MEM_HANDLE bool n | REG_NONBLOCK_MEM_TYPES text
MAX_COMPONENT_MDS number 16 | CONNECT_ALL_TO_ALL bool n | EXTRA_OP_ATTR_FLAGS text | PROTO_OVERHEAD text | NODE_LOCAL_ID text auto
"""

# options of parts of UCX: its transports, its services, its memory hooks, its log
_FAMILIES = ("IB_", "RC_", "UD_", "DC_", "TCP_", "SELF_", "SYSV_", "POSIX_", "MM_", "CMA_", "KNEM_", "XPMEM_", "CUDA_", "GDR_",
             "ROCM_", "ZE_", "RDMA_", "GGA_", "UGNI_", "MEM_", "LOG_", "STATS_", "PROFILE_", "VFS_", "ASYNC_", "RCACHE_",
             "MODULE",
             "ERROR_", "DEBUG_", "GDB_", "HANDLE_ERRORS", "WARN_UNUSED_ENV_VARS", "MEMTRACK_", "BUILTIN_MEMCPY_", "TOPO_",
             "ARCH_",
             "GLOBAL_OPTS", "SYS_", "INT_", "SOCKCM_", "FUSE_", "MAX_LOG")

_OURS = ("tcp",)
_SHARED = ("shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "self")
_GPU = ("cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc", "rocm_gdr", "ze", "ze_copy", "ze_ipc")
_RDMA = ("ib", "rc", "rc_v", "rc_verbs", "rc_x", "rc_mlx5", "ud", "ud_v", "ud_verbs", "ud_x", "ud_mlx5", "dc", "dc_x", "dc_mlx5",
         "srd", "ugni")
_ELSE = ("sockcm", "rdmacm", "gga")

_BOOLS = {"y", "n", "yes", "no", "on", "off", "true", "false", "1", "0", "try", "auto"}
_SIZE = re.compile(r"^\d+(\.\d+)?\s*([kKmMgGtT])?([bB])?$")
_TIME = re.compile(r"^(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h)?$")
_NUMBER = re.compile(r"^-?\d+(\.\d+)?$")


@dataclass(frozen=True)
class Option:
    """One option: its name without UCX_, the sort of its value, and what it is if nobody says."""

    name: str
    sort: str
    default: str


def _known() -> dict[str, Option]:
    made = {}
    for row in _TABLE.replace("\n", "|").split("|"):
        words = row.split(None, 2)
        if words:
            made[words[0]] = Option(words[0], words[1], words[2].strip() if len(words) > 2 else "")
    return made


KNOWN = _known()


def seconds(text: str) -> float | None:
    """A time as UCX writes it, in seconds; None for inf."""
    if text in ("inf", "auto"):
        return None
    found = _TIME.match(text)
    if not found:
        raise UCXConfigError(f"\"{text}\" is no time: give a number and ns, us, ms, s, m or h")
    return float(found[1]) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2] or "s"]


def _check(name: str, value: str) -> None:
    option = KNOWN.get(name)
    sort = option.sort if option else "text"
    good = True
    if sort == "bool":
        good = value.lower() in _BOOLS
    elif sort == "size":
        good = value in ("auto", "inf") or bool(_SIZE.match(value))
    elif sort == "number":
        good = value in ("auto", "inf") or bool(_NUMBER.match(value))
    elif sort == "time":
        seconds(value)
    if not good:
        raise UCXConfigError(f"UCX_{name} is \"{value}\", which is no {sort}")


def current(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every option with its value: that of the environment, or the default. Variables that are no option of UCX's are left
    out."""
    made = {name: option.default for name, option in KNOWN.items()}
    for variable, value in (os.environ if env is None else env).items():
        name = variable[4:]
        if variable.startswith("UCX_") and (name in KNOWN or name.startswith(_FAMILIES)):
            _check(name, value)
            made[name] = value
    return made


def unused(env: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each variable that looks like an option and is none, as UCX says it. UCX_WARN_UNUSED_ENV_VARS=n: none."""
    given = os.environ if env is None else env
    if given.get("UCX_WARN_UNUSED_ENV_VARS", "y").lower() in ("n", "no", "off", "0", "false"):
        return []
    said = []
    for variable in sorted(given):
        name = variable[4:]
        if variable.startswith("UCX_") and name not in KNOWN and not name.startswith(_FAMILIES):
            near = difflib.get_close_matches(name, KNOWN, 1, 0.75)
            meant = f"; is UCX_{near[0]} meant?" if near else ""
            said.append(f"the environment has {variable}, which is no option of UCX and is ignored{meant} "
                        "(UCX_WARN_UNUSED_ENV_VARS=n ends this warning)")
    return said


def merged(options: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """The options of the environment with a program's over them, and which of them somebody set."""
    made = current()
    given = {variable[4:] for variable in os.environ if variable.startswith("UCX_") and variable[4:] in made}
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UCXConfigError(f"options are names and values in text, and this is {name!r}: {value!r}")
        name = name.removeprefix("UCX_")
        if name not in KNOWN and not name.startswith(_FAMILIES):
            raise UCXConfigError(f"UCX has no option UCX_{name}")
        _check(name, value)
        made[name] = value
        given.add(name)
    return made, given


def over_environment(options: Mapping[str, Any], env_takes_precedence: bool, ours_goes: str, theirs_goes: str) -> dict[str, Any]:
    """The options, with the value of each UCX_* variable of the same name if those take precedence. The log says which of the
    two was not taken, in the words that are given."""
    result = dict(options)
    for name, ours in tuple(result.items()):
        variable = f"UCX_{name}"
        theirs = os.environ.get(variable)
        if theirs is None:
            continue
        if env_takes_precedence:
            _logger.debug(ours_goes, name, ours, variable, theirs)
            result[name] = theirs
        else:
            _logger.debug(theirs_goes, variable, theirs, name, ours)
    return result


def transports(tls: str) -> str | None:
    """What UCX_TLS means to Weft, or None for everything. Memory of GPUs needs no word: Weft always takes it."""
    words = [w.strip() for w in tls.split(",") if w.strip()]
    if not words:
        raise UCXConfigError("UCX_TLS is empty: give all, or a list such as tcp,sm")
    not_these = words[0].startswith("^")
    if not_these:
        words[0] = words[0][1:]
    kept: list[str] = []
    for word in words:
        plain = word.removeprefix("\\").split(":")[0].lower()
        if plain in _OURS:
            kept.append("tcp")
        elif plain in _SHARED:
            if plain in ("shm", "sm", "mm", "posix", "sysv") or not not_these:
                kept.append("shm")
        elif plain in _RDMA:
            kept.append(plain)
        elif plain == "all":
            kept.append("all")
        elif plain not in _GPU and plain not in _ELSE:
            raise UCXConfigError(f"UCX_TLS names \"{word}\", which is no transport: tcp, sm, rc, ud, dc, ib, cuda, all, ...")
    if not_these:
        left = [w for w in ("shm", "tcp") if w not in kept]
        rdma = [w for w in kept if w in _RDMA]
        if "all" in kept or (not left and "ib" in rdma):
            raise UCXConfigError(f"UCX_TLS={tls} leaves no transport")
        return None if len(left) == 2 and not rdma else ",".join(left) or "rc"
    if "all" in kept:
        return None
    return ",".join(dict.fromkeys(kept)) or "shm,tcp"
