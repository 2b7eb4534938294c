/* What an extension does wrong has an end: a status, a sentence in the log, or nothing. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <weft/extend.h>
#include <weft/weft.h>

#include "core/local.h"
#include "ports.h"
#include "test.h"

static weft_runtime_t *open_as(weft_progress_mode_t mode)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = mode;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static weft_status_t post(weft_runtime_t *rt, weft_op_t *op, const weft_op_kind_t *kind)
{
    weft_status_t st = weft_ext_op_prepare(rt, op, kind);
    return st ? st : weft_ext_op_start(op);
}

/* Let the driver go round many times. */
static void a_while(weft_runtime_t *rt)
{
    weft_op_t timer = WEFT_OP_INIT;
    CHECK_OK(weft_timer_start(rt, 20 * WEFT_MILLISECOND, &timer));
    CHECK_OK(weft_op_wait(&timer, 20 * WEFT_SECOND));
}

static _Atomic int n_told;

static void told(weft_op_t *op, void *user)
{
    (void)op;
    (void)user;
    n_told++;
}

static void cancel(weft_op_t *op, weft_status_t why)
{
    weft_ext_op_complete(op, why, 0);
}

/* --- operations ---------------------------------------------------------------------------------------------------------- */

static weft_status_t returns;

static weft_status_t completes_and_fails(weft_op_t *op)
{
    weft_ext_op_complete(op, WEFT_OK, 0);
    return returns;
}

static const weft_op_kind_t both = {.name = "both", .start = completes_and_fails, .cancel = cancel};

TEST(a_start_that_completes_and_then_fails_completes_once)
{
    const weft_status_t all[] = {WEFT_ERR_PEER, WEFT_ERR_INVALID};
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++)
        for (int i = 0; i < 4; i++) {
            weft_runtime_t *rt = open_as((weft_progress_mode_t)mode);
            weft_op_t op = WEFT_OP_INIT, queued = WEFT_OP_INIT, *out[8];
            weft_queue_t *queue;
            returns = all[i % 2];
            n_told = 0;
            op.fn = told;
            if (i > 1)
                weft_op_cancel(&op); /* before it is started */
            CHECK_OK(post(rt, &op, &both));
            a_while(rt);
            CHECK_EQ(n_told, 1);
            CHECK_OK(op.status);
            CHECK_OK(weft_queue_new(rt, &queue));
            queued.queue = queue;
            CHECK_OK(post(rt, &queued, &both));
            CHECK_EQ(weft_queue_pop(queue, out, 8, 20 * WEFT_SECOND), 1);
            CHECK_EQ(weft_queue_pop(queue, out, 8, 20 * WEFT_MILLISECOND), 0);
            CHECK_OK(weft_queue_free(queue));
            CHECK_OK(weft_runtime_close(rt));
            CHECK_EQ(n_told, 1);
        }
}

static weft_status_t waits(weft_op_t *op)
{
    return weft_ext_op_track(op);
}

static const weft_op_kind_t waiting = {.name = "waiting", .start = waits, .cancel = cancel};

TEST(an_operation_that_nobody_ends_is_cancelled_when_the_runtime_closes)
{
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        weft_runtime_t *rt = open_as((weft_progress_mode_t)mode);
        weft_op_t op = WEFT_OP_INIT, plain[3] = {WEFT_OP_INIT};
        n_told = 0;
        op.fn = told;
        op.timeout_ns = 1000 * WEFT_SECOND;
        CHECK_OK(post(rt, &op, &waiting));
        for (int i = 0; i < 3; i++)
            CHECK_OK(post(rt, &plain[i], &waiting));
        weft_op_cancel(&plain[1]);
        CHECK_EQ(weft_op_wait(&plain[1], 20 * WEFT_SECOND), WEFT_ERR_CANCELLED);
        CHECK_OK(weft_runtime_close(rt));
        CHECK_EQ(n_told, 1);
        CHECK_EQ(op.status, WEFT_ERR_CLOSED);
        CHECK(weft_op_done(&plain[0]) && plain[0].status == WEFT_ERR_CLOSED);
        CHECK(weft_op_done(&plain[2]) && plain[2].status == WEFT_ERR_CLOSED);
    }
}

