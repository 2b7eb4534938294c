/* tools/run/cgroup_run.c - the cgroups of a run: where they can be made, making them, and removing them. Version 1 and 2.
 *
 * A run has a directory in each hierarchy, called like its scratch directory, and a process with limits one in it. Version 1:
 * it is below the launcher's own cgroup. Version 2 allows processes in leaves only. If the launcher is alone in its cgroup, as
 * in a scope of systemd-run, it moves to a leaf of that, and the run's directory is beside the leaf. Else the directory is in
 * the nearest cgroup above in which one can be made: root's way.
 *
 * What is to be made is written down in the scratch directory first, one path a line. So whoever removes that directory, the
 * guard or the next run, finds the cgroups.
 *
 * Promise: what cannot be used is not used: a child has entered each hierarchy before anybody relies on it.
 * tests/tools/tools_run_limits.py and tests/tools/tools_run_guard.py check it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"

#define NOTE "cgroups"   /* in the scratch directory: where the cgroups are */
#define LEAF ".launcher" /* how the name of the leaf ends that the launcher moved to */
#define TRIES 1000       /* a process that was killed may take a while to be gone, on a machine that is short of memory */
#define PAUSE (10 * WEFT_MILLISECOND)

static const char *const controls[RUN_CONTROLS] = {"memory", "cpu"};

/* --- where ----------------------------------------------------------------------------------------------------------------- */

/* The path of this process in the hierarchy of a controller, "" for version 2; NULL: there is none. */
static char *own_path(const char *controller)
{
    run_text_t all = run_cgroup_read("/proc/self/cgroup");
    char *rest = all.p, *line, *found = NULL;
    while (!found && (line = strsep(&rest, "\n"))) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path = '\0';
        if (*controller ? run_cgroup_lists(list + 1, controller, ",") : !list[1])
            found = run_dup(path + 1);
    }
    run_free(&all);
    return found;
}

/* A line of mountinfo: does it mount that hierarchy? */
static bool mounts(char *line, const char *controller, char **root_out, char **at_out)
{
    char *words[16] = {0}, *dash = strstr(line, " - "), *rest = line, *word;
    unsigned n = 0;
    if (!dash)
        return false;
    *dash = '\0';
    while (n < 6 && (word = strsep(&rest, " ")))
        words[n++] = word;
    rest = dash + 3;
    while (n >= 5 && n < 16 && (word = strsep(&rest, " ")))
        words[n++] = word;
    if (n < 9 || strchr(words[3], '\\') || strchr(words[4], '\\')) /* a blank in a name: leave it alone */
        return false;
    *root_out = words[3];
    *at_out = words[4];
    return *controller ? !strcmp(words[6], "cgroup") && run_cgroup_lists(words[8], controller, ",")
                       : !strcmp(words[6], "cgroup2");
}

typedef struct place {
    char *dir;      /* NULL: there is none */
    size_t mounted; /* how much of it is the mount point */
} place_t;

/* The directory of this process's own cgroup. */
static place_t own_place(const char *controller)
{
    char *path = own_path(controller), *rest, *line, *root, *at;
    run_text_t all = run_cgroup_read("/proc/self/mountinfo");
    place_t found = {0};
    rest = all.p;
    while (path && !strstr(path, "/..") && !found.dir && (line = strsep(&rest, "\n"))) {
        size_t n;
        if (!mounts(line, controller, &root, &at))
            continue;
        n = strcmp(root, "/") != 0 ? strlen(root) : 0;
        if (strncmp(path, root, n) != 0 || (n && path[n] && path[n] != '/'))
            continue; /* another part of it is mounted there */
        found.dir = run_printf("%s%s", at, strcmp(path + n, "/") != 0 ? path + n : "");
        found.mounted = strlen(at);
    }
    run_free(&all);
    free(path);
    return found;
}

/* --- making them ----------------------------------------------------------------------------------------------------------- */

static void note(const char *scratch, const char *path)
{
    char *file = run_printf("%s/" NOTE, scratch), *line = run_printf("%s\n", path);
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)!write(fd, line, strlen(line));
        close(fd);
    }
    free(line);
    free(file);
}

