/* tests/sim/fabric_order.c - the simulated network keeps the promises of fabric/fabric.h, whatever happens to it.
 *
 * Two to four hosts without a runtime; wires carry lane addresses, lanes carry numbered records and announcements. A model on
 * the side knows what was sent; pieces of payload are scribbled over the moment their transfer is done. Hosts map each other's
 * memory, and see what either writes. At the end everything is mended, drained and closed, and what was neither broken nor
 * closed must have arrived. ctest: long */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "simnet/simnet.h"
#include "seeds.h"

#define HOSTS_MAX 4
#define ENDS_MAX 24
#define XFERS_MAX 400
#define LOANS_MAX 16
#define MAPS_MAX 16
#define MAPPED 5000

typedef struct node {
    wefti_fabric_t *f;
    wefti_acceptor_t *post;
    int index;
    int memory;     /* a memfd, -1 once it is closed */
    uint64_t *word; /* its first; NULL: there is none yet */
} node_t;

typedef struct end {
    node_t *node;
    int other;   /* index of the other end once the wire told us, or -1 */
    int wire_id; /* what identifies this end to the other */
    wefti_wire_t *wire;
    wefti_lane_t *lane;
    bool joined, lane_closing, lane_closed, lane_failed, wire_over, room_wanted;
    uint32_t sent, got; /* records and announcements over the lane */
    uint32_t wire_sent, wire_got;
    unsigned transfers;
    uint8_t map_handle[WEFTI_MAP_HANDLE_MAX]; /* for the memory of this host, for the other end */
    size_t map_handle_n;
} end_t;

typedef struct xfer {
    wefti_xfer_t x;
    bool used, active, is_pull;
    int end, source; /* source: the announcement a pull copies */
    uint8_t *bytes;
    uint64_t n, want;
    uint32_t pattern;
    weft_iov_t iov[3];
    size_t iov_n;
    wefti_pull_t *waiting; /* an announcement that has arrived */
    uint64_t share;        /* its bytes are shared */
} xfer_t;

/* A payload that an end has borrowed. */
typedef struct loan {
    wefti_transport_t *transport;
    const uint8_t *ptr;
    void *lent;
    uint64_t n;
    uint32_t pattern;
} loan_t;

/* Memory of one host, mapped by another. */
typedef struct map {
    node_t *mapper, *owner;
    uint64_t *ptr;
} map_t;

static struct {
    wefti_sim_t *w;
    wefti_rng_t rng;
    node_t nodes[HOSTS_MAX];
    int n_nodes;
    end_t ends[ENDS_MAX];
    int n_ends;
    xfer_t xfers[XFERS_MAX];
    int n_xfers;
    loan_t loans[LOANS_MAX];
    int n_loans;
    map_t maps[MAPS_MAX];
    int n_maps;
    bool peaceful; /* nothing was killed, broken or closed so far */
} g;

#define BAD(...) wefti_sim_violation(g.w, __VA_ARGS__)
static uint64_t below(uint64_t n)
{
    return wefti_rng_below(&g.rng, n);
}

static void fill(uint8_t *p, uint64_t n, uint32_t pattern)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)(pattern * 31 + i * 7 + (i >> 8));
}

static void check(const uint8_t *p, uint64_t n, uint32_t pattern, const char *what)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != (uint8_t)(pattern * 31 + i * 7 + (i >> 8)))
            BAD("byte %llu of %s is wrong", (unsigned long long)i, what);
}

/* --- messages of a wire: number, end, and the address of a lane when it is the first -------------------------------------- */

typedef struct hello {
    uint32_t number, end, addr_n;
    uint8_t addr[64];
} hello_t;

typedef struct head {
    uint32_t number, xfer, n, pattern;
} head_t;

static void say(end_t *e)
{
    hello_t h = {e->wire_sent, (uint32_t)(e - g.ends), 0, {0}};
    if (!e->wire_sent && !e->lane) {
        uint8_t addr[WEFTI_LANE_ADDR_MAX];
        size_t n;
        wefti_transport_t *transport = e->node->f->transports[0];
        if (transport->ops->lane_new(transport, NULL, e, addr, &n, &e->lane))
            return;
        h.addr_n = (uint32_t)n;
        memcpy(h.addr, addr, n);
    }
    if (!e->node->f->ops->wire_send(e->wire, &h, sizeof h))
        e->wire_sent++;
    else if (h.addr_n) { /* a lane nobody will ever hear of */
        e->lane->ops->lane_close(e->lane);
        e->lane_closing = true;
    }
}

