#@ type: compute
#@ parents:
#@   - 2_square
#@   - 2_cube
#@ corunning:
#@   2_square_mem:
#@     trans: 2_cube_mem
#@     type: rdma
#@   2_cube_mem:
#@     trans: 2_square_mem
#@     type: rdma
#@   1_out_mem: {}
"""Reads all three memories; each must have its own numbers, whatever `trans` says."""
import struct


def main(params, action):
    sums = {}
    for name in ("1_out_mem", "2_square_mem", "2_cube_mem"):
        trans = action.get_transport(name, "rdma")
        trans.reg(800)
        trans.read(800, 0, 0)
        values = struct.unpack("<100q", trans.buf)
        sums[name] = [values[0], values[99], sum(values)]
    return {"sums": sums, "counts": [params["2_square"][0]["meta"]["count"], params["2_cube"]["meta"]["count"]]}