/* Can a process enter a cgroup in there? */
static bool may_enter(const char *dir)
{
    char *probe = run_printf("%s/probe", dir);
    int status = 1;
    pid_t pid;
    if (mkdir(probe, 0755)) {
        free(probe);
        return false;
    }
    pid = fork();
    if (!pid)
        _exit(run_cgroup_put(probe, "cgroup.procs", "0") ? 0 : 1);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    rmdir(probe);
    free(probe);
    return pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
}

static char *make(const char *in, const char *name, const char *scratch)
{
    char *dir = run_printf("%s/%s", in, name);
    note(scratch, dir);
    if (!mkdir(dir, 0755))
        return dir;
    free(dir);
    return NULL;
}

static bool begin_v1(run_cgroups_t *cgs, run_control_t which, const char *name, const char *scratch)
{
    place_t own = own_place(controls[which]);
    char *dir = own.dir ? make(own.dir, name, scratch) : NULL;
    free(own.dir);
    if (dir && !may_enter(dir)) {
        rmdir(dir);
        free(dir);
        dir = NULL;
    }
    cgs->dir[which] = dir;
    return dir;
}

/* Let the children of a cgroup have the controllers that are wanted. have: which of them they have now. */
static void enable(const char *dir, const bool wanted[RUN_CONTROLS], bool have[RUN_CONTROLS])
{
    run_text_t now;
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (wanted[i]) {
            char word[16];
            snprintf(word, sizeof word, "+%s", controls[i]);
            (void)run_cgroup_put(dir, "cgroup.subtree_control", word); /* what came of it is read below */
        }
    now = run_cgroup_get(dir, "cgroup.subtree_control");
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        have[i] = wanted[i] && run_cgroup_lists(now.p, controls[i], " \n");
    run_free(&now);
}

/* Make the run's directory in that cgroup of version 2. */
static bool begin_in(run_cgroups_t *cgs, const char *in, const bool wanted[RUN_CONTROLS], const char *name, const char *scratch)
{
    bool have[RUN_CONTROLS], first = wanted[RUN_CONTROL_MEMORY];
    char *dir;
    if (access(in, W_OK)) /* do not switch something on where nothing can be made */
        return false;
    enable(in, wanted, have);
    if (!have[first ? RUN_CONTROL_MEMORY : RUN_CONTROL_CPU] || !(dir = make(in, name, scratch)))
        return false;
    enable(dir, have, have);
    if (!have[first ? RUN_CONTROL_MEMORY : RUN_CONTROL_CPU] || !may_enter(dir)) {
        rmdir(dir);
        free(dir);
        return false;
    }
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (have[i]) {
            cgs->dir[i] = run_dup(dir);
            cgs->v2[i] = true;
        }
    free(dir);
    return true;
}

static bool alone_in(const char *dir)
{
    run_text_t procs = run_cgroup_get(dir, "cgroup.procs"), type = run_cgroup_get(dir, "cgroup.type"); /* the root has no type */
    char *end;
    bool alone = type.n && strtol(procs.p, &end, 10) == getpid() && !strcmp(end, "\n");
    run_free(&procs);
    run_free(&type);
    return alone;
}

/* Back to where it was, if it is in there; the leaf goes. False: it is still there. */
static bool leave_leaf(const char *leaf)
{
    bool gone;
    char *home = run_dup_n(leaf, (size_t)(strrchr(leaf, '/') - leaf));
    run_text_t procs = run_cgroup_get(leaf, "cgroup.procs");
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    for (unsigned i = 0; i < RUN_CONTROLS; i++) {
        char word[16];
        snprintf(word, sizeof word, "-%s", controls[i]);
        (void)run_cgroup_put(home, "cgroup.subtree_control", word); /* while they are there no process may be in it */
    }
    if (run_cgroup_lists(procs.p, pid, "\n"))
        (void)run_cgroup_put(home, "cgroup.procs", "0");
    gone = !rmdir(leaf) || errno == ENOENT;
    run_free(&procs);
    free(home);
    return gone;
}