static end_t *end_new(node_t *node)
{
    end_t *e = &g.ends[g.n_ends++];
    e->node = node;
    e->other = -1;
    return e;
}

static void up_accepted(void *acceptor_user, wefti_wire_t *wire, const char *from)
{
    node_t *node = acceptor_user;
    if (strncmp(from, "tcp://", 6))
        BAD("a wire from %s", from);
    if (g.n_ends == ENDS_MAX || below(16) == 0) {
        g.peaceful = false;
        node->f->ops->wire_close(wire);
        return;
    }
    end_t *e = end_new(node);
    e->wire = wire;
    wire->user = e;
    say(e);
}

static void up_opened(void *user)
{
    end_t *e = user;
    if (e->wire_got || e->wire_over)
        BAD("wire_opened is not the first word of a wire");
    say(e);
}

static void up_message(void *user, const void *bytes, size_t n)
{
    end_t *e = user;
    hello_t h;
    if (e->wire_over || n != sizeof h)
        BAD("a wire message of %zu bytes%s", n, e->wire_over ? " after the end" : "");
    memcpy(&h, bytes, sizeof h);
    if (h.number != e->wire_got++)
        BAD("wire message %u came as number %u", h.number, e->wire_got - 1);
    e->other = (int)h.end;
    if (h.addr_n && e->lane && !e->lane_closing) {
        if (e->lane->ops->lane_connect(e->lane, h.addr, h.addr_n)) {
            g.peaceful = false;
            e->lane->ops->lane_close(e->lane);
            e->lane_closing = true;
        } else {
            e->joined = true;
        }
    }
}

static void up_wire_closed(void *user, weft_status_t why)
{
    end_t *e = user;
    if (e->wire_over || !why)
        BAD("wire_closed with %s, %s", weft_status_name(why), e->wire_over ? "again" : "once");
    e->wire_over = true;
}

/* --- lanes
 * ------------------------------------------------------------------------------------------------------------------- */

static head_t arrived(end_t *e, const void *rec, size_t n)
{
    head_t h;
    if (e->lane_closing || n < sizeof h)
        BAD("a record of %zu bytes on a lane that is %s", n, e->lane_closing ? "closed" : "open");
    memcpy(&h, rec, sizeof h);
    if (h.number != e->got++)
        BAD("record %u came as number %u", h.number, e->got - 1);
    check((const uint8_t *)rec + sizeof h, n - sizeof h, h.pattern, "a record");
    return h;
}

static void up_record(void *user, const void *rec, size_t n)
{
    arrived(user, rec, n);
}

static void up_announced(void *user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    end_t *e = user;
    head_t h = arrived(e, rec, n);
    xfer_t *src = &g.xfers[h.xfer];
    if (src->n != total || src->waiting)
        BAD("an announcement of %llu bytes", (unsigned long long)total);
    src->waiting = p;
    p->user = src;
    src->source = (int)(e - g.ends); /* who may pull it */
}

static void up_withdrawn(wefti_pull_t *p)
{
    xfer_t *src = p->user;
    if (src->waiting != p)
        BAD("withdrawn, but it was not there");
    src->waiting = NULL;
}

static void up_room(void *user)
{
    end_t *e = user;
    if (e->lane_closing)
        BAD("room on a closed lane");
    e->room_wanted = false;
}

static void up_failed(void *user, weft_status_t why)
{
    end_t *e = user;
    if (e->lane_failed || e->lane_closing || !why)
        BAD("lane_failed %s", e->lane_failed ? "twice" : "after close or without a reason");
    e->lane_failed = true;
    if (below(2)) {
        e->lane->ops->lane_close(e->lane);
        e->lane_closing = true;
    }
}

static void up_closed(void *user)
{
    end_t *e = user;
    if (!e->lane_closing || e->lane_closed || e->transfers)
        BAD("lane_closed: closed %d, %u transfers", e->lane_closing, e->transfers);
    e->lane_closed = true;
}

static const wefti_fabric_up_t up = {.wire_accepted = up_accepted,
                                     .wire_opened = up_opened,
                                     .wire_message = up_message,
                                     .wire_closed = up_wire_closed,
                                     .record = up_record,
                                     .announced = up_announced,
                                     .withdrawn = up_withdrawn,
                                     .space = up_room,
                                     .lane_failed = up_failed,
                                     .lane_closed = up_closed};

