/* weft/signature.hpp - signatures that the compiler makes of C++ types, and the results of functions. Include weft/call.hpp.
 *
 * "(a0: i32, a1: i32) -> i32" is a constant of the program, and so is a hash of it. */
#ifndef WEFT_SIGNATURE_HPP
#define WEFT_SIGNATURE_HPP

#include <algorithm>
#include <weft/values.hpp>

namespace weft {

/* In a signature: many values of T, one after the other. */
template <class T>
struct stream {};

namespace detail {

/* --- what an argument without a declaration is ------------------------------------------------------------------------------ */

template <class A>
consteval auto argument()
{
    using T = bare<A>;
    if constexpr (scalar<T>)
        return std::type_identity<T>();
    else if constexpr (std::convertible_to<A, std::string_view>)
        return std::type_identity<std::string_view>();
    else if constexpr (value<T>)
        return std::type_identity<T>();
    else if constexpr (std::ranges::contiguous_range<T>) {
        using E = std::remove_cv_t<std::ranges::range_value_t<T>>;
        if constexpr (element<E>)
            return std::type_identity<std::span<const E>>();
        else
            return std::type_identity<void>();
    } else {
        return std::type_identity<void>();
    }
}
/* std::string_view for "text", std::span<const int> for an array of them; void if it is no value. */
template <class A>
using argument_t = typename decltype(argument<A>())::type;

/* Says so if T is none, in words, where the compiler shows them. */
template <class T>
constexpr bool must_travel()
{
    static_assert(value<T>,
                  "weft: this C++ type is no type of a signature. There are bool, integers, float, double, std::string, "
                  "std::string_view, std::vector and std::span<const T> of these, and weft_tensor_t (weft/values.hpp)");
    return value<T>;
}

/* --- signatures ------------------------------------------------------------------------------------------------------------- */

/* "a7", "r12" */
template <char Letter, std::size_t I>
consteval auto numbered()
{
    if constexpr (I < 10)
        return literal<2>({Letter, char('0' + I), 0});
    else
        return literal<3>({Letter, char('0' + I / 10), char('0' + I % 10), 0});
}

constexpr std::uint64_t hash_text(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325u) noexcept
{
    for (char c : text)
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

template <class T>
inline constexpr bool is_stream = false;
template <class T>
inline constexpr bool is_stream<stream<T>> = true;

template <class T>
struct type_text {
    static constexpr bool good = must_travel<T>();
    static constexpr auto text = value_traits<bare<T>>::text;
};
template <class T>
struct type_text<stream<T>> {
    static constexpr auto text = literal("stream ") + type_text<T>::text;
};

template <char Letter, class... T>
consteval auto list_text()
{
    return []<std::size_t... I>(std::index_sequence<I...>) {
        [[maybe_unused]] auto one = []<std::size_t K>(std::integral_constant<std::size_t, K>) {
            using type = std::tuple_element_t<K, std::tuple<std::type_identity<T>...>>;
            if constexpr (K == 0)
                return numbered<Letter, K>() + literal(": ") + type_text<typename type::type>::text;
            else
                return literal(", ") + numbered<Letter, K>() + literal(": ") + type_text<typename type::type>::text;
        };
        return (literal<0>() + ... + one(std::integral_constant<std::size_t, I>()));
    }(std::index_sequence_for<T...>());
}

} // namespace detail

/* The results of a function: none, one, or several. */
template <class R>
struct results {
    static constexpr std::size_t n = 1;
    static constexpr auto text = detail::type_text<R>::text;
    static constexpr bool views = value_traits<detail::bare<R>>::views;
    static decltype(auto) read(const weft_value_t *v) { return value_traits<detail::bare<R>>::get(*v); }
    static void write(weft_value_t *v, const detail::bare<R> &x) noexcept
    {
        static_assert(!std::same_as<detail::bare<R>, std::vector<bool>>,
                      "weft: a std::vector<bool> has no bools in memory that could be sent: return a std::span<const bool>, or a "
                      "weft::owned of one");
        value_traits<detail::bare<R>>::set(*v, x);
    }
    static std::size_t held(const detail::bare<R> &x) noexcept
    {
        if constexpr (requires { value_traits<detail::bare<R>>::held(x); })
            return value_traits<detail::bare<R>>::held(x);
        else
            return 0;
    }
};
template <>
struct results<void> {
    static constexpr std::size_t n = 0;
    static constexpr auto text = detail::literal("void");
    static constexpr bool views = false;
    static void read(const weft_value_t *) noexcept {}
};
template <class T>
struct results<stream<T>> {
    static constexpr std::size_t n = 0;
    static constexpr auto text = detail::type_text<stream<T>>::text;
    static constexpr bool views = false;
};

namespace detail {

template <class Tuple, class... T>
struct several {
    static_assert(sizeof...(T) > 0 && sizeof...(T) <= WEFT_SIG_PARAMS, "weft: a function has 1 to 32 results; none is void");
    static constexpr std::size_t n = sizeof...(T);
    static constexpr auto text = literal("(") + list_text<'r', T...>() + literal(")");
    static constexpr bool views = (value_traits<bare<T>>::views || ...);
    static Tuple read(const weft_value_t *v)
    {
        return [v]<std::size_t... I>(std::index_sequence<I...>) {
            return Tuple{value_traits<bare<T>>::get(v[I])...};
        }(std::index_sequence_for<T...>());
    }
    static void write(weft_value_t *v, const Tuple &x) noexcept
    {
        [v, &x]<std::size_t... I>(std::index_sequence<I...>) {
            (results<T>::write(v + I, std::get<I>(x)), ...);
        }(std::index_sequence_for<T...>());
    }
    static std::size_t held(const Tuple &x) noexcept
    {
        return [&x]<std::size_t... I>(std::index_sequence<I...>) {
            std::size_t most = 0;
            ((most = std::max(most, results<T>::held(std::get<I>(x)))), ...);
            return most;
        }(std::index_sequence_for<T...>());
    }
};

} // namespace detail

template <class... T>
struct results<std::tuple<T...>> : detail::several<std::tuple<T...>, T...> {};
template <class A, class B>
struct results<std::pair<A, B>> : detail::several<std::pair<A, B>, A, B> {};

namespace detail {

/* "(a0: i32, a1: i32) -> i32" */
template <class R, class... P>
struct signature_part {
    static_assert(sizeof...(P) <= WEFT_SIG_PARAMS, "weft: a function has at most 32 parameters");
    static constexpr auto text = literal("(") + list_text<'a', P...>() + literal(") -> ") + results<R>::text;
    static_assert(text.size < WEFT_SIG_TEXT - 128, "weft: the signature is too long");
    static constexpr std::uint64_t hash = hash_text(text.view());
};

} // namespace detail
} // namespace weft

#endif
