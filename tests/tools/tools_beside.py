"""bench/beside, which says how long small messages wait beside large transfers, makes its transfers and prints figures that can be true."""
import json

from lib import weft


def each_kind_has_figures():
    kinds = ["idle", "recv", "recv_pooled", "send", "get_mapped", "put_mapped", "get_checked", "serve_put", "revoke", "free", "mirror_read"]
    done = weft.bench("beside", "--seconds", "0.1", "--size", str(4 << 20), *kinds)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["kind"] for r in lines] == kinds, lines
    for r in lines:
        assert r["size"] == 4 << 20 and r["n"] > 0 and 0 < r["p50_us"] <= r["p99_us"] <= r["max_us"], r
        assert 0 <= r["cpu_p50_us"] <= r["cpu_p99_us"] <= r["cpu_max_us"], r
        assert r["payloads"] > 0 or r["kind"] in ("idle", "serve_put"), r


def a_wrong_option_is_refused():
    for args in (("--second", "1"), ("--seconds", "0"), ("--size", "1"), ("--size",), ("everything",)):
        done = weft.bench("beside", *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, f"{args}: exit status {done.returncode}\n{done.stderr}"


weft.main(each_kind_has_figures, a_wrong_option_is_refused)
