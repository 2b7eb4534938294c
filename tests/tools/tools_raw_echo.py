"""bench/raw_echo, what Weft is measured against, moves what it says it moves: every way, on shared memory and TCP."""
import json

from lib import weft

TLS = {"shm": "posix,sysv,cma,self", "tcp": "tcp"}


def raw_echo(*args, tls="shm"):
    return weft.bench("raw_echo", *args, env=weft.environment(UCX_TLS=TLS[tls], UCX_LOG_LEVEL="error", UCX_WARN_UNUSED_ENV_VARS="n"))


def figures(*args, tls):
    done = raw_echo(*args, tls=tls)
    assert done.returncode == 0, f"raw_echo {' '.join(args)}, {tls}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    line, = [said for said in done.stdout.splitlines() if said.startswith("{")]  # UCX logs to stdout
    r = json.loads(line)
    share = 0.5 if r["test"] == "lat" else 1
    assert abs(r["seconds"] * 1e6 * share / r["iterations"] - r["avg_us"]) < 0.01 * r["avg_us"] + 1e-4, r
    assert abs(r["size"] * 1e6 / 2**20 / r["avg_us"] - r["mb_s"]) < 0.01 * r["mb_s"] + 1e-2, r
    return r


def each_way_gives_a_line():
    for tls in TLS:
        for mode, size in (("lat", 8), ("rate", 8), ("bw", 1 << 20), ("echo", 8)):
            r = figures(mode, "--count", "60", tls=tls)
            assert (r["test"], r["size"], r["iterations"]) == (mode, size, 60), r


def every_size_and_window_arrives():
    for tls in TLS:
        for size in (0, 4096, 4097, 1 << 20):
            for mode in ("lat", "echo"):
                figures(mode, "--size", str(size), "--window", "5", "--header", "16", "--count", "20", tls=tls)
        figures("echo", "--window", "256", "--count", "2000", tls=tls)
        lone = figures("echo", "--size", "64", "--window", "1", "--count", "2000", tls=tls)
        assert 0 < lone["p50_us"] < 2 * lone["avg_us"], lone
        figures("rate", "--window", "1", "--seconds", "0.02", tls=tls)


def a_wrong_option_is_named():
    for args in ((), ("fast",), ("lat", "--sise", "8"), ("lat", "--size", "x"), ("lat", "--window", "0"), ("rate", "--seconds", "0")):
        done = raw_echo(*args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(each_way_gives_a_line, every_size_and_window_arrives, a_wrong_option_is_named)
