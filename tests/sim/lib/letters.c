/* tests/sim/lib/letters.c - what may come of an active message, from both sides. */
#include "letters.h"

#include <stdlib.h>
#include <string.h>

#include "fakedev.h"

letters_t letters;
static model_t *model_now; /* weft_release_fn has one user pointer, which is the letter */

static uint8_t pattern(uint32_t no, size_t i)
{
    return (uint8_t)(no * 37 + i * 7 + (i >> 8) + 3);
}

static int number(const letter_t *g)
{
    return (int)(g - letters.all);
}

void letters_init(uint64_t hold_ns)
{
    memset(&letters, 0, sizeof letters);
    letters.hold_ns = hold_ns;
}

/* --- the sender's side ---------------------------------------------------------------------------------------------------- */

static uint8_t *new_bytes(model_t *m, const letter_t *g)
{
    void *p = NULL;
    uint32_t ppm = m->net.alloc_fails_ppm;
    size_t n = g->len ? g->len : 1;
    m->net.alloc_fails_ppm = 0;
    if (g->in == IN_POOL) {
        if (weft_pool_get(letters.pool[m->ends[g->end].node], n, &p))
            p = NULL;
    } else if (g->in == IN_DEVICE) {
        if (weft_mem_alloc(fakedev(), n, &p))
            p = NULL;
    } else {
        p = malloc(n);
    }
    m->net.alloc_fails_ppm = ppm;
    if (!p)
        return NULL;
    uint8_t *host = malloc(n);
    for (size_t i = 0; i < g->len; i++)
        host[i] = pattern((uint32_t)number(g), i);
    if (g->in == IN_DEVICE)
        fakedev_poke(p, host, g->len);
    else
        memcpy(p, host, g->len);
    free(host);
    return p;
}

/* The library may not look at them any more. */
static void wipe_header(letter_t *g)
{
    if (g->header)
        memset(g->header, 0x99, g->header_len);
    free(g->header);
    g->header = NULL;
}

static void wipe_payload(model_t *m, letter_t *g)
{
    if (!g->buf)
        return;
    if (g->in == IN_DEVICE) {
        weft_mem_free(fakedev(), g->buf, g->len ? g->len : 1);
    } else {
        memset(g->buf, 0x99, g->len);
        if (g->in == IN_POOL)
            weft_pool_put(letters.pool[m->ends[g->end].node], g->buf);
        else
            free(g->buf);
    }
    g->buf = NULL;
}

letter_t *letter_new(model_t *m, int end, uint32_t id, size_t header_len, size_t len, letter_in_t in)
{
    if (letters.n == LETTERS_MAX)
        return NULL;
    model_now = m;
    end_t *e = &m->ends[end];
    letter_t *g = &letters.all[letters.n];
    memset(g, 0, sizeof *g);
    g->end = end;
    g->id = id;
    g->header_len = (uint32_t)header_len;
    g->len = (uint32_t)len;
    g->in = in;
    g->pieces = 1;
    g->buf = new_bytes(m, g);
    if (!g->buf)
        return NULL;
    g->header = malloc(header_len);
    for (size_t i = 0; i < header_len; i++)
        g->header[i] = pattern((uint32_t)letters.n + 1, i);
    uint32_t no[2] = {(uint32_t)letters.n, ~(uint32_t)letters.n};
    memcpy(g->header, no, sizeof no);
    g->seq = m->links[e->link].seq[e->side]++;
    g->sent_at = sim_now(&m->net);
    letters.n++;
    return g;
}

void letter_unsend(model_t *m)
{
    letter_t *g = &letters.all[letters.n - 1];
    if (g->released)
        sim_bad(&m->net, "a send that was not started released its buffer");
    if (g->arrived)
        sim_bad(&m->net, "letter %d was not started, and it arrived", number(g));
    wipe_header(g);
    wipe_payload(m, g);
    letters.n--;
}

void letter_release(void *buf, void *user)
{
    letter_t *g = user;
    (void)buf;
    if (!g->owned || ++g->released > g->pieces)
        sim_bad(&model_now->net, "letter %d was released %u times", number(g), g->released);
    if (g->done)
        sim_bad(&model_now->net, "letter %d was released after its operation was complete", number(g));
    if (g->released == g->pieces)
        wipe_payload(model_now, g);
}

void letter_sent(model_t *m, letter_t *g)
{
    g->sent = true;
    if (!g->no_op)
        return;
    m->ends[g->end].sent_ok++;
    wipe_header(g); /* copied, it says */
    if (!g->owned)
        wipe_payload(m, g);
}

