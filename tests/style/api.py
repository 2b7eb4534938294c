"""The shared library exports what the public headers declare, all of it and nothing else, and each function there is documented."""
import re

from lib import checks

FUNCTION = re.compile(r"^WEFT_API\b[^;{]*?\b(\w+)\s*\([^;{]*\)\s*;", re.M)


def library():
    return checks.built("libweft.so")


def exported():
    out = checks.must(["nm", "-D", "--defined-only", "--without-symbol-versions", library()])
    # the version itself is an absolute symbol
    return {line.split()[-1] for line in out.splitlines() if line.split()[-2] != "A"}


def headers():
    return {path: checks.read(checks.SOURCE, path) for path in checks.files(checks.SOURCE, "include/weft", ".h")}


def declared():
    return {name for text in headers().values() for name in FUNCTION.findall(text)}


def undocumented(text):
    """Functions whose paragraph (the lines around it up to a blank one) has no comment but a divider above them."""
    found = []
    for match in FUNCTION.finditer(text):
        above = text[:match.start()].rsplit("\n\n", 1)[-1]
        above = re.sub(r"/\* -{3}.*?\*/", "", above, flags=re.S)
        if "/*" not in above and "*/" not in above:
            found.append(match.group(1))
    return found


def only_weft_names_are_exported():
    strange = sorted(n for n in exported() if not n.startswith("weft_"))
    assert not strange, f"exported and not weft_*: {', '.join(strange)}"


def everything_declared_is_exported():
    missing = sorted(declared() - exported())
    assert not missing, f"declared in include/weft and not in the library: {', '.join(missing)}"


def everything_exported_is_declared():
    strange = sorted(exported() - declared())
    assert not strange, f"in the library and not in include/weft: {', '.join(strange)}"


def every_function_has_a_doc_comment():
    found = [f"{path}: {name}" for path, text in headers().items() for name in undocumented(text)]
    assert not found, "no comment above\n" + "\n".join(found)


def the_library_has_its_soname():
    out = checks.must(["readelf", "-d", library()])
    assert "[libweft.so.0]" in out, out


def a_missing_comment_is_caught():
    text = ("/* --- asking --- */\n\nWEFT_API int weft_a(int x);\n\n/* Says b. */\n"
            "WEFT_API int weft_b(int x,\n    int y);\nWEFT_API int weft_c(void);\n")
    assert undocumented(text) == ["weft_a"], undocumented(text)
    assert FUNCTION.findall(text) == ["weft_a", "weft_b", "weft_c"], FUNCTION.findall(text)


checks.main(only_weft_names_are_exported, everything_declared_is_exported, everything_exported_is_declared,
            every_function_has_a_doc_comment, the_library_has_its_soname, a_missing_comment_is_caught)
