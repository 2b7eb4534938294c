/* weft/service.hpp - offering functions to other processes from C++. The other side is weft/rpc.hpp.
 *
 *     weft::service calc = weft::service::open(rt, "calc", {.threads = 2});
 *     calc.add("add", [](int a, int b) { return a + b; });             the types are the signature: add(a0: i32, a1: i32) -> i32
 *     calc.add(calc_api::mean, [](std::span<const double> v) { ... });  declared once for both sides (weft/call.hpp)
 *     calc.publish();
 *
 * A handler is anything that can be called, with arguments and a result as weft/values.hpp has them. It may
 *
 *   - answer with what it returns. Of a string or vector that is returned 1 KiB and more are sent from where they are, and freed
 *     afterwards; of a view (std::string_view, std::span, weft_tensor_t) everything is copied, unless a weft::owned holds it.
 *   - throw: a weft::call_error is the answer, any other exception is INTERNAL with its what(). Or return a weft::call_result<T>.
 *   - be a coroutine, a weft::task<T>: it answers when it ends. Its stop token is told when the caller cancels, is gone or late,
 *     and when the service closes. Its arguments are valid until then; it takes them by value.
 *   - take a weft::pending<T>, which answers later, from any thread. Arguments that are views stay valid as long as that.
 *   - take a weft::request & beside its arguments: who calls, and how long they wait.
 *   - take a weft::stream_in<T>, a weft::stream_out<T>, or both: parameters and results that are streams (weft/streams.hpp). It
 *     is a coroutine, takes a pending, or runs on a thread of the service, where it may wait.
 *
 * Handlers run in progress and must not wait, or on threads of the service: {.threads = true}. On a runtime with several shards
 * one may run several times at once, unless it is {.serial = true}.
 *
 * What is wrong with a handler is said by the compiler. */
#ifndef WEFT_SERVICE_HPP
#define WEFT_SERVICE_HPP

#include <chrono>
#include <weft/service_parts.hpp>

namespace weft {

/* As weft_service_opts_t: what is zero or empty is as stated there. */
struct service_options {
    std::string instance{};
    std::uint32_t threads = 0;
    std::uint32_t requests = 0;
    std::uint64_t bytes = 0;
    /* Fields that are not above, and those as well: what is set above is stronger. */
    weft_service_opts_t more = WEFT_SERVICE_OPTS_INIT;

    weft_service_opts_t native() const noexcept
    {
        weft_service_opts_t o = more;
        if (!instance.empty())
            o.instance = instance.c_str();
        if (threads)
            o.threads = threads;
        if (requests)
            o.requests = requests;
        if (bytes)
            o.bytes = bytes;
        return o;
    }
};

/* As weft_function_opts_t. */
struct serve_options {
    bool threads = false; /* on the service's threads */
    bool serial = false;  /* one at a time, whatever the number of shards */
    std::uint32_t number = 0;
};

/* A service that belongs to somebody else: what request::service() gives. */
class service_ref {
public:
    service_ref(weft_service_t *service = nullptr) noexcept : service_(service) {}
    weft_service_t *native() const noexcept { return service_; }
    explicit operator bool() const noexcept { return service_ != nullptr; }
    const char *name() const noexcept { return weft_service_name(service_); }
    const char *instance() const noexcept { return weft_service_instance(service_); }

    /* Serve a function whose signature is that of the handler: add("add", [](int a, int b) { return a + b; }). */
    template <class F>
    result<void> try_add(std::string_view name, F handler, const serve_options &options = {}, mark m = mark::none) const
    {
        static_assert(detail::is_plain<F>, "weft: a handler whose types are its signature is a function, or an object with one "
                                           "operator() that is no template; declare the function (weft::function) for others");
        using shape = detail::handler_shape<F>;
        return serve<shape>(signature_text(name, shape::part::text.view(), m), std::move(handler), options);
    }
    template <class F>
    void add(std::string_view name, F handler, const serve_options &options = {}, mark m = mark::none) const
    {
        try_add(name, std::move(handler), options, m).value();
    }
    /* Serve a declared function. A handler of other types does not compile. */
    template <class R, class... P, class F>
    result<void> try_add(const function<R(P...)> &fn, F handler, const serve_options &options = {}) const
    {
        using shape = detail::shape_for<F, R, P...>;
        static_assert(shape::part::text.view() == function<R(P...)>::part::text.view(),
                      "weft: the handler's types are not those of the function's declaration");
        return serve<shape>(fn.signature(), std::move(handler), options);
    }
    template <class R, class... P, class F>
    void add(const function<R(P...)> &fn, F handler, const serve_options &options = {}) const
    {
        try_add(fn, std::move(handler), options).value();
    }
    /* Remove a function: done when its last request is released. */
    action<detail::remove_spec> remove(const char *name) const noexcept { return action(detail::remove_spec{service_, name}); }

