"""The echo server and client of UCX-Py's documentation, as they are printed there, in two processes."""
import pytest

SERVER = """
import asyncio, sys
import ucp

port = int(sys.argv[1]) or None

async def main():
    async def echo_server(ep):
        obj = await ep.recv_obj()
        await ep.send_obj(obj)

    lf = ucp.create_listener(echo_server, port)
    print(lf.port, flush=True)

    while not lf.closed():
        await asyncio.sleep(0.1)

asyncio.run(asyncio.wait_for(main(), 60))
"""

CLIENT = """
import asyncio, sys
import ucp

addr, port = "127.0.0.1", int(sys.argv[1])

async def main():
    client = await ucp.create_endpoint(addr, port)

    msg = bytearray(b"hello, world")
    await client.send_obj(msg)
    echo_msg = await client.recv_obj()
    await client.close()
    print(echo_msg.decode())

asyncio.run(asyncio.wait_for(main(), 60))
"""


@pytest.mark.parametrize("environment", [{}, {"UCXPY_NON_BLOCKING_MODE": "1"}, {"UCX_TLS": "tcp"}, {"UCX_TLS": "shm"}], ids=str)
def test_the_echo_server_and_client_run_as_printed(child, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = child(SERVER, "0")
    port = server.stdout.readline().strip()
    for _ in range(3):
        client = child(CLIENT, port, stderr=-1)
        out, err = client.communicate(timeout=60)
        assert (client.returncode, out, err) == (0, "hello, world\n", "")
    assert server.poll() is None
