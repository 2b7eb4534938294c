"""Points of a program, posted to Scad's collector of profiles. Each test says what libd does: its plugin `monitor` posts a form
when the action is freed, waits for the answer as long as that takes, and prints where that fails."""
import subprocess
import sys
import threading
import urllib.parse

import pytest

import disagg
from disagg import _monitor
from program import environment

from elementside import BOUND, action, memory
from httpside import Site
from whiskside import Whisk, in_ms


def form(body):
    """As Scad's collector reads it: object, name, and the points."""
    said = dict(urllib.parse.parse_qsl(body, strict_parsing=True, keep_blank_values=True))
    points = {key: value.split(",") for key, value in said.items() if key not in ("object", "name")}
    network = {key: {words[i]: (int(words[i + 1]), int(words[i + 2])) for i in range(3, len(words), 3)} for key, words in points.items()}
    for words in points.values():
        assert int(words[0]) > 0 and 0 <= float(words[1]) < 1000 and int(words[2]) > 0
    return said["object"], said["name"], network


def test_points_are_posted_when_the_action_is_closed():
    # libd: object=AID&name=NAME&point_N=MS,CPU,PAGES,TRANSPORT,WRITTEN,READ...
    with Site() as site, memory(4096) as element:
        with action(element.durl, "waits;rdma_tcp;", plugins="monitor", post_url=site.url + "/in?x=1", name="app/it & more") as made:
            trans = made.get_transport("mem", "rdma")
            trans.reg(100)
            made.profile(1)
            trans.write(100, 0)
            trans.read(30, 0)
            made.profile(2)
            assert site.asked == []
        (asked,) = site.asked
        made.close()
        assert len(site.asked) == 1  # once
    assert asked[:2] == ("POST", "/in?x=1") and asked[2]["content-type"] == "application/x-www-form-urlencoded"
    assert form(asked[3]) == ("test", "app/it & more", {"point_1": {"mem": (0, 0), "waits": (0, 0)}, "point_2": {"mem": (100, 30), "waits": (0, 0)}})


def test_an_action_without_points_posts_that_it_was_there():
    # libd: the same
    with Site() as site:
        disagg.LibdAction(None, "x", plugins=["monitor"], post_url=site.url, name="n").close()
        assert [(one[1], form(one[3])) for one in site.asked] == [("/", ("x", "n", {}))]
        disagg.LibdAction(None, "x", plugins=["another"], post_url=site.url).close()
        disagg.LibdAction(None, "x", plugins="monitor").close()
        disagg.LibdAction(None, "x", post_url=site.url).close()
        assert len(site.asked) == 1


def test_many_points_are_several_forms():
    # libd: a form is posted when 62 KiB are full, in the middle of the program
    with Site() as site:
        with disagg.LibdAction(None, "x", plugins="monitor", post_url=site.url, name="n") as made:
            for i in range(5000):
                made.profile(i)
        points = [form(asked[3])[2] for asked in site.asked]
    assert len(points) > 1 and all(len(asked[3]) <= 62 << 10 for asked in site.asked)
    assert sorted(int(key[6:]) for one in points for key in one) == list(range(5000 - 4096, 5000))


def test_an_action_that_is_not_closed_posts_at_the_end_of_the_program():
    # libd: when the object is freed
    with Site() as site:
        done = subprocess.run([sys.executable, "-c", "import sys, disagg\n"
                               "made = disagg.LibdAction(None, 'end', plugins='monitor', post_url=sys.argv[1], name='n')\n"
                               "made.profile(7)", site.url], env=environment(), capture_output=True, text=True, timeout=BOUND, check=True)
        assert done.stderr == "" and [form(one[3])[0] for one in site.asked] == ["end"] and "point_7" in site.asked[0][3]


@pytest.mark.parametrize("url, says", [("http://127.0.0.1:1/", "nothing listens"), ("nonsense", "is not a URL"), ("ftp://x/", "is not a URL"),
                                       ("http://[::1", "is not a URL"), ("http://x y/", "is not a URL"),
                                       ("http://nobody.invalid/", "cannot be resolved")])
def test_what_cannot_be_posted_is_said_and_fails_nothing(capfd, monkeypatch, url, says):
    # libd: curl's error on stderr
    monkeypatch.setattr(_monitor, "WITHIN", BOUND)
    with disagg.LibdAction(None, "x", plugins="monitor", post_url=url) as made:
        made.profile(1)
    said = capfd.readouterr().err
    assert "the profile was not posted" in said and says in said


@pytest.mark.parametrize("status", [404, 500, 302])
def test_a_collector_that_refuses(capfd, status):
    with Site(status) as site:
        disagg.LibdAction(None, "x", plugins="monitor", post_url=site.url).close()
        assert len(site.asked) == 1 and f"answered {status}" in capfd.readouterr().err


def test_a_collector_that_does_not_answer_is_given_up(capfd):
    # libd: the action waits for it for ever
    over = threading.Event()
    with Site(lambda handler: over.wait(BOUND) and None) as site:
        made = disagg.LibdAction(None, "x", plugins="monitor", post_url=site.url)
        made._monitor.within = 0.1
        made.close()
        assert not over.is_set() and " within 0." in capfd.readouterr().err
        over.set()


def test_a_run_with_a_profile_posts_there():
    # Scad's launcher: `profile` of /run is where to; the name is the last two parts of action_name
    over = threading.Event()
    with Site() as site:
        one = Whisk().loaded("""
            def main(params, action):
                action.profile(3)
                if params:
                    raise ValueError("no")
                return {"kw": action.kw["post_url"]}
            """)
        try:
            assert one.run(profile=site.url + "/p", activation_id="abc", action_name="/guest/app/it") == (200, {"kw": site.url + "/p"})
            assert one.run({"x": 1}, profile=site.url, activation_id="abd", action_name="/guest/app/it") == (200, {"error": "no"})
            assert one.run(profile="http://127.0.0.1:1")[0] == 200  # it fails nothing
            assert "the profile was not posted" in one.printed()[1]
            site.status = lambda handler: over.wait(BOUND) and None  # a collector that never answers does not cost the result
            status, said = one.run(profile=site.url, deadline=in_ms(BOUND / 2))
            assert status == 200 and said == {"kw": site.url}
        finally:
            over.set()
            one.close()
        assert [(asked[1], form(asked[3])[:2]) for asked in site.asked[:2]] == [("/p", ("abc", "app/it")), ("/", ("abd", "app/it"))]
        assert "point_3" in site.asked[0][3]
