/* tests/sim/store_life.c - a memory server and up to three clients that allocate, extend, free, remove, open, read, write,
 * list, renew, leave, come back, close, cancel and run out of time, in every order; and everything that can happen to them.
 *
 * Every block has a value that only its owner writes. Checked at each completion: once; not too late; memory that was allocated
 * is zero; what is read is the block's own value, and the value once a write of it is complete. A block may only be missing if
 * somebody freed it, or if its owner's lease may have run out: it was silent for that long, as far as its program can know. Who
 * comes back within its lease finds its blocks. At the end, when all clients are gone for longer than a lease, nothing is left
 * but what is shared, to the byte; and nothing after the close.
 *
 * About half of the seeds are at peace (delays only): there nothing is ever missing, and nothing fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/elements.h>

#include "seeds.h"
#include "world.h"

#define PAGE 4096u
#define CLIENTS 3
#define IDENTS 16 /* clients as the server knows them */
#define BLOCKS 200
#define HANDLES 8
#define JOBS 600
#define BLOCK_MAX 20000u

typedef enum what {
    J_OPEN,
    J_ALLOC,
    J_FIND,
    J_READ,
    J_ZERO,
    J_WRITE,
    J_EXTEND,
    J_FREE,
    J_REMOVE,
    J_LIST,
    J_QUERY,
    J_RENEW,
    J_CLOSE
} what_t;

/* How much is known of a block: it is there; it may be gone; nobody can find it any more. */
typedef enum sure { NEW, THERE, DOUBT, GONE } sure_t;

typedef struct ident {
    uint8_t id[WEFT_STORE_ID];
    uint64_t heard;  /* when the last request was posted that was answered well: the lease counts from then on, or later */
    bool used, over; /* over: it was closed, or expired, or may be */
} ident_t;

typedef struct block {
    int ident;
    bool shared, named;
    char name[16];
    uint64_t len, value;
    sure_t sure;
    bool written; /* a write is complete */
    bool writing;
} block_t;

typedef struct handle {
    weft_block_t *h;
    weft_store_t *store; /* once that is closed or left, the block can only be read, written and dropped */
    int block;
    bool ready; /* it was looked at: its memory was zero */
    int users;  /* operations on its remote */
} handle_t;

typedef struct client {
    int node;
    weft_ep_t *ep;
    bool up;
    weft_store_t *store;
    int ident;
    bool opening;
    handle_t handles[HANDLES];
} client_t;

typedef struct job {
    weft_op_t op;
    what_t what;
    client_t *c;
    handle_t *handle;
    weft_store_t *store;
    int ident, block;
    bool live, cancelled, back, was_written, early; /* early: the block was not known to be there yet */
    uint64_t posted, value;
    uint8_t buf[BLOCK_MAX + 8];
    weft_store_stats_t stats;
} job_t;

static sim_net_t net;
static bool peace, poor; /* poor: memory runs out */
static uint64_t lease, heartbeat;
static weft_store_server_t *server;
static weft_listener_t *listener;
static client_t clients[CLIENTS];
static int n_clients;
static ident_t idents[IDENTS];
static block_t blocks[BLOCKS];
static int n_idents, n_blocks;
static job_t *jobs[JOBS];
static int n_jobs, n_live;
static bool acting;

#define BELOW(n) sim_below(&net, (n))
#define CHANCE(percent) sim_odds(&net, (percent))

static uint64_t now(void)
{
    return sim_now(&net);
}

/* --- what may be gone ----------------------------------------------------------------------------------------------------- */

static void doubt(int ident)
{
    idents[ident].over = true;
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].ident == ident && !blocks[i].shared && blocks[i].sure != GONE)
            blocks[i].sure = DOUBT;
}

/* Leases that may have run out by now: their clients have not been heard for as long. At peace the library renews them,
 * whatever the program does. */
static void look_at_leases(void)
{
    for (int i = 0; i < n_idents; i++) {
        bool kept = false;
        for (int c = 0; c < n_clients; c++)
            kept |= peace && clients[c].store && clients[c].ident == i;
        if (!kept && now() - idents[i].heard >= lease)
            doubt(i);
    }
}

