/* bench/cpp_cost.cc - what awaiting costs above the calls of C: the same work done both ways, in turns, in one run.
 *
 *     cpp_cost [--seconds S]
 *
 *   pair_c_ns, pair_ns      a send of 8 bytes and its receive, between two runtimes that one thread drives over shared memory:
 *                           with the calls of C, and `co_await send; co_await recv` in a coroutine
 *   pair_over_ns            what the second takes above the first
 *   read_c_ns, read_ns      a read of 8 bytes of a mapped region: the call of C, and `co_await remote.read()`
 *   read_over_ns            what the second takes above the first
 *   all_over_ns             `co_await when_all(recv, send)` above the pair of C
 *   task_ns                 awaiting a task that ends at once, its frame included
 *
 * Each is the median of many short rounds; a difference is the median of the differences of rounds that follow each other, since
 * what disturbs a machine is seldom as short as that. One line of JSON. tests/tools/tools_cpp_cost.py runs it. */
#include <weft/weft.hpp>

#include "cpp_pair.hpp"

namespace
{

using namespace bench;
using both = runtimes;

/* A coroutine that is begun, and driven until it ends. */
struct ending : weft::detail::listener_of_end {
    bool ended = false;
    ending() : listener_of_end{on_end}
    {
    }
    static std::coroutine_handle<> on_end(listener_of_end *self, std::coroutine_handle<>) noexcept
    {
        static_cast<ending *>(self)->ended = true;
        return std::noop_coroutine();
    }
};

template <class T> void run(both &b, weft::task<T> what)
{
    ending end;
    what.promise().begin_and_tell(what.frame(), &end);
    while (!end.ended)
        b.drive();
    (void)weft::detail::outcome_of(what.promise());
}

/* --- the work, both ways ------------------------------------------------------------------------------------ */

void pair_c(both &b)
{
    static weft_op_t sent, got;
    uint64_t out = 1, in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        must(weft_msg_send(b.ep[0].native(), &out, sizeof out, 7, &sent), "a send");
        b.until(sent);
        must(sent.status, "a send");
        must(weft_msg_recv(b.ep[1].native(), &in, sizeof in, 7, WEFT_TAG_FULL, &got), "a receive");
        b.until(got);
        must(got.status, "a receive");
        out += in;
    }
}

weft::task<> pairs(both &b)
{
    uint64_t out = 1, in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        co_await b.ep[0].send(out, 7);
        (void)co_await b.ep[1].recv(in, 7);
        out += in;
    }
}

weft::task<> pairs_at_once(both &b)
{
    uint64_t out = 1, in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        (void)co_await weft::when_all(b.ep[1].recv(in, 7), b.ep[0].send(out, 7));
        out += in;
    }
}

void read_c(both &b)
{
    static weft_op_t op;
    uint64_t in = 0, sum = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        must(weft_rma_read(b.remote.native(), 0, &in, sizeof in, &op), "a read");
        b.until(op);
        must(op.status, "a read");
        sum += in;
    }
    if (sum)
        must(WEFT_ERR_CORRUPT, "a read");
}

weft::task<> reads(both &b)
{
    uint64_t in = 0, sum = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        co_await b.remote.read(0, in);
        sum += in;
    }
    if (sum)
        must(WEFT_ERR_CORRUPT, "a read");
}

weft::task<uint64_t> one(uint64_t n)
{
    co_return n + 1;
}

weft::task<> tasks(both &)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < ROUND; i++)
        n = co_await one(n);
    if (n != ROUND)
        must(WEFT_ERR_CORRUPT, "a task");
}

/* --- measuring ---------------------------------------------------------------------------------------------------------- */

void open_both(both &b)
{
    for (auto &rt : b.rt)
        rt = weft::runtime::open({.transports = "shm"});
    b.door = b.rt[0].listen("tcp://127.0.0.1:0");
    run(b, [](both &at) -> weft::task<> {
        auto [in, out] = co_await weft::when_all(at.door.accept(), at.rt[1].connect(at.door.uri().c_str()));
        at.ep[0] = std::move(in);
        at.ep[1] = std::move(out);
        at.region = at.rt[0].new_region({.len = 4096});
        at.remote = co_await at.ep[1].attach(at.region.key(), WEFT_RMA_MAPPED);
    }(b));
}

} // namespace

int main(int argc, char **argv)
{
    const double seconds = argc == 1 ? 0.4 : argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 0;
    if (!(seconds > 0 && seconds <= 60)) {
        fputs("usage: cpp_cost [--seconds S]\n", stderr);
        return 2;
    }
    try {
        both b;
        open_both(b);
        const auto against = [&](void (*c)(both &), void (*cpp)(both &)) { return compare<both>(b, c, cpp, seconds / 4); };
        figures pair = against(pair_c, [](both &x) { run(x, pairs(x)); });
        figures all = against(pair_c, [](both &x) { run(x, pairs_at_once(x)); });
        figures read = against(read_c, [](both &x) { run(x, reads(x)); });
        figures task = against([](both &) {}, [](both &x) { run(x, tasks(x)); });
        printf("{\"test\": \"cpp_cost\", \"pair_c_ns\": %.2f, \"pair_ns\": %.2f, \"pair_over_ns\": %.2f, \"read_c_ns\": %.2f, "
               "\"read_ns\": %.2f, "
               "\"read_over_ns\": %.2f, \"all_over_ns\": %.2f, \"task_ns\": %.2f}\n",
               pair.c, pair.cpp, pair.over, read.c, read.cpp, read.over, all.over, task.cpp);
    } catch (const std::exception &e) {
        fprintf(stderr, "cpp_cost: %s\n", e.what());
        return 1;
    }
    return 0;
}
