"""Runtimes with several shards: functions are called by requests of several threads of the library at once, and nothing is lost, doubled or out
of its line."""
import asyncio
import contextlib
import os
import random
import subprocess
import threading

import numpy
import pytest

import weft
import weft.blocking
from test_service_threads import BOUND, beside, until

SHARDS, PEERS = 4, 8


class Served:
    """A service on several shards, and clients with a connection each."""

    def __init__(self, service, transports, shards=SHARDS, peers=PEERS, **options):
        self.there = weft.blocking.Runtime(transports=transports, shards=shards)
        self.server = service.start(self.there, **options)
        self.uri = self.server.listen("tcp://127.0.0.1:0")
        self.runtimes = [weft.blocking.Runtime(transports=transports) for _ in range(peers)]
        self.clients = [rt.client(self.uri, service=service.name) for rt in self.runtimes]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for rt in self.runtimes:
            rt.close()
        self.there.close()
        assert self.there.closed and self.server.closed


@pytest.fixture(params=["shm", "tcp"])
def transports(request):
    return request.param


def test_a_runtime_says_what_its_shards_have():
    with weft.blocking.Runtime(shards=3) as rt, weft.blocking.Runtime() as peer:
        assert (rt.shards, peer.shards) == (3, 1)
        listener = rt.listen("tcp://127.0.0.1:0")
        eps = [(peer.connect(listener.uri), listener.accept()) for _ in range(6)]
        rows, whole = rt.shard_stats(), rt.stats()
        assert len(rows) == 3 and all(row["shards"] == 1 for row in rows) and whole["shards"] == 3
        assert [row["connections"] for row in rows] == [2, 2, 2] and whole["connections"] == 6
        assert all(0 <= row["busy"] <= 1000 for row in rows)
        assert [len(peer.shard_stats()), peer.stats()["connections"]] == [1, 6]
        assert len(eps) == 6
    assert rt.shards == 0
    with pytest.raises(weft.ClosedError):
        rt.shard_stats()


def test_what_cannot_be_is_refused():
    with pytest.raises(weft.InvalidError, match="threads of the runtime"):
        weft.blocking.Runtime(shards=2, progress="caller")
    for wrong in (129, -1):
        with pytest.raises(OverflowError):
            weft.blocking.Runtime(shards=wrong)
    service = weft.Service("x")
    with weft.blocking.Runtime() as rt, pytest.raises(ValueError, match="leave them out"):
        service.serve(runtime=rt, shards=2)

    async def in_a_loop():
        async with service.serve(shards=2):
            pass
    with pytest.raises(weft.StateError, match="one shard"):
        asyncio.run(in_a_loop())


CONFIGURED = """
import asyncio, weft, weft.blocking

async def loop():
    return weft.runtime().shards

with weft.blocking.Runtime(shards=0) as cores, weft.blocking.Runtime(shards=1) as one, weft.blocking.Runtime(progress="caller") as caller:
    print(weft.blocking.runtime().shards, cores.shards, one.shards, caller.shards, asyncio.run(loop()))
"""


def test_shards_are_as_configured_where_threads_drive(child):
    process = child(CONFIGURED, stderr=subprocess.STDOUT, WEFT_SHARDS="3")
    out, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, out) == (0, f"3 {min(128, len(os.sched_getaffinity(0)))} 1 1 1\n")


def test_serve_opens_a_runtime_of_its_own_and_closes_it():
    service = weft.Service("own")

    @service.function
    def where(request: weft.Request) -> int:
        return request.service.runtime.shards

    serving = service.serve("tcp://127.0.0.1:0", shards=3)
    for _ in range(2):  # it can be entered again
        with serving as server, weft.blocking.Runtime() as here:
            own = server._runtime
            assert here.client(server.uri, service="own").where() == 3
            with pytest.raises(weft.StateError, match="runs already"):
                serving.__enter__()
            assert not own.closed
        assert own.closed and server.closed
    with pytest.raises(weft.WeftError):
        service.serve("pigeon://coop", shards=2).__enter__()