/* --- jobs ----------------------------------------------------------------------------------------------------------------- */

static void on_done(weft_op_t *op, void *user);

static job_t *job(what_t what, client_t *c)
{
    if (n_jobs == JOBS)
        return NULL;
    job_t *j = calloc(1, sizeof *j);
    j->what = what;
    j->c = c;
    j->store = c->store;
    j->ident = c->ident;
    j->block = -1;
    j->op.fn = on_done;
    j->op.user = j;
    j->posted = now();
    if (what > J_OPEN && what != J_CLOSE && CHANCE(15))
        j->op.timeout_ns = 1 + BELOW(20 * WEFT_MILLISECOND);
    return j;
}

static bool posted(job_t *j, weft_status_t st)
{
    if (!st) {
        j->live = true;
        jobs[n_jobs++] = j;
        n_live++;
        wefti_sim_note(net.w, j->c->node, "posts job, block", j->what, (uint64_t)j->block);
        return true;
    }
    if (j->what == J_OPEN && !peace) { /* an endpoint that never came up */
        j->c->up = false;
        free(j);
        return false;
    }
    bool lost = st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == WEFT_ERR_STALE || (st == WEFT_ERR_CANCELLED && !peace) ||
                (st == WEFT_ERR_PROTOCOL && poor);
    if (!(st == WEFT_ERR_NOMEM && poor) && !(lost && (!peace || idents[j->ident].over || j->block >= 0)))
        sim_bad(&net, "job %d cannot be posted: %s", (int)j->what, weft_last_error());
    if (peace && lost && j->block >= 0 && blocks[j->block].sure == THERE)
        sim_bad(&net, "block %d is there and cannot be used: %s", j->block, weft_status_name(st));
    free(j);
    return false;
}

static handle_t *new_handle(client_t *c, weft_store_t *store, weft_block_t *h, int block)
{
    for (int i = 0; i < HANDLES; i++)
        if (!c->handles[i].h && !c->handles[i].users) {
            c->handles[i] = (handle_t){.h = h, .store = store, .block = block};
            return &c->handles[i];
        }
    weft_block_drop(h);
    return NULL;
}

/* --- completions ---------------------------------------------------------------------------------------------------------- */

static void check_status(const job_t *j)
{
    weft_status_t st = j->op.status;
    const block_t *b = j->block >= 0 ? &blocks[j->block] : NULL;
    bool over = idents[j->ident].over, ok = false;
    switch (st) {
    case WEFT_OK:
        return;
    case WEFT_ERR_TIMEOUT:
        ok = j->op.timeout_ns || (!peace && j->what == J_OPEN); /* so may the connection be */
        break;
    case WEFT_ERR_REFUSED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_SYSTEM:
        ok = !peace && j->what == J_OPEN;
        break;
    case WEFT_ERR_CANCELLED:
        ok = j->cancelled || !peace; /* its endpoint was aborted, to connect anew */
        break;
    case WEFT_ERR_NOMEM:
    case WEFT_ERR_PROTOCOL: /* a connection that has no memory to go on ends so */
        ok = poor;
        break;
    case WEFT_ERR_LIMIT:
        ok = poor || j->what == J_ALLOC || j->what == J_EXTEND || j->what == J_OPEN;
        break;
    case WEFT_ERR_PEER:
    case WEFT_ERR_CLOSED:
        ok = !peace;
        break;
    case WEFT_ERR_STALE:
        /* not at peace: it was taken over by another endpoint; or the server has lost this one, and its remotes with it, before
         * we noticed */
        ok = over || !peace || (b && b->sure != THERE);
        break;
    case WEFT_ERR_RANGE: /* another extension came first */
        ok = j->what == J_EXTEND;
        break;
    case WEFT_ERR_NOTFOUND:
        ok = b && (b->sure != THERE || j->early);
        break;
    case WEFT_ERR_STATE: /* somebody else's; or the name of one that was cancelled and is still there */
        ok = b && ((b->ident != j->ident && !b->shared) || b->sure != THERE);
        break;
    default:
        break;
    }
    if (!ok)
        sim_bad(&net, "job %d of client %d, block %d (%d): %s", (int)j->what, j->c->node, j->block, b ? (int)b->sure : -1,
                weft_status_name(st));
}

