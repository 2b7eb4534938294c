/* weft/service_parts.hpp - how handlers are served in C++: what a handler's types say, and running it. Include weft/service.hpp.
 *
 * A handler is in a record that the library gives back when the function is removed and its last request was released. */
#ifndef WEFT_SERVICE_PARTS_HPP
#define WEFT_SERVICE_PARTS_HPP

#include <coroutine>
#include <mutex>
#include <stop_token>
#include <weft/request.hpp>
#include <weft/runtime.hpp>
#include <weft/streams.hpp>
#include <weft/task.hpp>

namespace weft::detail {

/* --- what a parameter is ---------------------------------------------------------------------------------------------------- */

template <class T>
inline constexpr bool is_pending = false;
template <class T>
inline constexpr bool is_pending<pending<T>> = true;
template <class T>
inline constexpr bool is_in = false;
template <class T>
inline constexpr bool is_in<stream_in<T>> = true;
template <class T>
inline constexpr bool is_out = false;
template <class T>
inline constexpr bool is_out<stream_out<T>> = true;
template <class T>
inline constexpr bool is_beside = std::same_as<T, request> || is_pending<T> || is_in<T> || is_out<T>;

template <class A>
consteval bool fits()
{
    if constexpr (is_beside<bare<A>>)
        return true;
    else
        return must_travel<A>();
}

/* What a handler returns: T itself, or a task of it, or what may be a failure. */
template <class R>
struct returned {
    using type = bare<R>;
    static constexpr bool is_task = false, may_fail = false;
};
template <class T>
struct returned<call_result<T>> {
    using type = T;
    static constexpr bool is_task = false, may_fail = true;
};
template <class T>
struct returned<task<T>> {
    using type = typename returned<T>::type;
    static constexpr bool is_task = true, may_fail = returned<T>::may_fail;
};

template <class T>
struct value_of_beside {
    using type = void;
};
template <class T>
struct value_of_beside<pending<T>> {
    using type = T;
};
template <class T>
struct value_of_beside<stream_out<T>> {
    using type = stream<T>;
};
template <class T>
struct value_of_beside<stream_in<T>> {
    using type = stream<T>;
};

template <class R, class Params>
struct part_from;
template <class R, class... P>
struct part_from<R, std::tuple<std::type_identity<P>...>> {
    using type = signature_part<R, P...>;
};

/* The first of A for which Is<A> holds, or void. */
template <template <class> class Is, class... A>
struct first_of {
    using type = void;
};
template <template <class> class Is, class A, class... More>
struct first_of<Is, A, More...> : std::conditional_t<Is<A>::value, std::type_identity<A>, first_of<Is, More...>> {};
template <class T>
using pending_is = std::bool_constant<is_pending<T>>;
template <class T>
using out_is = std::bool_constant<is_out<T>>;
template <class T>
using in_is = std::bool_constant<is_in<T>>;

/* --- what a handler's types say --------------------------------------------------------------------------------------------- */

enum class answers { now, later, at_end };

template <class Ret, class... A>
struct shape {
    using all = std::tuple<std::type_identity<A>...>;
    template <std::size_t I>
    using type = typename std::tuple_element_t<I, all>::type;
    using ret = returned<Ret>;
    using out = typename value_of_beside<typename first_of<out_is, bare<A>...>::type>::type;
    using in = typename value_of_beside<typename first_of<in_is, bare<A>...>::type>::type;
    using late = typename first_of<pending_is, bare<A>...>::type;
    static constexpr std::size_t n = sizeof...(A);
    static constexpr bool has_out = !std::is_void_v<out>, has_in = !std::is_void_v<in>, has_pending = !std::is_void_v<late>;
    static constexpr answers how = has_pending ? answers::later : ret::is_task ? answers::at_end : answers::now;
    using given = std::conditional_t<has_pending, typename value_of_beside<late>::type, typename ret::type>;
    using result = std::conditional_t<has_out, out, given>;

