/* The life of transports: used before they are usable, configured from another thread, lost, found again, released, terminated,
 * closed in the middle of things; servers; memory of this process; many threads.
 *
 * ctest: label=thread timeout=600 shards */
#define TEST_SECONDS 200
#include <pthread.h>
#include <stdatomic.h>

#include "lib/elements.h"
#include "test.h"

static elements_t e;

static weft_transport_state_t state(weft_transport_t *t)
{
    return weft_transport_state(t, NULL);
}

static weft_status_t why(weft_transport_t *t)
{
    weft_status_t st;
    (void)weft_transport_state(t, &st);
    return st;
}

static weft_transport_t *add_later(const char *durl, const char *name, size_t buffer)
{
    CHECK_OK(weft_action_add(e.action, durl));
    weft_transport_t *t = elements_get(&e, name, "rdma");
    CHECK_OK(weft_transport_reg(t, buffer, NULL));
    return t;
}

/* --- before it is usable -------------------------------------------------------------------------------------------------- */

static _Atomic int stop_driving;

static void *configure_soon(void *arg)
{
    (void)arg;
    usleep(20000);
    CHECK_OK(weft_action_configure(e.action, "mem", e.durl));
    while (!atomic_load(&stop_driving)) { /* the memory's side */
        weft_runtime_progress(e.pair.rt[0]);
        usleep(20);
    }
    return NULL;
}

TEST(a_read_waits_until_another_thread_has_configured_its_transport)
{
    each_way(way) {
        pthread_t thread;
        weft_op_t op = WEFT_OP_INIT;
        elements_open(&e, way, 1000, NULL, NULL);
        memcpy(weft_memory_base(e.memory), "hello", 6);
        weft_transport_t *t = add_later("mem;rdma_tcp;", "mem", 100);
        CHECK_EQ(state(t), WEFT_TRANSPORT_WAITING);
        atomic_store(&stop_driving, 0);
        CHECK(!pthread_create(&thread, NULL, configure_soon, NULL));
        CHECK_OK(weft_transport_read(t, 6, 0, 10, &op));
        CHECK(!weft_op_done(&op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND)); /* drives a runtime that nobody drives */
        CHECK_STR((char *)weft_transport_buf(t, NULL) + 10, "hello");
        CHECK_EQ(state(t), WEFT_TRANSPORT_READY);
        CHECK_OK(weft_transport_wait(t, WEFT_SECOND));
        CHECK_EQ(elements_stats(t).waits, 1);
        atomic_store(&stop_driving, 1);
        pthread_join(thread, NULL);
        elements_close(&e);
    }
}

TEST(what_waits_is_done_in_order_when_the_transport_is_ready)
{
    each_way(way) {
        enum { N = 200 };
        weft_op_t ops[N], flush = WEFT_OP_INIT;
        elements_open(&e, way, 8, NULL, NULL);
        weft_transport_t *t = add_later("mem;rdma_tcp;", "mem", N * 8);
        memset(ops, 0, sizeof ops);
        for (uint64_t i = 0; i < N; i++) {
            memcpy((uint8_t *)weft_transport_buf(t, NULL) + i * 8, &i, 8);
            CHECK_OK(weft_transport_write(t, 8, 0, i * 8, &ops[i]));
        }
        CHECK_OK(weft_transport_flush(t, &flush));
        CHECK_OK(weft_action_configure(e.action, "mem", e.durl));
        CHECK_OK(pair_wait(&e.pair, &flush, 20));
        uint64_t last;
        memcpy(&last, weft_memory_base(e.memory), 8);
        CHECK_EQ(last, N - 1);
        for (int i = 0; i < N; i++)
            CHECK(weft_op_done(&ops[i]) && !ops[i].status);
        elements_close(&e);
    }
}

