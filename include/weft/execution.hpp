/* weft/execution.hpp - senders and a scheduler (P2300): every action as a sender, and a runtime as a place where work goes on.
 *
 *     using weft::execution::sender;
 *     auto sent = sender(ep.send(bytes, 7)) | stdexec::then([] { ... });
 *     weft::execution::scheduler sched(rt);
 *     weft::execution::sync_wait(sched, stdexec::when_all(std::move(sent), sched.schedule_after(1s)));
 *
 * It is compiled against std::execution, stdexec, or another implementation (weft/execution_config.hpp).
 *
 * Completions of sender(action), of which there is exactly one after start(), and none without:
 *   set_value(T)                 what the action gives; set_value() if that is void
 *   set_error(std::error_code)   of weft::error_category(); inside it, weft_last_error() has the sentence. Not an exception_ptr:
 *                                that allocates, needs exceptions, and has to be thrown to be looked at. stdexec::sync_wait and
 *                                coroutines throw a code as std::system_error, as the standard says
 *   set_stopped()                the receiver's stop token asked for it and the operation ended with WEFT_ERR_CANCELLED. What is
 *                                cancelled otherwise (a token of Weft, an endpoint that was aborted) is an error; what was
 *                                complete before it could be stopped is a value
 *
 * - Nothing is allocated: the weft_op_t is in the operation state, and so is the stop callback. With a token that never stops
 *   there is none, and nothing is asked.
 * - A stop ends the operation as weft_op_cancel() does: the completion comes when the library has let go of the buffers. Asked
 *   for before start(), it starts nothing (a close is carried out all the same).
 * - Where it completes: inside start() if the operation is complete when the post returns; otherwise where callbacks of the
 *   runtime run, which must not block. At most 16 completions inside start() are inside each other on a thread: the next one
 *   comes from the runtime, so a loop that starts the next sender in the completion of the last does not overflow the stack. Only
 *   a post that is refused (WEFT_ERR_INVALID, a closed runtime, ...) completes inside start() at any depth. Senders of a
 *   scheduler never complete inside start(), but for a refused post.
 * - Between start() and the completion the operation state must not be destroyed, as always with senders. When the runtime is
 *   closed, what is under way completes with errc::closed.
 *
 * tests/cpp/execution_*.cc hold it to this. */
#ifndef WEFT_EXECUTION_HPP
#define WEFT_EXECUTION_HPP

#include <thread>
#include <tuple>
#include <weft/execution_config.hpp>
#include <weft/runtime.hpp>

namespace weft::execution {

class scheduler;

namespace detail {

using weft::detail::cancel_op;

template <class T>
struct signatures_of {
    using type = impl::completion_signatures<impl::set_value_t(T), impl::set_error_t(std::error_code), impl::set_stopped_t()>;
};
template <>
struct signatures_of<void> {
    using type = impl::completion_signatures<impl::set_value_t(), impl::set_error_t(std::error_code), impl::set_stopped_t()>;
};

/* How many completions inside start() this thread is in. */
inline constexpr unsigned most_nested = 16;
inline constinit thread_local unsigned nested = 0;

struct nothing {};

/* An action that was connected. `Later`: it never completes inside start(). */
template <action_spec S, class R, bool Later>
class operation {
    using value_type = typename S::value_type;
    using stop_token = impl_std::stop_token_of_t<impl::env_of_t<R>>;
    using stop_callback = impl_std::stop_callback_for_t<stop_token, cancel_op>;
    static constexpr bool stoppable = !impl_std::unstoppable_token<stop_token>;

public:
    using operation_state_concept = operation_state_tag;

    operation(action<S> what, R receiver) noexcept : action_(std::move(what)), receiver_(std::move(receiver))
    {
        weft::detail::make_fresh(&op_);
    }
    operation(const operation &) = delete;
    operation &operator=(const operation &) = delete;

