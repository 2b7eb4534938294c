/* tools/run/measure.c - how much memory processes have, and how much their files take: what /proc and the file system tell.
 *
 * What counts as memory of a process: pages that it has made itself, be they in memory or swapped out, and memory files of its
 * own. Pages that several processes have since a fork are shared out among them. Files that are only read do not count: the
 * system drops them when it needs the memory. Neither do regions that Weft mapped for it and another process serves: memory
 * elements. A region that is its own is one whose memory file it has open.
 *
 * The exact figure is in /proc/PID/smaps, for which the kernel looks at every page that is mapped: 4 ms for 512 MiB. So
 * limits.c asks for it only where the counters of /proc/PID/status leave it open. tests/tools/tools_run_limits.py checks it. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "limits.h"

#define REGION "/memfd:weft-region"
#define REMOVED " (deleted)"
#define FILES_MOST 1024 /* memory files of a process that are told apart */
#define DEEP 64         /* directories below each other that are looked into */

static DIR *open_dir_in(int at, const char *path)
{
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !dir)
        close(fd);
    return dir;
}

static struct dirent *next_in(DIR *dir)
{
    struct dirent *entry;
    do
        entry = readdir(dir); /* cppcheck-suppress readdirCalled ; there is one thread */
    while (entry && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")));
    return entry;
}

/* --- memory ---------------------------------------------------------------------------------------------------------------- */

static bool read_file(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, cap - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static bool read_proc(pid_t pid, const char *what, char *text, size_t cap)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    return read_file(path, text, cap);
}

/* "Name:   123 kB" in bytes. */
static uint64_t kilobytes(const char *text, const char *name)
{
    const char *p = strstr(text, name);
    return p ? strtoull(p + strlen(name), NULL, 10) << 10 : 0;
}

bool run_measure_status(pid_t pid, run_resident_t *out)
{
    char text[4096];
    if (!read_proc(pid, "status", text, sizeof text) || !strstr(text, "\nVmRSS:")) /* a process that ends has none */
        return false;
    *out = (run_resident_t){.all = kilobytes(text, "\nVmRSS:"),
                            .anonymous = kilobytes(text, "\nRssAnon:") + kilobytes(text, "\nVmSwap:"),
                            .shared = kilobytes(text, "\nRssShmem:")};
    return true;
}

/* Call found() for every descriptor of a process: what its link says, and its path. */
static void each_fd(pid_t pid, void (*found)(const char *link, const char *path, void *user), void *user)
{
    char path[300], link[4096];
    struct dirent *entry;
    DIR *dir;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    dir = open_dir_in(AT_FDCWD, path);
    while (dir && (entry = next_in(dir))) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, link, sizeof link - 1);
        if (n <= 0)
            continue;
        link[n] = '\0';
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        found(link, path, user);
    }
    if (dir)
        closedir(dir);
}

typedef struct files {
    ino_t at[FILES_MOST];
    unsigned n;
    uint64_t bytes; /* of all of them */
    const char *below;
} files_t;

static bool knows(const files_t *files, ino_t number)
{
    for (unsigned i = 0; i < files->n; i++)
        if (files->at[i] == number)
            return true;
    return false;
}

/* Once each. */
static void add_file(files_t *files, const char *path)
{
    struct stat st;
    if (stat(path, &st) || files->n == FILES_MOST || knows(files, st.st_ino))
        return;
    files->at[files->n++] = st.st_ino;
    files->bytes += (uint64_t)st.st_blocks * 512;
}

static void add_region(const char *link, const char *path, void *user)
{
    if (!strncmp(link, REGION, strlen(REGION)))
        add_file(user, path);
}

uint64_t run_measure_touched(pid_t pid)
{
    files_t regions = {.n = 0};
    each_fd(pid, add_region, &regions);
    return regions.bytes;
}

/* Is a line of smaps the first of a mapping, "7f00-7f01 rw-s 00000000 00:01 2089  /memfd:weft-region (deleted)"? Then does it
 * count, and as what? */
typedef enum kind { KIND_NONE, KIND_PRIVATE, KIND_SHARED } kind_t;

