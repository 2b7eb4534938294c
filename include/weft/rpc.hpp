/* weft/rpc.hpp - calling functions of other processes from C++. The other side is weft/service.hpp.
 *
 *     weft::client client = weft::client::open(rt, "weft://calc");
 *     int sum = co_await client.call<int>("add", 25, 17);                  the types are the signature: add(i32, i32) -> i32
 *     int sum = client.call(calc::add, 25, 17).wait();                     declared once for both sides (weft/call.hpp)
 *     auto sum = co_await client.call(calc::add, 25, 17).timeout(1s).as_result();     weft::call_result<int>
 *
 * A call is an action (weft/op.hpp). Its result owns what it has: a string or a vector is copied out of the reply. Where a copy
 * costs too much, ask for a view: client.call<weft::reply<std::span<const float>>>("pixels") gives the reply with it. A declared
 * function whose result is a view (std::string_view, std::span, weft_tensor_t) gives a weft::reply without being asked.
 *
 * client.with({.once = true}).call(...) takes the options of weft_call_opts_t. The timeout of the client's options is the
 * deadline of calls that name none.
 *
 * A function that takes or gives streams is opened: client.open(calc::primes, 100) gives a weft::stream_call.
 *
 * The method of a call is looked up once for each client, by numbers that the compiler makes of the name and the types; for a
 * name that is known only at run time, client.method<int(int, int)>(name) gives an object to keep.
 *
 * Threads: any, for everything here. Calls end before their client goes. */
#ifndef WEFT_RPC_HPP
#define WEFT_RPC_HPP

#include <chrono>
#include <memory>
#include <weft/call.hpp>
#include <weft/conn.hpp>
#include <weft/rpc_parts.hpp>
#include <weft/runtime.hpp>
#include <weft/streams.hpp>

namespace weft {

/* As weft_client_opts_t: what is zero or empty is as stated there. */
struct client_options {
    std::string service{};
    std::string instance{};
    std::chrono::nanoseconds timeout{}; /* of calls that have none */
    std::uint32_t tries = 0;
    std::uint32_t connections = 0;
    /* Fields that are not above, and those as well: what is set above is stronger. */
    weft_client_opts_t more = WEFT_CLIENT_OPTS_INIT;

    weft_client_opts_t native() const noexcept
    {
        weft_client_opts_t o = more;
        if (!service.empty())
            o.service = service.c_str();
        if (!instance.empty())
            o.instance = instance.c_str();
        if (timeout.count())
            o.timeout_ns = nanoseconds(timeout);
        if (tries)
            o.tries = tries;
        if (connections)
            o.connections = connections;
        return o;
    }
};

/* As weft_call_opts_t. */
struct call_options {
    bool once = false;  /* exactly once, as long as that server lives */
    bool fresh = false; /* never a second try */
    std::span<std::byte> into{}; /* results of 1 KiB and more go here, without a copy; ask for a weft::reply of them */
    const weft_mem_kind_t *into_kind = nullptr;
    std::chrono::nanoseconds timeout{}; /* of a call with streams; of others, if they say none */
    weft_token_t *token = nullptr;      /* of a call with streams */
};

/* A call whose function takes values one by one, gives them, or both. R is its result beside that. */
template <class R, class Send, class Receive>
class stream_call {
public:
    explicit stream_call(std::unique_ptr<detail::stream_state> state) noexcept : state_(state.release()) {}
    stream_call(stream_call &&other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    stream_call &operator=(stream_call &&other) noexcept
    {
        std::swap(state_, other.state_);
        return *this;
    }
    /* A call that is under way is cancelled. */
    ~stream_call() { detail::stream_state::leave(state_); }

    /* Send a value; no more values. */
    auto send(typename detail::stream_value<Send>::arg_type what) const noexcept
        requires(!std::is_void_v<Send>)
    {
        return stream_out<Send>(state_->stream).send(std::move(what));
    }
    auto end() const noexcept
        requires(!std::is_void_v<Send>)
    {
        return stream_out<Send>(state_->stream).end();
    }
    /* The next value, or none at the end. */
    auto next() const noexcept
        requires(!std::is_void_v<Receive>)
    {
        return stream_in<Receive>(state_->stream).next();
    }
    /* Wait for the server's answer, once. Cancelling this cancels the call. */
    action<detail::answer_spec<R>> result() const noexcept { return action(detail::answer_spec<R>(state_)); }
    void cancel() const noexcept { weft_op_cancel(&state_->op); }
    weft_stream_t *native() const noexcept { return state_->stream; }

private:
    detail::stream_state *state_;
};

namespace detail {

/* The calls of a client, with options or without. */
template <class Options>
class calls {
public:
    calls(client_core *core, const Options &options) noexcept : core_(core), options_(options) {}

