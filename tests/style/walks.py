"""The walks (docs/design/walk-*.md) name functions that are where they say.

A walk writes `file: function(), TYPE`, the file below src/ or below the root of the tree. Each such function is defined in that
file, and each other name occurs in it. A function that stands without a file has one elsewhere on the page. A name that is static
to its file never stands without it: other files may have the same one."""
import os
import re

from lib import checks

ITEM = r"[A-Za-z_]\w*(?:\(\))?"
PAIR = re.compile(rf"((?:[\w.-]+/)+[\w.-]+\.(?:c|h|py)): ({ITEM}(?:, {ITEM})*)")
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:c|h|py))[`:]")
CALL = re.compile(r"\b([A-Za-z_]\w*)\(\)")
UNIQUE = ("weft_", "wefti_")
WIDTH_MAX = 130


def walks(root):
    return [p for p in checks.files(root, "docs/design", ".md") if os.path.basename(p).startswith("walk-")]


def find(root, path):
    return next((p for p in (os.path.join("src", path), path) if os.path.exists(os.path.join(root, p))), None)


def has(text, item):
    """Is the function defined there, or the name there at all?"""
    if not item.endswith("()"):
        return re.search(rf"\b{item}\b", text)
    name = item[:-2]
    return re.search(rf"^(?:[A-Za-z_][^\n;=]*\b{name}\([^;{{]*\)\s*\{{|#\s*define {name}\(|\s*def {name}\()", text, re.M)


def misplaced(root):
    found = []
    for page in walks(root):
        walk = checks.read(root, page)
        named = set(FILE.findall(walk)) | {path for path, _ in PAIR.findall(walk)}
        texts = {path: checks.read(root, file) for path in named if (file := find(root, path))}
        found += [f"{page}: there is no {path}" for path in sorted(named - set(texts))]
        for path, items in PAIR.findall(walk):
            text = texts.get(path)
            found += [f"{page}: {path} has no {item}" for item in items.split(", ") if text and not has(text, item)]
    return found


def without_a_file(root):
    found = []
    for page in walks(root):
        text = checks.read(root, page)
        placed = {name for _, items in PAIR.findall(text) for name in CALL.findall(items)}
        for name in sorted(set(CALL.findall(PAIR.sub("", text)))):
            if not name.startswith(UNIQUE):
                found.append(f"{page}: {name}() stands without its file, and other files may have one")
            elif name not in placed:
                found.append(f"{page}: {name}() is in no file")
    return found


def too_wide(root):
    lines = [(page, n, line) for page in walks(root) for n, line in enumerate(checks.read(root, page).split("\n"), 1)]
    return [f"{page}:{n}: {len(line)} columns" for page, n, line in lines if len(line) > WIDTH_MAX and not line.startswith("|")]


def functions_are_where_the_walks_say():
    pairs = sum(len(PAIR.findall(checks.read(checks.SOURCE, page))) for page in walks(checks.SOURCE))
    assert pairs > 200, f"only {pairs} functions are named with their files"
    assert not (found := misplaced(checks.SOURCE)), "\n".join(found)


def every_function_has_a_file():
    assert not (found := without_a_file(checks.SOURCE)), "\n".join(found)


def lines_fit_a_window():
    assert not (found := too_wide(checks.SOURCE)), "\n".join(found)


def each_fault_is_caught():
    page = "docs/design/walk-a.md"
    with checks.scratch() as root:
        checks.write_tree(root, {"src/a/a.c": "typedef int a_t;\nstatic int go(int n,\n  int m)\n{\n  return wefti_b(n);\n}\n",
                                 "src/a/a.h": "int wefti_b(int n);\n#define weft_m(x) (x)\nstatic void wefti_c(void) { }\n",
                                 page: "| " + "x" * 200 + " |\n`a/a.c: go(), a_t` `a/a.h: wefti_c(), weft_m()`, wefti_c()\n"})
        for check in (misplaced, without_a_file, too_wide):
            assert not check(root), f"{check.__name__} of a good tree: {check(root)}"
        checks.write_tree(root, {page: "x" * 131 + "\n`a/a.c: wefti_b(), b_t` `a/a.h: wefti_b()` `a/b.c: go()` `a/c.c`\n"
                                                   "then go() and wefti_c()\n"})
        for check, n in ((misplaced, 5), (without_a_file, 2), (too_wide, 1)):
            assert len(check(root)) == n, f"{check.__name__} of a bad tree: {check(root)}"


checks.main(functions_are_where_the_walks_say, every_function_has_a_file, lines_fit_a_window, each_fault_is_caught)
