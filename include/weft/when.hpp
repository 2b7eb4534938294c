/* weft/when.hpp - several at once: all of them, the first that succeeds, and a limit on how long a task may take.
 *
 *     auto [sent, got] = co_await weft::when_all(ep.send(a, 7), ep.recv(b, 8));
 *     auto first = co_await weft::when_any(ask(one), ask(other));             first.index, std::get<0>(first.value)
 *     std::vector<int> sums = co_await weft::when_all(std::move(tasks));
 *     int answer = co_await weft::with_timeout(rt, ask(ep), 2s);
 *
 * What is given are actions and tasks. All begin at once, on the thread that awaits, and each of these ends when all have ended:
 * no buffer is in use afterwards. when_all() gives a tuple of the values, std::monostate for none; the first failure stops the
 * others, and is what comes of it. when_any() gives the first success, which stops the others; if all fail, the last failure.
 * with_timeout() stops the task when the time is over, which then fails with WEFT_ERR_TIMEOUT.
 *
 * A weft::result that holds a failure counts as one. A stop of the task that awaits stops all of them.
 *
 * Operations are in the frame of the coroutine that awaits; only tasks among them need one small allocation, for a stop source of
 * their own. */
#ifndef WEFT_WHEN_HPP
#define WEFT_WHEN_HPP

#include <weft/parts.hpp>

namespace weft {
namespace detail {

/* A failure, thrown or as a status; a sentence was left for it. */
template <class R, bool Throws>
R failed_given(weft_status_t st, [[maybe_unused]] const std::exception_ptr &e)
{
    if constexpr (Throws) {
#if WEFT_EXCEPTIONS
        if (e)
            std::rethrow_exception(e);
#endif
        fail(st, sentence(st));
    } else {
        return st;
    }
}
template <class R, bool Throws, class P>
R failed_part(P &p)
{
    std::exception_ptr e = p.error();
    return failed_given<R, Throws>(Throws && e ? WEFT_ERR_CALL : p.failure(), e);
}

} // namespace detail

/* What when_any() gives: which, and its value. */
template <class... T>
struct any_of {
    std::size_t index;
    std::variant<T...> value;
};
/* The same, of one sort. */
template <class T>
struct any_of_many {
    std::size_t index;
    T value;
};

namespace detail {

template <bool Throws, class... A>
class all_awaiter : public together<stops::at_failure, parts_tuple<A...>> {
public:
    using together<stops::at_failure, parts_tuple<A...>>::together;
    using values = std::tuple<unvoid_t<typename part<A>::value_type>...>;
    using given = std::conditional_t<Throws, values, result<values>>;
    given await_resume()
    {
        this->finished();
        if (std::size_t i = this->first.load(std::memory_order_relaxed); i != SIZE_MAX)
            return this->parts_.at(i, [](auto &p) { return failed_part<given, Throws>(p); });
        return given(std::apply([](auto &...p) { return values(p.take()...); }, this->parts_.parts_));
    }
};

template <bool Throws, class A>
class all_many_awaiter : public together<stops::at_failure, parts_vector<A>> {
public:
    using together<stops::at_failure, parts_vector<A>>::together;
    using one = typename part<A>::value_type;
    using values = std::conditional_t<std::is_void_v<one>, void, std::vector<unvoid_t<one>>>;
    using given = std::conditional_t<Throws, values, result<values>>;
    given await_resume()
    {
        this->finished();
        if (std::size_t i = this->first.load(std::memory_order_relaxed); i != SIZE_MAX)
            return this->parts_.at(i, [](auto &p) { return failed_part<given, Throws>(p); });
        if constexpr (std::is_void_v<values>) {
            this->parts_.each([](auto &p) { p.take(); });
            return given();
        } else {
            values all;
            all.reserve(this->parts_.size());
            this->parts_.each([&](auto &p) { all.push_back(p.take()); });
            return given(std::move(all));
        }
    }
};

/* What a when_any() gives has a value in the part that won; the others are let go of with their parts. */
template <bool Throws, class... A>
class any_awaiter : public together<stops::at_success, parts_tuple<A...>> {
public:
    using together<stops::at_success, parts_tuple<A...>>::together;
    using values = any_of<unvoid_t<typename part<A>::value_type>...>;
    using given = std::conditional_t<Throws, values, result<values>>;
    given await_resume()
    {
        this->finished();
        const std::size_t i = this->first.load(std::memory_order_relaxed);
        if (i == SIZE_MAX)
            return this->parts_.at(this->failed.load(std::memory_order_relaxed),
                                   [](auto &p) { return failed_part<given, Throws>(p); });
        return given(take(i, std::index_sequence_for<A...>()));
    }

private:
    using variant = std::variant<unvoid_t<typename part<A>::value_type>...>;
    template <std::size_t... I>
    values take(std::size_t i, std::index_sequence<I...>)
    {
        std::optional<values> got;
        auto &parts = this->parts_.parts_;
        ((I == i ? (void)got.emplace(values{i, variant(std::in_place_index<I>, std::get<I>(parts).take())}) : (void)0), ...);
        return std::move(*got);
    }
};

template <bool Throws, class A>
class any_many_awaiter : public together<stops::at_success, parts_vector<A>> {
public:
    using together<stops::at_success, parts_vector<A>>::together;
    using values = any_of_many<unvoid_t<typename part<A>::value_type>>;
    using given = std::conditional_t<Throws, values, result<values>>;
    given await_resume()
    {
        this->finished();
        const std::size_t i = this->first.load(std::memory_order_relaxed);
        if (i == SIZE_MAX && !this->parts_.size())
            return failed_given<given, Throws>(weft_fail(WEFT_ERR_INVALID, "when_any() of none"), nullptr);
        if (i == SIZE_MAX)
            return this->parts_.at(this->failed.load(std::memory_order_relaxed),
                                   [](auto &p) { return failed_part<given, Throws>(p); });
        return given(this->parts_.at(i, [&](auto &p) { return values{i, p.take()}; }));
    }
};

/* What is given to be awaited, until it is. */
template <class Throwing, class Resulting, class Kept>
class [[nodiscard("nothing begins until it is awaited")]] combined {
public:
    explicit combined(Kept &&what) : what_(std::move(what)) {}
#if WEFT_EXCEPTIONS
    Throwing operator co_await() && { return Throwing(std::move(what_)); }
#endif
    class [[nodiscard]] results {
    public:
        explicit results(Kept &&what) : what_(std::move(what)) {}
        Resulting operator co_await() && { return Resulting(std::move(what_)); }