    /* Enter it into a registry, with the addresses of the runtime's listeners; NULL: the configured one. */
    result<void> try_publish(weft_registry_t *registry = nullptr, const char *address = nullptr) const noexcept
    {
        return weft_service_publish(service_, registry, address);
    }
    void publish(weft_registry_t *registry = nullptr, const char *address = nullptr) const
    {
        try_publish(registry, address).value();
    }
    /* Turn new calls away, and wait until those under way are answered. */
    action<detail::drain_spec> drain() const noexcept { return action(detail::drain_spec{service_}); }

    result<weft_service_stats_t> try_stats() const noexcept
    {
        weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
        weft_status_t st = weft_service_get_stats(service_, &s);
        return st ? result<weft_service_stats_t>(st) : result<weft_service_stats_t>(s);
    }
    weft_service_stats_t stats() const { return try_stats().value(); }

protected:
    template <class Shape, class F>
    result<void> serve(const signature_text &signature, F &&handler, const serve_options &options) const
    {
        using record = detail::served<F, Shape>;
        weft_function_opts_t o = WEFT_FUNCTION_OPTS_INIT;
        o.threads = options.threads;
        o.serial = options.serial;
        o.number = options.number;
        o.release = [](void *user, void *) { delete static_cast<record *>(user); };
        auto *r = new (std::nothrow) record(std::forward<F>(handler));
        if (!r)
            return weft_fail(WEFT_ERR_NOMEM, "no memory for a function");
        weft_status_t st = weft_service_add(service_, signature.c_str(), record::run, r, &o);
        if (st)
            delete r;
        return st;
    }

    weft_service_t *service_;
};

/* A service of ours. */
class service : public service_ref {
public:
    service() noexcept = default;
    /* Takes it over. */
    explicit service(weft_service_t *native) noexcept : service_ref(native) {}
    service(service &&other) noexcept : service_ref(other.release()) {}
    service &operator=(service &&other) noexcept
    {
        std::swap(service_, other.service_);
        return *this;
    }
    /* Closes it: requests under way are cancelled, and their end is waited for, but not inside a callback. Handlers go with what
     * they have when their last request is released. */
    ~service() { end(); }

    static result<service> try_open(runtime_ref rt, const char *name, const service_options &options = {}) noexcept
    {
        weft_service_opts_t o = options.native();
        weft_service_t *native;
        weft_status_t st = weft_service_open(rt.native(), name, &o, &native);
        return st ? result<service>(st) : result<service>(service(native));
    }
    static service open(runtime_ref rt, const char *name, const service_options &options = {})
    {
        return try_open(rt, name, options).value();
    }

    /* Close it, and be told when that is done. It is gone from here on. */
    action<detail::service_close_spec> close() noexcept { return action(detail::service_close_spec{release()}); }
    weft_service_t *release() noexcept { return std::exchange(service_, nullptr); }

private:
    void end() noexcept
    {
        if (!service_)
            return;
        weft_op_t op = WEFT_OP_INIT;
        if (weft_op_wait_all(nullptr, 0, 0) == WEFT_ERR_STATE) /* inside a callback */
            (void)weft_service_close(service_, nullptr);
        else if (!weft_service_close(service_, &op))
            (void)weft_op_wait(&op, WEFT_FOREVER);
    }
};

} // namespace weft

#endif
