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
# The same with libweft-elements.
ELEMENTS = """#include <stdio.h>
#include <weft/elements.h>
#include <weft/weft.h>
int main(void)
{
    weft_runtime_t *rt;
    weft_store_server_t *server;
    weft_store_server_opts_t opts = WEFT_STORE_SERVER_OPTS_INIT;
    opts.bytes = 4096;
    if (weft_runtime_open(NULL, &rt) || weft_store_serve(rt, &opts, &server))
        return !!puts(weft_last_error());
    return weft_runtime_close(rt) != WEFT_OK;
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(consumer LANGUAGES C)
find_package(weft 0.2 REQUIRED COMPONENTS elements)
add_executable(shared consumer.c)
target_link_libraries(shared PRIVATE weft::weft)
add_executable(static consumer.c)
target_link_libraries(static PRIVATE weft::weft_static)
add_executable(elements elements.c)
target_link_libraries(elements PRIVATE weft::elements)
add_executable(elements_static elements.c)
target_link_libraries(elements_static PRIVATE weft::elements_static)
"""

LIBRARIES = [name + end for name in ("libweft", "libweft-elements") for end in (".so", ".so.1", ".so.0.2.0", ".a")]

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
    for name in (*LIBRARIES, "weft.pc", "weft-elements.pc", "weft-config.cmake", "bin/weft"):
        find(name)
    there = {os.path.basename(p) for p in glob.glob(os.path.join(prefix, "include", "weft", "*"))}
    ours = {os.path.basename(p) for p in checks.files(checks.SOURCE, "include/weft", ".h", ".hpp")}
    assert there == ours, f"installed headers: {sorted(there)}, not {sorted(ours)}"
    for page in checks.files(checks.SOURCE, "docs/man", ".1", ".3", ".7"):
        find(os.path.basename(page))


def expected():
    """Every file that an installation has, below its prefix. lib may be lib64, or have a folder of the machine's in it."""
    lib = os.path.relpath(os.path.dirname(find("libweft.so")), prefix)
    names = {"bin/weft", "share/bash-completion/completions/weft", "share/zsh/site-functions/_weft"}
    names |= {f"{lib}/{n}" for n in (*LIBRARIES, "pkgconfig/weft.pc", "pkgconfig/weft-elements.pc")}
    if os.path.exists(os.path.join(checks.BUILD, "libweft_ucx.so")):
        names.add(f"{lib}/weft/libweft_ucx.so")
    names |= {f"{lib}/cmake/weft/{n}" for n in os.listdir(os.path.dirname(find("weft-config.cmake")))
              if re.fullmatch(r"weft-(config|config-version|(shared|elements)(-[a-z]+)?)\.cmake", n)}
    names |= set(checks.files(checks.SOURCE, "include/weft", ".h", ".hpp"))
    names |= {f"share/man/man{p[-1]}/{os.path.basename(p)}" for p in checks.files(checks.SOURCE, "docs/man", ".1", ".3", ".7")}
    return names


def nothing_else_is_installed():
    there = {os.path.relpath(os.path.join(folder, name), prefix) for folder, _, names in os.walk(prefix) for name in names}
    assert there == expected(), f"too many: {sorted(there - expected())}\nmissing: {sorted(expected() - there)}"
    with open(find("completions/weft"), encoding="utf-8") as f:
        assert "complete -o default -F _weft weft" in f.read()


