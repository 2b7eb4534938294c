/* tests/sim/lib/holdings.h - programs that have regions and use those of others: they expose, extend, revoke and free, write
 * into their own memory, make keys, attach (also with keys that are old, and by name), read, write, add, batch, fence, flush,
 * drop; on either path.
 *
 * Words (words.h) tells whether what they read can be; checked here, at each completion: whether that status can be. An access
 * outside of its part is refused, one without the right is, one by a key that was revoked for good is; and no other one is.
 * Memory that is given back is not touched again. Notifications come once, in order, with the bytes there. */
#ifndef SIM_HOLDINGS_H
#define SIM_HOLDINGS_H

#include "life.h"

/* How a scenario's programs are. */
typedef struct holdings_how {
    unsigned regions;      /* of a node, at most */
    uint32_t words;        /* of a region, usually: at most */
    unsigned at_once;      /* accesses posted in one go, at most */
    unsigned upset;        /* percent: revoke, free, extend, drop */
    unsigned patience;     /* percent of accesses that have a deadline or a token */
    bool large;            /* some regions and accesses are of many records */
} holdings_how_t;

uint64_t holdings_run(uint64_t seed, const holdings_how_t *how);

#endif
