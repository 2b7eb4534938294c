"""Services: what functions get, what their callers get, limits, and the way out."""
import asyncio
import gc
import os
import subprocess

import numpy
import pytest

import weft
import weft.blocking

COMMAND = os.environ.get("TEST_WEFT_COMMAND") or os.path.join(os.path.dirname(weft.__file__), "..", "..", "weft")


def weft_call(*args, timeout=60):
    """The C command, as a user runs it: (exit status, what it said)."""
    if not os.path.exists(COMMAND):
        pytest.skip("the command weft is not built")
    done = subprocess.run([COMMAND, "call", *args], capture_output=True, text=True, timeout=timeout)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.fixture(params=["shm", "tcp"])
def served(request, run):
    """Run an async function with a service and a client of it, each with its runtime, over this transport; nothing may be
    left under way."""
    def go(service, function, **options):
        async def inner():
            async with weft.Runtime(transports=request.param) as left, weft.Runtime(transports=request.param) as right:
                async with service.serve(runtime=right, **options) as server:
                    async with left.client(server.uri, service=service.name) as client:
                        await function(client, server)
                assert server.closed
            assert left.under_way == right.under_way == 0
        run(inner())
    return go


async def nothing_held(server):
    """A request is over when its caller has taken the reply, which the server hears a moment later."""
    async with asyncio.timeout(20):
        while server.stats()["bytes"]:
            await asyncio.sleep(0.001)


def reported(loop):
    """What the loop's exception handler gets from now on."""
    seen = []
    loop.set_exception_handler(lambda loop, context: seen.append(context.get("exception")))
    return seen


def test_values_there_and_back(served):
    service = weft.Service("values")

    @service.function
    def add(a: int, b: weft.i32) -> int:
        return a + b

    @service.function
    async def half(x: float) -> float:
        await asyncio.sleep(0)
        return x / 2

    @service.function
    def swap(a: str, b: bytes, c: bool) -> tuple[bool, bytes, str]:
        assert type(a) is str and type(b) is bytes and type(c) is bool
        return c, b, a

    @service.function
    def nothing() -> None:
        pass

    @service.function
    def total(values: list[float], more: list[weft.u8]) -> float:
        assert type(values) is list
        return sum(values) + sum(more)

    @service.function
    def doubled(values: list[int]) -> list[int]:
        return [2 * v for v in values]

    async def body(client, server):
        assert await client.add(2**40, -7) == 2**40 - 7
        assert await client.half(5.0) == 2.5
        assert await client.swap("grüße", b"\0\xff", True) == (True, b"\0\xff", "grüße")
        assert await client.nothing() is None
        assert await client.total([1.5, 2.5], [1, 2]) == 7.0
        assert list(await client.doubled([1, 2, 3])) == [2, 4, 6]
        assert (await asyncio.gather(*(client.add(i, i) for i in range(500)))) == [2 * i for i in range(500)]
        stats = server.stats()
        assert stats["requests"] == stats["answered"] == 506 and stats["failed"] == stats["under_way"] == 0
    served(service, body)


@pytest.mark.parametrize("size", [0, 10, 5000, 3_000_000])
def test_tensors_come_and_go(served, size):
    service = weft.Service("tensors")
    kept = []

    @service.function
    def scale(image: numpy.ndarray, by: weft.f32) -> numpy.ndarray:
        assert type(image) is numpy.ndarray and image.dtype == numpy.float32
        kept.append(image)
        return image * numpy.float32(by)

    @service.function
    async def same(image: weft.Tensor) -> weft.Tensor:
        return image

    @service.function
    def blob(data: bytes) -> bytes:
        return data[::-1]

    async def body(client, server):
        image = numpy.arange(size, dtype=numpy.float32).reshape(-1, 1)
        assert numpy.array_equal(numpy.asarray(await client.scale(image, 2.0)), image * 2)
        assert numpy.array_equal(numpy.asarray(await client.same(image)), image)
        data = os.urandom(size)
        assert bytes(await client.blob(data)) == data[::-1]
        await nothing_held(server)
    served(service, body)
    gc.collect()
    assert numpy.array_equal(kept[0], numpy.arange(size, dtype=numpy.float32).reshape(-1, 1))  # after the runtime, too
    kept[0][:] = 1


