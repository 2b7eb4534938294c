/* tests/wire/lib/lanes.h - two lanes that know each other, their upcalls recorded: what the tests of every transport start from.
 *
 *     lanes_t l;
 *     lanes_open(&l, "ucx");                          two fabrics in this process, one lane between them
 *     lanes_send(&l, &l.a, "hi", 2);
 *     LANES_UNTIL(&l, l.b.records == 1);
 *     lanes_close(&l);                                closes what is open and checks that nothing is left
 *
 * Across processes: fork first, then in each lanes_side_open() and lanes_side_meet() over the two ends of a socketpair.
 * Failures end the test (exit 1), as with tests/test.h. */
#ifndef WEFT_TESTS_LANES_H
#define WEFT_TESTS_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "fabric/fabric.h"

#define LANES_PULLS 256
#define LANES_SECONDS 50

typedef struct lanes_side lanes_side_t;

/* An announcement that was neither pulled nor refused yet. */
typedef struct lanes_offer {
    wefti_pull_t *p; /* NULL once it was used or withdrawn */
    uint64_t total;
    size_t n;
    uint8_t rec[64]; /* the first bytes of its record */
} lanes_offer_t;

struct lanes_side {
    wefti_fabric_t *fabric;
    wefti_transport_t *transport;
    wefti_lane_t *lane;
    wefti_config_t config;
    uint8_t secret[WEFTI_SECRET_SIZE]; /* of the meeting; zeroes: there is no key */
    uint8_t addr[WEFTI_LANE_ADDR_MAX];
    size_t addr_n;

    /* counted */
    uint64_t records, record_bytes;
    unsigned announced, withdrawn, rooms, failed, closed;
    weft_status_t why;           /* of lane_failed */
    uint8_t last[64];            /* the first bytes of the last record */
    size_t last_n;
    lanes_offer_t offers[LANES_PULLS];
    bool in_progress;            /* upcalls outside progress end the test */

    /* instead of, or besides, counting */
    void (*on_record)(lanes_side_t *s, const void *rec, size_t n);
    void (*on_announced)(lanes_side_t *s, const void *rec, size_t n, uint64_t total, wefti_pull_t *p); /* then not in offers */
    void (*on_withdrawn)(lanes_side_t *s, wefti_pull_t *p);
    void (*on_room)(lanes_side_t *s);
    void *user;
};

typedef struct lanes {
    lanes_side_t a, b;
} lanes_t;

/* A transfer that counts how often it was done. */
typedef struct lanes_xfer {
    wefti_xfer_t x;
    unsigned done;
    weft_status_t status;
} lanes_xfer_t;
void lanes_xfer_init(lanes_xfer_t *x);

/* transport: "shm", "tcp" or "ucx" (over UCX's TCP unless `transports` says something else; NULL for the transport's usual). */
void lanes_side_open(lanes_side_t *s, const char *transport, const char *transports);
/* Make a lane and join it to the one whose owner has the other end of the socketpair. */
void lanes_side_meet(lanes_side_t *s, int fd);
/* Half a lane, of a listener whose dialler is not known yet; or both halves of one. lanes_side_connect() follows. */
void lanes_side_new(lanes_side_t *s);
void lanes_new(lanes_side_t *dialler, lanes_side_t *listener);
void lanes_side_connect(lanes_side_t *s, const void *addr, size_t n);
/* Force the lane down and wait for lane_closed. */
void lanes_side_close_lane(lanes_side_t *s);
/* The same, then the fabric. */
void lanes_side_close(lanes_side_t *s);
unsigned lanes_side_progress(lanes_side_t *s);

void lanes_open(lanes_t *l, const char *transport);
void lanes_close(lanes_t *l);
unsigned lanes_progress(lanes_t *l);

/* Reserve, copy, commit; ends the test if there is no room for LANES_SECONDS (drives only this side: pass the pair to drive
 * both). */
bool lanes_try_send(lanes_side_t *s, const void *rec, size_t n);
void lanes_send(lanes_t *l, lanes_side_t *s, const void *rec, size_t n);
/* Pull the offer with this index whole into buf; refuse it. */
void lanes_pull(lanes_side_t *s, unsigned i, void *buf, uint64_t want, lanes_xfer_t *x);
void lanes_refuse(lanes_side_t *s, unsigned i, bool taken);

double lanes_now(void);
void lanes_die(const char *file, int line, const char *what);

/* Drive both sides until it is true, for LANES_SECONDS at most. */
#define LANES_UNTIL(l, cond) \
    do { \
        double lanes_end = lanes_now() + LANES_SECONDS; \
        while (!(cond)) { \
            lanes_progress(l); \
            if (lanes_now() > lanes_end) \
                lanes_die(__FILE__, __LINE__, #cond); \
        } \
    } while (0)
#define LANES_SIDE_UNTIL(s, cond) \
    do { \
        double lanes_end = lanes_now() + LANES_SECONDS; \
        while (!(cond)) { \
            lanes_side_progress(s); \
            if (lanes_now() > lanes_end) \
                lanes_die(__FILE__, __LINE__, #cond); \
        } \
    } while (0)

#endif