static void xfer_done(wefti_xfer_t *x, weft_status_t status)
{
    xfer_t *t = wefti_container_of(x, xfer_t, x);
    end_t *e = &g.ends[t->end];
    if (!t->active)
        BAD("a transfer is done twice");
    t->active = false;
    e->transfers--;
    if (t->is_pull && !status)
        check(t->bytes, t->want, t->pattern, "a pulled payload");
    if (status && status != WEFT_ERR_CANCELLED && status != (t->is_pull ? WEFT_ERR_PEER : WEFT_ERR_REFUSED))
        BAD("a %s is done with %s", t->is_pull ? "pull" : "announcement", weft_status_name(status));
    if (status == WEFT_ERR_PEER && g.peaceful)
        BAD("a peer is lost in a world at peace");
    if (t->share)
        e->node->f->ops->unshare(e->node->f, t->share);
    memset(t->bytes, 0x55, t->n); /* ours again: whoever still reads it reads this */
    free(t->bytes);
    t->bytes = NULL;
}

static void pieces(xfer_t *t, uint64_t n)
{
    t->iov_n = 1 + below(3);
    for (size_t i = 0, at = 0; i < t->iov_n; i++) {
        size_t k = i + 1 == t->iov_n ? n - at : below(n - at + 1);
        t->iov[i] = (weft_iov_t){t->bytes + at, k};
        at += k;
    }
}

static xfer_t *xfer_new(end_t *e, uint64_t n)
{
    if (g.n_xfers == XFERS_MAX)
        return NULL;
    xfer_t *t = &g.xfers[g.n_xfers];
    memset(t, 0, sizeof *t);
    t->x.done = xfer_done;
    t->end = (int)(e - g.ends);
    t->n = n;
    t->bytes = malloc(n ? n : 1);
    pieces(t, n);
    return t;
}

static void send_record(end_t *e)
{
    size_t n = sizeof(head_t) + (below(4) ? below(64) : below(e->lane->frame_max - sizeof(head_t) + 1));
    uint8_t *rec = e->lane->ops->reserve(e->lane, n);
    if (!rec) {
        e->room_wanted = true;
        return;
    }
    if ((uintptr_t)rec & 7)
        BAD("a record at an odd address");
    size_t used = below(8) ? n : sizeof(head_t) + below(n - sizeof(head_t) + 1);
    head_t h = {e->sent++, 0, 0, (uint32_t)below(1000)};
    memcpy(rec, &h, sizeof h);
    fill(rec + sizeof h, used - sizeof h, h.pattern);
    e->lane->ops->commit(e->lane, used);
}

static void announce(end_t *e)
{
    xfer_t *t = xfer_new(e, below(16) ? below(600) : below(40000));
    if (!t)
        return;
    t->pattern = (uint32_t)below(1000);
    fill(t->bytes, t->n, t->pattern);
    if (t->n && below(3) == 0) {
        wefti_fabric_t *f = e->node->f;
        if (f->ops->share(f, t->bytes, t->n, -1, &t->share))
            BAD("share");
        if (below(4)) {
            t->iov[0] = (weft_iov_t){t->bytes, t->n};
            t->iov_n = 1;
        }
    }
    head_t h = {e->sent, (uint32_t)g.n_xfers, (uint32_t)t->n, t->pattern};
    weft_status_t st = e->lane->ops->announce(e->lane, &h, sizeof h, t->iov, t->iov_n, t->n, &t->x);
    if (st) {
        if (t->share)
            e->node->f->ops->unshare(e->node->f, t->share);
        free(t->bytes);
        t->bytes = NULL;
        if (st != WEFT_ERR_AGAIN)
            BAD("announce: %s", weft_status_name(st));
        e->room_wanted = true;
        return;
    }
    t->used = t->active = true;
    e->transfers++;
    e->sent++;
    g.n_xfers++;
}

/* Whatever has become of the lane and of the sender, what was borrowed is still there. */
static void give_back(int i)
{
    loan_t *l = &g.loans[i];
    check(l->ptr, l->n, l->pattern, "a borrowed payload");
    l->transport->ops->unlend(l->transport, l->lent);
    *l = g.loans[--g.n_loans];
}

