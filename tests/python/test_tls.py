"""Certificates as tls=: what is taken, what is encrypted by it, and who is refused."""
import asyncio
import pathlib
import ssl
import subprocess
import threading

import disagg
import pytest

import elementside
import guideside
import weft
import weft.blocking
from conftest import BOUND
from program import PYTHON, environment
from tlsside import as_variables, certificates, command, tls
from weft._tls import files, secure


@pytest.fixture
def folder(tmp_path):
    return certificates(tmp_path / "certs", "server", "client")


def encrypted(ep, peer):
    info = ep.info
    assert info["cipher"].startswith("TLS_") and info["identity"] == peer and info["authenticated"], info


def test_what_is_taken():
    assert files(None) is None and files(True) is None
    both = weft.TLS("a.pem", ca=pathlib.Path("ca.pem"))
    assert files(both) == (b"a.pem", b"a.pem", b"ca.pem") and both.key == "a.pem" and "a.pem" in repr(both)
    assert files(weft.TLS(cert=b"c", key="k")) == (b"c", b"k", None) and files(weft.TLS()) == (None, None, None)
    assert files({"cert": "c", "key": "k", "ca": "a"}) == files({"certfile": "c", "keyfile": "k", "cafile": "a"}) == (b"c", b"k", b"a")
    assert weft.TLS("c", "k") == weft.TLS("c", b"k") != weft.TLS("c") and len({weft.TLS("c"), weft.TLS("c", "c")}) == 1
    for wrong in (False, 7, "a.pem", ("a", "b", "c"), {"cret": "c"}, {"key": "k"}, {"cert": 7}, object()):
        with pytest.raises(TypeError):
            files(wrong)
    with pytest.raises(TypeError, match="SSLContext does not say which files"):
        files(ssl.create_default_context())
    with pytest.raises(TypeError, match="give cert, too"):
        weft.TLS(key="k")


