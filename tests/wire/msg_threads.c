/* Many threads on one runtime: posts through the inbox and by turns at the driver's seat, every completion once, order per
 * thread kept. ctest: tls-long shards */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/pair.h"
#include "test.h"

enum { THREADS = 4, EACH = 3000, WINDOW = 32 };

static pair_t pair;
static atomic_uint running;

static void *sender(void *arg)
{
    uint64_t tag = (uint64_t)(uintptr_t)arg;
    static _Thread_local uint64_t value[WINDOW];
    static _Thread_local weft_op_t op[WINDOW];
    memset(op, 0, sizeof op);
    for (uint64_t i = 0; i < EACH; i++) {
        unsigned slot = i % WINDOW;
        if (i >= WINDOW)
            CHECK_OK(weft_op_wait(&op[slot], 20 * WEFT_SECOND));
        value[slot] = tag << 32 | i;
        CHECK_OK(weft_msg_send(pair.ep[1], &value[slot], 8, tag, &op[slot]));
    }
    for (unsigned i = 0; i < WINDOW; i++)
        CHECK_OK(weft_op_wait(&op[i], 20 * WEFT_SECOND));
    running--;
    return NULL;
}

static void *receiver(void *arg)
{
    uint64_t tag = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < EACH; i++) {
        weft_op_t op = WEFT_OP_INIT;
        uint64_t value = 0;
        CHECK_OK(weft_msg_recv(pair.ep[0], &value, 8, tag, WEFT_TAG_FULL, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        CHECK_EQ(value, tag << 32 | i);
    }
    running--;
    return NULL;
}

TEST(threads_send_and_receive_at_once_and_each_keeps_its_order)
{
    each_way(way) {
        pthread_t t[2 * THREADS];
        pair_open(&pair, way, NULL);
        running = 2 * THREADS;
        for (uintptr_t i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_create(&t[2 * i], NULL, sender, (void *)(i + 1)), 0);
            CHECK_EQ(pthread_create(&t[2 * i + 1], NULL, receiver, (void *)(i + 1)), 0);
        }
        while (running) /* what the senders have sent still has to be driven out when they have gone */
            pair_run(&pair, 0.01);
        for (unsigned i = 0; i < 2 * THREADS; i++)
            pthread_join(t[i], NULL);
        pair_close(&pair);
    }
}

static void *canceller(void *arg)
{
    weft_op_t *ops = (weft_op_t *)arg;
    for (unsigned i = 0; i < EACH; i++)
        weft_op_cancel(&ops[i]);
    return NULL;
}

TEST(cancelling_from_another_thread_races_with_completion_and_each_ends_once)
{
    each_way(way) {
        static weft_op_t ops[EACH];
        static uint64_t in[EACH];
        pthread_t t;
        unsigned received = 0;
        memset(ops, 0, sizeof ops);
        weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
        opts.recv_window = 1 << 20; /* room for all whose receive was cancelled */
        pair_open(&pair, way, &opts);
        for (unsigned i = 0; i < EACH; i++)
            CHECK_OK(weft_msg_recv(pair.ep[0], &in[i], 8, 1, WEFT_TAG_FULL, &ops[i]));
        CHECK_EQ(pthread_create(&t, NULL, canceller, ops), 0);
        for (uint64_t i = 0; i < EACH / 2; i++) {
            weft_op_t send = WEFT_OP_INIT;
            CHECK_OK(weft_msg_send(pair.ep[1], &i, 8, 1, &send));
            pair_wait(&pair, &send, 10);
        }
        pthread_join(t, NULL);
        for (unsigned i = 0; i < EACH; i++) {
            weft_status_t st = pair_wait(&pair, &ops[i], 10);
            CHECK(st == WEFT_OK || st == WEFT_ERR_CANCELLED);
            if (st == WEFT_OK)
                CHECK_EQ(in[i], received++);
        }
        /* what was not received is still there, in order */
        for (; received < EACH / 2; received++) {
            weft_op_t recv = WEFT_OP_INIT;
            uint64_t value = 0;
            CHECK_OK(weft_msg_recv(pair.ep[0], &value, 8, 1, WEFT_TAG_FULL, &recv));
            CHECK_OK(pair_wait(&pair, &recv, 10));
            CHECK_EQ(value, received);
        }
        pair_close(&pair);
    }
}
