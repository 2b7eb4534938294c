/* tests/cpp/rpc_errors.cc - calls that fail: codes, what handlers throw, signatures that differ, deadlines, what is not sent. */
#include "desk.hpp"

#include <thread>

using namespace std::chrono_literals;

namespace
{

struct api {
    static constexpr weft::function<int(int)> fail{"fail"};
    static constexpr weft::function<void(std::string)> note{"note", weft::oneway};
};

/* What the handler "fail" throws, by number. */
int throws(int what)
{
    switch (what) {
    case 1:
        throw weft::call_error(weft::code::not_found, "no such account", WEFT_CATEGORY_USER, 4711);
    case 2:
        throw std::runtime_error("the disk is full");
    case 3:
        throw 7;
    case 4:
        throw weft::error(WEFT_ERR_PEER, "the other server is lost");
    case 5:
        throw std::system_error(ENOENT, std::generic_category(), "config");
    case 6:
        throw weft::call_error(weft::code::aborted);
    case 7:
        throw std::bad_alloc();
    default:
        return what;
    }
}

} // namespace

TEST(what_a_handler_throws_is_the_answer)
{
    desk d;
    d.calc.add(api::fail, throws);
    weft::call_failure why = d.fails(d.client.call(api::fail, 1));
    CHECK(why.code == weft::code::not_found && why.message == "no such account");
    CHECK(why.category == WEFT_CATEGORY_USER && why.value == 4711 && why.ran == WEFT_RAN && why.status == WEFT_ERR_CALL);
    why = d.fails(d.client.call(api::fail, 2));
    CHECK(why.code == weft::code::internal && why.message == "the disk is full");
    why = d.fails(d.client.call(api::fail, 3));
    CHECK(why.code == weft::code::internal && why.message.find("no std::exception") != std::string::npos);
    why = d.fails(d.client.call(api::fail, 4));
    CHECK(why.code == weft::code::internal && why.message == "the other server is lost");
    CHECK(why.category == WEFT_CATEGORY_WEFT && why.value == WEFT_ERR_PEER);
    why = d.fails(d.client.call(api::fail, 5));
    CHECK(why.category == WEFT_CATEGORY_ERRNO && why.value == ENOENT);
    why = d.fails(d.client.call(api::fail, 6));
    CHECK(why.code == weft::code::aborted && why.message.empty());
    CHECK(d.fails(d.client.call(api::fail, 7)).code == weft::code::internal);
    CHECK_EQ(d.get(d.client.call(api::fail, 8)), 8);
    CHECK_EQ(d.calc.stats().failed, 7);
}

TEST(a_failed_call_is_thrown_with_all_that_is_known)
{
    desk d;
    d.calc.add(api::fail, throws);
    try {
        d.get(d.client.call(api::fail, 1));
        FAIL("nothing was thrown");
    } catch (const weft::call_error &e) {
        CHECK_STR(e.what(), "NOT_FOUND: no such account");
        CHECK_STR(e.message(), "no such account");
        CHECK(e.call_code() == weft::code::not_found && e.code() == weft::code::not_found);
        CHECK(e.category() == WEFT_CATEGORY_USER && e.value() == 4711 && e.ran() == WEFT_RAN);
        CHECK_STR(e.code().category().name(), "weft.call");
        CHECK(e.code().message() == "NOT_FOUND");
        CHECK_EQ(e.status(), WEFT_ERR_CALL);
    }
    try {
        d.get(d.client.call(api::fail, 6));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) { /* as any failure of ours */
        CHECK_STR(e.what(), "ABORTED");
        CHECK_EQ(e.status(), WEFT_ERR_CALL);
    }
}

TEST(every_code_has_a_name_and_some_are_conditions_of_the_standard)
{
#define ONE(name, value, text) \
    CHECK_STR(weft::code_name(static_cast<weft::code>(value)), text); \
    CHECK(weft::make_error_code(static_cast<weft::code>(value)).message() == text);
    WEFT_CODE_LIST(ONE)
#undef ONE
    CHECK(std::error_code(weft::code::deadline_exceeded) == std::errc::timed_out);
    CHECK(std::error_code(weft::code::cancelled) == std::errc::operation_canceled);
    CHECK(std::error_code(weft::code::not_found) != std::error_code(weft::errc::not_found));
}

