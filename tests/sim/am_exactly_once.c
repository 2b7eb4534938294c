/* tests/sim/am_exactly_once.c - random programs that send and receive active messages, and everything that can happen to them.
 *
 * They send (plain, in pieces, owned, without an operation, confirmed, urgent, from host, pool and device memory), handle,
 * receive, take, keep, pull (into one buffer, pieces, memory of a kind; too small; twice), view, reject, release, answer, put
 * handlers there and take them away; and live as tests/sim/lib/life.c says. tests/sim/lib/letters.c says what may come of it;
 * here is what is done.
 *
 * In worlds at peace nothing may be lost, and when all is quiet every window is whole again, to the byte.
 * ctest: long */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "am/state.h"
#include "letters.h"
#include "fakedev.h"
#include "life.h"
#include "seeds.h"

#define KEEPS_MAX 256
#define FRESH_BYTE 0xc3
#define GUARD 16

/* A message that a program has: from keep() or take until it is released. */
typedef struct keep {
    weft_am_t *am;
    letter_t *g;
    int node;
    uint64_t due;     /* when something is done with it */
    bool pulled;      /* a pull or view was posted and is not known to have failed */
    bool failed;      /* one has failed for good, or it was rejected: it can only be released */
    const void *view; /* its bytes */
} keep_t;

static keep_t keeps[KEEPS_MAX];
static uint64_t am_window, am_messages; /* of every runtime */

/* What a pull or view is about; act_t.more. */
typedef struct about {
    letter_t *g;
    int keep;                    /* or -1: released, or from inside a handler */
    const weft_mem_kind_t *kind; /* of the buffer */
    bool alloc;
    uint64_t posted_after; /* since it was sent */
    uint8_t header[WEFT_AM_HEADER_MAX];
} about_t;

/* --- sending -------------------------------------------------------------------------------------------------------------- */

static size_t some_header(void)
{
    return LETTER_HEAD + (CHANCE(70) ? BELOW(64) : CHANCE(80) ? BELOW(2500) : BELOW(WEFT_AM_HEADER_MAX - LETTER_HEAD + 1));
}

static void send_to(weft_ep_t *ep, int end)
{
    int node = m.ends[end].node;
    letter_in_t in = letters.pool[node] && CHANCE(30) ? IN_POOL : m.devices && CHANCE(40) ? IN_DEVICE : IN_HOST;
    letter_t *g = letter_new(&m, end, (uint32_t)BELOW(LETTER_IDS), some_header(), life_length(), in);
    if (!g)
        return;
    wefti_sim_note(m.net.w, node, "sends letter, length", (uint64_t)(g - letters.all), g->len);
    unsigned how = (unsigned)BELOW(10);
    weft_status_t st;
    if (how == 0) { /* fire and forget */
        g->no_op = true;
        st = weft_am_send(ep, g->id, g->header, g->header_len, g->buf, g->len, NULL);
    } else {
        act_t *a = how == 1 ? NULL : model_act(&m, (act_kind_t)ACT_AM_SEND, node, end);
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        if (!a && how != 1) {
            letter_unsend(&m);
            return;
        }
        if (a) {
            a->msg = (int)(g - letters.all);
            a->waits_for_peer = true;
            life_patience(a, true);
            g->asked = a->op.timeout_ns || a->op.token;
        }
        o.id = g->id;
        o.header = g->header;
        o.header_len = g->header_len;
        o.kind = g->in == IN_DEVICE && CHANCE(50) ? fakedev() : NULL;
        if (how == 3) {
            life_cut(a->iov, &a->iov_n, g->buf, g->len);
            o.iov = a->iov;
            o.iov_n = a->iov_n;
            g->pieces = (unsigned)a->iov_n;
        } else {
            o.buf = g->buf;
            o.len = g->len;
        }
        g->owned = how == 1 || CHANCE(20);
        o.release = g->owned ? letter_release : NULL;
        o.release_user = g;
        g->confirm = o.confirm = a && CHANCE(35);
        o.reply = CHANCE(20);
        g->urgent = o.urgent = CHANCE(8) && g->header_len + g->len < 3000;
        g->no_wait = o.no_wait = CHANCE(10);
        g->no_op = !a;
        st = how > 6 && !g->owned && !o.confirm && !o.urgent && !o.no_wait
                 ? weft_am_send(ep, g->id, g->header, g->header_len, g->buf, g->len, &a->op)
                 : weft_am_send_with(ep, &o, a ? &a->op : NULL);
        if (a && !model_posted(&m, a, st)) {
            letter_unsend(&m);
            return;
        }
    }
    if (st)
        letter_unsend(&m);
    else
        letter_sent(&m, g);
}

