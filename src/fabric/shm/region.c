/* fabric/shm/region.c - shared memory that leaves nothing behind, and how that of others is opened.
 *
 * A region is a memfd: it has no name in any file system, and the kernel frees it with the last process that has it open. The
 * peer opens it as /proc/PID/fd/N, which the kernel allows to the same user only, and only as long as the owner keeps the
 * descriptor.
 *
 * What such a path leads to is chosen by the peer. Opening a file can have effects (devices), and so can closing it: a process
 * loses its POSIX locks on a file when it closes any descriptor of it. So it is looked at first, without opening it: by its
 * name, which only memfds of ours have, then held with O_PATH, then by inode. Only then is it opened, through what is held, to
 * read; by its seals and size it is a region; and only then is it opened to write, where that is wanted.
 *
 * Promise: nothing but a memfd named as ours are, or a pipe with the inode it should have, is ever opened; touching a mapped
 * region never raises SIGBUS: one that could shrink is not mapped. tests/wire/fabric_shm_door.c (addresses that are nonsense)
 * and fabric_map.c (map handles) hold us to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "fabric/shm/internal.h"

#define SHMEM_MAGIC 0x01021994     /* TMPFS_MAGIC of linux/magic.h */
#define REGION_NAME "/memfd:weft-" /* how the link of every region in /proc begins: of ours here, of pools and of remote memory */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* whose: for the sentence that says what went wrong. */
static weft_status_t map_fd(int fd, size_t size, int prot, const char *whose, void **map_out)
{
    void *map = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "mapping %zu bytes of %s: %s", size, whose, strerror(errno));
    *map_out = map;
    return WEFT_OK;
}

/* --- ours --------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_region_fixed(const char *name, const void *bytes, size_t n, wefti_region_t *region_out)
{
    struct stat info;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (bytes ? F_SEAL_WRITE : 0);
    /* Kernels before 6.3 do not know NOEXEC; some after it insist on it. */
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "shared memory (memfd_create): %s", strerror(errno));
    bool filled = bytes ? pwrite(fd, bytes, n, 0) == (ssize_t)n : !ftruncate(fd, (off_t)n);
    if (!filled || fcntl(fd, F_ADD_SEALS, seals) || fstat(fd, &info)) {
        weft_status_t st =
            wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "shared memory of %zu bytes: %s", n, strerror(errno));
        close(fd);
        return st;
    }
    *region_out = (wefti_region_t){fd, (uint64_t)info.st_ino};
    return WEFT_OK;
}

weft_status_t wefti_region_new(const char *name, size_t size, wefti_region_t *region_out, void **map_out)
{
    wefti_region_t region;
    weft_status_t st = wefti_region_fixed(name, NULL, size, &region);
    if (st)
        return st;
    st = map_fd(region.fd, size, PROT_READ | PROT_WRITE, "shared memory", map_out);
    if (st)
        close(region.fd);
    else
        *region_out = region;
    return st;
}

/* --- what belongs to others --------------------------------------------------------------------------------------- */

/* Open anew what we have open, or hold with O_PATH. NONBLOCK, NOCTTY: in case it is not what we take it for. */
static int reopen(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

static bool begins_with(const char *path, const char *begin)
{
    char name[64];
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n < 0 ? 0 : n] = 0;
    return n >= 0 && !strncmp(name, begin, strlen(begin));
}

/* Take hold of descriptor `fd` of process `pid` without opening it: what it is called must begin with `begin`. The name comes
 * first, since even to hold a file of a network can take long; and once more when it is held, since the number may be another
 * file's by then. */
static weft_status_t hold(pid_t pid, int fd, const char *begin, int *held_out)
{
    char theirs[64], own[64];
    snprintf(theirs, sizeof theirs, "/proc/%d/fd/%d", (int)pid, fd);
    errno = 0;
    if (!begins_with(theirs, begin))
        return wefti_fail(wefti_errno_limit(errno, WEFT_ERR_UNREACHABLE), "%s is not the peer's \"%s\": %s", theirs, begin,
                          errno ? strerror(errno) : "it is something else");
    int held = open(theirs, O_PATH | O_CLOEXEC);
    if (held < 0)
        return wefti_fail(wefti_errno_limit(errno, WEFT_ERR_UNREACHABLE), "opening %s of the peer: %s", theirs, strerror(errno));
    snprintf(own, sizeof own, "/proc/self/fd/%d", held);
    if (!begins_with(own, begin)) {
        close(held);
        return wefti_fail(WEFT_ERR_UNREACHABLE, "%s became something else than the peer's \"%s\"", theirs, begin);
    }
    *held_out = held;
    return WEFT_OK;
}

static bool has_inode(int fd, uint64_t ino, mode_t type)
{
    struct stat info;
    return !fstat(fd, &info) && (info.st_mode & S_IFMT) == type && (uint64_t)info.st_ino == ino;
}

