"""bench/cpp_cost, which says what awaiting takes above the calls of C, does its work and prints figures that can be true."""
import json

from lib import weft


def every_part_has_a_figure():
    done = weft.bench("cpp_cost", "--seconds", "0.04")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    assert min(r["pair_c_ns"], r["pair_ns"], r["read_c_ns"], r["read_ns"], r["task_ns"]) > 0, r
    assert abs(r["pair_over_ns"]) < r["pair_c_ns"] * 10 and abs(r["read_over_ns"]) < r["pair_c_ns"] * 10, r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("1",)):
        done = weft.bench("cpp_cost", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(every_part_has_a_figure, a_wrong_option_is_refused)
