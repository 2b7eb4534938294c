/* conn/relay.h - memory that the two sides of a connection on one host share, for chunks on their way from or to a device:
 * relay.c, chunk_out.c, chunk_in.c.
 *
 * The sender copies a chunk into a slot of its relay, and the receiver copies it out of there, each with its device: neither the
 * fabric nor a processor touches the bytes. Records (docs/design/wire.md):
 *
 *   RELAY        sender -> receiver  map this memory
 *   RELAY_ANSWER receiver -> sender  it is mapped, or cannot be
 *   PLACED       sender -> receiver  a chunk lies in a slot
 *   EMPTIED      receiver -> sender  that chunk is not needed any more
 *
 * One for each direction of an endpoint's lane, made when the first payload wants it. Driver only. */
#ifndef WEFTI_RELAY_H
#define WEFTI_RELAY_H

#include "conn/ep.h"

#define WEFTI_RELAY_SLOTS 16u
#define WEFTI_RELAY_BYTES (WEFTI_RELAY_SLOTS * WEFTI_STAGING_BYTES)

struct wefti_relay {
    uint32_t refs; /* the endpoint, and each chunk in it */
    uint8_t *base;
    bool pinned, tried; /* tried: to pin it */
    /* out */
    wefti_memfd_t mem;
    uint32_t busy;     /* bit i: slot i holds a chunk */
    bool ready;        /* the peer has it mapped */
    wefti_list_t line; /* wefti_chunks_t.wait: payloads that wait for a slot */
    wefti_list_t due;  /* conn's: a slot is free, and somebody waits */
    /* in */
    void (*unmap)(void *ptr, size_t n);
};

/* out: have one made, if there is none and the two sides can. */
void wefti_relay_want(wefti_epx_t *ep);
/* A slot of it: its number, and the chunk holds the relay; -1: none is free, or there is no relay (yet). */
int wefti_relay_take(wefti_epx_t *ep, wefti_relay_t **relay_out);
void wefti_relay_give(wefti_conn_t *conn, wefti_relay_t *relay, int slot);
/* Wait in line for a slot: then the payload's step is called. False: there is no relay, and nothing to wait for. */
bool wefti_relay_wait(wefti_epx_t *ep, wefti_list_t *link);
/* One who waits, if there is a slot; NULL: nobody. The work's. */
wefti_list_t *wefti_relay_next(wefti_conn_t *conn);
static inline void *wefti_relay_slot(const wefti_relay_t *relay, uint32_t slot)
{
    return relay->base + (size_t)slot * WEFTI_STAGING_BYTES;
}
/* in: hold the relay while a chunk is copied out of it. */
wefti_relay_t *wefti_relay_hold(wefti_epx_t *ep);
void wefti_relay_drop(wefti_relay_t *relay);
/* A device is about to copy from it or to it. */
void wefti_relay_pin(wefti_relay_t *relay);

void wefti_relay_came(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n); /* RELAY */
bool wefti_relay_answered(wefti_epx_t *ep, bool mapped);                   /* RELAY_ANSWER; false: nobody asked */
void wefti_relay_flush(wefti_epx_t *ep);                                   /* the lane has space */
void wefti_relay_down(wefti_epx_t *ep);                                    /* its lane is about to be closed */

#endif
