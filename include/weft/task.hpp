/* weft/task.hpp - coroutines: tasks, and waiting for one from outside.
 *
 *     weft::task<int> ask(weft::endpoint_ref ep)
 *     {
 *         co_await ep.send(question, 7);
 *         co_return co_await ep.recv<int>(8).timeout(2s);
 *     }
 *     int answer = weft::sync_wait(rt, ask(ep));
 *
 * A task is lazy: it begins when it is awaited, and it is awaited once. Its frame goes with the task object, at the latest at the
 * end of the expression that awaits it.
 *
 * Stopping: a task has a std::stop_token, that of the task which awaits it; sync_wait(rt, task, token) gives one to the first. A
 * stop cancels what the task awaits, which then fails with WEFT_ERR_CANCELLED. A task that goes on all the same may: each
 * further operation fails in the same way. `co_await weft::get_stop_token()` gives it to the program.
 *
 * Where it runs: until its first real wait on the thread that awaits it, afterwards in progress of the runtime whose operation
 * ended. Threads that await parts of one task need care of their own: a task is one thread of control.
 *
 * A task that ends at once is not resumed from its own end, but by its return: a loop over such tasks does not grow the stack,
 * though g++ makes tail calls of resumptions only at -O2. */
#ifndef WEFT_TASK_HPP
#define WEFT_TASK_HPP

#include <atomic>
#include <coroutine>
#include <ctime>
#include <exception>
#include <optional>
#include <stop_token>
#include <weft/op.hpp>
#include <weft/runtime.hpp>

namespace weft {

template <class T = void>
class task;

/* co_await weft::get_stop_token(): the token of the coroutine that asks. */
struct get_stop_token {};

namespace detail {

/* Who is told that a task has ended, and what goes on then, if anything does. Never destroyed through this. */
struct listener_of_end {
    std::coroutine_handle<> (*ended)(listener_of_end *self, std::coroutine_handle<> frame) noexcept;
};

/* The token of whoever awaits, if it has one. */
template <class Promise>
const std::stop_token *stop_of(std::coroutine_handle<Promise> caller) noexcept
{
    if constexpr (requires(Promise & p) { { p.stop() } -> std::same_as<const std::stop_token &>; })
        return &caller.promise().stop();
    else
        return nullptr;
}

/* An awaiter that is somewhere: g++ 12 would copy it. */
template <class A>
struct by_reference {
    A &at;
    bool await_ready() { return at.await_ready(); }
    template <class Promise>
    auto await_suspend(std::coroutine_handle<Promise> caller)
    {
        return at.await_suspend(caller);
    }
    decltype(auto) await_resume() { return at.await_resume(); }
};

/* What coroutines of this library have in common: actions are awaited with their stop token. */
class stoppable {
public:
    const std::stop_token &stop() const noexcept { return stop_; }
    void stop_with(const std::stop_token *stop) noexcept
    {
        if (stop)
            stop_ = *stop;
    }

#if WEFT_EXCEPTIONS
    template <action_spec S>
    awaiter<S, true> await_transform(action<S> &&what) noexcept
    {
        return awaiter<S, true>(std::move(what), &stop_);
    }
#endif
    template <action_spec S>
    awaiter<S, false> await_transform(result_of<S> &&what) noexcept
    {
        return awaiter<S, false>(std::move(what).get(), &stop_);
    }
    auto await_transform(get_stop_token) noexcept
    {
        struct given {
            const std::stop_token &stop;
            bool await_ready() const noexcept { return true; }
            void await_suspend(std::coroutine_handle<>) const noexcept {}
            std::stop_token await_resume() const noexcept { return stop; }
        };
        return given{stop_};
    }
    template <class A>
    decltype(auto) await_transform(A &&other) noexcept
    {
        if constexpr (requires { static_cast<A &&>(other).await_ready(); })
            return by_reference<std::remove_reference_t<A>>{other};
        else
            return static_cast<A &&>(other);
    }

private:
    std::stop_token stop_;
};

class task_promise_base : public stoppable {
public:
    struct final_awaiter {
        bool await_ready() const noexcept { return false; }
        template <class Promise>
        WEFT_SUSPENDS std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept
        {
            task_promise_base &p = self.promise();
            /* the one who comes second goes on: this, or who began the task and is still in that */
            return p.met_.exchange(true, std::memory_order_acq_rel) ? p.told_->ended(p.told_, self) : std::noop_coroutine();
        }
        void await_resume() const noexcept {}
    };
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { error_ = std::current_exception(); }

