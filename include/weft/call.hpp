/* weft/call.hpp - what calls are made of in C++: how they fail, replies that are viewed, functions as they are declared.
 *
 *     struct calc {
 *         static constexpr weft::function<int(int, int)> add{"add"};                      add(a0: i32, a1: i32) -> i32
 *         static constexpr weft::function<double(std::span<const double>)> mean{"mean", weft::idempotent};
 *         static constexpr weft::function<std::tuple<int, int>(int, int)> divide{"divide"};
 *         static constexpr weft::function<void(std::string)> log{"log", weft::oneway};
 *         static constexpr weft::function<weft::stream<std::uint64_t>(std::uint64_t)> primes{"primes"};
 *     };
 *
 * Both sides include that: client.call(calc::add, 1, 2) or calc::add(client, 1, 2) here (weft/rpc.hpp), and
 * service.add(calc::add, [](int a, int b) { return a + b; }) there (weft/service.hpp).
 *
 * A call that fails throws weft::call_error. Without exceptions, and where a result is asked for, it gives a
 * weft::call_result<T>, whose failure() says the same.
 *
 * code() of the exception is of weft::call_category() where the server or the function refused, and a status (weft::errc) where
 * the call ended in another way: late, cancelled, the peer lost. call_code() is one of gRPC's codes, whichever it was. */
#ifndef WEFT_CALL_HPP
#define WEFT_CALL_HPP

#include <cstring>
#include <new>
#include <weft/op.hpp>
#include <weft/rpc.h>
#include <weft/signature.hpp>

namespace weft {

/* --- codes ------------------------------------------------------------------------------------------------------------------ */

enum class code {
    ok = WEFT_CODE_OK,
    cancelled = WEFT_CODE_CANCELLED,
    unknown = WEFT_CODE_UNKNOWN,
    invalid_argument = WEFT_CODE_INVALID_ARGUMENT,
    deadline_exceeded = WEFT_CODE_DEADLINE_EXCEEDED,
    not_found = WEFT_CODE_NOT_FOUND,
    already_exists = WEFT_CODE_ALREADY_EXISTS,
    permission_denied = WEFT_CODE_PERMISSION_DENIED,
    resource_exhausted = WEFT_CODE_RESOURCE_EXHAUSTED,
    failed_precondition = WEFT_CODE_FAILED_PRECONDITION,
    aborted = WEFT_CODE_ABORTED,
    out_of_range = WEFT_CODE_OUT_OF_RANGE,
    unimplemented = WEFT_CODE_UNIMPLEMENTED,
    internal = WEFT_CODE_INTERNAL,
    unavailable = WEFT_CODE_UNAVAILABLE,
    data_loss = WEFT_CODE_DATA_LOSS,
    unauthenticated = WEFT_CODE_UNAUTHENTICATED
};
inline const char *code_name(code c) noexcept { return weft_code_name(static_cast<weft_code_t>(c)); }

/* "weft.call": the values are those of weft::code. */
inline const std::error_category &call_category() noexcept;
inline std::error_code make_error_code(code c) noexcept { return {static_cast<int>(c), call_category()}; }

} // namespace weft

template <>
struct std::is_error_code_enum<weft::code> : std::true_type {};

