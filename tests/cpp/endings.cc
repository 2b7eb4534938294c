/* tests/cpp/endings.cc - coroutines that end badly: destroyed while they wait, their peer killed, their runtime closed, in a
 * forked child, inside a callback.
 *
 * ctest: label=thread waits */
#include "both.hpp"

#include <string>
#include <thread>

using namespace std::chrono_literals;

namespace
{

weft::task<> receives(weft::endpoint_ref ep, std::uint64_t tag, std::string *buf, bool *ended)
{
    co_await ep.recv(*buf, tag);
    *ended = true;
}

weft::task<> waits_deep(both *b, std::string *buf, bool *ended)
{
    weft::task<> inner = receives(b->ep[1], 2, buf, ended);
    co_await weft::when_all(weft::with_timeout(b->rt[1], std::move(inner), 1h), b->rt[1].sleep_for(1h),
                            receives(b->ep[1], 3, buf, ended));
    *ended = true;
}

weft::generator<int> waits_between(weft::endpoint_ref ep, std::string *buf)
{
    co_await ep.recv(*buf, 5);
    co_yield 1;
}

weft::task<> asks_generator(weft::endpoint_ref ep, std::string *buf, bool *ended)
{
    auto all = waits_between(ep, buf);
    (void)co_await all.next();
    *ended = true;
}

struct never : weft::detail::listener_of_end {
    never()
        : listener_of_end{
              [](listener_of_end *, std::coroutine_handle<>) noexcept -> std::coroutine_handle<> { FAIL("it ended"); }}
    {
    }
};

weft::task<> sends(weft::endpoint_ref ep, std::uint64_t tag)
{
    co_await ep.send("kept", tag);
}

weft::task<> gets(weft::endpoint_ref ep, std::uint64_t tag)
{
    weft::arrived got = co_await ep.recv_alloc(tag).timeout(30s);
    CHECK(got.data.text() == "kept");
}

/* The status of a process that fn() is run in. */
template <class F> int in_child(F fn)
{
    fflush(nullptr);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        fn();
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

} // namespace

TEST(a_coroutine_destroyed_while_it_waits_lets_go_of_its_buffer_and_of_its_message)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        both b(mode);
        never told;
        bool ended = false;
        for (int i = 0; i < 200; i++) {
            auto buf = std::make_unique<std::string>(100, '-');
            weft::task<> all[3] = {receives(b.ep[1], 1, buf.get(), &ended), waits_deep(&b, buf.get(), &ended),
                                   asks_generator(b.ep[1], buf.get(), &ended)};
            for (auto &t : all)
                CHECK(!t.promise().begin(t.frame(), &told));
            if (i % 2)
                b.rt[1].progress();
        } /* the tasks go, and then the buffer */
        CHECK(!ended);
        for (std::uint64_t tag : {1, 2, 3, 5})
            b.run(sends(b.ep[0], tag), gets(b.ep[1], tag));
    }
}

