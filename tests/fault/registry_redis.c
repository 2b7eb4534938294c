/* A registry in a real Redis server: entrants are killed, the server is killed and started again, stopped, emptied, cut off
 * from us, full, and filled with strange things; wrong passwords; no memory at any point. ctest: timeout=400 long */
#include <pthread.h>

#include "nomem.h"
#include "places.h"
#include "redis_server.h"
#include "test.h"

#define LEASE WEFT_SECOND /* the shortest there is */

/* --- what everyone starts from ---------------------------------------------------------------------------------------------- */

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[8192]; /* the log */
static int warnings;

static void note_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    pthread_mutex_lock(&said_lock);
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", line);
    warnings += level == WEFT_LOG_WARN;
    pthread_mutex_unlock(&said_lock);
}

static bool was_said(const char *words)
{
    pthread_mutex_lock(&said_lock);
    bool was = strstr(said, words) != NULL;
    pthread_mutex_unlock(&said_lock);
    return was;
}

static redis_server_t server;

static void begin(const char *password, const char *events)
{
    weft_runtime_t *rt;
    weft_registry_t *r;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    if (!redis_server_here())
        SKIP("there is no Redis server; install redis-tools");
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    if (weft_registry_open(rt, "redis://127.0.0.1:1", NULL, &r) == WEFT_ERR_UNSUPPORTED)
        SKIP("%s", weft_last_error());
    CHECK_OK(weft_runtime_close(rt));
    weft_log_set_sink(note_line, NULL);
    redis_server_start(&server, password, events);
}

static void end(void)
{
    redis_server_end(&server);
}

/* --- entrants --------------------------------------------------------------------------------------------------------------- */

/* Does what it is told: e enters, c changes, l leaves, and says what it came to. */
static void obeys(place_t *p, int out)
{
    for (char c; (c = place_heard(out));) {
        weft_status_t st = c == 'e'   ? place_enter(p, "s", "x", 1)
                           : c == 'c' ? place_enter(p, "s", "x", 2)
                                      : place_leave(p, "s", "x");
        place_say(out, st == WEFT_OK ? 'y' : st == WEFT_ERR_STATE ? 's' : 'n');
    }
}

static char told(int to, char what)
{
    place_say(to, what);
    return place_heard(to);
}

static void two_processes(const char *uri)
{
    static seen_t s;
    place_t a;
    weft_watch_t *w;
    int one, two;
    memset(&s, 0, sizeof s);
    pid_t first = place_born(uri, LEASE, obeys, &one), second = place_born(uri, LEASE, obeys, &two);
    place_open_lease(&a, uri, WEFT_PROGRESS_CALLER, LEASE);
    CHECK_OK(weft_registry_watch(a.registry, "s", seen_change, &s, &w));
    CHECK_EQ(told(one, 'e'), 'y');
    CHECK_EQ(place_count(&a, "s"), 1);
    PLACE_UNTIL(&a, s.came == 1, 20);
    CHECK_EQ(told(two, 'e'), 's'); /* two of the same name */
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_STATE);
    CHECK_EQ(told(two, 'l'), 'n');
    CHECK_EQ(told(one, 'c'), 'y');
    PLACE_UNTIL(&a, s.load == 2 && s.changed, 20);
    CHECK_EQ(told(one, 'l'), 'y');
    CHECK_EQ(place_count(&a, "s"), 0);
    PLACE_UNTIL(&a, s.went == 1, 20);
    CHECK_EQ(told(two, 'e'), 'y'); /* the name is free at once */
    PLACE_UNTIL(&a, s.came == 2, 20);
    /* one that is killed vanishes, and not before: what lives stays for longer than a lease */
    CHECK_OK(place_enter(&a, "s", "lives", 0));
    place_end_of(second, two);
    PLACE_UNTIL(&a, s.went == 2, 30);
    CHECK_EQ(s.there, 1);
    CHECK_EQ(place_count(&a, "s"), 1);
    CHECK_EQ(told(one, 'e'), 'y');
    CHECK_EQ(told(one, 'l'), 'y');
    place_end_of(first, one);
    place_close(&a);
}

TEST(processes_find_each_other_and_one_that_is_killed_vanishes)
{
    begin(NULL, NULL);
    two_processes(server.local);
    two_processes(server.tcp);
    end();
}

