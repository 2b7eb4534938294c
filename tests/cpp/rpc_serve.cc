/* tests/cpp/rpc_serve.cc - handlers that answer later: coroutines, pending requests, large results; and how their requests end.
 * ctest: label=thread */
#include "desk.hpp"

#include <thread>

using namespace std::chrono_literals;

namespace
{

/* A captured object whose end is seen. */
struct token_of {
    std::shared_ptr<int> alive = std::make_shared<int>(0);
};

/* A handler that sleeps for a minute unless it is stopped. */
struct sleeper {
    weft::runtime_ref rt;
    std::atomic<int> begun{0}, stopped{0}, ended{0};

    weft::task<int> operator()(int x)
    {
        begun++;
        auto slept = co_await rt.sleep_for(60s).as_result();
        if (slept.status() == WEFT_ERR_CANCELLED)
            stopped++;
        ended++;
        co_return x;
    }
};

/* Goes on on a thread of its own. */
struct elsewhere {
    std::thread &thread;
    bool await_ready() const noexcept
    {
        return false;
    }
    void await_suspend(std::coroutine_handle<> h)
    {
        thread = std::thread([h] { h.resume(); });
    }
    void await_resume() const noexcept
    {
    }
};

} // namespace

TEST(a_coroutine_answers_when_it_ends)
{
    desk d;
    d.calc.add("later", [&d](int x, std::string text) -> weft::task<std::string> {
        co_await d.rt[0].sleep_for(5ms);
        co_return text + std::to_string(x);
    });
    d.calc.add("at_once", [](std::string_view text) -> weft::task<std::size_t> { co_return text.size(); });
    d.calc.add("nothing", [&d]() -> weft::task<> { co_await d.rt[0].sleep_for(1ms); });
    d.calc.add("may_fail", [&d](int x) -> weft::task<weft::call_result<int>> {
        co_await d.rt[0].schedule();
        if (x < 0)
            co_return weft::call_failure{weft::code::out_of_range, "negative"};
        co_return x;
    });
    d.calc.add("who", [&d](weft::request &r, int) -> weft::task<std::uint64_t> {
        co_await d.rt[0].schedule();
        co_return r.from();
    });
    CHECK(d.get(d.client.call<std::string>("later", 7, "number ")) == "number 7");
    CHECK_EQ(d.get(d.client.call<std::size_t>("at_once", std::string(100000, 'x'))), 100000);
    d.get(d.client.call<void>("nothing"));
    CHECK_EQ(d.get(d.client.call<int>("may_fail", 3)), 3);
    CHECK(d.fails(d.client.call<int>("may_fail", -3)).message == "negative");
    CHECK_EQ(d.get(d.client.call<std::uint64_t>("who", 1)), d.ep[0].id());
}

TEST(views_stay_valid_until_the_coroutine_ends)
{
    desk d;
    d.calc.add("sum", [&d](std::span<const int> all, std::string_view text) -> weft::task<long> {
        long sum = 0;
        for (int i = 0; i < 20; i++) {
            co_await d.rt[0].schedule();
            for (int x : all)
                sum += x;
            for (char c : text)
                sum += c == 'a';
        }
        co_return sum;
    });
    for (std::size_t n : {1u, 10u, 1000u, 100000u})
        CHECK_EQ(d.get(d.client.call<long>("sum", std::vector<int>(n, 2), std::string(n, 'a'))), 60 * n);
}

TEST(what_a_coroutine_throws_is_the_answer)
{
    desk d;
    d.calc.add("inner", [](int x) {
        if (x < 0)
            throw weft::call_error(weft::code::out_of_range, "negative", WEFT_CATEGORY_USER, x);
        return x;
    });
    weft::client back = weft::client::on(d.ep[0]); /* either side of a connection may call the other */
    weft::service mirror = weft::service::open(d.rt[1], "mirror");
    mirror.add("inner", [](int x) {
        if (x < 0)
            throw weft::call_error(weft::code::out_of_range, "negative", WEFT_CATEGORY_USER, x);
        return x;
    });
    d.calc.add("outer", [&back](int x) -> weft::task<int> { co_return 1 + co_await back.call<int>("inner", x); });
    d.calc.add("odd", [&d](int) -> weft::task<int> {
        co_await d.rt[0].schedule();
        throw std::out_of_range("that odd");
    });
    CHECK_EQ(d.get(d.client.call<int>("outer", 41)), 42);
    weft::call_failure why = d.fails(d.client.call<int>("outer", -1)); /* the code of the call that it made */
    CHECK(why.code == weft::code::out_of_range && why.message == "negative" && why.value == -1);
    why = d.fails(d.client.call<int>("odd", 1));
    CHECK(why.code == weft::code::internal && why.message == "that odd");
}

