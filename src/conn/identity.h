/* conn/identity.h - who a peer is, and whether it is still welcome, for the files of this room: identity.c, recheck.c
 * and policy.c. */
#ifndef WEFTI_CONN_IDENTITY_H
#define WEFTI_CONN_IDENTITY_H

#include "conn/hello.h"
#include "conn/recheck.h"
#include "core/core.h"

struct wefti_conn;
struct wefti_link;
struct wefti_epx;

/* Of the runtime: who is asked whether peers are still welcome (recheck.c). */
typedef struct wefti_rechecks {
    wefti_timer_t timer; /* runs while there are any */
    struct wefti_conn *conn;
    bool ticks;
    unsigned n;
    wefti_recheck_t of[WEFTI_RECHECK_MOST];
} wefti_rechecks_t;

void wefti_recheck_step(struct wefti_epx *ep);               /* the work's: end it, if its peer is not welcome */
weft_status_t wefti_recheck_rising(struct wefti_epx *ep);    /* it is about to come up: may it? With a sentence */
void wefti_recheck_stop(struct wefti_conn *conn);

/* policy.c. At attach; the head's is before those of its shards. WEFT_ERR_INVALID with a sentence. */
weft_status_t wefti_rules_open(struct wefti_conn *conn);
void wefti_rules_close(struct wefti_conn *conn);
bool wefti_rules_newcomer(struct wefti_link *link); /* listener: may its peer connect? False: the link is lost */

void wefti_shake_own_key(struct wefti_link *link, wefti_hello_t *h); /* the one that proves our hello, h with its nonce */
bool wefti_shake_their_key(struct wefti_link *link); /* listener: the one that the peer's hello names. False: none of ours */
/* The wire with TLS that it has, or that its trunk has for all its guests; NULL: none. */
wefti_wire_t *wefti_link_secured(const struct wefti_link *link);
/* Before the link is up: who the peer is, by what it proved: the first name of its certificate, else the name of its key, which
 * may be "". */
const char *wefti_link_identity(const struct wefti_link *link);
weft_status_t wefti_identity_begin(struct wefti_conn *conn); /* look at files with keys and certificates */
weft_status_t wefti_identity_watch(struct wefti_conn *conn); /* from now on: a listener may have some of its own */
weft_status_t wefti_link_admitted(struct wefti_link *link); /* listener: what its hooks say. They may close it: link->state */

#endif
