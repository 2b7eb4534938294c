/* tests/cpp/error.cc - failures in C++: codes, the exception, results. */
#include "test.h"
#include <string_view>
#include <weft/error.hpp>

namespace
{

/* counts how many are alive */
struct counted {
    inline static int alive = 0;
    int value;
    explicit counted(int v) : value(v)
    {
        alive++;
    }
    counted(counted &&other) noexcept : value(other.value)
    {
        alive++;
    }
    counted &operator=(counted &&) = default;
    ~counted()
    {
        alive--;
    }
};

} // namespace

TEST(a_code_compares_with_ours_and_with_those_of_the_standard)
{
    std::error_code code = weft::errc::timeout;
    CHECK(code == weft::errc::timeout);
    CHECK(code == std::errc::timed_out);
    CHECK(code != std::errc::operation_canceled);
    CHECK_STR(code.category().name(), "weft");
    CHECK(code.message() == weft_status_text(WEFT_ERR_TIMEOUT));
    CHECK(weft::make_error_code(WEFT_ERR_PEER) == weft::errc::peer);
}

TEST(every_status_has_a_name_in_errc)
{
#define ONE(name, value, text) \
    if (name != WEFT_OK) { \
        switch (static_cast<weft::errc>(name)) { \
        case weft::errc::invalid: \
        case weft::errc::no_memory: \
        case weft::errc::cancelled: \
        case weft::errc::timeout: \
        case weft::errc::peer: \
        case weft::errc::closed: \
        case weft::errc::refused: \
        case weft::errc::unreachable: \
        case weft::errc::auth: \
        case weft::errc::version: \
        case weft::errc::protocol: \
        case weft::errc::truncated: \
        case weft::errc::again: \
        case weft::errc::limit: \
        case weft::errc::forked: \
        case weft::errc::state: \
        case weft::errc::unsupported: \
        case weft::errc::address: \
        case weft::errc::not_found: \
        case weft::errc::system: \
        case weft::errc::rejected: \
        case weft::errc::range: \
        case weft::errc::rights: \
        case weft::errc::stale: \
        case weft::errc::corrupt: \
        case weft::errc::call: \
        case weft::errc::pending: \
        case weft::errc::done: \
        case weft::errc::permission: \
            break; \
        default: \
            FAIL("%s has no name in weft::errc", #name); \
        } \
    }
    WEFT_STATUS_LIST(ONE)
#undef ONE
}

TEST(a_failed_call_is_thrown_with_its_sentence)
{
    try {
        weft::check(weft_fail(WEFT_ERR_INVALID, "the colour %s is not one", "seven"));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_STR(e.what(), "the colour seven is not one");
        CHECK_EQ(e.status(), WEFT_ERR_INVALID);
        CHECK(e.code() == weft::errc::invalid);
    }
    weft::check(WEFT_OK);
}

TEST(a_result_holds_its_value_once)
{
    {
        weft::result<counted> one(counted(7)), none(WEFT_ERR_LIMIT);
        CHECK(one && !none && counted::alive == 1);
        CHECK_EQ(one->value, 7);
        CHECK(none.error() == weft::errc::limit);
        none = std::move(one);
        CHECK_EQ(none.value().value, 7);
        CHECK_EQ(counted::alive, 2); /* what was moved from is a value still */
        none = weft::result<counted>(WEFT_ERR_PEER);
        CHECK_EQ(counted::alive, 1);
        counted taken = std::move(one).value();
        CHECK_EQ(taken.value, 7);
    }
    CHECK_EQ(counted::alive, 0);
}

TEST(the_value_of_a_failure_is_thrown)
{
    weft::result<int> none(weft_fail(WEFT_ERR_RANGE, "17 is outside"));
    try {
        (void)none.value();
        FAIL("nothing was thrown");
    } catch (const std::system_error &e) {
        CHECK_STR(e.what(), "17 is outside");
    }
    weft::result<void> fine;
    fine.value();
    CHECK(fine);
}

TEST(a_failure_without_a_status_is_a_failure_all_the_same)
{
    CHECK(!weft::result<int>(WEFT_OK));
}
