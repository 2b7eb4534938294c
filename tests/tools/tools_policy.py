"""weft policy check says whether a file is a policy, and what it says of somebody, with the line and the exit status."""
import json
import os
import time

from lib import weft

RULES = """# who may what
deny old connect
allow * connect
allow web call calc.*
allow batch mem-allocate scratch-* 4k
default deny
"""


def file_with(folder, text):
    path = os.path.join(folder, "policy")
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    return path


def asked(path, status, *args):
    done = weft.run("policy", "check", path, *args, timeout=20)
    assert done.returncode == status, f"{args}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def verdicts_have_their_line():
    table = [(["--identity", "web", "--action", "call", "--name", "calc.add"], 0, "allowed by line 4\n"),
             (["--identity", "web", "--action", "call", "--name", "users.get"], 1, "denied by line 6\n"),
             (["--identity", "old", "--action", "connect"], 1, "denied by line 2\n"),
             (["--action", "connect"], 0, "allowed by line 3\n"),
             (["--identity", "batch", "--action", "mem-allocate", "--name", "scratch-1"], 0,
              "allowed by line 5, at most 4096 bytes in all\n")]
    with weft.scratch() as folder:
        path = file_with(folder, RULES)
        assert asked(path, 0).stdout == "it is a policy\n"
        for args, status, says in table:
            assert asked(path, status, *args).stdout == says, args
        said = json.loads(asked(path, 0, "--json", *table[4][0]).stdout)
        assert said == {"verdict": "allowed", "line": 5, "limit": 4096}, said
        assert json.loads(asked(path, 0, "--json").stdout) == {"policy": True}


def what_is_no_policy_is_named_with_its_line():
    with weft.scratch() as folder:
        path = file_with(folder, "allow web cal x\ndefault deny\n")
        assert "line 1: there is no action" in asked(path, 1).stderr
        assert "cannot be read: No such file" in asked(os.path.join(folder, "none"), 1).stderr
        assert "cannot be read: Is a directory" in asked(folder, 1).stderr
        said = json.loads(asked(path, 1, "--json").stdout)
        assert said["policy"] is False and said["error"].startswith("line 1: there is no action"), said
        assert "cannot be read" in json.loads(asked(folder, 1, "--json").stdout)["error"]


def a_policy_by_which_nobody_connects_is_noted():
    with weft.scratch() as folder:
        for text in ("deny a connect\ndefault deny\n", "allow a call x.y\ndefault deny\n", "deny * all\nallow a connect\ndefault deny\n"):
            path = file_with(folder, text)
            assert asked(path, 0).stdout == "it is a policy, but nobody may connect by it\n", text
            assert json.loads(asked(path, 0, "--json").stdout) == {"policy": True, "note": "nobody may connect by it"}, text
        for text in ("deny a connect\ndefault allow\n", "allow ops-* all\ndefault deny\n", "\tallow * connect\ndefault deny\n"):
            assert asked(file_with(folder, text), 0).stdout == "it is a policy\n", text


def a_wrong_command_line_is_refused():
    with weft.scratch() as folder:
        path = file_with(folder, RULES)
        assert "no action" in asked(path, 2, "--action", "sing").stderr
        assert "--action" in asked(path, 2, "--identity", "web").stderr
        assert "only one" in asked(path, 2, path).stderr


def cluster(folder, *names):
    """The options of each, with certificates of one authority."""
    done = weft.run("key", "cluster", folder, "server=127.0.0.1", *names, timeout=20)
    if done.returncode and "OpenSSL" in done.stderr:
        raise weft.Skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr

    def files(name):
        return [word for option, file in (("cert", name + ".crt"), ("key", name + ".key"), ("ca", "ca.crt"))
                for word in ("--tls-" + option, os.path.join(folder, file))]
    return [files(name) for name in ("server", *names)]


def servers_keep_to_their_policy():
    with weft.scratch() as folder:
        server, web, batch, old = cluster(os.path.join(folder, "certs"), "web", "batch", "old")
        env = weft.environment(WEFT_POLICY=file_with(folder, RULES))
        process, said = weft.serve_calls("--no-registry", "--listen", "tls://127.0.0.1:0", *server, env=env)
        try:
            uri = said["listening"][0] + "/calc/add"
            assert weft.must("call", uri, "25", "17", *web) == "42\n"
            done = weft.run("call", uri, "25", "17", *batch)
            assert done.returncode and "PERMISSION_DENIED" in done.stderr and '"batch"' in done.stderr and "line 6" in done.stderr, done.stderr
            done = weft.run("call", uri, "25", "17", *old)
            assert done.returncode and not done.stdout and "the policy does not allow" in done.stderr, done.stderr
            # another policy, while it serves
            file_with(folder, RULES.replace("allow web", "allow batch"))
            until = time.monotonic() + 30
            while weft.run("call", uri, "25", "17", *batch).returncode:
                assert time.monotonic() < until, "the new policy is not read"
            assert weft.run("call", uri, "25", "17", *web).returncode
        finally:
            weft.end(process)
        file_with(folder, RULES.replace("4k", "1M"))
        process, uri = weft.serve_memory(*server, size="16M", listen="tls://127.0.0.1:0", env=env)
        try:
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="ascii") as f:
                f.write("some text")
            weft.must("mem", "put", path, "scratch-1", "--server", uri, *batch)
            for name, who in (("mine", batch), ("scratch-2", web)):
                done = weft.run("mem", "put", path, name, "--server", uri, *who)
                says = f'the policy of the memory server does not allow this client to allocate a block "{name}"'
                assert done.returncode and says in done.stderr, f"{name}: {done.stderr}"
            done = weft.run("mem", "put", path, "scratch-1", "--server", uri, *batch)
            assert done.returncode and "is there already" in done.stderr, done.stderr
            done = weft.run("mem", "get", "scratch-1", "-", "--server", uri, *web)
            assert done.returncode and not done.stdout and "policy" in done.stderr, done.stderr
        finally:
            weft.end(process)


def servers_do_not_start_without_the_policy_that_is_named():
    with weft.scratch() as folder:
        for path in (os.path.join(folder, "none"), file_with(folder, "allow * connect\n")):
            done = weft.run("serve", "--no-registry", "--listen", "tcp://127.0.0.1:0", env=weft.environment(WEFT_POLICY=path), timeout=20)
            assert done.returncode and "policy" in done.stderr.lower() and path in done.stderr, done.stderr


weft.main(verdicts_have_their_line, what_is_no_policy_is_named_with_its_line, a_policy_by_which_nobody_connects_is_noted,
          a_wrong_command_line_is_refused, servers_keep_to_their_policy,
          servers_do_not_start_without_the_policy_that_is_named)
