/* tests/fuzz/records.c - a peer that has passed the hello sends any records at all: to conn, to msg, announcements included.
 *
 * Two runtimes on a simulated network; the input is what one of them puts on its lane, past its own library: pieces of one byte of length
 * and that many bytes, where an odd first byte announces a payload. Whatever comes, the other holds no more than its window, its endpoint is up
 * or failed with WEFT_ERR_PROTOCOL or closed, and both can be closed. */
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

#include "conn/conn.h"
#include "fabric/sim/sim.h"
#include "open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WINDOW = 16384, ROUNDS = 400, PAYLOAD = 5000 };

static void must(int fact)
{
    if (!fact)
        abort();
}

static weft_runtime_t *open_on(wefti_sim_t *world, const char *name)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    wefti_config_t config;
    wefti_fabric_t *fabric;
    weft_runtime_t *rt;
    opts.recv_window = WINDOW;
    opts.progress = WEFT_PROGRESS_CALLER;
    must(!wefti_sim_host(world, name, &fabric));
    must(!wefti_config_parse("fuzz", "", 0, &config));
    must(!wefti_open_on_fabric(&opts, &config, fabric, &rt));
    return rt;
}

static void run(wefti_sim_t *world, weft_runtime_t **rt, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        unsigned n = weft_runtime_progress(rt[0]) + weft_runtime_progress(rt[1]);
        if (!n && !wefti_sim_step(world))
            return;
    }
}

static void never_done(wefti_xfer_t *x, weft_status_t status)
{
    (void)x, (void)status;
}

/* One piece of the input onto the lane; false: the lane has no room or is gone. */
static bool put(weft_ep_t *ep, const uint8_t *bytes, size_t n, wefti_xfer_t *x)
{
    static uint8_t payload[PAYLOAD];
    static const weft_iov_t iov = {payload, PAYLOAD};
    wefti_lane_t *lane = ep->lane;
    if (!lane || !n)
        return lane;
    if (bytes[0] & 1) {
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_sim_t *world;
    weft_runtime_t *rt[2];
    weft_listener_t *listener;
    weft_ep_t *ep, *victim;
    weft_op_t accept = WEFT_OP_INIT, connect = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    static wefti_xfer_t xfers[64];
    static uint8_t in[64];
    unsigned n_xfers = 0;
    weft_log_set_level(WEFT_LOG_NONE);
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
    must(!weft_msg_recv(victim, in, sizeof in, 2, 2, &recv)); /* half of all tags */

    while (size > 1 && n_xfers < 64) {
        size_t n = data[0] < size - 1 ? data[0] : size - 1;
        if (!put(ep, data + 1, n, &xfers[n_xfers]))
            break;
        n_xfers += n && (data[1] & 1);
        data += 1 + n;
        size -= 1 + n;
        run(world, rt, 4);
    }
    run(world, rt, ROUNDS);
    weft_runtime_get_stats(rt[0], &stats);
    must(stats.unexpected_bytes <= WINDOW);
    weft_ep_state_t state = weft_ep_get_state(victim);
    must(state == WEFT_EP_UP || state == WEFT_EP_FAILED || state == WEFT_EP_PEER_CLOSED);
    weft_runtime_close(rt[1]);
    must(!weft_runtime_close(rt[0]));
    must(weft_op_done(&recv));
    wefti_sim_free(world);
    return 0;
}
