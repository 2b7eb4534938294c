"""bench/cpp_call_cost, which says what a call takes in C++ and in C, makes its calls and prints figures that can be true."""
import json
import os

from lib import weft

FIGURES = ("c", "declared", "named", "awaited", "served", "task")


def every_way_has_a_figure():
    done = weft.bench("cpp_call_cost", "--seconds", "0.05")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    for name in FIGURES:
        assert 0 < r[f"{name}_least_ns"] <= r[f"{name}_ns"], r
    assert r["turns"] >= 3 and 0.2 < r["over"] < 5, r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("1",)):
        done = weft.bench("cpp_call_cost", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(every_way_has_a_figure, a_wrong_option_is_refused)