TEST(the_same_where_the_server_tells_of_keys_that_expire)
{
    static seen_t s;
    char uri[160];
    place_t a;
    weft_watch_t *w;
    begin("sesame", "Kgx");
    two_processes(server.tcp);
    /* and it is asked to */
    snprintf(uri, sizeof uri, "%s/3", server.tcp);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(a.registry, "s", seen_change, &s, &w));
    PLACE_UNTIL(&a, !strcmp(redis_server_say(&server, "PUBSUB NUMPAT"), ":1"), 20);
    CHECK_STR(redis_server_say(&server, "PUBLISH weft:3:changed x"), ":1");
    CHECK_STR(redis_server_say(&server, "PUBLISH weft:0:changed x"), ":0");
    /* databases do not see each other */
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_STR(redis_server_say(&server, "STRLEN weft:s@x"), ":0");
    place_close(&a);
    end();
}

TEST(nothing_stays_in_the_server_for_ever)
{
    place_t a;
    begin(NULL, NULL);
    place_open_lease(&a, server.local, WEFT_PROGRESS_CALLER, LEASE);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(place_enter(&a, "s", "y", 0));
    CHECK_OK(place_leave(&a, "s", "x"));
    static const char *const keys[] = {"weft:s@x", "weft:s@y", "weft:index"};
    for (int i = 0; i < 3; i++) {
        char ask[64];
        snprintf(ask, sizeof ask, "PTTL %s", keys[i]);
        const char *answer = redis_server_say(&server, ask);
        CHECK(answer[0] == ':' && atol(answer + 1) > 0);
    }
    CHECK_STR(redis_server_say(&server, "DBSIZE"), ":3");
    place_close(&a);
    end();
}

/* --- the server goes and comes ---------------------------------------------------------------------------------------------- */

typedef struct town {
    place_t a, b; /* a has entries, b watches */
    weft_watch_t *w;
    seen_t s;
} town_t;

static void settle(town_t *t, const char *uri, uint64_t lease)
{
    memset(t, 0, sizeof *t);
    place_open_lease(&t->a, uri, WEFT_PROGRESS_THREAD, lease);
    place_open_lease(&t->b, uri, WEFT_PROGRESS_CALLER, lease);
    CHECK_OK(weft_registry_watch(t->b.registry, NULL, seen_change, &t->s, &t->w));
    CHECK_OK(place_enter(&t->a, "s", "x", 0));
    CHECK_OK(place_enter(&t->a, "s", "y", 0));
    PLACE_UNTIL(&t->b, t->s.there == 2, 20);
}

/* All is as it was, and nobody was told otherwise. */
static void nothing_happened(town_t *t)
{
    PLACE_UNTIL(&t->b, place_count(&t->b, "s") == 2, 30);
    PLACE_UNTIL(&t->b, weft_registry_state(t->a.registry) == WEFT_OK && weft_registry_state(t->b.registry) == WEFT_OK, 30);
    CHECK_EQ(t->s.there, 2);
    CHECK_EQ(t->s.went, 0);
    /* it still hears of everything */
    unsigned came = t->s.came;
    CHECK_OK(place_enter(&t->a, "s", "z", 0));
    PLACE_UNTIL(&t->b, t->s.came == came + 1, 20);
    CHECK_OK(place_leave(&t->a, "s", "z"));
    PLACE_UNTIL(&t->b, t->s.went == 1, 20);
    t->s.went = 0;
}

static void drive(place_t *p, double seconds)
{
    double until = test_now() + seconds;
    while (test_now() < until) {
        weft_runtime_progress(p->rt);
        usleep(1000);
    }
}

TEST(a_server_that_is_killed_and_comes_back_empty_has_everything_again)
{
    static town_t t;
    begin(NULL, NULL);
    settle(&t, server.tcp, 0);
    for (int round = 0; round < 3; round++) {
        redis_server_kill(&server);
        PLACE_UNTIL(&t.b, weft_registry_state(t.b.registry) == WEFT_ERR_UNREACHABLE, 20);
        CHECK_EQ(place_count(&t.b, NULL), WEFT_ERR_UNREACHABLE);
        CHECK_EQ(place_enter(&t.a, "s", "y", 0), WEFT_ERR_UNREACHABLE); /* it is made as soon as it can be */
        CHECK_EQ(t.s.there, 2);
        if (round == 2)
            drive(&t.b, 4); /* for longer than anything is believed that is not there */
        redis_server_again(&server);
        nothing_happened(&t);
    }
    place_close(&t.a);
    PLACE_UNTIL(&t.b, t.s.there == 0, 20);
    place_close(&t.b);
    CHECK(warnings < 30); /* each trouble once */
    end();
}

