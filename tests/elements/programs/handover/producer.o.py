#@ type: compute
#@ dependents:
#@   - audit
#@ corunning:
#@   ring:
#@     trans: ring
#@     type: rdma
"""Writes records to a ring of 8 slots. The first 8 bytes of the memory: records written; the next 8: records taken."""
import struct
import time
import zlib

SLOTS = 8
SLOT = 256
BASE = 64
HEADER = struct.Struct("<IIQ")  # number, length, checksum


def main(params, action):
    count = params.get("records", 200)
    trans = action.get_transport("ring", "rdma")
    trans.reg(BASE + SLOT)
    taken = 0
    sum_of_lengths = 0
    until = time.monotonic() + 60
    for number in range(count):
        while number - taken >= SLOTS:
            trans.read(8, 8, 8)
            (taken,) = struct.unpack_from("<Q", trans.buf, 8)
            if number - taken >= SLOTS:
                if time.monotonic() > until:
                    raise RuntimeError("the consumer took nothing for 60 seconds")
                time.sleep(0.0005)
        payload = bytes((number * 31 + k * k) & 0xFF for k in range(number * 7 % 241))
        HEADER.pack_into(trans.buf, BASE, number, len(payload), zlib.crc32(payload))
        trans.buf[BASE + HEADER.size:BASE + HEADER.size + len(payload)] = payload
        trans.write(HEADER.size + len(payload), BASE + (number % SLOTS) * SLOT, BASE)
        struct.pack_into("<Q", trans.buf, 0, number + 1)
        trans.write(8, 0, 0)
        sum_of_lengths += len(payload)
    return {"records": count, "bytes": sum_of_lengths}
