/* weft/asio.hpp - Asio: every action with a completion token, and an io_context that drives a runtime. Needs standalone Asio,
 * 1.22 or later.
 *
 *     weft::async(ep.send(bytes, 7), token);             the handler's executor is its own: bind_executor(), use_awaitable
 *     weft::async(io, ep.send(bytes, 7), token);         and where it has none: this one (an executor or a context)
 *
 * `token` is a function, asio::use_future, asio::use_awaitable, asio::detached, asio::experimental::deferred or any other. The
 * signature is void(std::error_code), or void(std::error_code, T) for an action that gives a T: a T() where it failed, and a
 * std::optional<T> where T has no default. Codes are of weft::error_category(). In a handler that is told of a failure
 * weft_last_error() is its sentence. A deadline is the action's: weft::async(ep.recv(buffer, 7).timeout(2s), token).
 *
 * What Asio promises of its own operations is true of these:
 *   - The handler is called once, through its associated executor, never inside weft::async(). An executor runs it outside of the
 *     runtime's progress, so it may wait, throw and close the runtime. A handler without an executor (asio::system_executor) runs
 *     where callbacks of the runtime run, as those of the C API do: there it must not wait, and an exception ends the process.
 *   - The memory of the operation is of the handler's associated allocator, in one piece, and is given back before the handler is
 *     called. At the completion nothing is allocated: what the executor needs to queue the handler is in that piece. (Executors
 *     whose type is erased, any_io_executor among them, take memory of their own; if there is none the process ends.)
 *   - A cancellation through the associated slot cancels the operation. It ends with errc::cancelled, or with its result.
 *   - Work is counted on the handler's executor and on `io` from the call until the handler is called.
 *   - When an execution context is destroyed its operations that are under way are cancelled, waited for, so that their buffers
 *     are free, and their handlers are destroyed without a call. A caller-driven runtime is driven meanwhile. Inside a callback
 *     of a runtime that is not possible: the process ends with a sentence.
 *
 * weft::asio_driver drives a caller-driven or loop-driven runtime inside io_context::run(), without a
 * thread (weft/asio_driver.hpp). */
#ifndef WEFT_ASIO_HPP
#define WEFT_ASIO_HPP

#include <array>
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/execution.hpp>
#include <asio/execution_context.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/system_executor.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <weft/asio_driver.hpp>
#include <weft/op.hpp>

namespace weft {
namespace detail {

class asio_operations;
class asio_cancel;

/* What all operations have, whatever their handlers are. */
struct asio_base {
    weft_op_t op = WEFT_OP_INIT;
    asio_operations *home = nullptr;    /* of the execution context that they end with; null: of none */
    asio_base *next = nullptr, *prev = nullptr;
    asio_cancel *cancel = nullptr;      /* in the handler's slot. Under its lock */
    bool slotted = false;
    bool told = false;                  /* it ended after its context began to end. Under the lock of `home` */
    void (*finish)(asio_base *) noexcept = nullptr; /* queue the handler, or call it */
    void (*drop)(asio_base *) noexcept = nullptr;   /* destroy it, handler and all */

    asio_base() = default;
    asio_base(const asio_base &) = delete;
    asio_base &operator=(const asio_base &) = delete;

    static void ended(weft_op_t *, void *user) noexcept;
};

/* The operations of an execution context that are under way. */
class asio_operations : public asio::execution_context::service {
public:
    inline static asio::execution_context::id id;

    explicit asio_operations(asio::execution_context &owner) : service(owner) {}

    void add(asio_base *o) noexcept
    {
        const std::lock_guard hold(lock_);
        o->home = this;
        o->next = first_;
        if (first_)
            first_->prev = o;
        first_ = o;
    }
    /* It ended. The handler is queued under the lock: the context cannot go meanwhile. */
    void ended(asio_base *o) noexcept
    {
        const std::lock_guard hold(lock_);
        if (closing_) {
            o->told = true;
            changed_.notify_all();
            return;
        }
        take(o);
        o->finish(o);
    }
    /* It was not started. */
    void remove(asio_base *o) noexcept
    {
        const std::lock_guard hold(lock_);
        take(o);
    }

private:
    void take(asio_base *o) noexcept
    {
        (o->prev ? o->prev->next : first_) = o->next;
        if (o->next)
            o->next->prev = o->prev;
        o->home = nullptr;
        o->next = o->prev = nullptr;
    }