/* Look at an announcement where it lies, if it can be borrowed. */
static void borrow(end_t *e, xfer_t *src)
{
    loan_t *l = &g.loans[g.n_loans];
    const void *ptr;
    if (g.n_loans == LOANS_MAX || src->waiting->ops->lend(src->waiting, &ptr, &l->lent))
        return;
    if (!src->share)
        BAD("borrowed what is not shared");
    l->transport = e->node->f->transports[0];
    l->ptr = ptr;
    l->n = src->n;
    l->pattern = src->pattern;
    check(l->ptr, l->n, l->pattern, "a payload just borrowed");
    g.n_loans++;
}

/* Pull, borrow or refuse one of the announcements that wait at this end. */
static void take(end_t *e, bool all)
{
    for (int i = 0; i < g.n_xfers; i++) {
        xfer_t *src = &g.xfers[i];
        if (!src->waiting || src->source != (int)(e - g.ends) || (!all && below(2)))
            continue;
        wefti_pull_t *p = src->waiting;
        if (below(2)) {
            borrow(e, src);
            if (!all && below(2))
                continue; /* we are not done with it */
        }
        xfer_t *t = src->n && below(4) ? xfer_new(e, src->n) : NULL;
        if (!t) {
            src->waiting = NULL;
            p->ops->refuse(p, below(2));
            continue;
        }
        t->want = below(3) ? src->n : 1 + below(src->n);
        t->pattern = src->pattern;
        t->is_pull = t->used = t->active = true;
        e->transfers++;
        if (p->ops->pull(p, t->iov, t->iov_n, t->want, &t->x)) {
            e->transfers--;
            free(t->bytes);
            t->bytes = NULL;
            t->used = t->active = false;
            continue; /* still there */
        }
        src->waiting = NULL;
        g.n_xfers++;
    }
}

/* --- memory of one host that others map ------------------------------------------------------------------------------------ */

/* A map_handle for its memory; whoever is at the other end maps it sooner or later, or too late. */
static void expose(end_t *e)
{
    node_t *node = e->node;
    if (!node->word) {
        node->memory = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (node->memory < 0 || ftruncate(node->memory, MAPPED) || fcntl(node->memory, F_ADD_SEALS, F_SEAL_SHRINK) ||
            (node->word = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, node->memory, 0)) == MAP_FAILED)
            BAD("no memory to share");
    }
    if (node->memory >= 0)
        e->map_handle_n = e->lane->ops->expose(e->lane, node->memory, MAPPED, e->map_handle);
}

static void map_other(end_t *e)
{
    end_t *o = e->other >= 0 ? &g.ends[e->other] : NULL;
    void *ptr;
    if (!o || !o->map_handle_n || g.n_maps == MAPS_MAX)
        return;
    weft_status_t st = e->lane->ops->map(e->lane, o->map_handle, o->map_handle_n, MAPPED, &ptr);
    bool gone = !wefti_sim_alive(o->node->f) || o->node->memory < 0;
    if (gone ? st != WEFT_ERR_UNREACHABLE : st && st != WEFT_ERR_UNREACHABLE && st != WEFT_ERR_NOMEM && st != WEFT_ERR_LIMIT)
        BAD("end %d maps memory that is %s: %s", (int)(e - g.ends), gone ? "gone" : "there", weft_status_name(st));
    if (!gone && st == WEFT_ERR_UNREACHABLE && g.peaceful && !wefti_sim_faults(g.w)->map_fails)
        BAD("end %d cannot map what it has a map_handle for", (int)(e - g.ends));
    if (!st)
        g.maps[g.n_maps++] = (map_t){e->node, o->node, ptr};
}

/* Write to it at one end, and find it at all others. */
static void use_map(int i)
{
    map_t *m = &g.maps[i];
    uint64_t value = wefti_rng_next(&g.rng);
    *(below(2) ? m->ptr : m->owner->word) = value;
    for (int k = 0; k < g.n_maps; k++)
        if (g.maps[k].owner == m->owner && *g.maps[k].ptr != value)
            BAD("host %d does not see what was written to memory of host %d", g.maps[k].mapper->index, m->owner->index);
    if (*m->owner->word != value)
        BAD("host %d does not see what was written to its own memory", m->owner->index);
}

static void unmap(int i)
{
    map_t *m = &g.maps[i];
    m->mapper->f->transports[0]->ops->unmap(m->ptr, MAPPED);
    g.maps[i] = g.maps[--g.n_maps];
}

static void forget_memory(node_t *node)
{
    if (!node->word)
        return;
    munmap(node->word, MAPPED);
    if (node->memory >= 0)
        close(node->memory);
}

