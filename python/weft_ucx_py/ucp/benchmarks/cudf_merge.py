"""Merging tables that are spread over processes: `python -m ucp.benchmarks.cudf_merge --help`.

Each worker has a piece of two tables. To merge them by their keys, each cuts its pieces into bins by the hash of the key, sends
every other worker its bins, and merges what it got. With cudf each has a GPU; with --cpu it is pandas, and memory of the host.

On one machine it starts everything. On several, --hosts starts them by ssh; or --print-commands-only says what to start by hand.

tests/python/test_ucp_cluster.py holds us to it.
"""
from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from time import monotonic as clock
from typing import Any

from ucp._libs.utils import format_bytes, format_time, get_address, print_multi, print_separator
from ucp.benchmarks.asyncssh import run_ssh_cluster
from ucp.benchmarks.frames import Frames
from ucp.benchmarks.utils import (_join, _results, _run_cluster_server, _run_cluster_workers, run_cluster_server,
                                  run_cluster_workers)
from ucp.utils import hmean

START_BOUND = 60  # seconds that a server may take to listen
WATCHED = "--end-with-stdin"
TOLERANCE = 0.02  # of the number of rows that match
ENOUGH = 100_000  # rows for which that number is near the fraction


# --- a worker --------------------------------------------------------------------------------------------------------------


async def _barrier(rank: int, eps: dict[int, Any]) -> None:
    if rank == 0:
        await asyncio.gather(*(ep.recv(bytearray(1)) for ep in eps.values()))
    else:
        await eps[0].send(b"\0")


async def _join_once(frames: Frames, rank: int, eps: dict[int, Any], tables: list[Any],
                     n: int) -> tuple[int, list[tuple[float, int]]]:
    """Merge two tables: how many rows came out of it, and for each of the two how long sending took, and how much it was."""
    whole, timings = [], []
    for table in tables:
        bins = frames.bins(table, n)
        begin = clock()
        whole.append(await frames.exchanged(rank, eps, bins))
        timings.append((clock() - begin, sum(frames.nbytes(b) for i, b in enumerate(bins) if i != rank)))
    return len(frames.merged(*whole)), timings


async def worker(rank: int, eps: dict[int, Any], args: argparse.Namespace) -> dict[str, Any]:
    """One of the processes: what it measured."""
    frames = Frames(args.cpu, args.rmm_init_pool_size, most_rows=args.chunk_size * args.n_chunks)
    tables = [frames.chunk(rank, args.chunk_size, args.n_chunks, kind, args.frac_match) for kind in ("build", "other")]
    for _ in range(args.warmup_iter):
        await _join_once(frames, rank, eps, tables, args.n_chunks)
        await _barrier(rank, eps)
    profile = cProfile.Profile() if args.profile else None
    if args.cuda_profile:
        frames.xp.cuda.profiler.start()
    if profile is not None:
        profile.enable()
    processed = sum(frames.nbytes(t) for t in tables)
    each: dict[str, list[float]] = {"bw": [], "wallclock": [], "throughput": [], "data_processed": []}
    spent, sent, began = 0.0, 0, clock()
    for _ in range(args.iter):
        begin = clock()
        rows, timings = await _join_once(frames, rank, eps, tables, args.n_chunks)
        await _barrier(rank, eps)
        took = clock() - begin
        expected = args.chunk_size * args.frac_match
        if args.chunk_size >= ENOUGH and abs(rows - expected) > expected * TOLERANCE:
            raise RuntimeError(f"{rows} rows match, where {expected:.0f} should")
        if args.collect_garbage:
            gc.collect()
        seconds, nbytes = sum(t for t, _ in timings), sum(n for _, n in timings)
        spent, sent = spent + seconds, sent + nbytes
        for key, value in (("bw", nbytes / seconds), ("wallclock", took), ("throughput", args.n_chunks * processed / took),
                           ("data_processed", processed)):
            each[key].append(value)
    took = clock() - began
    if profile is not None:
        profile.disable()
        profile.dump_stats(f"{args.profile}.{rank}")
    if args.cuda_profile:
        frames.xp.cuda.profiler.stop()
    return {"bw": sent / spent, "wallclock": took, "throughput": args.n_chunks * processed * args.iter / took,
            "data_processed": processed * args.iter, "iter_results": each}


# --- the command line ------------------------------------------------------------------------------------------------------