/* --- what a program does with a message that it has ----------------------------------------------------------------------- */

static keep_t *new_keep(weft_am_t *am, letter_t *g, int node)
{
    for (int i = 0; i < KEEPS_MAX; i++) {
        keep_t *k = &keeps[i];
        if (k->am)
            continue;
        *k = (keep_t){.am = am, .g = g, .node = node};
        k->due = sim_now(&m.net) + BELOW(CHANCE(70) ? WEFT_MILLISECOND : 2 * letters.hold_ns);
        return k;
    }
    return NULL;
}

static void let_go(keep_t *k)
{
    if (k->view && !m.links[m.ends[k->g->end].link].hurt)
        letter_bytes(&m, k->g, k->view); /* as long as it is not released */
    if (!k->pulled)
        k->g->let_go = true;
    for (int i = 0; i < m.n_acts; i++) {
        about_t *about = m.acts[i]->more;
        if (m.acts[i]->live && about && m.acts[i]->kind >= (act_kind_t)ACT_AM_PULL && about->keep == (int)(k - keeps))
            about->keep = -1;
    }
    weft_am_t *am = k->am;
    k->am = NULL;
    weft_am_release(am);
}

static void pull(weft_am_t *am, letter_t *g, keep_t *k, int node)
{
    act_t *a = model_act(&m, (act_kind_t)ACT_AM_PULL, node, -1);
    if (!a)
        return;
    about_t *about = calloc(1, sizeof *about);
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    weft_status_t st;
    bool twice = k && k->pulled;
    a->more = about;
    about->g = g;
    about->keep = k ? (int)(k - keeps) : -1;
    about->posted_after = sim_now(&m.net) - g->sent_at;
    life_patience(a, true);
    a->cap = CHANCE(80) ? g->len + BELOW(20) : BELOW(g->len + 1);
    unsigned how = (unsigned)BELOW(6);
    if (how == 0) {
        about->alloc = true;
        about->kind = m.devices && CHANCE(40) ? fakedev() : NULL;
        a->cap = g->len;
        o.kind = about->kind;
        st = weft_am_pull_with(am, &o, &a->op);
    } else {
        model_recv_buf(&m, a, a->cap);
        o.kind = !CHANCE(50) ? NULL : a->device ? fakedev() : weft_mem_host();
        if (how < 3) {
            life_cut(a->iov, &a->iov_n, a->buf, a->cap);
            o.iov = a->iov;
            o.iov_n = a->iov_n;
            st = weft_am_pull_with(am, &o, &a->op);
        } else {
            st = weft_am_pull(am, a->buf, a->cap, &a->op);
        }
    }
    if (st == WEFT_ERR_STATE && !twice && !(k && k->failed))
        sim_bad(&m.net, "a pull of letter %d that nobody has pulled: %s", (int)(g - letters.all), weft_last_error());
    bool posted = model_posted(&m, a, st);
    if (posted && k)
        k->pulled = true;
}

static void view(keep_t *k)
{
    act_t *a = model_act(&m, (act_kind_t)ACT_AM_VIEW, k->node, -1);
    if (!a)
        return;
    about_t *about = calloc(1, sizeof *about);
    a->more = about;
    about->g = k->g;
    about->keep = (int)(k - keeps);
    about->posted_after = sim_now(&m.net) - k->g->sent_at;
    life_patience(a, true);
    if (model_posted(&m, a, weft_am_view(k->am, &a->op)))
        k->pulled = true;
}

