#@ type: compute
#@ parallelism: 2
#@ parents:
#@   - store
#@ dependents:
#@   - compare
#@ corunning:
#@   stripe:
#@     trans: stripe
#@     type: rdma
#@   column:
#@     trans: column
#@     type: rdma
"""Copy i reads columns i * 150 to i * 150 + 149 of every stripe and writes them, turned, to its own copy of `column`."""
import os
import struct


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    out = action.get_transport("column@%d" % me, "rdma")
    out.reg(1800)
    for i in range(3):
        part = action.get_transport(f"stripe@{i}", "rdma")
        part.reg(600)
        part.read(600, 4096 + me * 600, 0)
        for k in range(150):
            out.buf[(k * 3 + i) * 4:(k * 3 + i) * 4 + 4] = part.buf[k * 4:k * 4 + 4]
    out.write(1800, 0)
    return {"first": list(struct.unpack_from("<3I", out.buf, 0)), "me": me}
