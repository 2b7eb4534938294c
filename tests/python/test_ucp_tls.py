"""ucp between two machines of the test's own: with certificates in the environment it is encrypted, and who has none is refused."""
# ctest: waits
import json
import subprocess

import pytest

import hosts  # tests/lib
from conftest import BOUND
from program import PYTHON, environment
from tlsside import as_variables, certificates

SERVER = """
import asyncio, sys, ucp
async def main():
    over = asyncio.Event()
    async def serve(ep):
        data = bytearray(3_000_000)
        await ep.recv(data)
        await ep.send(data)
        await ep.close()
        over.set()
    listener = ucp.create_listener(serve, 4711)
    print("up", flush=True)
    await over.wait()
asyncio.run(main())
"""
CLIENT = """
import asyncio, json, sys, ucp
async def main():
    ep = await ucp.create_endpoint(sys.argv[1], 4711)
    data = bytearray(3_000_000)
    await ep.send(bytes(range(250)) * 12_000)
    await ep.recv(data)
    info = ucp.core._get_ctx().worker._runtime.endpoints()[0].info
    print(json.dumps([data == bytes(range(250)) * 12_000, info["cipher"], info["identity"]]))
    await ep.close()
asyncio.run(main())
"""


@pytest.fixture
def machines():
    try:
        network = hosts.Hosts(2)
        places = network.__enter__()
    except hosts.Unavailable as why:
        pytest.skip(str(why))
    try:
        yield places
    finally:
        network.close()


def test_certificates_in_the_environment_are_enough(tmp_path, machines):
    a, b = machines
    folder = certificates(tmp_path / "certs", f"server={a.address}", "client")
    server = a.start(*PYTHON, "-c", SERVER, env=environment(**as_variables(folder, "server")), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "up\n"
        stranger = b.run(*PYTHON, "-c", CLIENT, a.address, env=environment(), timeout=BOUND)
        assert stranger.returncode and "TLS" in stranger.stderr, stranger.stderr
        done = b.run(*PYTHON, "-c", CLIENT, a.address, env=environment(**as_variables(folder, "client")), timeout=BOUND)
        assert done.returncode == 0, done.stderr
        same, cipher, identity = json.loads(done.stdout)
        assert same and cipher.startswith("TLS_") and identity == "server", done.stdout
    finally:
        for pid in a.processes("create_listener"):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        server.kill()
        server.communicate(timeout=BOUND)