    /* Call the function of that name and these types: client.call<int>("add", 1, 2),
     * client.call<double>({"mean", weft::idempotent}, values). R may be a weft::reply. */
    template <class R, class... A>
    auto call(function_name name, A &&...args) const
    {
        static_assert((must_travel<argument_t<A>>() && ...));
        using part = signature_part<typename asked<R>::type, argument_t<A>...>;
        return action(rpc_spec<R, by_name<part>, Options, argument_t<A>...>(
            {core_, name}, options_, std::forward<A>(args)...));
    }
    /* Call a declared function. */
    template <class R, class... P>
    auto call(const function<R(P...)> &fn, typename value_traits<bare<P>>::arg_type... args) const
    {
        return declared<given_t<R>, R, P...>(fn, std::move(args)...);
    }
    /* The same, and have its result as another type of the same kind: weft::reply<...>, std::string for std::string_view. */
    template <class As, class R, class... P>
        requires(!std::same_as<As, R>)
    auto call(const function<R(P...)> &fn, typename value_traits<bare<P>>::arg_type... args) const
    {
        static_assert(results<typename asked<As>::type>::text.view() == results<R>::text.view(),
                      "weft: the function is declared with a result of another type");
        return declared<As, R, P...>(fn, std::move(args)...);
    }

    /* Call a function that is marked oneway, and do not wait until it is sent: everything is copied. WEFT_ERR_AGAIN: it would
     * have to wait. */
    template <class... P>
    result<void> try_post(const function<void(P...)> &fn, typename value_traits<bare<P>>::arg_type... args) const
    {
        return post_now(by_name<signature_part<void, P...>>{core_, fn.name()}, holder<P>(std::move(args))...);
    }
    template <class... P>
    void post(const function<void(P...)> &fn, typename value_traits<bare<P>>::arg_type... args) const
    {
        try_post(fn, std::move(args)...).value();
    }

    /* Begin a call with streams: client.open(calc::primes, 100), client.open<double(double, weft::stream<double>)>("total", 1.5).
     * It is sent at once. */
    template <class R, class... P, class... A>
    auto try_open(const function<R(P...)> &fn, A &&...args) const
    {
        return open_stream<R, P...>(by_name<signature_part<R, P...>>{core_, fn.name()}, std::forward<A>(args)...);
    }
    template <class Signature, class... A>
    auto try_open(function_name name, A &&...args) const
    {
        return named<Signature>::open(*this, name, std::forward<A>(args)...);
    }
    template <class R, class... P, class... A>
    auto open(const function<R(P...)> &fn, A &&...args) const
    {
        return try_open(fn, std::forward<A>(args)...).value();
    }
    template <class Signature, class... A>
    auto open(function_name name, A &&...args) const
    {
        return try_open<Signature>(name, std::forward<A>(args)...).value();
    }

protected:
    /* An argument of a declared function, so that a pack of them can be told from another. */
    template <class P>
    struct holder {
        typename value_traits<bare<P>>::arg_type what;
        explicit holder(typename value_traits<bare<P>>::arg_type &&w) noexcept : what(std::move(w)) {}
        void set(weft_value_t &v) const noexcept { value_traits<bare<P>>::set(v, what); }
    };
    template <class Signature>
    struct named;
    template <class R, class... P>
    struct named<R(P...)> {
        template <class... A>
        static auto open(const calls &self, function_name name, A &&...args)
        {
            const by_name<signature_part<R, P...>> target{self.core_, name};
            return self.template open_stream<R, P...>(target, std::forward<A>(args)...);
        }
    };

    template <class As, class R, class... P>
    auto declared(const function<R(P...)> &fn, typename value_traits<bare<P>>::arg_type &&...args) const
    {
        static_assert(!(is_stream<R> || ... || is_stream<P>), "weft: a function with streams is opened: client.open(...)");
        return action(rpc_spec<As, by_name<signature_part<R, P...>>, Options, bare<P>...>(
            {core_, fn.name()}, options_, std::move(args)...));
    }
    template <class Target, class... H>
    static result<void> post_now(const Target &target, const H &...args) noexcept
    {
        weft_method_t *method;
        weft_value_t values[sizeof...(H) + 1];
        std::size_t n = 0;
        (args.set(values[n++]), ...);
        weft_status_t st = target.find(&method);
        return st ? st : weft_call(method, values, n, nullptr, nullptr);
    }
    template <class R, class... P, class Target, class... A>
    auto open_stream(const Target &target, A &&...args) const
    {
        using shape = stream_shape<R, P...>;
        using opened = stream_call<typename shape::result, typename shape::sends, typename shape::receives>;
        static_assert(shape::is_one, "weft: this function has no stream: client.call(...)");
        static_assert(shape::n == sizeof...(A), "weft: the function takes another number of arguments, without the stream");
        std::unique_ptr<stream_state> state;
        call_failure why = shape::begin(target, core_->rt, options_, state, std::forward<A>(args)...);
        if (why.code == code::ok)
            return call_result<opened>(opened(std::move(state)));
        return call_result<opened>(std::move(why));
    }