static void check_value(const job_t *j)
{
    uint64_t got;
    memcpy(&got, j->buf, sizeof got);
    if (got != j->value && (got || j->was_written))
        sim_bad(&net, "block %d has %llx, and its value is %llx", j->block, (unsigned long long)got,
                (unsigned long long)j->value);
}

static void check_zero(const job_t *j)
{
    for (uint64_t i = 0; i < j->op.len; i++)
        if (j->buf[i])
            sim_bad(&net, "byte %llu of block %d is not zero when it was allocated", (unsigned long long)i, j->block);
}

static void opened(job_t *j)
{
    client_t *c = j->c;
    ident_t *id = &idents[j->ident];
    c->opening = false;
    if (j->op.status) {
        if (!j->back)
            id->over = true;
        if (!peace)
            c->up = false;
        return;
    }
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    c->store = j->op.buf;
    c->ident = j->ident;
    weft_store_get_info(c->store, &info);
    if (info.lease_ns != lease || (info.state && peace))
        sim_bad(&net, "a store that was opened is in state %s", weft_status_name(info.state));
    if (j->back && memcmp(info.id, id->id, sizeof info.id))
        sim_bad(&net, "a client came back with another id");
    memcpy(id->id, info.id, sizeof info.id);
    if (j->back && now() - id->heard >= lease)
        doubt(j->ident); /* it may be new: with none of its blocks */
    id->over = false;
}

static void alloced(job_t *j)
{
    block_t *b = &blocks[j->block];
    if (j->op.status) {
        b->sure = b->sure == NEW && (j->op.status == WEFT_ERR_LIMIT || j->op.status == WEFT_ERR_INVALID) ? GONE : DOUBT;
        return;
    }
    if (j->op.len != j->value)
        sim_bad(&net, "a block of %llu bytes has %llu", (unsigned long long)j->value, (unsigned long long)j->op.len);
    if (b->sure == NEW)
        b->sure = idents[j->ident].over && !b->shared ? DOUBT : THERE;
    handle_t *h = new_handle(j->c, j->store, j->op.buf, j->block);
    if (!h)
        return;
    job_t *z = job(J_ZERO, j->c);
    if (!z)
        return;
    z->op.timeout_ns = 0;
    z->handle = h;
    z->block = j->block;
    h->users++;
    if (!posted(z, weft_rma_read(weft_block_remote(h->h), 0, z->buf, j->value, &z->op)))
        h->users--;
}

static void forget(client_t *c)
{
    for (int i = 0; i < HANDLES; i++)
        if (c->handles[i].h) {
            weft_block_drop(c->handles[i].h);
            c->handles[i].h = NULL;
        }
}

static void on_done(weft_op_t *op, void *user)
{
    job_t *j = user;
    block_t *b = j->block >= 0 ? &blocks[j->block] : NULL;
    if (!j->live)
        sim_bad(&net, "job %d completes twice", (int)j->what);
    j->live = false;
    n_live--;
    wefti_sim_note(net.w, j->c->node, "job of block is done, status", (uint64_t)j->what * 1000 + (uint64_t)j->block,
                   (uint64_t)-op->status);
    look_at_leases();
    bool remote = j->what == J_READ || j->what == J_ZERO || j->what == J_WRITE;
    if (!op->status && !remote && j->what != J_CLOSE && idents[j->ident].heard < j->posted)
        idents[j->ident].heard = j->posted;
    check_status(j);
    if (op->status == WEFT_ERR_STALE && !remote)
        doubt(j->ident);
    switch (j->what) {
    case J_OPEN:
        opened(j);
        break;
    case J_ALLOC:
        alloced(j);
        break;
    case J_FIND:
        if (!op->status)
            new_handle(j->c, j->store, op->buf, j->block);
        break;
    case J_ZERO:
        if (!op->status) {
            check_zero(j);
            j->handle->ready = true;
        }
        break;
    case J_READ:
        if (!op->status)
            check_value(j);
        break;
    case J_WRITE:
        b->writing = false;
        b->written |= !op->status;
        break;
    case J_EXTEND:
        if (!op->status && op->len > b->len)
            b->len = op->len;
        break;
    case J_FREE:
    case J_REMOVE:
        if (!op->status)
            b->sure = GONE;
        break;
    default:
        break;
    }
    if (j->handle)
        j->handle->users--;
}

