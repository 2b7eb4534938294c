"""weft perf prints one JSON object a line with the fields its users rely on, and figures that can be true."""
import os

from lib import weft

FIELDS = ("test", "size", "tls", "transport", "mode", "window", "outstanding", "endpoints", "iterations", "seconds", "avg_us",
          "p50_us", "p90_us", "p99_us", "p99_9_us", "max_us", "mb_s", "msg_s", "endpoint_bytes", "peer_endpoint_bytes")
SHORT = ("--seconds", "20ms")


def measure(*args, **kw):
    lines = weft.json_lines(weft.must("perf", "--fork", "--json", *args, **kw))
    for line in lines:
        if line["test"] != "idle":
            plausible(line)
    return lines


def plausible(line):
    for name in FIELDS:
        assert name in line, f"{name} is missing in {line}"
    assert 0 <= line["p50_us"] <= line["p90_us"] <= line["p99_us"] <= line["p99_9_us"] <= line["max_us"] * 1.001, line
    assert line["avg_us"] > 0 and line["msg_s"] > 0 and line["seconds"] > 0 and line["iterations"] >= 1, line
    share = 0.5 if line["test"] == "tag_lat" else 1
    assert abs(line["seconds"] * 1e6 * share / line["iterations"] - line["avg_us"]) < 0.01 * line["avg_us"] + 1e-4, line
    assert abs(line["msg_s"] * line["size"] / 2**20 - line["mb_s"]) < 0.01 * line["mb_s"] + 1e-2, line


def each_test_and_size_gives_a_line():
    for tls in ("shm", "tcp"):
        for mode in ("caller", "thread"):
            lines = measure("--test", "tag_lat,tag_bw,tag_rate", "--size", "8,1048576", "--tls", tls, "--window", "16",
                            "--mode", mode, *SHORT)
            expected = [(test, size) for test in ("tag_lat", "tag_bw", "tag_rate") for size in (8, 1048576)]
            assert [(r["test"], r["size"]) for r in lines] == expected, lines
            for r in lines:
                assert r["tls"] == tls and r["mode"] == mode, r
                assert r["transport"], r
                assert r["window"] == (1 if r["test"] == "tag_lat" else 16), r


def every_size_class_arrives():
    lines = measure("--test", "tag_lat,tag_bw", "--size", "0,1,4095-4096,64k,4M", "--iters", "20", "--tls", "shm")
    assert [r["size"] for r in lines] == 2 * [0, 1, 4095, 65536, 4194304], lines
    lines = measure("--test", "tag_lat,tag_bw", "--size", "0,1,64k,4M", "--iters", "20", "--tls", "tcp")
    assert len(lines) == 8, lines


def iterations_are_exact():
    line, = measure("--test", "tag_lat", "--size", "8", "--iters", "1234", "--warmup", "0")
    assert line["iterations"] == 1234, line
    line, = measure("--test", "tag_rate", "--size", "8", "--iters", "1", "--warmup", "1")
    assert line["iterations"] == 1, line


def many_endpoints_and_operations_work():
    for tls in ("shm", "tcp"):
        for test in ("tag_lat", "tag_rate"):
            line, = measure("--test", test, "--size", "8", "--endpoints", "7", "--outstanding", "40", "--window", "33",
                            "--tls", tls, *SHORT)
            assert line["endpoints"] == 7 and line["endpoint_bytes"] >= 0, line
        line, = measure("--test", "tag_rate", "--size", "8", "--outstanding", "5000", "--window", "5000", "--shuffle",
                        "--tls", tls, *SHORT)
        assert line["outstanding"] == 5000, line
        measure("--test", "tag_rate", "--size", "8", "--outstanding", "100", "--endpoints", "3", "--shuffle",
                "--tls", tls, *SHORT)


def idle_reports_processor_time():
    line, = measure("--idle", "500ms", "--mode", "thread")
    assert line["test"] == "idle" and 0.45 <= line["seconds"] <= 3, line
    assert 0 <= line["cpu_percent"] <= 200 and 0 <= line["peer_cpu_percent"] <= 200, line


def a_table_fits_in_100_columns():
    text = weft.must("perf", "--fork", "--test", "tag_lat,tag_bw", "--size", "8,1M", "--endpoints", "2", *SHORT)
    assert "tag_lat" in text and "MiB/s" in text, text
    assert max(len(line) for line in text.splitlines()) <= 100, text
    assert "\r" not in text and "\033" not in text, "there is progress where no terminal is"


def server_and_client_find_each_other():
    server, uri = weft.listen("--tls", "shm")
    try:
        lines = weft.json_lines(weft.must("perf", "--connect", uri, "--json", "--test", "tag_lat", "--size", "8",
                                          "--tls", "shm", *SHORT))
        assert len(lines) == 1 and lines[0]["test"] == "tag_lat", lines
        server.wait(timeout=20)
        assert server.returncode == 0, server.stderr.read()
    finally:
        weft.end(server)


def a_server_that_keeps_serves_one_client_after_another():
    server, uri = weft.listen("--keep")
    try:
        for _ in range(3):
            weft.must("perf", "--connect", uri, "--json", "--test", "tag_rate", "--size", "8", "--iters", "100")
        assert server.poll() is None, "the server ended"
    finally:
        weft.end(server)


def a_key_is_needed_on_both_sides():
    with weft.scratch() as folder:
        path = os.path.join(folder, "key")
        with open(path, "wb") as f:
            f.write(bytes(range(32)))
        os.chmod(path, 0o600)
        line, = measure("--test", "tag_lat", "--size", "8", "--iters", "10", "--key-file", path)
        assert line["iterations"] == 10, line
        server, uri = weft.listen("--key-file", path)
        try:
            done = weft.run("perf", "--connect", uri, "--iters", "10")
            assert done.returncode == 1 and "--key-file" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"
        finally:
            weft.end(server)


weft.main(each_test_and_size_gives_a_line, every_size_class_arrives, iterations_are_exact, many_endpoints_and_operations_work,
          idle_reports_processor_time, a_table_fits_in_100_columns, server_and_client_find_each_other,
          a_server_that_keeps_serves_one_client_after_another, a_key_is_needed_on_both_sides)
