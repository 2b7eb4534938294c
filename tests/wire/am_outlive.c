/* Active messages that the program still has when their endpoint, and then their runtime, is closed: header, data and view can
 * be read, every call says that it is closed, and the release, on any thread, gives everything back. ctest: label=thread */
#include <pthread.h>
#include <stdatomic.h>

#include "lib/box.h"
#include "test.h"

enum { ID = 31, LONG = 100000, SHORT = 1000, POOLED = 1 << 20 };

static pair_t pair;
static box_t *box;

static weft_am_t *send_kept(const void *out, size_t len, weft_op_t *send)
{
    unsigned n = atomic_load(&box->n);
    CHECK_OK(weft_am_send(pair.ep[1], ID, "head", 5, out, len, send));
    PAIR_UNTIL(&pair, atomic_load(&box->n) > n, 10);
    weft_am_t *am = box->kept[n];
    box->kept[n] = NULL;
    return am;
}

static void *release(void *am)
{
    weft_am_release((weft_am_t *)am);
    return NULL;
}

static void check_closed(weft_am_t *am)
{
    weft_op_t op = WEFT_OP_INIT;
    char byte;
    CHECK_EQ(strcmp((const char *)am->header, "head"), 0);
    CHECK_EQ(weft_am_pull(am, &byte, 1, &op), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_am_view(am, &op), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_am_reject(am, 7), WEFT_ERR_CLOSED);
}

TEST(messages_that_were_kept_outlive_their_runtime)
{
    each_way(way) {
        weft_op_t sends[4], view = WEFT_OP_INIT;
        weft_pool_t *pool;
        void *pooled;
        uint8_t *out = (uint8_t *)box_payload(ID, LONG);
        pthread_t threads[2];
        memset(sends, 0, sizeof sends);
        box = box_new(BOX_KEEPS);
        pair_open(&pair, way, NULL);
        box_handle(&pair, 0, ID, box);
        CHECK_OK(weft_pool_new(pair.rt[1], NULL, &pool));
        CHECK_OK(weft_pool_get(pool, POOLED, &pooled));
        pattern_fill(pooled, POOLED, ID);
        weft_am_t *here = send_kept(out, SHORT, &sends[0]), *there = send_kept(out, LONG, &sends[1]);
        weft_am_t *lent = send_kept(pooled, POOLED, &sends[2]), *never = send_kept(out, LONG, &sends[3]);
        CHECK_OK(weft_am_view(lent, &view));
        CHECK_OK(pair_wait(&pair, &view, 10));
        CHECK_OK(weft_runtime_close(pair.rt[0]));
        check_closed(here);
        check_closed(there);
        check_closed(never);
        CHECK_EQ(pattern_check(here->data, SHORT, ID), SHORT);
        CHECK_EQ(pattern_check(view.buf, POOLED, ID), POOLED);
        for (int i = 1; i < 4; i++)
            CHECK(weft_op_wait(&sends[i], 10 * WEFT_SECOND) != WEFT_ERR_TIMEOUT);
        weft_pool_put(pool, pooled);
        CHECK_OK(weft_pool_free(pool));
        CHECK_OK(weft_runtime_close(pair.rt[1]));
        CHECK_EQ(pattern_check(view.buf, POOLED, ID), POOLED); /* a lent one: its sender is gone, its memory is not */
        weft_am_release(here);
        CHECK(!pthread_create(&threads[0], NULL, release, there) && !pthread_create(&threads[1], NULL, release, lent));
        weft_am_release(never);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        box_free(box);
        free(out);
    }
}
