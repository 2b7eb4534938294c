/* Memory elements: several on a runtime, by name and by region key, mapped and not, and what is left when one is closed or
 * could not be opened.
 *
 * ctest: label=thread shards */
#include <unistd.h>

#include "lib/elements.h"
#include "test.h"

static elements_t e;

static weft_memory_t *open_memory(const weft_memory_opts_t *o)
{
    weft_memory_t *m;
    CHECK_OK(weft_memory_open(e.pair.rt[0], o, &m));
    return m;
}

static void close_memory(weft_memory_t *m)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_memory_close(m, &op));
    CHECK_OK(pair_wait(&e.pair, &op, 15));
}

TEST(several_live_on_one_runtime_but_only_one_has_spare)
{
    each_way(way) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        weft_memory_t *more[3], *no;
        char name[8];
        o.spare = 1 << 20;
        elements_open(&e, way, 100, &o, NULL);
        o.bytes = 50;
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "m%d", i);
            o.name = name;
            o.spare = 0;
            more[i] = open_memory(&o);
        }
        CHECK(strcmp(weft_memory_uri(more[0]), weft_memory_uri(more[1])) != 0);
        o.spare = 1;
        CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &no), WEFT_ERR_STATE);
        o.spare = 0;
        o.mirrored = true;
        CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &no), WEFT_ERR_STATE);
        elements_memory_close(&e);
        pair_run(&e.pair, 0.01);
        no = open_memory(&o); /* its place is free */
        char durl[WEFT_DURL_MAX + 1];
        size_t len = sizeof durl;
        weft_durl_t d = WEFT_DURL_INIT;
        CHECK_OK(weft_memory_durl(no, durl, &len));
        CHECK_OK(weft_durl_parse(durl, &d));
        CHECK_EQ(d.n_replicas, 1);
        CHECK_STR(d.replica[0], weft_memory_uri(no));
        CHECK(!d.region_key_len && !weft_memory_base(no));
        close_memory(no);
        for (int i = 0; i < 3; i++)
            close_memory(more[i]);
        elements_close(&e);
    }
}

TEST(a_name_opens_only_what_is_named)
{
    each_way(way) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        char durl[600];
        elements_open(&e, way, 100, NULL, NULL);
        o.name = "open";
        o.bytes = 10;
        o.named = true;
        weft_memory_t *named = open_memory(&o), *no;
        CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &no), WEFT_ERR_STATE); /* the name is taken */
        snprintf(durl, sizeof durl, "open;rdma_tcp;url,%s;", weft_memory_uri(named));
        CHECK_OK(weft_action_add(e.action, durl));
        weft_transport_t *t = elements_get(&e, "open", "rdma");
        CHECK_OK(weft_transport_reg(t, 10, NULL));
        CHECK_OK(elements_read(&e, t, 10, 0, 0));
        snprintf(durl, sizeof durl, "mem;rdma_tcp;url,%s;timeout_ms,200;", weft_memory_uri(e.memory));
        CHECK_OK(weft_action_add(e.action, durl));
        t = elements_get(&e, "mem", "rdma");
        CHECK_OK(weft_transport_reg(t, 10, NULL));
        CHECK_EQ(elements_read(&e, t, 10, 0, 0), WEFT_ERR_TIMEOUT);
        close_memory(named);
        elements_close(&e);
    }
}

/* What is at the start of the memory that a durl without a region key leads to. */
static int found_at(const char *name, const char *uri)
{
    char durl[600], trans[64];
    static int n;
    snprintf(trans, sizeof trans, "t%d", n++);
    snprintf(durl, sizeof durl, "%s;rdma_tcp;", trans);
    CHECK_OK(weft_action_add(e.action, durl));
    snprintf(durl, sizeof durl, "%s;rdma_tcp;url,%s;", name, uri);
    CHECK_OK(weft_action_configure(e.action, trans, durl));
    weft_transport_t *t = elements_get(&e, trans, "rdma");
    CHECK_OK(weft_transport_reg(t, 1, NULL));
    CHECK_OK(elements_read(&e, t, 1, 0, 0));
    int byte = *(const uint8_t *)weft_transport_buf(t, NULL);
    CHECK_OK(weft_action_release(e.action, trans));
    return byte;
}

/* Also where another element of the same process has the name that the user knows. */
TEST(one_that_is_named_is_found_at_its_address_whatever_it_is_called)
{
    each_way(way) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        weft_memory_t *m[3];
        char uri[3][200];
        elements_open(&e, way, 100, NULL, NULL);
        o.bytes = 10;
        o.named = true;
        for (int i = 0; i < 3; i++) {
            static const char *const names[] = {"one", "two", "three"};
            char address[120];
            snprintf(address, sizeof address, "unix://@weft-test-%d-%p", (int)getpid(), (void *)&m[i]);
            o.name = names[i];
            o.uri = i < 2 ? NULL : address;
            m[i] = open_memory(&o);
            *(uint8_t *)weft_memory_base(m[i]) = (uint8_t)(i + 1);
            snprintf(uri[i], sizeof uri[i], "%s", weft_memory_uri(m[i]));
        }
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(found_at("nobody", uri[i]), i + 1);
            CHECK_EQ(found_at("one", uri[i]), i + 1);
            CHECK_EQ(found_at("three", uri[i]), i + 1);
        }
        for (int i = 0; i < 3; i++)
            close_memory(m[i]);
        o.name = "again"; /* a port that was chosen; nothing is left of who had it */
        o.uri = uri[0];
        m[0] = open_memory(&o);
        *(uint8_t *)weft_memory_base(m[0]) = 9;
        CHECK_EQ(found_at("one", uri[0]), 9);
        close_memory(m[0]);
        elements_close(&e);
    }
}

