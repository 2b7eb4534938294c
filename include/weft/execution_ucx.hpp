/* weft/execution_ucx.hpp - the names of execution-ucx, as senders over Weft: connect_endpoint() and the like.
 *
 * For programs that come from there; docs/guide/coming-from-execution-ucx.md has a row for each. They are thin: what each says is
 * what the action says that it is made of. What differs:
 *   - a connection is a weft::endpoint, or weft::endpoint_ref, and not a number
 *   - an active message has an id, which says what it is about
 *   - an rvalue that owns its bytes (a vector, a string, an object) is moved into the operation state and stays there until the
 *     library has let go of it; lvalues, spans and pointers are borrowed until then
 *
 *     connect_endpoint(sched, "tcp://127.0.0.1:13337") | let_value([&](weft::endpoint &ep) {
 *         return connection_send(ep, 7, header, std::move(values)); })
 *
 * tests/cpp/execution_names.cc. */
#ifndef WEFT_EXECUTION_UCX_HPP
#define WEFT_EXECUTION_UCX_HPP

#include <string>
#include <vector>
#include <weft/am.hpp>
#include <weft/execution.hpp>
#include <weft/mem.h>

namespace weft::execution {

/* Memory of a kind that a receive has made: ours, given back when it goes. */
class memory {
public:
    memory() noexcept = default;
    memory(const weft_mem_kind_t *kind, void *data, std::size_t n) noexcept : kind_(kind), data_(data), n_(n) {}
    memory(memory &&other) noexcept
        : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0))
    {
    }
    memory &operator=(memory &&other) noexcept
    {
        std::swap(kind_, other.kind_);
        std::swap(data_, other.data_);
        std::swap(n_, other.n_);
        return *this;
    }
    ~memory()
    {
        if (data_)
            weft_mem_free(kind_, data_, n_);
    }

    const weft_mem_kind_t *kind() const noexcept { return kind_; }
    void *data() const noexcept { return data_; } /* the processor can read it if the kind says so */
    std::size_t size() const noexcept { return n_; }

private:
    const weft_mem_kind_t *kind_ = nullptr; /* NULL: host */
    void *data_ = nullptr;
    std::size_t n_ = 0;
};

/* A message that was received into memory of a kind. */
struct am_made {
    am_received message;
    memory data;
};

namespace detail {

/* Borrowed, or moved in. */
template <class T>
using kept_bytes = std::conditional_t<std::is_lvalue_reference_v<T> || std::ranges::borrowed_range<T> ||
                                          std::is_same_v<std::remove_cvref_t<T>, const_bytes>,
                                      const_bytes, std::remove_cvref_t<T>>;

template <class T>
inline constexpr bool in_pieces = std::is_same_v<T, piece_span>;
template <std::size_t N>
inline constexpr bool in_pieces<piece_list<N>> = true;

template <class Header, class Payload>
struct am_kept_spec {
    using value_type = void;
    weft_ep_t *ep;
    std::uint32_t id;
    Header header;
    Payload payload;
    weft_status_t post(weft_op_t *op) noexcept
    {
        const const_bytes h(header), p(payload);
        return weft_am_send(ep, id, h.data(), h.size(), p.data(), p.size(), op);
    }
    void take(weft_op_t &) noexcept {}
};

template <class Header, class Pieces>
struct am_pieces_spec {
    using value_type = void;
    weft_ep_t *ep;
    std::uint32_t id;
    Header header;
    Pieces pieces;
    weft_status_t post(weft_op_t *op) noexcept
    {
        const const_bytes h(header);
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        o.id = id;
        o.header = h.data();
        o.header_len = h.size();
        o.iov = pieces.data();
        o.iov_n = pieces.size();
        return weft_am_send_with(ep, &o, op);
    }
    void take(weft_op_t &) noexcept {}
};

struct am_made_spec {
    using value_type = am_made;
    weft_runtime_t *rt;
    std::uint32_t id;
    bytes header;
    const weft_mem_kind_t *kind;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
        o.id = id;
        o.header = header.data();
        o.header_cap = header.size();
        o.kind = kind;
        return weft_am_recv(rt, &o, op);
    }
    am_made take(weft_op_t &op) noexcept
    {
        const auto n = static_cast<std::size_t>(op.len);
        return {{static_cast<std::uint32_t>(op.id), op.header_len, n, op.from}, memory(kind, op.buf, n)};
    }
    void abandon(weft_op_t &op) noexcept { memory(kind, op.buf, static_cast<std::size_t>(op.len)); }
};

struct pull_made_spec {
    using value_type = memory;
    weft_am_t *am;
    const weft_mem_kind_t *kind;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
        o.kind = kind;
        return weft_am_pull_with(am, &o, op);
    }
    memory take(weft_op_t &op) noexcept { return memory(kind, op.buf, static_cast<std::size_t>(op.len)); }
    void abandon(weft_op_t &op) noexcept { (void)take(op); }
};

/* A connect whose address is its own. */
struct connect_kept_spec {
    using value_type = endpoint;
    weft_runtime_t *rt;
    std::string uri;
    std::vector<std::byte> address;
    connect_options opts;
    std::string source;
    endpoint ep = {};

    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_ep_t *opened;
        connect_options o = opts;
        if (!source.empty())
            o.source = source.c_str();
        if (!address.empty())
            o.address = address;
        const weft_ep_opts_t native = o.native();
        const weft_status_t st = weft_ep_open(rt, uri.empty() ? nullptr : uri.c_str(), &native, op, &opened);
        if (!st)
            ep = endpoint(opened);
        return st;
    }
    endpoint take(weft_op_t &) noexcept { return std::move(ep); }
};

} // namespace detail

