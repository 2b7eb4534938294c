#@ type: compute
#@ dependents:
#@   - multiply
#@ limits:
#@   cpu: 1
#@   mem: 128 MB
#@ corunning:
#@   mem_a:
#@     trans: mem_a
#@     type: rdma
#@   mem_b:
#@     trans: mem_b
#@     type: rdma
"""Writes the two factors to remote memory, a block of rows at a time, from one buffer that both transports share."""
import numpy as np


def main(params, action):
    n = int(params.get("n", 128))
    rows = n // 4
    block_bytes = rows * n * 8

    trans_a = action.get_transport("mem_a", "rdma")
    trans_a.reg(block_bytes)
    trans_b = action.get_transport("mem_b", "rdma")
    trans_b.reg(block_bytes, trans_a)

    window = np.asarray(trans_a.buf).view(np.int64).reshape(rows, n)
    j = np.arange(n, dtype=np.int64)
    for block in range(4):
        i = np.arange(block * rows, (block + 1) * rows, dtype=np.int64).reshape(rows, 1)
        window[:] = (i * 7 + j * 3) % 11 - 5
        trans_a.write(block_bytes, block * block_bytes)
        window[:] = (i * 5 + j * j) % 13 - 6
        trans_b.write(block_bytes, addr=block * block_bytes, offset=0)
    return {"n": n, "rows": rows}
