/* tests/cpp/kit/many.hpp - several senders at once: when_all, when_any; and sync_wait. */
#ifndef KIT_MANY_HPP
#define KIT_MANY_HPP

#include <condition_variable>
#include <mutex>

#include "kit/adaptors.hpp"

namespace kit {
namespace detail {

struct ask_to_stop {
    void (*fn)(void *) noexcept;
    void *user;
    void operator()() const noexcept { fn(user); }
};

/* Children with a stop source of their own, which the receiver's token asks as well. `Mode` says when it is over. */
template <class Mode, class R, class... S>
class many_op {
    using env = env_with_token<inplace_stop_token, env_of_t<R>>;
    using kept_type = typename Mode::template kept<env, S...>;
    using callback = stop_callback_for_t<stop_token_of_t<env_of_t<R>>, ask_to_stop>;

    template <std::size_t I>
    struct child_receiver {
        using receiver_concept = receiver_tag;
        many_op *op;
        env get_env() const noexcept { return {op->source_.get_token(), kit::get_env(op->receiver_)}; }
        template <class... Values>
        void set_value(Values &&...v) noexcept
        {
            if (op->kept_.template value<I>(std::forward<Values>(v)...))
                op->source_.request_stop();
            op->arrive();
        }
        template <class E>
        void set_error(E &&e) noexcept
        {
            if (op->kept_.error(std::forward<E>(e)))
                op->source_.request_stop();
            op->arrive();
        }
        void set_stopped() noexcept
        {
            if (op->kept_.stopped())
                op->source_.request_stop();
            op->arrive();
        }
    };
    template <std::size_t I, class T>
    struct child {
        connect_result_t<T, child_receiver<I>> op;
        child(T &&s, many_op *self) : op(kit::connect(std::move(s), child_receiver<I>{self})) {}
    };
    template <class>
    struct children;
    template <std::size_t... I>
    struct children<std::index_sequence<I...>> : child<I, S>... {
        children(many_op *self, S &&...s) : child<I, S>(std::move(s), self)... {}
        void start() noexcept { (kit::start(static_cast<child<I, S> &>(*this).op), ...); }
    };

public:
    using operation_state_concept = operation_state_tag;
    many_op(R &&r, S &&...s) : receiver_(std::move(r)), children_(this, std::move(s)...) {}
    many_op(const many_op &) = delete;

    void start() noexcept
    {
        on_stop_.emplace(get_stop_token(kit::get_env(receiver_)), ask_to_stop{stop, this});
        children_.start(); /* started even if it was asked to stop: each says so itself */
        arrive();          /* nothing is over before all are started */
    }

private:
    static void stop(void *user) noexcept
    {
        auto *self = static_cast<many_op *>(user);
        /* the last child may end inside: not before this has returned. Unless it is over already, and waits for this callback */
        std::size_t n = self->left_.load(std::memory_order_relaxed);
        do {
            if (!n)
                return;
        } while (!self->left_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel));
        self->source_.request_stop();
        self->arrive();
    }
    void arrive() noexcept
    {
        if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
            return;
        on_stop_.reset();
        kept_.complete(receiver_);
    }

    R receiver_;
    inplace_stop_source source_;
    std::atomic<std::size_t> left_{sizeof...(S) + 1};
    std::optional<callback> on_stop_;
    kept_type kept_;
    children<std::index_sequence_for<S...>> children_;
};

/* --- when_all: all values, or the first that is none -------------------------------------------------------------------- */

struct all_mode {
    template <class Env, class... S>
    struct kept {
        using signatures = merged<without<set_value_t, completion_signatures_of_t<S, Env>>..., list<set_stopped_t()>>;
        std::tuple<std::optional<value_tuple<completion_signatures_of_t<S, Env>>>...> values;
        detail::kept<signatures> other;
        std::atomic<bool> bad{false};

