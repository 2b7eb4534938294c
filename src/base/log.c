/* base/log.c - where log lines go, and the detail behind weft_last_error().
 *
 * The level starts UNREAD, above every level, so that the first line of any level comes here and the configured level is read
 * then: nothing runs when the library is loaded. It leaves UNREAD once, by that, by the first snapshot of the configuration, or
 * by weft_log_set_level(), whichever is first; afterwards only weft_log_set_level() moves it.
 *
 * The sink is guarded by a readers-writer lock held while it runs, so that once weft_log_set_sink() has returned the old
 * function is not running and will not be called again: its user data may be freed. A sink that logs (it calls the library)
 * gets those lines on stderr, and a sink that sets a sink has its wish fulfilled when it returns; neither can wait for itself.
 *
 * A line is one write, at most LINE_MAX_LEN bytes, with control characters replaced: what a peer calls itself cannot forge a
 * line. errno is left as it was. tests/unit/base_log.c holds us to all of it. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/config.h"

enum { LINE_MAX_LEN = 1024, DETAIL_MAX_LEN = 512 };

_Atomic int wefti_log_level = WEFTI_LOG_UNREAD;

typedef struct sink {
    weft_log_fn fn;
    void *user;
} sink_t;

static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static sink_t sink; /* fn NULL: stderr */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static _Thread_local bool inside_sink, sink_wished;
static _Thread_local sink_t wished_sink;
static _Thread_local char detail[DETAIL_MAX_LEN];
static _Thread_local weft_status_t detail_of;
static _Thread_local bool detail_plain; /* it is the text of the status */

/* Format into buf and make it one clean line: "..." where it was cut, '?' for control characters. Returns its length. */
static size_t format_line(char *buf, size_t cap, const char *fmt, va_list args)
{
    static const char dots[] = "...";
    int want = fmt ? vsnprintf(buf, cap, fmt, args) : -1; /* NOLINT(clang-analyzer-valist.Uninitialized): the callers start it */
    if (want < 0)
        buf[0] = '\0';
    size_t n = strlen(buf);
    if (want > 0 && (size_t)want >= cap && cap > sizeof dots) {
        n = cap - sizeof dots;
        while (n && ((unsigned char)buf[n] & 0xc0) == 0x80)
            n--; /* not in the middle of a UTF-8 character */
        memcpy(buf + n, dots, sizeof dots);
        n += sizeof dots - 1;
    }
    for (size_t i = 0; i < n; i++)
        if (wefti_is_cntrl(buf[i]))
            buf[i] = '?';
    return n;
}

static void write_stderr(weft_log_level_t level, const char *line, size_t n)
{
    static const char *const words[] = {"none", "error", "warn", "info", "debug"};
    char buf[LINE_MAX_LEN + 32];
    int head = snprintf(buf, sizeof buf, "weft: %s: ", words[level]);
    memcpy(buf + head, line, n);
    buf[(size_t)head + n] = '\n';
    while (write(STDERR_FILENO, buf, (size_t)head + n + 1) < 0 && errno == EINTR)
        ; /* any other failure: there is nobody left to tell */
}

/* In a forked child: a thread that does not exist here may have held the lock. */
static void child_after_fork(void)
{
    pthread_rwlock_t fresh = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    sink_lock = fresh;
    if (inside_sink) /* the sink forked: it still owes an unlock */
        pthread_rwlock_rdlock(&sink_lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, child_after_fork);
}

static void deliver(weft_log_level_t level, const char *line, size_t n)
{
    if (inside_sink) {
        write_stderr(level, line, n);
        return;
    }
    pthread_rwlock_rdlock(&sink_lock);
    sink_t s = sink;
    if (s.fn) {
        inside_sink = true;
        s.fn(level, line, s.user);
        inside_sink = false;
    }
    pthread_rwlock_unlock(&sink_lock);
    if (!s.fn)
        write_stderr(level, line, n);
    if (sink_wished) {
        sink_wished = false;
        weft_log_set_sink(wished_sink.fn, wished_sink.user);
    }
}

void wefti_log_configured(weft_log_level_t level)
{
    int unread = WEFTI_LOG_UNREAD;
    atomic_compare_exchange_strong(&wefti_log_level, &unread, (int)level);
}

void weft_log(weft_log_level_t level, const char *fmt, ...)
{
    int saved_errno = errno;
    if (atomic_load_explicit(&wefti_log_level, memory_order_relaxed) == WEFTI_LOG_UNREAD)
        wefti_log_configured(wefti_config_log_level());
    if (level > WEFT_LOG_NONE && level <= WEFT_LOG_DEBUG &&
        (int)level <= atomic_load_explicit(&wefti_log_level, memory_order_relaxed)) {
        char line[LINE_MAX_LEN];
        va_list args;
        va_start(args, fmt);
        errno = saved_errno; /* for %m */
        size_t n = format_line(line, sizeof line, fmt, args);
        va_end(args);
        deliver(level, line, n);
    }
    errno = saved_errno;
}

weft_status_t weft_fail(weft_status_t status, const char *fmt, ...)
{
    int saved_errno = errno;
    char text[DETAIL_MAX_LEN]; /* an argument may be the detail itself */
    va_list args;
    va_start(args, fmt);
    size_t n = format_line(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(detail, text, n + 1);
    detail_of = status;
    detail_plain = false;
    errno = saved_errno;
    return status;
}

weft_status_t wefti_fail_plain(weft_status_t status)
{
    detail_of = status;
    detail_plain = true;
    return status;
}

void wefti_fail_forget(void)
{
    detail_of = WEFT_OK;
    detail_plain = false;
    detail[0] = '\0';
}

const char *weft_last_error(void)
{
    return detail_plain ? weft_status_text(detail_of) : detail;
}

weft_status_t weft_last_error_status(void)
{
    return detail_of;
}

void weft_log_set_sink(weft_log_fn fn, void *user)
{
    if (inside_sink) {
        wished_sink = (sink_t){fn, user};
        sink_wished = true;
        return;
    }
    (void)pthread_once(&fork_once, watch_forks);
    pthread_rwlock_wrlock(&sink_lock);
    sink = (sink_t){fn, user};
    pthread_rwlock_unlock(&sink_lock);
}

void weft_log_set_level(weft_log_level_t level)
{
    int value = (int)level < WEFT_LOG_NONE ? WEFT_LOG_NONE : (int)level > WEFT_LOG_DEBUG ? WEFT_LOG_DEBUG : (int)level;
    atomic_store(&wefti_log_level, value);
}
