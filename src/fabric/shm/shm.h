/* fabric/shm/shm.h - the shared-memory transport, for peers of one host and one user: the door for fabric/real.c.
 *
 * Opening it is cheap and opens nothing; the first lane does. All functions belong to the thread that drives the runtime,
 * except share and unshare. */
#ifndef WEFTI_SHM_H
#define WEFTI_SHM_H

#include "fabric/fabric.h"

/* `config` is not kept. WEFT_ERR_INVALID: shm_ring is not a power of two; WEFT_ERR_NOMEM. */
weft_status_t wefti_shm_open(wefti_fabric_t *f, const wefti_config_t *config, wefti_transport_t **transport_out);
/* As in wefti_transport_ops_t. */
void wefti_shm_close(wefti_transport_t *transport);
weft_status_t wefti_shm_arm(wefti_transport_t *transport);
/* Awake again. Does nothing when not armed. */
void wefti_shm_disarm(wefti_transport_t *transport);
/* Number of events. No system call while only records move. */
unsigned wefti_shm_progress(wefti_transport_t *transport);

/* share() and unshare() of the fabric; any thread. *id_out is 0, and there is nothing to unshare, where peers could not map it:
 * huge pages. WEFT_ERR_INVALID: no range, not sealed, or it overlaps another; WEFT_ERR_LIMIT, _NOMEM. */
weft_status_t wefti_shm_share(wefti_transport_t *transport, void *base, size_t n, int fd, uint64_t *id_out);
void wefti_shm_unshare(wefti_transport_t *transport, uint64_t id);

#endif
