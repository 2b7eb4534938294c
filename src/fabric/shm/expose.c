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
#include "base/bytes.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

#define MAP_HANDLE_MAGIC UINT32_C(0x314b4354) /* "TCK1" */

size_t wefti_shm_expose(wefti_lane_t *l, int fd, size_t n, void *map_handle)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    uint64_t ino;
    if (lane->state != WEFTI_SHM_LANE_UP || fd < 0 || !n || wefti_region_check(fd, n, true, &ino))
        return 0;
    wefti_writer_t w = wefti_writer(map_handle, WEFTI_MAP_HANDLE_MAX);
    wefti_put_u32(&w, MAP_HANDLE_MAGIC);
    wefti_put_u32(&w, (uint32_t)fd);
    wefti_put_u64(&w, ino);
    wefti_put_u64(&w, n);
    return (size_t)(w.at - (uint8_t *)map_handle);
}

weft_status_t wefti_shm_map(wefti_lane_t *l, const void *map_handle, size_t map_handle_n, size_t n, void **ptr_out)
{
    const wefti_shm_lane_t *lane = (const wefti_shm_lane_t *)l;
    wefti_reader_t rd = wefti_reader(map_handle, map_handle_n);
    uint32_t magic = wefti_get_u32(&rd), fd = wefti_get_u32(&rd);
    uint64_t ino = wefti_get_u64(&rd), bytes = wefti_get_u64(&rd);
    wefti_shm_copied(); /* it may lie in the ring */
    if (rd.bad || wefti_reader_left(&rd) || magic != MAP_HANDLE_MAGIC || fd > INT32_MAX || !n || bytes != n)
        return wefti_fail(WEFT_ERR_PROTOCOL, "%zu bytes that are no map handle for a mapping of %zu bytes", map_handle_n, n);
    if (lane->state != WEFTI_SHM_LANE_UP)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the lane is not up: its peer's memory cannot be mapped");
    return wefti_region_view(lane->peer->at.pid, (int)fd, ino, n, true, ptr_out);
}

void wefti_shm_unmap(void *ptr, size_t n)
{
    wefti_region_unmap(ptr, n);
}
