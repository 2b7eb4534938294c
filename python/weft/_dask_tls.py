"""Which certificates a comm of Dask's has.

Dask hands a transport what distributed.Security.get_connection_args() gives: an ssl.SSLContext, which does not say which files it
was made of, and whether encryption is required. Weft needs the files. So `weft.dask.Security` is distributed's with their names
beside the context. With distributed's own class they come from Dask's configuration, or from Weft's.

Promise: where encryption is required, or a context is given, nothing goes in the clear: it is encrypted, or it is an error that
says what is missing. tests/python/test_dask_tls.py holds us to it.
"""
from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from . import _core
from ._tls import TLS, AnyTLS

if TYPE_CHECKING:  # so that type checks do not depend on the installed distributed
    class _Security:
        def __init__(self, require_encryption: bool | None = None, **options: Any) -> None: ...
        def get_connection_args(self, role: str) -> dict[str, Any]: ...
        def get_listen_args(self, role: str) -> dict[str, Any]: ...
        def get_tls_config_for_role(self, role: str) -> dict[str, Any]: ...

    config: Any
else:
    from dask import config
    from distributed.security import Security as _Security

NAME = "weft_tls"  # in the arguments of connections and listeners: a TLS
ROLES = ("client", "scheduler", "worker")

_texts: dict[str, str] = {}  # what was no file, and the one that it is in


def _file(given: str | None) -> str | None:
    """The name of a file: Security also takes the text of a certificate."""
    if given is None or "\n" not in given:
        return given
    if given not in _texts:
        fd = os.memfd_create("weft-dask-tls")  # of this process alone, for as long as it lives
        os.fchmod(fd, 0o600)  # a private key that others could read is refused
        with open(fd, "w", closefd=False) as f:
            f.write(given)
        _texts[given] = f"/proc/self/fd/{fd}"
    return _texts[given]


class Security(_Security):
    """distributed.Security for protocol="weft": the same arguments, and it tells Weft the names of the files."""

    def _with_files(self, arguments: dict[str, Any], role: str) -> dict[str, Any]:
        of = self.get_tls_config_for_role(role)
        if of["ca_file"] and of["cert"]:
            arguments[NAME] = TLS(_file(of["cert"]), _file(of["key"]), _file(of["ca_file"]))
        return arguments

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """What a connector gets."""
        return self._with_files(super().get_connection_args(role), role)

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """What a listener gets."""
        return self._with_files(super().get_listen_args(role), role)


def _of_dask(context: Any) -> TLS | None:
    """The files in Dask's configuration, if all roles have the same, and the context accepts the same authorities."""
    tls = config.get("distributed.comm.tls", None) or {}
    ca = tls.get("ca-file")
    of = [tls.get(role) or {} for role in ROLES]
    pairs = {(role["cert"], role.get("key")) for role in of if role.get("cert")}
    if not ca or len(pairs) != 1:
        return None
    cert, key = pairs.pop()
    if isinstance(context, ssl.SSLContext):
        same = ssl.create_default_context(cadata=ca) if "\n" in ca else ssl.create_default_context(cafile=ca)
        if sorted(same.get_ca_certs(True)) != sorted(context.get_ca_certs(True)):
            return None
    return TLS(_file(cert), _file(key), _file(ca))


def of_weft(ours: dict[str, Any]) -> TLS | None:
    """The files in distributed.comm.weft."""
    if not any(ours.get(name) for name in ("tls-cert", "tls-key", "tls-ca")):
        return None
    return TLS(ours.get("tls-cert"), ours.get("tls-key"), ours.get("tls-ca"))


def _weft_can(ours: dict[str, Any]) -> bool:
    """Has Weft something of its own to encrypt with?"""
    if ours.get("key") or of_weft(ours):
        return True
    return any(name in ("WEFT_KEY_FILE", "WEFT_TLS_CERT") and value for name, value, *_ in _core.config())


def wanted(address: str, arguments: dict[str, Any], ours: dict[str, Any]) -> AnyTLS:
    """What a connector or listener with these arguments has as `tls=`. `ours`: distributed.comm.weft."""
    files: TLS | None = arguments.get(NAME)
    context = arguments.get("ssl_context")
    if files is not None or (context is None and not arguments.get("require_encryption")):
        return files
    files = _of_dask(context)
    if files is not None:
        return files
    if _weft_can(ours):
        return True
    raise RuntimeError(f"Dask asks for encryption, and Weft does not know with which certificates: {address} is not used. A "
                       "distributed.Security does not tell a transport the names of its files: use "
                       "weft.dask.Security(tls_ca_file=..., tls_client_cert=..., ...) instead, or set WEFT_TLS_CERT, "
                       "WEFT_TLS_KEY and WEFT_TLS_CA, or a key (WEFT_KEY_FILE)")