    /* The context is being destroyed. */
    void shutdown() noexcept override
    {
        std::unique_lock hold(lock_);
        closing_ = true;
        hold.unlock();
        for (asio_base *o = first_; o; o = o->next)
            weft_op_cancel(&o->op);
        for (asio_base *o = first_; o; o = o->next) {
            const weft_status_t st = weft_op_wait(&o->op, WEFT_FOREVER);
            if (st == WEFT_ERR_FORKED && !weft_op_done(&o->op))
                continue; /* the parent's, whose memory this is a copy of */
            if (!weft_op_done(&o->op)) {
                std::fputs("weft: an io_context with operations under way was destroyed inside a callback of the runtime\n",
                           stderr);
                std::terminate();
            }
            hold.lock();
            changed_.wait(hold, [o] { return o->told; }); /* the library is done with it only then */
            hold.unlock();
        }
        while (asio_base *o = first_) {
            first_ = o->next;
            o->drop(o);
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    asio_base *first_ = nullptr;
    bool closing_ = false;
};

inline void asio_base::ended(weft_op_t *, void *user) noexcept
{
    auto *self = static_cast<asio_base *>(user);
    if (self->home)
        self->home->ended(self);
    else
        self->finish(self);
}

/* What is in the slot of a handler. It and the operation know each other, and either may go first: the slot keeps what it has
 * after the handler was called, and the handler may be called on one thread while another emits. */
class asio_cancel {
public:
    explicit asio_cancel(asio_base *o) noexcept : lock_(lock_of(o)), op_(o)
    {
        o->cancel = this;
        o->slotted = true;
    }
    asio_cancel(const asio_cancel &) = delete;
    asio_cancel &operator=(const asio_cancel &) = delete;
    ~asio_cancel()
    {
        const std::lock_guard hold(lock_);
        if (op_)
            op_->cancel = nullptr;
    }
    void operator()(asio::cancellation_type_t type) noexcept
    {
        const std::lock_guard hold(lock_);
        if (op_ && type != asio::cancellation_type::none)
            weft_op_cancel(&op_->op);
    }
    /* The operation goes. */
    static void part(asio_base *o) noexcept
    {
        const std::lock_guard hold(lock_of(o));
        if (o->cancel)
            o->cancel->op_ = nullptr;
        o->cancel = nullptr;
    }

private:
    static std::mutex &lock_of(const asio_base *o) noexcept
    {
        static std::array<std::mutex, 16> locks;
        return locks[reinterpret_cast<std::uintptr_t>(o) / sizeof(asio_base) % locks.size()];
    }

    std::mutex &lock_;
    asio_base *op_;
};

/* --- values and executors ------------------------------------------------------------------------------------------------ */

template <class T>
struct asio_value {
    using type = std::conditional_t<std::default_initializable<T>, T, std::optional<T>>;
    using signature = void(std::error_code, type);
};
template <>
struct asio_value<void> {
    using signature = void(std::error_code);
};

/* The context of an executor, if it has one that can be destroyed before the process. */
template <class Executor>
asio::execution_context *asio_context_of(const Executor &ex) noexcept
{
    if constexpr (std::is_same_v<Executor, asio::system_executor>)
        return nullptr;
    else if constexpr (asio::can_query<const Executor &, asio::execution::context_t>::value)
        return &asio::query(ex, asio::execution::context);
    else if constexpr (requires { ex.context(); })
        return &ex.context();
    else
        return nullptr;
}

/* Memory within an operation, for what its executor allocates to queue the handler. What does not fit is the handler's
 * allocator's. */
class asio_reserve {
public:
    void *take(std::size_t n, std::size_t align) noexcept
    {
        const std::size_t at = (used_ + align - 1) / align * align;
        if (align > alignof(std::max_align_t) || at > sizeof bytes_ || n > sizeof bytes_ - at)
            return nullptr;
        used_ = at + n;
        return bytes_ + at;
    }
    bool has(const void *p) const noexcept
    {
        const auto at = reinterpret_cast<std::uintptr_t>(p), begin = reinterpret_cast<std::uintptr_t>(bytes_);
        return at >= begin && at - begin < sizeof bytes_;
    }

private:
    std::size_t used_ = 0;
    alignas(std::max_align_t) std::byte bytes_[240];
};

template <class T, class Alloc>
class asio_reserve_allocator {
public:
    using value_type = T;

    asio_reserve_allocator(asio_reserve *reserve, const Alloc &alloc) noexcept : reserve_(reserve), alloc_(alloc) {}
    template <class U>
    asio_reserve_allocator(const asio_reserve_allocator<U, Alloc> &other) noexcept
        : reserve_(other.reserve_), alloc_(other.alloc_)
    {
    }
    T *allocate(std::size_t n)
    {
        if (n <= SIZE_MAX / sizeof(T))
            if (void *p = reserve_->take(n * sizeof(T), alignof(T)))
                return static_cast<T *>(p);
        return rebound(alloc_).allocate(n);
    }
    void deallocate(T *p, std::size_t n) noexcept
    {
        if (!reserve_->has(p)) /* what has been taken of the reserve goes with the operation */
            rebound(alloc_).deallocate(p, n);
    }
    template <class U>
    bool operator==(const asio_reserve_allocator<U, Alloc> &other) const noexcept
    {
        return reserve_ == other.reserve_;
    }

private:
    template <class, class>
    friend class asio_reserve_allocator;
    using rebound = typename std::allocator_traits<Alloc>::template rebind_alloc<T>;

    asio_reserve *reserve_;
    Alloc alloc_;
};

/* --- an operation -------------------------------------------------------------------------------------------------------- */

template <action_spec S, class Handler, class Io>
class asio_op final : public asio_base {
public:
    using value_type = typename S::value_type;
    using executor_type = asio::associated_executor_t<Handler, Io>;
    using handler_allocator = asio::associated_allocator_t<Handler>;
    using allocator = typename std::allocator_traits<handler_allocator>::template rebind_alloc<asio_op>;
    /* The library itself calls the handler, in progress. */
    static constexpr bool inlined = std::is_same_v<executor_type, asio::system_executor>;

    /* Make it, post it. What is thrown is of the allocators, and then nothing was posted. */
    static void start(Handler &&handler, const Io &io, action<S> &&what)
    {
        const executor_type ex = asio::get_associated_executor(handler, io);
        asio::execution_context *context = asio_context_of(ex);
        asio_operations *home = context ? &asio::use_service<asio_operations>(*context) : nullptr;
        allocator alloc(asio::get_associated_allocator(handler));
        asio_op *self = alloc.allocate(1);
        std::construct_at(self, std::move(handler), io, ex, std::move(what));
        hop owner(self);
        if (auto slot = asio::get_associated_cancellation_slot(self->handler_); slot.is_connected())
            slot.template emplace<asio_cancel>(self);
        if (home)
            home->add(self);
        if constexpr (inlined)
            self->op.fn = ended;
        self->op.user = self;
        const weft_status_t refused = self->what_.post(&self->op);
        if (!refused) {
            if constexpr (inlined) {
                owner.release();
                return;
            } else {
                owner.release(); /* from the attach on it may be gone */
                if (weft_op_attach(&self->op, ended) == WEFT_OK)
                    return;
                owner = hop(self);
            }
        } else {
            self->refused_ = refused;
        }
        if (home)
            home->remove(self);
        asio::post(ex, std::move(owner));
    }

    asio_op(Handler &&handler, const Io &io, const executor_type &ex, action<S> &&what) noexcept
        : handler_(std::move(handler)), io_work_(io), work_(ex), what_(std::move(what))
    {
        finish = finished;
        drop = dropped;
    }

private:
    /* The operation on its way to the handler's executor. */
    class hop {
    public:
        using allocator_type = asio_reserve_allocator<void *, handler_allocator>;

        explicit hop(asio_op *op) noexcept : op_(op) {}
        hop(hop &&other) noexcept : op_(other.release()) {}
        hop &operator=(hop &&other) noexcept
        {
            std::swap(op_, other.op_);
            return *this;
        }
        ~hop()
        {
            if (op_)
                op_->abandon();
        }
        allocator_type get_allocator() const noexcept
        {
            return {&op_->reserve_, asio::get_associated_allocator(op_->handler_)};
        }
        asio_op *release() noexcept { return std::exchange(op_, nullptr); }
        void operator()() { release()->call(); }

    private:
        asio_op *op_;
    };

    static void finished(asio_base *base) noexcept
    {
        auto *self = static_cast<asio_op *>(base);
        if constexpr (inlined)
            self->call();
        else
            asio::post(executor_type(self->work_.get_executor()), hop(self));
    }
    static void dropped(asio_base *base) noexcept { static_cast<asio_op *>(base)->abandon(); }

    /* Nobody will hear of it. In a forked child, or before the post, it is not complete, and has no result. */
    void abandon() noexcept
    {
        if (!refused_ && op.user && weft_op_done(&op))
            detail::abandon(what_.spec(), op);
        Handler handler(std::move(handler_));
        destroy(handler);
    }

    void destroy(const Handler &handler) noexcept
    {
        if (slotted)
            asio_cancel::part(this);
        allocator alloc(asio::get_associated_allocator(handler));
        std::destroy_at(this);
        alloc.deallocate(this, 1);
    }

    /* Leave the sentence for the handler. */
    void tell(weft_status_t st) noexcept
    {
        const char *why = refused_ || !op.status ? "" : weft_op_error(&op);
        (void)weft_fail(st, "%s", *why ? why : weft_status_text(st));
        if (!refused_ && !op.status) /* a success that is none: let go of it */
            detail::abandon(what_.spec(), op);
    }

    /* Take the result, give the memory back, call the handler. */
    void call()
    {
        const weft_status_t st = refused_ ? refused_ : detail::ended(what_.spec(), op);
        const std::error_code code = st ? make_error_code(st) : std::error_code();
        if (st) [[unlikely]]
            tell(st);
        if constexpr (std::is_void_v<value_type>) {
            if (!st)
                what_.spec().take(op);
            Handler handler(std::move(handler_));
            destroy(handler);
            std::move(handler)(code);
        } else {
            using given = typename asio_value<value_type>::type;
            given value = st ? given() : given(what_.spec().take(op));
            Handler handler(std::move(handler_));
            destroy(handler);
            std::move(handler)(code, std::move(value));
        }
    }

    Handler handler_;
    asio::executor_work_guard<Io> io_work_;
    asio::executor_work_guard<executor_type> work_;
    action<S> what_;
    weft_status_t refused_ = WEFT_OK;
    asio_reserve reserve_;
};

template <class Io>
class asio_initiate {
public:
    using executor_type = Io;

    explicit asio_initiate(const Io &io) noexcept : io_(io) {}
    executor_type get_executor() const noexcept { return io_; }
    template <class Handler, action_spec S>
    void operator()(Handler &&handler, action<S> &&what) const
    {
        using op = asio_op<S, std::decay_t<Handler>, Io>;
        std::decay_t<Handler> own(std::forward<Handler>(handler));
        op::start(std::move(own), io_, std::move(what));
    }

private:
    Io io_;
};

template <class Where>
auto asio_executor_of(Where &where) noexcept
{
    if constexpr (std::is_convertible_v<Where &, asio::execution_context &>)
        return where.get_executor();
    else
        return std::decay_t<Where>(where);
}

} // namespace detail

/* Post an action and complete as the token says. `where`: an execution context or an executor, for handlers without one. */
template <class Where, action_spec S, class Token>
auto async(Where &&where, action<S> what, Token &&token)
{
    auto io = detail::asio_executor_of(where);
    return asio::async_initiate<Token, typename detail::asio_value<typename S::value_type>::signature>(
        detail::asio_initiate<decltype(io)>(io), token, std::move(what));
}
template <action_spec S, class Token>
auto async(action<S> what, Token &&token)
{
    return async(asio::system_executor(), std::move(what), std::forward<Token>(token));
}

} // namespace weft

#endif
