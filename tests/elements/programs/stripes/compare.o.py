#@ type: compute
#@ parents:
#@   - fetch
#@ corunning:
#@   column:
#@     trans: column
#@     type: rdma
#@   stripe:
#@     trans: stripe
#@     type: rdma
"""One element, all copies of both memories. The first 4096 bytes of a stripe were never written: they are zero."""
import struct
import zlib


def main(params, action):
    turned = b""
    clean = []
    for i in range(2):
        trans = action.get_transport("column@%d" % i, "rdma")
        trans.reg(1800)
        trans.read(1800, 0)
        turned += bytes(trans.buf)
    for i in range(3):
        stripe = action.get_transport("stripe@%d" % i, "rdma")
        stripe.reg(4096)
        stripe.read(4096, 0)
        clean.append(not any(bytes(stripe.buf)))
    numbers = struct.unpack("<900I", turned)
    return {
        "crc32": zlib.crc32(turned),
        "last": list(numbers[-3:]),
        "sum": sum(numbers),
        "clean": clean,
        "firsts": [r["first"] for r in sorted(params["fetch"], key=lambda r: r["me"])],
    }
