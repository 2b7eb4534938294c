/* Calls with streams between two runtimes: from the server, from the client, both ways; slow readers, large values, early ends,
 * failures, cancelling; functions in progress and on threads of the service's own.
 * ctest: tls-long timeout=400 label=thread */
#define TEST_SECONDS 150
#include <pthread.h>
#include <stdatomic.h>

#include "lib/desk.h"
#include "test.h"

#define COUNT "count(below: u64) -> stream u64"
#define TOTAL "total(values: stream f64) -> f64"
#define CHAT "chat(lines: stream string) -> stream string"

static desk_t desk;

/* --- functions in progress ----------------------------------------------------------------------------------------- */

/* Numbers below args[0], one send after the other, then the end if asked for, and the answer. */
typedef struct counting {
    weft_request_t *request;
    weft_op_t op;
    uint64_t next, below;
} counting_t;

typedef struct plan {
    bool no_end;           /* only answer */
    weft_code_t code;      /* fail with it */
    _Atomic uint64_t sent; /* what the functions came to */
    _Atomic weft_status_t ended;
    _Atomic unsigned begun, done;
} plan_t;
static plan_t plan;

static void count_on(weft_op_t *op, void *user)
{
    counting_t *c = (counting_t *)user;
    weft_status_t st = op->status;
    if (!st && c->next < c->below) {
        weft_value_t value = weft_u64(c->next++);
        atomic_fetch_add(&plan.sent, 1);
        st = weft_stream_send(c->request->stream, &value, op);
        if (!st)
            return;
    }
    if (!st && !plan.no_end)
        st = weft_stream_end(c->request->stream, NULL);
    atomic_store(&plan.ended, st);
    if (st)
        weft_request_fail(c->request, WEFT_CODE_ABORTED, "the stream failed");
    else if (plan.code)
        weft_request_fail(c->request, plan.code, "as planned");
    else
        weft_request_reply(c->request, NULL, 0);
    weft_request_release(c->request);
    free(c);
    atomic_fetch_add(&plan.done, 1);
}

static void counts(weft_request_t *request, void *user)
{
    counting_t *c = (counting_t *)calloc(1, sizeof *c);
    (void)user;
    c->request = weft_request_keep(request);
    c->below = request->args[0].u64;
    c->op.fn = count_on;
    c->op.user = c;
    count_on(&c->op, c);
}

/* The sum of what comes. */
typedef struct summing {
    weft_request_t *request;
    weft_op_t op;
    weft_item_t item;
    double sum;
    uint64_t n, enough;
} summing_t;

static void sum_on(weft_op_t *op, void *user)
{
    summing_t *s = (summing_t *)user;
    weft_status_t st = op->status;
    if (!st && op->len) {
        s->sum += s->item.value.f64;
        s->n++;
    }
    bool over = st || !op->len || s->n == s->enough;
    if (!over) {
        st = weft_stream_recv(s->request->stream, &s->item, op);
        if (!st)
            return;
    }
    atomic_store(&plan.ended, st);
    weft_value_t sum = weft_f64(s->sum);
    if (st)
        weft_request_fail(s->request, WEFT_CODE_ABORTED, "the stream failed");
    else
        weft_request_reply(s->request, &sum, 1);
    weft_request_release(s->request);
    free(s);
    atomic_fetch_add(&plan.done, 1);
}

static void sums(weft_request_t *request, void *user)
{
    summing_t *s = (summing_t *)calloc(1, sizeof *s);
    s->request = weft_request_keep(request);
    s->enough = user ? *(const uint64_t *)user : UINT64_MAX;
    s->op.fn = sum_on;
    s->op.user = s;
    CHECK_OK(weft_stream_recv(s->request->stream, &s->item, &s->op));
}

/* Everything comes back. */
typedef struct echoing {
    weft_request_t *request;
    weft_op_t recv, send;
    weft_item_t item;
} echoing_t;

