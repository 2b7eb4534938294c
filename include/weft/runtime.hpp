/* weft/runtime.hpp - a runtime in C++: options, driving it, timers, and functions that run in its progress.
 *
 *     weft::runtime rt = weft::runtime::open({.name = "worker", .heartbeat = 2s});
 *     co_await rt.sleep_for(50ms);
 *     int n = co_await rt.call([&] { return looked_up.size(); });
 *
 * weft::runtime closes its runtime when it goes; weft::runtime_ref is a pointer with the same calls. Both are what
 * weft/runtime.h says: a runtime is driven by whoever waits, by a thread of its own, or by a foreign loop.
 *
 * Objects of a runtime (endpoints, listeners, regions) may outlive it: calls on them say WEFT_ERR_CLOSED. */
#ifndef WEFT_RUNTIME_HPP
#define WEFT_RUNTIME_HPP

#include <chrono>
#include <span>
#include <string>
#include <weft/config.h>
#include <weft/op.hpp>
#include <weft/runtime.h>

namespace weft {

/* As weft_runtime_opts_t: what is zero or empty is as configured. */
struct runtime_options {
    weft_progress_mode_t progress = WEFT_PROGRESS_DEFAULT;
    std::chrono::nanoseconds spin{};
    std::string name{};
    std::string transports{};
    std::string interfaces{};
    std::span<const std::byte> key{};
    std::chrono::nanoseconds heartbeat{};
    std::chrono::nanoseconds connect_timeout{};
    std::chrono::nanoseconds close_timeout{};
    std::uint32_t shards = 0;
    /* Fields that are not above, and those as well: what is set above is stronger. */
    weft_runtime_opts_t more = WEFT_RUNTIME_OPTS_INIT;

    weft_runtime_opts_t native() const noexcept
    {
        weft_runtime_opts_t o = more;
        if (progress)
            o.progress = progress;
        if (spin.count())
            o.spin_ns = nanoseconds(spin);
        if (!name.empty())
            o.name = name.c_str();
        if (!transports.empty())
            o.transports = transports.c_str();
        if (!interfaces.empty())
            o.interfaces = interfaces.c_str();
        if (!key.empty()) {
            o.key = key.data();
            o.key_len = key.size();
        }
        if (heartbeat.count())
            o.heartbeat_ns = nanoseconds(heartbeat);
        if (connect_timeout.count())
            o.connect_timeout_ns = nanoseconds(connect_timeout);
        if (close_timeout.count())
            o.close_timeout_ns = nanoseconds(close_timeout);
        if (shards)
            o.shards = shards;
        return o;
    }
};

/* Cancels every operation that was given it, and those of tokens made from it. Counted: copies are the same token. For coroutines
 * a std::stop_token does the same (weft/task.hpp). */
class token {
public:
    token() noexcept = default;
    /* Takes over one reference. */
    explicit token(weft_token_t *t) noexcept : token_(t) {}
    token(const token &other) noexcept : token_(other.token_)
    {
        if (token_)
            weft_token_hold(token_);
    }
    token(token &&other) noexcept : token_(std::exchange(other.token_, nullptr)) {}
    token &operator=(token other) noexcept
    {
        std::swap(token_, other.token_);
        return *this;
    }
    ~token()
    {
        if (token_)
            weft_token_drop(token_);
    }

    void cancel() const noexcept { weft_token_cancel(token_); }
    bool cancelled() const noexcept { return weft_token_cancelled(token_); }
    weft_token_t *native() const noexcept { return token_; }

private:
    weft_token_t *token_ = nullptr;
};

class bytes;
class runtime;
class listener;
struct listen_options;
struct connect_options;
class region;
struct region_options;
class handler;
class message;

namespace detail {

struct timer_spec {
    using value_type = void;
    weft_runtime_t *rt;
    std::uint64_t ns;
    weft_status_t post(weft_op_t *op) noexcept { return weft_timer_start(rt, ns, op); }
    void take(weft_op_t &) noexcept {}
};

/* Until a moment of some clock: how long that is is known at the post. */
template <class Clock, class Duration>
struct moment_spec {
    using value_type = void;
    weft_runtime_t *rt;
    std::chrono::time_point<Clock, Duration> when;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_timer_start(rt, nanoseconds(std::chrono::ceil<std::chrono::nanoseconds>(when - Clock::now())), op);
    }
    void take(weft_op_t &) noexcept {}
};

/* A function on the driver. What it throws becomes WEFT_ERR_CALL, with its sentence. */
template <class F>
struct call_spec {
    using value_type = std::invoke_result_t<F &>;
    using kept = std::conditional_t<std::is_void_v<value_type>, char, value_type>;