/* Memory of huge pages could be taken away again by punching holes, when there are no others to put there: not for us. */
weft_status_t wefti_region_check(int fd, size_t size, bool write, uint64_t *ino_out)
{
    struct stat info;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS), never = write ? F_SEAL_WRITE | F_SEAL_FUTURE_WRITE : 0;
    if (seals < 0 || fstat(fd, &info) || fstatfs(fd, &fs) || fs.f_type != SHMEM_MAGIC)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "descriptor %d is not a memfd of ordinary pages", fd);
    *ino_out = (uint64_t)info.st_ino;
    if (!(seals & F_SEAL_SHRINK) || info.st_size < 0 || (uint64_t)info.st_size < size)
        return wefti_fail(WEFT_ERR_INVALID, "descriptor %d is not sealed against shrinking with at least %zu bytes in it", fd,
                          size);
    if (seals & never)
        return wefti_fail(WEFT_ERR_INVALID, "descriptor %d is sealed against writing", fd);
    return WEFT_OK;
}

/* Open a region of another process, to read, if it is the one it should be. */
static weft_status_t open_region(pid_t pid, int fd, uint64_t ino, size_t size, bool write, int *fd_out)
{
    uint64_t got_ino = 0;
    int held;
    weft_status_t st = hold(pid, fd, REGION_NAME, &held);
    if (st)
        return st;
    bool same = has_inode(held, ino, S_IFREG);
    int got = same ? reopen(held, O_RDONLY) : -1;
    if (!same) /* it was closed, and the number is something else's by now */
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "descriptor %d of process %d is not the memory it told us of", fd, (int)pid);
    else if (got < 0)
        st = wefti_fail(wefti_errno_limit(errno, WEFT_ERR_UNREACHABLE), "opening descriptor %d of process %d: %s", fd, (int)pid,
                        strerror(errno));
    close(held);
    if (st)
        return st;
    weft_status_t is = wefti_region_check(got, size, write, &got_ino);
    if (!is) {
        *fd_out = got;
        return WEFT_OK;
    }
    close(got);
    return wefti_fail(is == WEFT_ERR_UNSUPPORTED ? WEFT_ERR_UNREACHABLE : WEFT_ERR_PROTOCOL,
                      "descriptor %d of process %d is not sealed memory of %zu bytes%s", fd, (int)pid, size,
                      write ? " that can be written to" : "");
}

weft_status_t wefti_region_view(pid_t pid, int fd, uint64_t ino, size_t size, bool write, void **map_out)
{
    int got;
    weft_status_t st = open_region(pid, fd, ino, size, write, &got);
    if (st)
        return st;
    int use = write ? reopen(got, O_RDWR) : got;
    if (use < 0)
        st = wefti_fail(wefti_errno_limit(errno, WEFT_ERR_UNREACHABLE), "opening descriptor %d of process %d to write: %s", fd,
                        (int)pid, strerror(errno));
    else
        st = map_fd(use, size, write ? PROT_READ | PROT_WRITE : PROT_READ, "the peer's memory", map_out);
    if (use >= 0 && use != got)
        close(use);
    close(got);
    return st;
}

weft_status_t wefti_region_read(pid_t pid, int fd, uint64_t ino, void *buf, size_t n)
{
    int got;
    weft_status_t st = open_region(pid, fd, ino, n, false, &got);
    if (st)
        return st;
    if (pread(got, buf, n, 0) != (ssize_t)n)
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "reading descriptor %d of process %d: %s", fd, (int)pid, strerror(errno));
    close(got);
    return st;
}

/* --- pipes -------------------------------------------------------------------------------------------------------- */

weft_status_t wefti_pipe_new(int *fd_out, uint64_t *ino_out)
{
    int ends[2];
    struct stat info;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        return wefti_fail(wefti_errno_limit(errno, WEFT_ERR_SYSTEM), "pipe: %s", strerror(errno));
    /* One descriptor for both ends. */
    int fd = reopen(ends[0], O_RDWR);
    int err = errno;
    close(ends[0]);
    close(ends[1]);
    if (fd < 0 || fstat(fd, &info)) {
        if (fd >= 0)
            close(fd);
        return wefti_fail(wefti_errno_limit(err, WEFT_ERR_SYSTEM), "opening a pipe: %s", strerror(err));
    }
    *fd_out = fd;
    *ino_out = (uint64_t)info.st_ino;
    return WEFT_OK;
}

weft_status_t wefti_pipe_open(pid_t pid, int fd, uint64_t ino, int *fd_out)
{
    int held;
    weft_status_t st = hold(pid, fd, "pipe:[", &held);
    if (st)
        return st;
    int got = has_inode(held, ino, S_IFIFO) ? reopen(held, O_RDWR) : -1;
    if (got < 0)
        st = wefti_fail(wefti_errno_limit(errno, WEFT_ERR_UNREACHABLE),
                        "descriptor %d of process %d is not the pipe it told us of", fd, (int)pid);
    else
        *fd_out = got;
    close(held);
    return st;
}

void wefti_region_unmap(void *map, size_t size)
{
    if (map)
        munmap(map, size);
}
