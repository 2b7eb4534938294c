#@ type: compute
#@ parents:
#@   - merge_halves
#@ corunning:
#@   half_mem:
#@     trans: half_mem
#@     type: rdma
"""Merges as a stream: it holds two windows of 4 KiB, never a whole half."""
import heapq
import struct
import zlib


def main(params, action):
    trans = action.get_transport("half_mem", "rdma")
    trans.reg(2 * 4096)

    def stream(part, offset):
        at, end = part["at"], part["at"] + part["size"]
        while at < end:
            size = min(4096, end - at)
            trans.read(size, at, offset)
            yield from struct.unpack_from("<%dI" % (size // 4), trans.buf, offset)
            at += size

    halves = params["merge_halves"]
    result = list(heapq.merge(*[stream(half, i * 4096) for i, half in enumerate(halves)]))
    return {
        "count": len(result),
        "first": result[:6],
        "middle": result[len(result) // 2],
        "last": result[-6:],
        "in_order": all(a <= b for a, b in zip(result, result[1:])),
        "crc32": zlib.crc32(struct.pack("<%dI" % len(result), *result)),
    }
