"""Services in threads: of a blocking runtime, and beside an event loop."""
import asyncio
import logging
import os
import subprocess
import threading
import time

import numpy
import pytest

import weft
import weft.blocking
from test_service import COMMAND, served, weft_call  # noqa: F401  (a fixture)

BOUND = 60


def until(condition):
    """Wait for it, within the bound."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


@pytest.fixture(params=["shm", "tcp"])
def threaded(request):
    """Run a function with a service in threads and a client of it."""
    def go(service, function, **options):
        with weft.blocking.Runtime(transports=request.param) as here, weft.blocking.Runtime(transports=request.param) as there:
            with service.serve(runtime=there, **options) as server, here.client(server.uri, service=service.name) as client:
                function(client, server)
            assert server.closed
        assert not [t for t in threading.enumerate() if t.name.startswith(f"weft-{service.name}")]
    return go


def beside(function, *args, **kw):
    """Run it in a thread; what waits for it gives what it gave, or raises what it raised."""
    result = []

    def run():
        try:
            result.append((function(*args, **kw), None))
        except BaseException as error:
            result.append((None, error))
    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(BOUND)
        assert result, "the thread hangs"
        if result[0][1] is not None:
            raise result[0][1]
        return result[0][0]
    return wait


def test_functions_of_every_kind(threaded):
    service, names = weft.Service("kinds"), set()

    @service.function
    def plain(a: int, b: int) -> int:
        names.add(threading.current_thread().name)
        return a + b

    @service.function
    async def coroutine(x: float) -> float:
        await asyncio.sleep(0.001)
        return x * 2

    @service.function
    def array(values: numpy.ndarray) -> numpy.ndarray:
        return values + 1

    @service.function
    def who(request: weft.Request) -> str:
        return f"{request.peer['same_host']} {request.left} {request.cancelled()}"

    def body(client, server):
        for i in range(200):
            assert client.plain(i, 1) == i + 1
        assert all(name.startswith("weft-kinds-") for name in names)
        assert client.coroutine(1.5) == client.coroutine(1.5) == 3.0
        for size in (3, 100_000):
            assert numpy.array_equal(numpy.asarray(client.array(numpy.arange(size))), numpy.arange(size) + 1)
        assert client.who() == "True None False"
        waits = [beside(client.plain, i, i) for i in range(20)]
        assert [wait() for wait in waits] == [2 * i for i in range(20)]
        # a reply is there before its thread has let go
        until(lambda: server.stats()["under_way"] == server.stats()["waiting"] == 0)
    threaded(service, body, threads=4)


def test_a_slow_function_does_not_stop_the_rest(threaded):
    service, go = weft.Service("slow"), threading.Event()

    @service.function
    def slow() -> int:
        assert go.wait(BOUND)
        return 1

    @service.function
    def fast() -> int:
        return 2

    def body(client, server):
        wait = beside(client.slow)
        until(lambda: server.stats()["under_way"])
        assert [client.fast() for _ in range(100)] == [2] * 100
        go.set()
        assert wait() == 1
    threaded(service, body, threads=2)


def test_a_full_queue_turns_calls_away(threaded):
    service, begun, go = weft.Service("queue"), threading.Event(), threading.Event()

    @service.function
    def wait() -> int:
        begun.set()
        assert go.wait(BOUND)
        return 1

    def body(client, server):
        first = beside(client.wait)
        assert begun.wait(BOUND)
        more = [beside(client.wait) for _ in range(2)]
        until(lambda: server.stats()["waiting"] == 2)
        with pytest.raises(weft.CallError) as error:
            client.wait()
        assert error.value.code_name == "RESOURCE_EXHAUSTED"
        go.set()
        assert [first(), *(w() for w in more)] == [1, 1, 1]
    threaded(service, body, threads=1, queue=2, peer_percent=100)


def test_one_connection_has_its_part_of_the_queue(threaded):
    service, begun, go = weft.Service("queue"), threading.Event(), threading.Event()

    @service.function
    def wait() -> int:
        begun.set()
        assert go.wait(BOUND)
        return 1

    def body(client, server):
        first = beside(client.wait)
        assert begun.wait(BOUND)
        more = [beside(client.wait) for _ in range(2)]
        until(lambda: server.stats()["waiting"] == 2)
        with pytest.raises(weft.CallError) as error:
            client.wait()
        assert error.value.code_name == "RESOURCE_EXHAUSTED"
        with weft.blocking.Runtime() as rt, rt.client(server.uri, service=service.name) as other:
            theirs = beside(other.wait)
            until(lambda: server.stats()["waiting"] == 3)
            go.set()
            assert [first(), theirs(), *(w() for w in more)] == [1] * 4
        assert client.wait() == 1  # what it had is given back
    threaded(service, body, threads=1, queue=4)


def test_cancelled_calls_are_told_in_threads(threaded):
    service, heard, begun = weft.Service("told"), [], threading.Event()

    @service.function
    def polls(request: weft.Request) -> None:
        begun.set()
        until(request.cancelled)
        heard.append("polls")

    @service.function
    def told(request: weft.Request) -> None:
        over = threading.Event()
        request.on_cancel = lambda r: over.set()
        begun.set()
        assert over.wait(BOUND)
        heard.append("told")

    @service.function
    async def coroutine() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("coroutine")
            raise

    @service.function
    def fails_when_told(request: weft.Request) -> None:
        request.on_cancel = lambda r: 1 / 0
        begun.set()
        until(request.cancelled)
        heard.append("fails_when_told")

    def body(client, server):
        for name in ("polls", "told", "coroutine", "fails_when_told", "told"):
            begun.clear()
            with pytest.raises(weft.TimeoutError):
                getattr(client, name)(timeout=0.2)
            assert begun.wait(BOUND)
            until(lambda: heard)
            assert heard == [name]
            heard.clear()
        until(lambda: not server.stats()["under_way"])
        assert server.stats()["late"] + server.stats()["cancelled"] == 5
    threaded(service, body, threads=2)


def test_failures_go_to_the_log_and_their_text_to_the_caller(threaded, caplog):
    service = weft.Service("logged")

    @service.function
    def fails(how: int) -> int:
        if how == 0:
            raise weft.codes.Aborted("mine")
        if how == 1:
            raise KeyError("oh")
        if how == 2:
            raise SystemExit(3)
        return "x"

    def body(client, server):
        with caplog.at_level(logging.ERROR, logger="weft"):
            for how, code in ((0, "ABORTED"), (1, "UNKNOWN"), (2, "UNKNOWN"), (3, "INTERNAL")):
                with pytest.raises(weft.CallError) as error:
                    client.fails(how)
                assert error.value.code_name == code
            until(lambda: len(caplog.records) == 3)
        assert [record.exc_info[0].__name__ for record in caplog.records] == ["KeyError", "SystemExit", "WrongResult"]
    threaded(service, body, threads=1)  # and the thread lives on


def test_closing_while_calls_wait_and_run(threaded):
    service, begun = weft.Service("ending"), threading.Event()

    @service.function
    def wait(request: weft.Request) -> int:
        begun.set()
        until(request.cancelled)
        return 1

    def body(client, server):
        waits = [beside(client.wait) for _ in range(6)]
        assert begun.wait(BOUND)
        until(lambda: server.stats()["under_way"] == 6 and server.stats()["waiting"] == 4)  # of five, four may wait for a moment
        server.close(BOUND)
        for wait in waits:
            with pytest.raises(weft.CallError) as error:
                wait()
            assert error.value.code_name == "UNAVAILABLE"
        server.close()
        assert server.closed
    threaded(service, body, threads=2)


def test_closing_tells_those_that_wait_for_it(threaded):
    service, begun, heard = weft.Service("told"), threading.Semaphore(0), []

    @service.function
    def told(request: weft.Request) -> None:
        over = threading.Event()
        request.on_cancel = lambda r: over.set()
        begun.release()
        heard.append(over.wait(BOUND))

    @service.function
    async def coroutine() -> None:
        begun.release()
        try:
            await asyncio.sleep(BOUND)
        except asyncio.CancelledError:
            heard.append(True)
            raise

    def body(client, server):
        waits = [beside(client.told), beside(client.coroutine)]
        for _ in waits:
            assert begun.acquire(timeout=BOUND)
        server.close(BOUND)
        for wait in waits:
            with pytest.raises(weft.CallError) as error:
                wait()
            assert error.value.code_name == "UNAVAILABLE"
        until(lambda: len(heard) == 2)
        assert heard == [True, True]
    threaded(service, body, threads=2)


def test_a_function_that_does_not_end_does_not_hold_up_the_end(threaded):
    service, go, begun, late = weft.Service("stubborn"), threading.Event(), threading.Event(), []

    @service.function
    def stays(request: weft.Request) -> int:
        begun.set()
        go.wait(BOUND)
        late.append(request.cancelled())
        return 1

    def body(client, server):
        wait = beside(client.stays)
        assert begun.wait(BOUND)
        with pytest.raises(weft.TimeoutError):
            server._core.close(0.05)
        with pytest.raises(weft.CallError):
            wait()
        go.set()
        until(lambda: late)
        assert late == [True]
    threaded(service, body, threads=1)


def test_the_runtime_closes_under_running_functions():
    service, go, begun, seen = weft.Service("under"), threading.Event(), threading.Event(), []

    @service.function
    def stays(request: weft.Request) -> int:
        begun.set()
        go.wait(BOUND)
        seen.append((request.cancelled(), request.answered, repr(request), request.left))
        for used in (lambda: request.reply(1), lambda: request.args(0), lambda: setattr(request, "on_cancel", print)):
            with pytest.raises(weft.WeftError):
                used()
        return 1

    with weft.blocking.Runtime() as here:
        there = weft.blocking.Runtime()
        server = service.start(there, threads=1)
        client = here.client(server.listen("tcp://127.0.0.1:0"))
        wait = beside(client.stays)
        assert begun.wait(BOUND)
        there._close()  # as nobody should: its services are not asked
        with pytest.raises(weft.WeftError):
            wait()
        go.set()
        until(lambda: seen)
        assert seen[0][0] is True
        server.close()
        assert server.closed
        client.close()


def test_driven_by_its_callers_it_would_hear_nothing():
    with weft.blocking.Runtime(progress="caller") as rt:
        with pytest.raises(weft.StateError, match="progress=\"thread\""):
            weft.Service("x").start(rt)
        with pytest.raises(weft.StateError, match="`with`"):
            asyncio.run(entered(weft.Service("x").serve(runtime=rt)))


async def entered(serving):
    async with serving:
        pass


def test_functions_beside_the_loop(served):
    service, threads = weft.Service("beside"), []

    @service.function
    def in_thread(a: int) -> int:
        threads.append(threading.current_thread() is threading.main_thread())
        return a

    @service.function(thread=False)
    def in_loop(a: int) -> int:
        threads.append(threading.current_thread() is threading.main_thread())
        return a

    @service.function
    def polls(request: weft.Request) -> int:
        until(request.cancelled)
        threads.append("polled")
        return 1

    async def body(client, server):
        assert await client.in_thread(1) == 1 and await client.in_loop(2) == 2
        assert threads == [False, True]
        with pytest.raises(weft.TimeoutError):
            await client.polls(timeout=0.1)
        while server.stats()["under_way"]:
            await asyncio.sleep(0.001)
        assert threads[-1] == "polled"
    served(service, body, threads=2)


def test_a_function_in_a_thread_by_itself(served):
    service, go = weft.Service("single"), threading.Event()

    @service.function(thread=True)
    def slow() -> bool:
        assert go.wait(BOUND)
        return threading.current_thread() is threading.main_thread()

    @service.function
    def fast() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def body(client, server):
        call = client.slow()
        assert await client.fast() is True
        go.set()
        assert await call is False
    served(service, body)


SERVER = """
import sys, weft
service = weft.Service("forever")

