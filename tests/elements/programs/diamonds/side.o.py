#@ type: compute
#@ parents: [cross]
"""A second end of the graph. It returns an empty object."""


def main(params, action):
    assert params["cross"]["value"] > 0
    return {}