TEST(what_is_not_to_be_mapped_is_checked_by_its_process)
{
    each_way(way) {
        weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
        o.unmapped = true;
        elements_open(&e, way, 100, &o, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_OK(elements_write(&e, t, 100, 0, 0));
        CHECK_EQ(elements_stats(t).path, WEFT_RMA_CHECKED);
        CHECK_EQ(elements_memory_stats(&e).bytes_written, 100);
        CHECK_EQ(elements_memory_stats(&e).mapped, 0);
        CHECK_EQ(elements_stats(t).at_once, 0);
        elements_close(&e);
    }
}

TEST(a_place_that_is_taken_is_said_and_nothing_stays)
{
    weft_memory_opts_t o = WEFT_MEMORY_OPTS_INIT;
    weft_memory_t *m;
    elements_open(&e, &pair_ways[0], 100, NULL, NULL);
    o.name = "second";
    o.bytes = 100;
    o.spare = 1 << 20;
    o.named = true;
    o.uri = weft_memory_uri(e.memory);
    CHECK_EQ(weft_memory_open(e.pair.rt[0], &o, &m), WEFT_ERR_ADDRESS);
    pair_run(&e.pair, 0.05);
    o.uri = NULL; /* neither its name nor its store is taken */
    m = open_memory(&o);
    close_memory(m);
    elements_close(&e);
}

TEST(connections_come_and_go_and_none_stays)
{
    each_way(way) {
        elements_open(&e, way, 100, NULL, NULL);
        for (int round = 0; round < 10; round++) {
            weft_transport_t *t[4];
            for (int i = 0; i < 4; i++) {
                char name[8];
                snprintf(name, sizeof name, "t%d", i);
                t[i] = elements_add(&e, name, 10);
            }
            for (int i = 0; i < 4; i++)
                CHECK_OK(elements_read(&e, t[i], 10, 0, 0));
            CHECK_EQ(elements_memory_stats(&e).connections, 4);
            CHECK_EQ(elements_memory_stats(&e).users, 4);
            for (int i = 0; i < 4; i++) {
                char name[8];
                snprintf(name, sizeof name, "t%d", i);
                CHECK_OK(weft_action_release(e.action, name));
            }
            PAIR_UNTIL(&e.pair, elements_memory_stats(&e).connections == 0, 10);
            CHECK_EQ(elements_memory_stats(&e).users, 0);
        }
        elements_close(&e);
    }
}

TEST(a_servers_memory_stays_where_it_is_for_who_holds_it)
{
    for (int end = 0; end < 4; end++) { /* released, closed, gone with its runtime; and so, but nobody holds it any more */
        weft_action_t *servers;
        weft_transport_t *s;
        elements_open(&e, &pair_ways[0], 0, NULL, NULL);
        CHECK_OK(weft_action_open(e.pair.rt[0], "servers", NULL, &servers));
        CHECK_OK(weft_action_add(servers, "none;rdma_tcp_server;"));
        CHECK_OK(weft_action_get(servers, "none", "rdma_server", &s));
        CHECK(!weft_transport_buffer(s)); /* it does not know yet how much */
        CHECK_OK(weft_action_add(servers, "own;rdma_tcp_server;size,5000;"));
        CHECK_OK(weft_action_get(servers, "own", "rdma_server", &s));
        weft_buffer_t *held = weft_transport_buffer(s), *again = weft_transport_buffer(s);
        char *bytes = weft_buffer_base(held);
        CHECK(bytes == weft_transport_buf(s, NULL) && held == again);
        CHECK_EQ(weft_buffer_len(held), 5000);
        weft_buffer_drop(again);
        memcpy(bytes, "held", 5);
        if (end == 0)
            CHECK_OK(weft_action_release(servers, "own"));
        else if (end == 1)
            CHECK_OK(elements_end(&e, weft_action_close(servers, &e.op)));
        if (end == 0)
            CHECK(!weft_transport_buffer(s));
        pair_run(&e.pair, 0.01);
        if (end == 3)
            weft_buffer_drop(held);
        elements_close(&e);
        if (end == 3)
            continue;
        CHECK_STR(bytes, "held");
        memset(bytes, 1, 5000);
        weft_buffer_drop(held);
    }
}

TEST(memory_that_is_closed_while_it_is_used_ends_its_users_operations)
{
    each_way(way) {
        enum { N = 16 << 20 };
        weft_op_t op = WEFT_OP_INIT;
        elements_open(&e, way, N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_transport_write(t, N, 0, 0, &op));
        elements_memory_close(&e);
        weft_status_t st = pair_wait(&e.pair, &op, 20);
        if (st != WEFT_OK && st != WEFT_ERR_PEER && st != WEFT_ERR_STALE)
            FAIL("%s: %s", way->transports, weft_status_name(st));
        PAIR_UNTIL(&e.pair, weft_transport_state(t, NULL) == WEFT_TRANSPORT_LOST, 10);
        elements_close(&e);
    }
}
