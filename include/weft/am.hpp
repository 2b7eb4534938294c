/* weft/am.hpp - active messages in C++: a header and a payload, to a handler or a receive.
 *
 *     co_await ep.am(7, header, payload);
 *     weft::handler h = rt.handle(7, [&](weft::message_ref m) { count += m.size(); });     in progress, once per message
 *     weft::message m = co_await rt.take(7);                                               header first
 *     std::vector<float> values(m.size() / sizeof(float));
 *     co_await m.pull(values);
 *
 * A handler is a function of the program that is called in progress: it must not block. weft::handler takes it away again when it
 * goes; the function lives until it is not called any more. What it throws is logged, and counts as a rejection of the message.
 * weft::serve(rt, 7, scope, [](weft::message m) -> weft::task<> {...}) begins a task for each message, in a scope.
 *
 * weft::message owns a message; weft::message_ref is one that a handler looks at. What weft/am.h says holds: what lies in a
 * message that was not kept can change while it is read. */
#ifndef WEFT_AM_HPP
#define WEFT_AM_HPP

#include <memory>
#include <weft/am.h>
#include <weft/conn.hpp>
#include <weft/msg.hpp>
#include <weft/scope.hpp>

namespace weft {

/* What else can be said of a message that is sent. */
struct am_options {
    const_bytes header{};
    const_bytes payload{};
    piece_span pieces{};                   /* instead of `payload`; the array is borrowed, too */
    const weft_mem_kind_t *kind = nullptr; /* of the payload: look */
    bool reply = false;                    /* the receiver gets an endpoint to answer on */
    bool confirm = false;                  /* ends when the receiver is done with it */
    bool urgent = false;
    bool no_wait = false;
};

/* A message that was received whole. */
struct am_received {
    std::uint32_t id;
    std::size_t header_len;
    std::size_t len;
    weft_ep_id_t from;
};

namespace detail {

struct am_spec {
    using value_type = void;
    weft_ep_t *ep;
    std::uint32_t id;
    const_bytes header, payload;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_am_send(ep, id, header.data(), header.size(), payload.data(), payload.size(), op);
    }
    void take(weft_op_t &) noexcept {}
};

struct am_opts_spec {
    using value_type = void;
    weft_ep_t *ep;
    std::uint32_t id;
    am_options with;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        o.id = id;
        o.header = with.header.data();
        o.header_len = with.header.size();
        o.buf = with.payload.data();
        o.len = with.payload.size();
        o.iov = with.pieces.data();
        o.iov_n = with.pieces.size();
        o.kind = with.kind;
        o.reply = with.reply;
        o.confirm = with.confirm;
        o.urgent = with.urgent;
        o.no_wait = with.no_wait;
        return weft_am_send_with(ep, &o, op);
    }
    void take(weft_op_t &) noexcept {}
};

struct pull_spec {
    using value_type = std::size_t;
    weft_am_t *am;
    bytes to;
    weft_status_t post(weft_op_t *op) noexcept { return weft_am_pull(am, to.data(), to.size(), op); }
    std::size_t take(weft_op_t &op) noexcept { return static_cast<std::size_t>(op.len); }
};

template <class Pieces>
struct pull_pieces_spec {
    using value_type = std::size_t;
    weft_am_t *am;
    Pieces pieces;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
        o.iov = pieces.data();
        o.iov_n = pieces.size();
        return weft_am_pull_with(am, &o, op);
    }
    std::size_t take(weft_op_t &op) noexcept { return static_cast<std::size_t>(op.len); }
};

template <weft_status_t (*View)(weft_am_t *, weft_op_t *)>
struct view_spec {
    using value_type = std::span<const std::byte>;
    weft_am_t *am;
    weft_status_t post(weft_op_t *op) noexcept { return View(am, op); }
    std::span<const std::byte> take(weft_op_t &op) noexcept
    {
        return {static_cast<const std::byte *>(op.buf), static_cast<std::size_t>(op.len)};
    }
};

struct am_recv_spec {
    using value_type = am_received;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    std::uint32_t id;
    bytes header, payload;
    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
        /* a payload of no bytes goes into a buffer of no bytes, which is not the same as none */
        static char none;
        o.ep = ep;
        o.id = id;
        o.header = header.data();
        o.header_cap = header.size();
        o.buf = payload.data() ? payload.data() : &none;
        o.cap = payload.size();
        return weft_am_recv(rt, &o, op);
    }
    am_received take(weft_op_t &op) noexcept
    {
        return {static_cast<std::uint32_t>(op.id), op.header_len, static_cast<std::size_t>(op.len), op.from};
    }
};

} // namespace detail

/* --- a message that arrived ------------------------------------------------------------------------------------------------ */

/* One that belongs to somebody else: the library, while its handler runs. */
class message_ref {
public:
    explicit message_ref(weft_am_t *am = nullptr) noexcept : am_(am) {}
    weft_am_t *native() const noexcept { return am_; }
    explicit operator bool() const noexcept { return am_ != nullptr; }