    void start() & noexcept
    {
        if (Later || nested >= most_nested) {
            start_later();
            return;
        }
        if constexpr (stoppable)
            if (token().stop_requested())
                weft_op_cancel(&op_); /* it sticks */
        if (const weft_status_t st = action_.post(&op_)) [[unlikely]] {
            refused(st);
            return;
        }
        if (!weft_op_done(&op_)) {
            /* a stop from here on finds the callback; one that came since the post is told to it at once */
            watch();
            op_.user = this;
            const weft_status_t st = weft_op_attach(&op_, told);
            if (!st)
                return; /* this may be gone already */
            if (!weft_op_done(&op_)) [[unlikely]] { /* a forked child, where nothing completes any more */
                refused(st);
                return;
            }
        }
        nested++;
        complete();
        nested--;
    }

private:
    /* The completion comes from the runtime, also if the operation is complete at once. What the post has to set behind that, as
     * an endpoint that is opened, is there first: the callback waits until the post has returned. */
    void start_later() noexcept
    {
        op_.fn = Later ? told : told_after_post;
        op_.user = this;
        watch(); /* before the post: after it this may be gone */
        if (const weft_status_t st = action_.post(&op_)) [[unlikely]]
            refused(st);
        else if constexpr (!Later)
            posted_.store(true, std::memory_order_release);
    }

    stop_token token() const noexcept { return impl_std::get_stop_token(impl::get_env(receiver_)); }

    void watch() noexcept
    {
        if constexpr (stoppable) {
            stop_token t = token();
            if (t.stop_possible())
                stop_.emplace(std::move(t), cancel_op{&op_});
        }
    }

    static void told(weft_op_t *, void *user) noexcept { static_cast<operation *>(user)->complete(); }

    static void told_after_post(weft_op_t *, void *user) noexcept
    {
        auto *self = static_cast<operation *>(user);
        if constexpr (!Later)
            while (!self->posted_.load(std::memory_order_acquire))
                std::this_thread::yield();
        self->complete();
    }

    void refused(weft_status_t st) noexcept
    {
        if constexpr (stoppable)
            stop_.reset();
        impl::set_error(std::move(receiver_), make_error_code(st));
    }

    void complete() noexcept
    {
        if constexpr (stoppable)
            stop_.reset(); /* waits while the callback runs on another thread */
        if (const weft_status_t st = weft::detail::ended(action_.spec(), op_)) [[unlikely]] {
            failed(st);
        } else if constexpr (std::is_void_v<value_type>) {
            action_.spec().take(op_);
            impl::set_value(std::move(receiver_));
        } else {
            impl::set_value(std::move(receiver_), action_.spec().take(op_));
        }
    }

    void failed(weft_status_t st) noexcept
    {
        if constexpr (stoppable) {
            if (op_.status == WEFT_ERR_CANCELLED && token().stop_requested()) {
                impl::set_stopped(std::move(receiver_));
                return;
            }
        }
        if (op_.status) {
            const char *why = weft_op_error(&op_);
            (void)weft_fail(st, "%s", *why ? why : weft_status_text(st));
        } else {
            weft::detail::abandon(action_.spec(), op_); /* a success that the action does not take for one, and has said why */
        }
        impl::set_error(std::move(receiver_), make_error_code(st));
    }

    action<S> action_;
    R receiver_;
    [[no_unique_address]] std::conditional_t<stoppable, std::optional<stop_callback>, nothing> stop_;
    [[no_unique_address]] std::conditional_t<Later, nothing, std::atomic<bool>> posted_{};
    weft_op_t op_; /* fresh */
};

/* Attributes of a sender that may complete on the thread that starts it, and of one that completes in a runtime. */
struct anywhere {
    static constexpr bool later = false;
};
struct in_runtime {
    static constexpr bool later = true;
    weft_runtime_t *rt;
    scheduler query(impl::get_completion_scheduler_t<impl::set_value_t>) const noexcept;
    scheduler query(impl::get_completion_scheduler_t<impl::set_stopped_t>) const noexcept;
};

template <action_spec S, class Where>
class [[nodiscard("a sender does nothing until it is connected and started")]] action_sender {
public:
    using sender_concept = sender_tag;
    using completion_signatures = typename signatures_of<typename S::value_type>::type;
    template <class, class...>
    static consteval completion_signatures get_completion_signatures() noexcept
    {
        return {};
    }

    explicit action_sender(action<S> what, Where where = {}) noexcept : action_(std::move(what)), where_(where) {}

