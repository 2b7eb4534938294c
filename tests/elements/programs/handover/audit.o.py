#@ type: compute
#@ parents:
#@   - producer
#@   - consumer
"""Compares what was made with what was taken."""


def main(params, action):
    made, taken = params["producer"][0], params["consumer"][0]
    return {"records": taken["records"], "bytes": taken["bytes"], "chain": taken["chain"],
            "agree": made["bytes"] == taken["bytes"] and made["records"] == taken["records"]}
