/* tests/fuzz/records.c - a peer that has passed the hello sends any records at all: to conn, to msg, to am, to rma,
 * announcements included.
 *
 * Two runtimes on a simulated network; the input is what one of them puts on its lane, past its own library, in pieces of one
 * byte and a record: the high bit of the byte says that the record announces a payload, the others how long it is (up to 95
 * bytes, and then in steps of 64). At the other there are receives, handlers that keep, pull, reject and view, and sends under
 * way that the records may answer, from memory of the processor's and of a device's; a region that they may use, in the middle
 * of memory that they may not; and a remote that is attached, and accesses on it, that they may answer. The sender's own
 * library learns nothing of what comes back, so that it does not mind. Whatever comes, the other holds no more than its
 * windows, its endpoint is up or failed with WEFT_ERR_PROTOCOL or closed, every operation ends, and both can be closed. */
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

#include "base/alloc.h"
#include "conn/conn.h"
#include "simnet/simnet.h"
#include "open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WINDOW = 16384, ROUNDS = 400, PAYLOAD = 5000, KEPT = 8, PULLS = 32, SENDS = 6 };
enum { PLAIN = 1, KEEP, PULL, REJECT, VIEW, RECV, TAKE, DEVICE };

static void must(int fact)
{
    if (!fact)
        abort();
}

static const char config_text[] = "am_window = 16k\nam_messages = 32\nam_hold = 1s\n";

static weft_runtime_t *open_on(wefti_sim_t *world, const char *name)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    wefti_config_t config;
    wefti_fabric_t *fabric;
    weft_runtime_t *rt;
    opts.recv_window = WINDOW;
    opts.progress = WEFT_PROGRESS_CALLER;
    must(!wefti_sim_host(world, name, &fabric));
    must(!wefti_config_parse("fuzz", config_text, sizeof config_text - 1, &config));
    must(!wefti_open_on_fabric(&opts, &config, fabric, &rt));
    return rt;
}

#define QUIET_NS (100 * WEFT_MILLISECOND)

static void run(wefti_sim_t *world, weft_runtime_t **rt, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        unsigned n = weft_runtime_progress(rt[0]) + (rt[1] ? weft_runtime_progress(rt[1]) : 0);
        if (!n && wefti_sim_next(world) > wefti_sim_now(world) + QUIET_NS) /* only heartbeats are left, or nothing */
            return;
        if (!n)
            wefti_sim_step(world);
    }
}

static void never_done(wefti_xfer_t *x, weft_status_t status)
{
    (void)x, (void)status;
}

/* One piece of the input onto the lane; false: the lane has no room or is gone. */
static bool put(weft_ep_t *ep, const uint8_t *bytes, size_t n, bool announce, wefti_xfer_t *x)
{
    static uint8_t payload[PAYLOAD];
    static const weft_iov_t iov = {payload, PAYLOAD};
    wefti_lane_t *lane = ep->lane;
    if (!lane || !n)
        return lane;
    if (announce) {
        x->done = never_done;
        return !lane->ops->announce(lane, bytes, n, &iov, 1, PAYLOAD, x);
    }
    void *at = lane->ops->reserve(lane, n);
    if (!at)
        return false;
    memcpy(at, bytes, n);
    lane->ops->commit(lane, n);
    return true;
}

/* --- the sender's own library is deaf ------------------------------------------------------------------------------------- */

static const wefti_fabric_up_t *up; /* conn's */
static weft_ep_t *deaf_ep;
static unsigned n_told;

static void deaf_record(void *lane_user, const void *rec, size_t n)
{
    if (*(const uint8_t *)rec <= WEFTI_REC_CLOSE_ACK)
        up->record(lane_user, rec, n);
    else
        deaf_ep->heard = 1;
}

/* Keeps some for as long as the lane is there, takes some, refuses some. */
static void deaf_announced(void *lane_user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    (void)lane_user, (void)rec, (void)n, (void)total;
    deaf_ep->heard = 1;
    p->user = NULL;
    if (++n_told % 3)
        p->ops->refuse(p, n_told % 3 == 1);
}