    weft_runtime_t *rt;
    F fn;
    std::optional<kept> value = std::nullopt;
    std::string thrown = {};

    weft_status_t post(weft_op_t *op) noexcept { return weft_runtime_call(rt, run, this, op); }
    weft_status_t ended(weft_op_t &) noexcept { return value ? WEFT_OK : weft_fail(WEFT_ERR_CALL, "%s", thrown.c_str()); }
    value_type take(weft_op_t &) noexcept
    {
        if constexpr (!std::is_void_v<value_type>)
            return std::move(*value);
    }

private:
    static void run(void *user) noexcept
    {
        auto *self = static_cast<call_spec *>(user);
#if WEFT_EXCEPTIONS
        try {
            self->go();
        } catch (const std::exception &e) {
            self->thrown = e.what();
        } catch (...) {
            self->thrown = "the function threw something";
        }
#else
        self->go();
#endif
    }
    void go()
    {
        if constexpr (std::is_void_v<value_type>) {
            fn();
            value.emplace();
        } else {
            value.emplace(fn());
        }
    }
};

struct schedule_spec {
    using value_type = void;
    weft_runtime_t *rt;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_runtime_call(rt, [](void *) {}, nullptr, op);
    }
    void take(weft_op_t &) noexcept {}
};
template <>
inline constexpr bool always_suspends<schedule_spec> = true;

} // namespace detail

/* A runtime that belongs to somebody else. */
class runtime_ref {
public:
    runtime_ref(weft_runtime_t *rt = nullptr) noexcept : rt_(rt) {}
    weft_runtime_t *native() const noexcept { return rt_; }
    explicit operator bool() const noexcept { return rt_ != nullptr; }

    /* --- driving it ---------------------------------------------------------------------------------------------------- */

    /* Drive it once: how many events it handled. */
    unsigned progress() const noexcept { return weft_runtime_progress(rt_); }
    /* For foreign loops: weft/runtime.h. */
    int fd() const noexcept { return weft_runtime_fd(rt_); }
    weft_status_t arm() const noexcept { return weft_runtime_arm(rt_); }
    std::chrono::nanoseconds next_timeout() const noexcept
    {
        const std::uint64_t ns = weft_runtime_next_timeout(rt_), most = static_cast<std::uint64_t>(INT64_MAX);
        return std::chrono::nanoseconds(static_cast<std::int64_t>(ns < most ? ns : most));
    }

    /* --- time, and turns ----------------------------------------------------------------------------------------------- */

    action<detail::timer_spec> sleep_for(std::chrono::nanoseconds time) const noexcept
    {
        return action(detail::timer_spec{rt_, nanoseconds(time)});
    }
    template <class Clock, class Duration>
    auto sleep_until(std::chrono::time_point<Clock, Duration> when) const noexcept
    {
        return action(detail::moment_spec<Clock, Duration>{rt_, when});
    }
    /* Go on in its progress, on the thread that drives it, in a turn of its own. */
    action<detail::schedule_spec> schedule() const noexcept { return action(detail::schedule_spec{rt_}); }
    /* Run fn() there, and have its result. An exception of it becomes WEFT_ERR_CALL. */
    template <class F>
    auto call(F fn) const
    {
        return action(detail::call_spec<F>{rt_, std::move(fn)});
    }

    /* --- asking -------------------------------------------------------------------------------------------------------- */

