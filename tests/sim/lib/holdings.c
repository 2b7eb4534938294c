/* tests/sim/lib/holdings.c - see holdings.h. */
#include "holdings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakedev.h"
#include "rma/state.h"
#include "words.h"

enum { REGIONS = 48, REMOTES = 120, KEYS = 64, ITEMS = 12, GUARD = 16, OWN_GUARD = 64 };
enum { ACT_READ = ACT_OTHER, ACT_WRITE, ACT_ADD, ACT_BATCH, ACT_FLUSH, ACT_REVOKE, ACT_FREE, ACT_ATTACH = ACT_TOLD };

typedef struct holding {
    weft_region_t *region; /* NULL: free was called */
    int node;
    uint32_t words, max_words;
    uint64_t generation, revoked; /* now; the last one that is revoked for good */
    unsigned revoking;
    uint8_t *own;      /* the program's memory under it, with guards around */
    bool notify, back; /* back: and it was given back */
    char name[16];
} holding_t;

typedef struct remote {
    weft_remote_t *r; /* NULL: dropped */
    int node, end, holding;
    uint64_t generation;
    uint32_t first, n; /* the part, in words */
    uint32_t rights, epoch, last_note;
    bool checked, expires;
    int failed; /* how often its end had failed when it was attached */
} remote_t;

typedef struct region_key {
    int holding;
    uint64_t generation;
    uint32_t first, n, rights;
    bool expires;
    size_t len;
    uint8_t bytes[WEFT_REGION_KEY_MAX];
} region_key_t;

/* One access, as it was meant. */
typedef struct access {
    int remote;
    uint32_t id;                    /* of the write, read or add; 0: not in the history */
    uint32_t first, n;              /* words of the region */
    bool in_range, has_right, dead; /* dead: revoked for good, or its connection was lost, when it was posted */
} access_t;

/* act_t.more */
typedef struct about {
    access_t one;
    int holding, end;
    uint64_t generation; /* a revoke: that it ends */
    region_key_t key;    /* an attach */
    bool by_name;
    weft_rma_path_t path;
    uint8_t *out; /* what is written */
    size_t out_len;
    bool device, notify;
    uint64_t revoked; /* an attach: what was revoked for good when it was posted */
    unsigned n;       /* a batch */
    weft_rma_item_t items[ITEMS];
    access_t accesses[ITEMS];
} about_t;

static const holdings_how_t *how;
static holding_t holdings[REGIONS];
static remote_t remotes[REMOTES];
static region_key_t keys[KEYS];
static int n_holdings, n_remotes, n_keys;
static uint8_t told[WORDS_WRITES];

/* --- the owner ------------------------------------------------------------------------------------------------------------ */

static uint64_t *words_at(const holding_t *h, uint32_t first)
{
    return (uint64_t *)weft_region_base(h->region) + first;
}

static void look_at(holding_t *h)
{
    if (h->region)
        words_seen((int)(h - holdings), 0, h->words, words_at(h, 0));
}

static void on_note(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    holding_t *h = user;
    int no = (int)(h - holdings);
    for (int i = 0; i < m.n_acts; i++) {
        const about_t *about = m.acts[i]->more;
        if (m.acts[i]->kind != (act_kind_t)ACT_WRITE || !about || !about->notify || about->one.id != value)
            continue;
        remote_t *r = &remotes[about->one.remote];
        const end_t *e = model_end_of_id(&m, h->node, from);
        if (r->holding != no || offset != 8ull * about->one.first || len != 8ull * about->one.n ||
            (h->region && region != h->region))
            sim_bad(&m.net, "region %d is told of write %llu: %llu bytes at %llu", no, (unsigned long long)value,
                    (unsigned long long)len, (unsigned long long)offset);
        if (e && (e->link != m.ends[r->end].link || e->side == m.ends[r->end].side))
            sim_bad(&m.net, "write %llu is said to come from another end", (unsigned long long)value);
        if (told[value]++)
            sim_bad(&m.net, "region %d is told of write %llu twice", no, (unsigned long long)value);
        if (value < r->last_note)
            sim_bad(&m.net, "region %d is told of write %llu after %u", no, (unsigned long long)value, r->last_note);
        r->last_note = (uint32_t)value;
        if (h->region && len)
            words_notified((uint32_t)value, words_at(h, about->one.first));
        return;
    }
    sim_bad(&m.net, "region %d is told of write %llu, which nobody posted", no, (unsigned long long)value);
}

