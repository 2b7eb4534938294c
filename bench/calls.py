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


def places(tls):
    return f"64 B there and back, {'on shared memory' if tls == 'shm' else 'over TCP'}"


def tensor(tls, memory):
    """A tensor as an argument beside an active message with as many bytes: the same memory, as many under way."""
    more = {"memory": memory + ",host"}
    return Row("64 MiB tensor as the argument", f"{tls}, from {memory} memory", "MiB/s", weft("rpc_tensor", tls, 64 * MIB, 4, **more),
               [("am_bw", weft("am_bw", tls, 64 * MIB, 4, **more), 1, ">= 0.95")])


def rows(bench):
    shm, tcp = places("shm"), places("tcp")
    lone_grpc = many_grpc = lone_zmq = many_zmq = ()
    if bench.has_peer("grpc_echo"):
        lone_grpc = [(f"gRPC, {name}", peer("grpc_echo", way, 1), 1, "<= 0.02")
                     for name, way in (("blocking", "sync"), ("callback", "unary"), ("in a stream", "stream"))]
        many_grpc = [(f"gRPC, {name}", best_rate(peer("grpc_echo", way, 100), peer("grpc_echo", way, 1000)), 1, ">= 50")
                     for name, way in (("callback", "unary"), ("in a stream", "stream"))]
    if bench.has_peer("zmq_echo"):
        lone_zmq, many_zmq = [("ZeroMQ", peer("zmq_echo", "tcp", 1), 1, "")], [("ZeroMQ", peer("zmq_echo", "tcp", 1000), 1, ">= 1.0")]
    return [
        Row(shm, "one at a time, the median", "p50 us", weft("rpc_lat", "shm", SIZE), [("raw UCP", raw("shm", 1), 1, "<= 1.35"), *lone_grpc]),
        Row(shm, "many, each at its best", "/s", best_rate(*(weft("rpc_rate", "shm", SIZE, n) for n in OPEN)),
            [("raw UCP", best_rate(*(raw("shm", n) for n in OPEN)), 1, ">= 0.5"), *many_grpc]),
        Row(shm, "1000 open", "/s", weft("rpc_rate", "shm", SIZE, 1000), [("raw UCP", raw("shm", 1000), 1, ">= 0.5")]),
        Row(tcp, "one at a time, the median", "p50 us", weft("rpc_lat", "tcp", SIZE), [("raw UCP", raw("tcp", 1), 1, ""), *lone_zmq]),
        Row(tcp, "1000 open", "/s", weft("rpc_rate", "tcp", SIZE, 1000), [("raw UCP", raw("tcp", 1000), 1, ">= 10"), *many_zmq]),
        *(tensor(tls, memory) for tls, memory in (("shm", "host"), ("shm", "pool"), ("tcp", "host"))),
        Row("add(i32, i32), on one core", "encode and dispatch", "ns", lambda b: b.cost_point(), [], "< 100"),
        Row("add(i32, i32), on one core", "a whole call", "ns", lambda b: {"ns": b.cost_point()["call_ns"]},
            [("active messages", lambda b: {"ns": b.cost_point()["am_ns"]}, 1, "")]),
    ]


def tables(bench):
    absent = [name for name, program in (("gRPC", "grpc_echo"), ("ZeroMQ", "zmq_echo")) if not bench.has_peer(program)]
    if absent:
        print(f"Not built here, and so left out: {', '.join(absent)}. `make bench` installs what it needs.\n")
    table(bench, "calls", rows(bench), "Calls beside raw UCP, gRPC and ZeroMQ")
    print("open: calls that wait for their answers. at its best: with 16, 64, 256 or 1000 open (gRPC: 100 or 1000).\n"
          "gRPC: over a Unix socket. in a stream: messages of one stream in both directions, which are no calls of their own.\n"
          "tensor: as many MiB/s as am_bw, which takes the same bytes out of the same memory. on one core: one thread drives both sides\n"
          "over shared memory; active messages: one there and one back.\n")
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