@service.function
def pid() -> int:
    import os
    return os.getpid()

service.serve_forever(threads=2, ready=lambda server: print(server.uri, flush=True))
print("over", flush=True)
"""


@pytest.mark.parametrize("how", ["TERM", "INT"])
def test_serve_forever_ends_with_a_signal(child, how):
    import signal
    process = child(SERVER, stderr=subprocess.STDOUT)
    uri = process.stdout.readline().strip()
    code, said = weft_call(f"{uri}#forever/pid")
    assert (code, said) == (0, str(process.pid))
    process.send_signal(getattr(signal, "SIG" + how))
    out, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, out) == (0, "over\n")
    assert os.path.exists(COMMAND)


def test_serve_forever_refuses_what_makes_no_sense():
    service = weft.Service("never")
    with pytest.raises(ValueError, match="threads is -1"):
        service.serve_forever(threads=-1)

    async def inside():
        service.serve_forever()
    with pytest.raises(RuntimeError, match="async with service.serve"):
        asyncio.run(inside())


def test_serve_forever_says_where(child):
    import signal
    process = child(SERVER.replace(", ready=lambda server: print(server.uri, flush=True)", ""), stderr=subprocess.PIPE)
    line = process.stderr.readline()
    assert line.startswith("weft: service forever at tcp://127.0.0.1:"), line
    code, said = weft_call(f"{line.split()[4].rstrip(';')}#forever/pid")
    assert (code, said) == (0, str(process.pid))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=BOUND)[0] == "over\n"


def test_who_waits_for_cancelled_requests_ends_with_the_runtime_whatever_is_kept():
    here, there = weft.blocking.Runtime(), weft.blocking.Runtime()
    service = weft._core.Service(there, "kept")
    service.add("hold(a: i64) -> i64", lambda request: None)
    client = here.client(service.listen("tcp://127.0.0.1:0"), service="kept", timeout=0.2)
    call = beside(lambda: pytest.raises(weft.WeftError, client.hold, 1))
    _, request = service.take()
    waits = threading.Thread(target=service.take_cancelled, daemon=True)
    waits.start()
    there.close()
    waits.join(BOUND)
    assert not waits.is_alive() and request is not None
    call()
    here.close()
