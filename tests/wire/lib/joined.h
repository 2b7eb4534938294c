/* tests/wire/lib/joined.h - the two sides of a stream without a call: joined by active messages, on the two runtimes of a pair,
 * so that a test can end them as it likes and say what a peer must not. Everything here ends the test if it fails. */
#ifndef WEFT_TEST_JOINED_H
#define WEFT_TEST_JOINED_H

#include <stdatomic.h>

#include "pair.h"
#include "rpc/stream.h"

enum { JOINED_SERVER, JOINED_CLIENT };
#define JOINED_CALL UINT64_C(77)

typedef struct joined {
    pair_t pair;
    weft_stream_t *s[2];       /* by side; the runtime of that number has it, and lets go of it with joined_close() */
    uint8_t last[2][16][64];   /* the header that came last at that side, by kind: what fits of it */
    _Atomic unsigned came[2][16]; /* and how many did */
} joined_t;

/* Streams of this signature, connected. */
void joined_open(joined_t *j, const pair_way_t *way, const char *signature);
void joined_close(joined_t *j);
/* The call is over at that side. */
void joined_over(joined_t *j, int side, weft_status_t status);
/* The call lets go of it there; the program has done so. */
void joined_leave(joined_t *j, int side);
/* The server's wefti_stream_drained(). */
bool joined_drained(joined_t *j);
/* Post, and drive until it is complete: as posted, or as it ended. */
weft_status_t joined_send(joined_t *j, int side, weft_value_t value);
weft_status_t joined_end(joined_t *j, int side);
/* 1: an item; 0: the end; otherwise the status. */
int joined_recv(joined_t *j, int side, weft_item_t *item);
/* The same for a u64. */
int joined_recv_u64(joined_t *j, int side, uint64_t *value_out);
/* Say something as that side: a head of that kind, and n bytes. */
void joined_say(joined_t *j, int side, unsigned kind, uint32_t check, const void *more, size_t n, size_t payload);

#endif
