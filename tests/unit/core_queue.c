/* tests/unit/core_queue.c - completion queues: each completion is popped once and in order, and the fd says when there are some.
 * ctest: label=thread */
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "base/rng.h"
#include "fake_fabric.h"

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

TEST(completions_come_out_in_their_order)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    weft_op_t ops[10] = {{0}}, *got[16];
    CHECK_OK(weft_queue_new(rt, &q));
    for (int i = 0; i < 10; i++) {
        ops[i].queue = q;
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    }
    CHECK_EQ(weft_queue_pop(q, got, 16, 0), 0);
    CHECK_EQ(weft_queue_free(q), WEFT_ERR_STATE);
    fake_event(rt, 10);
    CHECK_EQ(weft_queue_pop(q, got, 3, WEFT_SECOND), 3);
    CHECK_EQ(weft_queue_pop(q, got + 3, 13, WEFT_SECOND), 7);
    for (int i = 0; i < 10; i++) {
        CHECK(got[i] == &ops[i]);
        CHECK(weft_op_done(got[i]));
    }
    CHECK_EQ(weft_queue_pop(q, got, 16, 5 * WEFT_MILLISECOND), 0);
    CHECK_OK(weft_queue_free(q));
    CHECK_OK(weft_queue_free(NULL));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(an_operation_is_done_but_not_to_be_posted_while_it_is_in_its_queue)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    weft_op_t op = WEFT_OP_INIT, *got;
    CHECK_OK(weft_queue_new(rt, &q));
    op.queue = q;
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    CHECK(weft_op_done(&op));
    CHECK_EQ(fake_post(rt, FAKE_AT_ONCE, &op), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "queue"));
    CHECK_EQ(weft_queue_pop(q, &got, 1, 0), 1);
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &op));
    CHECK_EQ(fake_post(rt, FAKE_AT_ONCE, &op), WEFT_ERR_STATE);
    CHECK_EQ(weft_queue_pop(q, &got, 1, 0), 1);
    CHECK_EQ(fake_post(rt, FAKE_FAILS, &op), WEFT_ERR_LIMIT);
    CHECK_OK(weft_queue_free(q)); /* the failed post is not counted */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_fd_is_readable_while_the_queue_is_not_empty)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    weft_op_t ops[3] = {{0}}, *got[3];
    CHECK_OK(weft_queue_new(rt, &q));
    for (int i = 0; i < 3; i++)
        ops[i].queue = q;
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[0]));
    weft_runtime_progress(rt);
    int fd = weft_queue_fd(q);
    CHECK(fd >= 0);
    CHECK_EQ(weft_queue_fd(q), fd);
    CHECK(readable(fd));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[1]));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[2]));
    weft_runtime_progress(rt);
    CHECK_EQ(weft_queue_pop(q, got, 2, 0), 2);
    CHECK(readable(fd));
    CHECK_EQ(weft_queue_pop(q, got, 2, 0), 1);
    CHECK(!readable(fd));
    CHECK_OK(fake_post(rt, FAKE_AT_ONCE, &ops[0]));
    CHECK(!readable(fd)); /* not delivered yet */
    weft_runtime_progress(rt);
    CHECK(readable(fd));
    CHECK_EQ(weft_queue_pop(q, got, 2, 0), 1);
    CHECK(!readable(fd));
    CHECK_OK(weft_queue_free(q));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_queue_outlives_its_runtime_with_what_is_in_it)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    weft_op_t ops[2] = {{0}}, *got[4];
    CHECK_OK(weft_queue_new(rt, &q));
    for (int i = 0; i < 2; i++) {
        ops[i].queue = q;
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    }
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(weft_queue_pop(q, got, 4, WEFT_SECOND), 2);
    CHECK_EQ(got[0]->status, WEFT_ERR_CLOSED);
    CHECK_EQ(weft_queue_pop(q, got, 4, WEFT_SECOND), 0);
    CHECK_OK(weft_queue_free(q));
}

