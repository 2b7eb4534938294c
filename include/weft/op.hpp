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
 * Destroying a coroutine that is suspended in an action cancels the action, and waits until the library has let go of its
 * buffers. Inside a callback of the runtime nothing can be waited for, and the process ends with a sentence: let the coroutine
 * end by a stop token or a deadline instead. As ever, nobody may destroy a coroutine that another thread may be resuming: not
 * one whose operation can end meanwhile on the thread of its runtime. */
#ifndef WEFT_OP_HPP
#define WEFT_OP_HPP

#include <atomic>
#include <chrono>
#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <stop_token>
#include <thread>
#include <weft/error.hpp>
#include <weft/op.h>

/* Of functions that hand a coroutine to somebody who may end it at once: before clang 17 one that is inlined may touch the frame
 * after that (LLVM issue 56301). */
#if defined(__clang__) && __clang_major__ < 17
#define WEFT_SUSPENDS __attribute__((noinline))
#else
#define WEFT_SUSPENDS
#endif

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

/* Actions whose awaiting goes on in progress always, also if they are complete at the post: schedule(). */
template <class S>
inline constexpr bool always_suspends = false;

/* Let go of the result of a complete operation that nobody took. */
template <class S>
void abandon(S &spec, weft_op_t &op) noexcept
{
    if constexpr (requires { spec.abandon(op); })
        if (!op.status)
            spec.abandon(op);
}

struct cancel_op {
    weft_op_t *op;
    void operator()() const noexcept { weft_op_cancel(op); }
};

/* What became of a complete operation: the specs of some actions look closer than the library. */
template <class S>
weft_status_t ended(S &spec, weft_op_t &op) noexcept
{
    if constexpr (requires { { spec.ended(op) } -> std::same_as<weft_status_t>; })
        return op.status ? op.status : spec.ended(op);
    else
        return op.status;
}

/* Zero what of an operation has to be zero. For so few bytes g++ -O2 would call upon `rep stos`, which takes longer than that. */
inline void make_fresh(weft_op_t *op) noexcept
{
    typedef long long pair __attribute__((vector_size(16), aligned(8), may_alias));
    static_assert(WEFT_OP_FRESH == 9 * sizeof(pair) && alignof(weft_op_t) >= 8);
    pair *words = reinterpret_cast<pair *>(op);
    const pair zero = {};
    words[0] = words[1] = words[2] = words[3] = words[4] = words[5] = words[6] = words[7] = words[8] = zero;
}

/* An action that was begun, and its operation. It stays where it is. The action is in here, or where it was made: what a
 * coroutine awaits stays until that is over. */
template <action_spec S, bool Owns>
class begun {
public:
    using value_type = typename S::value_type;

    explicit begun(action<S> &&what, const std::stop_token *stop = nullptr) noexcept
        : action_(static_cast<std::conditional_t<Owns, action<S> &&, action<S> &>>(what)), stop_(stop)
    {
        make_fresh(&op_);
    }
    begun(const begun &) = delete;
    begun &operator=(const begun &) = delete;
    ~begun()
    {
        if (state_ != state::taken) [[unlikely]]
            drop();
    }

    void stop_with(const std::stop_token *stop) noexcept { stop_ = stop; }
    /* Any thread, while it is here. */
    void cancel() noexcept { weft_op_cancel(&op_); }

    /* Post it. True: it is complete, or was refused. */
    bool begin(void *user) noexcept
    {
        op_.user = user;
        state_ = state::posted;
        if (stop_ && stop_->stop_requested()) [[unlikely]]
            weft_op_cancel(&op_); /* it sticks */
        if (weft_status_t st = action_.post(&op_); st) [[unlikely]] {
            op_.status = st;
            state_ = state::refused;
            return true;
        }
        return weft_op_done(&op_);
    }

    /* Have fn called when it ends, which calls told() first. False: it has ended. After true it may be gone. */
    bool attach(weft_op_fn fn) noexcept
    {
        if (stop_ && stop_->stop_possible())
            on_stop_.emplace(*stop_, cancel_op{&op_});
        state_ = state::attached;
        weft_status_t st = weft_op_attach(&op_, fn);
        if (!st) [[likely]]
            return true;
        state_ = state::posted;
        if (st != WEFT_ERR_DONE) { /* its runtime is gone */
            op_.status = st;
            state_ = state::refused;
        }
        return false;
    }

    /* Both at once, for what has to go on in progress however soon it ends. False: it was refused. After true it may be gone. */
    bool begin_attached(void *user, weft_op_fn fn) noexcept
    {
        op_.user = user;
        op_.fn = fn;
        if (stop_ && stop_->stop_possible())
            on_stop_.emplace(*stop_, cancel_op{&op_});
        state_ = state::attached;
        weft_status_t st = action_.post(&op_);
        if (!st) [[likely]]
            return true;
        op_.status = st;
        state_ = state::refused;
        return false;
    }

    /* The first that fn does. No: it is being destroyed, and must not be touched any more. */
    bool told() noexcept { return told_.exchange(heard::yes, std::memory_order_acq_rel) == heard::no; }