/* --- connections -------------------------------------------------------------------------------------------------------- */

/* To an address, "tcp://192.0.2.7:13337"; and from one of this machine. Gives the weft::endpoint when the peer has answered. */
inline auto connect_endpoint(const scheduler &on, std::string uri, const connect_options &opts = {})
{
    const std::string source = opts.source ? opts.source : "";
    return sender(action(detail::connect_kept_spec{on.native(), std::move(uri), {}, opts, source}));
}
/* To what weft_runtime_address() of the peer gave. */
inline auto connect_endpoint(const scheduler &on, std::vector<std::byte> address, const connect_options &opts = {})
{
    const std::string source = opts.source ? opts.source : "";
    return sender(action(detail::connect_kept_spec{on.native(), {}, std::move(address), opts, source}));
}

/* The next peer of a listener, as a weft::endpoint. Several may be started at a time: a batch. */
inline auto accept_endpoint(const listener &door) noexcept { return sender(door.accept()); }

/* Asked once for each failure of a connection, bool(weft_ep_id_t, std::error_code): true has it reconnect. The result is for
 * connect_options.hooks, or for listen_options.more.hooks; `handler` stays as long as the endpoints. It is called in progress and
 * must not throw. */
template <std::predicate<weft_ep_id_t, std::error_code> F>
    requires std::is_object_v<F>
weft_ep_hooks_t handle_error_connection(F &handler) noexcept
{
    weft_ep_hooks_t hooks = {};
    hooks.failed = [](weft_ep_t *ep, weft_status_t why, void *user) noexcept {
        return (*static_cast<F *>(user))(weft_ep_id(ep), make_error_code(why)) ? WEFT_RECONNECT : WEFT_GIVE_UP;
    };
    hooks.user = const_cast<void *>(static_cast<const void *>(std::addressof(handler)));
    return hooks;
}

/* --- messages ----------------------------------------------------------------------------------------------------------- */

/* Send a header and a payload; done when their bytes may be used again. */
template <class Header, class Payload>
    requires std::convertible_to<Header, const_bytes> && std::convertible_to<Payload, const_bytes> &&
             (!detail::in_pieces<std::remove_cvref_t<Payload>>)
auto connection_send(endpoint_ref ep, std::uint32_t id, Header &&header, Payload &&payload)
{
    using spec = detail::am_kept_spec<detail::kept_bytes<Header>, detail::kept_bytes<Payload>>;
    return sender(action(spec{ep.native(), id, std::forward<Header>(header), std::forward<Payload>(payload)}));
}
/* The payload in pieces: weft::pieces(a, b), which borrows them, or an array of weft_iov_t, which is borrowed, too. */
template <class Header, std::size_t N>
    requires std::convertible_to<Header, const_bytes>
auto connection_send(endpoint_ref ep, std::uint32_t id, Header &&header, const piece_list<N> &payload)
{
    using spec = detail::am_pieces_spec<detail::kept_bytes<Header>, piece_list<N>>;
    return sender(action(spec{ep.native(), id, std::forward<Header>(header), payload}));
}
template <class Header>
    requires std::convertible_to<Header, const_bytes>
auto connection_send(endpoint_ref ep, std::uint32_t id, Header &&header, piece_span payload)
{
    using spec = detail::am_pieces_spec<detail::kept_bytes<Header>, piece_span>;
    return sender(action(spec{ep.native(), id, std::forward<Header>(header), payload}));
}

/* The next message of an id (WEFT_AM_ANY_ID: of any), from any peer: header and payload into buffers that are borrowed. */
inline auto connection_recv(const scheduler &on, std::uint32_t id, bytes header, bytes payload) noexcept
{
    return sender(runtime_ref(on.native()).recv_am(id, header, payload));
}
/* The payload into memory that is made for it, of a kind: an am_made. NULL: of the host. */
inline auto connection_recv(const scheduler &on, std::uint32_t id, bytes header, const weft_mem_kind_t *kind) noexcept
{
    return sender(action(detail::am_made_spec{on.native(), id, header, kind ? kind : weft_mem_host()}));
}

/* The header of the next message: a weft::message, whose data() is there if it came along; else it is pulled, or rejected. */
inline auto connection_recv_header(const scheduler &on, std::uint32_t id) noexcept
{
    return sender(runtime_ref(on.native()).take(id));
}
/* The payload of such a message into a buffer, or pieces (weft::pieces_to(a, b)): its length. */
inline auto connection_recv_buffer(message_ref of, bytes to) noexcept { return sender(of.pull(to)); }
template <std::size_t N>
auto connection_recv_buffer(message_ref of, const piece_list<N> &to) noexcept
{
    return sender(of.pull(to));
}
/* Into memory that is made for it: a weft::execution::memory. */
inline auto connection_recv_buffer(message_ref of, const weft_mem_kind_t *kind) noexcept
{
    return sender(action(detail::pull_made_spec{of.native(), kind ? kind : weft_mem_host()}));
}

} // namespace weft::execution

#endif
