#@ type: compute
#@ dependents:
#@   - worker
#@ corunning:
#@   point_mem:
#@     trans: point_mem
#@     type: rdma
"""Writes 600 points around four centres, as two 32-bit numbers each."""
import struct

CENTRES = [(1000, 1000), (5000, 1500), (3000, 6000), (8000, 7000)]


def main(params, action):
    trans = action.get_transport("point_mem", "rdma")
    trans.reg(600 * 8)
    state = 42
    for i in range(600):
        x, y = CENTRES[i % 4]
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        x += (state >> 12) % 1600 - 800
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        y += (state >> 12) % 1600 - 800
        struct.pack_into("<ii", trans.buf, i * 8, x, y)
    trans.write(600 * 8, 0, 0)
    return {"points": 600}
