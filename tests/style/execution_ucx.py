"""docs/guide/coming-from-execution-ucx.md is whole and true: each name of tests/style/lib/execution_ucx_names.txt has one row, no row has a name
that is not in that list, each name of Weft on the page exists (in include/weft, or in the Python package), and its counts are right.
tests/style/docs.py compiles the lines of C in its tables."""
import ast
import os
import re

from lib import checks

PAGE = "docs/guide/coming-from-execution-ucx.md"
LIST = "tests/style/lib/execution_ucx_names.txt"
SETTINGS = "docs/guide/configuration.md"
MISSING, NONE = "**missing**", "*not needed*"
COUNTS = re.compile(r"The page has (\d+) names: (\d+) have an equivalent, (\d+) are not needed, and (\d+) are missing \((\d+) rows\)")
EXAMPLES = ("examples/transfer/transfer.c", "examples/rpc_discovery/rpc_discovery.c", "examples/senders_transfer/senders_transfer.cc",
            "examples/senders_rpc/senders_rpc.cc")


class Row:
    """A row of a table, without its heads. `names` is empty where it continues the row above, or execution-ucx has no name for it."""

    def __init__(self, number, line):
        self.number = number
        first, self.here, self.last = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        self.first = first
        self.names = [] if first.startswith("... ") or first == "-" else re.findall(r"`([^`]*)`", first)
        self.missing = MISSING in self.here
        self.none = NONE in self.here

    def __str__(self):
        return f"{PAGE}:{self.number}"


def rows(root):
    lines = checks.read(root, PAGE).split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        head = number < len(lines) and lines[number].startswith("|---")
        if line.startswith("| ") and not head:
            found.append(Row(number, line))
    return found


def listed(root):
    """The names of the list, in their order, as (file, name)."""
    return [tuple(line.split()) for line in checks.read(root, LIST).split("\n") if line and not line.startswith("#")]


# --- names of execution-ucx ----------------------------------------------------------------------------------------------

def twice(names):
    return sorted({name for name in names if names.count(name) > 1})


def names_that_differ(root):
    pairs = listed(root)
    found = [f"{LIST}: not a file and a name: {' '.join(pair)}" for pair in pairs if len(pair) != 2]
    known = [pair[-1] for pair in pairs]
    found += [f"{LIST}: {name} is there twice" for name in twice(known)]
    shown = [name for row in rows(root) for name in row.names]
    found += [f"{PAGE}: {name} has two rows" for name in twice(shown)]
    found += [f"{PAGE}: {name} has no row" for name in known if name not in set(shown)]
    for row in rows(root):
        if not row.names and not row.first.startswith("... ") and row.first != "-":
            found.append(f"{row}: no name in the first column")
        found += [f"{row}: {name} is not a name of execution-ucx" for name in row.names if name not in set(known)]
    return found


def counts_that_differ(root):
    match = COUNTS.search(re.sub(r"\s+", " ", checks.read(root, PAGE)))
    if not match:
        return [f"{PAGE}: the sentence with the counts is not there"]
    kinds = {"same": 0, "none": 0, "missing": 0}
    for row in rows(root):
        kinds["missing" if row.missing else "none" if row.none else "same"] += len(row.names)
    true = [sum(kinds.values()), kinds["same"], kinds["none"], kinds["missing"], sum(row.missing for row in rows(root))]
    said = [int(n) for n in match.groups()]
    return [] if said == true else [f"{PAGE}: the counts are {said}, and should be {true}"]


def rows_without_help(root):
    """A row says what to write, in C or Python; or, as missing, what to do meanwhile; or why it is not needed."""
    found = []
    for row in rows(root):
        text = row.here + row.last
        if row.missing and not re.search(r"\bmeanwhile\b", text, re.I):
            found.append(f"{row}: it is missing, and nothing says what to do meanwhile")
        elif row.none and len(text) < len(NONE) + 15:
            found.append(f"{row}: it is not needed, and nothing says why")
        elif not (row.missing or row.none or re.fullmatch(r"(C\+\+: )?`[^`]+`", row.last) or "`weft." in row.here):
            found.append(f"{row}: nothing says what to write")
    return found


# --- names of Weft ------------------------------------------------------------------------------------------------------

def c_names(root):
    """Every identifier of the public headers of C, comments and strings left out, and those that the macros of weft/rpc.h make."""
    text = "\n".join(checks.read(root, p) for p in checks.files(root, "include/weft", ".h"))
    text = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
    return set(re.findall(r"\b\w+\b", text)) | {f"weft_{name}" for name in re.findall(r"WEFT_VALUE_OF\((\w+)", text)}, text


def wrong_c_names(root):
    known, text = c_names(root)
    if os.path.exists(os.path.join(root, SETTINGS)):
        known |= set(re.findall(r"`(WEFT_\w+)", checks.read(root, SETTINGS)))
    page = checks.read(root, PAGE)
    found = [f"{PAGE}: include/weft has no {name}" for name in sorted(set(re.findall(r"\b(?:weft|WEFT)_\w+", page))) if name not in known]
    for kind, field in sorted(set(re.findall(r"\bweft_(\w+)_t\.(\w+)", page))):
        struct = re.search(rf"struct weft_{kind} \{{(.*?)^\}}", text, re.S | re.M)
        if not struct or not re.search(rf"\b{field}\b", struct.group(1)):
            found.append(f"{PAGE}: weft_{kind}_t has no field {field}")
    return found


