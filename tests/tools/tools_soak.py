"""The soak finds what it looks for: wrong bytes, operations without end, failures that nothing explains, servers that grow, what is left behind.

ctest: long timeout=600
"""
import json
import os
import socket
import subprocess
import sys
import time

from lib import weft

sys.path.insert(0, os.path.join(weft.ROOT, "tests"))
from soak import loads, report, servers  # noqa: E402
from soak.chaos import AFTER, Chaos, Event  # noqa: E402
from soak.world import World  # noqa: E402

BUILD = os.path.dirname(os.path.abspath(weft.command()))


class Judged:
    """A judge of operations from 10 s to 12 s with these events behind it."""

    def __init__(self, *events):
        chaos = Chaos(None, None, set(), {"calc-2"})
        chaos.events = [Event(*e, "weft serve") for e in events]
        self.counts, self.findings = report.Counts(), report.Findings()
        self.judge = loads.Judge(chaos, self.counts, self.findings)

    def of(self, outcome, error="", end=12, servers=("calc-1",), **more):
        self.judge.verdict("call", "tcp", "calls-7", servers, 10, end, 20, outcome, error, **more)
        row = self.counts.rows[("call", "tcp")]
        return [k for k in ("ok", "hit", "felt", "bad") if row[k]], [f["kind"] for f in self.findings.all]


def what_befell_explains_a_failure_and_nothing_else_does():
    assert Judged().of("ok") == (["ok"], [])
    assert Judged().of("failed", "PeerError: the peer is lost") == (["bad"], ["lost though alive"])
    assert Judged().of("failed", "exit status 1: no") == (["bad"], ["failed for no reason"])
    assert Judged(("calls-7", 1, "kill", 11, 11)).of("failed", "exit status -9") == (["hit"], [])
    assert Judged(("calc-1", 1, "kill", 11, 11)).of("failed", "lost") == (["felt"], [])
    assert Judged(("calc-1", 1, "stop", 5, 10 - AFTER + 0.1)).of("failed", "lost") == (["felt"], [])
    assert Judged(("calc-1", 1, "stop", 5, 10 - AFTER - 0.1)).of("failed", "lost") == (["bad"], ["lost though alive"])
    assert Judged(("calc-3", 1, "kill", 11, 11)).of("failed", "lost") == (["bad"], ["lost though alive"]), "of another server"
    assert Judged(("calc-1", 1, "kill", 13, 13)).of("failed", "lost") == (["bad"], ["lost though alive"]), "afterwards"
    assert Judged(("calc-1", 1, "kill", 5, 5)).of("failed", "lost", since=4) == (["felt"], [])


def one_of_two_servers_does_not_explain_what_one_can_do():
    both = {"servers": ("mem-1", "mem-2"), "one_will_do": True}
    assert Judged(("mem-1", 1, "kill", 11, 11)).of("failed", "exit status 4", **both)[1] != []
    assert Judged(("mem-1", 1, "kill", 11, 11), ("mem-2", 2, "stop", 11, 12)).of("failed", "exit status 4", **both) == (["felt"], [])


def wrong_bytes_and_late_ends_are_never_explained():
    assert Judged(("calc-1", 1, "kill", 11, 11)).of("wrong", "got a") == (["bad"], ["wrong bytes"])
    assert Judged(("calc-1", 1, "kill", 11, 11)).of("ok", end=31) == (["bad"], ["too late"])
    assert Judged(("calc-1", 1, "stop", 11, 17)).of("ok", end=35) == (["ok"], []), "it was stopped for 6 of them"


def a_server_that_grows_is_found():
    def growth(rss, fds):
        server = servers.Server(None, "calc-1", [], [], True)
        server.samples = [(t, rss(t), fds(t)) for t in range(100)]
        return {what: bad for what, (_, _, bad) in server.growth(0, 100).items()}
    assert growth(lambda t: 5000 + 900 * (t < 20) + t % 7, lambda t: 20 + t % 5) == {"rss": False, "fds": False}
    assert growth(lambda t: 5000 + 100 * t, lambda t: 20) == {"rss": True, "fds": False}
    assert growth(lambda t: 5000, lambda t: 20 + t) == {"rss": False, "fds": True}


def what_is_left_is_found():
    world = World(BUILD, 1)
    left = subprocess.Popen(["sleep", "100"], env=world.environment("run-1"))
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(f"\0weft-soak-{world.run}-x")
        for path in ("registry/calc@dead", "tmp/weft-run-abc", "mem-1.sock"):
            with open(world.path(*path.split("/")), "w", encoding="ascii"):
                pass
        until = time.monotonic() + 20
        while not world.processes() and time.monotonic() < until:
            time.sleep(0.01)  # until it has become what it is to be
        assert [p.pid for p in world.gone("run-1", 0.2)] == [left.pid] and not world.gone("run-2", 0)
        assert len(world.left_processes()) == 1 and "sleep 100" in world.left_processes()[0]
        assert any("-x" in s for s in world.left_sockets())
        assert [line.split(":")[0] for line in world.left_files()] == ["registry", "TMPDIR", "socket file"], world.left_files()
    finally:
        server.close()
        world.end(False)
        assert left.wait(20) == -9 and not os.path.exists(world.folder)


def soak(*args, build=BUILD):
    return subprocess.run([sys.executable, os.path.join(weft.ROOT, "scripts", "soak"), "--build", build, *args], env=weft.environment(),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=400, check=False)


def needs_the_package():
    if not os.path.isdir(os.path.join(BUILD, "python", "weft")) or sys.version_info < (3, 11) or os.path.basename(BUILD) == "asan":
        raise weft.Skip("there is no Python package here that this interpreter could load")


def a_short_one_passes_and_says_what_it_did():
    needs_the_package()
    done = soak("--minutes", "0.15", "--seed", "5", "--json")
    said = json.loads(done.stdout)
    assert said["seed"] == 5 and said["counted"] > 10 and said["operations"], said
    assert (done.returncode, said["failed"]) == (0, False), said["findings"]


SABOTEUR = """#!/bin/sh
# the command, but for a letter of what functions give
case "$1 $2" in
"call "*upper*) "{weft}" "$@" | tr A B ;;
*) exec "{weft}" "$@" ;;
esac
"""


def a_wrong_byte_fails_it_and_the_seed_is_named():
    needs_the_package()
    with weft.scratch() as folder:
        os.symlink(os.path.join(BUILD, "python"), os.path.join(folder, "python"))
        with open(os.path.join(folder, "weft"), "w", encoding="ascii") as f:
            f.write(SABOTEUR.format(weft=os.path.join(BUILD, "weft")))
        os.chmod(os.path.join(folder, "weft"), 0o755)
        done = soak("--minutes", "0.15", "--seed", "6", build=folder)
        assert done.returncode == 1 and "FINDING" in done.stdout and "wrong bytes" in done.stdout and "failed: seed 6" in done.stdout, done.stdout
        logs = done.stderr.rsplit("the logs are in ", 1)[1].strip()
        assert os.path.isdir(os.path.join(logs, "log"))
        subprocess.run(["rm", "-rf", logs], check=True)


weft.main(what_befell_explains_a_failure_and_nothing_else_does, one_of_two_servers_does_not_explain_what_one_can_do,
          wrong_bytes_and_late_ends_are_never_explained, a_server_that_grows_is_found, what_is_left_is_found,
          a_short_one_passes_and_says_what_it_did, a_wrong_byte_fails_it_and_the_seed_is_named)
