/* tests/cpp/lib/both.hpp - two runtimes in one process, connected over shared memory or TCP, and driven together. */
#ifndef WEFT_TEST_BOTH_HPP
#define WEFT_TEST_BOTH_HPP

#include "ports.h"
#include "test.h"
#include <weft/weft.hpp>

struct both {
    weft::runtime rt[2]; /* 0 listens, 1 connects */
    weft::listener door;
    weft::endpoint ep[2];

    explicit both(weft_progress_mode_t mode = WEFT_PROGRESS_CALLER, const char *transports = "", const char *uri = nullptr)
    {
        for (int i = 0; i < 2; i++)
            rt[i] = weft::runtime::open({.progress = mode, .name = i ? "client" : "server", .transports = transports});
        door = rt[0].listen(uri ? uri : ports_local("both"));
        weft_op_t accepted = WEFT_OP_INIT, connected = WEFT_OP_INIT;
        weft_ep_t *out;
        CHECK_OK(weft_listener_accept(door.native(), &accepted));
        CHECK_OK(weft_ep_open(rt[1].native(), door.uri().c_str(), nullptr, &connected, &out));
        ep[1] = weft::endpoint(out);
        until([&] { return weft_op_done(&accepted) && weft_op_done(&connected); });
        CHECK_OK(accepted.status);
        CHECK_OK(connected.status);
        ep[0] = weft::endpoint(weft_op_ep(&accepted));
    }

    /* Drive both until it is so. */
    template <class F>
    void until(F is)
    {
        const double end = test_now() + 60;
        for (unsigned n = 0; !is(); n++) {
            if (!rt[0].progress() && !rt[1].progress() && n % 1024 == 1023)
                usleep(50);
            if (n % 65536 == 65535 && test_now() > end)
                FAIL("the two did not come to an end");
        }
    }

    /* Run a task of each, whoever drives, and rethrow what they throw. */
    template <class A, class B>
    void run(weft::task<A> a, weft::task<B> b, const std::stop_token &stop = {})
    {
        ending ends[2];
        a.promise().stop_with(&stop);
        b.promise().stop_with(&stop);
        a.promise().begin_and_tell(a.frame(), &ends[0]);
        b.promise().begin_and_tell(b.frame(), &ends[1]);
        until([&] { return ends[0].done.load() && ends[1].done.load(); });
        (void)weft::detail::outcome_of<A>(a.promise());
        (void)weft::detail::outcome_of<B>(b.promise());
    }

    template <class A>
    void run(weft::task<A> a, const std::stop_token &stop = {})
    {
        run(std::move(a), nothing(), stop);
    }

private:
    struct ending : weft::detail::listener_of_end {
        ending() : listener_of_end{on_end} {}
        static std::coroutine_handle<> on_end(listener_of_end *self, std::coroutine_handle<>) noexcept
        {
            static_cast<ending *>(self)->done.store(true);
            return std::noop_coroutine();
        }
        std::atomic<bool> done{false};
    };
    static weft::task<> nothing() { co_return; }
};

#endif
