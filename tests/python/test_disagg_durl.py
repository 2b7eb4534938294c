"""durls: read, written, hostile; and what actions make of them."""
import random

import pytest

import weft
from weft import _core

from elementside import action, memory

GOOD = "mem;rdma_tcp;size,65536;url,tcp://127.0.0.1:4000;token,00ff10;timeout_ms,250;"


def test_a_durl_is_taken_apart_and_put_together():
    parts = _core.durl_parse(GOOD)
    assert parts == {"name": "mem", "impl": "rdma_tcp", "size": 65536, "url": "tcp://127.0.0.1:4000", "token": b"\0\xff\x10",
                     "timeout_ms": 250}
    assert _core.durl_parse(_core.durl_format(parts)) == parts
    assert _core.durl_parse("a;rdma_uverbs_server;size,64k") == {"name": "a", "impl": "rdma_uverbs_server", "size": 65536}
    many = {"name": "m", "impl": "rdma_tcp", "size": 4096, "replicas": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]}
    assert _core.durl_parse(_core.durl_format(many)) == many
    for impl in ("rdma_local", "rdma_shared", "rdma_tcp", "rdma_uverbs", "rdma_local_server", "rdma_shared_server",
                 "rdma_tcp_server",
                 "rdma_uverbs_server", "rdma_uverbs_proxy"):
        assert _core.durl_parse(f"x;{impl};")["impl"] == impl


def test_none_is_what_a_durl_does_not_have():
    parts = {"name": "a", "impl": "rdma_tcp", "size": None, "url": None, "token": None, "replicas": None, "timeout_ms": 5}
    assert _core.durl_parse(_core.durl_format(parts)) == {"name": "a", "impl": "rdma_tcp", "timeout_ms": 5}


BAD = ["", ";", "mem", "mem;", "mem;smoke;", ";rdma_tcp;", "mem;rdma_tcp;size", "mem;rdma_tcp;size,", "mem;rdma_tcp;size,-1;",
       "mem;rdma_tcp;size,1e9;", "mem;rdma_tcp;size,99999999999999999999;", "mem;rdma_tcp;colour,red;",
       "mem;rdma_tcp;size,1;size,2;",
       "mem;rdma_tcp;token,xyz;",
       "mem;rdma_tcp;token,0;", "mem;rdma_tcp;url," + "x" * 600 + ";", "m" * 200 + ";rdma_tcp;", "mem;rdma_tcp;"
       + "size,1;" * 2000,
       "mem;rdma_tcp;replicas,a|b|c|d|e;", "mem;rdma_uverbs_proxy_server;", "\x01;rdma_tcp;", "mem;rdma_tcp;token,"
       + "00" * 5000 + ";"]


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused_with_a_sentence(text):
    with action("there;rdma_tcp;") as made:
        try:
            _core.durl_parse(text)
        except ValueError as error:
            assert len(str(error)) > 10
            with pytest.raises(ValueError):
                made.add_transport(text)
        with pytest.raises((ValueError, LookupError)):
            made.config_transport("there", text)
        assert made.get_transport("there", "rdma").state == "waiting"


@pytest.mark.parametrize("text", [None, 5, b"mem;rdma_tcp;", object()])
def test_what_is_no_text_is_a_type_error(text):
    with action() as made:
        for call in (_core.durl_parse, made.add_transport, lambda t: made.config_transport("x", t),
                     lambda t: made.config_transport(t, GOOD)):
            with pytest.raises(TypeError):
                call(text)
    with action() as made, pytest.raises(ValueError, match="NUL"):
        made.add_transport("mem\0;rdma_tcp;")


def test_half_a_letter_is_refused():
    with action() as made:
        for call in (_core.durl_parse, made.add_transport):
            with pytest.raises(ValueError):
                call("m\udc80;rdma_tcp;")


@pytest.mark.parametrize("parts", [{}, {"name": "a"}, {"impl": "rdma_tcp"}, {"name": "a", "impl": "smoke"},
                                   {"name": "a;b", "impl": "rdma_tcp"},
                                   {"name": "a", "impl": "rdma_tcp", "url": "x;y"},
                                   {"name": "a", "impl": "rdma_tcp", "colour": 1},
                                   {"name": "x" * 999, "impl": "rdma_tcp"},
                                   {"name": "a", "impl": "rdma_tcp", "token": bytes(9999)},
                                   {"name": "a", "impl": "rdma_tcp", "replicas": ["x"] * 9},
                                   {"name": "a\0b", "impl": "rdma_tcp"}])
def test_what_cannot_be_read_back_is_not_written(parts):
    with pytest.raises(ValueError):
        _core.durl_format(parts)


@pytest.mark.parametrize("parts", [None, 3, "x", [], {"name": 1, "impl": "rdma_tcp"}, {1: 2},
                                   {"name": "a", "impl": "rdma_tcp", "token": "00"},
                                   {"name": "a", "impl": "rdma_tcp", "replicas": 5},
                                   {"name": "a", "impl": "rdma_tcp", "size": "1"}])
def test_what_is_no_durl_is_a_type_error(parts):
    with pytest.raises(TypeError):
        _core.durl_format(parts)


def test_durls_that_were_damaged_never_crash():
    rng = random.Random(7)
    with memory(4096) as element, action() as made:
        good = element.durl
        for i in range(400):
            text = list(good)
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(text))
                what = rng.randrange(3)
                if what == 0:
                    text[at] = chr(rng.choice([0x20, 0x3b, 0x2c, 0x7c, 0x41, 0x00, 0xe9, 0x10ffff, rng.randrange(32, 127)]))
                elif what == 1:
                    del text[at]
                else:
                    text[at:at] = text[rng.randrange(len(text)):][:rng.randrange(1, 20)]
            damaged = f"n{i}" + "".join(text)[3:]
            try:
                made.add_transport(damaged)
                name = _core.durl_parse(damaged)["name"]
                trans = made.get_transport(name, "rdma" if "_server;" not in damaged else "rdma_server")
                trans.reg(64)
                trans.read(8, 0, timeout=0.001)
            except (ValueError, KeyError, MemoryError, OSError, weft.WeftError):
                pass


def test_a_wrong_region_key_opens_nothing():
    with memory(4096) as element:
        parts = _core.durl_parse(element.durl)
        key = bytearray(parts["token"])
        for at in (0, len(key) // 2, len(key) - 1):
            wrong = bytes(key[:at]) + bytes([key[at] ^ 1]) + bytes(key[at + 1:])
            with action() as made:
                try:
                    made.add_transport(_core.durl_format({**parts, "token": wrong, "timeout_ms": 500}))
                except ValueError:
                    continue
                trans = made.get_transport("mem", "rdma")
                trans.reg(64)
                trans.buf[:4] = b"evil"
                with pytest.raises(weft.WeftError):
                    trans.write(4, 0)
        with action(element.durl) as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(64)
            trans.read(64, 0)
            assert bytes(trans.buf) == bytes(64)
