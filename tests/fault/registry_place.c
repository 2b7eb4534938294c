/* A registry whose directory is taken away, full, forbidden, a stranger's or full of strange files; and no memory at any point.
 * ctest: timeout=300 */
#include <fcntl.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "nomem.h"
#include "places.h"
#include "registry/state.h"
#include "test.h"

static char said[512];
static _Atomic unsigned lines; /* said by whatever thread */

static void note_line(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)user;
    snprintf(said, sizeof said, "%s", line);
    lines++;
}

TEST(a_directory_that_is_removed_is_made_again_with_what_is_ours)
{
    static seen_t s;
    char uri[128];
    place_t a, b;
    weft_watch_t *w;
    place_new(uri);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    place_open(&b, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(b.registry, NULL, seen_change, &s, &w));
    CHECK_OK(place_enter(&a, "s", "x", 0));
    PLACE_UNTIL(&b, s.came == 1, 20);
    place_remove(uri);
    PLACE_UNTIL(&b, place_count(&b, NULL) == 1 && s.there == 1, 20); /* whoever is first makes it; a puts its entry there again */
    /* an entry that someone deletes comes back, too */
    char file[160];
    struct stat st;
    snprintf(file, sizeof file, "%s/s@x", uri + 6);
    CHECK(!unlink(file));
    PLACE_UNTIL(&b, !stat(file, &st), 20);
    CHECK_OK(place_leave(&a, "s", "x"));
    CHECK_EQ(place_count(&b, NULL), 0);
    place_close(&a);
    place_close(&b);
    place_remove(uri);
}

TEST(a_directory_that_is_not_there_yet_is_waited_for)
{
    char parent[128], uri[160];
    place_t a;
    weft_log_set_sink(note_line, NULL);
    place_new(parent);
    place_remove(parent);
    snprintf(uri, sizeof uri, "%s/weft", parent);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(said, "cannot make it") != NULL);
    CHECK(!mkdir(parent + 6, 0700));
    PLACE_UNTIL(&a, weft_registry_state(a.registry) == WEFT_OK, 20);
    CHECK_EQ(place_count(&a, NULL), 1);
    place_close(&a);
    place_remove(parent);
}

TEST(directories_of_others_open_ones_links_and_files_are_not_used)
{
    char uri[128], other[160], path[160];
    place_t a;
    weft_log_set_sink(note_line, NULL);
    place_new(uri);
    CHECK(!chmod(uri + 6, 0777));
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(said, "others may write") != NULL);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK(!chmod(uri + 6, 0700));
    PLACE_UNTIL(&a, place_count(&a, NULL) == 1, 20);
    place_close(&a);

    snprintf(path, sizeof path, "%s/link", uri + 6);
    CHECK(!symlink(uri + 6, path));
    for (int i = 0; i < 3; i++) { /* the link, with a slash, and a file */
        snprintf(other, sizeof other, "%s/%s", uri, i == 0 ? "link" : i == 1 ? "link/" : "file");
        if (i == 2) {
            snprintf(path, sizeof path, "%s/file", uri + 6);
            close(open(path, O_CREAT | O_WRONLY, 0600));
        }
        place_open(&a, other, WEFT_PROGRESS_CALLER);
        CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
        place_close(&a);
    }
    place_remove(uri);
}

TEST(a_directory_of_another_user_is_not_used)
{
    char uri[128];
    place_t a;
    if (geteuid())
        SKIP("only root can be another user");
    weft_log_set_sink(note_line, NULL);
    place_new(uri);
    CHECK(!chown(uri + 6, 65534, 65534));
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(said, "belongs to another user (uid 65534)") != NULL);
    place_close(&a);
    place_remove(uri);
}

/* Nobody's: a user who has no directory in /run. */
enum { US = 4242, THEM = 4243 };