namespace weft {
namespace detail {

class code_category final : public std::error_category {
public:
    const char *name() const noexcept override { return "weft.call"; }
    std::string message(int value) const override { return weft_code_name(static_cast<weft_code_t>(value)); }
    std::error_condition default_error_condition(int value) const noexcept override
    {
        switch (static_cast<code>(value)) {
        case code::cancelled: return std::errc::operation_canceled;
        case code::invalid_argument: return std::errc::invalid_argument;
        case code::deadline_exceeded: return std::errc::timed_out;
        case code::permission_denied: return std::errc::permission_denied;
        case code::out_of_range: return std::errc::result_out_of_range;
        case code::unimplemented: return std::errc::function_not_supported;
        default: return {value, *this};
        }
    }
};

/* The code of a call that the library did not post, or whose result found no place. */
inline code code_of(weft_status_t status) noexcept
{
    switch (status) {
    case WEFT_ERR_INVALID: return code::invalid_argument;
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_LIMIT:
    case WEFT_ERR_AGAIN: return code::resource_exhausted;
    case WEFT_ERR_CANCELLED: return code::cancelled;
    case WEFT_ERR_TIMEOUT: return code::deadline_exceeded;
    case WEFT_ERR_STATE:
    case WEFT_ERR_FORKED: return code::failed_precondition;
    case WEFT_ERR_UNSUPPORTED: return code::unimplemented;
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_PEER:
    case WEFT_ERR_UNREACHABLE: return code::unavailable;
    default: return code::unknown;
    }
}

} // namespace detail

inline const std::error_category &call_category() noexcept
{
    static const detail::code_category category;
    return category;
}

/* --- failures --------------------------------------------------------------------------------------------------------------- */

/* Why a call failed: what weft_reply_t says, and the status of its operation. */
struct call_failure {
    weft::code code = weft::code::unknown;
    std::string message{};
    std::uint32_t category = WEFT_CATEGORY_NONE; /* of `value`: WEFT_CATEGORY_* */
    std::int32_t value = 0;
    weft_ran_t ran = WEFT_RAN;
    weft_status_t status = WEFT_ERR_CALL;

    std::error_code error() const noexcept { return status == WEFT_ERR_CALL ? make_error_code(code) : make_error_code(status); }
};

namespace detail {

inline std::string quiet_string(const char *text) noexcept
{
#if WEFT_EXCEPTIONS
    try {
        return text ? text : "";
    } catch (...) {
        return {}; /* the code says enough */
    }
#else
    return text ? text : "";
#endif
}

inline call_failure failure_of(weft_status_t status, const weft_reply_t &reply) noexcept
{
    return {static_cast<code>(reply.code), quiet_string(reply.message), reply.category, reply.value, reply.ran, status};
}
/* Nothing was sent, or its result could not be kept. */
inline call_failure failure_of(weft_status_t status, const char *why, weft_ran_t ran = WEFT_NOT_RUN) noexcept
{
    return {code_of(status), quiet_string(why), WEFT_CATEGORY_WEFT, status, ran, status};
}

} // namespace detail

#if WEFT_EXCEPTIONS
/* A call that failed. Thrown by a handler, it is the answer. */
class call_error : public error {
public:
    /* `throw weft::call_error(weft::code::not_found, "no such account");` */
    explicit call_error(weft::code c, const std::string &message = {}, std::uint32_t category = WEFT_CATEGORY_NONE,
                        std::int32_t value = 0)
        : call_error(call_failure{c, message, category, value})
    {
    }
    explicit call_error(const call_failure &why)
        : error(why.error(), sentence(why).c_str()), code_(why.code), ran_(why.ran), category_(why.category), value_(why.value),
          status_(why.status)
    {
    }

    weft::code call_code() const noexcept { return code_; }
    /* As the function gave it; what() has the code in front. */
    const char *message() const noexcept
    {
        const std::size_t name = std::strlen(code_name(code_));
        return what()[name] ? what() + name + 2 : "";
    }
    std::uint32_t category() const noexcept { return category_; }
    std::int32_t value() const noexcept { return value_; }
    weft_ran_t ran() const noexcept { return ran_; }
    weft_status_t status() const noexcept { return status_; }

private:
    static std::string sentence(const call_failure &why)
    {
        std::string text = code_name(why.code);
        return why.message.empty() ? text : text + ": " + why.message;
    }

    weft::code code_;
    weft_ran_t ran_;
    std::uint32_t category_;
    std::int32_t value_;
    weft_status_t status_;
};
#endif

namespace detail {

[[noreturn]] inline void fail_call(const call_failure &why)
{
#if WEFT_EXCEPTIONS
    throw call_error(why);
#else
    fail(why.status, (quiet_string(code_name(why.code)) + ": " + why.message).c_str());
#endif
}

struct nothing {};

} // namespace detail

/* What became of a call: its value, or why it failed. A handler may return one. */
template <class T>
class [[nodiscard]] call_result {
    using kept = std::conditional_t<std::is_void_v<T>, detail::nothing, T>;

public:
    using value_type = T;

