/* etcd is killed, started again with and without its data, stopped, compacted; those who entered are killed; memory runs out.
 * ctest: timeout=400 long */
#define TEST_SECONDS 120
#include <pthread.h>
#include <sys/prctl.h>

#include "etcds.h"
#include "nomem.h"
#include "places.h"
#include "test.h"

#define LEASE (2 * WEFT_SECOND)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the log is of all threads */
static char said[512];
static unsigned lines;

static void note_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level > WEFT_LOG_WARN)
        return;
    pthread_mutex_lock(&lock);
    snprintf(said, sizeof said, "%s", line);
    lines++;
    pthread_mutex_unlock(&lock);
}

static unsigned lines_and(const char *words)
{
    pthread_mutex_lock(&lock);
    CHECK(strstr(said, words) != NULL);
    unsigned n = lines;
    pthread_mutex_unlock(&lock);
    return n;
}

/* A process that enters s@x, says so, and lives until it is killed. */
static pid_t entrant(const char *uri, const char *instance)
{
    int fds[2];
    char c = 'n';
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        place_t p;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        place_open_lease(&p, uri, WEFT_PROGRESS_CALLER, LEASE);
        c = place_enter(&p, "s", instance, 0) ? 'n' : 'y';
        CHECK_EQ(write(fds[1], &c, 1), 1);
        for (;;)
            pause();
    }
    close(fds[1]);
    CHECK_EQ(read(fds[0], &c, 1), 1);
    CHECK_EQ(c, 'y');
    close(fds[0]);
    return pid;
}

static void end_of(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(the_entry_of_a_killed_process_goes_with_its_lease)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    pid_t pid = entrant(etcd.uri, "x"); /* first: the thread sanitizer has no fork after threads */
    place_open_lease(&a, etcd.uri, WEFT_PROGRESS_CALLER, LEASE);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    PLACE_UNTIL(&a, s.there == 1, 20);
    double until = test_now() + 5; /* it outlives several leases for as long as its process lives */
    PLACE_UNTIL(&a, test_now() > until || s.went, 20);
    CHECK_EQ(s.went, 0);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_STATE);
    end_of(pid);
    PLACE_UNTIL(&a, s.there == 0, 20);
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    place_close(&a);
    etcd_end(&etcd);
}

TEST(a_stopped_entrant_goes_and_comes_back_when_it_goes_on)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    pid_t pid = entrant(etcd.uri, "x"); /* first: the thread sanitizer has no fork after threads */
    place_open_lease(&a, etcd.uri, WEFT_PROGRESS_CALLER, LEASE);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    PLACE_UNTIL(&a, s.there == 1, 20);
    kill(pid, SIGSTOP);
    PLACE_UNTIL(&a, s.there == 0, 20);
    CHECK_OK(place_enter(&a, "s", "x", 1)); /* which another may use */
    kill(pid, SIGCONT);
    double until = test_now() + 3;
    PLACE_UNTIL(&a, test_now() > until, 20);
    CHECK_EQ(s.there, 1);
    CHECK_EQ(s.load, 1);
    CHECK_OK(place_leave(&a, "s", "x"));
    PLACE_UNTIL(&a, s.there == 1 && s.load == 0, 20); /* it has not given up */
    end_of(pid);
    PLACE_UNTIL(&a, s.there == 0, 20);
    place_close(&a);
    etcd_end(&etcd);
}

