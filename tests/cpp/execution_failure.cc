/* tests/cpp/execution_failure.cc - senders whose peer dies, whose runtime is closed, whose process was forked; and the scheduler
 * of a runtime.
 * ctest: label=thread */
#include "both.hpp"
#include "kit/checking.hpp"
#include "kit/actions.hpp"
#include <vector>

namespace we = weft::execution;
using namespace checking;
using namespace std::chrono_literals;

namespace
{

weft::runtime threaded()
{
    return weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .heartbeat = 1s});
}

} // namespace

TEST(a_peer_that_is_killed_ends_what_waits_for_it)
{
    for (const char *fabric : {"shm", "tcp"}) {
        int to_parent[2], go[2];
        CHECK(!pipe(to_parent) && !pipe(go));
        const pid_t child = fork(); /* before this process has a runtime */
        if (!child) {
            weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .transports = fabric});
            weft::listener door = rt.listen(ports_tcp());
            const std::string uri = door.uri();
            CHECK(write(to_parent[1], uri.data(), uri.size()) == static_cast<ssize_t>(uri.size()));
            auto [ep] = ex::sync_wait(we::sender(door.accept())).value();
            char c;
            (void)!read(go[0], &c, 1);
            _exit(0);
        }
        char uri[256] = "";
        CHECK(read(to_parent[0], uri, sizeof uri - 1) > 0);
        weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .transports = fabric, .heartbeat = 1s});
        auto [ep] = ex::sync_wait(we::sender(rt.connect(uri))).value();
        std::uint64_t in[3];
        const std::vector<char> large(4 << 20);
        source stop;
        attempt first(we::sender(ep.recv(in[0], 1)), stop);
        attempt second(we::sender(ep.recv(in[1], 2)));
        attempt sends(we::sender(ep.send(large, 3)));
        second.destroy_inside();
        first.start();
        second.start();
        sends.start();
        CHECK(!first.over() && !second.over() && !sends.over());
        kill(child, SIGKILL);
        CHECK(first.wait() == how::error && first.rec.error == weft::errc::peer);
        CHECK(second.wait() == how::error && second.rec.error == weft::errc::peer);
        CHECK(sends.wait() == how::error && sends.rec.error == weft::errc::peer);
        CHECK(first.rec.sentence.find("receive") != std::string::npos);
        attempt late(we::sender(ep.recv(in[2], 1)));
        CHECK(late.run() == how::error && late.rec.error == weft::errc::peer);
        waitpid(child, nullptr, 0);
        for (int i = 0; i < 2; i++) {
            close(to_parent[i]);
            close(go[i]);
        }
    }
}

/* All that is under way completes before the close returns. */
TEST(a_runtime_is_closed_with_senders_under_way)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        we::scheduler s(rt);
        acts::hand hand;
        source stops[3];
        attempt a(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand})), stops[0]);
        attempt b(s.schedule_after(1h), stops[1]);
        attempt c(s.schedule_at(we::clock::time_point::max()), stops[2]);
        attempt d(ex::when_all(s.schedule_after(1h), s.schedule_after(std::chrono::nanoseconds::max())));
        b.destroy_inside();
        a.start();
        b.start();
        c.start();
        d.start();
        rt.close();
        for (how end : {a.rec.end, b.rec.end, c.rec.end, d.rec.end})
            CHECK(end == how::error);
        CHECK(a.rec.error == weft::errc::closed && b.rec.error == weft::errc::closed && d.rec.error == weft::errc::closed);
        stops[0].request_stop();

        attempt late(s.schedule());
        CHECK(late.run() == how::error && late.rec.error == weft::errc::closed && late.rec.inside);
    }
}

/* Another thread starts senders until the runtime is gone: each completes once, in one of three ways. */
TEST(a_runtime_is_closed_while_others_start_senders)
{
    for (int round = 0; round < 20; round++) {
        weft::runtime rt = threaded();
        we::scheduler s(rt);
        std::atomic<int> begun{0};
        std::thread others[2];
        for (std::thread &t : others)
            t = std::thread([&] {
                for (;;) {
                    ex::inplace_stop_source stop;
                    attempt a(s.schedule_after(10us), stop.get_token());
                    attempt b(s.schedule(), stop.get_token());
                    begun++;
                    a.start();
                    b.start();
                    if (begun & 1)
                        stop.request_stop();
                    if (a.wait() == how::error)
                        CHECK(a.rec.error == weft::errc::closed);
                    if (b.wait() == how::error) {
                        CHECK(b.rec.error == weft::errc::closed);
                        return;
                    }
                }
            });
        TEST_UNTIL(begun > 20, patience);
        rt.close();
        for (std::thread &t : others)
            t.join();
    }
}

