/* conn/recheck.h - connections that were welcome once and are no longer: a key was taken back, a certificate was revoked, a rule
 * of the policy changed.
 *
 * A source says that something has changed, and then for each endpoint whether its peer is still welcome. It is asked by a timer
 * of the runtime that runs every WEFTI_RECHECK_NS as long as there is a source that can say so, and for an endpoint that is
 * about to come up, so that what changed during its hello counts. Who is not welcome is ended as one whose peer is lost: its
 * operations complete with the status and the sentence, and the peer sees that the connection ended.
 *
 * Each shard has its own room, and so its own sources, which look after its endpoints alone. Driver only. A runtime that nobody
 * drives looks at nothing. tests/wire/conn_recheck.c. */
#ifndef WEFTI_RECHECK_H
#define WEFTI_RECHECK_H

#include <weft/conn.h>

#define WEFTI_RECHECK_NS (400 * WEFT_MILLISECOND)
enum { WEFTI_RECHECK_MOST = 8 };

typedef struct wefti_recheck {
    bool (*changed)(void *user);                         /* since it was last asked? May read a file: it is no fast path. NULL: it
                                                            never says so itself, and needs no timer */
    weft_status_t (*welcome)(void *user, weft_ep_t *ep); /* may its peer stay? An error, with a sentence (wefti_fail): no. Ends
                                                            nothing itself */
    void *user;
} wefti_recheck_t;

/* From now on until the runtime is closed. WEFT_ERR_NOMEM; WEFT_ERR_LIMIT: there are WEFTI_RECHECK_MOST. On the driver, or
 * before the runtime is driven. */
weft_status_t wefti_recheck_add(weft_runtime_t *rt, const wefti_recheck_t *source);
/* Do not wait for the timer: ask every source of every endpoint now. */
void wefti_recheck_now(weft_runtime_t *rt);

#endif