static void deaf_withdrawn(wefti_pull_t *p)
{
    (void)p;
}

static void deafen(weft_ep_t *ep)
{
    static wefti_fabric_up_t deaf;
    up = ep->rt->fabric->up;
    deaf = *up;
    deaf.record = deaf_record;
    deaf.announced = deaf_announced;
    deaf.withdrawn = deaf_withdrawn;
    ep->rt->fabric->up = &deaf;
    deaf_ep = ep;
    n_told = 0;
}

/* --- what active messages find at the other ------------------------------------------------------------------------------- */

static weft_am_t *kept[KEPT];
static weft_op_t pulls[PULLS]; /* and views */
static unsigned n_kept, n_pulls;

/* Memory the processor is not to touch, as far as the library knows. */
/* A program that pulls whatever it is offered asks for any amount of memory: this machine has so much. */
static int too_much(size_t n)
{
    return n > 64u << 20;
}

static weft_status_t device_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    (void)kind;
    *ptr_out = too_much(n) ? NULL : malloc(n);
    return *ptr_out ? WEFT_OK : WEFT_ERR_NOMEM;
}
static void device_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind, (void)n;
    free(ptr);
}
static weft_status_t device_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    (void)kind;
    memcpy(dst, src, n);
    return WEFT_OK;
}
static const weft_mem_kind_t device = {
    .size = sizeof device, .name = "fuzz-device", .alloc = device_alloc, .free = device_free, .copy = device_copy};

static void read_all(const void *at, uint64_t n)
{
    volatile uint8_t sum = 0; /* what a message claims to have can be read */
    for (uint64_t i = 0; at && i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)at)[i]);
}

/* User is NULL for memory of the processor's, else the kind to pull into. */
static void pull_done(weft_op_t *op, void *user)
{
    if (op->status)
        return;
    if (!user)
        read_all(op->buf, op->len);
    weft_mem_free(user, op->buf, op->len);
}

static void pull(weft_am_t *am, const weft_mem_kind_t *kind)
{
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    if (n_pulls == PULLS)
        return;
    pulls[n_pulls] = (weft_op_t){.fn = pull_done, .user = (void *)(uintptr_t)kind};
    o.kind = kind;
    n_pulls += !weft_am_pull_with(am, &o, &pulls[n_pulls]);
}

static void view_done(weft_op_t *op, void *user)
{
    (void)user;
    if (!op->status)
        read_all(op->buf, op->len);
}

static void on_message(weft_am_t *am, void *user)
{
    (void)user;
    read_all(am->header, am->header_len);
    read_all(am->data, am->data ? am->len : 0);
    weft_am_t *mine = am;
    switch (am->id) {
    case KEEP:
    case VIEW:
        if (n_kept == KEPT) { /* the oldest makes room */
            weft_am_release(kept[0]);
            memmove(kept, kept + 1, sizeof kept - sizeof *kept);
            n_kept--;
        }
        mine = weft_am_keep(am);
        if (!mine)
            return;
        kept[n_kept++] = mine;
        if (am->id == VIEW && n_pulls < PULLS) {
            pulls[n_pulls] = (weft_op_t){.fn = view_done};
            n_pulls += !weft_am_view(mine, &pulls[n_pulls]);
        }
        break;
    case PULL:
        pull(am, NULL);
        break;
    case DEVICE:
        pull(am, &device);
        break;
    case REJECT:
        weft_am_reject(am, 7);
        break;
    default:
        if (am->reply)
            must(weft_am_send(am->reply, PLAIN, "back", 4, NULL, 0, NULL) != WEFT_ERR_INVALID);
        break;
    }
}

static void serve(weft_runtime_t *rt)
{
    static const uint32_t ids[] = {PLAIN, KEEP, PULL, REJECT, VIEW, DEVICE};
    n_kept = n_pulls = 0;
    memset(pulls, 0, sizeof pulls);
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
        must(!weft_am_handle(rt, ids[i], on_message, NULL, NULL));
}