TEST(who_waits_for_a_transport_ends_by_its_deadline_its_cancel_or_the_durls_timeout)
{
    each_way(way) {
        weft_op_t op = WEFT_OP_INIT, timed = WEFT_OP_INIT, limited = WEFT_OP_INIT;
        weft_token_t *token;
        elements_open(&e, way, 100, NULL, NULL);
        weft_transport_t *t = add_later("mem;rdma_tcp;", "mem", 100);
        CHECK_EQ(weft_transport_wait(t, 0), WEFT_ERR_TIMEOUT);
        CHECK_EQ(weft_transport_wait(t, 20 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &op));
        timed.timeout_ns = 10 * WEFT_MILLISECOND;
        CHECK_OK(weft_transport_write(t, 10, 0, 0, &timed));
        CHECK_EQ(pair_wait(&e.pair, &timed, 10), WEFT_ERR_TIMEOUT);
        CHECK(!weft_op_done(&op));
        weft_op_cancel(&op);
        CHECK_EQ(pair_wait(&e.pair, &op, 10), WEFT_ERR_CANCELLED);
        CHECK_OK(weft_token_new(e.pair.rt[1], NULL, &token));
        op.token = token;
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &op));
        weft_token_cancel(token);
        CHECK_EQ(pair_wait(&e.pair, &op, 10), WEFT_ERR_CANCELLED);
        weft_token_drop(token);
        weft_transport_t *l = add_later("limited;rdma_tcp;timeout_ms,20;", "limited", 100);
        CHECK_OK(weft_transport_read(l, 10, 0, 0, &limited));
        CHECK_EQ(pair_wait(&e.pair, &limited, 10), WEFT_ERR_TIMEOUT);
        CHECK_EQ(elements_stats(t).failed, 5);
        elements_close(&e);
    }
}

TEST(bounds_beyond_the_end_of_time_are_none)
{
    for (int w = 0; w < 2; w++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
        a.connect_ns = WEFT_FOREVER;
        a.retry_ns = WEFT_MILLISECOND;
        elements_open(&e, &pair_ways[w], 100, NULL, &a);
        weft_transport_t *t = add_later("t;rdma_tcp;timeout_ms,4294967295;url,tcp://127.0.0.1:1;", "t", 100);
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &op));
        PAIR_UNTIL(&e.pair, why(t) == WEFT_ERR_REFUSED, 10);
        pair_run(&e.pair, 0.05);
        CHECK_EQ(state(t), WEFT_TRANSPORT_CONNECTING);
        CHECK(!weft_op_done(&op));
        CHECK_OK(weft_action_configure(e.action, "t", e.durl));
        CHECK_OK(pair_wait(&e.pair, &op, 10));
        elements_close(&e);
    }
}

TEST(nobody_at_the_address_is_lost_after_a_while_and_found_when_it_comes)
{
    each_way(way) {
        weft_action_opts_t a = WEFT_ACTION_OPTS_INIT;
        weft_memory_opts_t m = WEFT_MEMORY_OPTS_INIT;
        char durl[300], uri[200];
        a.connect_ns = 500 * WEFT_MILLISECOND;
        a.retry_ns = 5 * WEFT_MILLISECOND;
        m.named = true;
        elements_open(&e, way, 100, &m, &a);
        snprintf(uri, sizeof uri, "%s", weft_memory_uri(e.memory));
        elements_memory_close(&e); /* the port is free, and known */
        snprintf(durl, sizeof durl, "mem;rdma_tcp;url,%s;", uri);
        weft_transport_t *t = add_later(durl, "mem", 100);
        CHECK_EQ(elements_read(&e, t, 10, 0, 0), WEFT_ERR_REFUSED);
        CHECK_EQ(state(t), WEFT_TRANSPORT_LOST);
        CHECK_EQ(why(t), WEFT_ERR_REFUSED);
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &e.op)); /* the operation says it, and at once */
        CHECK_EQ(elements_end(&e, WEFT_OK), WEFT_ERR_REFUSED);
        m.uri = uri;
        elements_memory(&e, 100, &m);
        PAIR_UNTIL(&e.pair, state(t) == WEFT_TRANSPORT_READY, 20);
        CHECK_OK(elements_read(&e, t, 100, 0, 0));
        elements_close(&e);
    }
}

/* --- after ---------------------------------------------------------------------------------------------------------------- */

