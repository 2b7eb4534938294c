/* tests/fault/lib/mirrored.h - servers in processes of their own, and a writer and a reader of a mirror on them that never rest.
 *
 * The writer and the reader are two runtimes of this process, driven in turn, so that tests/lib/history.h can say of every read
 * what it may return. */
#ifndef WEFT_TEST_MIRRORED_H
#define WEFT_TEST_MIRRORED_H

#include <sys/types.h>
#include <weft/elements.h>
#include <weft/weft.h>

#include "history.h"

enum { SERVERS_MAX = 3, FLIGHT = 8 };

typedef struct side {
    weft_runtime_t *rt;
    weft_ep_t *ep[SERVERS_MAX];
    weft_store_t *store[SERVERS_MAX];
    weft_mirror_t *m;
} side_t;

typedef struct flying {
    weft_op_t op;
    uint8_t *buf;
    bool live, cancelled;
    uint32_t write;
    history_read_t *read;
    double since;
} flying_t;

typedef struct mirrored {
    pid_t pid[SERVERS_MAX];
    char uri[SERVERS_MAX][256];
    int n;
    side_t writer, reader;
    history_t *history;
    uint64_t len, lease_ns;
    uint64_t rng;
    flying_t writes[FLIGHT], reads[FLIGHT], own[FLIGHT]; /* own: the writer's reads */
    unsigned long written, read, failed_reads, failed_writes;
    double longest_read, longest_write; /* seconds */
} mirrored_t;

/* Fork n servers, which listen at listen[i] (NULL: 127.0.0.1) after enter(i) was called in them (NULL: nothing). Before there
 * is a runtime here. */
void mirrored_start(mirrored_t *t, int n, const char *transports, uint64_t heartbeat_ns, const char *const *listen,
                    void (*enter)(int i));
/* The writer makes a mirror on the first `members` servers; the reader opens it. */
void mirrored_make(mirrored_t *t, int members, uint64_t len, uint64_t lease_ns, bool checksums);
/* Connect to a server (again), and open a store there. */
void mirrored_connect(mirrored_t *t, side_t *side, int server);
/* Write and read without a pause for so long, or until done(t) says so; every read is looked at. Fails after `seconds` if
 * done() is given. */
void mirrored_load(mirrored_t *t, double seconds, bool (*done)(mirrored_t *t));
/* Until nothing is under way any more. */
void mirrored_rest(mirrored_t *t, double seconds);
/* Drive both until an operation is complete: its status. Fails the test after `seconds`. With load: goes on with that
 * meanwhile. */
weft_status_t mirrored_wait(mirrored_t *t, weft_op_t *op, double seconds, bool load);
/* Read all of it, at the writer's and at the reader's: as it has to be. */
void mirrored_look(mirrored_t *t);
void mirrored_signal(mirrored_t *t, int server, int sig);
weft_mirror_info_t mirrored_info(const side_t *side);
unsigned mirrored_members(const side_t *side, weft_member_state_t state);
/* Kill what is left, and close our side. */
void mirrored_end(mirrored_t *t);

#endif