/* --- actions -------------------------------------------------------------------------------------------------------------- */

static void ep_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    client_t *c = user;
    (void)ep, (void)why;
    c->up = false;
}

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)ep, (void)user; /* the server keeps it until the end: it is lost with its peer */
}

static void connect_client(client_t *c)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.hooks = (weft_ep_hooks_t){NULL, ep_closed, c};
    if (c->ep)
        weft_ep_abort(c->ep, NULL);
    c->ep = NULL;
    c->up = !weft_ep_open(net.nodes[c->node].rt, weft_listener_uri(listener), &o, NULL, &c->ep);
}

static void open_store(client_t *c)
{
    weft_store_opts_t o = WEFT_STORE_OPTS_INIT;
    bool back = c->ident >= 0 && CHANCE(60);
    if (!back && n_idents == IDENTS)
        return;
    job_t *j = job(J_OPEN, c);
    if (!j)
        return;
    if (!back)
        idents[n_idents] = (ident_t){.used = true, .heard = now()};
    j->ident = back ? c->ident : n_idents++;
    j->back = back;
    o.id = back ? idents[j->ident].id : NULL;
    c->opening = posted(j, weft_store_open(c->ep, &o, &j->op));
}

static void alloc(client_t *c)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    if (n_blocks == BLOCKS)
        return;
    job_t *j = job(J_ALLOC, c);
    if (!j)
        return;
    j->block = n_blocks;
    block_t *b = &blocks[n_blocks++];
    *b = (block_t){.ident = c->ident, .shared = CHANCE(25), .len = 8 + BELOW(CHANCE(70) ? 300 : BLOCK_MAX - 8)};
    b->named = b->shared || CHANCE(60);
    b->value = wefti_rng_next(&net.rng) | 1;
    snprintf(b->name, sizeof b->name, "b%d", j->block);
    o.len = j->value = b->len; /* somebody may make it longer before we know that it is there */
    o.max_len = CHANCE(50) ? 0 : b->len + BELOW(50000);
    o.name = b->named ? b->name : NULL;
    o.shared = b->shared;
    if (!posted(j, weft_block_alloc(c->store, &o, &j->op)))
        b->sure = GONE;
}

static handle_t *some_handle(client_t *c)
{
    for (int tries = 0; tries < 10; tries++) {
        handle_t *h = &c->handles[BELOW(HANDLES)];
        if (h->h)
            return h;
    }
    return NULL;
}

static block_t *some_name(void)
{
    for (int tries = 0; tries < 10 && n_blocks; tries++) {
        block_t *b = &blocks[BELOW((uint64_t)n_blocks)];
        if (b->named)
            return b;
    }
    return NULL;
}

static void use(client_t *c, handle_t *h, what_t what)
{
    block_t *b = &blocks[h->block];
    if (what == J_WRITE && (b->ident != c->ident || b->writing || !h->ready || b->written))
        what = J_READ;
    job_t *j = job(what, c);
    if (!j)
        return;
    j->handle = h;
    j->block = h->block;
    j->value = b->value;
    j->was_written = b->written;
    h->users++;
    weft_remote_t *remote = weft_block_remote(h->h);
    if (what == J_WRITE) {
        memcpy(j->buf, &b->value, sizeof b->value);
        b->writing = true;
    }
    bool ok =
        posted(j, what == J_WRITE ? weft_rma_write(remote, 0, j->buf, 8, &j->op) : weft_rma_read(remote, 0, j->buf, 8, &j->op));
    if (!ok)
        h->users--;
    if (!ok && what == J_WRITE)
        b->writing = false;
}

