/* Services that close, and those who call them late: while the last request is still held, after everything is gone, by a
 * number that was theirs, with a stream, by name or without one. They were not wrong to ask: UNAVAILABLE, and it did not run.
 * ctest: tls timeout=120 shards */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lib/caller.h"
#include "lib/desk.h"
#include "rpc/serve.h"
#include "test.h"

#define KEEP "keep(v: i32) -> i32"
#define OTHER "other(v: i32) -> i32"
#define SUM "sum(v: stream i32) -> i32"

static desk_t desk;
static pair_t pair;
static caller_t caller;
static _Atomic(weft_request_t *) kept;

static void keeps(weft_request_t *request, void *user)
{
    (void)user;
    atomic_store(&kept, weft_request_keep(request));
}

static void echoes(weft_request_t *request, void *user)
{
    (void)user;
    CHECK_OK(weft_request_reply(request, request->args, 1));
}

static void sums_nothing(weft_request_t *request, void *user)
{
    weft_value_t none = weft_i32(0);
    (void)user;
    CHECK_OK(weft_request_reply(request, &none, 1));
}

static weft_client_t *client_of(const char *service)
{
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    weft_client_t *client;
    opts.service = service;
    CHECK_OK(weft_client_on(desk.pair.ep[1], &opts, &client));
    return client;
}

static weft_method_t *method_of(weft_client_t *client, const char *text)
{
    weft_method_t *method;
    CHECK_OK(weft_client_method(client, text, &method));
    return method;
}

static void close_client(weft_client_t *client)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_client_close(client, &op));
    CHECK_OK(pair_wait(&desk.pair, &op, 20));
}

static void turned_away(weft_method_t *method)
{
    weft_value_t arg = weft_i32(5);
    CHECK_EQ(desk_call(&desk, method, &arg, 1), WEFT_ERR_CALL);
    CHECK_EQ(desk.reply.code, WEFT_CODE_UNAVAILABLE);
    CHECK_EQ(desk.reply.ran, WEFT_NOT_RUN);
    CHECK(strstr(desk.reply.message, "takes no more calls"));
}

TEST(calls_that_come_while_a_service_closes_and_after)
{
    each_way(way) {
        weft_op_t call = WEFT_OP_INIT, close = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_i32(5);
        weft_service_t *brief;
        atomic_store(&kept, NULL);
        desk_open(&desk, way, NULL); /* its service is another, and stays */
        CHECK_OK(weft_service_open(desk.pair.rt[0], "brief", NULL, &brief));
        CHECK_OK(weft_service_add(brief, KEEP, keeps, NULL, NULL));
        CHECK_OK(weft_service_add(brief, OTHER, echoes, NULL, NULL));
        weft_client_t *client = client_of("brief"), *anyone = client_of(NULL);
        weft_method_t *keep = method_of(client, KEEP), *other = method_of(client, OTHER);
        CHECK_OK(weft_call(keep, &arg, 1, &reply, &call));
        PAIR_UNTIL(&desk.pair, atomic_load(&kept), 20);
        CHECK_OK(weft_service_close(brief, &close));
        CHECK_EQ(pair_wait(&desk.pair, &call, 20), WEFT_ERR_CALL);
        CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
        weft_reply_release(&reply);
        CHECK(!weft_op_done(&close));
        turned_away(keep);  /* it has a number of it */
        turned_away(other); /* it asks for the first time */
        turned_away(method_of(client, "never(v: i32) -> i32"));
        turned_away(method_of(anyone, OTHER)); /* whoever names no service may mean this one */
        weft_request_release(atomic_load(&kept));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        turned_away(keep);
        turned_away(other);
        turned_away(method_of(client, "nor(v: i32) -> i32"));
        /* opened again it is found, and speaks for itself */
        CHECK_OK(weft_service_open(desk.pair.rt[0], "brief", NULL, &brief));
        CHECK_OK(weft_service_add(brief, OTHER, echoes, NULL, NULL));
        CHECK_OK(desk_call(&desk, other, &arg, 1));
        CHECK_EQ(desk.reply.values[0].i32, 5);
        CHECK_EQ(desk_call(&desk, keep, &arg, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_UNIMPLEMENTED);
        CHECK_OK(weft_service_close(brief, NULL));
        close_client(client);
        close_client(anyone);
        desk_close(&desk);
    }
}

/* What was sent on its stream cannot be sent again, so it cannot ask for the function's new number. */
TEST(a_call_with_a_stream_to_a_service_that_was_closed)
{
    each_way(way) {
        weft_op_t call = WEFT_OP_INIT, close = WEFT_OP_INIT, sent = WEFT_OP_INIT;
        weft_reply_t reply = WEFT_REPLY_INIT;
        weft_value_t arg = weft_i32(5);
        weft_stream_t *stream;
        weft_service_t *brief;
        desk_open(&desk, way, NULL);
        CHECK_OK(weft_service_open(desk.pair.rt[0], "brief", NULL, &brief));
        CHECK_OK(weft_service_add(brief, SUM, sums_nothing, NULL, NULL));
        weft_client_t *client = client_of("brief");
        weft_method_t *sum = method_of(client, SUM);
        CHECK_OK(weft_call_stream(sum, NULL, 0, NULL, &reply, &call, &stream));
        CHECK_OK(pair_wait(&desk.pair, &call, 20));
        weft_reply_release(&reply);
        weft_stream_release(stream);
        CHECK_OK(weft_service_close(brief, &close));
        CHECK_OK(pair_wait(&desk.pair, &close, 20));
        call = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_call_stream(sum, NULL, 0, NULL, &reply, &call, &stream));
        weft_status_t st = weft_stream_send(stream, &arg, &sent);
        if (!st)
            (void)pair_wait(&desk.pair, &sent, 20);
        CHECK_EQ(pair_wait(&desk.pair, &call, 20), WEFT_ERR_CALL);
        CHECK_EQ(reply.code, WEFT_CODE_UNAVAILABLE);
        CHECK_EQ(reply.ran, WEFT_NOT_RUN);
        weft_reply_release(&reply);
        weft_stream_release(stream);
        close_client(client);
        desk_close(&desk);
    }
}

