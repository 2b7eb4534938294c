/* weft/op.hpp - actions: what a call is before it is made.
 *
 * A call such as ep.send(bytes, tag) posts nothing. It gives an action, which knows how to post itself to an operation
 * (weft/op.h) and how to read what came of it. What is done with the action decides how the program waits:
 *
 *     ep.send(bytes, 7).wait();                          blocks, and drives a runtime that has no thread; throws
 *     auto sent = ep.send(bytes, 7).wait_result();       the same, and gives a weft::result<void>
 *     co_await ep.send(bytes, 7);                        in a coroutine (weft/task.hpp); throws
 *     auto sent = co_await ep.send(bytes, 7).as_result();
 *     weft::execution::sender(ep.send(bytes, 7))         a sender (weft/execution.hpp)
 *     weft::async(ep.send(bytes, 7), asio::use_future)   with a completion token of Asio (weft/asio.hpp)
 *
 * Before that it takes options: ep.send(bytes, 7).timeout(2s), .token(token), .streams(streams).
 *
 * Buffers are borrowed from then on until the wait is over, as in C. An action is used once.
 *
 * Awaited, an action that is complete when the post returns does not suspend. Otherwise the coroutine goes on where callbacks of
 * the runtime run: in its progress, on its thread or on the one that drives it. It must not block there: what blocks fails with
 * WEFT_ERR_STATE. Nothing is allocated: the operation is in the frame of the coroutine.
 *
 * Destroying a coroutine that is suspended in an action cancels the action, and waits until the library has let go of its buffers.
 * Inside a callback of the runtime nothing can be waited for, and the process ends with a sentence: let the coroutine end by a
 * stop token or a deadline instead. */
#ifndef WEFT_OP_HPP
#define WEFT_OP_HPP

#include <atomic>
#include <chrono>
#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <stop_token>
#include <weft/error.hpp>
#include <weft/op.h>

