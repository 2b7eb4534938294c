#@ type: compute
#@ parallelism: 3
#@ dependents:
#@   - fetch
#@ corunning:
#@   stripe:
#@     trans: stripe
#@     type: rdma
"""Copy i fills its own copy of the memory: row i of a matrix of 3 x 300."""
import os
import struct


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    trans = action.get_transport("stripe@%d" % me, "rdma")
    trans.reg(300 * 4)
    for k in range(300):
        struct.pack_into("<I", trans.buf, k * 4, me * 100000 + k * k)
    trans.write(300 * 4, 4096)
    return {"me": me}
