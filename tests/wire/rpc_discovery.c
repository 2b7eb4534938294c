/* Clients that find their servers: by address and by registry, within one process and between several. Calls spread, go on when a
 * server is killed, drained or added, wait where nobody is, and say so; services are published, kept up to date, and taken away.
 * ctest: timeout=300 label=thread waits */
#include <stdatomic.h>

#include "crew.h"
#include "places.h"
#include "ports.h"
#include "test.h"

/* --- between processes ----------------------------------------------------------------------------------------------------- */

static crew_t crew;

static unsigned long failures(const crew_count_t *n)
{
    return n->not_run + n->may_have_run + n->ran;
}

TEST(calls_spread_and_go_on_when_a_server_is_killed_drained_or_added)
{
    crew_start(&crew, 4, "shm", 2 * WEFT_SECOND, 0);
    for (int i = 0; i < 3; i++)
        crew_go(&crew, i);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 3, 20);
    crew_rest(&crew);
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew.asked.ended > 2000, 30);
    crew_rest(&crew);
    for (int i = 0; i < 3; i++)
        CHECK(crew_ok(&crew, i) > 100); /* a third would be 1300; they share two processors with everyone */
    CHECK_EQ(failures(&crew.asked) + failures(&crew.done), 0);

    /* one is killed: idempotent calls all succeed, of the others those fail that may have run there */
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 50, 20);
    crew_signal(&crew, 0, SIGKILL);
    unsigned long before = crew.asked.ended;
    CREW_UNTIL(&crew, crew.asked.ended > before + 1000 && crew_stats(&crew).instances == 2, 30);
    crew_rest(&crew);
    CHECK_EQ(failures(&crew.asked), 0);
    CHECK_EQ(failures(&crew.done), crew.done.may_have_run);
    CHECK(crew.done.may_have_run <= CREW_FLIGHT);

    /* one is drained: nobody notices */
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew_ok(&crew, 1) > 50, 20);
    crew_drain(&crew, 1);
    crew_drained(&crew, 1);
    before = crew.asked.ended;
    CREW_UNTIL(&crew, crew.asked.ended > before + 1000 && crew_stats(&crew).instances == 1, 30);
    CHECK_EQ(crew_stats(&crew).connected, 1);
    crew_rest(&crew);
    CHECK_EQ(failures(&crew.asked) + failures(&crew.done), 0);

    /* one is added: it gets its part */
    crew_forget(&crew);
    crew_go(&crew, 3);
    CREW_UNTIL(&crew, crew_ok(&crew, 3) > 200, 30);
    crew_rest(&crew);
    CHECK_EQ(failures(&crew.asked) + failures(&crew.done), 0);
    crew_end(&crew);
}

TEST(calls_wait_while_the_only_server_is_replaced)
{
    crew_start(&crew, 2, "tcp", 2 * WEFT_SECOND, 0);
    crew_work(&crew); /* nobody is there yet */
    CHECK_EQ(crew_stats(&crew).waiting, CREW_FLIGHT);
    crew_go(&crew, 0);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 200, 30);
    crew_drain(&crew, 0);
    crew_drained(&crew, 0);
    crew_go(&crew, 1);
    CREW_UNTIL(&crew, crew_ok(&crew, 1) > 200, 30);
    crew_rest(&crew);
    CHECK_EQ(failures(&crew.asked) + failures(&crew.done), 0);
    crew_end(&crew);
}

/* --- within a process ------------------------------------------------------------------------------------------------------ */

enum { HOUSES = 3 };

/* Runtimes with services, driven by threads of their own, and one that calls. */
typedef struct town {
    char uri[128];
    struct house {
        weft_runtime_t *rt;
        weft_registry_t *registry;
        weft_listener_t *listener;
        weft_service_t *service;
        uint32_t number;
    } house[HOUSES];
    weft_runtime_t *rt;
    weft_registry_t *registry;
    weft_client_t *client;
    weft_method_t *who;
    weft_reply_t reply;
} town_t;
static town_t town;
#define WHO "who() -> u32 idempotent"

static void says_who(weft_request_t *request, void *user)
{
    weft_value_t v = weft_u32(*(const uint32_t *)user);
    weft_request_reply(request, &v, 1);
}

static void keep_ep(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep;
    (void)user;
}

