/* tests/matrix/lib/driver.c - a thread that drives the runtimes of a cell: see cell.h. */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cell.h"

struct driver {
    pthread_t thread;
    _Atomic(side_t *) side[2];
    _Atomic unsigned rounds;
    _Atomic bool stop;
    bool runs;
};

/* As a foreign loop does it: sleep on the descriptor once there is nothing to do. */
static void turn_the_loop(weft_runtime_t *rt)
{
    while (weft_runtime_progress(rt))
        ;
    struct pollfd fd = {.fd = weft_runtime_fd(rt), .events = POLLIN};
    if (!weft_runtime_arm(rt))
        poll(&fd, 1, 1);
}

static void drive(side_t *s)
{
    if (s->w->mode == WEFT_PROGRESS_LOOP)
        turn_the_loop(s->rt);
    else if (!weft_runtime_progress(s->rt))
        usleep(20);
}

static void *drives(void *arg)
{
    driver_t *d = (driver_t *)arg;
    while (!atomic_load(&d->stop)) {
        for (int i = 0; i < 2; i++) {
            side_t *s = atomic_load(&d->side[i]);
            if (s)
                drive(s);
        }
        atomic_fetch_add(&d->rounds, 1);
    }
    return NULL;
}

driver_t *driver_start(side_t *first, side_t *second)
{
    driver_t *d = (driver_t *)calloc(1, sizeof *d);
    if (first->w->mode == WEFT_PROGRESS_THREAD) /* they drive themselves */
        return d;
    d->side[0] = first;
    d->side[1] = second;
    first->drive = false;
    if (second)
        second->drive = false;
    d->runs = true;
    if (pthread_create(&d->thread, NULL, drives, d))
        abort();
    return d;
}

void driver_leave(driver_t *d, side_t *s)
{
    for (int i = 0; i < 2; i++) {
        if (atomic_load(&d->side[i]) != s)
            continue;
        atomic_store(&d->side[i], NULL);
        for (unsigned from = atomic_load(&d->rounds); atomic_load(&d->rounds) - from < 2;)
            usleep(20);
    }
}

void driver_stop(driver_t *d)
{
    atomic_store(&d->stop, true);
    if (d->runs)
        pthread_join(d->thread, NULL);
    free(d);
}
