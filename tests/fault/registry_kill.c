/* Processes with entries in a directory are killed, at any point, and stopped: dead entries vanish, their names can be taken,
 * live ones stay.
 * ctest: timeout=300 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#include "base/rng.h"
#include "places.h"
#include "test.h"

static void enters(place_t *p, int out)
{
    place_say(out, place_enter(p, "s", "x", 0) ? 'n' : 'y');
    for (;;)
        pause();
}

TEST(the_entry_of_a_killed_process_goes_and_its_name_is_free)
{
    static seen_t s;
    char uri[128];
    place_t a;
    weft_watch_t *w;
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    for (unsigned round = 1; round <= 5; round++) {
        int from;
        pid_t pid = place_born(uri, 0, enters, &from);
        CHECK_EQ(place_heard(from), 'y');
        PLACE_UNTIL(&a, s.came == round, 20);
        CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_STATE);
        place_end_of(pid, from);
        PLACE_UNTIL(&a, s.went == round, 20);
        CHECK_EQ(place_count(&a, NULL), 0);
    }
    /* and one that starts again at once takes over from itself */
    for (int round = 0; round < 5; round++) {
        int from;
        pid_t pid = place_born(uri, 0, enters, &from);
        CHECK_EQ(place_heard(from), 'y');
        place_end_of(pid, from);
    }
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_EQ(place_count(&a, NULL), 1);
    place_close(&a);
    place_remove(uri);
}

TEST(the_entry_of_a_stopped_process_stays)
{
    char uri[128];
    place_t a;
    int from;
    place_new(uri);
    pid_t pid = place_born(uri, 0, enters, &from);
    CHECK_EQ(place_heard(from), 'y');
    kill(pid, SIGSTOP);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(place_count(&a, "s"), 1);
        CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_STATE);
    }
    place_end_of(pid, from);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    place_close(&a);
    place_remove(uri);
}

static void nothing_is_left(place_t *p)
{
    CHECK_EQ(place_count(p, NULL), 0);
    DIR *d = opendir(p->uri + 6); /* what the dead left was swept when we looked */
    CHECK(d);
    for (struct dirent *de; (de = readdir(d));)
        if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
            FAIL("%s was left", de->d_name);
    closedir(d);
}

/* Enters, changes and leaves as fast as it can, beside others that do the same under the same names. */
static void busy(place_t *p, int out)
{
    wefti_rng_t rng = {(uint64_t)getpid()};
    place_say(out, 'y');
    for (;;) {
        char name[8];
        snprintf(name, sizeof name, "n%d", (int)wefti_rng_below(&rng, 3));
        weft_status_t st = place_enter(p, "s", name, (uint32_t)wefti_rng_below(&rng, 1000));
        if (st && st != WEFT_ERR_STATE)
            _exit(1);
        if (wefti_rng_below(&rng, 3) == 0)
            st = place_leave(p, "s", name);
        if (wefti_rng_below(&rng, 3) == 0 && place_count(p, NULL) < 0)
            _exit(1);
    }
}

TEST(a_process_killed_at_any_point_leaves_nothing_that_is_believed)
{
    enum { ROUNDS = 40, AT_ONCE = 3 };
    char uri[128];
    place_t a;
    wefti_rng_t rng = {9};
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[AT_ONCE];
        int from[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++)
            pids[i] = place_born(uri, 0, busy, &from[i]);
        for (int i = 0; i < AT_ONCE; i++)
            CHECK_EQ(place_heard(from[i]), 'y');
        usleep((useconds_t)wefti_rng_below(&rng, 8000));
        for (int i = 0; i < AT_ONCE; i++) {
            CHECK_EQ(waitpid(pids[i], NULL, WNOHANG), 0); /* none has found anything wrong */
            place_end_of(pids[i], from[i]);
        }
        nothing_is_left(&a);
    }
    place_close(&a);
    place_remove(uri);
}

/* The calls that change a directory or a lock go through here, in this program: the process can be made to die before any of
 * them. */
static _Atomic int calls_left = -1; /* negative: for ever */

static void count_down(void)
{
    if (atomic_load(&calls_left) >= 0 && atomic_fetch_sub(&calls_left, 1) == 0)
        kill(getpid(), SIGKILL);
}

