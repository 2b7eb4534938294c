/* tests/wire/lib/box.h - a handler of active messages that writes down what it is given, and does with it what the test says. */
#ifndef WEFT_TEST_BOX_H
#define WEFT_TEST_BOX_H

#include <weft/weft.h>

#include "pair.h"

typedef enum box_does {
    BOX_LOOKS,  /* nothing: a payload at the sender counts as rejected */
    BOX_PULLS,  /* into buf, with pull as the operation, if the payload is not here */
    BOX_KEEPS,  /* the result in kept[] */
    BOX_REJECTS /* with reason */
} box_does_t;

enum { BOX_KEPT_MAX = 4096 };

/* The header of a message is pattern_fill(id + 1), its payload pattern_fill(id): the box looks at both where they are. Everything
 * but `n` may be read after `n` said that the message was there. */
typedef struct box {
    box_does_t does;
    uint32_t reason;
    void *buf;
    size_t cap;
    weft_op_t pull;
    weft_am_t *kept[BOX_KEPT_MAX]; /* by the number of the message */
    weft_am_t last;                /* as it was; its pointers only tell NULL from something, but ep and reply */
    size_t header_right, data_right; /* how many bytes of the last were as they should be */
    weft_status_t status;          /* of the pull's post, or of the reject */
    _Atomic unsigned n;            /* messages so far */
} box_t;

box_t *box_new(box_does_t does);
/* What it does from the next message on; buf for pulls, reason for rejections. The pull is as new. */
void box_set(box_t *box, box_does_t does, void *buf, size_t cap, uint32_t reason);
/* Release everything that is kept: before the runtime is closed. */
void box_empty(box_t *box);
void box_free(box_t *box);
/* The weft_am_fn; user is the box. */
void box_handler(weft_am_t *am, void *user);
/* Make the box the handler of that id, and wait until it is; NULL: take the handler away. */
void box_handle(pair_t *pair, int side, uint32_t id, box_t *box);

/* A header and a payload for that id. To be freed. */
void *box_header(uint32_t id, size_t len);
void *box_payload(uint32_t id, size_t len);

#endif
