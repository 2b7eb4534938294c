"""runtime.invoke and runtime.release by way of the launcher's socket: elements that elements start, whom they belong to, and who may ask."""
import json
import os
import socket

from lib import elements, weft

MAIN = "import json, os, socket, subprocess, sys, time\ndef main(params, action):\n    ask = action.launcher\n"


def asking(code, extra=None, *, good=True):
    """What an element that runs this gives back: `ask(request)` is the launcher's answer."""
    text = "#@ corunning: {words: }\n" + MAIN + "".join(f"    {line}\n" for line in code.splitlines())
    files = {"a.o.py": text, "words.o.yaml": "limits: {mem: 1M}\n", **(extra or {})}
    with elements.directory(files) as (folder, python):
        if not good:
            return elements.fails(folder, *python, "--timeout", "30s")
        return elements.results(folder, *python, "--timeout", "30s")


def memory_is_invoked_and_released():
    said = asking("""
one = ask({"do": "invoke", "template": "words", "trans": "more", "props": {"limits": {"mem": "2M"}}})
two = ask({"do": "invoke", "template": "words", "trans": "other"})
three = ask({"do": "invoke", "template": "words", "trans": "third", "props": {"size": 4096}})
again = ask({"do": "invoke", "template": "words", "trans": "more", "props": None})
gone = ask({"do": "release", "name": "more"})
back = ask({"do": "invoke", "template": "words", "trans": "more"})
return [one, two, three, again, gone, back]""")
    one, two, three, again, gone, back = said["results"]["a"][0]
    assert one["ok"] and one["durl"].startswith("more;rdma_tcp;size,2097152;url,tcp://127.0.0.1:") and "token," in one["durl"], one
    assert two["durl"].startswith("other;rdma_tcp;size,1048576;") and three["durl"].startswith("third;rdma_tcp;size,4096;"), (two, three)
    assert not again["ok"] and "more" in again["error"] and gone == {"ok": True}, (again, gone)
    assert back["ok"] and back["durl"].split(";")[3] != one["durl"].split(";")[3], back
    states = {e["name"]: e["state"] for e in said["elements"]}
    assert states == dict.fromkeys(["a", "words", "a.more", "a.other", "a.third"], "done") and len(said["elements"]) == 6, said["elements"]


def it_goes_with_who_invoked_it():
    said = asking("""
ask({"do": "invoke", "template": "words", "trans": "more"})
return 1""", {"b.o.py": "#@ parents: [a]\nimport time\ndef main(params, action):\n    time.sleep(0.3)\n"})
    span = {e["name"]: (e["start"], e["start"] + e["seconds"]) for e in said["elements"]}
    assert span["a.more"][1] < span["b"][1], span
    asking("ask({'do': 'invoke', 'template': 'words', 'trans': 'more'})\nos.kill(os.getpid(), 9)", good=False)


def a_compute_element_is_invoked():
    said = asking("""
answer = ask({"do": "invoke", "template": "b", "trans": "more", "props": {"params": {"k": [1]}}})
time.sleep(0.1)
return answer""", {"b.o.py": "#@ corunning: {words: }\ndef main(params, action):\n    return [params, len(action.run['transports'])]\n"})
    assert said["results"]["a"] == [{"ok": True}] and said["results"]["b"] == [[{}, 1]], said
    assert said["results"]["a.more"] == [[{"k": [1]}, 1]], said
    said = asking("""
for i in range(3):
    ask({"do": "invoke", "template": "b", "trans": "more", "props": {"params": {"k": i}}})
return 1""", {"b.o.py": "def main(params, action):\n    return params.get('k')\n", "a.more.2.o.py": "def main(params, action):\n    return 'own'\n"})
    assert said["results"] == {"a": [1], "b": [None], "a.more.2": ["own"], "a.more": [0], "a.more.3": [1], "a.more.4": [2]}, said["results"]
    done = asking("return ask({'do': 'invoke', 'template': 'b', 'trans': 'more'})",
                  {"b.o.py": "def main(params, action):\n    if action.run['name'] != 'b':\n        raise ValueError('invoked')\n"}, good=False)
    assert "a.more failed: ValueError: invoked" in done.stderr, done.stderr


def an_element_that_invokes_itself_comes_to_an_end():
    said = asking("n = params.get('n', 0)\nreturn [n, ask({'do': 'invoke', 'template': 'a', 'trans': 'again', 'props': {'params': {'n': n + 1}}})]")
    got = [value for name, (value,) in said["results"].items() if name.split(".")[0] == "a"]
    assert sorted(n for n, _ in got) == list(range(17)), got
    for n, answer in got:
        assert answer["ok"] == (n < 16) and (n < 16 or "16 deep" in answer["error"]), got


def what_is_wrong_is_said():
    wrong = [({"do": "invoke", "template": "wrods", "trans": "x"}, "did you mean \"words\"?"), ({"do": "invoke", "template": "words"}, "trans"),
             ({"do": "invoke", "template": "words", "trans": "a;b"}, ";"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": [1]}, "object"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"size": "much"}}, "64M"), ({"do": "release", "name": "nobody"}, "nobody"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"limits": {"mem": -1}}}, "mem"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"sise": 4096}}, "did you mean \"size\"?"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"limits": {"memory": "2M"}}}, "\"memory\""),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"limits": "2M"}}, "limits is not an object"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"size": 1, "limits": {"mem": "2M"}}}, "both are there"),
             ({"do": "invoke", "template": "words", "trans": "x", "props": {"type": "compute"}}, "which the template is"),
             ({"do": "invoke", "template": "words", "trans": "words"}, "has a transport \"words\" already"), ({"do": "release"}, "release"),
             ({"do": "dance"}, "invoke or release"), ([1], "object"), ({}, "invoke or release"),
             ({"do": "invoke", "template": 7, "trans": {}}, "template")]
    said = asking(f"return [ask(request) for request in json.loads({json.dumps(json.dumps([w for w, _ in wrong]))})]")
    for answer, (request, word) in zip(said["results"]["a"][0], wrong, strict=True):
        assert answer["ok"] is False and word in answer["error"], f"{request}: {answer}"
    twice = asking(r"""return ask(b'{"do": "invoke", "template": "words", "trans": "x", "props": {"size": 4096, "size": 1}}\n')""")
    assert "\"size\" is there twice" in twice["results"]["a"][0]["error"], twice