def members(body):
    """What a class or a module defines: {name: its node}."""
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found.update({t.id: node for t in node.targets if isinstance(t, ast.Name)})
    return found


def python_names(root):
    """What `import weft` gives, and the classes of the package by name: {class: {member}}, with those of their bases."""
    package = ast.parse(checks.read(root, "python/weft/__init__.py"))
    public = set()
    for node in package.body:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                public |= {e.value for e in node.value.elts}
    classes, bases = {}, {}
    for path in checks.files(root, "python/weft", ".py", ".pyi"):
        for name, node in members(ast.parse(checks.read(root, path)).body).items():
            if isinstance(node, ast.ClassDef):
                classes.setdefault(name, set()).update(members(node.body))
                bases.setdefault(name, set()).update(b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases)
    return public, {name: members_of(name, classes, bases) for name in classes}


def members_of(name, classes, bases, seen=()):
    found = set(classes.get(name, ()))
    for base in bases.get(name, ()):
        if base != name and base not in seen:
            found |= members_of(base, classes, bases, (*seen, name))
    return found


def wrong_python_names(root):
    public, classes = python_names(root)
    codes = members(ast.parse(checks.read(root, "python/weft/codes.py")).body)
    found = []
    for name in sorted(set(re.findall(r"`weft\.([A-Za-z]\w*(?:\.\w+)?)\b", checks.read(root, PAGE)))):
        first, _, second = name.partition(".")
        inside = codes if first == "codes" else classes.get(first, ())
        if first not in public or second and second not in inside:
            found.append(f"{PAGE}: the Python package has no weft.{name}")
    return found


# --- the tests ------------------------------------------------------------------------------------------------------------

def each_name_has_one_row():
    assert len(listed(checks.SOURCE)) > 800, "the list is not where it was"
    assert not (found := names_that_differ(checks.SOURCE)), "\n".join(found)


def the_counts_are_right():
    assert not (found := counts_that_differ(checks.SOURCE)), "\n".join(found)


def each_row_says_what_to_do():
    assert not (found := rows_without_help(checks.SOURCE)), "\n".join(found)


def each_name_of_weft_exists():
    assert not (found := wrong_c_names(checks.SOURCE) + wrong_python_names(checks.SOURCE)), "\n".join(found)


def the_page_leads_to_the_examples():
    page = checks.read(checks.SOURCE, PAGE)
    for path in EXAMPLES:
        assert os.path.exists(os.path.join(checks.SOURCE, path)) and f"(../../{path})" in page, f"{PAGE} does not lead to {path}"


def each_fault_is_caught():
    """On the page itself: a row that is gone, one that is there twice, a function that was renamed, a count, a row without help."""
    page, names, header = (checks.read(checks.SOURCE, p) for p in (PAGE, LIST, "include/weft/am.h"))
    row = next(line for line in page.split("\n") if line.startswith("| `connection_recv_header` |"))
    code = next(line for line in page.split("\n") if line.startswith("| `axon.AxonRuntime.start_client`"))
    faults = {
        "a row that is gone": (names_that_differ, PAGE, page.replace(row + "\n", "")),
        "a row that is there twice": (names_that_differ, PAGE, page.replace(row, row + "\n" + row)),
        "a name that is none": (names_that_differ, PAGE, page.replace("`connection_recv_header`", "`connection_recv_head`")),
        "a name without a row": (names_that_differ, LIST, names + "ucx_context/new.hpp connection_peek\n"),
        "a name that is listed twice": (names_that_differ, LIST, names + "ucx_context/new.hpp connection_send\n"),
        "a row that is not counted": (counts_that_differ, PAGE, page.replace(row + "\n", "")),
        "a row that is missing and not counted": (counts_that_differ, PAGE, page.replace(row, row.replace("header first", "**missing**"))),
        "a missing row without help": (rows_without_help, PAGE, page.replace(row, row.replace("header first", "**missing**"))),
        "a row without a line": (rows_without_help, PAGE, page.replace(row, row[:row.rindex("`weft_am_take")] + "- |")),
        "a Python row without a name": (rows_without_help, PAGE, page.replace(code, code.replace("`weft.", "`"))),
        "a function that was renamed": (wrong_c_names, "include/weft/am.h", header.replace("weft_am_take(", "weft_am_first(")),
        "a name of Python that is none": (wrong_python_names, PAGE, page.replace("`weft.Server.uri`", "`weft.Server.url`")),
        "a field that is none": (wrong_c_names, PAGE, page + "\n`weft_am_t.no_such_field`\n"),
    }
    for what, (check, path, text) in faults.items():
        with checks.scratch() as root:
            tree = {p: checks.read(checks.SOURCE, p) for p in (PAGE, LIST, SETTINGS, *checks.files(checks.SOURCE, "include/weft", ".h"),
                                                               *checks.files(checks.SOURCE, "python/weft", ".py", ".pyi"))}
            assert text != tree[path], f"{what}: the page has changed, and this test did not see it"
            checks.write_tree(root, {**tree, path: text})
            assert check(root), f"{what} is not found"


checks.main(each_name_has_one_row, the_counts_are_right, each_row_says_what_to_do, each_name_of_weft_exists,
            the_page_leads_to_the_examples, each_fault_is_caught)
