"""weft perf prints one JSON object a line with the fields its users rely on, and figures that can be true."""
# ctest: long computes
import os
import signal
import subprocess
import time

from lib import weft

FIELDS = ("test", "size", "transports", "tls", "transport", "mode", "window", "outstanding", "endpoints", "iterations", "seconds", "avg_us",
          "p50_us", "p90_us", "p99_us", "p99_9_us", "max_us", "mb_s", "msg_s", "endpoint_bytes", "peer_endpoint_bytes",
          "send_memory", "recv_memory")
AM = "am_lat,am_bw,am_rate"
RMA = "rma_get,rma_put,rma_put_lat,rma_batch"
RPC = "rpc_lat,rpc_rate,rpc_tensor"
ATOMIC = "rma_fadd,rma_cas,rma_swap"
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
    share = 0.5 if line["test"] in ("tag_lat", "am_lat", "rma_put_lat") else 1
    assert abs(line["seconds"] * 1e6 * share / line["iterations"] - line["avg_us"]) < 0.01 * line["avg_us"] + 1e-4, line
    assert abs(line["size"] * 1e6 / 2**20 / line["avg_us"] - line["mb_s"]) < 0.01 * line["mb_s"] + 1e-2, line


def each_test_and_size_gives_a_line():
    for tls in ("shm", "tcp"):
        for mode in ("caller", "thread"):
            lines = measure("--test", "tag_lat,tag_bw,tag_rate", "--size", "8,1048576", "--transports", tls, "--window", "16",
                            "--mode", mode, *SHORT)
            expected = [(test, size) for test in ("tag_lat", "tag_bw", "tag_rate") for size in (8, 1048576)]
            assert [(r["test"], r["size"]) for r in lines] == expected, lines
            for r in lines:
                assert r["transports"] == r["tls"] == tls and r["mode"] == mode, r
                assert r["transport"], r
                assert r["window"] == (1 if r["test"] == "tag_lat" else 16), r


def every_size_class_arrives():
    lines = measure("--test", "tag_lat,tag_bw", "--size", "0,1,4095-4096,64k,4M", "--iters", "20", "--transports", "shm")
    assert [r["size"] for r in lines] == 2 * [0, 1, 4095, 65536, 4194304], lines
    lines = measure("--test", "tag_lat,tag_bw", "--size", "0,1,64k,4M", "--iters", "20", "--transports", "tcp")
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
                            "--transports", tls, *SHORT)
            assert line["endpoints"] == 7 and line["endpoint_bytes"] >= 0, line
        line, = measure("--test", "tag_rate", "--size", "8", "--outstanding", "5000", "--window", "5000", "--shuffle",
                        "--transports", tls, *SHORT)
        assert line["outstanding"] == 5000, line
        measure("--test", "tag_rate", "--size", "8", "--outstanding", "100", "--endpoints", "3", "--shuffle",
                "--transports", tls, *SHORT)


def active_messages_give_a_line_each():
    for tls in ("shm", "tcp"):
        for mode in ("caller", "thread"):
            lines = measure("--test", AM, "--size", "8,1M", "--transports", tls, "--window", "16", "--mode", mode, *SHORT)
            assert [(r["test"], r["size"]) for r in lines] == [(t, s) for t in AM.split(",") for s in (8, 1 << 20)], lines
            for r in lines:
                assert r["header"] == 0 and r["taken"] == "at once" and r["send_memory"] == r["recv_memory"] == "host", r
                assert r["window"] == (1 if r["test"] == "am_lat" else 16), r


def active_messages_of_every_size_and_header_arrive():
    for tls in ("shm", "tcp"):
        for header in ("0", "1", "64", "8192"):
            lines = measure("--test", "am_lat,am_bw", "--size", "0,1,4000,4096,64k,4M", "--header", header, "--iters", "20",
                            "--transports", tls)
            assert [r["size"] for r in lines] == 2 * [0, 1, 4000, 4096, 65536, 4194304], lines
            assert all(r["header"] == int(header) for r in lines), lines