/* --- threads --------------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TOTAL = 10000 };
#else
enum { TOTAL = 200000 };
#endif
enum { WINDOW = 64 };

typedef struct consumer {
    weft_runtime_t *rt;
    weft_queue_t *q;
    bool polls;
    _Atomic bool finished;
} consumer_t;

static void *consume(void *arg)
{
    consumer_t *c = arg;
    weft_op_t ops[WINDOW] = {{0}}, *got[16];
    unsigned posted = 0, popped = 0;
    wefti_rng_t rng = {9};
    int fd = c->polls ? weft_queue_fd(c->q) : -1;
    for (; posted < WINDOW; posted++) {
        ops[posted].queue = c->q;
        CHECK_OK(fake_post(c->rt, FAKE_WAITS, &ops[posted]));
    }
    while (popped < TOTAL) {
        if (c->polls) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            CHECK_EQ(poll(&p, 1, 20000), 1);
        }
        size_t n = weft_queue_pop(c->q, got, 1 + wefti_rng_below(&rng, 16), c->polls ? 0 : 20 * WEFT_SECOND);
        CHECK(n || c->polls);
        for (size_t i = 0; i < n; i++) {
            popped++;
            if (posted < TOTAL) {
                posted++;
                CHECK_OK(fake_post(c->rt, wefti_rng_below(&rng, 2) ? FAKE_WAITS : FAKE_AT_ONCE, got[i]));
            }
        }
    }
    atomic_store(&c->finished, true);
    return NULL;
}

static void run_consumer(weft_progress_mode_t mode, bool polls)
{
    consumer_t c = {.rt = fake_open(mode, 0), .polls = polls};
    wefti_rng_t rng = {11};
    pthread_t id;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    CHECK_OK(weft_queue_new(c.rt, &c.q));
    CHECK(!pthread_create(&id, NULL, consume, &c));
    while (!atomic_load(&c.finished)) {
        fake_event(c.rt, 1 + (unsigned)wefti_rng_below(&rng, 20));
        if (wefti_rng_below(&rng, 3) == 0)
            usleep((useconds_t)wefti_rng_below(&rng, 40));
    }
    pthread_join(id, NULL);
    CHECK_OK(weft_queue_free(c.q)); /* at once: the driver may just be leaving it */
    weft_runtime_get_stats(c.rt, &stats);
    CHECK(stats.rescued_wakeups <= 1);
    CHECK_OK(weft_runtime_close(c.rt));
}

TEST(a_thread_pops_what_the_runtime_thread_completes)
{
    run_consumer(WEFT_PROGRESS_THREAD, false);
}

TEST(a_thread_polls_the_fd_of_the_queue)
{
    run_consumer(WEFT_PROGRESS_THREAD, true);
}

TEST(popping_drives_a_caller_driven_runtime)
{
    run_consumer(WEFT_PROGRESS_CALLER, false);
}

/* --- the fd, and who else has it ------------------------------------------------------------------------------------------ */

typedef struct lit {
    weft_runtime_t *rt;
    weft_queue_t *q;
    weft_op_t op;
    int fd;
} lit_t;

/* A queue with a completion in it, and a readable fd. */
static void lit_open(lit_t *l)
{
    *l = (lit_t){.rt = fake_open(0, 0)};
    CHECK_OK(weft_queue_new(l->rt, &l->q));
    l->fd = weft_queue_fd(l->q);
    CHECK(l->fd >= 0);
    l->op.queue = l->q;
    CHECK_OK(fake_post(l->rt, FAKE_AT_ONCE, &l->op));
    CHECK_OK(weft_op_wait(&l->op, WEFT_SECOND));
    CHECK(readable(l->fd));
}

/* It goes on as ever. */
static void lit_goes_on(lit_t *l)
{
    weft_op_t *got;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(fake_post(l->rt, FAKE_AT_ONCE, &l->op));
        CHECK_OK(weft_op_wait(&l->op, WEFT_SECOND));
        CHECK(readable(l->fd));
        CHECK_EQ(weft_queue_pop(l->q, &got, 1, 0), 1);
        CHECK_EQ(weft_queue_pop(l->q, &got, 1, 0), 0);
        CHECK(!readable(l->fd));
    }
    CHECK_OK(weft_queue_free(l->q));
    CHECK_OK(weft_runtime_close(l->rt));
}