static weft_status_t waits_and_fails(weft_op_t *op)
{
    CHECK_OK(weft_ext_op_track(op));
    CHECK_OK(weft_ext_op_track(op));
    return returns;
}

TEST(an_operation_that_is_tracked_and_then_fails_is_nowhere)
{
    static const weft_op_kind_t kind = {.name = "fails", .start = waits_and_fails, .cancel = cancel};
    weft_runtime_t *rt = open_as(WEFT_PROGRESS_CALLER);
    weft_op_t op = WEFT_OP_INIT, before = WEFT_OP_INIT, after = WEFT_OP_INIT;
    CHECK_OK(post(rt, &before, &waiting));
    returns = WEFT_ERR_INVALID;
    CHECK_EQ(post(rt, &op, &kind), WEFT_ERR_INVALID);
    memset(&op, 0, sizeof op);
    CHECK_OK(post(rt, &after, &waiting));
    returns = WEFT_ERR_PEER;
    op.fn = told;
    CHECK_OK(post(rt, &op, &kind));
    a_while(rt);
    CHECK_EQ(n_told, 1);
    memset(&op, 0, sizeof op);
    CHECK_OK(weft_runtime_close(rt));
    CHECK(before.status == WEFT_ERR_CLOSED && after.status == WEFT_ERR_CLOSED && !op.status);
}

static void on_driver(weft_ext_call_t *call)
{
    weft_op_t *op = (weft_op_t *)(void *)(call + 1);
    CHECK_OK(weft_ext_op_track(op));
    weft_ext_op_complete(op, WEFT_OK, 0);
    weft_ext_op_complete(op, WEFT_ERR_RANGE, 0);
    CHECK_EQ(weft_ext_op_track(op), WEFT_ERR_STATE);
}

TEST(an_operation_that_is_under_way_is_not_started_again_or_taken_back)
{
    weft_runtime_t *rt = open_as(WEFT_PROGRESS_CALLER);
    struct {
        weft_ext_call_t call;
        weft_op_t op;
    } c = {{.fn = on_driver}, WEFT_OP_INIT};
    CHECK_EQ(weft_ext_op_start(NULL), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "the operation is NULL"));
    CHECK_OK(post(rt, &c.op, &waiting));
    CHECK_EQ(weft_ext_op_start(&c.op), WEFT_ERR_STATE);
    weft_ext_op_unprepare(&c.op);
    CHECK(!weft_op_done(&c.op));
    CHECK_EQ(weft_ext_op_track(&c.op), WEFT_ERR_STATE);
    CHECK(strstr(weft_last_error(), "this thread does not drive the runtime"));
    CHECK_OK(weft_ext_call(rt, &c.call));
    CHECK_OK(weft_op_wait(&c.op, 20 * WEFT_SECOND));
    CHECK_OK(weft_runtime_close(rt));
}

/* --- calls --------------------------------------------------------------------------------------------------------------- */

typedef struct counted {
    weft_ext_call_t call;
    weft_runtime_t *rt;
    int again; /* how often it posts itself */
    _Atomic int ran;
} counted_t;

static _Atomic bool held, let_go;

static void hold(weft_ext_call_t *call)
{
    (void)call;
    held = true;
    while (!let_go)
        usleep(100);
}

static void count(weft_ext_call_t *call)
{
    counted_t *c = (counted_t *)(void *)call;
    c->ran++;
    if (c->again-- > 0)
        CHECK_OK(weft_ext_call(c->rt, call));
}

