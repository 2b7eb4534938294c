"""What the documents say is so: C and C++ in README.md and docs/guide is cut from an example that is built and run, single lines in the tables of
docs/guide/coming-from-execution-ucx.md compile, the manual page knows every header, and links lead somewhere."""
import os
import re

from lib import checks

BLOCK = re.compile(r"^```c(?:pp)?\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")

LINES = "docs/guide/coming-from-execution-ucx.md"
# what the page says its names are, and those that speak for themselves
NAMES = """#include <stdio.h>
#include <string.h>
#include <weft/function.h>
#include <weft/weft.h>
WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
enum { ID = 1, MY_REASON = 2 };
void on_peer(weft_listener_t *, weft_ep_t *, void *);
weft_on_failure_t try_again(weft_ep_t *, weft_status_t, void *);
void step(weft_op_t *, void *);
void run(void *), on_end(weft_ep_t *, weft_status_t, void *), on_kind(const weft_mem_kind_t *, void *);
void on_line(weft_log_level_t, const char *, void *);
weft_status_t my_alloc(const weft_mem_kind_t *, size_t, void **);
void my_free(const weft_mem_kind_t *, void *, size_t);
weft_status_t my_copy(const weft_mem_kind_t *, void *, const void *, size_t);
void given_back(void *, void *);
void on_message(weft_am_t *, void *);
extern weft_runtime_t *rt;
extern weft_ep_t *ep;
extern weft_op_t op;
extern weft_queue_t *queue;
extern weft_op_t *ops[64];
extern weft_ep_id_t id;
extern weft_ep_info_t info;
extern weft_ep_hooks_t hooks;
extern weft_runtime_stats_t stats;
extern weft_status_t status;
extern weft_listener_t *listener;
extern weft_token_t *token;
extern weft_pool_t *pool;
extern weft_mem_reg_t *reg;
extern weft_am_t *am;
extern const weft_mem_kind_t *kind;
extern weft_mem_kind_t mine;
extern weft_iov_t *pieces;
extern weft_runtime_opts_t opts;
extern weft_ep_opts_t ep_opts;
extern weft_listen_opts_t listen_opts;
extern weft_am_send_opts_t send_opts;
extern weft_service_opts_t service_opts;
extern weft_service_t *service;
extern weft_function_opts_t function_opts;
extern weft_request_t *request, *kept;
extern weft_client_t *client;
extern weft_method_t *method;
extern weft_reply_t reply;
extern weft_value_t sum, args[2];
extern weft_call_opts_t call_opts;
extern weft_client_opts_t client_opts;
extern weft_client_stats_t client_stats;
extern weft_service_stats_t service_stats;
extern weft_stream_t *stream;
extern weft_sig_t *sig;
extern const weft_param_t *params;
weft_code_t typed_add(weft_request_t *, void *, int32_t, int32_t, int32_t *);
extern int64_t shape[2];
extern uint64_t when, bytes;
extern char text[4096];
extern weft_tensor_t image;
extern weft_code_t code;
extern int32_t value, answer;
extern const char *signature;
extern void *context, *user;
void add(weft_request_t *, void *), fn(weft_request_t *, void *);
enum { CATEGORY = 300 };
extern weft_am_recv_opts_t recv_opts;
extern weft_am_pull_opts_t pull_opts;
extern const char *uri;
extern void *blob, *buf, *ptr, *dst, *src, *user, *mine_too;
extern size_t len, cap, n;
extern int stopped, header;
"""


