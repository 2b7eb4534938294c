#!/usr/bin/env python3
"""Memory of a GPU: `weft perf` over each kind of it, between two processes on one GPU, beside UCX where there is one with CUDA.

    bench/gpu.py [--weft build/release/weft] [--ucx DIR] [--seconds 0.25] [--page] [--json FILE]

DIR is the folder `libucx` of PyPI's package libucx-cu12 or libucx-cu13: it has bin/ucx_perftest. Each row also shows what path the bytes
took. --page writes the table into docs/performance.md, in the place of the one that is there. Times are medians, and half of a round trip
where there is one; GB is 10^9 bytes. A figure that does not hold the bound of its row is marked with a "!".
"""
import argparse
import json
import os
import subprocess
import sys
import time

from common import Failed, clean_env, holds

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "performance.md")
HEADING = "## Memory of GPUs"
US, GB, RATIO = "us", "GB/s", "times host to host"
# what, the test, the memory, [(size, bound)], unit, UCX's test (None: it has none for that), more options
ROWS = [
    ("GPU to GPU, tag, half a round trip", "tag_lat", "cuda", [("8", "<= 20"), ("4k", "<= 20"), ("16k", "<= 20"), ("64k", "")], US,
     "tag_lat", []),
    ("GPU to GPU, active messages, half a round trip", "am_lat", "cuda", [("8", "<= 20"), ("16k", "<= 20")], US, "ucp_am_lat", []),
    ("GPU to GPU", "tag_bw", "cuda", [("1M", ">= 120"), ("64M", ">= 1500"), ("256M", ">= 1900")], GB, "tag_bw", []),
    ("remote read into GPU memory", "rma_get", "cuda", [("8", "<= 12")], US, None, []),
    ("remote read into GPU memory", "rma_get", "cuda", [("1M", ">= 100"), ("256M", ">= 1900")], GB, None, []),
    ("remote write out of GPU memory", "rma_put", "cuda", [("1M", ""), ("256M", "")], GB, None, []),
    ("of CUDA's memory pool", "tag_bw", "cuda-async", [("1M", ">= 25"), ("64M", ">= 80"), ("256M", ">= 300")], GB, None, []),
    ("mapped by hand", "tag_bw", "cuda-vmm", [("1M", ">= 25"), ("64M", ">= 80"), ("256M", ">= 300")], GB, None, []),
    ("mapped by hand, with a descriptor", "tag_bw", "cuda-fd", [("1M", ""), ("64M", ""), ("256M", "")], GB, None, []),
    ("managed", "tag_bw", "cuda-managed", [("1M", ">= 25"), ("64M", ">= 80"), ("256M", ">= 300")], GB, None, []),
    ("pinned host memory to GPU", "tag_bw", "pinned,cuda", [("64M", ">= 50")], GB, None, []),
    ("GPU to pinned host memory", "tag_bw", "cuda,pinned", [("64M", ">= 50")], GB, None, []),
    ("other host memory to GPU", "tag_bw", "host,cuda", [("64M", ">= 8")], GB, None, []),
    ("GPU to other host memory", "tag_bw", "cuda,host", [("64M", ">= 10")], GB, None, []),
    ("GPU to GPU over TCP", "tag_bw", "cuda", [("64M", ">= 0.9")], RATIO, None, ["--transports", "tcp"]),
    ("GPU to GPU, tag, each in its stream", "tag_lat", "cuda", [("8", ""), ("64k", "")], US, None, ["--stream"]),
    ("GPU to GPU, in 4 streams", "tag_bw", "cuda", [("1M", ""), ("64M", "")], GB, None, ["--stream", "--streams", "4"]),
    ("GPU to GPU, in 7 streams", "tag_bw", "cuda", [("1M", ""), ("64M", "")], GB, None, ["--stream", "--streams", "7"]),
    ("GPU to GPU, in 16 streams, `CUDA_DEVICE_MAX_CONNECTIONS=32`", "tag_bw", "cuda", [("1M", ""), ("64M", "")], GB, None,
     ["--stream", "--streams", "16"]),
]
BYTES = {"k": 1 << 10, "M": 1 << 20}


def size_of(text):
    return int(text[:-1]) * BYTES[text[-1]] if text[-1] in BYTES else int(text)


def words(text):
    return text.replace("k", " KiB").replace("M", " MiB") if text[-1] in BYTES else f"{text} B"


def perf(options, test, memory, sizes, more):
    """The JSON lines of one run."""
    command = [options.weft, "perf", "--fork", "--json", "--seconds", f"{options.seconds}s", "--timeout", "20s", "--test", test,
               "--memory", memory, "--size", ",".join(sizes), *([] if "--transports" in more else ["--transports", "shm"]), *more]
    env = clean_env(CUDA_DEVICE_MAX_CONNECTIONS="32") if "16" in more else clean_env()
    try:
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise Failed("no end after 120 s") from None
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode or len(lines) != len(sizes):
        raise Failed((run.stderr.strip().splitlines() or ["it ended early"])[-1])
    return lines


