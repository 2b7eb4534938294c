/* tests/cpp/asio_endings.cc - how operations of weft/asio.hpp end early: cancellation slots, io_contexts that go, peers that die,
 * runtimes that close.
 * ctest: asio label=thread */
#include "test.h"
#include "asio_pair.hpp"

#include <asio/bind_allocator.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/strand.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <sys/prctl.h>
#include <thread>

using namespace asio::experimental::awaitable_operators;

namespace
{

/* counts handlers that are alive, and those that were called */
struct witness {
    inline static std::atomic<int> alive{0}, called{0};
    witness() noexcept
    {
        alive++;
    }
    witness(witness &&) noexcept
    {
        alive++;
    }
    ~witness()
    {
        alive--;
    }
    template <class... T> void operator()(std::error_code, T &&...)
    {
        called++;
    }
};

} // namespace

/* --- cancelling ------------------------------------------------------------------------------------------------------------- */

TEST(a_signal_cancels_through_the_slot)
{
    for (bool threads : {false, true}) {
        asio::io_context io;
        asio_pair pair(threads ? nullptr : &io);
        std::array<char, 16> in{};
        asio::cancellation_signal signal, unused;
        std::error_code told;
        int calls = 0;
        weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1),
                    asio::bind_cancellation_slot(signal.slot(), [&](std::error_code code, std::size_t) {
                        told = code;
                        calls++;
                        signal.emit(asio::cancellation_type::all); /* too late, and harmless */
                    }));
        asio::post(io, [&] { signal.emit(asio::cancellation_type::terminal); });
        io.run();
        CHECK_EQ(calls, 1);
        CHECK(told == weft::errc::cancelled && told == std::errc::operation_canceled);
        signal.emit(asio::cancellation_type::all); /* the operation is gone, what was in the slot is not */
        weft::async(io, do_timer(pair.a, 1000), asio::bind_cancellation_slot(signal.slot(), [&](std::error_code code) {
                        told = code;
                        calls++;
                    }));
        io.restart();
        io.run();
        CHECK(!told);
        CHECK_EQ(calls, 2);
        weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 2),
                    asio::bind_cancellation_slot(signal.slot(), [&](std::error_code code, std::size_t n) {
                        told = code;
                        calls += static_cast<int>(n);
                    }));
        signal.emit(asio::cancellation_type::none); /* asks for nothing */
        weft::async(io, do_send(pair.at_b, "x", 2), asio::detached);
        io.restart();
        io.run();
        CHECK(!told);
        CHECK_EQ(calls, 3);
    }
}

TEST(a_signal_may_go_before_the_operation_ends)
{
    asio::io_context io;
    asio_pair pair(nullptr);
    std::error_code told = weft::errc::invalid;
    {
        asio::cancellation_signal signal;
        weft::async(io, do_timer(pair.a, 20 * WEFT_MILLISECOND),
                    asio::bind_cancellation_slot(signal.slot(), [&](std::error_code code) { told = code; }));
    }
    io.run();
    CHECK(!told);
}

/* One thread emits while the runtime's own thread completes and the handler runs on a third. */
TEST(thousands_of_cancels_race_with_completions)
{
    asio_pair pair(nullptr);
    asio::thread_pool pool(2);
    int cancelled = 0, ended = 0;
    for (int i = 0; i < 2000; i++) {
        asio::cancellation_signal signal;
        std::atomic<int> told{0};
        weft::async(do_timer(pair.a, static_cast<std::uint64_t>(i % 20) * 500),
                    asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(pool, [&](std::error_code code) {
                                                     CHECK(!code || code == weft::errc::cancelled);
                                                     told = code ? 2 : 1;
                                                 })));
        for (int spin = 0; spin < i % 64 * 20 && !told; spin++)
            std::atomic_signal_fence(std::memory_order_seq_cst);
        signal.emit(asio::cancellation_type::total);
        TEST_UNTIL(told, 30);
        (told == 2 ? cancelled : ended)++;
    }
    pool.join();
    printf("# %d cancelled, %d ended\n", cancelled, ended);
    CHECK_EQ(cancelled + ended, 2000);
}