    static_assert(((is_pending<bare<A>> ? 1 : 0) + ... + 0) <= 1 && ((is_out<bare<A>> ? 1 : 0) + ... + 0) <= 1 &&
                      ((is_in<bare<A>> ? 1 : 0) + ... + 0) <= 1,
                  "weft: a handler takes at most one weft::pending, one stream_in and one stream_out");
    static_assert(!has_pending || std::is_void_v<typename ret::type>, "weft: a handler with a weft::pending returns void");
    static_assert(!has_pending || !ret::is_task, "weft: a coroutine answers when it ends; it takes no weft::pending");
    static_assert(!has_out || std::is_void_v<given>, "weft: a handler with a stream_out has no other result");
    static_assert((fits<A>() && ...));
    static_assert(how != answers::at_end || ((!std::is_reference_v<A> || std::same_as<bare<A>, request> ||
                                              std::same_as<bare<A>, weft_tensor_t>) && ...),
                  "weft: a coroutine takes its arguments by value, since it goes on when its caller has returned");

    /* where each value is among the arguments */
    static constexpr std::array<std::size_t, n + 1> place = [] {
        std::array<std::size_t, n + 1> at{};
        std::size_t i = 0, values = 0;
        ((at[i++] = values, values += is_beside<bare<A>> ? 0 : 1), ...);
        at[i] = values;
        return at;
    }();
    using values = decltype(std::tuple_cat(std::conditional_t<is_beside<bare<A>>, std::tuple<>,
                                                              std::tuple<std::type_identity<bare<A>>>>()...));
    using taken = std::conditional_t<has_in, std::tuple<std::type_identity<in>>, std::tuple<>>;
    using params = decltype(std::tuple_cat(values(), taken()));
    using part = typename part_from<result, params>::type;
};

template <class T>
struct callable;
template <class R, class... A>
struct callable<R (*)(A...)> {
    using shape = detail::shape<R, A...>;
};
template <class R, class... A>
struct callable<R (*)(A...) noexcept> : callable<R (*)(A...)> {};
template <class C, class R, class... A>
struct callable<R (C::*)(A...)> : callable<R (*)(A...)> {};
template <class C, class R, class... A>
struct callable<R (C::*)(A...) const> : callable<R (*)(A...)> {};
template <class C, class R, class... A>
struct callable<R (C::*)(A...) noexcept> : callable<R (*)(A...)> {};
template <class C, class R, class... A>
struct callable<R (C::*)(A...) const noexcept> : callable<R (*)(A...)> {};

template <class F>
consteval auto plain_of()
{
    if constexpr (std::is_pointer_v<F> && std::is_function_v<std::remove_pointer_t<F>>)
        return std::type_identity<F>();
    else if constexpr (requires { &F::operator(); })
        return std::type_identity<decltype(&F::operator())>();
    else
        return std::type_identity<void>();
}
template <class F>
inline constexpr bool is_plain = !std::same_as<decltype(plain_of<F>()), std::type_identity<void>>;
template <class F>
using handler_shape = typename callable<typename decltype(plain_of<F>())::type>::shape;

/* How a parameter of a declared function reaches a handler whose own types are not known. */
template <class P>
struct passed {
    using type = bare<P>;
};
template <class T>
struct passed<stream<T>> {
    using type = stream_in<T>;
};

template <class P>
using passed_t = typename passed<P>::type;

template <class F, class R, class... P>
struct generic_shape {
    static consteval auto find()
    {
        if constexpr (std::invocable<F &, passed_t<P>...>)
            return std::type_identity<shape<std::invoke_result_t<F &, passed_t<P>...>, passed_t<P>...>>();
        else if constexpr (std::invocable<F &, request &, passed_t<P>...>)
            return std::type_identity<shape<std::invoke_result_t<F &, request &, passed_t<P>...>, request &, passed_t<P>...>>();
        else
            static_assert(!sizeof(F), "weft: the handler cannot be called with the declared parameters");
    }
    using type = typename decltype(find())::type;
};
template <class F, class R, class... P>
consteval auto shape_of_handler()
{
    if constexpr (is_plain<F>)
        return std::type_identity<handler_shape<F>>();
    else
        return std::type_identity<typename generic_shape<F, R, P...>::type>();
}
template <class F, class R, class... P>
using shape_for = typename decltype(shape_of_handler<F, R, P...>())::type;

/* --- coroutines that answer ------------------------------------------------------------------------------------------------- */

/* The stop sources of requests whose coroutines run, by request. The library may call told() while a coroutine ends on another
 * thread: it looks here first, under the lock, and keeps a source of its own. */
class watched {
public:
    struct entry {
        weft_request_t *request;
        std::stop_source stop{};
        std::stop_token token = stop.get_token();
        entry *next = nullptr, **at = nullptr;
        explicit entry(weft_request_t *r) : request(r) {}
    };
    void add(entry &e) noexcept
    {
        const std::lock_guard lock(mutex_);
        entry *&first = first_[place(e.request)];
        e.next = first;
        e.at = &first;
        if (first)
            first->at = &e.next;
        first = &e;
    }
    void remove(entry &e) noexcept
    {
        const std::lock_guard lock(mutex_);
        *e.at = e.next;
        if (e.next)
            e.next->at = e.at;
    }
    static void told(weft_request_t *request, void *user) noexcept
    {
        auto *self = static_cast<watched *>(user);
        std::stop_source stop(std::nostopstate);
        {
            const std::lock_guard lock(self->mutex_);
            for (const entry *e = self->first_[place(request)]; e; e = e->next)
                if (e->request == request)
                    stop = e->stop;
        }
        stop.request_stop();
    }

private:
    static constexpr std::size_t places = 64;
    static std::size_t place(const weft_request_t *r) noexcept { return reinterpret_cast<std::uintptr_t>(r) / 256 % places; }
    std::mutex mutex_;
    entry *first_[places] = {};
};

/* The coroutine around a handler's: it belongs to nobody, and goes at its end. */
struct answering {
    struct promise_type {
        watched::entry watch;
        template <class Served>
        promise_type(Served &, weft_request_t *kept) : watch(kept)
        {
        }
        const std::stop_token &stop() const noexcept { return watch.token; }
        answering get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
    /* co_await own_watch() gives the entry of the coroutine that asks. */
    struct own_watch {
        watched::entry *found = nullptr;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<promise_type> self) noexcept
        {
            found = &self.promise().watch;
            return false;
        }
        watched::entry &await_resume() const noexcept { return *found; }
    };
};

/* --- running a handler ------------------------------------------------------------------------------------------------------ */

template <class F, class Shape>
class served {
    using given = typename Shape::given;

public:
    explicit served(F &&handler) : handler_(std::move(handler)) {}

