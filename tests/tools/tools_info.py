"""weft info shows the build, the machine, and every variable with its value and source; an unknown one gets the nearest name."""
import json
import os
import re

from lib import weft


def declared():
    """The variables of the one list in base/config.h."""
    with open(os.path.join(weft.ROOT, "src", "base", "config.h"), encoding="utf-8") as f:
        found = re.findall(r"^\s+X\((\w+),\s*[A-Z]+,", f.read(), re.M)
    assert len(found) > 5, "the list of variables was not found"
    return ["WEFT_" + name.upper() for name in found]


def info(*args, **env):
    return json.loads(weft.must("info", "--json", *args, env=weft.environment(**env)))


def every_variable_is_listed_with_its_documentation():
    got = {v["name"]: v for v in info()["config"]}
    assert list(got) == declared(), f"listed: {list(got)}\ndeclared: {declared()}"
    text = weft.must("info")
    for name, v in got.items():
        assert v["doc"] and v["value"] is not None, f"{name} says nothing"
        assert v["source"] == "default", f"{name} comes from {v['source']}"
        assert name in text, f"{name} is not in the text"


def build_and_machine_are_described():
    got = info()["info"]
    for name in ("version", "compiler", "build", "ucx_version", "transports", "memory_kinds", "tls"):
        assert got.get(name), f"{name} is missing: {got}"
    assert "tcp" in got["transports"], got["transports"]
    assert "host" in got["memory_kinds"], got["memory_kinds"]


def a_value_says_where_it_comes_from():
    with weft.scratch() as folder:
        path = os.path.join(folder, "weft.conf")
        with open(path, "w", encoding="utf-8") as f:
            f.write("heartbeat = 7s\nWEFT_SHM_RING = 128k\n")
        got = {v["name"]: v for v in info(WEFT_CONFIG_FILE=path, WEFT_HEARTBEAT="3s")["config"]}
        assert got["WEFT_HEARTBEAT"]["source"] == "environment", got["WEFT_HEARTBEAT"]
        assert got["WEFT_HEARTBEAT"]["value"] == "3s", got["WEFT_HEARTBEAT"]
        assert got["WEFT_SHM_RING"]["source"].startswith(path), got["WEFT_SHM_RING"]
        text = weft.must("info", env=weft.environment(WEFT_CONFIG_FILE=path))
        assert f"[{path}" in text, "the text does not name the file"


def an_unknown_variable_gets_the_nearest_name():
    got = info(WEFT_HEARTBAET="3s", WEFT_QQQQQQQQQQ="1")["unknown"]
    nearest = {v["name"]: v["nearest"] for v in got}
    assert nearest.get("WEFT_HEARTBAET") == "WEFT_HEARTBEAT", nearest
    assert "WEFT_QQQQQQQQQQ" in nearest and nearest["WEFT_QQQQQQQQQQ"] is None, nearest
    text = weft.must("info", env=weft.environment(WEFT_HEARTBAET="3s"))
    assert "did you mean WEFT_HEARTBEAT?" in text, text


def perf_warns_about_an_unknown_variable():
    env = weft.environment(WEFT_HEARTBAET="3s")
    done = weft.run("perf", "--fork", "--test", "tag_lat", "--size", "8", "--iters", "10", env=env)
    assert done.returncode == 0, done.stderr
    assert "WEFT_HEARTBAET" in done.stderr and "WEFT_HEARTBEAT" in done.stderr, done.stderr


def a_value_that_does_not_parse_is_named():
    done = weft.run("info", env=weft.environment(WEFT_HEARTBEAT="soon"))
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "WEFT_HEARTBEAT" in said and "soon" in said, f"exit status {done.returncode}\n{said}"
    assert "soon" not in done.stdout.split("Configuration")[0] and "ucx_version      unknown" in done.stdout, "it is no fact of the machine"
    done = weft.run("perf", "--fork", "--iters", "1", env=weft.environment(WEFT_HEARTBEAT="soon"))
    assert done.returncode == 1 and "soon" in done.stderr, f"exit status {done.returncode}\n{done.stderr}"


def a_key_is_never_shown():
    with weft.scratch() as folder:
        path = os.path.join(folder, "key")
        with open(path, "w", encoding="utf-8") as f:
            f.write("correct horse battery staple")
        os.chmod(path, 0o600)
        assert "horse" not in weft.must("info", env=weft.environment(WEFT_KEY_FILE=path)), "the key's bytes are shown"


def files_that_are_not_there_encrypt_nothing():
    with weft.scratch() as folder:
        none = os.path.join(folder, "none.crt")
        for variable in ("WEFT_TLS_CERT", "WEFT_KEY_FILE"):
            said = " ".join(weft.must("info", env=weft.environment(**{variable: none})).split("Configuration")[0].split())
            assert "what leaves this host is encrypted" not in said, said
            assert f'{variable} is "{none}", which cannot be read: No such file' in said, said


weft.main(every_variable_is_listed_with_its_documentation, build_and_machine_are_described, a_value_says_where_it_comes_from,
          an_unknown_variable_gets_the_nearest_name, perf_warns_about_an_unknown_variable, a_value_that_does_not_parse_is_named,
          a_key_is_never_shown, files_that_are_not_there_encrypt_nothing)
