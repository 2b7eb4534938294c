/* registry/directory.c - dir://PATH: a registry that is a directory of this machine.
 *
 * An entry is a file SERVICE@INSTANCE, locked by its process (hold.c). It is written whole under a temporary name, locked before
 * its first byte, and then renamed. One rule keeps processes from removing each other's entries, wherever one of them is killed:
 *
 *     Only a process that has locked the file of a name may give the name to another file. A free name is taken by a rename
 *     that replaces nothing.
 *
 * So a process that finds an entry that nobody has locked locks it, checks that the name still means this file, and removes it.
 * Temporary files of dead processes are removed in the same way. A file that is no entry is neither listed nor removed.
 *
 * The directory must belong to us or to root, nobody else may write to it, and the last part of its path is no link. A missing
 * directory is made, also if somebody removed it: each process checks its entries once a second, and makes them again.
 *
 * inotify tells of changes, unless the machine has none left. It also tells of a death, because the kernel closes the file then,
 * but just before the lock is gone: so a second look follows each change (thread.c).
 *
 * Promise: an entry is found if and only if its process lives, between the end of enter() and the end of leave().
 * tests/wire/registry_basic.c, tests/fault/registry_kill.c, tests/fault/registry_place.c. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "registry/state.h"

#define NEW_PREFIX ".weft-new-"
enum { TRIES = 20, NEW_NAME = sizeof NEW_PREFIX + 16 };

typedef struct directory {
    int fd; /* -1: not open */
    dev_t dev;
    ino_t ino;
    int inotify;
    weft_registry_t *registry;
    uint8_t bytes[REG_BYTES_MAX + 1];
    char path[];
} directory_t;

/* --- trouble ----------------------------------------------------------------------------------------------------------- */

/* The status of a system call that failed. */
static weft_status_t trouble(directory_t *d, int err, const char *what)
{
    if (err == ENOMEM)
        return WEFT_ERR_NOMEM;
    wefti_reg_trouble(d->registry, (uint64_t)err, "the registry dir://%s: cannot %s: %s; it is tried again every second", d->path,
                      what, strerror(err));
    return err == ENOSPC || err == EDQUOT || err == EFBIG || err == EMFILE || err == ENFILE ? WEFT_ERR_LIMIT
                                                                                            : WEFT_ERR_UNREACHABLE;
}

/* Is it another user's? In a directory that all may write to, such as /tmp, anyone may take the name first. */
static bool is_anothers(const struct stat *st)
{
    return st->st_uid != geteuid() && st->st_uid != 0;
}

static weft_status_t refuse(directory_t *d, const struct stat *st)
{
    if (is_anothers(st))
        wefti_reg_trouble(d->registry, UINT64_MAX,
                          "the registry dir://%s is not used: it belongs to another user (uid %u); have it removed, or give all "
                          "who are to find each other a directory of their own: WEFT_REGISTRY=dir:///PATH",
                          d->path, (unsigned)st->st_uid);
    else
        wefti_reg_trouble(d->registry, UINT64_MAX - 1,
                          "the registry dir://%s is not used: others may write to it; take that away (chmod go-w)", d->path);
    return WEFT_ERR_UNREACHABLE;
}

static void nap(void)
{
    struct timespec ts = {0, 1000000};
    nanosleep(&ts, NULL);
}

/* --- the directory ----------------------------------------------------------------------------------------------------- */

static void shut(directory_t *d)
{
    if (d->fd >= 0)
        close(d->fd);
    if (d->inotify >= 0)
        close(d->inotify);
    d->fd = d->inotify = -1;
}

