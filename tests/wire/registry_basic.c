/* Registries, within the process, in a directory and in a Redis server: entering, changing, leaving, finding, watching,
 * closing, from callbacks and in every progress mode. ctest: timeout=200 label=thread */
#include <dirent.h>
#include <poll.h>

#include "places.h"
#include "redis_server.h"
#include "test.h"

static const weft_progress_mode_t modes[] = {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD};

static bool has_redis(void)
{
    weft_runtime_t *rt;
    weft_registry_t *r;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    bool has = redis_server_here() && weft_registry_open(rt, "redis://127.0.0.1", NULL, &r) == WEFT_OK;
    CHECK_OK(weft_runtime_close(rt));
    return has;
}

/* The same in all kinds of place and in two ways of driving. */
static void everywhere(void (*fn)(const char *uri, weft_progress_mode_t mode))
{
    char uri[128];
    redis_server_t s = {0};
    bool redis = has_redis(); /* else tests/fault/registry_redis.c says that it was skipped */
    if (redis)
        redis_server_start(&s, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        place_new(uri);
        fn(uri, modes[i]);
        place_remove(uri);
        fn("memory://everywhere", modes[i]);
        if (redis)
            fn(i ? s.tcp : s.local, modes[i]);
    }
    if (redis)
        redis_server_end(&s);
}

static void enter_find_leave(const char *uri, weft_progress_mode_t mode)
{
    place_t a, b;
    place_open(&a, uri, mode);
    place_open(&b, uri, mode);
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK_OK(place_enter(&a, "calc", "one", 1));
    CHECK_OK(place_enter(&b, "calc", "two", 2));
    CHECK_OK(place_enter(&b, "other", "one", 2));
    CHECK_EQ(place_count(&a, "calc"), 2);
    CHECK_EQ(place_count(&b, NULL), 3);
    CHECK_EQ(place_count(&b, "none"), 0);
    CHECK_EQ(place_enter(&b, "calc", "one", 1), WEFT_ERR_STATE);
    CHECK_EQ(place_leave(&b, "calc", "one"), WEFT_ERR_NOTFOUND);
    CHECK_OK(place_enter(&a, "calc", "one", 5)); /* ours: changed */
    CHECK_OK(place_enter(&a, "calc", NULL, 5));
    CHECK_EQ(place_count(&a, "calc"), 3);
    CHECK_OK(place_enter(&a, "calc", NULL, 6)); /* the same again: it has one name */
    CHECK_OK(place_enter(&b, "calc", NULL, 6)); /* which is not this one's */
    CHECK_EQ(place_count(&a, "calc"), 4);
    CHECK(strcmp(weft_registry_name(a.registry), weft_registry_name(b.registry)) != 0);
    CHECK_EQ(place_enter(&a, "calc", weft_registry_name(b.registry), 6), WEFT_ERR_STATE);
    CHECK_OK(place_leave(&b, "calc", NULL));
    CHECK_EQ(place_count(&a, "calc"), 3);
    CHECK_OK(place_leave(&a, "calc", weft_registry_name(a.registry)));
    CHECK_OK(place_enter(&a, "calc", NULL, 6));
    CHECK_OK(place_leave(&a, "calc", "one"));
    CHECK_EQ(place_count(&b, "calc"), 2);
    CHECK_OK(place_enter(&b, "calc", "one", 1));
    CHECK_EQ(weft_registry_state(b.registry), WEFT_OK);
    place_close(&b);
    CHECK_EQ(place_count(&a, NULL), 1);
    place_close(&a);
}

TEST(what_is_entered_is_found_until_it_leaves)
{
    everywhere(enter_find_leave);
}

static void come_change_go(const char *uri, weft_progress_mode_t mode)
{
    static seen_t s;
    place_t a, b;
    weft_watch_t *w;
    memset(&s, 0, sizeof s);
    place_open(&a, uri, mode);
    place_open(&b, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "calc", "one", 1));
    CHECK_OK(weft_registry_watch(b.registry, "calc", seen_change, &s, &w));
    PLACE_UNTIL(&b, s.came == 1, 20);
    CHECK_OK(place_enter(&a, "calc", "two", 1));
    CHECK_OK(place_enter(&a, "unwatched", "three", 1));
    PLACE_UNTIL(&b, s.came == 2, 20);
    CHECK_OK(place_enter(&a, "calc", "one", 77));
    PLACE_UNTIL(&b, s.changed == 1, 20);
    CHECK_EQ(s.load, 77);
    CHECK_OK(place_leave(&a, "calc", "one"));
    PLACE_UNTIL(&b, s.went == 1, 20);
    place_close(&a);
    PLACE_UNTIL(&b, s.went == 2, 20);
    CHECK_EQ(s.there, 0);
    CHECK_EQ(s.came, 2);
    CHECK_OK(weft_watch_end(w, NULL));
    place_close(&b);
}

