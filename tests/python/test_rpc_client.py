"""Calls: by place and by name, every type, what fails and how, deadlines, cancelling, servers that are killed or stopped, and
many at once."""
import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

import numpy
import pytest

import weft
import weft.blocking
from callside import TYPES, calc, serve, types  # noqa: F401

SAMPLES = {"bool": [True, False], "string": ["", "hé", "x" * 3000], "f32": [0.5, -1.0], "f64": [0.1, 1e300],
           "tensor": [numpy.arange(6.0).reshape(2, 3), numpy.zeros((0, 4), "i2"), numpy.arange(5000, dtype="u4")[::-2]]}


def samples(type):
    if type in SAMPLES:
        return SAMPLES[type]
    bits = int(type[1:])
    return [0, (1 << bits - (type[0] == "i")) - 1, -(1 << bits - 1) if type[0] == "i" else 1]


def same(a, b):
    if isinstance(a, list) and a and isinstance(a[0], weft.Tensor):
        return len(a) == len(b) and all(map(same, a, b))
    return bool((numpy.asarray(a) == numpy.asarray(b)).all()) if isinstance(b, numpy.ndarray) else a == b


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_every_type_there_and_back(run, types, transports):
    async def main():
        async with weft.Runtime(transports=transports) as rt, rt.client(types.uri) as client:
            for type in TYPES:
                echo = getattr(client, "echo_" + type.replace("[", "s_").replace("]", ""))
                scalar = type.strip("[]")
                values = samples(scalar) if scalar == type else [[], samples(scalar), samples(scalar) * 700]
                for value in values:
                    got = await echo(value)
                    assert same(got, bytes(value) if type == "[u8]" else value), (type, value, got)
            e, f = list(range(1000)), numpy.arange(12, dtype="i2").reshape(3, 4).T
            got = await client.all(True, -5, 0.5, "text", e, f)
            assert same(got[0], f) and got[1:] == (e, "text", 0.5, -5, True)
            assert same((await client.all(f=f, e=e, d="", c=1, b=2, a=False))[0], f)
    run(main())


def test_arguments_by_place_and_by_name(run, calc):
    async def main():
        async with weft.client(calc.uri) as client:
            assert await client.add(25, 17) == 42
            assert await client.sub(b=1, a=10) == 9 == await client.sub(10, b=1)
            assert await client.split("hello world", 5) == ("hello", " world")
            assert await client.sleep(0) is None
            for call, words in ((lambda: client.add(1), "argument b is missing: add(a: i32, b: i32) -> i32"),
                                (lambda: client.add(1, 2, 3), "3 arguments were given, and it takes 2"),
                                (lambda: client.add(1, 2, c=3), "there is no argument 'c'"),
                                (lambda: client.add(1, a=2), "'a' was given twice"),
                                (lambda: client.add(1, "x"), "add: argument b is 'x', where i32 is wanted")):
                with pytest.raises(TypeError) as caught:
                    call()
                assert words in str(caught.value)
            with pytest.raises(OverflowError, match="add: argument a is 2147483648, which does not fit in i32"):
                client.add(2 ** 31, 1)
            assert client.stats()["calls"] == 6  # of functions(), and those that had their arguments
    run(main())


def test_a_function_of_which_only_the_name_is_known(run, calc):
    async def main():
        client = weft.client(calc.uri)
        assert client.add.signature is None
        first = [client.add(i, 1) for i in range(10)]
        assert await asyncio.gather(*first) == list(range(1, 11))
        assert client.add.signature == "add(a: i32, b: i32) -> i32"
        with pytest.raises(TypeError, match="div: argument a is 'x', where f64 is wanted"):
            await client.div("x", 1)
        with pytest.raises(weft.CallError) as caught:
            await client.nothing(1, 2, timeout=30)
        assert (caught.value.code_name, caught.value.ran) == ("UNIMPLEMENTED", "not run")
        op = client.sleep(60000, timeout=50)
        op.cancel()
        with pytest.raises(asyncio.CancelledError):
            await op
        assert await client.method("#1").check()
        await client.close()
        with pytest.raises(weft.ClosedError):
            client.add(1, 2)
        with pytest.raises(weft.ClosedError):
            client.other
    run(main())


