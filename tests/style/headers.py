"""Each public header compiles alone, as C and as C++, and its initialisers are valid in both."""
import os
import re

from lib import checks

WARN = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]


def compile_one(compiler, language, standard, text):
    return checks.run([compiler, "-x", language, f"-std={standard}", *WARN, "-I", os.path.join(checks.SOURCE, "include"), "-"],
                      input=text)


def headers():
    return [os.path.basename(p) for p in checks.files(checks.SOURCE, "include/weft", ".h")]


def each(compiler, language, standard, text_of):
    wrong = []
    for header in headers():
        done = compile_one(compiler, language, standard, text_of(header))
        if done.returncode:
            wrong.append(f"{header} as {standard} with {compiler}:\n{done.stdout}")
    assert not wrong, "\n".join(wrong)


def alone(header):
    # twice: a guard that does not guard shows here
    return f"#include <weft/{header}>\n#include <weft/{header}>\nextern int weft_style_unit;\n"


def each_header_compiles_alone_as_c11():
    each(checks.CC, "c", "c11", alone)


def each_header_compiles_alone_as_cpp17():
    each(checks.CXX, "c++", "c++17", alone)


def users(header):
    text = checks.read(checks.SOURCE, f"include/weft/{header}")
    macros = re.findall(r"^#define (WEFT_\w+)_INIT\b", text, re.M)
    lines = [f"{name.lower()}_t v{i} = {name}_INIT; (void)v{i};" for i, name in enumerate(macros)]
    return f"#include <weft/{header}>\nvoid weft_style_use(void);\nvoid weft_style_use(void)\n{{\n" + "\n".join(lines) + "\n}\n"


def initialisers_are_clean_as_c():
    for compiler in checks.compilers("gcc", "clang"):
        for standard in ("c11", "c17"):
            each(compiler, "c", standard, users)


def initialisers_are_clean_as_cpp():
    for compiler in checks.compilers("g++", "clang++"):
        for standard in ("c++11", "c++17", "c++20"):
            each(compiler, "c++", standard, users)


def a_header_that_needs_another_is_caught():
    done = compile_one(checks.CC, "c", "c11", "size_t weft_style_unit;\n")
    assert done.returncode, "size_t without a header compiled"


checks.main(each_header_compiles_alone_as_c11, each_header_compiles_alone_as_cpp17, initialisers_are_clean_as_c,
            initialisers_are_clean_as_cpp, a_header_that_needs_another_is_caught)