TEST(a_server_that_is_emptied_or_cuts_us_off_has_everything_again)
{
    static town_t t;
    begin(NULL, NULL);
    settle(&t, server.local, 0);
    for (int round = 0; round < 3; round++) {
        CHECK_STR(redis_server_say(&server, "FLUSHALL"), "+OK");
        nothing_happened(&t);
        CHECK(redis_server_say(&server, "CLIENT KILL TYPE normal SKIPME yes")[0] == ':');
        CHECK(redis_server_say(&server, "CLIENT KILL TYPE pubsub")[0] == ':');
        nothing_happened(&t);
        CHECK_STR(redis_server_say(&server, "DEL weft:index"), ":1");
        nothing_happened(&t);
    }
    place_close(&t.a);
    place_close(&t.b);
    end();
}

TEST(a_server_that_is_stopped_holds_nobody_up)
{
    static town_t t;
    place_t c;
    begin(NULL, NULL);
    settle(&t, server.tcp, LEASE);
    place_open(&c, server.tcp, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&c, "s", "c", 0));
    PLACE_UNTIL(&t.b, t.s.there == 3, 20);
    kill(server.pid, SIGSTOP);
    CHECK_EQ(place_count(&t.b, NULL), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(place_enter(&c, "s", "d", 0), WEFT_ERR_UNREACHABLE);
    double before = test_now();
    place_close(&c); /* with an entry and one that could not be made */
    CHECK(test_now() - before < 20);
    place_open(&c, server.tcp, WEFT_PROGRESS_CALLER); /* also if it was never there */
    CHECK_EQ(place_count(&c, NULL), WEFT_ERR_UNREACHABLE);
    weft_registry_t *forgotten;
    CHECK_OK(weft_registry_open(c.rt, server.local, NULL, &forgotten)); /* is closed with the runtime */
    place_close(&c);
    drive(&t.b, 2); /* leases run out */
    CHECK_EQ(t.s.there, 3);
    kill(server.pid, SIGCONT);
    PLACE_UNTIL(&t.b, t.s.there == 2, 60); /* c went, by its lease; a and b never did */
    CHECK(t.s.went >= 1);
    t.s.went = 0;
    nothing_happened(&t);
    place_close(&t.a);
    place_close(&t.b);
    end();
}

TEST(a_server_that_is_not_there_yet_is_waited_for)
{
    place_t a, b;
    begin(NULL, NULL);
    redis_server_kill(&server);
    place_open(&a, server.tcp, WEFT_PROGRESS_THREAD);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_UNREACHABLE);
    CHECK(was_said("cannot connect"));
    redis_server_again(&server);
    char uri[64];
    snprintf(uri, sizeof uri, "redis://localhost:%d", server.port); /* by its name */
    place_open(&b, uri, WEFT_PROGRESS_CALLER);
    PLACE_UNTIL(&b, place_count(&b, "s") == 1, 30);
    place_close(&a);
    CHECK_EQ(place_count(&b, "s"), 0);
    place_close(&b);
    end();
}

/* --- refusals --------------------------------------------------------------------------------------------------------------- */

TEST(a_wrong_password_is_said_and_not_told)
{
    char uri[128];
    place_t a;
    begin("sesame", NULL);
    static const char *const wrong[] = {"", ":wr%6Fng@", "nobody:wrong@"};
    for (int i = 0; i < 3; i++) {
        pthread_mutex_lock(&said_lock);
        *said = 0;
        pthread_mutex_unlock(&said_lock);
        snprintf(uri, sizeof uri, "redis://%s127.0.0.1:%d", wrong[i], server.port);
        place_open(&a, uri, WEFT_PROGRESS_CALLER);
        CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
        CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_UNREACHABLE);
        CHECK(was_said("password"));
        CHECK(!was_said("wrong") && !was_said("wr%6Fng"));
        place_close(&a);
    }
    snprintf(uri, sizeof uri, "redis://default:s%%65same@127.0.0.1:%d/2", server.port);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_EQ(place_count(&a, "s"), 1);
    place_close(&a);
    snprintf(uri, sizeof uri, "redis://:sesame@127.0.0.1:%d/999", server.port);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK(was_said("DB index") && !was_said("sesame"));
    place_close(&a);
    end();
}

