"""What `tls=` takes: files with certificates, as ssl.SSLContext loads them, and True for those that are configured.

Where it is given nothing goes in the clear: an address tcp://host:port becomes tls://host:port.
"""
from __future__ import annotations

import os
from collections.abc import Mapping

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Files = tuple[bytes | None, bytes | None, bytes | None]

_ALSO = {"certfile": "cert", "keyfile": "key", "cafile": "ca"}  # as ssl has them


class TLS:
    """Who we are and whom we accept, as files in PEM: our certificate, its private key, and authorities.

    The key may be in the file of the certificate. What is left out is what the runtime has, or the variables say (WEFT_TLS_CERT,
    WEFT_TLS_KEY, WEFT_TLS_CA). `weft key cluster` makes such files.
    """

    __slots__ = ("ca", "cert", "key")

    def __init__(self, cert: Path | None = None, key: Path | None = None, ca: Path | None = None) -> None:
        if key is None:
            key = cert
        elif cert is None:
            raise TypeError("a private key is that of a certificate: give cert, too")
        self.cert, self.key, self.ca = (None if path is None else os.fspath(path) for path in (cert, key, ca))

    def __repr__(self) -> str:
        return f"weft.TLS(cert={self.cert!r}, key={self.key!r}, ca={self.ca!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TLS) and self._files() == other._files()

    def __hash__(self) -> int:
        return hash(self._files())

    def _files(self) -> Files:
        return _file(self.cert), _file(self.key), _file(self.ca)


AnyTLS = TLS | Mapping[str, Path] | bool | None


def _file(path: str | bytes | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def files(tls: AnyTLS) -> Files | None:
    """For the extension: the files of what was given as `tls=`; None: as the runtime has them, or as they are configured."""
    if tls is None or tls is True:
        return None
    if isinstance(tls, Mapping):
        strange = sorted(set(tls) - {"cert", "key", "ca", *_ALSO})
        if strange:
            raise TypeError(f"tls has {', '.join(map(repr, strange))}, which is none of 'cert', 'key', 'ca'")
        tls = TLS(**{_ALSO.get(name, name): path for name, path in tls.items()})
    if isinstance(tls, TLS):
        return tls._files()
    if hasattr(tls, "load_cert_chain"):
        raise TypeError("an ssl.SSLContext does not say which files it was made of, and Weft needs the files: "
                        "tls=weft.TLS(cert=..., key=..., ca=...)")
    raise TypeError(f"tls is {tls!r}, and should be weft.TLS(cert=..., key=..., ca=...), a dict with these names, or True for "
                    "what is configured")


def _secure(uri: str) -> str:
    at = len(uri) - len(uri.lstrip())
    return uri[:at] + "tls" + uri[at + 3:] if uri[at:at + 6].lower() == "tcp://" else uri


def secure(uris: str) -> str:
    """The same addresses, none of them in the clear."""
    return ",".join(map(_secure, uris.split(","))) if isinstance(uris, str) else uris