TEST(a_watch_is_told_what_came_changed_and_went)
{
    everywhere(come_change_go);
}

/* --- from inside ------------------------------------------------------------------------------------------------------------ */

typedef struct inside {
    weft_registry_t *registry;
    weft_watch_t *self, *other;
    weft_op_t op, *cancel;
    unsigned calls;
    bool close;
} inside_t;

static void end_from_inside(weft_change_t change, const weft_entry_t *entry, void *user)
{
    inside_t *in = (inside_t *)user;
    (void)change;
    (void)entry;
    in->calls++;
    if (in->close) {
        CHECK_OK(weft_registry_close(in->registry, &in->op));
    } else {
        CHECK_OK(weft_watch_end(in->other, NULL));
        CHECK_OK(weft_watch_end(in->self, NULL));
    }
}

TEST(a_watch_ends_itself_and_another_and_the_registry_from_inside)
{
    static seen_t s;
    for (int close = 0; close < 2; close++) {
        place_t a, b;
        inside_t in = {.close = close != 0};
        memset(&s, 0, sizeof s);
        place_open(&a, "memory://inside", WEFT_PROGRESS_CALLER);
        place_open(&b, "memory://inside", WEFT_PROGRESS_CALLER);
        in.registry = b.registry;
        for (int i = 0; i < 3; i++)
            CHECK_OK(place_enter(&a, "s", (const char *[]){"x", "y", "z"}[i], 0));
        CHECK_OK(weft_registry_watch(b.registry, NULL, end_from_inside, &in, &in.self));
        CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &in.other));
        PLACE_UNTIL(&b, in.calls == 1, 20);
        if (close) {
            CHECK_OK(place_wait(&in.op));
        } else {
            CHECK_EQ(place_count(&b, NULL), 3); /* and whatever was on its way has arrived */
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_registry_close(b.registry, &op));
            CHECK_OK(place_wait(&op));
        }
        CHECK_EQ(in.calls, 1);
        CHECK_EQ(s.came, 0);
        CHECK_OK(weft_runtime_close(b.rt));
        place_close(&a);
    }
}

typedef struct early {
    weft_watch_t *watch;
    _Atomic bool there;
    weft_status_t st;
} early_t;

static void end_before_it_began(void *user)
{
    early_t *e = (early_t *)user;
    while (!e->there)
        ;
    e->st = weft_watch_end(e->watch, NULL);
}

/* Its beginning lies in the inbox of a runtime whose thread is in a callback, which ends it. */
TEST(a_watch_is_ended_on_the_driver_before_it_began_there)
{
    static seen_t s;
    early_t e = {.st = WEFT_ERR_PENDING};
    weft_op_t op = WEFT_OP_INIT;
    place_t a;
    memset(&s, 0, sizeof s);
    place_open(&a, "memory://early", WEFT_PROGRESS_THREAD);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(weft_runtime_call(a.rt, end_before_it_began, &e, &op));
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &e.watch));
    e.there = true;
    CHECK_OK(weft_op_wait(&op, 20 * WEFT_SECOND));
    CHECK_OK(e.st);
    CHECK_EQ(place_count(&a, NULL), 1); /* and whatever was on its way has arrived */
    CHECK_EQ(s.came, 0);
    place_close(&a);
}

static void cancel_from_inside(const weft_entry_t *entry, void *user)
{
    inside_t *in = (inside_t *)user;
    (void)entry;
    in->calls++;
    weft_op_cancel(in->cancel);
}

