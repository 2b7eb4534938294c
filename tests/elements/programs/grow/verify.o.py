#@ type: compute
#@ parents:
#@   - driver
#@ corunning:
#@   pool:
#@     trans: pool
#@     type: rdma
"""The pool itself has lived on, and what was written to the others has not touched it."""
import zlib


def main(params, action):
    trans = action.get_transport("pool", "rdma")
    trans.reg(1024 * 1024)
    trans.read(1024 * 1024, 0)
    driver = params["driver"]
    return {"crc32": zlib.crc32(bytes(trans.buf)), "driver": driver[0]}