TEST(a_call_that_has_not_run_yet_is_not_taken_again)
{
    weft_runtime_t *rt = open_as(WEFT_PROGRESS_THREAD);
    weft_ext_call_t holds = {.fn = hold}, nothing = {.fn = NULL};
    counted_t c = {.call.fn = count, .rt = rt, .again = 3};
    CHECK_OK(weft_ext_call(rt, &holds)); /* so that the other stays where it is */
    TEST_UNTIL(held, 20);
    CHECK_OK(weft_ext_call(rt, &c.call));
    CHECK_EQ(weft_ext_call(rt, &c.call), WEFT_ERR_STATE);
    let_go = true;
    a_while(rt);
    CHECK_EQ(c.ran, 4);
    CHECK_OK(weft_ext_call(rt, &c.call));
    a_while(rt);
    CHECK_EQ(c.ran, 5);
    CHECK_EQ(weft_ext_call(rt, &nothing), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "the function of the call is NULL"));
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(weft_ext_call(rt, &c.call), WEFT_ERR_CLOSED);
    CHECK_EQ(weft_ext_call(rt, &c.call), WEFT_ERR_CLOSED);
}

/* --- opening ------------------------------------------------------------------------------------------------------------- */

static weft_ext_t opener = {.size = sizeof opener, .name = "the opener"};
static weft_listener_t *listener;
static weft_ep_t *ep;
static int n_free, n_closed;

static void ep_free(weft_ep_t *of, void *state)
{
    (void)of;
    CHECK_EQ(*(int *)state, 7);
    n_free++;
}

static void ep_new(weft_ep_t *of, void *state)
{
    (void)of;
    *(int *)state = 7;
}

static void closed(weft_runtime_t *rt, void *state)
{
    (void)rt;
    (void)state;
    n_closed++;
}

static weft_status_t open_tries_all(weft_runtime_t *rt, void *state)
{
    static weft_op_t timer;
    (void)state;
    CHECK_EQ(weft_runtime_close(rt), WEFT_ERR_STATE);
    CHECK_OK(weft_timer_start(rt, WEFT_MILLISECOND, &timer));
    CHECK_EQ(weft_op_wait(&timer, WEFT_SECOND), WEFT_ERR_STATE);
    CHECK_OK(weft_listen(rt, ports_tcp(), NULL, &listener));
    CHECK_OK(weft_ep_open(rt, "unix://@weft-nobody-listens-here", NULL, NULL, &ep));
    return returns;
}

static void register_opener(weft_status_t (*open)(weft_runtime_t *rt, void *state))
{
    static const weft_ext_t later = {.size = sizeof later, .name = "later", .ep_state_size = 100};
    opener.open = open;
    opener.ep_state_size = sizeof(int);
    opener.ep_new = ep_new;
    opener.ep_free = ep_free;
    opener.closed = closed;
    CHECK_OK(weft_ext_register(&opener));
    CHECK_OK(weft_ext_register(&later));
}

TEST(open_listens_and_connects_and_cannot_wait_or_close)
{
    register_opener(open_tries_all);
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        weft_runtime_t *rt = open_as((weft_progress_mode_t)mode);
        weft_ep_t *own;
        CHECK_OK(weft_ep_connect(rt, weft_listener_uri(listener), NULL, 20 * WEFT_SECOND, &own));
        n_free = 0;
        CHECK_OK(weft_runtime_close(rt));
        CHECK_EQ(n_free, 3);
        CHECK_EQ(n_closed, mode == WEFT_PROGRESS_CALLER ? 1 : 2);
    }
}

static void open_in_callback(weft_ext_call_t *call)
{
    weft_runtime_t *rt = NULL;
    (void)call;
    CHECK_EQ(weft_runtime_open(NULL, &rt), WEFT_ERR_LIMIT);
    CHECK(!rt && !n_free && !n_closed);
}

static int files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

TEST(an_open_that_fails_leaves_nothing_although_it_opened_much)
{
    weft_ext_call_t opens = {.fn = open_in_callback};
    weft_runtime_t *rt = open_as(WEFT_PROGRESS_CALLER);
    int before = files();
    register_opener(open_tries_all);
    returns = WEFT_ERR_LIMIT;
    CHECK_OK(weft_ext_call(rt, &opens));
    CHECK_EQ(files(), before);
    CHECK_OK(weft_runtime_close(rt));
}

static weft_status_t in_ep_new[2];

static void ep_new_closes(weft_ep_t *of, void *state)
{
    weft_op_t timer = WEFT_OP_INIT;
    (void)state;
    in_ep_new[0] = weft_runtime_close(weft_ep_runtime(of));
    in_ep_new[1] = weft_op_wait(&timer, 0);
}