    private:
        Kept what_;
    };
    /* To be awaited for a weft::result. */
    results as_result() && { return results(std::move(what_)); }

private:
    Kept what_;
};

template <class A>
concept partable = requires { part<std::remove_cvref_t<A>>::is_task; } && !std::is_lvalue_reference_v<A>;

} // namespace detail

template <class... A>
    requires(sizeof...(A) > 0 && (detail::partable<A> && ...))
auto when_all(A &&...what)
{
    return detail::combined<detail::all_awaiter<true, A...>, detail::all_awaiter<false, A...>, std::tuple<A...>>(
        std::tuple<A...>(std::forward<A>(what)...));
}
template <class A>
    requires detail::partable<A>
auto when_all(std::vector<A> what)
{
    using throwing = detail::all_many_awaiter<true, A>;
    using resulting = detail::all_many_awaiter<false, A>;
    return detail::combined<throwing, resulting, std::vector<A>>(std::move(what));
}
template <class... A>
    requires(sizeof...(A) > 0 && (detail::partable<A> && ...))
auto when_any(A &&...what)
{
    return detail::combined<detail::any_awaiter<true, A...>, detail::any_awaiter<false, A...>, std::tuple<A...>>(
        std::tuple<A...>(std::forward<A>(what)...));
}
/* Of none: WEFT_ERR_INVALID. */
template <class A>
    requires detail::partable<A>
auto when_any(std::vector<A> what)
{
    using throwing = detail::any_many_awaiter<true, A>;
    using resulting = detail::any_many_awaiter<false, A>;
    return detail::combined<throwing, resulting, std::vector<A>>(std::move(what));
}

/* --- a limit --------------------------------------------------------------------------------------------------------------- */

namespace detail {

/* A task and a timer: the first that ends stops the other. Gives what stopped the task: WEFT_OK: nothing did. */
template <class T>
class limit : public together<stops::at_end, parts_tuple<task<T>, action<timer_spec>>> {
public:
    using together<stops::at_end, parts_tuple<task<T>, action<timer_spec>>>::together;
    weft_status_t await_resume() noexcept
    {
        this->finished();
        if (this->first.load(std::memory_order_relaxed) != 1)
            return WEFT_OK;
        weft_status_t timer = std::get<1>(this->parts_.parts_).status();
        return timer ? timer : WEFT_ERR_TIMEOUT;
    }
    part<task<T>> &what() noexcept { return std::get<0>(this->parts_.parts_); }
};

inline const char *why_stopped(weft_status_t st) noexcept
{
    return st == WEFT_ERR_TIMEOUT ? "the task took longer than it may" : weft_status_text(st);
}

} // namespace detail

/* A task that may take so long. One that succeeds although it was stopped has succeeded. Without exceptions only a task of a
 * weft::result can say that it failed. */
template <class T>
task<T> with_timeout(runtime_ref rt, task<T> what, std::chrono::nanoseconds time)
{
    detail::limit<T> both(std::tuple<task<T>, action<detail::timer_spec>>(std::move(what), rt.sleep_for(time)));
    const weft_status_t stopped = co_await both;
#if WEFT_EXCEPTIONS
    if (std::exception_ptr e = both.what().error()) {
        if (stopped && detail::is_cancel(e))
            throw error(stopped, detail::why_stopped(stopped));
        std::rethrow_exception(e);
    }
#endif
    if constexpr (detail::is_result<T>)
        if (stopped && both.what().failure() == WEFT_ERR_CANCELLED)
            co_return T(weft_fail(stopped, "%s", detail::why_stopped(stopped)));
    if constexpr (!std::is_void_v<T>)
        co_return both.what().take();
}

} // namespace weft

#endif
