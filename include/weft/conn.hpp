/* weft/conn.hpp - listeners and endpoints in C++.
 *
 *     weft::listener door = rt.listen("tcp://127.0.0.1:0");
 *     weft::endpoint ep = co_await door.accept();
 *     weft::endpoint peer = co_await rt.connect("tcp://trainer-3:13337").timeout(5s);
 *
 * weft::endpoint closes its endpoint when it goes, gracefully and without waiting for that: `co_await ep.close()` says how it
 * went. weft::endpoint_ref is a pointer with the same calls, for what callbacks are given and what tasks share. What is said of
 * calls, states and failures in weft/conn.h holds here.
 *
 * Calls for messages are in weft/msg.hpp and weft/am.hpp, those for remote memory in weft/rma.hpp. */
#ifndef WEFT_CONN_HPP
#define WEFT_CONN_HPP

#include <string>
#include <weft/am.h>
#include <weft/bytes.hpp>
#include <weft/conn.h>
#include <weft/msg.h>
#include <weft/rma.h>
#include <weft/runtime.hpp>

namespace weft {

class endpoint;
class remote;
struct am_options;

/* An endpoint that belongs to somebody else. */
class endpoint_ref {
public:
    endpoint_ref(weft_ep_t *ep = nullptr) noexcept : ep_(ep) {}
    weft_ep_t *native() const noexcept { return ep_; }
    explicit operator bool() const noexcept { return ep_ != nullptr; }

    weft_ep_id_t id() const noexcept { return weft_ep_id(ep_); }
    weft_ep_state_t state() const noexcept { return weft_ep_get_state(ep_); }
    runtime_ref runtime() const noexcept { return weft_ep_runtime(ep_); }
    result<weft_ep_info_t> try_info() const noexcept
    {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        weft_status_t st = weft_ep_get_info(ep_, &info);
        return st ? result<weft_ep_info_t>(st) : result<weft_ep_info_t>(info);
    }
    weft_ep_info_t info() const { return try_info().value(); }

    /* --- messages (weft/msg.hpp) ----------------------------------------------------------------------------------------- */

    auto send(const_bytes buf, std::uint64_t tag) const noexcept;
    template <std::size_t N>
    auto send(const piece_list<N> &pieces, std::uint64_t tag) const noexcept;
    auto send(piece_span pieces, std::uint64_t tag) const noexcept;

    auto recv(bytes buf, std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL) const noexcept;
    template <std::size_t N>
    auto recv(const piece_list<N> &pieces, std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL) const noexcept;
    auto recv(piece_span pieces, std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL) const noexcept;
    template <class T>
    auto recv(std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL) const noexcept;
    auto recv_alloc(std::uint64_t tag, std::uint64_t mask = WEFT_TAG_FULL, std::size_t max_len = default_max_len) const noexcept;

    result<void> try_post(const_bytes buf, std::uint64_t tag) const noexcept;
    void post(const_bytes buf, std::uint64_t tag) const;

    /* --- active messages (weft/am.hpp) ----------------------------------------------------------------------------------- */

    auto am(std::uint32_t id, const_bytes header, const_bytes payload = {}) const noexcept;
    auto am(std::uint32_t id, const am_options &opts) const noexcept;
    result<void> try_post_am(std::uint32_t id, const_bytes header, const_bytes payload = {}) const noexcept;
    void post_am(std::uint32_t id, const_bytes header, const_bytes payload = {}) const;
    auto take(std::uint32_t id) const noexcept;
    auto recv_am(std::uint32_t id, bytes header, bytes payload) const noexcept;

    /* --- remote memory (weft/rma.hpp) ------------------------------------------------------------------------------------ */

    auto attach(const_bytes key, weft_rma_path_t path = WEFT_RMA_ANY) const noexcept;
    auto find(const char *name, weft_rma_path_t path = WEFT_RMA_ANY) const noexcept;