def test_names_that_are_not_functions(run, types):
    async def main():
        async with weft.client(types.uri) as client:
            assert await client.method("close")(41) == 42  # the class has a close() itself
            assert client.closed is False and client.runtime is weft.runtime() and client.uri == types.uri
            for name in ("_secret", "__wrapped__", "__len__", "not a name", "1st", ""):
                with pytest.raises(AttributeError):
                    getattr(client, name)
            for wrong in ("add(", "add(a: i31) -> i32", "", "x\0y", "#", "#x"):
                with pytest.raises(ValueError):
                    client.method(wrong)
            with pytest.raises(TypeError):
                client.method(5)
    run(main())


def test_what_a_function_said_when_it_failed(run, types, calc):
    async def main():
        async with weft.client(types.uri) as client:
            for code in range(1, 17):
                with pytest.raises(weft.WeftError) as caught:
                    await client.fail(code, "because")
                e = caught.value
                assert isinstance(e, {1: weft.CancelledError, 4: weft.TimeoutError}.get(code, weft.CallError))
                assert (e.code, e.message, e.category, e.value, e.ran) == (code, "because", 300, -7, "ran")
        async with weft.client(calc.uri) as client:
            with pytest.raises(weft.CallError, match="^INVALID_ARGUMENT: nothing can be divided by 0$"):
                await client.div(1, 0)
            with pytest.raises(weft.CallError) as caught:  # another signature than the server's
                await client.method("add(a: i64, b: i64) -> i64")(1, 2)
            assert caught.value.code_name == "FAILED_PRECONDITION" and "i64" in str(caught.value) and "i32" in str(caught.value)
            assert caught.value.ran == "not run"
    run(main())


def test_deadlines(run, calc):
    async def main():
        async with weft.client(calc.uri) as client:
            with pytest.raises(TimeoutError) as caught:
                await client.sleep(60000, timeout=0.05)
            assert isinstance(caught.value, weft.TimeoutError) and caught.value.code_name == "DEADLINE_EXCEEDED"
            assert caught.value.ran in ("may have run", "ran")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.sleep(60000)
            assert await client.add(1, 2, timeout=None) == 3
            for wrong in (-1, float("nan"), "x"):
                with pytest.raises((ValueError, TypeError)):
                    client.add(1, 2, timeout=wrong)
        nobody = weft.client("tcp://127.0.0.1:1", timeout=0.1)
        with pytest.raises(TimeoutError) as caught:
            await nobody.add(1, 2)
        assert caught.value.ran == "not run"
        await nobody.close()
    run(main())


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.01)


def test_cancelling_reaches_the_function(run, types):
    async def main():
        async with weft.client(types.uri) as client:
            before = (await client.state())[1]

            async def one():
                await client.hold()
            tasks = [asyncio.create_task(one()) if i % 2 else client.hold() for i in range(10)]

            async def all_held():
                return (await client.state())[0] == 10
            await until(all_held)
            for task in tasks:
                task.cancel()
            assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))

            async def none_held():
                held, cancelled, _ = await client.state()
                return held == 0 and cancelled == before + 10
            await until(none_held)
    run(main())


def test_a_server_that_is_killed_in_the_middle_of_calls(run):
    async def main():
        service = serve()
        try:
            async with weft.client(service.uri) as client:
                calls = [client.sleep(60000) for _ in range(50)]
                while client.stats()["waiting"]:
                    await asyncio.sleep(0.01)
                service.process.send_signal(signal.SIGKILL)
                for result in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(result, ConnectionError) and isinstance(result, weft.WeftError), result
                    assert (result.code_name, result.ran) == ("UNAVAILABLE", "may have run")
        finally:
            service.kill()
    run(main())


def test_a_server_that_is_stopped_is_noticed_by_the_deadline(run):
    async def main():
        service = serve()
        try:
            async with weft.client(service.uri) as client:
                await client.add(1, 2)
                service.process.send_signal(signal.SIGSTOP)
                os.waitpid(service.process.pid, os.WUNTRACED)  # it has stopped now
                with pytest.raises(TimeoutError):
                    await client.add(1, 2, timeout=0.3)
                service.process.send_signal(signal.SIGCONT)
                assert await client.add(1, 2) == 3
        finally:
            service.kill()
    run(main())


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_thousands_of_calls_at_once(run, calc, transports):
    async def main():
        async with weft.Runtime(transports=transports) as rt, rt.client(calc.uri) as client:
            assert await asyncio.gather(*(client.add(i, i) for i in range(5000))) == [2 * i for i in range(5000)]
            assert await client.add.many([(i, 1) for i in range(5000)]) == list(range(1, 5001))
        assert rt.under_way == 0
    run(main())


