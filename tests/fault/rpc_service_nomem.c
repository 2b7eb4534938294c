/* Memory runs out at every single allocation of calls, one after the other: functions that answer at once, keep their request,
 * run on threads, have large arguments and results, and calls made with `once`. Every call ends, with a result that is right or
 * a status; nothing is left at the service, and afterwards the same runtimes do all of it.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 280
#include <stdatomic.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "lib/couple.h"
#include "lib/nomem.h"
#include "test.h"

enum { LARGE = 70000, KINDS = 5, MADE = 2, MANY = 40, WINDOW = 16, NOBODYS_ID = 7 };
static const char *const sigs[KINDS] = {"now(v: [u8]) -> [u8]", "later(v: [u8]) -> [u8]", "thread(v: [u8]) -> [u8]",
                                        "lend(v: [u8]) -> [u8]", "fetch(v: [u8]) -> u64"};
static const char *const made_sigs[MADE] = {"made() -> [u8]", "made_later() -> [u8]"};

static weft_service_t *service;
static weft_client_t *client;
static uint8_t bytes[LARGE];

/* --- functions ------------------------------------------------------------------------------------------------------------ */

static void now(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, request->args, 1);
}

/* From a timer: it was kept. */
typedef struct wait {
    weft_op_t op;
    weft_request_t *request;
} wait_t;

static void waited(weft_op_t *op, void *user)
{
    wait_t *w = (wait_t *)user;
    (void)op;
    weft_request_reply(w->request, w->request->args, 1);
    weft_request_release(w->request);
    free(w);
}

static void later(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    (void)user;
    if (!kept)
        return; /* it has been answered */
    wait_t *w = (wait_t *)calloc(1, sizeof *w);
    w->request = kept;
    w->op.fn = waited;
    w->op.user = w;
    if (weft_timer_start(couple.rt[0], WEFT_MICROSECOND, &w->op))
        waited(&w->op, w);
}

static void lend_back(weft_op_t *op, void *user)
{
    (void)user;
    free(op);
}

static void lend(weft_request_t *request, void *user)
{
    weft_value_t v = weft_vector(WEFT_T_U8, bytes, request->args[0].view.n);
    weft_op_t *op = (weft_op_t *)calloc(1, sizeof *op);
    (void)user;
    op->fn = lend_back;
    if (weft_request_reply_from(request, &v, 1, op))
        free(op);
}

typedef struct fetching {
    weft_op_t op;
    weft_request_t *request;
    uint8_t into[LARGE + 64];
} fetching_t;

static void fetched(weft_op_t *op, void *user)
{
    fetching_t *f = (fetching_t *)user;
    weft_value_t n = weft_u64(f->request->args[0].view.n);
    if (op->status)
        weft_request_fail(f->request, WEFT_CODE_RESOURCE_EXHAUSTED, "it could not be fetched");
    else
        weft_request_reply(f->request, &n, 1);
    weft_request_release(f->request);
    free(f);
}

static void fetch(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    (void)user;
    if (!kept)
        return;
    fetching_t *f = (fetching_t *)calloc(1, sizeof *f);
    f->request = kept;
    f->op.fn = fetched;
    f->op.user = f;
    weft_status_t st = kept->fetch_len ? weft_request_fetch(kept, f->into, sizeof f->into, NULL, &f->op) : WEFT_ERR_STATE;
    if (st) {
        f->op.status = kept->fetch_len ? st : WEFT_OK;
        fetched(&f->op, f);
    }
}

/* Much for little: with a small window the answers to several calls wait for their turn. */
static void made(weft_request_t *request, void *user)
{
    weft_value_t v = weft_vector(WEFT_T_U8, bytes, LARGE);
    (void)user;
    weft_request_reply(request, &v, 1);
}

static void made_later(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    if (kept)
        made(kept, user);
    weft_request_release(kept);
}

/* It answers nobody, and ends when it is told that nobody waits. */
static unsigned n_waiting;