TEST(an_element_that_leaves_is_lost_and_its_successor_has_to_be_configured)
{
    each_way(way) {
        elements_open(&e, way, 100, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_OK(elements_ready(&e, t));
        char uri[WEFT_DURL_MAX];
        snprintf(uri, sizeof uri, "%s", weft_memory_uri(e.memory));
        elements_memory_close(&e);
        PAIR_UNTIL(&e.pair, state(t) == WEFT_TRANSPORT_LOST, 10);
        weft_status_t st = elements_read(&e, t, 10, 0, 0);
        CHECK_EQ(st, WEFT_ERR_PEER);
        CHECK_EQ(elements_stats(t).losses, 1);
        /* another memory at the same place: the region key is not for that */
        weft_memory_opts_t m = WEFT_MEMORY_OPTS_INIT;
        m.uri = uri;
        elements_memory(&e, 100, &m);
        PAIR_UNTIL(&e.pair, state(t) == WEFT_TRANSPORT_FAILED, 20);
        CHECK_EQ(why(t), WEFT_ERR_STALE);
        CHECK_OK(weft_transport_read(t, 10, 0, 0, &e.op));
        CHECK_EQ(elements_end(&e, WEFT_OK), WEFT_ERR_STALE);
        CHECK_OK(weft_action_configure(e.action, "mem", e.durl));
        CHECK_OK(elements_end(&e, weft_transport_flush(t, &e.op))); /* goes through the driver behind the order */
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(elements_read(&e, t, 100, 0, 0));
        CHECK_EQ(elements_stats(t).connects, 2);
        elements_close(&e);
    }
}

TEST(a_remote_that_the_program_has_stays_when_the_element_is_lost)
{
    each_way(way) {
        char in[8];
        elements_open(&e, way, 100, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_OK(elements_ready(&e, t));
        weft_remote_t *remote = weft_transport_remote(t);
        CHECK(remote && remote == weft_transport_remote(t));
        CHECK_OK(elements_end(&e, weft_rma_write(remote, 8, "direct", 7, &e.op)));
        CHECK_OK(elements_read(&e, t, 7, 8, 0));
        CHECK_STR((char *)weft_transport_buf(t, NULL), "direct");
        elements_memory_close(&e);
        PAIR_UNTIL(&e.pair, weft_transport_state(t, NULL) == WEFT_TRANSPORT_LOST, 10);
        pair_run(&e.pair, 0.05);
        CHECK(elements_end(&e, weft_rma_read(remote, 8, in, 7, &e.op)) != WEFT_OK);
        CHECK(!weft_transport_remote(t));
        elements_close(&e);
    }
}

TEST(a_forked_child_is_told_so)
{
    elements_open(&e, &pair_ways[2], 100, NULL, NULL);
    weft_transport_t *t = elements_add(&e, "mem", 100);
    CHECK_OK(elements_ready(&e, t));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        weft_op_t op = WEFT_OP_INIT;
        bool right = weft_transport_read(t, 10, 0, 0, &op) == WEFT_ERR_FORKED &&
                     weft_transport_fetch_add(t, 0, 1, &op) == WEFT_ERR_FORKED &&
                     weft_transport_reg(t, 1, NULL) == WEFT_ERR_FORKED;
        weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
        weft_memory_stats_t m = WEFT_MEMORY_STATS_INIT;
        weft_status_t why;
        weft_transport_t *found;
        right = right && weft_transport_state(t, &why) == WEFT_TRANSPORT_RELEASED && why == WEFT_ERR_FORKED &&
                weft_transport_get_stats(t, &s) == WEFT_ERR_FORKED && weft_memory_get_stats(e.memory, &m) == WEFT_ERR_FORKED &&
                !weft_transport_buf(t, NULL) && !weft_transport_buffer(t) && !weft_transport_remote(t) &&
                !weft_transport_memory(t) && weft_action_get(e.action, "mem", "rdma", &found) == WEFT_ERR_FORKED &&
                weft_action_add(e.action, "x;rdma_tcp;") == WEFT_ERR_FORKED &&
                weft_action_configure(e.action, "mem", e.durl) == WEFT_ERR_FORKED &&
                weft_action_release(e.action, "mem") == WEFT_ERR_FORKED;
        weft_action_terminate(e.action);
        _exit(right ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK_OK(elements_read(&e, t, 10, 0, 0));
    elements_close(&e);
}

TEST(a_transport_that_is_configured_anew_leads_elsewhere)
{
    each_way(way) {
        elements_t other;
        elements_open(&e, way, 100, NULL, NULL);
        elements_open(&other, way, 200, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 200);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_action_configure(e.action, "mem", e.durl)); /* the same: nothing happens */
        CHECK_OK(elements_read(&e, t, 100, 0, 0));
        CHECK_EQ(elements_stats(t).connects, 1);
        memcpy(weft_memory_base(other.memory), "other", 6);
        CHECK_OK(weft_action_configure(e.action, "mem", other.durl));
        for (double end = test_now() + 20; elements_stats(t).connects < 2;) {
            pair_drive(&e.pair);
            pair_drive(&other.pair);
            CHECK(test_now() < end);
        }
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_transport_read(t, 200, 0, 0, &op));
        for (double end = test_now() + 20; !weft_op_done(&op);) {
            pair_drive(&e.pair);
            pair_drive(&other.pair);
            CHECK(test_now() < end);
        }
        CHECK_OK(op.status);
        CHECK_STR((char *)weft_transport_buf(t, NULL), "other");
        PAIR_UNTIL(&e.pair, elements_memory_stats(&e).connections == 0, 10); /* it has hung up */
        CHECK_OK(weft_action_close(e.action, &op));
        for (double end = test_now() + 20; !weft_op_done(&op);) {
            pair_drive(&e.pair);
            pair_drive(&other.pair);
            CHECK(test_now() < end);
        }
        e.action = NULL;
        elements_close(&e);
        elements_close(&other);
    }
}

TEST(a_transport_that_cannot_be_right_fails)
{
    each_way(way) {
        weft_durl_t d = WEFT_DURL_INIT;
        char text[WEFT_DURL_MAX + 1];
        size_t len;
        weft_op_t op = WEFT_OP_INIT;
        elements_open(&e, way, 100, NULL, NULL);
        /* more than there is */
        CHECK_OK(weft_durl_parse(e.durl, &d));
        d.bytes = 101;
        memcpy(d.name, "large", 6);
        len = sizeof text;
        CHECK_OK(weft_durl_format(&d, text, &len));
        weft_log_set_level(WEFT_LOG_NONE);
        weft_transport_t *t = add_later(text, "large", 10);
        CHECK_EQ(elements_read(&e, t, 10, 0, 0), WEFT_ERR_RANGE);
        CHECK_EQ(state(t), WEFT_TRANSPORT_FAILED);
        /* a region key that nobody made */
        d.bytes = 100;
        d.region_key[d.region_key_len - 1] ^= 1;
        memcpy(d.name, "forged", 7);
        len = sizeof text;
        CHECK_OK(weft_durl_format(&d, text, &len));
        t = add_later(text, "forged", 10);
        CHECK_EQ(elements_end(&e, weft_transport_write(t, 10, 0, 0, &e.op)), WEFT_ERR_AUTH);
        CHECK_EQ(state(t), WEFT_TRANSPORT_FAILED);
        CHECK_EQ(why(t), WEFT_ERR_AUTH);
        /* no region key at all, and no name either */
        snprintf(text, sizeof text, "nameless;rdma_tcp;url,%s;timeout_ms,300;", weft_memory_uri(e.memory));
        t = add_later(text, "nameless", 10);
        CHECK_EQ(elements_read(&e, t, 10, 0, 0), WEFT_ERR_TIMEOUT);
        CHECK_EQ(why(t), WEFT_ERR_NOTFOUND);
        /* a region key alone says where to go */
        CHECK_OK(weft_durl_parse(e.durl, &d));
        d.url[0] = 0;
        memcpy(d.name, "alone", 6);
        len = sizeof text;
        CHECK_OK(weft_durl_format(&d, text, &len));
        t = add_later(text, "alone", 10);
        CHECK_OK(elements_read(&e, t, 10, 0, 0));
        (void)op;
        elements_close(&e);
    }
}

/* --- release, terminate, close -------------------------------------------------------------------------------------------- */

TEST(a_release_ends_what_is_under_way_and_every_later_use)
{
    each_way(way) {
        enum { N = 16 << 20, AWAY = N - 10 }; /* away from what is written: what is left of that may still arrive */
        weft_op_t wait = WEFT_OP_INIT, copy = WEFT_OP_INIT, batch = WEFT_OP_INIT;
        weft_transport_t *again;
        elements_open(&e, way, N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N), *part = elements_add(&e, "mem@1", 10),
                         *other = elements_add(&e, "member", 10);
        weft_transport_t *later = add_later("later;rdma_tcp;", "later", 10);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_transport_read(later, 10, 0, 0, &wait));
        CHECK_OK(weft_transport_write(t, N / 2, 0, 0, &copy));
        weft_transport_item_t item = {.what = WEFT_RMA_DO_READ, .size = N};
        CHECK_OK(weft_transport_batch(t, &item, 1, &batch));
        CHECK_OK(weft_action_release(e.action, "mem"));
        CHECK_EQ(state(t), WEFT_TRANSPORT_RELEASED); /* from now on, whoever drives */
        CHECK_EQ(state(part), WEFT_TRANSPORT_RELEASED);
        CHECK_EQ(weft_transport_read(t, 10, 0, 0, &e.op), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_transport_reg(t, 10, NULL), WEFT_ERR_CLOSED);
        CHECK(!weft_transport_buf(t, NULL));
        CHECK(!weft_transport_remote(t));
        CHECK_EQ(elements_end(&e, weft_transport_fetch_add(t, 0, 1, &e.op)), WEFT_ERR_CLOSED);
        CHECK_EQ(elements_ready(&e, part), WEFT_ERR_CLOSED);
        weft_status_t st = pair_wait(&e.pair, &copy, 10);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CLOSED);
        st = pair_wait(&e.pair, &batch, 10);
        CHECK(st == WEFT_OK || st == WEFT_ERR_CLOSED);
        CHECK_EQ(weft_action_get(e.action, "mem", "rdma", &again), WEFT_ERR_NOTFOUND);
        CHECK_EQ(weft_action_configure(e.action, "mem", e.durl), WEFT_ERR_NOTFOUND);
        CHECK_OK(elements_read(&e, other, 10, AWAY, 0));
        CHECK(!weft_op_done(&wait));
        CHECK_OK(weft_action_release(e.action, "later"));
        CHECK_EQ(pair_wait(&e.pair, &wait, 10), WEFT_ERR_CLOSED);
        /* the name is free */
        again = elements_add(&e, "mem", 10);
        CHECK(again != t);
        CHECK_OK(elements_read(&e, again, 10, AWAY, 0));
        elements_close(&e);
    }
}

