/* tests/wire/mem_reg.c - registration with the real fabric: before UCX is open, while it works, from other threads, and to the
 * end. ctest: label=thread timeout=120 */
#include "test.h"

#include <pthread.h>
#include <weft/weft.h>

#include "pair.h"

#define N ((size_t)1 << 20)
enum { THREADS = 3, ROUNDS = 200, MESSAGES = 60 };

static void transfer(pair_t *p, char *from, char *to, uint64_t seed)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    pattern_fill(from, N, seed);
    CHECK_OK(weft_msg_recv(p->ep[0], to, N, 7, UINT64_MAX, &recv));
    CHECK_OK(weft_msg_send(p->ep[1], from, N, 7, &send));
    CHECK_OK(pair_wait(p, &recv, 20));
    CHECK_OK(pair_wait(p, &send, 20));
    CHECK_EQ(pattern_check(to, N, seed), N);
}

TEST(a_range_registered_early_and_one_registered_late_carry_messages)
{
    each_way(way) {
        pair_t p;
        weft_runtime_t *rt = NULL;
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        char *from = malloc(2 * N), *to = malloc(N);
        weft_mem_reg_t *early, *late;
        opts.transports = way->transports;
        /* a runtime that never opens UCX */
        CHECK_OK(weft_runtime_open(&opts, &rt));
        CHECK_OK(weft_mem_register(rt, from, N, &early));
        weft_mem_unregister(early, false);
        CHECK_OK(weft_runtime_close(rt));

        pair_open(&p, way, NULL);
        CHECK_OK(weft_mem_register(p.rt[1], from, N, &early));
        transfer(&p, from, to, 1);
        CHECK_OK(weft_mem_register(p.rt[1], from + N, N, &late));
        transfer(&p, from + N, to, 2);
        weft_mem_reg_stats_t s = WEFT_MEM_REG_STATS_INIT;
        weft_mem_get_reg_stats(p.rt[1], &s);
        CHECK(s.bytes >= 2 * N && s.ranges == 2);
        weft_mem_unregister(early, false); /* kept: the runtime's end undoes it */
        weft_mem_unregister(late, true);
        pair_close(&p);
        free(from);
        free(to);
    }
}

typedef struct worker {
    pthread_t thread;
    weft_runtime_t *rt;
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    for (int i = 0; i < ROUNDS; i++) {
        weft_mem_reg_t *r;
        char *mine = malloc(100000);
        CHECK_OK(weft_mem_register(w->rt, mine, 100000, &r));
        memset(mine, i, 100000);
        weft_mem_unregister(r, true);
        free(mine);
    }
    return NULL;
}

TEST(threads_register_while_messages_flow)
{
    each_way(way) {
        pair_t p;
        worker_t w[THREADS];
        char *from = malloc(N), *to = malloc(N);
        pair_open(&p, way, NULL);
        for (int i = 0; i < THREADS; i++) {
            w[i].rt = p.rt[i % 2];
            CHECK(!pthread_create(&w[i].thread, NULL, work, &w[i]));
        }
        for (uint64_t i = 0; i < MESSAGES; i++)
            transfer(&p, from, to, i);
        for (int i = 0; i < THREADS; i++)
            pthread_join(w[i].thread, NULL);
        pair_close(&p);
        free(from);
        free(to);
    }
}
