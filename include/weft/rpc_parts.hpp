/* weft/rpc_parts.hpp - how calls are made in C++: methods by name, the spec of a call, streams. Include weft/rpc.hpp.
 *
 * The spec of a call holds its arguments, their values and the reply, so that nothing is allocated: once it is posted it stays
 * where it is, in the frame of a coroutine or on a stack. Its reply is given back when it goes. */
#ifndef WEFT_RPC_PARTS_HPP
#define WEFT_RPC_PARTS_HPP

#include <atomic>
#include <memory>
#include <optional>
#include <weft/call.hpp>
#include <weft/runtime.hpp>

namespace weft {

struct call_options;
/* In place of call_options. */
struct no_options {};

namespace detail {

template <class Signature>
struct part_of;
template <class R, class... P>
struct part_of<R(P...)> : signature_part<R, P...> {};

/* What a declared function gives: what views the reply comes with it. */
template <class R>
using given_t = std::conditional_t<results<R>::views, reply<R>, R>;

/* --- methods ---------------------------------------------------------------------------------------------------------------- */

/* What a client has in C++: the methods that were called by name, found by a number, with two loads. Entries stay as long as the
 * client, and are read without a lock. */
struct client_core {
    struct known {
        std::uint64_t key;
        const char *text; /* of the name: static */
        weft_method_t *method;
        known *next;
    };
    static constexpr std::size_t buckets = 64;

    weft_client_t *native;
    weft_runtime_t *rt;
    std::uint64_t timeout_ns;
    std::atomic<known *> methods[buckets] = {};

    client_core(weft_client_t *c, weft_runtime_t *r, std::uint64_t ns) noexcept : native(c), rt(r), timeout_ns(ns) {}
    client_core(const client_core &) = delete;
    ~client_core()
    {
        for (auto &first : methods)
            for (known *k = first.load(std::memory_order_acquire), *next; k; k = next) {
                next = k->next;
                delete k;
            }
    }

    template <class Part>
    weft_status_t find(const function_name &name, weft_method_t **method_out) noexcept
    {
        const std::uint64_t key = name.hash() ^ Part::hash;
        for (const known *k = methods[key % buckets].load(std::memory_order_acquire); k; k = k->next)
            if (k->key == key && k->text == name.text()) [[likely]] {
                *method_out = k->method;
                return WEFT_OK;
            }
        return learn(key, name, Part::text.view(), method_out);
    }

private:
    __attribute__((noinline)) weft_status_t learn(std::uint64_t key, const function_name &name, std::string_view part,
                                                  weft_method_t **method_out) noexcept
    {
        weft_method_t *method;
        weft_status_t st = weft_client_method(native, signature_text(name.view(), part, name.mark()).c_str(), &method);
        if (st)
            return st;
        auto &first = methods[key % buckets];
        auto *k = new (std::nothrow) known{key, name.text(), method, first.load(std::memory_order_relaxed)};
        while (k && !first.compare_exchange_weak(k->next, k, std::memory_order_release, std::memory_order_relaxed))
            ;
        *method_out = method; /* without memory it is looked up again */
        return WEFT_OK;
    }
};

/* Whom to call. */
template <class Part>
struct by_name {
    client_core *core;
    function_name name;
    weft_status_t find(weft_method_t **out) const noexcept { return core->find<Part>(name, out); }
    std::uint64_t timeout_ns() const noexcept { return core->timeout_ns; }
};
struct by_method {
    weft_method_t *method;
    std::uint64_t ns;
    weft_status_t find(weft_method_t **out) const noexcept
    {
        *out = method;
        return WEFT_OK;
    }
    std::uint64_t timeout_ns() const noexcept { return ns; }
};

/* --- one call --------------------------------------------------------------------------------------------------------------- */

/* Can it be read without memory? */
template <class R>
inline constexpr bool reads_quietly = noexcept(value_traits<bare<R>>::get(std::declval<const weft_value_t &>()));
template <>
inline constexpr bool reads_quietly<void> = true;
template <class... T>
inline constexpr bool reads_quietly<std::tuple<T...>> = (reads_quietly<T> && ...);
template <class A, class B>
inline constexpr bool reads_quietly<std::pair<A, B>> = reads_quietly<A> && reads_quietly<B>;

/* Results of a complete call, which may want memory: kept until they are taken. */
template <class R, bool Quiet = reads_quietly<R>>
struct result_keeper {
    weft_status_t keep(const weft_reply_t &) noexcept { return WEFT_OK; }
    R take(const weft_reply_t &reply) noexcept { return results<R>::read(reply.values); }
};
template <class R>
struct result_keeper<R, false> {
    std::optional<R> value{};
    weft_status_t keep(const weft_reply_t &reply) noexcept
    {
#if WEFT_EXCEPTIONS
        try {
            value.emplace(results<R>::read(reply.values));
        } catch (...) {
            return weft_fail(WEFT_ERR_NOMEM, "no memory for the result of a call");
        }
#else
        value.emplace(results<R>::read(reply.values));
#endif
        return WEFT_OK;
    }
    R take(const weft_reply_t &) noexcept { return std::move(*value); }
};
template <class T>
struct result_keeper<reply<T>, true> {
    weft_status_t keep(const weft_reply_t &) noexcept { return WEFT_OK; }
    reply<T> take(weft_reply_t &from) noexcept { return reply<T>(from); }
};
template <class T>
inline constexpr bool reads_quietly<reply<T>> = true;

/* The options of a call as C has them. */
template <class Options>
struct native_options {
    weft_call_opts_t native = WEFT_CALL_OPTS_INIT;
    const weft_call_opts_t *fill(const Options &o) noexcept
    {
        native.once = o.once;
        native.fresh = o.fresh;
        native.into = o.into.empty() ? nullptr : o.into.data();
        native.into_cap = o.into.size();
        native.into_kind = o.into_kind;
        return &native;
    }
};
template <>
struct native_options<no_options> {
    const weft_call_opts_t *fill(const no_options &) noexcept { return nullptr; }
};

template <class R, class Target, class Options, class... P>
class rpc_spec {
    static_assert(is_reply<R> || !results<typename asked<R>::type>::views,
                  "weft: this result is a view of the reply: ask for weft::reply<...> of it, or for a type that owns its memory, "
                  "as std::string and std::vector do");

public:
    using value_type = R;
    using result_type = call_result<R>;

