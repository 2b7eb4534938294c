/* tests/sim/lib/model.c - the checks at every completion. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/pulse.h"
#include "fakedev.h"
#include "heap_count.h"
#include "seeds.h"

#define GUARD_BYTES 16
#define GUARD_BYTE 0x5e
#define FRESH_BYTE 0xc3 /* what a receive's buffer holds before */
#define DEAD_BYTE 0x5a  /* what memory holds that is not the library's any more */

/* --- messages
 * ---------------------------------------------------------------------------------------------------------------- */

uint64_t model_tag(int link, int side, uint32_t seq, unsigned class)
{
    return (class & 7) | (uint64_t)link << 8 | (uint64_t)side << 16 | (uint64_t)seq << 24;
}

static uint8_t pattern(uint64_t tag, size_t i)
{
    return (uint8_t)((tag >> 24) * 37 + (tag >> 8) * 11 + i * 7 + (i >> 8));
}

/* Memory of one of two kinds, by the seed. */
static uint8_t *buf_new(model_t *m, size_t n, bool *device_out)
{
    void *p = NULL;
    *device_out = m->devices && n && sim_odds(&m->net, 50);
    if (!*device_out)
        return malloc(n ? n : 1);
    if (weft_mem_alloc(fakedev(), n, &p))
        sim_bad(&m->net, "no memory of the device");
    return p;
}

static void buf_free(uint8_t *buf, size_t n, bool device)
{
    if (device)
        weft_mem_free(fakedev(), buf, n);
    else
        free(buf);
}

void model_recv_buf(model_t *m, act_t *a, size_t cap)
{
    uint8_t *fresh = malloc(cap + GUARD_BYTES);
    memset(fresh, FRESH_BYTE, cap);
    memset(fresh + cap, GUARD_BYTE, GUARD_BYTES);
    a->cap = cap;
    a->buf = buf_new(m, cap + GUARD_BYTES, &a->device);
    if (a->device)
        fakedev_poke(a->buf, fresh, cap + GUARD_BYTES);
    else
        memcpy(a->buf, fresh, cap + GUARD_BYTES);
    free(fresh);
}

/* Look at the buffer of a receive that is complete: in memory of the host from here on. */
static void recv_buf_home(act_t *a)
{
    if (!a->device)
        return;
    uint8_t *host = malloc(a->cap + GUARD_BYTES);
    fakedev_peek(a->buf, host, a->cap + GUARD_BYTES);
    buf_free(a->buf, a->cap + GUARD_BYTES, true);
    a->buf = host;
    a->device = false;
}

msg_t *model_msg(model_t *m, int end, size_t len, unsigned class)
{
    if (m->n_msgs == MSGS_MAX)
        return NULL;
    end_t *e = &m->ends[end];
    msg_t *g = &m->msgs[m->n_msgs++];
    memset(g, 0, sizeof *g);
    g->end = end;
    g->seq = m->links[e->link].seq[e->side]++;
    g->tag = model_tag(e->link, e->side, g->seq, class);
    g->len = (uint32_t)len;
    uint8_t *bytes = malloc(len ? len : 1);
    for (size_t i = 0; i < len; i++)
        bytes[i] = pattern(g->tag, i);
    g->buf = buf_new(m, len, &g->device);
    if (g->device)
        fakedev_poke(g->buf, bytes, len);
    else
        memcpy(g->buf, bytes, len);
    free(bytes);
    return g;
}

void model_unsend(model_t *m)
{
    msg_t *g = &m->msgs[--m->n_msgs];
    if (g->released)
        sim_bad(&m->net, "a send that was not started released its buffer");
    buf_free(g->buf, g->len, g->device);
}

/* The library may not look at the bytes any more. */
static void wipe_msg(msg_t *g)
{
    if (!g->buf)
        return;
    memset(g->buf, 0x99, g->len);
    buf_free(g->buf, g->len, g->device);
    g->buf = NULL;
}

static model_t *model_now; /* weft_release_fn has one user pointer, which is the message */

void model_release(void *buf, void *user)
{
    msg_t *g = user;
    (void)buf;
    if (!g->owned || ++g->released > g->pieces)
        sim_bad(&model_now->net, "message %u was released %u times", g->seq, g->released);
    if (g->done)
        sim_bad(&model_now->net, "message %u was released after its operation was complete", g->seq);
    if (g->released == g->pieces)
        wipe_msg(g);
}