/* Something is done with it; or it is over. */
static void use(keep_t *k)
{
    if (k->pulled || k->failed || !k->g) {
        let_go(k);
        return;
    }
    switch (BELOW(8)) {
    case 0:
        let_go(k);
        return;
    case 1: {
        uint32_t reason = 1 + (uint32_t)BELOW(1000);
        weft_status_t st = weft_am_reject(k->am, reason);
        if (!st) {
            k->g->said = reason;
            k->failed = true;
        } else if (st == WEFT_ERR_STATE) {
            sim_bad(&m.net, "letter %d cannot be rejected: %s", (int)(k->g - letters.all), weft_last_error());
        }
        break;
    }
    case 2:
    case 3:
        view(k);
        break;
    default:
        pull(k->am, k->g, k, k->node);
    }
    if (k->am && CHANCE(30))
        let_go(k);
    else if (k->am)
        k->due = sim_now(&m.net) + BELOW(WEFT_MILLISECOND);
}

/* --- receiving ------------------------------------------------------------------------------------------------------------ */

static void know(letter_t *g, const weft_am_t *am)
{
    g->known = true;
    g->here = am->data != NULL;
    if (am->data)
        letter_bytes(&m, g, am->data);
}

static void on_message(weft_am_t *am, void *user)
{
    int node = *(const int *)user;
    letter_t *g = letter_got(&m, node, am->from, am->id, am->header, am->header_len, am->len);
    letter_to_handler(&m, node, g);
    know(g, am);
    if (am->ep && weft_ep_id(am->ep) != am->from)
        sim_bad(&m.net, "letter %d came over another endpoint than it says", (int)(g - letters.all));
    unsigned what = (unsigned)BELOW(10);
    if (what < 4) {
        weft_am_t *kept = weft_am_keep(am);
        if (kept && !new_keep(kept, g, node)) {
            g->let_go = true;
            weft_am_release(kept);
        } else if (!kept) {
            if (m.peace)
                sim_bad(&m.net, "no memory to keep letter %d", (int)(g - letters.all));
            g->let_go = true;
        }
    } else if (what < 6) {
        int before = m.n_acts;
        pull(am, g, NULL, node);
        /* a pull that comes to nothing leaves it not taken: it is over when the handler returns */
        if (m.n_acts == before || !m.acts[before]->live)
            g->let_go = true;
        else
            g->let_go = m.acts[before]->cap < g->len;
    } else if (what == 6) {
        g->said = 1 + (uint32_t)BELOW(1000);
        if (weft_am_reject(am, g->said))
            sim_bad(&m.net, "letter %d cannot be rejected: %s", (int)(g - letters.all), weft_last_error());
    } else {
        g->let_go = true;
    }
    if (am->reply && life_depth == 0 && CHANCE(50)) {
        end_t *e = model_end_of_id(&m, node, am->from);
        if (e && e->ep)
            send_to(am->reply, (int)(e - m.ends));
    }
    if (life_depth == 0 && CHANCE(2)) {
        end_t *e = model_end_of_id(&m, node, am->from);
        if (e && e->ep)
            life_close(e, !m.peace && CHANCE(50));
    }
}

static void receive(int node, end_t *e, bool drain)
{
    bool take = !drain && CHANCE(40);
    act_t *a = model_act(&m, (act_kind_t)(take ? ACT_AM_TAKE : ACT_AM_RECV), node, e ? (int)(e - m.ends) : -1);
    if (!a) {
        if (drain)
            e->drained = true; /* the table is full: nothing more to see here */
        return;
    }
    weft_runtime_t *rt = m.net.nodes[node].rt;
    weft_am_recv_opts_t o = WEFT_AM_RECV_OPTS_INIT;
    about_t *about = calloc(1, sizeof *about);
    weft_status_t st;
    a->more = about;
    a->draining = drain;
    a->waits_for_peer = e != NULL;
    a->tag = drain || CHANCE(40) ? WEFT_AM_ANY_ID : 4 + BELOW(4);
    if (!drain)
        life_patience(a, false);
    if (take) {
        st = weft_am_take(rt, e ? e->ep : NULL, (uint32_t)a->tag, &a->op);
    } else {
        o.ep = e ? e->ep : NULL;
        o.id = (uint32_t)a->tag;
        o.header = about->header;
        o.header_cap = drain || CHANCE(80) ? sizeof about->header : LETTER_HEAD + BELOW(60);
        a->mask = o.header_cap;
        if (drain || CHANCE(40)) {
            about->alloc = true;
            about->kind = m.devices && CHANCE(40) ? fakedev() : NULL;
            a->cap = 1 << 20;
            o.max_len = a->cap;
            o.kind = about->kind;
        } else {
            model_recv_buf(&m, a, CHANCE(70) ? 100000 : life_length());
            o.kind = !CHANCE(50) ? NULL : a->device ? fakedev() : weft_mem_host();
            if (CHANCE(40)) {
                life_cut(a->iov, &a->iov_n, a->buf, a->cap);
                o.iov = a->iov;
                o.iov_n = a->iov_n;
            } else {
                o.buf = a->buf;
                o.cap = a->cap;
            }
        }
        st = weft_am_recv(rt, &o, &a->op);
    }
    if (drain)
        e->draining = !st;
    if (!model_posted(&m, a, st) && drain)
        e->drained = e->drained_all = st != WEFT_ERR_NOMEM;
}

