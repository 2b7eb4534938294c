"""Write a call of every public function with NULL, read off the headers: nulls.py OUT HEADERS.

Each is a function that calls it with what the side of a world has, or something that may pass for it, and with NULL for one parameter, or for all of
them, that take a pointer.
"""
import os
import re
import sys

from functions import COMMENT, DECLARED, DEFINE, read

PARTS = re.compile(r"^(.*?)\b(weft_\w+)\s*\((.*)\)\s*$", re.S)
SIZED = re.compile(r"\bWEFT_INIT\((weft_\w+_t)\)")

# What a side has, by the type that points to it.
HANDLES = {
    "runtime": "rt", "listener": "listener", "ep": "ep", "queue": "queue", "token": "token", "pool": "pool", "mem_reg": "reg",
    "msg": "msg", "am": "am", "region": "region", "remote": "remote", "registry": "registry", "watch": "watch", "service": "service",
    "client": "client", "method": "add", "request": "request", "stream": "stream", "store_server": "server", "store": "store", "block": "block",
    "mirror": "mirror", "memory": "memory", "action": "action", "transport": "transport", "buffer": "buffer", "sig": "sig"}
TEXTS = {"uri": "*s->uri ? s->uri : \"tcp://127.0.0.1:9\"", "durl": "s->durl", "signature": "\"add(a: i32, b: i32) -> i32\""}
NUMBERS = {"n": "1", "timeout_ns": "WEFT_MILLISECOND", "offset": "0", "addr": "0", "status": "WEFT_OK", "reason": "7", "width": "8", "delay_ns": "0"}
# What is given back must have been given before.
SPECIAL = {("weft_mem_free", "ptr"): "NULL", ("weft_pool_put", "ptr"): "s->pooled", ("weft_buf_free", "buf"): "s->made",
           ("weft_reply_release", "reply"): "&s->reply", ("weft_item_release", "item"): "&s->item",
           ("weft_region_key_read", "key"): "s->region_key", ("weft_remote_attach", "key"): "s->region_key",
           ("weft_region_key_read", "len"): "s->region_key_len", ("weft_remote_attach", "len"): "s->region_key_len",
           ("weft_msg_recv_wait", "tag"): "99",
           # sizes of what is given as "x"
           ("weft_policy_check", "len"): "1", ("weft_runtime_set_policy", "len"): "1"}


def parameters(text):
    """Types and names."""
    if text.strip() == "void":
        return []
    found = [re.match(r"^(.*?)(\w+)$", " ".join(p.split())).groups() for p in text.split(",") if p.strip() != "..."]
    return [(kind.strip(), name) for kind, name in found]


def points(kind):
    return "*" in kind or kind.endswith("_fn")


def value(function, kind, name, sized):
    """Something to call with, in C."""
    stem = kind.replace("const ", "").replace(" ", "")
    handle = re.match(r"^weft_(\w+)_t\*$", stem)
    if (function, name) in SPECIAL:
        return SPECIAL[function, name]
    if kind.endswith("_fn"):
        return f"({kind})nothing"
    if kind == "const char *":
        return TEXTS.get(name, "\"x\"")
    if handle and handle.group(1) in HANDLES:
        return f"s->{HANDLES[handle.group(1)]}"
    if stem == "weft_mem_kind_t*":
        return "weft_mem_host()"
    if stem == "weft_op_t**" or kind == "weft_op_t *const *":
        return "some_ops()"
    if stem == "weft_value_t*" and name == "args":
        return "some_args()"
    if stem == "weft_function_t*":
        return "some_function()"
    if handle and stem[:-1] in sized:
        return f"({stem})some_room(sizeof({stem[:-1]}))"
    if "*" in kind:
        return f"({stem})some_room(0)"
    if function.startswith("weft_call") and name == "n":
        return "2"
    return f"({kind}){NUMBERS.get(name, '8' if kind == 'size_t' else '1')}"


def calls(header, text, sized):
    """The lines of one header."""
    lines, names = [], []
    for declared in DECLARED.findall(DEFINE.sub("", COMMENT.sub(" ", text))):
        result, name, inside = PARTS.match(declared.strip()).groups()
        taken = parameters(inside)
        pointers = [i for i, (kind, _) in enumerate(taken) if points(kind)]
        if not pointers:
            continue
        args = ", ".join(f"null == {i} || null == NULL_ALL ? NULL : {value(name, kind, p, sized)}" if points(kind) else value(name, kind, p, sized)
                         for i, (kind, p) in enumerate(taken))
        says = "weft_status_t" in result
        lines += [f"static weft_status_t null_{name}(side_t *s, int null)", "{", "    (void)s;",
                  f"    return {name}({args});" if says else f"    (void){name}({args});"] + ([] if says else ["    return WEFT_OK;"]) + ["}", ""]
        names += [f"    {{\"{name}\", {str(says).lower()}, {sum(1 << i for i in pointers)}, null_{name}}}, /* {header} */"]
    return lines, names


def main(out, headers):
    texts = {name: read(os.path.join(headers, name)) for name in sorted(os.listdir(headers)) if name.endswith(".h")}
    sized = {kind for text in texts.values() for kind in SIZED.findall(text)}
    lines, names = ["/* nulls.c - made by tests/matrix/lib/nulls.py of the public headers. */", "#include \"null.h\"", ""], []
    for name, text in texts.items():
        more, named = calls(name, text, sized)
        lines += more
        names += named
    lines += ["const null_t nulls[] = {"] + names + ["};", "const size_t nulls_n = sizeof nulls / sizeof *nulls;", ""]
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