static void echo_received(weft_op_t *op, void *user)
{
    echoing_t *e = (echoing_t *)user;
    weft_status_t st = op->status;
    if (!st && op->len)
        st = weft_stream_send(e->request->stream, &e->item.value, &e->send);
    if (!st && op->len)
        return;
    weft_item_release(&e->item);
    atomic_store(&plan.ended, st);
    if (st)
        weft_request_fail(e->request, WEFT_CODE_ABORTED, "the stream failed");
    else
        weft_request_reply(e->request, NULL, 0);
    weft_request_release(e->request);
    free(e);
    atomic_fetch_add(&plan.done, 1);
}

static void echo_sent(weft_op_t *op, void *user)
{
    echoing_t *e = (echoing_t *)user;
    weft_item_release(&e->item);
    weft_status_t st = op->status ? op->status : weft_stream_recv(e->request->stream, &e->item, &e->recv);
    if (st) {
        e->recv.status = st;
        e->recv.len = 0;
        echo_received(&e->recv, e);
    }
}

static void echoes(weft_request_t *request, void *user)
{
    echoing_t *e = (echoing_t *)calloc(1, sizeof *e);
    (void)user;
    e->request = weft_request_keep(request);
    e->recv.fn = echo_received;
    e->send.fn = echo_sent;
    e->recv.user = e->send.user = e;
    CHECK_OK(weft_stream_recv(e->request->stream, &e->item, &e->recv));
    atomic_fetch_add(&plan.begun, 1);
}

/* --- callers ------------------------------------------------------------------------------------------------------- */

/* A call under way. */
typedef struct talk {
    weft_op_t op;
    weft_reply_t reply;
    weft_stream_t *stream;
} talk_t;

static void talk_begin(talk_t *t, const char *signature, const weft_value_t *args, size_t n)
{
    memset(t, 0, sizeof *t);
    CHECK_OK(weft_call_stream(desk_method(&desk, signature), args, n, NULL, &t->reply, &t->op, &t->stream));
}

static void talk_end(talk_t *t)
{
    weft_stream_release(t->stream);
    PAIR_UNTIL(&desk.pair, weft_op_done(&t->op), 20);
    weft_reply_release(&t->reply);
}

static int receive(talk_t *t, weft_item_t *item)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_stream_recv(t->stream, item, &op);
    if (!st)
        st = pair_wait(&desk.pair, &op, 20);
    return st ? (int)st : (int)op.len;
}

static weft_status_t transmit(talk_t *t, weft_value_t value)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_stream_send(t->stream, &value, &op);
    return st ? st : pair_wait(&desk.pair, &op, 20);
}

static void open_desk(const pair_way_t *way)
{
    memset(&plan, 0, sizeof plan);
    desk_open(&desk, way, NULL);
    desk_add(&desk, COUNT, counts, NULL);
    desk_add(&desk, TOTAL, sums, NULL);
    desk_add(&desk, CHAT, echoes, NULL);
}