def test_large_arguments_go_where_the_function_says(served):
    service = weft.Service("into")
    buffers = []

    def room(request):
        assert request.fetch_len >= 4_000_000
        buffers.append(numpy.zeros(request.fetch_len, dtype=numpy.uint8))
        return buffers[-1]

    @service.function(into=room)
    def total(values: numpy.ndarray, small: int) -> float:
        assert not len(buffers) or numpy.shares_memory(values, buffers[-1]) or values.nbytes < 1000
        return float(values.sum()) + small

    @service.function(signature="own(values: tensor) -> f64", fetch=True)
    async def own(request: weft.Request) -> float:
        with pytest.raises(weft.StateError, match="fetch"):
            request.args(0)
        with pytest.raises(weft.TruncatedError):
            await request.fetch(bytearray(10))
        buffer = bytearray(request.fetch_len)
        values, = await request.fetch(buffer)
        assert request.fetch_len == 0
        with pytest.raises(weft.StateError, match="here already"):
            request.fetch(buffer)
        return float(numpy.asarray(values)[-1])

    @service.function(signature="never(values: tensor) -> i64", fetch=True)
    def never(request: weft.Request) -> int:
        return request.fetch_len  # the data never moves

    async def body(client, server):
        values = numpy.arange(500_000, dtype=numpy.float64)
        assert await client.total(values, 7) == values.sum() + 7
        assert await client.total(values[:10], 7) == values[:10].sum() + 7
        assert len(buffers) == 1
        assert await client.never(values) >= values.nbytes
        assert await client.own(values) == values[-1]
    served(service, body)


def test_failures_are_what_the_function_raised(served):
    service = weft.Service("failures")

    @service.function
    def plain(what: str) -> int:
        if what == "code":
            raise weft.CallError("NOT_FOUND", "no such thing", category=300, value=-5)
        if what == "class":
            raise weft.codes.PermissionDenied("not you")
        if what == "other":
            raise KeyError("a key")
        if what == "empty":
            raise RuntimeError
        if what == "lone":
            raise ValueError("\ud800")
        return "no number"

    @service.function
    async def later(what: str) -> int:
        await asyncio.sleep(0)
        return plain(what)

    async def body(client, server):
        seen = reported(asyncio.get_running_loop())
        for function in (client.plain, client.later):
            for what, code, message in (("code", "NOT_FOUND", "no such thing"), ("class", "PERMISSION_DENIED", "not you"),
                                        ("other", "UNKNOWN", "KeyError: 'a key'"), ("empty", "UNKNOWN", "RuntimeError"),
                                        ("lone", "UNKNOWN", "ValueError: ?"), ("", "INTERNAL", "the result is 'no number', "
                                                                                               "where i64 is wanted")):
                with pytest.raises(weft.CallError) as error:
                    await function(what)
                assert (error.value.code_name, error.value.ran) == (code, "ran") and message in error.value.message
                assert "Traceback" not in error.value.message and __file__ not in error.value.message
                assert error.value.category == (300 if what == "code" else 0) and error.value.value == (-5 if what == "code"
                                                                                                        else 0)
        assert [type(e).__name__ for e in seen] == ["KeyError", "RuntimeError", "ValueError", "WrongResult"] * 2
        assert seen[0].__traceback__ is not None
        assert server.stats()["failed"] == 12
    served(service, body)


def test_a_function_learns_about_its_request(served):
    service = weft.Service("requests")
    faces = []

    @service.function
    async def ask(request: weft.Request, a: int) -> str:
        faces.append(request)
        assert request.peer["transport"] in ("shm", "tcp") and request.peer["same_host"] and request.peer["name"]
        assert request.signature == "ask(a: i64) -> string" and not request.once and not request.cancelled() and not request.answered
        assert request.left is None if a == 0 else 0 < request.left <= 50
        return repr(request)

    @service.function
    def twice(request: weft.Request) -> int:
        assert request.reply(1) is True and request.answered
        with pytest.raises(weft.StateError, match="answered before"):
            request.reply(2)
        with pytest.raises(weft.StateError, match="answered before"):
            request.fail(5, "no")
        return 3

    async def body(client, server):
        assert await client.ask(0) == "<weft.Request ask>"
        await client.ask(1, timeout=50)
        assert await client.twice() == 1
        face = faces[0]
        assert face.answered and repr(face) == "<weft.Request answered>" and not face.cancelled() and face.left is None
        assert face.peer["same_host"] and face.signature and face.fetch_len == 0
        face.on_cancel = None
        for used in (lambda: face.args(0), lambda: face.fetch(bytearray(3)), lambda: face.reply("x"), lambda: face.fail(1, "x"),
                     lambda: setattr(face, "on_cancel", print)):
            with pytest.raises(weft.StateError):
                used()
        face.release()
    served(service, body)
    assert faces[1].answered and "Request" in repr(faces[1])


