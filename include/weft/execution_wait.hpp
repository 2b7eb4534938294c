/* weft/execution_wait.hpp - block until a sender has completed, and drive a runtime meanwhile; included by weft/execution.hpp.
 *
 * stdexec::sync_wait() only sleeps: on a runtime without a thread nothing would move. This one drives the runtime of the
 * scheduler, if the caller is to drive it, and sleeps in it otherwise. The sender may complete on any thread. */
#ifndef WEFT_EXECUTION_WAIT_HPP
#define WEFT_EXECUTION_WAIT_HPP

#include <weft/execution.hpp>

namespace weft::execution {
namespace detail {

template <class... Values>
using decayed_tuple = std::tuple<std::decay_t<Values>...>;
template <class... Ts>
struct only_one;
template <class T>
struct only_one<T> {
    using type = T;
};
template <class... Ts>
using only_one_t = typename only_one<Ts...>::type;

struct wait_env {};

template <class Values>
struct wait_state {
    weft_op_t over = WEFT_OP_INIT;  /* a timer that is cancelled by the completion */
    std::atomic<bool> left{false}; /* the completion touches nothing any more */
    std::optional<Values> values;
    std::error_code error;
#if WEFT_EXCEPTIONS
    std::exception_ptr thrown;
#endif
    weft_status_t why = WEFT_OK; /* of a code of ours: the sentence is taken along */
    char sentence[256] = "";

    void end() noexcept
    {
        weft_op_cancel(&over);
        left.store(true, std::memory_order_release);
    }
};

template <class Values>
struct wait_receiver {
    using receiver_concept = receiver_tag;
    wait_state<Values> *state;

    wait_env get_env() const noexcept { return {}; }
    template <class... Vs>
    void set_value(Vs &&...values) noexcept
    {
        state->values.emplace(std::forward<Vs>(values)...);
        state->end();
    }
    template <class E>
    void set_error(E &&error) noexcept
    {
        using plain = std::remove_cvref_t<E>;
        if constexpr (std::is_same_v<plain, std::error_code>) {
            state->error = error;
            if (error.category() == error_category()) {
                state->why = static_cast<weft_status_t>(error.value());
                std::snprintf(state->sentence, sizeof state->sentence, "%s", weft::detail::sentence(state->why));
            }
        } else {
#if WEFT_EXCEPTIONS
            if constexpr (std::is_same_v<plain, std::exception_ptr>)
                state->thrown = std::forward<E>(error);
            else
                state->thrown = std::make_exception_ptr(std::forward<E>(error));
#else
            std::terminate(); /* nobody could be told */
#endif
        }
        state->end();
    }
    void set_stopped() noexcept { state->end(); }
};

template <class Values>
std::optional<Values> waited(wait_state<Values> &state)
{
#if WEFT_EXCEPTIONS
    if (state.thrown)
        std::rethrow_exception(std::move(state.thrown));
    if (state.error && !state.why)
        throw std::system_error(state.error);
#else
    if (state.error && !state.why)
        std::terminate();
#endif
    if (state.why)
        weft::detail::fail(state.why, state.sentence);
    return std::move(state.values);
}

} // namespace detail

/* What the sender gives, as std::optional<std::tuple<...>>; nothing if it was stopped. A failure is thrown: a code of ours as
 * weft::error with its sentence, another as std::system_error. Without exceptions a failure ends the process. The sender has one
 * value completion. weft::error is also thrown inside a callback, where nothing can be waited for (WEFT_ERR_STATE), and if the
 * runtime is closed: then nothing was started. */
template <impl::sender_in<detail::wait_env> S>
auto sync_wait(const scheduler &on, S &&what)
{
    using values = impl::value_types_of_t<S, detail::wait_env, detail::decayed_tuple, detail::only_one_t>;
    check(weft_op_wait_all(nullptr, 0, 0)); /* may this thread wait? */
    detail::wait_state<values> state;
    auto op = impl::connect(std::forward<S>(what), detail::wait_receiver<values>{&state});
    check(weft_timer_start(on.native(), WEFT_FOREVER, &state.over));
    impl::start(op);
    weft_op_wait(&state.over, WEFT_FOREVER);
    /* as good as always it has; not if the runtime is being closed, and the sender still runs elsewhere */
    for (unsigned spins = 0; !state.left.load(std::memory_order_acquire); spins++)
        if (spins > 1000)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    return detail::waited(state);
}

} // namespace weft::execution

#endif
