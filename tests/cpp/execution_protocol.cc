/* tests/cpp/execution_protocol.cc - each rule of the protocol with each sort of sender: exactly one completion, in its time, with
 * what the action gave; stop callbacks that are gone before it; nothing allocated.
 * ctest: label=thread */
#include "test.h"
#include "kit/checking.hpp"
#include "kit/actions.hpp"
#include <vector>

namespace we = weft::execution;
using namespace checking;
using namespace std::chrono_literals;

namespace
{

std::atomic<long> allocations{0};

} // namespace

__attribute__((noinline)) void *operator new(std::size_t n)
{
    allocations++;
    if (void *p = std::malloc(n))
        return p;
    std::abort();
}
__attribute__((noinline)) void operator delete(void *p) noexcept
{
    std::free(p);
}
__attribute__((noinline)) void operator delete(void *p, std::size_t) noexcept
{
    std::free(p);
}

namespace
{

/* --- every sort of sender ----------------------------------------------------------------------------------------------- */

struct world {
    weft::runtime mine = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD}), ours = weft::runtime::open({});
    weft_runtime_t *threaded = mine.native(), *driven = ours.native();
    acts::hand nobody;
};

template <class Fn> void each_sender(world &w, Fn fn)
{
    const auto timer = [](weft_runtime_t *rt) {
        return weft::detail::make_action<void>([rt](weft_op_t *op) noexcept { return weft_timer_start(rt, 1000, op); },
                                               [](weft_op_t &) noexcept {});
    };
    fn("at once, nothing", how::value, w.driven, [&] { return we::sender(weft::action(acts::at_once<>{w.driven})); });
    fn("at once, a number", how::value, w.driven, [&] { return we::sender(weft::action(acts::at_once<int>{w.driven})); });
    fn("at once, from outside", how::value, nullptr, [&] { return we::sender(weft::action(acts::at_once<int>{w.threaded})); });
    fn("at once, an owned thing", how::value, w.driven,
       [&] { return we::sender(weft::action(acts::at_once<acts::owned>{w.driven})); });
    fn("at once, a failure", how::error, w.driven, [&] {
        return we::sender(weft::action(acts::at_once<int>{w.driven, WEFT_ERR_PEER}));
    });
    fn("refused", how::error, nullptr, [&] { return we::sender(weft::action(acts::refused{WEFT_ERR_INVALID})); });
    fn("a timer", how::value, nullptr, [&] { return we::sender(timer(w.threaded)); });
    fn("a timer, driven", how::value, w.driven, [&] { return we::sender(timer(w.driven)); });
    fn("schedule", how::value, nullptr, [&] { return we::scheduler(w.threaded).schedule(); });
    fn("schedule, driven", how::value, w.driven, [&] { return we::scheduler(w.driven).schedule(); });
    fn("schedule_after", how::value, nullptr, [&] { return we::scheduler(w.threaded).schedule_after(10us); });
    fn("schedule_at", how::value, w.driven, [&] { return we::scheduler(w.driven).schedule_at(we::clock::now() + 10us); });
    fn("a deadline", how::error, nullptr, [&] {
        return we::sender(weft::action(acts::by_hand<>{w.threaded, &w.nobody}).timeout(100us));
    });
}

} // namespace

/* Each sender, each sort of token, and the state destroyed in the completion or after it. */
TEST(every_sender_completes_once_and_in_its_time)
{
    world w;
    each_sender(w, [](const char *name, how expected, weft_runtime_t *drive, auto make) {
        for (bool inside : {false, true}) {
            const auto check = [&](auto &&a) {
                if (inside)
                    a.destroy_inside();
                if (a.run(drive) != expected)
                    FAIL("%s: ended as %d", name, static_cast<int>(a.rec.end));
            };
            check(attempt(make()));
            check(attempt(make(), ex::inplace_stop_token()));
            ex::inplace_stop_source plain;
            check(attempt(make(), plain.get_token()));
            source counting, impossible(false);
            check(attempt(make(), counting));
            check(attempt(make(), impossible));
            CHECK_EQ(counting.registered() + impossible.registered(), 0);
        }
    });
    CHECK_EQ(acts::owned::alive, 0);
}