static void what_is_said_of(const char *what)
{
    place_t a;
    said[0] = 0;
    place_open(&a, "dir://", WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    if (!strstr(said, "dir:///tmp/weft-4242 ") || !strstr(said, "another user (uid 4243)") ||
        !strstr(said, "WEFT_REGISTRY=dir:///PATH"))
        FAIL("of %s is said: %s", what, said);
    place_close(&a);
}

TEST(who_finds_the_default_place_taken_by_another_is_told_by_whom_and_where_else_it_could_be)
{
    place_t a;
    if (geteuid() || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/tmp", "tmpfs", 0, "size=1m,mode=1777"))
        SKIP("only root can be another user and have a /tmp of its own");
    weft_log_set_sink(note_line, NULL);
    unsetenv("XDG_RUNTIME_DIR");
    CHECK(!mkdir("/tmp/weft-4242", 0700) && !chown("/tmp/weft-4242", THEM, THEM));
    CHECK(!mkdir("/tmp/run", 0700) && !chown("/tmp/run", US, US));
    CHECK(!setresgid(US, US, US) && !setresuid(US, US, 0)); /* the saved one: to change the scene below */
    what_is_said_of("a directory that only its owner may open");
    CHECK(!setresuid(0, 0, 0) && !chmod("/tmp/weft-4242", 0755) && !setresuid(US, US, 0));
    what_is_said_of("a directory that all may read");
    CHECK(!setresuid(0, 0, 0) && !rmdir("/tmp/weft-4242") && !symlink("/tmp/run", "/tmp/weft-4242") &&
          !lchown("/tmp/weft-4242", THEM, THEM) && !setresuid(US, US, 0));
    what_is_said_of("a link");

    setenv("XDG_RUNTIME_DIR", "/tmp/run", 1); /* this comes first */
    lines = 0;
    place_open(&a, "dir://", WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK(!access("/tmp/run/weft/s@x", F_OK));
    CHECK_EQ(lines, 0);
    place_close(&a);
}

TEST(a_directory_that_may_not_be_written_says_so)
{
    char uri[128];
    place_t a;
    weft_log_set_sink(note_line, NULL);
    place_new(uri);
    if (!geteuid()) {
        CHECK(!chown(uri + 6, 65534, 65534));
        CHECK(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
    }
    CHECK(!chmod(uri + 6, 0500));
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_UNREACHABLE);
    CHECK(strstr(said, "Permission denied") != NULL);
    CHECK_EQ(place_count(&a, NULL), 0); /* reading is another matter */
    CHECK(!chmod(uri + 6, 0700));
    PLACE_UNTIL(&a, place_count(&a, NULL) == 1, 20);
    place_close(&a);
    CHECK(!rmdir(uri + 6));
}

TEST(a_full_disk_says_so_and_the_entry_is_made_when_there_is_room)
{
    char uri[128], path[160];
    place_t a;
    static char rubbish[1 << 16];
    place_new(uri);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", uri + 6, "tmpfs", 0, "size=16k,mode=0700")) {
        place_remove(uri);
        SKIP("nothing may be mounted here");
    }
    weft_log_set_sink(note_line, NULL);
    snprintf(path, sizeof path, "%s/rubbish", uri + 6);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    while (write(fd, rubbish, sizeof rubbish) > 0)
        ;
    CHECK_EQ(errno, ENOSPC);
    close(fd);
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_LIMIT);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_LIMIT);
    CHECK(strstr(said, "No space") != NULL);
    CHECK_EQ(place_count(&a, NULL), 0);
    CHECK(!unlink(path));
    PLACE_UNTIL(&a, place_count(&a, NULL) == 1, 20);
    place_close(&a);
    CHECK(!umount(uri + 6));
    CHECK(!rmdir(uri + 6));
}

TEST(a_full_disk_is_told_of_once_a_minute_and_tried_once_a_second)
{
    static seen_t s;
    static char rubbish[1 << 16];
    char uri[128], path[160], events[4096];
    place_t a;
    weft_watch_t *w;
    unsigned tries = 0;
    place_new(uri);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", uri + 6, "tmpfs", 0, "size=16k,mode=0700")) {
        place_remove(uri);
        SKIP("nothing may be mounted here");
    }
    weft_log_set_sink(note_line, NULL);
    snprintf(path, sizeof path, "%s/rubbish", uri + 6);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    while (write(fd, rubbish, sizeof rubbish) > 0)
        ;
    close(fd);
    int witness = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(witness >= 0 && inotify_add_watch(witness, uri + 6, IN_CREATE) >= 0);
    double began = test_now();
    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w)); /* who watches hears of every attempt */
    CHECK_EQ(place_enter(&a, "s", "x", 0), WEFT_ERR_LIMIT);
    while (test_now() < began + 4) {
        weft_runtime_progress(a.rt);
        usleep(1000);
    }
    for (ssize_t n; (n = read(witness, events, sizeof events)) > 0;)
        for (ssize_t at = 0; at < n; tries++)
            at += (ssize_t)(sizeof(struct inotify_event) + ((struct inotify_event *)(void *)(events + at))->len);
    CHECK(tries >= 2);
    if (tries > (test_now() - began) + 2)
        FAIL("%u attempts in %.1f s", tries, test_now() - began);
    CHECK_EQ(lines, 1);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_ERR_LIMIT);
    CHECK(!unlink(path));
    PLACE_UNTIL(&a, s.there == 1, 20);
    CHECK_EQ(weft_registry_state(a.registry), WEFT_OK);
    close(witness);
    place_close(&a);
    CHECK(!umount(uri + 6));
    CHECK(!rmdir(uri + 6));
}