def an_answer_may_be_of_another_size():
    for tls in ("shm", "tcp"):
        for mode in ("caller", "thread"):
            lines = measure("--test", "am_lat,am_rate", "--size", "0,8,1M", "--answer", "4k", "--iters", "50", "--transports", tls, "--mode", mode)
            assert [r["answer"] for r in lines] == [4096, 4096, 4096, 0, 8, 1 << 20], lines
        line, = measure("--test", "am_lat", "--size", "8", "--answer", "4M", "--iters", "5", "--view", "--transports", tls)
        assert line["answer"] == 4 << 20 and line["size"] == 8, line


def active_messages_are_taken_in_each_way():
    ways = {"viewed": ["--view"], "kept": ["--kept"], "viewed, kept": ["--view", "--kept"]}
    for tls in ("shm", "tcp"):
        for taken, args in ways.items():
            for mode in ("caller", "thread"):
                lines = measure("--test", AM, "--size", "0,8,3000,1M", "--iters", "60", "--header", "16", "--mode", mode,
                                "--transports", tls, *args)
                assert len(lines) == 12 and all(r["taken"] == taken for r in lines), lines


def few_slots_and_many_endpoints_take_active_messages():
    for tls in ("shm", "tcp"):
        for size in ("8", "100k"):
            lines = measure("--test", AM, "--size", size, "--endpoints", "5", "--window", "40", "--outstanding", "3",
                            "--iters", "500", "--transports", tls)
            assert [r["endpoints"] for r in lines] == 3 * [5], lines


def a_small_window_makes_the_sender_wait_and_nothing_is_lost():
    env = weft.environment(WEFT_AM_WINDOW="16k", WEFT_AM_MESSAGES="16")
    for args in ([], ["--kept"]):
        line, = measure("--test", "am_rate", "--size", "2000", "--iters", "20000", *args, env=env)
        assert line["iterations"] == 20000, line


def buffers_are_of_the_kinds_asked_for():
    for tls in ("shm", "tcp"):
        for kinds in ("pool", "huge", "host,pool", "pool,huge"):
            for test, size in ((AM, "8,1M,20M"), ("tag_lat,tag_bw", "8,1M")):
                lines = measure("--test", test, "--size", size, "--memory", kinds, "--iters", "4", "--transports", tls)
                both = kinds.split(",") * 2
                assert all([r["send_memory"], r["recv_memory"]] == both[:2] for r in lines), lines
        measure("--test", AM, "--size", "8,20M", "--memory", "pool", "--view", "--iters", "10", "--transports", tls)


def a_kind_that_is_not_here_is_refused_with_a_sentence():
    done = weft.run("perf", "--fork", "--json", "--test", AM, "--size", "8,1M", "--iters", "5", "--memory", "cuda",
                    env=weft.environment(WEFT_CUDA="off"))
    assert done.returncode == 1 and "cuda" in done.stderr and not done.stdout, f"{done.returncode}\n{done.stdout}{done.stderr}"
    assert "use another --memory" in done.stderr and "--size" not in done.stderr, done.stderr
    for word, near in (("cuda-fdx", "; did you mean cuda-fd?"), ("bananas", "")):
        done = weft.run("perf", "--fork", "--memory", word)
        assert f'--memory: there is no kind "{word}"{near} (there are host, ' in done.stderr, done.stderr


def gpu_memory_works_where_there_is_some():
    if weft.run("perf", "--fork", "--test", "am_lat", "--size", "8", "--iters", "1", "--memory", "cuda").returncode:
        raise weft.Skip("there is no CUDA device")
    for tls in ("shm", "tcp"):
        for kinds in ("cuda", "host,cuda", "cuda,host", "pinned,cuda", "cuda-managed", "cuda-async", "cuda-vmm", "cuda-fd"):
            measure("--test", AM, "--size", "8,3000,1M,64M", "--memory", kinds, "--iters", "8", "--transports", tls)