def test_many_in_one_go(run, calc):
    async def main():
        async with weft.client(calc.uri) as client:
            assert await client.add.many([(1, 2), {"a": 3, "b": 4}]) == [3, 7] and await client.add.many([]) == []
            assert await client.upper.many(["a", ("b",)]) == ["A", "B"]
            top = 2 ** 31 - 1
            with pytest.raises(weft.CallError, match="OUT_OF_RANGE"):
                await client.add.many([(1, 2), (top, 1), (top, 2)])
            results = await client.add.many([(1, 2), (top, 1)], return_exceptions=True)
            assert results[0] == 3 and results[1].code_name == "OUT_OF_RANGE"
            with pytest.raises(TypeError, match="argument b is missing"):
                client.add.many([(1, 2), (3,)])
            with pytest.raises(TypeError):
                client.add.many([{"a": 1, "b": 2, "once": True}])
            with pytest.raises(TypeError):
                client.add.many(5)
            with pytest.raises(weft.StateError):
                client.primes.many([1])
            slow = client.sleep.many([60000] * 20)
            await asyncio.sleep(0)
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            with pytest.raises(TimeoutError):
                await client.sleep.many([60000] * 20, timeout=0.05)
    run(main())


def test_once_and_fresh_and_oneway(run, calc, types):
    async def main():
        async with weft.client(types.uri) as client:
            ran = await client.run()
            assert await client.run(once=True) == ran + 1 and await client.run(fresh=True) == ran + 2
        async with weft.client(calc.uri) as client:
            assert client.log.oneway and not client.add.oneway and client.mean.idempotent and not client.add.idempotent
            for i in range(2000):
                assert client.log.send(f"line {i}") is None
            assert await client.log("awaited") is None
            with pytest.raises(weft.StateError, match="is not marked oneway"):
                client.add.send(1, 2)
            assert await client.add(1, 2) == 3
    run(main())


def test_results_into_memory_of_the_callers(run, types, calc):
    async def main():
        async with weft.client(types.uri) as client:
            for n in (0, 10, 1000, 5000, 300000):
                room = numpy.zeros(400000, "u1")
                result = await client.tensors(n, into=room)
                want = numpy.arange(n) % 251
                assert (room[:n] == want).all() and (numpy.asarray(result) == want).all() and not room[n + 64:].any()
                assert n == 0 or numpy.shares_memory(numpy.asarray(result), room)
            for n in (1000, 300000):
                with pytest.raises(weft.TruncatedError):
                    await client.tensors(n, into=bytearray(500))
            data = bytearray(3000)
            assert bytes(await client.echo_s_u8(b"x" * 3000, into=data)) == b"x" * 3000 == bytes(data)
            with pytest.raises(ValueError):
                client.tensors(5, into=b"read-only")
            with pytest.raises(TypeError):
                client.tensors(5, into=5)
        async with weft.client(calc.uri) as client:
            room = numpy.zeros((30, 40), "f4")
            await client.scale(numpy.full((30, 40), 2, "f4"), 1.5, into=room)
            assert (room == 3).all()
    run(main())


def test_views_outlive_the_client_and_the_runtime(run, types):
    async def main():
        kept = []
        async with weft.Runtime() as rt:
            async with rt.client(types.uri) as client:
                for n in (10, 2000, 300000):
                    kept.append((n, numpy.asarray(await client.tensors(n))))
                    kept.append((n, await client.tensors(n)))
                values = await client.echo_s_i32(list(range(3000)))
        gc.collect()
        for n, view in kept:
            assert (numpy.asarray(view) == numpy.arange(n) % 251).all()
        assert values == list(range(3000))
        kept[0][1][0] = 7  # it is the caller's
    run(main())