TEST(what_is_not_started_does_nothing)
{
    world w;
    each_sender(w, [](const char *, how, weft_runtime_t *, auto make) {
        source stop;
        auto unconnected = make();
        attempt a(make(), stop);
        CHECK(!a.over() && !stop.ever());
        (void)unconnected;
    });
    CHECK(!w.nobody.begun());
    CHECK_EQ(acts::owned::alive, 0);
}

TEST(a_value_arrives_as_the_action_gives_it)
{
    world w;
    attempt number(we::sender(weft::action(acts::at_once<int>{w.driven})));
    number.run();
    CHECK_EQ(std::any_cast<int>(number.rec.value), 42);

    const auto taken = ex::sync_wait(we::sender(weft::action(acts::at_once<acts::owned>{w.driven})) |
                                     ex::then([](acts::owned &&one) { return std::make_unique<acts::owned>(std::move(one)); }));
    CHECK_EQ(std::get<0>(*taken)->value, 42);
    CHECK_EQ(acts::owned::alive, 1);
}

TEST(a_failure_arrives_with_its_code_and_its_sentence)
{
    world w;
    attempt late(we::sender(weft::action(acts::by_hand<>{w.threaded, &w.nobody}).timeout(100us)));
    CHECK(late.run() == how::error);
    CHECK(late.rec.error == weft::errc::timeout && late.rec.error == std::errc::timed_out);
    CHECK_STR(late.rec.sentence.c_str(), "by hand: the deadline passed");

    attempt no(we::sender(weft::action(acts::refused{WEFT_ERR_LIMIT})));
    CHECK(no.run() == how::error && no.rec.inside);
    CHECK(no.rec.error == weft::errc::limit);
    CHECK_STR(no.rec.sentence.c_str(), "it was refused");

    try {
        ex::sync_wait(we::sender(weft::action(acts::refused{WEFT_ERR_LIMIT})));
        FAIL("nothing was thrown");
    } catch (const std::system_error &e) {
        CHECK(e.code() == weft::errc::limit);
    }
    try {
        we::sync_wait(we::scheduler(w.driven), we::sender(weft::action(acts::refused{WEFT_ERR_LIMIT})));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK(e.code() == weft::errc::limit);
        CHECK_STR(e.what(), "it was refused");
    }
}

TEST(a_success_that_the_action_does_not_take_for_one_is_a_failure_and_is_let_go_of)
{
    world w;
    int abandoned = 0;
    attempt a(we::sender(weft::action(acts::unhappy{w.driven, &abandoned})));
    CHECK(a.run() == how::error);
    CHECK(a.rec.error == weft::errc::protocol);
    CHECK_STR(a.rec.sentence.c_str(), "it was not what was asked for");
    CHECK_EQ(abandoned, 1);
}

TEST(what_can_be_copied_can_be_connected_again)
{
    world w;
    const auto once = we::sender(weft::action(acts::at_once<int>{w.driven}));
    for (int i = 0; i < 3; i++) {
        const auto got = ex::sync_wait(once);
        CHECK_EQ(std::get<0>(*got), 42);
    }
    struct alone : acts::at_once<> {
        std::unique_ptr<int> mine;
    };
    using moved = decltype(we::sender(std::declval<weft::action<alone>>()));
    static_assert(ex::sender_to<moved, receiver<ex::never_stop_token>>);
    static_assert(!ex::sender_to<const moved &, receiver<ex::never_stop_token>>);
}

/* --- what the types say ------------------------------------------------------------------------------------------------- */