def what_make_installs_can_be_used_and_removed():
    place = os.path.join(room, "place")
    ours, others = os.path.join(place, "opt"), os.path.join(place, "opt", "share", "others")
    os.makedirs(others)
    env = {**environment(), "BUILD": checks.BUILD, "PREFIX": ours, "DESTDIR": ""}
    script = os.path.join(checks.SOURCE, "scripts", "install")
    for _ in range(2):  # twice is as good as once
        said = checks.must([script], env=env)
        assert "-Wl,-rpath," in said and "PKG_CONFIG_PATH" in said, said
    there = {os.path.relpath(os.path.join(folder, name), ours) for folder, _, names in os.walk(ours) for name in names}
    assert there == expected(), there ^ expected()
    lib = os.path.join(ours, os.path.relpath(os.path.dirname(find("libweft.so")), prefix))
    checks.write_tree(room, {"small.c": CONSUMER})
    flags = checks.must(["pkg-config", "--cflags", "--libs", "weft"], env={**env, "PKG_CONFIG_PATH": os.path.join(lib, "pkgconfig")}).split()
    program = os.path.join(room, "small")
    checks.must([checks.CC, os.path.join(room, "small.c"), "-o", program, *flags, f"-Wl,-rpath,{lib}"])
    checks.must([program], env=env)
    checks.write_tree(ours, {"include/weft/mine.h": ""})
    checks.must([script, "--uninstall"], env=env)
    left = [os.path.relpath(os.path.join(folder, name), ours) for folder, folders, names in os.walk(ours) for name in names + folders]
    assert sorted(left) == ["include", "include/weft", "include/weft/mine.h", "share", "share/others"], left
    again = checks.run([script, "--uninstall"], env=env)
    assert again.returncode == 1 and "was not installed" in again.stdout, again.stdout
    env["PREFIX"] = os.path.join(place, "new", "a prefix")
    said = checks.must([script], env=env)
    lines = [line for line in said.splitlines() if "make uninstall" in line or "PKG_CONFIG_PATH=" in line]
    assert len(lines) == 2 and all("'" in line for line in lines), said  # quoted, so that they can be pasted
    checks.must([script, "--uninstall"], env=env)
    assert not os.path.exists(os.path.join(place, "new")), "a prefix that was not there before"


def pkg_config(package, static):
    args = ["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), package]
    flags = checks.must(args, env=environment()).split()
    archives = {"-lweft": "-l:libweft.a", "-lweft-elements": "-l:libweft-elements.a"}
    return [archives.get(f, f) if static else f for f in flags]


def only_what_it_stands_on(program, *more):
    """The library needs libc and libsodium alone; UCX, Redis, CUDA and their like are loaded when they are wanted."""
    found = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", needed(program)))
    allowed = {"libc", "libsodium", "ld-linux-x86-64", "ld-linux-aarch64", *more}
    assert found <= allowed, f"{program} needs {sorted(found - allowed)}"


def the_library_and_the_command_need_libc_and_libsodium_alone():
    only_what_it_stands_on(find("libweft.so.1"))
    only_what_it_stands_on(find("libweft-elements.so.1"), "libweft")
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
    checks.must([checks.CC, os.path.join(room, "asks.c"), "-o", program, *pkg_config("weft", False)])
    checks.must([program], env={**environment(), "LD_LIBRARY_PATH": os.path.dirname(find("libweft.so"))})


def judge(program, shared, elements):
    """Which of our libraries does it need, and does it run?"""
    wants = needed(program)
    assert ("libweft.so.1" in wants) == shared, wants
    assert ("libweft-elements.so.1" in wants) == (shared and elements), wants
    only_what_it_stands_on(program, "libweft", "libweft-elements")
    env = environment()
    if shared:
        env["LD_LIBRARY_PATH"] = os.path.dirname(find("libweft.so"))
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
        if name.startswith("senders_"):
            continue  # an implementation of senders is in no package of Debian's: -DWEFT_STDEXEC=DIR of the build runs them
        build = cmake_build(os.path.dirname(source), name)
        if name != "greet":  # it waits for another: commands.py runs it
            print(checks.must([os.path.join(build, name)], env=environment(), timeout=30), end="")


with checks.scratch() as room:
    checks.main(install_puts_everything_in_place, nothing_else_is_installed, what_make_installs_can_be_used_and_removed,
                the_library_and_the_command_need_libc_and_libsodium_alone, the_module_is_found_after_the_tree_was_moved,
                pkg_config_gives_the_shared_library_to_c, pkg_config_gives_the_static_library_to_c,
                pkg_config_gives_the_shared_library_to_cpp, pkg_config_gives_the_elements_to_c, pkg_config_gives_the_elements_to_cpp,
                libweft_alone_has_no_elements, find_package_gives_both_libraries, every_example_builds_against_it_and_runs)
