/* tests/cpp/asio_tokens.cc - actions with each completion token of Asio: values and codes, where handlers run, whose memory
 * it is.
 * ctest: asio label=thread */
#include "test.h"
#include "asio_pair.hpp"

#include <asio/bind_allocator.hpp>
#include <asio/bind_executor.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#if __has_include(<asio/deferred.hpp>)
#include <asio/deferred.hpp>
using asio::deferred;
#else
#include <asio/experimental/deferred.hpp>
using asio::experimental::deferred;
#endif
#include <asio/experimental/as_tuple.hpp>
#include <asio/redirect_error.hpp>
#include <asio/strand.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <functional>
#include <thread>
#include <vector>

namespace
{

constexpr std::string_view LONG_TEXT = "a message that travels";

/* --- tokens ----------------------------------------------------------------------------------------------------------------- */

void a_callback(asio_pair &pair, asio::io_context &io)
{
    std::array<char, 64> in{};
    int sent = 0, received = 0;
    bool within = true;
    weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1), [&](std::error_code code, std::size_t n) {
        CHECK(!within && !code && n == LONG_TEXT.size() && !std::memcmp(in.data(), LONG_TEXT.data(), n));
        received++;
    });
    weft::async(io, do_send(pair.at_b, LONG_TEXT, 1), [&](std::error_code code) {
        CHECK(!within && !code);
        sent++;
    });
    within = false;
    io.restart();
    io.run(); /* it returns, since nothing is under way any more */
    CHECK_EQ(sent, 1);
    CHECK_EQ(received, 1);
}

asio::awaitable<void> talk(asio_pair &pair, int &rounds)
{
    std::array<char, 64> in{};
    for (int i = 0; i < 50; i++) {
        co_await weft::async(do_send(pair.at_b, LONG_TEXT, 2), asio::use_awaitable);
        const std::size_t n = co_await weft::async(do_recv(pair.at_a, in.data(), in.size(), 2), asio::use_awaitable);
        CHECK_EQ(n, LONG_TEXT.size());
        co_await weft::async(do_send(pair.at_a, {in.data(), n}, 3), asio::use_awaitable);
        buffer back = std::move(*co_await weft::async(do_recv_alloc(pair.at_b, 3), asio::use_awaitable));
        CHECK(back.text() == LONG_TEXT);
        rounds++;
    }
    try {
        co_await weft::async(do_recv(pair.at_a, in.data(), in.size(), 99).timeout(std::chrono::milliseconds(1)),
                             asio::use_awaitable);
        FAIL("nothing was thrown");
    } catch (const std::system_error &e) {
        CHECK(e.code() == weft::errc::timeout);
    }
    auto [code, n] = co_await weft::async(do_recv(pair.at_a, in.data(), 4, 5).timeout(std::chrono::milliseconds(1)),
                                          asio::experimental::as_tuple(asio::use_awaitable));
    CHECK(code == std::errc::timed_out && !n);
}

void a_coroutine(asio_pair &pair, asio::io_context &io)
{
    int rounds = 0;
    bool done = false;
    asio::co_spawn(io, talk(pair, rounds), [&](std::exception_ptr e) {
        if (e)
            std::rethrow_exception(e);
        done = true;
    });
    io.restart();
    io.run();
    CHECK(done);
    CHECK_EQ(rounds, 50);
    CHECK_EQ(buffer::alive, 0);
}

void a_deferred_one(asio_pair &pair, asio::io_context &io)
{
    std::array<char, 64> in{};
    auto receive = weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1), deferred);
    auto send = weft::async(io, do_send(pair.at_b, LONG_TEXT, 1), deferred);
    io.restart();
    CHECK_EQ(io.poll(), 0u); /* nothing was posted */
    std::size_t got = 0;
    std::move(send)(asio::detached);
    std::move(receive)([&](std::error_code code, std::size_t n) { got = code ? 0 : n; });
    io.restart();
    io.run();
    CHECK_EQ(got, LONG_TEXT.size());
}

