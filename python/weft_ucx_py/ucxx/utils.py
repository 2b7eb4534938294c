"""Small things of UCXX that programs use: the log, addresses of interfaces, numbers for people. Most are those of `ucp`."""
from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from ucp.utils import (format_bytes, format_time, get_address as _get_address, get_ucxpy_logger, hmean, parse_bytes,
                       print_key_value,
                       print_multi, print_separator)

__all__ = ["format_bytes", "format_time", "get_address", "get_ucxpy_logger", "hmean", "nvtx_annotate", "parse_bytes",
           "print_key_value", "print_multi", "print_separator"]


def get_address(ifname: str | None = None, use_ipv6: bool = False) -> str:
    """The address of a network interface: of the one that is named, or by UCXPY_IFNAME, or of the first that looks like a
    network. OSError if there is none."""
    if not use_ipv6:
        return str(_get_address(ifname))
    name = ifname or os.environ.get("UCXPY_IFNAME")
    for address, owner in _ipv6():
        if name in (None, owner) and (name is not None or not address.startswith(("::1", "fe80"))):
            return address
    raise OSError(f"No such device: {name} has no address of IPv6" if name else "No devices found: no interface has an address "
                                                                                "of IPv6")


def _ipv6() -> Iterator[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            for line in file:
                digits, _, _, _, _, name = line.split()
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name
    except FileNotFoundError:  # no IPv6 here
        return


@contextlib.contextmanager
def nvtx_annotate(message: str | None = None, color: str | None = None, domain: str | None = None) -> Iterator[None]:
    """Nothing: Weft has no marks for NVIDIA's profiler."""
    yield
