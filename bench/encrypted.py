"""Weft over TLS beside plain Weft, plain OpenSSL and gRPC with TLS: what `bench/run --only tls` shows.

All go over TCP on loopback: peers of one host would share memory, so Weft may use TCP alone here. Everybody has the same certificates, made
for this run by `weft key cluster`, and shows them: TLS 1.3 with AES-128-GCM (gRPC takes AES-256-GCM, OpenSSL's own first choice). A measurement
of Weft that was not encrypted where it should be, or was where it should not, is none, and its row fails."""
import contextlib
import shutil
import subprocess
import tempfile

from common import Failed, clean_env
from rows import Row, best_rate, table, weft

MIB = 1 << 20
SIZE = 64
OPEN = (64, 256, 1000)   # calls under way; the best counts
ENDPOINTS = 1000         # of which memory is measured
LISTEN = "tls://127.0.0.1:0"


@contextlib.contextmanager
def certificates(bench):
    """A directory with ca.crt, bench.crt and bench.key, for as long as it is used."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-tls-") as folder:
        made = subprocess.run([bench.weft, "key", "cluster", folder, "bench=127.0.0.1"], env=clean_env(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False)
        if made.returncode:
            raise Failed("no certificates: " + made.stderr.strip())
        yield folder


def variables(folder):
    return {"WEFT_TLS_CERT": f"{folder}/bench.crt", "WEFT_TLS_KEY": f"{folder}/bench.key", "WEFT_TLS_CA": f"{folder}/ca.crt"}


def checked(got, encrypted):
    """The figures, if they are of what was to be measured."""
    if got["transport"] != "tcp":
        raise Failed(f"it went over {got['transport']}, not over TCP")
    if bool(got["cipher"]) != encrypted:
        raise Failed("it was not encrypted" if encrypted else "it was encrypted")
    return got


def plain(test, size, window=None, **more):
    measure = weft(test, "tcp", size, window, **more)
    return lambda bench: checked(measure(bench), False)


def over_tls(folder, test, size, window=None, **more):
    measure = weft(test, "tcp", size, window, listen=LISTEN, env=variables(folder), **more)
    return lambda bench: checked(measure(bench), True)


def openssl(folder, way, size, window=None):
    return lambda bench: bench.peer_point("tls_echo", way, size, window, more=("--certs", folder))


def grpc(folder, way, window):
    return lambda bench: bench.peer_point("grpc_echo", way, SIZE, window, more=("--certs", folder))


def aes(bench):
    """What one core encrypts of 16 KiB blocks with AES-128-GCM, by `openssl speed`."""
    command = bench.on_core(1, ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm"])
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30, check=True)
        last = [line for line in done.stdout.splitlines() if line.startswith("+F:")][-1]
        return {"mb_s": float(last.split(":")[-1]) / MIB}
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as e:
        raise Failed("openssl speed gives no figure") from e


def lesser(size):
    """What of the two sets the limit: plain Weft, or the cipher."""
    measure = plain("tag_bw", size)
    return lambda bench: min(measure(bench), aes(bench), key=lambda figures: figures["mb_s"])


def meeting(folder, program, way, field):
    def measure(bench):
        got = bench.one_line(program, bench.on_core(1, [bench.peer(program), way, "--certs", folder, "--seconds", str(bench.seconds)]))
        return {**got, "avg_us": got[field]}
    return measure


def memory(folder, field):
    """KiB that an endpoint takes more on one side than one without TLS."""
    def measure(bench):
        with_it, without = (point(bench) for point in (over_tls(folder, "tag_rate", 8, endpoints=ENDPOINTS),
                                                       plain("tag_rate", 8, endpoints=ENDPOINTS)))
        return {"kib": (with_it[field] - without[field]) / 1024, "tls_bytes": with_it[field], "plain_bytes": without[field]}
    return measure


def bandwidth(folder, size, name, has):
    others = [("the lesser of the two", lesser(size), 1, ">= 0.85"), ("plain", plain("tag_bw", size), 1, ""), ("AES-128-GCM", aes, 1, "")]
    if has["tls_echo"]:
        others.append(("OpenSSL", openssl(folder, "bw", size), 1, ""))
    return Row("messages", name, "MiB/s", over_tls(folder, "tag_bw", size), others)


def rows(folder, has):
    def beside(program, *others):
        return list(others) if has[program] else []

    def shake(name, way, field, bound):
        others = [("plain", meeting(folder, "handshake", "plain", field), 1, "")]
        if way != "key":
            others += beside("tls_shake", ("OpenSSL", meeting(folder, "tls_shake", way, field), 1, ""))
        return Row("meeting, by one thread", name, "us", meeting(folder, "handshake", way, field), others, bound)

    calls = [(f"gRPC, {name}", best_rate(*(grpc(folder, way, n) for n in (100, 1000))), 1, ">= 20")
             for name, way in (("callback", "unary"), ("in a stream", "stream"))]
    at_best = [best_rate(*(how(n) for n in OPEN)) for how in (lambda n: over_tls(folder, "rpc_rate", SIZE, n),
                                                              lambda n: plain("rpc_rate", SIZE, n),
                                                              lambda n: openssl(folder, "echo", SIZE, n))]
    return [
        *(Row("messages", name, unit, over_tls(folder, "tag_lat", 8),
              [("plain", plain("tag_lat", 8), 1, "<= 1.35"), *beside("tls_echo", ("OpenSSL", openssl(folder, "lat", 8), 1, ""))])
          for name, unit in (("8 B, half a round trip", "us"), ("   the median message", "p50 us"))),
        Row("messages", "64 B, 256 in flight", "/s", over_tls(folder, "tag_rate", SIZE, 256), [("plain", plain("tag_rate", SIZE, 256), 1, ">= 0.7")]),
        bandwidth(folder, MIB, "1 MiB", has),
        bandwidth(folder, 64 * MIB, "64 MiB", has),
        Row("calls, 64 B there and back", "one at a time, the median", "p50 us", over_tls(folder, "rpc_lat", SIZE),
            [("plain", plain("rpc_lat", SIZE), 1, ""), *beside("tls_echo", ("OpenSSL", openssl(folder, "echo", SIZE, 1), 1, "")),
             *beside("grpc_echo", ("gRPC, blocking", grpc(folder, "sync", 1), 1, ""))]),
        Row("calls, 64 B there and back", "many, each at its best", "/s", at_best[0],
            [("plain", at_best[1], 1, ""), *beside("tls_echo", ("OpenSSL", at_best[2], 1, "")), *(calls if has["grpc_echo"] else [])]),
        shake("certificates, CPU of both", "full", "cpu_us", "< 5000"),
        shake("met before, CPU of both", "resumed", "cpu_us", ""),
        shake("met before, time", "resumed", "p50_us", "< 1000"),
        shake("a key, time", "key", "p50_us", ""),
        *(Row("memory of a connection", f"more than plain, {side}", "KiB", memory(folder, field), [], "<= 40")
          for side, field in (("client", "endpoint_bytes"), ("server", "peer_endpoint_bytes"))),
    ]


def tables(bench):
    has = {name: bench.has_peer(name) for name in ("tls_echo", "tls_shake", "grpc_echo")}
    absent = [name for name, program in (("OpenSSL", "tls_echo"), ("gRPC", "grpc_echo")) if not has[program]]
    if absent:
        print(f"Not built here, and so left out: {', '.join(absent)}. `make bench` installs what it needs.\n")
    if not shutil.which("openssl"):
        print("There is no openssl command: the rows that need `openssl speed` fail.\n")
    try:
        with certificates(bench) as folder:
            table(bench, "tls", rows(folder, has), "Over TLS")
    except Failed as e:
        print(f"TLS: failed: {e}\n")
        return
    print("All over TCP on loopback, by certificates on both sides. plain: Weft without TLS. OpenSSL: the least program on it, which has no frames\n"
          "and no failure detection. the lesser of the two: plain, or AES-128-GCM of `openssl speed` with 16 KiB on one core. at its best: with\n"
          f"{', '.join(map(str, OPEN[:-1]))} or {OPEN[-1]} open (gRPC: 100 or 1000). meeting: from the call that connects until both sides have "
          "their endpoint, wire and lane;\none thread drives both, and CPU is that of both. memory: resident, of each of "
          f"{ENDPOINTS} endpoints that were all used.\n")
