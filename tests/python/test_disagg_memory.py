"""Memory elements: what they say of themselves, who uses them, how they end."""
import gc

import pytest

import weft
from weft import _core

from elementside import BOUND, action, memory, runtime, until


def test_what_a_memory_element_says():
    with memory(4096, "words", spare=8192) as element:
        parts = _core.durl_parse(element.durl)
        assert (parts["name"], parts["size"]) == ("words", 4096) and len(parts["token"]) >= 16
        assert element.uri.startswith("tcp://127.0.0.1:") and not element.closed
        assert element.stats()["users"] == 0 and element.stats()["used_bytes"] >= 4096
        with action(element.durl) as made:
            trans = made.get_transport("words", "rdma")
            trans.wait_ready(BOUND)
            assert element.stats()["users"] == element.stats()["mapped"] == 1
        until(lambda: element.stats()["users"] == 0)
    for use in (lambda: element.durl, lambda: element.uri, lambda: element.stats()):
        with pytest.raises(weft.ClosedError):
            use()
    element.close()


def test_memory_is_zero_for_every_owner():
    for text in (b"one", b"two"):
        with memory(4096) as element, action(element.durl) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(4096)
            trans.read(4096, 0)
            assert bytes(trans.buf) == bytes(4096)
            trans.buf[:3] = text
            trans.write(4096, 0)


def test_what_is_checked_is_counted():
    with memory(4096, mapped=False) as element, action(element.durl) as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(64)
        trans.read(64, 0)
        trans.write(32, 0)
        with pytest.raises(weft.RangeError):
            trans.batch([("read", 64, 4090)])
        stats = element.stats()
        assert (stats["reads"], stats["writes"], stats["bytes_read"], stats["bytes_written"],
                stats["mapped"]) == (1, 1, 64, 32, 0)


def test_a_named_one_is_reached_without_a_region_key():
    with memory(4096, named=True) as element, action(f"mem;rdma_tcp;size,4096;url,{element.uri};") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        trans.read(8, 0)
    with memory(4096) as element, action(f"mem;rdma_tcp;size,4096;url,{element.uri};timeout_ms,500;") as made:
        trans = made.get_transport("mem", "rdma")
        trans.reg(8)
        with pytest.raises(weft.WeftError):
            trans.read(8, 0)


def test_what_cannot_be_opened():
    with runtime() as own:
        for args in [(own,), (own, "x"), (own, 5, 64), (own, "x", "64"), (own, "x", None, 1)]:
            with pytest.raises(TypeError):
                _core.MemoryElement(*args)
        for name, size, options in [("", 64, {}), ("a;b", 64, {}), ("x" * 500, 64, {}), ("x", 0, {}), ("x", 1.5, {})]:
            with pytest.raises(ValueError):
                _core.MemoryElement(own, name, size, **options)
        with pytest.raises((weft.WeftError, MemoryError)):
            _core.MemoryElement(own, "x", 1 << 62)
        for uri in ("smoke://signals", "tcp://256.0.0.1:0", "tcp://127.0.0.1:999999", ""):
            with pytest.raises((ValueError, OSError)):
                _core.MemoryElement(own, "x", 64, uri=uri)
        with pytest.raises(TypeError):
            _core.MemoryElement(own, "x", 64, colour=1)
        own._close()
        with pytest.raises(weft.ClosedError):
            _core.MemoryElement(own, "x", 64)


def test_one_that_is_forgotten_is_closed():
    with runtime() as own:
        element = _core.MemoryElement(own, "mem", 4096)
        durl = element.durl
        del element
        gc.collect()
        with action(durl[:-1] + ";timeout_ms,300;") as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(8)
            with pytest.raises(weft.WeftError):
                trans.read(8, 0)
