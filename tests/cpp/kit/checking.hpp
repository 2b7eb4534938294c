/* tests/cpp/kit/checking.hpp - a receiver that checks the rules of the protocol, and a stop token that counts its callbacks. It
 * works with any implementation (kit/here.hpp).
 *
 * What ends a test, each with a sentence:
 *   - a completion before start(), a second one, or one after the operation state is gone
 *   - a completion while a stop callback of the operation is still registered, or runs
 *   - a stop callback that is registered twice at a time, or for a token that cannot stop
 *   - a receiver that is copied, or completed by a path that may throw (the concepts say that at compile time)
 *   - an attempt that is not over in time
 *
 * `attempt` is a sender that was connected to such a receiver. Include test.h before. */
#ifndef KIT_CHECKING_HPP
#define KIT_CHECKING_HPP

#include <any>
#include <memory>

#include "kit/here.hpp"

namespace checking {

/* --- a stop token that counts ------------------------------------------------------------------------------------------- */

class source;

class token {
public:
    template <class F>
    class callback;
    template <class F>
    using callback_type = callback<F>;

    explicit token(source *s) noexcept : source_(s) {}
    bool stop_requested() const noexcept;
    bool stop_possible() const noexcept;
    bool operator==(const token &) const noexcept = default;

private:
    source *source_;
};

class source {
public:
    source() noexcept : source(true) {}
    explicit source(bool possible) noexcept : possible_(possible) {}
    token get_token() noexcept { return token(this); }
    bool request_stop() noexcept { return inner_.request_stop(); }
    int registered() const noexcept { return registered_.load(); }
    int ever() const noexcept { return ever_.load(); }

private:
    friend token;
    ex::inplace_stop_source inner_;
    std::atomic<int> registered_{0}, ever_{0};
    const bool possible_;
};

inline bool token::stop_requested() const noexcept { return source_->inner_.stop_requested(); }
inline bool token::stop_possible() const noexcept { return source_->possible_; }

template <class F>
class token::callback {
    using inner = ex::stop_callback_for_t<ex::inplace_stop_token, F>;

public:
    template <class G>
    explicit callback(token t, G &&fn) noexcept : source_(t.source_), inner_(before(t), std::forward<G>(fn))
    {
    }
    callback(const callback &) = delete;

private:
    /* registered_ goes down when inner_ is gone: the member is destroyed after it */
    struct counted {
        source *of;
        explicit counted(source *s) noexcept : of(s) {}
        ~counted() { of->registered_.fetch_sub(1); }
    };
    static ex::inplace_stop_token before(token t) noexcept
    {
        if (!t.source_->possible_)
            FAIL("a stop callback was registered with a token that cannot stop");
        if (t.source_->registered_.fetch_add(1) > 0)
            FAIL("a second stop callback was registered while the first was");
        t.source_->ever_++;
        return t.source_->inner_.get_token();
    }
    counted source_;
    inner inner_;
};

/* --- the receiver ------------------------------------------------------------------------------------------------------- */

enum class how { none, value, error, stopped };

/* What happened to one operation. */
struct record {
    bool connected = false, started = false, gone = false, inside = false; /* inside: it completed in start() */
    inline static thread_local const record *starting = nullptr;           /* whose start() this thread is in */
    std::atomic<int> completions{0};
    std::atomic<bool> over{false}; /* the completion has returned */
    how end = how::none;
    std::any value;                /* of the first value, if it can be copied */
    std::error_code error;
    std::string sentence;          /* what weft_last_error() said in set_error() */
    std::thread::id where;
    source *stop = nullptr;
    void (*ending)(record *, void *) = nullptr; /* called in the completion, as the last */
    void *user = nullptr;