    static void run(weft_request_t *request, void *user) noexcept
    {
        auto *self = static_cast<served *>(user);
        if constexpr (Shape::how == answers::now)
            self->run_now(request);
        else if (weft_request_t *kept = weft_request_keep(request); kept) [[likely]] {
            if constexpr (Shape::how == answers::later)
                self->run_later(kept);
            else
                self->run_task(kept);
        } /* else it was answered: there is no memory */
    }

private:
    template <class A, std::size_t Place>
    static decltype(auto) argument(weft_request_t *r, request &beside, weft_request_t *&kept) noexcept(false)
    {
        using T = bare<A>;
        if constexpr (std::same_as<T, request>)
            return (beside);
        else if constexpr (is_pending<T>)
            return T(std::exchange(kept, nullptr));
        else if constexpr (is_in<T> || is_out<T>)
            return T(r->stream);
        else
            return value_traits<T>::get(r->args[Place]);
    }
    decltype(auto) call(weft_request_t *r, request &beside, weft_request_t *&kept)
    {
        return [&]<std::size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
            return handler_(argument<typename Shape::template type<I>, Shape::place[I]>(r, beside, kept)...);
        }(std::make_index_sequence<Shape::n>());
    }

    template <class V>
    static void answer(weft_request_t *r, V &&value) noexcept
    {
        if constexpr (Shape::ret::may_fail) {
            if (!value)
                answer_failure(r, value.failure());
            else if constexpr (std::is_void_v<given>)
                (void)answer_void(r);
            else
                (void)answer_value<given>(r, std::move(*value));
        } else {
            (void)answer_value<given>(r, given(std::forward<V>(value)));
        }
    }