TEST(a_cancelled_call_stops_its_coroutine)
{
    desk d;
    sleeper s{d.rt[0]};
    d.calc.add("sleep", [&s](int x) { return s(x); });
    for (int i = 1; i <= 3; i++) {
        auto call = d.client.call<int>("sleep", i);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(call.post(&op));
        d.until([&] { return s.begun == i; });
        weft_op_cancel(&op);
        d.until([&] { return weft_op_done(&op) && s.ended == i; });
        CHECK_EQ(op.status, WEFT_ERR_CANCELLED);
    }
    CHECK_EQ(s.stopped, 3);
    while (s.begun == 3) /* its deadline does so too */
        CHECK_EQ(d.fails(d.client.call<int>("sleep", 4).timeout(50ms)).status, WEFT_ERR_TIMEOUT);
    d.until([&] { return s.ended == s.begun; });
    CHECK_EQ(s.stopped, s.begun);
}

TEST(a_caller_stopped_by_its_token_stops_the_coroutine_that_answers)
{
    desk d;
    sleeper s{d.rt[0]};
    d.calc.add("sleep", [&s](int x) { return s(x); });
    std::stop_source stop;
    std::thread stopper([&] {
        TEST_UNTIL(s.begun > 0, 60);
        stop.request_stop();
    });
    try {
        d.run([](weft::client &c) -> weft::task<> { (void)co_await c.call<int>("sleep", 1); }(d.client), stop.get_token());
        FAIL("nothing was thrown");
    } catch (const weft::call_error &e) {
        CHECK(e.status() == WEFT_ERR_CANCELLED && e.call_code() == weft::code::cancelled);
    }
    stopper.join();
    d.until([&] { return s.stopped == 1; });
}

TEST(closing_a_service_stops_its_coroutines_and_waits_for_them)
{
    desk d(WEFT_PROGRESS_THREAD);
    auto s = std::make_unique<sleeper>();
    s->rt = d.rt[0];
    d.calc.add("sleep", [&s = *s](int x) { return s(x); });
    auto call = d.client.call<int>("sleep", 1);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    TEST_UNTIL(s->begun == 1, 60);
    d.calc = {}; /* the old one goes with the temporary */
    CHECK(s->ended == 1 && s->stopped == 1);
    s.reset();
    CHECK_EQ(weft_op_wait(&op, WEFT_FOREVER), WEFT_ERR_CALL);
    CHECK(call.spec().failed(op.status, "").failure().code == weft::code::unavailable);
}

TEST(a_lost_caller_stops_the_coroutine)
{
    desk d;
    sleeper s{d.rt[0]};
    d.calc.add("sleep", [&s](int x) { return s(x); });
    auto call = d.client.call<int>("sleep", 1);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    d.until([&] { return s.begun == 1; });
    CHECK_OK(weft_ep_abort(d.ep[1].release(), nullptr));
    d.until([&] { return s.ended == 1 && weft_op_done(&op); });
    CHECK_EQ(s.stopped, 1);
    CHECK(op.status != WEFT_OK && op.status != WEFT_ERR_CALL);
}

TEST(a_coroutine_may_end_on_another_thread_while_its_call_is_cancelled)
{
    desk d(WEFT_PROGRESS_THREAD);
    for (int i = 0; i < 100; i++) {
        std::thread other;
        std::atomic<bool> on_its_way{false};
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        d.calc.add(name, [&](int x) -> weft::task<int> {
            on_its_way = true;
            co_await elsewhere{other};
            co_return x;
        });
        auto call = d.client.method<int(int)>(name)(i);
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(call.post(&op));
        while (i % 2 && !on_its_way)
            ;
        weft_op_cancel(&op);
        weft_status_t st = weft_op_wait(&op, WEFT_FOREVER);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
        d.calc.remove(name).wait(); /* its last request is released: its thread is there, if it ran */
        if (on_its_way)
            other.join();
    }
}

TEST(a_pending_is_answered_once_from_any_thread)
{
    desk d;
    std::thread other;
    weft_status_t twice = WEFT_OK;
    d.calc.add("later", [&](int x, weft::pending<std::vector<int>> p, std::span<const int> all) {
        other = std::thread([&twice, x, all, p = std::move(p)]() mutable {
            std::vector<int> made(all.begin(), all.end()); /* valid as long as p */
            made.push_back(x);
            CHECK_OK(p.reply(std::move(made)));
            twice = p.fail(weft::code::internal);
        });
    });
    d.calc.add("nothing", [](weft::pending<void> p) { p.reply(); });
    for (int n : {0, 3, 100000}) {
        std::vector<int> back =
            d.get(d.client.call<std::vector<int>>("later", 7, std::vector<int>(static_cast<std::size_t>(n), 5)));
        other.join();
        CHECK(back.size() == static_cast<std::size_t>(n) + 1 && back.back() == 7);
        CHECK_EQ(twice, WEFT_ERR_STATE);
    }
    d.get(d.client.call<void>("nothing"));
}

