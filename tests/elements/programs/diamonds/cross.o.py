#@ type: compute
#@ parents:
#@   - seed
#@   - right
"""Multiplies the results of two parents, one of which is the parent of the other."""


def main(params, action):
    return {"value": params["seed"]["value"] * params["right"]["value"]}