TEST(a_forked_child_pops_nothing_and_leaves_the_fd_alone)
{
    lit_t l;
    weft_op_t *got;
    int status;
    alarm(60);
    lit_open(&l);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        alarm(20);
        CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 0);
        CHECK_EQ(weft_queue_pop(l.q, &got, 1, WEFT_FOREVER), 0);
        CHECK_EQ(weft_queue_fd(l.q), WEFT_ERR_FORKED);
        CHECK_EQ(weft_queue_free(l.q), WEFT_ERR_FORKED);
        CHECK_EQ(weft_runtime_close(l.rt), WEFT_ERR_FORKED);
        CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 0); /* of a runtime that is gone, too */
        CHECK_EQ(weft_queue_free(l.q), WEFT_ERR_FORKED);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK(readable(l.fd));
    CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 1);
    CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 0);
    CHECK(!readable(l.fd));
    lit_goes_on(&l);
}

TEST(a_child_forked_after_the_runtime_closed_leaves_the_fd_alone_too)
{
    lit_t l;
    weft_op_t *got;
    int status;
    alarm(60);
    lit_open(&l);
    CHECK_OK(weft_runtime_close(l.rt));
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        alarm(20);
        CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 0);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK(readable(l.fd));
    CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 1);
    CHECK(!readable(l.fd));
    CHECK_OK(weft_queue_free(l.q));
}

TEST(a_program_that_reads_the_fd_itself_holds_nobody_up)
{
    lit_t l;
    weft_op_t *got;
    uint64_t count;
    alarm(60);
    lit_open(&l);
    CHECK_EQ(read(l.fd, &count, sizeof count), sizeof count);
    CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 1);
    CHECK_EQ(weft_queue_pop(l.q, &got, 1, 0), 0);
    lit_goes_on(&l);
}

TEST(a_child_of_a_thread_that_held_the_list_of_queues_can_close)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_queue_t *q;
    int status;
    alarm(60);
    CHECK_OK(weft_queue_new(rt, &q));
    atomic_store(&rt->queues_lock, 1); /* as a thread has it that makes a queue just now */
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        alarm(20);
        CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_FORKED);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    atomic_store(&rt->queues_lock, 0);
    CHECK_OK(weft_queue_free(q));
    CHECK_OK(weft_runtime_close(rt));
}

typedef struct freeing {
    _Atomic unsigned came; /* to the meeting points of both threads, one after the other */
    weft_queue_t *q;
    weft_status_t said[2];
} freeing_t;

enum { FREED_QUEUES = 10000 };

/* Both go on at once: neither sleeps. */
static void meet(freeing_t *f)
{
    unsigned all = atomic_fetch_add(&f->came, 1) / 2 * 2 + 2;
    for (unsigned looks = 0; atomic_load(&f->came) < all; looks++)
        if (looks > 10000) /* there may be one processor */
            sched_yield();
}

static void *free_each(void *arg)
{
    freeing_t *f = arg;
    for (int i = 0; i < FREED_QUEUES; i++) {
        meet(f); /* there is one */
        f->said[1] = weft_queue_free(f->q);
        meet(f); /* both have freed it */
    }
    return NULL;
}

TEST(of_two_threads_that_free_a_queue_one_is_told_that_it_is_gone)
{
    weft_runtime_t *rt = fake_open(0, 0);
    static freeing_t f;
    pthread_t id;
    CHECK(!pthread_create(&id, NULL, free_each, &f));
    for (int i = 0; i < FREED_QUEUES; i++) {
        CHECK_OK(weft_queue_new(rt, &f.q));
        meet(&f);
        f.said[0] = weft_queue_free(f.q);
        meet(&f);
        CHECK_EQ(f.said[0] + f.said[1], WEFT_ERR_CLOSED);
    }
    pthread_join(id, NULL);
    CHECK_OK(weft_runtime_close(rt));
}