def test_functions_of_every_kind_on_every_shard(transports):
    service, seen = weft.Service("kinds"), set()

    @service.function
    def plain(a: int, b: int, request: weft.Request) -> int:
        seen.add(request.shard)
        assert request.peer["same_host"]
        return a + b

    @service.function
    async def coroutine(x: float) -> float:
        await asyncio.sleep(0.001)
        return 2 * x

    @service.function
    def array(values: numpy.ndarray) -> numpy.ndarray:
        return values + 1

    @service.function(signature="count(n: i64) -> stream i64")
    def count(n):
        yield from range(n)

    with Served(service, transports, threads=4) as s:
        def calls(client):
            for i in range(30):
                assert client.plain(i, 1) == i + 1
            assert client.coroutine(1.5) == 3.0
            assert numpy.array_equal(numpy.asarray(client.array(numpy.arange(100_000))), numpy.arange(100_000) + 1)
            assert list(client.count(50)) == list(range(50))
        waits = [beside(calls, client) for client in s.clients]
        for wait in waits:
            wait()
        assert seen == set(range(SHARDS))
        assert all(row["connections"] for row in s.there.shard_stats())
        until(lambda: s.server.stats()["under_way"] == 0)
        assert s.server.stats()["answered"] == s.server.stats()["requests"]


class Line:
    """How many are inside at the same time."""

    def __init__(self):
        self.lock, self.inside, self.most, self.ran = threading.Lock(), 0, 0, 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.ran += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *error):
        with self.lock:
            self.inside -= 1


def serial_service(line, aside):
    service = weft.Service("serial")

    @service.function(serial=True)
    def one(a: int) -> int:
        with line:
            threading.Event().wait(0.0005)
            return a

    @service.function(serial=True)
    async def two(a: int) -> int:
        with line:
            await asyncio.sleep(0.0005)
            return a

    @service.function
    def free(a: int) -> int:
        with aside:
            threading.Event().wait(0.002)
            return a

    return service


def test_serial_functions_run_one_at_a_time(transports):
    line, aside = Line(), Line()
    with Served(serial_service(line, aside), transports, threads=8) as s:
        def calls(client):
            for i in range(20):
                assert client.one(i) == client.two(i) == client.free(i) == i
        for wait in [beside(calls, client) for client in s.clients]:
            wait()
        assert (line.ran, line.most) == (2 * 20 * PEERS, 1)
        assert aside.most > 1, "the others are held up by nothing"


def test_serial_functions_in_a_loop_and_beside_it():
    for threads in (0, 3):
        line, aside = Line(), Line()
        service = serial_service(line, aside)

        async def body():
            async with service.serve(threads=threads) as server:
                clients = [weft.client(server.uri, service="serial") for _ in range(4)]
                calls = [call(i) for i in range(20) for client in clients for call in (client.one, client.two, client.free)]
                assert await asyncio.gather(*calls) == [i for i in range(20) for _ in range(12)]
        asyncio.run(body())
        assert (line.ran, line.most) == (160, 1)


def test_a_serial_function_holds_up_neither_others_nor_the_end(transports):
    service, begun, go = weft.Service("held"), threading.Event(), threading.Event()

    @service.function(serial=True)
    def waits(request: weft.Request) -> int:
        begun.set()
        until(lambda: go.is_set() or request.cancelled())
        return 1

    @service.function
    def free() -> int:
        return 2

    with Served(service, transports, threads=1) as s:
        waiting = [beside(client.waits) for client in s.clients]
        assert begun.wait(BOUND)
        until(lambda: s.server.stats()["waiting"] == PEERS - 1)
        assert [client.free() for client in s.clients] == [2] * PEERS  # the one thread is not in that line
        s.server.close(BOUND)
        for wait in waiting:
            with pytest.raises(weft.CallError) as error:
                wait()
            assert error.value.code_name == "UNAVAILABLE"