    const char *name() const noexcept { return weft_runtime_name(rt_); }
    std::uint32_t shards() const noexcept { return weft_runtime_shards(rt_); }
    /* The shard whose callback this is; none: this thread is in no callback of it. */
    std::optional<std::uint32_t> shard() const noexcept
    {
        std::uint32_t n = weft_runtime_shard(rt_);
        return n == UINT32_MAX ? std::nullopt : std::optional(n);
    }
    result<weft_runtime_stats_t> try_stats() const noexcept
    {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        weft_status_t st = weft_runtime_get_stats(rt_, &s);
        return st ? result<weft_runtime_stats_t>(st) : result<weft_runtime_stats_t>(s);
    }
    weft_runtime_stats_t stats() const { return try_stats().value(); }

    result<token> try_token(const token &parent = {}) const noexcept
    {
        weft_token_t *t;
        weft_status_t st = weft_token_new(rt_, parent.native(), &t);
        return st ? result<token>(st) : result<token>(token(t));
    }
    token new_token(const token &parent = {}) const { return try_token(parent).value(); }

    /* --- peers (weft/conn.hpp), messages (weft/msg.hpp, weft/am.hpp), memory (weft/rma.hpp) --------------------------------- */

    result<listener> try_listen(const char *uri, const listen_options &opts) const noexcept;
    result<listener> try_listen(const char *uri) const noexcept;
    listener listen(const char *uri, const listen_options &opts) const;
    listener listen(const char *uri) const;
    auto connect(const char *uri, const connect_options &opts) const;
    auto connect(const char *uri) const;

    auto recv_any(bytes buf, std::uint64_t tag, std::uint64_t mask = UINT64_MAX) const noexcept;
    auto recv_any_alloc(std::uint64_t tag, std::uint64_t mask = UINT64_MAX,
                        std::size_t max_len = std::size_t(1) << 30) const noexcept;

    template <class F>
    result<handler> try_handle(std::uint32_t id, F fn) const noexcept;
    template <class F>
    handler handle(std::uint32_t id, F fn) const;
    auto take(std::uint32_t id) const noexcept;
    auto recv_am(std::uint32_t id, bytes header, bytes payload) const noexcept;

    result<region> try_region(const region_options &opts) const noexcept;
    region new_region(const region_options &opts) const;

protected:
    weft_runtime_t *rt_;
};

/* A runtime of ours. */
class runtime : public runtime_ref {
public:
    runtime() noexcept = default;
    /* Takes it over. */
    explicit runtime(weft_runtime_t *rt) noexcept : runtime_ref(rt) {}
    runtime(runtime &&other) noexcept : runtime_ref(other.release()) {}
    runtime &operator=(runtime &&other) noexcept
    {
        if (this != &other) {
            end();
            rt_ = other.release();
        }
        return *this;
    }
    ~runtime() { end(); }

    static result<runtime> try_open(const runtime_options &opts = {}) noexcept
    {
        weft_runtime_opts_t o = opts.native();
        weft_runtime_t *rt;
        weft_status_t st = weft_runtime_open(&o, &rt);
        return st ? result<runtime>(st) : result<runtime>(runtime(rt));
    }
    static runtime open(const runtime_options &opts = {}) { return try_open(opts).value(); }

    /* Close it: what is under way ends with WEFT_ERR_CLOSED. A failure (WEFT_ERR_STATE: inside a callback) leaves it open. */
    result<void> try_close() noexcept
    {
        weft_status_t st = rt_ ? weft_runtime_close(rt_) : WEFT_OK;
        if (!st || st == WEFT_ERR_CLOSED || st == WEFT_ERR_FORKED)
            rt_ = nullptr;
        return st;
    }
    void close() { try_close().value(); }
    weft_runtime_t *release() noexcept { return std::exchange(rt_, nullptr); }

private:
    void end() noexcept
    {
        if (rt_ && weft_runtime_close(rt_) == WEFT_ERR_STATE)
            weft_log(WEFT_LOG_ERROR, "a runtime went out of scope and could not be closed: %s", weft_last_error());
    }
};

} // namespace weft

#endif
