#@ type: compute
#@ parallelism: 4
#@ corunning:
#@   text:
#@     trans: text
#@     type: rdma
#@   counts:
#@     trans: counts
#@     type: rdma
#@ limits:
#@   mem: 256M
"""Counts the words of one part of the text, and leaves what it found in memory for top: a dictionary of words as JSON, in a place of its own.

Results go through the launcher, memory does not: what is large belongs there.
"""
import json
import os
from collections import Counter

PIECE = 1 << 20
ROOM = 16 << 20  # of each copy, in counts


def main(params, action):
    mine = int(os.environ["__OW_PAR"])
    cuts = params["read"][0]["cuts"]
    text = action.get_transport("text", "rdma")
    text.reg(PIECE)
    words, rest = Counter(), b""
    for at in range(cuts[mine], cuts[mine + 1], PIECE):
        n = min(PIECE, cuts[mine + 1] - at)
        text.read(n, at, 0)
        whole, blank, rest = (rest + bytes(text.buf[:n])).replace(b"\n", b" ").rpartition(b" ")
        words.update((whole + blank).split())
    words.update(rest.split())
    found = json.dumps({word.decode("utf-8", "replace"): n for word, n in words.items()}).encode()
    if len(found) > ROOM:
        raise ValueError(f"{len(words)} different words need {len(found)} bytes, and there is room for {ROOM}")
    counts = action.get_transport("counts", "rdma")
    counts.reg(len(found))
    counts.buf[:] = found
    counts.write(len(found), mine * ROOM, 0)
    return {"at": mine * ROOM, "bytes": len(found)}
