#@ type: compute
#@ corunning:
#@   data:
#@     trans: data
#@     type: rdma
#@   model:
#@     trans: model
#@     type: rdma
"""How often the weights are right about the last fifth of the data, which train has not seen."""
import numpy as np


def main(params, action):
    shape, trained = params["scale"][0], params["train"][0]
    columns, rows = shape["columns"], shape["rows"]
    width = (columns + 1) * 8
    model = action.get_transport("model", "rdma")
    model.reg(trained["weights"] * 8)
    model.read(trained["weights"] * 8, 0, 0)
    weights = np.frombuffer(model.buf, np.float64)
    data = action.get_transport("data", "rdma")
    data.reg((rows - trained["rows"]) * width)
    data.read((rows - trained["rows"]) * width, trained["rows"] * width, 0)
    seen = np.frombuffer(data.buf, np.float64).reshape(-1, columns + 1)
    right = ((seen[:, :columns] @ weights[:columns] + weights[columns] > 0) == (seen[:, columns] > 0.5)).mean()
    return {"tested": len(seen), "accuracy": round(float(right), 4), "weights": [round(float(w), 6) for w in weights]}
