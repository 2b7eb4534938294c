"""The log of ucp, line by line as UCX-Py wrote it, and the exceptions' way into it."""
import logging
import os
import re
import subprocess
import sys

import pytest

import ucp
from ucp.exceptions import UCXError, log_errors
from ucpside import fresh  # noqa: F401

CLIENT = """
import asyncio, sys, ucp
async def main():
    async def echo(ep):
        await ep.send_obj(await ep.recv_obj())
        await ep.recv(bytearray(1))
    listener = ucp.create_listener(echo)
    client = await ucp.create_endpoint("127.0.0.1", listener.port)
    await client.send_obj(bytearray(b"hello, world"))
    await client.recv_obj()
    await client.am_send(b"123")
    await client.close()
    try:
        await asyncio.wait_for(ucp.recv(bytearray(2), 99), 0.05)
    except TimeoutError:
        pass
asyncio.run(main())
"""


def log_of(program, level):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("UCXPY_LOG_LEVEL", None)
    if level:
        env["UCXPY_LOG_LEVEL"] = level
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_the_log_is_as_it_was():
    lines = log_of(CLIENT, "DEBUG")
    head = re.compile(r"\[\d{10,}\.\d{6}\] \[[^\]:]+:\d+\] UCXPY  (DEBUG|INFO) ")
    assert all(head.match(line) for line in lines), lines
    said = [head.sub("", line) for line in lines]
    hexa = "0x[0-9a-f]+"
    made = next(re.fullmatch(rf"create_endpoint\(\) client: ({hexa}), error handling: True, msg-tag-send: ({hexa}), "
                             rf"msg-tag-recv: ({hexa}), "
                             rf"ctrl-tag-send: ({hexa}), ctrl-tag-recv: ({hexa})", line) for line in said
                if line.startswith("create_endpoint()"))
    ep, msg_send, msg_recv, ctrl_send, ctrl_recv = made.groups()
    mine = [line for line in said if ep in line]
    expected = [
        f"[Send #000] ep: {ep}, tag: {msg_send}, nbytes: 8, type: <class 'bytes'>",
        f"[Send #001] ep: {ep}, tag: {msg_send}, nbytes: 12, type: <class 'bytearray'>",
        f"[Recv #000] ep: {ep}, tag: {msg_recv}, nbytes: 8, type: <class 'array.array'>",
        f"[Recv #001] ep: {ep}, tag: {msg_recv}, nbytes: 12, type: <class 'bytearray'>",
        f"[AM Send #002] ep: {ep}, nbytes: 3, type: <class 'bytes'>",
        f"[Send shutdown] ep: {ep}, tag: {ctrl_send}, close_after_n_recv: 3",
        f"Endpoint.abort(): {ep}",
        f"Future cancelling: [Recv shutdown] ep: {ep}, tag: {ctrl_recv}",
    ]
    assert mine[1:] == expected
    server = next(line for line in said if line.startswith("_listener_handler() server"))
    assert f"msg-tag-send: {msg_recv}" in server and f"msg-tag-recv: {msg_send}" in server  # each other's
    assert f"ctrl-tag-send: {ctrl_recv}" in server and f"ctrl-tag-recv: {ctrl_send}" in server
    assert any(re.fullmatch(rf"\[Recv shutdown\] ep: {hexa}, tag: {ctrl_send}, close_after_n_recv: 3", line)
               for line in said), said
    assert any(line.startswith("[Worker Recv] worker: 0x") and "tag: 0x63, nbytes: 2" in line for line in said)
    assert any(line.startswith("create_listener() - Start listening on port") for line in said)


@pytest.mark.parametrize("level", [None, "WARNING", "ERROR"])
def test_without_being_asked_it_says_nothing(level):
    assert log_of(CLIENT, level) == []


def test_info_is_less_than_debug():
    said = log_of(CLIENT, "info")
    assert said and all("UCXPY  INFO" in line for line in said)


def test_a_level_that_is_none():
    said = log_of("import ucp", "LOUD")
    assert len(said) == 1 and "LOUD" in said[0] and "WARNING" in said[0]


def test_it_is_one_logger_with_one_handler():
    one, other = ucp.get_ucxpy_logger(), ucp.get_ucxpy_logger()
    assert one is other is logging.getLogger("ucx") and not one.propagate
    assert sum(type(handler) is logging.StreamHandler for handler in one.handlers) == 1


def test_log_errors(caplog):
    logger = ucp.get_ucxpy_logger()
    logger.addHandler(caplog.handler)
    try:
        with log_errors():
            raise UCXError("swallowed")
        with pytest.raises(UCXError):
            with log_errors(reraise_exception=True):
                raise UCXError("raised")
    finally:
        logger.removeHandler(caplog.handler)
    assert "swallowed" in caplog.text and "raised" in caplog.text


def test_variables_that_are_no_options(caplog, monkeypatch):
    """UCX says once: unused environment variable: UCX_TSL (maybe: UCX_TLS?) (set UCX_WARN_UNUSED_ENV_VARS=n to suppress this warning)"""
    from ucp._libs import ucx_api
    monkeypatch.setenv("UCX_TSLS", "tcp")
    monkeypatch.setenv("UCX_BEES_KNEES", "1")
    monkeypatch.setenv("UCX_IB_GID_INDEX", "1")
    monkeypatch.setenv("UCX_TLS", "tcp")
    logger = logging.getLogger("ucx")
    logger.addHandler(caplog.handler)
    try:
        for quiet in ("n", "y", "y"):
            monkeypatch.setenv("UCX_WARN_UNUSED_ENV_VARS", quiet)
            ucx_api.UCXContext().close()
            assert (caplog.text == "") == (quiet == "n")
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.text.count("UCX_TSLS, which is no option of UCX and is ignored; is UCX_TLS meant?") == 1, caplog.text
    assert caplog.text.count("UCX_BEES_KNEES, which is no option of UCX and is ignored (") == 1 and "GID" not in caplog.text
