/* tests/cpp/plain.cc - the headers in a program without exceptions and RTTI: every failure is a result.
 *
 * ctest: no-exceptions */
#include "both.hpp"

#include <string>

using namespace std::chrono_literals;

#if WEFT_EXCEPTIONS
#error this program is compiled without exceptions
#endif

namespace
{

weft::task<weft::result<int>> fails(weft::runtime_ref rt)
{
    co_await rt.sleep_for(1ms).as_result();
    co_return weft_fail(WEFT_ERR_RANGE, "too far");
}

weft::task<weft::result<int>> works(weft::runtime_ref rt, int value, std::chrono::nanoseconds time)
{
    if (auto slept = co_await rt.sleep_for(time).as_result(); !slept)
        co_return slept.status();
    co_return value;
}

weft::task<> talks(both *b)
{
    char buf[8];
    auto both_done = co_await weft::when_all(b->ep[0].send("hi", 1), b->ep[1].recv(buf, 1)).as_result();
    CHECK(both_done);
    CHECK_EQ(std::get<1>(*both_done).len, 2);
    auto bad = co_await b->ep[1].recv(buf, 1).timeout(1ms).as_result();
    CHECK_EQ(bad.status(), WEFT_ERR_TIMEOUT);
    auto first = co_await weft::when_any(fails(b->rt[0]), works(b->rt[0], 5, 2ms)).as_result();
    CHECK(first);
    CHECK_EQ(first->index, 1);
    CHECK_EQ(*std::get<1>(first->value), 5);
    auto all = co_await weft::when_all(works(b->rt[0], 5, 1h), fails(b->rt[0])).as_result();
    CHECK_EQ(all.status(), WEFT_ERR_RANGE);
    weft::result<int> late = co_await weft::with_timeout(b->rt[0], works(b->rt[0], 5, 1h), 1ms);
    CHECK_EQ(late.status(), WEFT_ERR_TIMEOUT);
    weft::scope scope;
    scope.spawn(
        [](weft::runtime_ref rt) -> weft::task<weft::result<void>> { co_return (co_await fails(rt)).status(); }(b->rt[0]));
    CHECK_EQ((co_await scope.try_join()).status(), WEFT_ERR_RANGE);
    auto taken = co_await b->ep[1].take(5).timeout(1ms).as_result();
    CHECK_EQ(taken.status(), WEFT_ERR_TIMEOUT);
}

} // namespace

TEST(without_exceptions_everything_can_be_done_and_every_failure_is_a_result)
{
    both b;
    b.run(talks(&b));
    CHECK_EQ(weft::runtime::try_open({.transports = "pigeons"}).status(), WEFT_ERR_INVALID);
    CHECK_EQ(b.rt[0].try_listen("tcp:/nonsense").status(), WEFT_ERR_INVALID);
    auto region = b.rt[0].try_region({.len = 64});
    CHECK(region);
    CHECK(region->try_key());
    CHECK_EQ(*weft::sync_wait(b.rt[0], works(b.rt[0], 3, 1ms)), 3);
}

TEST(the_value_of_a_failure_ends_the_process)
{
    fflush(nullptr);
    pid_t pid = fork();
    if (!pid) {
        fclose(stderr);
        weft::result<int>(WEFT_ERR_RANGE).value();
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
