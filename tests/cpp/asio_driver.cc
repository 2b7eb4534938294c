/* tests/cpp/asio_driver.cc - an io_context that drives runtimes without a thread: when run() returns, timers, exceptions of
 * handlers, stopping, several threads.
 * ctest: asio label=thread */
#include "test.h"
#include "asio_pair.hpp"

#include <asio/detached.hpp>
#include <asio/post.hpp>
#include <dirent.h>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace
{

int descriptors()
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

} // namespace

TEST(run_returns_when_nothing_is_under_way)
{
    asio::io_context io;
    asio_pair pair(&io);
    const double start = test_now();
    io.run();
    io.restart();
    io.run();
    asio::steady_timer timer(io, std::chrono::milliseconds(5));
    int fired = 0;
    timer.async_wait([&](std::error_code) { fired++; });
    io.restart();
    io.run();
    CHECK_EQ(fired, 1);
    CHECK(test_now() - start < 20);
}

TEST(run_goes_on_while_it_is_asked_to_and_callbacks_run_in_it)
{
    asio::io_context io;
    asio_pair pair(&io);
    static std::array<char, 8> in;
    static weft_op_t op = WEFT_OP_INIT;
    static asio_pair *at;
    at = &pair;
    op.fn = [](weft_op_t *done, void *) { /* a program's own callback, which nobody counts */
                                          CHECK_OK(done->status);
                                          at->drive_a->keep_running(false);
    };
    CHECK_OK(weft_msg_recv(pair.at_a, in.data(), in.size(), 1, WEFT_TAG_FULL, &op));
    pair.drive_a->keep_running(true);
    asio::steady_timer timer(io, std::chrono::milliseconds(3));
    timer.async_wait([&](std::error_code) { CHECK_OK(weft_msg_send(pair.at_b, "now", 3, 1, nullptr)); });
    io.run(); /* returns, since the callback said so */
    CHECK(weft_op_done(&op));
}

TEST(timers_of_the_runtime_fire_though_nothing_else_happens)
{
    asio::io_context io;
    asio_pair pair(&io);
    std::vector<int> order;
    for (int ms : {30, 2, 12, 2000})
        weft::async(io,
                    do_timer(pair.a, static_cast<std::uint64_t>(ms) * WEFT_MILLISECOND).timeout(std::chrono::milliseconds(60)),
                    [&order, ms](std::error_code code) {
                        CHECK_EQ(code == weft::errc::timeout, ms == 2000);
                        order.push_back(ms);
                    });
    io.run();
    CHECK(order == std::vector<int>({2, 12, 30, 2000}));
}

TEST(what_a_handler_throws_leaves_run_and_the_runtime_goes_on)
{
    asio::io_context io;
    asio_pair pair(&io);
    int thrown = 0, done = 0;
    for (int i = 0; i < 3; i++)
        weft::async(io, do_timer(pair.a, WEFT_MILLISECOND), [&](std::error_code code) {
            done++;
            CHECK(!code);
            throw std::runtime_error("of the handler");
        });
    for (bool more = true; more;) {
        try {
            io.run();
            more = false;
        } catch (const std::runtime_error &e) {
            CHECK_STR(e.what(), "of the handler");
            thrown++;
        }
    }
    CHECK_EQ(thrown, 3);
    CHECK_EQ(done, 3);
    std::array<char, 8> in{};
    weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1),
                [&](std::error_code code, std::size_t n) { done += !code && n == 2; });
    weft::async(io, do_send(pair.at_b, "ok", 1), asio::detached);
    io.restart();
    io.run();
    CHECK_EQ(done, 4);
}

TEST(a_driver_stops_and_another_takes_over)
{
    asio::io_context one;
    asio_pair pair(&one);
    const int before = descriptors();
    for (int i = 0; i < 30; i++) {
        pair.drive_a->stop();
        pair.drive_a->keep_running(true); /* of no effect any more */
        pair.drive_a.emplace(one, pair.a);
        one.restart();
        one.run();
    }
    CHECK_EQ(descriptors(), before);
    asio::io_context two;
    pair.drive_a.emplace(two, pair.a);
    pair.drive_b.emplace(two, pair.b);
    int done = 0;
    weft::async(two, do_timer(pair.a, 1000), [&](std::error_code code) { done += !code; });
    weft::async(two, do_timer(pair.b, 1000), [&](std::error_code code) { done += !code; });
    two.run();
    CHECK_EQ(done, 2);
    pair.drive_a.reset(); /* before their context */
    pair.drive_b.reset();
}

TEST(a_runtime_with_a_thread_is_not_driven)
{
    asio::io_context io;
    asio_pair pair(nullptr);
    try {
        weft::asio_driver driver(io, pair.a);
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_EQ(e.status(), WEFT_ERR_STATE);
    }
    io.run();
}

/* Much traffic of the runtime does not keep other handlers from their turn, nor the other way round. */
TEST(a_busy_runtime_leaves_turns_to_others)
{
    asio::io_context io;
    asio_pair pair(&io);
    static std::array<char, 8> in;
    int posted = 0, echoed = 0;
    std::function<void()> echo = [&] {
        weft::async(io, do_recv(pair.at_a, in.data(), in.size(), 1), [&](std::error_code code, std::size_t) {
            CHECK(!code);
            if (++echoed < 2000)
                echo();
        });
        weft::async(io, do_send(pair.at_b, "x", 1), asio::detached);
    };
    std::function<void()> other = [&] {
        if (++posted < 1000)
            asio::post(io, other);
    };
    echo();
    other();
    io.run();
    CHECK_EQ(echoed, 2000);
    CHECK_EQ(posted, 1000);
}

TEST(run_on_several_threads_drives_on_one_at_a_time)
{
    asio::io_context io;
    asio_pair pair(&io);
    std::atomic<int> done{0};
    constexpr int all = 600;
    std::vector<std::array<char, 8>> in(all);
    for (int i = 0; i < all; i++)
        weft::async(io, do_recv(pair.at_a, in[static_cast<std::size_t>(i)].data(), 8, static_cast<std::uint64_t>(i)),
                    [&, i](std::error_code code, std::size_t n) {
                        CHECK(!code && n == 1);
                        done++;
                        if (i + 3 < all) /* from whichever thread this is */
                            weft::async(io, do_send(pair.at_b, "x", static_cast<std::uint64_t>(i) + 3), asio::detached);
                    });
    for (std::uint64_t i = 0; i < 3; i++)
        weft::async(io, do_send(pair.at_b, "x", i), asio::detached);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
        threads.emplace_back([&] { io.run(); });
    for (std::thread &t : threads)
        t.join();
    CHECK_EQ(done, all);
}
