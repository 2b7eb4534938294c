"""Small helpers that programs and benchmarks use: bytes and times as text, tables in a terminal, and the address of an interface.

tests/python/test_ucp_libs.py holds us to it.
"""
from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable

__all__ = ["format_bytes", "format_time", "get_address", "parse_bytes", "print_key_value", "print_multi", "print_separator"]

_POWERS = {"": 1, "b": 1}
for _i, _letter in enumerate("kmgtp", 1):
    _POWERS.update({_letter: 1000**_i, _letter + "b": 1000**_i, _letter + "i": 1024**_i, _letter + "ib": 1024**_i})
_BYTES = re.compile(r"^\s*([0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]*)\s*$")

_SIOCGIFADDR = 0x8915


def format_bytes(x: float) -> str:
    """A number of bytes for people: 1234 is "1.21 kiB"."""
    for power, letter in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if x >= 0.9 * 1024**power:
            return f"{x / 1024**power:.2f} {letter}iB"
    return f"{x:.0f} B"


def format_time(x: float) -> str:
    """A number of seconds for people: 0.0012 is "1.20 ms"."""
    if x >= 1:
        return f"{x:.2f} s"
    if x >= 1e-3:
        return f"{x * 1e3:.2f} ms"
    return f"{x * 1e6:.2f} us"


def parse_bytes(s: float | str) -> int:
    """A number of bytes as people write it: "5.4 kB" is 5400, "1MiB" is 1048576, "MB" is 1000000."""
    if isinstance(s, (int, float)):
        return int(s)
    found = _BYTES.match(s)
    unit = found[2].lower() if found else ""
    if not found or unit not in _POWERS or not (found[1] or unit) or found[1] in (".",):
        raise ValueError(f"{s!r} is no number of bytes: write 100, 5.4 kB, 1MiB")
    return int(float(found[1] or 1) * _POWERS[unit])


def print_separator(separator: str = "-", length: int = 80) -> None:
    """A line across the terminal."""
    print(separator * length)


def print_key_value(key: str, value: object, key_length: int = 25) -> None:
    """A name and its value, in columns."""
    print(f"{key: <{key_length}} | {value}")


def print_multi(values: Iterable[object], key_length: int = 25) -> None:
    """Several values, in columns; at least two."""
    values = list(values)
    if len(values) < 2:
        raise ValueError("print_multi() is for two values and more")
    print(" | ".join(f"{value!s: <{key_length}}" for value in values))


def _address_of(ifname: str) -> str:
    name = ifname.encode()
    if not 0 < len(name) < 16:
        raise OSError(f"\"{ifname}\" is no name of a network interface")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            answer = fcntl.ioctl(s.fileno(), _SIOCGIFADDR, struct.pack("256s", name))
        except OSError as error:
            raise OSError(error.errno, f"the network interface \"{ifname}\" is not there, or has no IPv4 address") from error
    return socket.inet_ntoa(answer[20:24])


def get_address(ifname: str | None = None) -> str:
    """The IPv4 address of an interface: the one named, or UCXPY_IFNAME; else the first of InfiniBand, else the one that leads out
    of the machine,
    else the loopback."""
    if ifname is None:
        ifname = os.environ.get("UCXPY_IFNAME")
    if ifname is not None:
        return _address_of(ifname)
    for _, name in sorted(socket.if_nameindex()):
        if name.startswith("ib"):
            try:
                return _address_of(name)
            except OSError:
                continue
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))  # sends nothing: it only selects the local address
            return str(s.getsockname()[0])
        except OSError:
            return "127.0.0.1"
