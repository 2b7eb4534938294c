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

#include <algorithm>
#include <vector>

#include "peers/peer.h"

namespace
{

constexpr unsigned ROUND = 500;

struct both {
    weft::runtime rt[2];
    weft::listener door;
    weft::endpoint ep[2];
    weft::region region;
    weft::remote remote;

    void drive() noexcept
    {
        rt[0].progress();
        rt[1].progress();
    }
    void until(const weft_op_t &op) noexcept
    {
        while (!weft_op_done(&op))
            drive();
    }
};

void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "cpp_cost: %s: %s\n", what, weft_last_error());
    exit(1);
}

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

/* --- measuring ---------------------------------------------------------------------------------------------- */

using work = void (*)(both &);

double round_ns(both &b, work what)
{
    const uint64_t start = peer_now_ns();
    what(b);
    return static_cast<double>(peer_now_ns() - start) / ROUND;
}

double median(std::vector<double> v)
{
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
}

struct figures {
    double c, cpp, over;
};

figures compare(both &b, work c, work cpp, double seconds)
{
    std::vector<double> a, z, over;
    const uint64_t end = peer_now_ns() + static_cast<uint64_t>(seconds * 1e9);
    do {
        const bool first = a.size() % 2; /* who begins changes */
        double x = first ? round_ns(b, cpp) : round_ns(b, c), y = first ? round_ns(b, c) : round_ns(b, cpp);
        if (first)
            std::swap(x, y);
        a.push_back(x);
        z.push_back(y);
        over.push_back(y - x);
    } while (peer_now_ns() < end);
    return {median(a), median(z), median(over)};
}

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
        figures pair = compare(
            b, pair_c, [](both &x) { run(x, pairs(x)); }, seconds / 4);
        figures all = compare(
            b, pair_c, [](both &x) { run(x, pairs_at_once(x)); }, seconds / 4);
        figures read = compare(
            b, read_c, [](both &x) { run(x, reads(x)); }, seconds / 4);
        figures task = compare(
            b, [](both &) {}, [](both &x) { run(x, tasks(x)); }, seconds / 4);
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
