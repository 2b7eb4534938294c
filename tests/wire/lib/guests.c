/* tests/wire/lib/guests.c - two sides of the shm transport in this process, and lanes between them that share rings. */
#include "guests.h"

#include <string.h>

#define MUST(cond) \
    do { \
        if (!(cond)) \
            shm_die(__FILE__, __LINE__, #cond); \
    } while (0)

#define RING WEFTI_RING_SMALLEST

const uint8_t guests_peer[WEFTI_PEER_ID_SIZE]; /* what the sides of this library are called */
shm_side_t side_a, side_b;
shm_end_t ends_a[GUESTS_MANY], ends_b[GUESTS_MANY];

wefti_shm_lane_t *guest_lane(const shm_end_t *e)
{
    return (wefti_shm_lane_t *)e->lane;
}

weft_status_t guest_half(shm_side_t *s, shm_end_t *e, shm_side_t *listener, const shm_end_t *dialler, bool alone)
{
    static uint8_t addr[WEFTI_LANE_ADDR_MAX];
    uint8_t caps[WEFTI_CAPS_MAX];
    wefti_meeting_t with = {.side = listener ? WEFTI_SIDE_DIALLER : WEFTI_SIDE_LISTENER, .binding = "met", .caps = caps};
    with.caps_n = listener ? listener->transport->ops->caps(listener->transport, WEFTI_SIDE_LISTENER, caps) : 0;
    with.alone = alone;
    with.join = dialler ? dialler->addr : NULL;
    with.join_n = dialler ? dialler->addr_n : 0;
    memset(e, 0, sizeof *e);
    e->side = s;
    weft_status_t st = s->transport->ops->lane_new(s->transport, &with, e, addr, &e->addr_n, &e->lane);
    if (!st)
        memcpy(e->addr, addr, e->addr_n);
    return st;
}

/* A lane from a to b, over whatever a has to offer. The listener connects first, as in a hello. */
void guest_join(shm_end_t *da, shm_end_t *db)
{
    MUST(!guest_half(&side_a, da, &side_b, NULL, false));
    MUST(!guest_half(&side_b, db, NULL, da, false));
    MUST(!db->lane->ops->lane_connect(db->lane, da->addr, da->addr_n));
    MUST(!da->lane->ops->lane_connect(da->lane, db->addr, db->addr_n));
}

void guests_sides(const char *copy)
{
    shm_side_open(&side_a, RING, copy);
    shm_side_open(&side_b, RING, copy);
}

/* n lanes that share. */
void guests_open(int n, const char *copy)
{
    guests_sides(copy);
    guest_join(&ends_a[0], &ends_b[0]);
    ends_a[0].lane->ops->lane_offer(ends_a[0].lane, guests_peer);
    for (int i = 1; i < n; i++) {
        guest_join(&ends_a[i], &ends_b[i]);
        MUST(ends_a[i].lane->carrier && ends_a[i].lane->carrier == ends_a[0].lane->carrier);
        MUST(ends_b[i].lane->carrier && ends_b[i].lane->carrier == ends_b[0].lane->carrier);
    }
}

void guests_drive(void)
{
    for (int i = 0; i < 40; i++) {
        shm_progress(&side_a);
        shm_progress(&side_b);
    }
}

void guest_close(shm_end_t *e)
{
    e->lane->ops->lane_close(e->lane);
    SHM_UNTIL2(&side_a, &side_b, e->closed == 1);
}

void guests_sides_close(void)
{
    shm_side_close(&side_a);
    shm_side_close(&side_b);
    MUST(!shm_maps());
}

void guests_close(int n)
{
    for (int i = 0; i < n; i++) {
        guest_close(&ends_a[i]);
        guest_close(&ends_b[i]);
    }
    guests_drive();
    guests_sides_close();
}
