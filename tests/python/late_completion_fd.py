"""A completion fd that goes while a thread is about to write to it: test_disagg_async.py runs this in a process of its own,
in which writing takes its time."""
import asyncio
import gc
import sys
import time

from weft import _awaited

from elementside import action, until


def leave_one(trans):
    """A loop that ends too soon: the completion fd it leaves behind, with an operation under way."""
    async def leave():
        trans.read_async(4, 0)
    asyncio.run(leave())
    (_, fd), = _awaited._all
    assert fd.under_way == 1
    return fd


def main():
    for _ in range(int(sys.argv[1])):
        with action("mem;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(8)
            fd = leave_one(trans)
            made.terminate()  # the runtime's thread puts it on its list, and writes
            until(fd.forget, "the end of the operation")
            _awaited._all.clear()
            gc.collect()
            assert sys.getrefcount(fd) == 2, "something else has the completion fd"
            del fd
            time.sleep(0.3)  # so that no descriptor takes the place of the one that is gone


main()