static void expose(int node)
{
    unsigned have = 0;
    for (int i = 0; i < n_holdings; i++)
        have += holdings[i].node == node && holdings[i].region;
    if (n_holdings == REGIONS || have >= how->regions)
        return;
    holding_t *h = &holdings[n_holdings];
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    memset(h, 0, sizeof *h);
    h->node = node;
    h->generation = 1;
    h->words = WORDS_ATOMIC + 1 + (uint32_t)BELOW(how->large && CHANCE(20) ? 16000 : how->words);
    h->max_words = CHANCE(30) ? h->words + (uint32_t)BELOW(2 * h->words) : h->words;
    h->notify = CHANCE(60);
    o.len = 8ull * h->words;
    o.max_len = 8ull * h->max_words;
    o.notify = h->notify ? on_note : NULL;
    o.user = h;
    o.unmapped = CHANCE(10);
    if (CHANCE(20)) {
        size_t n = 8ull * h->max_words;
        h->own = aligned_alloc(8, n + 2 * OWN_GUARD);
        memset(h->own, 0x6d, n + 2 * OWN_GUARD);
        memset(h->own + OWN_GUARD, 0, n);
        o.buf = h->own + OWN_GUARD;
    }
    if (CHANCE(30)) {
        snprintf(h->name, sizeof h->name, "r%d", n_holdings);
        o.name = h->name;
    }
    weft_status_t st = weft_region_new(m.net.nodes[node].rt, &o, &h->region);
    if (st) {
        if (m.peace)
            sim_bad(&m.net, "a region of %u words cannot be: %s (%s)", h->words, weft_status_name(st), weft_last_error());
        free(h->own);
        h->region = NULL;
        return;
    }
    wefti_sim_note(m.net.w, node, "exposes: region, words", (uint64_t)n_holdings, h->words);
    n_holdings++;
    look_at(h);
}

static holding_t *some_holding(int node)
{
    for (int tries = 0; n_holdings && tries < 6; tries++) {
        holding_t *h = &holdings[BELOW((uint64_t)n_holdings)];
        if (h->node == node && h->region)
            return h;
    }
    return NULL;
}

static void write_own(holding_t *h)
{
    uint32_t n = 1 + (uint32_t)BELOW(h->words - WORDS_ATOMIC),
             first = WORDS_ATOMIC + (uint32_t)BELOW(h->words - WORDS_ATOMIC - n + 1);
    if (h->revoking)
        return; /* it may be lost */
    uint32_t id = words_write((int)(h - holdings), WORDS_OWNER, 0, first, n, false, 0);
    if (!id)
        return;
    words_fill(id, words_at(h, first));
    words_written(id, WORDS_OK);
}

static void revoke(holding_t *h)
{
    act_t *a = CHANCE(85) ? model_act(&m, (act_kind_t)ACT_REVOKE, h->node, -1) : NULL;
    if (a) {
        about_t *about = a->more = calloc(1, sizeof *about);
        about->holding = (int)(h - holdings);
        about->generation = h->generation;
        a->bound = 2 * m.heartbeat_ns + m.slack_ns + m.pull_ns;
        a->by_beats = true;
    }
    wefti_sim_note(m.net.w, h->node, "revokes: region", (uint64_t)(h - holdings), h->generation);
    h->generation++; /* in a callback of the call it is so already */
    h->revoking++;
    weft_status_t st = weft_region_revoke(h->region, a ? &a->op : NULL);
    if (a ? !model_posted(&m, a, st) : st != WEFT_OK) {
        if (m.peace)
            sim_bad(&m.net, "revoke: %s", weft_status_name(st));
        h->generation--;
        h->revoking--;
    }
}

static void give_up(holding_t *h)
{
    weft_region_t *region = h->region;
    act_t *a = h->own || CHANCE(80) ? model_act(&m, (act_kind_t)ACT_FREE, h->node, -1) : NULL;
    if (!a && h->own)
        return;
    if (a) {
        about_t *about = a->more = calloc(1, sizeof *about);
        about->holding = (int)(h - holdings);
        a->bound = 2 * m.heartbeat_ns + m.slack_ns + m.pull_ns;
        a->by_beats = true;
    }
    wefti_sim_note(m.net.w, h->node, "frees: region", (uint64_t)(h - holdings), 0);
    h->region = NULL;
    weft_status_t st = weft_region_free(region, a ? &a->op : NULL);
    if (a ? !model_posted(&m, a, st) : st != WEFT_OK) {
        if (m.peace)
            sim_bad(&m.net, "free: %s", weft_status_name(st));
        h->region = region;
    }
}

