"""The tree is tidy: no file grew a second subject, every source says what it is about, and no machine left its paths behind."""
import os
import re

from lib import checks

LINES_MAX = 900
SOURCE_LINES_MAX = 500  # of C, and of the Python package
SOURCES = ("src/", "include/", "tools/", "python/")
LISTS = {"docs/files.md"}  # made by a script, and looked things up in
TEXT = (".c", ".cc", ".h", ".hpp", ".py", ".md", ".txt", ".cmake", ".in", ".json", ".map", ".supp", ".1", ".3", ".7")
TOPS = ("include", "src", "tools", "python", "tests", "examples", "bench", "docs", "docker", "scripts", "cmake", ".ci")
# a path below someone's home or a workplace, in a word of its own; /tmp and the like are any machine's
MACHINE_PATH = re.compile(r"""(?<![\w.~$}])/(?:home|root|Users|work|workspace|builds?)/[\w.-]+""")
TEST_PATH = re.compile(r"\btests/[a-z]+/[a-z0-9_]+\.(?:c|py)\b")


def all_text(root):
    paths = []
    for top in TOPS:
        paths += checks.files(root, top, "")
    paths += [n for n in os.listdir(root) if os.path.isfile(os.path.join(root, n)) and not n.startswith(".git")]
    return sorted(p for p in paths if is_text(root, p) and "/corpus/" not in p)


def is_text(root, path):
    if path.endswith(TEXT) or path.split("/")[0] in ("scripts", ".ci"):
        return True
    with open(os.path.join(root, path), "rb") as f:
        head = f.read(1024)
    return b"\0" not in head


def too_long(root):
    def most(path):
        return SOURCE_LINES_MAX if path.startswith(SOURCES) and path.endswith((".c", ".h", ".hpp", ".py", ".pyi")) else LINES_MAX
    return [f"{p}: {n} lines" for p in all_text(root) if p not in LISTS and (n := checks.read(root, p).count("\n")) > most(p)]


def untidy(root):
    found = []
    for path in all_text(root):
        text = checks.read(root, path)
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                found.append(f"{path}:{number}: white space at the end of the line")
        if text and not text.endswith("\n"):
            found.append(f"{path}: no newline at the end")
    return found


def headless(root):
    """Sources that do not begin "/* path - what it is about"; a test may leave out the path, which its ctest entry says."""
    found = []
    for top in ("include", "src", "tools", "python", "tests", "examples", "bench"):
        for path in checks.files(root, top, ".c", ".cc", ".h", ".hpp"):
            text = checks.read(root, path)
            head = re.match(r"/\* (\S+) - \S", text)
            if head and path.endswith(head.group(1)) or top in ("tests", "bench") and re.match(r"/\* \S", text):
                continue
            found.append(f"{path}: does not begin with \"/* {path.removeprefix('src/').removeprefix('include/')} - what it is about\"")
    return found


def machine_paths(root):
    found = []
    for path in all_text(root):
        for number, line in enumerate(checks.read(root, path).split("\n"), 1):
            match = MACHINE_PATH.search(line)
            if match:
                found.append(f"{path}:{number}: {match.group(0)}")
    return found


def tests_that_are_not(root):
    """Sources and documents that name a test as what holds a promise, and there is none."""
    found = []
    for top in ("include", "src", "tools", "bench", "docs"):
        for path in checks.files(root, top, ".c", ".cc", ".h", ".py", ".md"):
            for name in TEST_PATH.findall(checks.read(root, path)):
                if not os.path.exists(os.path.join(root, name)):
                    found.append(f"{path}: there is no {name}")
    return found


def no_source_is_longer_than_500_lines_and_no_other_file_than_900():
    assert not (found := too_long(checks.SOURCE)), "\n".join(found)


def no_white_space_at_line_ends():
    assert not (found := untidy(checks.SOURCE)), "\n".join(found)


def every_source_says_what_it_is_about():
    assert not (found := headless(checks.SOURCE)), "\n".join(found)


def no_paths_of_one_machine():
    assert not (found := machine_paths(checks.SOURCE)), "\n".join(found)


def tests_that_are_named_exist():
    assert not (found := tests_that_are_not(checks.SOURCE)), "\n".join(found)


def the_map_is_true():
    checks.must([os.path.join(checks.SOURCE, "scripts", "map"), "--check"])


def each_fault_is_caught():
    home = "/" + "home/someone/weft"
    with checks.scratch() as root:
        checks.write_tree(root, {"src/base/a.c": "/* base/a.c - fine. */\n", "LICENSE": "fine\n"})
        for check in (too_long, untidy, headless, machine_paths, tests_that_are_not):
            assert not check(root), f"{check.__name__} of a good tree: {check(root)}"
        checks.write_tree(root, {"src/base/a.c": "int a; \n" + "\n" * 900 + f"char *p = \"{home}\"; /* tests/unit/none.c */"})
        for check, n in ((too_long, 1), (untidy, 2), (headless, 1), (machine_paths, 1), (tests_that_are_not, 1)):
            assert len(check(root)) == n, f"{check.__name__} of a bad tree: {check(root)}"


checks.main(no_source_is_longer_than_500_lines_and_no_other_file_than_900, no_white_space_at_line_ends,
            every_source_says_what_it_is_about, no_paths_of_one_machine,
            tests_that_are_named_exist, the_map_is_true, each_fault_is_caught)
