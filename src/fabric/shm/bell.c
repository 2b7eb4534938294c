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
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

weft_status_t wefti_bell_open(wefti_shm_transport_t *r)
{
    int wake_fd = -1;
    void *map;
    weft_status_t st = wefti_pipe_new(&wake_fd, &r->wake_ino);
    if (st)
        return st;
    st = wefti_region_new("weft-bell", sizeof(wefti_bell_t), &r->bell_at, &map);
    if (st)
        goto err_pipe;
    r->transport.fabric->ops->random(r->transport.fabric, &r->probe, sizeof r->probe);
    r->bell = map;
    r->self = (wefti_shm_peer_t){.bell = r->bell,
                                 .wake_fd = wake_fd,
                                 .pid = getpid(),
                                 .nonce = r->probe,
                                 .probe_at = (uint64_t)(uintptr_t)&r->probe,
                                 .readable = true,
                                 .refs = 1};
    wefti_shm_barriers_open(r);
    return WEFT_OK;

err_pipe:
    close(wake_fd);
    return st;
}

void wefti_bell_close(wefti_shm_transport_t *r)
{
    if (!r->bell)
        return;
    wefti_region_unmap(r->bell, sizeof *r->bell);
    close(r->bell_at.fd);
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

weft_status_t wefti_shm_probe(pid_t pid, uint64_t at, uint64_t nonce)
{
    uint64_t seen = 0;
    struct iovec local = {&seen, sizeof seen}, remote = {(void *)(uintptr_t)at, sizeof seen};
    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof seen)
        return seen == nonce ? WEFT_OK : WEFT_ERR_PEER;
    return errno == EPERM || errno == ENOSYS || errno == EACCES ? WEFT_ERR_UNSUPPORTED : WEFT_ERR_PEER;
}

/* Map the bell of another runtime and open its pipe. Everything in `addr` came from outside. */
static weft_status_t peer_open(wefti_shm_transport_t *r, const wefti_shm_peer_addr_t *addr, wefti_shm_peer_t *peer)
{
    void *map;
    int wake_fd;
    weft_status_t st = wefti_region_view((pid_t)addr->pid, (int)addr->bell_fd, addr->bell_ino, sizeof(wefti_bell_t), true, &map);
    if (st)
        return st;
    st = wefti_pipe_open((pid_t)addr->pid, (int)addr->wake_fd, addr->wake_ino, &wake_fd);
    if (st)
        goto err_unmap;
    weft_status_t probed = r->copy_ring ? WEFT_ERR_UNSUPPORTED : wefti_shm_probe((pid_t)addr->pid, addr->probe_at, addr->nonce);
    if (probed == WEFT_ERR_PEER) {
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "process %u went away, or gave a wrong address of its memory", addr->pid);
        goto err_close;
    }
    if (probed == WEFT_ERR_UNSUPPORTED && !r->copy_ring)
        wefti_info("shm: not allowed to read the memory of process %u: large messages go through the ring", addr->pid);
    *peer = (wefti_shm_peer_t){.bell = map,
                               .wake_fd = wake_fd,
                               .pid = (pid_t)addr->pid,
                               .bell_ino = addr->bell_ino,
                               .wake_ino = addr->wake_ino,
                               .nonce = addr->nonce,
                               .probe_at = addr->probe_at,
                               .readable = probed == WEFT_OK,
                               .refs = 1};
    return WEFT_OK;

err_close:
    close(wake_fd);
err_unmap:
    wefti_region_unmap(map, sizeof(wefti_bell_t));
    return st;
}

static bool is_the_one(const wefti_shm_peer_t *peer, const wefti_shm_peer_addr_t *addr)
{
    return peer->pid == (pid_t)addr->pid && peer->probe_at == addr->probe_at && peer->bell_ino == addr->bell_ino &&
           peer->wake_ino == addr->wake_ino;
}

/* A peer that claims the nonce of another gets an entry of its own, and changes nothing of the other's. */
weft_status_t wefti_shm_peer_hold(wefti_shm_transport_t *r, const wefti_shm_peer_addr_t *addr, wefti_shm_peer_t **peer_out)
{
    wefti_shm_peer_t *known = wefti_map_get(&r->peers, addr->nonce);
    if (known && is_the_one(known, addr)) {
        known->refs++;
        *peer_out = known;
        return WEFT_OK;
    }
    wefti_shm_peer_t *peer = wefti_calloc(1, sizeof *peer);
    if (!peer)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a peer");
    weft_status_t st = peer_open(r, addr, peer);
    if (st)
        goto err_free;
    st = known ? WEFT_OK : wefti_map_put(&r->peers, addr->nonce, peer);
    if (st)
        goto err_peer;
    *peer_out = peer;
    return WEFT_OK;

err_peer:
    wefti_region_unmap(peer->bell, sizeof(wefti_bell_t));
    close(peer->wake_fd);
err_free:
    wefti_free(peer);
    return st;
}

void wefti_shm_peer_drop(wefti_shm_transport_t *r, wefti_shm_peer_t *peer)
{
    if (--peer->refs)
        return;
    if (wefti_map_get(&r->peers, peer->nonce) == peer)
        wefti_map_take(&r->peers, peer->nonce);
    wefti_region_unmap(peer->bell, sizeof(wefti_bell_t));
    close(peer->wake_fd);
    wefti_map_free(&peer->arenas); /* empty: arenas are known to lanes */
    wefti_free(peer);
}
