/* Endpoints that threads open while the runtime closes, and while another thread counts: they begin, or nothing is left of
 * them. Only a sanitizer sees what the driver reads of one that its thread frees. ctest: tls-long timeout=120 label=thread */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "lib/pair.h"
#include "test.h"

enum { ROUNDS = 40, THREADS = 3 };

static pair_t pair;
static _Atomic unsigned opened;

static void *opens(void *arg)
{
    weft_status_t st = WEFT_OK;
    (void)arg;
    for (int i = 0; !st && i < 10000; i++) {
        weft_ep_t *ep;
        st = weft_ep_open(pair.rt[1], "tcp://127.0.0.1:1", NULL, NULL, &ep);
        if (!st)
            st = weft_ep_close(ep, NULL);
        atomic_fetch_add(&opened, 1);
    }
    CHECK_EQ(st, WEFT_ERR_CLOSED);
    return NULL;
}

static void *counts(void *arg)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    (void)arg;
    while (!weft_runtime_get_stats(pair.rt[1], &stats))
        ;
    return NULL;
}

TEST(a_runtime_closes_while_endpoints_are_opened)
{
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS + 1];
        atomic_store(&opened, 0);
        pair_open(&pair, &(pair_way_t){"tcp", WEFT_PROGRESS_THREAD}, NULL);
        for (int i = 0; i <= THREADS; i++)
            CHECK(!pthread_create(&threads[i], NULL, i < THREADS ? opens : counts, NULL));
        for (double end = test_now() + 20; atomic_load(&opened) < 20;) {
            CHECK(test_now() < end);
            usleep(50);
        }
        CHECK_OK(weft_runtime_close(pair.rt[1]));
        for (int i = 0; i <= THREADS; i++)
            pthread_join(threads[i], NULL);
        pair.rt[1] = NULL;
        pair.ep[1] = NULL;
        pair_close(&pair);
    }
}