TEST(terminate_ends_waits_and_serving_and_leaves_what_works)
{
    each_way(way) {
        weft_op_t wait = WEFT_OP_INIT, serve = WEFT_OP_INIT;
        elements_open(&e, way, 100, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 10), *later = add_later("later;rdma_tcp;", "later", 10);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_action_add(e.action, "own;rdma_tcp_server;size,4096;"));
        weft_transport_t *server = elements_get(&e, "own", "rdma_server");
        CHECK_OK(weft_transport_serve(server, &serve));
        CHECK_OK(weft_transport_write(later, 10, 0, 0, &wait));
        pair_run(&e.pair, 0.02);
        CHECK(!weft_op_done(&serve) && !weft_op_done(&wait));
        CHECK(!weft_action_terminated(e.action));
        weft_action_terminate(e.action);
        weft_action_terminate(e.action);
        CHECK(weft_action_terminated(e.action));
        CHECK_OK(pair_wait(&e.pair, &serve, 10));
        CHECK_EQ(pair_wait(&e.pair, &wait, 10), WEFT_ERR_CANCELLED);
        CHECK_EQ(elements_read(&e, later, 10, 0, 0), WEFT_ERR_CANCELLED);
        CHECK_OK(elements_end(&e, weft_transport_serve(server, &e.op)));
        CHECK_OK(elements_read(&e, t, 10, 0, 0));
        elements_close(&e);
    }
}