def test_oneway_and_numbers(served):
    service = weft.Service("marks")
    lines = []

    @service.function(oneway=True)
    def log(line: str) -> None:
        lines.append(line)

    @service.function(number=77)
    def seventy(a: int) -> int:
        return a + 77

    async def body(client, server):
        await client.log("hello")
        assert await client.seventy(1) == 78
        while not lines:
            await asyncio.sleep(0.001)
        assert lines == ["hello"]
        assert server.functions == ["log(line: string) -> void oneway", "seventy(a: i64) -> i64"]
        assert await client.method("#77")(3) == 80
    served(service, body)


def test_functions_come_and_go(served):
    service = weft.Service("changing")

    @service.function
    def first() -> int:
        return 1

    async def body(client, server):
        def second(a: int) -> int:
            return a
        assert await client.first() == 1
        server.add(second)
        server.add(second, name="third", idempotent=True)
        assert await client.second(5) == 5 and await client.third(6) == 6
        with pytest.raises(weft.StateError):
            server.add(second)
        await server.remove("second")
        with pytest.raises(weft.CallError) as error:
            await client.second(5)
        assert error.value.code_name == "UNIMPLEMENTED"
        with pytest.raises(weft.NotFoundError):
            await server.remove("second")
        server.add(second)
        assert await client.second(7) == 7
        assert service.signatures == ["first() -> i64"]
    served(service, body)


def test_cancelling_reaches_the_function(served):
    service = weft.Service("cancelled")
    heard = []
    begun = asyncio.Event()

    @service.function
    async def sleep() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def body(client, server):
        for how in ("cancel", "deadline"):
            begun.clear()
            call = client.sleep(timeout=1.5 if how == "deadline" else None)
            await begun.wait()
            if how == "cancel":
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                with pytest.raises(weft.TimeoutError):
                    await call
            while not heard:
                await asyncio.sleep(0.001)
            heard.clear()
        while server.stats()["under_way"]:
            await asyncio.sleep(0.001)
        stats = server.stats()
        assert stats["cancelled"] + stats["late"] == 2
    served(service, body)


def test_limits_turn_calls_away(served):
    service = weft.Service("limited")
    go = asyncio.Event()

    @service.function
    async def wait() -> int:
        await go.wait()
        return 1

    @service.function
    def eat(data: bytes) -> int:
        return len(data)

    async def body(client, server):
        calls = [client.wait() for _ in range(3)]
        while server.stats()["under_way"] < 3:
            await asyncio.sleep(0.001)
        with pytest.raises(weft.CallError) as error:
            await client.wait()
        assert error.value.code_name == "RESOURCE_EXHAUSTED" and error.value.ran == "not run"
        go.set()
        assert await asyncio.gather(*calls) == [1, 1, 1]
        for size in (150_000, 3_000_000):
            with pytest.raises(weft.CallError) as error:
                await client.eat(bytes(size))
            assert error.value.code_name == "RESOURCE_EXHAUSTED"
        assert await client.eat(bytes(90_000)) == 90_000
        await nothing_held(server)
    served(service, body, requests=3, bytes=100_000, payload_max=200_000, peer_percent=100)


def test_one_connection_has_its_part_and_others_are_served(served):
    service = weft.Service("shared")
    go = asyncio.Event()

    @service.function
    async def wait() -> int:
        await go.wait()
        return 1

    async def body(client, server):
        calls = [asyncio.ensure_future(client.wait()) for _ in range(4)]
        while sum(call.done() for call in calls) < 2:
            await asyncio.sleep(0.001)
        assert server.stats()["under_way"] == 2
        async with weft.Runtime() as more, more.client(server.uri, service=service.name) as other:
            theirs = asyncio.ensure_future(other.wait())
            while server.stats()["under_way"] < 3:
                await asyncio.sleep(0.001)
            go.set()
            assert await theirs == 1
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(call == 1 for call in ended) == 2
        assert all(call == 1 or call.code_name == "RESOURCE_EXHAUSTED" and call.ran in ("not run", "ran") for call in ended)
    served(service, body, requests=4)
    for wrong in (-1, 101, "half"):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            served(weft.Service("wrong"), body, peer_percent=wrong)