def plain(text):
    """Lines without indentation and blank ones: a cut-out stands further left than its source."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def stands_in(block, source):
    a, b = plain(block), plain(source)
    return any(b[i:i + len(a)] == a for i in range(len(b) - len(a) + 1))


# what the lines of C++ use
CPP_NAMES = """
#include "kit/here.hpp"
#include <weft/execution_ucx.hpp>
#include <weft/task.hpp>
using namespace std::chrono_literals;
using namespace weft::execution;
enum { ID = 7 };
extern weft::runtime rt;
extern scheduler sched;
extern weft::listener door;
extern weft::endpoint ep;
extern weft::message message;
extern std::string uri;
extern std::vector<std::byte> address;
extern std::vector<int> values, more;
extern std::uint64_t header;
extern bool stopped;
struct asked {
    bool operator()(weft_ep_id_t, std::error_code) noexcept;
};
extern asked handler;
"""


def pages(root):
    return [p for p in ("README.md", *checks.files(root, "docs/guide", ".md")) if os.path.exists(os.path.join(root, p))]


def unbuilt(root):
    sources = [checks.read(root, p) for p in checks.files(root, "examples", ".c", ".cc", ".h", ".hpp")]
    found = []
    for page in pages(root):
        for match in BLOCK.finditer(checks.read(root, page)):
            if not any(stands_in(match.group(1), s) for s in sources):
                found.append(f"{page}: this C is in no file of examples/:\n{match.group(1)}")
    return found


def dead_links(root):
    found = []
    tops = [p for p in os.listdir(root) if p.endswith(".md")]
    for page in tops + checks.files(root, "docs", ".md"):
        for target in LINK.findall(checks.read(root, page)):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not os.path.exists(os.path.join(root, os.path.dirname(page), target)):
                found.append(f"{page}: {target} is not there")
    return found


def single_lines(text):
    """The code in the last column of the tables."""
    return [m.group(1) for m in re.finditer(r"^\|.*\| `([^`]*)` \|$", text, re.M)]


def cpp_lines(text):
    """The same in C++. A bar in a table is written \\|."""
    return [m.group(1).replace("\\|", "|") for m in re.finditer(r"^\|.*\| C\+\+: `([^`]*)` \|$", text, re.M)]


def statement(line):
    code = line.replace("...", "")
    return code if code.rstrip().endswith((";", "*/")) else f"(void)({code});"


def compiled(lines):
    body = "".join(f"void line_{i}(void);\nvoid line_{i}(void)\n{{\n    {statement(line)}\n}}\n" for i, line in enumerate(lines))
    return checks.run([checks.CC, "-x", "c", "-std=c11", "-Wall", "-Wno-unused", "-Werror", "-fsyntax-only", "-I",
                       os.path.join(checks.SOURCE, "include"), "-"], input=NAMES + body)


def uncompiled(root):
    lines = single_lines(checks.read(root, LINES))
    if not compiled(lines).returncode:
        return []
    return [f"{LINES}: {line}\n{done.stdout}" for line in lines if (done := compiled([line])).returncode]


def cpp_compiled(lines):
    """Against the kit of tests/cpp, since no implementation of senders is in Debian."""
    body = "".join(f"void line_{i}();\nvoid line_{i}()\n{{\n    {line}\n}}\n" for i, line in enumerate(lines))
    return checks.run(["g++", "-x", "c++", "-std=c++20", "-Wall", "-Wno-unused", "-Werror", "-fsyntax-only", "-I",
                       os.path.join(checks.SOURCE, "include"), "-I", os.path.join(checks.SOURCE, "tests/cpp"), "-"],
                      input=CPP_NAMES + body)


def cpp_uncompiled(root):
    lines = cpp_lines(checks.read(root, LINES))
    if not cpp_compiled(lines).returncode:
        return []
    return [f"{LINES}: {line}\n{done.stdout}" for line in lines if (done := cpp_compiled([line])).returncode]


def unmentioned(root):
    page = checks.read(root, "docs/man/weft.3")
    names = [os.path.basename(p) for p in checks.files(root, "include/weft", ".h")]
    return [f"docs/man/weft.3: nothing about weft/{n}" for n in names if n != "weft.h" and f"weft/{n}" not in page]


def c_in_the_guide_is_cut_from_examples():
    assert not (found := unbuilt(checks.SOURCE)), "\n".join(found)


def single_lines_compile():
    assert len(single_lines(checks.read(checks.SOURCE, LINES))) > 30, "the tables are not where they were"
    assert not (found := uncompiled(checks.SOURCE)), "\n".join(found)


def single_lines_of_cpp_compile():
    assert len(cpp_lines(checks.read(checks.SOURCE, LINES))) > 15, "the tables are not where they were"
    assert cpp_compiled(["weft::no_such_thing();"]).returncode, "a bad line"
    assert not (found := cpp_uncompiled(checks.SOURCE)), "\n".join(found)


def the_manual_page_knows_every_header():
    assert not (found := unmentioned(checks.SOURCE)), "\n".join(found)


def links_lead_somewhere():
    assert not (found := dead_links(checks.SOURCE)), "\n".join(found)


def each_fault_is_caught():
    with checks.scratch() as root:
        checks.write_tree(root, {"examples/a/a.c": "int main(void)\n{\n    go();\n    return 0;\n}\n",
                                 "README.md": "```c\ngo();\nreturn 0;\n```\n[a](examples/a/a.c)\n", "docs/guide/x.md": ""})
        assert not unbuilt(root) and not dead_links(root), "a good tree"
        checks.write_tree(root, {"docs/guide/x.md": "```c\ngo();\nreturn 1;\n```\n```cpp\ngo(2);\n```\n[a](b.md)\n"})
        assert len(unbuilt(root)) == 2 and len(dead_links(root)) == 1, "a bad tree"
        checks.write_tree(root, {LINES: "| a | b | `weft_no_such_call(rt);` |\n| a | b | `weft_op_cancel(&op);` |\n",
                                 "docs/man/weft.3": "weft/op.h", "include/weft/op.h": "", "include/weft/new.h": ""})
        assert len(uncompiled(root)) == 1 and len(unmentioned(root)) == 1, "a bad line, a header that the page does not know"


checks.main(c_in_the_guide_is_cut_from_examples, single_lines_compile, single_lines_of_cpp_compile, the_manual_page_knows_every_header,
            links_lead_somewhere, each_fault_is_caught)