TEST(a_hundred_thousand_values_from_a_server)
{
    each_way(way) {
        uint64_t n = way->mode == WEFT_PROGRESS_CALLER ? 100000 : 5000;
        weft_value_t below = weft_u64(n);
        weft_item_t item;
        talk_t t;
        open_desk(way);
        talk_begin(&t, COUNT, &below, 1);
        for (uint64_t i = 0; i < n; i++) {
            CHECK_EQ(receive(&t, &item), 1);
            CHECK_EQ(item.value.u64, i);
            weft_item_release(&item);
        }
        CHECK_EQ(receive(&t, &item), 0);
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20));
        CHECK_EQ(t.reply.code, WEFT_CODE_OK);
        CHECK_EQ(t.reply.ran, WEFT_RAN);
        CHECK_EQ(receive(&t, &item), 0);
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(a_hundred_thousand_values_to_a_server)
{
    each_way(way) {
        uint64_t n = way->mode == WEFT_PROGRESS_CALLER ? 100000 : 5000;
        weft_op_t ops[32] = {WEFT_OP_INIT};
        talk_t t;
        open_desk(way);
        talk_begin(&t, TOTAL, NULL, 0);
        for (uint64_t i = 0; i < n; i++) { /* the first of them wait for the function to be found */
            weft_value_t value = weft_f64((double)i);
            CHECK_OK(pair_wait(&desk.pair, &ops[i % 32], 20));
            CHECK_OK(weft_stream_send(t.stream, &value, &ops[i % 32]));
        }
        CHECK_OK(weft_stream_end(t.stream, NULL));
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20));
        CHECK_EQ(t.reply.n, 1);
        CHECK(t.reply.values[0].f64 == (double)n * (double)(n - 1) / 2);
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(both_ways_with_texts_of_many_lengths)
{
    static char text[100000];
    memset(text, 'w', sizeof text);
    each_way(way) {
        weft_item_t item;
        weft_op_t end = WEFT_OP_INIT;
        talk_t t;
        open_desk(way);
        talk_begin(&t, CHAT, NULL, 0);
        for (size_t len = 0; len < sizeof text; len = len * 3 / 2 + 1) {
            weft_op_t op = WEFT_OP_INIT;
            weft_value_t value = weft_text(text, len);
            CHECK_OK(weft_stream_send(t.stream, &value, &op));
            CHECK_EQ(receive(&t, &item), 1);
            CHECK_EQ(item.value.view.n, len);
            CHECK(!len || !memcmp(item.value.view.data, text, len));
            weft_item_release(&item);
            CHECK_OK(pair_wait(&desk.pair, &op, 20));
        }
        CHECK_OK(weft_stream_end(t.stream, &end));
        CHECK_EQ(receive(&t, &item), 0);
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20));
        CHECK_OK(pair_wait(&desk.pair, &end, 20));
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(an_answer_is_an_end_too)
{
    each_way(way) {
        weft_value_t below = weft_u64(200);
        weft_item_t item;
        talk_t t;
        open_desk(way);
        plan.no_end = true;
        talk_begin(&t, COUNT, &below, 1);
        for (uint64_t i = 0; i < 160; i++)
            CHECK_EQ(receive(&t, &item), 1);
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20)); /* the rest is here: it is received after the call */
        for (uint64_t i = 160; i < 200; i++) {
            CHECK_EQ(receive(&t, &item), 1);
            CHECK_EQ(item.value.u64, i);
        }
        CHECK_EQ(receive(&t, &item), 0);
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(a_failure_comes_after_what_was_sent_before_it)
{
    each_way(way) {
        weft_value_t below = weft_u64(10);
        weft_item_t item;
        talk_t t;
        open_desk(way);
        plan.no_end = true;
        plan.code = WEFT_CODE_OUT_OF_RANGE;
        talk_begin(&t, COUNT, &below, 1);
        CHECK_EQ(pair_wait(&desk.pair, &t.op, 20), WEFT_ERR_CALL);
        CHECK_EQ(t.reply.code, WEFT_CODE_OUT_OF_RANGE);
        CHECK_STR(t.reply.message, "as planned");
        for (uint64_t i = 0; i < 10; i++) {
            CHECK_EQ(receive(&t, &item), 1);
            CHECK_EQ(item.value.u64, i);
        }
        CHECK_EQ(receive(&t, &item), WEFT_ERR_CALL);
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(a_server_may_answer_before_it_has_everything)
{
    static const uint64_t three = 3;
    each_way(way) {
        talk_t t;
        weft_status_t st = WEFT_OK;
        open_desk(way);
        desk_add(&desk, "first(values: stream f64) -> f64", sums, (void *)(uintptr_t)&three);
        talk_begin(&t, "first(values: stream f64) -> f64", NULL, 0);
        unsigned sent = 0;
        for (double end = test_now() + 20; !st && test_now() < end; sent++)
            st = transmit(&t, weft_f64(1));
        CHECK_EQ(st, WEFT_ERR_CLOSED);
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20));
        CHECK(t.reply.values[0].f64 == 3);
        CHECK_EQ(weft_stream_end(t.stream, NULL), way->mode == WEFT_PROGRESS_THREAD ? WEFT_OK : WEFT_ERR_CLOSED);
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(a_slow_reader_holds_up_nobody_else)
{
    each_way(way) {
        _Atomic unsigned ran = 0;
        weft_value_t below = weft_u64(2000), less = weft_u64(1000); /* both are borrowed until their calls end */
        weft_item_t item;
        talk_t slow, quick;
        open_desk(way);
        desk_add(&desk, DESK_ADD, desk_adds, &ran);
        talk_begin(&slow, COUNT, &below, 1);
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.sent) == 65, 10); /* the last of them waits */
        talk_begin(&quick, COUNT, &less, 1);
        for (uint64_t i = 0; i < 1000; i++)
            CHECK_EQ(receive(&quick, &item), 1);
        CHECK_EQ(receive(&quick, &item), 0);
        talk_end(&quick);
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)};
        CHECK_OK(desk_call(&desk, desk_method(&desk, DESK_ADD), args, 2));
        CHECK_EQ(atomic_load(&plan.sent), 1065); /* and nothing more was sent to the slow one */
        for (uint64_t i = 0; i < 2000; i++) {
            CHECK_EQ(receive(&slow, &item), 1);
            CHECK_EQ(item.value.u64, i);
        }
        CHECK_EQ(receive(&slow, &item), 0);
        CHECK_OK(pair_wait(&desk.pair, &slow.op, 20));
        talk_end(&slow);
        desk_close(&desk);
    }
}