    friend bool operator==(endpoint_ref a, endpoint_ref b) noexcept { return a.ep_ == b.ep_; }

protected:
    weft_ep_t *ep_;
};

namespace detail {

/* Ends an endpoint, a listener, a region: it belongs to this until that is posted, and is ended by this if it never is. */
template <class T, weft_status_t (*End)(T *, weft_op_t *), class Value>
struct end_spec {
    using value_type = Value;
    T *what;

    explicit end_spec(T *t) noexcept : what(t) {}
    end_spec(end_spec &&other) noexcept : what(std::exchange(other.what, nullptr)) {}
    ~end_spec()
    {
        if (what)
            (void)End(what, nullptr);
    }
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_status_t st = End(what, op);
        if (!st || st == WEFT_ERR_CLOSED)
            what = nullptr;
        return st;
    }
    Value take(weft_op_t &op) noexcept
    {
        if constexpr (!std::is_void_v<Value>)
            return op.count;
    }
};
using close_spec = end_spec<weft_ep_t, weft_ep_close, std::uint64_t>;
using abort_spec = end_spec<weft_ep_t, weft_ep_abort, void>;
using listener_close_spec = end_spec<weft_listener_t, weft_listener_close, void>;

} // namespace detail

/* An endpoint of ours. */
class endpoint : public endpoint_ref {
public:
    endpoint() noexcept = default;
    /* Takes it over. */
    explicit endpoint(weft_ep_t *ep) noexcept : endpoint_ref(ep) {}
    endpoint(endpoint &&other) noexcept : endpoint_ref(other.release()) {}
    endpoint &operator=(endpoint &&other) noexcept
    {
        if (this != &other) {
            end();
            ep_ = other.release();
        }
        return *this;
    }
    ~endpoint() { end(); }

    /* Close it gracefully: how many of our messages the peer's program has not received yet. It is gone from here on. */
    action<detail::close_spec> close() noexcept { return action(detail::close_spec(release())); }
    /* Close it now: what is under way is cancelled, what was not sent is dropped. */
    action<detail::abort_spec> abort() noexcept { return action(detail::abort_spec(release())); }
    weft_ep_t *release() noexcept { return std::exchange(ep_, nullptr); }

private:
    void end() noexcept
    {
        if (ep_)
            (void)weft_ep_close(ep_, nullptr);
    }
};

namespace detail {

struct accept_spec {
    using value_type = endpoint;
    weft_listener_t *listener;
    weft_status_t post(weft_op_t *op) noexcept { return weft_listener_accept(listener, op); }
    endpoint take(weft_op_t &op) noexcept { return endpoint(weft_op_ep(&op)); }
    void abandon(weft_op_t &op) noexcept { (void)endpoint(weft_op_ep(&op)); }
};

} // namespace detail

/* --- connecting ------------------------------------------------------------------------------------------------------------- */

/* As weft_ep_opts_t: what is zero or empty is the default. Borrowed until the connect is posted. */
struct connect_options {
    const char *source = nullptr;
    weft_ep_hooks_t hooks = {};
    std::chrono::nanoseconds reconnect{};
    const_bytes address{}; /* of the peer (weft_runtime_address()), instead of a URI: then that is NULL */
    bool shared = false;
    bool no_retry = false;
    std::uint32_t shard = 0;
    weft_ep_opts_t more = WEFT_EP_OPTS_INIT;

    weft_ep_opts_t native() const noexcept
    {
        weft_ep_opts_t o = more;
        if (source)
            o.source = source;
        if (hooks.failed || hooks.closed)
            o.hooks = hooks;
        if (reconnect.count())
            o.reconnect_ns = nanoseconds(reconnect);
        if (address.size()) {
            o.address = address.data();
            o.address_len = address.size();
        }
        o.shared = o.shared || shared;
        o.no_retry = o.no_retry || no_retry;
        if (shard)
            o.shard = shard;
        return o;
    }
};

namespace detail {

/* The endpoint is there from the post on; it goes if the connect fails. */
struct connect_spec {
    using value_type = endpoint;
    weft_runtime_t *rt;
    const char *uri;
    weft_ep_opts_t opts;
    weft_ep_t *ep = nullptr;

