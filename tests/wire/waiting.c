/* Calls that post and wait: connect, accept, send, receive, read, write; what they return when time is over, and what they
 * leave. ctest: tls shards */
#include <pthread.h>

#include <weft/weft.h>

#include "ports.h"
#include "test.h"

enum { LEN = 300000 };

static weft_runtime_t *open_runtime(weft_progress_mode_t mode)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = mode;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

typedef struct server {
    weft_runtime_t *rt;
    weft_listener_t *listener;
} server_t;

/* Accepts one, sends back what it gets, and says how its region is opened. */
static void *serve(void *arg)
{
    server_t *s = arg;
    static uint8_t buf[LEN], key[WEFT_REGION_KEY_MAX];
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_region_t *region;
    weft_ep_t *ep;
    size_t len, key_len = sizeof key;
    ro.len = LEN;
    CHECK_OK(weft_region_new(s->rt, &ro, &region));
    CHECK_OK(weft_region_key(region, NULL, key, &key_len));
    CHECK_OK(weft_listener_accept_wait(s->listener, 20 * WEFT_SECOND, &ep));
    CHECK_OK(weft_msg_recv_wait(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, 20 * WEFT_SECOND, &len));
    CHECK_EQ(len, LEN);
    CHECK_OK(weft_msg_send_wait(ep, buf, len, 2, 20 * WEFT_SECOND));
    CHECK_OK(weft_msg_send_wait(ep, key, key_len, 3, 20 * WEFT_SECOND));
    CHECK_OK(weft_msg_recv_wait(ep, NULL, 0, 4, WEFT_TAG_FULL, 20 * WEFT_SECOND, NULL));
    CHECK_OK(weft_runtime_close(s->rt));
    return NULL;
}

static void talk(weft_progress_mode_t mode)
{
    static uint8_t out[LEN], in[LEN], key[WEFT_REGION_KEY_MAX];
    server_t s = {.rt = open_runtime(WEFT_PROGRESS_CALLER)};
    weft_runtime_t *rt = open_runtime(mode);
    pthread_t id;
    weft_ep_t *ep, *none = NULL;
    size_t len;
    CHECK_OK(weft_listen(s.rt, ports_tcp(), NULL, &s.listener));
    CHECK_EQ(weft_listener_accept_wait(s.listener, WEFT_MILLISECOND, &none), WEFT_ERR_TIMEOUT);
    CHECK(!none);
    CHECK(!pthread_create(&id, NULL, serve, &s));
    CHECK_OK(weft_ep_connect(rt, weft_listener_uri(s.listener), NULL, 20 * WEFT_SECOND, &ep));
    CHECK_EQ(weft_msg_recv_wait(ep, in, LEN, 9, WEFT_TAG_FULL, 0, &len), WEFT_ERR_TIMEOUT);
    for (unsigned i = 0; i < LEN; i++)
        out[i] = (uint8_t)(i * 7 + i / 999);
    CHECK_OK(weft_msg_send_wait(ep, out, LEN, 1, 20 * WEFT_SECOND));
    CHECK_OK(weft_msg_recv_wait(ep, in, LEN, 2, WEFT_TAG_FULL, WEFT_FOREVER, &len));
    CHECK_EQ(len, LEN);
    CHECK(!memcmp(out, in, LEN));
    CHECK_OK(weft_msg_recv_wait(ep, key, sizeof key, 3, WEFT_TAG_FULL, 20 * WEFT_SECOND, &len));
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_remote_attach(ep, key, len, NULL, &op));
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    weft_remote_t *remote = weft_op_remote(&op);
    memset(in, 0, LEN);
    CHECK_OK(weft_rma_write_wait(remote, 0, out, LEN, 20 * WEFT_SECOND));
    CHECK_OK(weft_rma_read_wait(remote, 0, in, LEN, 20 * WEFT_SECOND));
    CHECK(!memcmp(out, in, LEN));
    CHECK_EQ(weft_rma_read_wait(remote, LEN, in, 1, 20 * WEFT_SECOND), WEFT_ERR_RANGE);
    weft_remote_drop(remote);
    CHECK_OK(weft_msg_send_wait(ep, NULL, 0, 4, 20 * WEFT_SECOND));
    pthread_join(id, NULL);
    weft_status_t st = weft_msg_recv_wait(ep, in, LEN, 5, WEFT_TAG_FULL, 20 * WEFT_SECOND, &len);
    CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED); /* the server closed its runtime */
    CHECK(strstr(weft_last_error(), "msg receive"));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_conversation_of_calls_that_wait_when_callers_drive)
{
    talk(WEFT_PROGRESS_CALLER);
}

