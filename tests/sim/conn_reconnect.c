/* tests/sim/conn_reconnect.c - a lost peer is noticed in time, and comes back under the same id.
 *
 * Two hosts, one endpoint, receives posted on both sides. Then one thing happens: the peer is killed, stopped, cut off, or
 * the lane or the wire breaks. Both sides must see their receives end with WEFT_ERR_PEER: soon where someone says so, within
 * the heartbeat bound where there is only silence. Where both hooks want it, the endpoint must be up again soon after the
 * cause is gone, with the id it had, and carry messages both ways. ctest: shards */
#include <stdio.h>
#include <string.h>

#include "seeds.h"
#include "world.h"

enum { KILL, STOP, CUT, BREAK_LANE, BREAK_WIRE, CALAMITIES };

typedef struct side {
    weft_ep_t *ep;
    weft_ep_id_t id;
    weft_op_t recv, send;
    char got[16];
    int failed, closed;
    bool reconnect;
    uint64_t failed_at;
} side_t;

static sim_net_t net;
static side_t sides[2];
static weft_listener_t *listener;

static weft_on_failure_t on_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    side_t *s = user;
    if (ep != s->ep)
        return WEFT_GIVE_UP; /* one that came back and was not wanted */
    if (why != WEFT_ERR_PEER)
        sim_bad(&net, "side %d failed with %s", (int)(s - sides), weft_status_name(why));
    if (weft_ep_id(ep) != s->id)
        sim_bad(&net, "the id changed");
    if (!weft_op_done(&s->recv))
        sim_bad(&net, "side %d: the hook is asked before the operations are complete", (int)(s - sides));
    s->failed++;
    s->failed_at = sim_now(&net);
    return s->reconnect ? WEFT_RECONNECT : WEFT_GIVE_UP;
}

static void on_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    side_t *s = user;
    (void)why;
    s->closed += ep == s->ep;
}

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l;
    (void)user;
    if (sides[1].ep && sides[1].reconnect)
        sim_bad(&net, "the peer came back as a second endpoint");
    if (sides[1].ep) { /* we did not keep the first for it */
        weft_ep_abort(ep, NULL);
        return;
    }
    sides[1].ep = ep;
    sides[1].id = weft_ep_id(ep);
}

static bool both_up(void *user)
{
    (void)user;
    for (int i = 0; i < 2; i++)
        if (!sides[i].ep || weft_ep_get_state(sides[i].ep) != WEFT_EP_UP)
            return false;
    return true;
}

/* The receives of those sides that run are complete. */
static bool noticed(void *user)
{
    (void)user;
    for (int i = 0; i < 2; i++)
        if (sim_node_runs(&net.nodes[i]) && (!weft_op_done(&sides[i].recv) || !sides[i].failed))
            return false;
    return true;
}

static bool both_got(void *user)
{
    (void)user;
    return weft_op_done(&sides[0].recv) && weft_op_done(&sides[1].recv) && weft_op_done(&sides[0].send) &&
           weft_op_done(&sides[1].send);
}

static void post_recvs(void)
{
    for (int i = 0; i < 2; i++)
        if (weft_msg_recv(sides[i].ep, sides[i].got, sizeof sides[i].got, 1, WEFT_TAG_FULL, &sides[i].recv))
            sim_bad(&net, "receive on side %d: %s", i, weft_last_error());
}

static void talk(void)
{
    for (int i = 0; i < 2; i++) {
        memset(sides[i].got, 0, sizeof sides[i].got);
        if (weft_msg_send(sides[i].ep, i ? "from 1" : "from 0", 7, 1, &sides[i].send))
            sim_bad(&net, "send on side %d: %s", i, weft_last_error());
    }
    if (!sim_net_run_until(&net, sim_now(&net) + 50 * WEFT_MILLISECOND, both_got, NULL))
        sim_bad(&net, "no messages over an endpoint that is up");
    for (int i = 0; i < 2; i++)
        if (sides[i].recv.status || strcmp(sides[i].got, i ? "from 0" : "from 1") || sides[i].recv.from != sides[i].id)
            sim_bad(&net, "side %d got \"%s\" with %s", i, sides[i].got, weft_status_name(sides[i].recv.status));
}

static void strike(int what)
{
    wefti_fabric_t *a = net.nodes[0].f, *b = net.nodes[1].f;
    if (what == KILL)
        sim_net_kill(&net, 1);
    else if (what == STOP)
        sim_net_pause(&net, 1);
    else if (what == CUT)
        wefti_sim_partition(a, b);
    else if (what == BREAK_LANE)
        wefti_sim_break_lanes(a, b, WEFT_ERR_PEER);
    else
        wefti_sim_break_wires(a, b);
}

