/* weft/error.hpp - failures in C++: an error code, an exception, and a result that is one or the other.
 *
 * Everything that can fail has two faces. One throws weft::error; the other, whose name begins with try_ or that is asked for
 * with as_result(), gives a weft::result<T>. Without exceptions (-fno-exceptions) only the second is there, and
 * result<T>::value() of a failure ends the process with its sentence.
 *
 *     std::error_code code = weft::make_error_code(WEFT_ERR_PEER);     code == weft::errc::peer
 *
 * The sentence of a failure, which names the address and the peer, is weft::error::what(), and for a result what
 * weft_last_error() says to the thread that got it, until its next call into the library. */
#ifndef WEFT_ERROR_HPP
#define WEFT_ERROR_HPP

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <weft/status.h>

#if defined(__cpp_exceptions)
#define WEFT_EXCEPTIONS 1
#else
#define WEFT_EXCEPTIONS 0
#endif

namespace weft {

/* The statuses, for comparing: `if (code == weft::errc::timeout)`. */
enum class errc {
    invalid = WEFT_ERR_INVALID,
    no_memory = WEFT_ERR_NOMEM,
    cancelled = WEFT_ERR_CANCELLED,
    timeout = WEFT_ERR_TIMEOUT,
    peer = WEFT_ERR_PEER,
    closed = WEFT_ERR_CLOSED,
    refused = WEFT_ERR_REFUSED,
    unreachable = WEFT_ERR_UNREACHABLE,
    auth = WEFT_ERR_AUTH,
    version = WEFT_ERR_VERSION,
    protocol = WEFT_ERR_PROTOCOL,
    truncated = WEFT_ERR_TRUNCATED,
    again = WEFT_ERR_AGAIN,
    limit = WEFT_ERR_LIMIT,
    forked = WEFT_ERR_FORKED,
    state = WEFT_ERR_STATE,
    unsupported = WEFT_ERR_UNSUPPORTED,
    address = WEFT_ERR_ADDRESS,
    not_found = WEFT_ERR_NOTFOUND,
    system = WEFT_ERR_SYSTEM,
    rejected = WEFT_ERR_REJECTED,
    range = WEFT_ERR_RANGE,
    rights = WEFT_ERR_RIGHTS,
    stale = WEFT_ERR_STALE,
    corrupt = WEFT_ERR_CORRUPT,
    call = WEFT_ERR_CALL,
    pending = WEFT_ERR_PENDING,
    done = WEFT_ERR_DONE,
    permission = WEFT_ERR_PERMISSION
};

/* "weft": the values are those of weft_status_t. Some are conditions of the standard: errc::timeout is std::errc::timed_out. */
inline const std::error_category &error_category() noexcept;

inline std::error_code make_error_code(errc e) noexcept { return {static_cast<int>(e), error_category()}; }
inline std::error_code make_error_code(weft_status_t status) noexcept { return {static_cast<int>(status), error_category()}; }

} // namespace weft

template <>
struct std::is_error_code_enum<weft::errc> : std::true_type {};

namespace weft {
namespace detail {

class status_category final : public std::error_category {
public:
    const char *name() const noexcept override { return "weft"; }
    std::string message(int value) const override { return weft_status_text(static_cast<weft_status_t>(value)); }
    std::error_condition default_error_condition(int value) const noexcept override
    {
        switch (value) {
        case WEFT_ERR_INVALID: return std::errc::invalid_argument;
        case WEFT_ERR_NOMEM: return std::errc::not_enough_memory;
        case WEFT_ERR_CANCELLED: return std::errc::operation_canceled;
        case WEFT_ERR_TIMEOUT: return std::errc::timed_out;
        case WEFT_ERR_REFUSED: return std::errc::connection_refused;
        case WEFT_ERR_UNREACHABLE: return std::errc::host_unreachable;
        case WEFT_ERR_AGAIN: return std::errc::resource_unavailable_try_again;
        case WEFT_ERR_UNSUPPORTED: return std::errc::not_supported;
        case WEFT_ERR_ADDRESS: return std::errc::address_not_available;
        case WEFT_ERR_PROTOCOL: return std::errc::protocol_error;
        case WEFT_ERR_TRUNCATED: return std::errc::message_size;
        case WEFT_ERR_PERMISSION: return std::errc::permission_denied;
        default: return {value, *this};
        }
    }
};

} // namespace detail

inline const std::error_category &error_category() noexcept
{
    static const detail::status_category category;
    return category;
}

#if WEFT_EXCEPTIONS
/* A failure. code() is of error_category(), or of what derives from this. */
class error : public std::system_error {
public:
    explicit error(weft_status_t status) : error(status, weft_status_text(status)) {}
    error(weft_status_t status, const char *sentence) : error(make_error_code(status), sentence) {}
    error(std::error_code code, const char *sentence) : std::system_error(code), sentence_(sentence) {}

