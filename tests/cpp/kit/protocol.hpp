/* tests/cpp/kit/protocol.hpp - the protocol of senders and receivers as C++26 has it: completions, environments, concepts.
 *
 * A small implementation for tests, by the words of the standard ([exec]): what it takes, any implementation takes. It is
 * stricter where that finds mistakes: all tags and noexcepts are required. What is not here: domains, awaitables,
 * transform_sender. */
#ifndef KIT_PROTOCOL_HPP
#define KIT_PROTOCOL_HPP

#include <exception>
#include <functional>
#include <tuple>
#include <variant>

#include "kit/stop.hpp"

namespace kit {

struct sender_tag {};
struct receiver_tag {};
struct operation_state_tag {};
struct scheduler_tag {};

/* --- environments ------------------------------------------------------------------------------------------------------- */

template <class Env, class Query>
concept has_query = requires(const Env &env, Query query) {
    { env.query(query) } noexcept;
};

/* Does an adaptor pass this query on? */
struct forwarding_query_t {
    template <class Query>
    consteval bool operator()(Query query) const noexcept
    {
        if constexpr (requires { query.query(*this); })
            return query.query(*this);
        else
            return false;
    }
};
inline constexpr forwarding_query_t forwarding_query{};

struct empty_env {};

struct get_env_t {
    template <class T>
    auto operator()(const T &object) const noexcept
    {
        if constexpr (requires { object.get_env(); }) {
            static_assert(noexcept(object.get_env()), "get_env() is noexcept");
            return object.get_env();
        } else {
            return empty_env{};
        }
    }
};
inline constexpr get_env_t get_env{};
template <class T>
using env_of_t = decltype(get_env(std::declval<T>()));

struct get_stop_token_t {
    template <class Env>
    auto operator()(const Env &env) const noexcept
    {
        if constexpr (has_query<Env, get_stop_token_t>) {
            static_assert(stoppable_token<std::remove_cvref_t<decltype(env.query(*this))>>);
            return env.query(*this);
        } else {
            return never_stop_token{};
        }
    }
    static consteval bool query(forwarding_query_t) noexcept { return true; }
};
inline constexpr get_stop_token_t get_stop_token{};
template <class Env>
using stop_token_of_t = std::remove_cvref_t<decltype(get_stop_token(std::declval<Env>()))>;

struct get_scheduler_t {
    template <has_query<get_scheduler_t> Env>
    auto operator()(const Env &env) const noexcept
    {
        return env.query(*this);
    }
    static consteval bool query(forwarding_query_t) noexcept { return true; }
};
inline constexpr get_scheduler_t get_scheduler{};

template <class Completion>
struct get_completion_scheduler_t {
    template <has_query<get_completion_scheduler_t> Env>
    auto operator()(const Env &env) const noexcept
    {
        return env.query(*this);
    }
    static consteval bool query(forwarding_query_t) noexcept { return true; }
};
template <class Completion>
inline constexpr get_completion_scheduler_t<Completion> get_completion_scheduler{};

enum class forward_progress_guarantee { concurrent, parallel, weakly_parallel };
struct get_forward_progress_guarantee_t {
    template <class Scheduler>
    constexpr forward_progress_guarantee operator()(const Scheduler &scheduler) const noexcept
    {
        if constexpr (has_query<Scheduler, get_forward_progress_guarantee_t>)
            return scheduler.query(*this);
        else
            return forward_progress_guarantee::weakly_parallel;
    }
};
inline constexpr get_forward_progress_guarantee_t get_forward_progress_guarantee{};

/* Of a child of an adaptor: a stop token of its own, and the rest from the receiver behind it. */
template <class Token, class Env>
struct env_with_token {
    Token token;
    Env rest;
    Token query(get_stop_token_t) const noexcept { return token; }
    template <class Query>
        requires(forwarding_query(Query()) && has_query<Env, Query> && !std::same_as<Query, get_stop_token_t>)
    auto query(Query q) const noexcept
    {
        return rest.query(q);
    }
};

/* --- completions -------------------------------------------------------------------------------------------------------- */

struct set_value_t {
    template <class Receiver, class... Values>
        requires(!std::is_lvalue_reference_v<Receiver> && !std::is_const_v<Receiver>)
    void operator()(Receiver &&receiver, Values &&...values) const noexcept
    {
        static_assert(noexcept(std::move(receiver).set_value(std::forward<Values>(values)...)), "set_value() is noexcept");
        std::move(receiver).set_value(std::forward<Values>(values)...);
    }
};
struct set_error_t {
    template <class Receiver, class Error>
        requires(!std::is_lvalue_reference_v<Receiver> && !std::is_const_v<Receiver>)
    void operator()(Receiver &&receiver, Error &&error) const noexcept
    {
        static_assert(noexcept(std::move(receiver).set_error(std::forward<Error>(error))), "set_error() is noexcept");
        std::move(receiver).set_error(std::forward<Error>(error));
    }
};
struct set_stopped_t {
    template <class Receiver>
        requires(!std::is_lvalue_reference_v<Receiver> && !std::is_const_v<Receiver>)
    void operator()(Receiver &&receiver) const noexcept
    {
        static_assert(noexcept(std::move(receiver).set_stopped()), "set_stopped() is noexcept");
        std::move(receiver).set_stopped();
    }
};
inline constexpr set_value_t set_value{};
inline constexpr set_error_t set_error{};
inline constexpr set_stopped_t set_stopped{};

template <class... Signatures>
struct completion_signatures {};

/* --- operation states and receivers ------------------------------------------------------------------------------------- */

template <class T>
concept operation_state = std::derived_from<typename T::operation_state_concept, operation_state_tag> && std::is_object_v<T> &&
                          std::destructible<T> && requires(T &op) {
                              { op.start() } noexcept -> std::same_as<void>;
                          };
struct start_t {
    template <operation_state T>
    void operator()(T &op) const noexcept
    {
        op.start();
    }
};
inline constexpr start_t start{};

template <class T>
concept receiver = std::derived_from<typename std::remove_cvref_t<T>::receiver_concept, receiver_tag> &&
    std::is_nothrow_move_constructible_v<std::remove_cvref_t<T>> && std::constructible_from<std::remove_cvref_t<T>, T> &&
    requires(const std::remove_cvref_t<T> &r)
{
    get_env(r);
};

namespace detail {

template <class Receiver, class Signature>
inline constexpr bool takes = false;
template <class Receiver, class... Values>
inline constexpr bool takes<Receiver, set_value_t(Values...)> =
    requires(Receiver &&r) { std::move(r).set_value(std::declval<Values>()...); };
template <class Receiver, class Error> inline constexpr bool takes<Receiver, set_error_t(Error)> = requires(Receiver &&r)
{
    std::move(r).set_error(std::declval<Error>());
};
template <class Receiver>
inline constexpr bool takes<Receiver, set_stopped_t()> = requires(Receiver &&r) { std::move(r).set_stopped(); };

template <class Receiver, class Signatures>
inline constexpr bool takes_all = false;
template <class Receiver, class... Signatures>
inline constexpr bool takes_all<Receiver, completion_signatures<Signatures...>> = (takes<Receiver, Signatures> && ...);

} // namespace detail

template <class T, class Signatures>
concept receiver_of = receiver<T> && detail::takes_all<std::remove_cvref_t<T>, Signatures>;

/* --- senders ------------------------------------------------------------------------------------------------------------ */

template <class T>
concept sender = std::derived_from<typename std::remove_cvref_t<T>::sender_concept, sender_tag> &&
                 std::move_constructible<std::remove_cvref_t<T>> && std::constructible_from<std::remove_cvref_t<T>, T> &&
                 requires(const std::remove_cvref_t<T> &s) { get_env(s); };

namespace detail {

template <class T, class... Env>
consteval auto signatures_of()
{
    using plain = std::remove_cvref_t<T>;
    if constexpr (requires { plain::template get_completion_signatures<T, Env...>(); })
        return plain::template get_completion_signatures<T, Env...>();
    else
        return plain::template get_completion_signatures<T>();
}

} // namespace detail

template <class T, class... Env>
using completion_signatures_of_t = decltype(detail::signatures_of<T, Env...>());

template <class T, class... Env>
concept sender_in = sender<T> && requires { typename completion_signatures_of_t<T, Env...>; };

struct connect_t {
    template <sender S, receiver R>
        requires receiver_of<R, completion_signatures_of_t<S, env_of_t<R>>>
    auto operator()(S &&s, R &&r) const
    {
        static_assert(operation_state<decltype(std::forward<S>(s).connect(std::forward<R>(r)))>);
        return std::forward<S>(s).connect(std::forward<R>(r));
    }
};
inline constexpr connect_t connect{};
template <class S, class R>
using connect_result_t = decltype(connect(std::declval<S>(), std::declval<R>()));

template <class S, class R>
concept sender_to = sender_in<S, env_of_t<R>> && receiver_of<R, completion_signatures_of_t<S, env_of_t<R>>> &&
                    requires(S &&s, R &&r) { connect(std::forward<S>(s), std::forward<R>(r)); };

/* --- schedulers --------------------------------------------------------------------------------------------------------- */

struct schedule_t {
    template <class T>
    auto operator()(T &&scheduler) const
    {
        static_assert(sender<decltype(std::forward<T>(scheduler).schedule())>);
        return std::forward<T>(scheduler).schedule();
    }
};
inline constexpr schedule_t schedule{};

template <class T>
concept scheduler = std::derived_from<typename std::remove_cvref_t<T>::scheduler_concept, scheduler_tag> &&
                    std::equality_comparable<std::remove_cvref_t<T>> && std::copyable<std::remove_cvref_t<T>> &&
                    std::is_nothrow_copy_constructible_v<std::remove_cvref_t<T>> && requires(T &&t) {
                        { get_completion_scheduler<set_value_t>(get_env(schedule(std::forward<T>(t)))) }
                            -> std::same_as<std::remove_cvref_t<T>>;
                    };

/* --- what completions carry --------------------------------------------------------------------------------------------- */

namespace detail {

template <class... Ts>
struct list {};

template <class List, class... Ts>
struct unique {
    using type = List;
};
template <class... Have, class T, class... Ts>
struct unique<list<Have...>, T, Ts...>
    : unique<std::conditional_t<(std::is_same_v<Have, T> || ...), list<Have...>, list<Have..., T>>, Ts...> {};

template <class... Lists>
struct join {
    using type = list<>;
};
template <class... As>
struct join<list<As...>> {
    using type = list<As...>;
};
template <class... As, class... Bs, class... Lists>
struct join<list<As...>, list<Bs...>, Lists...> : join<list<As..., Bs...>, Lists...> {};

template <class List>
struct to_signatures;
template <class... Ts>
struct to_signatures<list<Ts...>> {
    template <class List>
    struct made;
    template <class... Us>
    struct made<list<Us...>> {
        using type = completion_signatures<Us...>;
    };
    using type = typename made<typename unique<list<>, Ts...>::type>::type;
};

/* list<> of the signatures of one completion, and of the others */
template <class Completion, class Signature>
inline constexpr bool is_of = false;
template <class Completion, class... Args>
inline constexpr bool is_of<Completion, Completion(Args...)> = true;

template <class Completion, bool Of, class Signatures>
struct pick;
template <class Completion, bool Of, class... Signatures>
struct pick<Completion, Of, completion_signatures<Signatures...>>
    : join<list<>, std::conditional_t<is_of<Completion, Signatures> == Of, list<Signatures>, list<>>...> {};
template <class Completion, class Signatures>
using only = typename pick<Completion, true, Signatures>::type;
template <class Completion, class Signatures>
using without = typename pick<Completion, false, Signatures>::type;

template <class... Lists>
using merged = typename to_signatures<typename join<list<>, Lists...>::type>::type;

/* The types of the one value completion, as a tuple. */
template <class List>
struct one_value;
template <class... Values>
struct one_value<list<set_value_t(Values...)>> {
    using type = std::tuple<std::decay_t<Values>...>;
};
template <class Signatures>
using value_tuple = typename one_value<only<set_value_t, Signatures>>::type;

template <template <class...> class Tuple, class Signature>
struct in_tuple;
template <template <class...> class Tuple, class... Values>
struct in_tuple<Tuple, set_value_t(Values...)> {
    using type = Tuple<Values...>;
};
template <template <class...> class Tuple, template <class...> class Variant, class List>
struct in_variant;
template <template <class...> class Tuple, template <class...> class Variant, class... Signatures>
struct in_variant<Tuple, Variant, list<Signatures...>> {
    using type = Variant<typename in_tuple<Tuple, Signatures>::type...>;
};

/* Any completion, kept: a variant of tuples that begin with which one it is. */
template <class Signature>
struct kept_one;
template <class Completion, class... Args>
struct kept_one<Completion(Args...)> {
    using type = std::tuple<Completion, std::decay_t<Args>...>;
};
template <class List>
struct kept_variant;
template <class... Ts>
struct kept_variant<list<Ts...>> {
    using type = std::variant<std::monostate, Ts...>;
};
template <class Signatures>
struct kept_of;
template <class... Signatures>
struct kept_of<completion_signatures<Signatures...>>
    : kept_variant<typename unique<list<>, typename kept_one<Signatures>::type...>::type> {};
template <class Signatures>
using kept = typename kept_of<Signatures>::type;

template <class Receiver, class Kept>
void complete_with(Receiver &&receiver, Kept &&what) noexcept
{
    std::visit(
        [&]<class T>(T &held) noexcept {
            if constexpr (std::is_same_v<T, std::monostate>)
                std::terminate(); /* nobody kept anything */
            else
                std::apply([&](auto completion, auto &...args) noexcept { completion(std::move(receiver), std::move(args)...); },
                           held);
        },
        what);
}

} // namespace detail

template <class S, class Env, template <class...> class Tuple, template <class...> class Variant>
using value_types_of_t =
    typename detail::in_variant<Tuple, Variant, detail::only<set_value_t, completion_signatures_of_t<S, Env>>>::type;

} // namespace kit

#endif