def _command(args: argparse.Namespace, num_workers: int, *more: str) -> str:
    values = {"devs": args.devs, "chunks-per-dev": args.chunks_per_dev, "chunk-size": args.chunk_size,
              "frac-match": args.frac_match, "iter": args.iter, "warmup-iter": args.warmup_iter, "num-workers": num_workers}
    words = [sys.executable, "-m", "ucp.benchmarks.cudf_merge"]
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return shlex.join([*words, *(["--cpu"] if args.cpu else []), *more])


def _get_server_command(args: argparse.Namespace, num_workers: int) -> str:
    return _command(args, num_workers, "--server", WATCHED)


def _worker_command(args: argparse.Namespace, num_workers: int, node: int, *where: str) -> str:
    more = ["--node-idx", str(node), *where]
    for name in ("rmm_init_pool_size", "profile"):
        if getattr(args, name):
            more += ["--" + name.replace("_", "-"), str(getattr(args, name))]
    more += ["--" + name.replace("_", "-") for name in ("cuda_profile", "collect_garbage") if getattr(args, name)]
    return _command(args, num_workers, *more)


def _get_worker_command(server_info: dict[str, Any], args: argparse.Namespace, num_workers: int, node_idx: int) -> str:
    where = f"{server_info['address']}:{server_info['port']}"
    return _worker_command(args, num_workers, node_idx, "--server-address", where, WATCHED)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m ucp.benchmarks.cudf_merge",
                                description="Merge tables that are spread over processes.")
    add = p.add_argument
    add("--chunks-per-dev", metavar="N", type=int, default=1, help="processes for each device (default: 1)")
    add("-d", "--devs", metavar="LIST", default="0", help='devices, separated by commas (default: "0")')
    add("-l", "--listen-address", metavar="IP", default=get_address(), help="accepted, and of no effect, as in UCX-Py")
    add("-c", "--chunk-size", metavar="N", type=int, default=4, help="rows for each process (default: 4)")
    add("--frac-match", metavar="F", type=float, default=0.3, help="fraction of rows that match (default: 0.3)")
    add("--cpu", action="store_true", help="pandas and memory of the host, instead of cudf and GPUs")
    add("--profile", metavar="FILE", help="write a profile of each worker to FILE.RANK")
    add("--cuda-profile", action="store_true", help="start and stop CUDA's profiler around what is measured")
    add("--rmm-init-pool-size", metavar="BYTES", type=int, help="first size of RMM's pool")
    add("--collect-garbage", action="store_true", help="collect Python's garbage after each iteration")
    add("--iter", metavar="N", type=int, default=1, help="merges that count (default: 1)")
    add("--warmup-iter", metavar="N", type=int, default=5, help="merges before those (default: 5)")
    add("--server", action="store_true", help="only the server")
    add("--server-file", metavar="FILE", help="where the server says its address, or where it is read")
    add("--server-address", metavar="HOST:PORT", help="where the server is")
    add("--num-workers", metavar="N", type=int, help="processes on all machines")
    add("--node-idx", metavar="N", type=int, help="which of the machines this is, from 0 on")
    add("--hosts", metavar="LIST", help="start everything by ssh: the host of the server, and then those of the workers")
    add("--print-commands-only", action="store_true", help="with --hosts: print what to start where")
    add(WATCHED, action="store_true", help="end when stdin does: what --hosts tells those that it starts")
    args = p.parse_args(argv)
    if args.iter < 1 or args.warmup_iter < 0 or args.chunk_size < 1 or args.chunks_per_dev < 1:
        p.error("--iter, --chunk-size and --chunks-per-dev are at least 1, --warmup-iter at least 0")
    try:
        devices = [int(d) for d in args.devs.split(",")]
    except ValueError:
        p.error(f"--devs is {args.devs!r}: give numbers separated by commas")
    if args.cpu and (args.cuda_profile or args.rmm_init_pool_size):
        p.error("--cuda-profile and --rmm-init-pool-size are for GPUs: leave out --cpu, or them")
    if args.hosts:
        if args.server or args.num_workers is not None or args.node_idx is not None:
            p.error("--hosts starts everything: leave out --server, --num-workers and --node-idx")
        if args.server_file and not args.print_commands_only:
            p.error("--hosts needs no --server-file, except with --print-commands-only")
        if len(args.hosts.split(",")) < 2:
            p.error("--hosts is the host of the server and at least one of workers, separated by commas")
        return args
    args.num_node_workers = len(devices) * args.chunks_per_dev
    args.n_chunks = args.num_node_workers
    if args.server or args.server_file or args.server_address:
        if args.num_workers is None or args.num_workers < 2:
            p.error("--server, --server-file and --server-address need --num-workers, of all machines: at least 2")
        if not args.server and args.node_idx is None:
            p.error("workers on several machines need --node-idx, another one on each")
        args.n_chunks = args.num_workers
    if args.n_chunks < 2 or args.n_chunks % 2:
        p.error(f"there are {args.n_chunks} processes, and it takes an even number: give more --devs, or more --chunks-per-dev")
    args.server_info = args.server_file
    if args.server_address:
        host, colon, port = args.server_address.rpartition(":")
        if not colon or not port.isdigit():
            p.error(f"--server-address is {args.server_address!r}: give HOST:PORT")
        args.server_info = {"address": host.strip("[]"), "port": int(port)}
    args.device_names, args.devs = args.devs, devices
    return args


