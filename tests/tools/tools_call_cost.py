"""bench/call_cost, which says what encoding and dispatch of a call take, makes its calls and prints figures that can be true."""
import json
import os
import subprocess

from lib import weft


def call_cost(*args):
    path = os.path.join(os.path.dirname(weft.command()), "call_cost")
    if not os.access(path, os.X_OK):
        raise weft.Skip(f"there is no {path}")
    return subprocess.run([path, *args], env=weft.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)


def every_part_has_a_figure():
    done = call_cost("--seconds", "0.04")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    r = json.loads(done.stdout)
    assert 0 < r["encode_ns"] and 0 < r["dispatch_ns"] and abs(r["encode_ns"] + r["dispatch_ns"] - r["ns"]) < 0.02, r
    assert r["encode_ns"] < r["call_ns"] and 0 < r["am_ns"] and 0 < r["pool_ns"], r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("1",)):
        done = call_cost(*args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(every_part_has_a_figure, a_wrong_option_is_refused)
