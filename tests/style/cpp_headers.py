"""Each header for C++ compiles alone, and what uses them with both compilers, with and without exceptions; and all of them soon."""
# ctest: long
import os

from lib import checks

WARN = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
BARE = ["-fno-exceptions", "-fno-rtti"]
FOREIGN = {"asio.hpp": "asio.hpp", "asio_driver.hpp": "asio.hpp"}  # what a header needs that may not be here: `#include <...>`
# those of senders are compiled against the kit of tests/cpp
KIT = ["-DWEFT_EXECUTION_HEADER=\"kit/kit.hpp\"", "-DWEFT_EXECUTION_NAMESPACE=kit", "-I", os.path.join(checks.SOURCE, "tests/cpp")]
SECONDS = 1.5  # of processor time: the promise for all but execution.hpp and asio.hpp

# what instantiates most of them: a template that nobody uses is hardly looked at
USE = """
static weft::task<weft::result<int>> weft_style_use(weft::endpoint_ref ep, weft::runtime_ref rt, weft::remote_ref remote)
{
    char buf[8];
    auto all = co_await weft::when_all(ep.send("x", 1), ep.recv(buf, 2), remote.read(0, buf), ep.am(1, "h", "p")).as_result();
    auto any = co_await weft::when_any(ep.recv_alloc(1), rt.sleep_for(std::chrono::seconds(1))).as_result();
    auto word = co_await remote.fetch_add<unsigned long>(0, 1).as_result();
    auto message = co_await ep.take(1).as_result();
    if (!all || !any || !word || !message)
        co_return all.status();
    co_return 1;
}
weft::result<int> weft_style_run(weft::runtime_ref rt);
weft::result<int> weft_style_run(weft::runtime_ref rt)
{
    return weft::sync_wait(rt, weft::with_timeout(rt, weft_style_use({}, rt, {}), std::chrono::seconds(1)));
}
"""


def compile_one(compiler, args, text, output="-fsyntax-only"):
    return checks.run([compiler, "-x", "c++", *WARN, *args, *([output] if output else []), "-I",
                       os.path.join(checks.SOURCE, "include"), "-"], input=text)


def headers():
    return [os.path.basename(p) for p in checks.files(checks.SOURCE, "include/weft", ".hpp")]


def there(compiler, args, header):
    need = FOREIGN.get(header)
    # Asio itself does not compile without RTTI
    return not need or not checks.run([compiler, "-x", "c++", "-std=c++20", *args, "-fsyntax-only", "-"],
                                      input=f"#include <{need}>\n").returncode


def each_header_compiles_alone():
    wrong = []
    # half of the four ways: what uses them is compiled in all
    for compiler, args in zip(("g++", "clang++"), ([], BARE)):
        checks.compilers(compiler)
        for header in headers():
            if not there(compiler, args, header):
                continue
            more = KIT if header.startswith("execution") else []
            done = compile_one(compiler, args + more, f"#include <weft/{header}>\n#include <weft/{header}>\nextern int weft_style_unit;\n")
            if done.returncode:
                wrong.append(f"{header} with {compiler} {' '.join(args)}:\n{done.stdout}")
    assert not wrong, "\n".join(wrong)


def what_uses_them_compiles_without_a_warning():
    for compiler in checks.compilers("g++", "clang++"):
        for args in ([], BARE):
            done = compile_one(compiler, args, "#include <weft/weft.hpp>\n" + USE)
            assert not done.returncode, f"{compiler} {' '.join(args)}:\n{done.stdout}"


def all_of_them_compile_soon():
    best = None
    for _ in range(3):  # the least: others use the machine
        before = os.times()
        with checks.scratch() as room:
            done = compile_one("c++", ["-O2", "-c", "-o", os.path.join(room, "out.o")], "#include <weft/weft.hpp>\n", output="")
        after = os.times()
        assert not done.returncode, done.stdout
        took = after.children_user + after.children_system - before.children_user - before.children_system
        best = took if best is None else min(best, took)
    print(f"weft/weft.hpp: {best:.2f} s")
    assert best < SECONDS, f"{best:.2f} s of processor time"


def a_header_with_a_warning_is_caught():
    assert compile_one(checks.CXX, [], "inline int f(long n) { return n; }\n").returncode, "a conversion without a warning"


checks.main(each_header_compiles_alone, what_uses_them_compiles_without_a_warning, all_of_them_compile_soon,
            a_header_with_a_warning_is_caught)