static bool accepts(int filter, uint64_t tag, uint64_t mask, int end, uint64_t msg_tag)
{
    return (filter < 0 || filter == end) && !((tag ^ msg_tag) & mask);
}

void model_got(model_t *m, const act_t *a, weft_ep_id_t from, uint64_t tag, uint64_t len, const uint8_t *bytes)
{
    end_t *e = model_end_of_id(m, a->node, from);
    int link = (int)(tag >> 8 & 0xff), side = (int)(tag >> 16 & 1);
    if (!e && link < m->n_links && side == 0 && m->links[link].node[1] == a->node)
        e = model_end(m, link, 1, a->node, NULL, from); /* nobody has accepted it yet, or ever will: it may not be used */
    if (!e)
        sim_bad(&m->net, "a message from endpoint %llx, which node %d does not have", (unsigned long long)from, a->node);
    int end = (int)(e - m->ends);
    if (!accepts(a->end, a->tag, a->mask, end, tag))
        sim_bad(&m->net, "tag %llx came to a receive of %llx/%llx on end %d, through end %d", (unsigned long long)tag,
                (unsigned long long)a->tag, (unsigned long long)a->mask, a->end, end);
    msg_t *g = NULL;
    for (int i = 0; i < m->n_msgs && !g; i++)
        if (m->msgs[i].tag == tag)
            g = &m->msgs[i];
    if (!g || m->ends[g->end].link != e->link || m->ends[g->end].side == e->side)
        sim_bad(&m->net, "a message with tag %llx came through end %d; nobody sent it there", (unsigned long long)tag, end);
    if (g->taken)
        sim_bad(&m->net, "message %u of link %d was received twice", g->seq, e->link);
    if (g->len != len)
        sim_bad(&m->net, "message %u of link %d has %llu bytes, not %u", g->seq, e->link, (unsigned long long)len, g->len);
    for (size_t i = 0; bytes && i < len; i++)
        if (bytes[i] != pattern(tag, i))
            sim_bad(&m->net, "byte %zu of message %u of link %d is %02x", i, g->seq, e->link, bytes[i]);
    if (g->done && (g->status == WEFT_ERR_CANCELLED || g->status == WEFT_ERR_TIMEOUT) && !m->links[e->link].hurt && !e->closed)
        sim_bad(&m->net, "message %u of link %d was received, and its send said %s", g->seq, e->link,
                weft_status_name(g->status));
    g->taken = true;
    got_t c = {a->node, end, a->end, a->tag, a->mask, tag, a->stamp, g->seq};
    for (int i = 0; i < m->n_gots; i++) {
        const got_t *p = &m->gots[i];
        if (p->end == end && p->stamp != c.stamp && (p->stamp < c.stamp) != (p->seq < c.seq) &&
            accepts(p->filter, p->tag, p->mask, end, c.msg_tag) && accepts(c.filter, c.tag, c.mask, end, p->msg_tag))
            sim_bad(&m->net, "messages %u and %u of link %d came in the wrong order", p->seq, c.seq, e->link);
    }
    m->gots[m->n_gots++] = c;
}

/* --- ends
 * -------------------------------------------------------------------------------------------------------------------- */

end_t *model_end(model_t *m, int link, int side, int node, weft_ep_t *ep, weft_ep_id_t id)
{
    if (m->n_ends == ENDS_MAX)
        return NULL;
    end_t *e = &m->ends[m->n_ends++];
    memset(e, 0, sizeof *e);
    e->link = link;
    e->side = side;
    e->node = node;
    e->ep = ep;
    e->id = id;
    return e;
}

end_t *model_end_of_id(model_t *m, int node, weft_ep_id_t id)
{
    for (int i = m->n_ends - 1; i >= 0; i--)
        if (m->ends[i].node == node && m->ends[i].id == id)
            return &m->ends[i];
    return NULL;
}

end_t *model_end_of_ep(model_t *m, int link, const weft_ep_t *ep)
{
    for (int i = m->n_ends - 1; i >= 0; i--)
        if (m->ends[i].link == link && m->ends[i].id == weft_ep_id(ep) && m->net.nodes[m->ends[i].node].rt == weft_ep_runtime(ep))
            return &m->ends[i];
    return NULL;
}

end_t *model_peer(model_t *m, const end_t *e)
{
    for (int i = m->n_ends - 1; i >= 0; i--)
        if (m->ends[i].link == e->link && m->ends[i].side != e->side)
            return &m->ends[i];
    return NULL;
}