namespace
{

using void_sender = decltype(we::sender(std::declval<weft::action<acts::at_once<>>>()));
using int_sender = decltype(we::sender(std::declval<weft::action<acts::at_once<int>>>()));
using schedule_sender = decltype(std::declval<we::scheduler>().schedule());

template <class S, class... Signatures>
concept completes_with = std::same_as<ex::completion_signatures_of_t<S, ex::env_of_t<receiver<ex::never_stop_token>>>,
                                      ex::completion_signatures<Signatures...>>;
static_assert(ex::sender<void_sender> && ex::sender_in<void_sender> && ex::sender<schedule_sender>);
static_assert(completes_with<void_sender, ex::set_value_t(), ex::set_error_t(std::error_code), ex::set_stopped_t()>);
static_assert(completes_with<int_sender, ex::set_value_t(int), ex::set_error_t(std::error_code), ex::set_stopped_t()>);
static_assert(completes_with<schedule_sender, ex::set_value_t(), ex::set_error_t(std::error_code), ex::set_stopped_t()>);
static_assert(std::is_nothrow_move_constructible_v<void_sender>);

/* A receiver that does not take all of the completions is no receiver of it. */
struct forgetful {
    using receiver_concept = ex::receiver_tag;
    void set_value() &&noexcept
    {
    }
    void set_stopped() &&noexcept
    {
    }
};
static_assert(!ex::sender_to<void_sender, forgetful>);
struct plain { /* without an environment */
    using receiver_concept = ex::receiver_tag;
    void set_value() &&noexcept
    {
    }
    void set_error(std::error_code) &&noexcept
    {
    }
    void set_stopped() &&noexcept
    {
    }
};
static_assert(ex::sender_to<void_sender, plain> && !ex::sender_to<int_sender, plain>);

template <class S, class Token> using state_of = decltype(ex::connect(std::declval<S>(), std::declval<receiver<Token>>()));
static_assert(ex::operation_state<state_of<void_sender, ex::inplace_stop_token>>);
static_assert(!std::is_move_constructible_v<state_of<void_sender, ex::inplace_stop_token>>);
/* the operation, the action, the receiver; a callback only where there can be a stop */
static_assert(sizeof(state_of<void_sender, ex::never_stop_token>) <=
              8 + sizeof(weft_op_t) + sizeof(weft::action<acts::at_once<>>) + sizeof(receiver<ex::never_stop_token>));
static_assert(sizeof(state_of<void_sender, ex::inplace_stop_token>) > sizeof(state_of<void_sender, ex::never_stop_token>));

/* Nobody has to ask a token that never stops. */
struct untouchable {
    template <class> struct callback_type {
        template <class F> callback_type(untouchable, F &&) noexcept
        {
            FAIL("a callback was registered with a token that never stops");
        }
    };
    static bool stop_requested() noexcept
    {
        FAIL("a token that never stops was asked");
    }
    static constexpr bool stop_possible() noexcept
    {
        return false;
    }
    bool operator==(const untouchable &) const = default;
};
static_assert(ex::unstoppable_token<untouchable>);

} // namespace

TEST(a_token_that_never_stops_is_not_asked)
{
    world w;
    each_sender(w, [](const char *, how expected, weft_runtime_t *drive, auto make) {
        attempt a(make(), untouchable());
        CHECK(a.run(drive) == expected);
    });
}

/* --- costs and bounds --------------------------------------------------------------------------------------------------- */

TEST(nothing_is_allocated)
{
    world w;
    ex::inplace_stop_source stop;
    long made = 0;
    const auto count = [&](auto sender, auto token, weft_runtime_t *drive) {
        record rec;
        rec.connected = true;
        long before = allocations;
        {
            auto op = ex::connect(std::move(sender), receiver<decltype(token)>(&rec, token));
            rec.started = true;
            ex::start(op);
            while (!rec.over)
                weft_runtime_progress(drive);
        }
        made += allocations - before;
        CHECK(rec.end == how::value);
    };
    const auto rounds = [&] {
        made = 0;
        for (int i = 0; i < 100; i++) {
            count(we::sender(weft::action(acts::at_once<>{w.driven})), ex::never_stop_token(), w.driven);
            count(we::sender(weft::action(acts::at_once<>{w.driven})), stop.get_token(), w.driven);
            count(we::scheduler(w.driven).schedule(), stop.get_token(), w.driven);
            count(we::scheduler(w.driven).schedule_after(1us), ex::never_stop_token(), w.driven);
        }
    };
    rounds();
    CHECK_EQ(made, 0);
}

