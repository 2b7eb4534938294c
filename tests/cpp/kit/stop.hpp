/* tests/cpp/kit/stop.hpp - stop tokens of the kit: one that never stops, and a source that is no allocation.
 *
 * The callback's destructor waits while the callback runs on another thread, and does not while it runs on this one: then it may
 * destroy itself. Plain, behind one lock: it is for tests. */
#ifndef KIT_STOP_HPP
#define KIT_STOP_HPP

#include <atomic>
#include <concepts>
#include <thread>
#include <type_traits>
#include <utility>

namespace kit {

template <class Token, class Callback>
using stop_callback_for_t = typename Token::template callback_type<Callback>;

template <class T>
concept stoppable_token = std::copyable<T> && std::equality_comparable<T> && std::is_nothrow_copy_constructible_v<T> &&
                          requires(const T token) {
                              { token.stop_requested() } noexcept -> std::same_as<bool>;
                              { token.stop_possible() } noexcept -> std::same_as<bool>;
                              typename stop_callback_for_t<T, void (*)()>;
                          };

/* Nobody ever asks it to stop, and its type says so. */
template <class T>
concept unstoppable_token = stoppable_token<T> && requires {
    requires std::bool_constant<!T::stop_possible()>::value;
};

class never_stop_token {
    struct no_callback {
        template <class F>
        explicit no_callback(never_stop_token, F &&) noexcept
        {
        }
    };

public:
    template <class>
    using callback_type = no_callback;
    static constexpr bool stop_requested() noexcept { return false; }
    static constexpr bool stop_possible() noexcept { return false; }
    bool operator==(const never_stop_token &) const = default;
};

class inplace_stop_source;

namespace detail {

/* What a source calls. */
class stop_link {
public:
    stop_link(const stop_link &) = delete;
    stop_link &operator=(const stop_link &) = delete;

protected:
    explicit stop_link(void (*call)(stop_link *) noexcept) noexcept : call_(call) {}
    ~stop_link() = default;
    void join(const inplace_stop_source *source) noexcept;
    void part() noexcept;

private:
    friend inplace_stop_source;
    void (*const call_)(stop_link *) noexcept;
    const inplace_stop_source *source_ = nullptr;
    stop_link *next_ = nullptr, *before_ = nullptr;
    bool *gone_ = nullptr;              /* set while it runs: its destructor tells here */
    std::atomic<bool> returned_{false}; /* it ran */
};

} // namespace detail

template <class F>
class inplace_stop_callback;

class inplace_stop_token {
public:
    template <class F>
    using callback_type = inplace_stop_callback<F>;
    inplace_stop_token() noexcept = default;
    bool stop_requested() const noexcept;
    bool stop_possible() const noexcept { return source_; }
    bool operator==(const inplace_stop_token &) const = default;

private:
    friend inplace_stop_source;
    template <class>
    friend class inplace_stop_callback;
    explicit inplace_stop_token(const inplace_stop_source *source) noexcept : source_(source) {}
    const inplace_stop_source *source_ = nullptr;
};

class inplace_stop_source {
public:
    inplace_stop_source() noexcept = default;
    inplace_stop_source(const inplace_stop_source &) = delete;
    inplace_stop_source &operator=(const inplace_stop_source &) = delete;

    inplace_stop_token get_token() const noexcept { return inplace_stop_token(this); }
    bool stop_requested() const noexcept { return requested_.load(std::memory_order_acquire); }

    /* Calls what is registered, one after the other. False: somebody was first. */
    bool request_stop() noexcept
    {
        lock();
        if (requested_.load(std::memory_order_relaxed)) {
            unlock();
            return false;
        }
        runs_ = std::this_thread::get_id();
        requested_.store(true, std::memory_order_release);
        while (detail::stop_link *link = first_) {
            bool gone = false;
            unlink(link);
            link->gone_ = &gone;
            now_ = link;
            unlock();
            link->call_(link);
            if (!gone)
                link->returned_.store(true, std::memory_order_release); /* it may be gone with this */
            lock();
            now_ = nullptr;
        }
        unlock();
        return true;
    }

private:
    friend detail::stop_link;

    void lock() const noexcept
    {
        while (locked_.exchange(true, std::memory_order_acquire))
            std::this_thread::yield();
    }
    void unlock() const noexcept { locked_.store(false, std::memory_order_release); }
    void unlink(detail::stop_link *link) const noexcept
    {
        (link->before_ ? link->before_->next_ : first_) = link->next_;
        if (link->next_)
            link->next_->before_ = link->before_;
        link->next_ = link->before_ = nullptr;
    }

    mutable std::atomic<bool> locked_{false};
    std::atomic<bool> requested_{false};
    mutable detail::stop_link *first_ = nullptr;
    detail::stop_link *now_ = nullptr; /* runs */
    std::thread::id runs_;             /* where */
};

inline bool inplace_stop_token::stop_requested() const noexcept { return source_ && source_->stop_requested(); }

namespace detail {

inline void stop_link::join(const inplace_stop_source *source) noexcept
{
    if (!source)
        return;
    source->lock();
    if (source->requested_.load(std::memory_order_relaxed)) {
        source->unlock();
        call_(this);
        return;
    }
    source_ = source;
    next_ = source->first_;
    if (next_)
        next_->before_ = this;
    source->first_ = this;
    source->unlock();
}

inline void stop_link::part() noexcept
{
    if (!source_)
        return;
    source_->lock();
    if (before_ || next_ || source_->first_ == this) {
        source_->unlink(this);
        source_->unlock();
        return;
    }
    const bool here = source_->runs_ == std::this_thread::get_id(), now = source_->now_ == this;
    source_->unlock();
    if (now && here) {
        *gone_ = true;
        return;
    }
    while (now && !returned_.load(std::memory_order_acquire)) /* it runs on another thread */
        std::this_thread::yield();
}

} // namespace detail

template <class F>
class inplace_stop_callback : detail::stop_link {
public:
    template <class G>
        requires std::constructible_from<F, G>
    explicit inplace_stop_callback(inplace_stop_token token, G &&fn) noexcept(std::is_nothrow_constructible_v<F, G>)
        : stop_link(call), fn_(std::forward<G>(fn))
    {
        join(token.source_);
    }
    ~inplace_stop_callback() { part(); }

private:
    static void call(detail::stop_link *self) noexcept { static_cast<inplace_stop_callback *>(self)->fn_(); }
    F fn_;
};

static_assert(unstoppable_token<never_stop_token>);
static_assert(stoppable_token<inplace_stop_token> && !unstoppable_token<inplace_stop_token>);

} // namespace kit

#endif
