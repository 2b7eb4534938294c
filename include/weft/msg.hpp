/* weft/msg.hpp - tag messages in C++.
 *
 *     co_await ep.send(values, 7);                                     a span, a vector, a string, an object
 *     weft::received got = co_await ep.recv(values, 7);                got.len bytes of it came
 *     int n = co_await ep.recv<int>(8);                                exactly as many bytes as an int has
 *     weft::arrived all = co_await ep.recv_alloc(9);                   all.data is a buffer made to fit
 *     co_await ep.send(weft::pieces(head, body), 10);
 *     ep.post("done", 11);                                             copied; nobody is told how it went
 *
 * What weft/msg.h says of tags, matching, order and memory holds here. */
#ifndef WEFT_MSG_HPP
#define WEFT_MSG_HPP

#include <weft/conn.hpp>
#include <weft/msg.h>

namespace weft {

/* A message that was received. */
struct received {
    std::size_t len;   /* bytes */
    std::uint64_t tag;
    weft_ep_id_t from; /* the endpoint */
};

/* The same, in a buffer of its own. */
struct arrived {
    buffer data;
    std::uint64_t tag;
    weft_ep_id_t from;
};

namespace detail {

inline received received_of(const weft_op_t &op) noexcept { return {static_cast<std::size_t>(op.len), op.tag, op.from}; }

struct send_spec {
    using value_type = void;
    weft_ep_t *ep;
    const void *buf;
    std::size_t len;
    std::uint64_t tag;
    weft_status_t post(weft_op_t *op) noexcept { return weft_msg_send(ep, buf, len, tag, op); }
    void take(weft_op_t &) noexcept {}
};

template <class Pieces>
struct send_pieces_spec {
    using value_type = void;
    weft_ep_t *ep;
    Pieces pieces;
    std::uint64_t tag;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
        o.iov = pieces.data();
        o.iov_n = pieces.size();
        o.tag = tag;
        return weft_msg_send_with(ep, &o, op);
    }
    void take(weft_op_t &) noexcept {}
};

struct recv_spec {
    using value_type = received;
    weft_ep_t *ep;
    void *buf;
    std::size_t cap;
    std::uint64_t tag, mask;
    weft_status_t post(weft_op_t *op) noexcept { return weft_msg_recv(ep, buf, cap, tag, mask, op); }
    received take(weft_op_t &op) noexcept { return received_of(op); }
};

template <class Pieces>
struct recv_pieces_spec {
    using value_type = received;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    Pieces pieces;
    std::uint64_t tag, mask;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_msg_recv_iov(rt, ep, pieces.data(), pieces.size(), tag, mask, op);
    }
    received take(weft_op_t &op) noexcept { return received_of(op); }
};

template <plain_object T>
struct recv_value_spec {
    using value_type = T;
    weft_ep_t *ep;
    std::uint64_t tag, mask;
    T value = T();
    weft_status_t post(weft_op_t *op) noexcept { return weft_msg_recv(ep, std::addressof(value), sizeof value, tag, mask, op); }
    weft_status_t ended(weft_op_t &op) noexcept
    {
        if (op.len == sizeof value) [[likely]]
            return WEFT_OK;
        return weft_fail(WEFT_ERR_PROTOCOL, "a message of %llu bytes was received as an object of %zu",
                         static_cast<unsigned long long>(op.len), sizeof value);
    }
    T take(weft_op_t &) noexcept { return value; }
};

struct recv_any_spec {
    using value_type = received;
    weft_runtime_t *rt;
    void *buf;
    std::size_t cap;
    std::uint64_t tag, mask;
    weft_status_t post(weft_op_t *op) noexcept { return weft_msg_recv_any(rt, buf, cap, tag, mask, op); }
    received take(weft_op_t &op) noexcept { return received_of(op); }
};

struct recv_alloc_spec {
    using value_type = arrived;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    std::size_t max_len;
    std::uint64_t tag, mask;
    weft_status_t post(weft_op_t *op) noexcept { return weft_msg_recv_alloc(rt, ep, max_len, tag, mask, op); }
    arrived take(weft_op_t &op) noexcept { return {buffer(op.buf, static_cast<std::size_t>(op.len)), op.tag, op.from}; }
    void abandon(weft_op_t &op) noexcept { weft_buf_free(op.buf); }
};

} // namespace detail

/* Send: ends when the buffer may be used again. */
inline auto endpoint_ref::send(const_bytes buf, std::uint64_t tag) const noexcept
{
    return action(detail::send_spec{ep_, buf.data(), buf.size(), tag});
}
template <std::size_t N>
auto endpoint_ref::send(const piece_list<N> &pieces, std::uint64_t tag) const noexcept
{
    return action(detail::send_pieces_spec<piece_list<N>>{ep_, pieces, tag});
}
inline auto endpoint_ref::send(piece_span pieces, std::uint64_t tag) const noexcept
{
    return action(detail::send_pieces_spec<piece_span>{ep_, pieces, tag});
}

/* Receive one message: a longer one than the buffer fails with WEFT_ERR_TRUNCATED. */
inline auto endpoint_ref::recv(bytes buf, std::uint64_t tag, std::uint64_t mask) const noexcept
{
    return action(detail::recv_spec{ep_, buf.data(), buf.size(), tag, mask});
}
template <std::size_t N>
auto endpoint_ref::recv(const piece_list<N> &pieces, std::uint64_t tag, std::uint64_t mask) const noexcept
{
    return action(detail::recv_pieces_spec<piece_list<N>>{weft_ep_runtime(ep_), ep_, pieces, tag, mask});
}
inline auto endpoint_ref::recv(piece_span pieces, std::uint64_t tag, std::uint64_t mask) const noexcept
{
    return action(detail::recv_pieces_spec<piece_span>{weft_ep_runtime(ep_), ep_, pieces, tag, mask});
}
/* Receive an object: a message of another length fails with WEFT_ERR_TRUNCATED or WEFT_ERR_PROTOCOL. Its bytes are the peer's:
 * check what they say. */
template <class T>
auto endpoint_ref::recv(std::uint64_t tag, std::uint64_t mask) const noexcept
{
    return action(detail::recv_value_spec<T>{ep_, tag, mask});
}
inline auto endpoint_ref::recv_alloc(std::uint64_t tag, std::uint64_t mask, std::size_t max_len) const noexcept
{
    return action(detail::recv_alloc_spec{weft_ep_runtime(ep_), ep_, max_len, tag, mask});
}

/* From whichever endpoint has a message that matches. */
inline auto runtime_ref::recv_any(bytes buf, std::uint64_t tag, std::uint64_t mask) const noexcept
{
    return action(detail::recv_any_spec{rt_, buf.data(), buf.size(), tag, mask});
}
inline auto runtime_ref::recv_any_alloc(std::uint64_t tag, std::uint64_t mask, std::size_t max_len) const noexcept
{
    return action(detail::recv_alloc_spec{rt_, nullptr, max_len, tag, mask});
}

/* Copy it and forget it. */
inline result<void> endpoint_ref::try_post(const_bytes buf, std::uint64_t tag) const noexcept
{
    return weft_msg_send(ep_, buf.data(), buf.size(), tag, nullptr);
}
inline void endpoint_ref::post(const_bytes buf, std::uint64_t tag) const { try_post(buf, tag).value(); }

} // namespace weft

#endif