static void extend(holding_t *h)
{
    uint32_t words = h->words + (uint32_t)BELOW(h->max_words - h->words + 8);
    weft_status_t st = weft_region_extend(h->region, 8ull * words);
    if (words > h->max_words ? st != WEFT_ERR_RANGE : st != WEFT_OK && m.peace)
        sim_bad(&m.net, "a region of %u words, at most %u, is extended to %u: %s", h->words, h->max_words, words,
                weft_status_name(st));
    if (!st)
        h->words = words;
}

/* --- keys and remotes ----------------------------------------------------------------------------------------------------- */

static bool make_key(holding_t *h, region_key_t *t)
{
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    memset(t, 0, sizeof *t);
    t->holding = (int)(h - holdings);
    t->generation = h->generation;
    t->n = h->words;
    t->rights = WEFT_RMA_ALL;
    t->len = sizeof t->bytes;
    if (CHANCE(40)) {
        t->first = (uint32_t)BELOW(h->words);
        t->n = 1 + (uint32_t)BELOW(h->words - t->first);
    }
    if (CHANCE(25))
        o.rights = t->rights = 1 + (uint32_t)BELOW(7);
    if (CHANCE(12)) {
        o.lifetime_ns = 1 + BELOW(20 * WEFT_MILLISECOND);
        t->expires = true;
    }
    o.offset = 8ull * t->first;
    o.len = 8ull * t->n;
    weft_status_t st = weft_region_key(h->region, &o, t->bytes, &t->len);
    if (st && m.peace)
        sim_bad(&m.net, "no key: %s (%s)", weft_status_name(st), weft_last_error());
    if (!st && (n_keys < KEYS || CHANCE(30)))
        keys[n_keys < KEYS ? n_keys++ : (int)BELOW(KEYS)] = *t;
    return !st;
}

static void attach(end_t *e)
{
    int owner = m.links[e->link].node[!e->side];
    region_key_t t;
    if (n_remotes == REMOTES || !m.net.nodes[owner].rt || m.net.nodes[owner].dead)
        return;
    holding_t *h = some_holding(owner);
    bool old = n_keys && CHANCE(15), by_name = false;
    if (old) {
        t = keys[BELOW((uint64_t)n_keys)];
        h = &holdings[t.holding];
    } else if (!h || !make_key(h, &t)) {
        return;
    }
    if (!old && h->name[0] && CHANCE(50)) {
        by_name = true;
        t.first = 0;
        t.n = h->words;
        t.rights = WEFT_RMA_ALL;
        t.expires = false;
    }
    act_t *a = model_act(&m, (act_kind_t)ACT_ATTACH, e->node, (int)(e - m.ends));
    if (!a)
        return;
    about_t *about = a->more = calloc(1, sizeof *about);
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    about->key = t;
    about->by_name = by_name;
    about->holding = t.holding;
    about->end = (int)(e - m.ends);
    about->revoked = h->revoked;
    about->path = o.path = (weft_rma_path_t)BELOW(3);
    a->waits_for_peer = true;
    if (CHANCE(how->patience))
        life_patience(a, true);
    wefti_sim_note(m.net.w, e->node,
                   by_name ? "finds: region"
                   : old   ? "attaches with an old key: region"
                           : "attaches: region",
                   (uint64_t)t.holding, (uint64_t)o.path);
    model_posted(&m, a,
                 by_name ? weft_remote_find(e->ep, h->name, &o, &a->op) : weft_remote_attach(e->ep, t.bytes, t.len, &o, &a->op));
}

static void check_attach(act_t *a)
{
    about_t *about = a->more;
    const region_key_t *t = &about->key;
    const holding_t *h = &holdings[t->holding];
    bool ours = h->node == m.links[m.ends[a->end].link].node[!m.ends[a->end].side];
    weft_status_t st = a->op.status;
    if (st) {
        if (a->op.buf)
            sim_bad(&m.net, "an attach that ended with %s left a remote", weft_status_name(st));
        bool fresh = ours && h->region && h->generation == t->generation && !t->expires;
        if ((st == WEFT_ERR_AUTH && m.peace) /* else the connection had another key */ || st == WEFT_ERR_INVALID ||
            st == WEFT_ERR_RANGE || st == WEFT_ERR_RIGHTS || (st == WEFT_ERR_STALE && fresh && !about->by_name) ||
            (st == WEFT_ERR_NOTFOUND && (!about->by_name || h->region)))
            sim_bad(&m.net, "a key of region %d, generation %llu, came to %s", t->holding, (unsigned long long)t->generation,
                    weft_status_name(st));
        return;
    }
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    weft_remote_t *r = a->op.buf;
    if (weft_remote_get_info(r, &info))
        sim_bad(&m.net, "a remote without info");
    if (!ours || (!about->by_name && t->generation <= about->revoked))
        sim_bad(&m.net, "a key of region %d, generation %llu, was taken; %llu had been revoked", t->holding,
                (unsigned long long)t->generation, (unsigned long long)about->revoked);
    uint32_t n = about->by_name ? (uint32_t)(info.len / 8) : t->n; /* it may have grown on the way */
    if (info.len != 8ull * n || a->op.len != info.len || info.rights != t->rights || n < t->n || n > h->max_words ||
        (about->path && info.path != about->path) || (!about->by_name && info.generation != t->generation))
        sim_bad(&m.net, "a key for %u words with rights %u gave %llu bytes with %u", t->n, t->rights,
                (unsigned long long)info.len, info.rights);
    if (n_remotes == REMOTES || !m.net.nodes[a->node].rt) {
        weft_remote_drop(r);
        return;
    }
    remote_t *mine = &remotes[n_remotes++];
    *mine = (remote_t){.r = r, .node = a->node, .end = a->end, .holding = t->holding, .generation = info.generation};
    mine->first = t->first;
    mine->n = n;
    mine->rights = t->rights;
    mine->expires = t->expires;
    mine->checked = info.path == WEFT_RMA_CHECKED;
    mine->failed = m.ends[a->end].hook_failed;
}

