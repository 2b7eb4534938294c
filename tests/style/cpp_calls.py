"""Calls and handlers in C++ that are wrong do not compile, and the compiler says why in words; right ones compile without a warning. With g++ and
clang++, whichever are there."""
import os
import re

from lib import checks

HEADERS = """#include <weft/rpc.hpp>
#include <weft/service.hpp>
"""
DECLARED = """struct point { int x, y; };
struct calc {
    static constexpr weft::function<int(int, int)> add{"add"};
    static constexpr weft::function<std::string(std::string_view)> upper{"upper"};
    static constexpr weft::function<double(double, weft::stream<double>)> total{"total"};
};
void use(weft::client &client, weft::service &service);
void use(weft::client &client, weft::service &service)
{
    (void)client, (void)service;
    LINES
}
"""

RIGHT = """
    (void)client.call(calc::add, 1, 2).wait();
    (void)client.call<weft::reply<std::string_view>>(calc::upper, "text").wait();
    service.add(calc::add, [](int a, auto b) { return a + b; });
    service.add(calc::total, [](double from, weft::stream_in<double>) { return from; }, {.threads = true});
"""

# what it is: the lines, and what a compiler has to say
WRONG = {
    "a handler with another result": ("service.add(calc::add, [](int, int) { return 1.5; });", "not those of the function's declaration"),
    "a handler with other parameters": ("service.add(calc::add, [](int, const std::string &) { return 1; });",
                                        "not those of the function's declaration"),
    "a handler with one parameter less": ("service.add(calc::add, [](int) { return 1; });", "not those of the function's declaration"),
    "a template that cannot be called so": ("service.add(calc::add, [](auto a) { return a; });", "cannot be called with the declared"),
    "a template without a declaration": ('service.add("add", [](auto a) { return a; });', "declare the function"),
    "a struct as a parameter": ('service.add("f", [](point p) { return p.x; });', "no type of a signature"),
    "a char as an argument": ("(void)client.call<int>(\"f\", 'x');", "no type of a signature"),
    "a pointer as a result": ('(void)client.call<int *>("f");', "no type of a signature|not a member|incomplete|undefined"),
    "a view without its reply": ('(void)client.call<std::string_view>("f");', "ask for weft::reply"),
    "another result than the declared one": ("(void)client.call<long>(calc::add, 1, 2);", "declared with a result of another type"),
    "text where a number belongs": ('(void)client.call(calc::add, "1", 2);', "no matching|cannot convert|invalid conversion|no known"),
    "too few arguments": ("(void)client.call(calc::add, 1);", "no matching|too few"),
    "a stream that is called": ("(void)client.call(calc::total, 1.5);", "no matching|opened"),
    "a stream that takes another number": ("(void)client.open(calc::total);", "another number of arguments"),
    "a name with a space": ('(void)client.call<int>("no name");', "a_name_has_letters_digits"),
    "a coroutine that takes a reference": ('service.add("f", [](const std::string &s) -> weft::task<int> { co_return (int)s.size(); });',
                                           "by value"),
    "a pending handler that returns": ('service.add("f", [](weft::pending<int>) { return 1; });', "returns void"),
    "bits that have no place in memory": ('service.add("f", [] { return std::vector<bool>(3); });', "no bools in memory"),
}


FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-I", os.path.join(checks.SOURCE, "include")]


def read_once(compiler, room):
    """The headers, compiled for all that follows: that is most of the time it would take each."""
    checks.write_tree(room, {"once.hpp": HEADERS})
    made = os.path.join(room, "once.hpp.gch" if compiler == "g++" else "once.pch")
    checks.must([compiler, "-x", "c++-header", *FLAGS, os.path.join(room, "once.hpp"), "-o", made])
    return ["-include", os.path.join(room, "once.hpp")] if compiler == "g++" else ["-include-pch", made]


def compiled(compiler, headers, lines):
    return checks.run([compiler, "-x", "c++", *FLAGS, *headers, "-fsyntax-only", "-"], input=DECLARED.replace("LINES", lines))


def right_programs_compile_without_a_warning_and_wrong_ones_are_told_why():
    with checks.scratch() as room:
        there = [(compiler, read_once(compiler, room)) for compiler in checks.compilers("g++", "clang++")]
        for compiler, headers in there:
            done = compiled(compiler, headers, RIGHT)
            assert not done.returncode, f"{compiler}:\n{done.stdout}"
        for i, (what, (lines, said)) in enumerate(WRONG.items()):
            done = compiled(*there[i % len(there)], lines)  # half with each
            assert done.returncode, f"{what}: compiles"
            assert re.search(said, done.stdout), f"{what}: nothing of \"{said}\" in\n{done.stdout[:3000]}"


checks.main(right_programs_compile_without_a_warning_and_wrong_ones_are_told_why)