static void told(weft_request_t *request, void *user)
{
    (void)user;
    n_waiting--;
    weft_request_release(request);
}

static void wait_for_end(weft_request_t *request, void *user)
{
    weft_request_t *kept = weft_request_keep(request);
    (void)user;
    if (!kept)
        return;
    n_waiting++;
    weft_request_on_cancel(kept, told, NULL);
}

/* --- both ----------------------------------------------------------------------------------------------------------------- */

static void open_all(const char *transports)
{
    static const weft_function_fn fns[KINDS] = {now, later, now, lend, fetch};
    weft_service_opts_t with = WEFT_SERVICE_OPTS_INIT;
    with.threads = 1;
    couple_open(transports);
    CHECK_OK(weft_service_open(couple.rt[0], "calc", &with, &service));
    for (unsigned i = 0; i < KINDS; i++) {
        weft_function_opts_t f = WEFT_FUNCTION_OPTS_INIT;
        f.threads = i == 2;
        f.fetch = i == 4;
        CHECK_OK(weft_service_add(service, sigs[i], fns[i], NULL, &f));
    }
    CHECK_OK(weft_service_add(service, made_sigs[0], made, NULL, NULL));
    CHECK_OK(weft_service_add(service, made_sigs[1], made_later, NULL, NULL));
    CHECK_OK(weft_service_add(service, "wait() -> void", wait_for_end, NULL, NULL));
    CHECK_OK(weft_client_on(couple.ep, NULL, &client));
}

static void close_all(void)
{
    couple_close_with(client, service);
}

static weft_status_t call(unsigned kind, size_t len, bool once, bool deadline)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_call_opts_t opts = WEFT_CALL_OPTS_INIT;
    weft_value_t arg = weft_vector(WEFT_T_U8, bytes, len);
    weft_method_t *method;
    opts.once = once;
    op.timeout_ns = deadline ? 10 * WEFT_SECOND : 0;
    weft_status_t st = weft_client_method(client, sigs[kind], &method);
    if (!st)
        st = weft_call_with(method, &arg, 1, &opts, &reply, &op);
    if (!st) {
        st = couple_finish(&op);
        if (!st && kind == 4)
            CHECK_EQ(reply.values[0].u64, len);
        else if (!st)
            CHECK(reply.values[0].view.n == len && (!len || !memcmp(reply.values[0].view.data, bytes, len)));
        else
            CHECK(st != WEFT_ERR_TIMEOUT); /* nobody was forgotten */
        weft_reply_release(&reply);
    }
    return st;
}

/* Each kind with little and with much, with and without a deadline and `once`. */
static weft_status_t calls(void)
{
    weft_status_t st = WEFT_OK;
    for (unsigned i = 0; i < KINDS * 8 && weft_ep_get_state(couple.ep) == WEFT_EP_UP; i++) {
        weft_status_t one = call(i % KINDS, i / KINDS & 1 ? LARGE : 10, i / KINDS & 2, i / KINDS & 4);
        st = st ? st : one;
    }
    return st;
}

static uint64_t under_way(void)
{
    weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
    CHECK_OK(weft_service_get_stats(service, &s));
    return s.under_way;
}

TEST(memory_runs_out_at_each_place)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (size_t i = 0; i < LARGE; i++)
        bytes[i] = (uint8_t)(i * 7);
    for (unsigned t = 0; t < 2; t++) {
        unsigned failures = 0;
        open_all(transports[t]);
        CHECK_OK(calls());
        for (long at = 0;; at++) {
            nomem_at(at, 1);
            weft_status_t st = calls();
            bool all = nomem_still_ahead();
            nomem_off();
            failures += st != WEFT_OK;
            for (double end = test_now() + 20; under_way() && test_now() < end;)
                couple_drive();
            CHECK_EQ(under_way(), 0);
            if (weft_ep_get_state(couple.ep) != WEFT_EP_UP) { /* a reply that had no memory: its caller must not wait */
                close_all();
                open_all(transports[t]);
            }
            CHECK_OK(calls());
            if (all) {
                CHECK_OK(st);
                break;
            }
            CHECK(at < 5000);
        }
        CHECK(failures > 20);
        close_all();
    }
}

