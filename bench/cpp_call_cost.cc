/* bench/cpp_call_cost.cc - what a call of add(i32, i32) costs in C++, beside the same in C.
 *
 *     cpp_call_cost [--seconds S]
 *
 * Two runtimes that one thread drives in turn over shared memory. The client is C's typed function (weft/function.h) or C++; the
 * function is served by C's typed handler or by C++:
 *
 *   c_ns         C calls C
 *   declared_ns  C++ calls C, a declared function: client.call(calc::add, 25, 17)
 *   named_ns     the same by name: client.call<int>("add", 25, 17)
 *   awaited_ns   the same as declared_ns, awaited by a coroutine
 *   served_ns    C calls a function in C++
 *   task_ns      C calls a function in C++ that is a coroutine, and ends at once
 *
 * Rounds of all of them alternate. Of each the median and the least of the rounds are told; `over` is the median of declared_ns
 * over c_ns in the same turn. One line of JSON. tests/tools/tools_cpp_call_cost.py runs it. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>
#include <weft/function.h>
#include <weft/rpc.hpp>
#include <weft/service.hpp>
#include <weft/task.hpp>

WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_served, "served", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_task, "task", i32, (i32, a), (i32, b))

namespace
{

struct calc {
    static constexpr weft::function<int(int, int)> add{"add"};
};

constexpr int round_calls = 500;

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct both {
    weft::runtime rt[2];
    weft::listener door;
    weft::endpoint ep[2];
    weft::service service;
    weft::client client;
    long sum = 0;

    both()
    {
        for (auto &r : rt)
            r = weft::runtime::open({.transports = "shm"});
        door = rt[0].listen("tcp://127.0.0.1:0");
        weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT;
        weft_ep_t *out;
        weft::check(weft_listener_accept(door.native(), &accept));
        weft::check(weft_ep_open(rt[1].native(), weft_listener_uri(door.native()), nullptr, &connect, &out));
        ep[1] = weft::endpoint(out);
        wait(&connect);
        wait(&accept);
        ep[0] = weft::endpoint(weft_op_ep(&accept));
        service = weft::service::open(rt[0], "calc");
        client = weft::client::on(ep[1]);
    }

    void drive()
    {
        rt[0].progress();
        rt[1].progress();
    }
    void wait(weft_op_t *op)
    {
        const double end = now() + 20e9;
        for (unsigned n = 1; !weft_op_done(op); n++) {
            drive();
            if (n % 65536 == 0 && now() > end) {
                std::fputs("cpp_call_cost: a call does not end\n", stderr);
                std::exit(1);
            }
        }
        weft::check(op->status);
    }
};

/* --- what is measured ------------------------------------------------------------------------------------------------ */

template <auto Post, auto Result, class Call> void in_c(both &b)
{
    static Call call = WEFT_CALL_ZERO;
    for (int i = 0; i < round_calls; i++) {
        weft::check(Post(b.client.native(), 25, 17, &call));
        b.wait(&call.op);
        b.sum += Result(&call);
        weft_reply_release(&call.reply);
    }
}

template <class Make> void in_cpp(both &b, Make make)
{
    weft_op_t op = WEFT_OP_INIT;
    for (int i = 0; i < round_calls; i++) {
        auto call = make();
        weft::check(call.post(&op));
        b.wait(&op);
        b.sum += call.spec().take(op);
    }
}

weft::task<> calls(both &b, bool &done)
{
    for (int i = 0; i < round_calls; i++)
        b.sum += co_await b.client.call(calc::add, 25, 17);
    done = true;
}

void awaited(both &b)
{
    bool done = false;
    weft::task<> t = calls(b, done);
    struct : weft::detail::listener_of_end {
    } nobody;
    nobody.ended = [](weft::detail::listener_of_end *, std::coroutine_handle<>) noexcept -> std::coroutine_handle<> {
        return std::noop_coroutine();
    };
    t.promise().begin_and_tell(t.frame(), &nobody);
    while (!done)
        b.drive();
}

struct figure {
    const char *name;
    void (*run)(both &);
    std::vector<double> ns{};
    double median() const
    {
        std::vector<double> sorted = ns;
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2), sorted.end());
        return sorted[sorted.size() / 2];
    }
    double least() const
    {
        return *std::min_element(ns.begin(), ns.end());
    }
};

weft_code_t add(weft_request_t *, void *, int32_t a, int32_t b, int32_t *sum_out)
{
    *sum_out = a + b;
    return WEFT_CODE_OK;
}

} // namespace

int main(int argc, char **argv)
{
    const double seconds = argc == 1 ? 1 : argc == 3 && std::string_view(argv[1]) == "--seconds" ? std::atof(argv[2]) : 0;
    if (!(seconds > 0 && seconds <= 60)) {
        std::fputs("usage: cpp_call_cost [--seconds S]\n", stderr);
        return 2;
    }
    both b;
    weft::check(calc_add_serve(b.service.native(), add, nullptr, nullptr));
    b.service.add("served", [](int x, int y) { return x + y; });
    b.service.add("task", [](int x, int y) -> weft::task<int> { co_return x + y; });
    figure all[] = {
        {"c", in_c<calc_add_post, calc_add_result, calc_add_call_t>},
        {"declared", [](both &x) { in_cpp(x, [&x] { return x.client.call(calc::add, 25, 17); }); }},
        {"named", [](both &x) { in_cpp(x, [&x] { return x.client.call<int>("add", 25, 17); }); }},
        {"awaited", awaited},
        {"served", in_c<calc_served_post, calc_served_result, calc_served_call_t>},
        {"task", in_c<calc_task_post, calc_task_result, calc_task_call_t>},
    };
    for (auto &f : all)
        f.run(b); /* what is looked up once */
    long expected = b.sum;
    const double end = now() + seconds * 1e9;
    std::size_t turns = 0;
    for (; now() < end || turns < 3; turns++)
        for (auto &f : all) {
            const double start = now();
            f.run(b);
            f.ns.push_back((now() - start) / round_calls);
        }
    if (expected != 42 * round_calls * 6 || b.sum != expected * static_cast<long>(turns + 1)) {
        std::fputs("cpp_call_cost: a sum is wrong\n", stderr);
        return 1;
    }
    std::vector<double> over;
    for (std::size_t i = 0; i < turns; i++)
        over.push_back(all[1].ns[i] / all[0].ns[i]);
    std::nth_element(over.begin(), over.begin() + static_cast<long>(turns / 2), over.end());
    std::printf("{\"test\": \"cpp_call_cost\", \"turns\": %zu", turns);
    for (auto &f : all)
        std::printf(", \"%s_ns\": %.1f, \"%s_least_ns\": %.1f", f.name, f.median(), f.name, f.least());
    std::printf(", \"over\": %.3f}\n", over[turns / 2]);
    return 0;
}
