/* fabric/shm/expose.c - memory that the peer of a lane maps, to read and write.
 *
 *     owner                                        peer
 *     expose(memfd): map handle {fd, inode, n} ~~>  map(handle): opens /proc/PID/fd/N of the lane's peer, and maps all of it
 *
 * The map handle travels in records of the rooms above. It is of no use to anybody else: the kernel lets only the same user open
 * a process's descriptors, and the process is always the one at the other end of the lane. What is found there must be the memfd
 * that the map handle names (by inode, since descriptor numbers are used again), sealed against shrinking, long enough, and not
 * sealed against writing.
 *
 * There is no state. When the owner closes its descriptor, its map handles are of no use any more. What is mapped by then stays
 * until the mapper unmaps it, even after the lane, the transport and the owner are gone.
 *
 * Promise: what is mapped is the memory that was exposed, touching it never raises SIGBUS, and a map() that fails leaves nothing
 * behind. tests/wire/fabric_map.c holds us to it. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "fabric/shm/internal.h"

#define MAP_HANDLE_MAGIC UINT32_C(0x314b4354) /* "TCK1" */

typedef struct map_handle {
    uint32_t magic;
    int32_t fd;
    uint64_t ino, n;
} map_handle_t;
_Static_assert(sizeof(map_handle_t) <= WEFTI_MAP_HANDLE_MAX, "it fits");

size_t wefti_shm_expose(wefti_lane_t *l, int fd, size_t n, void *buf)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    map_handle_t handle = {.magic = MAP_HANDLE_MAGIC, .fd = fd, .n = n};
    if (lane->state != WEFTI_SHM_LANE_UP || fd < 0 || !n || wefti_region_check(fd, n, true, &handle.ino))
        return 0;
    memcpy(buf, &handle, sizeof handle);
    return sizeof handle;
}

weft_status_t wefti_shm_map(wefti_lane_t *l, const void *bytes, size_t bytes_n, size_t n, void **ptr_out)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    map_handle_t handle = {0};
    if (bytes_n == sizeof handle)
        memcpy(&handle, bytes, sizeof handle);
    wefti_shm_copied(); /* it may lie in the ring */
    if (handle.magic != MAP_HANDLE_MAGIC || handle.fd < 0 || !n || handle.n != n)
        return wefti_fail(WEFT_ERR_PROTOCOL, "%zu bytes that are no map handle for a mapping of %zu bytes", bytes_n, n);
    if (lane->state != WEFTI_SHM_LANE_UP)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the lane is not up: its peer's memory cannot be mapped");
    return wefti_region_view(lane->peer->at.pid, handle.fd, handle.ino, n, true, ptr_out);
}

/* --- descriptors ------------------------------------------------------------------------------------------------------------ */

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

int wefti_shm_take_fd(wefti_lane_t *l, int fd)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    if (lane->state != WEFTI_SHM_LANE_UP || fd < 0)
        return -1;
    int process = (int)syscall(SYS_pidfd_open, lane->peer->at.pid, 0u); /* closed in a child that runs another program */
    if (process < 0)
        return -1;
    /* While this is open its number means no other process; but is it the peer's, or one that came after it? */
    int taken = wefti_shm_probe(&lane->peer->at) ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0u);
    close(process);
    return taken;
}