static void play_with_memory(end_t *e)
{
    unsigned what = (unsigned)below(20);
    if (what < 8)
        expose(e);
    else if (what < 14)
        map_other(e);
    else if (what < 17 && g.n_maps)
        use_map((int)below((uint64_t)g.n_maps));
    else if (what < 19 && g.n_maps)
        unmap((int)below((uint64_t)g.n_maps));
    else if (what == 19 && e->node->word && e->node->memory >= 0 && below(4) == 0) {
        close(e->node->memory); /* what is mapped stays */
        e->node->memory = -1;
    }
}

static void close_lane(end_t *e)
{
    e->lane_closing = true;
    e->lane->ops->lane_close(e->lane);
}

static void act(end_t *e)
{
    if (!wefti_sim_alive(e->node->f) || wefti_sim_paused(e->node->f))
        return;
    bool usable = e->joined && !e->lane_closing;
    if (g.n_loans && below(8) == 0)
        give_back((int)below((uint64_t)g.n_loans));
    unsigned what = (unsigned)below(100);
    if (what < 45 && usable)
        send_record(e);
    else if (what < 65 && usable)
        announce(e);
    else if (what < 80 && usable)
        take(e, false);
    else if (what < 88 && usable)
        play_with_memory(e);
    else if (what < 94 && !e->wire_over && e->wire_sent)
        say(e);
    else if (what == 98 && usable && below(3) == 0) {
        g.peaceful = false;
        close_lane(e);
    } else if (what == 99 && !e->wire_over && below(3) == 0) {
        e->wire_over = true;
        g.peaceful = false;
        e->node->f->ops->wire_close(e->wire);
    }
}

static void happen(void)
{
    node_t *a = &g.nodes[below((uint64_t)g.n_nodes)], *b = &g.nodes[below((uint64_t)g.n_nodes)];
    switch (below(12)) {
    case 0:
        wefti_sim_pause(a->f);
        break;
    case 1:
    case 2:
        wefti_sim_resume(a->f);
        break;
    case 3:
        wefti_sim_partition(a->f, b->f);
        break;
    case 4:
        wefti_sim_cut(a->f, b->f, true);
        break;
    case 5:
    case 6:
        wefti_sim_heal(a->f, b->f);
        break;
    case 7:
        if (below(6) == 0) {
            g.peaceful = false;
            wefti_sim_kill(a->f);
        }
        break;
    case 8:
        if (below(3) == 0) {
            g.peaceful = false;
            wefti_sim_break_lanes(a->f, b->f, WEFT_ERR_PEER);
        }
        break;
    case 9:
        if (below(3) == 0) {
            g.peaceful = false;
            wefti_sim_break_wires(a->f, b->f);
        }
        break;
    default:
        break;
    }
}

static void dial(void)
{
    node_t *from = &g.nodes[below((uint64_t)g.n_nodes)], *to = &g.nodes[below((uint64_t)g.n_nodes)];
    if (g.n_ends >= ENDS_MAX - 1 || !wefti_sim_alive(from->f) || wefti_sim_paused(from->f))
        return;
    const char *text = to->f->ops->acceptor_uri(to->post);
    wefti_uri_t uri;
    if (wefti_uri_parse(&text, &uri))
        BAD("%s is no address", text);
    end_t *e = end_new(from);
    if (from->f->ops->wire_dial(from->f, &uri, NULL, NULL, e, &e->wire)) {
        memset(e, 0, sizeof *e);
        g.n_ends--;
    }
}

static void drive(void)
{
    for (int i = 0; i < g.n_nodes; i++)
        g.nodes[i].f->ops->progress(g.nodes[i].f, below(2));
}

/* Until nothing is under way any more; takes everything that is offered. */
static void settle(void)
{
    for (int i = 0; i < 200000; i++) {
        drive();
        for (int k = 0; k < g.n_ends; k++) {
            end_t *e = &g.ends[k];
            if (e->joined && !e->lane_closing && wefti_sim_alive(e->node->f))
                take(e, true);
        }
        bool ready = false;
        for (int k = 0; k < g.n_nodes; k++)
            ready = ready || wefti_sim_ready(g.nodes[k].f);
        if (!ready && !wefti_sim_step(g.w))
            return;
    }
    BAD("no end of events");
}

