/* tests/cpp/tasks.cc - tasks: timers, turns on the driver, stop tokens, limits, several waits together, scopes, generators.
 *
 * Each check of a stop or a limit is of an operation that would not end by itself. */
#include "both.hpp"

#include <cstdlib>
#include <sys/syscall.h>
#include <string>
#include <vector>

using namespace std::chrono_literals;

static std::atomic<unsigned long> allocated;

void *operator new(std::size_t n)
{
    allocated++;
    void *p = malloc(n ? n : 1);
    if (!p)
        abort();
    return p;
}
void operator delete(void *p) noexcept
{
    free(p);
}
void operator delete(void *p, std::size_t) noexcept
{
    free(p);
}

namespace
{

/* std::this_thread::get_id() is remembered across a co_await by clang */
pid_t thread()
{
    return static_cast<pid_t>(syscall(SYS_gettid));
}

weft::task<> sleeps(weft::runtime_ref rt, std::chrono::nanoseconds time)
{
    co_await rt.sleep_for(time);
}

weft::task<int> gives(weft::runtime_ref rt, int value, std::chrono::nanoseconds time)
{
    co_await rt.sleep_for(time);
    co_return value;
}

weft::task<int> throws_after(weft::runtime_ref rt, std::chrono::nanoseconds time)
{
    co_await rt.sleep_for(time);
    throw std::runtime_error("as it should");
}

} // namespace

/* --- time and turns --- */

TEST(a_sleep_takes_as_long_as_it_says)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        auto before = std::chrono::steady_clock::now();
        weft::sync_wait(rt, sleeps(rt, 20ms));
        CHECK(std::chrono::steady_clock::now() - before >= 20ms);
        before = std::chrono::steady_clock::now();
        rt.sleep_until(before + 10ms).wait();
        CHECK(std::chrono::steady_clock::now() - before >= 10ms);
        rt.sleep_until(std::chrono::system_clock::now() - 1h).wait();
    }
}

TEST(a_function_runs_on_the_driver_and_gives_its_value)
{
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    const pid_t here = thread();
    CHECK(rt.call([] { return thread(); }).wait() != here);
    int n = 0;
    rt.call([&] { n++; }).wait();
    CHECK_EQ(n, 1);
    weft::sync_wait(rt, [](weft::runtime_ref in, pid_t caller) -> weft::task<> {
        CHECK_EQ(thread(), caller);
        co_await in.schedule();
        CHECK(thread() != caller);
        CHECK(in.shard() == 0u);
        CHECK((co_await in.call([] { return std::string("text"); })) == "text");
    }(rt, here));
}

TEST(what_a_function_on_the_driver_throws_is_a_failure_with_its_sentence)
{
    weft::runtime rt = weft::runtime::open();
    auto got = rt.call([]() -> int { throw std::runtime_error("no such number"); }).wait_result();
    CHECK_EQ(got.status(), WEFT_ERR_CALL);
    CHECK_STR(weft_last_error(), "no such number");
    try {
        weft::sync_wait(rt, [](weft::runtime_ref in) -> weft::task<> { co_await in.call([] { throw 7; }); }(rt));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_EQ(e.status(), WEFT_ERR_CALL);
    }
}

TEST(inside_a_callback_nothing_is_waited_for_and_nothing_was_posted)
{
    weft::runtime rt = weft::runtime::open();
    bool begun = false;
    auto would = [](bool *flag) -> weft::task<> {
        *flag = true;
        co_return;
    };
    weft_runtime_stats_t before = {}, after = {};
    rt.call([&] {
          before = rt.stats();
          CHECK_EQ(rt.sleep_for(0ns).wait_result().status(), WEFT_ERR_STATE);
          CHECK_EQ(weft::try_sync_wait(rt, would(&begun)).status(), WEFT_ERR_STATE);
          try {
              weft::sync_wait(rt, would(&begun));
              FAIL("it waited inside a callback");
          } catch (const weft::error &e) {
              CHECK_EQ(e.status(), WEFT_ERR_STATE);
          }
          after = rt.stats();
      }).wait();
    CHECK(!begun);
    CHECK_EQ(after.ops_posted, before.ops_posted);
    CHECK_OK(weft_op_wait_all(nullptr, 0, 0));
}

/* --- failures --- */

TEST(an_exception_of_a_task_comes_out_where_it_is_awaited)
{
    weft::runtime rt = weft::runtime::open();
    try {
        weft::sync_wait(rt, throws_after(rt, 1ms));
        FAIL("nothing was thrown");
    } catch (const std::runtime_error &e) {
        CHECK_STR(e.what(), "as it should");
    }
    auto nested = [](weft::runtime_ref in) -> weft::task<int> {
        try {
            co_return co_await throws_after(in, 0ns);
        } catch (const std::runtime_error &) {
        }
        weft::result<int> late = co_await weft::with_timeout(in, gives(in, 1, 1h), 1ms).as_result();
        CHECK_EQ(late.status(), WEFT_ERR_TIMEOUT);
        co_return 5;
    };
    CHECK_EQ(weft::sync_wait(rt, nested(rt)), 5);
}