    /* It has ended, and its result is taken next. */
    weft_status_t finish() noexcept
    {
        on_stop_.reset();
        status_ = state_ == state::refused ? op_.status : ended(action_.spec(), op_);
        return status_;
    }
    decltype(auto) take() noexcept
    {
        state_ = state::taken;
        return action_.spec().take(op_);
    }
    /* Why it failed: for weft::error, and left for weft_last_error(). */
    const char *why() noexcept
    {
        const bool refused = state_ == state::refused || status_ != op_.status;
        const char *op_says = refused ? "" : weft_op_error(&op_);
        if (state_ != state::refused && !op_.status) /* a success that is none: let go of it */
            abandon(action_.spec(), op_);
        state_ = state::taken;
        return refused ? sentence(status_) : *op_says ? op_says : weft_status_text(status_);
    }
    weft_status_t status() const noexcept { return status_; }

    result<value_type> take_result() noexcept
    {
        if (finish()) [[unlikely]]
            return result<value_type>(weft_fail(status_, "%s", why()));
        if constexpr (std::is_void_v<value_type>) {
            take();
            return result<void>();
        } else {
            return result<value_type>(take());
        }
    }
    value_type take_value()
    {
        if (finish()) [[unlikely]]
            fail(status_, why());
        return take();
    }

private:
    enum class state : unsigned char { fresh, posted, attached, refused, taken };
    enum class heard : unsigned char { no, yes, gone };

    /* It goes, and its operation may be under way. A thread that delivers calls fn after the operation is done. */
    void drop() noexcept
    {
        on_stop_.reset();
        if (state_ != state::posted && state_ != state::attached)
            return;
        const bool tells = state_ == state::attached && told_.exchange(heard::gone, std::memory_order_acq_rel) == heard::no;
        if (!weft_op_done(&op_)) {
            weft_op_cancel(&op_);
            weft_status_t st = weft_op_wait(&op_, WEFT_FOREVER);
            if (!weft_op_done(&op_)) {
                if (st != WEFT_ERR_STATE)
                    return; /* its runtime is gone, or is that of the process which this one was forked from */
                std::fputs("weft: a coroutine that waits for an operation was destroyed inside a callback of the runtime; end it "
                           "by a stop token or a deadline instead\n", stderr);
                std::terminate();
            }
        }
        while (tells && told_.load(std::memory_order_acquire) != heard::yes)
            std::this_thread::yield();
        abandon(action_.spec(), op_);
    }

    std::conditional_t<Owns, action<S>, action<S> &> action_;
    const std::stop_token *stop_;
    std::optional<std::stop_callback<cancel_op>> on_stop_;
    std::atomic<heard> told_{heard::no};
    state state_ = state::fresh;
    weft_status_t status_ = WEFT_OK;
    weft_op_t op_; /* its first bytes are zero */
};

/* An action that is awaited. */
template <action_spec S, bool Throws>
class awaiter {
public:
    explicit awaiter(action<S> &&what, const std::stop_token *stop = nullptr) noexcept : begun_(std::move(what), stop) {}

    bool await_ready() noexcept { return !always_suspends<S> && begun_.begin(this); }
    WEFT_SUSPENDS bool await_suspend(std::coroutine_handle<> caller) noexcept
    {
        caller_ = caller;
        if constexpr (always_suspends<S>)
            return begun_.begin_attached(this, resume);
        else
            return begun_.attach(resume);
    }
    auto await_resume() noexcept(!Throws)
    {
        if constexpr (Throws)
            return begun_.take_value();
        else
            return begun_.take_result();
    }

private:
    static void resume(weft_op_t *, void *user) noexcept
    {
        auto *self = static_cast<awaiter *>(user);
        if (self->begun_.told())
            self->caller_.resume();
    }

    std::coroutine_handle<> caller_;
    begun<S, false> begun_;
};

/* What as_result() gives: an action whose await gives a result. */
template <action_spec S>
class result_of {
public:
    using spec_type = S;
    explicit result_of(action<S> &&what) noexcept : action_(std::move(what)) {}
    awaiter<S, false> operator co_await() && noexcept { return awaiter<S, false>(std::move(action_)); }
    action<S> &&get() && noexcept { return std::move(action_); }

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
    /* It is cancelled together with this token (or weft::token), which must stay until it ends. */
    action &&token(weft_token_t *token) && noexcept
    {
        token_ = token;
        return std::move(*this);
    }
    template <class Token>
        requires requires(const Token &t) { { t.native() } -> std::same_as<weft_token_t *>; }
    action &&token(const Token &token) && noexcept
    {
        token_ = token.native();
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

    /* Post it and wait until it ends; a runtime that the caller drives is driven. Inside a callback nothing can be waited for:
     * WEFT_ERR_STATE, and nothing was posted. */
    result<value_type> wait_result() && noexcept
    {
        if (weft_status_t st = weft_op_wait_all(nullptr, 0, 0); st) [[unlikely]]
            return st;
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = post(&op);
        if (!st)
            st = weft_op_wait(&op, WEFT_FOREVER); /* it ends before its runtime does */
        if (!st)
            st = detail::ended(spec_, op);
        if (st) [[unlikely]] {
            if (!op.status && weft_op_done(&op))
                detail::abandon(spec_, op);
            return st;
        }
        if constexpr (std::is_void_v<value_type>) {
            spec_.take(op);
            return {};
        } else {
            return spec_.take(op);
        }
    }
    value_type wait() && { return std::move(*this).wait_result().value(); }

    /* For those who wait in another way: post it to an operation of their own. Its fn, user and queue stay as they are. From then
     * on the action stays where it is, since parts of it may be borrowed. Attach a callback after that (weft_op_attach()): an
     * action may write to itself until the post returns. Once the operation is complete, ask weft::detail::ended(spec(), op)
     * for its status, and with WEFT_OK take spec().take(op), or let go of it by weft::detail::abandon(spec(), op). */
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
