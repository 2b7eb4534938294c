/* weft/bytes.hpp - buffers: what is sent, where what comes goes, and what the library made.
 *
 * Whatever sends takes weft::const_bytes, whatever receives takes weft::bytes. Both are made of
 *
 *     a span, vector, array, string of anything that can be copied as it is: its elements
 *     a string literal: its letters, without the zero at its end
 *     an object that can be copied as it is, and is no pointer: its bytes
 *     a pointer and a length
 *
 * They are borrowed until the operation ends: in `co_await ep.send(some(), 7)` what some() gave stays as long.
 * weft::pieces(a, b, c) is several of them, one behind the other. Memory of a GPU is given as a pointer and a length, or as a
 * span. */
#ifndef WEFT_BYTES_HPP
#define WEFT_BYTES_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <weft/op.h>

namespace weft {

/* The longest message that is received into a buffer of the library's, unless the program says otherwise: it is the peer who
 * chooses how much it sends. */
inline constexpr std::size_t default_max_len = std::size_t(1) << 30;

class bytes;
class const_bytes;

namespace detail {

template <class T>
inline constexpr bool plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_null_pointer_v<T> &&
                              !std::is_member_pointer_v<T> && !std::is_same_v<T, bytes> && !std::is_same_v<T, const_bytes>;

template <class R>
concept plain_range = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                      plain<std::remove_cv_t<std::remove_reference_t<std::ranges::range_reference_t<R>>>>;
template <class R>
concept writable_range = plain_range<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

template <class T>
concept plain_object = plain<std::remove_cvref_t<T>> && !std::ranges::range<T> && std::is_object_v<std::remove_reference_t<T>>;

template <class R>
std::size_t size_of(R &r) noexcept
{
    return std::ranges::size(r) * sizeof(std::ranges::range_value_t<R>);
}

} // namespace detail

/* Bytes to be read. */
class const_bytes {
public:
    constexpr const_bytes() noexcept = default;
    constexpr const_bytes(const void *data, std::size_t n) noexcept : data_(data), n_(n) {}
    template <std::size_t N>
    constexpr const_bytes(const char (&literal)[N]) noexcept : data_(literal), n_(literal[N - 1] ? N : N - 1)
    {
    }
    template <class R>
        requires detail::plain_range<R>
    constexpr const_bytes(R &&r) noexcept : data_(std::ranges::data(r)), n_(detail::size_of(r))
    {
    }
    template <class T>
        requires detail::plain_object<T>
    constexpr const_bytes(const T &object) noexcept : data_(std::addressof(object)), n_(sizeof object)
    {
    }

    const void *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return n_; }

private:
    const void *data_ = nullptr;
    std::size_t n_ = 0;
};

/* Bytes to be written. */
class bytes {
public:
    constexpr bytes() noexcept = default;
    constexpr bytes(void *data, std::size_t n) noexcept : data_(data), n_(n) {}
    template <class R>
        requires detail::writable_range<R> && (std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>)
    constexpr bytes(R &&r) noexcept : data_(std::ranges::data(r)), n_(detail::size_of(r))
    {
    }
    template <class T>
        requires detail::plain_object<T> && (!std::is_const_v<T>)
    constexpr bytes(T &object) noexcept : data_(std::addressof(object)), n_(sizeof object)
    {
    }

    void *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return n_; }

private:
    void *data_ = nullptr;
    std::size_t n_ = 0;
};

/* Several buffers, as one message: of a fixed number, or as many as a span of weft_iov_t has, which is borrowed, too. */
template <std::size_t N>
struct piece_list {
    std::array<weft_iov_t, N> iov;
    const weft_iov_t *data() const noexcept { return iov.data(); }
    std::size_t size() const noexcept { return N; }
};
using piece_span = std::span<const weft_iov_t>;

/* To be sent. */
template <std::convertible_to<const_bytes>... B>
    requires(sizeof...(B) > 0)
piece_list<sizeof...(B)> pieces(const B &...parts) noexcept
{
    auto one = [](const_bytes b) { return weft_iov_t{const_cast<void *>(b.data()), b.size()}; };
    return {{one(parts)...}};
}
/* To be filled, in order. */
template <class... B>
    requires(sizeof...(B) > 0 && (std::convertible_to<B, bytes> && ...))
piece_list<sizeof...(B)> pieces_to(B &&...parts) noexcept
{
    auto one = [](bytes b) { return weft_iov_t{b.data(), b.size()}; };
    return {{one(std::forward<B>(parts))...}};
}

/* A buffer that the library made: ours to keep. */
class buffer {
public:
    buffer() noexcept = default;
    /* Takes over what weft_buf_free() frees. */
    buffer(void *data, std::size_t n) noexcept : data_(data), n_(n) {}
    buffer(buffer &&other) noexcept : data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0)) {}
    buffer &operator=(buffer &&other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(n_, other.n_);
        return *this;
    }
    ~buffer() { weft_buf_free(data_); }

    std::byte *data() noexcept { return static_cast<std::byte *>(data_); }
    const std::byte *data() const noexcept { return static_cast<const std::byte *>(data_); }
    std::size_t size() const noexcept { return n_; }
    bool empty() const noexcept { return !n_; }
    std::byte *begin() noexcept { return data(); }
    std::byte *end() noexcept { return data() + n_; }
    const std::byte *begin() const noexcept { return data(); }
    const std::byte *end() const noexcept { return data() + n_; }
    /* As text. */
    std::string_view text() const noexcept { return {static_cast<const char *>(data_), n_}; }
    void *release() noexcept
    {
        n_ = 0;
        return std::exchange(data_, nullptr);
    }

private:
    void *data_ = nullptr;
    std::size_t n_ = 0;
};

} // namespace weft

#endif