    connect_spec(weft_runtime_t *in, const char *to, const weft_ep_opts_t &with) noexcept : rt(in), uri(to), opts(with) {}
    connect_spec(connect_spec &&other) noexcept
        : rt(other.rt), uri(other.uri), opts(other.opts), ep(std::exchange(other.ep, nullptr))
    {
    }
    ~connect_spec() { (void)endpoint(ep); }
    weft_status_t post(weft_op_t *op) noexcept { return weft_ep_open(rt, uri, &opts, op, &ep); }
    endpoint take(weft_op_t &) noexcept { return endpoint(std::exchange(ep, nullptr)); }
};

} // namespace detail

/* An action that gives an endpoint, when the peer has answered. `uri` is borrowed until the post. */
inline auto runtime_ref::connect(const char *uri, const connect_options &opts) const
{
    return action(detail::connect_spec(rt_, uri, opts.native()));
}
inline auto runtime_ref::connect(const char *uri) const { return connect(uri, connect_options{}); }

/* --- listening -------------------------------------------------------------------------------------------------------------- */

/* As weft_listen_opts_t. Hooks and their user pointer are plain C functions. */
struct listen_options {
    std::uint32_t backlog = 0;
    std::chrono::nanoseconds reconnect{};
    weft_admit_peer_fn admit = nullptr;
    void *user = nullptr;
    weft_listen_opts_t more = WEFT_LISTEN_OPTS_INIT;

    weft_listen_opts_t native() const noexcept
    {
        weft_listen_opts_t o = more;
        if (backlog)
            o.backlog = backlog;
        if (reconnect.count())
            o.reconnect_ns = nanoseconds(reconnect);
        if (admit)
            o.admit_peer = admit;
        if (user)
            o.user = user;
        return o;
    }
};

class listener {
public:
    listener() noexcept = default;
    /* Takes it over. */
    explicit listener(weft_listener_t *l) noexcept : listener_(l) {}
    listener(listener &&other) noexcept : listener_(other.release()) {}
    listener &operator=(listener &&other) noexcept
    {
        if (this != &other) {
            end();
            listener_ = other.release();
        }
        return *this;
    }
    ~listener() { end(); }

    weft_listener_t *native() const noexcept { return listener_; }
    weft_listener_t *release() noexcept { return std::exchange(listener_, nullptr); }
    explicit operator bool() const noexcept { return listener_ != nullptr; }

    /* An action that gives the next endpoint. Several may be under way. */
    action<detail::accept_spec> accept() const noexcept { return action(detail::accept_spec{listener_}); }

    /* The addresses that are bound, joined by commas. */
    result<std::string> try_uri() const
    {
        std::string text(127, '\0');
        for (;;) {
            std::size_t len = text.size() + 1;
            weft_status_t st = weft_listener_copy_uri(listener_, text.data(), &len);
            if (st && st != WEFT_ERR_LIMIT)
                return st;
            text.resize(st ? len + 1 : len);
            if (!st)
                return text;
        }
    }
    std::string uri() const { return try_uri().value(); }
    std::uint16_t port() const noexcept { return weft_listener_port(listener_); }

    /* Stop listening: pending accepts end with WEFT_ERR_CLOSED. It is gone from the post on. */
    action<detail::listener_close_spec> close() noexcept { return action(detail::listener_close_spec(release())); }

private:
    void end() noexcept
    {
        if (listener_)
            (void)weft_listener_close(listener_, nullptr);
    }
    weft_listener_t *listener_ = nullptr;
};

inline result<listener> runtime_ref::try_listen(const char *uri, const listen_options &opts) const noexcept
{
    weft_listen_opts_t o = opts.native();
    weft_listener_t *l;
    weft_status_t st = weft_listen(rt_, uri, &o, &l);
    return st ? result<listener>(st) : result<listener>(listener(l));
}
inline result<listener> runtime_ref::try_listen(const char *uri) const noexcept { return try_listen(uri, listen_options{}); }
inline listener runtime_ref::listen(const char *uri, const listen_options &opts) const { return try_listen(uri, opts).value(); }
inline listener runtime_ref::listen(const char *uri) const { return try_listen(uri).value(); }

} // namespace weft

#endif
