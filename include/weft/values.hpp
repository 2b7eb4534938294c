/* weft/values.hpp - C++ types as arguments and results of functions, and signatures made of them while the program is compiled.
 *
 *     in C++                                          in the signature
 *     bool, signed char ... long long, float, double  bool, i8 ... i64, u8 ... u64, f32, f64, by their width
 *     std::string, std::string_view                   string
 *     std::vector<T>, std::span<const T>              [T], of any of the first row; of std::byte: [u8]
 *     weft_tensor_t                                   tensor
 *     std::span<const weft_tensor_t>                  [tensor]
 *     std::tuple, std::pair                           several results
 *     void                                            void, as a result
 *     weft::stream<T>                                 stream T: the last parameter, or the result
 *
 * Parameters are named a0, a1, ... and results r0, r1, ...: names are for people (weft/types.h). `char` and `wchar_t` are no
 * numbers here, and an enum is not one yet: say static_cast<int>.
 *
 * An argument may be anything that is such a value: text in quotes, an array, a range that lies in one piece. What is given as an
 * lvalue is borrowed until the call is over. A std::string or std::vector that is moved in is kept in the call. Shapes and data
 * of tensors are always borrowed.
 *
 * A type of its own can be a value by weft::value_traits<T>. */
#ifndef WEFT_VALUES_HPP
#define WEFT_VALUES_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <weft/error.hpp>
#include <weft/types.h>

