/* fabric/shm/guest.h - lanes that use the rings of another: what guest.c offers to the files of the transport. */
#ifndef WEFTI_SHM_GUEST_H
#define WEFTI_SHM_GUEST_H

#include "fabric/shm/internal.h"

#define WEFTI_SHM_FLAG_GUEST 4u /* of an address: see guest.c */
#define WEFTI_SHM_SEATS WEFTI_RING_CHANNELS
#define WEFTI_SHM_GENERATIONS 16384u /* a number is seat + generation * seats, in 24 bits */

/* One channel of a carrier. */
typedef struct wefti_shm_seat {
    wefti_shm_lane_t *lane; /* NULL: free */
    uint16_t generation;    /* of the lane that has it, or had it last */
    uint16_t next_free;     /* 0: none */
} wefti_shm_seat_t;

/* Of a carrier. */
struct wefti_shm_guests {
    wefti_shm_seat_t *seats;   /* by the low bits of a number; the first is the channel of the lane that was here first */
    uint32_t n;                /* seats ever used */
    size_t cap;
    uint16_t free_first, free_last; /* taken from the front, given back at the end; 0: none */
    uint32_t n_open;           /* lanes that are not closed */
    wefti_list_t starving;     /* lanes that wait for space: who came first is served first */
    wefti_list_t ends;         /* closed lanes whose END waits for space */
};

extern const wefti_transport_ops_t wefti_shm_guest_ops;

/* --- guest.c ------------------------------------------------------------------------------------------------------ */

/* A lane to the peer of this meeting that is a guest of one that was offered. WEFT_ERR_AGAIN: it should have rings of its own.
 * Else as lane_new(). */
weft_status_t wefti_shm_guest_new(wefti_shm_transport_t *r, const wefti_meeting_t *with, void *user, void *addr_buf,
                                  size_t *n_out, wefti_lane_t **lane_out);
/* No space for this guest: it will be called. */
void wefti_shm_guest_starves(wefti_shm_lane_t *lane);
void wefti_shm_guest_close(wefti_shm_lane_t *lane);
/* The end of one that is closed: true if its memory may go. */
bool wefti_shm_guest_end(wefti_shm_lane_t *lane);

uint64_t wefti_shm_door_of(const wefti_meeting_t *with); /* a number for the peer's door; 0: we do not know it */
void wefti_shm_offer(wefti_lane_t *lane, const uint8_t *peer);
void wefti_shm_unoffer(wefti_shm_lane_t *lane);
void wefti_shm_offer_by(wefti_shm_lane_t *lane, wefti_shm_lane_t *by); /* in its place */

/* --- carrier.c ---------------------------------------------------------------------------------------------------- */

/* Give the rings of a plain lane to a carrier, of which it is the first guest from now on. NULL: no memory. */
wefti_shm_lane_t *wefti_shm_carrier_make(wefti_shm_lane_t *lane);
/* As the functions of lane.c that do this for lanes with rings of their own. n: records delivered before. */
unsigned wefti_shm_carrier_poll(wefti_shm_lane_t *carrier, unsigned n);
unsigned wefti_shm_carrier_space(wefti_shm_lane_t *carrier);
bool wefti_shm_carrier_owes(const wefti_shm_lane_t *carrier);
void wefti_shm_carrier_fail(wefti_shm_lane_t *carrier, weft_status_t why);
void wefti_shm_carrier_end(wefti_shm_lane_t *carrier);
/* Say that nothing follows on a channel; false: there is no space to say it. */
bool wefti_shm_send_end(wefti_shm_lane_t *lane);

#endif
