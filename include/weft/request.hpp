/* weft/request.hpp - what a handler has of its request: who calls, and answering later. Include weft/service.hpp. */
#ifndef WEFT_REQUEST_HPP
#define WEFT_REQUEST_HPP

#include <chrono>
#include <weft/call.hpp>
#include <weft/service.h>

namespace weft {

class service_ref;

/* Valid as long as the handler runs; that of a coroutine until it ends. */
class request {
public:
    explicit request(weft_request_t *native) noexcept : request_(native) {}
    request(const request &) = delete;
    request &operator=(const request &) = delete;

    weft_ep_id_t from() const noexcept { return request_->from; }
    /* What the peer proved; "" if nothing. */
    std::string identity() const
    {
        std::string name(weft_request_identity(request_, nullptr, 0), '\0');
        name.resize(weft_request_identity(request_, name.data(), name.size() + 1));
        return name;
    }
    /* Until its deadline, when it came; nanoseconds::max(): it has none. */
    std::chrono::nanoseconds left() const noexcept
    {
        const std::uint64_t most = static_cast<std::uint64_t>(INT64_MAX);
        return std::chrono::nanoseconds(static_cast<std::int64_t>(request_->left_ns < most ? request_->left_ns : most));
    }
    /* Nobody waits for the answer any more. Any thread. */
    bool cancelled() const noexcept { return weft_request_cancelled(request_); }
    bool once() const noexcept { return request_->once; }
    std::uint32_t shard() const noexcept { return request_->shard; }
    weft_service_t *service() const noexcept { return request_->service; }
    weft_request_t *native() const noexcept { return request_; }

private:
    weft_request_t *request_;
};

namespace detail {

/* --- answers ---------------------------------------------------------------------------------------------------------------- */

inline void answer_failure(weft_request_t *request, const call_failure &why) noexcept
{
    (void)weft_request_fail_with(request, static_cast<weft_code_t>(why.code), why.category, why.value, why.message.c_str());
}

#if WEFT_EXCEPTIONS
/* Inside a catch: what was thrown is the answer. */
inline void answer_thrown(weft_request_t *request) noexcept
{
    std::uint32_t category = WEFT_CATEGORY_NONE;
    int value = 0;
    try {
        throw;
    } catch (const call_error &e) {
        (void)weft_request_fail_with(request, static_cast<weft_code_t>(e.call_code()), e.category(), e.value(), e.message());
    } catch (const std::system_error &e) {
        if (e.code().category() == error_category()) {
            category = WEFT_CATEGORY_WEFT;
            value = e.code().value();
        } else if (e.code().category() == std::generic_category() || e.code().category() == std::system_category()) {
            category = WEFT_CATEGORY_ERRNO;
            value = e.code().value();
        }
        (void)weft_request_fail_with(request, WEFT_CODE_INTERNAL, category, value, e.what());
    } catch (const std::exception &e) {
        (void)weft_request_fail(request, WEFT_CODE_INTERNAL, e.what());
    } catch (...) {
        (void)weft_request_fail(request, WEFT_CODE_INTERNAL, "the function threw something that is no std::exception");
    }
}
#endif

constexpr std::size_t sent_from_where_it_is = 1024; /* weft_request_reply_from() copies less than that */

/* A result whose memory is being sent. */
template <class R>
struct leaving {
    weft_op_t op = WEFT_OP_INIT;
    R value;
    explicit leaving(R &&v) noexcept : value(std::move(v)) {}
    static void gone(weft_op_t *, void *user) noexcept { delete static_cast<leaving *>(user); }
};

template <class R>
weft_status_t answer_value(weft_request_t *request, R &&value) noexcept
{
    weft_value_t values[results<R>::n];
    if (results<R>::held(value) >= sent_from_where_it_is) {
        if (auto *l = new (std::nothrow) leaving<R>(std::move(value)); l) [[likely]] {
            l->op.fn = leaving<R>::gone;
            l->op.user = l;
            results<R>::write(values, l->value);
            weft_status_t st = weft_request_reply_from(request, values, results<R>::n, &l->op);
            if (st)
                delete l;
            return st;
        }
    }
    results<R>::write(values, value);
    return weft_request_reply(request, values, results<R>::n);
}
inline weft_status_t answer_void(weft_request_t *request) noexcept
{
    return weft_request_reply(request, nullptr, 0);
}

/* While a handler runs: a pending that it lets go of without an answer leaves its request to what the handler throws. */
struct running_now {
    weft_request_t *request;
    running_now *outer;
    bool left = false;
};
inline running_now *&running() noexcept
{
    static thread_local constinit running_now *now = nullptr;
    return now;
}

} // namespace detail

/* A request that is answered later, once, from any thread. One that goes without an answer is answered INTERNAL. */
template <class T>
class pending {
public:
    using value_type = T;

    /* Takes over a request that is kept. */
    explicit pending(weft_request_t *kept) noexcept : request_(kept) {}
    pending(pending &&other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
    pending &operator=(pending &&other) noexcept
    {
        std::swap(request_, other.request_);
        return *this;
    }
    ~pending()
    {
        if (!request_)
            return;
        if (auto *now = detail::running(); now && now->request == request_)
            now->left = true;
        else
            weft_request_release(request_);
    }

    /* Answer it: WEFT_ERR_CANCELLED if nobody waits any more, WEFT_ERR_STATE if it was answered before. */
    template <class U = T>
        requires(!std::is_void_v<T> && std::convertible_to<U &&, T>)
    weft_status_t reply(U &&value) noexcept
    {
        return detail::answer_value<T>(request_, T(std::forward<U>(value)));
    }
    weft_status_t reply() noexcept
        requires std::is_void_v<T>
    {
        return detail::answer_void(request_);
    }
    weft_status_t fail(weft::code c, const char *message = nullptr) noexcept
    {
        return weft_request_fail(request_, static_cast<weft_code_t>(c), message);
    }
    weft_status_t fail(const call_failure &why) noexcept
    {
        return weft_request_fail_with(request_, static_cast<weft_code_t>(why.code), why.category, why.value, why.message.c_str());
    }

    bool cancelled() const noexcept { return weft_request_cancelled(request_); }
    /* As weft_request_on_cancel(). */
    void on_cancel(weft_cancel_fn fn, void *user) noexcept { weft_request_on_cancel(request_, fn, user); }
    weft_request_t *native() const noexcept { return request_; }
    explicit operator bool() const noexcept { return request_ != nullptr; }

private:
    weft_request_t *request_;
};

} // namespace weft

#endif