TEST(ep_new_cannot_close_the_runtime)
{
    static const weft_ext_t closer = {.size = sizeof closer, .name = "the closer", .ep_new = ep_new_closes};
    CHECK_OK(weft_ext_register(&closer));
    for (int mode = WEFT_PROGRESS_CALLER; mode <= WEFT_PROGRESS_THREAD; mode++) {
        weft_runtime_t *rt = open_as((weft_progress_mode_t)mode);
        CHECK_OK(weft_ep_open(rt, "unix://@weft-nobody-listens-here", NULL, NULL, &ep));
        CHECK_EQ(in_ep_new[0], WEFT_ERR_STATE);
        CHECK_EQ(in_ep_new[1], WEFT_ERR_STATE);
        CHECK_OK(weft_runtime_close(rt));
    }
}

/* --- registering --------------------------------------------------------------------------------------------------------- */

static void refused(weft_ext_t ext, const char *why)
{
    ext.size = sizeof ext;
    CHECK_EQ(weft_ext_register(&ext), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), why));
}

TEST(an_extension_that_cannot_be_is_refused_with_a_sentence)
{
    refused((weft_ext_t){.name = NULL}, "has a name");
    refused((weft_ext_t){.name = ""}, "has a name");
    refused((weft_ext_t){.name = "x", .capability = UINT64_C(3) << 40}, "\"x\", 0x30000000000, is more than one bit");
    refused((weft_ext_t){.name = "x", .capability = WEFT_CAN_AM}, "is the library's own");
    refused((weft_ext_t){.name = "x", .ep_state_size = SIZE_MAX}, "18446744073709551615 for each endpoint");
    refused((weft_ext_t){.name = "x", .state_size = SIZE_MAX}, "18446744073709551615 bytes for each runtime");
    refused((weft_ext_t){.name = "x", .ep_state_size = SIZE_MAX / 2 + 1}, "for each endpoint");
}

static weft_status_t fails_silently(weft_runtime_t *rt, void *state)
{
    (void)rt;
    (void)state;
    return WEFT_ERR_RANGE;
}

TEST(an_open_that_fails_without_a_sentence_is_named)
{
    weft_runtime_t *rt;
    CHECK_EQ(weft_fail(WEFT_ERR_RANGE, "about something else"), WEFT_ERR_RANGE);
    register_opener(fails_silently);
    CHECK_EQ(weft_runtime_open(NULL, &rt), WEFT_ERR_RANGE);
    CHECK(strstr(weft_last_error(), "the extension \"the opener\""));
}

/* --- closing ------------------------------------------------------------------------------------------------------------- */

static char logged[4096];

static void collect(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)user;
    strncat(logged, line, sizeof logged - strlen(logged) - 1);
}

static bool never_idle(weft_runtime_t *rt, void *state)
{
    (void)rt;
    (void)state;
    return false;
}

static void does_not_cancel(weft_op_t *op, weft_status_t why)
{
    (void)op;
    CHECK_EQ(why, WEFT_ERR_CLOSED);
    n_told++;
}

TEST(what_holds_up_a_close_is_named)
{
    static const weft_ext_t busy = {.size = sizeof busy, .name = "the busy one", .idle = never_idle};
    static const weft_op_kind_t kind = {.name = "endless", .start = waits, .cancel = does_not_cancel};
    weft_op_t op = WEFT_OP_INIT;
    weft_runtime_t *rt = open_as(WEFT_PROGRESS_CALLER);
    wefti_close_bound = 50 * WEFT_MILLISECOND;
    weft_log_set_sink(collect, NULL);
    CHECK_OK(post(rt, &op, &kind));
    CHECK_OK(weft_runtime_close(rt));
    CHECK(strstr(logged, "\"endless\""));
    CHECK_EQ(n_told, 1);
    CHECK_OK(weft_ext_register(&busy));
    CHECK_OK(weft_runtime_close(open_as(WEFT_PROGRESS_CALLER)));
    CHECK(strstr(logged, "the extension \"the busy one\" is not idle"));
}
