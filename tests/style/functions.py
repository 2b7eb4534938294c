"""Programs that use weft/function.h wrongly do not compile, and what the compiler says names the function and the type; right ones compile without
a warning. With gcc and clang, as C and as C++, whichever are there."""
import os
import re

from lib import checks

DECLARED = """#include <weft/function.h>
WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_split, "split", ((string, head), (string, tail)), (string, text), (u64, at))
WEFT_FUNCTION(calc_upper, "upper", string, (string, text))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))
WEFT_FUNCTION_ONEWAY(calc_ping, "ping")
WEFT_FUNCTION(calc_reset, "reset", void)
WEFT_FUNCTION(calc_flag, "flag", bool, (bool, on), (bools, all))
WEFT_FUNCTION(calc_scale, "scale", tensor, (tensor, image), (f32, by))
WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values))
WEFT_FUNCTION_BOTH_STREAMS(calc_chat, "chat", string, (string, lines), (i32, room))
"""

RIGHT = """
weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *sum_out);
int use(weft_client_t *client, weft_service_t *service, weft_stream_t *stream);
int use(weft_client_t *client, weft_service_t *service, weft_stream_t *stream)
{
    int32_t sum;
    double mean, values[2] = {1, 2};
    calc_split_result_t parts;
    weft_reply_t reply;
    calc_add_call_t call = WEFT_CALL_ZERO;
    calc_primes_call_t primes = WEFT_CALL_ZERO;
    return calc_add(client, 1, 2, &sum) || calc_add_post(client, 1, 2, &call) || calc_add_result(&call) ||
           calc_split(client, weft_string("text"), 2, &parts, &reply) || calc_mean(client, weft_f64s(values, 2), &mean) ||
           calc_log_post(client, weft_string("line"), NULL) || calc_ping(client) || calc_reset(client) ||
           calc_add_serve(service, add, NULL, NULL) || calc_primes_open(client, 7, &primes) || calc_total_send(stream, 1.5, NULL);
}
"""

# what it is: the lines in a function of (client, service, stream), what the message has to say in C. Where C compilers only warn without being
# asked (numbers and pointers, functions of another type) that is made an error; C++ needs no help.
WRONG = {
    "a string where a number belongs": ('int32_t r; (void)calc_add(client, "1", 2, &r);', "calc_add|int32_t|int"),
    "a number where a string belongs": ("(void)calc_log(client, 7);", "calc_log|weft_string_t"),
    "text without its length": ('(void)calc_log(client, "line");', "calc_log|weft_string_t"),
    "a vector of another type": ("double m; float f[1]; (void)calc_mean(client, weft_f32s(f, 1), &m);", "calc_mean|weft_f64s_t"),
    "a vector made of another type": ("double m; float f[1]; (void)calc_mean(client, weft_f64s(f, 1), &m);", "weft_f64s|double"),
    "too few arguments": ("int32_t r; (void)calc_add(client, 1, &r);", "too few arguments"),
    "too many arguments": ("int32_t r; (void)calc_add(client, 1, 2, 3, &r);", "too many arguments"),
    "a result of another type": ("double r; (void)calc_add(client, 1, 2, &r);", "calc_add|int32_t"),
    "a view without the reply that holds it": ('weft_string_t r; (void)calc_upper(client, weft_string("x"), &r);', "too few arguments"),
    "the call of another function": ("calc_mean_call_t c = WEFT_CALL_ZERO; (void)calc_add_post(client, 1, 2, &c);", "calc_add_call_t"),
    "a handler with other parameters": ("(void)calc_add_serve(service, wrong_parameters, NULL, NULL);", "calc_add_serve|calc_add_fn"),
    "a handler with another result": ("(void)calc_add_serve(service, wrong_result, NULL, NULL);", "calc_add_serve|calc_add_fn"),
    "a handler that gives nothing": ("(void)calc_add_serve(service, gives_nothing, NULL, NULL);", "calc_add_serve|calc_add_fn"),
    "a handler's reply of another type": ("(void)calc_split_reply(request, 7);", "calc_split_reply|calc_split_result_t"),
    "a value of another type on a stream": ('(void)calc_total_send(stream, "x", NULL);', "calc_total_send|double"),
    "the wrong direction of a stream": ("(void)calc_primes_send(stream, 7, NULL);", "calc_primes_send"),
    "a call of a function with a stream": ("calc_primes_call_t c; (void)calc_primes_post(client, 7, &c);", "calc_primes_post"),
}
AROUND = """
weft_code_t wrong_parameters(weft_request_t *request, void *user, double a, int32_t b, int32_t *sum_out);
weft_code_t wrong_result(weft_request_t *request, void *user, int32_t a, int32_t b, double *sum_out);
void gives_nothing(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *sum_out);
void use(weft_client_t *client, weft_service_t *service, weft_stream_t *stream, weft_request_t *request);
void use(weft_client_t *client, weft_service_t *service, weft_stream_t *stream, weft_request_t *request)
{
    (void)client, (void)service, (void)stream, (void)request;
    LINES
}
"""