TEST(the_first_of_two_awaited_cancels_the_other)
{
    asio::io_context io;
    asio_pair pair(&io);
    int done = 0;
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            std::array<char, 16> in{};
            asio::steady_timer timer(io, std::chrono::milliseconds(2));
            auto first = co_await (weft::async(do_recv(pair.at_a, in.data(), in.size(), 1), asio::use_awaitable) ||
                                   timer.async_wait(asio::use_awaitable));
            CHECK_EQ(first.index(), 1u);
            done++;
            timer.expires_after(BOUND);
            weft::async(do_send(pair.at_b, "here", 1), asio::detached);
            auto second = co_await (weft::async(do_recv(pair.at_a, in.data(), in.size(), 1), asio::use_awaitable) ||
                                    timer.async_wait(asio::use_awaitable));
            CHECK_EQ(second.index(), 0u);
            CHECK_EQ(std::get<0>(second), 4u); /* the receive that was cancelled took nothing */
            CHECK_EQ(co_await (weft::async(do_recv(pair.at_b, in.data(), in.size(), 2), asio::use_awaitable) &&
                               weft::async(do_send(pair.at_a, "there", 2), asio::use_awaitable)),
                     5u);
            done++;
        },
        asio::detached);
    io.run();
    CHECK_EQ(done, 2);
}

/* --- an io_context that goes ------------------------------------------------------------------------------------------------ */

namespace
{

/* with operations in each state: under way, complete and queued, never run */
void context_goes(bool threads)
{
    witness::alive = witness::called = 0;
    counts c;
    std::array<char, 16> in{};
    std::optional<asio::io_context> io(std::in_place);
    asio_pair pair(threads ? nullptr : &*io);
    auto held = asio::bind_allocator(counting<char>(&c), witness());
    asio::cancellation_signal signal;
    weft::async(*io, do_recv(pair.at_a, in.data(), in.size(), 1), std::move(held));
    weft::async(*io, do_recv(pair.at_a, in.data(), in.size(), 2), asio::bind_cancellation_slot(signal.slot(), witness()));
    weft::async(asio::make_strand(*io), do_recv(pair.at_a, in.data(), in.size(), 2), witness());
    weft::async(*io, do_send(pair.at_b, "x", 7), asio::bind_allocator(counting<char>(&c), witness())); /* complete */
    weft::async(*io, do_recv_alloc(pair.at_a, 7), witness());
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    do { /* until the message is here, and its handler is queued */
        weft_runtime_progress(pair.a);
        weft_runtime_progress(pair.b);
        CHECK_OK(weft_runtime_get_stats(pair.a, &stats));
    } while (!stats.msgs_received);
    weft_op_t ping = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(pair.a, 0, &ping));
    CHECK_OK(weft_op_wait(&ping, WEFT_FOREVER));
    const int before = recv_alloc_spec::abandoned;
    pair.drive_a.reset();
    pair.drive_b.reset();
    CHECK(witness::alive >= 5);
    io.reset();
    CHECK_EQ(witness::alive, 1); /* the empty one */
    CHECK_EQ(witness::called, 0);
    CHECK_EQ(c.held, 0);
    CHECK_EQ(recv_alloc_spec::abandoned, before + 1);
    signal.emit(asio::cancellation_type::all);
    /* the runtime is as good as before, and the buffers are ours */
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(pair.at_b, "after", 5, 1, nullptr));
    CHECK_OK(weft_msg_recv(pair.at_a, in.data(), in.size(), 1, WEFT_TAG_FULL, &op));
    while (!weft_op_done(&op)) {
        weft_runtime_progress(pair.a);
        weft_runtime_progress(pair.b);
    }
    CHECK(!op.status && op.len == 5);
}

} // namespace

TEST(an_io_context_goes_while_a_loop_drove)
{
    context_goes(false);
}

TEST(an_io_context_goes_while_threads_drive)
{
    for (int i = 0; i < 20; i++)
        context_goes(true);
}

/* The runtime's thread completes while the context is being destroyed. */
TEST(an_io_context_goes_while_operations_complete)
{
    asio_pair pair(nullptr);
    for (int i = 0; i < 300; i++) {
        asio::io_context io;
        for (int k = 0; k < 8; k++)
            weft::async(io, do_timer(pair.a, static_cast<std::uint64_t>(k) * 3000), witness());
        if (i % 3 == 0)
            io.poll();
        if (i % 2)
            std::this_thread::sleep_for(std::chrono::microseconds(i % 40));
    }
    CHECK_EQ(witness::alive, 0);
}

