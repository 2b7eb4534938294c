"""Dask over TLS: with Security objects, with what Dask or Weft is configured with, and never in the clear where encryption is required."""
# ctest: waits
import asyncio
import os
import pickle

import pytest

pytest.importorskip("distributed")
import dask  # noqa: E402
import distributed  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402
from distributed.comm import connect, listen  # noqa: E402

import weft  # noqa: E402
import weft.dask  # noqa: E402
from tlsside import as_variables, certificates  # noqa: E402

BOUND = 120
ROLES = ("client", "scheduler", "worker")


@pytest.fixture
def folder(tmp_path):
    return certificates(tmp_path / "certs", *ROLES)


@pytest.fixture(autouse=True)
def patient():
    with dask.config.set({"distributed.comm.timeouts.connect": "60s", "distributed.worker.memory.terminate": False}):
        yield


def of(folder, kind=weft.dask.Security, text=False, **more):
    """A Security with a certificate for each role."""
    names = {"tls_ca_file": "ca.crt", **{f"tls_{role}_cert": role + ".crt" for role in ROLES}, **{f"tls_{role}_key": role + ".key" for role in ROLES}}
    files = {option: os.path.join(folder, name) for option, name in names.items()}
    if text:
        files = {option: open(path, encoding="ascii").read() for option, path in files.items()}
    return kind(**{"require_encryption": True, **files, **more})


async def meet(listening, connecting):
    """The two ends of a comm, and that a message goes each way."""
    others = asyncio.Queue()
    async with listen("weft://127.0.0.1:0", others.put, **listening) as listener:
        assert listener.contact_address.startswith("weft://127.0.0.1:")
        comm = await connect(listener.contact_address, **connecting)
        other = await others.get()
        for a, b in ((comm, other), (other, comm)):
            sending = asyncio.ensure_future(a.write({"x": "y" * 1_000_000}))
            assert await b.read() == {"x": "y" * 1_000_000}
            await sending
        comm.abort()
        other.abort()
        return comm.extra_info, other.extra_info


def encrypted(info, peer):
    assert info["cipher"].startswith("TLS_") and info["identity"] == peer and info["authenticated"], info


@pytest.mark.parametrize("text", [False, True])
def test_a_comm_has_the_certificates_of_its_role(run, folder, text):
    async def body():
        security = of(folder, text=text)
        ours, theirs = await meet(security.get_listen_args("scheduler"), security.get_connection_args("worker"))
        encrypted(ours, "scheduler")
        encrypted(theirs, "worker")
    run(body())


def test_a_security_goes_to_other_processes(folder):
    there = pickle.loads(pickle.dumps(of(folder)))
    assert isinstance(there, weft.dask.Security) and there.get_connection_args("client")["weft_tls"].cert == os.path.join(folder, "client.crt")
    assert "client.crt" in repr(there)


def test_without_certificates_encryption_is_refused_and_not_pretended(run, folder):
    async def body():
        ours = of(folder)
        plain = (distributed.Security(require_encryption=True), of(folder, distributed.Security), weft.dask.Security(require_encryption=True))
        for security in plain:
            with pytest.raises(RuntimeError, match="weft.dask.Security.*WEFT_TLS_CERT"):
                listen("weft://127.0.0.1:0", print, **security.get_listen_args("worker"))
            async with listen("weft://127.0.0.1:0", print, **ours.get_listen_args("scheduler")) as listener:
                with pytest.raises(RuntimeError, match="weft.dask.Security.*WEFT_TLS_CERT"):
                    await connect(listener.contact_address, **security.get_connection_args("worker"))
    run(body())