static remote_t *some_remote(int node)
{
    for (int tries = 0; n_remotes && tries < 6; tries++) {
        remote_t *r = &remotes[n_remotes > 12 && CHANCE(70) ? n_remotes - 1 - (int)BELOW(12) : (int)BELOW((uint64_t)n_remotes)];
        if (r->node == node && r->r)
            return r;
    }
    return NULL;
}

static void drop(remote_t *r)
{
    weft_remote_t *remote = r->r;
    r->r = NULL;
    weft_remote_drop(remote);
}

/* --- accesses ------------------------------------------------------------------------------------------------------------- */

static uint32_t some_n(uint32_t most)
{
    uint64_t n = CHANCE(60)   ? 1 + BELOW(8)
                 : CHANCE(60) ? 1 + BELOW(WEFT_RMA_WHOLE / 8)
                 : CHANCE(50) ? WEFT_RMA_WHOLE / 8 + BELOW(700)
                              : BELOW(most + 1);
    return (uint32_t)(n < most ? n : most);
}

/* Somewhere on it, beyond the words of the adders; now and then outside. */
static access_t some_access(remote_t *r, uint32_t right, bool add, uint64_t *offset_out)
{
    const holding_t *h = &holdings[r->holding];
    access_t x = {.remote = (int)(r - remotes), .in_range = true, .has_right = r->rights & right};
    uint32_t low = r->first < WORDS_ATOMIC ? WORDS_ATOMIC - r->first : 0; /* of the part */
    x.dead = r->generation <= h->revoked || m.ends[r->end].hook_failed != r->failed;
    if (add) {
        uint32_t most = r->first >= WORDS_ATOMIC ? 0 : r->n < low ? r->n : low;
        uint32_t at = most ? (uint32_t)BELOW(most) : r->n; /* no such words here: it is out of range */
        x.in_range = most;
        x.n = 1;
        x.first = r->first + at;
    } else if (low >= r->n || CHANCE(4)) {
        x.in_range = false;
        x.n = 1 + (uint32_t)BELOW(40);
        x.first = r->first + r->n - (uint32_t)BELOW(x.n < r->n ? x.n : r->n);
    } else {
        x.n = some_n(r->n - low);
        x.first = r->first + low + (uint32_t)BELOW(r->n - low - x.n + 1);
    }
    *offset_out = 8ull * (x.first - r->first);
    if (!x.in_range && CHANCE(20))
        *offset_out = UINT64_MAX - 7 - 8 * BELOW(40);
    return x;
}

static words_end_t end_of(weft_status_t st)
{
    return !st ? WORDS_OK : st == WEFT_ERR_RANGE || st == WEFT_ERR_RIGHTS || st == WEFT_ERR_INVALID ? WORDS_NOTHING : WORDS_MAYBE;
}