TEST(a_pending_that_is_dropped_and_one_whose_handler_throws)
{
    desk d;
    std::optional<weft::pending<int>> kept;
    d.calc.add("drop", [](weft::pending<int>) {});
    d.calc.add("throw", [](weft::pending<int>) { throw weft::call_error(weft::code::not_found, "thrown"); });
    d.calc.add("keep", [&](weft::pending<int> p) {
        kept.emplace(std::move(p));
        throw std::runtime_error("too late to say so");
    });
    weft::call_failure why = d.fails(d.client.call<int>("drop"));
    CHECK(why.code == weft::code::internal && why.message.find("without an answer") != std::string::npos);
    why = d.fails(d.client.call<int>("throw"));
    CHECK(why.code == weft::code::not_found && why.message == "thrown");
    auto call = d.client.call<int>("keep");
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    d.until([&] { return kept.has_value(); });
    CHECK_OK(kept->fail({weft::code::aborted, "as it says itself", WEFT_CATEGORY_USER, 5}));
    d.until([&] { return weft_op_done(&op); });
    CHECK(call.spec().failed(op.status, "").failure().message == "as it says itself");
}

TEST(large_results_are_sent_from_where_they_are_and_then_freed)
{
    desk d;
    std::shared_ptr<int> watch = std::make_shared<int>(0);
    const void *there = nullptr;
    d.calc.add("big", [&](std::size_t n) {
        std::vector<int> made(n, 3);
        there = made.data();
        return made;
    });
    d.calc.add("held", [watch](std::size_t n) {
        std::shared_ptr<std::vector<char>> bytes(new std::vector<char>(n, 'x'), [watch](std::vector<char> *v) { delete v; });
        return weft::owned(std::string_view(bytes->data(), n), std::move(bytes));
    });
    for (std::size_t n : {0u, 10u, 1000u, 300u, 1000000u}) {
        auto back = d.get(d.client.call<std::vector<int>>("big", n));
        CHECK(back == std::vector<int>(n, 3));
        CHECK(d.get(d.client.call<std::string>("held", n)) == std::string(n, 'x'));
        d.until([&] { return watch.use_count() == 2; }); /* ours, and the handler's */
    }
    CHECK(there != nullptr);
    d.calc = {};
    CHECK_EQ(watch.use_count(), 1); /* the handler went with its service */
}

TEST(a_handler_goes_when_its_last_request_is_released)
{
    desk d;
    token_of t;
    std::optional<weft::pending<int>> kept;
    d.calc.add("f", [t, &kept](weft::pending<int> p) { kept.emplace(std::move(p)); });
    CHECK_EQ(t.alive.use_count(), 2);
    auto call = d.client.call<int>("f");
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    d.until([&] { return kept.has_value(); });
    auto removing = d.calc.remove("f");
    weft_op_t removed = WEFT_OP_INIT;
    CHECK_OK(removing.post(&removed));
    for (int i = 0; i < 100; i++)
        d.rt[0].progress();
    CHECK(!weft_op_done(&removed) && t.alive.use_count() == 2);
    CHECK_OK(kept->reply(5));
    kept.reset();
    d.until([&] { return weft_op_done(&removed) && weft_op_done(&op); });
    CHECK_EQ(t.alive.use_count(), 1);
    CHECK_EQ(call.spec().take(op), 5);
    CHECK(d.calc.try_add("no name", [t] { return 1; }).error() == weft::errc::invalid); /* nor is it kept if it was not added */
    CHECK_EQ(t.alive.use_count(), 1);
}

TEST(handlers_on_threads_of_the_service_may_wait)
{
    desk d(WEFT_PROGRESS_THREAD, {.threads = 2});
    weft::service mirror = weft::service::open(d.rt[1], "mirror");
    weft::client back = weft::client::on(d.ep[0]);
    mirror.add("inner", [](int x) { return x * 2; });
    d.calc.add("outer", [&back](int x) { return 1 + back.call<int>("inner", x).wait(); }, {.threads = true});
    std::vector<std::thread> callers;
    for (int t = 0; t < 4; t++)
        callers.emplace_back([&d] {
            for (int i = 0; i < 50; i++)
                CHECK_EQ(d.client.call<int>("outer", i).wait(), 2 * i + 1);
        });
    for (auto &c : callers)
        c.join();
    CHECK_EQ(d.client.stats().ok, 200);
}
