"""What the command line of weft run gives: memory without a file, transports to memory that is served elsewhere, parameters, and a single program."""
import json
import os
import signal

from lib import elements, weft

COMPUTE = "def main(params, action):\n    return 1\n"
# the names of all transports, and where each leads, without the right to it
TRANSPORTS = """
def main(params, action):
    durls = {durl.split(";")[0]: "" for durl in action.run["transports"]}
    while not all(durls.values()):
        message = action.next()
        assert message["do"] == "config", message
        durls[message["name"]] = message["durl"].partition("token,")[0]
    return durls
"""


def size_of(durl):
    return int(durl.split("size,")[1].split(";")[0])


def memory_needs_no_file():
    files = {"a.o.py": "#@ corunning: {in: {trans: in, type: rdma}}\n" + TRANSPORTS, "b.o.py": "#@ parents: [a]\n" + TRANSPORTS,
             "c.o.py": "#@ corunning: [in]\n" + TRANSPORTS}
    with elements.directory(files) as (folder, python):
        elements.fails(folder, *python, says=["a.o.py:1:", "\"in\"", "--memory in=SIZE"])
        said = elements.results(folder, *python, "--memory", "in=2M", "--memory", "of.all=64 KB")
        a, b, c = (said["results"][name][0] for name in "abc")
        assert list(a) == list(c) == ["in", "of.all"] and list(b) == ["of.all"], said["results"]
        assert a["in"] == c["in"] and size_of(a["in"]) == 2 << 20 and size_of(b["of.all"]) == 64 << 10 and b["of.all"] == a["of.all"], said["results"]
        states = {e["name"]: (e["type"], e["state"]) for e in said["elements"]}
        assert states["in"] == states["of.all"] == ("memory", "done"), states
        assert "in: memory, 2M, used by a, c\n" in elements.run(folder, "--graph", "--memory", "in=2M").stdout


def copies_are_numbered():
    files = {"a.o.py": "#@ parallelism: 2\n#@ corunning: [in]\n" + TRANSPORTS}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--memory", "in@1=1M", "--memory", "in@0=1M")["results"]["a"]
        for i in range(2):
            assert list(said[i]) == ["in", "in@0", "in@1"] and said[i]["in"] == said[i][f"in@{i}"], said
        assert said[0]["in"] != said[1]["in"], said
        one = elements.results(folder, *python, "--memory", "in@0=1M")["results"]["a"][1]
        assert list(one) == ["in", "in@0"] and one["in"] == one["in@0"], one


def memory_among_dependents_may_be_given():
    files = {"setup.o.py": "#@ dependents: [worker, mem1]\n" + COMPUTE, "worker.o.py": "#@ corunning: [mem1]\n" + COMPUTE}
    with elements.directory(files) as (folder, python):
        assert elements.results(folder, *python, "--memory", "mem1=1M")["warnings"] == []


def wrong_ones_are_named():
    wrong = [(["--memory", "in"], ["NAME=SIZE"]), (["--memory", "=1M"], ["NAME=SIZE"]), (["--memory", "a b=1M"], ["NAME=SIZE"]),
             (["--memory", "in=64"], ["in=64", "unit"]), (["--memory", "in=0M"], ["unit"]), (["--memory", "in@x=1M"], ["COPY"]),
             (["--memory", "in@01=1M"], ["COPY"]), (["--memory", "in@-1=1M"], ["COPY"]), (["--memory", "in@2000=1M"], ["below 1024"]),
             (["--memory", "in=1M", "--memory", "in=2M"], ["in is given twice"]), (["--memory", "in=1M", "--memory", "in=1M"], ["twice"]),
             (["--memory", "in@0=1M", "--memory", "in@0=1M"], ["in@0 is given twice"]),
             (["--memory", "in@0=1M", "--memory", "in@2=1M"], ["in@1 is missing"]),
             (["--memory", "in@0=1M", "--memory", "in@1=2M"], ["one size"]), (["--memory", "in=1M", "--memory", "in@0=1M"], ["as a whole"]),
             (["--memory", "in=1M", "--transport", "in=tcp://127.0.0.1:1"], ["--memory", "--transport"]),
             (["--transport", "x"], ["NAME=DURL"]), (["--transport", "x="], ["NAME=DURL"]), (["--transport", "x=y"], ["no IMPL"]),
             (["--transport", "x=x;rdma_tcp;"], ["where the memory is"]), (["--transport", "x=x;rdma_tcp_server;url,tcp://127.0.0.1:1;"], ["server"]),
             (["--transport", "x=tcp://nowhere"], ["port"]), (["--transport", "x=x;rdma_tcp;ulr,tcp://a:1;"], ["did you mean \"url\"?"]),
             (["--transport", "x=tcp://a:1", "--transport", "x=tcp://a:1"], ["given twice"]), (["--transport", "x=@/nonexistent"], ["/nonexistent"]),
             (["--params", "{\"a\": 1"], ["JSON object"]), (["--params", "{\"a\": 1, \"b\": 2, \"a\": 3}"], ["\"a\" twice"]),
             (["--params", "{\"a\": {\"b\": [{\"c\": 1, \"c\": 2}]}}"], ["\"c\" twice"]), (["--param", "a={\"b\": 1,}"], ["begins like JSON"]),
             (["--param", "a=[1"], ["begins like JSON"]), (["--param", "a={\"b\": 1, \"b\": 1}"], ["\"b\" twice"]),
             (["--path", "/nonexistent"], ["/nonexistent", "No such file"]), (["--path", "/dev/null"], ["/dev/null", "not a directory"])]
    with elements.directory({"a.o.py": COMPUTE, "m.o.yaml": ""}) as (folder, _):
        for args, words in wrong:
            done = elements.run(folder, *args)
            assert done.returncode == 2 and done.stderr.count("\n") == 1, f"{args}: {done.returncode} {done.stderr}"
            for word in words:
                assert word in done.stderr, f"{args}: \"{word}\" is not in: {done.stderr}"
        elements.fails(folder, "--check", "--memory", "m=1M", says=["m.o.yaml", "is an element already", "--memory m"])
        elements.fails(folder, "--check", "--memory", "a=1M", says=["a.o.py", "is an element already"])
        elements.fails(folder, "--check", "--transport", "m@1=tcp://127.0.0.1:1", says=["m.o.yaml", "--transport m@1", "elsewhere"])
        done = elements.run(folder, "--transport", "x;rdma_tcp;token,00112233")
        assert done.returncode == 2 and "0011" not in done.stderr, done.stderr