/* Can it have come to that? */
static void check_access(const access_t *x, weft_status_t st)
{
    const remote_t *r = &remotes[x->remote];
    const holding_t *h = &holdings[r->holding];
    bool can = st == WEFT_OK           ? x->in_range && x->has_right && !x->dead
               : st == WEFT_ERR_RANGE  ? !x->in_range
               : st == WEFT_ERR_RIGHTS ? !x->has_right
               : st == WEFT_ERR_STALE
                   ? r->expires || !h->region || r->generation < h->generation
                   : st != WEFT_ERR_INVALID && st != WEFT_ERR_STATE && st != WEFT_ERR_AUTH &&
                         (st != WEFT_ERR_PROTOCOL || !m.peace); /* what has no memory for an answer ends the endpoint so */
    if (!can)
        sim_bad(&m.net,
                "an access by remote %d of %u words from %u on (%s, %s%s) to region %d, generation %llu of %llu, came to %s",
                x->remote, x->n, x->first, x->in_range ? "in range" : "out of range", x->has_right ? "allowed" : "not allowed",
                x->dead ? ", dead" : "", r->holding, (unsigned long long)r->generation, (unsigned long long)h->generation,
                weft_status_name(st));
}

static void out_new(about_t *about, size_t n)
{
    void *p = NULL;
    about->device = m.devices && n && CHANCE(40);
    about->out_len = n;
    if (about->device && weft_mem_alloc(fakedev(), n, &p))
        sim_bad(&m.net, "no memory of the device");
    about->out = about->device ? p : malloc(n + 1);
}

static void out_put(about_t *about, uint32_t write, size_t at, uint32_t n)
{
    uint64_t *words = malloc(8ull * n + 8);
    words_fill(write, words);
    if (about->device && n)
        fakedev_poke(about->out + at, words, 8ull * n);
    else
        memcpy(about->out + at, words, 8ull * n);
    free(words);
}

static void out_free(about_t *about)
{
    if (about->device)
        weft_mem_free(fakedev(), about->out, about->out_len);
    else
        free(about->out);
    about->out = NULL;
}

static act_t *new_access(int kind, const remote_t *r, about_t **about_out)
{
    /* a remote outlives its endpoint, and what is posted on it then may complete, rather than fail at once, after the close
     * has */
    act_t *a = model_act(&m, (act_kind_t)kind, r->node, m.ends[r->end].closed ? -1 : r->end);
    if (!a)
        return NULL;
    *about_out = a->more = calloc(1, sizeof **about_out);
    (*about_out)->end = r->end;
    a->waits_for_peer = true;
    if (CHANCE(how->patience))
        life_patience(a, true);
    return a;
}

static void end_write(about_t *about, weft_status_t st)
{
    access_t *x = &about->one;
    check_access(x, st);
    if (x->id)
        words_written(x->id, end_of(st));
    if (x->id && about->notify &&
        (st ? end_of(st) == WORDS_NOTHING && told[x->id] : !told[x->id] && holdings[remotes[x->remote].holding].notify))
        sim_bad(&m.net, "write %u ended with %s, and the owner was told %u times", x->id, weft_status_name(st), told[x->id]);
    out_free(about);
}

static void write_some(remote_t *r)
{
    about_t *about;
    uint64_t offset;
    act_t *a = new_access(ACT_WRITE, r, &about);
    if (!a)
        return;
    access_t *x = &about->one;
    *x = some_access(r, WEFT_RMA_WRITE, false, &offset);
    about->notify = CHANCE(25);
    out_new(about, 8ull * x->n);
    if (x->in_range)
        x->id = words_write(r->holding, (int)(r - remotes), r->generation, x->first, x->n, r->checked, r->epoch);
    if (x->in_range && !x->id) { /* the history is full, and who writes must be in it */
        out_free(about);
        model_posted(&m, a, WEFT_ERR_LIMIT);
        return;
    }
    if (x->id)
        out_put(about, x->id, 0, x->n);
    wefti_sim_note(m.net.w, r->node, about->notify ? "writes and notifies: remote, write" : "writes: remote, write",
                   (uint64_t)x->remote, x->id);
    weft_status_t st;
    if (about->notify) {
        st = weft_rma_write_notify(r->r, offset, about->out, 8ull * x->n, x->id, &a->op);
    } else if (CHANCE(30)) {
        life_cut(a->iov, &a->iov_n, about->out, 8ull * x->n);
        st = weft_rma_writev(r->r, offset, a->iov, a->iov_n, &a->op);
    } else {
        st = weft_rma_write(r->r, offset, about->out, 8ull * x->n, &a->op);
    }
    if (!model_posted(&m, a, st)) {
        check_access(x, st);
        if (x->id)
            words_written(x->id, WORDS_NOTHING);
        if (x->id && told[x->id])
            sim_bad(&m.net, "write %u was not begun, and the owner was told", x->id);
        out_free(about);
    }
}