def test_one_connection_has_its_part_of_the_bytes(served):
    service = weft.Service("shared")
    go = asyncio.Event()

    @service.function
    async def hold(data: bytes) -> int:
        await go.wait()
        return len(data)

    async def body(client, server):
        with pytest.raises(weft.CallError) as error:
            await client.hold(bytes(600_000))
        assert error.value.code_name == "RESOURCE_EXHAUSTED"
        first = asyncio.ensure_future(client.hold(bytes(400_000)))
        while server.stats()["bytes"] < 400_000:
            await asyncio.sleep(0.001)
        with pytest.raises(weft.CallError) as error:
            await client.hold(bytes(400_000))
        assert error.value.code_name == "RESOURCE_EXHAUSTED"
        async with weft.Runtime() as more, more.client(server.uri, service=service.name) as other:
            theirs = asyncio.ensure_future(other.hold(bytes(400_000)))
            while server.stats()["bytes"] < 800_000:
                await asyncio.sleep(0.001)
            go.set()
            assert await asyncio.gather(first, theirs) == [400_000] * 2
        assert await client.hold(bytes(400_000)) == 400_000  # what it had is given back
        await nothing_held(server)
    served(service, body, bytes=1_000_000)


def test_draining_lets_calls_end_and_closing_does_not(served):
    service = weft.Service("leaving")
    go = asyncio.Event()
    ended = []

    @service.function
    async def wait() -> int:
        try:
            await go.wait()
            return 1
        finally:
            ended.append(1)

    async def body(client, server):
        call = client.wait()
        while not server.stats()["under_way"]:
            await asyncio.sleep(0.001)
        with pytest.raises(weft.TimeoutError):
            await server.drain(0.05)
        draining = asyncio.ensure_future(server.drain())
        await asyncio.sleep(0)
        with pytest.raises(weft.WeftError):
            await client.wait(timeout=1)
        go.set()
        assert await call == 1
        await draining
        await server.close()
        await server.close()
        assert ended == [1] and "closed" in repr(server)
    served(service, body)


def test_closing_ends_what_is_under_way(served):
    service = weft.Service("closing")
    begun, ended = [], []

    @service.function
    async def wait() -> int:
        begun.append(1)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async def body(client, server):
        calls = [client.wait() for _ in range(20)]
        while server.stats()["under_way"] < 20:
            await asyncio.sleep(0)
        await server.close()  # whether they have begun or not
        assert len(ended) == len(begun) and not server._tasks
        for call in calls:
            with pytest.raises(weft.CallError) as error:
                await call
            assert error.value.code_name == "UNAVAILABLE"
        for used in (server.stats, lambda: server.listen("tcp://127.0.0.1:0"), lambda: server.publish()):
            with pytest.raises(weft.ClosedError):
                used()
    served(service, body)


def test_arguments_of_services_are_checked(run):
    service = weft.Service("checked")

    async def body():
        async with weft.Runtime() as rt:
            for options, error in (({"requests": -1}, OverflowError), ({"instance": "a b"}, weft.InvalidError),
                                   ({"bytes": "x"}, TypeError), ({"nonsense": 1}, TypeError), ({"remember": -1}, ValueError),
                                   ({"threads": -1}, ValueError), ({"threads": "2"}, TypeError)):
                with pytest.raises(error):
                    service.start(rt, **options)
                with weft.blocking.Runtime() as plain, pytest.raises(error):
                    service.start(plain, **options)
            for name in ("weftish", "a b", "", "x" * 64, "a/b", "\u00e4", "a\n"):
                with pytest.raises(weft.InvalidError, match="name"):
                    weft.Service(name)
                with pytest.raises((weft.InvalidError, ValueError)):
                    weft._core.Service(rt, name)  # the library says the same
            with pytest.raises(TypeError):
                service.start(None)
            server = service.start(rt, instance="one")
            assert server.instance == "one" and server.name == "checked"
            with pytest.raises(weft.StateError, match="already"):
                service.start(rt, instance="one")
            with pytest.raises(weft.InvalidError):
                server.listen("tcp://256.1.1.1:0")
            with pytest.raises(TypeError):
                server.listen(7)
            with pytest.raises(weft.StateError):
                server.publish()  # it does not listen
            with pytest.raises(weft.StateError, match="async with"):
                with service.serve(runtime=rt):
                    pass
        assert server.closed
    run(body())