namespace
{

struct deep {
    weft_runtime_t *rt;
    int left;
    std::atomic<unsigned> most{0};
    std::atomic<bool> over{false};
};
thread_local unsigned inside_each_other = 0;

/* Connects and starts the next in the completion of the last, with nothing that unwinds. */
struct next_receiver {
    using receiver_concept = ex::receiver_tag;
    deep *d;
    void set_value() &&noexcept;
    void set_error(std::error_code) &&noexcept
    {
        FAIL("an error");
    }
    void set_stopped() &&noexcept
    {
        FAIL("it was stopped");
    }
};
struct chain {
    decltype(ex::connect(std::declval<void_sender>(), std::declval<next_receiver>())) op;
    explicit chain(deep *d) : op(ex::connect(we::sender(weft::action(acts::at_once<>{d->rt})), next_receiver{d}))
    {
    }
};
std::vector<std::unique_ptr<chain>> chains;

void next_receiver::set_value() &&noexcept
{
    deep *const of = d;
    of->most = std::max(of->most.load(), ++inside_each_other);
    if (--of->left > 0) {
        chains.push_back(std::make_unique<chain>(of));
        ex::start(chains.back()->op);
    } else {
        of->over = true;
    }
    inside_each_other--;
}

} // namespace

/* No matter how the loop is written: completions inside start() are inside each other at most 16 times, in one that
 * comes from the runtime. */
TEST(completions_in_start_do_not_nest_without_bound)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        weft::runtime rt = weft::runtime::open({.progress = mode});
        deep d{.rt = rt.native(), .left = 20000};
        chains.push_back(std::make_unique<chain>(&d));
        ex::start(chains.back()->op);
        const double end = test_now() + patience;
        while (!d.over) {
            rt.progress();
            if (test_now() > end)
                FAIL("it does not end");
        }
        rt.close(); /* and with it the callback that is the last */
        CHECK(d.most >= 16 && d.most <= 17 && d.left == 0);
        chains.clear();
    }
}

TEST(a_loop_of_senders_that_complete_at_once_ends)
{
    world w;
    int left = 200000;
    auto loop = ex::repeat_until(we::sender(weft::action(acts::at_once<>{w.driven})) |
                                 ex::then([&left]() noexcept { return --left == 0; }));
    we::sync_wait(we::scheduler(w.driven), std::move(loop));
    CHECK_EQ(left, 0);
}

/* --- with what others wrote --------------------------------------------------------------------------------------------- */

TEST(senders_compose)
{
    world w;
    we::scheduler one(w.threaded), two(w.driven);
    auto sum = ex::when_all(
                   we::sender(weft::action(acts::at_once<int>{w.threaded})), one.schedule_after(1ms) | ex::then([] { return 7; }),
                   two.schedule() | ex::let_value([two] { return two.schedule_after(1ms) | ex::then([] { return 1; }); })) |
               ex::then([](int a, int b, int c) { return a + b + c; });
    CHECK_EQ(std::get<0>(*we::sync_wait(two, std::move(sum))), 50);

    /* one fails, the others are stopped */
    acts::hand waits;
    try {
        we::sync_wait(two, ex::when_all(we::sender(weft::action(acts::by_hand<int>{w.threaded, &waits})),
                                        we::sender(weft::action(acts::at_once<int>{w.driven, WEFT_ERR_PEER}))));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK(e.code() == weft::errc::peer);
    }

    /* the first wins, the others are stopped */
    const auto first = we::sync_wait(two, ex::when_any(we::sender(weft::action(acts::by_hand<int>{w.threaded, &waits})),
                                                       two.schedule_after(1ms) | ex::then([] { return 3; })));
    CHECK_EQ(std::get<0>(*first), 3);
}

TEST(an_exception_of_the_program_goes_to_who_waits)
{
    world w;
    we::scheduler s(w.driven);
    try {
        we::sync_wait(s, s.schedule() | ex::then([]() -> int { throw std::runtime_error("no"); }));
        FAIL("nothing was thrown");
    } catch (const std::runtime_error &e) {
        CHECK_STR(e.what(), "no");
    }
}
