#@ type: compute
#@ parallelism: 3
#@ parents:
#@   - write
#@ dependents:
#@   - reduce
#@ corunning:
#@   text_mem:
#@     trans: text_mem
#@     type: rdma
#@   shuffle_mem:
#@     trans: shuffle_mem
#@     type: rdma
"""Mapper m takes the documents m, m + 3, ... and leaves one slot of [word, document, places] for each reducer."""
import json
import os
import struct
import zlib

SLOT = 512 * 1024
REDUCERS = 2


def main(params, action):
    mapper = int(os.environ["__OW_PAR"])
    documents = params["write"][0]["documents"]
    text = action.get_transport("text_mem", "rdma")
    text.reg(64 * 1024)
    shuffle = action.get_transport("shuffle_mem", "rdma")
    shuffle.reg(SLOT)

    parts = [[] for _ in range(REDUCERS)]
    tokens = 0
    for doc in range(mapper, documents, 3):
        text.read(16, doc * 16)
        addr, length = struct.unpack_from("<QQ", text.buf, 0)
        text.read(length, addr)
        places = {}
        for at, word in enumerate(bytes(text.buf[:length]).decode("utf-8").split()):
            places.setdefault(word, []).append(at)
            tokens += 1
        for word, where in places.items():
            parts[zlib.crc32(word.encode("utf-8")) % REDUCERS].append([word, doc, where])

    for reducer, part in enumerate(parts):
        packed = json.dumps(part).encode("ascii")
        struct.pack_into("<I", shuffle.buf, 0, len(packed))
        shuffle.buf[4:4 + len(packed)] = packed
        shuffle.write(4 + len(packed), (mapper * REDUCERS + reducer) * SLOT)
    return {"mapper": mapper, "tokens": tokens}