static void close_ep(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

static weft_runtime_t *runtime(weft_progress_mode_t mode)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = "shm";
    o.progress = mode;
    o.close_timeout_ns = 2 * WEFT_SECOND;
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

static void listen_at(struct house *h, const char *uri)
{
    weft_ep_hooks_t hooks = {.closed = close_ep};
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    lo.accept = keep_ep;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(h->rt, uri, &lo, &h->listener));
}

static weft_service_t *service_on(weft_runtime_t *rt, const char *instance, uint32_t *number)
{
    weft_service_t *s;
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    so.instance = instance;
    CHECK_OK(weft_service_open(rt, "town", &so, &s));
    CHECK_OK(weft_service_add(s, WHO, says_who, number, NULL));
    return s;
}

static void house_open(int i, bool publish)
{
    struct house *h = &town.house[i];
    char instance[8];
    h->number = (uint32_t)i;
    h->rt = runtime(WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_open(h->rt, town.uri, NULL, &h->registry));
    snprintf(instance, sizeof instance, "h%d", i);
    h->service = service_on(h->rt, instance, &h->number);
    listen_at(h, ports_tcp());
    if (publish)
        CHECK_OK(weft_service_publish(h->service, h->registry, NULL));
}

static void waits(weft_op_t *op)
{
    weft_status_t st = weft_op_wait(op, 20 * WEFT_SECOND);
    CHECK(weft_op_done(op));
    CHECK_OK(st);
}

static void house_close(int i)
{
    struct house *h = &town.house[i];
    weft_op_t op = WEFT_OP_INIT;
    if (!h->rt)
        return;
    if (h->service) {
        CHECK_OK(weft_service_close(h->service, &op));
        waits(&op);
    }
    CHECK_OK(weft_registry_close(h->registry, &op));
    waits(&op);
    CHECK_OK(weft_runtime_close(h->rt));
    h->rt = NULL;
}

static void client_open(const char *uri, uint32_t instances)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    o.registry = town.registry;
    o.instances = instances;
    o.reconnect_ns = 10 * WEFT_MILLISECOND;
    CHECK_OK(weft_client_open(town.rt, uri, &o, &town.client));
    CHECK_OK(weft_client_method(town.client, WHO, &town.who));
}

static void client_close(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_release(&town.reply);
    CHECK_OK(weft_client_close(town.client, &op));
    waits(&op);
}

static void town_open(const char *uri, int houses)
{
    memset(&town, 0, sizeof town);
    if (uri)
        snprintf(town.uri, sizeof town.uri, "%s", uri);
    else
        place_new(town.uri);
    for (int i = 0; i < houses; i++)
        house_open(i, true);
    town.rt = runtime(WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_open(town.rt, town.uri, NULL, &town.registry));
}

static void town_close(void)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_registry_close(town.registry, &op));
    waits(&op);
    CHECK_OK(weft_runtime_close(town.rt));
    for (int i = 0; i < HOUSES; i++)
        house_close(i);
    if (!strncmp(town.uri, "dir:", 4))
        place_remove(town.uri);
}

/* A call, and who answered; or its status below 0. */
static int ask(uint64_t timeout_ns)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = timeout_ns;
    weft_reply_release(&town.reply);
    town.reply = (weft_reply_t)WEFT_REPLY_INIT;
    CHECK_OK(weft_call(town.who, NULL, 0, &town.reply, &op));
    weft_status_t st = weft_op_wait(&op, 30 * WEFT_SECOND);
    CHECK(weft_op_done(&op));
    CHECK(town.reply.message);
    return st ? (int)st : (int)town.reply.values[0].u32;
}

static weft_client_stats_t stats(void)
{
    weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
    CHECK_OK(weft_client_get_stats(town.client, &s));
    return s;
}