TEST(a_server_that_is_full_says_so_and_takes_the_entry_when_it_is_not)
{
    place_t a;
    begin(NULL, NULL);
    place_open(&a, server.local, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_STR(redis_server_say(&server, "CONFIG SET maxmemory 1"), "+OK");
    CHECK_EQ(place_enter(&a, "s", "y", 0), WEFT_ERR_LIMIT);
    CHECK_EQ(place_count(&a, "s"), 1);
    CHECK(was_said("OOM"));
    CHECK_STR(redis_server_say(&server, "CONFIG SET maxmemory 0"), "+OK");
    PLACE_UNTIL(&a, place_count(&a, "s") == 2, 20);
    PLACE_UNTIL(&a, weft_registry_state(a.registry) == WEFT_OK, 20);
    place_close(&a);
    end();
}

TEST(strange_things_in_the_server_are_not_believed)
{
    static seen_t s;
    place_t a;
    weft_watch_t *w;
    begin(NULL, NULL);
    static const char *const strange[] = {
        "SET weft:s@text hello",
        "SET weft:s@long aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "HSET weft:s@hash f v",
        "RPUSH weft:s@list 1 2 3",
        "SETRANGE weft:s@big 2000000 x",
        "ZADD weft:index 9e15 s@text 9e15 s@long 9e15 s@hash 9e15 s@list 9e15 s@big 9e15 s@missing 9e15 s@other",
        "ZADD weft:index 9e15 \"\" 9e15 \"\\x00\\xff\" 9e15 @ 9e15 noat 9e15 s@x@y 9e15 ../s@x",
        "SET weft: x",
        "SET weft:@ aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "EVAL \"redis.call('ZADD', 'weft:index', 9e15, string.rep('n', 100000))\" 0",
    };
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        CHECK(redis_server_say(&server, strange[i])[0] != '-');
    place_open(&a, server.local, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK_OK(place_enter(&a, "s", "good", 0));
    /* an entry under the name of another is none */
    CHECK(redis_server_say(&server, "COPY weft:s@good weft:s@other")[0] != '-');
    PLACE_UNTIL(&a, s.there == 1, 20);
    CHECK_EQ(place_count(&a, NULL), 1);
    /* what has our name and is not ours is not ours to replace */
    CHECK_EQ(place_enter(&a, "s", "text", 0), WEFT_ERR_STATE);
    CHECK_EQ(place_enter(&a, "s", "hash", 0), WEFT_ERR_STATE);
    CHECK(was_said("weft:s@hash"));
    CHECK_STR(redis_server_say(&server, "GET weft:s@text"), "$5");
    CHECK_EQ(weft_registry_state(a.registry), WEFT_OK);
    /* an index that is none: nothing can be found, until someone removes it */
    CHECK_STR(redis_server_say(&server, "SET weft:index x"), "+OK");
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK(was_said("WRONGTYPE"));
    CHECK_STR(redis_server_say(&server, "DEL weft:index"), ":1");
    PLACE_UNTIL(&a, place_count(&a, NULL) == 1, 20);
    CHECK_EQ(s.there, 1);
    CHECK_EQ(s.came, 1);
    place_close(&a);
    end();
}

/* --- no memory -------------------------------------------------------------------------------------------------------------- */

static void allowed(long st)
{
    if (st < 0 && st != WEFT_ERR_NOMEM && st != WEFT_ERR_UNREACHABLE && st != WEFT_ERR_NOTFOUND)
        FAIL("%s where memory ran out", weft_status_name((weft_status_t)st));
}

TEST(memory_runs_out_at_every_allocation)
{
    static seen_t s;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    place_t p = {0};
    begin(NULL, NULL);
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &p.rt));
    bool ahead = false;
    long at = 0;
    for (; !ahead && at < 1000; at++) {
        weft_watch_t *w = NULL;
        memset(&s, 0, sizeof s);
        nomem_at(at, 1);
        weft_status_t st = weft_registry_open(p.rt, server.local, NULL, &p.registry);
        allowed(st);
        if (!st) {
            allowed(weft_registry_watch(p.registry, NULL, seen_change, &s, &w));
            allowed(place_enter(&p, "s", "x", 0));
            allowed(place_enter(&p, "s", "x", 1));
            allowed(place_count(&p, NULL));
            allowed(place_leave(&p, "s", "x"));
            ahead = nomem_still_ahead();
            nomem_off();
            allowed(place_leave(&p, "s", "x")); /* if there was no memory to leave */
            allowed(place_enter(&p, "s", "y", 1));
            PLACE_UNTIL(&p, place_count(&p, NULL) == 1, 20);
            if (w)
                PLACE_UNTIL(&p, s.there == 1, 20);
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_registry_close(p.registry, &op));
            CHECK_OK(place_wait(&op));
        }
        nomem_off();
        redis_server_say(&server, "FLUSHALL"); /* what could not be taken away */
    }
    CHECK(at > 5 && at < 1000);
    CHECK_OK(weft_runtime_close(p.rt));
    end();
}