TEST(a_failed_operation_is_thrown_or_a_result_with_the_same_sentence)
{
    both b;
    b.run([](weft::endpoint_ref ep) -> weft::task<> {
        char buf[8];
        weft::result<weft::received> got = co_await ep.recv(buf, 1).timeout(2ms).as_result();
        CHECK_EQ(got.status(), WEFT_ERR_TIMEOUT);
        const std::string sentence = weft_last_error();
        CHECK(sentence.find("receive") != std::string::npos);
        try {
            co_await ep.recv(buf, 1).timeout(2ms);
            FAIL("nothing was thrown");
        } catch (const weft::error &e) {
            CHECK(e.code() == weft::errc::timeout);
            CHECK(sentence == e.what());
        }
        /* and what the post itself refuses */
        got = co_await ep.recv(weft::bytes(nullptr, 8), 1).as_result();
        CHECK_EQ(got.status(), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
        try {
            co_await ep.send(weft::const_bytes(nullptr, 8), 1);
            FAIL("nothing was thrown");
        } catch (const weft::error &e) {
            CHECK_EQ(e.status(), WEFT_ERR_INVALID);
            CHECK_STR(e.what(), weft_last_error());
        }
    }(b.ep[0]));
}

TEST(an_object_of_another_length_is_a_failure)
{
    both b;
    b.run(
        [](weft::endpoint_ref ep) -> weft::task<> {
            co_await ep.send(std::string_view("123"), 1);
            co_await ep.send(std::string_view("12345"), 1);
            co_await ep.send(std::string_view("1234"), 1);
        }(b.ep[0]),
        [](weft::endpoint_ref ep) -> weft::task<> {
            CHECK_EQ((co_await ep.recv<std::uint32_t>(1).as_result()).status(), WEFT_ERR_PROTOCOL);
            CHECK_EQ((co_await ep.recv<std::uint32_t>(1).as_result()).status(), WEFT_ERR_TRUNCATED);
            std::uint32_t n = co_await ep.recv<std::uint32_t>(1);
            CHECK(!memcmp(&n, "1234", 4));
        }(b.ep[1]));
}

/* --- stopping --- */

TEST(a_stop_before_the_post_starts_nothing)
{
    both b;
    std::stop_source stop;
    stop.request_stop();
    b.run(
        [](weft::endpoint_ref ep) -> weft::task<> {
            CHECK((co_await weft::get_stop_token()).stop_requested());
            char buf[8];
            CHECK_EQ((co_await ep.recv(buf, 1).as_result()).status(), WEFT_ERR_CANCELLED);
            CHECK_EQ((co_await ep.send("x", 1).as_result()).status(), WEFT_ERR_CANCELLED);
        }(b.ep[0]),
        stop.get_token());
    b.run([](weft::endpoint_ref ep) -> weft::task<> {
        char buf[8];
        CHECK_EQ((co_await ep.recv(buf, 1).timeout(5ms).as_result()).status(), WEFT_ERR_TIMEOUT);
    }(b.ep[1]));
}

TEST(a_stop_ends_what_a_task_awaits_and_what_its_tasks_await)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        std::stop_source stop;
        auto outer = [](weft::runtime_ref in) -> weft::task<int> { co_return co_await gives(in, 1, 1h); };
        auto stopper = [](weft::runtime_ref in, std::stop_source *s) -> weft::task<> {
            co_await in.sleep_for(2ms);
            s->request_stop();
        };
        weft::scope scope;
        scope.spawn(stopper(rt, &stop));
        CHECK_EQ(weft::try_sync_wait(rt, outer(rt), stop.get_token()).status(), WEFT_ERR_CANCELLED);
        weft::sync_wait(rt, scope.join());
    }
}

TEST(a_token_of_the_library_ends_what_it_was_given_to)
{
    weft::runtime rt = weft::runtime::open();
    weft::token all = rt.new_token(), some = rt.new_token(all), copy = some;
    all.cancel();
    CHECK(copy.cancelled());
    CHECK_EQ(rt.sleep_for(1h).token(some).wait_result().status(), WEFT_ERR_CANCELLED);
}