namespace weft {

namespace detail {

/* --- text that is made while the program is compiled ------------------------------------------------------------------------ */

template <std::size_t N>
struct literal {
    char data[N + 1] = {};
    static constexpr std::size_t size = N;
    constexpr literal() = default;
    constexpr literal(const char (&text)[N + 1])
    {
        for (std::size_t i = 0; i < N; i++)
            data[i] = text[i];
    }
    constexpr std::string_view view() const noexcept { return {data, N}; }
};
template <std::size_t N>
literal(const char (&)[N]) -> literal<N - 1>;

template <std::size_t A, std::size_t B>
consteval auto operator+(const literal<A> &a, const literal<B> &b)
{
    literal<A + B> both;
    for (std::size_t i = 0; i < A; i++)
        both.data[i] = a.data[i];
    for (std::size_t i = 0; i < B; i++)
        both.data[A + i] = b.data[i];
    return both;
}

} // namespace detail

/* --- one type --------------------------------------------------------------------------------------------------------------- */

/* How values of a C++ type travel. A specialization has:
 *
 *     static constexpr auto text          its type in signatures, a detail::literal
 *     using arg_type                      what a call keeps of an argument until it is over; made of the argument
 *     set(weft_value_t &, const arg_type &), set(weft_value_t &, const T &) noexcept     a value that views that
 *     get(const weft_value_t &)           the argument or result: T, or a reference into what the value views
 *     static constexpr bool views         what get() gives views memory of the request or reply
 *     held(const T &) noexcept            bytes that T owns and the value views: sent from where they are if they are many */
template <class T>
struct value_traits;

/* Does T travel? */
template <class T>
concept value = requires(const weft_value_t &v) {
    value_traits<std::remove_cvref_t<T>>::text;
    value_traits<std::remove_cvref_t<T>>::get(v);
};

namespace detail {

template <class T>
using bare = std::remove_cvref_t<T>;

/* The type in C of a scalar: long and long long are both int64_t. */
template <class T>
consteval auto scalar_text()
{
    if constexpr (std::same_as<T, bool>)
        return literal("bool");
    else if constexpr (std::same_as<T, float>)
        return literal("f32");
    else if constexpr (std::same_as<T, double>)
        return literal("f64");
    else if constexpr (sizeof(T) == 1)
        return literal<2>({std::is_signed_v<T> ? 'i' : 'u', '8', 0});
    else if constexpr (sizeof(T) == 2)
        return literal<3>({std::is_signed_v<T> ? 'i' : 'u', '1', '6', 0});
    else if constexpr (sizeof(T) == 4)
        return literal<3>({std::is_signed_v<T> ? 'i' : 'u', '3', '2', 0});
    else
        return literal<3>({std::is_signed_v<T> ? 'i' : 'u', '6', '4', 0});
}
template <class T>
consteval std::uint32_t scalar_type()
{
    constexpr bool is_signed = std::is_signed_v<T>;
    if constexpr (std::same_as<T, bool>)
        return WEFT_T_BOOL;
    else if constexpr (std::same_as<T, float>)
        return WEFT_T_F32;
    else if constexpr (std::same_as<T, double>)
        return WEFT_T_F64;
    else if constexpr (sizeof(T) == 1)
        return is_signed ? WEFT_T_I8 : WEFT_T_U8;
    else if constexpr (sizeof(T) == 2)
        return is_signed ? WEFT_T_I16 : WEFT_T_U16;
    else if constexpr (sizeof(T) == 4)
        return is_signed ? WEFT_T_I32 : WEFT_T_U32;
    else
        return is_signed ? WEFT_T_I64 : WEFT_T_U64;
}

template <class T>
concept scalar = std::same_as<T, bool> || std::same_as<T, float> || std::same_as<T, double> ||
                 ((std::signed_integral<T> || std::unsigned_integral<T>) && sizeof(T) <= 8 && !std::same_as<T, char> &&
                  !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> && !std::same_as<T, char16_t> &&
                  !std::same_as<T, char32_t>);

/* What a vector may be of, and what that is in the signature. */
template <class T>
concept element = scalar<T> || std::same_as<T, std::byte> || std::same_as<T, weft_tensor_t>;
template <element T>
consteval auto element_text()
{
    if constexpr (std::same_as<T, weft_tensor_t>)
        return literal("[tensor]");
    else if constexpr (std::same_as<T, std::byte>)
        return literal("[u8]");
    else
        return literal("[") + scalar_text<T>() + literal("]");
}

template <element T>
void set_vector(weft_value_t &v, const T *data, std::size_t n) noexcept
{
    v.zero = 0;
    if constexpr (std::same_as<T, weft_tensor_t>) {
        v.type = WEFT_T_VECTOR | WEFT_T_TENSOR;
        v.tensors = {data, n};
    } else {
        if constexpr (std::same_as<T, std::byte>)
            v.type = WEFT_T_VECTOR | WEFT_T_U8;
        else
            v.type = WEFT_T_VECTOR | scalar_type<T>();
        v.view = {data, n};
    }
}
template <element T>
std::span<const T> get_vector(const weft_value_t &v) noexcept
{
    if constexpr (std::same_as<T, weft_tensor_t>)
        return {v.tensors.at, static_cast<std::size_t>(v.tensors.n)};
    else
        return {static_cast<const T *>(v.view.data), static_cast<std::size_t>(v.view.n)};
}

inline void set_text(weft_value_t &v, std::string_view text) noexcept
{
    v.type = WEFT_T_STRING;
    v.zero = 0;
    v.view = {text.data(), text.size()};
}
inline std::string_view get_text(const weft_value_t &v) noexcept
{
    return {static_cast<const char *>(v.view.data), static_cast<std::size_t>(v.view.n)};
}

/* Text that is an argument: borrowed, or kept if it was moved in. */
class text_arg {
public:
    text_arg(std::string_view text) noexcept : view_(text) {}
    text_arg(const char *text) noexcept : view_(text) {}
    text_arg(const std::string &text) noexcept : view_(text) {}
    text_arg(std::string &&text) noexcept : own_(std::move(text)), kept_(true) {}
    std::string_view view() const noexcept { return kept_ ? std::string_view(own_) : view_; }

private:
    std::string own_;
    std::string_view view_;
    bool kept_ = false;
};

/* Elements that are an argument. What was moved in stays where it is when the vector is moved on. */
template <element T>
class vector_arg {
public:
    vector_arg(std::span<const T> elements) noexcept : view_(elements) {}
    vector_arg(const std::vector<T> &elements) noexcept : view_(elements) {}
    vector_arg(std::vector<T> &&elements) noexcept : own_(std::move(elements)), view_(own_) {}
    vector_arg(std::initializer_list<T> elements) noexcept : view_(elements.begin(), elements.size()) {}
    template <class Range>
        requires std::ranges::contiguous_range<const Range> && std::ranges::sized_range<const Range> &&
                 std::same_as<std::remove_cv_t<std::ranges::range_value_t<const Range>>, T>
    vector_arg(const Range &range) noexcept : view_(std::ranges::data(range), std::ranges::size(range))
    {
    }
    std::span<const T> view() const noexcept { return view_; }

private:
    std::vector<T> own_;
    std::span<const T> view_;
};
/* A std::vector<bool> has no bools in memory: they are copied. */
template <>
class vector_arg<bool> {
public:
    vector_arg(std::span<const bool> elements) noexcept : view_(elements) {}
    vector_arg(std::initializer_list<bool> elements) noexcept : view_(elements.begin(), elements.size()) {}
    vector_arg(const std::vector<bool> &elements) : own_(std::make_unique<bool[]>(elements.size()))
    {
        for (std::size_t i = 0; i < elements.size(); i++)
            own_[i] = elements[i];
        view_ = {own_.get(), elements.size()};
    }
    template <std::size_t N>
    vector_arg(const bool (&elements)[N]) noexcept : view_(elements)
    {
    }
    template <std::size_t N>
    vector_arg(const std::array<bool, N> &elements) noexcept : view_(elements)
    {
    }
    std::span<const bool> view() const noexcept { return view_; }

private:
    std::unique_ptr<bool[]> own_;
    std::span<const bool> view_;
};

} // namespace detail

template <detail::scalar T>
struct value_traits<T> {
    static constexpr auto text = detail::scalar_text<T>();
    static constexpr bool views = false;
    using arg_type = T;
    static void set(weft_value_t &v, T x) noexcept
    {
        v.type = detail::scalar_type<T>();
        v.zero = 0;
        if constexpr (std::same_as<T, bool>)
            v.b = x;
        else if constexpr (std::same_as<T, float>)
            v.f32 = x;
        else if constexpr (std::same_as<T, double>)
            v.f64 = x;
        else if constexpr (sizeof(T) == 1)
            v.u8 = static_cast<std::uint8_t>(x);
        else if constexpr (sizeof(T) == 2)
            v.u16 = static_cast<std::uint16_t>(x);
        else if constexpr (sizeof(T) == 4)
            v.u32 = static_cast<std::uint32_t>(x);
        else
            v.u64 = static_cast<std::uint64_t>(x);
    }
    static T get(const weft_value_t &v) noexcept
    {
        if constexpr (std::same_as<T, bool>)
            return v.b;
        else if constexpr (std::same_as<T, float>)
            return v.f32;
        else if constexpr (std::same_as<T, double>)
            return v.f64;
        else if constexpr (sizeof(T) == 1)
            return static_cast<T>(v.u8);
        else if constexpr (sizeof(T) == 2)
            return static_cast<T>(v.u16);
        else if constexpr (sizeof(T) == 4)
            return static_cast<T>(v.u32);
        else
            return static_cast<T>(v.u64);
    }
};

template <>
struct value_traits<std::string_view> {
    static constexpr auto text = detail::literal("string");
    static constexpr bool views = true;
    using arg_type = detail::text_arg;
    static void set(weft_value_t &v, std::string_view x) noexcept { detail::set_text(v, x); }
    static void set(weft_value_t &v, const arg_type &x) noexcept { detail::set_text(v, x.view()); }
    static std::string_view get(const weft_value_t &v) noexcept { return detail::get_text(v); }
};
template <>
struct value_traits<std::string> : value_traits<std::string_view> {
    static constexpr bool views = false;
    using value_traits<std::string_view>::set;
    static void set(weft_value_t &v, const std::string &x) noexcept { detail::set_text(v, x); }
    static std::string get(const weft_value_t &v) { return std::string(detail::get_text(v)); }
    static std::size_t held(const std::string &x) noexcept { return x.size(); }
};
/* As an argument, and as what a handler returns. */
template <>
struct value_traits<const char *> : value_traits<std::string_view> {
    using value_traits<std::string_view>::set;
    static void set(weft_value_t &v, const char *x) noexcept { detail::set_text(v, x); }
};

template <detail::element T>
struct value_traits<std::span<const T>> {
    static constexpr auto text = detail::element_text<T>();
    static constexpr bool views = true;
    using arg_type = detail::vector_arg<T>;
    static void set(weft_value_t &v, std::span<const T> x) noexcept { detail::set_vector(v, x.data(), x.size()); }
    static void set(weft_value_t &v, const arg_type &x) noexcept { detail::set_vector(v, x.view().data(), x.view().size()); }
    static std::span<const T> get(const weft_value_t &v) noexcept { return detail::get_vector<T>(v); }
};
template <detail::element T>
    requires(!std::same_as<T, bool> && !std::same_as<T, weft_tensor_t>)
struct value_traits<std::vector<T>> : value_traits<std::span<const T>> {
    static constexpr bool views = false;
    using value_traits<std::span<const T>>::set;
    static void set(weft_value_t &v, const std::vector<T> &x) noexcept { detail::set_vector(v, x.data(), x.size()); }
    static std::vector<T> get(const weft_value_t &v)
    {
        const std::span<const T> x = detail::get_vector<T>(v);
        return {x.begin(), x.end()};
    }
    static std::size_t held(const std::vector<T> &x) noexcept { return x.size() * sizeof(T); }
};
/* As an argument, and as a result that is received: it has no bools in memory that could be sent. */
template <>
struct value_traits<std::vector<bool>> {
    static constexpr auto text = detail::element_text<bool>();
    static constexpr bool views = false;
    using arg_type = detail::vector_arg<bool>;
    static void set(weft_value_t &v, const arg_type &x) noexcept { detail::set_vector(v, x.view().data(), x.view().size()); }
    static std::vector<bool> get(const weft_value_t &v)
    {
        const std::span<const bool> x = detail::get_vector<bool>(v);
        return {x.begin(), x.end()};
    }
};

template <>
struct value_traits<weft_tensor_t> {
    static constexpr auto text = detail::literal("tensor");
    static constexpr bool views = true;
    using arg_type = weft_tensor_t;
    static void set(weft_value_t &v, const weft_tensor_t &x) noexcept
    {
        v.type = WEFT_T_TENSOR;
        v.zero = 0;
        v.tensors = {&x, 1};
    }
    static const weft_tensor_t &get(const weft_value_t &v) noexcept { return *v.tensors.at; }
};

/* A value that views memory, and what keeps that memory: a handler returns it to have much sent without a copy.
 *
 *     return weft::owned(std::span<const float>(pixels->data(), pixels->size()), std::move(pixels)); */
template <class T, class Owner>
struct owned {
    T value;
    Owner owner;
    owned(T v, Owner &&o) : value(std::move(v)), owner(std::move(o)) {} /* o is moved last: v may be made of it */
};
template <value T, class Owner>
struct value_traits<owned<T, Owner>> : value_traits<T> {
    static void set(weft_value_t &v, const owned<T, Owner> &x) noexcept { value_traits<T>::set(v, x.value); }
    static std::size_t held(const owned<T, Owner> &) noexcept { return SIZE_MAX; }
};

} // namespace weft

#endif
