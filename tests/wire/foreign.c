/* What belongs to one runtime is not taken by calls on another: they say so, and nothing is started. */
#include <weft/service.h>

#include "lib/pair.h"
#include "test.h"

static void refused(weft_status_t st)
{
    CHECK_EQ(st, WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "of another runtime"));
}

TEST(an_endpoint_of_another_runtime_receives_nothing_here)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT;
        char buf[8];
        weft_iov_t iov[2] = {{buf, 4}, {buf + 4, 4}};
        weft_msg_t *msg;
        weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
        pair_t p;
        pair_open(&p, way, NULL);
        weft_runtime_t *rt = p.rt[0];
        weft_ep_t *theirs = p.ep[1];
        o.ep = theirs;
        refused(weft_msg_recv_iov(rt, theirs, iov, 1, 1, WEFT_TAG_FULL, &op));
        refused(weft_msg_recv_iov(rt, theirs, iov, 2, 1, WEFT_TAG_FULL, &op));
        refused(weft_msg_recv_alloc(rt, theirs, 100, 1, WEFT_TAG_FULL, &op));
        refused(weft_msg_probe(rt, theirs, 1, WEFT_TAG_FULL, NULL));
        refused(weft_msg_claim(rt, theirs, 1, WEFT_TAG_FULL, NULL, &msg));
        refused(weft_am_recv(rt, &o, &op));
        refused(weft_am_take(rt, theirs, 1, &op));
        CHECK_OK(weft_msg_recv_alloc(rt, p.ep[0], 100, 1, WEFT_TAG_FULL, &op));
        weft_op_cancel(&op);
        CHECK_EQ(pair_wait(&p, &op, 20), WEFT_ERR_CANCELLED);
        pair_close(&p);
    }
}

TEST(a_registry_of_another_runtime_finds_nothing_here)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt, *other;
    weft_registry_t *registry;
    weft_service_t *service;
    weft_client_t *client;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_runtime_open(&o, &other));
    CHECK_OK(weft_registry_open(other, "memory://foreign", NULL, &registry));
    CHECK_OK(weft_service_open(rt, "books", NULL, &service));
    co.registry = registry;
    refused(weft_client_open(rt, "weft://books", &co, &client));
    refused(weft_service_publish(service, registry, "tcp://127.0.0.1:1"));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_OK(weft_runtime_close(other));
}
