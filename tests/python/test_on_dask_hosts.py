"""`weft run --on dask` with workers on hosts of their own: other addresses, no shared memory between them, no view of each other's processes."""
# ctest: long computes no-asan no-tsan: the C of the launcher is tested by tools_run_ssh; here it is about Dask
import contextlib
import os
import signal
import subprocess
import tempfile

import pytest

pytest.importorskip("distributed")
import daskside  # noqa: E402
import hosts  # noqa: E402  tests/lib
from daskside import finish, run, start, until, write  # noqa: E402

SHARE = """
#@ parallelism: 8
#@ corunning: {{words: {{trans: words, type: rdma}}}}
import os, socket, time
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(8 << 20)
    me = int(os.environ["__OW_PAR"])
    trans.buf[:8] = bytes([me + 1] * 8)
    trans.write(8, me * 8)
    trans.read(8 << 20, 0)
    print("up", flush=True)
    time.sleep({seconds})
    return socket.gethostname()
"""
SUM = """
#@ parents: [share]
#@ corunning: {words: {trans: words, type: rdma}}
def main(params, action):
    trans = action.get_transport("words", "rdma")
    trans.reg(64)
    trans.read(64, 0)
    return list(bytes(trans.buf))
"""


def program(seconds):
    return {"share.o.py": SHARE.format(seconds=seconds), "sum.o.py": SUM, "words.o.yaml": "type: memory\nlimits: {mem: 8M}\n"}


@contextlib.contextmanager
def spread():
    """A cluster with its scheduler on one host and its workers on two others."""
    try:
        network = hosts.Hosts(3)
        places = network.__enter__()
    except hosts.Unavailable as why:
        pytest.skip(str(why))
    try:
        # the temporary folder is another on every host; the program and the logs are where all of them see the same
        with tempfile.TemporaryDirectory(prefix="weft-on-") as folder:
            made = daskside.Cluster(folder, workers=2, threads=4, places=places)
            try:
                yield made, places
            finally:
                made.close()
    finally:
        network.close()


def test_memory_is_reached_from_other_hosts():
    with spread() as (made, places):
        before = [set(place.files()) for place in places]
        said = run(made, write(made.folder, program(0)))
        assert said["results"]["sum"] == [[n for n in range(1, 9) for _ in range(8)]], said
        assert set(said["results"]["share"]) == {"host1", "host2"}, said["results"]
        until(lambda: [set(place.files()) for place in places] == before, "cleaning up")
        for place in places:
            assert not place.processes("--agent") and not place.processes("disagg.element"), place.name


def test_strangers_do_not_get_in():
    """The memory of a run listens on the address of its host, and only who has the key of the run is let in."""
    with spread() as (made, places):
        process = start(made, write(made.folder, program(600)))
        assert process.stdout.readline() == "up\n"
        holder = next(place for place in places[1:] if place.processes("\0memory\0"))
        said = subprocess.run(holder.command("ss", "-Hltnp"), stdout=subprocess.PIPE, text=True, check=True).stdout
        ours = [line.split() for line in said.splitlines() if f"{holder.address}:" in line and "python" not in line]
        assert ours, said
        port = ours[0][3].rpartition(":")[2]
        done = places[0].run(daskside.WEFT, "perf", "--connect", f"tcp://{holder.address}:{port}", env=daskside.env_of(made.folder))
        assert done.returncode and "key" in done.stderr, done
        for pid in places[0].processes("--on"):
            os.kill(pid, signal.SIGINT)
        code, _, err = finish(process)
        assert code and "SIGINT" in err, err


def test_a_host_that_is_cut_off_is_lost():
    with spread() as (made, places):
        process = start(made, write(made.folder, program(600)))
        assert process.stdout.readline() == "up\n"
        holder = next(place for place in places[1:] if place.processes("\0memory\0"))
        before = set(holder.files())
        holder.cut()
        code, _, err = finish(process)
        assert code == 1 and any(word in err for word in ("was lost with", "PeerError", "UnreachableError")), err
        until(lambda: not holder.processes("--agent"), "the end of the agent that is cut off")
        assert not any(name.startswith("weft-run-") for name in holder.files()), (before, holder.files())
