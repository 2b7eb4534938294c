/* mem/memfd.c - memory in one piece that other processes can be let map: a memfd, and what becomes of it in a forked child.
 *
 * It has no name in any file system and is gone with the last process that has it. It is sealed, so that it can neither shrink
 * nor grow: a peer that maps it cannot be hit by SIGBUS for its end. Pages cost nothing until they are touched. Where others
 * are to read it only, it is sealed against that too once it is mapped here: what was checked in it is as it was, whoever
 * opens it.
 *
 * Fork: a shared mapping stays one memory in parent and child, and a child that writes to what it takes for its own copy of a
 * buffer would change the parent's message on its way. Keeping the range out of the child (MADV_DONTFORK) is no answer, since
 * programs fork to read what they have in memory. So the child maps each one anew before fork() returns to it, at the
 * same address and privately: what it writes is its own from then on, and what it has not written still shows the parent's
 * memory, as it is now and as it changes, and zero once the parent has given it back. A child that needs a buffer as it was
 * copies it first. Children that are not made by fork() (vfork, posix_spawn) run another program at once.
 *
 * Promise: a failed call leaves everything as it was; a child's writes never reach its parent; whoever has the memory mapped
 * that was replaced sees and changes nothing of what took its place, piece by piece. tests/unit/mem_pool.c and rma_share.c. */
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

/* --- forks ------------------------------------------------------------------------------------------------------------------ */

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

static bool map_part(const wefti_memfd_t *m, int fd, size_t from, size_t end, int flags)
{
    void *want = (char *)m->base + from, *got = want;
    if (from < end)
        got = mmap(want, end - from, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, (off_t)from);
    return got == want;
}

/* Nothing to be done if it fails: then it stays shared, and what a child does wrong may reach its parent. */
static void map_privately(const wefti_memfd_t *m)
{
    bool half = m->next >= 0; /* it is being replaced */
    (void)map_part(m, m->fd, 0, half ? m->from : m->n, MAP_PRIVATE);
    if (!half)
        return;
    (void)map_part(m, m->next, m->from, m->moved, MAP_PRIVATE);
    (void)map_part(m, m->fd, m->moved, m->n, MAP_PRIVATE);
}

static void in_child(void)
{
    wefti_list_each(it, &all)
        map_privately(wefti_container_of(it, wefti_memfd_t, fork_link));
    pthread_mutex_unlock(&all_lock); /* the thread that forked has it, and is here */
}

static void watch_forks(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child))
        wefti_error("no memory to notice forks: a forked child must not write to buffers of pools or to regions");
}

/* --- opening and closing ---------------------------------------------------------------------------------------------------- */

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

/* No seal is added after this. Kernels before 5.1 have no seal against writers to come; then the rule about /proc is all there
 * is. */
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
    m->next = -1;
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

static void close_fds(const wefti_memfd_t *m)
{
    close(m->fd);
    if (m->next >= 0)
        close(m->next);
}

void wefti_memfd_close(wefti_memfd_t *m)
{
    forget(m);
    munmap(m->base, m->n);
    close_fds(m);
}

void wefti_memfd_keep(wefti_memfd_t *m)
{
    forget(m);
    map_privately(m); /* from now on nobody else's writes show where this process writes, nor its own elsewhere */
    close_fds(m);
}

/* --- giving back, replacing ------------------------------------------------------------------------------------------------- */

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

