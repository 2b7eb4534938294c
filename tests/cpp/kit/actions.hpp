/* tests/cpp/kit/actions.hpp - actions of the tests' own, which end when and how a test says. */
#ifndef KIT_ACTIONS_HPP
#define KIT_ACTIONS_HPP

#include <weft/extend.h>
#include <weft/runtime.hpp>

namespace acts {

/* What an action gives that must not be lost: moved, never copied, and counted. */
struct owned {
    inline static std::atomic<int> alive{0};
    int value;
    explicit owned(int v) noexcept : value(v) { alive++; }
    owned(owned &&other) noexcept : value(other.value) { alive++; }
    owned &operator=(owned &&) = default;
    owned(const owned &) = delete;
    ~owned() { alive--; }
};

template <class T>
struct maker {
    static T make() noexcept { return T(42); }
};
template <>
struct maker<void> {
    static void make() noexcept {}
};

/* Complete when the post returns. */
template <class T = void>
struct at_once {
    using value_type = T;
    weft_runtime_t *rt;
    weft_status_t status = WEFT_OK;

    weft_status_t post(weft_op_t *op) noexcept
    {
        if (weft_ext_op_plain(rt, op)) {
            weft_ext_op_done(rt, op, status);
            return WEFT_OK;
        }
        static const weft_op_kind_t kind = {.name = "at once",
                                            .start = start,
                                            .cancel = cancel,
                                            .failed = nullptr,
                                            .skip = nullptr,
                                            .stops = true,
                                            .by_post = false,
                                            .streams = false,
                                            .gates = false};
        if (weft_status_t st = weft_ext_op_prepare(rt, op, &kind); st)
            return st;
        *weft_ext_scratch(op, weft_status_t) = status;
        return weft_ext_op_start(op);
    }
    T take(weft_op_t &) noexcept { return maker<T>::make(); }

private:
    static weft_status_t start(weft_op_t *op) noexcept
    {
        weft_ext_op_complete(op, *weft_ext_scratch(op, weft_status_t), 0);
        return WEFT_OK;
    }
    static void cancel(weft_op_t *op, weft_status_t why) noexcept { weft_ext_op_complete(op, why, 0); }
};

/* Waits until the test completes it, or it is cancelled. `stubborn`: a cancel only leaves a mark, as if its buffer was with the
 * fabric. */
class hand {
public:
    explicit hand(bool stubborn = false) noexcept : stubborn_(stubborn) {}
    hand(const hand &) = delete;
    ~hand() = default;

    bool begun() const noexcept { return op_.load() != nullptr; }
    int cancels() const noexcept { return cancels_.load(); }
    /* From any thread; it completes on the driver. */
    void complete(weft_runtime_t *rt, weft_status_t status) noexcept
    {
        status_ = status;
        call_.fn = run;
        self_ = this;
        weft_ext_call(rt, &call_);
    }

private:
    template <class T>
    friend struct by_hand;
    static void run(weft_ext_call_t *call) noexcept
    {
        /* call_ is the first member */
        auto *self = reinterpret_cast<hand *>(call);
        if (weft_op_t *op = self->op_.exchange(nullptr))
            weft_ext_op_complete(op, self->status_, 0);
    }
    weft_ext_call_t call_ = {WEFT_OP_INIT, nullptr};
    std::atomic<weft_op_t *> op_{nullptr};
    std::atomic<int> cancels_{0};
    hand *self_ = nullptr;
    weft_status_t status_ = WEFT_OK;
    bool stubborn_;
};

template <class T = void>
struct by_hand {
    using value_type = T;
    weft_runtime_t *rt;
    hand *by;

    weft_status_t post(weft_op_t *op) noexcept
    {
        static const weft_op_kind_t kind = {.name = "by hand",
                                            .start = start,
                                            .cancel = cancel,
                                            .failed = nullptr,
                                            .skip = nullptr,
                                            .stops = true,
                                            .by_post = false,
                                            .streams = false,
                                            .gates = false};
        if (weft_status_t st = weft_ext_op_prepare(rt, op, &kind); st)
            return st;
        *weft_ext_scratch(op, hand *) = by;
        return weft_ext_op_start(op);
    }
    T take(weft_op_t &) noexcept { return maker<T>::make(); }

private:
    static weft_status_t start(weft_op_t *op) noexcept
    {
        (*weft_ext_scratch(op, hand *))->op_ = op;
        return weft_ext_op_track(op);
    }
    static void cancel(weft_op_t *op, weft_status_t why) noexcept
    {
        hand *h = *weft_ext_scratch(op, hand *);
        h->cancels_++;
        if (h->stubborn_ && why == WEFT_ERR_CANCELLED)
            return;
        h->op_ = nullptr;
        weft_ext_op_complete(op, why, 0);
    }
};

/* The post says no. */
struct refused {
    using value_type = void;
    weft_status_t status;
    weft_status_t post(weft_op_t *) noexcept { return weft_fail(status, "it was refused"); }
    void take(weft_op_t &) noexcept {}
};

/* Complete at once, but the action does not take it for a success. */
struct unhappy {
    using value_type = owned;
    weft_runtime_t *rt;
    int *abandoned;
    weft_status_t post(weft_op_t *op) noexcept { return at_once<>{rt}.post(op); }
    weft_status_t ended(weft_op_t &) noexcept { return weft_fail(WEFT_ERR_PROTOCOL, "it was not what was asked for"); }
    owned take(weft_op_t &) noexcept { return owned(0); }
    void abandon(weft_op_t &) noexcept { ++*abandoned; }
};

} // namespace acts

#endif
