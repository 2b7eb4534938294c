#@ type: compute
#@ dependents:
#@   - audit
#@ corunning:
#@   ring:
#@     trans: ring
#@     type: rdma
"""Takes every record once and in order, while the producer still writes."""
import struct
import time
import zlib

SLOTS = 8
SLOT = 256
BASE = 64
HEADER = struct.Struct("<IIQ")


def main(params, action):
    count = params.get("records", 200)
    trans = action.get_transport("ring", "rdma")
    trans.reg(BASE + SLOT)
    written = 0
    total = 0
    chain = 0
    until = time.monotonic() + 60
    for number in range(count):
        while written <= number:
            trans.read(8, addr=0)
            (written,) = struct.unpack_from("<Q", trans.buf, 0)
            if written <= number:
                if time.monotonic() > until:
                    raise RuntimeError("the producer wrote nothing for 60 seconds")
                time.sleep(0.0005)
        trans.read(SLOT, addr=BASE + (number % SLOTS) * SLOT, offset=BASE)
        got, length, crc = HEADER.unpack_from(trans.buf, BASE)
        payload = bytes(trans.buf[BASE + HEADER.size:BASE + HEADER.size + length])
        if got != number or zlib.crc32(payload) != crc:
            raise ValueError("record %d is damaged: number %d, length %d" % (number, got, length))
        total += length
        chain = zlib.crc32(payload, chain)
        struct.pack_into("<Q", trans.buf, 8, number + 1)
        trans.write(8, 8, 8)
    return {"records": count, "bytes": total, "chain": chain}