namespace weft {

/* Nanoseconds as the C API has them: negative is 0, and nanoseconds::max() is WEFT_FOREVER. */
inline std::uint64_t nanoseconds(std::chrono::nanoseconds time) noexcept
{
    if (time == std::chrono::nanoseconds::max())
        return WEFT_FOREVER;
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

/* What an action is made of: post() hands it to the library, and take() reads the result of an operation that is complete with
 * WEFT_OK, once. A spec whose result owns something has abandon(op) as well, which lets go of it where nobody takes it. */
template <class S>
concept action_spec = std::move_constructible<S> && requires(S &s, weft_op_t &op) {
    typename S::value_type;
    { s.post(&op) } noexcept -> std::same_as<weft_status_t>;
    { s.take(op) } noexcept -> std::same_as<typename S::value_type>;
};

template <action_spec S>
class action;

namespace detail {

/* Let go of the result of a complete operation that nobody took. */
template <class S>
void abandon(S &spec, weft_op_t &op) noexcept
{
    if constexpr (requires { spec.abandon(op); })
        if (!op.status)
            spec.abandon(op);
}

/* Leave what weft_op_error() says where weft_last_error() finds it. */
inline weft_status_t tell(const weft_op_t &op) noexcept
{
    const char *why = weft_op_error(&op);
    return weft_fail(op.status, "%s", *why ? why : weft_status_text(op.status));
}

struct cancel_op {
    weft_op_t *op;
    void operator()() const noexcept { weft_op_cancel(op); }
};

/* An action that is awaited. It is pinned in the frame of its coroutine. */
template <action_spec S, bool Throws>
class awaiter {
public:
    using value_type = typename S::value_type;

    explicit awaiter(action<S> &&what) noexcept : action_(std::move(what)) {}
    awaiter(const awaiter &) = delete;
    awaiter &operator=(const awaiter &) = delete;
    ~awaiter()
    {
        if (state_ != state::taken) [[unlikely]]
            drop();
    }

    /* Cancel the operation when `stop` is asked to. Before it is awaited. */
    void stop_on(const std::stop_token &stop)
    {
        if (stop.stop_possible())
            stop_.emplace(stop, cancel_op{&op_});
    }

    bool await_ready() noexcept
    {
        state_ = state::posted;
        op_.status = action_.post(&op_);
        if (op_.status) [[unlikely]] {
            state_ = state::refused;
            return true;
        }
        return weft_op_done(&op_);
    }

    bool await_suspend(std::coroutine_handle<> caller) noexcept
    {
        op_.user = this;
        caller_.store(caller.address(), std::memory_order_relaxed);
        return weft_op_attach(&op_, resume) == WEFT_OK;
    }

    auto await_resume() noexcept(!Throws)
    {
        stop_.reset();
        const bool refused = state_ == state::refused;
        state_ = state::taken;
        if constexpr (Throws) {
            if (op_.status) [[unlikely]]
                fail(op_.status, refused ? sentence(op_.status) : weft_op_error(&op_));
            return action_.spec().take(op_);
        } else {
            if (op_.status) [[unlikely]]
                return result<value_type>(refused ? op_.status : tell(op_));
            if constexpr (std::is_void_v<value_type>) {
                action_.spec().take(op_);
                return result<void>();
            } else {
                return result<value_type>(action_.spec().take(op_));
            }
        }
    }

private:
    enum class state : unsigned char { fresh, posted, refused, taken };

    static void resume(weft_op_t *, void *user) noexcept
    {
        auto *self = static_cast<awaiter *>(user);
        if (void *caller = self->caller_.exchange(nullptr, std::memory_order_acq_rel))
            std::coroutine_handle<>::from_address(caller).resume();
    }

    /* The coroutine goes, and its operation may be under way. */
    void drop() noexcept
    {
        stop_.reset();
        if (state_ != state::posted)
            return;
        caller_.store(nullptr, std::memory_order_release);
        if (!weft_op_done(&op_)) {
            weft_op_cancel(&op_);
            weft_status_t st = weft_op_wait(&op_, WEFT_FOREVER);
            if (st == WEFT_ERR_STATE && !weft_op_done(&op_)) {
                std::fputs("weft: a coroutine that waits for an operation was destroyed inside a callback of the runtime; end it by a "
                           "stop token or a deadline instead\n", stderr);
                std::terminate();
            }
        }
        abandon(action_.spec(), op_);
    }

    action<S> action_;
    std::atomic<void *> caller_{nullptr};
    std::optional<std::stop_callback<cancel_op>> stop_;
    state state_ = state::fresh;
    weft_op_t op_ = WEFT_OP_INIT;
};

/* What as_result() gives: an action whose await gives a result. */
template <action_spec S>
class result_of {
public:
    using spec_type = S;
    explicit result_of(action<S> &&what) noexcept : action_(std::move(what)) {}
    awaiter<S, false> operator co_await() && noexcept { return awaiter<S, false>(std::move(action_)); }

private:
    action<S> action_;
};

} // namespace detail

template <action_spec S>
class [[nodiscard("an action does nothing until it is awaited or waited for")]] action {
public:
    using spec_type = S;
    using value_type = typename S::value_type;

    explicit action(S spec) noexcept : spec_(std::move(spec)) {}

    /* It ends with WEFT_ERR_TIMEOUT after this time, from the post on; zero: no deadline. */
    action &&timeout(std::chrono::nanoseconds time) && noexcept
    {
        timeout_ns_ = nanoseconds(time);
        return std::move(*this);
    }
    /* It is cancelled together with this token, which must stay until it ends. */
    action &&token(weft_token_t *token) && noexcept
    {
        token_ = token;
        return std::move(*this);
    }
    /* It takes its turn in streams of a GPU. Read in the post. */
    action &&streams(const weft_op_streams_t *streams) && noexcept
    {
        streams_ = streams;
        return std::move(*this);
    }

#if WEFT_EXCEPTIONS
    detail::awaiter<S, true> operator co_await() && noexcept { return detail::awaiter<S, true>(std::move(*this)); }
#endif
    /* To be awaited for a weft::result. */
    detail::result_of<S> as_result() && noexcept { return detail::result_of<S>(std::move(*this)); }

    /* Post it and wait until it ends; a runtime that the caller drives is driven. Not inside a callback: WEFT_ERR_STATE. */
    result<value_type> wait_result() && noexcept
    {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = post(&op);
        if (!st)
            st = weft_op_wait(&op, WEFT_FOREVER);
        if (st && !weft_op_done(&op)) { /* it cannot be waited for here, and it is on this stack */
            weft_op_cancel(&op);
            std::fputs("weft: wait() was called inside a callback of the runtime\n", stderr);
            std::terminate();
        }
        if (st)
            return st;
        if constexpr (std::is_void_v<value_type>) {
            spec_.take(op);
            return {};
        } else {
            return spec_.take(op);
        }
    }
    value_type wait() && { return std::move(*this).wait_result().value(); }

    /* For those who wait in another way: post it to an operation of their own. Its fn, user and queue stay as they are. */
    weft_status_t post(weft_op_t *op) noexcept
    {
        op->timeout_ns = timeout_ns_;
        op->token = token_;
        op->streams = streams_;
        return spec_.post(op);
    }
    S &spec() noexcept { return spec_; }

private:
    S spec_;
    std::uint64_t timeout_ns_ = 0;
    weft_token_t *token_ = nullptr;
    const weft_op_streams_t *streams_ = nullptr;
};

namespace detail {

/* A spec of two functions. */
template <class Value, class Post, class Take>
struct made_spec {
    using value_type = Value;
    Post post_;
    Take take_;
    weft_status_t post(weft_op_t *op) noexcept { return post_(op); }
    Value take(weft_op_t &op) noexcept { return take_(op); }
};
template <class Value, class Post, class Take>
auto make_action(Post post, Take take) noexcept
{
    return action(made_spec<Value, Post, Take>{std::move(post), std::move(take)});
}

} // namespace detail
} // namespace weft

#endif
