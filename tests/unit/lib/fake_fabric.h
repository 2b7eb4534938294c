/* tests/unit/lib/fake_fabric.h - a fabric with no network: events come from the test, so that core can be tested alone.
 *
 * It is nastier than a real one: arm() throws away wake-ups that came before it, and a post on an armed fabric loses the event
 * that would have ended the sleep. Its operations wait until an event completes the oldest, or until they are asked to end. */
#ifndef FAKE_FABRIC_H
#define FAKE_FABRIC_H

#include <pthread.h>

#include "core/core.h"

typedef struct fake_fabric {
    wefti_fabric_t base;
    bool virtual_time; /* `now` is set by the test; there is nothing to sleep on */
    int fd;
    _Atomic uint64_t now;
    _Atomic uint32_t events; /* not yet seen by progress */
    _Atomic uint32_t armed;
    _Atomic uint32_t wakes;  /* calls of wake() */
    wefti_list_t pending;    /* operations that wait, oldest first */
    wefti_list_t stubborn;   /* asked to end, and will at the next event or the second time */
    uint64_t progressed, idle_looks, arms;
    bool hangs;              /* its room is never idle again */

    /* memory that it was told of: counted, any thread. A range given back that is not there ends the test */
    pthread_mutex_t mem_lock;
    uint32_t registers, registered, shares, shared;
    uint64_t registered_bytes, shared_bytes;
    weft_status_t register_fails, share_fails; /* what such calls come to */
    bool registers_nothing;                    /* they succeed, and there is nothing to give back */
    void *share_base;                          /* of the last share() */
    size_t share_n;
    int share_fd;
} fake_fabric_t;

/* Open a runtime on a fake fabric, with the fake room attached. mode 0: caller. spin_ns 0: none. */
weft_runtime_t *fake_open(weft_progress_mode_t mode, uint64_t spin_ns);
weft_runtime_t *fake_open_virtual(void);
static inline fake_fabric_t *fake_of(weft_runtime_t *rt) { return (fake_fabric_t *)(void *)rt->fabric; }

typedef enum fake_how {
    FAKE_WAITS = 0,    /* for an event */
    FAKE_AT_ONCE = 1,  /* complete within the post */
    FAKE_STUBBORN = 2, /* waits, and does not end when it is first asked */
    FAKE_FAILS = 3,    /* the post fails at once: WEFT_ERR_LIMIT */
    FAKE_LOST = 4      /* it cannot be started, because the peer is lost: WEFT_ERR_PEER */
} fake_how_t;
weft_status_t fake_prepare(weft_runtime_t *rt, fake_how_t how, weft_op_t *op); /* only the first half of a post */
weft_status_t fake_post(weft_runtime_t *rt, fake_how_t how, weft_op_t *op);
/* The same for a kind that need not be started if it was cancelled before; fake_started counts those of both kinds that were. */
weft_status_t fake_post_stops(weft_runtime_t *rt, fake_how_t how, weft_op_t *op);
extern _Atomic uint32_t fake_started;

/* From any thread: the next n of the pending operations are complete. */
void fake_event(weft_runtime_t *rt, unsigned n);

#endif
