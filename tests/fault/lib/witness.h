/* tests/fault/lib/witness.h - a third peer that must notice nothing while another one of the same runtime dies or misbehaves.
 *
 * It sends active messages of every size class all the time, a few under way at once, and wants each back in order; our side
 * checks theirs. Whatever is lost, doubled, out of order or completed with an error ends its process with a failure, and
 * witness_end() says so. */
#ifndef WEFT_TEST_WITNESS_H
#define WEFT_TEST_WITNESS_H

#include "peer.h"

/* The ids it uses; a test takes others. */
enum { WITNESS_ID = 9000, WITNESS_BACK = 9001, WITNESS_STOP = 9002 };

void witness_life(weft_runtime_t *rt, weft_ep_t *ep); /* for peers_start() */
/* Serve it from our runtime, from now on. */
void witness_serve(peer_t *witness);
/* Messages of it that arrived here. */
uint64_t witness_count(void);
/* Drive our runtime until it has sent some more, ends the test after `seconds`. */
void witness_goes_on(peer_t *witness, double seconds);
/* Have it finish and leave; ends the test unless all was well. Its pid and endpoint are dealt with. */
void witness_end(peer_t *witness);

#endif
