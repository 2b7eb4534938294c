/* tests/cpp/execution_stop.cc - stopping senders: before the start, under way, in the completion, from other threads; and races
 * of that with completions, on both fabrics.
 * ctest: label=thread */
#include "both.hpp"
#include "kit/checking.hpp"
#include "kit/actions.hpp"

namespace we = weft::execution;
using namespace checking;
using namespace std::chrono_literals;

namespace
{

weft::runtime threaded()
{
    return weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
}

} // namespace

TEST(a_stop_before_the_start_starts_nothing)
{
    weft::runtime rt = threaded(), driven = weft::runtime::open({});
    acts::hand hand;
    for (bool inside : {false, true}) {
        const auto stopped = [&](auto sender, weft_runtime_t *drive) {
            source stop;
            attempt a(std::move(sender), stop);
            if (inside)
                a.destroy_inside();
            stop.request_stop();
            CHECK(a.run(drive) == how::stopped);
        };
        stopped(we::sender(weft::action(acts::at_once<acts::owned>{driven.native()})), driven.native());
        stopped(we::sender(weft::action(acts::at_once<int>{rt.native()})), nullptr);
        stopped(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand})), nullptr);
        stopped(we::scheduler(rt).schedule(), nullptr);
        stopped(we::scheduler(driven).schedule(), driven.native());
        stopped(we::scheduler(rt).schedule_after(std::chrono::nanoseconds::max()), nullptr);
    }
    CHECK(!hand.begun());
    CHECK_EQ(acts::owned::alive, 0);
}

/* The call is wrong whether it is to be stopped or not. */
TEST(a_refused_post_is_an_error_even_if_a_stop_was_asked_for)
{
    source stop;
    stop.request_stop();
    attempt a(we::sender(weft::action(acts::refused{WEFT_ERR_INVALID})), stop);
    CHECK(a.run() == how::error && a.rec.error == weft::errc::invalid);
}

TEST(a_stop_ends_what_is_under_way)
{
    weft::runtime rt = threaded();
    acts::hand hand;
    for (bool inside : {false, true}) {
        source stop;
        attempt a(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand})), stop);
        if (inside)
            a.destroy_inside();
        a.start();
        TEST_UNTIL(hand.begun(), patience);
        CHECK(!a.over() && stop.registered() == 1);
        stop.request_stop();
        CHECK(a.wait() == how::stopped);
        CHECK_EQ(stop.registered(), 0);
        CHECK_EQ(stop.ever(), 1);
    }
}

/* The receiver may think that it is over when it has its stop; the buffers are not free before. */
TEST(a_stop_waits_until_the_library_lets_go)
{
    weft::runtime rt = threaded();
    acts::hand stubborn(true);
    source stop;
    attempt a(we::sender(weft::action(acts::by_hand<int>{rt.native(), &stubborn})), stop);
    a.start();
    TEST_UNTIL(stubborn.begun(), patience);
    stop.request_stop();
    TEST_UNTIL(stubborn.cancels() == 1, patience);
    CHECK(!a.over());
    stubborn.complete(rt.native(), WEFT_ERR_CANCELLED);
    CHECK(a.wait() == how::stopped);
}

TEST(what_is_complete_before_the_stop_is_a_value)
{
    weft::runtime rt = threaded();
    acts::hand stubborn(true);
    source stop;
    attempt a(we::sender(weft::action(acts::by_hand<int>{rt.native(), &stubborn})), stop);
    a.start();
    TEST_UNTIL(stubborn.begun(), patience);
    stop.request_stop();
    TEST_UNTIL(stubborn.cancels() == 1, patience);
    stubborn.complete(rt.native(), WEFT_OK);
    CHECK(a.wait() == how::value);
}

TEST(a_cancel_that_the_receiver_did_not_ask_for_is_an_error)
{
    weft::runtime rt = threaded();
    acts::hand hand;
    source stop;
    weft::token token = rt.new_token();
    attempt a(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand}).token(token)), stop);
    attempt b(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand}).token(token)));
    a.start();
    TEST_UNTIL(hand.begun(), patience);
    token.cancel();
    CHECK(a.wait() == how::error && a.rec.error == weft::errc::cancelled);
    CHECK(a.rec.error == std::errc::operation_canceled);
    CHECK(b.run() == how::error && b.rec.error == weft::errc::cancelled);
}