static void read_some(remote_t *r)
{
    about_t *about;
    uint64_t offset;
    act_t *a = new_access(ACT_READ, r, &about);
    if (!a)
        return;
    access_t *x = &about->one;
    *x = some_access(r, WEFT_RMA_READ, false, &offset);
    if (x->in_range && CHANCE(20)) { /* all of it, the adders' words too */
        x->first = r->first;
        x->n = r->n < 700 || how->large ? r->n : 700;
        offset = 0;
    }
    if (x->in_range)
        x->id = words_read(r->holding, x->remote, x->first, x->n, r->checked);
    model_recv_buf(&m, a, 8ull * x->n);
    wefti_sim_note(m.net.w, r->node, "reads: remote, read", (uint64_t)x->remote, x->id);
    weft_status_t st;
    if (CHANCE(30)) {
        life_cut(a->iov, &a->iov_n, a->buf, a->cap);
        st = weft_rma_readv(r->r, offset, a->iov, a->iov_n, &a->op);
    } else {
        st = weft_rma_read(r->r, offset, a->buf, a->cap, &a->op);
    }
    if (!model_posted(&m, a, st))
        check_access(x, st);
}

static void add_some(remote_t *r)
{
    about_t *about;
    uint64_t offset;
    act_t *a = new_access(ACT_ADD, r, &about);
    if (!a)
        return;
    access_t *x = &about->one;
    *x = some_access(r, WEFT_RMA_ATOMIC, true, &offset);
    if (x->in_range)
        x->id = words_add(r->holding, x->remote, r->generation, x->first, r->checked);
    if (x->in_range && !x->id) {
        model_posted(&m, a, WEFT_ERR_LIMIT);
        return;
    }
    weft_status_t st = weft_rma_atomic(r->r, WEFT_RMA_ADD, offset, 8, 1, 0, &a->op);
    if (!model_posted(&m, a, st)) {
        check_access(x, st);
        if (x->id)
            words_added(x->id, WORDS_NOTHING, 0);
    }
}

static void end_batch(about_t *about, weft_status_t st, bool begun, bool asked, const uint8_t *in)
{
    size_t at = 0, well = 0;
    weft_status_t first = WEFT_OK;
    for (unsigned i = 0; i < about->n; i++) {
        access_t *x = &about->accesses[i];
        bool is_write = about->items[i].what == WEFT_RMA_DO_WRITE;
        weft_status_t s = begun ? about->items[i].status : st;
        if (begun)
            check_access(x, s);
        first = first ? first : s;
        well += !s;
        if (x->id && is_write)
            words_written(x->id, begun ? end_of(s) : WORDS_NOTHING);
        if (x->id && !is_write && begun && !s)
            words_got(x->id, (const uint64_t *)(const void *)(in + at));
        at += is_write ? 0 : 8ull * x->n;
    }
    if (begun && first != st && (!first || !asked || (st != WEFT_ERR_CANCELLED && st != WEFT_ERR_TIMEOUT)))
        sim_bad(&m.net, "a batch came to %s, the first of its items that failed to %s", weft_status_name(st),
                weft_status_name(first));
    about->one.n = (uint32_t)well;
    out_free(about);
}

static void batch_some(remote_t *r0)
{
    about_t *about;
    uint64_t offsets[ITEMS];
    act_t *a = new_access(ACT_BATCH, r0, &about);
    size_t out_len = 0, in_len = 0;
    if (!a)
        return;
    unsigned n = 1 + (unsigned)BELOW(ITEMS);
    for (unsigned i = 0; i < n; i++) {
        remote_t *r = CHANCE(60) ? r0 : some_remote(r0->node);
        if (!r || r->end != r0->end) /* whose close waits for it */
            r = r0;
        bool is_write = CHANCE(50);
        access_t *x = &about->accesses[about->n];
        *x = some_access(r, is_write ? WEFT_RMA_WRITE : WEFT_RMA_READ, false, &offsets[about->n]);
        if (x->in_range)
            x->id = is_write ? words_write(r->holding, x->remote, r->generation, x->first, x->n, r->checked, r->epoch)
                             : words_read(r->holding, x->remote, x->first, x->n, r->checked);
        if (x->in_range && !x->id && is_write)
            continue;
        about->items[about->n++] =
            (weft_rma_item_t){.remote = r->r, .what = is_write ? WEFT_RMA_DO_WRITE : WEFT_RMA_DO_READ, .len = 8ull * x->n};
        out_len += is_write ? 8ull * x->n : 0;
        in_len += is_write ? 0 : 8ull * x->n;
    }
    out_new(about, out_len);
    model_recv_buf(&m, a, in_len);
    out_len = in_len = 0;
    for (unsigned i = 0; i < about->n; i++) {
        access_t *x = &about->accesses[i];
        weft_rma_item_t *it = &about->items[i];
        bool is_write = it->what == WEFT_RMA_DO_WRITE;
        it->offset = offsets[i];
        it->buf = is_write ? about->out + out_len : a->buf + in_len;
        it->status = (weft_status_t)777;
        if (is_write && x->id)
            out_put(about, x->id, out_len, x->n);
        out_len += is_write ? it->len : 0;
        in_len += is_write ? 0 : it->len;
    }
    wefti_sim_note(m.net.w, r0->node, "batch: remote, items", (uint64_t)(r0 - remotes), about->n);
    if (!about->n) {
        out_free(about);
        model_posted(&m, a, WEFT_ERR_LIMIT);
        return;
    }
    weft_status_t st = weft_rma_batch(about->items, about->n, &a->op);
    if (!model_posted(&m, a, st))
        end_batch(about, st, false, false, NULL);
}

