#@ type: compute
#@ parallelism: 4
#@ parents:
#@   - numbers
#@ dependents:
#@   - merge_halves
#@ corunning:
#@   raw_mem:
#@     trans: raw_mem
#@     type: rdma
#@   run_mem:
#@     trans: run_mem
#@     type: rdma
"""Sorts a quarter. What one transport reads the other writes: both have the same buffer, and nothing is copied in between."""
import os
import struct


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    share = params["numbers"][0]["count"] // 4
    size = share * 4
    source = action.get_transport("raw_mem", "rdma")
    source.reg(size)
    target = action.get_transport("run_mem", "rdma")
    target.reg(size, source)

    source.read(size, me * size)
    numbers = struct.unpack("<%dI" % share, target.buf[:size])
    struct.pack_into("<%dI" % share, source.buf, 0, *sorted(numbers))
    target.write(size, me * size)
    return {"at": me * size, "size": size}
