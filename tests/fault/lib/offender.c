/* tests/fault/lib/offender.c - see offender.h. */
#include "offender.h"

#include <string.h>

#include "must.h"
#include "witness.h"

enum { XFERS = 8192 };

offender_t off;
static const weft_iov_t payload_iov = {off.payload, OFFENDER_PAYLOAD};
static wefti_xfer_t xfers[XFERS];
static unsigned n_xfers;
static const wefti_fabric_up_t *up; /* conn's */
static wefti_fabric_up_t deaf_up;

static void must_be(bool fact, const char *what)
{
    if (fact)
        return;
    fprintf(stderr, "the offender: %s\n", what);
    exit(1);
}

void offender_drive(void)
{
    weft_runtime_progress(off.witness.rt);
    weft_runtime_progress(off.rt);
}

void offender_drive_for(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        offender_drive();
}

/* False after a while. */
#define UNTIL(cond, what) \
    for (double until_end = now() + 10; !(cond); must_be(now() < until_end, what)) \
    offender_drive()

/* --- deafness ------------------------------------------------------------------------------------------------------------- */

static void note(const void *rec, size_t n, uint64_t total)
{
    if (off.n_heard == OFFENDER_HEARD)
        return;
    memcpy(off.heard[off.n_heard].bytes, rec, n < sizeof off.heard->bytes ? n : sizeof off.heard->bytes);
    off.heard[off.n_heard].n = n;
    off.heard[off.n_heard++].total = total;
}

static void deaf_record(void *lane_user, const void *rec, size_t n)
{
    if (*(const uint8_t *)rec <= WEFTI_REC_CLOSE_ACK) {
        up->record(lane_user, rec, n);
        return;
    }
    if (off.ep)
        off.ep->heard = 1;
    note(rec, n, 0);
}

static void deaf_announced(void *lane_user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    (void)lane_user;
    p->user = NULL; /* until the lane goes */
    note(rec, n, total);
}

static void deaf_withdrawn(wefti_pull_t *p)
{
    if (p->user)
        up->withdrawn(p);
}

/* --- connections ---------------------------------------------------------------------------------------------------------- */

void offender_begin(const char *transports)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_log_set_level(WEFT_LOG_NONE);
    peers_start(&off.witness, 1, transports, 0, (peer_life_t[]){witness_life});
    witness_serve(&off.witness);
    o.transports = transports;
    o.progress = WEFT_PROGRESS_CALLER;
    must(weft_runtime_open(&o, &off.rt), "weft_runtime_open");
    offender_drive_for(0.01);
}

void offender_end(void)
{
    must(weft_runtime_close(off.rt), "weft_runtime_close");
    witness_end(&off.witness);
    peers_end(&off.witness, 1);
}

void offender_join(bool deaf)
{
    weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT;
    weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
    must(weft_listener_accept(off.witness.listener, &accept), "weft_listener_accept");
    must(weft_ep_open(off.rt, weft_listener_uri(off.witness.listener), NULL, &connect, &off.ep), "weft_ep_open");
    UNTIL(weft_op_done(&accept) && weft_op_done(&connect), "no connection");
    must(accept.status, "accept");
    must(connect.status, "connect");
    off.victim = accept.buf;
    UNTIL(off.victim->lane && off.ep->lane, "no lanes");
    offender_drive_for(0.005); /* the windows are granted */
    n_xfers = off.n_heard = 0;
    memset(&off.ours, 0, sizeof off.ours);
    ro.ep = off.victim;
    ro.id = OFFENDER_NOBODY;
    must(weft_am_recv(off.witness.rt, &ro, &off.ours), "weft_am_recv");
    if (deaf) {
        up = off.rt->fabric->up;
        deaf_up = *up;
        deaf_up.record = deaf_record;
        deaf_up.announced = deaf_announced;
        deaf_up.withdrawn = deaf_withdrawn;
        off.rt->fabric->up = &deaf_up;
    }
}

void offender_part(void)
{
    weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    must(weft_ep_abort(off.victim, &ops[0]), "weft_ep_abort");
    must(weft_ep_abort(off.ep, &ops[1]), "weft_ep_abort");
    UNTIL(weft_op_done(&ops[0]) && weft_op_done(&ops[1]), "the connection does not end");
    off.ep = off.victim = NULL;
    if (up)
        off.rt->fabric->up = up;
    up = NULL;
    must_be(weft_op_done(&off.ours), "a receive on a connection that is gone goes on");
    weft_runtime_get_stats(off.witness.rt, &s);
    must_be(s.endpoints == 1, "an endpoint is left");
}

/* --- records -------------------------------------------------------------------------------------------------------------- */

bool offender_put(const void *rec, size_t n)
{
    wefti_lane_t *lane;
    void *at = NULL;
    double end = now() + 10;
    while ((lane = off.ep->lane) && !(at = lane->ops->reserve(lane, n))) {
        offender_drive();
        must_be(now() < end, "no room for a record");
    }
    if (!lane)
        return false;
    memcpy(at, rec, n);
    lane->ops->commit(lane, n);
    offender_drive();
    return off.ep->lane;
}

static void xfer_done(wefti_xfer_t *x, weft_status_t st)
{
    (void)x, (void)st;
    off.n_done++;
}

bool offender_announce(const void *rec, size_t n, uint64_t total)
{
    wefti_lane_t *lane;
    weft_status_t st = WEFT_ERR_AGAIN;
    double end = now() + 10;
    must_be(n_xfers < XFERS, "too many announcements");
    wefti_xfer_t *x = &xfers[n_xfers];
    x->done = xfer_done;
    while ((lane = off.ep->lane) && (st = lane->ops->announce(lane, rec, n, &payload_iov, 1, total, x)) == WEFT_ERR_AGAIN) {
        offender_drive();
        must_be(now() < end, "no room for an announcement");
    }
    n_xfers += !st;
    offender_drive();
    return off.ep->lane && !st;
}

void offender_judge(const char *what, verdict_t verdict)
{
    if (verdict == FAILS) {
        for (double end = now() + 5; !weft_op_done(&off.ours) && now() < end;)
            offender_drive();
    } else {
        offender_drive_for(0.02);
    }
    bool stands = !weft_op_done(&off.ours);
    if (stands ? verdict == FAILS : verdict == STANDS || off.ours.status != WEFT_ERR_PROTOCOL) {
        fprintf(stderr, "%s: the endpoint %s\n", what, stands ? "stands" : weft_status_name(off.ours.status));
        exit(1);
    }
    must_be(weft_ep_get_state(off.victim) == (stands ? WEFT_EP_UP : WEFT_EP_FAILED), "the endpoint is in another state");
}
