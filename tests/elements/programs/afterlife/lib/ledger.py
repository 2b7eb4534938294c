"""Entries of a fixed size in remote memory: 8 bytes account, 8 bytes amount, 16 bytes text."""
import struct

ENTRY = struct.Struct("<qq16s")


class Ledger:
    def __init__(self, trans, entries):
        self.trans = trans
        # A size that comes out of a division is a float; it has no fraction.
        trans.reg(entries * ENTRY.size * 2 / 2)

    def put(self, at, account, amount, text):
        ENTRY.pack_into(self.trans.buf, at * ENTRY.size, account, amount, text.encode("utf-8"))

    def get(self, at):
        account, amount, text = ENTRY.unpack_from(self.trans.buf, at * ENTRY.size)
        return account, amount, text.rstrip(b"\0").decode("utf-8")

    def save(self, entries):
        self.trans.write(entries * ENTRY.size, 0)

    def load(self, entries):
        self.trans.read(entries * ENTRY.size, 0)
