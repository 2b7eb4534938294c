/* tests/sim/msg_exactly_once.c - random programs that send and receive tag messages, and everything that can happen to them.
 *
 * They listen, connect, send (plain, in pieces, owned, without an operation), receive (by endpoint, from any, by mask, into
 * pieces, allocated, claimed), cancel, set deadlines and tokens, close and abort; hosts are killed and stopped, links cut and
 * slow, lanes and wires break, memory runs out. In some worlds half of the buffers are memory of a device.
 * tests/sim/lib/model.c says what may come of it; here is what is done.
 *
 * About half of the seeds are at peace: delays, full rings and slow pulls only. There nothing may be lost: after a graceful
 * close the other side receives every message whose send said WEFT_OK.
 *
 * ctest: long */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "life.h"
#include "seeds.h"

/* --- messages
 * ---------------------------------------------------------------------------------------------------------------- */

static void send_some(end_t *e)
{
    int end = (int)(e - m.ends);
    size_t len = life_length();
    msg_t *g = model_msg(&m, end, len, (unsigned)BELOW(4));
    if (!g)
        return;
    wefti_sim_note(m.net.w, e->node, "sends: tag, length", g->tag, g->len);
    unsigned how = (unsigned)BELOW(10);
    weft_ep_t *ep = e->ep;
    weft_status_t st;
    g->pieces = 1;
    if (how == 0) { /* fire and forget */
        g->no_op = true;
        st = weft_msg_send(ep, g->buf, g->len, g->tag, NULL);
        if (!st) {
            e->sent_ok++;
            g->done = true;
            memset(g->buf, 0x77, g->len); /* copied, it says */
            return;
        }
        model_unsend(&m);
        return;
    }
    act_t *a = how == 1 ? NULL : model_act(&m, ACT_SEND, e->node, end);
    if (!a && how != 1) {
        model_unsend(&m);
        return;
    }
    if (a) {
        a->msg = (int)(g - m.msgs);
        life_patience(a, true);
    }
    if (how < 4) {
        weft_msg_send_opts_t o = WEFT_MSG_SEND_OPTS_INIT;
        o.tag = g->tag;
        if (how == 3 && a) {
            life_cut(a->iov, &a->iov_n, g->buf, g->len);
            o.iov = a->iov;
            o.iov_n = a->iov_n;
            g->pieces = (unsigned)a->iov_n;
        } else {
            o.buf = g->buf;
            o.len = g->len;
        }
        if (how != 3 || CHANCE(50)) {
            g->owned = true;
            o.release = model_release;
            o.release_user = g;
        }
        o.no_wait = CHANCE(20);
        g->no_op = !a;
        st = weft_msg_send_with(ep, &o, a ? &a->op : NULL);
    } else {
        st = weft_msg_send(ep, g->buf, g->len, g->tag, &a->op);
    }
    if (a ? !model_posted(&m, a, st) : st != WEFT_OK)
        model_unsend(&m);
    else if (!a)
        e->sent_ok++;
}

static void recv_some(int node, end_t *e, bool drain)
{
    int end = e ? (int)(e - m.ends) : -1;
    bool alloc = drain || CHANCE(25);
    act_t *a = model_act(&m, alloc ? ACT_RECV_ALLOC : ACT_RECV, node, end);
    if (!a)
        return;
    weft_runtime_t *rt = m.net.nodes[node].rt;
    weft_ep_t *ep = e ? e->ep : NULL;
    weft_status_t st;
    a->cap = drain || CHANCE(60) ? 1 << 20 : life_length();
    a->draining = drain;
    if (!drain) {
        int link = e ? e->link : (int)BELOW((uint64_t)(m.n_links ? m.n_links : 1)), side = e ? !e->side : (int)BELOW(2);
        switch (BELOW(4)) {
        case 0:
            a->mask = WEFT_TAG_FULL;
            a->tag = BELOW(4); /* near the number of the next message */
            a->tag = model_tag(link, side, m.links[link].seq[side] + (uint32_t)BELOW(4) - 1, (unsigned)a->tag);
            break;
        case 1:
            a->mask = MODEL_MASK_CLASS;
            a->tag = BELOW(4);
            break;
        case 2:
            a->mask = MODEL_MASK_LINK | MODEL_MASK_CLASS;
            a->tag = model_tag(link, side, 0, (unsigned)BELOW(4));
            break;
        default:
            break; /* any */
        }
        life_patience(a, false);
    }
    if (alloc) {
        st = weft_msg_recv_alloc(rt, ep, a->cap, a->tag, a->mask, &a->op);
    } else {
        model_recv_buf(&m, a, a->cap > 200000 ? 100000 : a->cap);
        life_cut(a->iov, &a->iov_n, a->buf, a->cap);
        st = CHANCE(25) ? weft_msg_recv_iov(rt, ep, a->iov, a->iov_n, a->tag, a->mask, &a->op)
             : ep       ? weft_msg_recv(ep, a->buf, a->cap, a->tag, a->mask, &a->op)
                        : weft_msg_recv_any(rt, a->buf, a->cap, a->tag, a->mask, &a->op);
    }
    if (drain)
        e->draining = !st;
    if (!model_posted(&m, a, st) && drain)
        e->drained = e->drained_all = st != WEFT_ERR_NOMEM;
}

