/* tests/cpp/rpc_streams.cc - streams of values to a service, from it, and both ways; how they end.
 * ctest: label=thread */
#include "desk.hpp"

#include <thread>

using namespace std::chrono_literals;

namespace
{

struct api {
    static constexpr weft::function<weft::stream<std::uint64_t>(std::uint64_t)> count{"count"};
    static constexpr weft::function<double(double, weft::stream<double>)> total{"total"};
    static constexpr weft::function<weft::stream<std::string>(weft::stream<std::string>)> chat{"chat"};
    static constexpr weft::function<weft::stream<std::string_view>(int)> lines{"lines"};
};

void serve(weft::service &calc)
{
    calc.add(api::count, [](std::uint64_t n, weft::stream_out<std::uint64_t> out) -> weft::task<> {
        for (std::uint64_t i = 0; i < n; i++)
            co_await out.send(i);
    });
    calc.add(api::total, [](double from, weft::stream_in<double> in) -> weft::task<double> {
        while (auto x = co_await in.next())
            from += *x;
        co_return from;
    });
    calc.add(api::chat, [](weft::stream_in<std::string> in, weft::stream_out<std::string> out) -> weft::task<> {
        while (auto line = co_await in.next()) {
            if (*line == "bad")
                throw weft::call_error(weft::code::invalid_argument, "bad words");
            co_await out.send("so, " + *line);
        }
    });
    calc.add(api::lines, [](int n, weft::stream_out<std::string_view> out) -> weft::task<> {
        for (int i = 0; i < n; i++)
            co_await out.send(std::string(static_cast<std::size_t>(i), 'x'));
    });
}

} // namespace

TEST(a_stream_from_the_service_comes_to_its_end)
{
    desk d;
    serve(d.calc);
    for (std::uint64_t n : {0u, 1u, 5000u})
        d.run([](desk &d, std::uint64_t n) -> weft::task<> {
            auto numbers = d.client.open(api::count, n);
            std::uint64_t next = 0;
            while (auto x = co_await numbers.next())
                CHECK_EQ(*x, next++);
            CHECK_EQ(next, n);
            CHECK(!co_await numbers.next()); /* and stays there */
            co_await numbers.result();
        }(d, n));
}

TEST(a_stream_to_the_service_ends_in_a_result)
{
    desk d;
    serve(d.calc);
    d.run([](desk &d) -> weft::task<> {
        auto total = api::total(d.client, 0.5);
        for (int i = 1; i <= 1000; i++)
            co_await total.send(i);
        co_await total.end();
        CHECK(co_await total.result() == 500500.5);
        auto late = co_await total.send(1).as_result();
        CHECK(late.status() == WEFT_ERR_STATE || late.status() == WEFT_ERR_CLOSED);
    }(d));
}

TEST(both_ways_and_by_the_types_alone)
{
    desk d;
    serve(d.calc);
    d.run([](desk &d) -> weft::task<> {
        auto chat = d.client.open<weft::stream<std::string>(weft::stream<std::string>)>("chat");
        for (const std::string &word : {std::string("warp"), std::string(3000, 'w')}) {
            co_await chat.send(word);
            auto back = co_await chat.next();
            CHECK(back && *back == "so, " + word);
        }
        co_await chat.end();
        CHECK(!co_await chat.next());
        co_await chat.result();
    }(d));
}

TEST(values_that_are_views_hold_what_they_view)
{
    desk d;
    serve(d.calc);
    d.run([](desk &d) -> weft::task<> {
        auto lines = d.client.open(api::lines, 2000);
        std::vector<weft::item<std::string_view>> kept;
        std::size_t n = 0;
        while (auto line = co_await lines.next()) {
            CHECK_EQ(line->value().size(), n);
            if (n++ % 100 == 0)
                kept.push_back(std::move(*line));
        }
        CHECK_EQ(n, 2000);
        for (std::size_t i = 0; i < kept.size(); i++)
            CHECK(*kept[i] == std::string(i * 100, 'x'));
    }(d));
}

TEST(a_failure_of_the_function_ends_the_stream_with_its_code)
{
    desk d;
    serve(d.calc);
    d.run([](desk &d) -> weft::task<> {
        auto chat = d.client.open(api::chat);
        co_await chat.send("good");
        co_await chat.send("bad");
        CHECK(*co_await chat.next() == "so, good"); /* what it sent before is received */
        auto end = co_await chat.next().as_result();
        CHECK(end.status() == WEFT_ERR_CALL);
        auto answer = co_await chat.result().as_result();
        CHECK(!answer && answer.code() == weft::code::invalid_argument && answer.failure().message == "bad words");
        CHECK(answer.failure().ran == WEFT_RAN);
    }(d));
}

