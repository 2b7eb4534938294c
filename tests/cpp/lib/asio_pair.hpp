/* tests/cpp/lib/asio_pair.hpp - two runtimes in one process, connected, for tests of weft/asio.hpp; their calls as actions; and
 * an allocator that counts. */
#ifndef WEFT_TEST_ASIO_PAIR_HPP
#define WEFT_TEST_ASIO_PAIR_HPP

#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <weft/asio.hpp>
#include <weft/weft.h>

#define BOUND std::chrono::seconds(30)

/* a: the server; b connects. Driven by `io`, or by threads where there is none. */
struct asio_pair {
    weft_runtime_t *a = nullptr, *b = nullptr;
    weft_ep_t *at_a = nullptr, *at_b = nullptr;
    weft_listener_t *listener = nullptr;
    std::optional<weft::asio_driver> drive_a, drive_b;

    explicit asio_pair(asio::io_context *io, weft_progress_mode_t mode = WEFT_PROGRESS_LOOP)
    {
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        opts.progress = io ? mode : WEFT_PROGRESS_THREAD;
        opts.transports = "shm,tcp";
        weft::check(weft_runtime_open(&opts, &a));
        weft::check(weft_runtime_open(&opts, &b));
        weft::check(weft_listen(a, "tcp://127.0.0.1:0", nullptr, &listener));
        weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
        weft::check(weft_listener_accept(listener, &accept));
        weft::check(weft_ep_open(b, weft_listener_uri(listener), nullptr, &connect, &at_b));
        while (!weft_op_done(&connect) || !weft_op_done(&accept)) {
            weft_runtime_progress(a);
            weft_runtime_progress(b);
        }
        weft::check(connect.status);
        weft::check(accept.status);
        at_a = weft_op_ep(&accept);
        if (io) {
            drive_a.emplace(*io, a);
            drive_b.emplace(*io, b);
        }
    }
    asio_pair(const asio_pair &) = delete;
    asio_pair &operator=(const asio_pair &) = delete;
    ~asio_pair()
    {
        drive_a.reset();
        drive_b.reset();
        (void)weft_runtime_close(b);
        (void)weft_runtime_close(a);
    }
};

/* --- actions ------------------------------------------------------------------------------------------------------------- */

inline auto do_send(weft_ep_t *ep, std::string_view bytes, std::uint64_t tag)
{
    return weft::detail::make_action<void>(
        [=](weft_op_t *op) noexcept { return weft_msg_send(ep, bytes.data(), bytes.size(), tag, op); },
        [](weft_op_t &) noexcept {});
}
/* the length */
inline auto do_recv(weft_ep_t *ep, void *buf, std::size_t cap, std::uint64_t tag)
{
    return weft::detail::make_action<std::size_t>(
        [=](weft_op_t *op) noexcept { return weft_msg_recv(ep, buf, cap, tag, WEFT_TAG_FULL, op); },
        [](weft_op_t &op) noexcept { return static_cast<std::size_t>(op.len); });
}
inline auto do_timer(weft_runtime_t *rt, std::uint64_t ns)
{
    return weft::detail::make_action<void>([=](weft_op_t *op) noexcept { return weft_timer_start(rt, ns, op); },
                                           [](weft_op_t &) noexcept {});
}

/* A message in a buffer of the library's: it is leaked, and counted, unless somebody takes it or lets go of it. */
struct buffer {
    inline static std::atomic<int> alive{0};
    buffer(void *p, std::size_t n) noexcept : bytes(p), len(n) { alive++; }
    buffer(buffer &&other) noexcept : bytes(std::exchange(other.bytes, nullptr)), len(other.len) {}
    buffer &operator=(buffer &&other) noexcept
    {
        std::swap(bytes, other.bytes);
        std::swap(len, other.len);
        return *this;
    }
    ~buffer()
    {
        if (bytes) {
            weft_buf_free(bytes);
            alive--;
        }
    }
    std::string_view text() const noexcept { return {static_cast<const char *>(bytes), len}; }
    void *bytes; /* no default: tokens get a std::optional */
    std::size_t len;
};
struct recv_alloc_spec {
    using value_type = buffer;
    inline static std::atomic<int> abandoned{0};
    weft_ep_t *ep;
    std::uint64_t tag;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_msg_recv_alloc(weft_ep_runtime(ep), ep, 1 << 20, tag, WEFT_TAG_FULL, op);
    }
    buffer take(weft_op_t &op) noexcept { return {op.buf, op.len}; }
    void abandon(weft_op_t &op) noexcept
    {
        weft_buf_free(op.buf);
        abandoned++;
    }
};
inline auto do_recv_alloc(weft_ep_t *ep, std::uint64_t tag)
{
    return weft::action(recv_alloc_spec{ep, tag});
}

/* --- counting ------------------------------------------------------------------------------------------------------------- */

struct counts {
    std::atomic<std::size_t> taken{0}, held{0};
    std::atomic<bool> exhausted{false};
};
template <class T>
struct counting {
    using value_type = T;
    counts *to;
    explicit counting(counts *c) noexcept : to(c) {}
    template <class U>
    counting(const counting<U> &other) noexcept : to(other.to)
    {
    }
    T *allocate(std::size_t n)
    {
        if (to->exhausted)
            throw std::bad_alloc();
        T *p = std::allocator<T>().allocate(n);
        to->taken++;
        to->held++;
        return p;
    }
    void deallocate(T *p, std::size_t n) noexcept
    {
        to->held--;
        std::allocator<T>().deallocate(p, n);
    }
    template <class U>
    bool operator==(const counting<U> &other) const noexcept
    {
        return to == other.to;
    }
};

/* A timer that ends a test which hangs, without keeping run() from returning: run_for() is enough. Runs until `done`. */
template <class Done>
bool run_until(asio::io_context &io, Done done)
{
    const auto end = std::chrono::steady_clock::now() + BOUND;
    while (!done() && std::chrono::steady_clock::now() < end) {
        io.restart();
        io.run_for(std::chrono::milliseconds(5));
    }
    return done();
}

#endif