        template <std::size_t I, class... Values>
        bool value(Values &&...v) noexcept
        {
            std::get<I>(values).emplace(std::forward<Values>(v)...);
            return false;
        }
        template <class E>
        bool error(E &&e) noexcept
        {
            const bool first = !bad.exchange(true, std::memory_order_acq_rel);
            if (first)
                other.template emplace<std::tuple<set_error_t, std::decay_t<E>>>(set_error_t(), std::forward<E>(e));
            return first;
        }
        bool stopped() noexcept
        {
            const bool first = !bad.exchange(true, std::memory_order_acq_rel);
            if (first)
                other.template emplace<std::tuple<set_stopped_t>>(set_stopped_t());
            return first;
        }
        template <class R>
        void complete(R &receiver) noexcept
        {
            if (bad.load(std::memory_order_acquire)) {
                complete_with(std::move(receiver), other);
                return;
            }
            auto all = std::apply([](auto &...one) { return std::tuple_cat(std::move(*one)...); }, values);
            std::apply([&](auto &...v) noexcept { set_value(std::move(receiver), std::move(v)...); }, all);
        }
    };
    template <class Tuple>
    struct signature_of_all;
    template <class... Values>
    struct signature_of_all<std::tuple<Values...>> {
        using type = set_value_t(Values...);
    };
    template <class Env, class... S>
    using signatures = merged<list<typename signature_of_all<decltype(std::tuple_cat(
                                  std::declval<value_tuple<completion_signatures_of_t<S, Env>>>()...))>::type>,
                              without<set_value_t, completion_signatures_of_t<S, Env>>..., list<set_stopped_t()>>;
};

/* --- when_any: the first, whatever it is -------------------------------------------------------------------------------- */

struct any_mode {
    template <class Env, class... S>
    using signatures = merged<only<set_value_t, completion_signatures_of_t<S, Env>>...,
                              without<set_value_t, completion_signatures_of_t<S, Env>>..., list<set_stopped_t()>>;
    template <class Env, class... S>
    struct kept {
        detail::kept<signatures<Env, S...>> first;
        std::atomic<bool> there{false};

        template <class Completion, class... Args>
        bool keep(Args &&...args) noexcept
        {
            const bool won = !there.exchange(true, std::memory_order_acq_rel);
            if (won)
                first.template emplace<std::tuple<Completion, std::decay_t<Args>...>>(Completion(), std::forward<Args>(args)...);
            return won;
        }
        template <std::size_t I, class... Values>
        bool value(Values &&...v) noexcept
        {
            return keep<set_value_t>(std::forward<Values>(v)...);
        }
        template <class E>
        bool error(E &&e) noexcept
        {
            return keep<set_error_t>(std::forward<E>(e));
        }
        bool stopped() noexcept { return keep<set_stopped_t>(); }
        template <class R>
        void complete(R &receiver) noexcept
        {
            complete_with(std::move(receiver), first);
        }
    };
};

template <class Mode, class... S>
struct many_sender {
    using sender_concept = sender_tag;
    template <class, class... Env>
    static consteval auto get_completion_signatures()
    {
        return typename Mode::template signatures<env_with_token<inplace_stop_token, Env...>, S...>();
    }
    template <class R>
    many_op<Mode, R, S...> connect(R r) &&
    {
        return std::apply([&](S &...s) { return many_op<Mode, R, S...>(std::move(r), std::move(s)...); }, all);
    }
    std::tuple<S...> all;
};

} // namespace detail

template <sender... S>
auto when_all(S &&...s)
{
    return detail::many_sender<detail::all_mode, std::remove_cvref_t<S>...>{{std::forward<S>(s)...}};
}
template <sender... S>
auto when_any(S &&...s)
{
    return detail::many_sender<detail::any_mode, std::remove_cvref_t<S>...>{{std::forward<S>(s)...}};
}

/* --- sync_wait ---------------------------------------------------------------------------------------------------------- */

namespace detail {

template <class Values>
struct wait_state {
    std::mutex mutex;
    std::condition_variable there;
    bool done = false;
    std::optional<Values> values;
    std::error_code error;
#if defined(__cpp_exceptions)
    std::exception_ptr thrown;
#endif
    void end()
    {
        std::lock_guard lock(mutex);
        done = true;
        there.notify_one();
    }
};

template <class Values>
struct wait_receiver {
    using receiver_concept = receiver_tag;
    wait_state<Values> *state;
    template <class... Vs>
    void set_value(Vs &&...v) noexcept
    {
        state->values.emplace(std::forward<Vs>(v)...);
        state->end();
    }
    void set_error(std::error_code e) noexcept
    {
        state->error = e;
        state->end();
    }
#if defined(__cpp_exceptions)
    void set_error(std::exception_ptr e) noexcept
    {
        state->thrown = std::move(e);
        state->end();
    }
#endif
    void set_stopped() noexcept { state->end(); }
};

} // namespace detail

/* Block until it has completed; no value: stopped. A failure is thrown. */
template <sender S>
auto sync_wait(S &&s)
{
    using values = detail::value_tuple<completion_signatures_of_t<S, empty_env>>;
    detail::wait_state<values> state;
    auto op = kit::connect(std::forward<S>(s), detail::wait_receiver<values>{&state});
    kit::start(op);
    std::unique_lock lock(state.mutex);
    state.there.wait(lock, [&] { return state.done; });
#if defined(__cpp_exceptions)
    if (state.thrown)
        std::rethrow_exception(state.thrown);
    if (state.error)
        throw std::system_error(state.error);
#else
    if (state.error)
        std::terminate();
#endif
    return std::move(state.values);
}

} // namespace kit

#endif
