/* mem/memfd.c - memory in one piece that other processes can be let map: a memfd, and what becomes of it in a forked child.
 *
 * It has no name in any file system and is gone with the last process that has it. It is sealed, so that it can neither shrink
 * nor grow: a peer that maps it cannot be hit by SIGBUS for its end. Pages cost nothing until they are touched. Where others are
 * to read it only, it is sealed against that too once it is mapped here: what was checked in it is as it was, whoever opens it.
 *
 * Fork: a shared mapping stays one memory in parent and child, and a child that writes to what it takes for its own copy of a
 * buffer would change the parent's message on its way. Keeping the range out of the child (MADV_DONTFORK) is no answer, since
 * programs fork in order to read what they have in memory. So the child maps each one anew before fork() returns to it, at the
 * same address and privately: what it writes is its own from then on, and what it has not written still shows the parent's
 * memory, as it is now and as it changes. A child that needs a buffer as it was copies it first. Children that are not made by
 * fork() (vfork, posix_spawn) run another program at once.
 *
 * Promise: a failed call leaves everything as it was; a child's writes never reach its parent; whoever has the memory mapped that
 * was replaced sees and changes nothing of what took its place. tests/unit/mem_pool.c and rma_share.c hold us to it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "mem/local.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* --- forks ------------------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* held for moments only: a fork waits for it */
static wefti_list_t all = {&all, &all};                      /* of the process */

static void before_fork(void)
{
    pthread_mutex_lock(&all_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&all_lock);
}

static void in_child(void)
{
    wefti_list_each(it, &all) {
        const wefti_memfd_t *m = wefti_container_of(it, wefti_memfd_t, fork_link);
        /* nothing to be done if it fails: then it stays shared, and the child's own fault may reach the parent */
        void *same = mmap(m->base, m->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, m->fd, 0);
        (void)same;
    }
    pthread_mutex_unlock(&all_lock); /* the thread that forked has it, and is here */
}

static void watch_forks(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child))
        wefti_error("no memory to notice forks: a forked child must not write to buffers of pools or to regions");
}

/* --- opening and closing ------------------------------------------------------------------------------------------------------ */

static weft_status_t new_fd(const char *name, size_t n, int *fd_out)
{
    weft_status_t st;
    if (wefti_alloc_fails && wefti_alloc_fails(n))
        return wefti_mem_fail_errno(ENOMEM, name, n);
    /* Kernels before 6.3 do not know NOEXEC; some after it insist on it. */
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return wefti_mem_fail_errno(errno, "shared memory (memfd_create)", n);
    if (ftruncate(fd, (off_t)n) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
        st = wefti_mem_fail_errno(errno, "shared memory (a memfd)", n);
        close(fd);
        return st;
    }
    *fd_out = fd;
    return WEFT_OK;
}

/* No seal is added after this. Kernels before 5.1 have no seal against writers to come; then the rule about /proc is all there is. */
static void seal(int fd, bool read_only)
{
    if (!read_only || fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);
}

weft_status_t wefti_memfd_open(wefti_memfd_t *m, const char *name, size_t n, bool read_only)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    weft_status_t st = new_fd(name, n, &m->fd);
    if (st)
        return st;
    void *base = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (base == MAP_FAILED) {
        st = wefti_mem_fail_errno(errno, "shared memory (mapping it)", n);
        close(m->fd);
        return st;
    }
    seal(m->fd, read_only);
    m->base = base;
    m->n = n;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&all_lock);
    wefti_list_push_back(&all, &m->fork_link);
    pthread_mutex_unlock(&all_lock);
    return WEFT_OK;
}

static void forget(wefti_memfd_t *m)
{
    pthread_mutex_lock(&all_lock);
    wefti_list_remove(&m->fork_link);
    pthread_mutex_unlock(&all_lock);
}

void wefti_memfd_close(wefti_memfd_t *m)
{
    forget(m);
    munmap(m->base, m->n);
    close(m->fd);
}

void wefti_memfd_keep(wefti_memfd_t *m)
{
    forget(m);
    /* as in_child() does it: from now on nobody else's writes show where this process writes, nor its own elsewhere */
    void *same = mmap(m->base, m->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, m->fd, 0);
    (void)same; /* if it fails, it stays as it was: shared with children */
    close(m->fd);
}

/* --- replacing ---------------------------------------------------------------------------------------------------------------- */

/* By pwrite() and not by memcpy(), so that no memory is an error and not a signal. */
static weft_status_t copy_range(int to, const wefti_memfd_t *m, size_t at, size_t end)
{
    while (at < end) {
        ssize_t did = pwrite(to, (const char *)m->base + at, end - at, (off_t)at);
        if (did < 0 && errno == EINTR)
            continue;
        if (did <= 0)
            return wefti_mem_fail_errno(did && errno != ENOSPC ? errno : ENOMEM, "shared memory (a copy of it)", m->n);
        at += (size_t)did;
    }
    return WEFT_OK;
}

/* Holes stay holes: a sparse region is as long as its address space, and the copy must not fill it. */
static weft_status_t copy_data(int to, const wefti_memfd_t *m, size_t from, size_t end)
{
    weft_status_t st = WEFT_OK;
    while (from < end && !st) {
        off_t data = lseek(m->fd, (off_t)from, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* nothing but a hole is left */
        if (data < 0)
            return wefti_mem_fail_errno(errno, "shared memory (looking for its data)", m->n);
        off_t hole = lseek(m->fd, data, SEEK_HOLE);
        if (hole < 0)
            return wefti_mem_fail_errno(errno, "shared memory (looking for its holes)", m->n);
        size_t at = (size_t)data, upto = (size_t)hole < end ? (size_t)hole : end;
        if (at >= end)
            break;
        st = copy_range(to, m, at, upto);
        from = upto;
    }
    return st;
}

weft_status_t wefti_memfd_replace(wefti_memfd_t *m, const char *name, const void *head, size_t head_n, size_t from, size_t end)
{
    int fd;
    weft_status_t st = new_fd(name, m->n, &fd);
    if (st)
        return st;
    if (head_n && pwrite(fd, head, head_n, 0) != (ssize_t)head_n)
        st = wefti_mem_fail_errno(ENOMEM, "shared memory (its head)", m->n);
    if (!st)
        st = copy_data(fd, m, from, end);
    if (!st) {
        pthread_mutex_lock(&all_lock); /* a child must find the descriptor of what is mapped */
        void *base = mmap(m->base, m->n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (base == MAP_FAILED) {
            st = wefti_mem_fail_errno(errno, "shared memory (mapping it in place of another)", m->n);
        } else {
            int old = m->fd;
            seal(fd, false);
            m->base = base; /* as before */
            m->fd = fd;
            fd = old;
        }
        pthread_mutex_unlock(&all_lock);
    }
    close(fd);
    return st;
}