TEST(what_is_not_there_or_differs_is_said_by_the_result)
{
    desk d;
    serve(d.calc);
    d.run([](desk &d) -> weft::task<> {
        auto missing = d.client.open<weft::stream<int>()>("missing");
        CHECK((co_await missing.result().as_result()).code() == weft::code::unimplemented);
        auto other = d.client.open<weft::stream<int>(std::uint64_t)>("count", 5u);
        auto why = co_await other.result().as_result();
        CHECK(why.code() == weft::code::failed_precondition && why.failure().ran == WEFT_NOT_RUN);
        CHECK(why.failure().message.find("stream i32") != std::string::npos);
        auto once = d.client.with({.once = true}).try_open(api::count, 5u);
        CHECK(!once && once.failure().status == WEFT_ERR_UNSUPPORTED && once.code() == weft::code::unimplemented);
    }(d));
}

TEST(a_client_that_has_enough_stops_the_coroutine)
{
    desk d;
    int begun = 0, ended = 0;
    d.calc.add("forever", [&](weft::stream_out<int> out) -> weft::task<> {
        begun++;
        for (int i = 0;; i++)
            if (!co_await out.send(i).as_result())
                break;
        ended++;
    });
    d.run([](desk &d) -> weft::task<> {
        auto numbers = d.client.open<weft::stream<int>()>("forever");
        for (int i = 0; i < 500; i++)
            CHECK_EQ(*co_await numbers.next(), i);
        auto moved = std::move(numbers); /* goes here, and with it the call */
    }(d));
    d.until([&] { return ended == 1; });
    d.run([](desk &d) -> weft::task<> { /* its deadline does so too */
                                        auto numbers = d.client.with({.timeout = 50ms}).open<weft::stream<int>()>("forever");
                                        for (;;) {
                                            auto x = co_await numbers.next().as_result();
                                            if (x)
                                                continue;
                                            CHECK_EQ(x.status(), WEFT_ERR_TIMEOUT);
                                            break;
                                        }
                                        CHECK((co_await numbers.result().as_result()).code() == weft::code::deadline_exceeded);
    }(d));
    d.until([&] { return ended == begun; });
}

TEST(a_result_that_is_cancelled_cancels_the_call)
{
    desk d;
    int ended = 0;
    d.calc.add("listen", [&](weft::stream_in<int> in) -> weft::task<int> {
        auto x = co_await in.next().as_result();
        CHECK(!x);
        ended++;
        co_return 1;
    });
    d.run([](desk &d) -> weft::task<> {
        auto listening = d.client.open<int(weft::stream<int>)>("listen");
        auto answer = co_await listening.result().timeout(50ms).as_result();
        CHECK(!answer && (answer.status() == WEFT_ERR_TIMEOUT || answer.status() == WEFT_ERR_CANCELLED));
        auto sent = co_await listening.send(1).as_result();
        CHECK(!sent);
    }(d));
    d.until([&] { return ended == 1 || d.calc.stats().requests == 0; });
}

TEST(handlers_on_threads_wait_for_their_values)
{
    desk d(WEFT_PROGRESS_THREAD, {.threads = 1});
    d.calc.add(api::total,
               [](double from, weft::stream_in<double> in) {
                   while (auto x = in.next().wait())
                       from += *x;
                   return from;
               },
               {.threads = true});
    d.calc.add(api::count,
               [](std::uint64_t n, weft::stream_out<std::uint64_t> out) {
                   for (std::uint64_t i = 0; i < n; i++)
                       out.send(i).wait();
               },
               {.threads = true});
    auto total = d.client.open(api::total, 1.0);
    for (int i = 0; i < 300; i++)
        total.send(2).wait();
    total.end().wait();
    CHECK(total.result().wait() == 601);
    auto numbers = d.client.open(api::count, 300u);
    std::uint64_t sum = 0;
    while (auto x = numbers.next().wait())
        sum += *x;
    CHECK_EQ(sum, 300 * 299 / 2);
}

TEST(streams_outlive_their_client)
{
    desk d;
    serve(d.calc);
    auto numbers = d.client.open(api::count, 100000u);
    d.client = {};
    weft::call_failure why = d.fails(numbers.result());
    CHECK_EQ(why.status, WEFT_ERR_CLOSED);
}