void everything(weft_progress_mode_t mode)
{
    asio::io_context io;
    asio_pair pair(mode == WEFT_PROGRESS_THREAD ? nullptr : &io, mode);
    a_callback(pair, io);
    a_coroutine(pair, io);
    a_deferred_one(pair, io);
}

} // namespace

TEST(each_token_on_a_runtime_that_a_loop_drives)
{
    everything(WEFT_PROGRESS_LOOP);
}

TEST(each_token_on_a_runtime_that_its_caller_drives)
{
    everything(WEFT_PROGRESS_CALLER);
}

TEST(each_token_on_a_runtime_with_a_thread)
{
    everything(WEFT_PROGRESS_THREAD);
}

TEST(a_future_without_an_executor_needs_no_io_context)
{
    asio_pair pair(nullptr);
    std::array<char, 64> in{};
    auto received = weft::async(do_recv(pair.at_a, in.data(), in.size(), 1), asio::use_future);
    auto sent = weft::async(do_send(pair.at_b, LONG_TEXT, 1), asio::use_future);
    sent.get();
    CHECK_EQ(received.get(), LONG_TEXT.size());
    auto late = weft::async(do_recv(pair.at_a, in.data(), in.size(), 1).timeout(std::chrono::milliseconds(1)), asio::use_future);
    try {
        (void)late.get();
        FAIL("nothing was thrown");
    } catch (const std::system_error &e) {
        CHECK(e.code() == weft::errc::timeout);
    }
}

TEST(a_post_that_fails_comes_to_the_handler_and_not_inside_the_call)
{
    asio::io_context io;
    asio_pair pair(&io);
    bool within = true, told = false;
    weft::async(io, do_send(pair.at_b, {nullptr, 3}, 1), [&](std::error_code code) {
        CHECK(!within && code == weft::errc::invalid);
        told = true;
    });
    within = false;
    io.run();
    CHECK(told);
}

TEST(a_handler_of_a_failure_finds_its_sentence)
{
    asio::io_context io;
    asio_pair pair(&io);
    char in[8];
    std::string said;
    weft::async(io, do_recv(pair.at_a, in, sizeof in, 1), [&](std::error_code code, std::size_t) {
        CHECK(code == weft::errc::truncated);
        CHECK_EQ(weft_last_error_status(), WEFT_ERR_TRUNCATED);
        said = weft_last_error();
    });
    weft::async(io, do_send(pair.at_b, LONG_TEXT, 1), asio::detached);
    io.run();
    CHECK(said.find("receive") != std::string::npos || said.find("recv") != std::string::npos);
}

/* --- executors -------------------------------------------------------------------------------------------------------------- */

TEST(a_handler_runs_where_its_executor_says)
{
    asio::io_context io;
    asio_pair pair(nullptr);
    asio::thread_pool pool(1);
    std::thread::id pool_thread, at;
    asio::post(pool, [&] { pool_thread = std::this_thread::get_id(); });
    std::atomic<int> told = 0;
    auto bound = asio::bind_executor(pool, [&](std::error_code code) {
        CHECK(!code);
        at = std::this_thread::get_id();
        told++;
    });
    weft::async(io, do_timer(pair.a, 1000), bound); /* its executor goes before `io`, on which it counts all the same */
    io.run();
    pool.join();
    CHECK_EQ(told, 1);
    CHECK(at == pool_thread);
    weft::async(io, do_timer(pair.a, 1000), [&](std::error_code) {
        at = std::this_thread::get_id();
        told++;
    });
    io.restart();
    io.run();
    CHECK_EQ(told, 2);
    CHECK(at == std::this_thread::get_id());
}