TEST(cancelling_the_call_ends_both_sides)
{
    for (unsigned how = 0; how < 3; how++) {
        each_way(way) {
            weft_value_t below = weft_u64(UINT64_MAX);
            weft_item_t item;
            weft_op_t recv = WEFT_OP_INIT;
            talk_t t = {0};
            weft_status_t why = how == 1 ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED;
            open_desk(way);
            t.op.timeout_ns = how == 1 ? 3 * WEFT_SECOND : 0; /* of which a busy machine needs some for the first items */
            CHECK_OK(weft_call_stream(desk_method(&desk, COUNT), &below, 1, NULL, &t.reply, &t.op, &t.stream));
            for (uint64_t i = 0; i < 50; i++)
                CHECK_EQ(receive(&t, &item), 1);
            PAIR_UNTIL(&desk.pair, atomic_load(&plan.sent) > 64, 20);
            if (how == 0)
                weft_op_cancel(&t.op);
            else if (how == 2)
                weft_stream_release(t.stream);
            CHECK_EQ(pair_wait(&desk.pair, &t.op, 20), why);
            CHECK_EQ(t.reply.code, how == 1 ? WEFT_CODE_DEADLINE_EXCEEDED : WEFT_CODE_CANCELLED);
            if (how != 2) {
                CHECK_EQ(receive(&t, &item), why);
                CHECK_OK(weft_stream_recv(t.stream, &item, &recv));
                CHECK_EQ(pair_wait(&desk.pair, &recv, 10), why);
                weft_stream_release(t.stream);
            }
            PAIR_UNTIL(&desk.pair, atomic_load(&plan.done), 20); /* the function was told */
            CHECK(atomic_load(&plan.ended) != WEFT_OK);
            weft_reply_release(&t.reply);
            desk_close(&desk);
        }
    }
}

TEST(large_tensors_are_values_too)
{
    enum { N = 5, SIDE = 1024 };
    static float data[2][SIDE * SIDE];
    static int64_t shape[2] = {SIDE, SIDE};
    static const char sig[] = "frames(in: stream tensor) -> stream tensor";
    each_way(way) {
        weft_item_t item;
        talk_t t;
        open_desk(way);
        desk_add(&desk, sig, echoes, NULL);
        talk_begin(&t, sig, NULL, 0);
        for (unsigned i = 0; i < N; i++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_tensor_t tensor = {
                .data = data[i % 2], .device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape};
            weft_value_t value = weft_tensor(&tensor);
            pattern_fill(data[i % 2], sizeof data[0], i);
            CHECK_OK(weft_stream_send(t.stream, &value, &op));
            CHECK_EQ(receive(&t, &item), 1);
            CHECK_EQ(item.value.tensors.n, 1);
            CHECK_EQ(item.value.tensors.at->ndim, 2);
            CHECK_EQ(item.value.tensors.at->shape[1], SIDE);
            CHECK_EQ(pattern_check(item.value.tensors.at->data, sizeof data[0], i), sizeof data[0]);
            weft_item_release(&item);
            CHECK_OK(pair_wait(&desk.pair, &op, 20));
        }
        CHECK_OK(weft_stream_end(t.stream, NULL));
        CHECK_EQ(receive(&t, &item), 0);
        CHECK_OK(pair_wait(&desk.pair, &t.op, 20));
        talk_end(&t);
        desk_close(&desk);
    }
}