TEST(a_handler_may_return_its_failure)
{
    desk d;
    d.calc.add("half", [](int x) -> weft::call_result<int> {
        if (x % 2)
            return weft::call_failure{weft::code::invalid_argument, "odd", WEFT_CATEGORY_USER, x};
        return x / 2;
    });
    d.calc.add("check", [](bool good) -> weft::call_result<void> {
        if (!good)
            return weft::code::out_of_range;
        return {};
    });
    d.calc.add("text", [](int x) -> weft::call_result<std::string> { return std::string(static_cast<std::size_t>(x), 'x'); });
    CHECK_EQ(d.get(d.client.call<int>("half", 8)), 4);
    weft::call_failure why = d.fails(d.client.call<int>("half", 7));
    CHECK(why.code == weft::code::invalid_argument && why.message == "odd" && why.value == 7);
    d.get(d.client.call<void>("check", true));
    CHECK(d.fails(d.client.call<void>("check", false)).code == weft::code::out_of_range);
    CHECK_EQ(d.get(d.client.call<std::string>("text", 50000)).size(), 50000);
}

TEST(signatures_that_differ_are_both_printed_and_nothing_runs)
{
    desk d;
    int ran = 0;
    d.calc.add("add", [&ran](int a, int b) {
        ran++;
        return a + b;
    });
    weft::call_failure why = d.fails(d.client.call<long>("add", 1, 2));
    CHECK(why.code == weft::code::failed_precondition && why.ran == WEFT_NOT_RUN);
    CHECK(why.message.find("add(a0: i32, a1: i32) -> i64") != std::string::npos);
    CHECK(why.message.find("add(a0: i32, a1: i32) -> i32") != std::string::npos);
    why = d.fails(d.client.call<int>({"add", weft::idempotent}, 1, 2)); /* marks are part of it */
    CHECK(why.code == weft::code::failed_precondition);
    why = d.fails(d.client.call<int>("sub", 1, 2));
    CHECK(why.code == weft::code::unimplemented && why.ran == WEFT_NOT_RUN);
    CHECK_EQ(ran, 0);
    CHECK_EQ(d.get(d.client.call<int>("add", 1, 2)), 3);
}

TEST(two_names_of_one_text_are_one_method_and_two_types_are_two)
{
    desk d;
    static constexpr char a[] = "twice", b[] = "twice";
    d.calc.add("twice", [](int x) { return 2 * x; });
    CHECK_EQ(d.get(d.client.call<int>(a, 1)) + d.get(d.client.call<int>(b, 2)), 6);
    CHECK(d.fails(d.client.call<long>(a, 1)).code == weft::code::failed_precondition);
    CHECK_EQ(d.get(d.client.call<int>(a, 4)), 8);
    /* declared inside functions, at one place of the stack */
    auto declared = [&](auto which) {
        if constexpr (which.value) {
            constexpr weft::function<int(int)> fn{"twice"};
            return d.get(d.client.call(fn, 5));
        } else {
            constexpr weft::function<int(int)> fn{"missing"};
            return static_cast<int>(d.fails(d.client.call(fn, 5)).code);
        }
    };
    CHECK_EQ(declared(std::true_type()), 10);
    CHECK_EQ(declared(std::false_type()), WEFT_CODE_UNIMPLEMENTED);
}

TEST(text_that_is_no_utf8_is_not_sent)
{
    desk d;
    d.calc.add("size", [](std::string_view s) { return s.size(); });
    d.calc.add("bad", [] { return "\xff"; });
    weft::call_failure why = d.fails(d.client.call<std::size_t>("size", "\xc3("));
    CHECK(why.status == WEFT_ERR_INVALID && why.ran == WEFT_NOT_RUN && why.code == weft::code::invalid_argument);
    CHECK(!why.message.empty());
    why = d.fails(d.client.call<std::string>("bad"));
    CHECK(why.code == weft::code::internal && why.message.find("results are not those of") != std::string::npos);
}

