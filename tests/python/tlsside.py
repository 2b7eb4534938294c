"""What tests over TLS share: certificates, which `weft key cluster` makes."""
import os
import subprocess

import pytest

import weft

BUILD = os.path.dirname(os.environ.get("TEST_WEFT_COMMAND") or os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "build", "dev", "weft"))


def command():
    return os.path.join(BUILD, "weft")


def certificates(folder, *names):
    """A folder with an authority, ca.crt, and for each name NAME.crt and NAME.key: for 127.0.0.1 and ::1, or for what NAME=HOST says."""
    words = [name if "=" in name else f"{name}=127.0.0.1,::1" for name in names]
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run([command(), "key", "cluster", str(folder), *words], env=env,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    if "OpenSSL" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return str(folder)


def tls(folder, name):
    return weft.TLS(cert=os.path.join(folder, name + ".crt"), key=os.path.join(folder, name + ".key"), ca=os.path.join(folder, "ca.crt"))


def as_variables(folder, name):
    """The environment of a process that has this certificate."""
    of = tls(folder, name)
    return {"WEFT_TLS_CERT": of.cert, "WEFT_TLS_KEY": of.key, "WEFT_TLS_CA": of.ca}
