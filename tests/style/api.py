"""Each shared library exports what its public headers declare, all of it and nothing else, and each function there is documented."""
import re

from lib import checks

FUNCTION = re.compile(r"^WEFT_API\b[^;{]*?\b([a-z]\w+)\s*\([^;{]*\)\s*;", re.M)


# The headers of each library; what is not named here is libweft's.
ELEMENTS = ("store.h", "mirror.h", "element.h", "elements.h")
LIBRARIES = ("libweft.so", "libweft-elements.so")
# Words of elements, which have no business in libweft.
SCAD = re.compile(r"durl|uverbs|_action_|_transport_|_store_|_mirror_|_block_|_memory_|_element_")


def exported(library):
    out = checks.must(["nm", "-D", "--defined-only", "--without-symbol-versions", checks.built(library)])
    # the version itself is an absolute symbol
    return {line.split()[-1] for line in out.splitlines() if line.split()[-2] != "A"}


def headers():
    return {path: checks.read(checks.SOURCE, path) for path in checks.files(checks.SOURCE, "include/weft", ".h")}


def declared(library):
    return {name for path, text in headers().items() for name in FUNCTION.findall(text)
            if path.endswith(ELEMENTS) == (library != LIBRARIES[0])}


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
    for library in LIBRARIES:
        strange = sorted(n for n in exported(library) if not n.startswith("weft_"))
        assert not strange, f"exported by {library} and not weft_*: {', '.join(strange)}"


def everything_declared_is_exported():
    for library in LIBRARIES:
        missing = sorted(declared(library) - exported(library))
        assert not missing, f"declared in include/weft and not in {library}: {', '.join(missing)}"


def everything_exported_is_declared():
    for library in LIBRARIES:
        strange = sorted(exported(library) - declared(library))
        assert not strange, f"in {library} and not in its headers: {', '.join(strange)}"


def libweft_has_no_word_of_elements():
    strange = sorted(n for n in exported(LIBRARIES[0]) if SCAD.search(n))
    assert not strange, f"in libweft.so: {', '.join(strange)}"
    assert "libweft-elements" not in checks.must(["readelf", "-d", checks.built(LIBRARIES[0])])


def every_function_has_a_doc_comment():
    found = [f"{path}: {name}" for path, text in headers().items() for name in undocumented(text)]
    assert not found, "no comment above\n" + "\n".join(found)


def the_libraries_have_their_sonames():
    for library in LIBRARIES:
        out = checks.must(["readelf", "-d", checks.built(library)])
        assert f"[{library}.1]" in out, out


def a_missing_comment_is_caught():
    text = ("/* --- asking --- */\n\nWEFT_API int weft_a(int x);\n\n/* Says b. */\n"
            "WEFT_API int weft_b(int x,\n    int y);\nWEFT_API int weft_c(void);\n")
    assert undocumented(text) == ["weft_a"], undocumented(text)
    assert FUNCTION.findall(text) == ["weft_a", "weft_b", "weft_c"], FUNCTION.findall(text)


checks.main(only_weft_names_are_exported, everything_declared_is_exported, everything_exported_is_declared,
            libweft_has_no_word_of_elements, every_function_has_a_doc_comment, the_libraries_have_their_sonames, a_missing_comment_is_caught)
