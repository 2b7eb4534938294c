"""Write the table of all public functions, read off the headers: functions.py OUT HEADERS ROWS.

HEADERS is the folder of the public headers, ROWS that of the files row_*.c. Each function is written with the header it is in, and with whether the
row of its name calls it: a row that calls something else would prove nothing.
"""
import os
import re
import sys

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
DEFINE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
DECLARED = re.compile(r"\bWEFT_API\b([^;{]*)[;{]")
NAME = re.compile(r"\b(weft_\w+)\s*\(")
ROW = re.compile(r"^ROW\((\w+),[^\n]*\n\{\n(.*?)^\}", re.M | re.S)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def functions(text):
    """The names of the public functions of a header."""
    text = DEFINE.sub("", COMMENT.sub(" ", text))
    found = []
    for declared in DECLARED.findall(text):
        name = NAME.search(declared)
        if not name:
            raise SystemExit(f"functions.py: no name in \"WEFT_API{declared}\"")
        found.append(name.group(1))
    if len(found) != len(re.findall(r"\bWEFT_API\b", text)):
        raise SystemExit("functions.py: a WEFT_API that is no declaration")
    return found


def rows(text):
    """The rows of a file that call what they are named for."""
    return {name for name, body in ROW.findall(COMMENT.sub(" ", text)) if re.search(rf"\b{name}\s*\(", body)}


def main(out, headers, folder):
    called = set()
    for name in sorted(os.listdir(folder)):
        if name.startswith("row_") and name.endswith(".c"):
            called |= rows(read(os.path.join(folder, name)))
    lines = ["/* functions.c - made by tests/matrix/lib/functions.py of the public headers. */", "#include \"row.h\"", "",
             "const function_t functions[] = {"]
    for header in sorted(os.listdir(headers)):
        if header.endswith(".h"):
            lines += [f"    {{\"{name}\", \"{header}\", {str(name in called).lower()}}}," for name in
                      functions(read(os.path.join(headers, header)))]
    lines += ["};", "const size_t functions_n = sizeof functions / sizeof *functions;", ""]
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