TEST(many_streams_at_a_time)
{
    enum { N = 40, EACH = 100 };
    each_way(way) {
        static talk_t talks[N];
        weft_item_t item;
        weft_value_t below = weft_u64(EACH);
        open_desk(way);
        for (unsigned i = 0; i < N; i++)
            talk_begin(&talks[i], COUNT, &below, 1);
        for (uint64_t k = 0; k <= EACH; k++) {
            for (unsigned i = 0; i < N; i++) {
                CHECK_EQ(receive(&talks[i], &item), k < EACH);
                CHECK(k == EACH || item.value.u64 == k);
            }
        }
        for (unsigned i = 0; i < N; i++) {
            CHECK_OK(pair_wait(&desk.pair, &talks[i].op, 20));
            talk_end(&talks[i]);
        }
        CHECK_EQ(atomic_load(&plan.done), N);
        desk_close(&desk);
    }
}

TEST(values_received_outlive_stream_and_call)
{
    each_way(way) {
        weft_item_t items[2];
        talk_t t;
        open_desk(way);
        talk_begin(&t, CHAT, NULL, 0);
        CHECK_OK(transmit(&t, weft_text("first", 5)));
        CHECK_OK(transmit(&t, weft_text("second", 6)));
        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(receive(&t, &items[i]), 1);
        talk_end(&t);
        CHECK(!memcmp(items[0].value.view.data, "first", 5) && !memcmp(items[1].value.view.data, "second", 6));
        for (unsigned i = 0; i < 2; i++)
            weft_item_release(&items[i]);
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.done), 20);
        desk_close(&desk);
    }
}

TEST(what_is_wrong_is_said)
{
    open_desk(&pair_ways[0]);
    weft_call_opts_t once = WEFT_CALL_OPTS_INIT;
    weft_stream_t *stream = NULL;
    weft_op_t op = WEFT_OP_INIT;
    weft_value_t args[2] = {weft_u64(1), weft_u64(2)};
    weft_method_t *count = desk_method(&desk, COUNT), *add = desk_method(&desk, DESK_ADD);
    once.once = true;
    CHECK_EQ(weft_call_stream(add, args, 2, NULL, NULL, &op, &stream), WEFT_ERR_STATE);
    CHECK_EQ(weft_call(count, args, 1, NULL, &op), WEFT_ERR_STATE);
    CHECK_EQ(weft_call_stream(count, args, 2, NULL, NULL, &op, &stream), WEFT_ERR_INVALID);
    CHECK_EQ(weft_call_stream(count, args, 1, &once, NULL, &op, &stream), WEFT_ERR_UNSUPPORTED);
    CHECK_EQ(weft_call_stream(count, args, 1, NULL, NULL, NULL, &stream), WEFT_ERR_INVALID);
    CHECK(!stream);
    desk_close(&desk);
}

TEST(a_closed_client_ends_its_streams)
{
    each_way(way) {
        weft_item_t item;
        weft_op_t recv = WEFT_OP_INIT, close = WEFT_OP_INIT;
        talk_t t;
        open_desk(way);
        talk_begin(&t, CHAT, NULL, 0);
        CHECK_OK(weft_stream_recv(t.stream, &item, &recv));
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.begun), 20); /* a call that was not there yet would not be told */
        CHECK_OK(weft_client_close(desk.client, &close));
        CHECK_EQ(pair_wait(&desk.pair, &t.op, 20), WEFT_ERR_CLOSED);
        CHECK_EQ(pair_wait(&desk.pair, &recv, 20), WEFT_ERR_CLOSED);
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        CHECK_EQ(receive(&t, &item), WEFT_ERR_CLOSED); /* it is still the program's */
        talk_end(&t);
        weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
        CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &desk.client));
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.done), 20);
        desk_close(&desk);
    }
}

/* --- threads ------------------------------------------------------------------------------------------------------- */

