/* tests/fault/lib/peer.h - a peer in a process of its own, made to be killed. */
#ifndef WEFT_TEST_PEER_H
#define WEFT_TEST_PEER_H

#include <sys/types.h>
#include <weft/weft.h>

typedef struct peer {
    pid_t pid;
    weft_runtime_t *rt; /* ours */
    weft_listener_t *listener;
    weft_ep_t *ep;
} peer_t;

/* Fork a process that connects to us over `transports` and runs `life` with its endpoint; it never returns here. On our side a runtime
 * with the given heartbeat bound, and the accepted endpoint. The process ends with us at the latest. */
void peer_start(peer_t *peer, const char *transports, uint64_t heartbeat_ns, void (*life)(weft_runtime_t *rt, weft_ep_t *ep));
void peer_signal(peer_t *peer, int sig);
/* Drive our runtime until the operation is complete: its status. Ends the test after `seconds`. */
weft_status_t peer_wait(peer_t *peer, weft_op_t *op, double seconds);
void peer_run(peer_t *peer, double seconds);
/* Kill it if it lives, and close our side. */
void peer_end(peer_t *peer);

/* Drive a runtime for ever: for lives that only have to answer. */
void peer_live(weft_runtime_t *rt);

#endif
