/* Memory on several elements while nobody dies: a copy that was damaged is passed over, and mended; and what happens before all
 * of them are there.
 *
 * ctest: label=thread shards */
#include <pthread.h>

#include "store/mirror_layout.h"
#include "store/state.h"
#include "test.h"
#include "weft/elements.h"
#include "weft/weft.h"

enum { N = 2, BYTES = 64 * 1024 };
#define WAIT (30 * WEFT_SECOND)

static weft_runtime_t *rt[N], *user;
static weft_memory_t *memory[N];
static weft_action_t *action;

static weft_runtime_t *runtime(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *opened;
    o.transports = "tcp"; /* a sanitizer does not see the order of what goes over shared memory */
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &opened));
    return opened;
}

static void open_memory(int i, const char *uri)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    o.name = "mem";
    o.bytes = BYTES;
    o.mirrored = true;
    o.uri = uri;
    CHECK_OK(weft_memory_open(rt[i], &o, &memory[i]));
}

static weft_status_t end(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : weft_op_wait(op, WAIT);
}

static void close_memory(int i)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(end(weft_memory_close(memory[i], &op), &op));
}

static void open_all(uint64_t connect_ns)
{
    weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
    a.connect_ns = connect_ns;
    weft_log_set_level(WEFT_LOG_NONE);
    for (int i = 0; i < N; i++) {
        rt[i] = runtime();
        open_memory(i, NULL);
    }
    user = runtime();
    CHECK_OK(weft_action_open(user, "test", &a, &action));
}

static void close_all(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(end(weft_action_close(action, &op), &op));
    for (int i = 0; i < N; i++) {
        close_memory(i);
        CHECK_OK(weft_runtime_close(rt[i]));
    }
    CHECK_OK(weft_runtime_close(user));
}

static weft_transport_t *add(const char *name, const char *first, const char *second)
{
    char durl[1200];
    weft_transport_t *t;
    snprintf(durl, sizeof durl, "%s;rdma_tcp;", name);
    CHECK_OK(weft_action_add(action, durl));
    CHECK_OK(weft_action_get(action, name, "rdma", &t));
    snprintf(durl, sizeof durl, "mem;rdma_tcp;size,%d;replicas,%s|%s;", BYTES, first, second);
    CHECK_OK(weft_action_configure(action, name, durl));
    CHECK_OK(weft_transport_reg(t, BYTES, NULL));
    return t;
}

static weft_status_t move(weft_transport_t *t, bool write)
{
    weft_op_t op = WEFT_OP_INIT;
    return end(write ? weft_transport_write(t, BYTES, 0, 0, &op) : weft_transport_read(t, BYTES, 0, 0, &op), &op);
}

static void fill(uint8_t *buf, unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        buf[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
}

/* The bytes of a block of the mirror, as an element has them. */
static uint8_t *copy_of(int i, uint64_t block)
{
    store_state_t *ss = store_state(rt[i]);
    pthread_mutex_lock(&ss->lock);
    store_held_t *b = wefti_store_names_find(&ss->server->names, "mem", 3);
    CHECK(b);
    uint8_t *at = (uint8_t *)weft_region_base(b->region) + block * MIR_STRIDE;
    pthread_mutex_unlock(&ss->lock);
    return at;
}

TEST(a_copy_that_was_damaged_is_passed_over_and_mended)
{
    static uint8_t right[BYTES];
    open_all(0);
    weft_transport_t *w = add("w", weft_memory_uri(memory[0]), weft_memory_uri(memory[1]));
    weft_transport_t *r = add("r", weft_memory_uri(memory[0]), weft_memory_uri(memory[1]));
    fill(right, 1);
    memcpy(weft_transport_buf(w, NULL), right, BYTES);
    CHECK_OK(move(w, true));
    for (int i = 0; i < N; i++) { /* the copies of one, and then of the other: whichever is read from */
        for (uint64_t block = 0; block < BYTES / WEFT_MIRROR_UNIT; block += 3)
            copy_of(i, block)[block * 11] ^= 0x40;
        for (int k = 0; k < 2; k++) {
            weft_transport_t *t = k ? w : r;
            memset(weft_transport_buf(t, NULL), 0, BYTES);
            CHECK_OK(move(t, false));
            CHECK(!memcmp(weft_transport_buf(t, NULL), right, BYTES));
        }
        memcpy(weft_transport_buf(w, NULL), right, BYTES);
        CHECK_OK(move(w, true));
        CHECK(wefti_mirror_good(copy_of(i, 0), 0));
    }
    for (int i = 0; i < N; i++)
        copy_of(i, 3)[5] ^= 1; /* all copies of a block: there is nothing right to be had, and nobody is given what is wrong */
    memset(weft_transport_buf(r, NULL), 0xee, BYTES);
    CHECK_EQ(move(r, false), WEFT_ERR_CORRUPT);
    CHECK_OK(move(w, true)); /* whole blocks need nothing of what was there */
    CHECK_OK(move(r, false));
    CHECK(!memcmp(weft_transport_buf(r, NULL), right, BYTES));
    close_all();
}

TEST(replicas_are_used_when_all_were_there_once_and_whoever_waits_is_told)
{
    char uri[512];
    weft_status_t why;
    open_all(400 * WEFT_MILLISECOND);
    snprintf(uri, sizeof uri, "%s", weft_memory_uri(memory[1]));
    close_memory(1); /* it is not there yet */
    weft_transport_t *nowhere = add("nowhere", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2");
    CHECK_EQ(move(nowhere, false), WEFT_ERR_REFUSED); /* nobody is */
    CHECK_EQ(weft_transport_state(nowhere, NULL), WEFT_TRANSPORT_LOST);
    weft_transport_t *t = add("t", weft_memory_uri(memory[0]), uri);
    CHECK_EQ(move(t, true), WEFT_ERR_REFUSED); /* after connect_ns: what the one that is missing said */
    CHECK_EQ(weft_transport_state(t, &why), WEFT_TRANSPORT_LOST);
    CHECK_EQ(why, WEFT_ERR_REFUSED);
    CHECK_EQ(move(t, false), WEFT_ERR_REFUSED); /* at once */
    open_memory(1, uri);
    TEST_UNTIL(weft_transport_state(t, NULL) == WEFT_TRANSPORT_READY, 20);
    fill(weft_transport_buf(t, NULL), 3);
    CHECK_OK(move(t, true));
    close_memory(1); /* and now one may be missing */
    CHECK_OK(move(t, false));
    CHECK_OK(move(t, true));
    open_memory(1, NULL);
    close_all();
}