static void on_listed(const weft_block_info_t *info, void *user)
{
    job_t *j = user;
    int i = atoi(info->name + 1);
    if (info->name[0] != 'b' || i >= n_blocks || strcmp(blocks[i].name, info->name) || info->shared != blocks[i].shared)
        sim_bad(&net, "a block \"%s\" that nobody made is listed", info->name);
    if (strcmp((char *)j->buf, info->name) >= 0)
        sim_bad(&net, "\"%s\" is listed after \"%s\"", info->name, (char *)j->buf);
    snprintf((char *)j->buf, 16, "%s", info->name);
    if (CHANCE(1)) {
        j->cancelled = true;
        weft_op_cancel(&j->op);
    }
}

static void by_name(client_t *c, what_t what)
{
    block_t *b = some_name();
    if (!b)
        return;
    job_t *j = job(what, c);
    if (!j)
        return;
    j->block = (int)(b - blocks);
    bool mine = b->shared || b->ident == c->ident;
    j->early = b->sure == NEW;
    if (what == J_REMOVE && mine && b->sure != GONE)
        b->sure = DOUBT;
    posted(j, what == J_FIND ? weft_block_open(c->store, b->name, &j->op) : weft_store_remove(c->store, b->name, &j->op));
}

static void free_block(client_t *c, handle_t *h)
{
    block_t *b = &blocks[h->block];
    job_t *j = job(J_FREE, c);
    if (!j)
        return;
    j->block = h->block;
    sure_t before = b->sure;
    if ((b->shared || b->ident == c->ident) && b->sure == THERE)
        b->sure = DOUBT;
    if (posted(j, weft_block_free(h->h, &j->op)))
        h->h = NULL;
    else
        b->sure = before;
}

static void other(client_t *c, what_t what)
{
    job_t *j = job(what, c);
    if (!j)
        return;
    j->stats = (weft_store_stats_t)WEFT_STORE_STATS_INIT;
    posted(j, what == J_LIST    ? weft_store_list(c->store, CHANCE(50) ? NULL : "b1", on_listed, j, &j->op)
              : what == J_QUERY ? weft_store_query(c->store, &j->stats, &j->op)
                                : weft_store_renew(c->store, &j->op));
}

static void part(client_t *c, bool leave)
{
    weft_store_t *store = c->store;
    job_t *j = leave ? NULL : job(J_CLOSE, c);
    c->store = NULL;
    if (!j) {
        weft_store_leave(store);
    } else {
        doubt(c->ident);
        if (!posted(j, weft_store_close(store, &j->op)))
            sim_bad(&net, "a store cannot be closed: %s", weft_last_error());
    }
    if (CHANCE(50))
        forget(c);
}

static void extend(client_t *c, handle_t *h)
{
    job_t *j = job(J_EXTEND, c);
    if (!j)
        return;
    j->block = h->block;
    posted(j, weft_block_extend(h->h, blocks[h->block].len + BELOW(9000), &j->op));
}

static void act(client_t *c)
{
    handle_t *h = some_handle(c);
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    if (!c->up) {
        if (c->store)
            part(c, true);
        if (!c->opening && CHANCE(30))
            connect_client(c);
        return;
    }
    if (!c->store) {
        if (!c->opening)
            open_store(c);
        return;
    }
    weft_store_get_info(c->store, &info);
    if (info.state && CHANCE(30)) {
        part(c, CHANCE(50));
        return;
    }
    switch (BELOW(24)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        alloc(c);
        break;
    case 5:
        by_name(c, J_FIND);
        break;
    case 6:
        if (CHANCE(50))
            by_name(c, J_REMOVE);
        break;
    case 7:
        if (h && h->ready && h->store == c->store)
            free_block(c, h);
        break;
    case 8:
        if (h && h->store == c->store)
            extend(c, h);
        break;
    case 9:
        other(c, J_LIST);
        break;
    case 10:
        other(c, CHANCE(50) ? J_QUERY : J_RENEW);
        break;
    case 11:
        if (CHANCE(20))
            part(c, CHANCE(50));
        break;
    case 12:
        if (h && CHANCE(30)) {
            weft_block_drop(h->h); /* operations on its remote go on */
            h->h = NULL;
        }
        break;
    case 13:
        if (n_jobs && CHANCE(50)) {
            job_t *j = jobs[BELOW((uint64_t)n_jobs)];
            if (j->live && j->c == c && j->what != J_OPEN && j->what != J_CLOSE) {
                j->cancelled = true;
                weft_op_cancel(&j->op);
            }
        }
        break;
    case 14:
    case 15:
    case 16:
        if (h)
            use(c, h, J_WRITE);
        break;
    default:
        if (h)
            use(c, h, J_READ);
    }
}

