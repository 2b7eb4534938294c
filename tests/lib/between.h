/* tests/lib/between.h - somebody between the two ends of every TCP connection that this process makes, who understands where
 * records of TLS begin, and changes what passes.
 *
 * A program that names a function of this file has its connect(): all connections of the process to loopback and to its own
 * addresses go through a thread that dials where they were going. So the connections of lanes pass here too, whose port the
 * two ends tell each other encrypted. */
#ifndef TEST_BETWEEN_H
#define TEST_BETWEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum between_what {
    BETWEEN_NOTHING,
    /* bytes, from `at` on, n of them */
    BETWEEN_FLIP,   /* one bit of one byte */
    BETWEEN_DROP,
    BETWEEN_REPEAT,
    BETWEEN_TURN,   /* in the other order */
    BETWEEN_INSERT,
    BETWEEN_CUT,    /* it is the end of the connection */
    /* the record that byte `at` is in */
    BETWEEN_RECORD_DROP,
    BETWEEN_RECORD_REPEAT,
    BETWEEN_RECORD_SWAP,  /* with the one behind it */
    BETWEEN_RECORD_SHORT, /* without its last bytes, and its head says so */
    BETWEEN_RECORD_OLD,   /* the first one of this side comes again in its place */
    BETWEEN_RECORD_BACK,  /* goes back to whom it came from, too */
    BETWEEN_RECORD_OTHER, /* one of another connection comes in its place */
    BETWEEN_HALVES,       /* from here on what another connection brings goes here, and the other way round */
    BETWEEN_WHATS
} between_what_t;

typedef struct between_plan {
    between_what_t what;
    unsigned conn; /* of those that are made from now on, the how many-th */
    unsigned side; /* 0: what the dialler says, 1: what the listener says */
    size_t at, n;
} between_plan_t;

enum { BETWEEN_CONNS = 8 };

/* The thread begins with the first call. What passes from now on is counted anew; connections that are there pass untouched. */
void between_plan(const between_plan_t *plan);
/* Nothing is changed from now on. True: something was. */
bool between_stop(void);
bool between_did(void);
/* The connection that was changed is over since. */
bool between_ended(void);
/* What was changed says nothing: the version in the head of a record before anything is encrypted, and the record that only
 * old boxes on the way look at (RFC 8446, 5.1 and D.4). */
bool between_harmless(void);
/* Connections since the plan, and bytes of each. */
unsigned between_conns(void);
size_t between_seen(unsigned conn, unsigned side);
const char *between_name(between_what_t what);
const char *between_text(void); /* the plan, in words */
/* Everything that passes from now on is shown to `fn` before it goes on, in the thread, and nothing is changed; NULL: to nobody.
 * `from`: 2 for each connection, and 1 for its listener's side. */
void between_listen(void (*fn)(const uint8_t *bytes, size_t n, unsigned from, void *user), void *user);

#endif
