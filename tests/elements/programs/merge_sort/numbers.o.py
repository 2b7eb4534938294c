#@ type: compute
#@ dependents:
#@   - sort
#@ corunning:
#@   raw_mem:
#@     trans: raw_mem
#@     type: rdma
"""Writes numbers in disorder, from the parameter `seed`."""
import struct


def main(params, action):
    count = params.get("count", 20000)
    trans = action.get_transport("raw_mem", "rdma")
    trans.reg(count * 4)
    state = params["seed"]
    for i in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        struct.pack_into("<I", trans.buf, i * 4, state)
    trans.write(count * 4, 0)
    return {"count": count}