void letter_done(model_t *m, letter_t *g, weft_status_t status, uint32_t reason)
{
    if (g->owned && g->released != g->pieces)
        sim_bad(&m->net, "letter %d is done and %u of %u pieces are released", number(g), g->released, g->pieces);
    if (status == WEFT_ERR_REJECTED && !reason)
        sim_bad(&m->net, "letter %d was rejected without a reason", number(g));
    if (status == WEFT_ERR_AGAIN && !g->no_wait)
        sim_bad(&m->net, "letter %d is to come again, and did not ask not to wait", number(g));
    g->done = true;
    g->status = status;
    g->reason = status == WEFT_ERR_REJECTED ? reason : 0;
    g->done_at = sim_now(&m->net);
    if (!status || status == WEFT_ERR_REJECTED)
        m->ends[g->end].sent_ok++;
    wipe_header(g);
    if (!g->owned)
        wipe_payload(m, g);
}

/* --- the receiver's side -------------------------------------------------------------------------------------------------- */

static end_t *receiving_end(model_t *m, int node, weft_ep_id_t from, const letter_t *g)
{
    const end_t *s = &m->ends[g->end];
    end_t *e = model_end_of_id(m, node, from);
    if (!e && s->side == 0 && m->links[s->link].node[1] == node)
        e = model_end(m, s->link, 1, node, NULL, from); /* nobody has accepted it yet, or ever will: it may not be used */
    if (!e || e->link != s->link || e->side == s->side)
        sim_bad(&m->net, "letter %d came to node %d from endpoint %llx, which is not the other end of where it was sent",
                number(g), node, (unsigned long long)from);
    return e;
}

letter_t *letter_got(model_t *m, int node, weft_ep_id_t from, uint32_t id, const void *header, uint32_t header_len, uint64_t len)
{
    uint32_t no[2];
    if (!header)
        return NULL;
    if (header_len < LETTER_HEAD)
        sim_bad(&m->net, "a header of %u bytes; nobody sent one", header_len);
    memcpy(no, header, sizeof no);
    if (no[0] != ~no[1] || no[0] >= (uint32_t)letters.n)
        sim_bad(&m->net, "a header that begins with %08x %08x; nobody sent it", no[0], no[1]);
    letter_t *g = &letters.all[no[0]];
    if (g->id != id || g->len != len || g->header_len != header_len)
        sim_bad(&m->net, "letter %u has id %u, %u and %llu bytes; it was sent with id %u, %u and %u", no[0], id, header_len,
                (unsigned long long)len, g->id, g->header_len, g->len);
    for (uint32_t i = LETTER_HEAD; i < header_len; i++)
        if (((const uint8_t *)header)[i] != pattern(no[0] + 1, i))
            sim_bad(&m->net, "byte %u of the header of letter %u is wrong", i, no[0]);
    if (g->arrived)
        sim_bad(&m->net, "letter %u came twice", no[0]);
    g->at_end = (int)(receiving_end(m, node, from, g) - m->ends);
    g->arrived = true;
    wefti_sim_note(m->net.w, node, "got letter, id", no[0], id);
    return g;
}

void letter_to_handler(model_t *m, int node, letter_t *g)
{
    if (!letters.handled[node][g->id])
        sim_bad(&m->net, "letter %d came to a handler that was taken away", number(g));
    g->to_handler = true;
    for (int i = 0; i < letters.n; i++) {
        const letter_t *p = &letters.all[i];
        /* ids that always have a handler: in the order they were sent; others: those of one id */
        if (p->end == g->end && p->to_handler && p->seq > g->seq && !p->urgent && !g->urgent &&
            (p->id == g->id || (p->id < 4 && g->id < 4)))
            sim_bad(&m->net, "letter %d came to its handler after letter %d, which was sent later", number(g), i);
    }
}

static bool would_take(const letter_t *by, const letter_t *g)
{
    return (by->filter < 0 || by->filter == g->at_end) && (by->wanted == WEFT_AM_ANY_ID || by->wanted == g->id);
}

/* Of these two the receive that was posted later got the letter that was sent earlier. */
static bool wrong_order(const letter_t *p, const letter_t *g, int node)
{
    const letter_t *passed = p->seq < g->seq ? p : g, *by = p->seq < g->seq ? g : p;
    if (passed->stamp < by->stamp)
        return false;
    /* Unless it was a handler's then: a receive passes over what waits for one ("ids with a handler never get here",
     * weft/am.h). What a handler has not got when it is taken away is for receives that are there or come later, after others
     * have got what was sent later. */
    return letters.unhandled[node][passed->id] < by->stamp;
}

