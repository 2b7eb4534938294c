#@ type: compute
#@ parents:
#@   - seed
"""Indexes its parent as a bare dict."""


def main(params, action):
    seed = params["seed"]
    return {"value": seed["value"] * 3, "keys": sorted(seed.keys()), "has": "large" in seed, "get": seed.get("missing", "none")}
