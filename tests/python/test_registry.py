"""Registries: entering, leaving, looking, watching; clients and services that meet there; processes that die."""
import asyncio
import signal
import sys
import threading
import time
import uuid

import pytest

import weft
import weft.blocking
from callside import serve

KINDS = ["memory", "dir"]


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    """The uri of a registry of its own."""
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"dir://{tmp_path}"


def test_enter_find_change_leave(run, place):
    async def main():
        async with weft.registry(place) as registry:
            assert await registry.find() == [] == await registry.find("calc")
            await registry.enter("calc", "tcp://127.0.0.1:1", instance="a", load=5, data=b"1 add(a: i32) -> i32\n")
            await registry.enter("calc", "tcp://127.0.0.1:2")
            await registry.enter("other", "tcp://127.0.0.1:3", instance="a")
            found = {e.instance: e for e in await registry.find("calc")}
            assert set(found) == {"a", registry.name} and len(await registry.find()) == 3
            assert found["a"] == weft.Entry("calc", "a", "tcp://127.0.0.1:1", 5, b"1 add(a: i32) -> i32\n")
            assert found["a"].functions == ["add(a: i32) -> i32"]
            await registry.enter("calc", "tcp://127.0.0.1:9", instance="a", load=1000)
            assert [e.address for e in await registry.find("calc") if e.instance == "a"] == ["tcp://127.0.0.1:9"]
            await registry.leave("calc", "a")
            await registry.leave("calc")
            assert await registry.find("calc") == []
            with pytest.raises(weft.NotFoundError):
                await registry.leave("calc", "a")
            assert registry.state == "ok" and not registry.closed
        assert registry.closed and "closed" in repr(registry)
        await registry.close()
        for use in (registry.find, registry.watch, lambda: registry.enter("a", "b"), lambda: registry.leave("a"),
                    lambda: registry.name):
            with pytest.raises(weft.ClosedError):
                use()
    run(main())


def test_what_is_refused(run, place):
    async def main():
        async with weft.registry(place) as registry:
            for wrong in (("bad name", "tcp://x:1"), ("", "tcp://x:1"), ("x" * 64, "tcp://x:1"), ("a", "x" * 600)):
                with pytest.raises(ValueError):
                    await registry.enter(*wrong)
            for args, options in (((5, "x"), {}), (("a", 5), {}), (("a", "x"), {"load": "x"}), (("a", "x"), {"data": 5}),
                                  (("a",), {}), (("a", "x"), {"instance": 5})):
                with pytest.raises(TypeError):
                    registry.enter(*args, **options)
            with pytest.raises(OverflowError):
                registry.enter("a", "x", load=1001)
            with pytest.raises((ValueError, weft.LimitError)):
                await registry.enter("a", "tcp://x:1", data=b"x" * 70000)
            with pytest.raises(ValueError):
                registry.find("a\0b")
        for wrong in ("nowhere://x", "x", "dir://\0", "redis://"):
            with pytest.raises(weft.WeftError if "\0" not in wrong else ValueError):
                weft.registry(wrong)
        with pytest.raises(TypeError):
            weft.registry(5)
        with pytest.raises(TypeError):
            weft.Registry(None)
    run(main())


def test_a_watch_tells_everything_in_order(run, place):
    async def main():
        async with weft.registry(place) as registry:
            await registry.enter("calc", "tcp://127.0.0.1:1", instance="a")
            watch = registry.watch("calc")
            kinds = [await anext(watch)]
            waiting = watch.__anext__()
            await registry.enter("calc", "tcp://127.0.0.1:2", instance="b")
            kinds.append(await waiting)
            cancelled = watch.__anext__()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await registry.enter("other", "tcp://127.0.0.1:2", instance="b")  # not ours
            await registry.enter("calc", "tcp://127.0.0.1:3", instance="b")
            kinds.append(await anext(watch))  # what a watch tells is the difference to what it told last
            await registry.leave("calc", "a")
            kinds.append(await anext(watch))
            assert [(c.kind, c.entry.instance) for c in kinds] == [("came", "a"), ("came", "b"), ("changed", "b"), ("went", "a")]
            assert all(isinstance(c, weft.Change) and c.entry.service == "calc" for c in kinds)
            last = watch.__anext__()
            watch.close()
            watch.close()
            for op in (last, watch.__anext__()):
                with pytest.raises(StopAsyncIteration):
                    await op
            everything = registry.watch()
            assert {(await anext(everything)).entry.service for _ in range(2)} == {"calc", "other"}
            with pytest.raises(TypeError, match="async for"):
                next(everything)
        assert [c async for c in everything] == []
    run(main())


