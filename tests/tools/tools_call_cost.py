"""bench/call_cost, which says what encoding and dispatch of a call take, makes its calls and prints figures that can be true."""
import json

from lib import weft


def every_part_has_a_figure():
    done = weft.bench("call_cost", "--seconds", "0.04")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    assert 0 < r["encode_ns"] and 0 < r["dispatch_ns"] and abs(r["encode_ns"] + r["dispatch_ns"] - r["ns"]) < 0.02, r
    assert r["encode_ns"] < r["call_ns"] and 0 < r["am_ns"] and 0 < r["pool_ns"], r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("1",)):
        done = weft.bench("call_cost", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(every_part_has_a_figure, a_wrong_option_is_refused)