static void drain(end_t *e)
{
    receive(e->node, e, true);
}

/* A handler for one of the ids that may have none, or none. */
static void switch_handler(int node)
{
    static const int nodes[SIM_NODES_MAX] = {0, 1, 2, 3, 4, 5};
    uint32_t id = 4 + (uint32_t)BELOW(4);
    bool on = !letters.handled[node][id];
    if (CHANCE(20)) { /* one too many */
        if (!on && !weft_am_handle(m.net.nodes[node].rt, id, on_message, (void *)(uintptr_t)&nodes[node], NULL))
            sim_bad(&m.net, "id %u has two handlers", id);
        return;
    }
    letters.handled[node][id] = on;
    weft_status_t st = weft_am_handle(m.net.nodes[node].rt, id, on ? on_message : NULL, (void *)(uintptr_t)&nodes[node], NULL);
    if (st) {
        letters.handled[node][id] = !on;
        if (m.peace)
            sim_bad(&m.net, "id %u gets no handler: %s", id, weft_last_error());
    } else if (!on) {
        letters.unhandled[node][id] = m.stamp;
    }
}

/* --- completions ---------------------------------------------------------------------------------------------------------- */

static void check_guard(const act_t *a)
{
    for (size_t i = 0; a->buf && i < GUARD; i++)
        if (a->buf[a->cap + i] != 0x5e)
            sim_bad(&m.net, "%zu bytes were written past the end of a buffer", i + 1);
}

static void check_untouched(const act_t *a)
{
    for (size_t i = 0; a->buf && i < a->cap; i++)
        if (a->buf[i] != FRESH_BYTE)
            sim_bad(&m.net, "byte %zu of a buffer was written by what did not fit it", i);
}

/* The bytes that a receive or pull has; and memory that was allocated for it goes. */
static void check_bytes(act_t *a, const about_t *about, const letter_t *g)
{
    weft_op_t *op = &a->op;
    if (op->status) {
        if (about->alloc && op->buf)
            sim_bad(&m.net, "what failed with %s left a buffer", weft_status_name(op->status));
    } else if (about->kind) {
        uint8_t *host = malloc(g->len + 1);
        fakedev_peek(op->buf, host, g->len);
        letter_bytes(&m, g, host);
        free(host);
    } else {
        letter_bytes(&m, g, about->alloc ? op->buf : a->buf);
    }
    if (about->alloc && !op->status)
        weft_mem_free(about->kind, op->buf, op->len);
}

