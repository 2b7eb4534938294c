"""weft element memory serves memory that its durl leads to, tells nobody else of it, and ends when it is told to."""
import json
import os
import signal
import subprocess

from lib import weft


def refused(*args, says):
    done = weft.run("element", *args)
    assert done.returncode == 2, f"exit status {done.returncode}\n{done.stderr}"
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in says:
        assert word in done.stderr, f"\"{word}\" is not in: {done.stderr}"


def what_is_not_understood_is_named():
    refused(says=["weft element --help"])
    refused("memroy", says=["memroy", "memory"])
    refused("memory", says=["--size"])
    refused("memory", "--size", "0", says=["--size 0"])
    refused("memory", "--size", "much", says=["much", "64M"])
    refused("memory", "--size", "64M", "--report-fd", "77", says=["77", "launcher"])
    refused("memory", "--size", "64M", "--nmae", "x", says=["--nmae", "--name"])
    refused("memory", "--size", "64M", "--listen", "tcp://0.0.0.0:0", says=["0.0.0.0", "--key-file"])
    assert "--mirrored" in weft.must("element", "memory", "--help")
    assert "memory" in weft.must("help", "element") and "--size" in weft.must("element", "help", "memory")


def a_name_that_no_durl_can_have_is_refused():
    done = weft.run("element", "memory", "--size", "1M", "--name", "a;b")
    assert done.returncode == 2 and "cannot be served" in done.stderr, done.stderr


def it_says_its_durl_and_ends_when_told():
    for number in (signal.SIGTERM, signal.SIGINT):
        p = weft.start("element", "memory", "--size", "1M", "--name", "words")
        try:
            parts = p.stdout.readline().strip().split(";")
            assert parts[:2] == ["words", "rdma_tcp"] and "size,1048576" in parts, parts[:2]
            assert any(part.startswith("url,tcp://127.0.0.1:") for part in parts), "no url"
            assert any(part.startswith("token,") and len(part) > 60 for part in parts), "no token"
            p.send_signal(number)
            out, err = p.communicate(timeout=20)
            assert (p.returncode, out, err) == (0, "", ""), (p.returncode, out, err)
        finally:
            weft.end(p)


def a_launcher_alone_is_told():
    ours, theirs = os.pipe()
    p = subprocess.Popen([weft.command(), "element", "memory", "--size", "1M", "--report-fd", str(theirs)], env=weft.environment(),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[theirs], text=True)
    os.close(theirs)
    try:
        with os.fdopen(ours, encoding="utf-8") as report:
            durl = json.loads(report.readline())["durl"]
            with open(f"/proc/{p.pid}/cmdline", "rb") as f:
                assert b"token" not in f.read()
            assert "token," in durl
            p.terminate()
            stats = json.loads(report.readline())["stats"]
            assert stats["bytes"] == 1 << 20 and stats["bytes_written"] == 0, stats
            assert report.read() == ""
        out, err = p.communicate(timeout=20)
        assert (p.returncode, out, err) == (0, "", ""), (p.returncode, out, err)
    finally:
        weft.end(p)


def nobody_listens_to_it_and_it_ends():
    ours, theirs = os.pipe()
    os.close(ours)
    p = subprocess.Popen([weft.command(), "element", "memory", "--size", "1M", "--report-fd", str(theirs)], env=weft.environment(),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[theirs], text=True)
    os.close(theirs)
    try:
        assert p.wait(timeout=20) == 1, p.returncode
        assert "durl could not be written" in p.stderr.read()
    finally:
        weft.end(p)


weft.main(what_is_not_understood_is_named, a_name_that_no_durl_can_have_is_refused, it_says_its_durl_and_ends_when_told,
          a_launcher_alone_is_told, nobody_listens_to_it_and_it_ends)
