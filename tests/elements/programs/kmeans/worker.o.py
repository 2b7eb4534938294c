#@ type: compute
#@ parallelism: 3
#@ parents:
#@   - points
#@ dependents:
#@   - report
#@ corunning:
#@   point_mem:
#@     trans: point_mem
#@     type: rdma
#@   board_mem:
#@     trans: board_mem
#@     type: rdma
"""All workers run at the same time. Each has a third of the points; all compute the same centres from the sums of all."""
import os
import struct
import time

WORKERS = 3
CLUSTERS = 4
SLOT = 256
FIRST_SLOT = 64
ROW = struct.Struct("<qqqq")  # sum of x, sum of y, count, points that changed their cluster


def barrier(board, rounds):
    """Counts up, and returns when all workers did so `rounds` times."""
    board.fetch_add(0, 1)
    until = time.monotonic() + 60
    while True:
        board.read(8, 0, 0)
        (arrived,) = struct.unpack_from("<Q", board.buf, 0)
        if arrived >= WORKERS * rounds:
            return
        if time.monotonic() > until:
            raise RuntimeError("the other workers did not come within 60 seconds: %d of %d" % (arrived, WORKERS * rounds))
        time.sleep(0.001)


def slot(iteration, worker):
    # Two sets of slots, so that a fast worker does not write over what a slow one still reads.
    return FIRST_SLOT + ((iteration % 2) * WORKERS + worker) * SLOT


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    share = params["points"]["points"] // WORKERS
    points = action.get_transport("point_mem", "rdma")
    points.reg(share * 8)
    points.read(share * 8, me * share * 8)
    mine = list(struct.iter_unpack("<ii", bytes(points.buf)))
    board = action.get_transport("board_mem", "rdma")
    board.reg(WORKERS * SLOT)

    centres = [(0, 0), (9000, 0), (0, 9000), (4000, 4000)]
    owner = [-1] * share
    for iteration in range(1, 31):
        rows = [[0, 0, 0, 0] for _ in range(CLUSTERS)]
        for i, (x, y) in enumerate(mine):
            best = min(range(CLUSTERS), key=lambda c: ((x - centres[c][0]) ** 2 + (y - centres[c][1]) ** 2, c))
            row = rows[best]
            row[0] += x
            row[1] += y
            row[2] += 1
            row[3] += best != owner[i]
            owner[i] = best
        for c in range(CLUSTERS):
            ROW.pack_into(board.buf, c * ROW.size, *rows[c])
        board.write(CLUSTERS * ROW.size, slot(iteration, me), 0)
        barrier(board, iteration)

        total = [[0, 0, 0, 0] for _ in range(CLUSTERS)]
        for worker in range(WORKERS):
            board.read(SLOT, slot(iteration, worker), worker * SLOT)
            for c in range(CLUSTERS):
                for k, value in enumerate(ROW.unpack_from(board.buf, worker * SLOT + c * ROW.size)):
                    total[c][k] += value
        centres = [(sx // n, sy // n) if n else centres[c] for c, (sx, sy, n, _) in enumerate(total)]
        if sum(row[3] for row in total) == 0:
            break
    return {"worker": me, "iterations": iteration, "centres": centres, "sizes": [row[2] for row in total]}
