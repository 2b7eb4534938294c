/* base/hands.c - idle threads of the process that do a part of a long piece of work.
 *
 *     maker:  takes a stand --> puts the offer up --> takes parts --> all are taken --> all are done: gives the stand back
 *     hand:   sleeps --a bell--> takes parts of any stand --nothing for SPIN--> sleeps
 *
 * A stand is static memory. Its word has the number of the offer, the count of parts and the next one: taking a part is one
 * compare-and-swap on all three. So a hand that comes late, with the number of an offer that is over, takes nothing, and it
 * touches the memory of an offer only while it has a part, for which the maker waits.
 *
 * A hand is never waited for before it has begun. One that has begun may lose its processor: the maker does other things
 * meanwhile (wefti_hands_over()). How long that took is remembered: for PAUSE times as long nobody is asked, so that on a busy
 * machine at most one part in PAUSE of the time is lost. A hand that finds itself on the processor of the maker takes nothing,
 * since it would only take turns with it, and nobody is asked for a while either.
 *
 * Hands start when they are first needed: one for each processor of the process beyond those of the threads that drive. They
 * block all signals, and run none of the program's code. They end with the last runtime. A forked child has none, and starts
 * anew.
 *
 * Promise: each part is done once; when an offer is over, no hand is inside. tests/unit/base_hands_thread.c. */
#include "base/hands.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/relax.h"

#define STANDS 16u            /* offers at one time */
#define SPIN_NS 50000u        /* a driver is back with the next offer of a transfer in a few us */
#define LATE_NS 100000u       /* a part takes 10 us: so it has lost its processor */
#define PAUSE 50u             /* times as long as the wait, so that at most 2 % of the time goes into waits */
#define PAUSE_SAME_NS 2000000 /* after a hand that found itself on the maker's processor: it took 10 us of it */
#define PAUSE_MOST_NS UINT64_C(1000000000)

/* number of the offer << 32 | parts << 16 | next part */
#define WORD(number, n, next) ((uint64_t)(number) << 32 | (uint64_t)(n) << 16 | (next))
#define WORD_NUMBER(w) ((uint32_t)((w) >> 32))
#define WORD_PARTS(w) ((uint32_t)((w) >> 16 & 0xffff))
#define WORD_NEXT(w) ((uint32_t)((w)&0xffff))

typedef struct wefti_stand {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic(wefti_hands_fn) fn; /* of the offer that is up; read before a part is taken, and good if it could be taken */
    _Atomic(void *) arg;
    _Atomic uint32_t most;
    _Atomic int processor; /* the maker's */
    _Alignas(64) _Atomic uint32_t done;
} wefti_stand_t;

static wefti_stand_t stands[STANDS];
static _Atomic uint32_t taken;  /* stands, a bit each */
static _Atomic uint32_t up;     /* of them, those with an offer */
static _Atomic uint32_t asleep; /* hands that sleep and that nobody has called, a bit each */
static _Atomic uint32_t bell;   /* hands sleep on it */
static _Atomic uint64_t pause_until;
static _Atomic uint64_t did;
static _Atomic bool stopping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is beneath; a fork waits for it */
static _Atomic uint32_t n_hands;
static pthread_t hands[WEFTI_HANDS_MOST];
static uint32_t users;              /* runtimes */
static _Atomic uint32_t drivers;    /* of them, those with a thread of their own */
static _Atomic uint32_t processors; /* that this process may use */
static _Atomic bool unwatched;      /* forks cannot be noticed */
static uint32_t generation = 1;     /* one more in a forked child */

uint32_t wefti_hands_processors;
_Atomic bool wefti_hands_patient;

/* --- forks -------------------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    generation++;
    atomic_store(&taken, 0);
    atomic_store(&up, 0);
    atomic_store(&asleep, 0);
    atomic_store(&n_hands, 0);
    atomic_store(&drivers, 0);
    users = 0;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child)) { /* without it a child would wait for hands that it does not have */
        wefti_error("no memory to notice forks: no threads will help with long copies");
        atomic_store(&unwatched, true);
    }
}

/* --- a hand ------------------------------------------------------------------------------------------------------------- */

static void pause_for(uint64_t ns)
{
    uint64_t until = wefti_clock_ns() + (ns < PAUSE_MOST_NS ? ns : PAUSE_MOST_NS);
    if (!wefti_hands_patient && until > atomic_load(&pause_until)) /* two that store at once: one of both holds */
        atomic_store(&pause_until, until);
}

