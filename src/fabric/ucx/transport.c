/* fabric/ucx/transport.c - UCX's context and worker, and everything the transport has to tell.
 *
 * The transport is CLOSED (no UCX) until its first lane, then OPEN until it is closed: a process that only ever talks on one
 * host never opens UCX, which takes milliseconds and threads.
 *
 * UCX is opened with active messages and nothing else: with its RMA or AMO features on, any peer could read and write this
 * process. Only where the variable "trusted" says that this is wanted it has RMA too (onesided.c). UCX's own keepalive is off:
 * it sees neither a stopped peer nor, on some transports, a dead one; heartbeats above do.
 *
 * What UCX says outside an active message is put on a list (ended, events, ep_events) and told at the end of progress, when no
 * call of UCX is on the stack. tests/wire/fabric_lanes.c and fabric_ucx.c hold the transport to fabric.h's promises. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/ucx/internal.h"

#define CAPS_VERSION 2

weft_status_t wefti_ux_status(ucs_status_t st)
{
    switch (st) {
    case UCS_OK:
        return WEFT_OK;
    case UCS_ERR_NO_MEMORY:
        return WEFT_ERR_NOMEM;
    case UCS_ERR_UNREACHABLE:
        return WEFT_ERR_UNREACHABLE;
    case UCS_ERR_INVALID_ADDR:
        return WEFT_ERR_PROTOCOL;
    case UCS_ERR_CANCELED:
        return WEFT_ERR_CANCELLED;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED:
        return WEFT_ERR_UNSUPPORTED;
    default:
        return WEFT_ERR_SYSTEM;
    }
}

void wefti_ux_fail(ux_lane_t *l, weft_status_t why, const char *what)
{
    if (!l->half.failed && l->state < UX_CLOSING)
        wefti_half_fail(&l->half, why, what);
}

/* --- opening UCX -------------------------------------------------------------------------------------------------- */

static ucs_status_t am_arrived(void *arg, const void *head, size_t head_n, void *data, size_t n, const ucp_am_recv_param_t *param)
{
    ux_transport_t *r = arg;
    if (__builtin_expect(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV, 0))
        return wefti_ux_announce_arrived(r, head, head_n, data, n);
    wefti_ux_frame_arrived(r, data, n);
    return UCS_OK;
}

static ucs_status_t chunk_arrived(void *arg, const void *head, size_t head_n, void *data, size_t n,
                                  const ucp_am_recv_param_t *param)
{
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
        return UCS_ERR_REJECTED; /* none of ours are */
    wefti_ux_chunk_arrived(arg, head, head_n, data, n);
    return UCS_OK;
}

static void frame_sent(void *request, ucs_status_t status, void *user)
{
    ux_frame_t *f = user;
    ux_lane_t *l = f->lane;
    ucp_request_free(request);
    ux_frame_free(l->transport, f);
    l->in_flight--;
    if (l->state == UX_DRAINING) {
        wefti_half_event(&l->half, WEFTI_EV_CLOSE);
        return;
    }
    if (status != UCS_OK)
        wefti_ux_fail(l, WEFT_ERR_PEER, ucs_status_string(status));
    else if (l->half.want_space)
        wefti_half_event(&l->half, WEFTI_EV_SPACE);
}

/* A UCX that does not know an option goes without. What the user set in the environment stays. */
static void configure(ucp_config_t *config, const char *name, const char *value)
{
    char env[64];
    snprintf(env, sizeof env, "UCX_%s", name);
    if (getenv(env))
        return;
    ucs_status_t st = ucp_config_modify(config, name, value);
    if (st != UCS_OK)
        wefti_debug("ucx: %s=%s: %s", name, value, ucs_status_string(st));
}

/* Options of one transport: some releases of UCX want its prefix here and some want it gone, and each warns of the other. */
static void configure_transport(ucp_config_t *config, const char *prefix, const char *name, const char *value)
{
    char whole[64], env[72];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    snprintf(env, sizeof env, "UCX_%s", whole);
    if (getenv(env))
        return;
    unsigned major, minor, patch;
    ucp_get_version(&major, &minor, &patch);
    configure(config, "WARN_INVALID_CONFIG", "n");
    configure(config, major == 1 && minor < 14 ? name : whole, value);
}