/* --- files of others -------------------------------------------------------------------------------------------------------- */

static void put(const char *uri, const char *name, const void *bytes, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", uri + 6, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

TEST(files_that_are_no_entries_are_neither_believed_nor_removed)
{
    static uint8_t bytes[REG_BYTES_MAX + 100];
    char uri[128], path[300];
    const char *names[] = {"s@short", "s@zeroes", "s@big", "s@other", "@", "s@", "@i", "s@a@b", "s@fifo", "s@dir", "s@link"};
    place_t a;
    struct stat st;
    weft_log_set_sink(note_line, NULL);
    place_new(uri);
    weft_entry_t e = WEFT_ENTRY_INIT;
    reg_entry_t *entry;
    e.service = "s";
    e.address = "tcp://127.0.0.1:7000";
    CHECK_OK(wefti_reg_entry_new(&e, "right", &entry));
    put(uri, "s@short", "weftreg1", 8);
    put(uri, "s@zeroes", bytes, 4096);
    put(uri, "s@big", bytes, sizeof bytes);
    size_t n = wefti_reg_entry_encode(entry, bytes, sizeof bytes);
    wefti_reg_entry_unref(entry);
    for (int i = 3; i < 8; i++) /* an entry under a name that is not its own */
        put(uri, names[i], bytes, n);
    snprintf(path, sizeof path, "%s/s@fifo", uri + 6);
    CHECK(!mkfifo(path, 0600));
    snprintf(path, sizeof path, "%s/s@dir", uri + 6);
    CHECK(!mkdir(path, 0700));
    snprintf(path, sizeof path, "%s/s@link", uri + 6);
    CHECK(!symlink("/etc/passwd", path));
    put(uri, "s@right", bytes, n); /* this one is right, and its process is not there */
    put(uri, ".weft-new-0123456789abcdef", bytes, n);

    place_open(&a, uri, WEFT_PROGRESS_CALLER);
    CHECK_OK(place_enter(&a, "s", "x", 0));
    CHECK_EQ(place_count(&a, NULL), 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", uri + 6, names[i]);
        CHECK(!lstat(path, &st));
    }
    snprintf(path, sizeof path, "%s/s@right", uri + 6);
    CHECK(lstat(path, &st) && errno == ENOENT);
    snprintf(path, sizeof path, "%s/.weft-new-0123456789abcdef", uri + 6);
    CHECK(lstat(path, &st) && errno == ENOENT);
    CHECK_EQ(place_enter(&a, "s", "short", 0), WEFT_ERR_STATE);
    CHECK(strstr(said, "is no entry") != NULL);
    CHECK_EQ(place_enter(&a, "s", "link", 0), WEFT_ERR_STATE);
    CHECK_EQ(place_enter(&a, "s", "dir", 0), WEFT_ERR_STATE);
    place_close(&a);
    place_remove(uri);
}

/* --- memory ----------------------------------------------------------------------------------------------------------------- */

static void allowed(long st)
{
    CHECK(st >= 0 || st == WEFT_ERR_NOMEM || st == WEFT_ERR_NOTFOUND);
}

TEST(memory_runs_out_at_every_allocation)
{
    static seen_t s;
    char uri[128];
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    place_new(uri);
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    for (int kind = 0; kind < 2; kind++) {
        long at = 0;
        for (bool ahead = false; !ahead && at < 1000; at++) {
            place_t p = {.rt = rt};
            weft_watch_t *w = NULL;
            memset(&s, 0, sizeof s);
            nomem_at(at, 1);
            weft_status_t st = weft_registry_open(rt, kind ? uri : "memory://nomem", NULL, &p.registry);
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
        CHECK(at > 5 && at < 1000);
    }
    CHECK_OK(weft_runtime_close(rt));
    place_remove(uri);
}
