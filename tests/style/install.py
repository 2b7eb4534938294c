"""What is installed can be used: by pkg-config and by find_package, shared and static, from C and from C++, after the tree was moved.

The examples are built the same way, since they are what a newcomer copies, and each is run.
"""
# ctest: long
import glob
import os
import re

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
ASKS = """#include <stdio.h>
#include <weft/weft.h>
int main(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    opts.transports = "ucx";
    if (weft_runtime_open(&opts, &rt))
        return !!puts(weft_last_error());
    return weft_runtime_close(rt) != WEFT_OK;
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(consumer LANGUAGES C)
find_package(weft 0.1 REQUIRED)
add_executable(shared consumer.c)
target_link_libraries(shared PRIVATE weft::weft)
add_executable(static consumer.c)
target_link_libraries(static PRIVATE weft::weft_static)
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
    for name in ("libweft.so", "libweft.so.0", "libweft.so.0.1.0", "libweft.a", "weft.pc", "weft-config.cmake", "bin/weft"):
        find(name)
    there = {os.path.basename(p) for p in glob.glob(os.path.join(prefix, "include", "weft", "*"))}
    ours = {os.path.basename(p) for p in checks.files(checks.SOURCE, "include/weft", ".h", ".hpp")}
    assert there == ours, f"installed headers: {sorted(there)}, not {sorted(ours)}"
    for page in checks.files(checks.SOURCE, "docs/man", ".1", ".3", ".7"):
        find(os.path.basename(page))


def pkg_config(static):
    args = ["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "weft"]
    flags = checks.must(args, env=environment()).split()
    return ["-l:libweft.a" if f == "-lweft" and static else f for f in flags]


def only_what_it_stands_on(program, *more):
    """The library needs libc and libsodium alone; UCX, Redis, CUDA and their like are loaded when they are wanted."""
    found = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", needed(program)))
    allowed = {"libc", "libsodium", "ld-linux-x86-64", "ld-linux-aarch64", *more}
    assert found <= allowed, f"{program} needs {sorted(found - allowed)}"


def the_library_and_the_command_need_libc_and_libsodium_alone():
    only_what_it_stands_on(find("libweft.so.0"))
    only_what_it_stands_on(find("bin/weft"), "libm", "libyaml-0")


def the_module_is_found_after_the_tree_was_moved():
    if not os.path.exists(os.path.join(checks.BUILD, "libweft_ucx.so")):
        raise checks.Skip("this build has no libweft_ucx.so")
    assert "weft_ucx_module" in checks.must(["nm", "-D", "--defined-only", find("weft/libweft_ucx.so")])
    assert "libweft" not in needed(find("weft/libweft_ucx.so")).replace("libweft_ucx", "")
    said = checks.must([find("bin/weft"), "info"], env=environment())
    assert re.search(r"ucx_version +[0-9]+\.", said), said
    program = os.path.join(room, "asks")
    checks.write_tree(room, {"asks.c": ASKS})
    checks.must([checks.CC, os.path.join(room, "asks.c"), "-o", program, *pkg_config(False)])
    checks.must([program], env={**environment(), "LD_LIBRARY_PATH": os.path.dirname(find("libweft.so"))})


def build_and_run(compiler, source, static):
    program = os.path.join(room, "program")
    path = os.path.join(room, source)
    checks.write_tree(room, {source: CONSUMER})
    checks.must([compiler, "-Wall", "-Werror", path, "-o", program, *pkg_config(static)])
    assert ("libweft.so.0" in needed(program)) == (not static), needed(program)
    only_what_it_stands_on(program, "libweft")
    env = environment()
    if not static:
        env["LD_LIBRARY_PATH"] = os.path.dirname(find("libweft.so"))
    checks.must([program], env=env)


def pkg_config_gives_the_shared_library_to_c():
    build_and_run(checks.CC, "consumer.c", False)


def pkg_config_gives_the_static_library_to_c():
    build_and_run(checks.CC, "consumer.c", True)


def pkg_config_gives_the_shared_library_to_cpp():
    build_and_run(checks.CXX, "consumer.cpp", False)


def cmake_build(source, name):
    build = os.path.join(room, "build-" + name)
    checks.must([checks.CMAKE, "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
                 f"-DCMAKE_C_COMPILER={checks.CC}"], env=environment())
    checks.must([checks.CMAKE, "--build", build], env=environment())
    return build


def find_package_gives_both_libraries():
    checks.write_tree(room, {"consumer/CMakeLists.txt": PROJECT, "consumer/consumer.c": CONSUMER})
    build = cmake_build(os.path.join(room, "consumer"), "consumer")
    for name, shared in (("shared", True), ("static", False)):
        program = os.path.join(build, name)
        assert ("libweft.so.0" in needed(program)) == shared, needed(program)
        checks.must([program], env=environment())


def every_example_builds_against_it_and_runs():
    for source in sorted(glob.glob(os.path.join(checks.SOURCE, "examples", "*", "CMakeLists.txt"))):
        name = os.path.basename(os.path.dirname(source))
        build = cmake_build(os.path.dirname(source), name)
        print(checks.must([os.path.join(build, name)], env=environment(), timeout=30), end="")


with checks.scratch() as room:
    checks.main(install_puts_everything_in_place, the_library_and_the_command_need_libc_and_libsodium_alone,
                the_module_is_found_after_the_tree_was_moved, pkg_config_gives_the_shared_library_to_c, pkg_config_gives_the_static_library_to_c,
                pkg_config_gives_the_shared_library_to_cpp, find_package_gives_both_libraries, every_example_builds_against_it_and_runs)
