"""The key with which a memory element tells the runtime of the activation that invoked it where it is: PUT
/action/ID/transport/NAME?key=...

It is made of a secret that only that runtime and its activation know, and is good for one transport of one activation.
tests/python/test_openwhisk_transport.py and test_openwhisk_api.py hold us to it.
"""
from __future__ import annotations

__all__ = ["key_for"]


def key_for(secret: str, aid: str, name: str) -> str:
    """The key of the transport `name` of the activation `aid`."""
    import hmac
    return hmac.new(secret.encode(), f"{aid}/{name}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()
