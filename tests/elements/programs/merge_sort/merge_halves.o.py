#@ type: compute
#@ parallelism: 2
#@ parents:
#@   - sort
#@ dependents:
#@   - merge_all
#@ corunning:
#@   run_mem:
#@     trans: run_mem
#@     type: rdma
#@   half_mem:
#@     trans: half_mem
#@     type: rdma
"""Copy i merges two sorted runs into one half."""
import heapq
import os
import struct


def main(params, action):
    me = int(os.environ["__OW_PAR"])
    runs = sorted(params["sort"], key=lambda r: r["at"])[2 * me:2 * me + 2]
    size = sum(run["size"] for run in runs)
    source = action.get_transport("run_mem", "rdma")
    source.reg(size)
    target = action.get_transport("half_mem", "rdma")
    target.reg(size, trans=source)

    offset = 0
    sorted_runs = []
    for run in runs:
        source.read(run["size"], run["at"], offset)
        sorted_runs.append(struct.unpack_from("<%dI" % (run["size"] // 4), source.buf, offset))
        offset += run["size"]
    struct.pack_into("<%dI" % (size // 4), target.buf, 0, *heapq.merge(*sorted_runs))
    target.write(size, runs[0]["at"], 0)
    return {"at": runs[0]["at"], "size": size}
