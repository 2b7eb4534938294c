#@ type: compute
#@ dependents:
#@   - join
#@   - cross
"""Indexes its parent as a list of one result."""


def main(params, action):
    (only,) = params["seed"]
    assert len(params["seed"]) == 1
    return {"value": params["seed"][0]["value"] + 100, "again": params["seed"][-1]["value"] == only["value"]}