/* Open it, unless it is open and the path still means it. */
static weft_status_t ensure(directory_t *d)
{
    struct stat st;
    if (d->fd >= 0) {
        if (!fstatat(AT_FDCWD, d->path, &st, AT_SYMLINK_NOFOLLOW) && st.st_dev == d->dev && st.st_ino == d->ino)
            return WEFT_OK;
        shut(d);
    }
    for (int tries = 0; d->fd < 0; tries++) {
        d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (d->fd >= 0)
            break;
        int err = errno;
        if (err != ENOENT && !fstatat(AT_FDCWD, d->path, &st, AT_SYMLINK_NOFOLLOW) && is_anothers(&st))
            return refuse(d, &st);
        if (err != ENOENT || tries == TRIES)
            return trouble(d, err, "open it");
        if (mkdir(d->path, 0700) && errno != EEXIST)
            return trouble(d, errno, "make it");
    }
    if (fstat(d->fd, &st)) {
        int err = errno;
        shut(d);
        return trouble(d, err, "look at it");
    }
    if (is_anothers(&st) || (st.st_mode & 022)) {
        shut(d);
        return refuse(d, &st);
    }
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    d->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (d->inotify >= 0 && inotify_add_watch(d->inotify, d->path,
                                             IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE |
                                                 IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW) < 0) {
        close(d->inotify);
        d->inotify = -1; /* a look every second is enough */
    }
    return WEFT_OK;
}

static bool is_ours(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* The directory of dir://. */
static void default_path(char *path, size_t cap)
{
    const char *run = secure_getenv("XDG_RUNTIME_DIR");
    unsigned uid = (unsigned)geteuid();
    if (run && *run == '/' && strlen(run) + 6 < cap && is_ours(run)) {
        snprintf(path, cap, "%s/weft", run);
        return;
    }
    snprintf(path, cap, "/run/user/%u", uid);
    if (is_ours(path))
        snprintf(path, cap, "/run/user/%u/weft", uid);
    else
        snprintf(path, cap, "/tmp/weft-%u", uid);
}

static weft_status_t directory_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    char path[4096];
    if (!*rest)
        rest = registry->rt->config.registry_dir;
    if (rest && *rest) {
        if (*rest != '/')
            return wefti_fail(WEFT_ERR_INVALID, "dir://%.200s: write dir:///PATH, or dir:// for the default directory", rest);
        if (strlen(rest) >= sizeof path)
            return wefti_fail(WEFT_ERR_INVALID, "the path of a registry has at most %zu characters", sizeof path - 1);
        memcpy(path, rest, strlen(rest) + 1);
    } else {
        default_path(path, sizeof path);
    }
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') /* O_NOFOLLOW is about the last part, which a '/' at the end would hide */
        path[--n] = 0;
    directory_t *d = (directory_t *)wefti_calloc(1, sizeof *d + n + 1);
    if (!d)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    memcpy(d->path, path, n);
    d->fd = d->inotify = -1;
    d->registry = registry;
    *backend_out = d;
    return WEFT_OK;
}

static void directory_close(void *backend)
{
    directory_t *d = (directory_t *)backend;
    shut(d);
    wefti_free(d);
}

/* --- reading ----------------------------------------------------------------------------------------------------------- */

typedef enum sight { GONE, STRANGE, DEAD, ALIVE, FAILED } sight_t;

/* What a name means now. ALIVE and DEAD: *entry_out is the entry; FAILED: *err_out says why. */
static sight_t see(directory_t *d, const char *name, reg_entry_t **entry_out, int *err_out)
{
    struct stat st;
    reg_entry_t *e;
    sight_t sight = STRANGE;
    size_t n = 0;
    int fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        *err_out = errno;
        return errno == ENOENT ? GONE : errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO ? FAILED : STRANGE;
    }
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || is_anothers(&st) || st.st_size > REG_BYTES_MAX)
        goto out;
    for (ssize_t got; n < sizeof d->bytes && (got = read(fd, d->bytes + n, sizeof d->bytes - n)) != 0;) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            goto out;
        n += (size_t)got;
    }
    weft_status_t bad = wefti_reg_entry_decode_as(name, d->bytes, n, &e);
    if (bad == WEFT_ERR_NOMEM) {
        *err_out = ENOMEM;
        sight = FAILED;
    }
    if (bad)
        goto out;
    int locked = wefti_reg_locked(fd);
    if (locked < 0) {
        *err_out = errno;
        wefti_reg_entry_unref(e);
        sight = FAILED;
        goto out;
    }
    *entry_out = e;
    sight = locked ? ALIVE : DEAD;
out:
    close(fd);
    return sight;
}