def test_arguments_are_held_until_the_call_is_over_and_no_longer(run, types, calc):
    async def main():
        async with weft.client(types.uri) as client:
            data = bytearray(b"x" * 100000)
            call = client.echo_s_u8(data)
            with pytest.raises(BufferError):
                data.append(1)
            assert await call == bytes(data)
            data.append(1)
            data.pop()
            call = client.echo_s_u8(data)
            call.cancel()
            del call
            while weft.runtime().under_way:
                await asyncio.sleep(0.01)
            data.append(1)
        async with weft.client(calc.uri) as client:
            class Array(numpy.ndarray):
                pass
            a = numpy.ones(5).view(Array)
            gone = weakref.ref(a)
            with pytest.raises(TypeError):
                client.scale(a, "x")
            await client.mean(a)
            del a
            gc.collect()
            assert gone() is None
    run(main())


def test_closing_ends_calls_under_way(run, calc):
    async def main():
        async with weft.Runtime() as rt:
            client = await rt.client(calc.uri)
            calls = [client.sleep(60000) for _ in range(5)]
            await client.close()
            await client.close()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, weft.ClosedError) and result.ran in ("not run", "may have run")
            client = await rt.client(calc.uri)
            call, method = client.sleep(60000), client.add
        with pytest.raises(weft.ClosedError):
            await call
        for use in (lambda: client.add(1, 2), lambda: method(1, 2), client.stats, lambda: client.method("other")):
            with pytest.raises(weft.ClosedError):
                use()
        assert client.closed and "closed" in repr(client)
    run(main())


def test_a_client_that_is_forgotten_is_closed(run, calc):
    async def main():
        async with weft.Runtime() as rt:
            client = await rt.client(calc.uri)
            gone, call = weakref.ref(client), client.sleep(10)
            method = client.add
            del client
            assert gone() is None and await call is None
            assert await method(1, 2) == 3  # a method keeps the connection
            before = rt.stats()["endpoints"]
            del call, method
            while rt.stats()["endpoints"] >= before:
                await asyncio.sleep(0.01)
    run(main())


def test_nothing_is_left_behind_by_calls(run, calc):
    async def main():
        async with weft.client(calc.uri) as client:
            data, text = numpy.ones(300), "some text"

            async def some():
                for _ in range(50):
                    await client.add(1, 2)
                    await client.upper(text)
                    await client.mean(data)
                    await client.scale(data.astype("f4"), 2)
                    await client.add.many([(1, 2)] * 5)
                    for wrong in (lambda: client.add(1), lambda: client.mean("x"), lambda: client.mean([1, "x"])):
                        with pytest.raises(TypeError):
                            wrong()
                    with pytest.raises(weft.CallError):
                        await client.div(1, 0)
                gc.collect()
            await some()
            things = [client.add, data, text, weft.CallError, weft.Tensor, type(client.add)]
            before = [sys.getrefcount(t) for t in things]
            await some()
            after = [sys.getrefcount(t) for t in things]
            assert all(a <= b + 5 for a, b in zip(after, before)), (before, after)  # each was used 50 times and more
    run(main())


def test_strangers_at_the_address_of_a_server(run):
    noise = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def talk():
        noise.settimeout(0.1)
        while not over.is_set():
            try:
                peer, _ = noise.accept()
            except TimeoutError:
                continue
            with peer:
                peer.sendall(os.urandom(4096))
    talker = threading.Thread(target=talk)
    talker.start()

    async def main():
        client = weft.client(f"tcp://127.0.0.1:{noise.getsockname()[1]}")
        with pytest.raises(weft.WeftError) as caught:
            await client.add(1, 2, timeout=0.5)
        assert caught.value.ran == "not run"
        await client.close()
    try:
        run(main())
    finally:
        over.set()
        talker.join(60)
        noise.close()


