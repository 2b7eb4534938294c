/* tests/fault/lib/offender.h - a peer that passed the hello and then puts whatever a test likes on its lane, past its own
 * library; with a witness (witness.h) on the runtime it offends.
 *
 * Its runtime is in this process, so that connecting anew for each attack is cheap. Everything here ends the test if it fails. */
#ifndef WEFT_TEST_OFFENDER_H
#define WEFT_TEST_OFFENDER_H

#include "conn/conn.h"
#include "peer.h"

enum { OFFENDER_NOBODY = 9050, OFFENDER_PAYLOAD = 50000, OFFENDER_HEARD = 64 };

typedef struct offender {
    peer_t witness;         /* its rt is the runtime that is offended */
    weft_runtime_t *rt;     /* the offender's own */
    weft_ep_t *victim, *ep; /* the connection's two ends */
    weft_op_t ours;         /* a receive of id OFFENDER_NOBODY: it ends with the victim's endpoint */
    unsigned n_done;        /* announcements that are over */
    uint8_t payload[OFFENDER_PAYLOAD]; /* what is announced */
    /* what a deaf one was told, oldest first; the first 40 bytes of each record. announced: and kept */
    struct {
        uint8_t bytes[40];
        size_t n;
        uint64_t total; /* 0: a plain record */
    } heard[OFFENDER_HEARD];
    unsigned n_heard;
} offender_t;
extern offender_t off;

/* The witness's process, both runtimes. end: and the witness noticed nothing. */
void offender_begin(const char *transports);
void offender_end(void);
/* A connection, and its end; deaf: the offender's library learns nothing of what comes but conn's own records, so that it neither
 * answers nor minds. */
void offender_join(bool deaf);
void offender_part(void);

void offender_drive(void);
void offender_drive_for(double seconds);
/* A record as it is, once there is room; announced: with a payload that is said to have `total` bytes. false: the lane is gone,
 * which is an answer. */
bool offender_put(const void *rec, size_t n);
bool offender_announce(const void *rec, size_t n, uint64_t total);

/* What has become of the victim's endpoint: failed with WEFT_ERR_PROTOCOL, standing, or either of these. */
typedef enum verdict { FAILS, STANDS, EITHER } verdict_t;
void offender_judge(const char *what, verdict_t verdict);

#endif