/* Remove the file of a dead process. 0: the name is free; EAGAIN: another process has it by now, or removes it too. */
static int remove_dead(directory_t *d, const char *name)
{
    reg_hold_t *h;
    if (faccessat(d->fd, ".", W_OK, AT_EACCESS)) /* an attempt would be a change that makes all watches look again, without end */
        return errno == EAGAIN ? EACCES : errno;
    int err = wefti_reg_hold(d->fd, name, false, &h);
    if (err)
        return err == ENOENT ? 0 : err;
    if (unlinkat(d->fd, name, 0) && errno != ENOENT)
        err = errno;
    wefti_reg_hold_drop(h);
    return err;
}

static weft_status_t look_at(directory_t *d, const char *name, reg_found_t *found)
{
    for (int tries = 0; tries < TRIES; tries++) {
        reg_entry_t *e = NULL;
        int err = 0;
        switch (see(d, name, &e, &err)) {
        case GONE:
        case STRANGE:
            return WEFT_OK;
        case FAILED:
            return trouble(d, err, "read an entry");
        case ALIVE:
            return wefti_reg_found_add(found, e);
        case DEAD:
            wefti_reg_entry_unref(e);
            if (remove_dead(d, name) != EAGAIN)
                return WEFT_OK; /* also if it may not be removed: it is dead all the same */
            break;              /* it has changed, or another process removes it */
        }
        if (tries > 2)
            nap();
    }
    return WEFT_OK;
}

/* Remove a temporary file of a process that died before it could rename it. */
static void sweep(directory_t *d, const char *name)
{
    int fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool litter = !wefti_reg_locked(fd); /* ask first: to lock it is a change that others are told of */
    close(fd);
    if (litter)
        remove_dead(d, name);
}

static weft_status_t directory_list(void *backend, reg_found_t *found)
{
    directory_t *d = (directory_t *)backend;
    weft_status_t st = ensure(d);
    if (st)
        return st;
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int err = errno;
        if (fd >= 0)
            close(fd);
        return trouble(d, err, "list it");
    }
    const struct dirent *de;
    int err = 0;
    /* cppcheck-suppress readdirCalled ; nobody else has this DIR */
    while (!st && (errno = 0, de = readdir(dir))) {
        if (!strncmp(de->d_name, NEW_PREFIX, sizeof NEW_PREFIX - 1))
            sweep(d, de->d_name);
        else if (strchr(de->d_name, '@'))
            st = look_at(d, de->d_name, found);
    }
    if (!st)
        err = errno;
    closedir(dir);
    if (err)
        st = trouble(d, err, "list it");
    return st;
}

/* --- entering ---------------------------------------------------------------------------------------------------------- */

/* Write the entry to a file with a temporary name, locked. */
static int write_new(directory_t *d, const reg_entry_t *e, char name[NEW_NAME], reg_hold_t **hold_out)
{
    int err = EAGAIN;
    for (int tries = 0; tries < TRIES && (err == EAGAIN || err == EEXIST); tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return EIO;
        snprintf(name, NEW_NAME, NEW_PREFIX "%016llx", (unsigned long long)random);
        err = wefti_reg_hold(d->fd, name, true, hold_out);
        if (err && err != EEXIST)
            unlinkat(d->fd, name, 0); /* the name is random: it is ours */
    }
    if (err)
        return err;
    size_t n = wefti_reg_entry_encode(e, d->bytes, sizeof d->bytes);
    for (size_t at = 0; at < n;) {
        ssize_t put = write((*hold_out)->fd, d->bytes + at, n - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            err = put ? errno : ENOSPC;
            unlinkat(d->fd, name, 0);
            wefti_reg_hold_drop(*hold_out);
            return err;
        }
        at += (size_t)put;
    }
    return 0;
}

