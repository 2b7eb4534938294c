#@ type: compute
#@ version: 3
#@ colour: blue
#@ limits:
#@   cpu: 1
#@   mem: 64
#@   gpu: 0
#@ dependents:
#@   - 2_square
#@   - 2_cube
#@   - 1_out_mem
#@ corunning:
#@   - 1_out_mem
"""Writes a hundred numbers. The head has keys that nobody knows."""
import struct


def main(params, action):
    trans = action.get_transport("1_out_mem", "rdma")
    trans.reg(100 * 8)
    for i in range(100):
        struct.pack_into("<q", trans.buf, i * 8, i - 50)
    trans.write(100 * 8, 0)
    return {"meta": {"count": 100}}