def test_addresses_are_made_those_of_tls():
    for given, made in (("tcp://h:1", "tls://h:1"), ("TCP://h:1,unix://@a,tcp://[::1]:2", "tls://h:1,unix://@a,tls://[::1]:2"),
                        ("tls://h:1", "tls://h:1"), ("unix:///tcp://", "unix:///tcp://"), ("weft://calc", "weft://calc"),
                        ("unix://@a, tcp://h:2", "unix://@a, tls://h:2"), ("", "")):
        assert secure(given) == made


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
@pytest.mark.parametrize("transports", ["tcp", "all"])
def test_connections_and_listeners_have_certificates(run, folder, scheme, transports):
    async def body():
        async with weft.Runtime(transports=transports) as left, weft.Runtime(transports=transports) as right:
            listener = right.listen(f"{scheme}://127.0.0.1:0", tls=tls(folder, "server"))
            assert listener.uri.startswith("tls://")
            accepting = listener.accept()
            a = await left.connect(listener.uri.replace("tls", scheme), tls=tls(folder, "client"))
            b = await accepting
            encrypted(a, "server")
            encrypted(b, "client")
            for n in (0, 5, 100_000, 3_000_000):
                message = bytes(range(256)) * (n // 256 + 1)
                sending = a.send(message, tag=1)
                assert await b.recv(tag=1) == message
                await sending
            accepting = listener.accept()
            with pytest.raises(weft.WeftError):  # in the clear
                await left.connect(listener.uri.replace("tls", "tcp"), retry=False, timeout=10)
            with pytest.raises(weft.InvalidError, match="WEFT_TLS_CERT"):
                await left.connect(listener.uri, retry=False)
            accepting.cancel()
    run(body())


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
def test_a_runtime_has_certificates(run, folder, scheme):
    async def body():
        async with weft.Runtime(tls=tls(folder, "server")) as right, weft.Runtime(tls=tls(folder, "client")) as left:
            taken = asyncio.Queue()
            async with right.listen(f"{scheme}://127.0.0.1:0", taken.put) as listener:
                assert listener.uri.startswith("tls://")
                a = await left.connect(listener.uri.replace("tls", scheme))
                encrypted(a, "server")
                encrypted(await taken.get(), "client")
    run(body())


def test_what_is_configured_is_enough(run, folder, monkeypatch):
    for name, value in as_variables(folder, "server").items():
        monkeypatch.setenv(name, value)

    async def body():
        async with weft.Runtime(tls=True) as both:
            listener = both.listen("tcp://127.0.0.1:0")
            assert listener.uri.startswith("tls://")
            accepting = listener.accept()
            encrypted(await both.connect(listener.uri), "server")
            encrypted(await accepting, "server")
    run(body())


def test_a_key_is_enough(run):
    async def body():
        key = b"weft-key-1 " + 32 * b"7f"
        async with weft.Runtime(key=key, tls=True) as right, weft.Runtime(key=key) as left:
            listener = right.listen("tcp://127.0.0.1:0")
            accepting = listener.accept()
            a = await left.connect(listener.uri, tls=True)
            assert a.info["cipher"].startswith("TLS_") and a.info["identity"] == ""
            await accepting
    run(body())


def test_strangers_are_refused(run, folder, tmp_path):
    other = certificates(tmp_path / "other", "client")

    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            taken = asyncio.Queue()
            async with right.listen("tls://127.0.0.1:0", taken.put, tls=tls(folder, "server")) as listener:
                for wrong in (tls(other, "client"), weft.TLS(f"{other}/client.crt", f"{other}/client.key", f"{folder}/ca.crt")):
                    with pytest.raises((weft.AuthError, weft.PeerError)):
                        await left.connect(listener.uri, tls=wrong, retry=False)
                ep = await left.connect(listener.uri, tls=tls(folder, "client"))
                encrypted(ep, "server")
                encrypted(await taken.get(), "client")
            assert taken.empty()
    run(body())


def test_files_that_cannot_be_used_are_named(run, folder):
    async def body():
        async with weft.Runtime() as own:
            for wrong, says in ((weft.TLS("/none.crt", "/none.key", f"{folder}/ca.crt"), "/none.crt"),
                                (weft.TLS(f"{folder}/server.crt", f"{folder}/client.key", f"{folder}/ca.crt"), "client.key"),
                                (weft.TLS(f"{folder}/server.crt", f"{folder}/server.key"), "WEFT_TLS_CA"), (True, "WEFT_TLS_CERT")):
                with pytest.raises(weft.InvalidError, match=says):
                    own.listen("tls://127.0.0.1:0", tls=wrong)
                with pytest.raises(weft.InvalidError, match=says):
                    await own.connect("tls://127.0.0.1:1", tls=wrong)
            with pytest.raises(ValueError, match="null byte"):
                own.listen("tls://127.0.0.1:0", tls=weft.TLS("a\0b"))
            for wrong in ("a.pem", False, (None, None, None)):
                with pytest.raises(TypeError):
                    own.listen("tls://127.0.0.1:0", tls=wrong)
                with pytest.raises(TypeError):
                    weft.Runtime(tls=wrong)
            with pytest.raises(weft.InvalidError, match="shared"):
                await own.connect("tls://127.0.0.1:1", tls=tls(folder, "client"), shared=True)
            for wrong in (7, (None, None), (b"a", "b", None), (b"a\0", None, None)):
                with pytest.raises((TypeError, ValueError)):
                    own._listen("tls://127.0.0.1:0", tls=wrong)
                with pytest.raises((TypeError, ValueError)):
                    own._connect("tls://127.0.0.1:1", tls=wrong)
    run(body())


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_without_an_event_loop(folder, progress):
    with weft.blocking.Runtime(tls=tls(folder, "server")) as right, weft.blocking.Runtime(progress=progress) as left:
        with right.listen("tcp://127.0.0.1:0") as listener:
            taken = []
            thread = threading.Thread(target=lambda: taken.append(listener.accept(timeout=60)))
            thread.start()
            with left.connect(listener.uri, tls=tls(folder, "client")) as ep:
                encrypted(ep, "server")
            thread.join()
            with taken[0] as ep:
                encrypted(ep, "client")
            with pytest.raises(weft.InvalidError, match="WEFT_TLS_CERT"):
                left.connect(listener.uri, retry=False)
        with left.listen("tcp://127.0.0.1:0", tls=tls(folder, "server")) as listener:
            assert listener.uri.startswith("tls://")


def test_the_program_of_the_guide(tmp_path):
    program, = guideside.programs("tls.md")
    certificates(tmp_path / "certs", "mill", "desk")
    done = subprocess.run([*PYTHON, "-c", program], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=BOUND, check=False)
    assert (done.returncode, done.stdout) == (0, "42\nmill True\n")


def calc():
    service = weft.Service("calc")

    @service.function
    def add(a: int, b: int) -> int:
        return a + b
    return service


def test_a_service_over_tls(run, folder):
    async def body():
        async with calc().serve("tcp://127.0.0.1:0", tls=tls(folder, "server")) as server:
            assert server.uri.startswith("tls://")
            async with weft.Runtime(tls=tls(folder, "client")) as left:
                async with left.client(server.uri.replace("tls", "tcp")) as client:
                    assert await client.add(25, 17) == 42
            async with weft.Runtime() as left:
                with pytest.raises(weft.WeftError):
                    async with left.client(server.uri, timeout=5) as client:
                        await client.add(25, 17)
        with pytest.raises(ValueError, match="tls="):
            calc().serve(runtime=weft.runtime(), tls=True)
        serving = calc().serve("tls://127.0.0.1:0", tls=weft.TLS("/none", "/none", "/none"))
        with pytest.raises(weft.InvalidError, match="/none"):
            async with serving:
                pass
        assert serving._own is None
    run(body())


@pytest.mark.parametrize("shards", [None, 2])
def test_a_service_over_tls_without_an_event_loop(folder, shards):
    with calc().serve("tcp://127.0.0.1:0", tls=tls(folder, "server"), shards=shards) as server:
        assert server.uri.startswith("tls://")
        with weft.blocking.Runtime(tls=tls(folder, "client")) as left, left.client(server.uri) as client:
            assert client.add(25, 17) == 42
        with weft.blocking.Runtime() as left, pytest.raises(weft.WeftError):
            left.client(server.uri, timeout=5).add(25, 17)
    with pytest.raises(weft.InvalidError, match="/none"):
        with calc().serve("tls://127.0.0.1:0", tls={"cert": "/none", "ca": "/none"}):
            pass


def test_a_runtime_of_the_extension_alone_serves():
    own = weft._core.Runtime(progress="thread")  # as that of a program in elements
    server = calc().start(own)
    uri = server.listen("tcp://127.0.0.1:0")
    assert uri.startswith("tcp://") and weft.blocking.client(uri).add(25, 17) == 42
    server.close()
    own._close()


def test_a_memory_element_is_reached_by_its_durl(folder, tmp_path):
    """The durl says where it is and that it is TLS; each user has certificates of its own. Without, or with another's, nobody gets in."""
    mill = [word for option, name in (("cert", "server.crt"), ("key", "server.key"), ("ca", "ca.crt"))
            for word in ("--tls-" + option, f"{folder}/{name}")]
    with subprocess.Popen([command(), "element", "memory", "--size", "64k", "--listen", "tls://127.0.0.1:0", *mill],
                          env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            durl = process.stdout.readline().strip()
            assert "url,tls://127.0.0.1:" in durl
            with elementside.runtime("tcp", tls=files(tls(folder, "client"))) as own:
                with disagg.LibdAction(None, "user", transports=[durl], runtime=own) as action:
                    trans = action.get_transport("memory", "rdma")
                    trans.reg(4096)
                    assert trans.wait_ready(BOUND) == 65536
                    trans.buf[:5] = b"words"
                    trans.write(5, 100, 0)
                    trans.read(5, 100, 50)
                    assert bytes(trans.buf[50:55]) == b"words"
            stranger = certificates(tmp_path / "other", "client")
            for who in (None, tls(stranger, "client")):
                with elementside.runtime("tcp", tls=files(who)) as own:
                    with disagg.LibdAction(None, "user", transports=[durl], runtime=own) as action:
                        trans = action.get_transport("memory", "rdma")
                        trans.reg(4096)
                        with pytest.raises((weft.WeftError, OSError, TimeoutError)):
                            trans.wait_ready(3)
        finally:
            process.kill()