/* Sends that records may answer: confirmed and announced, plain and from a device's memory. */
static void send_some(weft_ep_t *ep, weft_op_t *ops)
{
    static uint8_t bytes[PAYLOAD];
    for (unsigned i = 0; i < SENDS; i++) {
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        o.id = 9;
        o.header = bytes;
        o.header_len = i == 3 ? 5000 : 8;
        o.buf = bytes;
        o.len = i < 2 ? 100 : PAYLOAD;
        o.confirm = i % 2;
        o.kind = i >= 4 ? &device : NULL;
        must(!weft_am_send_with(ep, &o, &ops[i]));
    }
}

/* --- remote memory: ours, and what we believe to be theirs ---------------------------------------------------------------- */

enum { REGION = 2048, AROUND = 512, ACCESSES = 12 };
static uint8_t exposed[AROUND + REGION + AROUND];
static weft_op_t find_op, accesses[ACCESSES];
static uint8_t taken[ACCESSES][PAYLOAD + 64];
static weft_remote_t *remote;
static weft_rma_item_t item;

static void on_note(weft_region_t *region, uint64_t offset, uint64_t len, uint64_t value, weft_ep_id_t from, void *user)
{
    (void)region, (void)value, (void)from, (void)user;
    must(offset <= REGION && len <= REGION - offset);
}

static weft_region_t *expose(weft_runtime_t *rt)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *region;
    memset(exposed, 0x6b, sizeof exposed);
    o.len = REGION;
    o.buf = exposed + AROUND;
    o.name = "r";
    o.notify = on_note;
    must(!weft_region_new(rt, &o, &region));
    return region;
}

static void find(weft_ep_t *ep)
{
    remote = NULL;
    memset(accesses, 0, sizeof accesses);
    memset(taken, 0x6b, sizeof taken);
    find_op = (weft_op_t)WEFT_OP_INIT;
    must(!weft_remote_find(ep, "theirs", NULL, &find_op));
}

/* Once it has been answered: one access of each sort. */
static void use(void)
{
    if (remote || !weft_op_done(&find_op) || find_op.status)
        return;
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    remote = find_op.buf;
    must(!weft_remote_get_info(remote, &info) && info.len == find_op.len);
    for (unsigned i = 0; i < ACCESSES; i++) {
        uint8_t *buf = taken[i] + 32;
        size_t n = i % 4 == 0 ? 16 : i % 4 == 1 ? PAYLOAD : 0;
        weft_status_t st;
        item = (weft_rma_item_t){.remote = remote, .what = WEFT_RMA_DO_READ, .buf = buf, .len = 8};
        if (i % 4 == 2)
            st = weft_rma_atomic(remote, WEFT_RMA_ADD, 0, 8, 1, 0, &accesses[i]);
        else if (i == 3)
            st = weft_rma_batch(&item, 1, &accesses[i]);
        else if (i % 4 == 3)
            st = weft_rma_write_notify(remote, 0, buf, 20, 1, &accesses[i]);
        else
            st = i % 8 < 4 ? weft_rma_read(remote, 0, buf, n, &accesses[i]) : weft_rma_write(remote, 0, buf, n, &accesses[i]);
        must(!st || st == WEFT_ERR_RANGE || st == WEFT_ERR_RIGHTS || weft_op_done(&accesses[i]));
    }
}

