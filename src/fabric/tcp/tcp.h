/* fabric/tcp/tcp.h - the tcp transport, for fabric/real.c only. */
#ifndef WEFTI_TCP_H
#define WEFTI_TCP_H

#include "fabric/fabric.h"
#include "fabric/tls.h"

/* Make the transport. config->interfaces says which devices' addresses it listens at; it is copied. `guard` is for lanes of wires
 * with TLS. Nothing is opened before the
 * first lane. WEFT_ERR_NOMEM. */
weft_status_t wefti_tcp_open(wefti_fabric_t *f, const wefti_config_t *config, wefti_guard_t *guard,
                             wefti_transport_t **transport_out);
/* Does it have anything that progress could move? */
bool wefti_tcp_live(const wefti_transport_t *transport);
/* busy: messages flow elsewhere, so that lanes on which nothing happened lately are looked at less often. */
unsigned wefti_tcp_progress(wefti_transport_t *transport, bool busy);
/* Its fd was readable: look who is there. */
unsigned wefti_tcp_events(wefti_transport_t *transport);

#endif
