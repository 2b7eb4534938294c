/* Locks that live as long as their process and not as long as its children, and that do not end when somebody looks. */
#include <fcntl.h>
#include <sys/stat.h>

#include "registry/state.h"
#include "test.h"

static int dir = -1;

static void begin(void)
{
    char path[] = "/tmp/weft-hold-XXXXXX";
    CHECK(mkdtemp(path) != NULL);
    dir = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0);
    wefti_reg_fork_watch();
}

static void end(void)
{
    char path[64], link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, path, sizeof path - 1);
    CHECK(n > 0);
    path[n] = 0;
    unlinkat(dir, "f", 0);
    CHECK(!rmdir(path));
}

static int locked(void)
{
    int fd = openat(dir, "f", O_RDONLY);
    CHECK(fd >= 0);
    int is = wefti_reg_locked(fd);
    close(fd);
    return is;
}

TEST(a_lock_survives_that_its_own_process_looks_and_closes)
{
    reg_hold_t *h = NULL, *other = NULL;
    begin();
    CHECK_EQ(wefti_reg_hold(dir, "f", true, &h), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(locked(), 1);
    CHECK_EQ(wefti_reg_hold(dir, "f", true, &other), EEXIST);
    CHECK_EQ(wefti_reg_hold(dir, "f", false, &other), EAGAIN);
    CHECK_EQ(wefti_reg_hold(dir, "none", false, &other), ENOENT);
    CHECK_EQ(locked(), 1);
    wefti_reg_hold_drop(h);
    CHECK_EQ(locked(), 0);
    CHECK_EQ(wefti_reg_hold(dir, "f", false, &h), 0);
    CHECK(wefti_reg_hold_is(h, dir, "f"));
    CHECK(!unlinkat(dir, "f", 0));
    CHECK(!wefti_reg_hold_is(h, dir, "f"));
    wefti_reg_hold_drop(h);
    end();
}

TEST(a_forked_child_does_not_hold_what_its_parent_held)
{
    int ready[2], go[2];
    char c;
    begin();
    CHECK(!pipe(ready) && !pipe(go));
    pid_t parent = fork(); /* it locks, forks, and dies; the grandchild lives on */
    CHECK(parent >= 0);
    if (!parent) {
        reg_hold_t *h;
        if (wefti_reg_hold(dir, "f", true, &h))
            _exit(1);
        pid_t child = fork();
        if (!child) {
            close(go[1]);
            _exit(write(ready[1], "x", 1) == 1 && read(go[0], &c, 1) == 0 ? 0 : 1); /* until the test ends */
        }
        pause();
        _exit(0);
    }
    CHECK_EQ(read(ready[0], &c, 1), 1);
    CHECK_EQ(locked(), 1);
    CHECK(!kill(parent, SIGKILL));
    CHECK_EQ(waitpid(parent, NULL, 0), parent);
    CHECK_EQ(locked(), 0);
    close(go[1]);
    end();
}

TEST(links_and_pipes_are_not_held)
{
    reg_hold_t *h = NULL;
    begin();
    CHECK(!symlinkat("/etc/passwd", dir, "f"));
    CHECK_EQ(wefti_reg_hold(dir, "f", false, &h), ELOOP);
    CHECK(!unlinkat(dir, "f", 0));
    CHECK(!mkfifoat(dir, "f", 0600));
    CHECK_EQ(wefti_reg_hold(dir, "f", false, &h), EINVAL);
    end();
}
