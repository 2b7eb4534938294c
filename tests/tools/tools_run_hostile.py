"""Processes that weft run started may say and do whatever they like: it neither crashes nor hangs nor believes them."""
# ctest: long
import json
import os
import random
import subprocess

from lib import elements, weft

TIME = ("--timeout", "20s")


def saying(code):
    """The launcher's end of an element that runs this, and then ends with exit status 0."""
    text = "import os, json, socket\ndef main(params, action):\n" + "".join(f"    {line}\n" for line in code.splitlines()) + "    os._exit(0)\n"
    with elements.directory({"a.o.py": text}) as (folder, python):
        done = elements.run(folder, *python, *TIME, "--json")
        assert done.returncode in (0, 1), f"{code}: exit status {done.returncode}\n{done.stderr}"
        assert "--timeout" not in done.stderr, f"{code}: it hung"
        return json.loads(done.stdout), done.stderr


def not_json_is_no_result():
    for line in (b"", b"{", b"[1]", b"nonsense", b'{"did": "result", "value": NaN}', b'{"did": "result", "value": Infinity}',
                 b'{"did": "result", "value": 01}',
                 b'{"did": "result", "value": "\xff"}', b'{"did": "result", "value": "\xed\xa0\x80"}', b'{"did": "result", "value": "a\x00b"}',
                 b'{"did": "result", "value": "\\x"}', b'{"did": "result", "value": 1} 2', b'{"did": "result", "value": 1,}',
                 b'{"did": "result" "value": 1}',
                 b'{"did": "result", "value": 1.}', b'{"did": "result", "value": tru}', b'{"did": "result", "value": \'x\'}', b"\x00",
                 b'{"a": "' + b"\\u12" + b'"}',
                 b'{"did": "result", "value": ' + b"[" * 501 + b"]" * 501 + b"}"):
        said, err = saying(f"action.say({line!r} + b'\\n')")
        assert not said["ok"] and "a failed: what it said to the launcher is not JSON" in err, f"{line!r}: {err}"


def json_is_a_result_as_it_came():
    deep = "[" * 400 + "]" * 400
    for value in ("null", "-0", "1e400", "123456789012345678901234567890", '"\\ud83d\\ude00\\u0000 \\/"', '{"a": 1, "a": 2}', "[ ]", deep,
                  '"\u00e9\U0001f600"'):
        line = f' {{ "x" : [1, {{"did": "error"}}], "did":"result" , "value" :\t{value} }} \r'.encode()
        said, err = saying(f"action.say({line!r} + b'\\n')")
        assert said["ok"] and said["results"]["a"] == [json.loads(value)], f"{value}: {err}"


def odd_messages_do_no_harm():
    for line, good in ((b'{"did": "result"}', False), (b'{"did": "error"}', False), (b'{"did": "error", "error": 1, "traceback": []}', False),
                       (b"{}", False),
                       (b'{"did": "error", "error": "\\u0000"}', False), (b'{"did": 1}', False), (b'{"durl": "x;y;z;"}', False),
                       (b'{"did": "stats", "transports": {"x": {"bytes_read": -1, "bytes_written": 1e9}, "y": 3, "\\u0000": {}}}\n'
                        b'{"did": "result", "value": 1}', True),
                       (b'{"did": "stats", "transports": [1]}\n{"did": "stats"}\n{"did": "result", "value": 1}', True),
                       (b'{"did": "new", "value": {}}\n{"did": "result", "value": 1}', True),
                       (b'{"did": "result", "value": 1}\n{"did": "error", "error": "late"}\n{"did": "result", "value": 2}\nnonsense', True),
                       (b'{"did": "result", "value": 1}\n{"unfinished', True), (b'{"did": "result", "value": 1}', False)):
        end = b"" if line == b'{"did": "result", "value": 1}' else b"\n"  # a line without its end is none
        said, err = saying(f"action.say({line + end!r})")
        assert said["ok"] == good, f"{line!r}: {err}"
        assert not good or said["results"]["a"] == [1], said


def a_flood_is_bounded():
    said, err = saying("try:\n    for i in range(80):\n        action.say(b'x' * (1 << 20))\nexcept OSError:\n    pass")
    assert not said["ok"] and "more than 64 MiB" in err and "memory element" in err, err
    said, err = saying("for i in range(20000):\n    action.say({'did': 'stats', 'transports': {}})\naction.say({'did': 'result', 'value': 1})")
    assert said["ok"], err


def zeros_in_an_error_are_shown():
    said, err = saying("action.say({'did': 'error', 'error': 'a\\0b', 'traceback': '\\0Trace\\0\\0back\\0'})\nos._exit(1)")
    assert not said["ok"] and r"a failed: a\0b" in err and r"\0Trace\0\0back\0" in err and "\0" not in err, err
    assert said["error"] == r"a failed: a\0b", said