# declarations that are none, and what the message has to say
UNDECLARED = {
    "a type that C has and signatures do not": ('WEFT_FUNCTION(f, "f", i32, (int, a))', "WEFT_TYPE_int"),
    "a result of such a type": ('WEFT_FUNCTION(f, "f", long, (i32, a))', "WEFT_TYPE_long"),
    "a vector of strings": ('WEFT_FUNCTION(f, "f", void, (strings, a))', "WEFT_TYPE_strings"),
    "two parameters of one name": ('WEFT_FUNCTION(f, "f", void, (i32, a), (i32, a))', "redefinition|duplicate|redeclaration"),
    "nine parameters": ('WEFT_FUNCTION(f, "f", void, ' + ", ".join(f"(i32, a{i})" for i in range(9)) + ")", "too_many_"),
    "a function of another type than declared": ('WEFT_FUNCTION(f, "f", i32, (i32, a))\nstatic f_fn run;\n'
                                                 "static weft_code_t run(weft_request_t *q, void *u, double a, int32_t *r)\n"
                                                 "{ (void)q; (void)u; *r = (int32_t)a; return WEFT_CODE_OK; }", "run"),
}

STRICT = ["-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-Werror=implicit-function-declaration"]
C_WARN = ["-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wconversion", "-Werror"]


def compiled(compiler, language, standard, text, flags):
    return checks.run([compiler, "-x", language, f"-std={standard}", *flags, "-O1", "-c", "-o", os.devnull, "-I",
                       os.path.join(checks.SOURCE, "include"), "-"], input=text)


def right(compiler, language, standard, flags):
    done = compiled(compiler, language, standard, DECLARED + RIGHT, flags)
    assert not done.returncode and not done.stdout, f"{compiler} {standard}:\n{done.stdout}"


def a_right_program_compiles_without_a_warning_as_c():
    for compiler in checks.compilers("gcc", "clang"):
        for standard in ("c11", "gnu11", "c2x"):
            right(compiler, "c", standard, C_WARN)


def a_right_program_compiles_without_a_warning_as_cpp():
    for compiler in checks.compilers("g++", "clang++"):
        right(compiler, "c++", "c++17", ["-Wall", "-Wextra", "-Werror"])


def wrong(compiler, language, standard, flags, must_name):
    found = []
    for what, (lines, words) in WRONG.items():
        done = compiled(compiler, language, standard, DECLARED + AROUND.replace("LINES", lines), flags)
        errors = "\n".join(line for line in done.stdout.splitlines() if "error:" in line or "note:" in line)
        if not done.returncode:
            found.append(f"{what} compiled with {compiler} as {standard}")
        elif must_name and not re.search(words, errors):
            found.append(f"{what}: {compiler} does not say {words}:\n{done.stdout}")
        elif done.stdout.count("error:") > 3:
            found.append(f"{what}: {compiler} has too much to say:\n{done.stdout}")
    assert not found, "\n".join(found)


def wrong_programs_fail_with_the_name_of_the_function_in_c():
    for compiler in checks.compilers("gcc", "clang"):
        wrong(compiler, "c", "c11", STRICT, True)


def wrong_programs_fail_in_cpp():
    for compiler in checks.compilers("g++", "clang++"):
        wrong(compiler, "c++", "c++17", [], False)


def a_c_compiler_speaks_of_each_of_them_without_being_asked():
    for compiler in checks.compilers("gcc", "clang"):
        for what, (lines, _) in WRONG.items():
            done = compiled(compiler, "c", "c11", DECLARED + AROUND.replace("LINES", lines), [])
            assert done.stdout, f"{what}: {compiler} says nothing"


def declarations_that_are_none_fail_with_the_type():
    found = []
    for compiler in checks.compilers("gcc", "clang"):
        for what, (lines, words) in UNDECLARED.items():
            done = compiled(compiler, "c", "c11", f"#include <weft/function.h>\n{lines}\n", [])
            if not done.returncode:
                found.append(f"{what} compiled with {compiler}")
            elif not re.search(words, done.stdout):
                found.append(f"{what}: {compiler} does not say {words}:\n{done.stdout}")
    assert not found, "\n".join(found)


checks.main(a_right_program_compiles_without_a_warning_as_c, a_right_program_compiles_without_a_warning_as_cpp,
            wrong_programs_fail_with_the_name_of_the_function_in_c, wrong_programs_fail_in_cpp,
            a_c_compiler_speaks_of_each_of_them_without_being_asked, declarations_that_are_none_fail_with_the_type)