TEST(a_limit_stops_a_task_and_what_is_in_time_is_not_stopped)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        CHECK_EQ(weft::try_sync_wait(rt, weft::with_timeout(rt, gives(rt, 1, 1h), 2ms)).status(), WEFT_ERR_TIMEOUT);
        CHECK_STR(weft_last_error(), "the task took longer than it may");
        CHECK_EQ(weft::sync_wait(rt, weft::with_timeout(rt, gives(rt, 7, 1ms), 1h)), 7);
        std::stop_source stop;
        stop.request_stop(); /* that is no timeout */
        CHECK_EQ(weft::try_sync_wait(rt, weft::with_timeout(rt, gives(rt, 1, 1h), 1h), stop.get_token()).status(),
                 WEFT_ERR_CANCELLED);
    }
}

/* --- several at once --- */

TEST(all_give_their_values_in_their_order)
{
    both b;
    b.run([](both *all) -> weft::task<> {
        char buf[8];
        auto [sent, got, n, late] = co_await weft::when_all(all->ep[0].send("twice", 1), all->ep[1].recv(buf, 1),
                                                            gives(all->rt[0], 4, 1ms), all->rt[0].sleep_for(1ms));
        (void)sent, (void)late;
        CHECK_EQ(got.len, 5);
        CHECK_EQ(n, 4);
        std::vector<weft::task<int>> many;
        for (int i = 0; i < 50; i++)
            many.push_back(gives(all->rt[0], i, std::chrono::microseconds(50 - i)));
        std::vector<int> values = co_await weft::when_all(std::move(many));
        for (int i = 0; i < 50; i++)
            CHECK_EQ(values[static_cast<unsigned>(i)], i);
        CHECK((co_await weft::when_all(std::vector<weft::task<int>>())).empty());
    }(&b));
}

TEST(the_first_failure_of_all_stops_the_others)
{
    both b;
    b.run([](both *all) -> weft::task<> {
        char buf[8];
        auto got =
            co_await weft::when_all(all->ep[1].recv(buf, 1), all->ep[1].recv(buf, 2).timeout(2ms), gives(all->rt[0], 1, 1h))
                .as_result();
        CHECK_EQ(got.status(), WEFT_ERR_TIMEOUT);
        CHECK(strstr(weft_last_error(), "receive"));
        try {
            co_await weft::when_all(throws_after(all->rt[0], 1ms), gives(all->rt[0], 1, 1h));
            FAIL("nothing was thrown");
        } catch (const std::runtime_error &e) {
            CHECK_STR(e.what(), "as it should");
        }
    }(&b));
}

TEST(the_first_success_of_any_stops_the_others)
{
    both b;
    b.run([](both *all) -> weft::task<> {
        char buf[8];
        auto won = co_await weft::when_any(all->ep[1].recv(buf, 1), gives(all->rt[0], 6, 2ms), throws_after(all->rt[0], 0ns));
        CHECK_EQ(won.index, 1);
        CHECK_EQ(std::get<1>(won.value), 6);
        std::vector<weft::task<int>> many;
        for (int i = 0; i < 20; i++)
            many.push_back(gives(all->rt[0], i, i == 13 ? 1ms : 1h));
        auto first = co_await weft::when_any(std::move(many));
        CHECK_EQ(first.index, 13);
        CHECK_EQ(first.value, 13);
        auto none =
            co_await weft::when_any(all->ep[1].recv(buf, 1).timeout(1ms), all->ep[1].recv(buf, 2).timeout(4ms)).as_result();
        CHECK_EQ(none.status(), WEFT_ERR_TIMEOUT);
        CHECK_EQ((co_await weft::when_any(std::vector<weft::task<int>>()).as_result()).status(), WEFT_ERR_INVALID);
        /* what could not be posted at all has failed, too */
        auto bad = co_await weft::when_any(all->ep[1].recv(weft::bytes(nullptr, 9), 1), all->rt[0].sleep_for(1ms)).as_result();
        CHECK_EQ(bad->index, 1);
    }(&b));
}

TEST(a_scope_joins_what_runs_in_it_and_says_what_failed)
{
    weft::runtime rt = weft::runtime::open();
    weft::sync_wait(rt, [](weft::runtime_ref in) -> weft::task<> {
        weft::scope scope;
        int ended = 0;
        auto one = [](weft::runtime_ref at, int *n, weft::scope *more) -> weft::task<> {
            co_await at.sleep_for(1ms);
            if (more)
                more->spawn([](weft::runtime_ref a, int *m) -> weft::task<> {
                    co_await a.sleep_for(1ms);
                    ++*m;
                }(at, n));
            ++*n;
        };
        for (int i = 0; i < 10; i++)
            scope.spawn(one(in, &ended, i % 2 ? &scope : nullptr));
        CHECK_EQ(scope.size(), 10);
        co_await scope.join();
        CHECK_EQ(ended, 15);
        co_await scope.join();
        scope.spawn([](weft::runtime_ref a) -> weft::task<> { (void)co_await throws_after(a, 1ms); }(in));
        scope.spawn([](weft::runtime_ref a) -> weft::task<weft::result<void>> {
            co_await a.sleep_for(4ms);
            co_return WEFT_ERR_RANGE;
        }(in));
        try {
            co_await scope.join();
            FAIL("nothing was thrown");
        } catch (const std::runtime_error &e) {
            CHECK_STR(e.what(), "as it should");
        }
        scope.spawn(sleeps(in, 1h));
        scope.request_stop();
        CHECK_EQ((co_await scope.try_join()).status(), WEFT_ERR_CANCELLED);
    }(rt));
}