TEST(a_coroutine_that_waits_goes_with_its_io_context)
{
    std::array<char, 16> in{};
    bool unwound = false;
    asio_pair pair(nullptr);
    {
        asio::io_context io;
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                struct at_end {
                    bool &to;
                    ~at_end()
                    {
                        to = true;
                    }
                } end{unwound};
                co_await weft::async(do_recv(pair.at_a, in.data(), in.size(), 1), asio::use_awaitable);
                FAIL("it went on");
            },
            asio::detached);
        io.poll();
        CHECK(!unwound);
    }
    CHECK(unwound);
}

/* --- peers and runtimes ----------------------------------------------------------------------------------------------------- */

TEST(a_killed_peer_ends_what_waits_for_it)
{
    int pipes[2];
    CHECK_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        weft_runtime_t *rt;
        weft_listener_t *listener;
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        opts.progress = WEFT_PROGRESS_THREAD;
        CHECK_OK(weft_runtime_open(&opts, &rt));
        CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", nullptr, &listener));
        const std::string uri = weft_listener_uri(listener);
        CHECK_EQ(write(pipes[1], uri.c_str(), uri.size() + 1), (ssize_t)uri.size() + 1);
        for (;;)
            pause();
    }
    char uri[256];
    CHECK(read(pipes[0], uri, sizeof uri) > 0);
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.progress = WEFT_PROGRESS_LOOP;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    {
        asio::io_context io;
        weft::asio_driver driver(io, rt);
        weft_ep_t *ep;
        weft_op_t connect = WEFT_OP_INIT;
        CHECK_OK(weft_ep_open(rt, uri, nullptr, &connect, &ep));
        driver.keep_running(true);
        CHECK(run_until(io, [&] { return weft_op_done(&connect); }));
        CHECK_OK(connect.status);
        driver.keep_running(false);
        std::array<char, 16> in{};
        std::error_code told;
        weft::async(io, do_recv(ep, in.data(), in.size(), 1), [&](std::error_code code, std::size_t) { told = code; });
        asio::post(io, [child] { kill(child, SIGKILL); });
        io.restart();
        io.run();
        CHECK(told == weft::errc::peer);
        told.clear();
        weft::async(io, do_send(ep, "x", 1), [&](std::error_code code) { told = code; });
        io.restart();
        io.run();
        CHECK(told == weft::errc::peer);
        CHECK_OK(weft_ep_abort(ep, nullptr));
    }
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(waitpid(child, nullptr, 0), child);
}

TEST(a_runtime_that_closes_ends_its_operations)
{
    for (bool threads : {false, true}) {
        asio::io_context io;
        asio_pair pair(threads ? nullptr : &io);
        std::array<char, 16> in{};
        int closed = 0, refused = 0;
        weft_runtime_t *a = pair.a;
        weft_ep_t *at_a = pair.at_a;
        for (std::uint64_t tag = 1; tag <= 5; tag++)
            weft::async(io, do_recv(at_a, in.data(), in.size(), tag), [&](std::error_code code, std::size_t) {
                CHECK(code == weft::errc::closed || code == weft::errc::cancelled);
                closed++;
                weft::async(io, do_recv(at_a, in.data(), in.size(), 1), [&](std::error_code late, std::size_t) {
                    CHECK(late == weft::errc::closed);
                    refused++;
                });
            });
        asio::post(io, [&] {
            CHECK_OK(weft_runtime_close(a)); /* the driver is still there, and notices */
            pair.a = nullptr;
        });
        io.run();
        CHECK_EQ(closed, 5);
        CHECK_EQ(refused, 5);
    }
}

TEST(a_handler_without_an_executor_must_not_wait_and_one_with_one_may)
{
    asio_pair pair(nullptr);
    std::atomic<int> told{0};
    weft::async(do_timer(pair.a, 1000), [&](std::error_code) {
        static weft_op_t op = WEFT_OP_INIT; /* it outlives the handler */
        CHECK_OK(weft_timer_start(pair.a, WEFT_SECOND, &op));
        CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_STATE);
        weft_op_cancel(&op);
        told = 1;
    });
    TEST_UNTIL(told == 1, 30);
    asio::io_context io;
    weft::async(io, do_timer(pair.a, 1000), [&](std::error_code) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_timer_start(pair.a, 1000, &op));
        CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
        CHECK_OK(weft_runtime_close(pair.a));
        pair.a = nullptr;
        told = 2;
    });
    io.run();
    CHECK_EQ(told, 2);
}
