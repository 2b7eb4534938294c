/* Every public function, called with NULL for each of what it takes, and for all of it: it works, or says WEFT_ERR_INVALID and
 * why. No object to call on is WEFT_ERR_INVALID always, but for what ends something: then there is nothing to do. ctest: long
 * computes */
#define TEST_SECONDS 800
#include "cell.h"
#include "null.h"
#include "test.h"

/* What takes nothing for its first: what ends something, and what the header says. */
static bool may_take_nothing(const char *name)
{
    static const char *const others[] = {"weft_runtime_open", "weft_mem_alloc", "weft_mem_settle", "weft_fail", NULL};
    static const char *const ends[] = {"_close", "_free", "_drop", "_release", "_cancel", "_end", "_leave", "_abort", NULL};
    for (size_t i = 0; others[i]; i++) {
        if (!strcmp(name, others[i]))
            return true;
    }
    for (size_t i = 0; ends[i]; i++) {
        size_t len = strlen(name), n = strlen(ends[i]);
        if (len > n && !strcmp(name + len - n, ends[i]))
            return true;
    }
    return false;
}

static void judge(const null_t *f, int null, weft_status_t st)
{
    char wrong[512] = "";
    bool all = null == NULL_ALL, first = all || (!null && f->pointers & 1);
    if (st == WEFT_ERR_INVALID && (weft_last_error_status() != st || !*weft_last_error()))
        snprintf(wrong, sizeof wrong, "parameter %d: no sentence", null);
    else if (f->says && first && st != WEFT_ERR_INVALID && !may_take_nothing(f->name))
        snprintf(wrong, sizeof wrong, "parameter %d: it returned %s: %s", null, weft_status_name(st), weft_last_error());
    cell_right(wrong);
}

/* In a process of its own: what it was called with may be gone after it. */
static void call(const row_t *row, const way_t *way, const null_t *f, int null)
{
    static world_t w;
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        world_open(&w, way->mode, way->transports, row->needs);
        judge(f, null, f->call(&w.side[0], null));
        w.side[0].drive &= !(row->needs & ENDS);
        for (int i = 0; i < 20; i++)
            world_drive(&w);
        fflush(NULL);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        fprintf(stderr, "parameter %d: killed by signal %d\n", null, pid < 0 ? 0 : WTERMSIG(status));
        fflush(NULL);
        _exit(1);
    }
    if (WEXITSTATUS(status))
        _exit(WEXITSTATUS(status));
}

static void with_null(const row_t *row, const way_t *way)
{
    for (size_t i = 0; i < nulls_n; i++) {
        if (strcmp(nulls[i].name, row->name))
            continue;
        call(row, way, &nulls[i], NULL_ALL);
        for (int p = 0; p < 32; p++) {
            if (nulls[i].pointers >> p & 1)
                call(row, way, &nulls[i], p);
        }
    }
}

TEST(of_a_runtime_that_a_caller_drives)
{
    CHECK(nulls_n > 200);
    cells_run("NULL", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, with_null);
}

TEST(of_a_runtime_that_a_thread_drives)
{
    cells_run("NULL", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, with_null);
}