TEST(a_stop_in_the_completion_is_too_late_and_harmless)
{
    weft::runtime rt = threaded();
    for (int i = 0; i < 100; i++) {
        source stop;
        attempt a(we::scheduler(rt).schedule(), stop);
        a.rec.user = &stop;
        a.rec.ending = [](record *, void *s) { static_cast<source *>(s)->request_stop(); };
        CHECK(a.run() == how::value);
    }
}

/* In a callback of the runtime the operation may end inside request_stop(), and with it the operation state and the callback that
 * runs. */
TEST(a_stop_from_a_callback_of_the_runtime)
{
    weft::runtime rt = threaded();
    acts::hand hand;
    for (bool inside : {false, true}) {
        source stop;
        attempt waits(we::sender(weft::action(acts::by_hand<int>{rt.native(), &hand})), stop);
        if (inside)
            waits.destroy_inside();
        waits.start();
        TEST_UNTIL(hand.begun(), patience);
        attempt asks(we::scheduler(rt).schedule() | ex::then([&]() noexcept { stop.request_stop(); }));
        CHECK(asks.run() == how::value);
        CHECK(waits.wait() == how::stopped);
    }
}

TEST(what_closes_is_carried_out_though_it_is_stopped)
{
    both b(WEFT_PROGRESS_THREAD);
    weft_ep_id_t id = b.ep[0].id();
    source stop;
    attempt a(we::sender(b.ep[0].close()), stop);
    stop.request_stop();
    a.run();
    TEST_UNTIL(!weft_ep_find(b.rt[0].native(), id), patience);
}

/* --- races -------------------------------------------------------------------------------------------------------------- */

/* 100,000 in total, fewer where a sanitizer makes each slow. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RACES = 5000 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
enum { RACES = 5000 };
#else
enum { RACES = 100000 };
#endif
#else
enum { RACES = 100000 };
#endif

namespace
{

/* Where the two runtimes of a race are, and who drives them. With threads each race wakes some, so there are fewer. */
struct place {
    const char *fabric;
    weft_progress_mode_t mode;
    int races; /* of 100 */
};
const place places[] = {{"shm", WEFT_PROGRESS_CALLER, 12},
                        {"tcp", WEFT_PROGRESS_CALLER, 12},
                        {"shm", WEFT_PROGRESS_THREAD, 1},
                        {"tcp", WEFT_PROGRESS_THREAD, 1}};

/* A thread that asks a source to stop at about the moment that it is told to. */
template <class Source> class stopper
{
  public:
    stopper() : thread_([this] { run(); })
    {
    }
    ~stopper()
    {
        quit_ = true;
        thread_.join();
    }
    void stop(Source *s, unsigned pause) noexcept
    {
        pause_ = pause;
        next_.store(s, std::memory_order_release);
    }
    bool done() const noexcept
    {
        return !next_.load(std::memory_order_acquire);
    }

  private:
    void run() noexcept
    {
        while (!quit_) {
            Source *s = next_.load(std::memory_order_acquire);
            if (!s) {
                std::this_thread::yield();
                continue;
            }
            for (unsigned n = pause_; n; n--)
                std::atomic_signal_fence(std::memory_order_seq_cst);
            s->request_stop();
            next_.store(nullptr, std::memory_order_release);
        }
    }
    std::atomic<Source *> next_{nullptr};
    std::atomic<bool> quit_{false};
    unsigned pause_ = 0;
    std::thread thread_;
};

class dice
{
  public:
    unsigned below(unsigned n) noexcept
    {
        state_ = state_ * 1103515245 + 12345;
        return (state_ >> 16) % n;
    }

  private:
    unsigned state_ = 1;
};

template <class Attempt> how ended(both &b, Attempt &a)
{
    b.until([&] { return a.over(); });
    return a.rec.end;
}

} // namespace

/* A message is on its way to a receive that another thread stops. Either it is there, whole, or it was stopped: then the next
 * receive has it. */