    client_core *core_;
    [[no_unique_address]] Options options_;
};

} // namespace detail

/* A function that was looked up by its name at run time: add(1, 2) is a call of it. It lives as long as its client. */
template <class Signature>
class method;
template <class R, class... P>
class method<R(P...)> {
public:
    method(weft_method_t *native, std::uint64_t timeout_ns) noexcept : target_{native, timeout_ns} {}
    auto operator()(typename value_traits<detail::bare<P>>::arg_type... args) const
    {
        return action(detail::rpc_spec<detail::given_t<R>, detail::by_method, no_options, detail::bare<P>...>(target_, {},
                                                                                                            std::move(args)...));
    }
    weft_method_t *native() const noexcept { return target_.method; }

private:
    detail::by_method target_;
};

/* A client of a service. */
class client : public detail::calls<no_options> {
public:
    using calls::open; /* of streams; the static ones are of clients */
    using calls::try_open;

    client() noexcept : calls(nullptr, {}) {}
    client(client &&other) noexcept : calls(std::exchange(other.core_, nullptr), {}) {}
    client &operator=(client &&other) noexcept
    {
        std::swap(core_, other.core_);
        return *this;
    }
    /* Closes it: calls under way end with WEFT_ERR_CLOSED, and that is waited for, but not inside a callback. */
    ~client() { end(); }

    /* As weft_client_open(): weft://calc, weft://calc@mill-3, tcp://host:port. */
    static result<client> try_open(runtime_ref rt, const char *uri, const client_options &options = {}) noexcept
    {
        weft_client_opts_t o = options.native();
        weft_client_t *native;
        weft_status_t st = weft_client_open(rt.native(), uri, &o, &native);
        return st ? result<client>(st) : adopt(native, rt, o.timeout_ns);
    }
    static client open(runtime_ref rt, const char *uri, const client_options &options = {})
    {
        return try_open(rt, uri, options).value();
    }
    /* A client over an endpoint of the program, which outlives it. */
    static result<client> try_on(endpoint_ref ep, const client_options &options = {}) noexcept
    {
        weft_client_opts_t o = options.native();
        weft_client_t *native;
        weft_status_t st = weft_client_on(ep.native(), &o, &native);
        return st ? result<client>(st) : adopt(native, ep.runtime(), o.timeout_ns);
    }
    static client on(endpoint_ref ep, const client_options &options = {}) { return try_on(ep, options).value(); }
    /* Take over a client of C. WEFT_ERR_NOMEM closes it. */
    static result<client> adopt(weft_client_t *native, runtime_ref rt, std::uint64_t timeout_ns = 0) noexcept
    {
        client c;
        c.core_ = new (std::nothrow) detail::client_core{native, rt.native(), timeout_ns};
        if (c.core_)
            return c;
        (void)weft_client_close(native, nullptr);
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a client");
    }

    weft_client_t *native() const noexcept { return core_ ? core_->native : nullptr; }
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /* Calls with options. */
    detail::calls<call_options> with(const call_options &options) const noexcept { return {core_, options}; }

    /* A function by a name that need not be known to the compiler; an object of it is kept by the program. */
    template <class Signature>
    result<weft::method<Signature>> try_method(std::string_view name, mark m = mark::none) const noexcept
    {
        weft_method_t *found;
        const signature_text signature(name, detail::part_of<Signature>::text.view(), m);
        weft_status_t st = weft_client_method(core_->native, signature.c_str(), &found);
        if (st)
            return st;
        return weft::method<Signature>(found, core_->timeout_ns);
    }
    template <class Signature>
    weft::method<Signature> method(std::string_view name, mark m = mark::none) const
    {
        return try_method<Signature>(name, m).value();
    }

    result<weft_client_stats_t> try_stats() const noexcept
    {
        weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
        weft_status_t st = weft_client_get_stats(core_->native, &s);
        return st ? result<weft_client_stats_t>(st) : result<weft_client_stats_t>(s);
    }
    weft_client_stats_t stats() const { return try_stats().value(); }

    /* Close it, and be told when that is done. Calls of it fail from here on. */
    action<detail::client_close_spec> close() noexcept { return action(detail::client_close_spec{core_}); }

private:
    void end() noexcept
    {
        if (!core_)
            return;
        weft_op_t op = WEFT_OP_INIT;
        if (weft_op_wait_all(nullptr, 0, 0) == WEFT_ERR_STATE) /* inside a callback */
            (void)weft_client_close(core_->native, nullptr);
        else if (!weft_client_close(core_->native, &op))
            (void)weft_op_wait(&op, WEFT_FOREVER);
        delete core_;
    }
};

} // namespace weft

#endif