def _here(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything on this machine: what each worker measured."""
    with tempfile.NamedTemporaryFile("r") as file:
        server, queue = _run_cluster_server(file.name, args.n_chunks)
        until, workers = time.monotonic() + START_BOUND, []
        try:
            while not file.read(1):
                if not server.is_alive() or time.monotonic() > until:
                    raise RuntimeError("the server does not listen")
                time.sleep(0.01)
            workers = _run_cluster_workers(file.name, args.n_chunks, args.num_node_workers, 0, worker, args,
                                           ensure_cuda_device=not args.cpu)
            results = _results(server, queue, args.n_chunks)
            _join([*workers, server])
        finally:
            for process in [*workers, server]:
                if process.is_alive():
                    process.kill()
                process.join()
    return results


def _print(args: argparse.Namespace, stats: list[dict[str, Any]]) -> None:
    def rates(values: Any) -> str:
        return f"{format_bytes(hmean(values))}/s"
    first = stats[0]["iter_results"]
    print("cuDF merge benchmark")
    print_separator(separator="-", length=110)
    for key, value in (("Device(s)", "CPU-only" if args.cpu else args.device_names), ("Chunks per device", args.chunks_per_dev),
                       ("Rows per chunk", args.chunk_size),
                       ("Total data processed", format_bytes(sum(s["data_processed"] for s in stats))),
                       ("Data processed per iter", format_bytes(sum(s["iter_results"]["data_processed"][0] for s in stats))),
                       ("Row matching fraction", args.frac_match)):
        print_multi(values=[key, str(value)])
    print_separator(separator="=", length=110)
    print_multi(values=["Wall-clock", format_time(stats[0]["wallclock"])])
    print_multi(values=["Bandwidth", rates([s["bw"] for s in stats])])
    print_multi(values=["Throughput", f"{format_bytes(stats[0]['throughput'])}/s"])
    print_separator(separator="=", length=110)
    print_multi(values=["Run", "Wall-clock", "Bandwidth", "Throughput"])
    for i in range(args.iter):
        print_multi(values=[str(i), format_time(first["wallclock"][i]), rates([s["iter_results"]["bw"][i] for s in stats]),
                            f"{format_bytes(first['throughput'][i])}/s"])


def _print_commands(args: argparse.Namespace, hosts: list[str], num_workers: int) -> None:
    print(f"[{hosts[0]}] Server command line: {_command(args, num_workers, '--server')}")
    where = ["--server-file", args.server_file] if args.server_file else ["--server-address", "REPLACE WITH SERVER ADDRESS"]
    for i, host in enumerate(hosts[1:]):
        print(f"[{host}] Worker command line: {_worker_command(args, num_workers, i, *where)}")


def _watch_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    args = parse_args(argv)
    missing = None if args.hosts or args.server else Frames.missing(args.cpu)
    if missing:
        raise SystemExit(f"cudf_merge: {missing}")
    if args.end_with_stdin:
        threading.Thread(target=_watch_stdin, daemon=True).start()
    try:
        if args.hosts:
            hosts = args.hosts.split(",")
            num_workers = len(args.devs.split(",")) * (len(hosts) - 1) * args.chunks_per_dev
            if args.print_commands_only:
                _print_commands(args, hosts, num_workers)
            else:
                run_ssh_cluster(args, hosts[0], hosts[1:], num_workers, _get_server_command, _get_worker_command)
        elif args.server:
            _print(args, run_cluster_server(args.server_file, args.n_chunks))
        elif args.server_info:
            run_cluster_workers(args.server_info, args.n_chunks, args.num_node_workers, args.node_idx, worker, args,
                                ensure_cuda_device=not args.cpu)
        else:
            _print(args, _here(args))
    except (RuntimeError, OSError, ValueError) as error:
        raise SystemExit(f"cudf_merge: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