TEST(a_close_in_the_middle_of_things_ends_them)
{
    each_way(way) {
        enum { N = 16 << 20 };
        weft_op_t wait = WEFT_OP_INIT, copy = WEFT_OP_INIT, flush = WEFT_OP_INIT, close = WEFT_OP_INIT;
        elements_open(&e, way, N, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", N), *later = add_later("later;rdma_tcp;", "later", 10);
        (void)elements_add(&e, "dialling", 10);
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_transport_read(later, 10, 0, 0, &wait));
        CHECK_OK(weft_transport_write(t, N, 0, 0, &copy));
        CHECK_OK(weft_transport_flush(t, &flush));
        CHECK_OK(weft_action_close(e.action, &close));
        e.action = NULL;
        CHECK_OK(pair_wait(&e.pair, &close, 15));
        CHECK(weft_op_done(&wait) && weft_op_done(&copy) && weft_op_done(&flush));
        CHECK_EQ(wait.status, WEFT_ERR_CLOSED);
        CHECK(copy.status == WEFT_OK || copy.status == WEFT_ERR_CLOSED);
        PAIR_UNTIL(&e.pair, elements_memory_stats(&e).connections == 0, 10);
        elements_close(&e);
    }
}

TEST(a_runtime_takes_along_what_was_not_closed)
{
    each_way(way) {
        weft_op_t wait = WEFT_OP_INIT, copy = WEFT_OP_INIT;
        elements_open(&e, way, 1 << 20, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 1 << 20), *later = add_later("later;rdma_tcp;", "later", 10);
        (void)elements_add(&e, "dialling", 10);
        CHECK_OK(weft_action_add(e.action, "own;rdma_tcp_server;size,4096;"));
        CHECK_OK(weft_transport_read(later, 10, 0, 0, &wait));
        CHECK_OK(elements_ready(&e, t));
        CHECK_OK(weft_transport_write(t, 1 << 20, 0, 0, &copy));
        CHECK_OK(weft_runtime_close(e.pair.rt[way->mode == WEFT_PROGRESS_CALLER]));
        CHECK_OK(weft_runtime_close(e.pair.rt[way->mode != WEFT_PROGRESS_CALLER]));
        CHECK(weft_op_done(&wait) && weft_op_done(&copy));
        CHECK_EQ(wait.status, WEFT_ERR_CLOSED);
    }
}

