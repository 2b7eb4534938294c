#@ type: compute
#@ parents:
#@   - multiply
#@ limits:
#@   cpu: 1
#@   mem: 128 MB
#@ corunning:
#@   mem_c:
#@     trans: mem_c
#@     type: rdma
"""Reads the whole product in one transfer and says what it is."""
import numpy as np


def main(params, action):
    n = int(params.get("n", 128))
    trans = action.get_transport("mem_c", "rdma")
    trans.reg(n * n * 8)
    trans.read(n * n * 8, 0)
    c = np.frombuffer(trans.buf, dtype=np.int64).reshape(n, n)
    weights = np.arange(1, n + 1, dtype=np.int64)
    blocks = sorted(params["multiply"], key=lambda r: r["block"])
    return {
        "n": n,
        "trace": int(np.trace(c)),
        "block_sums": [r["sum"] for r in blocks],
        "weighted": int(weights @ c @ weights),
        "corner": c[:2, :3].tolist(),
        "first_row_max": int(c[0].max()),
    }