def test_endpoints_of_all_shards_say_when_they_end(transports):
    with weft.blocking.Runtime(shards=SHARDS, transports=transports) as rt, weft.blocking.Runtime(transports=transports) as peer:
        listener, ended = rt.listen("tcp://127.0.0.1:0"), []
        theirs = [peer.connect(listener.uri) for _ in range(PEERS)]
        ours = [listener.accept(timeout=BOUND) for _ in range(PEERS)]
        assert all(row["connections"] for row in rt.shard_stats())
        for ep in ours:
            ep.on_close = lambda one: ended.append(one)

        def echo(ep):
            for _ in range(50):
                ep.send(ep.recv(tag=1, timeout=BOUND), tag=2)
        echoes = [beside(echo, ep) for ep in ours]

        def ask(n, ep):
            for i in range(50):
                ep.send(b"%d %d" % (n, i), tag=1)
                assert ep.recv(tag=2, timeout=BOUND) == b"%d %d" % (n, i)
        for wait in [beside(ask, n, ep) for n, ep in enumerate(theirs)] + echoes:
            wait()
        for wait in [beside(ep.close) for ep in theirs]:  # all at the same time
            wait()
        until(lambda: len(ended) == PEERS)
        assert set(map(id, ended)) == set(map(id, ours))


def test_a_handler_hears_all_shards_or_is_refused_at_once():
    with weft.blocking.Runtime(shards=SHARDS) as rt, weft.blocking.Runtime() as peer:
        listener, heard = rt.listen("tcp://127.0.0.1:0"), []
        eps = [peer.connect(listener.uri) for _ in range(PEERS)]
        try:
            rt.am_handler(7, lambda message: heard.append(bytes(message.header)))
        except weft.UnsupportedError as error:
            assert "shards" in str(error)
            return
        for n, ep in enumerate(eps):
            ep.am_send(7, header=b"%d" % n)
        until(lambda: len(heard) == PEERS)
        assert sorted(heard) == [b"%d" % n for n in range(PEERS)]


def storm_service():
    service, told = weft.Service("storm"), []

    @service.function
    def add(a: int, b: int) -> int:
        return a + b

    @service.function(serial=True)
    def line(a: int) -> int:
        return a

    @service.function
    def total(values: numpy.ndarray) -> float:
        return float(values.sum())

    @service.function(signature="count(n: i64) -> stream i64")
    def count(n):
        yield from range(n)

    @service.function
    def fails(a: int) -> int:
        raise weft.codes.Aborted(str(a))

    @service.function
    def late(request: weft.Request) -> None:
        over = threading.Event()
        request.on_cancel = lambda unused: over.set()
        if not over.wait(BOUND):
            told.append("nobody said that it was cancelled")

    return service, told


def storm_calls(client, seed, over):
    """Calls until it is over. Each has its answer, or after the end an error; how many had their answer."""
    rng, done = random.Random(seed), 0
    while not over.is_set():
        kind = rng.randrange(12)
        try:
            if kind < 5:
                assert client.add(done, seed) == done + seed
            elif kind < 7:
                assert client.line(seed) == seed
            elif kind == 7:
                n = rng.choice((10, 3000, 60_000))
                assert client.total(numpy.full(n, 2.0)) == 2.0 * n
            elif kind == 8:
                assert list(client.count(20)) == list(range(20))
            elif kind == 9:
                client.fails(seed)
                raise AssertionError("it did not fail")
            elif kind == 10:
                client.late(timeout=0.005)
                raise AssertionError("it was answered")
            else:
                assert client.extra(seed) == seed
        except weft.CallError as error:
            expected = {9: "ABORTED", 10: "DEADLINE_EXCEEDED", 11: "UNIMPLEMENTED"}.get(kind)  # 11: it is taken away just now
            if error.code_name != expected and not over.wait(BOUND):
                raise
            assert kind != 9 or error.code_name != "ABORTED" or str(seed) in str(error)
        except weft.WeftError as error:
            if not (kind == 10 and isinstance(error, weft.TimeoutError)) and not over.wait(BOUND):
                raise
        done += 1
    return done


