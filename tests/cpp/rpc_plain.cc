/* tests/cpp/rpc_plain.cc - calls in a program without exceptions and RTTI: every failure is a result, of a handler as of a call.
 *
 * ctest: no-exceptions */
#include "both.hpp"

using namespace std::chrono_literals;

#if WEFT_EXCEPTIONS
#error this program is compiled without exceptions
#endif

namespace
{

struct api {
    static constexpr weft::function<int(int, int)> divide{"divide"};
    static constexpr weft::function<std::string(std::string_view)> twice{"twice"};
    static constexpr weft::function<weft::stream<int>(int)> count{"count"};
};

weft::task<> talks(both *b, weft::client *client)
{
    auto seven = co_await client->call(api::divide, 42, 6).as_result();
    CHECK(seven && *seven == 7);
    auto none = co_await client->call(api::divide, 42, 0).as_result();
    CHECK(!none && none.code() == weft::code::invalid_argument && none.failure().message == "by 0");
    CHECK(none.error() == weft::code::invalid_argument);
    auto text = co_await client->call(api::twice, "ab").as_result();
    CHECK(text && *text == "abab");
    auto other = co_await client->call<long>("divide", 1, 2).as_result();
    CHECK(other.code() == weft::code::failed_precondition && other.failure().ran == WEFT_NOT_RUN);
    auto counting = client->try_open(api::count, 3);
    CHECK(counting);
    int sum = 0;
    for (;;) {
        auto x = co_await counting->next().as_result();
        CHECK(x);
        if (!*x)
            break;
        sum += **x;
    }
    CHECK_EQ(sum, 3);
    CHECK(co_await counting->result().as_result());
    CHECK_EQ((co_await b->rt[0].sleep_for(1ms).as_result()).status(), WEFT_OK);
}

} // namespace

TEST(calls_without_exceptions)
{
    both b;
    auto calc = weft::service::try_open(b.rt[0], "calc");
    CHECK(calc);
    auto client = weft::client::try_on(b.ep[1]);
    CHECK(client);
    CHECK(calc->try_add(api::divide, [](int x, int y) -> weft::call_result<int> {
        if (!y)
            return {weft::code::invalid_argument, "by 0"};
        return x / y;
    }));
    CHECK(calc->try_add(api::twice, [&b](std::string_view text) -> weft::task<std::string> {
        (void)co_await b.rt[0].schedule().as_result();
        co_return std::string(text) += text;
    }));
    CHECK(calc->try_add(api::count, [](int n, weft::stream_out<int> out) -> weft::task<> {
        for (int i = 0; i < n; i++)
            (void)co_await out.send(i).as_result();
    }));
    CHECK_EQ(calc->try_add("divide", [](int x) { return x; }).status(), WEFT_ERR_STATE);
    b.run(talks(&b, &*client));
}