    /* What was done, the address and the peer, and why it failed. */
    const char *what() const noexcept override { return sentence_.what(); }
    weft_status_t status() const noexcept
    {
        return code().category() == error_category() ? static_cast<weft_status_t>(code().value()) : WEFT_ERR_CALL;
    }

private:
    std::runtime_error sentence_; /* a string whose copies cannot fail */
};
#endif

namespace detail {

/* The sentence of a call that just returned `status` on this thread. */
inline const char *sentence(weft_status_t status) noexcept
{
    const char *said = weft_last_error_status() == status ? weft_last_error() : "";
    return *said ? said : weft_status_text(status);
}

[[noreturn]] inline void fail(weft_status_t status, const char *sentence)
{
#if WEFT_EXCEPTIONS
    throw error(status, sentence);
#else
    std::fprintf(stderr, "weft: %s (%s)\n", sentence, weft_status_name(status));
    std::abort();
#endif
}

} // namespace detail

/* Throw weft::error if a call of the C API failed: weft::check(weft_runtime_open(...)). */
inline void check(weft_status_t status)
{
    if (status) [[unlikely]]
        detail::fail(status, detail::sentence(status));
}

/* A value, or the status of a failure. */
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : status_(WEFT_OK) { new (&value_) T(std::move(value)); }
    /* Of a failure: anything but WEFT_OK. */
    result(weft_status_t status) noexcept : status_(status ? status : WEFT_ERR_INVALID), none_() {}
    result(result &&other) noexcept(std::is_nothrow_move_constructible_v<T>) : status_(other.status_), none_()
    {
        if (!status_)
            new (&value_) T(std::move(other.value_));
    }
    result &operator=(result &&other) noexcept(std::is_nothrow_move_constructible_v<T>)
    {
        if (this != &other) {
            this->~result();
            new (this) result(std::move(other));
        }
        return *this;
    }
    result(const result &) = delete;
    result &operator=(const result &) = delete;
    ~result()
    {
        if (!status_)
            value_.~T();
    }

    bool has_value() const noexcept { return !status_; }
    explicit operator bool() const noexcept { return !status_; }
    weft_status_t status() const noexcept { return status_; }
    std::error_code error() const noexcept { return status_ ? make_error_code(status_) : std::error_code(); }

    T &operator*() & noexcept { return value_; }
    const T &operator*() const & noexcept { return value_; }
    T &&operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }
    /* The value; a failure is thrown. */
    T &value() &
    {
        if (status_)
            detail::fail(status_, detail::sentence(status_));
        return value_;
    }
    T &&value() && { return std::move(value()); }

private:
    weft_status_t status_;
    union {
        char none_;
        T value_;
    };
};

template <>
class [[nodiscard]] result<void> {
public:
    using value_type = void;

    result() noexcept = default;
    result(weft_status_t status) noexcept : status_(status) {}
    bool has_value() const noexcept { return !status_; }
    explicit operator bool() const noexcept { return !status_; }
    weft_status_t status() const noexcept { return status_; }
    std::error_code error() const noexcept { return status_ ? make_error_code(status_) : std::error_code(); }
    void operator*() const noexcept {}
    void value() const
    {
        if (status_)
            detail::fail(status_, detail::sentence(status_));
    }

private:
    weft_status_t status_ = WEFT_OK;
};

} // namespace weft

#endif