static void check_pull(act_t *a)
{
    about_t *about = a->more;
    letter_t *g = about->g;
    keep_t *k = about->keep >= 0 ? &keeps[about->keep] : NULL;
    weft_op_t *op = &a->op;
    bool is_view = a->kind == (act_kind_t)ACT_AM_VIEW;
    check_guard(a);
    switch (op->status) {
    case WEFT_OK:
        if (op->len != g->len || (!is_view && a->cap < g->len))
            sim_bad(&m.net, "a pull of letter %d, %u bytes, into %zu, got %llu", (int)(g - letters.all), g->len, a->cap,
                    (unsigned long long)op->len);
        if (g->pulled)
            sim_bad(&m.net, "letter %d was pulled twice", (int)(g - letters.all));
        g->pulled = true;
        g->let_go = false;
        if (is_view && k) { /* else it was released before we heard of it */
            letter_bytes(&m, g, op->buf);
            k->view = op->buf;
        }
        break;
    case WEFT_ERR_TRUNCATED:
        if (is_view || a->cap >= g->len)
            sim_bad(&m.net, "letter %d did not fit", (int)(g - letters.all));
        check_untouched(a);
        if (k)
            k->pulled = false; /* it can be pulled again */
        else
            g->let_go = true;
        break;
    case WEFT_ERR_TIMEOUT:
        if (!op->timeout_ns && about->posted_after + (sim_now(&m.net) - a->posted_at) < letters.hold_ns)
            sim_bad(&m.net, "letter %d was too late after %.3f ms", (int)(g - letters.all), (double)about->posted_after * 1e-6);
        /* fall through */
    default:
        if (op->timeout_ns || a->cancelled || op->token)
            g->vague = true;
        g->vague = g->vague || op->status == WEFT_ERR_STATE || m.links[m.ends[g->end].link].hurt || op->status == WEFT_ERR_CLOSED;
        if (k)
            k->failed = true;
    }
    if (!is_view)
        check_bytes(a, about, g);
}

static void check_recv(act_t *a)
{
    about_t *about = a->more;
    weft_op_t *op = &a->op;
    letter_t *g = NULL;
    check_guard(a);
    if (op->status == WEFT_ERR_TRUNCATED) {
        if (op->len <= a->cap && op->header_len <= a->mask)
            sim_bad(&m.net, "%u and %llu bytes were too long for %llu and %zu", op->header_len, (unsigned long long)op->len,
                    (unsigned long long)a->mask, a->cap);
        check_untouched(a);
        /* which one it was is not known, unless only one can be it */
        letter_t *only = NULL;
        int n = 0;
        for (int i = 0; i < letters.n; i++) {
            letter_t *p = &letters.all[i];
            const end_t *s = &m.ends[p->end], *e = model_end_of_id(&m, a->node, op->from);
            if (e && s->link == e->link && s->side != e->side && p->id == op->tag && p->len == op->len &&
                p->header_len == op->header_len && !p->arrived) {
                only = p;
                n++;
            }
        }
        if (!n && model_end_of_id(&m, a->node, op->from))
            sim_bad(&m.net, "a message of id %llu, %u and %llu bytes was too long; nobody sent one", (unsigned long long)op->tag,
                    op->header_len, (unsigned long long)op->len);
        if (n == 1) {
            only->arrived = only->too_long = true;
        } else {
            letters.vague[a->node] = true;
        }
    } else if (!op->status) {
        g = letter_got(&m, a->node, op->from, (uint32_t)op->tag, about->header, op->header_len, op->len);
        letter_to_receive(&m, g, a);
        if (op->len > a->cap || op->header_len > a->mask)
            sim_bad(&m.net, "letter %d did not fit, and was received", (int)(g - letters.all));
        g->pulled = true;
    } else if (op->from && op->status != WEFT_ERR_NOMEM) { /* it had met one, whose payload did not come */
        uint32_t no;
        memcpy(&no, about->header, sizeof no);
        if (no < (uint32_t)letters.n)
            letters.all[no].vague = true;
        if (op->status != WEFT_ERR_SYSTEM) { /* without memory, or with a device that does not copy, it may still be there */
            g = letter_got(&m, a->node, op->from, (uint32_t)op->tag, about->header, op->header_len, op->len);
            letter_to_receive(&m, g, a);
        }
    }
    check_bytes(a, about, g);
}

static void check_take(act_t *a)
{
    weft_am_t *am = a->op.buf;
    if (a->op.status) {
        if (am)
            sim_bad(&m.net, "a take that failed left a message");
        return;
    }
    if (!m.net.nodes[a->node].rt) { /* we hear of it too late: it outlived its runtime */
        letters.vague[a->node] = true;
        weft_am_release(am);
        return;
    }
    letter_t *g = letter_got(&m, a->node, am->from, am->id, am->header, am->header_len, am->len);
    letter_to_receive(&m, g, a);
    know(g, am);
    if (!new_keep(am, g, a->node)) {
        g->let_go = true;
        weft_am_release(am);
    }
}

