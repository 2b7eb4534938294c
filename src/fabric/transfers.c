/* fabric/transfers.c - see transfers.h. */
#include "fabric/transfers.h"

#include "base/alloc.h"
#include "base/log.h"

void wefti_transfers_init(wefti_transfers_t *all, const wefti_transfers_ops_t *ops)
{
    all->ops = ops;
    wefti_slots_init(&all->outgoing, UINT32_MAX - 1);
    wefti_slots_init(&all->incoming, UINT32_MAX - 1);
    wefti_list_init(&all->ended);
    wefti_list_init(&all->events);
    wefti_list_init(&all->open);
}

void wefti_transfers_free(wefti_transfers_t *all)
{
    wefti_slots_free(&all->outgoing);
    wefti_slots_free(&all->incoming);
}

void wefti_half_init(wefti_half_t *h, wefti_transfers_t *all, wefti_transport_t *transport, void *user, uint32_t frame_max)
{
    h->base = (wefti_lane_t){.ops = transport->ops, .transport = transport, .user = user, .frame_max = frame_max};
    h->all = all;
    h->epoch = all->epoch - 1;
    wefti_list_t *lists[] = {&h->event_link, &h->open_link, &h->announced, &h->sending, &h->offers, &h->pulling};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
}

void wefti_half_free(wefti_half_t *h)
{
    wefti_list_remove(&h->event_link);
    wefti_map_free(&h->offer_ids);
}

/* --- lanes -------------------------------------------------------------------------------------------------------- */

void wefti_half_event(wefti_half_t *h, unsigned event)
{
    h->events |= event;
    if (!wefti_list_linked(&h->event_link))
        wefti_list_push_back(&h->all->events, &h->event_link);
}

void wefti_half_fail(wefti_half_t *h, weft_status_t why, const char *what)
{
    const char *name = h->base.transport->name;
    h->failed = true;
    h->why = why;
    if (why == WEFT_ERR_PROTOCOL)
        wefti_info("%s: a lane ends, its peer broke the protocol: %s", name, what);
    else
        wefti_debug("%s: a lane ends: %s", name, what);
    wefti_half_event(h, WEFTI_EV_FAILED);
}

void *wefti_half_no_space(wefti_half_t *h, bool soon)
{
    h->want_space = true;
    if (soon)
        wefti_half_event(h, WEFTI_EV_SPACE);
    return NULL;
}

