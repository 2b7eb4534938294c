"""The command line of the action runtime: listens, says so if asked, and ends cleanly when told to.

    python -m disagg.serve [--host 0.0.0.0] [--port 8080] [--address ADDRESS] [--ready-fd FD]

SIGTERM, SIGINT: the activation that runs is told to end, answered, and the process exits with status 0 within seconds. Status 1:
it cannot listen; 2: the command line. Nothing is printed but what the action prints, sentinels, and errors; with --port 0 and no
--ready-fd the first line says where it listens. tests/python/test_openwhisk_run.py and tests/tools/tools_element_serve.py hold us
to it.
"""
from __future__ import annotations

import os
import signal
import socket
import sys

from .routes import Routes
from .runtime import Runtime, empty
from .web import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NAMES = ("--host", "--port", "--address", "--ready-fd")
ANSWERING = 3.0


def wrong(sentence: str, status: int = 2) -> NoReturn:
    """End with a sentence."""
    print(f"weft element serve: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def options(argv: list[str]) -> dict[str, str]:
    """The command line; --NAME VALUE and --NAME=VALUE."""
    found, left = {"--host": "0.0.0.0", "--port": "8080"}, list(argv)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name not in NAMES:
            wrong(f"there is no option {name!r}; there are {', '.join(NAMES)}")
        if not equals:
            if not left:
                wrong(f"{name} needs a value")
            value = left.pop(0)
        found[name] = value
    for name, most in (("--port", 65535), ("--ready-fd", 1 << 20)):
        value = found.get(name, "0")
        if not value.isdecimal() or not value.isascii() or len(value) > 9 or int(value) > most:
            wrong(f"{name} {value} is not a number from 0 to {most}")
    return found


def own_address(host: str) -> str:
    """The address by which others reach this container: that of its way out. Nothing is sent to find it."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as s:
                s.connect((far, 9))
                found: str = s.getsockname()[0]
                return found
        except OSError:
            continue
    return "127.0.0.1"


def standard_streams() -> None:
    """Descriptors 0 to 2 are there, so that none of ours is taken for one of them."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def new_folder() -> str:
    """A folder of this process's own for the action's code."""
    for top in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "."):
        if top:
            folder = os.path.join(os.path.abspath(top), f"weft-action-{os.urandom(8).hex()}")
            try:
                os.mkdir(folder, 0o700)
                return folder
            except OSError:
                continue
    wrong("there is nowhere to put the action's code: neither /tmp, /var/tmp nor the working directory can be written to. "
          "TMPDIR names another "
          "folder; a container that is read-only needs --tmpfs /tmp", 1)


def main(argv: list[str]) -> int:
    """Serve until a signal."""
    standard_streams()
    said = options(argv)
    host, port = said["--host"], int(said["--port"])
    address = said.get("--address") or own_address(host)
    routes = Routes()
    try:
        server = Server(host, port, routes.route, routes.handle)
    except OSError as error:
        wrong(f"port {port} of {host} cannot be listened on: {error.strerror or error}" +
              ("; --port N names another" if error.errno == 98 else ""), 1)
    folder = new_folder()
    try:
        runtime = routes.runtime = Runtime(folder, address)
        runtime.callback = f"http://{f'[{address}]' if ':' in address else address}:{server.port}"
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        ready(said, host, server.port)
        server.run()
        runtime.stop()
        server.finish(ANSWERING)
    finally:
        empty(folder)
    return 0


def ready(said: dict[str, str], host: str, port: int) -> None:
    """Say that it listens, where somebody wants to know."""
    if "--ready-fd" in said:
        fd = int(said["--ready-fd"])
        try:
            os.write(fd, f"{port}\n".encode())
            if fd > 2:
                os.close(fd)
        except OSError as error:
            wrong(f"--ready-fd {fd} cannot be written to: {error.strerror}")
    elif said["--port"] == "0":
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