static void check(model_t *unused, act_t *a)
{
    (void)unused;
    switch ((int)a->kind) {
    case ACT_AM_SEND:
        letters.all[a->msg].asked |= a->cancelled;
        letter_done(&m, &letters.all[a->msg], a->op.status, a->op.reason);
        break;
    case ACT_AM_RECV:
        check_recv(a);
        break;
    case ACT_AM_TAKE:
        check_take(a);
        break;
    default:
        check_pull(a);
    }
}

/* Its sender may want it back. */
static bool asked_back(const letter_t *g)
{
    bool asked = g->asked;
    for (int i = 0; i < m.n_acts && !asked; i++)
        asked = m.acts[i]->kind == (act_kind_t)ACT_AM_SEND && m.acts[i]->msg == (int)(g - letters.all) && m.acts[i]->cancelled;
    return asked;
}

/* What may go wrong in a world at peace. */
static bool excused(model_t *unused, const act_t *a)
{
    (void)unused;
    const about_t *about = a->more;
    weft_status_t st = a->op.status;
    bool asked = a->cancelled || a->op.timeout_ns || a->op.token;
    if (st == WEFT_ERR_CLOSED || (asked && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT)))
        return true;
    switch ((int)a->kind) {
    case ACT_AM_SEND:
        return st == WEFT_ERR_REJECTED || (st == WEFT_ERR_AGAIN && letters.all[a->msg].no_wait);
    case ACT_AM_RECV:
        return st == WEFT_ERR_TRUNCATED;
    case ACT_AM_TAKE:
        return false;
    default:
        /* the sender took it back; nobody pulled it in time; it did not fit; it was pulled before */
        return st == WEFT_ERR_CANCELLED ? asked_back(about->g)
                                        : st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_TRUNCATED || st == WEFT_ERR_STATE;
    }
}

/* --- the program ---------------------------------------------------------------------------------------------------------- */

static void act(int node, end_t *e, unsigned what)
{
    if (what < 48) {
        for (unsigned k = CHANCE(10) ? 8 : 1; k && e->ep; k--)
            send_to(e->ep, (int)(e - m.ends));
    } else if (what < 66) {
        receive(node, e, false);
    } else if (what < 80) {
        receive(node, NULL, false);
    } else if (what < 84) {
        switch_handler(node);
    } else {
        for (int i = 0; i < KEEPS_MAX; i++)
            if (keeps[i].am && keeps[i].node == node && CHANCE(30)) {
                use(&keeps[i]);
                break;
            }
    }
}

/* When something is done with it. Its sender may wait for that, and so does a close of the sender's end: weft_ep_close() ends
 * well only if the peer cooperates within close_timeout_ns, and a program that keeps a message longer does not. So it is used
 * after half of that. */
static uint64_t due_of(const keep_t *k)
{
    const end_t *e = k->g ? &m.ends[k->g->end] : NULL;
    uint64_t last = e && e->closed ? e->closed_at + m.close_ns / 2 : UINT64_MAX;
    return k->due < last ? k->due : last;
}

static bool can_use(const keep_t *k)
{
    return k->am && sim_node_runs(&m.net.nodes[k->node]);
}

static void use_due(void)
{
    for (int i = 0; i < KEEPS_MAX; i++)
        if (can_use(&keeps[i]) && due_of(&keeps[i]) <= sim_now(&m.net))
            use(&keeps[i]);
}

static uint64_t next_due(void)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < KEEPS_MAX; i++)
        if (can_use(&keeps[i]) && due_of(&keeps[i]) < next)
            next = due_of(&keeps[i]);
    return next;
}

static void finished(model_t *unused)
{
    (void)unused;
    letters_check(&m);
    letters_free(&m);
}

