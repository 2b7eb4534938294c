"""bench/gpu.py, which measures memory of a GPU, prints a table of figures and paths, says what failed, and keeps the rest of the page."""
import os
import subprocess
import sys

from lib import weft

sys.path.insert(0, os.path.join(weft.ROOT, "bench"))
import gpu  # noqa: E402


def table(*args, env):
    return subprocess.run([sys.executable, os.path.join(weft.ROOT, "bench", "gpu.py"), "--weft", weft.command(), "--seconds", "0.02", *args],
                          env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)


def rows_have_figures_and_paths():
    done = table("--only", "half a round trip", env=weft.on_paper())
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| GPU")]
    assert [row[0].split(",")[1].strip() for row in rows] == ["tag", "active messages"], done.stdout
    for row in rows:
        figures = row[2].removesuffix(" us").split(" / ")
        assert len(figures) == row[1].count("/") + 1 and all(float(f.rstrip("!").replace(",", "")) > 0 for f in figures), row
        assert "carry" in row[3] and row[4] == "-", row


def what_failed_is_said():
    done = table("--only", "GPU to pinned", env=weft.environment(WEFT_CUDA="off", LD_LIBRARY_PATH=""))
    assert done.returncode == 1 and "failed: " in done.stdout and "Traceback" not in done.stderr, done.stdout + done.stderr


def the_rest_of_the_page_stays():
    page = f"# Performance\n\nsome\n\n{gpu.HEADING}\n\nold\n"
    assert gpu.section(page) == f"\n{gpu.HEADING}\n\nold\n" and gpu.section("# Performance\n") == ""
    text = open(gpu.PAGE, encoding="utf-8").read()
    assert gpu.HEADING in text and "\n## " not in gpu.section(text)[len(gpu.HEADING) + 2:], "it is the last part"


weft.main(rows_have_figures_and_paths, what_failed_is_said, the_rest_of_the_page_stays)
