/* tests/sim/lib/life.h - the life of random programs on two to four hosts, whatever they send: they listen, connect, cancel,
 * set deadlines and tokens, close and abort; hosts are killed and stopped, links cut and slow, lanes and wires break, memory
 * runs out.
 *
 * A scenario says what its programs send and receive (life_program_t) and runs life_run() per seed. About half of the seeds are
 * at peace: delays, full rings and slow pulls only. */
#ifndef SIM_LIFE_H
#define SIM_LIFE_H

#include "model.h"

extern model_t m;       /* of the seed that runs */
extern int life_depth;  /* of actions inside callbacks */

#define CHANCE(percent) sim_odds(&m.net, (percent))
#define BELOW(n) sim_below(&m.net, (n))

typedef struct life_program {
    void (*set_up)(void);                 /* the runtimes are open, nothing is connected; may be NULL */
    void (*act)(int node, end_t *e, unsigned what); /* do something with messages, at an end; 0 <= what < 100 chooses */
    void (*drain)(end_t *e);              /* receive until the end ends: sets e->draining, and e->drained at last */
    void (*completed)(act_t *a, weft_status_t status); /* an operation is complete and was checked; may be NULL */
    void (*each_round)(void);             /* between turns; may be NULL */
    uint64_t (*due)(void);                /* when it wants to be called at the latest, UINT64_MAX: never; may be NULL */
    void (*look)(void);                   /* now and then: everything is as it should be */
    void (*rest)(void);                   /* the world is whole and quiet, all links that can be are up; may be NULL */
    void (*parted)(void);                 /* everything was closed in peace: was anything lost? May be NULL */
    void (*end)(void);                    /* the runtimes are about to be closed; may be NULL */
} life_program_t;

/* One seed: the hash of its run. */
uint64_t life_run(uint64_t seed, const life_program_t *program);

void life_connect(int from);
/* An end of this node whose endpoint may be used; NULL if none is found soon. */
end_t *life_some_end(int node);
void life_close(end_t *e, bool force);
size_t life_length(void);
/* A deadline, a token, or neither; is_send: it may have to wait until the fabric lets go. */
void life_patience(act_t *a, bool is_send);
void life_cut(weft_iov_t *iov, size_t *n, uint8_t *buf, size_t len); /* into 1 to 4 pieces */
void life_cancel_some(int node);

#endif
