#@ type: compute
#@ parents:
#@   - fill
#@ dependents:
#@   - check
#@ parallelism: 4
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
#@   mem_c:
#@     trans: mem_c
#@     type: rdma
"""Copy number i makes block row i of the product: it keeps its rows of A, and reads B one block of rows after the other."""
import os

import numpy as np


def main(params, action):
    shape = params["fill"][0]
    n, rows = shape["n"], shape["rows"]
    mine = int(os.environ["__OW_PAR"])
    block_bytes = rows * n * 8

    trans_a = action.get_transport("mem_a", "rdma")
    trans_a.reg(block_bytes)
    trans_b = action.get_transport("mem_b", "rdma")
    trans_b.reg(2 * block_bytes)
    trans_c = action.get_transport("mem_c", "rdma")
    trans_c.reg(block_bytes)

    trans_a.read(block_bytes, mine * block_bytes)
    a = np.frombuffer(trans_a.buf, dtype=np.int64).reshape(rows, n)
    c = np.asarray(trans_c.buf).view(np.int64).reshape(rows, n)
    c[:] = 0
    for block in range(4):
        half = (block % 2) * block_bytes
        trans_b.read(block_bytes, block * block_bytes, half)
        b = np.frombuffer(trans_b.buf, dtype=np.int64, count=rows * n, offset=half).reshape(rows, n)
        c += a[:, block * rows:(block + 1) * rows] @ b
    trans_c.write(block_bytes, mine * block_bytes)
    return {"block": mine, "sum": int(c.sum())}
