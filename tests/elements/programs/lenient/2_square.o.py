#@ type: compute
#@ parents:
#@   - 1_load
#@ dependents:
#@   - 3_compare
#@ withMerged:
#@   - elem: Compute
#@     action: 2_cube
#@ corunning:
#@   1_out_mem:
#@     trans: 2_square_mem
#@     type: rdma
#@   2_square_mem:
#@     trans: 1_out_mem
#@     type: rdma
"""Squares the numbers. The key `trans` names the wrong element twice; a transport is named after its element all the same."""
import struct


def main(params, action):
    count = params["1_load"]["meta"]["count"]
    source = action.get_transport("1_out_mem", "rdma")
    source.reg(count * 8)
    source.read(count * 8, 0)
    values = struct.unpack("<%dq" % count, source.buf)
    target = action.get_transport("2_square_mem", "rdma")
    target.reg(count * 8)
    struct.pack_into("<%dq" % count, target.buf, 0, *[v * v for v in values])
    target.write(count * 8, 0)
    return {"meta": {"count": count}}
