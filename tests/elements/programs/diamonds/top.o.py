#@ type: compute
#@ parents:
#@   - seed
#@   - join
#@   - cross
"""The end of all diamonds: it has parents from three levels."""
import json


def main(params, action):
    seed = params["seed"][0]
    return {
        "join": params["join"]["value"],
        "order": params["join"][0]["order"],
        "fan": params["join"]["fan"],
        "parents_of_join": params["join"]["parents"],
        "cross": params["cross"][0]["value"],
        "name": seed["name"],
        "nested": seed["nested"],
        "large": seed["large"],
        "is_list": isinstance(json.loads(json.dumps(params["cross"])), list),
        "sum": params["join"]["value"] + params["cross"]["value"],
    }
