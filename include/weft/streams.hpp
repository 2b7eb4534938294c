/* weft/streams.hpp - streams of values in C++: one side of a call that takes or gives many.
 *
 *     while (auto v = co_await primes.next())        std::optional: without a value at the end of the stream
 *         std::cout << *v;
 *     co_await values.send(1.5);
 *
 * weft::stream_in<T> receives, weft::stream_out<T> sends. A handler is given them (weft/service.hpp), and they are valid as long
 * as its request; a client has a weft::stream_call, which is both (weft/rpc.hpp). What is sent is borrowed until the send is
 * over, unless it was moved in. A value that is a view comes as a weft::item<T>, which holds what it views.
 *
 * Threads: any; one receive at a time keeps the order. */
#ifndef WEFT_STREAMS_HPP
#define WEFT_STREAMS_HPP

#include <optional>
#include <weft/op.hpp>
#include <weft/rpc.h>
#include <weft/values.hpp>

namespace weft {

/* A value of a stream that views memory, which stays until this goes. */
template <class T>
class item {
public:
    explicit item(weft_item_t &from) noexcept : raw_(from) { from = WEFT_ITEM_INIT; }
    item(item &&other) noexcept : item(other.raw_) {}
    item &operator=(item &&other) noexcept
    {
        std::swap(raw_, other.raw_);
        return *this;
    }
    ~item() { weft_item_release(&raw_); }
    decltype(auto) operator*() const noexcept { return value_traits<T>::get(raw_.value); }
    decltype(auto) value() const noexcept { return value_traits<T>::get(raw_.value); }

private:
    weft_item_t raw_;
};

namespace detail {

template <class T>
struct stream_send_spec {
    using value_type = void;
    weft_stream_t *stream;
    typename value_traits<T>::arg_type what;

    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_value_t v;
        value_traits<T>::set(v, what);
        return weft_stream_send(stream, &v, op);
    }
    void take(weft_op_t &) noexcept {}
};

struct stream_end_spec {
    using value_type = void;
    weft_stream_t *stream;
    weft_status_t post(weft_op_t *op) noexcept { return weft_stream_end(stream, op); }
    void take(weft_op_t &) noexcept {}
};

/* The next value. It is copied out of the item where T owns its memory, which may find none. */
template <class T>
class stream_next_spec {
    static constexpr bool views = value_traits<T>::views;

public:
    using value_type = std::optional<std::conditional_t<views, item<T>, T>>;

    explicit stream_next_spec(weft_stream_t *stream) noexcept : stream_(stream) {}
    stream_next_spec(stream_next_spec &&other) noexcept : stream_(other.stream_) {} /* before the post */
    stream_next_spec &operator=(stream_next_spec &&) = delete;
    ~stream_next_spec() { weft_item_release(&item_); }

    weft_status_t post(weft_op_t *op) noexcept { return weft_stream_recv(stream_, &item_, op); }
    weft_status_t ended(weft_op_t &op) noexcept
    {
        if (op.len == 0)
            return WEFT_OK;
        if constexpr (views) {
            value_.emplace(item_);
        } else {
#if WEFT_EXCEPTIONS
            try {
                value_.emplace(value_traits<T>::get(item_.value));
            } catch (...) {
                return weft_fail(WEFT_ERR_NOMEM, "no memory for a value of a stream");
            }
#else
            value_.emplace(value_traits<T>::get(item_.value));
#endif
        }
        return WEFT_OK;
    }
    value_type take(weft_op_t &) noexcept { return std::move(value_); }

private:
    weft_stream_t *stream_;
    weft_item_t item_ = WEFT_ITEM_INIT;
    value_type value_;
};

} // namespace detail

/* Values that come. */
template <class T>
class stream_in {
public:
    explicit stream_in(weft_stream_t *stream) noexcept : stream_(stream) {}
    /* The next one, or none at the end. It fails as the call does. */
    action<detail::stream_next_spec<T>> next() const noexcept { return action(detail::stream_next_spec<T>(stream_)); }
    weft_stream_t *native() const noexcept { return stream_; }

private:
    weft_stream_t *stream_;
};

/* Values that go. */
template <class T>
class stream_out {
public:
    explicit stream_out(weft_stream_t *stream) noexcept : stream_(stream) {}
    action<detail::stream_send_spec<T>> send(typename value_traits<T>::arg_type what) const noexcept
    {
        return action(detail::stream_send_spec<T>{stream_, std::move(what)});
    }
    /* No more values. A server's stream also ends with its answer. */
    action<detail::stream_end_spec> end() const noexcept { return action(detail::stream_end_spec{stream_}); }
    weft_stream_t *native() const noexcept { return stream_; }

private:
    weft_stream_t *stream_;
};

} // namespace weft

#endif