    std::uint32_t id() const noexcept { return am_->id; }
    std::span<const std::byte> header() const noexcept { return {static_cast<const std::byte *>(am_->header), am_->header_len}; }
    /* The payload, if it is here. */
    std::optional<std::span<const std::byte>> data() const noexcept
    {
        if (!am_->data && am_->len)
            return std::nullopt;
        return std::span(static_cast<const std::byte *>(am_->data), size());
    }
    /* Bytes of the payload, wherever it is. */
    std::size_t size() const noexcept { return static_cast<std::size_t>(am_->len); }
    weft_ep_id_t from() const noexcept { return am_->from; }
    endpoint_ref ep() const noexcept { return am_->ep; }
    /* Where to answer, if the sender wants an answer. */
    endpoint_ref reply() const noexcept { return am_->reply; }

    /* In its handler: have it beyond that. */
    result<message> try_keep() const noexcept;
    message keep() const;
    /* Have the payload in a buffer; gives its length. Once per message. */
    auto pull(bytes to) const noexcept { return action(detail::pull_spec{am_, to}); }
    template <std::size_t N>
    auto pull(const piece_list<N> &to) const noexcept
    {
        return action(detail::pull_pieces_spec<piece_list<N>>{am_, to});
    }
    result<void> try_reject(std::uint32_t reason) const noexcept { return weft_am_reject(am_, reason); }
    void reject(std::uint32_t reason) const { try_reject(reason).value(); }

protected:
    weft_am_t *am_;
};

/* One of ours, kept or taken: released when it goes. */
class message : public message_ref {
public:
    message() noexcept = default;
    /* Takes it over. */
    explicit message(weft_am_t *am) noexcept : message_ref(am) {}
    message(message &&other) noexcept : message_ref(other.release()) {}
    message &operator=(message &&other) noexcept
    {
        std::swap(am_, other.am_);
        return *this;
    }
    ~message() { weft_am_release(am_); }

    /* Have the payload where it can be read, until the message goes. Lent bytes are the sender's: weft/am.h. */
    auto view() const noexcept { return action(detail::view_spec<weft_am_view>{am_}); }
    auto view_device() const noexcept { return action(detail::view_spec<weft_am_view_device>{am_}); }
    weft_am_t *release() noexcept { return std::exchange(am_, nullptr); }
};

inline result<message> message_ref::try_keep() const noexcept
{
    weft_am_t *kept = weft_am_keep(am_);
    return kept ? result<message>(message(kept)) : result<message>(WEFT_ERR_NOMEM);
}
inline message message_ref::keep() const { return try_keep().value(); }

namespace detail {

struct am_take_spec {
    using value_type = message;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    std::uint32_t id;
    weft_status_t post(weft_op_t *op) noexcept { return weft_am_take(rt, ep, id, op); }
    message take(weft_op_t &op) noexcept { return message(weft_op_am(&op)); }
    void abandon(weft_op_t &op) noexcept { weft_am_release(weft_op_am(&op)); }
};

} // namespace detail

/* --- sending, receiving ----------------------------------------------------------------------------------------------------- */

inline auto endpoint_ref::am(std::uint32_t id, const_bytes header, const_bytes payload) const noexcept
{
    return action(detail::am_spec{ep_, id, header, payload});
}
inline auto endpoint_ref::am(std::uint32_t id, const am_options &opts) const noexcept
{
    return action(detail::am_opts_spec{ep_, id, opts});
}
/* Copied and forgotten. */
inline result<void> endpoint_ref::try_post_am(std::uint32_t id, const_bytes header, const_bytes payload) const noexcept
{
    return weft_am_send(ep_, id, header.data(), header.size(), payload.data(), payload.size(), nullptr);
}
inline void endpoint_ref::post_am(std::uint32_t id, const_bytes header, const_bytes payload) const
{
    try_post_am(id, header, payload).value();
}

/* The next message of an id, or of any (WEFT_AM_ANY_ID), that has no handler: from this endpoint, or from any. */
inline auto endpoint_ref::take(std::uint32_t id) const noexcept
{
    return action(detail::am_take_spec{weft_ep_runtime(ep_), ep_, id});
}
inline auto runtime_ref::take(std::uint32_t id) const noexcept { return action(detail::am_take_spec{rt_, nullptr, id}); }
/* The same, header and payload into buffers. */
inline auto endpoint_ref::recv_am(std::uint32_t id, bytes header, bytes payload) const noexcept
{
    return action(detail::am_recv_spec{weft_ep_runtime(ep_), ep_, id, header, payload});
}
inline auto runtime_ref::recv_am(std::uint32_t id, bytes header, bytes payload) const noexcept
{
    return action(detail::am_recv_spec{rt_, nullptr, id, header, payload});
}