static void finish(void)
{
    for (int i = 0; i < g.n_nodes; i++)
        for (int k = 0; k < g.n_nodes; k++)
            wefti_sim_heal(g.nodes[i].f, g.nodes[k].f);
    for (int i = 0; i < g.n_nodes; i++)
        wefti_sim_resume(g.nodes[i].f);
    wefti_sim_faults(g.w)->pull_fails = 0;
    settle();
    for (int i = 0; g.peaceful && i < g.n_ends; i++) {
        end_t *e = &g.ends[i], *o = e->other >= 0 ? &g.ends[e->other] : NULL;
        if (e->joined && o && o->joined && (e->sent != o->got || e->transfers))
            BAD("end %d sent %u, the other got %u; %u transfers are left", i, e->sent, o->got, e->transfers);
        if (e->joined && e->room_wanted)
            BAD("end %d waits for room and everything has arrived", i);
    }
    for (int i = 0; i < g.n_ends; i++) {
        end_t *e = &g.ends[i];
        if (e->lane && !e->lane_closing)
            close_lane(e);
        if (e->wire && !e->wire_over) {
            e->wire_over = true;
            e->node->f->ops->wire_close(e->wire);
        }
    }
    settle();
    for (int i = 0; i < g.n_ends; i++)
        if (g.ends[i].lane && !g.ends[i].lane_closed)
            BAD("lane of end %d never said that it is closed", i);
    for (int i = 0; i < g.n_xfers; i++)
        if (g.xfers[i].active || g.xfers[i].waiting)
            BAD("transfer %d is still under way", i);
    while (g.n_loans)
        give_back(0);
    while (g.n_maps) {
        use_map(0);
        unmap(0);
    }
    for (int i = 0; i < g.n_nodes; i++) {
        g.nodes[i].f->ops->acceptor_close(g.nodes[i].post);
        g.nodes[i].f->ops->close(g.nodes[i].f);
        forget_memory(&g.nodes[i]);
    }
}

static uint64_t scenario(uint64_t seed)
{
    memset(&g, 0, offsetof(__typeof__(g), xfers));
    g.n_xfers = g.n_loans = g.n_maps = 0;
    g.rng.state = seed ^ UINT64_C(0x6f72646572);
    g.peaceful = true;
    if (wefti_sim_new(seed, &g.w))
        sim_seed_failed(seed, "no world");
    wefti_sim_on_violation(g.w, sim_seed_failed);
    wefti_sim_faults_t *faults = wefti_sim_faults(g.w);
    faults->no_space = below(3) ? 0 : 100000;
    faults->false_space = below(3) ? 0 : 50000;
    faults->pull_slow = below(2) ? 0 : 200000;
    faults->pull_slow_ns = 5 * WEFT_MILLISECOND;
    faults->pull_fails = below(4) ? 0 : 200000;
    faults->map_fails = below(3) ? 0 : 200000;
    if (below(4) == 0) {
        g.peaceful = false;
        faults->lane_breaks = 5000;
        faults->wire_breaks = 20000;
        faults->wire_tail_lost = 300000;
        faults->refuse = faults->unreachable = faults->dial_fails = faults->lane_new_fails = faults->lane_connect_fails = 50000;
        faults->wire_send_fails = 20000;
    }
    g.n_nodes = 2 + (int)below(HOSTS_MAX - 1);
    for (int i = 0; i < g.n_nodes; i++) {
        char name[16];
        const char *text = "tcp://0.0.0.0:0";
        wefti_uri_t uri;
        node_t *node = &g.nodes[i];
        snprintf(name, sizeof name, "h%d", i);
        node->index = i;
        if (wefti_sim_host(g.w, name, &node->f) || wefti_uri_parse(&text, &uri))
            BAD("no host");
        node->f->up = &up;
        if (node->f->ops->acceptor_open(node->f, &uri, NULL, 4, node, &node->post))
            BAD("no post");
    }
    for (int i = 0, rounds = 60 + (int)below(120), mood = (int)below(3); i < rounds; i++) {
        if (below(12) == 0 || i < 2)
            dial();
        for (int k = 0; k < g.n_ends; k++)
            act(&g.ends[k]);
        if (mood == 0 && below(6) == 0)
            happen();
        drive();
        if (below(2)) {
            uint64_t next = wefti_sim_next(g.w), now = wefti_sim_now(g.w);
            uint64_t to = now + below(100 * WEFT_MICROSECOND);
            wefti_sim_advance(g.w, below(2) && next != WEFT_FOREVER && next > to ? next : to);
        }
    }
    finish();
    uint64_t hash = wefti_sim_hash(g.w);
    wefti_sim_free(g.w);
    return hash;
}

int main(int argc, char **argv)
{
    return sim_seeds_main(argc, argv, 6000, scenario);
}