TEST(a_conversation_of_calls_that_wait_on_a_thread_driven_runtime)
{
    talk(WEFT_PROGRESS_THREAD);
}

TEST(small_sends_that_wait_leave_though_nobody_drives_afterwards)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *here, *there;
    weft_listener_t *listener;
    weft_ep_t *ep, *peer;
    weft_op_t accepted = WEFT_OP_INIT;
    o.transports = "tcp";
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &there));
    o.progress = WEFT_PROGRESS_CALLER;
    CHECK_OK(weft_runtime_open(&o, &here));
    CHECK_OK(weft_listen(there, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_listener_accept(listener, &accepted));
    CHECK_OK(weft_ep_connect(here, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &ep));
    CHECK_OK(weft_op_wait(&accepted, 20 * WEFT_SECOND));
    peer = weft_op_ep(&accepted);
    for (uint32_t i = 0; i < 5; i++)
        CHECK_OK(weft_msg_send_wait(ep, &i, sizeof i, 1, 20 * WEFT_SECOND));
    for (uint32_t i = 0, got; i < 5; i++) {
        CHECK_OK(weft_msg_recv_wait(peer, &got, sizeof got, 1, WEFT_TAG_FULL, 20 * WEFT_SECOND, NULL));
        CHECK_EQ(got, i);
    }
    CHECK_OK(weft_runtime_close(there));
    CHECK_OK(weft_runtime_close(here));
}

TEST(a_connect_that_fails_leaves_nothing_and_says_why)
{
    weft_runtime_t *rt = open_runtime(WEFT_PROGRESS_CALLER);
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep = NULL;
    o.no_retry = true;
    CHECK_EQ(weft_ep_connect(rt, "tcp://127.0.0.1:1", &o, 20 * WEFT_SECOND, &ep), WEFT_ERR_REFUSED);
    CHECK(strstr(weft_last_error(), "tcp://127.0.0.1:1"));
    CHECK_EQ(weft_ep_connect(rt, "tcp://127.0.0.1:1", NULL, 100 * WEFT_MILLISECOND, &ep), WEFT_ERR_TIMEOUT);
    CHECK(strstr(weft_last_error(), "tcp://127.0.0.1:1")); /* what kept it */
    CHECK_EQ(weft_ep_connect(rt, "nonsense", NULL, 100 * WEFT_MILLISECOND, &ep), WEFT_ERR_INVALID);
    CHECK_EQ(weft_ep_connect(rt, "tcp://127.0.0.1:1", NULL, 0, NULL), WEFT_ERR_INVALID);
    CHECK(!ep);
    TEST_UNTIL((weft_runtime_progress(rt), weft_runtime_get_stats(rt, &stats), !stats.endpoints), 10);
    CHECK_OK(weft_runtime_close(rt));
}

static weft_status_t inside[4];
static void try_all(void *user)
{
    weft_runtime_t *rt = user;
    weft_ep_t *ep;
    char byte;
    inside[0] = weft_ep_connect(rt, "tcp://127.0.0.1:1", NULL, WEFT_SECOND, &ep);
    inside[1] = weft_msg_send_wait(NULL, "", 0, 1, WEFT_SECOND);
    inside[2] = weft_msg_recv_wait(NULL, &byte, 1, 1, 0, WEFT_SECOND, NULL);
    inside[3] = weft_rma_read_wait(NULL, 0, &byte, 1, WEFT_SECOND);
}

TEST(nothing_waits_inside_a_callback)
{
    weft_runtime_t *rt = open_runtime(WEFT_PROGRESS_CALLER);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_call(rt, try_all, rt, &op));
    CHECK_OK(weft_op_wait(&op, 10 * WEFT_SECOND));
    for (int i = 0; i < 4; i++)
        CHECK_EQ(inside[i], WEFT_ERR_STATE);
    CHECK_OK(weft_runtime_close(rt));
}