#define TOWN_UNTIL(cond) \
    do { \
        double town_limit = test_now() + 20; \
        while (!(cond)) { \
            weft_runtime_progress(town.rt); \
            usleep(200); \
            if (test_now() > town_limit) \
                FAIL("%s did not come true within 20 s", #cond); \
        } \
    } while (0)

static void everywhere(void (*fn)(const char *uri))
{
    fn("memory://town");
    fn(NULL);
}

static void all_are_found(const char *uri)
{
    unsigned got[HOUSES] = {0};
    town_open(uri, HOUSES);
    client_open("weft://town", 0);
    TOWN_UNTIL(stats().connected == HOUSES);
    CHECK_EQ(stats().instances, HOUSES);
    for (int i = 0; i < 600; i++) {
        int who = ask(20 * WEFT_SECOND);
        CHECK(who >= 0 && who < HOUSES);
        got[who]++;
    }
    for (int i = 0; i < HOUSES; i++)
        CHECK(got[i] > 60); /* one at a time, all idle: each is as good as the other */
    client_close();

    client_open("weft://town@h1", 0); /* only that one */
    for (int i = 0; i < 20; i++)
        CHECK_EQ(ask(20 * WEFT_SECOND), 1);
    CHECK_EQ(stats().instances, 1);
    client_close();

    client_open("weft://town", 2); /* not more than two */
    TOWN_UNTIL(stats().instances == HOUSES && stats().connected == 2);
    for (int i = 0; i < 100; i++) {
        CHECK(ask(20 * WEFT_SECOND) >= 0);
        CHECK_EQ(stats().connected, 2);
    }
    client_close();
    town_close();
}

TEST(every_instance_is_found_one_of_them_or_some_of_them)
{
    everywhere(all_are_found);
}

static void come_and_go(const char *uri)
{
    town_open(uri, 0);
    client_open("weft://town", 0);
    CHECK_EQ(ask(50 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
    CHECK_EQ(town.reply.code, WEFT_CODE_DEADLINE_EXCEEDED);
    CHECK_EQ(town.reply.ran, WEFT_NOT_RUN);
    if (!strstr(town.reply.message, "knows no instance of town") || !strstr(town.reply.message, town.uri))
        FAIL("it says: %s", town.reply.message);
    house_open(0, true);
    CHECK_EQ(ask(20 * WEFT_SECOND), 0);
    house_open(1, true);
    TOWN_UNTIL(stats().connected == 2);
    house_close(0);
    for (int i = 0; i < 50; i++) /* from the first call on, whether the registry has told us or not */
        CHECK_EQ(ask(20 * WEFT_SECOND), 1);
    TOWN_UNTIL(stats().instances == 1);
    house_close(1);
    TOWN_UNTIL(stats().instances == 0 && stats().connected == 0);
    CHECK_EQ(ask(50 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
    house_open(1, true); /* the same name at another address */
    CHECK_EQ(ask(20 * WEFT_SECOND), 1);
    client_close();
    town_close();
}

TEST(instances_come_and_go_and_calls_wait_where_there_is_none)
{
    everywhere(come_and_go);
}

/* Several instances behind one address: each client gets the one it means. */
static void one_address(const char *uri)
{
    static uint32_t numbers[3] = {10, 11, 12};
    weft_op_t op = WEFT_OP_INIT;
    unsigned got[3] = {0};
    town_open(uri, 1);
    weft_service_t *more[3];
    for (int i = 0; i < 3; i++) {
        char instance[8];
        snprintf(instance, sizeof instance, "x%d", i);
        more[i] = service_on(town.house[0].rt, instance, &numbers[i]);
        CHECK_OK(weft_service_publish(more[i], town.house[0].registry, NULL));
    }
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "weft://town@x%d", i);
        client_open(name, 0);
        for (int k = 0; k < 5; k++)
            CHECK_EQ(ask(20 * WEFT_SECOND), 10 + i);
        client_close();
    }
    client_open("weft://town", 0);
    TOWN_UNTIL(stats().connected == 4);
    for (int i = 0; i < 200; i++) {
        int who = ask(20 * WEFT_SECOND);
        if (who)
            got[who - 10]++;
    }
    CHECK(got[0] && got[1] && got[2]);
    /* one is drained: the others of its process are not touched */
    CHECK_OK(weft_service_drain(more[1], &op));
    waits(&op);
    for (int i = 0; i < 50; i++) {
        int who = ask(20 * WEFT_SECOND);
        CHECK(who >= 0 && who != 11);
    }
    TOWN_UNTIL(stats().instances == 3);
    client_close();
    for (int i = 0; i < 3; i++) {
        CHECK_OK(weft_service_close(more[i], &op));
        waits(&op);
    }
    town_close();
}

TEST(several_instances_behind_one_address)
{
    everywhere(one_address);
}

/* --- by address ------------------------------------------------------------------------------------------------------------ */

static void nobody_answers(const char *where)
{
    CHECK_EQ(ask(100 * WEFT_MILLISECOND), WEFT_ERR_TIMEOUT);
    if (!strstr(town.reply.message, "nobody answers at ") || !strstr(town.reply.message, where))
        FAIL("it says: %s", town.reply.message);
}

TEST(a_server_at_an_address_is_called_again_when_it_is_back)
{
    char where[64];
    struct house *h = &town.house[0];
    town_open("memory://town", 0);
    house_open(0, false);
    snprintf(where, sizeof where, "tcp://127.0.0.1:%u", weft_listener_port(h->listener));
    client_open(where, 0);
    CHECK_EQ(ask(20 * WEFT_SECOND), 0);
    CHECK_EQ(stats().instances, 1);
    CHECK_EQ(stats().connected, 1);
    house_close(0);
    TOWN_UNTIL(stats().connected == 0);
    nobody_answers(where);
    h->rt = runtime(WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_open(h->rt, town.uri, NULL, &h->registry));
    listen_at(h, where);
    h->number = 7;
    h->service = service_on(h->rt, "again", &h->number);
    CHECK_EQ(ask(20 * WEFT_SECOND), 7);
    house_close(0);
    client_close();
    town_close();
}

TEST(the_first_of_several_addresses_that_answers_is_called)
{
    char where[64];
    town_open("memory://town", 0);
    house_open(0, false);
    snprintf(where, sizeof where, "tcp://127.0.0.1:1,tcp://127.0.0.1:%u", weft_listener_port(town.house[0].listener));
    client_open(where, 0);
    CHECK_EQ(ask(20 * WEFT_SECOND), 0);
    client_close();
    client_open("tcp://127.0.0.1:1", 0);
    nobody_answers("tcp://127.0.0.1:1");
    client_close();
    client_open("unix://@weft-nobody-is-here", 0);
    nobody_answers("unix://@weft-nobody-is-here");
    client_close();
    town_close();
}

TEST(addresses_that_are_none_are_refused)
{
    weft_client_t *c = NULL;
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    town_open("memory://town", 0);
    static const char *const bad[] = {"",
                                      "calc",
                                      "weft://",
                                      "weft://town/who",
                                      "weft://a b",
                                      "http://x:1",
                                      "tcp://127.0.0.1:0",
                                      "tcp://127.0.0.1",
                                      "unix://relative",
                                      "tcp://a:1,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(weft_client_open(town.rt, bad[i], NULL, &c), WEFT_ERR_INVALID);
    CHECK_EQ(weft_client_open(town.rt, NULL, NULL, &c), WEFT_ERR_INVALID);
    CHECK_EQ(weft_client_open(NULL, "weft://town", NULL, &c), WEFT_ERR_INVALID);
    o.service = "village";
    CHECK_EQ(weft_client_open(town.rt, "weft://town", &o, &c), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "village"));
    o.service = "town";
    o.instance = "a";
    CHECK_EQ(weft_client_open(town.rt, "weft://town@b", &o, &c), WEFT_ERR_INVALID);
    CHECK(!c);
    town_close();
}

/* --- publishing ------------------------------------------------------------------------------------------------------------ */

typedef struct entry_seen {
    unsigned n;
    uint32_t load;
    char address[512], data[512];
} entry_seen_t;

static void see_entry(const weft_entry_t *e, void *user)
{
    entry_seen_t *s = (entry_seen_t *)user;
    s->n++;
    s->load = e->load;
    snprintf(s->address, sizeof s->address, "%s", e->address);
    snprintf(s->data, sizeof s->data, "%.*s", (int)e->data_len, (const char *)e->data);
}

static entry_seen_t look(void)
{
    entry_seen_t s = {0};
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_registry_find(town.registry, "town", see_entry, &s, &op));
    waits(&op);
    return s;
}

static void nothing(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, NULL, 0);
}

static void entries(const char *uri)
{
    weft_op_t op = WEFT_OP_INIT;
    town_open(uri, 0);
    struct house *h = &town.house[0];
    h->rt = runtime(WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_open(h->rt, town.uri, NULL, &h->registry));
    h->service = service_on(h->rt, "h0", &h->number);
    CHECK_EQ(weft_service_publish(h->service, h->registry, NULL), WEFT_ERR_STATE); /* nobody could reach it */
    CHECK(strstr(weft_last_error(), "weft_listen"));
    CHECK_EQ(weft_service_publish(h->service, h->registry, "nowhere"), WEFT_ERR_INVALID);
    CHECK_EQ(weft_service_publish(NULL, h->registry, NULL), WEFT_ERR_INVALID);
    listen_at(h, ports_tcp());
    CHECK_OK(weft_service_publish(h->service, h->registry, NULL));
    CHECK_EQ(weft_service_publish(h->service, h->registry, NULL), WEFT_ERR_STATE); /* it is */
    TOWN_UNTIL(look().n == 1);
    entry_seen_t s = look();
    CHECK(strstr(s.address, "tcp://127.0.0.1:"));
    CHECK(strstr(s.data, "who() -> u32 idempotent\n"));
    CHECK_OK(weft_service_add(h->service, "more(a: f64) -> void", nothing, NULL, NULL));
    TOWN_UNTIL(strstr(look().data, "more(a: f64) -> void"));
    CHECK_OK(weft_service_remove(h->service, "who", NULL));
    TOWN_UNTIL(!strstr(look().data, "who()"));
    CHECK_OK(weft_service_drain(h->service, &op));
    waits(&op);
    TOWN_UNTIL(look().n == 0);
    CHECK_OK(weft_service_close(h->service, &op));
    waits(&op);
    h->service = service_on(h->rt, "h0", &h->number); /* the same name, and another way to reach it */
    CHECK_OK(weft_service_publish(h->service, h->registry, "unix://@town-elsewhere"));
    TOWN_UNTIL(look().n == 1);
    CHECK_STR(look().address, "unix://@town-elsewhere");
    CHECK_OK(weft_service_close(h->service, &op));
    waits(&op);
    h->service = NULL;
    TOWN_UNTIL(look().n == 0);
    town_close();
}

TEST(a_service_is_published_as_it_is_and_taken_away)
{
    everywhere(entries);
}

/* Requests that are kept make it busy. */
static _Atomic(weft_request_t *) kept[64];
static _Atomic unsigned n_kept;

static void keeps(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_t *r = weft_request_keep(request);
    unsigned i = atomic_fetch_add(&n_kept, 1);
    atomic_store(&kept[i], r);
}

TEST(the_load_that_is_published_follows_the_load_there_is)
{
    enum { CALLS = 8 };
    static weft_op_t ops[CALLS];
    town_open("memory://town", 0);
    struct house *h = &town.house[0];
    h->rt = runtime(WEFT_PROGRESS_THREAD);
    CHECK_OK(weft_registry_open(h->rt, town.uri, NULL, &h->registry));
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    so.requests = CALLS;
    so.peer_percent = 100;
    CHECK_OK(weft_service_open(h->rt, "town", &so, &h->service));
    CHECK_OK(weft_service_add(h->service, "keeps() -> void", keeps, NULL, NULL));
    listen_at(h, ports_tcp());
    CHECK_OK(weft_service_publish(h->service, h->registry, NULL));
    TOWN_UNTIL(look().n == 1);
    CHECK_EQ(look().load, 0);
    weft_method_t *keep;
    client_open("weft://town", 0);
    CHECK_OK(weft_client_method(town.client, "keeps() -> void", &keep));
    for (int i = 0; i < CALLS; i++) {
        memset(&ops[i], 0, sizeof ops[i]);
        CHECK_OK(weft_call(keep, NULL, 0, NULL, &ops[i]));
    }
    TOWN_UNTIL(look().load > 500);
    for (int i = 0; i < CALLS; i++) {
        CHECK_OK(weft_request_reply(kept[i], NULL, 0));
        weft_request_release(kept[i]);
        waits(&ops[i]);
    }
    TOWN_UNTIL(look().load < 100);
    client_close();
    town_close();
}

/* --- the configured registry, and ends that come too early ----------------------------------------------------------------- */

TEST(the_configured_registry_is_found_by_both_sides)
{
    weft_op_t op = WEFT_OP_INIT;
    setenv("WEFT_REGISTRY", "memory://configured", 1);
    memset(&town, 0, sizeof town);
    struct house *h = &town.house[0];
    h->rt = runtime(WEFT_PROGRESS_THREAD);
    h->service = service_on(h->rt, NULL, &h->number);
    h->number = 5;
    listen_at(h, ports_tcp());
    CHECK_OK(weft_service_publish(h->service, NULL, NULL));
    town.rt = runtime(WEFT_PROGRESS_CALLER);
    for (int i = 0; i < 3; i++) { /* opened, closed with the last, opened again; two at a time */
        weft_client_t *other;
        client_open("weft://town", 0);
        CHECK_OK(weft_client_open(town.rt, "weft://town", NULL, &other));
        CHECK_EQ(ask(20 * WEFT_SECOND), 5);
        CHECK_OK(weft_client_close(other, &op));
        waits(&op);
        CHECK_EQ(ask(20 * WEFT_SECOND), 5);
        client_close();
    }
    CHECK_OK(weft_service_close(h->service, &op));
    waits(&op);
    CHECK_OK(weft_runtime_close(town.rt));
    CHECK_OK(weft_runtime_close(h->rt));
}

TEST(a_client_is_closed_at_any_moment)
{
    weft_op_t call = WEFT_OP_INIT, closing = WEFT_OP_INIT;
    weft_reply_t reply;
    town_open("memory://town", 2);
    for (int i = 0; i < 60; i++) {
        memset(&call, 0, sizeof call);
        reply = (weft_reply_t)WEFT_REPLY_INIT;
        client_open(i % 3 ? "weft://town" : "tcp://127.0.0.1:1", 0);
        CHECK_OK(weft_call(town.who, NULL, 0, &reply, &call));
        for (int k = 0; k < i * 3; k++)
            weft_runtime_progress(town.rt);
        CHECK_OK(weft_client_close(town.client, &closing));
        waits(&closing);
        weft_status_t st = weft_op_wait(&call, 20 * WEFT_SECOND);
        CHECK(weft_op_done(&call) && (st == WEFT_OK || st == WEFT_ERR_CLOSED));
        weft_reply_release(&reply);
    }
    town_close();
}

TEST(a_runtime_closes_with_its_clients_and_services)
{
    for (int i = 0; i < 20; i++) {
        town_open("memory://town", 1);
        client_open(i % 2 ? "weft://town" : "weft://town@nobody", 0);
        if (i % 4 == 1)
            CHECK_EQ(ask(20 * WEFT_SECOND), 0);
        else
            for (int k = 0; k < i * 20; k++)
                weft_runtime_progress(town.rt);
        weft_reply_release(&town.reply);
        CHECK_OK(weft_runtime_close(town.rt));
        CHECK_OK(weft_runtime_close(town.house[0].rt));
    }
}

/* Whoever still uses the configured registry gives its part of it back while the runtime closes, or after it has closed the
 * registry itself. */
TEST(a_runtime_closes_with_users_of_its_configured_registry)
{
    setenv("WEFT_REGISTRY", "memory://configured", 1);
    for (int i = 0; i < 24; i++) {
        bool alone = i % 2, client = i % 3, publish = i % 4; /* users of it, and when they come to it */
        memset(&town, 0, sizeof town);
        struct house *h = &town.house[0];
        h->rt = runtime(alone ? WEFT_PROGRESS_CALLER : WEFT_PROGRESS_THREAD);
        h->service = service_on(h->rt, NULL, &h->number);
        listen_at(h, ports_tcp());
        if (publish)
            CHECK_OK(weft_service_publish(h->service, NULL, NULL));
        town.rt = alone ? h->rt : runtime(WEFT_PROGRESS_CALLER);
        if (client)
            client_open("weft://town", 0);
        if (client && publish && i > 12)
            CHECK_EQ(ask(20 * WEFT_SECOND), 0);
        else
            for (int k = 0; k < i / 6 * 20; k++) /* at first none: what was published is on its way to the driver */
                weft_runtime_progress(town.rt);
        weft_reply_release(&town.reply);
        CHECK_OK(weft_runtime_close(h->rt));
        if (!alone)
            CHECK_OK(weft_runtime_close(town.rt));
    }
    unsetenv("WEFT_REGISTRY");
}
