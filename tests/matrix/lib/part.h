/* tests/matrix/lib/part.h - the parts of a world: each opens something on both sides, and closes it on one. */
#ifndef WEFT_TEST_PART_H
#define WEFT_TEST_PART_H

#include "must.h"
#include "world.h"

typedef struct part {
    uint64_t bit;              /* NEEDS_* */
    uint64_t with;             /* what it needs itself */
    void (*open)(side_t *s);   /* called for one side and then for the other */
    void (*close)(side_t *s);
} part_t;

enum { PARTS = 26, BIG = 65536 /* bytes that do not travel with the message */ };
extern const part_t parts[PARTS]; /* what a part needs is before it */

/* part_core.c */
void listener_open(side_t *s);
void listener_close(side_t *s);
void ep_open(side_t *s);
void ep_close(side_t *s);
void queue_open(side_t *s);
void queue_close(side_t *s);
void token_open(side_t *s);
void token_close(side_t *s);
void timer_open(side_t *s);
void timer_close(side_t *s);

/* part_data.c */
void pool_open(side_t *s);
void pool_close(side_t *s);
void reg_open(side_t *s);
void reg_close(side_t *s);
void msg_open(side_t *s);
void msg_close(side_t *s);
void am_open(side_t *s);
void am_close(side_t *s);
void region_open(side_t *s);
void region_close(side_t *s);
void remote_open(side_t *s);
void remote_close(side_t *s);
void sig_open(side_t *s);

/* part_rpc.c */
void registry_open(side_t *s);
void registry_close(side_t *s);
void watch_open(side_t *s);
void watch_close(side_t *s);
void service_open(side_t *s);
void service_close(side_t *s);
void client_open(side_t *s);
void client_close(side_t *s);
void request_open(side_t *s);
void request_close(side_t *s);
void stream_open(side_t *s);
void stream_close(side_t *s);

/* part_store.c */
void server_open(side_t *s);
void server_close(side_t *s);
void store_open(side_t *s);
void store_close(side_t *s);
void block_open(side_t *s);
void block_close(side_t *s);
void mirror_open(side_t *s);
void mirror_close(side_t *s);
void memory_open(side_t *s);
void memory_close(side_t *s);
void action_open(side_t *s);
void action_close(side_t *s);
void transport_open(side_t *s);
void transport_close(side_t *s);
void served_open(side_t *s);
void nothing_to_close(side_t *s);

#endif