static void set_up(void)
{
    static const int nodes[SIM_NODES_MAX] = {0, 1, 2, 3, 4, 5};
    memset(keeps, 0, sizeof keeps);
    m.check = check;
    m.excused = excused;
    m.finished = finished;
    uint32_t ppm = m.net.alloc_fails_ppm;
    m.net.alloc_fails_ppm = 0;
    bool pools = m.peace && CHANCE(60); /* a pool has to be empty before its runtime is closed: not with hosts that die */
    for (int i = 0; i < m.net.n; i++) {
        for (uint32_t id = 0; id < 4; id++) {
            letters.handled[i][id] = true;
            if (weft_am_handle(m.net.nodes[i].rt, id, on_message, (void *)(uintptr_t)&nodes[i], NULL))
                sim_bad(&m.net, "no handler");
        }
        weft_pool_opts_t o = WEFT_POOL_OPTS_INIT;
        o.arena_bytes = 1 << 20;
        if (pools && weft_pool_new(m.net.nodes[i].rt, &o, &letters.pool[i]))
            sim_bad(&m.net, "no pool");
    }
    m.net.alloc_fails_ppm = ppm;
}

static void look(void)
{
    for (int i = 0; i < m.n_ends; i++) {
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        if (!m.ends[i].ep || !sim_node_runs(&m.net.nodes[m.ends[i].node]))
            continue;
        weft_ep_get_info(m.ends[i].ep, &info);
        if (info.am_held_bytes > am_window || info.am_held > am_messages)
            sim_bad(&m.net, "end %d holds %llu bytes in %llu messages", i, (unsigned long long)info.am_held_bytes,
                    (unsigned long long)info.am_held);
    }
}

/* What a link's window is made of: with the sender, at the receiver, owed; nothing is on its way. */
static void check_flow(const end_t *from, const end_t *to)
{
    const wefti_flow_t *out = &am_ep(from->ep)->box.flow, *in = &am_ep(to->ep)->box.flow;
    if (in->held || in->held_msgs || out->credit + in->owed != in->window || out->credit_msgs + in->owed_msgs != in->window_msgs)
        sim_bad(&m.net, "link %d, side %d: window %llu/%u; credit %llu/%u, owed %llu/%u, held %llu/%u", from->link, from->side,
                (unsigned long long)in->window, in->window_msgs, (unsigned long long)out->credit, out->credit_msgs,
                (unsigned long long)in->owed, in->owed_msgs, (unsigned long long)in->held, in->held_msgs);
}

/* At peace: receive everything, let go of everything, and see that every window is whole. */
static void rest(void)
{
    if (!m.peace || CHANCE(50))
        return;
    life_depth = 1;
    for (unsigned round = 0; round < 40; round++) {
        for (int i = 0; i < m.n_ends; i++)
            if (m.ends[i].ep && weft_ep_get_state(m.ends[i].ep) == WEFT_EP_UP && m.n_acts < ACTS_MAX - 100 && !m.ends[i].drain)
                receive(m.ends[i].node, &m.ends[i], false);
        for (int i = 0; i < KEEPS_MAX; i++)
            if (keeps[i].am)
                let_go(&keeps[i]);
        sim_net_run(&m.net, sim_now(&m.net) + 3 * letters.hold_ns);
    }
    for (int i = 0; i < KEEPS_MAX; i++)
        if (keeps[i].am)
            let_go(&keeps[i]);
    sim_net_run(&m.net, sim_now(&m.net) + 50 * WEFT_MILLISECOND);
    life_depth = 0;
    for (int i = 0; i < m.n_ends; i++) {
        const end_t *e = &m.ends[i], *peer = model_peer(&m, e);
        if (e->ep && peer && peer->ep && weft_ep_get_state(e->ep) == WEFT_EP_UP && weft_ep_get_state(peer->ep) == WEFT_EP_UP &&
            !am_ep(peer->ep)->box.unreceived && wefti_list_empty(&am_ep(e->ep)->box.pending))
            check_flow(e, peer);
    }
}

