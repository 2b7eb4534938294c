/* weft/parts.hpp - what weft/when.hpp is made of: actions and tasks that were begun together, and who waits for all of them.
 *
 * Each part tells its end to the one who joins them. The part whose end decides stops the others: actions by cancelling their
 * operations, tasks by their stop token. Whoever awaits goes on when the last has ended, so nothing is in use then. The one who
 * begins the parts counts as one more, so that ends during that do not go on too early.
 *
 * A part whose coroutine is destroyed meanwhile cancels itself, and waits: weft/op.hpp. */
#ifndef WEFT_PARTS_HPP
#define WEFT_PARTS_HPP

#include <cstdio>
#include <memory>
#include <tuple>
#include <variant>
#include <vector>
#include <weft/task.hpp>

namespace weft {
namespace detail {

template <class T>
struct unvoid {
    using type = T;
};
template <>
struct unvoid<void> {
    using type = std::monostate;
};
template <class T>
using unvoid_t = typename unvoid<T>::type;

template <class T>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<result<T>> = true;

/* What the end of a part leads to. */
enum class stops { at_failure, at_success, at_end };

/* The parts of one wait, seen by each of them. */
struct join_base {
    std::atomic<std::size_t> left{0}; /* parts that have not ended, and the one who begins them */
    std::atomic<std::size_t> first{SIZE_MAX}; /* the part that stopped the others */
    std::atomic<std::size_t> failed{SIZE_MAX}; /* the last that failed */
    std::coroutine_handle<> caller;
    /* A part has ended, and how. What goes on then. */
    std::coroutine_handle<> (*ended)(join_base *self, std::size_t index, bool well) noexcept;
};

/* --- a part -------------------------------------------------------------------------------------------------------------- */

template <class A>
class part;

/* An action. */
template <action_spec S, bool Result>
class action_part {
public:
    static constexpr bool is_task = false;
    using value_type = std::conditional_t<Result, result<typename S::value_type>, typename S::value_type>;

    explicit action_part(action<S> &&what) noexcept : begun_(std::move(what)) {}

    std::coroutine_handle<> begin(join_base *join, std::size_t index, const std::stop_token *stop,
                                  const std::stop_token *) noexcept
    {
        join_ = join;
        index_ = index;
        begun_.stop_with(stop);
        if (begun_.begin(this) || !begun_.attach(on_end))
            return end();
        return std::noop_coroutine();
    }
    void cancel() noexcept { begun_.cancel(); }

    unvoid_t<value_type> take()
    {
        if constexpr (Result) {
            return std::move(*ended_);
        } else if constexpr (std::is_void_v<value_type>) {
            begun_.take();
            return {};
        } else {
            return begun_.take();
        }
    }
    /* The status of its failure, and its sentence for weft_last_error(). */
    weft_status_t failure() noexcept
    {
        if constexpr (Result)
            return ended_->status();
        else
            return weft_fail(status_, "%s", why_[0] ? why_ : weft_status_text(status_));
    }
    std::exception_ptr error() const noexcept { return nullptr; }
    weft_status_t status() const noexcept { return status_; }

private:
    static void on_end(weft_op_t *, void *user) noexcept
    {
        auto *self = static_cast<action_part *>(user);
        if (self->begun_.told())
            self->end().resume();
    }
    std::coroutine_handle<> end() noexcept
    {
        if constexpr (Result) {
            ended_.emplace(begun_.take_result());
            return join_->ended(join_, index_, ended_->has_value());
        } else {
            status_ = begun_.finish();
            if (status_) [[unlikely]]
                std::snprintf(why_, sizeof why_, "%s", begun_.why());
            return join_->ended(join_, index_, !status_);
        }
    }

    struct none {};
    begun<S, true> begun_;
    join_base *join_ = nullptr;
    std::size_t index_ = 0;
    weft_status_t status_ = WEFT_OK;
    [[no_unique_address]] std::conditional_t<Result, std::optional<result<typename S::value_type>>, none> ended_;
    char why_[Result ? 1 : 200] = {};
};

template <action_spec S>
class part<action<S>> : public action_part<S, false> {
public:
    using action_part<S, false>::action_part;
};
template <action_spec S>
class part<result_of<S>> : public action_part<S, true> {
public:
    explicit part(result_of<S> &&what) noexcept : action_part<S, true>(std::move(what).get()) {}
};

/* A task. */
template <class T>
class part<task<T>> : listener_of_end {
public:
    static constexpr bool is_task = true;
    using value_type = T;

    explicit part(task<T> &&what) noexcept : listener_of_end{on_end}, task_(std::move(what)) {}

