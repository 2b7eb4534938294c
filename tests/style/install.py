"""What is installed can be used: by pkg-config and by find_package, shared and static, from C and from C++, after the tree was moved.

The examples are built the same way, since they are what a newcomer copies, and each is run.
"""
# ctest: long
import glob
import os

from lib import checks

CONSUMER = """#include <stdio.h>
#include <string.h>
#include <weft/weft.h>
int main(void)
{
    puts(weft_version());
    return strcmp(weft_version(), WEFT_VERSION_STRING) != 0;
}
"""
# The same with libweft-elements. A durl is a word of elements: libweft does not have it.
ELEMENTS = """#include <stdio.h>
#include <string.h>
#include <weft/elements.h>
#include <weft/weft.h>
int main(void)
{
    weft_runtime_t *rt;
    weft_store_server_t *server;
    weft_store_server_opts_t opts = WEFT_STORE_SERVER_OPTS_INIT;
    opts.bytes = 4096;
    if (weft_runtime_open(NULL, &rt) || weft_store_serve(rt, &opts, &server)) {
        puts(weft_last_error());
        return 1;
    }
    return weft_runtime_close(rt) != WEFT_OK;
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(consumer LANGUAGES C)
find_package(weft 0.1 REQUIRED COMPONENTS elements)
add_executable(shared consumer.c)
target_link_libraries(shared PRIVATE weft::weft)
add_executable(static consumer.c)
target_link_libraries(static PRIVATE weft::weft_static)
add_executable(elements elements.c)
target_link_libraries(elements PRIVATE weft::elements)
add_executable(elements_static elements.c)
target_link_libraries(elements_static PRIVATE weft::elements_static)
"""

room = None    # the scratch folder
prefix = None  # where the library is installed in it


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    env["PKG_CONFIG_PATH"] = os.path.dirname(find("weft.pc"))
    return env


def find(name):
    if not prefix:
        raise checks.Skip("nothing was installed")
    found = glob.glob(os.path.join(prefix, "**", name), recursive=True)
    assert found, f"{name} is not installed"
    return found[0]


def needed(program):
    return checks.must(["readelf", "-d", program])


def install_puts_everything_in_place():
    global prefix
    checks.built("libweft.so")
    first = os.path.join(room, "first")
    checks.must([checks.CMAKE, "--install", checks.BUILD, "--prefix", first])
    prefix = os.path.join(room, "moved")
    os.rename(first, prefix)
    for name in ("libweft.so", "libweft.so.0", "libweft.so.0.1.0", "libweft.a", "weft.pc", "weft-config.cmake", "bin/weft",
                 "libweft-elements.so", "libweft-elements.so.0", "libweft-elements.so.0.1.0", "libweft-elements.a", "weft-elements.pc"):
        find(name)
    there = {os.path.basename(p) for p in glob.glob(os.path.join(prefix, "include", "weft", "*"))}
    ours = {os.path.basename(p) for p in checks.files(checks.SOURCE, "include/weft", ".h", ".hpp")}
    assert there == ours, f"installed headers: {sorted(there)}, not {sorted(ours)}"
    for page in checks.files(checks.SOURCE, "docs/man", ".1", ".3", ".7"):
        find(os.path.basename(page))


def pkg_config(package, static):
    args = ["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), package]
    flags = checks.must(args, env=environment()).split()
    archives = {"-lweft": "-l:libweft.a", "-lweft-elements": "-l:libweft-elements.a"}
    return [archives.get(f, f) if static else f for f in flags]


def judge(program, shared, elements):
    """Which of our libraries does it need, and does it run?"""
    wants = needed(program)
    assert ("libweft.so.0" in wants) == shared, wants
    assert ("libweft-elements.so.0" in wants) == (shared and elements), wants
    env = environment()
    env["LD_LIBRARY_PATH"] = os.path.dirname(find("libweft.so")) if shared else ""
    checks.must([program], env=env)


def build_and_run(compiler, source, static, elements=False):
    program = os.path.join(room, "program")
    path = os.path.join(room, source)
    checks.write_tree(room, {source: ELEMENTS if elements else CONSUMER})
    checks.must([compiler, "-Wall", "-Werror", path, "-o", program, *pkg_config("weft-elements" if elements else "weft", static)])
    judge(program, not static, elements)


def pkg_config_gives_the_shared_library_to_c():
    build_and_run(checks.CC, "consumer.c", False)


def pkg_config_gives_the_static_library_to_c():
    build_and_run(checks.CC, "consumer.c", True)


def pkg_config_gives_the_shared_library_to_cpp():
    build_and_run(checks.CXX, "consumer.cpp", False)


def pkg_config_gives_the_elements_to_c():
    build_and_run(checks.CC, "elements.c", False, True)
    build_and_run(checks.CC, "elements.c", True, True)


def pkg_config_gives_the_elements_to_cpp():
    build_and_run(checks.CXX, "elements.cpp", False, True)


def libweft_alone_has_no_elements():
    checks.write_tree(room, {"elements.c": ELEMENTS})
    done = checks.run([checks.CC, os.path.join(room, "elements.c"), "-o", os.path.join(room, "program"), *pkg_config("weft", False)])
    assert done.returncode and "weft_store_serve" in done.stdout, done.stdout


def cmake_build(source, name):
    build = os.path.join(room, "build-" + name)
    checks.must([checks.CMAKE, "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
                 f"-DCMAKE_C_COMPILER={checks.CC}"], env=environment())
    checks.must([checks.CMAKE, "--build", build], env=environment())
    return build


def find_package_gives_both_libraries():
    checks.write_tree(room, {"consumer/CMakeLists.txt": PROJECT, "consumer/consumer.c": CONSUMER, "consumer/elements.c": ELEMENTS})
    build = cmake_build(os.path.join(room, "consumer"), "consumer")
    for name in ("shared", "static", "elements", "elements_static"):
        judge(os.path.join(build, name), not name.endswith("static"), name.startswith("elements"))


def every_example_builds_against_it_and_runs():
    for source in sorted(glob.glob(os.path.join(checks.SOURCE, "examples", "*", "CMakeLists.txt"))):
        name = os.path.basename(os.path.dirname(source))
        build = cmake_build(os.path.dirname(source), name)
        print(checks.must([os.path.join(build, name)], env=environment(), timeout=30), end="")


with checks.scratch() as room:
    checks.main(install_puts_everything_in_place, pkg_config_gives_the_shared_library_to_c, pkg_config_gives_the_static_library_to_c,
                pkg_config_gives_the_shared_library_to_cpp, pkg_config_gives_the_elements_to_c, pkg_config_gives_the_elements_to_cpp,
                libweft_alone_has_no_elements, find_package_gives_both_libraries, every_example_builds_against_it_and_runs)
