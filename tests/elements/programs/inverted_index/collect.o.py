#@ type: compute
#@ parents:
#@   - reduce
#@   - map
"""Puts the parts together: a result of about 100 KB."""
import hashlib
import json


def main(params, action):
    index = {}
    for part in params["reduce"]:
        for word in part["index"]:
            assert word not in index, word
        index.update(part["index"])
    counts = {word: sum(entry[1] for entry in entries) for word, entries in index.items()}
    tokens = sum(result["tokens"] for result in params["map"])
    assert tokens == sum(counts.values())
    text = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return {
        "tokens": tokens,
        "top": sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5],
        "sha256": hashlib.sha256(text.encode("ascii")).hexdigest(),
        "index": index,
    }