static void calamity(void)
{
    int node = (int)BELOW((uint64_t)net.n), other_node = 1 + (int)BELOW((uint64_t)n_clients);
    switch (BELOW(6)) {
    case 0:
        if (node && CHANCE(20))
            sim_net_kill(&net, node);
        break;
    case 1:
        sim_net_pause(&net, node);
        break;
    case 2:
        wefti_sim_partition(net.nodes[0].f, net.nodes[other_node].f);
        break;
    case 3:
        wefti_sim_break_lanes(net.nodes[0].f, net.nodes[other_node].f, WEFT_ERR_PEER);
        break;
    default:
        for (int i = 0; i < net.n; i++)
            sim_net_resume(&net, i);
        for (int i = 1; i < net.n; i++)
            wefti_sim_heal(net.nodes[0].f, net.nodes[i].f);
    }
}

static void each_round(void *user)
{
    (void)user;
    if (!acting)
        return;
    look_at_leases();
    for (int i = 0; i < n_clients; i++)
        if (sim_node_runs(&net.nodes[clients[i].node]) && CHANCE(10))
            act(&clients[i]);
    if (!peace && CHANCE(1) && CHANCE(20))
        calamity();
}

static bool all_done(void *user)
{
    (void)user;
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i]->live && !net.nodes[jobs[i]->c->node].dead)
            return false;
    return true;
}

/* --- one seed ------------------------------------------------------------------------------------------------------------- */

static void set_up(void)
{
    wefti_sim_link_t slow = {1000, (1 + BELOW(500)) * WEFT_MICROSECOND, (uint32_t)BELOW(20000), BELOW(10 * WEFT_MILLISECOND)};
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    heartbeat = (100 + BELOW(200)) * WEFT_MILLISECOND;
    lease = (60 + BELOW(300)) * WEFT_MILLISECOND;
    o.progress = WEFT_PROGRESS_CALLER;
    o.heartbeat_ns = heartbeat;
    o.connect_timeout_ns = 100 * WEFT_MILLISECOND;
    for (int i = 0; i < net.n; i++) {
        sim_net_open(&net, i, &o);
        for (int k = 0; k < net.n; k++)
            if (k != i)
                wefti_sim_link(net.nodes[i].f, net.nodes[k].f, &slow);
    }
    lo.accept = on_accept;
    so.bytes = CHANCE(70) ? 16 << 20 : 100 * PAGE;
    so.client_blocks = CHANCE(70) ? 100 : 4;
    so.lease_ns = lease;
    so.unmapped = CHANCE(30);
    if (weft_listen(net.nodes[0].rt, "tcp://h0:0", &lo, &listener) || weft_store_serve(net.nodes[0].rt, &so, &server))
        sim_bad(&net, "no server: %s", weft_last_error());
    for (int i = 0; i < n_clients; i++)
        clients[i] = (client_t){.node = i + 1, .ident = -1};
}

/* All that is known to be there, is. */
static void check_blocks(void)
{
    uint64_t least = 0, most = 0;
    bool exact = true;
    for (int i = 0; i < n_blocks; i++) {
        uint64_t pages = (blocks[i].len + PAGE - 1) / PAGE * PAGE;
        least += blocks[i].sure == THERE ? pages : 0;
        most += blocks[i].sure == THERE ? pages : 0;
        exact = exact && (blocks[i].sure == THERE || blocks[i].sure == GONE);
    }
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    weft_store_server_get_stats(server, &stats);
    /* an extension that ended early may have happened */
    bool vague = false;
    for (int i = 0; i < n_jobs; i++)
        vague = vague || (jobs[i]->what == J_EXTEND && jobs[i]->op.status);
    if (stats.used_bytes < least || (exact && !vague && stats.used_bytes != most))
        sim_bad(&net, "%llu bytes are used, and blocks of %llu are there", (unsigned long long)stats.used_bytes,
                (unsigned long long)least);
}