uint64_t model_taken(const model_t *m, const end_t *sender)
{
    uint64_t n = 0;
    for (int i = 0; i < m->n_msgs; i++)
        n += m->msgs[i].taken && &m->ends[m->msgs[i].end] == sender;
    return n;
}

/* --- completions
 * ------------------------------------------------------------------------------------------------------------- */

static uint64_t stopped_since(const model_t *m, const act_t *a, int node)
{
    return sim_net_stopped(&m->net, node) - a->stopped_before[node];
}

/* Whoever was stopped counts the silence of the other side anew when it goes on, twice at most (fabric/pulse.h). Where a link
 * is cut one way it is the only one that hears nothing: so much longer may it take until heartbeats decide. */
static uint64_t counted_anew(const model_t *m, const act_t *a)
{
    const end_t *e = a->end >= 0 ? &m->ends[a->end] : NULL;
    uint64_t most = 0;
    for (int i = 0; a->by_beats && i < m->net.n; i++) {
        if (e && i != a->node && i != m->links[e->link].node[!e->side])
            continue;
        unsigned stops = m->net.nodes[i].stops - a->stops_before[i];
        uint64_t ns = (stops < WEFTI_PULSE_EXCUSES ? stops : WEFTI_PULSE_EXCUSES) * m->heartbeat_ns;
        ns += i == a->node ? 0 : stopped_since(m, a, i);
        most = ns > most ? ns : most;
    }
    return most;
}

static void check_time(model_t *m, const act_t *a)
{
    uint64_t took = sim_now(&m->net) - a->posted_at, stopped = stopped_since(m, a, a->node) + counted_anew(m, a);
    if (a->bound && took > a->bound + stopped && m->net.nodes[a->node].rt && !m->net.nodes[a->node].dead)
        sim_bad(&m->net, "an operation of kind %d on node %d takes %.3f ms; it may take %.3f", a->kind, a->node,
                (double)took * 1e-6, (double)(a->bound + stopped) * 1e-6);
}

static void check_recv(model_t *m, act_t *a)
{
    weft_op_t *op = &a->op;
    recv_buf_home(a);
    for (size_t i = 0; a->buf && i < GUARD_BYTES; i++)
        if (a->buf[a->cap + i] != GUARD_BYTE)
            sim_bad(&m->net, "a receive wrote %zu bytes past the end of its buffer", i + 1);
    if (op->status == WEFT_ERR_TRUNCATED) {
        if (op->len <= a->cap)
            sim_bad(&m->net, "%llu bytes were too long for %zu", (unsigned long long)op->len, a->cap);
        for (size_t i = 0; a->buf && i < a->cap; i++)
            if (a->buf[i] != FRESH_BYTE)
                sim_bad(&m->net, "a truncated message was written to its buffer");
        if (op->buf)
            sim_bad(&m->net, "a truncated message came with a buffer");
        model_got(m, a, op->from, op->tag, op->len, NULL);
    } else if (!op->status) {
        if (op->len > a->cap || (a->kind == ACT_RECV_ALLOC && !op->buf))
            sim_bad(&m->net, "a receive of at most %zu bytes got %llu", a->cap, (unsigned long long)op->len);
        model_got(m, a, op->from, op->tag, op->len, a->kind == ACT_RECV_ALLOC ? op->buf : a->buf);
    }
    if (a->kind == ACT_RECV_ALLOC) {
        if (op->status && op->buf)
            sim_bad(&m->net, "a receive that failed with %s left a buffer", weft_status_name(op->status));
        weft_buf_free(op->buf);
    }
}

static void check_send(model_t *m, act_t *a)
{
    msg_t *g = &m->msgs[a->msg];
    if (g->owned && g->released != g->pieces)
        sim_bad(&m->net, "a send is complete and %u of %u pieces are released", g->released, g->pieces);
    g->status = a->op.status;
    g->done = true;
    if (!g->status)
        m->ends[g->end].sent_ok++;
    const end_t *peer = model_peer(m, &m->ends[g->end]);
    bool sure =
        !m->links[m->ends[g->end].link].hurt && peer && !peer->closed; /* else the word that it was received may be lost */
    if (g->taken && sure && (g->status == WEFT_ERR_CANCELLED || g->status == WEFT_ERR_TIMEOUT))
        sim_bad(&m->net, "message %u was received, and its send says %s", g->seq, weft_status_name(g->status));
    if (!g->owned)
        wipe_msg(g);
}

