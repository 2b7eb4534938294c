#@ type: compute
#@ dependents:
#@   - verify
#@ corunning:
#@   pool:
#@     trans: pool
#@     type: rdma
"""Fills the pool, asks for two more elements like it while it runs, gives one back, and goes on with the other two."""
import struct


def refused(call, *args):
    """Whether the call raises; which exception it is does not count."""
    try:
        call(*args)
    except Exception:
        return True
    return False


def main(params, action):
    mb = 1024 * 1024
    pool = action.get_transport("pool", "rdma")
    pool.reg(64 * 1024)
    for i in range(16384):
        struct.pack_into("<I", pool.buf, i * 4, i * 2654435761 & 0xFFFFFFFF)
    pool.write(65536, mb - 65536)
    full = refused(pool.write, 65536, mb - 65535)

    action.runtime.invoke("pool", "pool_second")
    second = action.get_transport("pool_second", "rdma")
    second.reg(64 * 1024, pool)
    second.write(65536, 0)
    second_full = refused(second.write, 4, mb)

    action.runtime.invokeMem("pool", "pool_third", "2 MB")
    third = action.get_transport("pool_third", "rdma")
    third.reg(64 * 1024)
    third.buf[:] = bytes(range(256)) * 256
    third.write(65536, 2 * mb - 65536)
    third_full = refused(third.write, 65536, 2 * mb - 65535)

    third.read(65536, 0)
    third_zero = not any(bytes(third.buf))
    second.read(65536, 0)
    kept = struct.unpack_from("<I", pool.buf, 65532)[0]

    action.runtime.release("pool_second")
    gone = [refused(second.read, 4, 0), refused(second.write, 4, 0)]

    third.read(65536, 2 * mb - 65536)
    return {"full": full, "second_full": second_full, "third_full": third_full, "third_zero": third_zero, "kept": kept,
            "gone": gone, "third": bytes(third.buf) == bytes(range(256)) * 256}
