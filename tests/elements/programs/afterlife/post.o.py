#@ type: compute
#@ dependents:
#@   - balance
#@ corunning:
#@   ledger_mem:
#@     trans: ledger_mem
#@     type: rdma
"""Writes 500 entries, asks for what must fail, and leaves a thread behind that is no daemon."""
import threading
import time

from disagg import *
from ledger import Ledger


def stay():
    time.sleep(1)


def main(params, action):
    assert isinstance(action, LibdAction)
    trans = action.get_transport("ledger_mem", "rdma")
    assert action.get_transport("ledger_mem", "rdma") is trans
    try:
        trans.read(8, 0)
        early = "no error"
    except MemoryError:
        early = "MemoryError"
    errors = []
    for name, kind in (("ledger_mem", "carrier pigeon"), ("no_such_mem", "rdma")):
        try:
            action.get_transport(name, kind)
            errors.append("no error")
        except (KeyError, MemoryError) as error:
            errors.append(type(error).__name__)
    book = Ledger(trans, 500)
    for i in range(500):
        book.put(i, i % 7, (i * 37) % 1001 - 500, "entry %d €" % i)
    book.save(500)
    threading.Thread(target=stay).start()
    return {"entries": 500, "early": early, "errors": errors}