    call_result() noexcept
        requires std::is_void_v<T>
        : good_(true), value_()
    {
    }
    template <class U = kept>
        requires(!std::is_void_v<T> && std::convertible_to<U &&, kept> && !std::same_as<detail::bare<U>, call_result> &&
                 !std::same_as<detail::bare<U>, call_failure>)
    call_result(U &&value) noexcept(std::is_nothrow_constructible_v<kept, U &&>) : good_(true), value_(std::forward<U>(value))
    {
    }
    call_result(call_failure why) noexcept : good_(false), why_(std::move(why)) {}
    call_result(weft::code c, std::string message = {}) noexcept : call_result(call_failure{c, std::move(message)}) {}
    call_result(call_result &&other) noexcept(std::is_nothrow_move_constructible_v<kept>) : good_(other.good_)
    {
        if (good_)
            new (&value_) kept(std::move(other.value_));
        else
            new (&why_) call_failure(std::move(other.why_));
    }
    call_result &operator=(call_result &&other) noexcept(std::is_nothrow_move_constructible_v<kept>)
    {
        if (this != &other) {
            this->~call_result();
            new (this) call_result(std::move(other));
        }
        return *this;
    }
    ~call_result()
    {
        if (good_)
            value_.~kept();
        else
            why_.~call_failure();
    }

    bool has_value() const noexcept { return good_; }
    explicit operator bool() const noexcept { return good_; }
    weft_status_t status() const noexcept { return good_ ? WEFT_OK : why_.status; }
    weft::code code() const noexcept { return good_ ? weft::code::ok : why_.code; }
    std::error_code error() const noexcept { return good_ ? std::error_code() : why_.error(); }
    /* Of one that has no value. */
    const call_failure &failure() const noexcept { return why_; }

    kept &operator*() & noexcept { return value_; }
    const kept &operator*() const & noexcept { return value_; }
    kept &&operator*() && noexcept { return std::move(value_); }
    kept *operator->() noexcept { return &value_; }
    const kept *operator->() const noexcept { return &value_; }
    /* The value; a failure is thrown. */
    std::add_lvalue_reference_t<T> value() &
    {
        if (!good_)
            detail::fail_call(why_);
        if constexpr (!std::is_void_v<T>)
            return value_;
    }
    std::add_rvalue_reference_t<T> value() &&
    {
        if (!good_)
            detail::fail_call(why_);
        if constexpr (!std::is_void_v<T>)
            return std::move(value_);
    }

private:
    bool good_;
    union {
        kept value_;
        call_failure why_;
    };
};

/* --- replies that are viewed ------------------------------------------------------------------------------------------------ */

/* A result that views memory of the reply, which stays until this goes: client.call<weft::reply<std::string_view>>("name"). */
template <class T>
class reply {
public:
    reply(reply &&other) noexcept { take(other.raw_); }
    /* Takes over a reply that is complete. */
    explicit reply(weft_reply_t &from) noexcept { take(from); }
    reply &operator=(reply &&other) noexcept
    {
        if (this != &other) {
            weft_reply_release(&raw_);
            take(other.raw_);
        }
        return *this;
    }
    ~reply() { weft_reply_release(&raw_); }

    decltype(auto) operator*() const { return results<T>::read(raw_.values); }
    decltype(auto) value() const { return results<T>::read(raw_.values); }
    const weft_reply_t &native() const noexcept { return raw_; }

private:
    /* Small results lie in the reply itself, and move with it. */
    void take(weft_reply_t &from) noexcept
    {
        std::memcpy(static_cast<void *>(&raw_), &from, sizeof raw_);
        if (from.values == from.small) {
            raw_.values = raw_.small;
            const auto *begin = reinterpret_cast<const char *>(from.bytes), *end = begin + sizeof from.bytes;
            for (std::size_t i = 0; i < raw_.n; i++) {
                weft_value_t &v = raw_.small[i];
                const auto *at = static_cast<const char *>(v.view.data);
                if (v.type >= WEFT_T_STRING && v.type != WEFT_T_TENSOR && at >= begin && at <= end)
                    v.view.data = reinterpret_cast<const char *>(raw_.bytes) + (at - begin);
            }
        }
        from.more = nullptr;
        from.n = 0;
        from.values = nullptr;
        from.message = "";
    }

