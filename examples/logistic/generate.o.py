#@ type: compute
#@ dependents:
#@   - scale
#@ corunning:
#@   data:
#@     trans: data
#@     type: rdma
"""Makes up points in two classes, and writes them to memory: rows of float64, the last column the class.

The parameters `rows` (20000 if nothing is said), `columns` (8) and `seed` (1) say what is made.
"""
import numpy as np

BATCH = 4096  # rows that are in this process at a time


def main(params, action):
    rows, columns, seed = (int(params.get(name, otherwise)) for name, otherwise in (("rows", 20000), ("columns", 8), ("seed", 1)))
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=columns)
    data = action.get_transport("data", "rdma")
    data.reg(BATCH * (columns + 1) * 8)
    width = (columns + 1) * 8
    for at in range(0, rows, BATCH):
        n = min(BATCH, rows - at)
        batch = np.frombuffer(data.buf, np.float64, n * (columns + 1)).reshape(n, columns + 1)  # a view: it is written in place
        batch[:, :columns] = rng.normal(loc=5, scale=3, size=(n, columns))
        batch[:, columns] = (batch[:, :columns] - 5) @ truth + rng.logistic(size=n) > 0
        data.write(n * width, at * width, 0)
    return {"rows": rows, "columns": columns}
