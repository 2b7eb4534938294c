/* fabric/sock/beat.c - heartbeats: one thread per process sends and reads those of all wires of all runtimes.
 *
 * A beat is one byte on the wire, between two messages. The thread sends one per tick on every wire that beats, reads those of
 * the peer, and judges its silence (fabric/pulse.h), so that a process that runs is heard by its peers whatever its program
 * does: it may compute, copy, sleep or block, in a callback or between two calls. A process that was killed or stopped is not
 * heard.
 *
 * The driver reads a wire too: messages of the hello may still come. From the first beat of the peer on it only watches for the
 * end of the socket (`quiet`), so that beats wake nobody; a message that comes all the same is left to it. If the peer is lost,
 * the thread leaves a verdict and shuts the socket down; the driver sees the end of the wire as it would see any other.
 *
 * One lock guards the list and the wires on it. It is never held for more than BATCH wires in a row, and never across an upcall.
 * The thread lives from the first wire that beats until the last runtime that had one is closed. In a forked child there are no
 * beats: the child has no thread, and the wires are its parent's.
 *
 * Promise: tests/fault/conn_alive.c and tests/fault/conn_stop.c. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/stack.h"
#include "fabric/sock/internal.h"

enum { BATCH = 64, READ_MOST = 4096, READS = 16, STACK = 256 * 1024 };
#define NEVER UINT64_MAX

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    wefti_list_t wires;
    wefti_list_t *at;  /* the next one that the thread will look at */
    uint64_t wakes;    /* when the thread wakes; during its walk, as far as is known yet */
    unsigned runtimes; /* that have had a wire here */
    uint64_t era;      /* a thread runs in the era it was started in, and no longer */
} beats = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int prepared;

/* --- one wire ----------------------------------------------------------------------------------------------------- */

static void send_beat(sock_wire_t *w)
{
    static const uint8_t beat = SOCK_BEAT;
    if (w->out_n) /* in the middle of a message: its bytes are a sign of life as well */
        return;
    /* No space means that the peer does not read, and a dead socket shows elsewhere. */
    ssize_t n = wefti_wire_write(w, &beat, 1);
    (void)n;
}

static void set_quiet(sock_wire_t *w, bool quiet)
{
    if (w->quiet == quiet || w->out_n || !w->pulse.bound || w->verdict)
        return;
    w->quiet = quiet;
    wefti_wire_want(w, wefti_beat_events(w));
}

void wefti_beat_heard(sock_wire_t *w, size_t n)
{
    w->heard = true;
    if (n)
        set_quiet(w, true);
}

/* Read the beats that wait in the socket; true: there were some. A message is left for the driver.
 *
 * All of them, since one that is left would be heard at a later tick, when its sender may be dead. But no more than READS times
 * READ_MOST: one wire shall not hold the lock. A peer that has sent more than that has done nothing wrong: if this process was
 * stopped for a day, so many wait. They fit into the socket's buffer, which is read in a few ticks. */
static bool read_beats(sock_wire_t *w)
{
    uint8_t bytes[READ_MOST];
    bool heard = false, only_beats = false;
    ssize_t there = 0;
    if (w->reading || w->in_n)
        return false;
    for (int i = 0; i < READS; i++) {
        there = wefti_wire_peek(w, bytes, sizeof bytes);
        size_t n = 0;
        if (there <= 0)
            break;
        while (n < (size_t)there && bytes[n] == SOCK_BEAT)
            n++;
        only_beats = n == (size_t)there;
        heard = (n && wefti_wire_take(w, bytes, n) > 0) || heard;
        if (n < sizeof bytes && (!w->stream || !only_beats))
            break;
    }
    set_quiet(w, only_beats);
    if (w->stream && !only_beats && there > 0)
        wefti_wire_want(w, EPOLLIN | EPOLLOUT); /* TLS has the message already: the socket would not tell of it */
    return heard;
}

static void tick(sock_wire_t *w, uint64_t now)
{
    bool heard = read_beats(w) || w->heard;
    w->heard = false;
    if (wefti_pulse_tick(&w->pulse, now, heard)) {
        w->verdict = WEFT_ERR_TIMEOUT;
        shutdown(w->fd, SHUT_RDWR);
    } else if (!w->by_hand) {
        send_beat(w);
    }
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void wake_by(uint64_t due)
{
    if (due < beats.wakes)
        beats.wakes = due;
}

/* Look at every wire that is due, and find when the next one is. The lock is let go of now and then: a wire that comes meanwhile
 * may be behind us, so whoever adds it says by itself when we wake. */
static void walk(uint64_t era)
{
    uint64_t now = wefti_clock_ns();
    unsigned left = BATCH;
    beats.wakes = NEVER;
    for (beats.at = beats.wires.next; era == beats.era && beats.at != &beats.wires;) {
        sock_wire_t *w = wefti_container_of(beats.at, sock_wire_t, beat_link);
        beats.at = beats.at->next;
        if (w->pulse.due <= now && !w->verdict)
            tick(w, now);
        if (!w->verdict)
            wake_by(w->pulse.due);
        if (!--left) { /* one that was only looked at counts, too: the driver waits for the lock all the same */
            pthread_mutex_unlock(&beats.lock);
            left = BATCH;
            pthread_mutex_lock(&beats.lock);
            now = wefti_clock_ns();
        }
    }
}

/* On a machine with ten times as much to do as it can, an ordinary thread may wake up half a second late. Where the process may
 * have it (root, CAP_SYS_NICE, RLIMIT_RTPRIO), this one goes before ordinary ones: it runs for microseconds. */
static void go_first(void)
{
    const struct sched_param lowest = {.sched_priority = 1};
    (void)sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest);
}

