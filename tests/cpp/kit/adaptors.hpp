/* tests/cpp/kit/adaptors.hpp - senders of one thing, and adaptors of one sender: just, then, upon_error, upon_stopped, let_value,
 * read_env, repeat_until. */
#ifndef KIT_ADAPTORS_HPP
#define KIT_ADAPTORS_HPP

#include <optional>
#include <system_error>

#include "kit/protocol.hpp"

namespace kit {

/* sender | then(fn) */
template <class Make>
struct closure {
    Make make;
    template <sender S>
    friend auto operator|(S &&s, closure self)
    {
        return self.make(std::forward<S>(s));
    }
};
template <class Make>
closure(Make) -> closure<Make>;

namespace detail {

/* --- just --------------------------------------------------------------------------------------------------------------- */

template <class Completion, class... Values>
struct just_sender {
    using sender_concept = sender_tag;
    template <class, class... Env>
    static consteval auto get_completion_signatures()
    {
        return completion_signatures<Completion(Values...)>();
    }

    template <class R>
    struct op {
        using operation_state_concept = operation_state_tag;
        R receiver;
        std::tuple<Values...> values;
        op(R r, std::tuple<Values...> v) : receiver(std::move(r)), values(std::move(v)) {}
        op(const op &) = delete;
        void start() noexcept
        {
            std::apply([this](auto &...value) noexcept { Completion()(std::move(receiver), std::move(value)...); }, values);
        }
    };
    template <class R>
    op<R> connect(R r) const &
    {
        return op<R>(std::move(r), values);
    }
    template <class R>
    op<R> connect(R r) &&
    {
        return op<R>(std::move(r), std::move(values));
    }

    std::tuple<Values...> values;
};

/* --- one completion handed to a function -------------------------------------------------------------------------------- */

/* What it completes with when fn was given the arguments of one of them. */
template <class T>
struct value_signature {
    using type = set_value_t(T);
};
template <>
struct value_signature<void> {
    using type = set_value_t();
};
template <class F, class Signature>
struct after_fn;
template <class F, class Completion, class... Args>
struct after_fn<F, Completion(Args...)> {
    using done = value_signature<std::invoke_result_t<F, Args...>>;
#if defined(__cpp_exceptions)
    using type = std::conditional_t<std::is_nothrow_invocable_v<F, Args...>, list<typename done::type>,
                                    list<typename done::type, set_error_t(std::exception_ptr)>>;
#else
    using type = list<typename done::type>;
#endif
};
template <class F, class List>
struct after_fn_all;
template <class F, class... Signatures>
struct after_fn_all<F, list<Signatures...>> {
    using type = typename join<list<>, typename after_fn<F, Signatures>::type...>::type;
};

template <class R, class F, class... Args>
void complete_by(R &&receiver, F &fn, Args &&...args) noexcept
{
    using value = std::invoke_result_t<F, Args...>;
    const auto run = [&] {
        if constexpr (std::is_void_v<value>) {
            std::invoke(std::move(fn), std::forward<Args>(args)...);
            set_value(std::move(receiver));
        } else {
            set_value(std::move(receiver), std::invoke(std::move(fn), std::forward<Args>(args)...));
        }
    };
    if constexpr (std::is_nothrow_invocable_v<F, Args...>) {
        run();
    } else {
#if defined(__cpp_exceptions)
        try {
            run();
        } catch (...) {
            set_error(std::move(receiver), std::current_exception());
        }
#else
        run();
#endif
    }
}

template <class On, class R, class F>
struct fn_receiver {
    using receiver_concept = receiver_tag;
    R receiver;
    F fn;

