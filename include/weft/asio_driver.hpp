/* weft/asio_driver.hpp - an io_context of Asio that drives a runtime: weft/asio.hpp includes it.
 *
 * It waits for the descriptor of the runtime and for its next timer, as any foreign loop does (weft/runtime.h), and takes back
 * what Asio counts for these waits, so that run() returns when nothing else is under way. */
#ifndef WEFT_ASIO_DRIVER_HPP
#define WEFT_ASIO_DRIVER_HPP

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/basic_stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <optional>
#include <weft/error.hpp>
#include <weft/runtime.h>

namespace weft {

/* Drives a runtime while io.run() runs: no thread, one system call or two per sleep. Callbacks of the runtime and handlers
 * without an executor run inside run(). By itself it does not keep run() from returning: operations of weft::async() that count
 * on `io` do, and so does keep_running(true), for a program that only serves.
 *
 * Owns:    the runtime is borrowed. Close it after the driver was stopped or destroyed, and destroy the driver before `io`.
 * Threads: run() may run on several; the runtime is driven on one of them at a time. stop() and the destructor wait for
 *          nobody: on other threads what has begun goes on for a moment, so stop run() there before the runtime is closed. The
 *          driver may be stopped, not destroyed, inside a callback of the runtime.
 * Fails:   the constructor throws weft::error (WEFT_ERR_STATE: the runtime has a thread of its own; WEFT_ERR_SYSTEM). */
class asio_driver {
public:
    asio_driver(asio::io_context &io, weft_runtime_t *rt) : state_(std::make_shared<state>(io, rt)) { state_->begin(); }
    template <class Runtime>
        requires requires(Runtime &rt) { { rt.native() } -> std::convertible_to<weft_runtime_t *>; }
    asio_driver(asio::io_context &io, Runtime &rt) : asio_driver(io, static_cast<weft_runtime_t *>(rt.native()))
    {
    }
    asio_driver(const asio_driver &) = delete;
    asio_driver &operator=(const asio_driver &) = delete;
    ~asio_driver() { stop(); }

    /* Drive no more. Once. */
    void stop() noexcept { state_->stop(); }
    /* Count as work of the io_context, until keep_running(false) or stop(). */
    void keep_running(bool keep) { state_->keep(keep); }

private:
    using executor = asio::io_context::executor_type;
    using clock = std::chrono::steady_clock;

    class state : public std::enable_shared_from_this<state> {
    public:
        state(asio::io_context &io, weft_runtime_t *rt) : rt_(rt), ex_(io.get_executor()), fd_(ex_), timer_(ex_)
        {
            const int fd = weft_runtime_fd(rt);
            if (fd < 0)
                check(static_cast<weft_status_t>(fd));
            const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the runtime's is closed with the runtime */
            if (own < 0)
                detail::fail(WEFT_ERR_SYSTEM, std::strerror(errno));
            fd_.assign(own);
        }
        void begin()
        {
            asio::post(ex_, [self = shared_from_this()] { self->turn(); });
        }
        void stop() noexcept
        {
            const std::lock_guard hold(lock_);
            stopped_ = true;
            kept_.reset();
            std::error_code ignored;
            fd_.cancel(ignored);
            timer_.cancel(); /* of a steady timer it cannot fail */
        }
        void keep(bool on)
        {
            const std::lock_guard hold(lock_);
            if (!on)
                kept_.reset();
            else if (!stopped_ && !kept_)
                kept_.emplace(ex_);
        }

    private:
        enum { ROUNDS = 64 }; /* before other handlers have their turn */

        /* Drive, and wait for more. One thread at a time; another that comes meanwhile leaves word. */
        void turn()
        {
            std::unique_lock hold(lock_);
            again_ = true;
            if (driving_)
                return;
            driving_ = true;
            bool more = false;
            while (again_ && !stopped_ && !more) {
                again_ = false;
                hold.unlock();
                const weft_status_t st = drive();
                hold.lock();
                more = st == WEFT_ERR_AGAIN;
                if (st && !more) /* the runtime was closed */
                    stopped_ = true;
            }
            driving_ = false;
            if (stopped_) {
                kept_.reset();
            } else if (more) {
                again_ = false;
                begin();
            } else {
                sleep();
            }
        }

        /* WEFT_ERR_AGAIN: there is more to do. */
        weft_status_t drive() noexcept
        {
            for (int i = 0; i < ROUNDS; i++) {
                if (weft_runtime_progress(rt_))
                    continue;
                const weft_status_t st = weft_runtime_arm(rt_);
                if (st != WEFT_ERR_AGAIN)
                    return st;
            }
            return WEFT_ERR_AGAIN;
        }

        /* Wait for the descriptor and for the next timer. A wait that is under way is left alone: one that ends too early costs
         * a turn. Neither is to keep run() from returning, so each takes back what Asio counts for it; here a handler runs, whose
         * own count keeps the sum above zero. */
        void sleep()
        {
            const std::uint64_t next = weft_runtime_next_timeout(rt_);
            if (!waiting_) {
                fd_.async_wait(fd_.wait_read, [self = shared_from_this()](const std::error_code &code) { self->ready(code); });
                waiting_ = true;
                ex_.on_work_finished();
            }
            if (next == WEFT_FOREVER)
                return;
            const auto when = clock::now() + std::chrono::nanoseconds(std::min<std::uint64_t>(next, 3600 * WEFT_SECOND));
            if (timing_ && when_ <= when)
                return;
            timer_.expires_at(when);
            timer_.async_wait([self = shared_from_this(), when](const std::error_code &) { self->late(when); });
            when_ = when;
            timing_ = true;
            ex_.on_work_finished();
        }
        void ready(const std::error_code &code)
        {
            ex_.on_work_started();
            std::unique_lock hold(lock_);
            waiting_ = false;
            if (code && code != asio::error::operation_aborted)
                stopped_ = true;
            hold.unlock();
            turn();
        }
        void late(clock::time_point when)
        {
            ex_.on_work_started();
            std::unique_lock hold(lock_);
            if (when_ != when) /* another has taken its place */
                return;
            timing_ = false;
            hold.unlock();
            turn();
        }

        weft_runtime_t *rt_;
        executor ex_;
        std::mutex lock_;
        asio::posix::basic_stream_descriptor<executor> fd_;
        asio::basic_waitable_timer<clock, asio::wait_traits<clock>, executor> timer_;
        std::optional<asio::executor_work_guard<executor>> kept_;
        clock::time_point when_;
        bool waiting_ = false, timing_ = false, driving_ = false, again_ = false, stopped_ = false;
    };

    std::shared_ptr<state> state_;
};

} // namespace weft

#endif