/* --- servers, and memory of this process ---------------------------------------------------------------------------------- */

TEST(a_server_is_reached_by_its_url_and_name_and_by_its_shm_id)
{
    each_way(way) {
        char durl[300], shm[100], *bytes;
        size_t len;
        weft_action_t *servers;
        weft_transport_t *s;
        elements_open(&e, way, 0, NULL, NULL);
        CHECK_OK(weft_action_open(e.pair.rt[0], "servers", NULL, &servers));
        CHECK_OK(weft_action_add(servers, "mem;rdma_uverbs_server;"));
        CHECK_OK(weft_action_get(servers, "mem", "rdma_server", &s));
        CHECK_EQ(state(s), WEFT_TRANSPORT_WAITING);
        CHECK(!weft_transport_buf(s, NULL));
        CHECK(!weft_transport_memory(s));
        CHECK_EQ(weft_action_configure(servers, "mem", "mem;rdma_uverbs_server;"), WEFT_ERR_INVALID);
        CHECK_OK(weft_action_configure(servers, "mem", "mem;rdma_uverbs_server;size,4096;url,tcp://127.0.0.1:0;"));
        CHECK_EQ(weft_action_configure(servers, "mem", "mem;rdma_uverbs_server;size,8192;"), WEFT_ERR_STATE);
        CHECK_OK(elements_ready(&e, s));
        CHECK_EQ(e.op.len, 4096);
        bytes = weft_transport_buf(s, &len);
        CHECK_EQ(len, 4096);
        CHECK_EQ(weft_transport_reg(s, 10, NULL), WEFT_ERR_INVALID);
        CHECK_EQ(weft_transport_read(s, 10, 0, 0, &e.op), WEFT_ERR_INVALID);
        memcpy(bytes, "served", 7);
        snprintf(durl, sizeof durl, "mem;rdma_uverbs_proxy;url,%s;peerinfo,whatever;", weft_memory_uri(weft_transport_memory(s)));
        weft_transport_t *t = add_later(durl, "mem", 100);
        CHECK_OK(elements_read(&e, t, 100, 0, 0));
        CHECK_STR((char *)weft_transport_buf(t, NULL), "served");
        /* by shm_id */
        snprintf(shm, sizeof shm, "shm;rdma_shared_server;size,100;shm_id,test-%d;", (int)getpid());
        CHECK_OK(weft_action_add(servers, shm));
        snprintf(shm, sizeof shm, "shm;rdma_shared;shm_id,test-%d;", (int)getpid());
        t = add_later(shm, "shm", 100);
        memcpy(weft_transport_buf(t, NULL), "by id", 6);
        CHECK_OK(elements_write(&e, t, 100, 0, 0));
        /* whatever it is called there, since that is where it is; what is served elsewhere is not taken for it */
        snprintf(shm, sizeof shm, "another;rdma_shared;shm_id,test-%d;", (int)getpid());
        weft_transport_t *same = add_later(shm, "another", 100);
        CHECK_OK(elements_read(&e, same, 100, 0, 0));
        CHECK_STR((char *)weft_transport_buf(same, NULL), "by id");
        snprintf(durl, sizeof durl, "whoever;rdma_tcp;url,%s;", weft_memory_uri(weft_transport_memory(s)));
        same = add_later(durl, "whoever", 100);
        CHECK_OK(elements_read(&e, same, 100, 0, 0));
        CHECK_STR((char *)weft_transport_buf(same, NULL), "served");
        weft_status_t why = WEFT_OK;
        elements_memory(&e, 100, NULL); /* without its region key nobody finds it, whatever else is served by the process */
        snprintf(durl, sizeof durl, "nobody;rdma_tcp;url,%s;", weft_memory_uri(e.memory));
        weft_transport_t *none = add_later(durl, "nobody", 100);
        PAIR_UNTIL(&e.pair, (weft_transport_state(none, &why), why == WEFT_ERR_NOTFOUND), 20);
        CHECK_OK(weft_action_get(servers, "shm", "rdma_server", &s));
        CHECK_STR((char *)weft_transport_buf(s, NULL), "by id");
        CHECK_OK(weft_action_close(servers, &e.op));
        CHECK_OK(pair_wait(&e.pair, &e.op, 15));
        PAIR_UNTIL(&e.pair, state(t) == WEFT_TRANSPORT_LOST, 10);
        elements_close(&e);
    }
}