    env_of_t<R> get_env() const noexcept { return kit::get_env(receiver); }
    template <class... Args>
    void set_value(Args &&...args) noexcept
    {
        take<set_value_t>(std::forward<Args>(args)...);
    }
    template <class E>
    void set_error(E &&e) noexcept
    {
        take<set_error_t>(std::forward<E>(e));
    }
    void set_stopped() noexcept { take<set_stopped_t>(); }

private:
    template <class Completion, class... Args>
    void take(Args &&...args) noexcept
    {
        if constexpr (std::is_same_v<Completion, On>)
            complete_by(std::move(receiver), fn, std::forward<Args>(args)...);
        else
            Completion()(std::move(receiver), std::forward<Args>(args)...);
    }
};

template <class On, class S, class F>
struct fn_sender {
    using sender_concept = sender_tag;
    template <class, class... Env>
    static consteval auto get_completion_signatures()
    {
        using of = completion_signatures_of_t<S, Env...>;
        return merged<without<On, of>, typename after_fn_all<F, only<On, of>>::type>();
    }
    env_of_t<S> get_env() const noexcept { return kit::get_env(source); }
    template <class R>
    auto connect(R r) &&
    {
        return kit::connect(std::move(source), fn_receiver<On, R, F>{std::move(r), std::move(fn)});
    }
    template <class R>
    auto connect(R r) const &
    {
        return kit::connect(source, fn_receiver<On, R, F>{std::move(r), fn});
    }
    S source;
    F fn;
};

template <class On>
struct on_completion {
    template <sender S, class F>
    auto operator()(S &&s, F fn) const
    {
        return fn_sender<On, std::remove_cvref_t<S>, F>{std::forward<S>(s), std::move(fn)};
    }
    template <class F>
    auto operator()(F fn) const
    {
        return closure{
            [self = *this, fn = std::move(fn)](auto &&s) mutable { return self(std::forward<decltype(s)>(s), std::move(fn)); }};
    }
};

/* --- let_value ---------------------------------------------------------------------------------------------------------- */

template <class F, class Tuple>
struct next_of;
template <class F, class... Values>
struct next_of<F, std::tuple<Values...>> {
    using type = std::invoke_result_t<F, Values &...>;
    static constexpr bool nothrow = std::is_nothrow_invocable_v<F, Values &...>;
};

template <class S, class F, class R>
class let_op {
    using values = value_tuple<completion_signatures_of_t<S, env_of_t<R>>>;
    using next = typename next_of<F, values>::type;

    struct first_receiver {
        using receiver_concept = receiver_tag;
        let_op *op;
        env_of_t<R> get_env() const noexcept { return kit::get_env(op->receiver_); }
        template <class... Values>
        void set_value(Values &&...v) noexcept
        {
            op->go_on(std::forward<Values>(v)...);
        }
        template <class E>
        void set_error(E &&e) noexcept
        {
            kit::set_error(std::move(op->receiver_), std::forward<E>(e));
        }
        void set_stopped() noexcept { kit::set_stopped(std::move(op->receiver_)); }
    };
    struct second_receiver {
        using receiver_concept = receiver_tag;
        let_op *op;
        env_of_t<R> get_env() const noexcept { return kit::get_env(op->receiver_); }
        template <class... Values>
        void set_value(Values &&...v) noexcept
        {
            kit::set_value(std::move(op->receiver_), std::forward<Values>(v)...);
        }
        template <class E>
        void set_error(E &&e) noexcept
        {
            kit::set_error(std::move(op->receiver_), std::forward<E>(e));
        }
        void set_stopped() noexcept { kit::set_stopped(std::move(op->receiver_)); }
    };
    using first_op = connect_result_t<S, first_receiver>;
    using second_op = connect_result_t<next, second_receiver>;
    struct holds_second {
        second_op op;
        holds_second(next &&s, let_op *self) : op(kit::connect(std::move(s), second_receiver{self})) {}
    };

public:
    using operation_state_concept = operation_state_tag;
    let_op(S &&s, F &&fn, R &&r)
        : fn_(std::move(fn)), receiver_(std::move(r)), first_(kit::connect(std::move(s), first_receiver{this}))
    {
    }
    let_op(const let_op &) = delete;
    void start() noexcept { kit::start(first_); }

private:
    template <class... Values>
    void go_on(Values &&...v) noexcept
    {
        const auto make = [&] {
            values_.emplace(std::forward<Values>(v)...);
            second_.emplace(std::apply(fn_, *values_), this);
        };
#if defined(__cpp_exceptions)
        if constexpr (!next_of<F, values>::nothrow) {
            try {
                make();
            } catch (...) {
                kit::set_error(std::move(receiver_), std::current_exception());
                return;
            }
        } else
#endif
        {
            make();
        }
        kit::start(second_->op);
    }