static void claim_some(int node, end_t *e)
{
    weft_msg_envelope_t env;
    weft_msg_t *msg;
    uint64_t mask = CHANCE(50) ? 0 : MODEL_MASK_CLASS, tag = BELOW(4);
    int end = e ? (int)(e - m.ends) : -1;
    if (CHANCE(30)) {
        weft_msg_probe(m.net.nodes[node].rt, e ? e->ep : NULL, tag, mask, &env);
        return;
    }
    /* A claim matches when it is made: that is its place in the order. It is numbered after it has driven the runtime. */
    if (weft_msg_claim(m.net.nodes[node].rt, e ? e->ep : NULL, tag, mask, &env, &msg))
        return;
    act_t probe = {.node = node, .end = end, .tag = tag, .mask = mask, .stamp = ++m.stamp};
    if (CHANCE(30)) {
        model_got(&m, &probe, env.from, env.tag, env.len, NULL);
        weft_msg_drop_claimed(msg);
        return;
    }
    act_t *a = model_act(&m, ACT_RECV, node, -1);
    if (!a) {
        model_got(&m, &probe, env.from, env.tag, env.len, NULL);
        weft_msg_drop_claimed(msg);
        return;
    }
    a->claimed = true;
    a->stamp = probe.stamp;
    a->tag = env.tag;
    a->mask = WEFT_TAG_FULL;
    model_recv_buf(&m, a, CHANCE(80) ? env.len : BELOW(env.len + 1));
    if (!model_posted(&m, a, weft_msg_recv_claimed(msg, a->buf, a->cap, &a->op))) {
        model_got(&m, &probe, env.from, env.tag, env.len, NULL);
        weft_msg_drop_claimed(msg);
    }
}

static void drain(end_t *e)
{
    recv_some(e->node, e, true);
}

static void act(int node, end_t *e, unsigned what)
{
    if (what < 51) {
        for (unsigned k = CHANCE(10) ? 8 : 1; k && e->ep; k--)
            send_some(e);
    } else if (what < 80) {
        recv_some(node, e, false);
    } else if (what < 92) {
        recv_some(node, NULL, false);
    } else if (life_depth == 0) {
        claim_some(node, CHANCE(50) ? e : NULL);
    }
}

static void check_window(void)
{
    for (int i = 0; i < m.net.n; i++) {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        uint64_t ends = 0;
        if (!sim_node_runs(&m.net.nodes[i]))
            continue;
        weft_runtime_get_stats(m.net.nodes[i].rt, &s);
        for (int k = 0; k < m.n_ends; k++)
            ends += m.ends[k].node == i && !m.ends[k].gone;
        if (s.unexpected_bytes > m.window * (ends + 4)) /* 4: accepted and not yet told of */
            sim_bad(&m.net, "node %d holds %llu bytes nobody asked for", i, (unsigned long long)s.unexpected_bytes);
    }
}

/* After a graceful close the other side has received every message whose send said WEFT_OK. */
static void check_lost(void)
{
    for (int i = 0; i < m.n_msgs; i++) {
        const msg_t *g = &m.msgs[i];
        const end_t *e = &m.ends[g->end], *peer = model_peer(&m, e);
        if (g->done && !g->status && !g->taken && !m.links[e->link].hurt && peer && peer->drained_all)
            sim_bad(&m.net, "message %u of link %d, end %d, was sent and is lost", g->seq, e->link, g->end);
    }
}

static uint64_t scenario(uint64_t seed)
{
    static const life_program_t program = {.act = act, .drain = drain, .look = check_window, .parted = check_lost};
    return life_run(seed, &program);
}

int main(int argc, char **argv)
{
    static const uint64_t failed[] = {
        10035831, /* time went on while a runtime had work: a close was late, */
        10223352, /* and so was an abort */
        20159554, /* the only side that heard nothing was stopped, and counted anew */
    };
    sim_seeds_once_failed(failed, sizeof failed / sizeof *failed);
    return sim_seeds_main(argc, argv, 14000, scenario);
}