static void check_end(void)
{
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    weft_store_server_get_stats(server, &stats);
    if (stats.clients || stats.blocks != stats.shared_blocks)
        sim_bad(&net, "%llu clients and %llu blocks are left, %llu of them shared, after everyone's lease",
                (unsigned long long)stats.clients, (unsigned long long)stats.blocks, (unsigned long long)stats.shared_blocks);
    uint64_t least = 0, most = 0;
    for (int i = 0; i < n_blocks; i++) {
        least += blocks[i].shared && blocks[i].sure == THERE;
        most += blocks[i].shared && blocks[i].sure != GONE;
    }
    if (stats.shared_blocks < least || stats.shared_blocks > most)
        sim_bad(&net, "%llu shared blocks are left, and it should be %llu to %llu", (unsigned long long)stats.shared_blocks,
                (unsigned long long)least, (unsigned long long)most);
    if (stats.allocs != stats.frees + stats.blocks)
        sim_bad(&net, "%llu blocks were allocated, %llu freed, %llu are left", (unsigned long long)stats.allocs,
                (unsigned long long)stats.frees, (unsigned long long)stats.blocks);
}

static weft_op_t server_end;

static bool server_closed(void *user)
{
    (void)user;
    return weft_op_done(&server_end);
}

static uint64_t scenario(uint64_t seed)
{
    n_idents = n_blocks = n_jobs = n_live = 0;
    memset(blocks, 0, sizeof blocks);
    sim_net_init(&net, seed, 2 + (int)(seed % CLIENTS));
    wefti_sim_payloads_change(net.w); /* who reads a block does so while its owner writes it */
    n_clients = net.n - 1;
    peace = CHANCE(50);
    set_up();
    poor = !peace && CHANCE(30);
    net.alloc_fails_ppm = poor ? 1 + (uint32_t)BELOW(3000) : 0;
    net.each_round = each_round;
    acting = true;
    sim_net_run(&net, now() + lease + BELOW(4 * lease));

    /* Everyone can reach everyone again, and nobody does anything: all of it ends. */
    acting = false;
    net.alloc_fails_ppm = 0;
    for (int i = 0; i < net.n; i++)
        sim_net_resume(&net, i);
    for (int i = 1; i < net.n; i++)
        wefti_sim_heal(net.nodes[0].f, net.nodes[i].f);
    if (!sim_net_run_until(&net, now() + 2 * heartbeat + WEFT_SECOND, all_done, NULL))
        sim_bad(&net, "%d operations do not end", n_live);
    look_at_leases();
    check_blocks();

    for (int i = 0; i < n_clients; i++) {
        client_t *c = &clients[i];
        forget(c);
        if (net.nodes[c->node].dead)
            continue;
        if (c->store && CHANCE(50))
            part(c, CHANCE(50));
        else if (CHANCE(50))
            sim_net_kill(&net, c->node);
        else if (c->store)
            part(c, true);
    }
    sim_net_run(&net, now() + 2 * heartbeat + 2 * lease + 50 * WEFT_MILLISECOND);
    for (int i = 0; i < n_idents; i++)
        doubt(i);
    check_end();
    server_end = (weft_op_t)WEFT_OP_INIT;
    if (CHANCE(80)) {
        if (weft_store_server_close(server, &server_end) ||
            !sim_net_run_until(&net, now() + 2 * WEFT_SECOND, server_closed, NULL) || server_end.status)
            sim_bad(&net, "the server does not close");
    }
    for (int i = 0; i < net.n; i++)
        sim_net_close(&net, i);
    for (int i = 0; i < n_jobs; i++) {
        if (jobs[i]->live)
            sim_bad(&net, "job %d is not complete, though its runtime is closed", (int)jobs[i]->what);
        free(jobs[i]);
    }
    return sim_net_free(&net);
}

int main(int argc, char **argv)
{
    return sim_seeds_main(argc, argv, 10000, scenario);
}
