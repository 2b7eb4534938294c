/* Memory runs out at every single allocation of a service that is published and a client that finds it, one after the other. Each
 * time everything ends with a status that is true; and whatever was given to the program works afterwards: what is missed for
 * want of memory is looked for again.
 * ctest: timeout=600 */
#define TEST_SECONDS 280
#include <weft/service.h>

#include "lib/nomem.h"
#include "ports.h"
#include "test.h"
#include "weft/weft.h"

static weft_runtime_t *server_rt, *client_rt;
static weft_registry_t *server_registry, *client_registry;
static weft_listener_t *listener;

static void drive(void)
{
    weft_runtime_progress(server_rt);
    weft_runtime_progress(client_rt);
}

static weft_status_t done(weft_status_t st, weft_op_t *op)
{
    return nomem_end(st, op, drive);
}

static void take(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)ep, (void)user;
}

static void gone(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why, (void)user;
    weft_ep_close(ep, NULL);
}

static void answer(weft_request_t *request, void *user)
{
    weft_value_t v = weft_u32(42);
    (void)user;
    weft_request_reply(request, &v, 1);
}

static void open_all(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = gone};
    weft_log_set_level(WEFT_LOG_NONE);
    o.transports = "shm";
    o.progress = WEFT_PROGRESS_CALLER;
    lo.accept = take;
    lo.hooks = &hooks;
    CHECK_OK(weft_runtime_open(&o, &server_rt));
    CHECK_OK(weft_runtime_open(&o, &client_rt));
    CHECK_OK(weft_listen(server_rt, ports_tcp(), &lo, &listener));
    CHECK_OK(weft_registry_open(server_rt, "memory://scarce", NULL, &server_registry));
    CHECK_OK(weft_registry_open(client_rt, "memory://scarce", NULL, &client_registry));
}

static weft_status_t call(weft_client_t *client, uint64_t timeout_ns)
{
    weft_method_t *m;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_client_method(client, "get() -> u32 idempotent", &m);
    if (st)
        return st;
    op.timeout_ns = timeout_ns;
    st = done(weft_call(m, NULL, 0, &reply, &op), &op);
    if (!st)
        CHECK_EQ(reply.values[0].u32, 42);
    weft_reply_release(&reply);
    return st;
}

/* Everything once, with what memory there is; then again with all of it. true: there was enough. */
static bool life(long at)
{
    weft_service_t *service = NULL;
    weft_client_t *client = NULL;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    co.registry = client_registry;
    co.reconnect_ns = WEFT_MILLISECOND;
    bool published = false, has_function = false;
    nomem_at(at, 1);
    if (!weft_service_open(server_rt, "scarce", NULL, &service)) {
        has_function = !weft_service_add(service, "get() -> u32 idempotent", answer, NULL, NULL);
        published = !weft_service_publish(service, server_registry, NULL);
    }
    if (!weft_client_open(client_rt, "weft://scarce", &co, &client) && published && has_function)
        (void)call(client, 100 * WEFT_MILLISECOND);
    bool enough = nomem_still_ahead();
    nomem_off();
    if (client && published && has_function)
        CHECK_OK(call(client, 15 * WEFT_SECOND)); /* what was missed is found */
    if (client && (at & 1)) {
        CHECK_OK(done(weft_client_close(client, &op), &op));
        client = NULL;
    }
    if (service) {
        if (at & 2)
            nomem_at(at / 4, 1); /* the ends need memory, too, or do not */
        weft_status_t st = done(weft_service_close(service, &op), &op);
        nomem_off();
        if (st)
            CHECK_OK(done(weft_service_close(service, &op), &op));
    }
    if (client)
        CHECK_OK(done(weft_client_close(client, &op), &op));
    return enough;
}

TEST(a_service_is_published_and_found_with_little_memory)
{
    long at = 0;
    open_all();
    while (!life(at) && at < 3000)
        at++;
    printf("# %ld allocations\n", at);
    CHECK(at > 20 && at < 3000);
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(done(weft_registry_close(server_registry, &op), &op));
    CHECK_OK(done(weft_registry_close(client_registry, &op), &op));
    CHECK_OK(weft_runtime_close(client_rt));
    CHECK_OK(weft_runtime_close(server_rt));
}

/* The same client all the time, while its server comes and goes: it never stops looking. */
TEST(a_client_that_lost_its_server_finds_the_next_one_with_little_memory)
{
    weft_client_t *client;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    open_all();
    co.registry = client_registry;
    co.reconnect_ns = WEFT_MILLISECOND;
    CHECK_OK(weft_client_open(client_rt, "weft://scarce", &co, &client));
    for (long at = 0; at < 60; at++) {
        weft_service_t *service;
        CHECK_OK(weft_service_open(server_rt, "scarce", NULL, &service));
        CHECK_OK(weft_service_add(service, "get() -> u32 idempotent", answer, NULL, NULL));
        CHECK_OK(weft_service_publish(service, server_registry, NULL));
        nomem_at(at, 1 + at % 3);
        for (int i = 0; i < 300; i++)
            drive();
        nomem_off();
        CHECK_OK(call(client, 15 * WEFT_SECOND));
        CHECK_OK(done(weft_service_close(service, &op), &op));
    }
    CHECK_OK(done(weft_client_close(client, &op), &op));
    CHECK_OK(weft_runtime_close(client_rt));
    CHECK_OK(weft_runtime_close(server_rt));
}

/* A client at an address, opened with little memory: it says so, or it connects sooner or later. */
static bool life_at_an_address(long at, long n)
{
    weft_client_t *client = NULL;
    weft_op_t op = WEFT_OP_INIT;
    nomem_at(at, n);
    weft_status_t st = weft_client_open(client_rt, weft_listener_uri(listener), NULL, &client);
    for (int i = 0; i < 3; i++)
        drive();
    bool enough = nomem_still_ahead();
    nomem_off();
    if (st)
        return false;
    st = call(client, 15 * WEFT_SECOND);
    CHECK(!st || (st == WEFT_ERR_NOMEM && n > 1)); /* and never that nobody came in time */
    CHECK_OK(done(weft_client_close(client, &op), &op));
    return enough;
}

TEST(a_client_at_an_address_connects_with_little_memory)
{
    weft_service_t *service;
    weft_op_t op = WEFT_OP_INIT;
    open_all();
    CHECK_OK(weft_service_open(server_rt, "scarce", NULL, &service));
    CHECK_OK(weft_service_add(service, "get() -> u32 idempotent", answer, NULL, NULL));
    for (long n = 1; n <= 4; n++)
        for (long at = 0; !life_at_an_address(at, n); at++)
            CHECK(at < 100);
    CHECK_OK(done(weft_service_close(service, &op), &op));
    CHECK_OK(weft_runtime_close(client_rt));
    CHECK_OK(weft_runtime_close(server_rt));
}
