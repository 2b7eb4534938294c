#@ type: compute
#@ dependents:
#@   - left
#@   - right
#@   - top
"""The first element: text and numbers that must arrive as they are."""


def main(params, action):
    return {
        "value": params.get("start", 5),
        "name": "größe ☃ 𝄞 \u0000 \"quoted\"\n",
        "nested": {"empty": {}, "list": [[], [None, True, False], -0.5, 1e300]},
        "large": 2 ** 53 - 1,
    }
