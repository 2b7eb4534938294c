/* bench/cpp_exec_cost.cc - what senders cost above the calls of C: the same work done both ways, in turns, in one run.
 *
 *     cpp_exec_cost [--seconds S]
 *
 *   pair_c_ns, pair_ns      a send of 8 bytes and its receive, between two runtimes that one thread drives over shared memory:
 *                           with the calls of C, and as senders that are connected and started
 *   pair_over_ns            what the second takes above the first, for the two operations together
 *   sender_over_ns          half of that: what a sender costs
 *   stop_over_ns            the same of a sender whose receiver can be stopped
 *   read_c_ns, read_ns, read_over_ns    a read of 8 bytes of a mapped region
 *   turn_c_ns, turn_ns, turn_over_ns    weft_runtime_call() with a callback, and schedule() of a scheduler
 *
 * Each is the median of many short rounds; a difference is the median of the differences of rounds that follow each other. The
 * senders are compiled against the kit of tests/cpp, or stdexec (WEFT_STDEXEC): that makes no difference, since there is nothing
 * of either between the library and the receiver. One line of JSON. tests/tools/tools_cpp_exec_cost.py runs it. */
#include "kit/here.hpp"
#include <weft/weft.hpp>

#include "cpp_pair.hpp"

namespace
{

using namespace bench;

struct both : runtimes {
    ex::inplace_stop_source stop;
    unsigned told = 0;
};

/* --- a receiver that only says that it is over -------------------------------------------------------------------------- */

template <class Token> struct env {
    Token token;
    Token query(ex::get_stop_token_t) const noexcept
    {
        return token;
    }
};

template <class Token> struct receiver {
    using receiver_concept = ex::receiver_tag;
    bool *over;
    Token token;
    env<Token> get_env() const noexcept
    {
        return {token};
    }
    template <class... Values> void set_value(Values &&...) noexcept
    {
        *over = true;
    }
    void set_error(std::error_code e) noexcept
    {
        must(static_cast<weft_status_t>(e.value()), "a sender");
    }
    void set_stopped() noexcept
    {
        must(WEFT_ERR_CANCELLED, "a sender");
    }
};

template <class Token, class S> void run(both &b, Token token, S &&sender)
{
    bool over = false;
    auto op = ex::connect(std::forward<S>(sender), receiver<Token>{&over, token});
    ex::start(op);
    while (!over)
        b.drive();
}

/* --- the work, both ways ------------------------------------------------------------------------------------------------ */

void pair_c(both &b)
{
    uint64_t out = 1, in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        weft_op_t sent = WEFT_OP_INIT, got = WEFT_OP_INIT;
        must(weft_msg_send(b.ep[0].native(), &out, sizeof out, 7, &sent), "a send");
        b.until(sent);
        must(sent.status, "a send");
        must(weft_msg_recv(b.ep[1].native(), &in, sizeof in, 7, WEFT_TAG_FULL, &got), "a receive");
        b.until(got);
        must(got.status, "a receive");
        out += in;
    }
}

template <class Token> void pairs(both &b, Token token)
{
    uint64_t out = 1, in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        run(b, token, weft::execution::sender(b.ep[0].send(out, 7)));
        run(b, token, weft::execution::sender(b.ep[1].recv(in, 7)));
        out += in;
    }
}

void pair(both &b)
{
    pairs(b, ex::never_stop_token());
}

void pair_stop(both &b)
{
    pairs(b, b.stop.get_token());
}

void read_c(both &b)
{
    uint64_t in = 0;
    for (unsigned i = 0; i < ROUND; i++) {
        weft_op_t op = WEFT_OP_INIT;
        must(weft_rma_read(b.remote.native(), 0, &in, sizeof in, &op), "a read");
        b.until(op);
        must(op.status, "a read");
    }
}

void read(both &b)
{
    uint64_t in = 0;
    for (unsigned i = 0; i < ROUND; i++)
        run(b, ex::never_stop_token(), weft::execution::sender(b.remote.read(0, in)));
}

void nothing(void *)
{
}

void turn_c(both &b)
{
    const unsigned before = b.told;
    for (unsigned i = 0; i < ROUND; i++) {
        weft_op_t op = WEFT_OP_INIT;
        op.fn = [](weft_op_t *, void *user) { ++*static_cast<unsigned *>(user); };
        op.user = &b.told;
        must(weft_runtime_call(b.rt[0].native(), nothing, nullptr, &op), "a turn");
        while (b.told != before + i + 1)
            b.drive();
    }
}

void turn(both &b)
{
    const weft::execution::scheduler s(b.rt[0]);
    for (unsigned i = 0; i < ROUND; i++)
        run(b, ex::never_stop_token(), s.schedule());
}

/* --- measuring ---------------------------------------------------------------------------------------------------------- */

void open_both(both &b)
{
    weft_op_t accepted = WEFT_OP_INIT, connected = WEFT_OP_INIT, attached = WEFT_OP_INIT;
    weft_ep_t *out;
    for (auto &rt : b.rt)
        rt = weft::runtime::open({.transports = "shm"});
    b.door = b.rt[0].listen("tcp://127.0.0.1:0");
    must(weft_listener_accept(b.door.native(), &accepted), "accepting");
    must(weft_ep_open(b.rt[1].native(), b.door.uri().c_str(), nullptr, &connected, &out), "connecting");
    b.ep[1] = weft::endpoint(out);
    b.until(accepted);
    b.until(connected);
    must(accepted.status, "accepting");
    must(connected.status, "connecting");
    b.ep[0] = weft::endpoint(weft_op_ep(&accepted));
    b.region = b.rt[0].new_region({.len = 4096});
    auto attach = b.ep[1].attach(b.region.key(), WEFT_RMA_MAPPED);
    must(attach.post(&attached), "attaching");
    b.until(attached);
    must(attached.status, "attaching");
    b.remote = attach.spec().take(attached);
}

} // namespace

int main(int argc, char **argv)
{
    const double seconds = argc == 1 ? 1 : argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 0;
    if (!(seconds > 0 && seconds <= 60)) {
        fputs("usage: cpp_exec_cost [--seconds S]\n", stderr);
        return 2;
    }
    both b;
    open_both(b);
    const figures pairs = compare(b, pair_c, pair, seconds / 4), stops = compare(b, pair_c, pair_stop, seconds / 4),
                  reads = compare(b, read_c, read, seconds / 4), turns = compare(b, turn_c, turn, seconds / 4);
    printf(
        "{\"test\": \"cpp_exec_cost\", \"pair_c_ns\": %.2f, \"pair_ns\": %.2f, \"pair_over_ns\": %.2f, \"sender_over_ns\": %.2f, "
        "\"stop_over_ns\": %.2f, \"read_c_ns\": %.2f, \"read_ns\": %.2f, \"read_over_ns\": %.2f, \"turn_c_ns\": %.2f, "
        "\"turn_ns\": %.2f, \"turn_over_ns\": %.2f}\n",
        pairs.c, pairs.cpp, pairs.over, pairs.over / 2, stops.over / 2, reads.c, reads.cpp, reads.over, turns.c, turns.cpp,
        turns.over);
    return 0;
}
