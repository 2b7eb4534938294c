/* An extension that is written with weft/extend.h alone (examples/extend/ping.c): its operation is one like any other. */
#include "../../examples/extend/ping.c"
#include "lib/pair.h"
#include "test.h"

__attribute__((constructor)) static void known(void)
{
    CHECK_OK(ping_register());
}

TEST(an_operation_of_an_extension_completes_over_every_transport)
{
    each_way(way) {
        pair_t pair;
        weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        pair_open(&pair, way, NULL);
        for (int i = 0; i < 2; i++) {
            weft_ep_info_t info = WEFT_EP_INFO_INIT;
            CHECK_OK(ping(pair.ep[i], &op[i]));
            CHECK_OK(pair_wait(&pair, &op[i], 20));
            CHECK_OK(weft_ep_get_info(pair.ep[i], &info));
            CHECK(info.peer_capabilities & CAN_PING);
        }
        pair_close(&pair);
    }
}

TEST(it_waits_for_the_connection_and_is_cancelled_and_timed_out_like_any_other)
{
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT, late = WEFT_OP_INIT, stopped = WEFT_OP_INIT;
    CHECK_OK(weft_runtime_open(NULL, &rt));
    CHECK_OK(weft_ep_open(rt, "unix://@weft-nobody-listens-here", NULL, NULL, &ep));
    late.timeout_ns = 20 * WEFT_MILLISECOND;
    CHECK_OK(ping(ep, &op));
    CHECK_OK(ping(ep, &late));
    weft_op_cancel(&stopped);
    CHECK_OK(ping(ep, &stopped));
    CHECK_EQ(weft_op_wait(&stopped, WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_EQ(weft_op_wait(&late, 20 * WEFT_SECOND), WEFT_ERR_TIMEOUT);
    CHECK(!weft_op_done(&op));
    CHECK_EQ(ping(ep, &op), WEFT_ERR_STATE); /* it is under way */
    weft_op_cancel(&op);
    CHECK_EQ(weft_op_wait(&op, 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
    CHECK_OK(ping(ep, &op));
    CHECK_OK(weft_runtime_close(rt));
    CHECK(weft_op_done(&op) && op.status);
    CHECK_EQ(ping(ep, &op), WEFT_ERR_CLOSED);
}

TEST(what_it_says_names_the_operation_and_the_peer)
{
    each_way(way) {
        pair_t pair;
        weft_op_t op = WEFT_OP_INIT;
        pair_open(&pair, way, NULL);
        CHECK_OK(weft_ep_abort(pair.ep[0], NULL));
        pair.ep[0] = NULL;
        PAIR_UNTIL(&pair, weft_ep_get_state(pair.ep[1]) != WEFT_EP_UP, 20);
        CHECK_OK(ping(pair.ep[1], &op));
        CHECK(pair_wait(&pair, &op, 20));
        CHECK(!strncmp(weft_op_error(&op), "ping: ", 6) && strlen(weft_op_error(&op)) > 10);
        pair_close(&pair);
    }
}

static void breaks(weft_am_t *am, void *user)
{
    (void)user;
    weft_ext_ep_break(am->ep, WEFT_ERR_PROTOCOL, "a message in green ink");
}

TEST(what_an_extension_says_of_a_peer_that_breaks_its_protocol_is_what_operations_say)
{
    pair_t pair;
    weft_op_t handled = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    char byte;
    pair_open(&pair, &pair_ways[0], NULL);
    CHECK_OK(weft_am_handle(pair.rt[1], 7, breaks, NULL, &handled));
    CHECK_OK(weft_msg_recv(pair.ep[1], &byte, 1, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_am_send(pair.ep[0], 7, NULL, 0, NULL, 0, NULL));
    CHECK_EQ(pair_wait(&pair, &recv, 20), WEFT_ERR_PROTOCOL);
    CHECK(strstr(weft_op_error(&recv), "the peer broke the protocol: a message in green ink"));
    pair_close(&pair);
}

/* --- what an extension is told ------------------------------------------------------------------------------------------- */

static int n_open, n_shutdown, n_closed, n_new, n_up, n_down, n_free, rounds;
static bool fails;

static weft_status_t seen_open(weft_runtime_t *rt, void *state)
{
    CHECK(weft_ext_state(rt, NULL) == NULL && state);
    n_open++;
    return fails ? weft_fail(WEFT_ERR_LIMIT, "the extension does not want to") : WEFT_OK;
}

static void seen_shutdown(weft_runtime_t *rt, void *state)
{
    (void)state;
    CHECK(weft_ext_closing(rt));
    n_shutdown++;
}

static bool seen_idle(weft_runtime_t *rt, void *state)
{
    (void)rt;
    (void)state;
    return ++rounds % 3 == 0;
}

static void seen_closed(weft_runtime_t *rt, void *state)
{
    (void)rt;
    (void)state;
    n_closed++;
}

static void seen_new(weft_ep_t *ep, void *state)
{
    CHECK(ep && !*(int *)state);
    *(int *)state = 7;
    n_new++;
}

static void seen_up(weft_ep_t *ep, void *state)
{
    CHECK(ep && *(int *)state == 7);
    n_up++;
}

static void seen_down(weft_ep_t *ep, void *state, weft_status_t why)
{
    CHECK(ep && *(int *)state == 7 && why);
    n_down++;
}

static void seen_free(weft_ep_t *ep, void *state)
{
    CHECK(ep && *(int *)state == 7);
    n_free++;
}

static const weft_ext_t seen = {.size = sizeof seen,
                                .name = "seen",
                                .ep_state_size = sizeof(int),
                                .open = seen_open,
                                .shutdown = seen_shutdown,
                                .idle = seen_idle,
                                .closed = seen_closed,
                                .ep_new = seen_new,
                                .ep_up = seen_up,
                                .ep_down = seen_down,
                                .ep_free = seen_free};

TEST(an_extension_is_told_of_every_runtime_and_endpoint_once)
{
    weft_runtime_t *before;
    pair_t pair;
    CHECK_OK(weft_runtime_open(NULL, &before));
    CHECK_OK(weft_ext_register(&seen));
    CHECK_OK(weft_ext_register(&seen));
    CHECK(!weft_ext_state(before, &seen)); /* it was opened without it */
    pair_open(&pair, &pair_ways[0], NULL);
    CHECK(n_open == 2 && n_new == 2 && n_up == 2 && !n_down);
    CHECK(weft_ext_state(pair.rt[0], &seen) && weft_ext_state(pair.rt[0], &seen) != weft_ext_state(pair.rt[1], &seen));
    pair_close(&pair);
    CHECK(n_closed == 2 && n_shutdown >= 6 && n_down >= 2 && n_free == 2);
    CHECK_OK(weft_runtime_close(before));
    CHECK(n_open == 2 && n_closed == 2);
}

TEST(an_extension_that_cannot_open_makes_the_runtime_say_so)
{
    weft_runtime_t *rt = NULL;
    CHECK_OK(weft_ext_register(&seen));
    fails = true;
    CHECK_EQ(weft_runtime_open(NULL, &rt), WEFT_ERR_LIMIT);
    CHECK(!rt && strstr(weft_last_error(), "does not want to") && n_open == 1 && !n_closed);
}

/* --- rules --------------------------------------------------------------------------------------------------------------- */

static void rang(weft_ext_timer_t *timer)
{
    timer->fn = NULL;
}

typedef struct asked {
    weft_ext_call_t call;
    weft_runtime_t *rt;
    weft_ext_timer_t timer;
    int ran;
} asked_t;

static void on_driver(weft_ext_call_t *call)
{
    asked_t *a = (asked_t *)(void *)call;
    a->ran++;
    CHECK_EQ(weft_ext_may_wait(), WEFT_ERR_STATE);
    CHECK_OK(weft_ext_timer_set(a->rt, &a->timer, weft_now(a->rt) + WEFT_MILLISECOND));
}

TEST(calls_and_timers_run_on_the_driver_and_driver_only_says_so_elsewhere)
{
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        asked_t a = {.call.fn = on_driver, .timer.fn = rang};
        weft_op_t op = WEFT_OP_INIT;
        o.progress = (weft_progress_mode_t)mode;
        CHECK_OK(weft_runtime_open(&o, &a.rt));
        CHECK_OK(weft_ext_may_wait());
        CHECK_EQ(weft_ext_timer_set(a.rt, &a.timer, 0), WEFT_ERR_STATE);
        CHECK_EQ(weft_ext_op_track(&op), WEFT_ERR_INVALID);
        CHECK_OK(weft_ext_call(a.rt, &a.call));
        CHECK_OK(weft_timer_start(a.rt, 20 * WEFT_MILLISECOND, &op));
        CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
        CHECK(a.ran == 1 && !a.timer.fn);
        uint32_t use = weft_ext_use(a.rt);
        CHECK_OK(weft_ext_check(a.rt));
        CHECK_OK(weft_runtime_close(a.rt));
        CHECK_EQ(weft_ext_check(a.rt), WEFT_ERR_CLOSED);
        CHECK(weft_ext_use(a.rt) == use);
        CHECK_EQ(weft_ext_call(a.rt, &a.call), WEFT_ERR_CLOSED);
        CHECK_EQ(weft_ext_enter(a.rt), WEFT_ERR_CLOSED);
    }
}