TEST(a_forked_child_is_told)
{
    weft::runtime rt = threaded();
    we::scheduler s(rt);
    fflush(nullptr);
    const pid_t child = fork();
    if (!child) {
        attempt a(s.schedule());
        const bool told = a.run() == how::error && a.rec.error == weft::errc::forked;
        _exit(told ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
}

/* --- the scheduler ------------------------------------------------------------------------------------------------------ */

TEST(a_scheduler_is_what_it_says)
{
    static_assert(ex::scheduler<we::scheduler>);
    static_assert(ex::get_forward_progress_guarantee(we::scheduler(nullptr)) == ex::forward_progress_guarantee::parallel);
    weft::runtime one = threaded(), two = weft::runtime::open({});
    we::scheduler s(one), same(one.native()), other(two);
    CHECK(s == same && s != other);
    CHECK(ex::get_completion_scheduler<ex::set_value_t>(ex::get_env(ex::schedule(s))) == s);
    CHECK(ex::get_completion_scheduler<ex::set_stopped_t>(ex::get_env(s.schedule_after(1s))) == s);
#if defined(WEFT_STDEXEC)
    static_assert(exec::timed_scheduler<we::scheduler>);
    CHECK(ex::sync_wait(exec::schedule_after(s, 1ms)).has_value());
    CHECK(ex::sync_wait(exec::schedule_at(s, exec::now(s) + 1ms)).has_value());
    CHECK(ex::sync_wait(ex::starts_on(s, ex::just(5)) | ex::then([](int n) { return n; })).has_value());
    CHECK(ex::sync_wait(ex::just(5) | ex::continues_on(s) | ex::then([](int n) { return n; })).has_value());
#endif
}

TEST(what_is_scheduled_goes_on_in_the_runtime)
{
    weft::runtime rt = threaded(), driven = weft::runtime::open({});
    attempt a((we::scheduler(rt)).schedule());
    CHECK(a.run() == how::value && !a.rec.inside && a.rec.where != std::this_thread::get_id());
    attempt b((we::scheduler(driven)).schedule());
    b.start();
    CHECK(!b.over()); /* nobody drives it */
    CHECK(b.wait(driven.native()) == how::value && !b.rec.inside && b.rec.where == std::this_thread::get_id());

    bool there = false;
    attempt inside(we::scheduler(rt).schedule() | ex::then([&]() noexcept { there = weft_runtime_shard(rt.native()) == 0; }));
    CHECK(inside.run() == how::value && there);
}

TEST(time_passes_before_what_is_scheduled_later)
{
    weft::runtime rt = threaded();
    we::scheduler s(rt);
    const auto from = s.now();
    attempt after(s.schedule_after(3ms));
    CHECK(after.run() == how::value);
    CHECK(s.now() - from >= 3ms);
    const auto when = s.now() + 3ms;
    attempt at(s.schedule_at(when));
    CHECK(at.run() == how::value);
    CHECK(s.now() >= when);
    for (auto past : {from, we::clock::time_point(), we::clock::time_point::min()}) {
        attempt over(s.schedule_at(past));
        CHECK(over.run() == how::value);
    }
    attempt negative(s.schedule_after(-1s));
    CHECK(negative.run() == how::value);
}

TEST(turns_come_in_the_order_of_their_start)
{
    weft::runtime rt = weft::runtime::open({});
    we::scheduler s(rt);
    std::vector<int> order;
    const auto turn = [&](int n) { return s.schedule() | ex::then([&order, n]() noexcept { order.push_back(n); }); };
    attempt a(turn(1));
    attempt b(turn(2));
    attempt c(turn(3));
    a.start();
    b.start();
    c.start();
    c.wait(rt.native());
    CHECK(order == std::vector<int>({1, 2, 3}));
}

TEST(a_loop_of_turns_ends)
{
    weft::runtime rt = weft::runtime::open({});
    we::scheduler s(rt);
    int left = 100000;
    we::sync_wait(s, ex::repeat_until(s.schedule() | ex::then([&left]() noexcept { return --left == 0; })));
    CHECK_EQ(left, 0);
}

/* Inside a callback nothing can be waited for. */
TEST(sync_wait_says_where_it_must_not_be_called)
{
    weft::runtime rt = threaded();
    we::scheduler s(rt);
    std::error_code said;
    attempt a(s.schedule() | ex::then([&]() noexcept {
                  try {
                      we::sync_wait(s, s.schedule());
                  } catch (const weft::error &e) {
                      said = e.code();
                  }
              }));
    CHECK(a.run() == how::value);
    CHECK(said == weft::errc::state);
}
