/* tests/unit/base_mpsc.c - many threads push, one takes: everything comes out once, each thread's in its order; a closed list
 * takes nothing. */
#include "test.h"

#include <pthread.h>

#include "base/list.h"
#include "base/mpsc.h"

enum { THREADS = 4, EACH = 20000 };

typedef struct item {
    wefti_mpsc_node_t node;
    int thread, number;
} item_t;

static item_t items[THREADS][EACH];
static wefti_mpsc_t list;
static _Atomic int refused, first;

static void *push_all(void *arg)
{
    int t = (int)(intptr_t)arg;
    for (int i = 0; i < EACH; i++) {
        items[t][i] = (item_t){.thread = t, .number = i};
        wefti_mpsc_push_t how = wefti_mpsc_push(&list, &items[t][i].node);
        refused += how == WEFTI_MPSC_CLOSED;
        first += how == WEFTI_MPSC_FIRST;
    }
    return NULL;
}

TEST(everything_comes_out_once_and_what_one_thread_pushed_in_its_order)
{
    pthread_t threads[THREADS];
    int next[THREADS] = {0}, got = 0, bursts = 0;
    for (int t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, push_all, (void *)(intptr_t)t), 0);
    while (got < THREADS * EACH) {
        wefti_mpsc_node_t *at = wefti_mpsc_take(&list);
        bursts += at != NULL;
        for (; at; at = wefti_mpsc_next(at), got++) {
            const item_t *item = wefti_container_of(at, item_t, node);
            CHECK_EQ(item->number, next[item->thread]);
            next[item->thread]++;
        }
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    CHECK_EQ(refused, 0);
    CHECK_EQ(first, bursts);
    CHECK(wefti_mpsc_empty(&list));
}

TEST(a_list_is_closed_when_it_is_empty_and_takes_nothing_afterwards)
{
    wefti_mpsc_t q = {NULL};
    wefti_mpsc_node_t a, b;
    CHECK_EQ(wefti_mpsc_push(&q, &a), WEFTI_MPSC_FIRST);
    CHECK(!wefti_mpsc_close(&q));
    CHECK(wefti_mpsc_take(&q) == &a);
    CHECK(wefti_mpsc_close(&q));
    CHECK(wefti_mpsc_close(&q));
    CHECK(wefti_mpsc_empty(&q));
    CHECK_EQ(wefti_mpsc_push(&q, &b), WEFTI_MPSC_CLOSED);
    CHECK(wefti_mpsc_take(&q) == NULL);
    wefti_mpsc_open(&q);
    CHECK_EQ(wefti_mpsc_push(&q, &b), WEFTI_MPSC_FIRST);
    CHECK(wefti_mpsc_take(&q) == &b);
}

/* No push is lost between the last take and the close: it is taken, or refused. */
TEST(a_push_beside_a_close_is_taken_or_refused)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[THREADS];
        int got = 0;
        refused = 0;
        wefti_mpsc_open(&list);
        for (int t = 0; t < THREADS; t++)
            CHECK_EQ(pthread_create(&threads[t], NULL, push_all, (void *)(intptr_t)t), 0);
        for (int quiet = 0; quiet < 2 || !wefti_mpsc_close(&list); quiet++)
            for (wefti_mpsc_node_t *at = wefti_mpsc_take(&list); at; at = wefti_mpsc_next(at))
                got++;
        for (int t = 0; t < THREADS; t++)
            pthread_join(threads[t], NULL);
        CHECK_EQ(got + refused, THREADS * EACH);
    }
}