/* How often memory of regions is mapped here. */
static unsigned regions(void)
{
    char line[512];
    unsigned n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "weft-region") != NULL;
    fclose(maps);
    return n;
}

TEST(rdma_local_is_memory_of_this_process)
{
    each_way(way) {
        elements_open(&e, way, 0, NULL, NULL);
        unsigned before = regions();
        weft_transport_t *t = add_later("local;rdma_local;size,64k;", "local", 65536);
        pattern_fill(weft_transport_buf(t, NULL), 65536, 1);
        CHECK_OK(elements_write(&e, t, 65536, 0, 0));
        memset(weft_transport_buf(t, NULL), 0, 65536);
        CHECK_OK(elements_read(&e, t, 65536, 0, 0));
        CHECK_EQ(pattern_check(weft_transport_buf(t, NULL), 65536, 1), 65536);
        CHECK_EQ(elements_read(&e, t, 1, 65536, 0), WEFT_ERR_RANGE);
        CHECK_EQ(weft_action_configure(e.action, "local", "local;rdma_local;size,1M;"), WEFT_ERR_STATE);
        weft_transport_t *brief = add_later("brief;rdma_local;size,64k;", "brief", 100);
        CHECK_OK(elements_write(&e, brief, 100, 0, 0));
        unsigned both = regions();
        CHECK(both > before);
        CHECK_OK(weft_action_release(e.action, "brief")); /* it goes with its transport, and the other one stays */
        PAIR_UNTIL(&e.pair, regions() < both, 10);
        CHECK(regions() > before);
        elements_memory(&e, 100, NULL); /* elsewhere */
        memcpy(weft_memory_base(e.memory), "there", 6);
        CHECK_OK(weft_action_configure(e.action, "local", e.durl));
        PAIR_UNTIL(&e.pair, elements_stats(t).connects == 2, 10);
        CHECK_OK(elements_read(&e, t, 100, 0, 0));
        CHECK_STR((char *)weft_transport_buf(t, NULL), "there");
        elements_close(&e);
    }
}