    weft_reply_t raw_;
};

namespace detail {

template <class T>
inline constexpr bool is_reply = false;
template <class T>
inline constexpr bool is_reply<reply<T>> = true;

/* What the signature has where a call asks for R. */
template <class R>
struct asked {
    using type = R;
};
template <class T>
struct asked<reply<T>> {
    using type = T;
};

} // namespace detail

/* --- functions as they are declared ----------------------------------------------------------------------------------------- */

enum class mark : unsigned { none = 0, idempotent = 1, oneway = 2 };
inline constexpr mark idempotent = mark::idempotent; /* it may be run again after a failure */
inline constexpr mark oneway = mark::oneway;         /* no reply: its result is void */

/* The name of a function, with its marks: text that is known while the program is compiled. */
class function_name {
public:
    template <std::size_t N>
    consteval function_name(const char (&text)[N], mark m = mark::none) : text_(text), size_(N - 1), mark_(m)
    {
        bool first = true;
        for (std::size_t i = 0; i + 1 < N; i++) {
            const char c = text[i];
            const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
            const bool good = letter || (!first && ((c >= '0' && c <= '9') || c == '.'));
            if (!good)
                a_name_has_letters_digits_underscores_and_dots_between();
            first = c == '.';
        }
        if (first || text[N - 1])
            a_name_has_letters_digits_underscores_and_dots_between();
        hash_ = detail::hash_text({text, size_}) + static_cast<unsigned>(m) * 0x9e3779b97f4a7c15u;
    }
    constexpr std::string_view view() const noexcept { return {text_, size_}; }
    constexpr const char *text() const noexcept { return text_; }
    constexpr weft::mark mark() const noexcept { return mark_; }
    constexpr std::uint64_t hash() const noexcept { return hash_; }

private:
    /* not for constant expressions: the compiler shows it */
    static void a_name_has_letters_digits_underscores_and_dots_between() {}

    const char *text_;
    std::size_t size_;
    weft::mark mark_;
    std::uint64_t hash_ = 0;
};

/* A signature as text: name, types, mark. */
class signature_text {
public:
    constexpr signature_text(std::string_view name, std::string_view part, mark m) noexcept
    {
        add(name);
        add(part);
        add(m == mark::idempotent ? " idempotent" : m == mark::oneway ? " oneway" : "");
    }
    constexpr const char *c_str() const noexcept { return data_; }
    constexpr std::string_view view() const noexcept { return {data_, size_}; }
    friend constexpr bool operator==(const signature_text &a, std::string_view b) noexcept { return a.view() == b; }

private:
    constexpr void add(std::string_view text) noexcept
    {
        for (std::size_t i = 0; i < text.size() && size_ + 1 < sizeof data_; i++)
            data_[size_++] = text[i];
    }
    char data_[WEFT_SIG_TEXT] = {};
    std::size_t size_ = 0;
};

template <class Signature>
class function;
template <class R, class... P>
class function<R(P...)> {
public:
    using part = detail::signature_part<R, P...>;

    template <std::size_t N>
    consteval function(const char (&name)[N], mark m = mark::none) : name_(name, m)
    {
    }
    constexpr const function_name &name() const noexcept { return name_; }
    constexpr signature_text signature() const noexcept { return {name_.view(), part::text.view(), name_.mark()}; }

    /* As client.call(*this, ...); of a function with streams as client.open(*this, ...). */
    template <class Client, class... A>
    auto operator()(Client &client, A &&...args) const
    {
        if constexpr ((detail::is_stream<R> || ... || detail::is_stream<P>))
            return client.open(*this, std::forward<A>(args)...);
        else
            return client.call(*this, std::forward<A>(args)...);
    }

private:
    function_name name_;
};

} // namespace weft

#endif
