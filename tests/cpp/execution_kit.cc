/* tests/cpp/execution_kit.cc - the kit itself: each mistake against the protocol is found, and stop callbacks are what the
 * standard says.
 * ctest: label=thread */
#include "test.h"
#include "kit/checking.hpp"

using namespace checking;

namespace
{

/* --- senders with a mistake --------------------------------------------------------------------------------------------- */

enum class mistake {
    none,
    twice,
    error_and_value,
    at_connect,     /* before start() */
    late,           /* when the state is gone */
    keeps_callback, /* completes while it is registered */
    two_callbacks,
    asks_impossible, /* a callback with a token that cannot stop */
    never            /* does not complete */
};

/* Completes with a copy of its receiver's bytes, as a mistaken library would: by pointers that it kept. */
template <class R> struct bad_op {
    using operation_state_concept = ex::operation_state_tag;
    using token_type = ex::stop_token_of_t<ex::env_of_t<R>>;
    struct nothing {
        void operator()() const noexcept
        {
        }
    };
    using callback = ex::stop_callback_for_t<token_type, nothing>;

    bad_op(mistake m, R r) : what(m), receiver(std::move(r))
    {
        if (what == mistake::at_connect)
            ex::set_value(std::move(receiver));
    }
    bad_op(const bad_op &) = delete;
    ~bad_op()
    {
        if (what == mistake::late)
            ex::set_value(std::move(receiver));
    }
    void start() &noexcept
    {
        auto token = ex::get_stop_token(ex::get_env(receiver));
        switch (what) {
        case mistake::none:
            first.emplace(token, nothing());
            first.reset();
            ex::set_value(std::move(receiver));
            break;
        case mistake::twice:
        case mistake::error_and_value: {
            /* a receiver may be moved from in the first: what a mistaken sender has is a second one of the same state */
            R again = receiver.twin();
            ex::set_value(std::move(receiver));
            if (what == mistake::twice)
                ex::set_value(std::move(again));
            else
                ex::set_error(std::move(again), std::error_code());
            break;
        }
        case mistake::keeps_callback:
            first.emplace(token, nothing());
            ex::set_value(std::move(receiver));
            break;
        case mistake::two_callbacks:
            first.emplace(token, nothing());
            second.emplace(token, nothing());
            break;
        case mistake::asks_impossible:
            first.emplace(token, nothing());
            first.reset();
            ex::set_value(std::move(receiver));
            break;
        default:
            break;
        }
    }
    mistake what;
    R receiver;
    std::optional<callback> first, second;
};

struct bad_sender {
    using sender_concept = ex::sender_tag;
    using completion_signatures =
        ex::completion_signatures<ex::set_value_t(), ex::set_error_t(std::error_code), ex::set_stopped_t()>;
    template <class, class...> static consteval completion_signatures get_completion_signatures()
    {
        return {};
    }
    template <class R> bad_op<R> connect(R r) &&
    {
        return {what, std::move(r)};
    }
    mistake what;
};

/* What it says on its way out, or "" if it found nothing. */
std::string found(mistake what, bool possible = true)
{
    int out[2];
    CHECK(!pipe(out));
    fflush(nullptr);
    const pid_t child = fork();
    if (!child) {
        dup2(out[1], 2);
        {
            source stop(possible);
            attempt a(bad_sender{what}, stop);
            a.patience = 0.2;
            a.start();
            if (what != mistake::late)
                a.wait();
        }
        _exit(0);
    }
    close(out[1]);
    std::string said;
    char buf[256];
    for (ssize_t n; (n = read(out[0], buf, sizeof buf)) > 0;)
        said.append(buf, static_cast<std::size_t>(n));
    close(out[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 1) == !said.empty());
    return said;
}

bool says(const std::string &text, const char *part)
{
    if (text.find(part) != std::string::npos)
        return true;
    fprintf(stderr, "it said \"%s\"\n", text.c_str());
    return false;
}

} // namespace

TEST(each_mistake_is_found)
{
    CHECK(found(mistake::none) == "");
    CHECK(says(found(mistake::twice), "a second completion"));
    CHECK(says(found(mistake::error_and_value), "a second completion"));
    CHECK(says(found(mistake::at_connect), "before start()"));
    CHECK(says(found(mistake::late), "after the operation state is gone"));
    CHECK(says(found(mistake::keeps_callback), "while a stop callback is registered"));
    CHECK(says(found(mistake::two_callbacks), "a second stop callback"));
    CHECK(says(found(mistake::asks_impossible, false), "cannot stop"));
    CHECK(says(found(mistake::never), "no completion within"));
}

/* --- stop tokens -------------------------------------------------------------------------------------------------------- */

namespace
{

struct call {
    void (*fn)(void *);
    void *user;
    void operator()() const noexcept
    {
        fn(user);
    }
};
using callback = ex::stop_callback_for_t<ex::inplace_stop_token, call>;
void count(void *n)
{
    ++*static_cast<std::atomic<int> *>(n);
}

} // namespace

TEST(callbacks_are_called_once)
{
    ex::inplace_stop_source stop;
    std::atomic<int> first{0}, second{0}, gone{0}, late{0};
    callback a(stop.get_token(), call{count, &first}), b(stop.get_token(), call{count, &second});
    {
        callback c(stop.get_token(), call{count, &gone});
    }
    CHECK(!stop.stop_requested());
    CHECK(stop.request_stop() && !stop.request_stop() && stop.stop_requested());
    callback d(stop.get_token(), call{count, &late}); /* called at once */
    CHECK(first == 1 && second == 1 && gone == 0 && late == 1);
    CHECK(!ex::inplace_stop_token().stop_possible());
}

TEST(a_callback_may_destroy_itself)
{
    ex::inplace_stop_source stop;
    std::optional<callback> a;
    a.emplace(stop.get_token(), call{[](void *user) { static_cast<std::optional<callback> *>(user)->reset(); }, &a});
    stop.request_stop();
    CHECK(!a);
}

/* The destructor waits for a callback that runs elsewhere: what it uses is good until then. */
TEST(the_end_of_a_callback_waits_for_it)
{
    for (int i = 0; i < 2000; i++) {
        ex::inplace_stop_source stop;
        std::atomic<int> used{1};
        std::thread other([&] { stop.request_stop(); });
        {
            std::atomic<int> good{1};
            struct both {
                std::atomic<int> *good, *used;
            } of{&good, &used};
            std::optional<callback> a;
            a.emplace(stop.get_token(), call{[](void *user) {
                                                 auto *b = static_cast<both *>(user);
                                                 std::this_thread::yield();
                                                 *b->used += b->good->load();
                                             },
                                             &of});
            a.reset();
            good = -100;
        }
        CHECK(used >= 1);
        other.join();
        CHECK(used >= 1 && used <= 2);
    }
}