def test_closing_under_a_watch(run, place):
    async def main():
        async with weft.Runtime() as rt:
            registry = rt.registry(place)
            watch = registry.watch()
            waiting = watch.__anext__()
            await registry.close()
            other = rt.registry(place).watch()
            still = other.__anext__()
        with pytest.raises((StopAsyncIteration, weft.WeftError)):
            await waiting
        with pytest.raises((StopAsyncIteration, weft.WeftError)):
            await still
        with pytest.raises(StopAsyncIteration):
            await other.__anext__()
        assert rt.under_way == 0
    run(main())


def test_a_watch_that_is_forgotten_ends(run, place):
    async def main():
        async with weft.registry(place) as registry:
            for i in range(50):
                watch = registry.watch()
                await registry.enter("calc", "tcp://127.0.0.1:1", instance="a", load=i)
                await anext(watch)
            await asyncio.sleep(0)  # whoever woke us still holds the operation
            before = sys.getrefcount(registry)
            del watch
            assert sys.getrefcount(registry) == before - 1
    run(main())


def test_clients_find_servers_and_lose_them(run, tmp_path):
    async def main():
        place = f"dir://{tmp_path}"
        services = [serve("--instance", name, WEFT_REGISTRY=place) for name in ("a", "b")]
        try:
            async with weft.registry(place) as registry:
                found = await registry.find("calc")
                assert {e.instance for e in found} == {"a", "b"} and "add(a: i32, b: i32) -> i32" in found[0].functions
                watch = registry.watch("calc")
                async with weft.client("weft://calc", registry=registry, timeout=50) as client:
                    assert await client.add(25, 17) == 42
                    services[0].process.send_signal(signal.SIGKILL)
                    async for change in watch:
                        if change.kind == "went":
                            assert change.entry.instance == "a"
                            break
                    assert await client.mean.many([[1, 2, 3]] * 20) == [2.0] * 20
                    assert client.stats()["instances"] == 1
                async with weft.client("weft://calc@b", registry=registry, timeout=50) as client:
                    assert await client.add(1, 2) == 3
                missing = weft.client("weft://nothing", registry=registry)
                with pytest.raises(TimeoutError) as caught:
                    await missing.add(1, 2, timeout=0.2)
                assert caught.value.ran == "not run"
                await missing.close()
                async with weft.Runtime() as other:
                    with pytest.raises(ValueError, match="another runtime"):
                        other.client("weft://calc", registry=registry)
        finally:
            for service in services:
                service.kill()
    run(main())


def test_services_in_python_meet_clients_in_python(run, place):
    async def main():
        service = weft.Service("greeter")

        @service.function
        async def greet(name: str) -> str:
            return f"hello {name}"
        async with weft.Runtime() as left, weft.Runtime() as right:
            async with service.serve("tcp://127.0.0.1:0", runtime=left, registry=left.registry(place), threads=0):
                async with right.registry(place) as registry:
                    async with right.client("weft://greeter", registry=registry, timeout=50) as client:
                        assert await client.greet("weft") == "hello weft"
                        assert await client.functions() == ["greet(name: string) -> string"]
    run(main())


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_registries_that_wait(place, progress):
    with weft.blocking.Runtime(progress=progress) as rt, rt.registry(place) as registry:
        registry.enter("calc", "tcp://127.0.0.1:1", instance="a")
        assert [e.instance for e in registry.find("calc")] == ["a"]
        watch = registry.watch("calc")
        assert next(watch).entry.instance == "a"
        registry.leave("calc", "a", timeout=30)
        assert next(watch).kind == "went"
        with pytest.raises(TypeError, match="`for`"):
            watch.__anext__()
        watch.close()
        assert list(watch) == []
        with pytest.raises(weft.NotFoundError):
            registry.leave("calc", "a")
    with pytest.raises(weft.ClosedError):
        registry.find()


def test_threads_wait_for_changes(place):
    with weft.blocking.Runtime() as rt:
        registry, seen = rt.registry(place), []
        watch = registry.watch("calc")
        threads = [threading.Thread(target=lambda: seen.append(next(watch, None))) for _ in range(4)]
        for t in threads:
            t.start()
        for i in range(3):
            registry.enter("calc", "tcp://127.0.0.1:1", instance=f"i{i}")
        bound = time.monotonic() + 50
        while len(seen) < 3 and time.monotonic() < bound:
            time.sleep(0.01)
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert sorted(c.entry.instance for c in seen if c) == ["i0", "i1", "i2"] and seen.count(None) == 1


def test_the_configured_registry(child, tmp_path):
    process = child("""
import os, sys
os.environ["WEFT_REGISTRY"] = sys.argv[1]
import weft, weft.blocking
with weft.blocking.registry() as registry:
    registry.enter("calc", "tcp://127.0.0.1:1", instance="a")
    print([e.instance for e in registry.find("calc")], flush=True)
""", f"dir://{tmp_path}")
    assert process.stdout.readline() == "['a']\n"