/* A thread that removes a function while its runtime closes may find nobody to hand it to, and puts it back. */
static const wefti_room_t *room;
static rpc_function_t *late;
static unsigned handed_back;

static void free_with_a_late_function(weft_runtime_t *rt)
{
    wefti_list_push_back(&late->service->functions, &late->link);
    room->free(rt);
}

static void counts_back(void *buf, void *user)
{
    (void)buf, (void)user;
    handed_back++;
}

TEST(a_function_that_is_removed_while_its_runtime_closes_stays_for_the_request_that_is_held)
{
    static wefti_room_t mine;
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_op_t call = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t arg = weft_i32(1);
    fo.release = counts_back;
    desk_open(&desk, &pair_ways[0], NULL);
    CHECK_OK(weft_service_add(desk.service, KEEP, keeps, NULL, &fo));
    atomic_store(&kept, NULL);
    CHECK_OK(weft_call(desk_method(&desk, KEEP), &arg, 1, &reply, &call));
    PAIR_UNTIL(&desk.pair, atomic_load(&kept) != NULL, 20);
    late = rpc_request(atomic_load(&kept))->fn;
    room = desk.pair.rt[0]->rooms[WEFTI_ROOM_RPC];
    mine = *room;
    mine.free = free_with_a_late_function;
    desk.pair.rt[0]->rooms[WEFTI_ROOM_RPC] = &mine;
    CHECK_OK(weft_runtime_close(desk.pair.rt[0]));
    CHECK_EQ(handed_back, 1);
    weft_request_release(atomic_load(&kept)); /* the last that has the function */
    CHECK_OK(weft_runtime_close(desk.pair.rt[1]));
    weft_reply_release(&reply);
}

/* A runtime remembers some names, and not all that ever were. */
TEST(names_of_closed_services_take_no_room_without_end)
{
    weft_service_t *service;
    char name[32];
    pair_open(&pair, &pair_ways[0], NULL);
    caller_open(&caller, &pair);
    CHECK_EQ(caller_bind(&caller, "s0", "add").code, WEFT_CODE_UNIMPLEMENTED);
    for (unsigned i = 0; i < 100; i++) {
        weft_op_t close = WEFT_OP_INIT;
        snprintf(name, sizeof name, "s%u", i / 2); /* each twice */
        CHECK_OK(weft_service_open(pair.rt[0], name, NULL, &service));
        CHECK_OK(weft_service_add(service, DESK_ADD, desk_adds, NULL, NULL));
        CHECK_OK(weft_service_close(service, &close));
        CHECK_OK(pair_wait(&pair, &close, 20));
        CHECK_EQ(caller_bind(&caller, name, "add").code, WEFT_CODE_UNAVAILABLE);
    }
    CHECK_EQ(caller_bind(&caller, "s40", "add").code, WEFT_CODE_UNAVAILABLE);
    CHECK_EQ(caller_bind(&caller, "s0", "add").code, WEFT_CODE_UNIMPLEMENTED);
    CHECK_EQ(caller_bind(&caller, "none", "add").code, WEFT_CODE_UNIMPLEMENTED);
    pair_close(&pair);
}