def test_who_does_not_encrypt_is_not_let_in(run, folder, tmp_path):
    other = certificates(tmp_path / "other", *ROLES)

    async def body():
        taken = []

        async def take(comm):
            taken.append(comm)
        async with listen("weft://127.0.0.1:0", take, **of(folder).get_listen_args("scheduler")) as listener:
            with pytest.raises(OSError):
                await connect(listener.contact_address, timeout=3)
            with pytest.raises(OSError):
                await connect(listener.contact_address, timeout=30, **of(other).get_connection_args("client"))
        async with listen("weft://127.0.0.1:0", take) as listener:  # one that does not encrypt is not called in the clear
            with pytest.raises(OSError):
                await connect(listener.contact_address, timeout=3, **of(folder).get_connection_args("client"))
        assert not taken
    run(body())


def test_dasks_configuration_is_enough_where_all_roles_have_one_certificate(run, folder, tmp_path):
    def configured(folder, *roles):
        tls = {"ca-file": os.path.join(folder, "ca.crt")}
        for role, name in zip(ROLES, roles):
            tls[role] = {"cert": os.path.join(folder, name + ".crt"), "key": os.path.join(folder, name + ".key")}
        return dask.config.set({"distributed.comm.tls": {**dask.config.get("distributed.comm.tls"), **tls}})
    other = certificates(tmp_path / "other", *ROLES)

    async def body():
        with configured(folder, "worker", "worker", "worker"):
            security = distributed.Security(require_encryption=True)
            ours, theirs = await meet(security.get_listen_args("scheduler"), security.get_connection_args("client"))
            encrypted(ours, "worker")
            encrypted(theirs, "worker")
        with configured(folder, *ROLES):
            security = distributed.Security(require_encryption=True)
            with pytest.raises(RuntimeError, match="weft.dask.Security"):
                listen("weft://127.0.0.1:0", print, **security.get_listen_args("scheduler"))
        with configured(other, "worker", "worker", "worker"):  # other authorities than those of the object
            with pytest.raises(RuntimeError, match="weft.dask.Security"):
                listen("weft://127.0.0.1:0", print, **of(folder, distributed.Security).get_listen_args("scheduler"))
    run(body())


@pytest.mark.parametrize("how", ["variables", "configuration", "key"])
def test_what_weft_is_configured_with_is_enough(run, folder, monkeypatch, how):
    ours = {}
    if how == "key":
        ours = {"distributed.comm.weft.key": "weft-key-1 " + 32 * "7f"}
    elif how == "variables":
        for name, value in as_variables(folder, "worker").items():
            monkeypatch.setenv(name, value)
    else:
        ours = {f"distributed.comm.weft.tls-{name}": os.path.join(folder, file)
                for name, file in (("cert", "worker.crt"), ("key", "worker.key"), ("ca", "ca.crt"))}

    async def body():
        with dask.config.set(ours):
            for info in await meet({"require_encryption": True}, {"require_encryption": True}):
                encrypted(info, "" if how == "key" else "worker")
    run(body())


def test_a_cluster_is_encrypted(folder):
    def ciphers(dask_worker):
        comms = type(dask_worker.batched_stream.comm)._instances
        return sorted({(comm.extra_info["cipher"][:4], comm.extra_info["identity"]) for comm in comms if not comm.closed()})
    security = of(folder)
    with LocalCluster(n_workers=2, threads_per_worker=1, protocol="weft", security=security, processes=True, dashboard_address=None,
                      memory_limit=0) as cluster, Client(cluster, security=security) as client:
        assert cluster.scheduler_address.startswith("weft://")
        assert sum(client.gather(client.map(lambda x: x * x, range(100)))) == sum(x * x for x in range(100))
        a, b = client.scheduler_info()["workers"]
        there = client.submit(lambda: b"x" * 3_000_000, workers=[a])
        assert client.submit(len, there, workers=[b]).result(timeout=BOUND) == 3_000_000
        assert len(there.result(timeout=BOUND)) == 3_000_000
        for found in client.run(ciphers).values():
            assert found and all(cipher == "TLS_" for cipher, _ in found) and ("TLS_", "scheduler") in found, found
        with pytest.raises(OSError):
            Client(cluster.scheduler_address, timeout=3)
