/* fabric/shm/bell.c - how a runtime that does not look at a lane learns that it should, and how a sleeping one wakes.
 *
 * The bell is a shared bitmap in two levels: looking at all of it costs one load while nothing rang. Ringing sets the lane's
 * bit, then the bit of its line, then looks at `sleeping`. The owner clears the upper bit, then the lower one, and then looks at
 * the lane; before it sleeps it sets `sleeping` and looks at the upper level. All of it is sequentially consistent, so a ring is
 * never lost.
 *
 * The wake-up itself is one byte in an anonymous pipe, which peers open through /proc like the regions: unlike a socket it needs
 * no name that strangers could know, and opened for reading and writing it never raises SIGPIPE after its owner died. Whoever
 * takes `sleeping` from 1 to 0 writes, so a sleep costs one write, however many lanes ring.
 *
 * Every peer can write all of it, so it is only a hint, and does not say who we are. A hostile peer can ring or wake us for
 * nothing, and it can clear the rings of others. That only makes those late: now and then, and before a sleep, the transport
 * looks at every lane (transport.c). tests/wire/fabric_shm_sleep.c (200,000 random sleeps) holds us to no lost wake-up,
 * fabric_shm_hostile.c to the rest. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

weft_status_t wefti_bell_open(wefti_shm_transport_t *r)
{
    wefti_shm_peer_addr_t at = {.pid = getpid(), .probe_at = (uint64_t)(uintptr_t)&r->self.at.nonce};
    wefti_region_t bell;
    void *map;
    weft_status_t st = wefti_pipe_new(&at.wake_fd, &at.wake_ino);
    if (st)
        return st;
    st = wefti_region_new("weft-bell", sizeof(wefti_bell_t), &bell, &map);
    if (st) {
        close(at.wake_fd);
        return st;
    }
    at.bell_fd = bell.fd;
    at.bell_ino = bell.ino;
    r->transport.fabric->ops->random(r->transport.fabric, &at.nonce, sizeof at.nonce);
    r->bell = map;
    r->transport.fd = at.wake_fd;
    r->self = (wefti_shm_peer_t){.bell = map, .wake_fd = at.wake_fd, .at = at, .readable = true, .refs = 1};
    wefti_shm_barriers_open(r);
    return WEFT_OK;
}

void wefti_bell_close(wefti_shm_transport_t *r)
{
    if (!r->bell)
        return;
    wefti_region_unmap(r->bell, sizeof *r->bell);
    close(r->self.at.bell_fd);
    close(r->self.wake_fd);
    r->bell = NULL;
}

void wefti_bell_wake(wefti_shm_peer_t *peer)
{
    if (!atomic_exchange(&peer->bell->sleeping, 0))
        return;
    /* A full pipe is readable, and that is all that matters. */
    while (write(peer->wake_fd, "", 1) < 0 && errno == EINTR)
        ;
}

weft_status_t wefti_shm_probe(const wefti_shm_peer_addr_t *peer)
{
    uint64_t seen = 0;
    struct iovec local = {&seen, sizeof seen}, remote = {(void *)(uintptr_t)peer->probe_at, sizeof seen};
    if (process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof seen)
        return seen == peer->nonce ? WEFT_OK : WEFT_ERR_PEER;
    return errno == EPERM || errno == ENOSYS || errno == EACCES ? WEFT_ERR_UNSUPPORTED : WEFT_ERR_PEER;
}

static void peer_close(wefti_shm_peer_t *peer)
{
    wefti_region_unmap(peer->bell, sizeof *peer->bell);
    if (peer->wake_fd >= 0)
        close(peer->wake_fd);
    wefti_map_free(&peer->arenas); /* empty: arenas are known to lanes */
    wefti_free(peer);
}

/* Map the bell of another runtime and open its pipe. Everything in `addr` came from outside. */
static weft_status_t peer_open(wefti_shm_transport_t *r, const wefti_shm_peer_addr_t *addr, wefti_shm_peer_t *peer)
{
    void *map;
    weft_status_t st = wefti_region_view(addr->pid, addr->bell_fd, addr->bell_ino, sizeof *peer->bell, true, &map);
    if (st)
        return st;
    peer->bell = map;
    st = wefti_pipe_open(addr->pid, addr->wake_fd, addr->wake_ino, &peer->wake_fd);
    if (st)
        return st;
    weft_status_t probed = r->copy_ring ? WEFT_ERR_UNSUPPORTED : wefti_shm_probe(addr);
    if (probed == WEFT_ERR_PEER)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "process %d went away, or gave a wrong address of its memory", addr->pid);
    if (probed == WEFT_ERR_UNSUPPORTED && !r->copy_ring)
        wefti_info("shm: not allowed to read the memory of process %d: large messages go through the ring", addr->pid);
    peer->readable = probed == WEFT_OK;
    return WEFT_OK;
}

/* A peer that claims the nonce of another gets an entry of its own, and changes nothing of the other's. */
weft_status_t wefti_shm_peer_hold(wefti_shm_transport_t *r, const wefti_shm_peer_addr_t *addr, wefti_shm_peer_t **peer_out)
{
    wefti_shm_peer_t *known = wefti_map_get(&r->peers, addr->nonce);
    if (known && !memcmp(&known->at, addr, sizeof *addr)) {
        known->refs++;
        *peer_out = known;
        return WEFT_OK;
    }
    wefti_shm_peer_t *peer = wefti_calloc(1, sizeof *peer);
    if (!peer)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a peer");
    peer->wake_fd = -1;
    peer->at = *addr;
    peer->refs = 1;
    weft_status_t st = peer_open(r, addr, peer);
    if (!st && !known)
        st = wefti_map_put(&r->peers, addr->nonce, peer);
    if (st) {
        peer_close(peer);
        return st;
    }
    *peer_out = peer;
    return WEFT_OK;
}

void wefti_shm_peer_drop(wefti_shm_transport_t *r, wefti_shm_peer_t *peer)
{
    if (--peer->refs)
        return;
    if (wefti_map_get(&r->peers, peer->at.nonce) == peer)
        wefti_map_take(&r->peers, peer->at.nonce);
    peer_close(peer);
}