static void check_peace(model_t *m, const act_t *a)
{
    weft_status_t st = a->op.status;
    if (!m->peace || !st || a->kind == ACT_TIMER)
        return;
    bool asked = a->cancelled || a->op.timeout_ns || a->op.token;
    bool expected = st == WEFT_ERR_CLOSED || (asked && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT)) ||
                    (st == WEFT_ERR_TRUNCATED && (a->kind == ACT_RECV || a->kind == ACT_RECV_ALLOC));
    /* closing an endpoint ends its connect; a claimed message may be withdrawn by its sender */
    expected = expected || (a->kind == ACT_CONNECT && st == WEFT_ERR_CANCELLED) || a->claimed;
    /* a receive from any endpoint whose message was on its way when that endpoint was closed here */
    expected = expected || (st == WEFT_ERR_CLOSED && a->kind <= ACT_RECV_ALLOC && a->end < 0);
    /* when both sides close, neither receives what the other still has to send */
    if (a->kind == ACT_CLOSE && a->end >= 0) {
        const end_t *peer = model_peer(m, &m->ends[a->end]);
        expected = expected || !peer || peer->closed;
    }
    if (a->kind >= ACT_OTHER)
        expected = m->excused(m, a);
    if (!expected)
        sim_bad(&m->net, "an operation of kind %d on node %d, end %d, completes with %s in a world at peace", a->kind, a->node,
                a->end, weft_status_name(st));
}

static void complete(model_t *m, act_t *a)
{
    if (!a->live)
        sim_bad(&m->net, "an operation of kind %d on node %d completes twice", a->kind, a->node);
    wefti_sim_note(m->net.w, a->node, "complete: kind, status", (uint64_t)a->kind, (uint64_t)(int64_t)a->op.status);
    a->live = false;
    m->n_live--;
    end_t *e = a->end >= 0 ? &m->ends[a->end] : NULL;
    if (e && e->gone && a->op.fn)
        sim_bad(&m->net, "an operation of kind %d on end %d completes after the endpoint was closed", a->kind, a->end);
    if (e)
        e->live--;
    check_time(m, a);
    check_peace(m, a);
    if (a->kind == ACT_RECV || a->kind == ACT_RECV_ALLOC)
        check_recv(m, a);
    else if (a->kind == ACT_SEND)
        check_send(m, a);
    else if (a->kind >= ACT_OTHER) {
        recv_buf_home(a);
        m->check(m, a);
    } else if ((a->kind == ACT_CLOSE || a->kind == ACT_ABORT) && e) {
        for (int i = 0; i < m->n_acts; i++)
            if (m->acts[i]->live && m->acts[i]->end == a->end && (m->acts[i]->op.fn || !weft_op_done(&m->acts[i]->op)))
                sim_bad(&m->net, "end %d is closed, and an operation of kind %d on it is not complete", a->end, m->acts[i]->kind);
        e->gone = true;
        if (a->kind == ACT_CLOSE && !a->op.status && !m->links[e->link].hurt && a->op.len > e->sent_ok - a->taken_before)
            sim_bad(&m->net, "the peer of end %d holds %llu messages of ours, and there are only %llu", a->end,
                    (unsigned long long)a->op.len, (unsigned long long)(e->sent_ok - a->taken_before));
    }
    free(a->buf);
    a->buf = NULL;
    act_t copy = *a;
    memset(&a->op, DEAD_BYTE, sizeof a->op);
    if (m->completed)
        m->completed(m, &copy, copy.op.status);
}

static void on_complete(weft_op_t *op, void *user)
{
    act_t *a = user;
    if (op != &a->op)
        sim_bad(&model_now->net, "a callback of an operation with the data of another");
    complete(model_now, a);
}

act_t *model_act(model_t *m, act_kind_t kind, int node, int end)
{
    if (m->n_acts == ACTS_MAX)
        return NULL;
    act_t *a = calloc(1, sizeof *a);
    m->acts[m->n_acts++] = a;
    a->kind = kind;
    a->node = node;
    a->end = end;
    a->msg = -1;
    a->waits_for_peer = kind == ACT_SEND || kind == ACT_RECV;
    a->stamp = ++m->stamp;
    a->posted_at = sim_now(&m->net);
    for (int i = 0; i < m->net.n; i++) {
        a->stopped_before[i] = sim_net_stopped(&m->net, i);
        a->stops_before[i] = m->net.nodes[i].stops;
    }
    /* an accept is told at once: what its endpoint brings may be received before a queue is looked at */
    switch (kind == ACT_ACCEPT || kind >= ACT_TOLD ? 2 : sim_below(&m->net, 4)) {
    case 0:
        break; /* polled */
    case 1:
        a->op.queue = m->queues[node];
        a->op.user = a;
        break;
    default:
        a->op.fn = on_complete;
        a->op.user = a;
    }
    /* counted before the post: it may complete within it, and be polled in a callback of another */
    a->live = true;
    m->n_live++;
    if (end >= 0)
        m->ends[end].live++;
    return a;
}