/* clang-format off */
#define REAL(name) (count_down(), (__typeof__(&name))dlsym(RTLD_NEXT, #name))
int renameat(int from, const char *old, int to, const char *new) { return REAL(renameat)(from, old, to, new); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    return REAL(renameat2)(from, old, to, new, flags);
}
int linkat(int from, const char *old, int to, const char *new, int flags) { return REAL(linkat)(from, old, to, new, flags); }
int unlinkat(int dir, const char *name, int flags) { return REAL(unlinkat)(dir, name, flags); }
/* clang-format on */

int openat(int dir, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    return REAL(openat)(dir, name, flags, mode);
}

int fcntl(int fd, int cmd, ...)
{
    va_list args;
    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (cmd == F_OFD_SETLK)
        count_down();
    return ((__typeof__(&fcntl))dlsym(RTLD_NEXT, "fcntl"))(fd, cmd, arg);
}

static int calls_to_live;

/* All that can be done to a directory, and 'd' at the end. */
static void lives_fully(place_t *p, int out)
{
    CHECK_EQ(place_count(p, NULL), 0);
    atomic_store(&calls_left, calls_to_live);
    if (place_enter(p, "s", "x", 0) || place_enter(p, "s", "y", 0) || place_enter(p, "s", "x", 7) || place_leave(p, "s", "x") ||
        place_enter(p, "s", "x", 0) || place_count(p, NULL) != 2)
        _exit(1);
    atomic_store(&calls_left, -1);
    place_say(out, 'd');
    for (;;)
        pause();
}

TEST(a_process_killed_before_any_of_its_calls_leaves_nothing_that_is_believed)
{
    char uri[128], c = 0;
    place_t a;
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    for (calls_to_live = 0; c != 'd'; calls_to_live++) {
        int from, status;
        CHECK(calls_to_live < 500);
        pid_t pid = place_born(uri, 0, lives_fully, &from);
        if (read(from, &c, 1) == 1) {
            place_end_of(pid, from);
        } else {
            CHECK_EQ(waitpid(pid, &status, 0), pid);
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            close(from);
        }
        nothing_is_left(&a);
        CHECK_OK(place_enter(&a, "s", "x", 0)); /* and its name is free at once */
        CHECK_OK(place_leave(&a, "s", "x"));
    }
    CHECK(calls_to_live > 15); /* it has died in the middle of things */
    place_close(&a);
    place_remove(uri);
}

static void contends(place_t *p, int out)
{
    place_say(out, 'r');
    enters(p, out);
}

TEST(of_several_processes_one_gets_the_name)
{
    enum { ALL = 4 };
    char uri[128];
    place_new(uri);
    for (int round = 0; round < 10; round++) {
        pid_t pids[ALL];
        int from[ALL], winners = 0;
        for (int i = 0; i < ALL; i++)
            pids[i] = place_born(uri, 0, contends, &from[i]);
        for (int i = 0; i < ALL; i++)
            CHECK_EQ(place_heard(from[i]), 'r');
        for (int i = 0; i < ALL; i++)
            winners += place_heard(from[i]) == 'y';
        CHECK_EQ(winners, 1);
        for (int i = 0; i < ALL; i++)
            place_end_of(pids[i], from[i]);
    }
    place_remove(uri);
}

/* Enters, forks a child that lives on, and says so. */
static void has_a_child(place_t *p, int out)
{
    if (place_enter(p, "s", "x", 0))
        _exit(1);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, 0);
        place_say(out, 'c');
        sleep(30);
        _exit(0);
    }
    for (;;)
        pause();
}

TEST(an_entry_does_not_live_on_in_a_child_of_its_process)
{
    char uri[128];
    place_t a;
    int from;
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* so that the child is ours to end */
    pid_t pid = place_born(uri, 0, has_a_child, &from);
    CHECK_EQ(place_heard(from), 'c');
    CHECK_EQ(place_count(&a, NULL), 1);
    char list[64], child[16] = "";
    snprintf(list, sizeof list, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(list, "r");
    CHECK(f && fgets(child, sizeof child, f));
    fclose(f);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    CHECK(!kill((pid_t)atoi(child), 0));
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK(!kill((pid_t)atoi(child), SIGKILL));
    close(from);
    place_close(&a);
    place_remove(uri);
}
