#@ type: compute
#@ dependents:
#@   - count
#@ corunning:
#@   text:
#@     trans: text
#@     type: rdma
#@ limits:
#@   mem: 256M
"""Brings a text into memory that is not this process's: it needs a buffer of 1 MiB, however long the text is.

The text is the file named by the parameter `file`, or so many MiB (`mib`, 32 if nothing is said) of words made up from a seed. The result says
where it was cut for the copies of count: behind a word each time.
"""
import random

PIECE = 1 << 20
PARTS = 4


def made_up(mib):
    """Pieces of text, the same ones every time."""
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(1, 9))) for _ in range(5000)]
    sentence = " ".join(rng.choices(words, weights=[1 / (i + 1) for i in range(len(words))], k=40000)) + "\n"
    left = mib << 20
    while left > 0:
        piece = sentence[:left].encode()
        yield piece
        left -= len(piece)


def from_file(path):
    with open(path, "rb") as f:
        while piece := f.read(PIECE):
            yield piece


def main(params, action):
    text = action.get_transport("text", "rdma")
    text.reg(PIECE)
    size = 0
    pieces = from_file(params["file"]) if "file" in params else made_up(params.get("mib", 32))
    for piece in pieces:
        for at in range(0, len(piece), PIECE):
            part = piece[at:at + PIECE]
            text.buf[:len(part)] = part
            text.write(len(part), size, 0)
            size += len(part)
    return {"size": size, "cuts": cuts(text, size)}


def cuts(text, size):
    """Where parts begin and end: PARTS + 1 places, none of them within a word."""
    places = [0]
    for i in range(1, PARTS):
        at = max(size * i // PARTS, places[-1])
        while at < size:
            n = min(4096, size - at)
            text.read(n, at, 0)
            seen = bytes(text.buf[:n])
            blanks = [p for p in (seen.find(b" "), seen.find(b"\n")) if p >= 0]
            if blanks:
                at += min(blanks)
                break
            at += n
        places.append(at)
    return places + [size]