def every_cuda_kind_works_with_a_driver_made_of_paper():
    env = weft.on_paper()
    for tls in ("shm", "tcp"):
        for kinds in ("cuda", "cuda-managed", "cuda-async", "cuda-vmm", "cuda-fd", "cuda-async,pool", "huge,cuda-vmm"):
            for test, size in (("tag_lat,am_lat", "0,8,3000,1M"), ("rma_get,rma_put", "8,100k")):
                lines = measure("--test", test, "--size", size, "--memory", kinds, "--iters", "4", "--transports", tls, env=env)
                both = kinds.split(",") * 2
                assert all([r["send_memory"], r["recv_memory"]] == both[:2] for r in lines), lines
                long = 512 << 10  # managed memory that is shorter is the processor's
                assert all(("device_path" in r) == (kinds != "cuda-managed" or r["size"] >= long) for r in lines), lines
    for kind in ("cuda", "cuda-async", "cuda-vmm"):
        measure("--test", "rpc_tensor", "--size", "8,1M", "--memory", kind, "--iters", "4", env=env)
    assert "device_path" not in measure("--test", "tag_lat", "--size", "8", "--iters", "4", env=env)[0]


def the_path_of_payloads_on_a_gpu_is_said():
    def paths(kinds, size, *args):
        return [set(r["device_path"].split("+")) for r in measure("--test", "tag_lat,tag_bw", "--size", size, "--memory", kinds, "--window",
                                                                  "2", "--iters", "6", *args, env=env)]
    env = weft.on_paper()
    assert paths("cuda", "8,4k") == 4 * [{"carry"}]
    assert paths("cuda", "4M", "--transports", "shm") == 2 * [{"direct"}]
    assert paths("cuda,pinned", "4M", "--transports", "shm") == 2 * [{"direct"}], "both sides page-lock it for the GPU"
    assert paths("cuda-fd", "4M", "--transports", "shm") == 2 * [{"direct"}]
    for kinds in ("cuda", "cuda-vmm", "cuda-managed"):
        assert paths(kinds, "4M", "--transports", "tcp") == 2 * [{"staging"}]
    for kinds in ("cuda-async", "cuda-vmm", "host,cuda", "pinned,cuda-vmm", "cuda-managed", "host,cuda-managed"):
        for ways in paths(kinds, "4M", "--transports", "shm"):
            assert ways and not ways & {"direct", "carry", "record"}, (kinds, ways)
    text = weft.must("perf", "--fork", "--test", "tag_lat", "--size", "8,16,4M", "--iters", "4", "--memory", "cuda", "--transports", "shm",
                     env=env)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("GPU memory, ")] == ["GPU memory, carry:", "GPU memory, direct:"], text
    assert max(len(line) for line in lines) <= 100, text


def the_path_of_accesses_to_gpu_memory_is_that_of_the_run_alone():
    def paths(kinds, *args):
        return [r["device_path"] for r in measure("--test", "rma_get,rma_put", "--size", "8,64k,4M", "--memory", kinds, "--window", "1",
                                                  "--iters", "6", *args, env=env)]
    env = weft.on_paper()
    assert paths("cuda", "--transports", "shm") == 3 * ["mapped"] + ["carry", "relay", "direct"]
    assert paths("host,cuda", "--transports", "shm") == ["mapped", "relay", "relay", "carry", "relay", "relay"]
    assert paths("cuda,host", "--transports", "shm") == 2 * ["mapped", "relay", "relay"]
    assert paths("cuda", "--transports", "tcp") == 2 * ["carry", "staging", "staging"]
    for kinds in ("cuda-managed", "host,cuda-managed", "pinned"):
        for tls in ("shm", "tcp"):
            lines = measure("--test", "tag_lat,rma_get", "--size", "8,500k", "--memory", kinds, "--iters", "4", "--transports", tls, env=env)
            assert not any("device_path" in r for r in lines), f"the processor moved it: {lines}"


