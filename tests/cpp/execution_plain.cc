/* tests/cpp/execution_plain.cc - senders without exceptions and without RTTI.
 * ctest: no-exceptions */
#include "test.h"
#include "kit/here.hpp"
#include <weft/execution_ucx.hpp>

namespace we = weft::execution;

#if defined(__cpp_exceptions)
#error "this is compiled without exceptions"
#endif

TEST(senders_need_no_exceptions)
{
    weft::result<weft::runtime> opened = weft::runtime::try_open({});
    CHECK(opened);
    we::scheduler s(*opened);
    int seen = 0;
    auto all =
        ex::when_all(s.schedule_after(std::chrono::milliseconds(1)), s.schedule() | ex::then([]() noexcept { return 4; })) |
        ex::then([&](int n) noexcept { seen = n; });
    CHECK(we::sync_wait(s, std::move(all)).has_value());
    CHECK_EQ(seen, 4);
}

TEST(a_failure_is_a_code)
{
    weft::result<weft::runtime> opened = weft::runtime::try_open({});
    CHECK(opened);
    we::scheduler s(*opened);
    std::error_code why;
    char sentence[200] = "";
    auto fails = we::connect_endpoint(s, "nonsense") | ex::then([](weft::endpoint) noexcept {}) |
                 ex::upon_error([&](std::error_code e) noexcept {
                     why = e;
                     snprintf(sentence, sizeof sentence, "%s", weft_last_error());
                 });
    CHECK(we::sync_wait(s, std::move(fails)).has_value());
    CHECK(why == weft::errc::invalid && strstr(sentence, "nonsense"));
}