static uint64_t scenario(uint64_t seed)
{
    memset(sides, 0, sizeof sides);
    sim_net_init(&net, seed, 2);
    uint64_t heartbeat = (100 + sim_below(&net, 400)) * WEFT_MILLISECOND;
    for (int i = 0; i < 2; i++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        o.progress = WEFT_PROGRESS_CALLER;
        o.heartbeat_ns = heartbeat;
        o.connect_timeout_ns = 200 * WEFT_MILLISECOND;
        sim_net_open(&net, i, &o);
        sides[i].reconnect = sim_odds(&net, 75);
    }
    weft_ep_hooks_t hooks = {on_failed, on_closed, &sides[1]};
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    lo.accept = on_accept;
    lo.hooks = &hooks;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    eo.hooks = (weft_ep_hooks_t){on_failed, on_closed, &sides[0]};
    eo.reconnect_ns = 20 * WEFT_SECOND;
    eo.reconnect_first_ns = 10 * WEFT_MILLISECOND;
    if (weft_listen(net.nodes[1].rt, "tcp://h1:0", &lo, &listener) ||
        weft_ep_open(net.nodes[0].rt, weft_listener_uri(listener), &eo, NULL, &sides[0].ep))
        sim_bad(&net, "no endpoint: %s", weft_last_error());
    sides[0].id = weft_ep_id(sides[0].ep);
    if (!sim_net_run_until(&net, sim_now(&net) + 100 * WEFT_MILLISECOND, both_up, NULL))
        sim_bad(&net, "the endpoint does not come up");
    post_recvs();
    talk();
    /* an idle endpoint lives on heartbeats alone */
    sim_net_run(&net, sim_now(&net) + sim_below(&net, 3 * heartbeat));
    if (!both_up(NULL) || sides[0].failed || sides[1].failed)
        sim_bad(&net, "an idle endpoint was lost");
    memset(&sides[0].recv, 0, sizeof sides[0].recv);
    memset(&sides[1].recv, 0, sizeof sides[1].recv);
    post_recvs();

    int what = (int)sim_below(&net, CALAMITIES);
    bool silent = what == STOP || what == CUT;
    wefti_sim_note(net.w, -1, "calamity", (uint64_t)what, 0);
    strike(what);
    /* a quarter of the bound is the tick that looks */
    uint64_t patience = silent ? heartbeat + heartbeat / 4 : 0;
    if (!sim_net_run_until(&net, sim_now(&net) + patience + 20 * WEFT_MILLISECOND, noticed, NULL))
        sim_bad(&net, "calamity %d is not noticed within %.0f ms", what, (double)patience * 1e-6 + 20);
    for (int i = 0; i < 2; i++)
        if (sim_node_runs(&net.nodes[i]) && sides[i].recv.status != WEFT_ERR_PEER)
            sim_bad(&net, "side %d: the receive ends with %s", i, weft_status_name(sides[i].recv.status));
    if (what != KILL && sides[0].reconnect && sides[1].reconnect) {
        sim_net_run(&net, sim_now(&net) + sim_below(&net, 2 * heartbeat));
        wefti_sim_heal(net.nodes[0].f, net.nodes[1].f);
        sim_net_resume(&net, 1);
        /* a dial that hung in the partition has to time out first, and the pause between tries has grown to seconds at most */
        if (!sim_net_run_until(&net, sim_now(&net) + 6 * WEFT_SECOND, both_up, NULL))
            sim_bad(&net, "the endpoint does not come back");
        if (sides[0].id != weft_ep_id(sides[0].ep) || sides[1].id != weft_ep_id(sides[1].ep))
            sim_bad(&net, "it came back with another id");
        memset(&sides[0].recv, 0, sizeof sides[0].recv);
        memset(&sides[1].recv, 0, sizeof sides[1].recv);
        post_recvs();
        talk();
    }
    if (sim_odds(&net, 50))
        weft_ep_close(sides[0].ep, NULL);
    sim_net_run(&net, sim_now(&net) + sim_below(&net, WEFT_SECOND));
    sim_net_close(&net, 0);
    sim_net_close(&net, 1);
    for (int i = 0; i < 2; i++)
        if (sides[i].closed > 1 || !weft_op_done(&sides[i].recv))
            sim_bad(&net, "side %d: closed %d times, receive %s", i, sides[i].closed,
                    weft_op_done(&sides[i].recv) ? "done" : "waits");
    return sim_net_free(&net);
}

int main(int argc, char **argv)
{
    return sim_seeds_main(argc, argv, 3000, scenario);
}