static void check_memory(void)
{
    for (unsigned i = 0; i < AROUND; i++)
        must(exposed[i] == 0x6b && exposed[AROUND + REGION + i] == 0x6b);
    for (unsigned i = 0; i < ACCESSES; i++)
        for (unsigned k = 0; k < 32; k++)
            must(taken[i][k] == 0x6b && taken[i][PAYLOAD + 32 + k] == 0x6b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_sim_t *world;
    weft_runtime_t *rt[2];
    weft_listener_t *listener;
    weft_ep_t *ep, *victim;
    weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT, recv = WEFT_OP_INIT, am_recv = WEFT_OP_INIT, take = WEFT_OP_INIT;
    weft_op_t sends[SENDS];
    weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    static wefti_xfer_t xfers[64];
    static uint8_t in[64];
    unsigned n_xfers = 0;
    weft_log_set_level(WEFT_LOG_NONE);
    wefti_alloc_fails = too_much;
    must(!wefti_sim_new(1, &world));
    wefti_sim_faults(world)->style = WEFTI_SIM_SHM;
    rt[0] = open_on(world, "victim");
    rt[1] = open_on(world, "other");
    must(!weft_listen(rt[0], "tcp://victim:1", NULL, &listener));
    must(!weft_listener_accept(listener, &accept));
    must(!weft_ep_open(rt[1], "tcp://victim:1", NULL, &connect, &ep));
    for (int i = 0; i < 100 && !(weft_op_done(&accept) && weft_op_done(&connect)); i++)
        run(world, rt, 10);
    must(weft_op_done(&accept) && !accept.status && weft_op_done(&connect) && !connect.status);
    victim = accept.buf;
    deafen(ep);
    must(!weft_msg_recv(victim, in, sizeof in, 2, 2, &recv)); /* half of all tags */
    serve(rt[0]);
    ro.ep = victim;
    ro.id = RECV;
    ro.max_len = PAYLOAD;
    must(!weft_am_recv(rt[0], &ro, &am_recv));
    must(!weft_am_take(rt[0], NULL, TAKE, &take));
    send_some(victim, sends);
    weft_region_t *region = expose(rt[0]);
    find(victim);
    run(world, rt, 20);

    while (size > 1 && n_xfers < 64) {
        bool announce = data[0] & 0x80;
        size_t n = data[0] & 0x7f;
        if (n > 95)
            n = 95 + (n - 95) * 64;
        if (n > size - 1)
            n = size - 1;
        if (announce && n > WEFTI_REC_MAX / 2)
            n = WEFTI_REC_MAX / 2;
        if (!put(ep, data + 1, n, announce, &xfers[n_xfers]))
            break;
        n_xfers += n && announce;
        data += 1 + n;
        size -= 1 + n;
        run(world, rt, 4);
        use();
    }
    run(world, rt, ROUNDS);
    weft_runtime_get_stats(rt[0], &stats);
    must(stats.unexpected_bytes <= WINDOW && stats.am_held_bytes <= WINDOW);
    weft_ep_state_t state = weft_ep_get_state(victim);
    must(state == WEFT_EP_UP || state == WEFT_EP_FAILED || state == WEFT_EP_PEER_CLOSED);
    for (unsigned i = 0; i < n_kept; i += 2) { /* some while the connection stands, some when it is gone */
        weft_am_release(kept[i]);
        kept[i] = NULL;
    }
    weft_runtime_close(rt[1]);
    rt[1] = NULL;
    run(world, rt, 100);
    for (unsigned i = 0; i < n_kept; i++)
        weft_am_release(kept[i]);
    if (weft_op_done(&am_recv) && !am_recv.status)
        weft_mem_free(NULL, am_recv.buf, am_recv.len);
    if (weft_op_done(&take) && !take.status)
        weft_am_release(take.buf);
    else
        weft_op_cancel(&take);
    use();
    weft_op_t revoke = WEFT_OP_INIT;
    must(!weft_region_revoke(region, &revoke));
    run(world, rt, 100);
    must(weft_op_done(&revoke)); /* nobody is there any more */
    weft_remote_drop(remote);
    must(!weft_runtime_close(rt[0]));
    must(weft_op_done(&find_op));
    for (unsigned i = 0; i < ACCESSES; i++)
        must(weft_op_done(&accesses[i]));
    check_memory();
    must(weft_op_done(&recv) && weft_op_done(&am_recv) && weft_op_done(&take));
    for (unsigned i = 0; i < SENDS; i++)
        must(weft_op_done(&sends[i]));
    for (unsigned i = 0; i < n_pulls; i++)
        must(weft_op_done(&pulls[i]));
    wefti_sim_free(world);
    return 0;
}