TEST(a_coroutine_destroyed_in_a_callback_ends_the_process_with_a_sentence)
{
    int status = in_child([] {
        both b;
        never told;
        bool ended = false;
        std::string buf(10, '-');
        weft::task<> t = receives(b.ep[1], 1, &buf, &ended);
        CHECK(!t.promise().begin(t.frame(), &told));
        fclose(stderr);
        b.rt[1].call([&] { t = {}; }).wait();
    });
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(a_killed_peer_ends_what_is_awaited)
{
    for (const char *uri : {"unix", "tcp"}) {
        const std::string at = strcmp(uri, "tcp") ? ports_local("endings") : "tcp://127.0.0.1:" + std::to_string(ports_take());
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            weft::runtime rt = weft::runtime::open();
            weft::listener door = rt.listen(at.c_str());
            weft::endpoint ep = door.accept().wait();
            ep.send("up", 1).wait();
            for (;;)
                pause(); /* its heartbeats go on */
        }
        weft::runtime rt = weft::runtime::open({.heartbeat = 5s});
        weft::sync_wait(rt, [](weft::runtime_ref in, const char *to, pid_t victim) -> weft::task<> {
            weft::endpoint ep = co_await in.connect(to).timeout(30s);
            char buf[8];
            co_await ep.recv(buf, 1).timeout(30s);
            auto both_fail = [](weft::endpoint_ref e) -> weft::task<weft_status_t> {
                char a[8], c[8];
                co_return (co_await weft::when_all(e.recv(a, 2), e.recv(c, 3)).as_result()).status();
            };
            auto kills = [](weft::runtime_ref r, pid_t p) -> weft::task<> {
                co_await r.sleep_for(5ms);
                kill(p, SIGKILL);
            };
            auto [st, none] = co_await weft::when_all(weft::with_timeout(in, both_fail(ep), 60s), kills(in, victim));
            (void)none;
            CHECK_EQ(st, WEFT_ERR_PEER);
            CHECK_EQ((co_await ep.send("late", 1).as_result()).status(), WEFT_ERR_PEER);
        }(rt, at.c_str(), pid));
        waitpid(pid, nullptr, 0);
    }
}

TEST(a_runtime_that_closes_ends_what_is_awaited)
{
    for (int i = 0; i < 20; i++) {
        both b(WEFT_PROGRESS_THREAD);
        weft::scope scope;
        std::atomic<int> ended = 0;
        auto one = [](weft::endpoint_ref ep, weft::runtime_ref rt, std::atomic<int> *n) -> weft::task<> {
            char buf[8];
            CHECK_EQ((co_await ep.recv(buf, 1).as_result()).status(), WEFT_ERR_CLOSED);
            CHECK_EQ((co_await rt.sleep_for(1h).as_result()).status(), WEFT_ERR_CLOSED);
            ++*n;
        };
        for (int n = 0; n < 10; n++)
            scope.spawn(one(b.ep[1], b.rt[1], &ended));
        std::thread closer([&] { b.rt[1].close(); });
        weft::runtime other = weft::runtime::open();
        weft::sync_wait(other, scope.join());
        closer.join();
        CHECK_EQ(ended, 10);
    }
}

TEST(a_wait_of_a_task_ends_when_another_thread_closes_its_runtime)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD})
        for (int i = 0; i < 20; i++) {
            both b(mode);
            std::atomic<bool> waiting = false;
            std::thread closer([&] {
                TEST_UNTIL(waiting, 30);
                usleep(static_cast<unsigned>(i) * 50);
                CHECK_OK(weft_runtime_close(b.rt[1].native()));
            });
            auto one = [](weft::endpoint_ref ep, std::atomic<bool> *flag) -> weft::task<> {
                char buf[8];
                *flag = true;
                co_await ep.recv(buf, 1);
            };
            CHECK_EQ(weft::try_sync_wait(b.rt[1], one(b.ep[1], &waiting)).status(), WEFT_ERR_CLOSED);
            closer.join();
            b.rt[1].release();
        }
}

TEST(a_forked_child_may_destroy_its_copy_of_what_waits)
{
    both b;
    never told;
    bool ended = false;
    std::string buf(10, '-');
    weft::task<> t = receives(b.ep[1], 1, &buf, &ended);
    CHECK(!t.promise().begin(t.frame(), &told));
    int status = in_child([&] {
        CHECK_EQ(b.ep[1].send("x", 1).wait_result().status(), WEFT_ERR_FORKED);
        CHECK_EQ(b.rt[1].sleep_for(1ms).wait_result().status(), WEFT_ERR_FORKED);
        t = {};
        auto one = [](weft::runtime_ref in) -> weft::task<> { co_await in.sleep_for(1ms); };
        CHECK_EQ(weft::try_sync_wait(b.rt[1], one(b.rt[1])).status(), WEFT_ERR_FORKED);
    });
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    b.run(sends(b.ep[0], 7), gets(b.ep[1], 7));
}