static void flush_some(remote_t *r)
{
    about_t *about;
    act_t *a = new_access(ACT_FLUSH, r, &about);
    if (a)
        model_posted(&m, a, weft_rma_flush(r->r, &a->op));
}

static void fence(remote_t *r)
{
    if (weft_rma_fence(r->r))
        sim_bad(&m.net, "a fence failed");
    r->epoch++;
}

/* --- what comes of it ----------------------------------------------------------------------------------------------------- */

static void check_buf(const act_t *a)
{
    for (size_t i = 0; a->buf && i < GUARD; i++)
        if (a->buf[a->cap + i] != 0x5e)
            sim_bad(&m.net, "a read wrote %zu bytes past the end of its buffer", i + 1);
}

static void gone_for_good(holding_t *h, uint64_t generation)
{
    h->revoked = generation > h->revoked ? generation : h->revoked;
    words_revoked((int)(h - holdings), generation);
}

static void check(model_t *unused, act_t *a)
{
    (void)unused;
    about_t *about = a->more;
    holding_t *h = &holdings[about->holding];
    weft_status_t st = a->op.status;
    check_buf(a);
    switch ((int)a->kind) {
    case ACT_ATTACH:
        check_attach(a);
        break;
    case ACT_WRITE:
        end_write(about, st);
        if (!st && a->op.len != 8ull * about->one.n)
            sim_bad(&m.net, "a write of %u words says %llu bytes", about->one.n, (unsigned long long)a->op.len);
        break;
    case ACT_READ:
        check_access(&about->one, st);
        if (!st && a->op.len != a->cap)
            sim_bad(&m.net, "a read of %zu bytes says %llu", a->cap, (unsigned long long)a->op.len);
        if (!st && about->one.id)
            words_got(about->one.id, (const uint64_t *)(const void *)a->buf);
        break;
    case ACT_ADD:
        check_access(&about->one, st);
        if (about->one.id)
            words_added(about->one.id, end_of(st), a->op.tag);
        break;
    case ACT_BATCH:
        end_batch(about, st, true, a->cancelled || a->op.timeout_ns || a->op.token, a->buf);
        if (a->op.len != about->one.n)
            sim_bad(&m.net, "of a batch %u succeeded, it says %llu", about->one.n, (unsigned long long)a->op.len);
        break;
    case ACT_REVOKE:
        h->revoking--;
        if (!st) {
            gone_for_good(h, about->generation);
            look_at(h);
        }
        break;
    case ACT_FREE:
        if (st)
            break;
        gone_for_good(h, UINT64_MAX);
        if (h->own) { /* it is the program's again */
            memset(h->own, 0x7e, 8ull * h->max_words + 2 * OWN_GUARD);
            h->back = true;
        }
        break;
    default:
        break;
    }
}

static bool excused(model_t *unused, const act_t *a)
{
    (void)unused;
    const about_t *about = a->more;
    weft_status_t st = a->op.status;
    bool asked = a->cancelled || a->op.timeout_ns || a->op.token;
    if (asked && (st == WEFT_ERR_CANCELLED || st == WEFT_ERR_TIMEOUT))
        return true;
    if (a->kind != (act_kind_t)ACT_REVOKE && a->kind != (act_kind_t)ACT_FREE) {
        const end_t *e = &m.ends[about->end], *peer = model_peer(&m, e);
        if ((st == WEFT_ERR_CLOSED || st == WEFT_ERR_PEER) && (e->closed || !peer || peer->closed))
            return true;
    }
    if (a->kind == (act_kind_t)ACT_ATTACH)
        return st == WEFT_ERR_STALE || st == WEFT_ERR_NOTFOUND || (st == WEFT_ERR_UNSUPPORTED && about->path == WEFT_RMA_MAPPED);
    return a->kind <= (act_kind_t)ACT_BATCH && (st == WEFT_ERR_STALE || st == WEFT_ERR_RANGE || st == WEFT_ERR_RIGHTS);
}