TEST(a_find_is_cancelled_by_its_own_function_and_before_it_is_answered)
{
    place_t a;
    inside_t in = {0};
    weft_op_t op = WEFT_OP_INIT;
    place_open(&a, "memory://cancel", WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(place_enter(&a, "s", "y", 0));
    in.cancel = &op;
    CHECK_OK(weft_registry_find(a.registry, NULL, cancel_from_inside, &in, &op));
    CHECK_EQ(place_wait(&op), WEFT_ERR_CANCELLED);
    CHECK_EQ(in.calls, 1);
    CHECK_OK(weft_registry_find(a.registry, NULL, cancel_from_inside, &in, &op));
    weft_op_cancel(&op);
    CHECK_EQ(place_wait(&op), WEFT_ERR_CANCELLED);
    CHECK_EQ(place_count(&a, NULL), 2);
    CHECK_EQ(in.calls, 1);
    place_close(&a);
}

/* --- endings ---------------------------------------------------------------------------------------------------------------- */

TEST(a_runtime_that_closes_takes_its_registries_and_entries_with_it)
{
    static seen_t s;
    char uri[128];
    place_new(uri);
    for (int i = 0; i < 2; i++) {
        place_t a, b;
        weft_watch_t *w;
        weft_op_t op = WEFT_OP_INIT;
        weft_entry_t e = WEFT_ENTRY_INIT;
        memset(&s, 0, sizeof s);
        place_open(&a, uri, modes[i]);
        place_open(&b, uri, modes[i]);
        CHECK_OK(place_enter(&a, "s", "x", 0));
        CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
        e.service = "s";
        e.address = "a";
        CHECK_OK(weft_registry_enter(a.registry, &e, &op)); /* under way */
        CHECK_OK(weft_runtime_close(a.rt));
        CHECK(weft_op_done(&op));
        CHECK_EQ(place_count(&b, NULL), 0);
        place_close(&b);
    }
    DIR *d = opendir(uri + 6);
    CHECK(d);
    for (struct dirent *de; (de = readdir(d));)
        CHECK(!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."));
    closedir(d);
    place_remove(uri);
}

TEST(what_cannot_be_opened_is_refused_with_a_sentence)
{
    weft_runtime_t *rt;
    weft_registry_t *r = NULL;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    const char *invalid[] = {"", "calc", "://x", "memory://", "memory://a/b", "dir://relative/path"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        CHECK_EQ(weft_registry_open(rt, invalid[i], NULL, &r), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
    }
    CHECK_EQ(weft_registry_open(rt, "zookeeper://localhost:2181", NULL, &r), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_last_error(), "zookeeper") != NULL);
    weft_registry_opts_t how = WEFT_REGISTRY_OPTS_INIT;
    how.lease_ns = 10 * WEFT_MILLISECOND;
    CHECK_EQ(weft_registry_open(rt, "memory://x", &how, &r), WEFT_ERR_INVALID);
    CHECK(!r);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_configured_registry_is_used_where_none_is_named)
{
    char uri[128];
    place_t a, b;
    place_new(uri);
    CHECK(!setenv("WEFT_REGISTRY_DIR", uri + 6, 1));
    place_open(&a, "dir://", WEFT_PROGRESS_CALLER);
    CHECK(!setenv("WEFT_REGISTRY", uri, 1));
    place_open(&b, uri, WEFT_PROGRESS_CALLER);
    weft_registry_t *configured;
    CHECK_OK(weft_registry_open(b.rt, NULL, NULL, &configured));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_EQ(place_count(&b, NULL), 1);
    place_t c = b;
    c.registry = configured;
    CHECK_EQ(place_count(&c, NULL), 1);
    CHECK_OK(weft_registry_close(configured, NULL));
    place_close(&b);
    place_close(&a);
    place_remove(uri);
}

/* A foreign loop that sleeps is woken by what the registry has to tell. */
TEST(a_sleeping_loop_is_woken)
{
    static seen_t s;
    place_t a, b;
    weft_watch_t *w;
    place_open(&a, "memory://loop", WEFT_PROGRESS_THREAD);
    place_open(&b, "memory://loop", WEFT_PROGRESS_LOOP);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    double end = test_now() + 30;
    while (!s.came && test_now() < end) {
        struct pollfd p = {weft_runtime_fd(b.rt), POLLIN, 0};
        while (weft_runtime_progress(b.rt))
            ;
        if (!s.came && weft_runtime_arm(b.rt) == WEFT_OK)
            CHECK(poll(&p, 1, 20000) != 0);
    }
    CHECK_EQ(s.came, 1);
    place_close(&b);
    place_close(&a);
}

static void a_thousand(const char *uri, weft_progress_mode_t mode)
{
    enum { MANY = 1000 };
    static seen_t s;
    char name[16];
    place_t a, b;
    weft_watch_t *w;
    static weft_op_t ops[MANY];
    memset(&s, 0, sizeof s);
    memset(ops, 0, sizeof ops);
    place_open(&a, uri, mode);
    place_open(&b, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    for (int i = 0; i < MANY; i++) {
        weft_entry_t e = WEFT_ENTRY_INIT;
        snprintf(name, sizeof name, "i%d", i);
        e.service = "s";
        e.instance = name;
        e.address = "tcp://127.0.0.1:7000";
        e.data = "signatures";
        e.data_len = 10;
        CHECK_OK(weft_registry_enter(a.registry, &e, &ops[i]));
    }
    for (int i = 0; i < MANY; i++)
        CHECK_OK(place_wait(&ops[i]));
    CHECK_EQ(place_count(&b, "s"), MANY);
    PLACE_UNTIL(&b, s.there == MANY, 40);
    place_close(&a);
    PLACE_UNTIL(&b, s.there == 0, 40);
    CHECK_EQ(s.came, MANY);
    CHECK_EQ(s.went, MANY);
    place_close(&b);
}

TEST(a_thousand_entries_are_entered_watched_and_found)
{
    everywhere(a_thousand);
}