def memory_of_the_directory_is_not_taken_from_others():
    said = asking("return ask({'do': 'release', 'name': 'words'})",
                  {"b.o.py": "#@ corunning: {words: }\nimport time\ndef main(params, action):\n    time.sleep(0.3)\n"})
    span = {e["name"]: e["start"] + e["seconds"] for e in said["elements"]}
    assert said["results"]["a"] == [{"ok": True}] and span["words"] >= span["b"], said


def hostile_clients_do_no_harm():
    said = asking("""
got = []
for line in (b'', b'nonsense\\n', b'{"do": "invoke"', b'\\0\\n', b'{"do": "invoke", "template": "words", "trans": "' + b'x' * 5000 + b'"}\\n'):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.environ["WEFT_LAUNCHER"])
        s.sendall(line)
        s.shutdown(socket.SHUT_WR)
        got.append(s.makefile("rb").readline().decode())
with socket.socket(socket.AF_UNIX) as s:
    s.connect(os.environ["WEFT_LAUNCHER"])
    try:
        for i in range(40):
            s.sendall(b'x' * 65536)
        got.append("endless")
    except OSError:
        got.append("cut")
many = [socket.socket(socket.AF_UNIX) for i in range(50)]
for s in many:
    s.connect(os.environ["WEFT_LAUNCHER"])
    s.sendall(b'{"do": "invoke", "template": "words", "trans": "m%d"}\\n' % id(s))
    s.close()
got.append(ask({"do": "invoke", "template": "words", "trans": "last"})["ok"])
return got""")["results"]["a"][0]
    assert said[0] == said[2] == "" and all('"ok": false' in said[i] for i in (1, 3, 4)) and said[5:] == ["cut", True], said


def only_elements_of_the_run_are_answered():
    """A process of the same user that is none of them, and one that an element started, which is."""
    text = "#@ corunning: {words: }\n" + MAIN + """\
    with open('child.py', 'w') as f:
        f.write('import os, socket\\ns = socket.socket(socket.AF_UNIX)\\ns.connect(os.environ["WEFT_LAUNCHER"])\\n'
                's.sendall(b\\'{"do": "release", "name": "words"}\\\\n\\')\\nprint(s.makefile().readline().strip())\\n')
    print(os.environ['WEFT_LAUNCHER'], flush=True)
    print(subprocess.run([sys.executable, 'child.py'], stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)
    end = time.monotonic() + 30
    while not os.path.exists('go') and time.monotonic() < end:
        time.sleep(0.01)
    return 1
"""
    with elements.directory({"a.o.py": text, "words.o.yaml": "limits: {mem: 1M}\n"}) as (folder, python):
        p = weft.start("run", folder, *python, env=elements.environment(folder))
        try:
            path = p.stdout.readline().strip()
            assert os.stat(os.path.dirname(path)).st_mode & 0o77 == 0, "others may enter"
            assert p.stdout.readline() == '{"ok": true}\n'
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                s.sendall(b'{"do": "invoke", "template": "words", "trans": "x"}\n')
                answer = json.loads(s.makefile().readline())
            assert not answer["ok"] and "only elements of this run" in answer["error"], answer
            where = next(os.readlink(f"/proc/{pid}/cwd") for pid, args in elements.processes_of(folder) if "disagg.element" in args)
            with open(os.path.join(where, "go"), "w", encoding="ascii"):
                pass
            out, err = p.communicate(timeout=30)
            assert p.returncode == 0, out + err
        finally:
            weft.end(p)
        elements.nothing_left(folder)


def disagg_invokes_and_releases():
    package = elements.package()
    files = {"a.o.py": """
        #@ corunning: {words: {trans: words, type: rdma}}
        def main(params, action):
            action.runtime.invoke('words', 'more', {'limits': {'mem': '2M'}})
            trans = action.get_transport('more', 'rdma')
            trans.reg(4096)
            trans.buf[:4] = b'more'
            trans.write(4096, (2 << 20) - 4096)
            trans.buf[:4] = b'    '
            trans.read(4096, (2 << 20) - 4096)
            seen = bytes(trans.buf[:4]).decode()
            action.runtime.release('more')
            try:
                trans.read(4096, 0)
            except Exception as why:
                after = type(why).__name__
            else:
                after = None
            try:
                action.runtime.invoke('nobody', 'x')
            except Exception as why:
                wrong = str(why)
            return [seen, after, wrong]
        """, "words.o.yaml": "limits: {mem: 1M}\n"}
    with elements.directory(files, stand_in=False) as (folder, python):
        seen, after, wrong = elements.results(folder, *python, env=elements.environment(folder, **package))["results"]["a"][0]
        assert seen == "more" and after and "nobody" in wrong, (seen, after, wrong)


weft.main(memory_is_invoked_and_released, it_goes_with_who_invoked_it, a_compute_element_is_invoked,
          an_element_that_invokes_itself_comes_to_an_end, what_is_wrong_is_said,
          memory_of_the_directory_is_not_taken_from_others, hostile_clients_do_no_harm, only_elements_of_the_run_are_answered,
          disagg_invokes_and_releases)