static weft_status_t open_context(ux_transport_t *r, bool chunked)
{
    ucp_config_t *config;
    ucs_status_t st = ucp_config_read(NULL, NULL, &config);
    if (st != UCS_OK)
        return wefti_fail(wefti_ux_status(st), "UCX does not read its configuration: %s", ucs_status_string(st));
    /* Where nothing was chosen the user's UCX_TLS goes before ours. UCX's shared memory is not asked for, since ours is better,
     * nor is its loopback, which delivers inside the sending call. */
    if (!r->tls[0])
        configure(config, "TLS", "^shm,self");
    else
        st = ucp_config_modify(config, "TLS", r->tls);
    if (st == UCS_OK && r->devices)
        st = ucp_config_modify(config, "NET_DEVICES", r->devices);
    if (st != UCS_OK) {
        ucp_config_release(config);
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "UCX refuses the transports \"%s\" or the interfaces \"%s\": %s", wefti_ux_tls(r),
                          r->devices ? r->devices : "all", ucs_status_string(st));
    }
    configure(config, "KEEPALIVE_INTERVAL", "inf");
    configure(config, "FLUSH_WORKER_EPS", "n"); /* see settled() */
    /* The newer ones, which 1.16 takes by itself, end the process where an endpoint is closed by force while a rendezvous waits
     * for space. */
    configure(config, "PROTO_ENABLE", "n");
    /* A blocking connect() to a host that does not answer would stop every lane for minutes. */
    configure_transport(config, "TCP_", "CONN_NB", "y");
    /* Frames must stay in order. */
    configure(config, "MAX_EAGER_LANES", "1");
    if (chunked) {
        /* See chunk.c: nothing that UCX could still be holding when a peer dies. A chunk fits into what UCX sends at once. */
        configure(config, "ZCOPY_THRESH", "inf");
        configure_transport(config, "TCP_", "TX_SEG_SIZE", "64k");
    }

    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (r->trusted ? UCP_FEATURE_RMA : 0),
        .mt_workers_shared = 1, /* there is one worker, but mem.c comes from other threads */
        .name = "weft",
    };
    st = ucp_init(&params, config, &r->context);
    ucp_config_release(config);
    if (st != UCS_OK)
        return wefti_fail(st == UCS_ERR_NO_DEVICE ? WEFT_ERR_UNSUPPORTED : wefti_ux_status(st),
                          "UCX does not open with transports \"%s\" on interfaces \"%s\": %s", wefti_ux_tls(r),
                          r->devices ? r->devices : "all", ucs_status_string(st));
    return WEFT_OK;
}

/* Was this UCX built with CUDA, and does it find a GPU? */
static bool knows_cuda(ucp_context_h context)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    return ucp_context_query(context, &attr) == UCS_OK && attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA);
}

/* What there is decides how payloads move, and that decides how UCX is opened: so it is asked first. */
static weft_status_t open_right(ux_transport_t *r)
{
    bool chunked = !strcmp(r->tls, "tcp") && !r->rendezvous;
    weft_status_t st = open_context(r, chunked);
    if (!st && !chunked && !r->rendezvous && wefti_ux_only_tcp(r->context)) {
        ucp_cleanup(r->context);
        r->context = NULL;
        chunked = true;
        st = open_context(r, true);
    }
    r->chunked = chunked;
    r->takes_cuda = !st && !chunked && knows_cuda(r->context);
    return st;
}

/* Open UCX if it is not. */
weft_status_t wefti_ux_start(ux_transport_t *r)
{
    if (r->worker)
        return WEFT_OK;
    wefti_ux_hush();
    weft_status_t status = open_right(r);
    if (status)
        return status;

    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t st = ucp_worker_create(r->context, &params, &r->worker);
    if (st != UCS_OK) {
        status = wefti_fail(wefti_ux_status(st), "UCX does not make a worker: %s", ucs_status_string(st));
        goto err_context;
    }
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UX_AM_ID,
        .cb = am_arrived,
        .arg = r,
    };
    st = ucp_worker_set_am_recv_handler(r->worker, &handler);
    handler.id = UX_AM_CHUNK;
    handler.cb = chunk_arrived;
    if (st == UCS_OK)
        st = ucp_worker_set_am_recv_handler(r->worker, &handler);
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    if (st == UCS_OK)
        st = ucp_worker_query(r->worker, &attr);
    if (st == UCS_OK)
        st = ucp_worker_get_efd(r->worker, &r->base.fd);
    if (st == UCS_OK)
        st = ucp_worker_get_address(r->worker, &r->address, &r->address_n);
    if (st != UCS_OK) {
        status = wefti_fail(wefti_ux_status(st), "UCX's worker is of no use: %s", ucs_status_string(st));
        goto err_worker;
    }
    if (attr.max_am_header < UX_ANNOUNCE_HEAD + WEFTI_REC_MAX / 2 || r->address_n + 256 > WEFTI_LANE_ADDR_MAX) {
        status = wefti_fail(WEFT_ERR_UNSUPPORTED, "UCX's transports (%s) allow headers of %zu bytes and have an address of %zu",
                            wefti_ux_tls(r), (size_t)attr.max_am_header, r->address_n);
        goto err_address;
    }
    r->frame_param = (ucp_request_param_t){
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE,
        .datatype = r->chunked ? UCP_DATATYPE_IOV : ucp_dt_make_contig(1), /* ux_frame_t says why */
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = frame_sent,
    };
    r->base.fabric->ops->random(r->base.fabric, &r->id, sizeof r->id);
    wefti_ux_mem_context(r, r->context);
    return WEFT_OK;