    std::coroutine_handle<> begin(join_base *join, std::size_t index, const std::stop_token *,
                                  const std::stop_token *stop) noexcept
    {
        join_ = join;
        index_ = index;
        task_.promise().stop_with(stop);
        return task_.promise().begin(task_.frame(), this) ? end() : std::noop_coroutine();
    }
    void cancel() noexcept {}
    unvoid_t<T> take()
    {
        if constexpr (std::is_void_v<T>)
            return {};
        else
            return task_.promise().take();
    }
    weft_status_t failure()
    {
#if WEFT_EXCEPTIONS
        if (error())
            return status_of(error());
#endif
        if constexpr (is_result<T>)
            return task_.promise().peek().status();
        return WEFT_ERR_CALL;
    }
    std::exception_ptr error() const noexcept { return task_.promise().error(); }

private:
    static std::coroutine_handle<> on_end(listener_of_end *self, std::coroutine_handle<>) noexcept
    {
        return static_cast<part *>(self)->end();
    }
    std::coroutine_handle<> end() noexcept
    {
        bool well = !task_.promise().error();
        if constexpr (is_result<T>)
            well = well && task_.promise().peek().has_value();
        return join_->ended(join_, index_, well);
    }

    task<T> task_;
    join_base *join_ = nullptr;
    std::size_t index_ = 0;
};

/* --- parts together ------------------------------------------------------------------------------------------------------- */

/* What cancels the tasks among the parts: by us, or by whoever stops the one who awaits. */
class inner_stop {
public:
    void begin(const std::stop_token *outer)
    {
        source_.emplace();
        token_ = source_->get_token();
        if (outer && outer->stop_possible())
            link_.emplace(*outer, pass{&*source_});
    }
    void request() noexcept
    {
        if (source_)
            source_->request_stop();
    }
    void end() noexcept { link_.reset(); }
    const std::stop_token *token() const noexcept { return &token_; }

private:
    struct pass {
        std::stop_source *to;
        void operator()() const noexcept { to->request_stop(); }
    };
    std::optional<std::stop_source> source_;
    std::stop_token token_;
    std::optional<std::stop_callback<pass>> link_;
};

/* Parts is a container of part<...> with each(f), size(), and any_task. */
template <stops When, class Parts>
class together : public join_base {
public:
    template <class... Args>
    explicit together(Args &&...args) : parts_(std::forward<Args>(args)...)
    {
        join_base::ended = on_end;
    }
    together(const together &) = delete;
    together &operator=(const together &) = delete;

    bool await_ready() const noexcept { return false; }
    template <class Promise>
    WEFT_SUSPENDS bool await_suspend(std::coroutine_handle<Promise> self)
    {
        const std::stop_token *outer = stop_of(self);
        caller = self;
        left.store(parts_.size() + 1, std::memory_order_relaxed);
        if constexpr (Parts::any_task)
            inner_.begin(outer);
        std::size_t i = 0;
        parts_.each([&](auto &p) { p.begin(this, i++, outer, inner_.token()); });
        return left.fetch_sub(1, std::memory_order_acq_rel) != 1;
    }

protected:
    void finished() noexcept { inner_.end(); }
    Parts parts_;

private:
    static std::coroutine_handle<> on_end(join_base *base, std::size_t index, bool well) noexcept
    {
        auto *self = static_cast<together *>(base);
        if (!well)
            self->failed.store(index, std::memory_order_relaxed);
        if (When == stops::at_end || well == (When == stops::at_success)) {
            std::size_t none = SIZE_MAX;
            if (self->first.compare_exchange_strong(none, index, std::memory_order_acq_rel)) {
                std::size_t i = 0;
                self->parts_.each([&](auto &p) {
                    if (i++ != index)
                        p.cancel();
                });
                if constexpr (Parts::any_task)
                    self->inner_.request();
            }
        }
        return self->left.fetch_sub(1, std::memory_order_acq_rel) == 1 ? self->caller : std::noop_coroutine();
    }

    inner_stop inner_;
};

/* A fixed number of any sorts. */
template <class... A>
class parts_tuple {
public:
    static constexpr bool any_task = (part<A>::is_task || ...);
    explicit parts_tuple(std::tuple<A...> &&what) : parts_(std::make_from_tuple<std::tuple<part<A>...>>(std::move(what))) {}
    static constexpr std::size_t size() noexcept { return sizeof...(A); }
    template <class F>
    void each(F f)
    {
        std::apply([&](auto &...p) { (f(p), ...); }, parts_);
    }
    /* f(part i). */
    template <std::size_t I = 0, class F>
    decltype(auto) at(std::size_t i, F f)
    {
        if constexpr (I + 1 < sizeof...(A))
            return i == I ? f(std::get<I>(parts_)) : at<I + 1>(i, f);
        else
            return f(std::get<I>(parts_));
    }
    std::tuple<part<A>...> parts_;
};

/* Any number of one sort. */
template <class A>
class parts_vector {
public:
    static constexpr bool any_task = part<A>::is_task;
    explicit parts_vector(std::vector<A> &&what) : what_(std::move(what)), parts_(new std::optional<part<A>>[what_.size()])
    {
        for (std::size_t i = 0; i < what_.size(); i++)
            parts_[i].emplace(std::move(what_[i]));
    }
    std::size_t size() const noexcept { return what_.size(); }
    template <class F>
    void each(F f)
    {
        for (std::size_t i = 0; i < what_.size(); i++)
            f(*parts_[i]);
    }
    template <class F>
    decltype(auto) at(std::size_t i, F f)
    {
        return f(*parts_[i]);
    }

private:
    std::vector<A> what_;
    std::unique_ptr<std::optional<part<A>>[]> parts_;
};

} // namespace detail
} // namespace weft

#endif