/* With data the lease is still there when etcd is, without it everything is made anew. */
static void restarted(bool with_data)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b;
    weft_watch_t *w;
    etcd_new(&etcd);
    weft_log_set_sink(note_line, NULL);
    place_open(&a, etcd.uri, WEFT_PROGRESS_THREAD);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 1));
    CHECK_OK(place_enter(&a, "s", "y", 1));
    PLACE_UNTIL(&b, s.there == 2, 20);
    for (unsigned round = 1; round <= 2; round++) {
        unsigned went = s.went;
        etcd_kill(&etcd);
        PLACE_UNTIL(&b, weft_registry_state(b.registry) == WEFT_ERR_UNREACHABLE, 20);
        CHECK_EQ(place_count(&b, NULL), WEFT_ERR_UNREACHABLE);
        CHECK_EQ(place_enter(&a, "s", "z", round), WEFT_ERR_UNREACHABLE); /* made when etcd is back */
        CHECK_EQ(place_enter(&a, "s", "y", 10 * round), WEFT_ERR_UNREACHABLE);
        double until = test_now() + 1.5;
        PLACE_UNTIL(&b, test_now() > until, 20);
        CHECK_EQ(s.went, went);                               /* what was known stays known */
        CHECK(lines_and("cannot ask http://127.0.0.1") < 20); /* the log is told, and not again and again */
        if (!with_data)
            etcd_forget(&etcd);
        etcd_start(&etcd);
        double back = test_now();
        PLACE_UNTIL(&b, place_count(&b, NULL) == 3, 20);
        bool soon = test_now() - back < 3;
        PLACE_UNTIL(&b, s.there == 3 && weft_registry_state(b.registry) == WEFT_OK, 20);
        PLACE_UNTIL(&b, weft_registry_state(a.registry) == WEFT_OK, 20); /* its thread may be a moment behind */
        if (with_data || soon)
            CHECK_EQ(s.went, went); /* a lease goes on from where it was; or all were entered again before anyone was told */
        /* and all goes on: changes, and what is put in place of what was */
        CHECK_OK(place_enter(&a, "s", "x", 100 + round));
        PLACE_UNTIL(&b, s.load == 100 + round, 20);
        CHECK_OK(place_leave(&a, "s", "z"));
        PLACE_UNTIL(&b, s.there == 2, 20);
    }
    place_close(&a);
    PLACE_UNTIL(&b, s.there == 0, 20);
    place_close(&b);
    etcd_end(&etcd);
}

TEST(etcd_killed_and_started_with_its_data)
{
    ETCD_OR_SKIP();
    restarted(true);
}

TEST(etcd_killed_and_started_without_its_data)
{
    ETCD_OR_SKIP();
    restarted(false);
}

TEST(a_leave_while_etcd_is_away_is_made_good)
{
    etcd_server_t etcd;
    place_t a, b;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(place_enter(&a, "s", "y", 0));
    CHECK_OK(place_enter(&a, "s", "z", 0));
    etcd_kill(&etcd);
    CHECK_OK(place_leave(&a, "s", "x"));
    CHECK_OK(place_leave(&a, "s", "y"));
    CHECK_EQ(place_enter(&a, "s", "y", 0), WEFT_ERR_UNREACHABLE); /* wanted again */
    etcd_start(&etcd);
    PLACE_UNTIL(&b, place_count(&b, NULL) == 2, 20);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(place_count(&b, NULL), 2);
        usleep(100000);
    }
    place_close(&a);
    CHECK_EQ(place_count(&b, NULL), 0);
    place_close(&b);
    etcd_end(&etcd);
}

TEST(an_etcd_that_is_not_there_yet_is_waited_for)
{
    etcd_server_t etcd;
    place_t a;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    etcd_kill(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_UNREACHABLE);
    etcd_start(&etcd);
    PLACE_UNTIL(&a, weft_registry_state(a.registry) == WEFT_OK, 20);
    CHECK_EQ(place_count(&a, NULL), 1);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(of_several_hosts_those_that_are_dead_are_passed_over)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    char uri[128];
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    snprintf(uri, sizeof uri, "etcd://127.0.0.1:1,127.0.0.1:%d,[::1]:1,no-such-host.invalid", etcd.port);
    for (int i = 0; i < 4; i++) { /* whichever it begins with */
        place_open(&a, uri, WEFT_PROGRESS_CALLER);
        memset(&s, 0, sizeof s);
        CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
        PLACE_UNTIL(&a, place_enter(&a, "s", "x", 0) == WEFT_OK, 20);
        PLACE_UNTIL(&a, s.there == 1, 20);
        place_close(&a);
    }
    etcd_end(&etcd);
}

