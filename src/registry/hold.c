/* registry/hold.c - files that are locked for as long as this process lives, and not by its children.
 *
 * The lock is one of the open file description (F_OFD_SETLK): the kernel ends it when the last descriptor of it is closed, at
 * the latest with the process, however that ends. POSIX locks would end when anyone in the process closes any descriptor of the
 * file, as every look does. But a fork shares the description: a child that lives on would hold the lock of a parent that is
 * dead. So all such descriptors are in one list, and a forked child closes them before fork() returns there. exec() closes them
 * anyway; between vfork() and exec() a parent cannot die unnoticed for longer than that takes. A child made by a bare clone()
 * without exec() is the one case that keeps a dead entry alive.
 *
 * Whether a file is locked is asked with F_OFD_GETLK, which locks nothing, so that two that look do not take each other for an
 * owner.
 *
 * Promise: what is locked is unlocked when this process has ended. tests/unit/registry_hold.c, tests/fault/registry_kill.c. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/state.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wefti_list_t holds = {&holds, &holds};

/* --- forks ------------------------------------------------------------------------------------------------------------- */

static void in_child(void)
{
    wefti_list_each(l, &holds) {
        reg_hold_t *h = wefti_container_of(l, reg_hold_t, link);
        if (h->fd >= 0)
            close(h->fd);
        h->fd = -1;
    }
    /* the memory belongs to runtimes that the child cannot use; it only leaves the list */
    wefti_list_init(&holds);
    wefti_reg_fork_unlock();
}

static void install(void)
{
    if (pthread_atfork(wefti_reg_fork_lock, wefti_reg_fork_unlock, in_child))
        wefti_error("no memory to notice forks: entries of this process may outlive it in its children");
}

void wefti_reg_fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

void wefti_reg_fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

void wefti_reg_fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* --- locks ------------------------------------------------------------------------------------------------------------- */

int wefti_reg_locked(int fd)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_GETLK, &fl))
        return -1;
    return fl.l_type != F_UNLCK;
}

/* Open and enlist with the lock held, so that no fork comes between. */
static int open_listed(int dir, const char *name, int flags, reg_hold_t *h)
{
    int err = 0;
    wefti_reg_fork_lock();
    h->fd = openat(dir, name, flags | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (h->fd < 0)
        err = errno;
    else
        wefti_list_push_back(&holds, &h->link);
    wefti_reg_fork_unlock();
    return err;
}

void wefti_reg_hold_drop(reg_hold_t *h)
{
    if (!h)
        return;
    wefti_reg_fork_lock();
    wefti_list_remove(&h->link);
    if (h->fd >= 0)
        close(h->fd);
    wefti_reg_fork_unlock();
    wefti_free(h);
}

bool wefti_reg_hold_is(const reg_hold_t *h, int dir, const char *name)
{
    struct stat st;
    return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && st.st_dev == h->dev && st.st_ino == h->ino;
}

int wefti_reg_hold(int dir, const char *name, bool make, reg_hold_t **hold_out)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat st;
    reg_hold_t *h = (reg_hold_t *)wefti_calloc(1, sizeof *h);
    if (!h)
        return ENOMEM;
    int err = open_listed(dir, name, make ? O_CREAT | O_EXCL : 0, h);
    if (err) {
        wefti_free(h);
        return err;
    }
    if (fcntl(h->fd, F_OFD_SETLK, &fl))
        err = errno == EACCES ? EAGAIN : errno;
    else if (fstat(h->fd, &st))
        err = errno;
    else if (!S_ISREG(st.st_mode))
        err = EINVAL;
    if (err) {
        wefti_reg_hold_drop(h);
        return err;
    }
    h->dev = st.st_dev;
    h->ino = st.st_ino;
    /* it may have been taken away between the opening and the lock */
    if (!wefti_reg_hold_is(h, dir, name)) {
        wefti_reg_hold_drop(h);
        return EAGAIN;
    }
    *hold_out = h;
    return 0;
}
