"""A cluster of benchmark processes on several machines, started by ssh: what `cudf_merge --hosts` does.

It runs the ssh command of the system, one for the server and one for each node of workers, so that keys, known hosts and
~/.ssh/config count as they do by hand. Nobody can type a password: each host has to let this user in by a key. If one of them
fails, all are ended: their stdin ends, and commands are expected to end then, which ssh itself does not see to.

tests/python/test_ucp_cluster.py holds us to it.
"""
from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("ucx.asyncssh")
logger.setLevel(os.environ.get("UCXPY_ASYNCSSH_LOG_LEVEL", "WARNING").upper())

_MOST = 1 << 16  # bytes in which a server says where it is


class _Failed(Exception):
    """What the user is told."""


async def _start(host: str, command: str) -> Process:
    logger.debug("[%s] %s", host, command)
    words = ("ssh", "-o", "BatchMode=yes", "--", host, command)
    return await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def _ended(host: str, process: Process) -> str:
    """What it printed, once it is over. _Failed if it failed."""
    assert process.stdout is not None and process.stderr is not None
    out, error = await asyncio.gather(process.stdout.read(), process.stderr.read())  # communicate() would close stdin
    await process.wait()
    for line in error.decode(errors="replace").splitlines():
        logger.debug("[%s] %s", host, line)
    if process.returncode:
        raise _Failed(f"{host}: exit status {process.returncode}: {error.decode(errors='replace').strip()[-2000:]}")
    return out.decode(errors="replace")


async def _where(host: str, process: Process) -> dict[str, Any]:
    """What the server says first: a JSON object with its address and its port."""
    text = ""
    assert process.stdout is not None
    while len(text) < _MOST:
        piece = await process.stdout.read(4096)
        if not piece:
            await _ended(host, process)
            break
        text += piece.decode(errors="replace")
        try:
            info, end = json.JSONDecoder().raw_decode(text.lstrip())
        except ValueError:
            continue
        if isinstance(info, dict) and {"address", "port"} <= info.keys():
            return info
        break
    raise _Failed(f"{host}: the server did not say where it is, but: {text[:200]!r}")


async def _run_ssh_cluster(args: Any, server_host: str, worker_hosts: list[str], num_workers: int,
                           get_server_command: Callable[[Any, int], str],
                           get_worker_command: Callable[[dict[str, Any], Any, int, int], str]) -> str:
    """Run all to their end: what the server printed."""
    server = await _start(server_host, get_server_command(args, num_workers))
    processes = [server]
    endings: list[asyncio.Task[str]] = []
    try:
        info = await _where(server_host, server)
        for i, host in enumerate(worker_hosts):
            processes.append(await _start(host, get_worker_command(info, args, num_workers, i)))
        endings = [asyncio.create_task(_ended(host, p)) for host, p in zip([server_host, *worker_hosts], processes)]
        printed = await asyncio.gather(*endings)
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None:
                process.kill()
        if endings:
            await asyncio.wait(endings)
        for process in processes:
            await process.wait()
    for host, text in zip(worker_hosts, printed[1:]):
        if text:
            logger.warning("[%s] a worker printed: %s", host, text)
    return printed[0]


def run_ssh_cluster(args: Any, server_host: str, worker_hosts: list[str], num_workers: int,
                    get_server_command: Callable[[Any, int], str],
                    get_worker_command: Callable[[dict[str, Any], Any, int, int], str]) -> None:
    """Run a server and workers on hosts, and print what the server prints.

    get_server_command(args, num_workers) and get_worker_command(server_info, args, num_workers, node_index) give the commands.
    """
    if shutil.which("ssh") is None:
        sys.exit("there is no ssh command here: install it (openssh-client), or start the processes by hand: "
                 "--print-commands-only says how")
    try:
        print(asyncio.run(_run_ssh_cluster(args, server_host, worker_hosts, num_workers, get_server_command, get_worker_command)),
              end="")
    except (OSError, _Failed) as error:
        sys.exit(f"the cluster failed: {error}")