TEST(a_stopped_etcd_holds_nobody_up)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b, c;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open_lease(&a, etcd.uri, WEFT_PROGRESS_CALLER, 30 * WEFT_SECOND);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    place_open(&c, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    PLACE_UNTIL(&b, s.there == 1, 20);
    CHECK_OK(place_enter(&c, "s", "c", 0));
    PLACE_UNTIL(&b, s.there == 2, 20);
    kill(etcd.pid, SIGSTOP);
    /* nothing had been asked of it: closing asks, and has its end all the same. The bound is place_close()'s, of 20 s */
    place_close(&c);
    CHECK_EQ(place_count(&b, NULL), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(place_enter(&b, "t", "y", 0), WEFT_ERR_UNREACHABLE);
    PLACE_UNTIL(&b, weft_registry_state(b.registry) == WEFT_ERR_UNREACHABLE, 20);
    CHECK_EQ(s.went, 0);
    kill(etcd.pid, SIGCONT);
    PLACE_UNTIL(&b, place_count(&b, "t") == 1 && weft_registry_state(b.registry) == WEFT_OK, 30);
    PLACE_UNTIL(&b, s.came == 3 && s.there == 2, 30); /* t@y has come, c has gone with its lease at the latest */
    CHECK_OK(place_enter(&a, "s", "x", 9));
    PLACE_UNTIL(&b, s.changed == 1, 30);
    kill(etcd.pid, SIGSTOP);
    place_close(&b);
    place_close(&a);
    etcd_end(&etcd);
}

TEST(compaction_under_a_watch_loses_nothing)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a, b;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open(&a, etcd.uri, WEFT_PROGRESS_THREAD);
    place_open(&b, etcd.uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 1));
    PLACE_UNTIL(&b, s.there == 1, 20);
    for (uint32_t round = 2; round < 6; round++) {
        etcd_compact(&etcd);
        CHECK_OK(place_enter(&a, "s", "x", round));
        PLACE_UNTIL(&b, s.load == round, 20);
    }
    /* and while the watch is away: what it would go on from is gone when it comes back */
    etcd_kill(&etcd);
    PLACE_UNTIL(&b, weft_registry_state(b.registry) == WEFT_ERR_UNREACHABLE, 20);
    etcd_start(&etcd);
    for (int i = 0; i < 20; i++)
        etcd_put(&etcd, "/other", "x", 1);
    etcd_compact(&etcd);
    CHECK_EQ(s.went, 0);
    PLACE_UNTIL(&a, place_enter(&a, "s", "y", 77) == WEFT_OK, 20);
    PLACE_UNTIL(&b, s.there == 2 && s.load == 77, 20);
    place_close(&a);
    PLACE_UNTIL(&b, s.there == 0, 20);
    place_close(&b);
    etcd_end(&etcd);
}

TEST(an_entry_that_someone_deletes_comes_back)
{
    static seen_t s;
    etcd_server_t etcd;
    place_t a;
    weft_watch_t *w;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    place_open_lease(&a, etcd.uri, WEFT_PROGRESS_CALLER, LEASE);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_OK(place_enter(&a, "s", "y", 0));
    PLACE_UNTIL(&a, s.there == 2, 20);
    etcd_delete(&etcd, "/weft/s/x");
    PLACE_UNTIL(&a, s.went == 1 && s.there == 2, 20);
    CHECK_OK(place_leave(&a, "s", "x"));
    CHECK_EQ(place_count(&a, NULL), 1);
    place_close(&a);
    etcd_end(&etcd);
}

static void allowed(long st)
{
    if (st < 0 && st != WEFT_ERR_NOMEM && st != WEFT_ERR_NOTFOUND)
        FAIL("%s", weft_status_name((weft_status_t)st));
}

TEST(memory_runs_out_at_every_allocation)
{
    static seen_t s;
    etcd_server_t etcd;
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    long at = 0;
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    for (bool ahead = false; !ahead && at < 1000; at++) {
        place_t p = {.rt = rt};
        weft_watch_t *w = NULL;
        memset(&s, 0, sizeof s);
        nomem_at(at, 1);
        weft_status_t st = weft_registry_open(rt, etcd.uri, NULL, &p.registry);
        allowed(st);
        if (!st) {
            allowed(weft_registry_watch(p.registry, NULL, seen_change, &s, &w));
            allowed(place_enter(&p, "s", "x", 0));
            allowed(place_enter(&p, "s", "x", 1));
            allowed(place_count(&p, NULL));
            allowed(place_leave(&p, "s", "x"));
            ahead = nomem_still_ahead();
            nomem_off();
            allowed(place_leave(&p, "s", "x"));
            CHECK_OK(place_enter(&p, "s", "y", 1));
            CHECK_EQ(place_count(&p, NULL), 1);
            if (w)
                PLACE_UNTIL(&p, s.there == 1, 20);
            weft_op_t op = WEFT_OP_INIT;
            CHECK_OK(weft_registry_close(p.registry, &op));
            CHECK_OK(place_wait(&op));
        }
        nomem_off();
    }
    CHECK(at > 10 && at < 1000);
    CHECK_OK(weft_runtime_close(rt));
    etcd_end(&etcd);
}
