/* tests/cpp/races.cc - the first of several wins while others end, and while somebody stops them all: nothing is lost, nothing
 * comes twice, and no buffer is written afterwards.
 *
 * ctest: label=thread */
#include "both.hpp"

#include <thread>

using namespace std::chrono_literals;

namespace
{

constexpr std::uint64_t MARK = 0x5eed5eed5eed5eed;

/* small numbers, the same in each run */
struct dice {
    std::uint32_t state;
    std::uint32_t roll(std::uint32_t below)
    {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % below;
    }
};

weft::task<> sends(weft::endpoint_ref ep, weft::runtime_ref rt, int n)
{
    dice d = {1};
    for (std::uint64_t i = 1; i <= static_cast<std::uint64_t>(n); i++) {
        if (d.roll(4) == 0)
            co_await rt.sleep_for(std::chrono::microseconds(d.roll(3)));
        co_await ep.send(i, 1);
    }
}

/* Each number is received in a race with a timer and with a receive that never matches. One that the race has consumed though
 * another won is in the buffer. */
weft::task<int> races(weft::endpoint_ref ep, weft::runtime_ref rt, int n)
{
    dice d = {2};
    int won = 0;
    for (std::uint64_t i = 1; i <= static_cast<std::uint64_t>(n); i++) {
        std::uint64_t got = MARK, other = MARK;
        auto first =
            co_await weft::when_any(ep.recv(got, 1), rt.sleep_for(std::chrono::microseconds(d.roll(3))), ep.recv(other, 2));
        CHECK(first.index != 2);
        CHECK(other == MARK);
        if (first.index == 0) {
            won++;
            CHECK_EQ(std::get<0>(first.value).len, sizeof got);
        }
        if (got == MARK)
            got = co_await ep.recv<std::uint64_t>(1).timeout(30s);
        CHECK_EQ(got, i);
    }
    co_return won;
}

weft::task<> counts(weft::task<int> what, int *out)
{
    *out = co_await std::move(what);
}

/* The same as tasks, and the one who awaits is stopped at any moment by another thread. */
weft::task<std::uint64_t> one_number(weft::endpoint_ref ep)
{
    co_return co_await ep.recv<std::uint64_t>(1);
}
weft::task<std::uint64_t> first_number(weft::endpoint_ref ep, weft::runtime_ref rt, std::chrono::nanoseconds time)
{
    auto limit = [](weft::runtime_ref in, std::chrono::nanoseconds t) -> weft::task<std::uint64_t> {
        co_await in.sleep_for(t);
        co_return MARK;
    };
    auto first = co_await weft::when_any(one_number(ep), limit(rt, time));
    co_return first.index ? std::get<1>(first.value) : std::get<0>(first.value);
}

} // namespace

TEST(a_race_loses_no_message_and_takes_none_twice)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD})
        for (const char *uri : {"", "tcp://127.0.0.1:0"}) {
            both b(mode, *uri ? "tcp" : "", *uri ? uri : nullptr);
            const int n = mode == WEFT_PROGRESS_CALLER && !*uri ? 20000 : 3000;
            int won = 0;
            b.run(sends(b.ep[0], b.rt[0], n), counts(races(b.ep[1], b.rt[1], n), &won));
            CHECK(won > 0);
        }
}

TEST(a_stop_at_any_moment_ends_a_race_once)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        both b(mode);
        dice d = {3};
        int stopped = 0, ended = 0;
        std::atomic<std::stop_source *> now = nullptr;
        std::atomic<bool> over = false;
        std::thread stopper([&] {
            dice e = {4};
            while (!over) {
                now.wait(nullptr);
                std::stop_source *s = now.load();
                for (double end = test_now() + e.roll(30) * 1e-6; test_now() < end;)
                    ;
                if (s)
                    s->request_stop();
                now = nullptr;
                now.notify_one();
            }
        });
        for (int i = 0; i < 1000; i++) {
            const bool only_stop = i % 8 == 0, no_stop = i % 8 == 4;
            std::stop_source source;
            if (!no_stop) {
                now = &source;
                now.notify_one();
            }
            if (!only_stop && d.roll(2))
                b.ep[0].post(std::uint64_t(i), 1);
            const auto limit = only_stop ? 1h : std::chrono::nanoseconds(d.roll(20000));
            auto got = weft::try_sync_wait(b.rt[1], first_number(b.ep[1], b.rt[1], limit), source.get_token());
            CHECK(got ? !only_stop || *got != MARK : !no_stop && got.status() == WEFT_ERR_CANCELLED);
            got ? ended++ : stopped++;
            b.rt[0].progress();
            now.wait(&source);
        }
        over = true;
        std::stop_source last;
        now = &last;
        now.notify_one();
        stopper.join();
        CHECK(stopped && ended);
    }
}

TEST(a_limit_and_an_end_at_the_same_moment_give_one_outcome)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        auto one = [](weft::runtime_ref in) -> weft::task<int> {
            co_await in.sleep_for(5us);
            co_return 5;
        };
        weft::sync_wait(rt, [](weft::runtime_ref in, auto fn) -> weft::task<> {
            int n[2] = {};
            for (int i = 0; i < 3000; i++) {
                weft::result<int> got = co_await weft::with_timeout(in, fn(in), 5us).as_result();
                CHECK(got ? *got == 5 : got.status() == WEFT_ERR_TIMEOUT);
                n[!got]++;
            }
        }(rt, one));
    }
}