/* Give a file a free name. */
static int name_it(directory_t *d, const char *from, const char *to)
{
    if (!renameat2(d->fd, from, d->fd, to, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    if (linkat(d->fd, from, d->fd, to, 0)) /* for file systems without RENAME_NOREPLACE */
        return errno;
    unlinkat(d->fd, from, 0);
    return 0;
}

/* Give a file a name that a dead process may have. WEFT_ERR_STATE: a living one has it. */
static weft_status_t take_name(directory_t *d, const char *from, const char *to)
{
    for (int tries = 0; tries < TRIES; tries++) {
        reg_entry_t *e = NULL;
        int err = name_it(d, from, to);
        if (!err)
            return WEFT_OK;
        if (err != EEXIST)
            return trouble(d, err, "name an entry");
        switch (see(d, to, &e, &err)) {
        case GONE:
            break;
        case STRANGE:
            wefti_warn_rarely(&d->registry->rarely, wefti_rarely_text(to),
                              "the registry dir://%s has a file \"%s\" that is no entry; remove it, or use another name", d->path,
                              to);
            return WEFT_ERR_STATE;
        case FAILED:
            return trouble(d, err, "read an entry");
        case ALIVE: /* or another process has locked it to remove it */
            wefti_reg_entry_unref(e);
            nap();
            break;
        case DEAD:
            wefti_reg_entry_unref(e);
            err = remove_dead(d, to);
            if (err && err != EAGAIN)
                return trouble(d, err, "remove the entry of a dead process");
            break;
        }
    }
    return WEFT_ERR_STATE;
}

static weft_status_t directory_enter(void *backend, reg_own_t *own)
{
    directory_t *d = (directory_t *)backend;
    reg_hold_t *old = (reg_hold_t *)own->held, *h = NULL;
    char name[REG_FULL_NAME], made[NEW_NAME];
    weft_status_t st = ensure(d);
    if (st)
        return st;
    int err = write_new(d, own->entry, made, &h);
    if (err)
        return trouble(d, err, "write an entry");
    wefti_reg_entry_name(own->entry, name);
    if (!old || !wefti_reg_hold_is(old, d->fd, name))
        st = take_name(d, made, name);
    else if (renameat(d->fd, made, d->fd, name))
        st = trouble(d, errno, "change an entry");
    if (st) {
        unlinkat(d->fd, made, 0);
        wefti_reg_hold_drop(h);
        return st;
    }
    own->held = h;
    wefti_reg_hold_drop(old);
    return WEFT_OK;
}

static bool directory_leave(void *backend, reg_own_t *own)
{
    directory_t *d = (directory_t *)backend;
    reg_hold_t *h = (reg_hold_t *)own->held;
    char name[REG_FULL_NAME];
    if (!h)
        return true;
    wefti_reg_entry_name(own->entry, name);
    /* without ensure(): it would make the directory, and one that was replaced has nothing of ours */
    if (d->fd >= 0 && wefti_reg_hold_is(h, d->fd, name))
        unlinkat(d->fd, name, 0);
    wefti_reg_hold_drop(h);
    return true;
}

static weft_status_t directory_keep(void *backend, reg_own_t *own)
{
    directory_t *d = (directory_t *)backend;
    char name[REG_FULL_NAME];
    weft_status_t st = ensure(d);
    if (st)
        return st;
    wefti_reg_entry_name(own->entry, name);
    if (own->held && wefti_reg_hold_is((reg_hold_t *)own->held, d->fd, name))
        return WEFT_OK;
    return directory_enter(d, own);
}

/* --- waiting ----------------------------------------------------------------------------------------------------------- */

static bool directory_wait(void *backend, uint64_t ns)
{
    directory_t *d = (directory_t *)backend;
    struct pollfd p[2] = {{d->registry->wake_fd, POLLIN, 0}, {d->inotify, POLLIN, 0}};
    bool changed = false;
    poll(p, 2, wefti_reg_ms(ns)); /* a descriptor of -1 is left out */
    while (d->inotify >= 0 && read(d->inotify, d->bytes, sizeof d->bytes) > 0)
        changed = true;
    return changed;
}

const reg_backend_t wefti_reg_directory = {
    .scheme = "dir",
    .noisy = true,
    .open = directory_open,
    .enter = directory_enter,
    .leave = directory_leave,
    .keep = directory_keep,
    .list = directory_list,
    .wait = directory_wait,
    .close = directory_close,
};