err_address:
    ucp_worker_release_address(r->worker, r->address);
err_worker:
    ucp_worker_destroy(r->worker);
    r->worker = NULL;
    r->base.fd = -1;
err_context:
    ucp_cleanup(r->context);
    r->context = NULL;
    return status;
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

static unsigned tell(ux_transport_t *r)
{
    unsigned n = wefti_transfers_tell(&r->transfers);
    wefti_list_t *it;
    for (; (it = wefti_list_pop(&r->ep_events)); n++)
        wefti_ux_ep_close(wefti_container_of(it, ux_ep_t, link));
    return n + wefti_events_tell(&r->transfers);
}

static bool has_to_tell(const ux_transport_t *r)
{
    return wefti_transfers_to_tell(&r->transfers) || !wefti_list_empty(&r->ep_events);
}

static void flush_open(ux_transport_t *r)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&r->transfers.open)))
        wefti_ux_flush(wefti_container_of(it, ux_lane_t, half.open_link));
}

unsigned wefti_ux_progress(wefti_transport_t *transport)
{
    ux_transport_t *r = ux_transport(transport);
    if (!r->worker)
        return 0;
    r->transfers.epoch++;
    if (!wefti_list_empty(&r->transfers.open))
        flush_open(r);
    if (!wefti_list_empty(&r->pumps))
        wefti_ux_pump(r);
    if (!wefti_list_empty(&r->flushes))
        wefti_ux_flush_puts(r);
    unsigned n = ucp_worker_progress(r->worker);
    if (__builtin_expect(has_to_tell(r), 0))
        n += tell(r);
    /* Answers that the upcalls above gave, together. */
    if (!wefti_list_empty(&r->transfers.open))
        flush_open(r);
    r->transfers.epoch++; /* what comes after this call is alone again */
    return n;
}

static weft_status_t arm(wefti_transport_t *transport)
{
    ux_transport_t *r = ux_transport(transport);
    if (!r->worker)
        return WEFT_OK;
    if (!wefti_list_empty(&r->transfers.open) || !wefti_list_empty(&r->pumps) || !wefti_list_empty(&r->flushes) || has_to_tell(r))
        return WEFT_ERR_AGAIN;
    /* Anything but OK (BUSY above all) means that sleeping now could miss something. */
    return ucp_worker_arm(r->worker) == UCS_OK ? WEFT_OK : WEFT_ERR_AGAIN;
}

/* --- the transport ------------------------------------------------------------------------------------------------ */

static size_t caps(wefti_transport_t *transport, int side, void *buf)
{
    unsigned major, minor, patch;
    (void)transport, (void)side;
    ucp_get_version(&major, &minor, &patch);
    uint8_t bytes[4] = {CAPS_VERSION, (uint8_t)major, (uint8_t)minor, (uint8_t)patch};
    memcpy(buf, bytes, sizeof bytes);
    return sizeof bytes;
}

static bool match(wefti_transport_t *transport, const void *theirs, size_t n)
{
    uint8_t ours[WEFTI_CAPS_MAX];
    caps(transport, WEFTI_SIDE_DIALLER, ours);
    /* UCX keeps its wire within a major version. Whether there is a network between us, connecting will show. */
    return n >= 4 && !memcmp(ours, theirs, 2);
}

/* Nothing waits to be sent, and no connection is half made: at once, as a rule. UCX answers a peer that connects on a connection
 * of its own, and where a worker ends while such an answer waits for that connection, an assertion of UCX's ends the process
 * (1.13). */