async def storm_in_a_loop(uri, transports, over):
    """The same from an event loop, many at a time."""
    done = 0
    async with weft.Runtime(transports=transports) as rt:
        client = rt.client(uri, service="storm")
        while not over.is_set():
            calls = [*(client.add(i, 1, timeout=10) for i in range(16)), client.line(5, timeout=10)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            if not any(isinstance(r, BaseException) for r in results):
                assert results == [*range(1, 17), 5]
                done += 1
            elif not over.is_set():
                assert all(not isinstance(r, BaseException) or isinstance(r, weft.WeftError) for r in results), results
                await asyncio.sleep(0.001)
    return done


def test_storm(transports):
    for seed in range(3):
        (service, told), over = storm_service(), threading.Event()
        s = Served(service, transports, threads=6)
        try:
            waits = [beside(storm_calls, client, n, over) for n, client in enumerate(s.clients)]
            loops = [beside(lambda: asyncio.run(storm_in_a_loop(s.uri, transports, over))) for _ in range(2)]
            for n in range(20):  # a function comes and goes meanwhile, and so do connections
                s.server.add(lambda a: a, signature="extra(a: i64) -> i64")
                with weft.blocking.Runtime(transports=transports) as guest:
                    assert guest.client(s.uri, service="storm").extra(n) == n
                assert len(s.there.shard_stats()) == SHARDS
                s.server.remove("extra")
            until(lambda: s.server.stats()["answered"] > 1500)
            rows = s.there.shard_stats()
            assert all(row["ams_received"] > 20 for row in rows), rows
            if seed == 1:
                s.server.close(BOUND)  # under load: the others end with the whole runtime
            over.set()
            if seed == 2:
                s.there.close()
                for rt in s.runtimes:  # a call that was begun just now would wait for another server, without end
                    rt.close()
            counts = [wait() for wait in waits + loops]
            assert all(counts) and not told, (counts, told)
        finally:
            over.set()
            s.__exit__()
        assert not [t for t in threading.enumerate() if t.name.startswith("weft-storm")]


def test_a_memory_server_and_a_mirror_have_clients_on_all_shards(transports):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(weft.blocking.Runtime(transports=transports, shards=SHARDS)) for _ in range(2)]
        listeners = [rt.listen("tcp://127.0.0.1:0") for rt in servers]
        uris = [listener.uri for listener in listeners]
        stores = [rt.store_server(8 << 20, lease=1) for rt in servers]

        def client(i):
            with weft.blocking.Runtime(transports=transports) as rt:
                with rt.connect(uris[0], timeout=BOUND).store(timeout=BOUND) as store:
                    for k in range(20):
                        block = store.alloc(1000, f"{i} {k}", timeout=BOUND)
                        block.remote.write(bytes([i]) * 1000)
                        assert store.open(f"{i} {k}", timeout=BOUND).remote.read() == bytes([i]) * 1000
                        block.free(timeout=BOUND)
            return 20

        waits = [beside(client, i) for i in range(PEERS)]
        kept = [listeners[0].accept(timeout=BOUND) for _ in range(PEERS)]
        assert [wait() for wait in waits] == [20] * PEERS and len(kept) == PEERS
        own = stack.enter_context(weft.blocking.Runtime(transports=transports, shards=SHARDS))
        leases = [own.connect(uri, timeout=BOUND).store(timeout=BOUND) for uri in uris]
        with own.mirror("both", leases, size=1 << 16, write=True, timeout=BOUND) as mirror:
            mirror.write(b"twice", 100)
            assert mirror.read(100, 5) == b"twice"
        assert [server.stats["blocks"] for server in stores] == [1, 1]