    template <class... A>
    rpc_spec(Target target, const Options &options, A &&...args)
        : args_(std::forward<A>(args)...), target_(target), options_(options)
    {
    }
    rpc_spec(rpc_spec &&other) noexcept : args_(std::move(other.args_)), target_(other.target_), options_(other.options_) {}
    rpc_spec &operator=(rpc_spec &&) = delete;
    ~rpc_spec()
    {
        if (posted_)
            weft_reply_release(&reply_);
    }

    weft_status_t post(weft_op_t *op) noexcept
    {
        weft_method_t *method;
        if (weft_status_t st = target_.find(&method); st) [[unlikely]]
            return st;
        set(std::index_sequence_for<P...>());
        if (!op->timeout_ns)
            op->timeout_ns = timeout();
        weft_status_t st = weft_call_with(method, values_, sizeof...(P), native_.fill(options_), &reply_, op);
        posted_ = !st;
        return st;
    }
    weft_status_t ended(weft_op_t &) noexcept { return kept_.keep(reply_); }
    value_type take(weft_op_t &) noexcept { return kept_.take(reply_); }
    /* Why it failed: `why` is what the operation says, or the post. */
    result_type failed(weft_status_t status, const char *why) noexcept
    {
        if (!posted_)
            return failure_of(status, why);
        return reply_.code ? failure_of(status, reply_) : failure_of(status, why, reply_.ran);
    }

private:
    template <std::size_t... I>
    void set(std::index_sequence<I...>) noexcept
    {
        (value_traits<P>::set(values_[I], std::get<I>(args_)), ...);
    }
    std::uint64_t timeout() const noexcept
    {
        std::uint64_t ns = target_.timeout_ns();
        if constexpr (!std::same_as<Options, no_options>)
            ns = options_.timeout.count() ? nanoseconds(options_.timeout) : ns;
        return ns == WEFT_FOREVER ? 0 : ns;
    }

    std::tuple<typename value_traits<P>::arg_type...> args_;
    Target target_;
    [[no_unique_address]] Options options_;
    [[no_unique_address]] native_options<Options> native_{};
    [[no_unique_address]] result_keeper<R> kept_{};
    bool posted_ = false;
    weft_value_t values_[sizeof...(P) ? sizeof...(P) : 1]; /* these two are set by the post */
    weft_reply_t reply_;
};

struct client_close_spec {
    using value_type = void;
    client_core *core;
    weft_status_t post(weft_op_t *op) noexcept { return weft_client_close(core->native, op); }
    void take(weft_op_t &) noexcept {}
};

/* --- calls with streams ----------------------------------------------------------------------------------------------------- */

template <class T>
struct stream_value {
    using arg_type = typename value_traits<T>::arg_type;
};
template <>
struct stream_value<void> {
    using arg_type = nothing;
};

/* Such a call, while the library or the program has it. */
struct stream_state {
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_stream_t *stream = nullptr;
    weft_runtime_t *rt = nullptr;
    weft_value_t values[WEFT_SIG_PARAMS];
    weft_call_opts_t opts = WEFT_CALL_OPTS_INIT;

