"""What docs/guide/openwhisk.md shows does what it says: its commands are run, with a `wsk` and a `docker` of our own."""
import ast
import glob
import json
import os
import re
import socket
import subprocess
import sys
import threading

from controllerside import BOUND, Controller
from disagg._props import PROPS

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GUIDE = os.path.join(ROOT, "docs", "guide", "openwhisk.md")

# says its words to the test, and prints the answer
COMMAND = """#!{python}
import os, socket, sys, json
with socket.socket(socket.AF_UNIX) as s:
    s.connect({path!r})
    f = s.makefile("rw")
    print(json.dumps([os.path.basename(sys.argv[0]), os.getcwd(), *sys.argv[1:]]), file=f, flush=True)
    answer = json.loads(f.readline())
print(answer["out"])
sys.exit(answer["status"])
"""


def page():
    with open(GUIDE, encoding="utf-8") as f:
        return f.read()


def shells():
    return re.findall(r"```sh\n(.*?)```", page(), re.S)


class Commands:
    """`wsk` and `docker`, over a small OpenWhisk."""

    def __init__(self, folder, controller):
        self.controller, self.docker, self.created = controller, [], {}
        path = str(folder / "socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self.folder = folder / "bin"
        self.folder.mkdir()
        for name in ("wsk", "docker"):
            (self.folder / name).write_text(COMMAND.format(python=sys.executable, path=path))
            (self.folder / name).chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            with peer, peer.makefile("rw") as f:
                program, folder, *words = json.loads(f.readline())
                try:
                    out, status = (self.wsk(folder, words) if program == "wsk" else self.run_docker(words)), 0
                except Exception as error:
                    out, status = repr(error), 1
                print(json.dumps({"out": out, "status": status}), file=f, flush=True)

    def run_docker(self, words):
        self.docker.append(words)
        return ""

    def wsk(self, folder, words):
        what, name, *rest = words[1:]
        assert words[0] == "action"
        files, options = [], {}
        while rest:
            word = rest.pop(0)
            if word in ("--annotation", "--param"):
                key, value = rest.pop(0), rest.pop(0)
                options.setdefault(word, {})[key] = {"true": True, "false": False}.get(value, value)
            elif word in ("--docker", "--memory", "--timeout"):
                options[word] = rest.pop(0)
            elif word != "--result":
                files.append(word)
        if what == "create":
            with open(os.path.join(folder, files[0]), encoding="utf-8") as f:
                self.controller.create(name, f.read(), **{"provide-api-key": False, **options.get("--annotation", {})})
            self.created[name] = options
            return f"ok: created action {name}"
        status, said = self.controller.invoke(name, options.get("--param"), int(self.created[name]["--timeout"]) / 1000).wait()
        assert status == 200, said
        return json.dumps(said)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(BOUND)


def test_its_commands_do_what_they_say(tmp_path):
    build, _, actions = shells()
    with Controller() as controller:
        commands = Commands(tmp_path, controller)
        try:
            env = {**os.environ, "PATH": f"{commands.folder}{os.pathsep}{os.environ['PATH']}"}
            done = subprocess.run(["bash", "-e"], input=build + actions, cwd=tmp_path, env=env, capture_output=True, text=True,
                                  timeout=BOUND, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout.splitlines()[-1]) == {"count": 5}
        finally:
            commands.close()
        building, pushing = commands.docker
        assert building[0] == "build" and os.path.exists(os.path.join(ROOT, building[building.index("-f") + 1]))
        image = building[building.index("-t") + 1]
        assert pushing == ["push", image] and {made["--docker"] for made in commands.created.values()} == {image}


def test_the_sentences_in_its_table_are_those_of_the_package():
    said = ""
    for path in glob.glob(os.path.join(ROOT, "python", "weft_disagg", "disagg", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as f:
            for node in ast.walk(ast.parse(f.read())):
                if isinstance(node, ast.JoinedStr):
                    said += "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values) + "\n"
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    said += node.value + "\n"
    rows = re.findall(r"^\| (`[^|]*) \| .* \|$", page().split("## When something goes wrong")[1], re.M)
    wanted = [words for row in rows for words in re.findall(r"`([^`]+)`", row)] + ["could not be told to"]
    assert len(wanted) > 15
    assert not [words for words in wanted if words not in said]


def test_what_it_says_of_props_is_all_there_is():
    table = page().split("### What `invoke` takes")[1].split("###")[0]
    assert set(re.findall(r"`(\w+)[`:]", "\n".join(line.partition(" | ")[0] for line in table.splitlines() if line.startswith("| `")))
               ) == set(PROPS)
