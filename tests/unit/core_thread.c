/* tests/unit/core_thread.c - a runtime with its own thread: everything once whoever asks, no wake-up lost, no CPU used when idle.
 * ctest: timeout=240 */
#include "test.h"

#include <pthread.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "fake_fabric.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLEEPS = 5000, ROUNDS = 5000 };
#else
enum { SLEEPS = 100000, ROUNDS = 60000 };
#endif

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

TEST(an_idle_thread_uses_less_than_one_percent_of_a_cpu)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 50 * WEFT_MICROSECOND);
    usleep(50000);
    double before = cpu_seconds();
    usleep(1000000);
    CHECK(cpu_seconds() - before < 0.01);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(callbacks_run_on_the_thread_and_progress_by_others_does_nothing)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 0);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    CHECK_EQ(weft_runtime_progress(rt), 0);
    do /* an event that comes before the thread has started the operation is for nobody */
        fake_event(rt, 1);
    while (weft_op_wait(&op, 10 * WEFT_MILLISECOND) && !weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_EQ(weft_runtime_fd(rt), WEFT_ERR_STATE);
    CHECK_EQ(weft_runtime_arm(rt), WEFT_ERR_STATE);
    CHECK_EQ(weft_runtime_next_timeout(rt), WEFT_FOREVER);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(no_wake_up_is_lost_in_a_hundred_thousand_sleeps)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_THREAD, 0);
    wefti_rng_t rng = {13};
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    for (int i = 0; i < SLEEPS; i++) {
        bool by_event = wefti_rng_below(&rng, 2);
        CHECK_OK(fake_post(rt, by_event ? FAKE_WAITS : FAKE_AT_ONCE, &op));
        for (uint64_t spin = wefti_rng_below(&rng, 400); spin; spin--)
            atomic_load(&fake_of(rt)->armed);
        if (by_event)
            fake_event(rt, 1);
        /* an event that came before the operation was started was for nobody: the wait then ends here, and another is sent */
        while (weft_op_wait(&op, 10 * WEFT_MILLISECOND) && !weft_op_done(&op))
            fake_event(rt, 1);
        CHECK_OK(op.status);
        for (uint64_t spin = wefti_rng_below(&rng, 4) ? 0 : wefti_rng_below(&rng, 3000); spin; spin--)
            atomic_load(&fake_of(rt)->armed); /* let it fall asleep, or nearly */
    }
    weft_runtime_get_stats(rt, &stats);
    CHECK(stats.sleeps > SLEEPS / 10);
    CHECK(stats.rescued_wakeups <= 1); /* an event in the instant the safety timer runs out looks like a rescue */
    CHECK_OK(weft_runtime_close(rt));
}

/* --- exactly once, from everywhere at once --------------------------------------------------------------------------------- */

enum { THREADS = 3, OPS = 32 };

typedef struct world {
    weft_runtime_t *rt;
    weft_token_t *_Atomic token; /* replaced now and then, and cancelled */
    _Atomic unsigned finished, seed;
    _Atomic uint64_t told, queued, waited, posted;
} world_t;

typedef struct actor {
    weft_op_t op;
    world_t *w;
    _Atomic bool busy; /* with fn: posted and not told */
} actor_t;

static void actor_told(weft_op_t *op, void *user)
{
    actor_t *a = user;
    CHECK(&a->op == op);
    CHECK(weft_op_done(op));
    CHECK(atomic_load(&a->busy));
    atomic_fetch_add(&a->w->told, 1);
    atomic_store(&a->busy, false);
}