static void move(wefti_list_t *link, wefti_list_t *to)
{
    wefti_list_remove(link);
    wefti_list_push_back(to, link);
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

static void outgoing_free(wefti_job_t *job)
{
    wefti_free(wefti_container_of(job, wefti_outgoing_t, job));
}

weft_status_t wefti_outgoing_new(wefti_half_t *of, const weft_iov_t *iov, uint64_t total, wefti_xfer_t *x, size_t size,
                                 wefti_outgoing_t **out)
{
    wefti_outgoing_t *o = wefti_calloc(1, size);
    if (!o)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for an announcement");
    weft_status_t st = wefti_slots_add(&of->all->outgoing, o, &o->id);
    if (st) {
        wefti_free(o);
        return st;
    }
    o->job = (wefti_job_t){.of = of, .x = x, .let_go = outgoing_free};
    o->from.iov = iov;
    o->total = total;
    wefti_list_push_back(&of->announced, &o->job.link);
    *out = o;
    return WEFT_OK;
}

void wefti_outgoing_offer(const wefti_outgoing_t *o, uint8_t *at, const void *rec, size_t n)
{
    memcpy(at, &o->id, 8);
    memcpy(at + 8, &o->total, 8);
    memcpy(at + WEFTI_OFFER_HEAD, rec, n);
}

wefti_outgoing_t *wefti_outgoing_find(wefti_half_t *of, uint64_t id)
{
    wefti_outgoing_t *o = wefti_slots_get(&of->all->outgoing, id);
    return o && o->job.of == of ? o : NULL;
}

wefti_outgoing_t *wefti_outgoing_pulled(wefti_half_t *of, const uint64_t *nums)
{
    wefti_outgoing_t *o = wefti_outgoing_find(of, nums[0]);
    if (!o || o->pulled || !nums[2] || nums[2] > o->total) {
        of->all->ops->fail(&of->base, WEFT_ERR_PROTOCOL, "a pull of what was not offered");
        return NULL;
    }
    o->pulled = true;
    o->slot = nums[1];
    o->want = nums[2];
    move(&o->job.link, &of->sending);
    return o;
}

void wefti_outgoing_left(wefti_outgoing_t *o)
{
    move(&o->job.link, &o->job.of->announced);
}

void wefti_job_end(wefti_job_t *job, weft_status_t status)
{
    job->status = status;
    move(&job->link, &job->of->all->ended);
    job->of->untold++;
}

void wefti_outgoing_end(wefti_outgoing_t *o, weft_status_t status)
{
    wefti_slots_remove(&o->job.of->all->outgoing, o->id);
    wefti_job_end(&o->job, status);
}

void wefti_outgoing_end_all(wefti_list_t *list, weft_status_t status)
{
    for (wefti_list_t *it; (it = wefti_list_first(list));)
        wefti_outgoing_end(wefti_container_of(it, wefti_outgoing_t, job.link), status);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void incoming_free(wefti_incoming_t *p)
{
    if (p->pieces != p->own_pieces)
        wefti_free(p->pieces);
    wefti_free(p);
}

static void incoming_ended(wefti_job_t *job)
{
    wefti_incoming_t *p = wefti_container_of(job, wefti_incoming_t, job);
    job->of->all->ops->pull_ends(p);
    incoming_free(p);
}

wefti_incoming_t *wefti_incoming_new(wefti_half_t *of, uint64_t id, uint64_t total, size_t size)
{
    if (!total || wefti_map_get(&of->offer_ids, id)) {
        of->all->ops->fail(&of->base, WEFT_ERR_PROTOCOL, "an offer that makes no sense");
        return NULL;
    }
    wefti_incoming_t *p = wefti_calloc(1, size);
    if (!p || wefti_map_put(&of->offer_ids, id, p)) {
        wefti_free(p);
        of->all->ops->fail(&of->base, WEFT_ERR_NOMEM, "no memory for an offer");
        return NULL;
    }
    p->base.ops = of->base.ops;
    p->job = (wefti_job_t){.of = of, .let_go = incoming_ended};
    p->id = id;
    p->total = total;
    p->pieces = p->own_pieces;
    wefti_list_push_back(&of->offers, &p->job.link);
    return p;
}

void wefti_offer_arrived(wefti_half_t *of, const uint8_t *bytes, size_t n, size_t size)
{
    uint64_t id, total;
    if (n <= WEFTI_OFFER_HEAD || n > WEFTI_OFFER_HEAD + WEFTI_REC_MAX / 2) {
        of->all->ops->fail(&of->base, WEFT_ERR_PROTOCOL, "an offer of the wrong length");
        return;
    }
    memcpy(&id, bytes, 8);
    memcpy(&total, bytes + 8, 8);
    wefti_incoming_t *p = wefti_incoming_new(of, id, total, size);
    if (p)
        of->base.transport->fabric->up->announced(of->base.user, bytes + WEFTI_OFFER_HEAD, n - WEFTI_OFFER_HEAD, total, &p->base);
}

void wefti_incoming_begin(wefti_incoming_t *p, wefti_xfer_t *x)
{
    p->job.x = x;
    wefti_map_take(&p->job.of->offer_ids, p->id);
    move(&p->job.link, &p->job.of->pulling);
}

weft_status_t wefti_incoming_pull(wefti_incoming_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x)
{
    bool own = iov_n <= sizeof p->own_pieces / sizeof p->own_pieces[0];
    weft_iov_t *pieces = own ? p->own_pieces : wefti_malloc(iov_n * sizeof *pieces);
    if (!pieces)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for %zu pieces", iov_n);
    weft_status_t st = wefti_slots_add(&p->job.of->all->incoming, p, &p->slot);
    if (st) {
        if (!own)
            wefti_free(pieces);
        return st;
    }
    memcpy(pieces, iov, iov_n * sizeof *pieces);
    p->pieces = pieces;
    p->to.iov = pieces;
    p->want = want;
    wefti_incoming_begin(p, x);
    return WEFT_OK;
}

wefti_incoming_t *wefti_incoming_find(wefti_half_t *of, uint64_t slot, uint64_t n)
{
    wefti_incoming_t *p = wefti_slots_get(&of->all->incoming, slot);
    if (p && p->job.of == of && n && n <= p->want - p->got)
        return p;
    of->all->ops->fail(&of->base, WEFT_ERR_PROTOCOL, "a chunk of what is not being pulled");
    return NULL;
}

void wefti_incoming_end(wefti_incoming_t *p, weft_status_t status)
{
    if (p->slot)
        wefti_slots_remove(&p->job.of->all->incoming, p->slot);
    p->slot = 0;
    wefti_job_end(&p->job, status);
}

void wefti_incoming_drop(wefti_incoming_t *p)
{
    wefti_map_take(&p->job.of->offer_ids, p->id);
    wefti_list_remove(&p->job.link);
    incoming_free(p);
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

void wefti_tell_withdrawn(wefti_half_t *of)
{
    for (wefti_list_t *it; (it = wefti_list_pop(&of->offers));) {
        wefti_incoming_t *p = wefti_container_of(it, wefti_incoming_t, job.link);
        of->base.transport->fabric->up->withdrawn(&p->base);
        wefti_incoming_drop(p);
    }
}

unsigned wefti_transfers_tell(wefti_transfers_t *all)
{
    unsigned n = 0;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &all->ended);
    for (; (it = wefti_list_pop(&now)); n++) {
        wefti_job_t *job = wefti_container_of(it, wefti_job_t, link), was = *job;
        job->let_go(job);
        was.of->untold--;
        all->ops->told(&was.of->base);
        was.x->done(was.x, was.status);
    }
    return n;
}

static void lane_tell(wefti_half_t *h)
{
    const wefti_fabric_up_t *up = h->base.transport->fabric->up;
    unsigned events = h->events;
    h->events = 0;
    if (!h->all->ops->lane_event(&h->base, events))
        return;
    if (events & WEFTI_EV_FAILED) {
        up->lane_failed(h->base.user, h->why);
    } else if (events & WEFTI_EV_SPACE && h->want_space && !h->failed) {
        h->want_space = false;
        up->space(h->base.user);
    }
}

unsigned wefti_events_tell(wefti_transfers_t *all)
{
    unsigned n = 0;
    wefti_list_t now, *it;
    wefti_list_init(&now);
    wefti_list_splice(&now, &all->events);
    for (; (it = wefti_list_pop(&now)); n++)
        lane_tell(wefti_container_of(it, wefti_half_t, event_link));
    return n;
}