/* --- handlers ------------------------------------------------------------------------------------------------------------- */

namespace detail {

/* A function that handles an id. The operations that set it and take it away are in here: nobody may be there to wait. */
class handler_box {
public:
    handler_box(weft_runtime_t *rt, std::uint32_t id) noexcept : rt_(rt), id_(id)
    {
        set_.user = last_.user = this;
    }
    virtual ~handler_box() = default;

    /* Inside a callback nobody can wait for another thread: then it is known later whether the id had a handler. */
    weft_status_t set() noexcept
    {
        weft_status_t st = weft_am_handle(rt_, id_, run, this, &set_);
        if (!st && !weft_op_done(&set_))
            (void)weft_op_wait(&set_, WEFT_FOREVER);
        return st ? st : weft_op_done(&set_) ? set_.status : WEFT_OK;
    }
    /* It goes when it is not called any more. */
    void end() noexcept
    {
        if (weft_op_attach(&set_, [](weft_op_t *, void *user) { static_cast<handler_box *>(user)->take_away(); }))
            take_away();
    }

protected:
    virtual void handle(message_ref m) = 0;

private:
    void take_away() noexcept
    {
        if (weft_op_done(&set_) && set_.status) { /* it never was the handler */
            delete this;
            return;
        }
        last_.fn = [](weft_op_t *, void *user) { delete static_cast<handler_box *>(user); };
        if (weft_status_t st = weft_am_handle(rt_, id_, nullptr, nullptr, &last_); st && st != WEFT_ERR_FORKED)
            delete this; /* the runtime is closed, and calls nobody */
    }
    static void run(weft_am_t *am, void *user) noexcept
    {
#if WEFT_EXCEPTIONS
        const char *what = "something";
        try {
            static_cast<handler_box *>(user)->handle(message_ref(am));
            return;
        } catch (const std::exception &e) {
            threw(am, e.what());
            return;
        } catch (...) {
        }
        threw(am, what);
#else
        static_cast<handler_box *>(user)->handle(message_ref(am));
#endif
    }
    static void threw(weft_am_t *am, const char *what) noexcept
    {
        weft_log(WEFT_LOG_ERROR, "the handler of active messages %u threw: %s", am->id, what);
        (void)weft_am_reject(am, WEFT_AM_NOT_TAKEN);
    }

    weft_runtime_t *rt_;
    std::uint32_t id_;
    weft_op_t set_ = WEFT_OP_INIT, last_ = WEFT_OP_INIT;
};

template <class F>
class handler_of final : public handler_box {
public:
    handler_of(weft_runtime_t *rt, std::uint32_t id, F &&fn) : handler_box(rt, id), fn_(std::move(fn)) {}

private:
    void handle(message_ref m) override { fn_(m); }
    F fn_;
};

} // namespace detail

/* A handler that is set: taken away when this goes. It may run once more until that has taken effect. */
class handler {
public:
    handler() noexcept = default;
    explicit handler(detail::handler_box *box) noexcept : box_(box) {}
    handler(handler &&other) noexcept : box_(std::exchange(other.box_, nullptr)) {}
    handler &operator=(handler &&other) noexcept
    {
        std::swap(box_, other.box_);
        return *this;
    }
    ~handler()
    {
        if (box_)
            box_->end();
    }
    explicit operator bool() const noexcept { return box_ != nullptr; }

private:
    detail::handler_box *box_ = nullptr;
};

/* Call fn(message_ref) for each message of an id. Fails: WEFT_ERR_STATE (the id has a handler), _NOMEM, _INVALID, _CLOSED. */
template <class F>
result<handler> runtime_ref::try_handle(std::uint32_t id, F fn) const noexcept
{
    static_assert(std::invocable<F &, message_ref>, "a handler takes a weft::message_ref");
    auto *box = new (std::nothrow) detail::handler_of<F>(rt_, id, std::move(fn));
    if (!box)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a handler");
    if (weft_status_t st = box->set(); st) {
        delete box;
        return st;
    }
    return handler(box);
}
template <class F>
handler runtime_ref::handle(std::uint32_t id, F fn) const
{
    return try_handle(id, std::move(fn)).value();
}

/* Begin a task fn(message) in a scope for each message of an id. The scope stays until the handler is gone, and its runtime has
 * gone on, or is closed. Messages that cannot be kept for lack of memory are rejected. */
template <class F>
result<handler> try_serve(runtime_ref rt, std::uint32_t id, scope &in, F fn) noexcept
{
    return rt.try_handle(id, [&in, fn = std::move(fn)](message_ref m) {
        if (result<message> kept = m.try_keep())
            in.spawn(fn(std::move(*kept)));
    });
}
template <class F>
handler serve(runtime_ref rt, std::uint32_t id, scope &in, F fn)
{
    return try_serve(rt, id, in, std::move(fn)).value();
}

} // namespace weft

#endif