def ucx(options, test, size, port):
    """One figure of ucx_perftest, in us or GB/s."""
    n = size_of(size)
    env = clean_env(UCX_TLS="cuda_copy,cuda_ipc,sm,self", UCX_LOG_LEVEL="error", UCX_MODULE_DIR=os.path.join(options.ucx, "lib", "ucx"))
    beside = [os.path.join(options.ucx, "..", name) for name in os.listdir(os.path.join(options.ucx, "..")) if name.endswith(".libs")]
    env["LD_LIBRARY_PATH"] = os.pathsep.join([os.path.join(options.ucx, "lib"), *beside, env.get("LD_LIBRARY_PATH", "")])
    count = 1000 if n < 1 << 20 else max(40, (4 << 30) // n)
    command = [os.path.join(options.ucx, "bin", "ucx_perftest"), "-t", test, "-s", str(n), "-n", str(count), "-w", "20", "-m", "cuda",
               "-p", str(port), "-f"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            time.sleep(1.2)  # it says nothing when it listens
            run = subprocess.run([*command, "127.0.0.1"], env=env, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            raise Failed("no end after 20 s") from None
        finally:
            server.kill()
    figures = [line.split() for line in run.stdout.splitlines() if line.split() and line.split()[-1].replace(".", "").isdigit()]
    if run.returncode or not figures or len(figures[-1]) < 8:
        raise Failed((run.stderr.strip().splitlines() or ["it has no figures"])[-1])
    last = [float(word) for word in figures[-1][-8:]]  # count, p50, average and overall us, average and overall MB/s, average and overall msg/s
    return last[1] if test.endswith("lat") else last[5] * (1 << 20) / 1e9


def show(value, unit):
    return f"{value:.2f}" if unit == RATIO else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def measure(options, row, raw):
    """One row of the table."""
    what, test, memory, points, unit, ucx_test, more = row
    sizes = [size for size, _ in points]
    try:
        lines = perf(options, test, memory, sizes, more)
        host = perf(options, test, "host", sizes, more) if unit == RATIO else lines
    except Failed as why:
        return [what, " / ".join(map(words, sizes)), f"failed: {why}", "", ""]
    raw += lines + (host if unit == RATIO else [])
    cells = []
    for (_, bound), line, other in zip(points, lines, host):
        value = line["p50_us"] if unit == US else line["mb_s"] / other["mb_s"] if unit == RATIO else line["mb_s"] * (1 << 20) / 1e9
        cells.append(show(value, unit) + ("" if not bound or holds(value, bound) else "!"))
    paths = list(dict.fromkeys(line.get("device_path", "-") for line in lines))
    theirs = []
    if options.ucx and ucx_test:
        for i, size in enumerate(sizes):
            try:
                theirs.append(show(ucx(options, ucx_test, size, 13400 + len(raw) * 10 + i), unit))
            except Failed as why:
                print(f"ucx {ucx_test} {size}: {why}", file=sys.stderr)
                theirs.append("-")
    return [what, " / ".join(map(words, sizes)), " / ".join(cells) + " " + unit, ", ".join(paths),
            " / ".join(theirs) + " " + unit if theirs else "-"]


def machine():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              check=True)
        name, driver = done.stdout.splitlines()[0].split(",")
        return f"{name.strip()}, driver {driver.strip()}"
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return "a GPU that nvidia-smi does not know"


def section(page):
    """The part of docs/performance.md that is about GPUs: the last one. "" if there is none."""
    return "\n" + page[page.index(HEADING):] if HEADING in page else ""


def write_page(text):
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page.partition(HEADING)[0].rstrip("\n") + "\n\n" + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default=os.path.join(ROOT, "build", "release", "weft"))
    parser.add_argument("--ucx", help="the folder libucx of PyPI's libucx-cu12 or libucx-cu13")
    parser.add_argument("--seconds", type=float, default=0.25, help="for each point")
    parser.add_argument("--only", help="rows whose name has these letters")
    parser.add_argument("--page", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument("--json", help="write what `weft perf` said to this file")
    options = parser.parse_args()
    raw, lines = [], [HEADING + "\n", f"Two processes on one GPU ({machine()}), one core for each: `bench/gpu.py --ucx DIR --page`. "
                      "Times are medians, GB is 10^9\nbytes; [design/gpu.md](design/gpu.md) explains the paths.\n",
                      "| what | bytes | Weft | path | UCX |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for row in ROWS:
        if not options.only or options.only in row[0]:
            lines.append("| " + " | ".join(measure(options, row, raw)) + " |")
            print(lines[-1], flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(raw, file)
    if options.page:
        write_page("\n".join(lines) + "\n")
    return any("failed:" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
