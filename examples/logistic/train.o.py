#@ type: compute
#@ dependents:
#@   - test
#@ corunning:
#@   data:
#@     trans: data
#@     type: rdma
#@   model:
#@     trans: model
#@     type: rdma
"""Finds the weights by gradient descent over the first four fifths of the data, and leaves them in memory.

`steps` (60 if nothing is said) and `rate` (1.0) are parameters. Each step reads the data batch by batch.
"""
import numpy as np

BATCH = 4096


def main(params, action):
    shape = params["scale"][0]
    columns, rows = shape["columns"], shape["rows"] * 4 // 5
    width = (columns + 1) * 8
    data = action.get_transport("data", "rdma")
    data.reg(BATCH * width)
    weights = np.zeros(columns + 1)
    for _ in range(int(params.get("steps", 60))):
        gradient = np.zeros(columns + 1)
        for at in range(0, rows, BATCH):
            n = min(BATCH, rows - at)
            data.read(n * width, at * width, 0)
            batch = np.frombuffer(data.buf, np.float64, n * (columns + 1)).reshape(n, columns + 1)
            x, y = batch[:, :columns], batch[:, columns]
            wrong = 1 / (1 + np.exp(-(x @ weights[:columns] + weights[columns]))) - y
            gradient[:columns] += wrong @ x
            gradient[columns] += wrong.sum()
        weights -= float(params.get("rate", 1.0)) * gradient / rows
    model = action.get_transport("model", "rdma")
    model.reg(weights.nbytes)
    np.frombuffer(model.buf, np.float64)[:] = weights
    model.write(weights.nbytes, 0, 0)
    return {"rows": rows, "weights": len(weights)}