def test_a_bare_core_service_does_no_harm(run):
    async def body():
        core = weft._core.Service.__new__(weft._core.Service)
        for name in ("functions", "stats", "take", "take_cancelled", "drain", "close", "publish"):
            with pytest.raises((weft.ClosedError, weft.StateError)):
                getattr(core, name)()
        core.stop()
        with pytest.raises(weft.ClosedError):
            core.listen("tcp://127.0.0.1:0")
        with pytest.raises(weft.ClosedError):
            core.add("f() -> void", print)
        assert core.closed and core.name == core.instance == "" and core.runtime is None and "closed" in repr(core)
        async with weft.Runtime() as rt:
            core.__init__(rt, "late")
            with pytest.raises(weft.StateError):
                core.__init__(rt, "again")
            with pytest.raises(weft.StateError):
                core.take()
            with pytest.raises(TypeError):
                core.add("f() -> void", 7)
            with pytest.raises(OverflowError):
                core.forget(5)
            await core.close()
    run(body())


def test_what_runs_inside_an_answer_may_end_everything(served):
    """The result is read by code of Python's, which can answer the request, or close the service, meanwhile."""
    service = weft.Service("tricks")
    servers = []

    class Answers:
        def __init__(self, request):
            self.request = request

        def __index__(self):
            if not self.request.answered:
                self.request.reply(42)
            return 1

    class Closes:
        def __index__(self):
            servers[0].abort()
            gc.collect()
            return 1

    @service.function
    def answers(request: weft.Request) -> int:
        return Answers(request)

    @service.function
    def closes(request: weft.Request) -> int:
        return Closes()

    async def body(client, server):
        servers.append(server)
        reported(asyncio.get_running_loop())
        assert await client.answers() == 42
        with pytest.raises(weft.WeftError):
            await client.closes(timeout=5)
    served(service, body)


# --- the C command --------------------------------------------------------------------------------------------------------------


def test_the_c_command_calls_a_service_of_python(run, tmp_path):
    service = weft.Service("mill")

    @service.function(signature="add(a: i32, b: i32) -> i32", idempotent=True)
    def add(a, b):
        return a + b

    @service.function
    async def stats(values: list[float]) -> tuple[float, float]:
        return min(values), max(values)

    @service.function
    def fail() -> None:
        raise weft.codes.NotFound("nothing here")

    registry = f"dir://{tmp_path}"

    async def body():
        async with service.serve(registry=registry, instance="one") as server:
            def call(name, *args):  # it is entered a moment after serve(): the first one waits for that
                return asyncio.to_thread(weft_call, "--wait", "--timeout", "50s", "--registry", registry, f"weft://mill/{name}",
                                         *args)
            assert await call("add", "25", "17") == (0, "42")
            assert await call("stats", "[3, 1, 2]") == (0, "1\n3")
            code, said = await call("fail")
            assert code == 1 and "NOT_FOUND: nothing here" in said
            code, said = await call("nope")
            assert code == 3 and "there is no function" in said
            code, said = await asyncio.to_thread(weft_call, "--list", server.uri)
            assert code == 0 and "add(a: i32, b: i32) -> i32 idempotent" in said and "stats(values: [f64]) -> (f64, f64)" in said
            code, said = await asyncio.to_thread(weft_call, "--list", "--registry", registry)
            assert "mill" in said and "one" in said
        code, said = await asyncio.to_thread(weft_call, "--list", "--registry", registry)
        assert "mill" not in said
    run(body())


async def enter(serving):
    async with serving:
        pass


def test_python_and_the_registry_find_each_other(run, tmp_path):
    service = weft.Service("found")

    @service.function
    def who() -> str:
        return "me"

    async def body():
        async with weft.Runtime() as left, weft.Runtime() as right:
            registry = right.registry(f"dir://{tmp_path}")
            async with service.serve(runtime=right, registry=registry):
                other = left.registry(f"dir://{tmp_path}")
                async with left.client("weft://found", registry=other) as client:
                    assert await client.who(timeout=30) == "me"
                    for used in (registry, other):
                        with pytest.raises(weft.StateError, match="close them first"):
                            used.close()
                await other.close()
            await registry.close()
            with pytest.raises(weft.InvalidError, match="another runtime"):
                await enter(service.serve(runtime=right, registry=left.registry(f"dir://{tmp_path}")))
            with pytest.raises((TypeError, weft.InvalidError)):
                await enter(service.serve(runtime=right, registry=7))
            with pytest.raises(weft.UnsupportedError):
                await enter(service.serve(runtime=right, registry="nonsense://"))
            assert not right._servers
    run(body())