TEST(receives_that_are_stopped_as_their_message_comes)
{
    for (const place &p : places) {
        both b(p.mode, p.fabric, ports_tcp());
        stopper<source> other;
        dice random;
        long values = 0, stopped = 0;
        for (int i = 0; i < RACES / 100 * p.races; i++) {
            std::uint64_t out = static_cast<std::uint64_t>(i), in = 0;
            source stop;
            attempt gets(we::sender(b.ep[1].recv(in, 1)), stop);
            if (i & 1)
                gets.destroy_inside();
            if (i % 16) /* of sixteen, one is never stopped and one surely is */
                other.stop(&stop, random.below(0x1800));
            gets.start();
            if (i % 16 == 1)
                CHECK(ended(b, gets) == how::stopped);
            b.ep[0].post(out, 1);
            switch (ended(b, gets)) {
            case how::value:
                values++;
                break;
            case how::stopped: {
                stopped++;
                attempt again(we::sender(b.ep[1].recv(in, 1)));
                again.start();
                CHECK(ended(b, again) == how::value);
                break;
            }
            default:
                FAIL("%s", gets.rec.sentence.c_str());
            }
            CHECK_EQ(in, out);
            b.until([&] { return other.done(); });
            CHECK_EQ(stop.registered(), 0);
        }
        printf("# %s: %ld values, %ld stopped\n", p.fabric, values, stopped);
        CHECK(values && stopped);
    }
}

/* Two receives, of which the first that has its message stops the other; nothing is lost and nothing comes twice. */
TEST(when_any_of_two_receives)
{
    for (const place &p : places) {
        both b(p.mode, p.fabric, ports_tcp());
        dice random;
        for (int i = 0; i < RACES / 100 * p.races; i++) {
            int in[2] = {-1, -1}, out = i;
            const int which = static_cast<int>(random.below(2));
            const auto receive = [&](int k) {
                return we::sender(b.ep[1].recv(in[k], static_cast<std::uint64_t>(k))) |
                       ex::then([k](weft::received) noexcept { return k; });
            };
            attempt any(ex::when_any(receive(0), receive(1)));
            if (i & 2)
                any.destroy_inside();
            any.start();
            b.ep[0].post(out, static_cast<std::uint64_t>(which));
            CHECK(ended(b, any) == how::value);
            CHECK(std::any_cast<int>(any.rec.value) == which && in[which] == i && in[!which] == -1);
        }
    }
}

/* Both have their message at about the same time: one wins, and the other has it or leaves it for the next. */
TEST(when_any_with_two_winners)
{
    for (const place &p : places) {
        both b(p.mode, p.fabric, ports_tcp());
        for (int i = 0; i < RACES / 100 * p.races; i++) {
            int in[2] = {-1, -1}, out = i;
            const auto receive = [&](int k) { return we::sender(b.ep[1].recv(in[k], static_cast<std::uint64_t>(k))); };
            attempt any(ex::when_any(receive(0), receive(1)));
            any.start();
            b.ep[0].post(out, 0);
            b.ep[0].post(out, 1);
            CHECK(ended(b, any) == how::value);
            CHECK(in[0] == i || in[1] == i);
            for (int k = 0; k < 2; k++) {
                if (in[k] == -1) {
                    attempt rest(receive(k));
                    rest.start();
                    CHECK(ended(b, rest) == how::value);
                }
                CHECK_EQ(in[k], i);
            }
        }
    }
}

/* Timers and a turn, of which the first wins, against a stop, all within microseconds. */
TEST(when_any_of_timers_that_are_stopped)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        we::scheduler s(rt);
        stopper<ex::inplace_stop_source> other;
        dice random;
        long values = 0, stopped = 0;
        for (int i = 0; i < RACES / 100 * (mode == WEFT_PROGRESS_CALLER ? 20 : 2); i++) {
            ex::inplace_stop_source stop;
            attempt any(ex::when_any(s.schedule_after(std::chrono::nanoseconds(random.below(0x8000))), s.schedule_after(20us)),
                        stop.get_token());
            if (i & 1)
                any.destroy_inside();
            if (i % 16)
                other.stop(&stop, random.below(0x1000));
            while (i % 16 == 1 && !other.done())
                std::this_thread::yield();
            any.start();
            const how end = any.wait(mode == WEFT_PROGRESS_CALLER ? rt.native() : nullptr);
            CHECK(end == how::value || end == how::stopped);
            (end == how::value ? values : stopped)++;
            while (!other.done())
                std::this_thread::yield();
        }
        printf("# %ld values, %ld stopped\n", values, stopped);
        CHECK(values && stopped);
    }
}