def one_side_may_have_no_cuda_if_it_needs_none():
    env, without = weft.on_paper(), weft.environment(WEFT_CUDA="off")
    for kinds in ("cuda,pinned", "cuda,host"):
        server, uri = weft.listen("--transports", "shm", env=without)
        try:
            line, = weft.json_lines(weft.must("perf", "--connect", uri, "--json", "--test", "tag_bw", "--size", "1M", "--iters", "4",
                                              "--transports", "shm", "--memory", kinds, env=env))
            assert line["iterations"] == 4 and "direct" not in line["device_path"], line
        finally:
            weft.end(server)
    server, uri = weft.listen(env=without)
    try:
        done = weft.run("perf", "--connect", uri, "--test", "tag_bw", "--size", "8", "--iters", "4", "--memory", "host,cuda-vmm", env=env)
        assert done.returncode == 1 and "no cuda-vmm memory" in done.stderr and "WEFT_CUDA" in done.stderr, done.stderr
    finally:
        weft.end(server)


def operations_take_their_turn_in_streams():
    env = weft.on_paper()
    tests = "tag_lat,tag_bw,tag_rate,am_lat,am_bw,am_rate,rma_get,rma_put,rma_batch"
    for tls in ("shm", "tcp"):
        for words in ([], ["both"], ["before"], ["after"]):
            for kinds, mode in (("cuda", "caller"), ("host", "thread"), ("host,cuda-managed", "caller")):
                lines = measure("--stream", *words, "--test", tests, "--size", "0,8,100k,1M", "--memory", kinds, "--mode", mode, "--window", "6",
                                "--iters", "20", "--transports", tls, env=env)
                assert len(lines) == 36 and all(r["stream"] == (words or ["both"])[0] and r["streams"] == 1 for r in lines), lines
            lines = measure("--stream", *words, "--test", "rma_put_lat," + ATOMIC, "--size", "8", "--window", "9", "--iters", "100",
                            "--transports", tls, env=env)
            assert [(r["window"], r["streams"]) for r in lines] == 4 * [(1, 1)], lines
    assert "stream" not in measure("--test", "tag_lat", "--size", "8", "--iters", "4", env=env)[0]


def a_window_may_have_several_streams():
    env = weft.on_paper()
    for words in ("both", "before", "after"):
        lines = measure("--stream", words, "--streams", "3", "--test", "tag_lat,tag_bw,am_bw,rma_get", "--size", "8,100k", "--window", "40",
                        "--outstanding", "37", "--endpoints", "5", "--iters", "200", "--memory", "cuda", env=env)
        assert [r["streams"] for r in lines] == [1, 1, 3, 3, 3, 3, 3, 3], lines
        line, = measure("--stream", words, "--streams", "4", "--test", "tag_bw", "--size", "8", "--window", "12", "--outstanding", "10",
                        "--endpoints", "3", "--shuffle", "--iters", "200", env=env)
        assert line["streams"] == 4, line
    line, = measure("--stream", "--streams", "4", "--test", "rma_put", "--size", "8", "--window", "2", "--iters", "9", env=env)
    assert line["streams"] == 2, "there are no more operations"
    measure("--stream", "--test", "tag_rate", "--size", "8", "--window", "512", "--iters", "2000", env=env)
    done = weft.run("perf", "--fork", "--stream", "--test", "am_lat", "--size", "8", "--endpoints", "129", "--iters", "4", env=env)
    assert done.returncode == 1 and "512 operations" in done.stderr, done.stderr
    more = ("--stream", "--streams", "8", "--test", "tag_bw", "--size", "1M", "--memory", "cuda", "--window", "16", "--iters", "40")
    done = weft.run("perf", "--fork", *more, env=env)
    assert done.returncode == 1 and "CUDA_DEVICE_MAX_CONNECTIONS" in done.stderr and "ulimit" not in done.stderr, done.stderr
    line, = measure(*more, env=dict(env, CUDA_DEVICE_MAX_CONNECTIONS="32"))
    assert line["streams"] == 8, line


