"""bench/pool_cost, which says what a function on a thread of its service costs, makes its calls and prints figures that can be true."""
import json

from lib import weft


def both_ways_have_figures():
    done = weft.bench("pool_cost", "--seconds", "0.2", "--clients", "2", "--threads", "2", "--window", "4")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    assert (r["clients"], r["threads"], r["window"]) == (2, 2, 4), r
    for way in ("inline", "pool"):
        assert r[f"{way}_us"] > 0 and r[f"{way}_rate"] > 0 and r[f"{way}_sleeps"] >= 0 and r[f"{way}_cpu_us"] >= 0, r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("--threads", "0"), ("--clients",), ("1",)):
        done = weft.bench("pool_cost", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(both_ways_have_figures, a_wrong_option_is_refused)