/* --- threads -------------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 150, SPAN = 8192 };

static _Atomic int failures;
static uint64_t fetched;

static void *work(void *arg)
{
    size_t me = (size_t)(uintptr_t)arg;
    weft_transport_t *t = elements_get(&e, me % 2 ? "one" : "two", "rdma");
    uint8_t *buf = weft_transport_buf(t, NULL);
    weft_op_t op = WEFT_OP_INIT;
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t n = 1 + (i * 37 + me) % (SPAN / 2), at = me * SPAN;
        pattern_fill(buf + at, n, i + me);
        weft_status_t st = weft_transport_write(t, n, at, at, &op);
        if (!st)
            st = weft_op_wait(&op, 20 * WEFT_SECOND);
        memset(buf + at, 0, n);
        if (!st)
            st = weft_transport_read(t, n, at, at, &op);
        if (!st)
            st = weft_op_wait(&op, 20 * WEFT_SECOND);
        if (st || pattern_check(buf + at, n, i + me) != n)
            atomic_fetch_add(&failures, 1);
        st = weft_transport_fetch_add(t, THREADS * SPAN, 1, &op);
        if (!st)
            st = weft_op_wait(&op, 20 * WEFT_SECOND);
        if (st)
            atomic_fetch_add(&failures, 1);
    }
    return NULL;
}

static void *drive_memory(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop_driving)) {
        weft_runtime_progress(e.pair.rt[0]);
        sched_yield();
    }
    return NULL;
}

TEST(many_threads_use_one_transport_and_each_other_s_buffers)
{
    each_way(way) {
        pthread_t threads[THREADS], driver;
        elements_open(&e, way, THREADS * SPAN + 8, NULL, NULL);
        weft_transport_t *one = elements_add(&e, "one", THREADS * SPAN), *two = elements_add(&e, "two", 0);
        CHECK_OK(weft_transport_reg(two, THREADS * SPAN, one));
        atomic_store(&stop_driving, 0);
        CHECK(!pthread_create(&driver, NULL, drive_memory, NULL));
        for (size_t i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
        for (size_t i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        atomic_store(&stop_driving, 1);
        pthread_join(driver, NULL);
        CHECK_EQ(atomic_load(&failures), 0);
        memcpy(&fetched, (uint8_t *)weft_memory_base(e.memory) + THREADS * SPAN, 8);
        CHECK_EQ(fetched, THREADS * ROUNDS);
        weft_transport_stats_t a = elements_stats(one), b = elements_stats(two);
        CHECK_EQ(a.reads + b.reads, THREADS * ROUNDS);
        CHECK_EQ(a.atomics + b.atomics, THREADS * ROUNDS);
        elements_close(&e);
    }
}

/* Threads that read, register and ask while others release, add and configure. */
static _Atomic int over;

static void *use_it(void *arg)
{
    weft_op_t op = WEFT_OP_INIT;
    (void)arg;
    op.timeout_ns = 5 * WEFT_SECOND;
    while (!atomic_load(&over)) {
        weft_transport_t *t;
        weft_transport_stats_t s = WEFT_TRANSPORT_STATS_INIT;
        if (weft_action_get(e.action, "mem", "rdma", &t))
            continue;
        (void)!weft_transport_reg(t, 4096, NULL);
        for (int i = 0; i < 20; i++) {
            weft_status_t st = weft_transport_read(t, 4096, 0, 0, &op);
            if (!st)
                st = weft_op_wait(&op, 10 * WEFT_SECOND);
            if (st && st != WEFT_ERR_CLOSED && st != WEFT_ERR_PEER && st != WEFT_ERR_STATE)
                FAIL("a read while others release: %s", weft_status_name(st));
        }
        (void)weft_transport_state(t, NULL);
        (void)!weft_transport_get_stats(t, &s);
    }
    return NULL;
}

TEST(threads_use_transports_that_others_release_and_configure)
{
    for (int w = 2; w < 4; w++) { /* those with threads of their own */
        pthread_t threads[2];
        char durl[WEFT_DURL_MAX + 1];
        elements_open(&e, &pair_ways[w], 4096, NULL, NULL);
        snprintf(durl, sizeof durl, "mem%s", strchr(e.durl, ';'));
        atomic_store(&over, 0);
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, use_it, NULL));
        for (int i = 0; i < 60; i++) {
            CHECK_OK(weft_action_add(e.action, "mem;rdma_tcp;"));
            CHECK_OK(weft_action_configure(e.action, "mem", durl));
            usleep((useconds_t)(i * 37 % 3000));
            if (i % 3 == 0)
                CHECK_OK(weft_action_configure(e.action, "mem", durl));
            CHECK_OK(weft_action_release(e.action, "mem"));
        }
        atomic_store(&over, 1);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        elements_close(&e);
    }
}