def parameters_have_an_order():
    with elements.directory({"a.o.py": "def main(params, action):\n    return params\n"}) as (folder, python):
        said = elements.results(folder, *python, "--param", "k=1", "--params", "{\"k\": 2, \"m\": [3]}", "--params", " {\"m\": 4}".strip())
        assert said["results"]["a"] == [{"k": 1, "m": 4}], said
        assert elements.results(folder, *python, "--param", "k=\"{x\"")["results"]["a"] == [{"k": "{x"}]
        said = elements.results(folder, *python, "--param", "k=1", "--param", "m=1", "--param", "k=2")
        assert said["results"]["a"] == [{"k": 2, "m": 1}] and [w["key"] for w in said["warnings"]] == ["k"], said
        assert "--param k is given more than once" in said["warnings"][0]["text"], said
        elements.fails(folder, *python, "--param", "k=1", "--param", "k=2", "--strict", says=["--param k", "--strict"])


def memory_that_nobody_asked_for_is_told():
    package = elements.package()
    one = "def main(params, action):\n    return action.get_transport('real', 'rdma').name if params.get('use') else None\n"
    with elements.directory({"a.o.py": one, "b.o.py": "#@ parents: [a]\n#@ corunning: [named]\n" + COMPUTE}, stand_in=False) as (folder, python):
        env = elements.environment(folder, **package)
        given = ("--memory", "real=1MB", "--memory", "ghost@0=1MB", "--memory", "ghost@1=1MB", "--memory", "named=1MB")
        for use, unused, strict in ((1, ["ghost"], ()), (0, ["ghost", "real"], ()), (1, ["ghost"], ("--strict",))):
            said = elements.results(folder, *python, *given, *strict, "--param", f"use={use}", env=env)
            assert [w["key"] for w in said["warnings"]] == unused, said["warnings"]
            assert "--memory ghost was not used" in said["warnings"][0]["text"] and "corunning" in said["warnings"][0]["text"], said
    with elements.directory({"a.o.py": "raise ValueError\n"}, stand_in=False) as (folder, python):
        done = elements.fails(folder, *python, "--memory", "ghost=1MB", env=elements.environment(folder, **package))
        assert "ghost" not in done.stderr, "one reason is enough"


# --- memory that is served elsewhere ---------------------------------------------------------------------------------------------------

USER = """
    #@ corunning: [in]
    def main(params, action):
        trans = action.get_transport('in', 'rdma')
        trans.reg(8)
        trans.read(8, 0)
        seen = list(trans.buf)
        trans.buf[:] = bytes([params['k']] * 8)
        trans.write(8, 0)
        if params.get('tell'):
            print(params['tell'])
        return seen
    """


def serve(folder, *args):
    """weft element memory, started by hand: the process and its durl."""
    server = weft.start("element", "memory", "--size", "1M", "--json", *args, env=elements.environment(folder))
    line = server.stdout.readline()
    assert line, server.stderr.read()
    return server, json.loads(line)["durl"]


def stop(server):
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=20)