TEST(a_deadline_ends_a_call_and_reaches_the_handler)
{
    desk d(WEFT_PROGRESS_CALLER, {}, {.timeout = 60s});
    std::vector<weft::pending<int>> held;
    std::chrono::nanoseconds left[3];
    int calls = 0;
    d.calc.add("never", [&](weft::request &r, weft::pending<int> p) {
        left[calls++] = r.left();
        held.push_back(std::move(p));
    });
    weft::call_failure why;
    while (calls == 0) /* on a busy machine its time may be over before it is sent */
        why = d.fails(d.client.call<int>("never").timeout(50ms));
    CHECK(why.status == WEFT_ERR_TIMEOUT && why.code == weft::code::deadline_exceeded && why.ran == WEFT_MAY_HAVE_RUN);
    CHECK(left[0] > 0ns && left[0] <= 50ms);
    while (calls == 1)
        why = d.fails(d.client.with({.timeout = 40ms}).call<int>("never"));
    CHECK(why.error() == weft::errc::timeout && why.error() == std::errc::timed_out);
    CHECK(left[1] > 0ns && left[1] <= 40ms);
    d.until([&] { return held[0].cancelled() && held[1].cancelled(); });
    CHECK_EQ(held[0].reply(1), WEFT_ERR_CANCELLED);

    auto last = d.client.call<int>("never"); /* the client's own */
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(last.post(&op));
    d.until([&] { return calls == 3; });
    CHECK(left[2] > 30s && left[2] <= 60s);
    CHECK_OK(held[2].reply(17));
    d.until([&] { return weft_op_done(&op); });
    CHECK_EQ(last.spec().take(op), 17);
    held.clear();
}

TEST(a_call_of_a_closed_client_or_to_a_closed_service)
{
    desk d;
    d.calc.add(api::fail, throws);
    CHECK_EQ(d.get(d.client.call(api::fail, 8)), 8);
    d.get(d.calc.close());
    CHECK(!d.calc);
    weft::call_failure why = d.fails(d.client.call(api::fail, 8));
    CHECK(why.code == weft::code::unavailable && why.ran == WEFT_NOT_RUN);
    d.get(d.client.close());
    why = d.fails(d.client.call(api::fail, 8));
    CHECK(why.status == WEFT_ERR_CLOSED && why.code == weft::code::unavailable && why.ran == WEFT_NOT_RUN);
}

TEST(what_is_oneway_is_sent_and_not_answered)
{
    desk d;
    std::string notes;
    d.calc.add(api::note, [&notes](const std::string &line) { notes += line; });
    d.get(d.client.call(api::note, "a"));
    d.get(d.client.call<void>({"note", weft::oneway}, "b"));
    {
        std::string gone = "c";
        d.client.post(api::note, gone);
    }
    d.until([&] { return notes.size() == 3; });
    CHECK(notes == "abc");
    CHECK(d.client.try_post(api::note, "\xff").error() == weft::errc::invalid);
}

TEST(waiting_inside_a_handler_is_refused)
{
    desk d(WEFT_PROGRESS_THREAD);
    weft::client back = weft::client::on(d.ep[0]);
    weft_status_t inside = WEFT_OK;
    d.calc.add("outer", [&] {
        inside = back.call<int>("inner").wait_result().status();
        return 1;
    });
    CHECK_EQ(d.client.call<int>("outer").wait(), 1);
    CHECK_EQ(inside, WEFT_ERR_STATE);
}

TEST(calls_that_are_awaited_together_fail_as_they_do_alone)
{
    desk d;
    d.calc.add(api::fail, throws);
    d.run([](desk &d) -> weft::task<> {
        auto [a, b] = co_await weft::when_all(d.client.call(api::fail, 8), d.client.call(api::fail, 9));
        CHECK(a == 8 && b == 9);
        try {
            (void)co_await weft::when_all(d.client.call(api::fail, 8), d.client.call(api::fail, 1));
            FAIL("nothing was thrown");
        } catch (const weft::call_error &e) {
            CHECK(e.call_code() == weft::code::not_found && e.value() == 4711);
            CHECK_STR(e.message(), "no such account");
        }
        auto both = co_await weft::when_all(d.client.call(api::fail, 8), d.client.call(api::fail, 1)).as_result();
        CHECK_EQ(both.status(), WEFT_ERR_CALL);
    }(d));
}
