/* fabric/ucx/ucx.h - the ucx transport, for fabric/real.c only. */
#ifndef WEFTI_UCX_H
#define WEFTI_UCX_H

#include "fabric/fabric.h"

/* Make the transport. `tls` is what UCX gets as its list of transports ("": whatever it has); config->interfaces becomes its
list of devices. Both are
 * copied. UCX itself is opened by the first lane. WEFT_ERR_NOMEM. */
weft_status_t wefti_ucx_open(wefti_fabric_t *f, const wefti_config_t *config, const char *tls, wefti_transport_t **transport_out);
/* All lanes have been closed and have said so. */
void wefti_ucx_close(wefti_transport_t *transport);

/* Does it have anything that progress could move? */
bool wefti_ucx_live(const wefti_transport_t *transport);
unsigned wefti_ucx_progress(wefti_transport_t *transport);
/* WEFT_OK: an event will make the fd readable. WEFT_ERR_AGAIN: progress first. */
weft_status_t wefti_ucx_arm(wefti_transport_t *transport);
void wefti_ucx_disarm(wefti_transport_t *transport);
/* -1 until UCX is open. It then stays the same until close. */
int wefti_ucx_fd(const wefti_transport_t *transport);

/* Register a range, unregister it; any thread. *reg_out is NULL while UCX is not open. WEFT_ERR_NOMEM, _SYSTEM. */
weft_status_t wefti_ucx_mem_register(wefti_transport_t *transport, void *base, size_t n, void **reg_out);
void wefti_ucx_mem_unregister(wefti_transport_t *transport, void *reg);

/* Is this a name that UCX's list of transports knows (on some machine)? */
bool wefti_ucx_transport_known(const char *name, size_t n);
/* Facts: the UCX that runs, the one whose headers we were built with, and the transports it finds here, separated by spaces. */
const char *wefti_ucx_version(void);
const char *wefti_ucx_built_with(void);
void wefti_ucx_transports(char *buf, size_t cap);

#endif
