/* tests/wire/lib/guests.h - two sides of the shm transport in this process, and lanes between them that share rings.
 *
 * side_a dials, side_b listens; ends_a[i] and ends_b[i] are the ends of lane i. Failures end the test. */
#ifndef WEFT_TESTS_GUESTS_H
#define WEFT_TESTS_GUESTS_H

#include "fabric/shm/guest.h"
#include "shm_side.h"

#define GUESTS_MANY 24

extern const uint8_t guests_peer[WEFTI_PEER_ID_SIZE]; /* what the sides are called */
extern shm_side_t side_a, side_b;
extern shm_end_t ends_a[GUESTS_MANY], ends_b[GUESTS_MANY];

wefti_shm_lane_t *guest_lane(const shm_end_t *e);
/* One half: of a dialler (listener not NULL), or of a listener that was told the dialler's address. */
weft_status_t guest_half(shm_side_t *s, shm_end_t *e, shm_side_t *listener, const shm_end_t *dialler, bool alone);
/* A lane from a to b, over whatever a has to offer. */
void guest_join(shm_end_t *da, shm_end_t *db);
void guests_sides(const char *copy);
void guests_open(int n, const char *copy); /* n lanes that share */
void guests_drive(void);
void guest_close(shm_end_t *e);
void guests_sides_close(void);
void guests_close(int n);

#endif
