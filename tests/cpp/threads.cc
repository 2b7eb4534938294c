/* tests/cpp/threads.cc - tasks of several threads on runtimes with threads of their own, with one shard and with four. */
#include "both.hpp"

#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace
{

weft::task<int> echoes(weft::endpoint_ref ep, std::uint64_t tag, int n)
{
    for (int i = 0; i < n; i++) {
        int value = co_await ep.recv<int>(tag);
        co_await ep.send(value + 1, tag + 1000);
    }
    co_return n;
}

weft::task<int> asks(weft::endpoint_ref ep, std::uint64_t tag, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) {
        auto [sent, got] = co_await weft::when_all(ep.send(i, tag), ep.recv<int>(tag + 1000).timeout(60s));
        (void)sent;
        CHECK_EQ(got, i + 1);
        sum += got;
    }
    co_return sum;
}

} // namespace

TEST(tasks_of_several_threads_share_an_endpoint)
{
    for (std::uint32_t shards : {1u, 4u}) {
        weft::runtime a = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .shards = shards}),
                      b = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .shards = shards});
        weft::listener door = a.listen(ports_local("threads"));
        weft::endpoint to = b.connect(door.uri().c_str()).timeout(30s).wait(), from = door.accept().timeout(30s).wait();
        std::vector<std::thread> all;
        for (std::uint64_t i = 0; i < 3; i++) {
            all.emplace_back([&, i] { CHECK_EQ(weft::sync_wait(a, echoes(from, i, 500)), 500); });
            all.emplace_back([&, i] { CHECK_EQ(weft::sync_wait(b, asks(to, i, 500)), 125250); });
        }
        for (auto &t : all)
            t.join();
    }
}

TEST(many_tasks_of_two_threads_run_in_a_scope)
{
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    weft::scope scope;
    std::atomic<int> ended = 0;
    auto one = [](weft::runtime_ref in, std::atomic<int> *n, int i) -> weft::task<> {
        co_await in.sleep_for(std::chrono::microseconds(i % 50));
        co_await in.schedule();
        ++*n;
    };
    auto spawns = [&] {
        for (int i = 0; i < 1000; i++)
            scope.spawn(one(rt, &ended, i));
    };
    std::thread other(spawns);
    spawns();
    other.join();
    weft::sync_wait(rt, scope.join());
    CHECK_EQ(ended, 2000);
}

TEST(a_task_goes_from_one_runtime_to_another)
{
    weft::runtime a = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD}),
                  b = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    weft::runtime mine = weft::runtime::open();
    weft::sync_wait(mine, [](weft::runtime_ref x, weft::runtime_ref y) -> weft::task<> {
        for (int i = 0; i < 500; i++) {
            co_await x.schedule();
            CHECK(x.shard() == 0u && !y.shard());
            co_await y.schedule();
            CHECK(!x.shard() && y.shard() == 0u);
        }
    }(a, b));
}