    template <impl::receiver_of<completion_signatures> R>
    operation<S, R, Where::later> connect(R receiver) && noexcept
    {
        return {std::move(action_), std::move(receiver)};
    }
    /* What can be copied can be connected more than once. */
    template <impl::receiver_of<completion_signatures> R>
        requires std::copy_constructible<action<S>>
    operation<S, R, Where::later> connect(R receiver) const & noexcept(std::is_nothrow_copy_constructible_v<action<S>>)
    {
        return {action_, std::move(receiver)};
    }
    const Where &get_env() const noexcept { return where_; }

private:
    action<S> action_;
    [[no_unique_address]] Where where_;
};

} // namespace detail

/* The sender of an action, with the options that it was given. */
template <action_spec S>
auto sender(action<S> what) noexcept
{
    return detail::action_sender<S, detail::anywhere>(std::move(what));
}

/* --- a scheduler -------------------------------------------------------------------------------------------------------- */

/* The clock of all runtimes, monotonic. */
struct clock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<clock>;
    static constexpr bool is_steady = true;
    static time_point now() noexcept { return time_point(duration(static_cast<rep>(weft_now(nullptr)))); }
};

namespace detail {

struct at_spec {
    using value_type = void;
    weft_runtime_t *rt;
    clock::time_point when;
    weft_status_t post(weft_op_t *op) noexcept
    {
        const std::uint64_t at = nanoseconds(when.time_since_epoch()), now = weft_now(rt);
        return weft_timer_start(rt, at == WEFT_FOREVER ? at : at > now ? at - now : 0, op);
    }
    void take(weft_op_t &) noexcept {}
};

} // namespace detail

/* Work goes on in progress of a runtime: on its thread, or on the one that drives it; of several shards on the one whose callback
 * starts the sender, else on the first. A handle, which is copied; two are equal if they are of the same runtime. The runtime has
 * to outlive what is scheduled in no other way than for any operation: it completes with errc::closed. */
class scheduler {
public:
    using scheduler_concept = detail::scheduler_tag;
    using time_point = clock::time_point;
    using duration = clock::duration;

    explicit constexpr scheduler(weft_runtime_t *rt) noexcept : rt_(rt) {}
    /* Of a weft::runtime, or whatever else has native(). */
    template <class Runtime>
        requires requires(const Runtime &rt) {
            { rt.native() } -> std::convertible_to<weft_runtime_t *>;
        }
    explicit scheduler(const Runtime &rt) noexcept : rt_(rt.native())
    {
    }

    auto schedule() const noexcept { return sender_of(weft::detail::schedule_spec{rt_}); }
    /* Counted from the start; nanoseconds::max() is never. */
    auto schedule_after(std::chrono::nanoseconds delay) const noexcept
    {
        return sender_of(weft::detail::timer_spec{rt_, nanoseconds(delay)});
    }
    /* At once if it is over. */
    auto schedule_at(time_point when) const noexcept { return sender_of(detail::at_spec{rt_, when}); }
    time_point now() const noexcept { return clock::now(); }

    /* What has begun goes on: nothing else of the runtime runs meanwhile. */
    constexpr impl::forward_progress_guarantee query(impl::get_forward_progress_guarantee_t) const noexcept
    {
        return impl::forward_progress_guarantee::parallel;
    }
    weft_runtime_t *native() const noexcept { return rt_; }
    bool operator==(const scheduler &) const noexcept = default;

private:
    template <class S>
    detail::action_sender<S, detail::in_runtime> sender_of(S spec) const noexcept
    {
        return detail::action_sender<S, detail::in_runtime>(action<S>(spec), detail::in_runtime{rt_});
    }
    weft_runtime_t *rt_;
};

inline scheduler detail::in_runtime::query(impl::get_completion_scheduler_t<impl::set_value_t>) const noexcept
{
    return scheduler(rt);
}
inline scheduler detail::in_runtime::query(impl::get_completion_scheduler_t<impl::set_stopped_t>) const noexcept
{
    return scheduler(rt);
}

} // namespace weft::execution

#include <weft/execution_wait.hpp>

#endif