static bool settled(ux_transport_t *r, uint64_t end)
{
    const ucp_request_param_t none = {0};
    do {
        ucs_status_ptr_t flush = ucp_worker_flush_nbx(r->worker, &none);
        if (!UCS_PTR_IS_PTR(flush))
            return !flush;
        while (ucp_request_check_status(flush) == UCS_INPROGRESS && wefti_clock_ns() < end)
            wefti_ux_progress(&r->base);
        ucp_request_free(flush);
    } while (wefti_clock_ns() < end); /* and again: while it was flushed another may have come */
    return false;
}

/* False: UCX cannot be closed without danger. */
static bool close_peers(ux_transport_t *r)
{
    size_t at = 0;
    uint64_t id;
    ux_peer_t *p;
    while ((p = wefti_map_next(&r->peers, &at, &id))) {
        wefti_list_t *it;
        while ((it = wefti_list_pop(&p->spare)))
            wefti_ux_ep_close(wefti_container_of(it, ux_ep_t, link));
    }
    /* UCX wants its endpoints gone before its worker; it has never needed more than a few rounds. */
    uint64_t end = wefti_clock_ns() + 1000000000u;
    while (r->n_eps && wefti_clock_ns() < end)
        wefti_ux_progress(&r->base);
    bool can_end = !r->n_eps && settled(r, end);
    for (at = 0; (p = wefti_map_next(&r->peers, &at, &id));)
        wefti_free(p);
    wefti_map_free(&r->peers);
    return can_end;
}

static void ux_close(wefti_transport_t *transport)
{
    ux_transport_t *r = ux_transport(transport);
    if (r->worker && getpid() == r->pid) {
        bool can_end = close_peers(r);
        wefti_ux_mem_context(r, NULL);
        ucp_worker_release_address(r->worker, r->address);
        if (can_end) {
            ucp_worker_destroy(r->worker);
            ucp_cleanup(r->context);
        } else {
            wefti_warn(
                "ucx: a connection was neither made nor given up within a second: UCX keeps what it has until this process ends");
        }
    }
    if (r->strangers)
        wefti_info("ucx: %llu frames carried no token of ours", (unsigned long long)r->strangers);
    wefti_spares_free(&r->spare_frames);
    wefti_spares_free(&r->spare_chunks);
    wefti_spares_free(&r->spare_ones);
    wefti_transfers_free(&r->transfers);
    wefti_slots_free(&r->lanes);
    wefti_free(r->tls);
    wefti_free(r->devices);
    pthread_mutex_destroy(&r->mem_lock);
    wefti_free(r);
}

static const wefti_transport_ops_t ucx_ops = {
    .close = ux_close,
    .arm = arm,
    .caps = caps,
    .match = match,
    .lane_new = wefti_ux_lane_new,
    .lane_connect = wefti_ux_lane_connect,
    .lane_close = wefti_ux_lane_close,
    .reserve = wefti_ux_reserve,
    .commit = wefti_ux_commit,
    .announce = wefti_ux_announce,
    .pull = wefti_ux_pull,
    .refuse = wefti_ux_refuse,
};

weft_status_t wefti_ux_open(wefti_fabric_t *f, const wefti_ucx_params_t *params, wefti_transport_t **transport_out)
{
    ux_transport_t *r = wefti_calloc(1, sizeof *r);
    if (!r)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a transport");
    r->ops = ucx_ops;
    if (params->trusted)
        wefti_ux_onesided(&r->ops);
    r->base = (wefti_transport_t){.ops = &r->ops, .fabric = f, .kind = 2, .name = "ucx", .fd = -1, .in_the_clear = true};
    r->trusted = params->trusted;
    r->rendezvous = params->rendezvous;
    r->pid = getpid();
    r->tls = wefti_strdup(params->tls);
    r->devices = params->devices ? wefti_strdup(params->devices) : NULL;
    if (!r->tls || (params->devices && !r->devices)) {
        wefti_free(r->tls);
        wefti_free(r->devices);
        wefti_free(r);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a transport");
    }
    pthread_mutex_init(&r->mem_lock, NULL);
    wefti_slots_init(&r->lanes, UINT32_C(1) << UX_TOKEN_INDEX_BITS);
    wefti_transfers_init(&r->transfers, &wefti_ux_transfers);
    wefti_list_t *lists[] = {&r->pumps, &r->ep_events, &r->flushes};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        wefti_list_init(lists[i]);
    *transport_out = &r->base;
    return WEFT_OK;
}
