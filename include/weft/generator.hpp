/* weft/generator.hpp - coroutines that give one value after the other, and may wait between them.
 *
 *     weft::generator<weft::endpoint> incoming = weft::incoming(door);
 *     while (std::optional<weft::endpoint> ep = co_await incoming.next())
 *         scope.spawn(serve(std::move(*ep)));
 *
 *     weft::generator<int> numbers(weft::endpoint_ref ep)
 *     {
 *         for (;;)
 *             co_yield co_await ep.recv<int>(7);
 *     }
 *
 * It runs while somebody awaits next(), and is stopped by the stop token of whoever does. nullopt: it has ended; what it throws
 * comes out of next(). One next() at a time. */
#ifndef WEFT_GENERATOR_HPP
#define WEFT_GENERATOR_HPP

#include <weft/msg.hpp>
#include <weft/task.hpp>

namespace weft {

template <class T>
class [[nodiscard]] generator {
public:
    class promise_type : public detail::stoppable {
        struct handing_over {
            bool await_ready() const noexcept { return false; }
            WEFT_SUSPENDS std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept
            {
                promise_type &p = self.promise();
                return p.met_.exchange(true, std::memory_order_acq_rel) ? p.asker_ : std::noop_coroutine();
            }
            void await_resume() const noexcept {}
        };

    public:
        generator get_return_object() noexcept
        {
            return generator(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_always initial_suspend() const noexcept { return {}; }
        handing_over final_suspend() const noexcept { return {}; }
        void unhandled_exception() noexcept { error_ = std::current_exception(); }
        void return_void() const noexcept {}
        template <class U>
            requires std::convertible_to<U &&, T>
        handing_over yield_value(U &&value)
        {
            value_.emplace(std::forward<U>(value));
            return {};
        }

    private:
        friend class generator;
        std::coroutine_handle<> asker_;
        std::atomic<bool> met_{false};
        std::optional<T> value_;
        std::exception_ptr error_;
    };

    generator() noexcept = default;
    explicit generator(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
    generator(generator &&other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
    generator &operator=(generator &&other) noexcept
    {
        std::swap(frame_, other.frame_);
        return *this;
    }
    ~generator()
    {
        if (frame_)
            frame_.destroy();
    }

    /* Await it: the next value, or nullopt. */
    auto next() noexcept { return asking{frame_}; }

private:
    struct asking {
        std::coroutine_handle<promise_type> frame;
        bool await_ready() const noexcept { return !frame || frame.done(); }
        template <class Promise>
        WEFT_SUSPENDS bool await_suspend(std::coroutine_handle<Promise> caller) noexcept
        {
            promise_type &p = frame.promise();
            p.asker_ = caller;
            p.met_.store(false, std::memory_order_relaxed);
            p.stop_with(detail::stop_of(caller));
            frame.resume();
            return !p.met_.exchange(true, std::memory_order_acq_rel);
        }
        std::optional<T> await_resume()
        {
            if (!frame)
                return std::nullopt;
            promise_type &p = frame.promise();
#if WEFT_EXCEPTIONS
            if (p.error_) [[unlikely]]
                std::rethrow_exception(std::exchange(p.error_, nullptr));
#endif
            std::optional<T> value = std::move(p.value_);
            p.value_.reset();
            return value;
        }
    };

    std::coroutine_handle<promise_type> frame_;
};

/* The endpoints that come to a listener, until it is closed or the wait for one is stopped. A failure of another sort is the last
 * that is given. */
inline generator<result<endpoint>> try_incoming(listener &door)
{
    for (;;) {
        result<endpoint> ep = co_await door.accept().as_result();
        const weft_status_t st = ep.status();
        if (st == WEFT_ERR_CLOSED || st == WEFT_ERR_CANCELLED)
            co_return;
        co_yield std::move(ep);
        if (st)
            co_return;
    }
}

/* The messages of an endpoint that match, until it is closed by either side or the wait for one is stopped. A failure of another
 * sort is the last that is given. */
inline generator<result<arrived>> try_messages(endpoint_ref ep, std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL,
                                               std::size_t max_len = default_max_len)
{
    for (;;) {
        result<arrived> one = co_await ep.recv_alloc(tag, mask, max_len).as_result();
        const weft_status_t st = one.status();
        if (st == WEFT_ERR_CLOSED || st == WEFT_ERR_CANCELLED)
            co_return;
        co_yield std::move(one);
        if (st && st != WEFT_ERR_TRUNCATED)
            co_return;
    }
}

#if WEFT_EXCEPTIONS
/* The same; a failure of another sort is thrown by next(). */
inline generator<endpoint> incoming(listener &door)
{
    auto all = try_incoming(door);
    while (std::optional<result<endpoint>> ep = co_await all.next())
        co_yield std::move(*ep).value();
}
inline generator<arrived> messages(endpoint_ref ep, std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL,
                                   std::size_t max_len = default_max_len)
{
    auto all = try_messages(ep, tag, mask, max_len);
    while (std::optional<result<arrived>> one = co_await all.next())
        co_yield std::move(*one).value();
}
#endif

} // namespace weft

#endif