/* Many calls at once; none is forgotten. Every one of them is well: true. */
static bool many(weft_method_t *const *methods)
{
    static weft_op_t ops[MANY];
    static weft_reply_t replies[MANY];
    bool posted[MANY], well = true;
    for (unsigned i = 0; i < MANY; i++) {
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        replies[i] = (weft_reply_t)WEFT_REPLY_INIT;
        posted[i] = !weft_call(methods[i % MADE], NULL, 0, &replies[i], &ops[i]);
        well = well && posted[i];
    }
    for (unsigned i = 0; i < MANY; i++) {
        if (!posted[i])
            continue;
        if (couple_finish(&ops[i]))
            well = false;
        else
            CHECK(replies[i].values[0].view.n == LARGE && !memcmp(replies[i].values[0].view.data, bytes, LARGE));
        weft_reply_release(&replies[i]);
    }
    return well;
}

static void methods_of(weft_method_t **methods_out)
{
    for (unsigned i = 0; i < MADE; i++)
        CHECK_OK(weft_client_method(client, made_sigs[i], &methods_out[i]));
    CHECK(many(methods_out));
}

TEST(memory_runs_out_while_answers_wait_for_the_window)
{
    weft_method_t *methods[MADE];
    unsigned failures = 0;
    CHECK_EQ(setenv("WEFT_AM_MESSAGES", "16", 1), 0);
    open_all("tcp");
    methods_of(methods);
    for (long at = 0, all = 0; !all; at++) {
        CHECK(at < 5000);
        nomem_at(at, 1);
        bool well = many(methods);
        all = nomem_still_ahead();
        nomem_off();
        failures += !well;
        if (weft_ep_get_state(couple.ep) != WEFT_EP_UP) {
            close_all();
            open_all("tcp");
            methods_of(methods);
        }
    }
    CHECK(failures > 20);
    close_all();
}

/* Call a function that waits, fill the window with what nobody receives, and let memory run out while the call is cancelled. */
static bool cancel_without_memory(long at)
{
    static weft_op_t sends[2 * WINDOW];
    weft_op_t call = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_method_t *method;
    CHECK_OK(weft_client_method(client, "wait() -> void", &method));
    CHECK_OK(weft_call(method, NULL, 0, &reply, &call));
    for (double end = test_now() + 20; !n_waiting && test_now() < end;)
        couple_drive();
    CHECK_EQ(n_waiting, 1);
    for (unsigned i = 0; i < 2 * WINDOW; i++) {
        sends[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_am_send(couple.ep, NOBODYS_ID, "", 1, NULL, 0, &sends[i]));
    }
    nomem_at(at, 1);
    weft_op_cancel(&call);
    CHECK_EQ(couple_finish(&call), WEFT_ERR_CANCELLED);
    bool all = nomem_still_ahead();
    nomem_off();
    weft_reply_release(&reply);
    for (double end = test_now() + 20; n_waiting && test_now() < end;)
        couple_drive();
    CHECK_EQ(n_waiting, 0);
    weft_ep_abort(couple.ep, NULL); /* and with it what waits for the window */
    for (unsigned i = 0; i < 2 * WINDOW; i++)
        (void)couple_finish(&sends[i]);
    return all;
}

TEST(a_function_hears_of_a_cancel_that_there_was_no_memory_for)
{
    CHECK_EQ(setenv("WEFT_AM_MESSAGES", "16", 1), 0);
    for (long at = 0, all = 0; !all; at++) {
        open_all("tcp");
        all = cancel_without_memory(at);
        close_all();
    }
}