    void complete(how what) noexcept
    {
        if (!started)
            FAIL("a completion before start()");
        if (gone)
            FAIL("a completion after the operation state is gone");
        if (completions.fetch_add(1))
            FAIL("a second completion");
        if (stop && stop->registered())
            FAIL("a completion while a stop callback is registered");
        end = what;
        where = std::this_thread::get_id();
        inside = starting == this;
    }
    void finish() noexcept
    {
        if (ending)
            ending(this, user);
        over.store(true, std::memory_order_release);
    }
};

template <class Token>
struct env {
    Token stop;
    Token query(ex::get_stop_token_t) const noexcept { return stop; }
};
struct no_env {};

template <class Token>
class receiver {
public:
    using receiver_concept = ex::receiver_tag;
    receiver(record *r, Token stop) noexcept : record_(r), stop_(stop) {}
    receiver(receiver &&other) noexcept : record_(std::exchange(other.record_, nullptr)), stop_(other.stop_) {}
    receiver(const receiver &) = delete;
    receiver &operator=(const receiver &) = delete;
    void operator&() const = delete; /* whoever means std::addressof() has to say so */

    /* Another one of the same operation, for who wants to complete it a second time. */
    receiver twin() const noexcept { return receiver(record_, stop_); }
    env<Token> get_env() const noexcept { return {stop_}; }

    template <class... Values>
    void set_value(Values &&...values) && noexcept
    {
        static_assert((std::is_rvalue_reference_v<Values &&> && ...), "what an action gives is moved");
        record *r = record_;
        r->complete(how::value);
        const auto keep = [r](auto &&first, auto &&...) {
            if constexpr (std::is_copy_constructible_v<std::remove_cvref_t<decltype(first)>>)
                r->value = first;
        };
        if constexpr (sizeof...(Values) > 0)
            keep(std::forward<Values>(values)...);
        r->finish();
    }
    void set_error(std::error_code e) && noexcept
    {
        record *r = record_;
        r->complete(how::error);
        r->error = e;
        r->sentence = weft_last_error();
        r->finish();
    }
    void set_stopped() && noexcept
    {
        record *r = record_;
        r->complete(how::stopped);
        r->finish();
    }

private:
    record *record_;
    Token stop_;
};

/* --- an attempt --------------------------------------------------------------------------------------------------------- */

/* How long anything may take; and with a caller-driven runtime, who drives meanwhile. */
inline constexpr double patience = 30;

template <class S, class Token = ex::never_stop_token>
class attempt {
    using op_type = decltype(ex::connect(std::declval<S>(), std::declval<receiver<Token>>()));
    static_assert(ex::sender_to<S, receiver<Token>>);
    struct holds {
        op_type op;
        holds(S &&s, record *r, Token t) : op(ex::connect(std::move(s), receiver<Token>(r, t))) {}
    };

public:
    explicit attempt(S s, Token t = Token()) : op_(std::make_unique<holds>(std::move(s), &rec, t)) { rec.connected = true; }
    attempt(S s, source &stop) : attempt(std::move(s), stop.get_token()) { rec.stop = &stop; }
    ~attempt() { rec.gone = true; } /* and then the state goes, which may still complete, mistakenly */

    /* The operation state is destroyed in its own completion, as many adaptors do. */
    void destroy_inside()
    {
        rec.user = this;
        rec.ending = [](record *r, void *self) {
            r->gone = true;
            static_cast<attempt *>(self)->op_.reset();
        };
    }
    void start()
    {
        static_assert(noexcept(ex::start(op_->op)));
        CHECK(!rec.started);
        rec.started = true;
        const record *was = std::exchange(record::starting, &rec);
        ex::start(op_->op);
        record::starting = was;
    }
    bool over() const { return rec.over.load(std::memory_order_acquire); }
    how wait(weft_runtime_t *drive = nullptr)
    {
        const double end = test_now() + patience;
        for (unsigned n = 1; !over(); n++) {
            if (drive)
                weft_runtime_progress(drive);
            else if (n % 256)
                std::this_thread::yield();
            else
                usleep(50);
            if (n % 4096 == 0 && test_now() > end)
                FAIL("no completion within %.0f s", patience);
        }
        return rec.end;
    }
    how run(weft_runtime_t *drive = nullptr)
    {
        start();
        return wait(drive);
    }

    record rec;
    double patience = checking::patience;

private:
    std::unique_ptr<holds> op_;
};
template <class S>
attempt(S) -> attempt<S>;
template <class S>
attempt(S, source &) -> attempt<S, token>;
template <class S, class Token>
attempt(S, Token) -> attempt<S, Token>;

} // namespace checking

#endif