static void *run(void *arg)
{
    uint64_t era = (uint64_t)(uintptr_t)arg;
    go_first();
    pthread_mutex_lock(&beats.lock);
    while (era == beats.era) {
        walk(era);
        if (era != beats.era)
            break;
        if (beats.wakes == NEVER) {
            pthread_cond_wait(&beats.changed, &beats.lock);
        } else {
            struct timespec ts = {.tv_sec = (time_t)(beats.wakes / WEFT_SECOND), .tv_nsec = (long)(beats.wakes % WEFT_SECOND)};
            pthread_cond_timedwait(&beats.changed, &beats.lock, &ts);
        }
    }
    pthread_mutex_unlock(&beats.lock);
    return NULL;
}

static int start_thread(void)
{
    sigset_t all, old;
    pthread_attr_t attr;
    int err = pthread_attr_init(&attr);
    if (err)
        return err;
    wefti_stack_set(&attr, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&beats.thread, &attr, run, (void *)(uintptr_t)beats.era);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (!err)
        pthread_setname_np(beats.thread, "weft-beat");
    return err;
}

/* --- forks -------------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&beats.lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&beats.lock);
}

static void init(void)
{
    pthread_condattr_t attr;
    wefti_list_init(&beats.wires);
    beats.wakes = NEVER;
    prepared = pthread_condattr_init(&attr);
    if (prepared)
        return;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    prepared = pthread_cond_init(&beats.changed, &attr);
    pthread_condattr_destroy(&attr);
}

/* The child begins with nothing: the wires on the list are its parent's. */
static void in_child(void)
{
    beats.runtimes = 0;
    init();
    pthread_mutex_unlock(&beats.lock);
}

static void prepare(void)
{
    init();
    if (!prepared)
        prepared = pthread_atfork(before_fork, in_parent, in_child);
}

uint32_t wefti_beat_events(const sock_wire_t *w)
{
    return w->quiet ? EPOLLRDHUP : EPOLLIN;
}

/* --- for the driver ----------------------------------------------------------------------------------------------- */

/* This runtime has a wire that beats: the thread is there from now on. Under the lock. */
static weft_status_t hold(wefti_sock_t *s)
{
    if (s->beats)
        return WEFT_OK;
    int err = prepared ? prepared : beats.runtimes ? 0 : start_thread();
    if (err)
        return wefti_fail(err == ENOMEM ? WEFT_ERR_NOMEM : WEFT_ERR_LIMIT, "no thread for heartbeats: %s", strerror(err));
    beats.runtimes++;
    s->beats = true;
    return WEFT_OK;
}

void wefti_beats_drop(wefti_sock_t *s)
{
    if (!s->beats)
        return;
    s->beats = false;
    pthread_mutex_lock(&beats.lock);
    bool last = !--beats.runtimes;
    pthread_t thread = beats.thread;
    if (last) {
        beats.era++; /* another runtime may start the next thread before this one has ended */
        pthread_cond_broadcast(&beats.changed);
    }
    pthread_mutex_unlock(&beats.lock);
    if (last)
        pthread_join(thread, NULL);
}

void wefti_beat_lock(sock_wire_t *w)
{
    if (w->beats)
        pthread_mutex_lock(&beats.lock);
}

void wefti_beat_unlock(sock_wire_t *w)
{
    if (w->beats)
        pthread_mutex_unlock(&beats.lock);
}

weft_status_t wefti_sock_wire_beat(wefti_wire_t *wire, uint64_t every_ns, bool by_hand)
{
    sock_wire_t *w = (sock_wire_t *)(void *)wire;
    if (w->state != WIRE_OPEN || w->end || w->beats)
        return WEFT_OK; /* it is over, and wire_closed will say so */
    pthread_once(&once, prepare);
    pthread_mutex_lock(&beats.lock);
    weft_status_t st = hold(w->sock);
    if (!st) {
        w->beats = true;
        w->by_hand = by_hand;
        wefti_pulse_start(&w->pulse, every_ns, wefti_clock_ns());
        wefti_list_push_back(&beats.wires, &w->beat_link);
        if (w->pulse.due < beats.wakes) {
            wake_by(w->pulse.due);
            pthread_cond_broadcast(&beats.changed);
        }
    }
    pthread_mutex_unlock(&beats.lock);
    return st;
}

void wefti_sock_wire_watch(wefti_wire_t *wire, uint64_t bound_ns)
{
    sock_wire_t *w = (sock_wire_t *)(void *)wire;
    wefti_beat_lock(w);
    if (w->beats)
        wefti_pulse_watch(&w->pulse, bound_ns, wefti_clock_ns());
    wefti_beat_unlock(w);
}

void wefti_sock_wire_beat_once(wefti_wire_t *wire)
{
    sock_wire_t *w = (sock_wire_t *)(void *)wire;
    wefti_beat_lock(w);
    if (w->beats && w->fd >= 0 && !w->verdict)
        send_beat(w);
    wefti_beat_unlock(w);
}

void wefti_beat_stop(sock_wire_t *w)
{
    if (!w->beats)
        return;
    pthread_mutex_lock(&beats.lock);
    if (wefti_list_linked(&w->beat_link)) { /* its neighbours in the list belong to other threads: only under the lock */
        if (beats.at == &w->beat_link)
            beats.at = w->beat_link.next;
        wefti_list_remove(&w->beat_link);
    }
    pthread_mutex_unlock(&beats.lock);
}