/* On a thread of the service's own: post, post, and answer without waiting for what was posted. */
static void counts_on_thread(weft_request_t *request, void *user)
{
    enum { WINDOW = 16 };
    weft_op_t ops[WINDOW] = {WEFT_OP_INIT};
    uint64_t n = request->args[0].u64;
    (void)user;
    weft_request_t *kept = weft_request_keep(request);
    for (uint64_t i = 0; i < n; i++) {
        weft_value_t value = weft_u64(i);
        CHECK_OK(i < WINDOW ? WEFT_OK : weft_op_wait(&ops[i % WINDOW], 60 * WEFT_SECOND));
        CHECK_OK(weft_stream_send(kept->stream, &value, &ops[i % WINDOW]));
    }
    CHECK_OK(weft_request_reply(kept, NULL, 0));
    for (unsigned i = 0; i < WINDOW; i++)
        CHECK_OK(weft_op_wait(&ops[i], 60 * WEFT_SECOND));
    weft_request_release(kept);
    atomic_fetch_add(&plan.done, 1);
}

TEST(a_thread_answers_after_what_it_posted)
{
    enum { N = 200, TIMES = 6 };
    each_way(way) {
        weft_service_opts_t service = WEFT_SERVICE_OPTS_INIT;
        weft_function_opts_t function = WEFT_FUNCTION_OPTS_INIT;
        weft_value_t n = weft_u64(N);
        weft_item_t item;
        talk_t t[2];
        service.threads = 2;
        function.threads = true;
        memset(&plan, 0, sizeof plan);
        desk_open(&desk, way, &service);
        CHECK_OK(weft_service_add(desk.service, COUNT, counts_on_thread, NULL, &function));
        for (unsigned k = 0; k < TIMES; k++) {
            for (unsigned i = 0; i < 2; i++)
                talk_begin(&t[i], COUNT, &n, 1);
            for (uint64_t i = 0; i < N; i++) {
                for (unsigned at = 0; at < 2; at++) {
                    CHECK_EQ(receive(&t[at], &item), 1);
                    CHECK_EQ(item.value.u64, i);
                }
            }
            for (unsigned i = 0; i < 2; i++) {
                CHECK_EQ(receive(&t[i], &item), 0);
                CHECK_OK(pair_wait(&desk.pair, &t[i].op, 20));
                talk_end(&t[i]);
            }
        }
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.done) == 2 * TIMES, 20);
        desk_close(&desk);
    }
}

/* Threads of the client's, each with streams of its own, released while much is under way. */
static void *hurried(void *user)
{
    enum { TIMES = 30 };
    unsigned seed = *(unsigned *)user;
    weft_method_t *count = desk_method(&desk, COUNT);
    for (unsigned k = 0; k < TIMES; k++) {
        weft_value_t below = weft_u64(10 + (seed = seed * 1103515245 + 12345) % 300);
        weft_op_t op = WEFT_OP_INIT, recv[4] = {WEFT_OP_INIT};
        weft_item_t items[4];
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_stream_t *stream;
        CHECK_OK(weft_call_stream(count, &below, 1, NULL, &reply, &op, &stream));
        for (unsigned i = 0; i < (seed >> 8) % 100; i++) {
            CHECK_OK(weft_op_wait(&recv[i % 4], 60 * WEFT_SECOND));
            weft_status_t st = weft_stream_recv(stream, &items[i % 4], &recv[i % 4]);
            CHECK(st == WEFT_OK);
        }
        weft_stream_release(stream);
        for (unsigned i = 0; i < 4; i++)
            weft_op_wait(&recv[i], 60 * WEFT_SECOND);
        weft_op_wait(&op, 60 * WEFT_SECOND);
        CHECK(weft_op_done(&op));
        weft_reply_release(&reply);
    }
    atomic_fetch_add(&plan.done, 1000000);
    return NULL;
}

TEST(threads_with_streams_that_are_released_at_any_time)
{
    each_way(way) {
        pthread_t threads[3];
        unsigned seeds[3] = {1, 2, 3};
        open_desk(way);
        for (int i = 0; i < 3; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, hurried, &seeds[i]), 0);
        PAIR_UNTIL(&desk.pair, atomic_load(&plan.done) == 3000000 + 90, 100);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        desk_close(&desk);
    }
}
