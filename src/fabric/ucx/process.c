/* fabric/ucx/process.c - what UCX does to the process it is loaded into, undone or kept from happening: its signal handlers, its
 * lines on stderr, its abort() where it finds no file descriptor for a socket it has to have. tests/wire/fabric_ucx.c:
 * loading_ucx_leaves_the_signals_alone. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if __has_include(<ucs/debug/log_def.h>)
#include <ucs/debug/log_def.h>
#define CAN_HUSH 1
#endif

#include "base/log.h"
#include "fabric/ucx/internal.h"

/* Loading UCX puts its own handlers on SIGSEGV and its like, and one on SIGHUP that only makes UCX talk more: a program then
 * outlives its terminal, and nohup is undone. This constructor runs right after those of UCX and puts back what was there
 * before, the program's own handlers included, unless the user has asked UCX for its handlers. */
extern void ucs_debug_disable_signal(int signum) __attribute__((weak));

static void leave_alone(int number)
{
    struct sigaction now;
    Dl_info info;
    if (!sigaction(number, NULL, &now) && dladdr((void *)(uintptr_t)now.sa_handler, &info) && strstr(info.dli_fname, "libucs"))
        ucs_debug_disable_signal(number); /* as it was before */
}

__attribute__((constructor)) static void leave_signals_alone(void)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    if (!ucs_debug_disable_signal)
        return;
    if (!getenv("UCX_DEBUG_SIGNO"))
        leave_alone(SIGHUP);
    if (getenv("UCX_ERROR_SIGNALS") || getenv("UCX_HANDLE_ERRORS"))
        return;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        leave_alone(signals[i]);
}

#ifdef CAN_HUSH
static ucs_log_func_rc_t to_our_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                    const ucs_log_component_config_t *component, const char *format, va_list args)
{
    char text[400];
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    if (level == UCS_LOG_LEVEL_FATAL)
        return UCS_LOG_FUNC_RC_CONTINUE; /* it aborts after this line */
    vsnprintf(text, sizeof text, format, args);
    wefti_info("ucx: %s", text);
    return UCS_LOG_FUNC_RC_STOP;
}
#endif

/* UCX writes a line to stderr for what is ordinary to us: a peer that died, an address that does not answer. We say those things
 * ourselves; UCX's own words go to our log, at level info. Its log belongs to the whole process, so a user who chose its level
 * keeps it as it is. */
void wefti_ux_hush(void)
{
#ifdef CAN_HUSH
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done) || getenv("UCX_LOG_LEVEL") || getenv("UCX_LOG_FILE"))
        return;
    ucs_log_push_handler(to_our_log);
#endif
}

/* UCX 1.13 may abort when it runs out of descriptors in the middle of a connection; so nothing is begun unless some are free.
 * Another thread may still take them in between: this makes the abort rare, not impossible. */
weft_status_t wefti_ux_spare_fds(unsigned need)
{
    int fds[UX_SPARE_FDS_MAX];
    unsigned n = 0;
    while (n < need && (fds[n] = n ? fcntl(fds[0], F_DUPFD_CLOEXEC, 0) : open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    bool enough = n == need;
    while (n)
        close(fds[--n]);
    return enough ? WEFT_OK : wefti_fail(WEFT_ERR_LIMIT, "UCX needs %u free file descriptors; raise the limit (ulimit -n)", need);
}
