/* element/replicas.h - what replicas.c, replicas_io.c and replicas_member.c share. */
#ifndef WEFTI_ELEMENT_REPLICAS_H
#define WEFTI_ELEMENT_REPLICAS_H

#include "element/state.h"

typedef struct replicas replicas_t;

enum { MEMBER_PAUSE, MEMBER_DIALLING, MEMBER_OPENING, MEMBER_UP, MEMBER_CLOSING, MEMBER_GONE };

/* One of the elements: an endpoint and a store over it, again and again. */
typedef struct member {
    replicas_t *r;
    uint8_t state;
    bool tried;              /* at least once */
    weft_status_t why;       /* it is not UP */
    uint32_t refused;        /* tries in a row whose host said that nobody is there */
    uint64_t refused_since;
    uint64_t pause;
    weft_ep_t *ep;
    weft_store_t *store;     /* while UP */
    element_leases_t leases; /* of what is allocated there: the store is the mirror's */
    weft_ext_timer_t timer;
    weft_op_t connect, store_op, close;
    const char *uri;
} member_t;

enum {
    MIRROR_GATHER,  /* nothing is open yet: who is there? */
    MIRROR_PAUSE,   /* nothing is open, and something is tried again soon */
    MIRROR_OPENING, /* op is under way */
    MIRROR_OPEN,
    MIRROR_CLOSING, /* op is under way */
    MIRROR_NONE     /* and never will be again */
};

struct replicas {
    element_route_t route;
    uint8_t phase;
    bool writes;             /* the mirror is open, or being opened, to write */
    bool broken;             /* it is open and of no more use */
    bool fenced;             /* ... because another one writes */
    bool make, repair, force; /* what has to be done the next time: make it, take it over though nobody writes, do without the
                                 dead */
    weft_mirror_t *mirror;
    weft_op_t op, add;
    bool adding;
    uint64_t add_at;         /* not before that */
    wefti_list_t held;       /* ios that wait for it */
    uint32_t held_writes, flying_writes;
    uint64_t trouble_since;  /* nothing is open since then; 0: something is */
    weft_status_t trouble;
    uint32_t tries;
    uint64_t wrote_at;       /* the end of the last write */
    uint64_t failovers;      /* of mirrors that were closed */
    weft_ext_timer_t timer;
    unsigned n;
    member_t members[WEFT_MIRROR_MAX];
    weft_durl_t durl;
};

static inline replicas_t *replicas_of(element_route_t *route) { return wefti_container_of(route, replicas_t, route); }

#define each_member(m, r) for (member_t *m = (r)->members; m < (r)->members + (r)->n; m++)

/* replicas.c */
void wefti_replicas_turn(replicas_t *r);                    /* do what has become possible */
void wefti_replicas_over(replicas_t *r, weft_status_t why); /* it is of no more use */
void wefti_replicas_break(replicas_t *r, weft_status_t why); /* the mirror is of no more use: another one is opened */
void wefti_replicas_count(replicas_t *r);                   /* bring the transport's statistics up to date */
void wefti_replicas_at(replicas_t *r, uint64_t when);       /* a turn at that time */

/* replicas_io.c */
void wefti_replicas_move(element_route_t *route, element_io_t *io);
void wefti_replicas_stop(element_route_t *route, element_io_t *io);
/* Begin what the open mirror can do; with an error, end all that is held. */
void wefti_replicas_held(replicas_t *r, weft_status_t why);

/* replicas_member.c */
void wefti_member_begin(member_t *m);
void wefti_member_end(member_t *m, bool now); /* hang up, for good */
bool wefti_member_dead(const member_t *m);    /* its host says so, for long enough */

#endif