void letter_to_receive(model_t *m, letter_t *g, const act_t *a)
{
    g->to_receive = true;
    g->filter = a->end;
    g->wanted = (uint32_t)a->tag;
    g->stamp = a->stamp;
    if (g->id < 4)
        sim_bad(&m->net, "letter %d has a handler, and came to a receive", number(g));
    if (!would_take(g, g))
        sim_bad(&m->net, "letter %d of id %u, end %d, came to a receive of id %u on end %d", number(g), g->id, g->at_end,
                g->wanted, g->filter);
    for (int i = 0; i < letters.n; i++) {
        const letter_t *p = &letters.all[i];
        if (p != g && p->to_receive && p->at_end == g->at_end && !p->urgent && !g->urgent && wrong_order(p, g, a->node) &&
            would_take(p, g) && would_take(g, p))
            sim_bad(&m->net, "letters %d and %d came in the wrong order", i, number(g));
    }
}

void letter_bytes(model_t *m, const letter_t *g, const uint8_t *bytes)
{
    for (size_t i = 0; i < g->len; i++)
        if (bytes[i] != pattern((uint32_t)number(g), i))
            sim_bad(&m->net, "byte %zu of letter %d is %02x", i, number(g), bytes[i]);
}

/* --- both sides ----------------------------------------------------------------------------------------------------------- */

/* Somebody closed an endpoint that it may have come to. */
static bool peer_closed(model_t *m, const letter_t *g)
{
    const end_t *s = &m->ends[g->end];
    bool closed = false;
    for (int i = 0; i < m->n_ends; i++)
        closed = closed || (m->ends[i].link == s->link && m->ends[i].side != s->side && m->ends[i].closed);
    return closed;
}

/* Was it right to tell the sender that it was rejected, and why? */
static bool reason_holds(model_t *m, const letter_t *g)
{
    if (g->vague || (g->said && g->reason == g->said))
        return true;
    switch (g->reason) {
    case WEFT_AM_NOT_TAKEN:
        return g->let_go || (!g->arrived && (peer_closed(m, g) || !m->peace)); /* there: no memory to keep it */
    case WEFT_AM_TOO_LATE:
        return !g->pulled && g->done_at - g->sent_at >= letters.hold_ns;
    case WEFT_AM_TOO_LONG:
        return g->too_long;
    default:
        return false;
    }
}

static void check_letter(model_t *m, letter_t *g)
{
    const end_t *e = &m->ends[g->end];
    int node = m->links[e->link].node[!e->side];
    bool hurt = m->links[e->link].hurt, unknown = letters.vague[node] || g->vague;
    bool small = g->known && g->here;
    if (g->owned && g->released != g->pieces)
        sim_bad(&m->net, "letter %d was released %u times of %u", number(g), g->released, g->pieces);
    if (g->no_op || !g->done)
        return;
    switch (g->status) {
    case WEFT_OK:
        if (g->confirm && (!g->arrived || g->said || g->too_long) && !g->vague && !letters.vague[node])
            sim_bad(&m->net, "letter %d was confirmed; arrived %d, said %u, too long %d", number(g), g->arrived, g->said,
                    g->too_long);
        if (g->known && !g->here && g->len && !hurt && !g->pulled && !unknown)
            sim_bad(&m->net, "the payload of letter %d was taken, says its sender, and nobody has it", number(g));
        break;
    case WEFT_ERR_REJECTED:
        if (g->pulled && !g->vague)
            sim_bad(&m->net, "letter %d was pulled, and its sender hears that it was rejected (%x)", number(g), g->reason);
        if (small && !g->confirm)
            sim_bad(&m->net, "letter %d came with its payload, and its sender hears that it was rejected (%x)", number(g),
                    g->reason);
        if (!unknown && !reason_holds(m, g))
            sim_bad(&m->net, "letter %d was rejected with %x; said %x, let go %d, too long %d, after %.3f ms", number(g),
                    g->reason, g->said, g->let_go, g->too_long, (double)(g->done_at - g->sent_at) * 1e-6);
        break;
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_TIMEOUT:
        /* where the receiver closed, the word that it was pulled may be lost */
        if (g->pulled && g->known && !g->here && g->len && !g->confirm && !hurt && !e->closed && !peer_closed(m, g))
            sim_bad(&m->net, "letter %d was pulled, and its send said %s", number(g), weft_status_name(g->status));
        break;
    case WEFT_ERR_AGAIN:
        if (g->arrived)
            sim_bad(&m->net, "letter %d was to come again, and it arrived", number(g));
        break;
    default:
        break;
    }
}

void letters_check(model_t *m)
{
    for (int i = 0; i < letters.n; i++)
        check_letter(m, &letters.all[i]);
}

void letters_free(model_t *m)
{
    for (int i = 0; i < letters.n; i++) {
        wipe_header(&letters.all[i]);
        if (!letters.all[i].owned)
            wipe_payload(m, &letters.all[i]);
    }
}