namespace
{

weft::generator<int> counts(weft::runtime_ref rt, int to)
{
    for (int i = 0; i < to; i++) {
        if (i % 3 == 1)
            co_await rt.sleep_for(10us);
        co_yield i;
    }
    throw std::runtime_error("that was all");
}

} // namespace

TEST(a_generator_gives_its_values_and_then_its_exception)
{
    weft::runtime rt = weft::runtime::open();
    weft::sync_wait(rt, [](weft::runtime_ref in) -> weft::task<> {
        weft::generator<int> all = counts(in, 100);
        for (int i = 0; i < 100; i++)
            CHECK_EQ((co_await all.next()).value(), i);
        try {
            (void)co_await all.next();
            FAIL("nothing was thrown");
        } catch (const std::runtime_error &) {
        }
        CHECK(!co_await all.next());
    }(rt));
}

TEST(listeners_and_messages_come_as_generators)
{
    weft::runtime a = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD}), b = weft::runtime::open();
    weft::listener door = a.listen(ports_local("tasks"));
    const std::string uri = door.uri();
    std::atomic<int> served = 0;
    weft::scope scope;
    auto serve = [](weft::endpoint ep, std::atomic<int> *n) -> weft::task<> {
        auto all = weft::messages(ep, 0, WEFT_TAG_ANY);
        while (std::optional<weft::arrived> m = co_await all.next()) {
            CHECK(m->data.text() == "hello");
            ++*n;
        }
        (void)co_await ep.close().as_result();
    };
    scope.spawn([](weft::listener *at, weft::scope *in, std::atomic<int> *n, auto fn) -> weft::task<> {
        auto all = weft::incoming(*at);
        while (std::optional<weft::endpoint> ep = co_await all.next())
            in->spawn(fn(std::move(*ep), n));
    }(&door, &scope, &served, serve));
    for (int i = 0; i < 3; i++)
        weft::sync_wait(b, [](weft::runtime_ref in, std::string to) -> weft::task<> {
            weft::endpoint ep = co_await in.connect(to.c_str()).timeout(20s);
            for (int n = 0; n < 5; n++)
                co_await ep.send("hello", static_cast<std::uint64_t>(n));
            co_await ep.close();
        }(b, uri));
    TEST_UNTIL(served == 15, 60);
    door.close().wait();
    weft::sync_wait(a, scope.join());
}

/* --- what it costs --- */

namespace
{

weft::task<> many_small(weft::endpoint_ref to, weft::endpoint_ref from, unsigned long *before)
{
    char buf[64] = {};
    for (int i = 0; i < 2000; i++) {
        if (i == 1000)
            *before = allocated;
        co_await to.send(buf, 1);
        (void)co_await from.recv(buf, 1).timeout(20s);
        (void)co_await weft::when_all(from.recv(buf, 2), to.send(buf, 2));
        (void)co_await weft::when_any(from.recv(buf, 3), to.send(buf, 4));
        (void)co_await from.recv(buf, 4);
    }
    *before = allocated - *before;
}

} // namespace

TEST(nothing_is_allocated_for_an_awaited_small_message)
{
    both b;
    unsigned long n = 0;
    b.run(many_small(b.ep[0], b.ep[1], &n));
    CHECK_EQ(n, 0);
}

TEST(what_is_complete_at_the_post_does_not_suspend)
{
    both b;
    unsigned long warm = 0;
    b.run(many_small(b.ep[0], b.ep[1], &warm));
    auto sends = [](weft::endpoint_ref ep) -> weft::task<int> {
        int n = 0;
        for (; n < 50; n++)
            co_await ep.send("small", 1);
        co_return n;
    };
    weft::task<int> t = sends(b.ep[0]);
    struct nobody : weft::detail::listener_of_end {
        nobody()
            : listener_of_end{[](listener_of_end *, std::coroutine_handle<>) noexcept -> std::coroutine_handle<> {
                  FAIL("it ended after it was begun");
              }}
        {
        }
    } told;
    CHECK(t.promise().begin(t.frame(), &told)); /* no progress was made: it ended in begin() */
    CHECK_EQ(t.promise().take(), 50);
}