static size_t whole_pages(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

#define COPY_SEEK (16u << 10) /* what it costs to look for data, in bytes that could have been copied */

/* Where data begins, from `at` on; `end`: nothing but a hole is left. */
static weft_status_t next_data(const wefti_memfd_t *m, size_t at, size_t end, size_t *data_out)
{
    off_t data = lseek(m->fd, (off_t)at, SEEK_DATA);
    if (data < 0 && errno != ENXIO)
        return wefti_mem_fail_errno(errno, "shared memory (looking for its data)", m->n);
    *data_out = data >= 0 && (size_t)data < end ? (size_t)data : end;
    return WEFT_OK;
}

/* Copy what is there from *at on, about n bytes of it, and move *at on. Holes stay holes: a sparse region is as long as its
 * address space, and the copy must not fill it. Page by page, since looking for the end of much data (SEEK_HOLE) looks at all
 * of it. */
static weft_status_t copy_some(const wefti_memfd_t *m, size_t *at, size_t end, size_t n)
{
    size_t from = *at, upto = *at, data = *at, page = whole_pages(1);
    weft_status_t st = WEFT_OK;
    for (size_t done = 0; upto < end && done < n && !st;) {
        st = next_data(m, upto, end, &data);
        if (!st && data != upto) { /* a hole: what was before it is one run */
            st = copy_range(m->next, m, from, upto);
            done += COPY_SEEK;
            from = upto = data;
        } else if (!st) {
            upto += page < end - upto ? page : end - upto;
            done += page;
        }
    }
    if (!st)
        st = copy_range(m->next, m, from, upto);
    if (!st)
        *at = upto;
    return st;
}

/* Where it does not work, the close gives it back. */
static void punch(int fd, size_t at, size_t end)
{
    if (at < end)
        (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)(end - at));
}

bool wefti_memfd_empty(wefti_memfd_t *m, size_t *from, size_t n)
{
    size_t at = *from;
    if (m->next < 0 && next_data(m, *from, m->n, &at))
        at = *from;
    size_t end = whole_pages(n) < m->n - at ? at + whole_pages(n) : m->n;
    punch(m->fd, at, end);
    if (m->next >= 0)
        punch(m->next, at, end);
    *from = end;
    return end < m->n;
}

static weft_status_t replace_begin(wefti_memfd_t *m, const char *name, const void *head, size_t head_n, size_t from)
{
    int fd;
    weft_status_t st = new_fd(name, m->n, &fd);
    if (st)
        return st;
    if (head_n && pwrite(fd, head, head_n, 0) != (ssize_t)head_n) {
        close(fd);
        return wefti_mem_fail_errno(ENOMEM, "shared memory (its head)", m->n);
    }
    pthread_mutex_lock(&all_lock);
    m->next = fd;
    m->from = m->moved = whole_pages(from);
    pthread_mutex_unlock(&all_lock);
    return WEFT_OK;
}

/* All has moved but the head, with its page, and what is behind the end. */
static bool replace_rest(wefti_memfd_t *m)
{
    if (!map_part(m, m->next, m->moved, m->n, MAP_SHARED))
        return false;
    m->moved = m->n;
    if (!map_part(m, m->next, 0, m->from, MAP_SHARED))
        return false;
    int old = m->fd;
    seal(m->next, false);
    m->fd = m->next;
    m->next = -1;
    close(old); /* whoever has it mapped has it to itself */
    return true;
}

weft_status_t wefti_memfd_replace(wefti_memfd_t *m, const char *name, const void *head, size_t head_n, size_t from, size_t end,
                                  size_t n)
{
    weft_status_t st = m->next < 0 ? replace_begin(m, name, head, head_n, from) : WEFT_OK;
    size_t at = m->moved;
    if (!st && at < end)
        st = copy_some(m, &at, end, n);
    bool last = at >= end;
    if (!st && last) /* where a page has more than the head */
        st = copy_range(m->next, m, from, end < m->from ? end : m->from);
    if (st)
        return st;
    size_t was = m->moved, upto = whole_pages(at);
    pthread_mutex_lock(&all_lock); /* a child must find the descriptors of what is mapped */
    bool mapped = map_part(m, m->next, was, upto, MAP_SHARED);
    if (mapped && upto > was)
        m->moved = upto;
    if (mapped) /* so that the last close has little to do; and no more memory is needed than for two pieces */
        punch(m->fd, was, upto);
    if (mapped && last)
        mapped = replace_rest(m);
    pthread_mutex_unlock(&all_lock);
    if (!mapped)
        return wefti_mem_fail_errno(errno, "shared memory (mapping it in place of another)", m->n);
    return last ? WEFT_OK : WEFT_ERR_AGAIN;
}
