"""What docs/guide/tls.md shows, on two machines of the test's own: the commands as they stand there lead to an encrypted call."""
import contextlib
import os
import re
import signal
import subprocess

from lib import weft

import hosts  # tests/lib

PAGE = os.path.join(weft.ROOT, "docs", "guide", "tls.md")
SCP = """#!/bin/sh
for last; do :; done
test "$last" = desk: && while test $# -gt 1; do cp "$1" "$DESK" && shift; done
"""


def commands():
    """The lines of each piece of shell on the page."""
    with open(PAGE, encoding="utf-8") as f:
        return [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```", f.read(), re.M | re.S)]


@contextlib.contextmanager
def two_machines():
    """The server, the client, what is on each, and the environment."""
    with weft.scratch() as folder:
        places = [os.path.join(folder, name) for name in ("mill", "desk", "bin")]
        for place in places:
            os.mkdir(place)
        with open(os.path.join(places[2], "scp"), "w", encoding="ascii") as f:
            f.write(SCP)
        os.chmod(f.name, 0o755)
        done = weft.run("key", "cluster", os.path.join(folder, "trial"), "trial", timeout=20)
        if "OpenSSL" in done.stderr:
            raise weft.Skip(done.stderr.strip())
        path = os.pathsep.join([places[2], os.path.dirname(os.path.abspath(weft.command())), os.environ["PATH"]])
        env = weft.environment(PATH=path, DESK=places[1], WEFT_REGISTRY="dir://" + os.path.join(folder, "registry"))
        os.mkdir(os.path.join(folder, "registry"), 0o700)
        try:
            made = hosts.Hosts(2)
            a, b = made.__enter__()
        except hosts.Unavailable as why:
            raise weft.Skip(str(why)) from None
        with contextlib.closing(made):
            yield a, b, places, env


def on(host, place, env, lines):
    """Run lines of a shell there; what they print."""
    done = host.run("bash", "-eu", "-c", "\n".join([f"cd '{place}'", *lines]), env=env)
    assert done.returncode == 0, f"{lines}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def refused(host, place, env, lines, says):
    done = host.run("bash", "-eu", "-c", "\n".join([f"cd '{place}'", *lines]), env=env)
    assert done.returncode and not done.stdout and says in done.stderr, f"{lines}: {done.returncode}\n{done.stdout}{done.stderr}"


def session(server, client, also):
    """The lines of the server, of which the last goes on, and those of the client, which print 42; then more while it goes on."""
    with two_machines() as (a, b, (mill, desk, _), env):
        server, client = ([line.replace("192.0.2.7", a.address) for line in lines] for lines in (server, client))
        on(a, mill, env, server[:-1])
        serving = a.start("bash", "-c", f"cd '{mill}' && exec {server[-1]}", env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            line = serving.stdout.readline()
            assert "is reached at" in line, line
            assert on(b, desk, env, client) == "42\n"
            also(b, desk, env, client)
        finally:
            for pid in a.processes("serve"):
                os.kill(pid, signal.SIGTERM)
            serving.communicate(timeout=60)


def five_commands_lead_to_an_encrypted_service():
    def also(b, desk, env, client):
        said = on(b, desk, env, [*client[:-1], client[-1] + " --json"])
        line, = weft.json_lines(said)
        assert line["cipher"].startswith("TLS_") and line["identity"] == "mill", line
        refused(b, desk, env, client[1:], "WEFT_TLS_CERT")  # without the certificate
        on(b, desk, env, ["mkdir other", "cd other", "weft key cluster . desk"])
        refused(b, os.path.join(desk, "other"), env, client, "certificate")
    blocks = commands()
    assert len(blocks[0]) + len(blocks[1]) == 5, blocks
    session(blocks[0], blocks[1], also)


def with_a_key_it_is_the_same():
    def also(b, desk, env, client):
        line, = weft.json_lines(on(b, desk, env, [*client[:-1], client[-1] + " --json"]))
        assert line["cipher"].startswith("TLS_") and line["identity"] is None, line
        refused(b, desk, env, [client[-1].partition(" --key-file")[0]], "WEFT_KEY_FILE")
    blocks = commands()
    session(blocks[2], blocks[3], also)


def certificates_are_asked_for_at_every_address():
    def also(b, desk, env, client):
        refused(b, desk, env, client[1:], "TLS")  # in the clear, and without a certificate
    server, client = commands()[:2]
    server, client = ([line.replace("tls://", "tcp://") for line in lines] for lines in (server, client))
    session(server, client, also)


weft.main(five_commands_lead_to_an_encrypted_service, with_a_key_it_is_the_same, certificates_are_asked_for_at_every_address)