def test_what_a_client_is_not_made_of(run):
    async def main():
        for wrong in ("nowhere", "", "weft://", "weft://bad name", "ftp://x", "tcp://127.0.0.1:1\0x"):
            with pytest.raises(ValueError):
                weft.client(wrong)
        for options in ({"tries": -1}, {"timeout": -1}, {"registry": 5}, {"service": 5}, {"instances": "x"}, {"tries": 2 ** 40}):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                weft.client("tcp://127.0.0.1:1", **options)
        with pytest.raises(TypeError):
            weft.Client(None, "tcp://127.0.0.1:1")
        empty = weft.Client.__new__(weft.Client)
        for use in (lambda: empty.method("add"), empty.stats, lambda: empty.add, lambda: empty._learn("1 add() -> void")):
            with pytest.raises((TypeError, AttributeError)):
                use()
        assert repr(empty) and empty.closed
        again = weft.client("tcp://127.0.0.1:1")
        with pytest.raises(weft.StateError):
            again.__init__(weft.runtime(), "tcp://127.0.0.1:1")
        for lines in ("", "nonsense\n\n5\n7 add(a: i32) -> i32\n8 bad(", "1 close() -> void\n2 weft.x() -> void"):
            assert again._learn(lines) >= 0
        for wrong in (5, None, b"1 f() -> void"):
            with pytest.raises((TypeError, AttributeError)):
                again._learn(wrong)
        assert again.add.signature == "add(a: i32) -> i32" and callable(again.close)
        await again.close()
    run(main())


# --- threads that wait ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_calls_that_wait(calc, types, progress):
    with weft.blocking.Runtime(progress=progress) as rt:
        with rt.client(calc.uri, timeout=50) as client:
            assert client.add(25, 17) == 42 and client.split("ab", 1) == ("a", "b") and client.sleep(0) is None
            assert client.add.signature == "add(a: i32, b: i32) -> i32" and "add(a: i32, b: i32) -> i32" in client.functions()
            assert client.add.many([(i, i) for i in range(500)]) == [2 * i for i in range(500)] and client.add.many([]) == []
            assert client.log.send("line") is None and client.log("line") is None
            with pytest.raises(weft.CallError, match="INVALID_ARGUMENT"):
                client.div(1, 0)
            with pytest.raises(TimeoutError) as caught:
                client.sleep(60000, timeout=0.05)
            assert caught.value.code_name == "DEADLINE_EXCEEDED"
            with pytest.raises(weft.CallError, match="UNIMPLEMENTED"):
                client.nothing()
            with pytest.raises(weft.CallError):
                client.add.many([(1, 2), (2 ** 31 - 1, 1)])
        with rt.client(types.uri) as client:
            kept = client.tensors(300000)
            room = numpy.zeros(300000, "u1")
            client.tensors(300000, into=room)
        with pytest.raises(weft.ClosedError):
            client.run()
    assert (numpy.asarray(kept) == room).all()


def test_threads_share_a_client(calc):
    failures = []
    with weft.blocking.client(calc.uri, timeout=50) as client:
        def work(k):
            try:
                for i in range(200):
                    assert client.add(k, i) == k + i
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert not failures


def test_a_client_is_closed_while_threads_wait_in_it(calc):
    for what in ("client", "runtime"):
        rt = weft.blocking.Runtime()
        client, results = rt.client(calc.uri), []

        def work():
            try:
                client.sleep(60000)
            except weft.WeftError as error:
                results.append(error)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        bound = time.monotonic() + 50
        while client.stats()["under_way"] - client.stats()["waiting"] < 4 and time.monotonic() < bound:
            time.sleep(0.01)
        (client if what == "client" else rt).close()
        for t in threads:
            t.join(60)
        assert len(results) == 4 and all(isinstance(r, weft.ClosedError) for r in results), results
        rt.close()


def test_a_signal_ends_a_call_that_waits(calc, child):
    process = child("""
import sys, weft, weft.blocking
with weft.blocking.client(sys.argv[1]) as client:
    client.add(1, 2)
    try:
        print("ready", flush=True)
        client.sleep(600000)
    except KeyboardInterrupt:
        print("interrupted", client.add(1, 2), flush=True)
""", calc.uri)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted 3\n"


# --- GPUs -----------------------------------------------------------------------------------------------------------------------


def test_tensors_of_a_gpu_with_a_driver_made_of_paper():
    here = os.path.dirname(os.path.abspath(__file__))
    paper = os.path.join(os.path.dirname(weft.__file__), "..", "..", "tests", "paper")
    if not os.path.exists(os.path.join(paper, "libcuda.so.1")):
        pytest.skip("the CUDA driver made of paper is not built")
    env = {**os.environ, "LD_LIBRARY_PATH": paper, "PAPER_THREAD": "10", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-X", "dev", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                          os.path.join(here, "paper_calls.py")],
                         env=env, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