/* --- the program ---------------------------------------------------------------------------------------------------------- */

static void upset(int node)
{
    holding_t *h = some_holding(node);
    remote_t *r = some_remote(node);
    switch (BELOW(6)) {
    case 0:
    case 1:
        if (h && !h->revoking)
            revoke(h);
        break;
    case 2:
        if (h && CHANCE(50))
            give_up(h);
        break;
    case 3:
        if (h)
            extend(h);
        break;
    default:
        if (r)
            drop(r);
    }
}

static void act(int node, end_t *e, unsigned what)
{
    static void (*const does[12])(remote_t *) = {write_some, write_some, write_some, write_some, read_some,  read_some,
                                                 read_some,  read_some,  add_some,   batch_some, flush_some, fence};
    if (CHANCE(8) || (life_depth == 0 && CHANCE(15)))
        expose(node);
    if (what < 16) {
        attach(e);
        return;
    }
    if (what < 16 + how->upset) {
        upset(node);
        return;
    }
    if (what >= 94) {
        holding_t *h = some_holding(node);
        if (h)
            write_own(h);
        return;
    }
    remote_t *r = some_remote(node);
    for (unsigned k = 1 + (unsigned)BELOW(how->at_once); r && r->r && k; k--) {
        does[BELOW(12)](r);
        if (CHANCE(30))
            r = some_remote(node);
    }
}

/* An end is drained when a receive on it ends. */
static void drain(end_t *e)
{
    act_t *a = model_act(&m, ACT_RECV_ALLOC, e->node, (int)(e - m.ends));
    if (!a)
        return;
    a->draining = true;
    weft_status_t st = weft_msg_recv_alloc(m.net.nodes[e->node].rt, e->ep, 100, 0, 0, &a->op);
    e->draining = !st;
    if (!model_posted(&m, a, st))
        e->drained = e->drained_all = st != WEFT_ERR_NOMEM;
}

static void look(void)
{
    for (int i = 0; i < n_holdings; i++)
        if (holdings[i].region && sim_node_runs(&m.net.nodes[holdings[i].node]) && CHANCE(holdings[i].words < 2000 ? 30 : 5))
            look_at(&holdings[i]);
}

static void end(void)
{
    for (int i = 0; i < n_holdings; i++)
        look_at(&holdings[i]);
    for (int i = 0; i < n_remotes; i++)
        if (remotes[i].r)
            drop(&remotes[i]);
    m.peace = false; /* from here on everything is torn down */
    for (int i = 0; i < n_holdings; i++)
        if (holdings[i].region && CHANCE(30) && sim_node_runs(&m.net.nodes[holdings[i].node]))
            give_up(&holdings[i]);
    for (int i = 0; i < n_holdings; i++)
        holdings[i].region = NULL; /* what is left goes with its runtime */
}

static void finished(model_t *unused)
{
    (void)unused;
    words_check();
    for (int i = 0; i < n_holdings; i++) {
        holding_t *h = &holdings[i];
        size_t n = 8ull * h->max_words + 2 * OWN_GUARD;
        for (size_t k = 0; h->own && k < n; k++)
            if (h->back ? h->own[k] != 0x7e : (k < OWN_GUARD || k >= n - OWN_GUARD) && h->own[k] != 0x6d)
                sim_bad(&m.net, "byte %zu of the memory under region %d was written %s", k, i,
                        h->back ? "after it was given back" : "and is outside of it");
        free(h->own);
    }
    words_free();
}

static void set_up(void)
{
    m.check = check;
    m.excused = excused;
    m.finished = finished;
    for (int i = 0; i < m.net.n; i++)
        for (int k = 0; k <= i; k++)
            wefti_sim_shares_memory(m.net.nodes[i].f, m.net.nodes[k].f, CHANCE(60));
    wefti_sim_payloads_change(m.net.w); /* what is read at length is written to meanwhile, by others */
    wefti_rma_step_bytes = CHANCE(50) ? 8 + 8 * BELOW(80) : 4 << 20; /* mapped accesses in many steps, or in one */
    words_init(&m);
    n_holdings = n_remotes = n_keys = 0;
    memset(told, 0, sizeof told);
    for (int i = 0; i < m.net.n; i++)
        expose(i);
}

uint64_t holdings_run(uint64_t seed, const holdings_how_t *given)
{
    static const life_program_t program = {.set_up = set_up, .act = act, .drain = drain, .look = look, .end = end};
    how = given;
    return life_run(seed, &program);
}