def a_transport_leads_elsewhere():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("elements elsewhere have a key of the run, which this memory has not")
    package = elements.package()
    with elements.directory({"use.o.py": USER}, stand_in=False) as (folder, python):
        env = elements.environment(folder, **package)
        server, durl = serve(folder, "--named", "--name", "whatever")
        try:
            url = durl.split("url,")[1].split(";")[0]
            path = os.path.join(os.path.dirname(folder), "durl")
            with open(path, "w", encoding="ascii") as f:
                f.write(durl + "\n")
            before = 0
            for i, given in enumerate((durl, url, f"url,{url};size,4096;", "@" + path, f"other;rdma_uverbs;url,{url};"), 1):
                said = weft.run("run", os.path.join(folder, "use.o.py"), *python, "--json", "--transport", f"in={given}", "--params",
                                json.dumps({"k": i, "tell": durl}), env=env)
                assert said.returncode == 0, said.stdout + said.stderr
                assert json.loads(said.stdout)["results"]["use"] == [[before] * 8], f"{given}: {said.stdout}"
                token = durl.split("token,")[1].split(";")[0]
                assert token not in said.stdout and ("(token)" in said.stderr) == (given in (durl, "@" + path)), f"{given}: {said.stderr}"
                before = i
        finally:
            stop(server)
        gone = weft.run("run", folder, *python, "--transport", f"in=in;rdma_tcp;url,{url};timeout_ms,300;", "--param", "k=1", env=env)
        assert gone.returncode == 1 and "use failed" in gone.stderr, gone.stderr
        elements.nothing_left(folder)


def copies_may_lead_elsewhere():
    if os.environ.get("TEST_RUN_ON"):
        raise weft.Skip("elements elsewhere have a key of the run, which this memory has not")
    files = {"a.o.py": "#@ corunning: [in]\n" + TRANSPORTS}
    with elements.directory(files) as (folder, python):
        said = elements.results(folder, *python, "--transport", "in@0=tcp://127.0.0.1:1", "--transport", "in@1=x;rdma_shared;shm_id,y;")
        assert said["results"]["a"] == [{"in@0": "url,tcp://127.0.0.1:1;", "in@1": "x;rdma_shared;shm_id,y;"}], said


# --- a single program -------------------------------------------------------------------------------------------------------------------

def one_program_is_run_without_the_others():
    files = {"a.o.py": "#@ dependents: [b, gone]\n" + COMPUTE, "b.o.py": "#@ corunning: [m, c, in]\n" + TRANSPORTS, "c.o.py": "this is no Python\n",
             "m.o.yaml": "corunning: [a, c]\nlimits: {mem: 1M}\n", "n.o.yaml": "corunning: [c]\n",
             "o.o.yaml": "corunning: [b, c]\nlimits: {mem: 2M}\n"}
    with elements.directory(files) as (folder, python):
        one, env = os.path.join(folder, "b.o.py"), elements.environment(folder)
        elements.fails(one, *python, env=env, says=["b.o.py:1:", "\"in\"", "--memory in=SIZE"])
        said = elements.results(one, *python, "--memory", "in=3M", env=env)
        assert {e["name"] for e in said["elements"]} == {"b", "m", "o", "in"} and said["warnings"] == [], said
        assert {name: size_of(durl) >> 20 for name, durl in said["results"]["b"][0].items()} == {"in": 3, "m": 1, "o": 2}, said
        assert elements.results(os.path.join(folder, "a.o.py"), *python, env=env)["results"] == {"a": [1]}
        other = os.path.join(os.path.dirname(folder), "link.o.py")
        os.symlink(os.path.join(folder, "a.o.py"), other)
        assert elements.results(other, *python, env=env)["results"] == {"link": [1]}
        here = os.getcwd()
        os.chdir(folder)
        try:
            done = weft.run("run", "a.o.py", *python, "--json", env=env)
        finally:
            os.chdir(here)
        assert done.returncode == 0 and json.loads(done.stdout)["results"] == {"a": [1]}, done.stderr


def its_parents_results_are_parameters():
    files = {"a.o.py": COMPUTE, "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return params\n"}
    with elements.directory(files) as (folder, python):
        one, env = os.path.join(folder, "b.o.py"), elements.environment(folder)
        said = elements.results(one, *python, "--params", "{\"a\": [{\"n\": 5}]}", env=env)
        assert said["results"]["b"] == [{"a": [{"n": 5}]}] and said["warnings"] == [], said
        done = elements.run(one, *python, env=env)
        assert done.returncode == 0 and "warning: b.o.py:1: parent \"a\" is ignored" in done.stderr and "--params" in done.stderr, done.stderr
        elements.fails(one, *python, "--strict", env=env, says=["b.o.py:1:"])


def files_that_are_neither():
    with elements.directory({"a.o.py": COMPUTE, "m.o.yaml": "", "readme": ""}) as (folder, _):
        elements.fails(os.path.join(folder, "m.o.yaml"), says=["is memory", "weft element memory"])
        elements.fails(os.path.join(folder, "readme"), says=["neither a directory", "NAME.o.py", "NAME.json"])
        elements.fails(os.path.join(folder, "gone.o.py"), says=["gone.o.py", "No such file"])


weft.main(memory_needs_no_file, copies_are_numbered, memory_among_dependents_may_be_given, wrong_ones_are_named, parameters_have_an_order,
          memory_that_nobody_asked_for_is_told, a_transport_leads_elsewhere, copies_may_lead_elsewhere,
          one_program_is_run_without_the_others, its_parents_results_are_parameters,
          files_that_are_neither)
