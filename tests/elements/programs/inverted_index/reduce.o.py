#@ type: compute
#@ parallelism: 2
#@ parents:
#@   - map
#@ dependents:
#@   - collect
#@ corunning:
#@   shuffle_mem:
#@     trans: shuffle_mem
#@     type: rdma
"""Reducer r reads its slot of every mapper. Of each word it keeps how often it comes and its places in each document."""
import json
import os
import struct

SLOT = 512 * 1024
REDUCERS = 2


def main(params, action):
    reducer = int(os.environ["__OW_PAR"])
    trans = action.get_transport("shuffle_mem", "rdma")
    trans.reg(SLOT)
    index = {}
    for result in params["map"]:
        addr = (result["mapper"] * REDUCERS + reducer) * SLOT
        trans.read(4, addr)
        (length,) = struct.unpack_from("<I", trans.buf)
        trans.read(length, addr + 4, 0)
        for word, doc, where in json.loads(bytes(trans.buf[:length])):
            index.setdefault(word, []).append([doc, len(where)] + where)
    for entries in index.values():
        entries.sort()
    return {"index": index}
