"""Calls beside an echo over raw UCP, gRPC and ZeroMQ: what `bench/run --only rpc` shows.

A call is timed whole, from posting it to its answer; so is what stands beside it. Each program is driven in the way that suits it best."""
from common import Failed, show
from rows import Row, best_rate, table, weft

MIB = 1 << 20
SIZE = 64
OPEN = (16, 64, 256, 1000)  # calls open at a time; the best counts


def raw(tls, window):
    return lambda bench: bench.raw_point("echo", tls, SIZE, window)


def peer(name, way, window):
    return lambda bench: bench.peer_point(name, way, SIZE, window)


def one_at_a_time(tls, others):
    return Row(f"64 B there and back, {NAMES[tls]}", "one at a time, the median", "p50 us", weft("rpc_lat", tls, SIZE), others)


NAMES = {"shm": "on shared memory", "tcp": "over TCP"}


def rows(bench):
    grpc, zmq = bench.has_peer("grpc_echo"), bench.has_peer("zmq_echo")
    shm, tcp = (f"64 B there and back, {NAMES[tls]}" for tls in ("shm", "tcp"))
    lone_grpc = [("gRPC, blocking", peer("grpc_echo", "sync", 1), 1, "<= 0.02"), ("gRPC, callback", peer("grpc_echo", "unary", 1), 1, "<= 0.02"),
                 ("gRPC, in a stream", peer("grpc_echo", "stream", 1), 1, "<= 0.02")] if grpc else []
    many_grpc = [("gRPC calls", best_rate(peer("grpc_echo", "unary", 100), peer("grpc_echo", "unary", 1000)), 1, ">= 50"),
                 ("gRPC, in a stream", best_rate(peer("grpc_echo", "stream", 100), peer("grpc_echo", "stream", 1000)), 1, ">= 50")] if grpc else []
    found = [
        one_at_a_time("shm", [("raw UCP", raw("shm", 1), 1, "<= 1.35"), *lone_grpc]),
        Row(shm, "many, each at its best", "/s", best_rate(*(weft("rpc_rate", "shm", SIZE, n) for n in OPEN)),
            [("raw UCP", best_rate(*(raw("shm", n) for n in OPEN)), 1, ">= 0.5"), *many_grpc]),
        Row(shm, "1000 open", "/s", weft("rpc_rate", "shm", SIZE, 1000), [("raw UCP", raw("shm", 1000), 1, ">= 0.5")]),
        one_at_a_time("tcp", [("raw UCP", raw("tcp", 1), 1, "")] + ([("ZeroMQ", peer("zmq_echo", "tcp", 1), 1, "")] if zmq else [])),
        Row(tcp, "1000 open", "/s", weft("rpc_rate", "tcp", SIZE, 1000), [("raw UCP", raw("tcp", 1000), 1, ">= 10")] +
            ([("ZeroMQ", peer("zmq_echo", "tcp", 1000), 1, ">= 1.0")] if zmq else [])),
    ]
    return found


def tables(bench):
    absent = [name for name, program in (("gRPC", "grpc_echo"), ("ZeroMQ", "zmq_echo")) if not bench.has_peer(program)]
    if absent:
        print(f"Not built here, and so left out: {', '.join(absent)}. `make bench` installs what it needs.\n")
    table(bench, "calls", rows(bench), "Calls beside raw UCP, gRPC and ZeroMQ")
    print("open: calls that wait for their answers. at its best: with 16, 64, 256 or 1000 open (gRPC: 100 or 1000).\n"
          "gRPC: over a Unix socket. in a stream: messages of one stream in both directions, which are no calls of their own.\n")
    clients(bench)


def clients(bench):
    rounds = 1 if bench.args.quick else 3
    print("Cost as clients grow: calls of 64 B, 1000 open over all of them\n")
    print(f"{'on':<4} {'clients':>12} {'calls/s':>12} {'of the first':>13} {'KiB/client, client':>22} {'server':>9}")
    for tls in ("shm", "tcp"):
        first = None
        for n in (1, 10, 100) if bench.args.quick else (1, 10, 100, 1000):
            try:
                got = bench.many(rounds, lambda: bench.weft_point("rpc_rate", tls, SIZE, 1000, endpoints=n), f"{n} clients, {tls}")
            except Failed as e:
                print(f"{tls:<4} {n:>12} failed: {e}"[:100])
                continue
            first = first or got["msg_s"]
            print(f"{tls:<4} {n:>12} {show(got['msg_s'], '/s'):>12} {got['msg_s'] / first:>13.2f} "
                  f"{got['endpoint_bytes'] / 1024:>22.1f} {got['peer_endpoint_bytes'] / 1024:>9.1f}")
            bench.keep("clients", tls=tls, clients=n, figures=got)
    print("\nMemory is resident memory. That of one client contains what opening the transport costs; the others are for\n"
          "each client after the first.\n")