def time_of_an_error(size):
    """What a run takes of a processor whose element says an error of that many bytes, full of a secret."""
    text = "#@ corunning: [m]\nimport os\ndef main(params, action):\n    token = action.next()['durl'].split('token,')[1].split(';')[0]\n" \
           f"    text = (token + 'x\\033') * ({size} // len(token))\n" \
           "    action.say({'did': 'error', 'error': text, 'traceback': text})\n    os._exit(1)\n"
    with elements.directory({"a.o.py": text, "m.o.yaml": "limits: {mem: 1M}\n"}) as (folder, python):
        before = os.times().children_user + os.times().children_system
        done = elements.run(folder, *python, *TIME)
        took = os.times().children_user + os.times().children_system - before
        assert done.returncode == 1 and done.stderr.count("(token)x") > size // 150, done.stderr[:300]
        return took


def long_errors_take_no_long_time():
    """Their bytes are written in large pieces, and each secret in them is taken out once: the time grows as the text does. If each
    secret cost a look at all of the text, one that is eight times as long would take 64 times as long."""
    short, long = min(time_of_an_error(1500000) for _ in range(2)), min(time_of_an_error(12000000) for _ in range(2))
    assert long < 24 * short, f"{short} s and {long} s of a processor"


def a_socket_that_is_closed_or_never_read():
    said, err = saying("action.socket.shutdown(socket.SHUT_RDWR)\naction.socket.close()")
    assert not said["ok"] and "without a result" in err, err
    files = {"a.o.py": "def main(params, action):\n    return 'x' * (4 << 20)\n",
             "b.o.py": "#@ parents: [a]\ndef main(params, action):\n    return 1\n"}
    with elements.directory(files) as (folder, python):
        with open(python[1], encoding="ascii") as f:
            text = f.read()
        with open(python[1], "w", encoding="ascii") as f:  # an interpreter that does not read what it is to run, if that is long
            f.write(text.replace("action = Action()",
                                 "import time\nif os.getcwd().endswith('-b'):\n    time.sleep(600)\naction = Action()"))
        elements.fails(folder, *python, "--timeout", "5s", says=["still running: b"])


def random_lines_do_no_harm():
    rng = random.Random(7)
    good = b'{"did": "stats", "transports": {"words": {"bytes_read": 12, "bytes_written": 3}}}\n{"did": "begin"}\n' \
           b'{"did": "result", "value": [1, {"x": "\\u00e9"}]}\n'
    lines = []
    for _ in range(400):
        text = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(text))
            what = rng.randrange(3)
            if what == 0:
                text[at] = rng.randrange(256)
            elif what == 1:
                del text[at:at + rng.randint(1, 10)]
            else:
                text[at:at] = rng.choice([b"{", b"}", b'"', b"\\", b"[", b",", b"\xff", b"\0", b"\n", b"\\u"])
        lines.append(bytes(text))
    # many elements, each with one of them: the launcher reads all of it in one run, until the first failure takes the run down
    files = {f"e{i}.o.py": f"import os\ndef main(params, action):\n    action.say({line!r})\n    os._exit(0)\n" for i, line in enumerate(lines[:120])}
    with elements.directory(files) as (folder, python):
        done = elements.run(folder, *python, *TIME, "--jobs", "8")
        assert done.returncode in (0, 1), done.stderr[-500:]
    for line in lines[120:150]:
        said, err = saying(f"action.say({line!r})")
        assert said["ok"] in (True, False), err


def output_of_any_kind():
    code = ("os.write(1, b'\\xff\\x00\\x1b]0;title\\x07' * 100 + b'\\n')\nos.write(1, b'y' * 200000)\nos.write(2, bytes(range(256)))\n"
            "action.say({'did': 'result', 'value': 1})")
    text = "import os\ndef main(params, action):\n" + "".join(f"    {line}\n" for line in code.splitlines()) + "    os._exit(0)\n"
    with elements.directory({"a.o.py": text}) as (folder, python):
        done = subprocess.run([weft.command(), "run", folder, *python], env=elements.environment(folder), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        assert done.returncode == 0 and done.stdout.count(b"y") >= 200000 and bytes(range(256)) in done.stderr, done.stderr[:300]
        status, shown = weft.on_a_terminal("run", folder, *python, env=elements.environment(folder))
        assert status == 0 and "\x1b]0;" not in shown and "\\x1b]0;title\\x07" in shown, shown[:300]
        elements.nothing_left(folder)


weft.main(not_json_is_no_result, json_is_a_result_as_it_came, odd_messages_do_no_harm, a_flood_is_bounded,
          zeros_in_an_error_are_shown, long_errors_take_no_long_time, a_socket_that_is_closed_or_never_read,
          random_lines_do_no_harm, output_of_any_kind)
