"""Reaching a Dask cluster: a scheduler by its address, by a file that has the address, or one of this machine for the run alone.

Whatever goes wrong here is the user's to put right, and is told as one sentence (Failed). A cluster of this machine keeps its
files in a folder that is named and locked as those of runs are: if the bridge is killed, the next run finds it and removes it.
tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
from importlib import import_module

from .bridge import Failed, quietly, sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REACH = 30.0
CLOSING = 10.0
TLS = ("the certificates of TLS are not configured for Dask: set distributed.comm.tls.ca-file, .client.cert and .client.key in "
       "its configuration, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE, __CLIENT__CERT and __CLIENT__KEY in the environment")


def distributed() -> Any:
    """Dask's package, which is not needed to have this one."""
    return import_module("distributed")


def address_of(where: str) -> str:
    """Of the scheduler that --on names, as Dask wants it. Failed: there is none in the file."""
    if where.startswith("/"):
        return _address_in(where)
    address = where.rstrip("/")
    return address if "://" in address else f"tcp://{address}"


def _address_in(path: str) -> str:
    write = "dask scheduler --scheduler-file writes one"
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except FileNotFoundError:
        raise Failed(f"there is no file {path}: {write}") from None
    except OSError as error:
        raise Failed(f"the file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Failed(f"the file {path} is not JSON: {write}") from None
    address = said.get("address") if isinstance(said, dict) else None
    if not isinstance(address, str) or not address:
        raise Failed(f"the file {path} has no address of a scheduler: {write}")
    return address


def _check_tls(dask: Any) -> None:
    try:
        context = dask.Security().get_connection_args("client").get("ssl_context")
    except Exception as error:
        raise Failed(f"the certificates of TLS that Dask is configured with cannot be used: {sentence(error)}") from None
    if context is None:
        raise Failed(TLS)


async def client_of(dask: Any, where: str, own: Any = None) -> Any:
    """A client of the cluster at `where`, or of the one that is ours."""
    client = None
    try:
        address = address_of(where) if own is None else ""
        if address.startswith("tls://"):
            _check_tls(dask)
        client = dask.Client(own or address, asynchronous=True, timeout=REACH, set_as_default=False)
        return await asyncio.wait_for(client, REACH)  # what is there may not be a scheduler, and never answer
    except BaseException as error:  # also when nobody waits for it any more
        if client is not None:
            await quietly(asyncio.wait_for(client.close(), 2))
        if isinstance(error, Failed) or not isinstance(error, Exception):
            raise
        why = (f"not within {REACH:g} s" if isinstance(error, asyncio.TimeoutError) else
               sentence(error) if isinstance(error, (OSError, ValueError)) else
               f"what is there does not speak as one does: {sentence(error)}")
        raise Failed(f"no Dask scheduler answers at {where or 'this machine'} ({why})") from None


class Own:
    """A cluster of this machine, for the time of the run."""

    def __init__(self) -> None:
        self.folder = ""
        self.lock = -1
        self.cluster: Any = None

    async def open(self, dask: Any) -> Any:
        """Start it, with as many threads as keep the processors busy."""
        try:
            letters = "abcdefghijklmnopqrstuvwxyz0123456789"
            while not self.folder:
                name = "weft-run-" + "".join(letters[byte % len(letters)] for byte in os.urandom(6))
                path = os.path.join(tempfile.gettempdir(), name)
                try:
                    os.mkdir(path, 0o700)
                    self.folder = path
                except FileExistsError:
                    pass
            self.lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            import_module("dask").config.set({"temporary-directory": self.folder})
            self.cluster = dask.LocalCluster(asynchronous=True, processes=True, dashboard_address=None, threads_per_worker=2,
                                             n_workers=len(os.sched_getaffinity(0)))
            return await self.cluster
        except Exception as error:
            raise Failed(f"no Dask cluster can be started on this machine ({sentence(error)})") from None

    async def close(self) -> None:
        """End it, and remove its files."""
        if self.cluster is not None:
            await quietly(asyncio.wait_for(self.cluster.close(), CLOSING))
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1
