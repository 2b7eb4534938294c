"""Cost as work grows: messages over more and more endpoints, and with more and more receives posted. A part of `bench/run --only scaling`."""
from common import Failed, show


def tables(bench):
    rounds = 1 if bench.args.quick else 3
    print("Cost as work grows: 8 B messages one way\n")
    print(f"{'on':<4} {'endpoints':>12} {'msg/s':>12} {'of the first':>13} {'KiB/endpoint, client':>22} {'server':>9}")
    for tls in ("shm", "tcp"):
        first = None
        for n in (1, 10, 100, 1000, 10000):
            try:
                got = bench.many(rounds, lambda: bench.weft_point("tag_rate", tls, 8, endpoints=n, outstanding=max(256, n)),
                                 f"{n} endpoints, {tls}")
            except Failed as e:
                print(f"{tls:<4} {n:>12} failed: {e}"[:100])
                continue
            first = first or got["msg_s"]
            print(f"{tls:<4} {n:>12} {show(got['msg_s'], 'msg/s'):>12} {got['msg_s'] / first:>13.2f} "
                  f"{got['endpoint_bytes'] / 1024:>22.1f} {got['peer_endpoint_bytes'] / 1024:>9.1f}")
            bench.keep("endpoints", tls=tls, endpoints=n, figures=got)
    print("\nMemory is resident memory. That of one endpoint contains what opening the transport costs; the\n"
          "others are for each endpoint after the first. 256 messages in flight are spread over all\n"
          "endpoints; on TCP those of one endpoint travel together, so that one has the most to gain. An endpoint\n"
          "over TCP needs two file descriptors on each side: 10000 of them fail where the limit (ulimit -n) is lower.\n")
    print(f"{'on':<4} {'outstanding':>12} {'msg/s':>12} {'of the first':>13} {'own tags, shuffled':>22} {'of the first':>13}")
    for tls in ("shm", "tcp"):
        first = first_shuffled = None
        for n in (1, 100, 10000) if bench.args.quick else (1, 10, 100, 1000, 10000, 100000):
            try:
                got = bench.many(rounds, lambda: bench.weft_point("tag_rate", tls, 8, n, outstanding=n),
                                 f"{n} outstanding, {tls}")
                mixed = bench.many(rounds, lambda: bench.weft_point("tag_rate", tls, 8, n, outstanding=n, shuffle=True),
                                    f"{n} outstanding, shuffled, {tls}")
            except Failed as e:
                print(f"{tls:<4} {n:>12} failed: {e}"[:100])
                continue
            first = first or got["msg_s"]
            first_shuffled = first_shuffled or mixed["msg_s"]
            print(f"{tls:<4} {n:>12} {show(got['msg_s'], 'msg/s'):>12} {got['msg_s'] / first:>13.2f} "
                  f"{show(mixed['msg_s'], 'msg/s'):>22} {mixed['msg_s'] / first_shuffled:>13.2f}")
            bench.keep("outstanding", tls=tls, outstanding=n, figures=got, shuffled=mixed)
    print("\noutstanding: receives posted, and sends that may be incomplete. shuffled: each receive waits for a\n"
          "tag of its own, and the tags come in random order.\n")
