/* tests/cpp/lib/desk.hpp - a service and a client of it, on the two runtimes of weft::both, and functions declared for both. */
#ifndef WEFT_TEST_DESK_HPP
#define WEFT_TEST_DESK_HPP

#include "both.hpp"

struct desk : both {
    weft::service calc;
    weft::client client;

    explicit desk(weft_progress_mode_t mode = WEFT_PROGRESS_CALLER, const weft::service_options &serving = {},
                  const weft::client_options &calling = {})
        : both(mode), calc(weft::service::open(rt[0], "calc", serving)), client(weft::client::on(ep[1], calling))
    {
    }

    /* Await an action, whoever drives, and return what it gives, or throw. */
    template <class S>
    typename S::value_type get(weft::action<S> what)
    {
        if constexpr (std::is_void_v<typename S::value_type>) {
            run(ask(std::move(what)));
        } else {
            std::optional<typename S::value_type> value;
            run(ask(std::move(what), value));
            return std::move(*value);
        }
    }
    /* The failure of a call that has to fail. */
    template <class S>
    weft::call_failure fails(weft::action<S> what)
    {
        weft::call_failure why;
        run(ask_why(std::move(what), why));
        return why;
    }

private:
    template <class S>
    static weft::task<> ask(weft::action<S> what)
    {
        co_await std::move(what);
    }
    template <class S, class T>
    static weft::task<> ask(weft::action<S> what, std::optional<T> &value)
    {
        value.emplace(co_await std::move(what));
    }
    template <class S>
    static weft::task<> ask_why(weft::action<S> what, weft::call_failure &why)
    {
        auto result = co_await std::move(what).as_result();
        if (result)
            FAIL("the call succeeded");
        why = result.failure();
    }
};

#endif
