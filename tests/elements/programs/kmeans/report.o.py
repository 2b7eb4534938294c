#@ type: compute
#@ parents:
#@   - worker
"""Every worker must have come to the same centres."""


def main(params, action):
    results = sorted(params["worker"], key=lambda r: r["worker"])
    first = results[0]
    for other in results[1:]:
        for key in ("iterations", "centres", "sizes"):
            assert other[key] == first[key], (key, other[key], first[key])
    return {"workers": len(results), "iterations": first["iterations"], "centres": first["centres"], "sizes": first["sizes"]}