bool model_posted(model_t *m, act_t *a, weft_status_t status)
{
    if (!status)
        return true;
    if (!a->live)
        sim_bad(&m->net, "a post failed with %s and completed nevertheless", weft_status_name(status));
    wefti_sim_note(m->net.w, a->node, "post failed: kind, status", (uint64_t)a->kind, (uint64_t)(int64_t)status);
    a->live = false;
    m->n_live--;
    if (a->end >= 0)
        m->ends[a->end].live--;
    recv_buf_home(a);
    free(a->buf);
    a->buf = NULL;
    memset(&a->op, DEAD_BYTE, sizeof a->op);
    return false;
}

void model_cancel(model_t *m, act_t *a)
{
    (void)m;
    a->cancelled = true;
    weft_op_cancel(&a->op);
}

void model_poll(model_t *m)
{
    for (int n = 0; n < m->net.n; n++) {
        weft_op_t *ops[8];
        /* a queue outlives its runtime, with what its end completed */
        if (!m->queues[n] || (m->net.nodes[n].rt && !sim_node_runs(&m->net.nodes[n])))
            continue;
        for (size_t k; (k = weft_queue_pop(m->queues[n], ops, 8, 0));)
            for (size_t i = 0; i < k; i++)
                complete(m, ops[i]->user);
    }
    for (int i = 0; i < m->n_acts; i++) {
        act_t *a = m->acts[i];
        if (a->live && !a->op.fn && !a->op.queue && weft_op_done(&a->op))
            complete(m, a);
    }
}

void model_check_bounds(model_t *m)
{
    for (int i = 0; i < m->n_acts; i++)
        if (m->acts[i]->live)
            check_time(m, m->acts[i]);
}

/* --- beginning and end
 * ---------------------------------------------------------------------------------------------------------- */

void model_init(model_t *m, uint64_t seed, int nodes)
{
    memset(m, 0, offsetof(model_t, msgs));
    m->n_msgs = m->n_acts = m->n_live = m->n_gots = 0;
    m->stamp = 0;
    memset(m->queues, 0, sizeof m->queues);
    memset(m->tokens, 0, sizeof m->tokens);
    m->completed = NULL;
    m->check = NULL;
    m->finished = NULL;
    m->excused = NULL;
    sim_net_init(&m->net, seed, nodes);
    model_now = m;
}

uint64_t model_finish(model_t *m)
{
    for (int i = 0; i < m->net.n; i++)
        sim_net_close(&m->net, i);
    model_poll(m);
    for (int i = 0; i < m->net.n; i++)
        if (m->queues[i] && weft_queue_free(m->queues[i]))
            sim_bad(&m->net, "the queue of node %d is not empty", i);
    for (int i = 0; i < m->n_acts; i++) {
        act_t *a = m->acts[i];
        if (a->live)
            sim_bad(&m->net, "an operation of kind %d on node %d never completed", a->kind, a->node);
        for (size_t k = 0; k < sizeof a->op; k++)
            if (((const uint8_t *)&a->op)[k] != DEAD_BYTE)
                sim_bad(&m->net, "byte %zu of an operation of kind %d was written after its completion", k, a->kind);
    }
    for (int i = 0; i < m->n_msgs; i++) {
        msg_t *g = &m->msgs[i];
        if (g->owned && g->released != g->pieces)
            sim_bad(&m->net, "message %u was released %u times of %u", g->seq, g->released, g->pieces);
        if (!g->owned)
            wipe_msg(g);
    }
    if (m->finished)
        m->finished(m);
    if (fakedev_live())
        sim_bad(&m->net, "%zu buffers of the device are left", fakedev_live());
    uint64_t hash = sim_net_free(&m->net);
    for (int i = 0; i < m->n_acts; i++) {
        free(m->acts[i]->more);
        free(m->acts[i]);
    }
    m->n_acts = 0;
    return hash;
}
