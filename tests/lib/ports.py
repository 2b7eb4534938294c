"""TCP ports that a test may name before anyone listens there: ports.c for Python, and the two know of each other."""
import os
import socket

LOWEST, MANY = 2000, 4000
_notes = []


def first_given_out():
    """The first port that the system gives out by itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    return first if first > LOWEST + MANY else 32768


def take():
    """A port that nobody listens at, and that nobody else who asks here gets while this process lives."""
    below = first_given_out()
    for i in range(MANY):
        port = below - 1 - (os.getpid() * 7 + i) % MANY
        note = socket.socket(socket.AF_UNIX)
        try:
            note.bind(f"\0weft-test-port-{port}")
            with socket.socket() as s:
                s.bind(("0.0.0.0", port))
        except OSError:
            note.close()
            continue
        _notes.append(note)  # gone with the process
        return port
    raise AssertionError("there is no port for a test")
