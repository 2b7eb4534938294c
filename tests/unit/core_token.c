/* tests/unit/core_token.c - cancellation tokens: every operation posted with one is asked to end once, whichever comes first.
 * ctest: label=thread */
#include "test.h"

#include <pthread.h>

#include "base/rng.h"
#include "fake_fabric.h"

TEST(cancelling_a_token_ends_its_operations_and_later_ones)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_token_t *token;
    CHECK_OK(weft_token_new(rt, NULL, &token));
    weft_op_t ops[10] = {{0}}, other = WEFT_OP_INIT, late = {.token = token};
    for (int i = 0; i < 10; i++) {
        ops[i].token = token;
        CHECK_OK(fake_post(rt, FAKE_WAITS, &ops[i]));
    }
    CHECK_OK(fake_post(rt, FAKE_WAITS, &other));
    CHECK(!weft_token_cancelled(token));
    weft_token_cancel(token);
    weft_token_cancel(token);
    CHECK(weft_token_cancelled(token));
    for (int i = 0; i < 10; i++)
        CHECK_EQ(weft_op_wait(&ops[i], 0), WEFT_ERR_CANCELLED);
    CHECK(!weft_op_done(&other));
    CHECK_OK(fake_post(rt, FAKE_WAITS, &late));
    CHECK_EQ(weft_op_wait(&late, 0), WEFT_ERR_CANCELLED);
    weft_token_drop(token);
    weft_token_drop(NULL);
    weft_token_cancel(NULL);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_cancelled_parent_cancels_children_and_their_children_but_not_the_other_way_round)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_token_t *root, *child, *grandchild, *sibling;
    CHECK_OK(weft_token_new(rt, NULL, &root));
    CHECK_OK(weft_token_new(rt, root, &child));
    CHECK_OK(weft_token_new(rt, root, &sibling));
    CHECK_OK(weft_token_new(rt, child, &grandchild));
    weft_op_t a = {.token = root}, b = {.token = child}, c = {.token = grandchild}, d = {.token = sibling};
    weft_op_t *all[] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++)
        CHECK_OK(fake_post(rt, FAKE_WAITS, all[i]));
    weft_token_drop(root); /* the children keep it */
    weft_token_cancel(child);
    CHECK(weft_op_done(&b) && weft_op_done(&c) && !weft_op_done(&a) && !weft_op_done(&d));
    CHECK(weft_token_cancelled(grandchild) && !weft_token_cancelled(sibling));
    weft_token_drop(child);
    weft_token_drop(grandchild);
    weft_token_cancel(root); /* a is on it still, and holds it */
    CHECK(weft_op_done(&a) && weft_op_done(&d));
    weft_token_t *late;
    CHECK_OK(weft_token_new(rt, sibling, &late));
    CHECK(weft_token_cancelled(late));
    weft_token_drop(late);
    weft_token_drop(sibling);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(an_operation_keeps_its_token_alive)
{
    weft_runtime_t *rt = fake_open(0, 0);
    weft_token_t *token;
    CHECK_OK(weft_token_new(rt, NULL, &token));
    weft_op_t op = {.token = token};
    CHECK_OK(fake_post(rt, FAKE_WAITS, &op));
    weft_token_drop(token);
    fake_event(rt, 1);
    CHECK_OK(weft_op_wait(&op, WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(tokens_of_another_runtime_are_refused)
{
    weft_runtime_t *a = fake_open(0, 0), *b = fake_open(0, 0);
    weft_token_t *token, *child;
    CHECK_OK(weft_token_new(a, NULL, &token));
    weft_op_t op = {.token = token};
    CHECK_EQ(fake_post(b, FAKE_WAITS, &op), WEFT_ERR_INVALID);
    CHECK_EQ(weft_token_new(b, token, &child), WEFT_ERR_INVALID);
    weft_token_drop(token);
    CHECK_OK(weft_runtime_close(a));
    CHECK_OK(weft_runtime_close(b));
}

static void *cancel_token(void *arg)
{
    weft_token_cancel(arg);
    return NULL;
}

TEST(an_operation_posted_before_and_started_after_the_cancel_ends)
{
    weft_runtime_t *rt = fake_open(0, 0), *was;
    weft_token_t *token;
    pthread_t id;
    CHECK_OK(weft_token_new(rt, NULL, &token));
    weft_op_t op = {.token = token};
    CHECK(wefti_enter(rt, &was)); /* so that the cancel waits in the inbox, before the operation */
    CHECK_OK(fake_prepare(rt, FAKE_WAITS, &op));
    CHECK(!pthread_create(&id, NULL, cancel_token, token));
    pthread_join(id, NULL);
    CHECK(weft_token_cancelled(token));
    wefti_op_inbox(&op);
    weft_token_drop(token);
    CHECK(!weft_op_done(&op));
    wefti_leave(rt, was);
    CHECK_EQ(weft_op_wait(&op, 0), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- threads --------------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 300 };
#else
enum { ROUNDS = 3000 };
#endif
enum { MOST_SECONDS = 15 };
enum { POSTERS = 3 };

typedef struct tree {
    weft_runtime_t *rt;
    weft_token_t *root;
    _Atomic int ready, posted;
    unsigned cancelled[POSTERS];
} tree_t;

typedef struct poster {
    tree_t *tree;
    int index;
} poster_t;

static void *post_with_child(void *arg)
{
    poster_t *p = arg;
    tree_t *t = p->tree;
    weft_token_t *child;
    CHECK_OK(weft_token_new(t->rt, t->root, &child));
    weft_op_t ops[4] = {{0}};
    atomic_fetch_add(&t->ready, 1);
    while (atomic_load(&t->ready) < POSTERS + 1)
        sched_yield();
    for (int i = 0; i < 4; i++) {
        ops[i].token = i % 2 ? child : t->root;
        CHECK_OK(fake_post(t->rt, FAKE_WAITS, &ops[i]));
    }
    weft_token_drop(child);
    for (int i = 0; i < 4; i++)
        if (weft_op_wait(&ops[i], 20 * WEFT_SECOND) == WEFT_ERR_CANCELLED)
            t->cancelled[p->index]++;
    return NULL;
}

static void race(weft_progress_mode_t mode)
{
    weft_runtime_t *rt = fake_open(mode, 0);
    wefti_rng_t rng = {5};
    double end = test_now() + MOST_SECONDS; /* of a machine that has no time for so many threads */
    for (int round = 0; round < ROUNDS && test_now() < end; round++) {
        tree_t t = {.rt = rt};
        poster_t posters[POSTERS];
        pthread_t ids[POSTERS];
        CHECK_OK(weft_token_new(rt, NULL, &t.root));
        for (int i = 0; i < POSTERS; i++) {
            posters[i] = (poster_t){&t, i};
            CHECK(!pthread_create(&ids[i], NULL, post_with_child, &posters[i]));
        }
        while (atomic_load(&t.ready) < POSTERS)
            sched_yield();
        atomic_fetch_add(&t.ready, 1);
        for (uint64_t spin = wefti_rng_below(&rng, 200); spin; spin--)
            atomic_load(&t.ready);
        weft_token_cancel(t.root);
        for (int i = 0; i < POSTERS; i++) {
            pthread_join(ids[i], NULL);
            CHECK_EQ(t.cancelled[i], 4);
        }
        weft_token_drop(t.root);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(posts_racing_with_the_cancel_are_cancelled_on_a_thread_driven_runtime)
{
    race(WEFT_PROGRESS_THREAD);
}

TEST(posts_racing_with_the_cancel_are_cancelled_when_callers_drive)
{
    race(WEFT_PROGRESS_CALLER);
}