/* The next part of what is up there. False: none is left. */
static bool take(wefti_stand_t *s, wefti_hands_fn *fn_out, void **arg_out, uint32_t *part_out)
{
    uint64_t w = atomic_load_explicit(&s->word, memory_order_acquire);
    while (WORD_NEXT(w) < WORD_PARTS(w)) {
        *fn_out = atomic_load_explicit(&s->fn, memory_order_relaxed);
        *arg_out = atomic_load_explicit(&s->arg, memory_order_relaxed);
        *part_out = WORD_NEXT(w);
        if (atomic_compare_exchange_weak_explicit(&s->word, &w, w + 1, memory_order_acq_rel, memory_order_acquire))
            return true;
    }
    return false;
}

/* Parts of one stand. How many; -1: we have the processor of its maker. */
static int help(wefti_stand_t *s, uint32_t me)
{
    wefti_hands_fn fn;
    void *arg;
    uint32_t part;
    int n = 0;
    if (me >= atomic_load_explicit(&s->most, memory_order_relaxed))
        return 0;
    while (atomic_load_explicit(&s->processor, memory_order_relaxed) != sched_getcpu() || wefti_hands_patient) {
        if (!take(s, &fn, &arg, &part))
            return n;
        fn(arg, part);
        atomic_fetch_add_explicit(&did, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&s->done, 1, memory_order_release);
        n++;
    }
    uint64_t w = atomic_load_explicit(&s->word, memory_order_relaxed);
    return WORD_NEXT(w) < WORD_PARTS(w) ? -1 : n;
}

/* Sleep until there is an offer. One that was made since we looked is not ours any more; the next one calls us. */
static void rest(uint32_t me)
{
    uint32_t seen = atomic_load(&bell), bit = 1u << me;
    atomic_fetch_or(&asleep, bit);
    if (atomic_load(&stopping) || atomic_load(&bell) != seen)
        atomic_fetch_and(&asleep, ~bit);
    else
        wefti_futex_wait(&bell, seen, UINT64_MAX);
}

static void *hand(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg;
    uint64_t until = wefti_clock_ns() + SPIN_NS;
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        int n = 0;
        for (uint32_t left = atomic_load(&up); left && n >= 0; left &= left - 1) {
            int here = help(&stands[__builtin_ctz(left)], me);
            n = here < 0 ? here : n + here;
        }
        if (n < 0)
            pause_for(PAUSE_SAME_NS);
        if (n > 0)
            until = wefti_clock_ns() + SPIN_NS;
        else if (n < 0 || wefti_clock_ns() >= until) {
            rest(me);
            until = wefti_clock_ns() + SPIN_NS;
        } else
            wefti_cpu_relax();
    }
    return NULL;
}

/* --- how many ------------------------------------------------------------------------------------------------------------ */

static uint32_t count_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) /* there are more than a set takes */
        return CPU_SETSIZE;
    return (uint32_t)CPU_COUNT(&set);
}

void wefti_hands_begin(wefti_hands_user_t *user, bool thread)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    *user = (wefti_hands_user_t){generation, thread};
    users++;
    atomic_fetch_add(&drivers, thread);
    atomic_store(&processors, count_processors());
    pthread_mutex_unlock(&lock);
}

static void dismiss(void)
{
    atomic_store(&stopping, true);
    atomic_fetch_add(&bell, 1);
    wefti_futex_wake(&bell, WEFTI_HANDS_MOST);
    for (uint32_t n = atomic_load(&n_hands); n--;)
        pthread_join(hands[n], NULL);
    atomic_store(&n_hands, 0);
    atomic_store(&asleep, 0);
    atomic_store(&pause_until, 0);
    atomic_store(&stopping, false);
}

void wefti_hands_end(wefti_hands_user_t *user)
{
    pthread_mutex_lock(&lock);
    if (user->generation == generation) {
        atomic_fetch_sub(&drivers, user->thread);
        if (!--users)
            dismiss();
    }
    pthread_mutex_unlock(&lock);
    *user = (wefti_hands_user_t){0};
}

uint32_t wefti_hands_free(uint64_t wanted)
{
    uint32_t all = wefti_hands_processors ? wefti_hands_processors : atomic_load_explicit(&processors, memory_order_relaxed);
    uint32_t busy = atomic_load_explicit(&drivers, memory_order_relaxed);
    busy = busy ? busy : 1;
    uint32_t left = all > busy && !atomic_load_explicit(&unwatched, memory_order_relaxed) ? all - busy : 0;
    left = left < WEFTI_HANDS_MOST ? left : WEFTI_HANDS_MOST;
    return wanted < left ? (uint32_t)wanted : left;
}

