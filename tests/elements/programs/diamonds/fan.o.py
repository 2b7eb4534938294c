#@ type: compute
#@ parallelism: 3
#@ parents: [left, right]
#@ dependents: [join]
"""Three copies below two parents."""
import os


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    return {"me": me, "value": params["left"]["value"] * (me + 1) + params["right"][0]["value"]}