static bool begin_beside(run_cgroups_t *cgs, const char *own, const bool wanted[RUN_CONTROLS], const char *name,
                         const char *scratch)
{
    char *leaf_name = run_printf("%s" LEAF, name), *leaf = make(own, leaf_name, scratch);
    free(leaf_name);
    if (!leaf)
        return false;
    if (run_cgroup_put(leaf, "cgroup.procs", "0") && begin_in(cgs, own, wanted, name, scratch)) {
        cgs->leaf = leaf;
        return true;
    }
    (void)leave_leaf(leaf);
    free(leaf);
    return false;
}

static void begin_v2(run_cgroups_t *cgs, const bool wanted[RUN_CONTROLS], const char *name, const char *scratch)
{
    place_t own = own_place("");
    bool done;
    if (!own.dir)
        return;
    done = alone_in(own.dir) && begin_beside(cgs, own.dir, wanted, name, scratch);
    while (!done && !(done = begin_in(cgs, own.dir, wanted, name, scratch)) && strlen(own.dir) > own.mounted)
        *strrchr(own.dir, '/') = '\0';
    free(own.dir);
}

void run_cgroups_begin(run_cgroups_t *cgs, const bool wanted[RUN_CONTROLS], const char *scratch)
{
    bool left[RUN_CONTROLS], any = false;
    const char *name = strrchr(scratch, '/') + 1;
    for (unsigned i = 0; i < RUN_CONTROLS; i++) {
        char *path = wanted[i] ? own_path(controls[i]) : NULL; /* a controller is in a hierarchy of its own, or in version 2 */
        left[i] = wanted[i] && !path;
        any |= left[i];
        if (path)
            (void)begin_v1(cgs, (run_control_t)i, name, scratch);
        free(path);
    }
    if (any)
        begin_v2(cgs, left, name, scratch);
}

/* --- removing them --------------------------------------------------------------------------------------------------------- */

static void pause_a_little(void)
{
    struct timespec t = {.tv_nsec = (long)PAUSE};
    nanosleep(&t, NULL);
}

/* A run's directory with all that are in it. False: it is still there. */
static bool remove_run(const char *dir)
{
    for (unsigned i = 0; i < TRIES; i++) {
        DIR *d = opendir(dir);
        struct dirent *entry;
        if (!d)
            return errno == ENOENT;
        /* cppcheck-suppress readdirCalled ; there is one thread */
        while ((entry = readdir(d))) {
            char *path;
            if (entry->d_type != DT_DIR || *entry->d_name == '.')
                continue;
            path = run_printf("%s/%s", dir, entry->d_name);
            if (rmdir(path) && errno == EBUSY)
                run_cgroup_kill_in(path);
            free(path);
        }
        closedir(d);
        if (!rmdir(dir) || errno == ENOENT)
            return true;
        pause_a_little();
    }
    return false;
}

bool run_cgroups_end(run_cgroups_t *cgs)
{
    bool gone = true;
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        if (cgs->dir[i])
            gone &= remove_run(cgs->dir[i]);
    if (cgs->leaf)
        gone &= leave_leaf(cgs->leaf);
    for (unsigned i = 0; i < RUN_CONTROLS; i++)
        free(cgs->dir[i]);
    free(cgs->leaf);
    *cgs = (run_cgroups_t){0};
    return gone;
}

static bool is_cgroup(const char *dir)
{
    struct statfs fs;
    return !statfs(dir, &fs) && (fs.f_type == CGROUP_SUPER_MAGIC || fs.f_type == CGROUP2_SUPER_MAGIC);
}

bool run_cgroups_sweep(const char *scratch)
{
    const char *name = strrchr(scratch, '/') + 1;
    run_text_t all = run_cgroup_get(scratch, NOTE);
    char *rest = all.p, *line, *leaf = NULL;
    bool gone = true;
    while ((line = strsep(&rest, "\n"))) {
        char *last = strrchr(line, '/');
        /* an element could have written there, too: only what is a cgroup and is called like the run */
        if (*line != '/' || strstr(line, "/../") || strncmp(last + 1, name, strlen(name)) != 0 || !is_cgroup(line))
            continue;
        if (!strcmp(last + 1 + strlen(name), LEAF) && !leaf)
            leaf = run_dup(line);
        else if (!last[1 + strlen(name)])
            gone &= remove_run(line);
    }
    if (leaf && !access(leaf, F_OK))
        gone &= leave_leaf(leaf);
    free(leaf);
    run_free(&all);
    return gone;
}
