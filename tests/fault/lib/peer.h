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

/* What a peer does with its endpoint; it never returns. */
typedef void (*peer_life_t)(weft_runtime_t *rt, weft_ep_t *ep);

/* Fork a process that connects to us over `transports` and lives `life`; it never returns here. On our side a runtime with the
 * given heartbeat bound, and the accepted endpoint. The process ends with us at the latest. */
void peer_start(peer_t *peer, const char *transports, uint64_t heartbeat_ns, peer_life_t life);
/* The same with up to four processes on one runtime of ours, peers[i] living lives[i]; ended together, by peers_end(). */
void peers_start(peer_t *peers, unsigned n, const char *transports, uint64_t heartbeat_ns, const peer_life_t *lives);
void peers_end(peer_t *peers, unsigned n);
void peer_signal(peer_t *peer, int sig);
/* Drive our runtime until the operation is complete: its status. Ends the test after `seconds`. */
weft_status_t peer_wait(peer_t *peer, weft_op_t *op, double seconds);
void peer_run(peer_t *peer, double seconds);
/* Kill it if it lives, and close our side. A pid or an endpoint that the test has dealt with itself is set to 0 or NULL. */
void peer_end(peer_t *peer);

/* Drive a runtime for ever: for lives that only have to answer. */
void peer_live(weft_runtime_t *rt);

#endif