/* Have that many. False: there is none. */
static bool hire(uint32_t n)
{
    uint32_t have = atomic_load(&n_hands);
    if (have >= n || pthread_mutex_trylock(&lock)) /* another one hires, or forks */
        return have > 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = 0;
    for (have = atomic_load(&n_hands); have < n && !err; have += !err) {
        err = pthread_create(&hands[have], NULL, hand, (void *)(uintptr_t)have);
        if (!err)
            pthread_setname_np(hands[have], "weft-hand");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    atomic_store(&n_hands, have);
    pthread_mutex_unlock(&lock);
    if (err)
        pause_for(PAUSE_MOST_NS); /* it is no error: the work is done without them */
    return have > 0;
}

/* --- offers -------------------------------------------------------------------------------------------------------------- */

static wefti_stand_t *take_stand(void)
{
    uint32_t all = atomic_load(&taken);
    while (~all & ((1u << STANDS) - 1)) {
        uint32_t i = (uint32_t)__builtin_ctz(~all);
        if (atomic_compare_exchange_weak(&taken, &all, all | 1u << i))
            return &stands[i];
    }
    return NULL;
}

static uint32_t bit_of(const wefti_stand_t *s)
{
    return 1u << (uint32_t)(s - stands);
}

static void take_down(wefti_offer_t *o)
{
    uint32_t bit = bit_of(o->stand);
    atomic_fetch_and(&up, ~bit);
    o->stand = NULL;
    atomic_fetch_and(&taken, ~bit);
}

bool wefti_hands_offer(wefti_offer_t *o, wefti_hands_fn fn, void *arg, uint32_t n, uint32_t most)
{
    uint64_t until = atomic_load_explicit(&pause_until, memory_order_relaxed);
    if (!most || n < 2 || n > WEFTI_PARTS_MOST || (until && wefti_clock_ns() < until) || !hire(most))
        return false;
    wefti_stand_t *s = take_stand();
    if (!s)
        return false;
    *o = (wefti_offer_t){s, fn, arg, 0};
    uint32_t number = WORD_NUMBER(atomic_load_explicit(&s->word, memory_order_relaxed)) + 1;
    atomic_store_explicit(&s->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&s->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&s->most, most, memory_order_relaxed);
    atomic_store_explicit(&s->processor, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&s->done, 0, memory_order_relaxed);
    atomic_store_explicit(&s->word, WORD(number, n, 0), memory_order_release);
    atomic_fetch_or(&up, bit_of(s));
    if (atomic_load(&asleep) && atomic_exchange(&asleep, 0)) {
        atomic_fetch_add(&bell, 1);
        wefti_futex_wake(&bell, WEFTI_HANDS_MOST);
    }
    return true;
}

bool wefti_hands_work(wefti_offer_t *o)
{
    wefti_hands_fn fn;
    void *arg;
    uint32_t part;
    if (!o->stand || !take(o->stand, &fn, &arg, &part))
        return false;
    fn(arg, part);
    atomic_fetch_add_explicit(&o->stand->done, 1, memory_order_release);
    return true;
}

bool wefti_hands_over(wefti_offer_t *o)
{
    wefti_stand_t *s = o->stand;
    if (!s)
        return true;
    uint64_t w = atomic_load_explicit(&s->word, memory_order_relaxed);
    if (WORD_NEXT(w) < WORD_PARTS(w))
        return false;
    if (atomic_load_explicit(&s->done, memory_order_acquire) < WORD_NEXT(w)) {
        if (!o->waits_since)
            o->waits_since = wefti_clock_ns() | 1;
        return false;
    }
    if (o->waits_since) {
        uint64_t waited = wefti_clock_ns() - o->waits_since;
        if (waited > LATE_NS)
            pause_for(waited * PAUSE);
    }
    take_down(o);
    return true;
}

void wefti_hands_stop(wefti_offer_t *o)
{
    wefti_stand_t *s = o->stand;
    if (!s)
        return;
    uint64_t w = atomic_load(&s->word);
    while (!atomic_compare_exchange_weak(&s->word, &w, WORD(WORD_NUMBER(w), WORD_NEXT(w), WORD_NEXT(w))))
        ;
    while (!wefti_hands_over(o))
        sched_yield(); /* a hand has begun a part: a few us, unless it has lost its processor, perhaps to us */
}

uint64_t wefti_hands_did(void)
{
    return atomic_load(&did);
}

uint32_t wefti_hands_n(void)
{
    return atomic_load(&n_hands);
}