static bool mapping(const char *line, const files_t *own, kind_t *kind_out)
{
    char mode[8], device[16];
    unsigned long number;
    int at = 0;
    if (sscanf(line, "%*x-%*x %7s %*x %15s %lu %n", mode, device, &number, &at) != 3)
        return false;
    *kind_out = KIND_PRIVATE;
    if (mode[3] == 's') {
        bool memory = !strncmp(line + at, "/memfd:", 7) || !strncmp(line + at, "/dev/shm/", 9) ||
                      !strncmp(line + at, "/SYSV", 5) || !strncmp(line + at, "/dev/zero", 9);
        bool region = !strncmp(line + at, REGION, strlen(REGION));
        *kind_out = !memory || (region && !knows(own, number)) ? KIND_NONE : KIND_SHARED;
    }
    return true;
}

uint64_t run_measure_own(pid_t pid)
{
    char path[64], *line = NULL;
    uint64_t own = 0, share = 0, n;
    files_t regions = {.n = 0};
    kind_t kind = KIND_NONE;
    size_t cap = 0;
    FILE *f;
    each_fd(pid, add_region, &regions);
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
    f = fopen(path, "re");
    while (f && getline(&line, &cap, f) > 0) {
        if ((*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f')) {
            if (mapping(line, &regions, &kind))
                share = 0;
        } else if (kind != KIND_NONE && sscanf(line, "Pss: %lu", &n) == 1) {
            share = n;
            own += kind == KIND_SHARED ? n : 0;
        } else if (kind == KIND_PRIVATE && sscanf(line, "Anonymous: %lu", &n) == 1) {
            own += n < share ? n : share; /* the rest is of a file */
        } else if (kind != KIND_NONE && sscanf(line, "SwapPss: %lu", &n) == 1) {
            own += n;
        }
    }
    free(line);
    if (f)
        fclose(f);
    return own << 10;
}

long run_measure_newest(void)
{
    char text[128];
    const char *last = read_file("/proc/loadavg", text, sizeof text) ? strrchr(text, ' ') : NULL;
    return last ? strtol(last, NULL, 10) : 0;
}

void run_measure_groups(void (*found)(pid_t pid, pid_t group, void *user), void *user)
{
    DIR *proc = open_dir_in(AT_FDCWD, "/proc");
    struct dirent *entry;
    char text[512];
    while (proc && (entry = next_in(proc))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        const char *p;
        int group;
        if (pid <= 0 || !read_proc(pid, "stat", text, sizeof text))
            continue;
        p = strrchr(text, ')'); /* the name in parentheses may hold any character */
        if (p && sscanf(p + 1, " %*c %*d %d", &group) == 1)
            found(pid, group, user);
    }
    if (proc)
        closedir(proc);
}

/* --- files ----------------------------------------------------------------------------------------------------------------- */

static uint64_t files_in(int at, const char *path, dev_t device, unsigned deep, uint64_t enough)
{
    DIR *dir = open_dir_in(at, path);
    uint64_t bytes = 0;
    struct dirent *entry;
    struct stat st;
    while (dir && bytes <= enough && (entry = next_in(dir))) {
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || (device && st.st_dev != device))
            continue;
        /* a file with several names is counted in parts */
        bytes += (uint64_t)st.st_blocks * 512 / (S_ISDIR(st.st_mode) || !st.st_nlink ? 1 : st.st_nlink);
        if (S_ISDIR(st.st_mode) && deep < DEEP)
            bytes += files_in(dirfd(dir), entry->d_name, st.st_dev, deep + 1, enough);
    }
    if (dir)
        closedir(dir);
    return bytes;
}

static void add_removed(const char *link, const char *path, void *user)
{
    files_t *files = user;
    size_t n = strlen(files->below), len = strlen(link), end = strlen(REMOVED);
    if (!strncmp(link, files->below, n) && link[n] == '/' && len > end && !strcmp(link + len - end, REMOVED))
        add_file(files, path);
}

uint64_t run_measure_files(const char *dir, const pid_t *pids, unsigned n, uint64_t enough)
{
    files_t removed = {.below = dir};
    uint64_t bytes = files_in(AT_FDCWD, dir, 0, 0, enough);
    for (unsigned i = 0; i < n && bytes + removed.bytes <= enough; i++)
        each_fd(pids[i], add_removed, &removed);
    return bytes + removed.bytes;
}