static void *act(void *arg)
{
    world_t *w = arg;
    wefti_rng_t rng = {atomic_fetch_add(&w->seed, 1)};
    actor_t *all = calloc(OPS, sizeof *all);
    weft_queue_t *q;
    weft_token_t *token;
    CHECK_OK(weft_queue_new(w->rt, &q));
    CHECK_OK(weft_token_new(w->rt, NULL, &token));
    unsigned in_queue = 0;
    for (int i = 0; i < OPS; i++) {
        all[i].w = w;
        if (i % 3 == 0) {
            all[i].op.fn = actor_told;
            all[i].op.user = &all[i];
        } else if (i % 3 == 1) {
            all[i].op.queue = q;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        actor_t *a = &all[wefti_rng_below(&rng, OPS)];
        weft_op_t *got[8];
        size_t n;
        switch (wefti_rng_below(&rng, 8)) {
        default:
            if (a->op.fn ? atomic_load(&a->busy) : !weft_op_done(&a->op))
                break;
            a->op.timeout_ns = wefti_rng_below(&rng, 4) ? 0 : 1 + wefti_rng_below(&rng, 100000);
            a->op.token = wefti_rng_below(&rng, 3) ? NULL : token;
            atomic_store(&a->busy, true);
            weft_status_t st = fake_post(w->rt, (fake_how_t)wefti_rng_below(&rng, 3), &a->op);
            if (st) {
                CHECK(st == WEFT_ERR_CANCELLED || st == WEFT_ERR_STATE); /* its token; or it is still in its queue */
                atomic_store(&a->busy, false);
                break;
            }
            atomic_fetch_add(&w->posted, 1);
            in_queue += a->op.queue != NULL;
            if (!a->op.fn && !a->op.queue)
                atomic_fetch_add(&w->waited, 1);
            break;
        case 4:
            weft_op_cancel(&a->op);
            break;
        case 5:
            n = weft_queue_pop(q, got, 8, wefti_rng_below(&rng, 2) ? 0 : wefti_rng_below(&rng, 30000));
            CHECK(n <= in_queue);
            in_queue -= (unsigned)n;
            atomic_fetch_add(&w->queued, n);
            break;
        case 6:
            if (!a->op.fn && !a->op.queue) /* the others may be told, or popped, by the time it returns */
                weft_op_wait(&a->op, wefti_rng_below(&rng, 50000));
            break;
        case 7:
            if (wefti_rng_below(&rng, 20) == 0) {
                weft_token_cancel(token);
                weft_token_drop(token);
                CHECK_OK(weft_token_new(w->rt, NULL, &token));
            }
            break;
        }
    }
    for (int i = 0; i < OPS; i++) {
        weft_op_cancel(&all[i].op);
        weft_op_cancel(&all[i].op);
    }
    while (in_queue) {
        weft_op_t *got[8];
        size_t n = weft_queue_pop(q, got, 8, 20 * WEFT_SECOND);
        CHECK(n);
        in_queue -= (unsigned)n;
        atomic_fetch_add(&w->queued, n);
    }
    for (int i = 0; i < OPS; i++) {
        if (!all[i].op.fn)
            weft_op_wait(&all[i].op, 20 * WEFT_SECOND);
        while (all[i].op.fn && atomic_load(&all[i].busy)) {
            weft_runtime_progress(w->rt);
            sched_yield();
        }
        CHECK(weft_op_done(&all[i].op));
    }
    weft_token_drop(token);
    CHECK_OK(weft_queue_free(q));
    free(all);
    atomic_fetch_add(&w->finished, 1);
    return NULL;
}

static void everything(weft_progress_mode_t mode, uint64_t spin)
{
    world_t w = {.rt = fake_open(mode, spin), .seed = 1};
    pthread_t ids[THREADS];
    wefti_rng_t rng = {99};
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&ids[i], NULL, act, &w));
    while (atomic_load(&w.finished) < THREADS) {
        fake_event(w.rt, 1 + (unsigned)wefti_rng_below(&rng, 8));
        usleep((useconds_t)wefti_rng_below(&rng, 50));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    weft_runtime_get_stats(w.rt, &stats);
    CHECK_EQ(stats.ops_posted, atomic_load(&w.posted));
    CHECK_EQ(stats.ops_completed, stats.ops_posted);
    CHECK_EQ(w.told + w.queued + w.waited, w.posted);
    CHECK(stats.rescued_wakeups <= 1);
    CHECK_OK(weft_runtime_close(w.rt));
}

TEST(everything_at_once_completes_once_on_a_runtime_thread)
{
    everything(WEFT_PROGRESS_THREAD, 0);
}

TEST(everything_at_once_completes_once_on_a_spinning_runtime_thread)
{
    everything(WEFT_PROGRESS_THREAD, 50 * WEFT_MICROSECOND);
}

TEST(everything_at_once_completes_once_when_callers_drive)
{
    everything(WEFT_PROGRESS_CALLER, 0);
}