    void run_now(weft_request_t *r) noexcept
    {
        request beside(r);
        weft_request_t *none = nullptr;
#if WEFT_EXCEPTIONS
        try {
            call_and_answer(r, beside, none);
        } catch (...) {
            answer_thrown(r);
        }
#else
        call_and_answer(r, beside, none);
#endif
    }
    void call_and_answer(weft_request_t *r, request &beside, weft_request_t *&none)
    {
        if constexpr (std::is_void_v<given> && !Shape::ret::may_fail) {
            call(r, beside, none);
            (void)answer_void(r);
        } else {
            answer(r, call(r, beside, none));
        }
    }

    void run_later(weft_request_t *kept) noexcept
    {
        running_now now{kept, running()};
        request beside(kept);
        weft_request_t *mine = kept; /* until the pending has it */
        running() = &now;
#if WEFT_EXCEPTIONS
        try {
            call(kept, beside, mine);
        } catch (...) {
            if (mine || now.left)
                answer_thrown(kept);
            else /* somebody has it, and answers */
                weft_log(WEFT_LOG_WARN, "a handler threw after it had given its weft::pending away");
        }
#else
        call(kept, beside, mine);
#endif
        running() = now.outer;
        if (mine || now.left)
            weft_request_release(kept);
    }

    void run_task(weft_request_t *kept) noexcept
    {
#if WEFT_EXCEPTIONS
        try {
            answer_at_end(*this, kept);
        } catch (...) { /* the coroutine could not begin */
            (void)weft_request_fail(kept, WEFT_CODE_RESOURCE_EXHAUSTED, "no memory for a coroutine");
            weft_request_release(kept);
        }
#else
        answer_at_end(*this, kept);
#endif
    }
    static answering answer_at_end(served &self, weft_request_t *kept)
    {
        watched::entry &watch = co_await answering::own_watch();
        self.watched_.add(watch);
        weft_request_on_cancel(kept, watched::told, &self.watched_);
#if WEFT_EXCEPTIONS
        try {
#endif
            request beside(kept);
            weft_request_t *none = nullptr;
            auto handler = self.call(kept, beside, none);
            if constexpr (std::is_void_v<given> && !Shape::ret::may_fail) {
                co_await std::move(handler);
                (void)answer_void(kept);
            } else {
                answer(kept, co_await std::move(handler));
            }
#if WEFT_EXCEPTIONS
        } catch (...) {
            answer_thrown(kept);
        }
#endif
        self.watched_.remove(watch);
        weft_request_release(kept); /* with the last one `self` may go */
    }

    F handler_;
    struct no_watch {};
    [[no_unique_address]] std::conditional_t<Shape::how == answers::at_end, watched, no_watch> watched_{};
};

/* --- endings ---------------------------------------------------------------------------------------------------------------- */

struct drain_spec {
    using value_type = void;
    weft_service_t *service;
    weft_status_t post(weft_op_t *op) noexcept { return weft_service_drain(service, op); }
    void take(weft_op_t &) noexcept {}
};
struct service_close_spec {
    using value_type = void;
    weft_service_t *service;
    weft_status_t post(weft_op_t *op) noexcept { return weft_service_close(service, op); }
    void take(weft_op_t &) noexcept {}
};
struct remove_spec {
    using value_type = void;
    weft_service_t *service;
    const char *name;
    weft_status_t post(weft_op_t *op) noexcept { return weft_service_remove(service, name, op); }
    void take(weft_op_t &) noexcept {}
};

} // namespace weft::detail

#endif