    stream_state() noexcept = default;
    stream_state(const stream_state &) = delete;
    virtual ~stream_state()
    {
        weft_stream_release(stream);
        if (posted)
            weft_reply_release(&reply);
    }
    bool posted = false;

    /* The program is done with it: the call ends, and then this goes. */
    static void leave(stream_state *s) noexcept
    {
        if (!s)
            return;
        weft_stream_release(std::exchange(s->stream, nullptr));
        s->op.user = s;
        if (weft_op_attach(&s->op, over) != WEFT_OK)
            delete s;
    }

private:
    static void over(weft_op_t *, void *user) noexcept { delete static_cast<stream_state *>(user); }
};

/* With its arguments, which the call borrows. */
template <class... Arg>
struct stream_state_of final : stream_state {
    std::tuple<Arg...> args;
    template <class... A>
    explicit stream_state_of(A &&...a) : args(std::forward<A>(a)...)
    {
    }
};

/* The server's answer to a call that was begun. */
template <class R>
class answer_spec {
public:
    using value_type = R;
    using result_type = call_result<R>;

    explicit answer_spec(stream_state *state) noexcept : state_(state) {}
    weft_status_t post(weft_op_t *op) noexcept
    {
        member_ = &state_->op;
        weft_status_t st = weft_group_start(state_->rt, WEFT_GROUP_ALL, &member_, 1, op);
        posted_ = !st;
        return st;
    }
    weft_status_t ended(weft_op_t &) noexcept { return kept_.keep(state_->reply); }
    value_type take(weft_op_t &) noexcept { return kept_.take(state_->reply); }
    result_type failed(weft_status_t status, const char *why) noexcept
    {
        if (!posted_ || !state_->reply.code)
            return failure_of(status, why);
        return failure_of(status, state_->reply);
    }

private:
    stream_state *state_;
    weft_op_t *member_ = nullptr;
    bool posted_ = false;
    [[no_unique_address]] result_keeper<R> kept_{};
};

template <class T>
struct stream_of {
    using type = void;
};
template <class T>
struct stream_of<stream<T>> {
    using type = T;
};

/* The parts of a function with streams, as the client sees them. */
template <class R, class... P>
struct stream_shape {
    using given = std::tuple<std::type_identity<void>, std::type_identity<P>...>;
    using last = typename std::tuple_element_t<sizeof...(P), given>::type;
    using sends = typename stream_of<last>::type;
    using receives = typename stream_of<R>::type;
    using result = std::conditional_t<is_stream<R>, void, R>;
    static constexpr bool is_one = !std::is_void_v<sends> || !std::is_void_v<receives>;
    static constexpr std::size_t n = sizeof...(P) - !std::is_void_v<sends>;

    /* Begin the call. code::ok: it has begun. */
    template <class Target, class Options, class... A>
    static call_failure begin(const Target &target, weft_runtime_t *rt, const Options &options,
                              std::unique_ptr<stream_state> &state_out, A &&...args)
    {
        return make(std::make_index_sequence<n>(), target, rt, options, state_out, std::forward<A>(args)...);
    }

private:
    template <std::size_t... I, class Target, class Options, class... A>
    static call_failure make(std::index_sequence<I...>, const Target &target, weft_runtime_t *rt, const Options &options,
                             std::unique_ptr<stream_state> &state_out, A &&...args)
    {
        using all = std::tuple<std::type_identity<P>...>;
        using kept = stream_state_of<typename value_traits<bare<typename std::tuple_element_t<I, all>::type>>::arg_type...>;
        auto *s = new (std::nothrow) kept(std::forward<A>(args)...);
        if (!s)
            return failure_of(WEFT_ERR_NOMEM, "no memory for a call with streams");
        state_out.reset(s);
        (value_traits<bare<typename std::tuple_element_t<I, all>::type>>::set(s->values[I], std::get<I>(s->args)), ...);
        return start(target, rt, options, *s);
    }
    template <class Target, class Options>
    static call_failure start(const Target &target, weft_runtime_t *rt, const Options &options, stream_state &s)
    {
        weft_method_t *method;
        s.rt = rt;
        s.op.timeout_ns = target.timeout_ns();
        if constexpr (!std::same_as<Options, no_options>) {
            s.opts.fresh = options.fresh;
            s.opts.once = options.once;
            s.op.token = options.token;
            if (options.timeout.count())
                s.op.timeout_ns = nanoseconds(options.timeout);
        }
        if (s.op.timeout_ns == WEFT_FOREVER)
            s.op.timeout_ns = 0;
        weft_status_t st = target.find(&method);
        if (!st)
            st = weft_call_stream(method, s.values, n, &s.opts, &s.reply, &s.op, &s.stream);
        s.posted = !st;
        return st ? failure_of(st, sentence(st)) : call_failure{code::ok};
    }
};

} // namespace detail
} // namespace weft

#endif
