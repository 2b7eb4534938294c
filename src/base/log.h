/* base/log.h - the log, and the detail behind an error returned at once.
 *
 * The code that decides an error logs it or records its detail; its callers only pass the status on. Secrets
 * (authentication keys, keys of regions) never reach a format string. */
#ifndef WEFTI_LOG_H
#define WEFTI_LOG_H

#include <stdatomic.h>
#include <weft/config.h>
#include <weft/status.h>

/* A weft_log_level_t, or WEFTI_LOG_UNREAD until the first line or snapshot reads the configured one. Read relaxed: a stale
 * level only costs or loses a line. */
extern _Atomic int wefti_log_level;
#define WEFTI_LOG_UNREAD (WEFT_LOG_DEBUG + 1)

/* weft_log() does not look at the level before it is called; this does. */
/* Arguments are not evaluated when the level is off. */
#define wefti_log(level, ...) \
    do { \
        if (__builtin_expect((int)(level) <= atomic_load_explicit(&wefti_log_level, memory_order_relaxed), 0)) \
            weft_log((level), __VA_ARGS__); \
    } while (0)
#define wefti_error(...) wefti_log(WEFT_LOG_ERROR, __VA_ARGS__)
#define wefti_warn(...)  wefti_log(WEFT_LOG_WARN, __VA_ARGS__)
#define wefti_info(...)  wefti_log(WEFT_LOG_INFO, __VA_ARGS__)
#define wefti_debug(...) wefti_log(WEFT_LOG_DEBUG, __VA_ARGS__)

/* Record the detail weft_last_error() gives to this thread, and return `status`: `return wefti_fail(WEFT_ERR_INVALID,
 * "port %d is not between 0 and 65535", port);` */
#define wefti_fail weft_fail

/* Branches that end in one of them are rare: the compiler lays them out of the way, and makes them small. */
__attribute__((cold)) weft_status_t weft_fail(weft_status_t status, const char *format, ...);
__attribute__((cold)) void weft_log(weft_log_level_t level, const char *format, ...);

/* The same without a detail, for a status that is often no failure (not done yet, there is none). Cheap. */
weft_status_t wefti_fail_plain(weft_status_t status);

/* Forget the detail of this thread: what is there later is of a later failure. */
void wefti_fail_forget(void);

/* For config: what WEFT_LOG says, in force unless a level was set or read before. */
void wefti_log_configured(weft_log_level_t level);

#endif
