#@ type: compute
#@ dependents:
#@   - map
#@ corunning:
#@   text_mem:
#@     trans: text_mem
#@     type: rdma
"""Writes twelve documents one behind the other. A table in front says where each is: address and length, 8 bytes each."""
import struct

SYLLABLES = ["ka", "lo", "mi", "ru", "ten", "vo", "sha", "el", "ou", "ñe"]


def words(seed, count):
    """Words from a linear congruential generator: short ones come often."""
    state = seed
    for _ in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        a = (state >> 16) % 10
        b = (state >> 8) % 7
        yield SYLLABLES[a] + (SYLLABLES[b] + SYLLABLES[(a + b) % 10] if state & 0x8000 else "")


def main(params, action):
    count = params.get("words", 1500)
    trans = action.get_transport("text_mem", "rdma")
    trans.reg(64 * 1024)
    table = 12 * 16
    addr = table
    for doc in range(12):
        text = " ".join(words(params.get("seed", 1) + doc * 101, count)).encode("utf-8")
        trans.buf[table:table + len(text)] = text
        trans.write(len(text), addr, table)
        struct.pack_into("<QQ", trans.buf, doc * 16, addr, len(text))
        addr += len(text)
    trans.write(table, 0)
    return {"documents": 12, "bytes": addr - table}