static void parted(void)
{
    for (int i = 0; i < letters.n; i++) {
        const letter_t *g = &letters.all[i];
        const end_t *e = &m.ends[g->end], *peer = model_peer(&m, e);
        bool told =
            g->no_op ? g->len + g->header_len < 3000 : g->done && !g->status; /* without an operation a rejection is not heard */
        if (g->sent && told && !g->arrived && !m.links[e->link].hurt && peer && peer->drained_all && !letters.vague[peer->node])
            sim_bad(&m.net, "letter %d (id %u, %u bytes%s%s%s) from end %d to %d was sent and is lost", i, g->id, g->len,
                    g->no_op ? ", no operation" : "", g->owned ? ", owned" : "", g->urgent ? ", urgent" : "", g->end,
                    (int)(peer - m.ends));
    }
}

static void end(void)
{
    for (int i = 0; i < KEEPS_MAX; i++)
        if (keeps[i].am)
            let_go(&keeps[i]);
    if (!m.peace)
        return;
    m.peace = false; /* from here on everything is torn down */
    bool pools = false;
    for (int i = 0; i < m.net.n; i++)
        pools = pools || letters.pool[i];
    for (int i = 0; pools && i < m.n_ends; i++)
        if (m.ends[i].ep && weft_ep_get_state(m.ends[i].ep) != WEFT_EP_CONNECTING)
            life_close(&m.ends[i], true);
    if (pools)
        sim_net_run(&m.net, sim_now(&m.net) + WEFT_SECOND);
    for (int i = 0; i < KEEPS_MAX; i++)
        if (keeps[i].am)
            let_go(&keeps[i]);
    for (int i = 0; i < m.net.n; i++) {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        if (!letters.pool[i])
            continue;
        weft_runtime_get_stats(m.net.nodes[i].rt, &s);
        if (s.am_held_bytes || s.am_held)
            sim_bad(&m.net, "node %d still holds %llu bytes", i, (unsigned long long)s.am_held_bytes);
        if (weft_pool_free(letters.pool[i]))
            sim_bad(&m.net, "the pool of node %d is not empty: %s", i, weft_last_error());
        letters.pool[i] = NULL;
    }
}

static uint64_t scenario(uint64_t seed)
{
    static const life_program_t program = {.set_up = set_up,
                                           .act = act,
                                           .drain = drain,
                                           .each_round = use_due,
                                           .due = next_due,
                                           .look = look,
                                           .rest = rest,
                                           .parted = parted,
                                           .end = end};
    static const uint64_t windows[] = {16384, 32768, 524288}, counts[] = {16, 64, 4096};
    char hold[32], window[32], messages[32];
    wefti_rng_t rng = {seed ^ UINT64_C(0x616d)};
    uint64_t hold_ns = (5 + wefti_rng_below(&rng, 40)) * WEFT_MILLISECOND;
    snprintf(hold, sizeof hold, "%lluns", (unsigned long long)hold_ns);
    am_window = windows[wefti_rng_below(&rng, 3)];
    am_messages = counts[wefti_rng_below(&rng, 3)];
    snprintf(window, sizeof window, "%llu", (unsigned long long)am_window);
    snprintf(messages, sizeof messages, "%llu", (unsigned long long)am_messages);
    setenv("WEFT_AM_HOLD", hold, 1);
    setenv("WEFT_AM_WINDOW", window, 1);
    setenv("WEFT_AM_MESSAGES", messages, 1);
    letters_init(hold_ns);
    uint64_t hash = life_run(seed, &program);
    for (int i = 0; i < KEEPS_MAX; i++) { /* what was taken while everything was torn down outlives its runtime */
        weft_am_release(keeps[i].am);
        keeps[i].am = NULL;
    }
    return hash;
}

int main(int argc, char **argv)
{
    static const uint64_t failed[] = {
        10040183, /* a receive passed over what waited for a handler, which was taken away: the model called that a wrong order */
        10212872, /* a program let go of a message long after it meant to, and its sender's close did not wait for that: */
        10234146, /* the same */
        10084336, /* time went on while a runtime had work: a cancelled timer was late, */
        10086417, /* and so was an abort */
        20429299, /* a message with a long header cost more than the peer's window, and was never sent */
    };
    sim_seeds_once_failed(failed, sizeof failed / sizeof *failed);
    return sim_seeds_main(argc, argv, 6000, scenario);
}
