"""A desk that goes while a thread is about to ring it: test_disagg_async.py runs this in a process of its own, in which ringing takes its time."""
import asyncio
import gc
import sys
import time

from weft import _later

from elementside import action, until


def leave_one(trans):
    """A loop that ends too soon: the desk it leaves behind, with an operation under way."""
    async def leave():
        trans.read_async(4, 0)
    asyncio.run(leave())
    (_, desk), = _later._all
    assert desk.under_way == 1
    return desk


def main():
    for _ in range(int(sys.argv[1])):
        with action("mem;rdma_tcp;") as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(8)
            desk = leave_one(trans)
            made.terminate()  # the runtime's thread puts it on the desk, and rings
            until(desk.forget, "the end of the operation")
            _later._all.clear()
            gc.collect()
            assert sys.getrefcount(desk) == 2, "something else has the desk"
            del desk
            time.sleep(0.3)  # so that no descriptor takes the place of the one that is gone


main()