def every_operation_is_in_a_stream():
    """The driver lets so many operations be waited for and not one more: then the run succeeds, and with one less it fails."""
    def succeeds(test, side, function, n, *args):
        failing = weft.on_paper(PAPER_FAIL=f"{function}:{n}:801:-1")
        server, uri = weft.listen("--transports", "shm", env=failing if side == "server" else weft.on_paper())
        try:
            done = weft.run("perf", "--connect", uri, "--transports", "shm", "--test", test, "--size", "8", "--memory", "cuda", "--window", "4",
                            "--batch" if test == "rma_batch" else "--outstanding", "4", "--iters", "20", "--warmup", "0", "--stream", *args,
                            env=failing if side == "client" else weft.on_paper())
            return done.returncode == 0
        finally:
            weft.end(server)
    counts = {("tag_lat", "client"): 40, ("tag_lat", "server"): 40, ("tag_bw", "client"): 20, ("tag_bw", "server"): 20,
              ("am_lat", "client"): 40, ("am_lat", "server"): 40, ("am_bw", "client"): 20, ("am_bw", "server"): 20,
              ("rma_get", "client"): 20, ("rma_put", "client"): 20, ("rma_batch", "client"): 5, ("rma_get", "server"): 0}
    for (test, side), n in counts.items():
        assert succeeds(test, side, "cuStreamWaitValue32_v2", n), (test, side, n)
        assert not n or not succeeds(test, side, "cuStreamWaitValue32_v2", n - 1), (test, side, n)
    assert succeeds("tag_bw", "client", "cuStreamWaitValue32_v2", 0, "before")
    assert not succeeds("tag_bw", "client", "cuEventRecord", 0, "before")
    assert succeeds("tag_bw", "client", "cuEventRecord", 0, "after")


def a_side_that_has_no_streams_refuses_them():
    without = weft.environment(WEFT_CUDA="off")
    for here, there, says in ((without, weft.on_paper(), "weft perf: --stream needs CUDA"),
                              (weft.on_paper(), without, "the server refused: --stream needs CUDA"),
                              (weft.on_paper("paper_bare"), weft.on_paper(), "CUDA 12")):
        server, uri = weft.listen(env=there)
        try:
            done = weft.run("perf", "--connect", uri, "--stream", "--test", "tag_lat", "--size", "8", "--iters", "4", env=here)
            assert done.returncode == 1 and says in done.stderr and "--memory" not in done.stderr, done.stderr
        finally:
            weft.end(server)
    line, = measure("--stream", "before", "--test", "tag_lat", "--size", "8", "--iters", "4", env=weft.on_paper("paper_bare"))
    assert line["stream"] == "before", line


def the_heading_says_what_the_streams_do():
    for words, says in (([], "stream both: "), (["--streams", "2"], "stream both, 2 in turn: ")):
        text = weft.must("perf", "--fork", "--stream", *words, "--test", "tag_bw", "--size", "8", "--iters", "4", env=weft.on_paper())
        assert any(line.startswith(says) for line in text.splitlines()), text
        assert max(len(line) for line in text.splitlines()) <= 100, text


def remote_memory_gives_a_line_each():
    for tls, path in (("shm", "mapped"), ("shm", "checked"), ("tcp", "checked")):
        for mode in ("caller", "thread"):
            lines = measure("--test", RMA, "--size", "8,1M", "--transports", tls, "--path", path, "--mode", mode, "--batch", "9", *SHORT)
            assert [(r["test"], r["size"]) for r in lines] == [(t, s) for t in RMA.split(",") for s in (8, 1 << 20)], lines
            for r in lines:
                assert r["path"] == path and r["region"] == r["size"], r
                assert r["batch"] == (9 if r["test"] == "rma_batch" else 1), r
                assert r["window"] == (32 if r["test"] == "rma_put" else 1), r
            lines = measure("--test", ATOMIC, "--size", "4,8", "--transports", tls, "--path", path, "--mode", mode, *SHORT)
            assert [(r["test"], r["size"]) for r in lines] == [(t, s) for t in ATOMIC.split(",") for s in (4, 8)], lines


def the_path_is_the_best_there_is_unless_asked_for():
    for tls, path in (("shm", "mapped"), ("tcp", "checked")):
        line, = measure("--test", "rma_get", "--size", "8", "--iters", "10", "--transports", tls)
        assert line["path"] == path, line
    done = weft.run("perf", "--fork", "--json", "--test", "rma_get", "--size", "8", "--iters", "10", "--transports", "tcp", "--path", "mapped")
    assert done.returncode == 1 and "--path mapped" in done.stderr and not done.stdout, f"{done.returncode}\n{done.stdout}{done.stderr}"


