"""bench/cpp_exec_cost, which says what senders cost above the calls of C, does its work and prints figures that can be true."""
import json

from lib import weft


def every_part_has_a_figure():
    done = weft.bench("cpp_exec_cost", "--seconds", "0.04")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    for what in ("pair", "read", "turn"):
        assert min(r[f"{what}_c_ns"], r[f"{what}_ns"]) > 0, r
        assert abs(r[f"{what}_over_ns"]) < r["pair_c_ns"] * 10, r
    assert abs(r["sender_over_ns"] * 2 - r["pair_over_ns"]) < 0.02, r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("1",)):
        done = weft.bench("cpp_exec_cost", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(every_part_has_a_figure, a_wrong_option_is_refused)