TEST(handlers_on_a_strand_run_one_at_a_time)
{
    asio::thread_pool pool(3);
    asio_pair pair(nullptr);
    auto strand = asio::make_strand(pool.get_executor());
    int plain = 0; /* not atomic: tsan and the sum say whether two ran at once */
    std::atomic<int> inside{0}, left{400};
    for (int i = 0; i < 400; i++)
        weft::async(do_timer(pair.a, static_cast<std::uint64_t>(i % 7) * 1000),
                    asio::bind_executor(strand, [&](std::error_code code) {
                        CHECK(!code);
                        CHECK_EQ(inside++, 0);
                        plain++;
                        inside--;
                        left--;
                    }));
    TEST_UNTIL(left == 0, 30);
    pool.join();
    CHECK_EQ(plain, 400);
}

/* --- memory ----------------------------------------------------------------------------------------------------------------- */

namespace
{

/* one piece from the handler's allocator, which is free when the handler is called */
template <class Where> void memory_on(Where &where, const std::function<void()> &run)
{
    asio_pair pair(nullptr);
    counts c;
    std::atomic<int> told{0};
    std::array<char, 64> in{};
    weft::async(where, do_recv(pair.at_a, in.data(), in.size(), 1),
                asio::bind_allocator(counting<char>(&c), [&](std::error_code code, std::size_t n) {
                    CHECK(!code && n == LONG_TEXT.size());
                    CHECK_EQ(c.held, 0);
                    told++;
                }));
    CHECK_EQ(c.held, 1);
    CHECK_EQ(c.taken, 1);
    c.exhausted = true; /* whatever follows takes none */
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_msg_send(pair.at_b, LONG_TEXT.data(), LONG_TEXT.size(), 1, &op));
    run();
    CHECK_EQ(told, 1);
    CHECK_EQ(c.held, 0);
    CHECK_EQ(c.taken, 1);
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    c.exhausted = false;
    weft::async(where, do_send(pair.at_b, {nullptr, 3}, 1), asio::bind_allocator(counting<char>(&c), [&](std::error_code code) {
                    CHECK(code == weft::errc::invalid);
                    CHECK_EQ(c.held, 0);
                    told++;
                }));
    run();
    CHECK_EQ(told, 2);
    CHECK_EQ(c.taken, 2);
}

} // namespace

TEST(the_memory_is_the_handler_s_and_free_before_it_is_called)
{
    asio::io_context io;
    memory_on(io, [&] {
        io.restart();
        io.run();
    });
    auto strand = asio::make_strand(io.get_executor());
    memory_on(strand, [&] {
        io.restart();
        io.run();
    });
}

TEST(without_memory_the_call_throws_and_nothing_is_posted)
{
    asio::io_context io;
    asio_pair pair(&io);
    counts c;
    c.exhausted = true;
    std::array<char, 64> in{};
    try {
        weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1),
                    asio::bind_allocator(counting<char>(&c), [](std::error_code, std::size_t) { FAIL("it was called"); }));
        FAIL("nothing was thrown");
    } catch (const std::bad_alloc &) {
    }
    int got = 0;
    weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1), [&](std::error_code code, std::size_t) { got += !code; });
    weft::async(io, do_send(pair.at_b, LONG_TEXT, 1), asio::detached);
    io.run();
    CHECK_EQ(got, 1);
}

TEST(a_handler_may_own_what_only_moves_and_start_the_next)
{
    asio::io_context io;
    asio_pair pair(&io);
    struct chain {
        asio::io_context &io;
        asio_pair &pair;
        std::unique_ptr<int> left;
        int *done;
        void operator()(std::error_code code)
        {
            CHECK(!code);
            ++*done;
            if (--*left) {
                chain next{io, pair, std::move(left), done};
                weft::async(io, do_timer(pair.b, 100), std::move(next));
            }
        }
    };
    int done = 0;
    weft::async(io, do_timer(pair.b, 100), chain{io, pair, std::make_unique<int>(100), &done});
    io.run();
    CHECK_EQ(done, 100);
}
