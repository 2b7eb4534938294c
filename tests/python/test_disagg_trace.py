"""What an element tells of its calls on transports, for the launcher's timeline: which, when, how long, how long it waited, and how many
it does not tell; and what its memory peaked at, without that of elements."""
import asyncio
import threading
import time

import pytest

import disagg.element

from elementside import BOUND, action, memory
from test_disagg_element import element  # noqa: F401  the fixture

TOKEN = "token,"


def test_calls_are_recorded_with_their_waits():
    with action("late;rdma_local;") as made:
        made.record(10)
        trans = made.get_transport("late", "rdma")
        trans.reg(64)
        began = time.monotonic_ns()
        timer = threading.Timer(0.3, made.config_transport, ("late", "size,4096;"))
        timer.start()
        trans.write(64, 0)
        trans.read(8, 0)
        with pytest.raises(Exception, match="outside"):
            trans.fetch_add(1 << 20)
        timer.join()
        calls, rows = made._action.recorded()
        assert calls == 3 and [row[:3] for row in rows] == [("late", "write", 64), ("late", "read", 8), ("late", "fetch_add", 0)], rows
        _, _, _, when, took, waited = rows[0]
        assert began <= when <= when + took <= time.monotonic_ns() and 250_000_000 < waited <= took, rows[0]
        assert rows[1][5] == rows[2][5] == 0, rows


def test_awaited_calls_are_among_them():
    with action("mem;rdma_local;size,4096;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        trans.wait_ready(BOUND)
        made.record(10)

        async def main():
            await asyncio.gather(trans.read_async(8, 0), trans.write_async(16, 0))
            await trans.readv_async([(8, 0), (8, 64)])
        asyncio.run(main())
        assert sorted(row[1:3] for row in made.profiled()) == [("read_async", 8), ("readv_async", 16), ("write_async", 16)]


def test_those_that_are_no_longer_kept_are_counted():
    with action("mem;rdma_local;size,4096;") as made:
        assert disagg.element.trace(made) == ([], 0)
        made.record(5)
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        for size in range(1, 9):
            trans.read(size, 0)
        made.profile(-3)
        rows, dropped = disagg.element.trace(made)
        assert dropped == 3 and [row[:3] for row in rows] == [*(["mem", "read", size] for size in (4, 5, 6, 7, 8)), ["", "profile", -3]]
        assert [row[3] for row in rows] == sorted(row[3] for row in rows)


PROGRAM = """
    def main(params, action):
        trans = action.get_transport('words', 'rdma')
        trans.reg(100)
        for _ in range(params['n']):
            trans.write(100, 0)
        action.profile(7)
        return 1
    """


def test_an_element_tells_when_it_is_asked(element):  # noqa: F811
    with memory(4096) as words:
        durl = "words;" + words.durl.split(";", 1)[1]
        said, status, _, err = element().run(PROGRAM, {"n": 1200}, transports=[durl], trace=1000).end()
        assert status == 0, err
        assert [line["did"] for line in said] == ["begin", "trace", "trace", "trace", "trace", "stats", "result"], said
        rows = [row for line in said[1:5] for row in line["rows"]]
        assert [row[:3] for row in rows] == [["words", "write", 100]] * 1000 + [["", "profile", 7]]
        assert max(len(line["rows"]) for line in said[1:5]) <= 500 and said[4]["dropped"] == 200
        assert TOKEN not in str(said) and durl.split(TOKEN)[1].split(";")[0] not in str(said)
        said, status, _, err = element().run(PROGRAM, {"n": 3}, transports=[durl]).end()
        assert [line["did"] for line in said] == ["begin", "stats", "result"], said


def test_calls_of_one_that_fails_are_told(element):  # noqa: F811
    with memory(4096) as words:
        durl = "words;" + words.durl.split(";", 1)[1]
        said, status, _, _ = element().run(PROGRAM.replace("return 1", "return 1 / 0"), {"n": 3}, transports=[durl], trace=10).end()
        assert status == 1 and [line["did"] for line in said] == ["begin", "trace", "stats", "error"] and len(said[1]["rows"]) == 4


def test_memory_of_elements_is_not_in_the_peak(element):  # noqa: F811
    """It has touched all of it, and it has 50 MiB of its own."""
    with memory(256 << 20) as words:
        durl = "words;" + words.durl.split(";", 1)[1]
        said, status, _, err = element().run("""
            def main(params, action):
                own = bytearray(b'x') * (50 << 20)
                trans = action.get_transport('words', 'rdma')
                trans.reg(1 << 20)
                for i in range(256):
                    trans.write(1 << 20, i << 20)
                return trans.stats()['path'], len(own)
            """, transports=[durl]).end()
        assert status == 0 and said[-1]["value"] == ["mapped", 50 << 20], err
        assert 50 << 20 < said[-2]["peak_bytes"] < 200 << 20, said[-2]


def test_memory_of_its_own_is_in_the_peak(element):  # noqa: F811
    said, status, _, err = element().run("""
        def main(params, action):
            own = action.get_transport('own', 'rdma')
            own.reg(1 << 20)
            for i in range(64):
                own.write(1 << 20, i << 20)
        """, transports=["own;rdma_local;size,67108864;"]).end()
    assert status == 0 and said[-2]["peak_bytes"] > 64 << 20, err