    /* Begin it. True: it has ended, and nobody is told. */
    bool begin(std::coroutine_handle<> self, listener_of_end *told) noexcept
    {
        told_ = told;
        self.resume();
        return met_.exchange(true, std::memory_order_acq_rel);
    }
    /* Begin it: its end is always told. */
    void begin_and_tell(std::coroutine_handle<> self, listener_of_end *told) noexcept
    {
        told_ = told;
        met_.store(true, std::memory_order_relaxed);
        self.resume();
    }
    const std::exception_ptr &error() const noexcept { return error_; }

private:
    listener_of_end *told_ = nullptr;
    std::atomic<bool> met_{false};
    std::exception_ptr error_;
};

template <class T>
class task_promise final : public task_promise_base {
public:
    task<T> get_return_object() noexcept;
    template <class U>
        requires std::convertible_to<U &&, T>
    void return_value(U &&value) noexcept(std::is_nothrow_constructible_v<T, U &&>)
    {
        value_.emplace(std::forward<U>(value));
    }
    T take() noexcept(std::is_nothrow_move_constructible_v<T>) { return std::move(*value_); }
    const T &peek() const noexcept { return *value_; }

private:
    std::optional<T> value_;
};

template <>
class task_promise<void> final : public task_promise_base {
public:
    task<void> get_return_object() noexcept;
    void return_void() const noexcept {}
    void take() const noexcept {}
};

#if WEFT_EXCEPTIONS
/* The status of an exception: its own, if it is ours. Others are not caught here. Leaves the sentence for weft_last_error(). */
inline weft_status_t status_of(const std::exception_ptr &e)
{
    try {
        std::rethrow_exception(e);
    } catch (const error &ours) {
        return weft_fail(ours.status(), "%s", ours.what());
    }
}
inline bool is_cancel(const std::exception_ptr &e) noexcept
{
    try {
        std::rethrow_exception(e);
    } catch (const error &ours) {
        return ours.status() == WEFT_ERR_CANCELLED;
    } catch (...) {
        return false;
    }
}
#endif

/* What a task that ended gives. */
template <class T>
T outcome_of(task_promise<T> &promise)
{
#if WEFT_EXCEPTIONS
    if (promise.error()) [[unlikely]]
        std::rethrow_exception(promise.error());
#endif
    return promise.take();
}
/* The same as a result: a weft::error becomes its status, other exceptions go on. */
template <class T>
result<T> result_from(task_promise<T> &promise)
{
#if WEFT_EXCEPTIONS
    if (promise.error()) [[unlikely]]
        return status_of(promise.error());
#endif
    if constexpr (std::is_void_v<T>)
        return {};
    else
        return promise.take();
}

} // namespace detail

template <class T>
class [[nodiscard("a task does nothing until it is awaited")]] task {
public:
    using promise_type = detail::task_promise<T>;
    using value_type = T;

    task() noexcept = default;
    explicit task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
    task(task &&other) noexcept : frame_(other.release()) {}
    task &operator=(task &&other) noexcept
    {
        if (this != &other) {
            if (frame_)
                frame_.destroy();
            frame_ = other.release();
        }
        return *this;
    }
    /* One that is suspended in an operation cancels that and waits for it: weft/op.hpp. */
    ~task()
    {
        if (frame_)
            frame_.destroy();
    }

    explicit operator bool() const noexcept { return static_cast<bool>(frame_); }
    /* Its coroutine, suspended: ours to destroy. */
    std::coroutine_handle<promise_type> release() noexcept { return std::exchange(frame_, nullptr); }
    promise_type &promise() const noexcept { return frame_.promise(); }
    std::coroutine_handle<promise_type> frame() const noexcept { return frame_; }

    auto operator co_await() && noexcept { return waiter<false>(frame_); }
    /* To be awaited for a weft::result: a weft::error that ends the task becomes a status. */
    auto as_result() && noexcept { return asked_for_result{std::move(*this)}; }

private:
    template <bool Result>
    class waiter : detail::listener_of_end {
    public:
        explicit waiter(std::coroutine_handle<promise_type> frame) noexcept : listener_of_end{on_end}, frame_(frame) {}
        bool await_ready() const noexcept { return false; }
        template <class Promise>
        WEFT_SUSPENDS bool await_suspend(std::coroutine_handle<Promise> caller) noexcept
        {
            caller_ = caller;
            frame_.promise().stop_with(detail::stop_of(caller));
            return !frame_.promise().begin(frame_, this);
        }
        auto await_resume()
        {
            if constexpr (Result)
                return detail::result_from<T>(frame_.promise());
            else
                return detail::outcome_of<T>(frame_.promise());
        }

