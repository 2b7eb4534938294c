#@ type: compute
#@ parents:
#@   - left
"""Names one parent itself; `right` and `fan` name this element as their dependent."""


def main(params, action):
    fan = params["fan"]
    return {
        "parents": sorted(k for k in params if k in ("seed", "left", "right", "fan")),
        "fan": [result["value"] for result in fan],
        "order": [result["me"] for result in fan],
        "value": sum(result["value"] for result in fan) + params["left"]["value"] + params["right"]["value"],
    }
