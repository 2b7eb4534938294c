/* Every public function, called in a forked child on what its parent opened: it says WEFT_ERR_FORKED, or nothing, and the
 * parent goes on as if nothing had happened. ctest: long computes no-tsan (a child of several threads has locks of the
 * sanitizer that nobody gives back) */
#define TEST_SECONDS 800
#include "cell.h"
#include "test.h"

static void in_child(const row_t *row, const way_t *way)
{
    static world_t w;
    int status;
    world_open(&w, way->mode, way->transports, row->needs);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        w.side[0].drive = w.side[1].drive = false;
        cell_turn(IN_CHILD, row, &w.side[0]);
        fflush(NULL);
        _exit(0);
    }
    while (pid > 0 && !waitpid(pid, &status, WNOHANG))
        world_drive(&w);
    if (pid < 0 || !WIFEXITED(status)) {
        fprintf(stderr, "the child was killed by signal %d\n", pid < 0 ? 0 : WTERMSIG(status));
        fflush(NULL);
        _exit(2);
    }
    if (WEXITSTATUS(status))
        _exit(WEXITSTATUS(status));
    world_check(&w);
    world_close_runtime(&w.side[0]);
    world_close_runtime(&w.side[1]);
}

TEST(of_a_parent_that_drives_its_runtimes)
{
    cells_run("a forked child", &(way_t){WEFT_PROGRESS_CALLER, "shm"}, 0, in_child);
}

TEST(of_a_parent_whose_runtimes_drive_themselves)
{
    cells_run("a forked child", &(way_t){WEFT_PROGRESS_THREAD, "tcp"}, 0, in_child);
}