    F fn_;
    R receiver_;
    std::optional<values> values_;
    first_op first_;
    std::optional<holds_second> second_;
};

template <class S, class F>
struct let_sender {
    using sender_concept = sender_tag;
    template <class, class... Env>
    static consteval auto get_completion_signatures()
    {
        using of = completion_signatures_of_t<S, Env...>;
        using next = next_of<F, value_tuple<of>>;
        using then = completion_signatures_of_t<typename next::type, Env...>;
#if defined(__cpp_exceptions)
        using thrown = std::conditional_t<next::nothrow, list<>, list<set_error_t(std::exception_ptr)>>;
#else
        using thrown = list<>;
#endif
        return merged<without<set_value_t, of>, only<set_value_t, then>, without<set_value_t, then>, thrown>();
    }
    template <class R>
    let_op<S, F, R> connect(R r) &&
    {
        return let_op<S, F, R>(std::move(source), std::move(fn), std::move(r));
    }
    S source;
    F fn;
};

/* --- read_env ----------------------------------------------------------------------------------------------------------- */

template <class Query>
struct read_sender {
    using sender_concept = sender_tag;
    template <class, class Env>
    static consteval auto get_completion_signatures()
    {
        return completion_signatures<set_value_t(decltype(Query()(std::declval<const Env &>())))>();
    }
    template <class R>
    struct op {
        using operation_state_concept = operation_state_tag;
        R receiver;
        void start() noexcept
        {
            auto answer = Query()(kit::get_env(receiver));
            set_value(std::move(receiver), std::move(answer));
        }
    };
    template <class R>
    op<R> connect(R r) const
    {
        return {std::move(r)};
    }
};

/* --- repeat_until ------------------------------------------------------------------------------------------------------- */

/* Connects and starts the sender again inside its completion, as simple loops do: one whose completions in start() nest without
 * bound overflows the stack here. */
template <class S, class R>
class repeat_op {
    struct again_receiver {
        using receiver_concept = receiver_tag;
        repeat_op *op;
        env_of_t<R> get_env() const noexcept { return kit::get_env(op->receiver_); }
        void set_value(bool done) noexcept
        {
            if (done)
                kit::set_value(std::move(op->receiver_));
            else
                op->start();
        }
        template <class E>
        void set_error(E &&e) noexcept
        {
            kit::set_error(std::move(op->receiver_), std::forward<E>(e));
        }
        void set_stopped() noexcept { kit::set_stopped(std::move(op->receiver_)); }
    };
    struct holds {
        connect_result_t<const S &, again_receiver> op;
        explicit holds(repeat_op *self) : op(kit::connect(std::as_const(self->source_), again_receiver{self})) {}
    };

public:
    using operation_state_concept = operation_state_tag;
    repeat_op(S &&s, R &&r) : source_(std::move(s)), receiver_(std::move(r)) {}
    repeat_op(const repeat_op &) = delete;
    void start() noexcept
    {
        holds_.emplace(this);
        kit::start(holds_->op);
    }

private:
    S source_;
    R receiver_;
    std::optional<holds> holds_;
};

template <class S>
struct repeat_sender {
    using sender_concept = sender_tag;
    template <class, class... Env>
    static consteval auto get_completion_signatures()
    {
        return merged<list<set_value_t()>, without<set_value_t, completion_signatures_of_t<const S &, Env...>>>();
    }
    template <class R>
    repeat_op<S, R> connect(R r) &&
    {
        return repeat_op<S, R>(std::move(source), std::move(r));
    }
    S source;
};

} // namespace detail

template <class... Values>
auto just(Values... values)
{
    return detail::just_sender<set_value_t, Values...>{{std::move(values)...}};
}
template <class E>
auto just_error(E e)
{
    return detail::just_sender<set_error_t, E>{{std::move(e)}};
}
inline auto just_stopped() { return detail::just_sender<set_stopped_t>{}; }
inline constexpr detail::on_completion<set_value_t> then{};
inline constexpr detail::on_completion<set_error_t> upon_error{};
inline constexpr detail::on_completion<set_stopped_t> upon_stopped{};

struct let_value_t {
    template <sender S, class F>
    auto operator()(S &&s, F fn) const
    {
        return detail::let_sender<std::remove_cvref_t<S>, F>{std::forward<S>(s), std::move(fn)};
    }
    template <class F>
    auto operator()(F fn) const
    {
        return closure{
            [self = *this, fn = std::move(fn)](auto &&s) mutable { return self(std::forward<decltype(s)>(s), std::move(fn)); }};
    }
};
inline constexpr let_value_t let_value{};

template <class Query>
auto read_env(Query)
{
    return detail::read_sender<Query>{};
}
/* Until it completes with true. */
template <sender S>
auto repeat_until(S s)
{
    return detail::repeat_sender<S>{std::move(s)};
}

} // namespace kit

#endif