def remote_memory_of_every_size_and_window_is_right():
    for tls, path in (("shm", "mapped"), ("shm", "checked"), ("tcp", "checked")):
        how = ("--transports", tls, "--path", path)
        lines = measure("--test", "rma_get,rma_put,rma_batch", "--size", "0,1,7,4095,4160,4161,64k,5M", "--window", "7", "--batch", "5",
                        "--iters", "33", *how)
        assert len(lines) == 24, lines
        lines = measure("--test", "rma_put_lat", "--size", "1,7,4095,64k,5M", "--iters", "30", *how)
        assert len(lines) == 5, lines
        for line in measure("--test", "rma_get,rma_put,rma_batch", "--size", "100", "--region", "10050", "--window", "300", "--iters",
                            "1000", *how):
            assert line["region"] == 10000 and line["iterations"] == 1000, line
        measure("--test", ATOMIC, "--size", "4,8", "--region", "80", "--window", "50", "--iters", "1003", *how)


def many_endpoints_use_remote_memory():
    for tls in ("shm", "tcp"):
        lines = measure("--test", RMA + "," + ATOMIC, "--size", "8", "--endpoints", "5", "--window", "12", "--iters", "500", "--transports", tls)
        assert [r["endpoints"] for r in lines] == 7 * [5], lines


def regions_are_of_the_kinds_asked_for():
    for tls in ("shm", "tcp"):
        for kinds in ("huge", "pool", "host,huge", "pool,host"):
            lines = measure("--test", RMA, "--size", "8,1M", "--memory", kinds, "--iters", "6", "--transports", tls)
            there = {"rma_get": 0, "rma_batch": 0, "rma_put": 1, "rma_put_lat": 1}
            for r in lines:
                library_made = (kinds.split(",") * 2)[there[r["test"]]] == "host"
                assert r["path"] == ("mapped" if library_made and tls == "shm" else "checked"), r


def calls_give_a_line_each():
    for tls in ("shm", "tcp"):
        for mode in ("caller", "thread"):
            lines = measure("--test", RPC, "--size", "8,1M", "--transports", tls, "--mode", mode, *SHORT)
            assert [(r["test"], r["size"]) for r in lines] == [(t, s) for t in RPC.split(",") for s in (8, 1 << 20)], lines
            windows = {"rpc_lat": 1, "rpc_rate": 256, "rpc_tensor": 4}
            assert all(r["window"] == windows[r["test"]] for r in lines), lines


def calls_of_every_size_and_window_are_answered():
    for tls in ("shm", "tcp"):
        lines = measure("--test", RPC, "--size", "0,1,1023,1024,4100,64k,5M", "--window", "7", "--iters", "33", "--transports", tls)
        assert len(lines) == 21, lines
        lines = measure("--test", "rpc_rate", "--size", "64", "--window", "5000", "--iters", "20000", "--transports", tls)
        lines += measure("--test", RPC, "--size", "64", "--endpoints", "5", "--window", "12", "--iters", "500", "--transports", tls)
        assert [r["endpoints"] for r in lines] == [1, 5, 5, 5], lines
        for kind in ("pool", "huge"):
            measure("--test", RPC, "--size", "8,3M", "--memory", kind, "--iters", "6", "--transports", tls)


def many_clients_call_one_server():
    for tls, mode in (("shm", "caller"), ("tcp", "thread")):
        lines = weft.json_lines(weft.must("perf", "--fork", "--json", "--clients", "3", "--endpoints", "2", "--size", "8,4k",
                                          "--transports", tls, "--mode", mode, "--seconds", "50ms"))
        assert [(r["test"], r["size"]) for r in lines] == [(t, s) for t in ("rpc_lat", "rpc_rate") for s in (8, 4096)], lines
        for r in lines:
            assert r["clients"] == 3 and r["endpoints"] == 2 and r["transport"] == tls and r["mode"] == mode, r
            assert r["iterations"] >= 3 and r["seconds"] >= 0.05 and r["p50_us"] <= r["p99_us"] <= r["max_us"] * 1.001, r
            assert abs(r["msg_s"] * r["avg_us"] - 3e6) < 3e4, r  # of one client
            assert r["msg_s"] <= r["iterations"] / 0.05 * 1.001, r
            assert r["endpoint_bytes"] > 0 and r["peer_endpoint_bytes"] > 0, r


