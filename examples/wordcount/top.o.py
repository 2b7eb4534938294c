#@ type: compute
#@ parents:
#@   - count
#@ corunning:
#@   counts:
#@     trans: counts
#@     type: rdma
"""Adds up what the copies of count have found: how many words there are, how many different ones, and the ten most frequent."""
import json
from collections import Counter


def main(params, action):
    counts = action.get_transport("counts", "rdma")
    words = Counter()
    for part in params["count"]:
        counts.reg(part["bytes"])
        counts.read(part["bytes"], part["at"], 0)
        words.update(json.loads(bytes(counts.buf)))
    most = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:10]
    return {"words": words.total(), "different": len(words), "most": most}
