/* fabric/ucx/entry.c - where the module begins: what it offers to the library, and how it reaches what the library gave it.
 *
 * The module has copies of stateless parts of base. The log, the detail behind weft_last_error() and the switch of alloc.h have
 * state, and that is the library's: the functions of base/log.h are defined here once more, and call it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/module.h"
#include "fabric/ucx/internal.h"

static const wefti_module_host_t *host;

/* Above every level: each line comes to weft_log() below, which knows the library's. */
_Atomic int wefti_log_level = WEFTI_LOG_UNREAD;

void weft_log(weft_log_level_t level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(host->log_level, memory_order_relaxed))
        return;
    int saved_errno = errno;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    host->log_line(level, "%s", line);
    errno = saved_errno;
}

weft_status_t weft_fail(weft_status_t status, const char *fmt, ...)
{
    int saved_errno = errno;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    errno = saved_errno;
    return host->fail(status, "%s", text);
}

static void start(const wefti_module_host_t *given)
{
    host = given;
    wefti_alloc_fails = given->alloc_fails;
}

#define TEXT(x) #x
#define VALUE(x) TEXT(x)

/* WEFTI_MODULE_SYMBOL */
extern const wefti_module_t weft_ucx_module;
__attribute__((visibility("default"))) const wefti_module_t weft_ucx_module = {
    .version = WEFTI_MODULE_VERSION,
    .size = WEFTI_MODULE_SIZE,
    .start = start,
    .open = wefti_ux_open,
    .progress = wefti_ux_progress,
    .mem_register = wefti_ux_mem_register,
    .mem_unregister = wefti_ux_mem_unregister,
    .ucx_version = ucp_get_version_string,
    .ucx_built_with = VALUE(UCP_API_MAJOR) "." VALUE(UCP_API_MINOR),
    .ucx_transports = wefti_ux_transports,
};
