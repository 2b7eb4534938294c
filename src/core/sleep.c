/* core/sleep.c - how the driver sleeps until there is something to do.
 *
 * The order is what keeps a wake-up from being lost: set `sleeping`, look at the inbox, arm the fabric, look at the inbox
 * again (a wake-up that came before arm() may be gone with it), sleep. A pusher pushes first, and then looks whether the
 * driver sleeps. Still every sleep ends after WEFTI_SAFETY_NS; if it then turns out that there was something to do,
 * rescued_wakeups counts it.
 *
 * tests/unit/core_thread.c lets threads post into a hundred thousand random sleeps. */
#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "core/local.h"

static struct timespec as_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / WEFT_SECOND), .tv_nsec = (long)(ns % WEFT_SECOND)};
}

static bool work_waits(weft_runtime_t *rt)
{
    return !wefti_mpsc_empty(&rt->inbox) || !wefti_list_empty(&rt->ready) || (wefti_closing(rt) && !rt->ending);
}

/* How long the sleep may be; 0: not at all. */
static uint64_t longest(weft_runtime_t *rt, uint64_t until)
{
    uint64_t ns = WEFTI_SAFETY_NS, timer = wefti_timers_next(rt), now = until < WEFT_FOREVER ? wefti_now(rt) : 0;
    if (until < WEFT_FOREVER && (until <= now || until - now < ns))
        ns = until <= now ? 0 : until - now;
    return timer < ns ? timer : ns;
}

bool wefti_sleep(weft_runtime_t *rt, uint64_t until)
{
    wefti_fabric_t *f = rt->fabric;
    struct pollfd pfd = {.fd = f->ops->event_fd(f), .events = POLLIN};
    if (pfd.fd < 0)
        return false;
    rt->quiet = WEFTI_QUIET_MANY; /* the next round looks at everything */
    uint64_t ns = longest(rt, until);
    if (!ns)
        return true;
    atomic_store(&rt->sleeping, 1);
    if (work_waits(rt) || f->ops->arm(f)) {
        atomic_store(&rt->sleeping, 0);
        return true;
    }
    int got = -1;
    bool nobody_called = false;
    if (!work_waits(rt)) {
        struct timespec ts = as_timespec(ns);
        rt->sleeps++;
        got = ppoll(&pfd, 1, &ts, NULL);
        rt->wakeups += got > 0;
        /* an event that comes just when the time is up is no rescue */
        if (got == 0 && ns == WEFTI_SAFETY_NS)
            nobody_called = atomic_load(&rt->sleeping) && poll(&pfd, 1, 0) == 0;
    }
    f->ops->disarm(f);
    atomic_store(&rt->sleeping, 0);
    rt->until_clock = 1;
    if (nobody_called && !rt->delivering) {
        rt->delivering = true;
        rt->rescued_wakeups += wefti_look(rt, true) > 0;
        rt->delivering = false;
    }
    return true;
}
