"""Round trips between two processes: `python -m ucp.benchmarks.send_recv --help`.

The server runs in a process of its own, here by default, elsewhere with --server-only and --client-only -s ADDRESS -p PORT. On a
terminal it says how far it is; in a pipe it does not. Options and lines are UCX-Py's, and a few more.

tests/python/test_ucp_benchmark.py holds us to it.
"""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ucp._libs.utils import get_address, parse_bytes

from . import report
from .backends import base

START_BOUND = 60  # seconds that a server may take to listen
BACKENDS = {"ucp-async": "ucp_async", "ucp-core": "ucp_core", "tornado": "tornado"}
NEEDS = {"numpy": ("numpy",), "cupy": ("numpy", "cupy"), "rmm": ("numpy", "cupy", "rmm"), "numba": ("numpy", "numba"),
         "torch": ("numpy", "torch"), "weft": ("numpy",)}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative")
    return number


def _size(text: str) -> int:
    try:
        number = int(parse_bytes(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least one byte")
    return number


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(allow_abbrev=False, prog="python -m ucp.benchmarks.send_recv",
                                description="Round trips between two processes.")
    add = p.add_argument
    add("-n", "--n-bytes", metavar="BYTES", default=10_000_000, type=_size, help="bytes of a message, such as 8, 10kB, 1MiB "
                                                                                 "(default: 10 MB)")
    add("--n-iter", metavar="N", default=10, type=_positive, help="round trips that count (default: 10)")
    add("--n-warmup-iter", metavar="N", default=10, type=_natural, help="round trips before those (default: 10)")
    add("-b", "--server-cpu-affinity", metavar="N", type=int, default=-1, help="CPU of the server (default: any)")
    add("-c", "--client-cpu-affinity", metavar="N", type=int, default=-1, help="CPU of the client (default: any)")
    add("-o", "--object_type", "--object-type", dest="object_type", default="numpy", choices=sorted(NEEDS),
        help="whose memory: numpy's on the host, the others' on a GPU, weft's without another package (default: numpy)")
    add("-v", "--verbose", action="store_true", help="print the table of iterations, whatever --no-detailed-report says")
    add("-s", "--server-address", metavar="IP", default=get_address(), help="where the server is (default: %(default)s)")
    add("-d", "--server-dev", metavar="N", type=int, default=0, help="GPU of the server (default: 0)")
    add("-e", "--client-dev", metavar="N", type=int, default=0, help="GPU of the client (default: 0)")
    add("--reuse-alloc", action="store_true", help="receive into the same memory each time")
    add("--cuda-profile", action="store_true", help="start and stop CUDA's profiler around the round trips (with -o cupy or rmm)")
    add("--rmm-init-pool-size", metavar="BYTES", type=_size, default=None, help="first size of RMM's pool")
    add("--rmm-managed-memory", action="store_true", help="RMM's memory is managed memory")
    add("--server-only", action="store_true", help="only the server: it prints where it is")
    add("--client-only", action="store_true", help="only the client: needs -p, and -s if the server is on another machine")
    add("-p", "--port", metavar="N", type=_natural, default=None, help="port of the server (default: one is picked)")
    add("--enable-am", action="store_true", help="active messages instead of tags")
    add("--no-detailed-report", action="store_true", help="leave out the table of iterations")
    add("-l", "--backend", default="ucp-async", choices=list(BACKENDS),
        help="ucp with asyncio, ucp with callbacks, or Tornado's TCP (default: ucp-async)")
    add("--delay-progress", action="store_true", help="of ucp-core: have several round trips on their way at one time")
    add("--max-outstanding", metavar="N", type=_positive, default=32, help="how many, with --delay-progress (default: 32)")
    add("--report-gil-contention", action="store_true", help="say how long another thread would have waited (needs gilknocker)")
    add("--error-handling", action=argparse.BooleanOptionalAction, default=True, help="endpoints that notice a lost peer "
                                                                                      "(default: yes)")
    add("--json", action="store_true", help="print one JSON object and nothing else; times in seconds")
    add("--plot", metavar="OUT.PNG", default=None, help="draw the latencies (needs matplotlib)")
    args = p.parse_args(argv)
    if args.server_only and args.client_only:
        p.error("--server-only and --client-only: choose one, or neither to have both here")
    if args.client_only and not args.port:
        p.error("--client-only needs -p, the port of the server")
    if args.cuda_profile and args.object_type not in ("cupy", "rmm"):
        p.error("--cuda-profile needs CuPy: give -o cupy or -o rmm")
    if args.rmm_managed_memory and args.object_type != "rmm":
        p.error("--rmm-managed-memory is for -o rmm")
    if args.backend == "tornado" and (args.object_type != "numpy" or args.enable_am):
        p.error("tornado sends bytes of the host and has no active messages: leave out -o and --enable-am, or use another "
                "backend")
    if args.delay_progress and args.backend != "ucp-core":
        p.error("--delay-progress is for -l ucp-core")
    for module in (*NEEDS[args.object_type], *(("tornado",) if args.backend == "tornado" else ()),
                   *(("matplotlib",) if args.plot else ()), *(("gilknocker",) if args.report_gil_contention else ())):
        if importlib.util.find_spec(module) is None:
            p.error(f"{module} is not installed, which this needs: pip install {module}")
    return args


def _side(args: argparse.Namespace, which: str) -> Any:
    module = importlib.import_module(f"{__package__}.backends.{BACKENDS[args.backend]}")
    return getattr(module, which)(args)


def _stay_on(cpu: int) -> None:
    if cpu >= 0:
        try:
            os.sched_setaffinity(0, [cpu])
        except OSError as error:
            raise SystemExit(f"CPU {cpu} cannot be had: {error.strerror}") from None


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, flush=True)


def serve(args: argparse.Namespace, put: Callable[[int], Any]) -> None:
    """The server, in this process."""
    _stay_on(args.server_cpu_affinity)
    _side(args, "Server").run(put)


def _server_process(args: argparse.Namespace, pipe: Any) -> None:
    try:
        serve(args, pipe.send)
    except (Exception, SystemExit) as error:
        try:
            pipe.send(f"{type(error).__name__}: {error}")
        except OSError:
            pass
        raise SystemExit(1) from error


def _teller(args: argparse.Namespace) -> Callable[[int], None]:
    """Says how far it is, on a terminal only."""
    total = args.n_iter + args.n_warmup_iter
    if not sys.stderr.isatty():
        return lambda n: None
    last = [0.0]

    def tell(n: int) -> None:
        now = time.monotonic()
        if n == total:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif now - last[0] > base.TOLD_EVERY:
            last[0] = now
            print(f"\r{n} of {total} round trips", end="", file=sys.stderr, flush=True)
    return tell


def measure(args: argparse.Namespace, port: int) -> dict[str, Any]:
    """The client, in this process: the result of the run."""
    _stay_on(args.client_cpu_affinity)
    _say(args, f"Client connecting to server at {args.server_address}:{port}")
    client = _side(args, "Client")
    times = client.run(args.server_address, port, _teller(args))
    return report.of(args, times, client.wall, client.contention)


def _both(args: argparse.Namespace) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    server = spawn.Process(target=_server_process, args=(args, theirs), daemon=True)
    server.start()
    theirs.close()
    try:
        port = ours.recv() if ours.poll(START_BOUND) else "it does not listen"
        if not isinstance(port, int):
            raise SystemExit(f"the server failed: {port}")
        _say(args, f"Server Running at {args.server_address}:{port}")
        result = measure(args, port)
        server.join(START_BOUND)
        if server.exitcode != 0:
            raise SystemExit(f"the server failed: {ours.recv() if ours.poll(0) else f'exit status {server.exitcode}'}")
        return result
    except EOFError:
        raise SystemExit("the server ended before it listened") from None
    finally:
        if server.is_alive():
            server.kill()
        server.join(START_BOUND)


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    args = parse_args(argv)
    try:
        if args.server_only:
            serve(args, lambda port: print(f"Server Running at {args.server_address}:{port}", flush=True))
            return 0
        result = measure(args, args.port) if args.client_only else _both(args)
        if args.plot:
            report.plot(result, args.plot)
    except (report.Missing, base.Wrong, OSError) as error:
        raise SystemExit(f"send_recv: {error}") from None
    if args.json:
        report.print_json(result)
    else:
        report.print_text(args, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
