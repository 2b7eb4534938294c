/* tests/lib/late/late.c - an eventfd_write() that takes its time, for LD_PRELOAD: whoever frees the descriptor meanwhile is
 * found out.
 *
 * LATE_MS is how long it takes. A descriptor that is not there any more afterwards ends the process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int eventfd_write(int fd, eventfd_t value)
{
    const char *ms = getenv("LATE_MS");
    long wait = ms ? atol(ms) : 0;
    struct timespec ts = {wait / 1000, wait % 1000 * 1000000};
    nanosleep(&ts, NULL);
    if (write(fd, &value, sizeof value) == (ssize_t)sizeof value)
        return 0;
    if (errno == EBADF) {
        fputs("an event fd was closed before it was written\n", stderr);
        abort();
    }
    return -1;
}
