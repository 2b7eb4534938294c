/* weft/config.h - configuration variables, the log, and what this build is.
 *
 * Every variable is WEFT_SOMETHING in the environment, or `SOMETHING = value` (WEFT_ prefix optional) in the file that
 * WEFT_CONFIG_FILE names. A field of an options struct beats the environment, which beats the file. */
#ifndef WEFT_CONFIG_H
#define WEFT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <weft/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_config_var {
    const char *name;    /* "WEFT_HEARTBEAT" */
    const char *doc;     /* one sentence */
    const char *value;   /* as it is in force now, as text; secrets are shown as "(set)" */
    const char *source;  /* "default", "environment", or the file's path */
} weft_config_var_t;

/* Call fn for every variable, in the order of the documentation. Any thread. What var points to is valid during the call.
 * Fails:   WEFT_ERR_INVALID (a value or the file is not fit: weft_last_error() names it), WEFT_ERR_LIMIT, WEFT_ERR_NOMEM; fn
 * was called for
 *          every variable even so, with the text as it was given. */
typedef void (*weft_config_fn)(const weft_config_var_t *var, void *user);
WEFT_API weft_status_t weft_config_each(weft_config_fn fn, void *user);

/* Call fn for every WEFT_* variable of the environment or key of the file that is none of ours: `var->name` is it and
 * `var->value` the nearest known name, or NULL if none is near. Threads and failures as above. */
WEFT_API weft_status_t weft_config_unknown_each(weft_config_fn fn, void *user);

/* --- log ---------------------------------------------------------------------------------------------------------- */

typedef enum weft_log_level {
    WEFT_LOG_NONE = 0, WEFT_LOG_ERROR = 1, WEFT_LOG_WARN = 2, WEFT_LOG_INFO = 3, WEFT_LOG_DEBUG = 4
} weft_log_level_t;

/* Receives each line, without a newline. May be called from any thread that calls the library and from runtime threads. */
typedef void (*weft_log_fn)(weft_log_level_t level, const char *line, void *user);

/* Send log lines to fn instead of stderr; NULL goes back to stderr. Process-wide: the only thing that is. Any thread. When it
 * returns the old fn is not running and is not called again; from inside a sink it takes effect when that returns. Lines logged
 * by calls that fn itself makes go to stderr. */
WEFT_API void weft_log_set_sink(weft_log_fn fn, void *user);
/* Default is: WEFT_LOG (error, warn, info, debug, none), else warn. */
WEFT_API void weft_log_set_level(weft_log_level_t level);
/* Log a line, if the level is on. At most 1023 bytes; control characters become '?'. Any thread. */
WEFT_API WEFT_PRINTF(2, 3) void weft_log(weft_log_level_t level, const char *fmt, ...);

/* --- what this is --------------------------------------------------------------------------------------------------- */

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 2
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_STRING "0.2.0"

/* The library's version at run time, as WEFT_VERSION_STRING at compile time. */
WEFT_API const char *weft_version(void);

/* A fact of the build or machine: "version", "compiler", "build", "ucx_version", "ucx_built_with", "transports",
 * "memory_kinds", "host_id". Calls fn with name and value; the rest of var is NULL. In a forked child of a process that had a runtime, UCX is not
 * asked for its transports. */
WEFT_API weft_status_t weft_info_each(weft_config_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
