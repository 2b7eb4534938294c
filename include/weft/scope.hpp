/* weft/scope.hpp - tasks that run beside the one who began them, and are joined.
 *
 *     weft::scope scope;
 *     while (auto ep = co_await incoming.next())
 *         scope.spawn(serve(std::move(*ep)));
 *     scope.request_stop();
 *     co_await scope.join();
 *
 * spawn() begins a task at once, on this thread; its frame goes when it ends. join() waits until all have ended, those that were
 * spawned meanwhile too, and fails with what the first that failed said. A failure stops none of the others: ask for that where
 * it is wanted. request_stop() stops all, through their stop tokens.
 *
 * A scope must have been joined when it goes, else the process ends: what runs in it uses what is around it.
 *
 * Threads: spawn() and request_stop() from any; one join() at a time. */
#ifndef WEFT_SCOPE_HPP
#define WEFT_SCOPE_HPP

#include <weft/task.hpp>

namespace weft {

class scope {
public:
    /* With `parent` it is stopped when that is. */
    explicit scope(const std::stop_token &parent = {}) : link_(parent, pass{&stop_}), token_(stop_.get_token()) {}
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;
    ~scope()
    {
        if (left_.load(std::memory_order_acquire) != 1) {
            std::fputs("weft: a scope went before its tasks had ended; join() it\n", stderr);
            std::terminate();
        }
    }

    void spawn(task<> what) noexcept { begin(std::move(what), &plain_); }
    /* A weft::result that holds a failure counts as one. */
    void spawn(task<result<void>> what) noexcept { begin(std::move(what), &result_); }

    void request_stop() noexcept { stop_.request_stop(); }
    const std::stop_token &token() const noexcept { return token_; }
    /* How many tasks run in it. */
    std::size_t size() const noexcept { return left_.load(std::memory_order_relaxed) - 1; }

    /* Wait until all have ended. */
    task<> join()
    {
        co_await joining{*this};
        failed_.store(false, std::memory_order_relaxed);
        const weft_status_t st = std::exchange(status_, WEFT_OK);
#if WEFT_EXCEPTIONS
        if (std::exception_ptr e = std::exchange(error_, nullptr); e)
            std::rethrow_exception(e);
#endif
        if (st)
            detail::fail(st, detail::sentence(weft_fail(st, "%s", why_)));
    }
    task<result<void>> try_join()
    {
        co_await joining{*this};
        failed_.store(false, std::memory_order_relaxed);
#if WEFT_EXCEPTIONS
        if (std::exception_ptr e = std::exchange(error_, nullptr); e)
            co_return detail::status_of(e);
#endif
        const weft_status_t st = std::exchange(status_, WEFT_OK);
        co_return st ? weft_fail(st, "%s", why_) : WEFT_OK;
    }

private:
    struct pass {
        std::stop_source *to;
        void operator()() const noexcept { to->request_stop(); }
    };
    struct told : detail::listener_of_end {
        scope *in;
        told(scope *s, std::coroutine_handle<> (*fn)(listener_of_end *, std::coroutine_handle<>) noexcept)
            : listener_of_end{fn}, in(s)
        {
        }
    };
    struct joining {
        scope &in;
        bool await_ready() const noexcept { return false; }
        WEFT_SUSPENDS bool await_suspend(std::coroutine_handle<> caller) noexcept
        {
            in.joiner_ = caller;
            return in.left_.fetch_sub(1, std::memory_order_acq_rel) != 1;
        }
        void await_resume() const noexcept { in.left_.store(1, std::memory_order_relaxed); }
    };

    template <class T>
    void begin(task<T> what, told *listener) noexcept
    {
        auto frame = what.release();
        left_.fetch_add(1, std::memory_order_relaxed);
        frame.promise().stop_with(&token_);
        frame.promise().begin_and_tell(frame, listener);
    }
    template <class T>
    static std::coroutine_handle<> on_end(detail::listener_of_end *self, std::coroutine_handle<> frame) noexcept
    {
        scope *in = static_cast<told *>(self)->in;
        auto ended = std::coroutine_handle<detail::task_promise<T>>::from_address(frame.address());
        in->note(ended.promise());
        frame.destroy();
        return in->left_.fetch_sub(1, std::memory_order_acq_rel) == 1 ? in->joiner_ : std::noop_coroutine();
    }
    template <class T>
    void note(detail::task_promise<T> &p) noexcept
    {
        weft_status_t st = WEFT_OK;
        if constexpr (!std::is_void_v<T>)
            st = p.error() ? WEFT_OK : p.peek().status();
        if ((!p.error() && !st) || failed_.exchange(true, std::memory_order_acq_rel))
            return;
        error_ = p.error();
        status_ = st;
        if (st)
            std::snprintf(why_, sizeof why_, "%s", detail::sentence(st));
    }

    std::stop_source stop_;
    std::stop_callback<pass> link_;
    std::stop_token token_;
    std::atomic<std::size_t> left_{1}; /* tasks, and one for the scope until it is joined */
    std::coroutine_handle<> joiner_;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;
    weft_status_t status_ = WEFT_OK;
    char why_[200] = {};
    told plain_{this, on_end<void>}, result_{this, on_end<result<void>>};
};

} // namespace weft

#endif
