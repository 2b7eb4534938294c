"""weft policy check says whether a file is a policy, and what it says of somebody, with the line and the exit status."""
import json
import os

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
        assert "cannot be read" in asked(os.path.join(folder, "none"), 1).stderr


def a_wrong_command_line_is_refused():
    with weft.scratch() as folder:
        path = file_with(folder, RULES)
        assert "no action" in asked(path, 2, "--action", "sing").stderr
        assert "--action" in asked(path, 2, "--identity", "web").stderr
        assert "only one" in asked(path, 2, path).stderr


weft.main(verdicts_have_their_line, what_is_no_policy_is_named_with_its_line, a_wrong_command_line_is_refused)