    private:
        static std::coroutine_handle<> on_end(listener_of_end *self, std::coroutine_handle<>) noexcept
        {
            return static_cast<waiter *>(self)->caller_;
        }
        std::coroutine_handle<promise_type> frame_;
        std::coroutine_handle<> caller_;
    };
    struct asked_for_result {
        task what;
        auto operator co_await() && noexcept { return waiter<true>(what.frame_); }
    };

    std::coroutine_handle<promise_type> frame_;
};

template <class T>
task<T> detail::task_promise<T>::get_return_object() noexcept
{
    return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}
inline task<void> detail::task_promise<void>::get_return_object() noexcept
{
    return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

/* --- waiting for one from outside ------------------------------------------------------------------------------------------- */

namespace detail {

/* The end of a task that a thread waits for. The thread waits for a timer that never comes due, and that the end cancels: so it
 * drives the runtime, or sleeps, as for any operation. */
class end_of_wait : public listener_of_end {
public:
    end_of_wait() noexcept : listener_of_end{on_end} {}

    void wait(runtime_ref rt) noexcept
    {
        weft_status_t st = done_.load(std::memory_order_acquire) ? WEFT_OK : weft_timer_start(rt.native(), WEFT_FOREVER, &timer_);
        if (!st)
            (void)weft_op_wait(&timer_, WEFT_FOREVER); /* also after the end: its cancel may be under way still */
        /* No timer, or the runtime was closed, which ends all that the task can await of it; or the end is just being told. */
        while (!done_.load(std::memory_order_acquire)) {
            if (weft_runtime_progress(rt.native()))
                continue;
            timespec moment = {0, 50000};
            nanosleep(&moment, nullptr);
        }
    }

private:
    static std::coroutine_handle<> on_end(listener_of_end *self, std::coroutine_handle<>) noexcept
    {
        auto *end = static_cast<end_of_wait *>(self);
        weft_op_cancel(&end->timer_); /* before the post it sticks */
        end->done_.store(true, std::memory_order_release); /* the last touch */
        return std::noop_coroutine();
    }
    std::atomic<bool> done_{false};
    weft_op_t timer_ = WEFT_OP_INIT;
};

template <class T>
weft_status_t run(runtime_ref rt, task<T> &what, const std::stop_token &stop) noexcept
{
    if (weft_status_t st = weft_op_wait_all(nullptr, 0, 0); st)
        return st;
    end_of_wait end;
    what.promise().stop_with(&stop);
    if (!what.promise().begin(what.frame(), &end))
        end.wait(rt);
    return WEFT_OK;
}

} // namespace detail

/* Run a task and wait until it ends; a runtime that the caller drives is driven. Not inside a callback: WEFT_ERR_STATE, and the
 * task has not begun. */
template <class T>
T sync_wait(runtime_ref rt, task<T> what, const std::stop_token &stop = {})
{
    if (weft_status_t st = detail::run(rt, what, stop); st)
        detail::fail(st, detail::sentence(st));
    return detail::outcome_of<T>(what.promise());
}
template <class T>
result<T> try_sync_wait(runtime_ref rt, task<T> what, const std::stop_token &stop = {})
{
    if (weft_status_t st = detail::run(rt, what, stop); st)
        return st;
    return detail::result_from<T>(what.promise());
}

namespace detail {

template <class A>
decltype(auto) awaiter_of(A &&what)
{
    if constexpr (requires { std::forward<A>(what).operator co_await(); })
        return std::forward<A>(what).operator co_await();
    else
        return std::forward<A>(what);
}
template <class A>
using awaited_t = decltype(awaiter_of(std::declval<A>()).await_resume());

template <class A>
task<awaited_t<A>> as_task(A what)
{
    co_return co_await std::move(what);
}

} // namespace detail

/* The same for anything else that can be awaited: when_all(...), gen.next(). */
template <class A>
    requires requires(A &&a) { typename detail::awaited_t<A>; }
auto sync_wait(runtime_ref rt, A what, const std::stop_token &stop = {})
{
    return sync_wait(rt, detail::as_task(std::move(what)), stop);
}

} // namespace weft

#endif
