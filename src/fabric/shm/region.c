/* fabric/shm/region.c - shared memory that leaves nothing behind.
 *
 * A region is a memfd: it has no name in any file system and is gone with the last process that has it. The peer opens it as
 * /proc/PID/fd/N, which the kernel allows to the same user only, and only as long as the owner keeps the descriptor.
 *
 * Promise: touching a mapped region never raises SIGBUS. That is what the seals are for: a region that could shrink is not
 * mapped. tests/wire/fabric_shm_hostile.c (addresses that are nonsense) and fabric_map.c (tickets) hold us to it. */
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

#define SHMEM_MAGIC 0x01021994 /* TMPFS_MAGIC of linux/magic.h */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static weft_status_t status_of_errno(int err, weft_status_t otherwise)
{
    return err == EMFILE || err == ENFILE ? WEFT_ERR_LIMIT : err == ENOMEM ? WEFT_ERR_NOMEM : otherwise;
}

/* whose: for the sentence that says what went wrong. */
static weft_status_t map_fd(int fd, size_t size, int prot, const char *whose, void **map_out)
{
    void *map = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return wefti_fail(status_of_errno(errno, WEFT_ERR_SYSTEM), "mapping %zu bytes of %s: %s", size, whose, strerror(errno));
    *map_out = map;
    return WEFT_OK;
}

weft_status_t wefti_region_new(const char *name, size_t size, int *fd_out, void **map_out)
{
    weft_status_t st;
    /* Kernels before 6.3 do not know NOEXEC; some after it insist on it. */
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return wefti_fail(status_of_errno(errno, WEFT_ERR_SYSTEM), "shared memory (memfd_create): %s", strerror(errno));
    if (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        st = wefti_fail(status_of_errno(errno, WEFT_ERR_SYSTEM), "shared memory of %zu bytes: %s", size, strerror(errno));
        goto err_close;
    }
    st = map_fd(fd, size, PROT_READ | PROT_WRITE, "shared memory", map_out);
    if (st)
        goto err_close;
    *fd_out = fd;
    return WEFT_OK;

err_close:
    close(fd);
    return st;
}

weft_status_t wefti_proc_fd_open(pid_t pid, int fd, int flags, int *fd_out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    /* NONBLOCK, NOCTTY: what a peer calls its region may be anything. */
    int got = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (got < 0)
        return wefti_fail(status_of_errno(errno, WEFT_ERR_UNREACHABLE), "opening %s of the peer: %s", path, strerror(errno));
    *fd_out = got;
    return WEFT_OK;
}

weft_status_t wefti_region_open(pid_t pid, int fd, size_t size, void **map_out)
{
    struct stat info;
    int got;
    weft_status_t st = wefti_proc_fd_open(pid, fd, O_RDWR, &got);
    if (st)
        return st;
    int seals = fcntl(got, F_GET_SEALS);
    if (fstat(got, &info) || !S_ISREG(info.st_mode) || seals < 0 || !(seals & F_SEAL_SHRINK) || (uint64_t)info.st_size != size)
        st = wefti_fail(WEFT_ERR_PROTOCOL, "descriptor %d of process %d is not a sealed region of %zu bytes", fd, (int)pid, size);
    else
        st = map_fd(got, size, PROT_READ | PROT_WRITE, "the peer's memory", map_out);
    close(got);
    return st;
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

weft_status_t wefti_region_view(pid_t pid, int fd, uint64_t ino, size_t size, bool write, void **map_out)
{
    uint64_t got_ino = 0;
    int got;
    weft_status_t st = wefti_proc_fd_open(pid, fd, write ? O_RDWR : O_RDONLY, &got);
    if (st)
        return st;
    weft_status_t is = wefti_region_check(got, size, write, &got_ino);
    if (is == WEFT_ERR_UNSUPPORTED || got_ino != ino) /* it was closed, and the number is something else's by now */
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "descriptor %d of process %d is not the memory it told us of", fd, (int)pid);
    else if (is)
        st = wefti_fail(WEFT_ERR_PROTOCOL, "descriptor %d of process %d is not sealed memory of %zu bytes%s", fd, (int)pid, size,
                        write ? " that can be written to" : "");
    else
        st = map_fd(got, size, write ? PROT_READ | PROT_WRITE : PROT_READ, "the peer's memory", map_out);
    close(got);
    return st;
}

void wefti_region_unmap(void *map, size_t size)
{
    if (map)
        munmap(map, size);
}
