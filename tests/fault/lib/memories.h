/* tests/fault/lib/memories.h - memory elements in processes of their own, made to be killed, and an action of ours that uses
 * them. */
#ifndef WEFT_TEST_MEMORIES_H
#define WEFT_TEST_MEMORIES_H

#include <sys/types.h>
#include <weft/elements.h>
#include <weft/weft.h>

enum { MEMORIES_MAX = 3 };

typedef struct memories {
    int n;
    pid_t pid[MEMORIES_MAX];
    char durl[MEMORIES_MAX][WEFT_DURL_MAX + 1];
    const char *transports;
    uint64_t heartbeat_ns;
    weft_memory_opts_t opts;
    weft_runtime_t *rt;      /* ours, with a thread */
    weft_action_t *action;
} memories_t;

/* Fork n elements "mem" with these options, before there is a runtime here; then open ours, and an action. */
void memories_start(memories_t *m, int n, const char *transports, uint64_t heartbeat_ns, const weft_memory_opts_t *opts);
/* SIGKILL: and it is waited for. */
void memories_signal(memories_t *m, int i, int sig);
/* Kill who is left, and close our side. */
void memories_end(memories_t *m);
/* Add a transport to element i, or to all as replicas (-1); timeout_ms 0: none. With a buffer. */
weft_transport_t *memories_add(memories_t *m, const char *name, int i, unsigned timeout_ms, size_t buffer);

#endif
