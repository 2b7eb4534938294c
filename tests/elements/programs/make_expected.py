#!/usr/bin/env python3
"""Writes expected.json of every program here: what its last elements return, without Weft and without numpy.

Each function computes one program as directly as the task allows. Run this after a program was changed: python3 make_expected.py
"""
from __future__ import annotations

import hashlib
import json
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).parent


def block_matmul(n: int = 128) -> dict[str, Any]:
    a = [[(i * 7 + j * 3) % 11 - 5 for j in range(n)] for i in range(n)]
    b = [[(i * 5 + j * j) % 13 - 6 for j in range(n)] for i in range(n)]
    columns = list(zip(*b))
    c = [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]
    rows = n // 4
    return {"check": [{
        "n": n,
        "trace": sum(c[i][i] for i in range(n)),
        "block_sums": [sum(sum(row) for row in c[k * rows:(k + 1) * rows]) for k in range(4)],
        "weighted": sum((i + 1) * c[i][j] * (j + 1) for i in range(n) for j in range(n)),
        "corner": [c[0][:3], c[1][:3]],
        "first_row_max": max(c[0]),
    }]}


def lcg(state: int) -> Iterator[int]:
    while True:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        yield state


def inverted_index(words: int = 1500, seed: int = 1) -> dict[str, Any]:
    syllables = ["ka", "lo", "mi", "ru", "ten", "vo", "sha", "el", "ou", "ñe"]
    index: dict[str, list[list[int]]] = {}
    for doc in range(12):
        text = []
        for _, r in zip(range(words), lcg(seed + doc * 101)):
            a, b = (r >> 16) % 10, (r >> 8) % 7
            text.append(syllables[a] + (syllables[b] + syllables[(a + b) % 10] if r & 0x8000 else ""))
        for word in set(text):
            where = [i for i, other in enumerate(text) if other == word]
            index.setdefault(word, []).append([doc, len(where), *where])
    counts = {word: sum(entry[1] for entry in entries) for word, entries in index.items()}
    text_of_index = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return {"collect": [{
        "tokens": 12 * words,
        "top": [[word, counts[word]] for word in sorted(counts, key=lambda w: (-counts[w], w))[:5]],
        "sha256": hashlib.sha256(text_of_index.encode()).hexdigest(),
        "index": {word: index[word] for word in sorted(index)},
    }]}


def kmeans() -> dict[str, Any]:
    spread = lcg(42)
    middle = [(1000, 1000), (5000, 1500), (3000, 6000), (8000, 7000)]
    points = []
    for i in range(600):
        x = middle[i % 4][0] + (next(spread) >> 12) % 1600 - 800
        y = middle[i % 4][1] + (next(spread) >> 12) % 1600 - 800
        points.append((x, y))
    centres = [(0, 0), (9000, 0), (0, 9000), (4000, 4000)]
    before: list[int] = []
    for iterations in range(1, 31):
        owner = []
        for x, y in points:
            distance = [(x - cx) ** 2 + (y - cy) ** 2 for cx, cy in centres]
            owner.append(distance.index(min(distance)))
        groups = [[p for p, o in zip(points, owner) if o == c] for c in range(4)]
        centres = [(sum(x for x, _ in g) // len(g), sum(y for _, y in g) // len(g)) if g else centres[c]
                   for c, g in enumerate(groups)]
        if owner == before:
            break
        before = owner
    return {"report": [{"workers": 3, "iterations": iterations, "centres": [list(c) for c in centres],
                        "sizes": [len(g) for g in groups]}]}


def handover(records: int = 200) -> dict[str, Any]:
    payloads = [bytes((n * 31 + k * k) % 256 for k in range(n * 7 % 241)) for n in range(records)]
    everything = b"".join(payloads)
    return {"audit": [{"records": records, "bytes": len(everything), "chain": zlib.crc32(everything), "agree": True}]}


def merge_sort(seed: int = 2024, count: int = 20000) -> dict[str, Any]:
    state, numbers = seed, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2 ** 32
        numbers.append(state)
    numbers.sort()
    return {"merge_all": [{
        "count": count,
        "first": numbers[:6],
        "middle": numbers[count // 2],
        "last": numbers[-6:],
        "in_order": True,
        "crc32": zlib.crc32(b"".join(n.to_bytes(4, "little") for n in numbers)),
    }]}


def diamonds(start: int = 5) -> dict[str, Any]:
    left, right = start * 3, start + 100
    fan = [left * 1 + right, left * 2 + right, left * 3 + right]
    join, cross = sum(fan) + left + right, start * right
    return {
        "side": [{}],
        "top": [{
            "join": join,
            "order": [0, 1, 2],
            "fan": fan,
            "parents_of_join": ["fan", "left", "right"],
            "cross": cross,
            "name": "größe ☃ 𝄞 \u0000 \"quoted\"\n",
            "nested": {"empty": {}, "list": [[], [None, True, False], -0.5, 1e300]},
            "large": 9007199254740991,
            "is_list": True,
            "sum": join + cross,
        }],
    }


def stripes() -> dict[str, Any]:
    numbers = [i * 100000 + k * k for k in range(300) for i in range(3)]
    return {"compare": [{
        "crc32": zlib.crc32(struct.pack("<900I", *numbers)),
        "last": numbers[-3:],
        "sum": sum(numbers),
        "clean": [True, True, True],
        "firsts": [numbers[0:3], numbers[450:453]],
    }]}


def grow() -> dict[str, Any]:
    numbers = [i * 2654435761 % 2 ** 32 for i in range(16384)]
    pool = bytes(2 ** 20 - 65536) + struct.pack("<16384I", *numbers)
    return {"verify": [{
        "crc32": zlib.crc32(pool),
        "driver": {"full": True, "second_full": True, "third_full": True, "third_zero": True, "kept": numbers[-1],
                   "gone": [True, True], "third": True},
    }]}


def lenient() -> dict[str, Any]:
    values = range(-50, 50)
    sums = {}
    for name, power in (("1_out_mem", 1), ("2_square_mem", 2), ("2_cube_mem", 3)):
        powers = [v ** power for v in values]
        sums[name] = [powers[0], powers[-1], sum(powers)]
    return {"3_compare": [{"sums": sums, "counts": [100, 100]}]}


def afterlife() -> dict[str, Any]:
    accounts = {str(a): sum((i * 37) % 1001 - 500 for i in range(a, 500, 7)) for a in range(7)}
    return {"balance": [{"accounts": accounts, "early": "MemoryError", "errors": ["KeyError", "MemoryError"]}]}


def main() -> None:
    for program in (block_matmul, inverted_index, kmeans, handover, merge_sort, diamonds, stripes, grow, lenient, afterlife):
        path = HERE / program.__name__ / "expected.json"
        path.write_text(json.dumps(program(), separators=(",", ":")) + "\n", encoding="utf-8")


main()