def the_heading_says_who_has_a_core():
    cores = len(os.sched_getaffinity(0))
    for mode, enough in (("caller", False), ("thread", cores >= 4)):
        done = weft.must("perf", "--fork", "--test", "tag_lat", "--size", "8", "--iters", "10", "--mode", mode)
        assert ("a core for each thread" in done) == enough, (mode, cores, done)
        assert ("one core each" in done) == (cores >= 2 and not enough), (mode, cores, done)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def until(done, what):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def a_process_of_many_is_killed():
    for nth in (0, 2):  # the server, a client
        process = subprocess.Popen([weft.command(), "perf", "--fork", "--clients", "3", "--seconds", "60s"], env=weft.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: len(children_of(process.pid)) == 4, "all of them")
        others = children_of(process.pid)
        time.sleep(0.5)
        os.kill(others[nth], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1 and not out, (process.returncode, out)
        assert "was killed by signal 9" in err or "lost the server" in err, err
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in others), "the end of all")


def idle_reports_processor_time():
    line, = measure("--idle", "500ms", "--mode", "thread")
    assert line["test"] == "idle" and 0.45 <= line["seconds"] <= 3, line
    assert 0 <= line["cpu_percent"] <= 200 and 0 <= line["peer_cpu_percent"] <= 200, line


def a_table_fits_in_100_columns():
    text = weft.must("perf", "--fork", "--test", "tag_lat,tag_bw,am_lat,rma_put_lat", "--size", "8,1M", "--endpoints", "2", "--memory", "pool",
                     "--header", "64", "--kept", *SHORT)
    assert "tag_lat" in text and "MiB/s" in text, text
    assert max(len(line) for line in text.splitlines()) <= 100, text
    assert "\r" not in text and "\033" not in text, "there is progress where no terminal is"


def server_and_client_find_each_other():
    server, uri = weft.listen("--transports", "shm")
    try:
        lines = weft.json_lines(weft.must("perf", "--connect", uri, "--json", "--test", "tag_lat", "--size", "8",
                                          "--transports", "shm", *SHORT))
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
          active_messages_give_a_line_each, active_messages_of_every_size_and_header_arrive,
          an_answer_may_be_of_another_size, active_messages_are_taken_in_each_way,
          few_slots_and_many_endpoints_take_active_messages, a_small_window_makes_the_sender_wait_and_nothing_is_lost,
          buffers_are_of_the_kinds_asked_for, a_kind_that_is_not_here_is_refused_with_a_sentence,
          gpu_memory_works_where_there_is_some, every_cuda_kind_works_with_a_driver_made_of_paper,
          the_path_of_payloads_on_a_gpu_is_said, the_path_of_accesses_to_gpu_memory_is_that_of_the_run_alone,
          one_side_may_have_no_cuda_if_it_needs_none, operations_take_their_turn_in_streams, a_window_may_have_several_streams,
          every_operation_is_in_a_stream, a_side_that_has_no_streams_refuses_them, the_heading_says_what_the_streams_do,
          remote_memory_gives_a_line_each, the_path_is_the_best_there_is_unless_asked_for,
          remote_memory_of_every_size_and_window_is_right, many_endpoints_use_remote_memory, regions_are_of_the_kinds_asked_for,
          calls_give_a_line_each, calls_of_every_size_and_window_are_answered, many_clients_call_one_server,
          a_process_of_many_is_killed, the_heading_says_who_has_a_core,
          idle_reports_processor_time, a_table_fits_in_100_columns, server_and_client_find_each_other,
          a_server_that_keeps_serves_one_client_after_another, a_key_is_needed_on_both_sides)
