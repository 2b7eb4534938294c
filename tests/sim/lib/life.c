/* tests/sim/lib/life.c - what programs of every kind do and what happens to them; what may come of it is in model.c. */
#include "life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conn/chunks.h"
#include "fakedev.h"

model_t m;
int life_depth;
static const life_program_t *program;

static void act_on(int node);

/* --- hooks
 * ------------------------------------------------------------------------------------------------------------------- */

static weft_on_failure_t hook_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    end_t *e = model_end_of_ep(&m, (int)((link_t *)user - m.links), ep);
    if (e) {
        int end = (int)(e - m.ends);
        if (m.peace)
            sim_bad(&m.net, "end %d failed with %s in a world at peace", end, weft_status_name(why));
        if (e->gone || e->hook_closed)
            sim_bad(&m.net, "end %d fails after it was closed", end);
        e->hook_failed++;
        e->failed = true;
    }
    return CHANCE(60) ? WEFT_RECONNECT : WEFT_GIVE_UP;
}

static void hook_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    end_t *e = model_end_of_ep(&m, (int)((link_t *)user - m.links), ep);
    (void)why;
    if (e && (++e->hook_closed > 1 || e->gone))
        sim_bad(&m.net, "end %d is told %d times that it is closed%s", (int)(e - m.ends), e->hook_closed,
                e->gone ? ", and after its close was complete" : "");
}

/* --- links
 * ------------------------------------------------------------------------------------------------------------------- */

static void accepted(int link, weft_ep_t *ep)
{
    link_t *l = &m.links[link];
    end_t *e = model_end_of_id(&m, l->node[1], weft_ep_id(ep)); /* a message may have been here first */
    if (e)
        e->ep = ep;
    else
        e = model_end(&m, link, 1, l->node[1], ep, weft_ep_id(ep));
    if (!e) {
        weft_ep_abort(ep, NULL);
        return;
    }
    e->drain = l->connector >= 0 && m.ends[l->connector].closed;
    wefti_sim_note(m.net.w, l->node[1], "accepted: link, end", (uint64_t)link, (uint64_t)(e - m.ends));
}

static void on_accept(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    link_t *l = user;
    if (listener != l->listener)
        sim_bad(&m.net, "an endpoint from a listener that is closed");
    accepted((int)(l - m.links), ep);
}

static void post_accept(int link)
{
    link_t *l = &m.links[link];
    act_t *a = model_act(&m, ACT_ACCEPT, l->node[1], -1);
    if (!a)
        return;
    a->msg = link;
    model_posted(&m, a, weft_listener_accept(l->listener, &a->op));
}

void life_connect(int from)
{
    int to = (int)BELOW((uint64_t)m.net.n);
    if (m.n_links == LINKS_MAX || m.n_ends >= ENDS_MAX - 4 || !sim_node_runs(&m.net.nodes[to]))
        return;
    int link = m.n_links++;
    link_t *l = &m.links[link];
    char uri[32];
    memset(l, 0, sizeof *l);
    l->node[0] = from;
    l->node[1] = to;
    l->connector = -1;
    l->hurt = !m.peace;
    weft_ep_hooks_t hooks = {CHANCE(70) ? hook_failed : NULL, hook_closed, l};
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    bool by_op = CHANCE(30);
    lo.accept = by_op ? NULL : on_accept;
    lo.user = l;
    lo.hooks = &hooks;
    snprintf(uri, sizeof uri, "tcp://h%d:0", to);
    weft_status_t st = weft_listen(m.net.nodes[to].rt, uri, &lo, &l->listener);
    if (st) {
        if (m.peace && st != WEFT_ERR_STATE) /* nobody listens inside a callback of another runtime */
            sim_bad(&m.net, "listen: %s (%s)", weft_status_name(st), weft_last_error());
        m.n_links--;
        return;
    }
    snprintf(l->uri, sizeof l->uri, "%s", weft_listener_uri(l->listener));
    if (by_op)
        post_accept(link);
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    eo.hooks = (weft_ep_hooks_t){CHANCE(70) ? hook_failed : NULL, hook_closed, l};
    eo.reconnect_ns = m.reconnect_ns;
    eo.reconnect_first_ns = 1 + BELOW(20 * WEFT_MILLISECOND);
    weft_ep_t *ep;
    act_t *a = CHANCE(80) ? model_act(&m, ACT_CONNECT, from, -1) : NULL;
    if (a)
        a->bound = m.connect_ns + m.slack_ns;
    st = weft_ep_open(m.net.nodes[from].rt, l->uri, &eo, a ? &a->op : NULL, &ep);
    if (a)
        model_posted(&m, a, st);
    if (st) {
        if (m.peace)
            sim_bad(&m.net, "connect: %s (%s)", weft_status_name(st), weft_last_error());
        return;
    }
    end_t *e = model_end(&m, link, 0, from, ep, weft_ep_id(ep));
    l->connector = (int)(e - m.ends);
    wefti_sim_note(m.net.w, from, "connects: link, end", (uint64_t)link, (uint64_t)l->connector);
}

end_t *life_some_end(int node)
{
    for (int tries = 0; m.n_ends && tries < 4; tries++) {
        end_t *e = &m.ends[BELOW((uint64_t)m.n_ends)];
        if (e->node == node && e->ep)
            return e;
    }
    return NULL;
}

void life_close(end_t *e, bool force)
{
    int end = (int)(e - m.ends);
    weft_ep_t *ep = e->ep;
    if (m.peace && weft_ep_get_state(ep) == WEFT_EP_CONNECTING)
        return; /* that gives up what was posted */
    act_t *a = m.peace || CHANCE(85) ? model_act(&m, force ? ACT_ABORT : ACT_CLOSE, e->node, end) : NULL;
    if (a) {
        a->bound = (force ? 0 : m.close_ns) + m.slack_ns + m.pull_ns;
        a->taken_before = model_taken(&m, e);
        if (!m.peace && CHANCE(10))
            a->op.timeout_ns = 1 + BELOW(m.close_ns);
    }
    wefti_sim_note(m.net.w, e->node, force ? "aborts: end" : "closes: end", (uint64_t)end, a != NULL);
    /* from here on nothing may use it, callbacks during the call included */
    e->ep = NULL;
    e->closed = true;
    e->closed_at = sim_now(&m.net);
    if (force)
        m.links[e->link].hurt = true;
    weft_status_t st = force ? weft_ep_abort(ep, a ? &a->op : NULL) : weft_ep_close(ep, a ? &a->op : NULL);
    if (a ? !model_posted(&m, a, st) : st != WEFT_OK) {
        e->ep = ep;
        e->closed = false;
        if (m.peace)
            sim_bad(&m.net, "close: %s", weft_status_name(st));
    }
    end_t *peer = model_peer(&m, e);
    if (peer)
        peer->drain = true;
}

/* --- what messages need
 * ------------------------------------------------------------------------------------------------------ */

size_t life_length(void)
{
    switch (BELOW(12)) {
    case 0:
        return 0;
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
        return 1 + BELOW(64);
    case 6:
    case 7:
        return BELOW(1024);
    case 8:
    case 9:
        return BELOW(5000);
    case 10:
        return BELOW(20000);
    default:
        return BELOW(100000);
    }
}

void life_patience(act_t *a, bool is_send)
{
    if (CHANCE(15)) {
        a->op.timeout_ns = 1 + BELOW(CHANCE(50) ? 500 * WEFT_MICROSECOND : 50 * WEFT_MILLISECOND);
        if (!is_send) {
            a->bound = a->op.timeout_ns + m.slack_ns + m.pull_ns + m.heartbeat_ns;
            a->by_beats = true;
        }
    }
    if (CHANCE(8))
        a->op.token = m.tokens[a->node];
}

void life_cut(weft_iov_t *iov, size_t *n, uint8_t *buf, size_t len)
{
    *n = 1 + BELOW(4);
    for (size_t i = 0, at = 0; i < *n; i++) {
        size_t k = i + 1 == *n ? len - at : BELOW(len - at + 1);
        iov[i] = (weft_iov_t){buf + at, k};
        at += k;
    }
}

void life_cancel_some(int node)
{
    for (int tries = 0; m.n_acts && tries < 8; tries++) {
        act_t *a = m.acts[BELOW((uint64_t)m.n_acts)];
        if (a->live && a->node == node && !a->draining && a->kind != ACT_CLOSE && a->kind != ACT_ABORT &&
            !(m.peace && (a->kind == ACT_CONNECT || a->kind == ACT_ACCEPT))) {
            model_cancel(&m, a);
            return;
        }
    }
}

/* --- what comes of completions
 * ------------------------------------------------------------------------------------------------- */

static void completed(model_t *unused, act_t *a, weft_status_t status)
{
    (void)unused;
    end_t *e = a->end >= 0 ? &m.ends[a->end] : NULL;
    if (a->kind == ACT_ACCEPT && !status) {
        accepted(a->msg, a->op.buf);
        if (sim_node_runs(&m.net.nodes[a->node]) && m.links[a->msg].listener && CHANCE(50))
            post_accept(a->msg);
    }
    if (a->draining && e) {
        e->draining = false;
        e->drained = status != WEFT_OK && status != WEFT_ERR_NOMEM;
        e->drained_all = e->drained && !e->closed;
    }
    if (program->completed)
        program->completed(a, status);
    if (life_depth == 0 && CHANCE(20) && sim_node_runs(&m.net.nodes[a->node])) {
        life_depth++;
        act_on(a->node);
        life_depth--;
    }
}

static void each_round(void *user)
{
    (void)user;
    model_poll(&m);
    if (program->each_round)
        program->each_round();
    for (int i = 0; i < m.n_ends; i++) {
        end_t *e = &m.ends[i];
        if (e->drain && e->ep && !e->draining && !e->drained && sim_node_runs(&m.net.nodes[e->node]))
            program->drain(e);
    }
}

static uint64_t due(void *user)
{
    (void)user;
    return program->due ? program->due() : UINT64_MAX;
}

/* --- actors
 * ------------------------------------------------------------------------------------------------------------------- */

static void new_token(int node)
{
    uint32_t ppm = m.net.alloc_fails_ppm;
    weft_token_cancel(m.tokens[node]);
    weft_token_drop(m.tokens[node]);
    m.tokens[node] = NULL;
    m.net.alloc_fails_ppm = 0;
    if (weft_token_new(m.net.nodes[node].rt, NULL, &m.tokens[node]))
        sim_bad(&m.net, "no token");
    m.net.alloc_fails_ppm = ppm;
}

static void start_timer(int node)
{
    act_t *a = model_act(&m, ACT_TIMER, node, -1);
    uint64_t delay = BELOW(2 * WEFT_MILLISECOND);
    if (a) {
        a->bound = delay + m.slack_ns;
        model_posted(&m, a, weft_timer_start(m.net.nodes[node].rt, delay, &a->op));
    }
}

static void act_on(int node)
{
    end_t *e = life_some_end(node);
    unsigned what = (unsigned)BELOW(100);
    if (what < 6 || !e) {
        if (life_depth == 0 || CHANCE(20))
            life_connect(node);
    } else if (what < 81) {
        program->act(node, e, (what - 6) * 100 / 75);
    } else if (what < 90) {
        life_cancel_some(node);
    } else if (what == 90) {
        if (CHANCE(50))
            new_token(node);
    } else if (what < 93) {
        start_timer(node);
    } else if (what < 95) {
        life_close(e, false);
    } else if (what == 95 && !m.peace) {
        life_close(e, true);
    } else if (what == 96 && !m.peace) {
        link_t *l = &m.links[BELOW((uint64_t)m.n_links)];
        if (l->listener && l->node[1] == node) {
            weft_listener_t *listener = l->listener;
            l->listener = NULL;
            weft_listener_close(listener, NULL);
        }
    }
}

static void happen(void)
{
    int a = (int)BELOW((uint64_t)m.net.n), b = (int)BELOW((uint64_t)m.net.n);
    wefti_fabric_t *fa = m.net.nodes[a].f, *fb = m.net.nodes[b].f;
    switch (BELOW(15)) {
    case 0:
        if (CHANCE(25) && m.net.nodes[a].rt && !m.net.nodes[a].dead)
            sim_net_kill(&m.net, a);
        break;
    case 1:
    case 2:
        sim_net_pause(&m.net, a);
        break;
    case 3:
    case 4:
    case 5:
        sim_net_resume(&m.net, a);
        break;
    case 6:
        wefti_sim_partition(fa, fb);
        break;
    case 7:
        wefti_sim_cut(fa, fb, true);
        break;
    case 8:
    case 9:
    case 10:
        wefti_sim_heal(fa, fb);
        break;
    case 11:
        wefti_sim_break_lanes(fa, fb, CHANCE(80) ? WEFT_ERR_PEER : WEFT_ERR_SYSTEM);
        break;
    case 12:
        wefti_sim_break_wires(fa, fb);
        break;
    case 13:
        if (m.devices) { /* it breaks, or is mended */
            fakedev_fail_copies(CHANCE(60) ? BELOW(40) : UINT64_MAX);
            break;
        }
        wefti_sim_fail_next(fa, (int)BELOW(WEFTI_SIM_AT_N), WEFT_ERR_NOMEM, 1);
        break;
    default:
        wefti_sim_fail_next(fa, (int)BELOW(WEFTI_SIM_AT_N), WEFT_ERR_NOMEM, 1);
    }
}

/* --- a run
 * ---------------------------------------------------------------------------------------------------------------------- */

static void set_up(uint64_t seed)
{
    static const uint8_t key[16] = "a shared secret";
    wefti_sim_faults_t *f;
    life_depth = 0;
    model_init(&m, seed, 2);
    m.net.n = 2;
    m.completed = completed;
    m.net.each_round = each_round;
    m.net.due = due;
    while (m.net.n < 4 && CHANCE(40)) {
        char name[8] = {'h', (char)('0' + m.net.n), 0};
        m.net.nodes[m.net.n].index = m.net.n;
        if (wefti_sim_host(m.net.w, name, &m.net.nodes[m.net.n].f))
            sim_bad(&m.net, "no host");
        m.net.n++;
    }
    m.peace = CHANCE(45);
    m.heartbeat_ns = (100 + BELOW(200)) * WEFT_MILLISECOND;
    m.connect_ns = (100 + BELOW(200)) * WEFT_MILLISECOND;
    m.close_ns = (100 + BELOW(300)) * WEFT_MILLISECOND;
    m.reconnect_ns = (50 + BELOW(200)) * WEFT_MILLISECOND;
    m.slack_ns = 10 * WEFT_MILLISECOND;
    m.window = 16384 << BELOW(3);
    f = wefti_sim_faults(m.net.w);
    f->no_space = CHANCE(50) ? 0 : 50000;
    f->false_space = CHANCE(50) ? 0 : 50000;
    f->pull_slow = CHANCE(50) ? 0 : 100000;
    f->pull_slow_ns = m.pull_ns = 20 * WEFT_MILLISECOND;
    if (!m.peace && CHANCE(50)) {
        f->refuse = f->unreachable = f->dial_fails = f->acceptor_fails = f->lane_new_fails = f->lane_connect_fails = 30000;
        f->lane_breaks = 2000;
        f->wire_breaks = f->wire_send_fails = 10000;
        f->wire_tail_lost = 300000;
        f->pull_fails = 50000;
    }
    m.devices = CHANCE(40);
    if (m.devices) {
        fakedev_install();
        wefti_chunk_bytes = 500 + (uint32_t)BELOW(CHANCE(50) ? 5000 : 60000);
        wefti_chunk_stages = 1 + (uint32_t)BELOW(CHANCE(50) ? 3 : 16);
    }
    bool locked = CHANCE(20);
    for (int i = 0; i < m.net.n; i++) {
        weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
        o.progress = WEFT_PROGRESS_CALLER;
        o.heartbeat_ns = m.heartbeat_ns;
        o.connect_timeout_ns = m.connect_ns;
        o.close_timeout_ns = m.close_ns;
        o.recv_window = m.window;
        if (locked && (m.peace || CHANCE(90))) {
            o.key = key;
            o.key_len = sizeof key;
        }
        sim_net_open(&m.net, i, &o);
        if (weft_queue_new(m.net.nodes[i].rt, &m.queues[i]) || weft_token_new(m.net.nodes[i].rt, NULL, &m.tokens[i]))
            sim_bad(&m.net, "no queue, no token");
    }
    if (!m.peace && CHANCE(25))
        m.net.alloc_fails_ppm = 3000;
}

static void live_on(void)
{
    for (int i = 0, rounds = 15 + (int)BELOW(45); i < rounds; i++) {
        for (unsigned k = 1 + (unsigned)BELOW(3); k; k--) {
            int node = (int)BELOW((uint64_t)m.net.n);
            if (sim_node_runs(&m.net.nodes[node]))
                act_on(node);
        }
        if (!m.peace && CHANCE(12))
            happen();
        uint64_t dt = BELOW(CHANCE(80) ? 60 * WEFT_MICROSECOND : 2 * WEFT_MILLISECOND);
        if (!m.peace && CHANCE(5))
            dt = BELOW(2 * m.heartbeat_ns);
        sim_net_run(&m.net, sim_now(&m.net) + dt);
        program->look();
    }
}

/* Make the world whole again, and give everyone the time to notice what happened before. */
static void mend(void)
{
    wefti_sim_faults_t *f = wefti_sim_faults(m.net.w);
    wefti_sim_style_t style = f->style;
    memset(f, 0, sizeof *f);
    f->style = style;
    if (m.devices)
        fakedev_fail_copies(UINT64_MAX);
    m.net.alloc_fails_ppm = 0;
    for (int i = 0; i < m.net.n; i++) {
        for (int k = 0; k < m.net.n; k++)
            wefti_sim_heal(m.net.nodes[i].f, m.net.nodes[k].f);
        sim_net_resume(&m.net, i);
    }
    sim_net_run(&m.net, sim_now(&m.net) + (m.peace ? 50 * WEFT_MILLISECOND : 2 * m.heartbeat_ns + m.connect_ns + m.reconnect_ns));
    model_check_bounds(&m);
    /* whoever listens keeps an endpoint for its peer's return for 30 s */
    bool kept_for_return = !m.peace && CHANCE(95);
    if (!m.peace && !kept_for_return)
        sim_net_run(&m.net, sim_now(&m.net) + 31 * WEFT_SECOND);
    for (int i = 0; i < m.n_acts; i++) {
        const act_t *a = m.acts[i];
        if (!a->live || a->end < 0 || !sim_node_runs(&m.net.nodes[a->node]) || !a->waits_for_peer)
            continue;
        const end_t *e = &m.ends[a->end];
        if (kept_for_return && e->side == 1 && e->ep && weft_ep_get_state(e->ep) == WEFT_EP_RECONNECTING)
            continue;
        if (m.net.nodes[m.links[e->link].node[!e->side]].dead)
            sim_bad(&m.net,
                    "an operation of kind %d on end %d (state %d), posted at %.6f ms, still waits for a node that is dead",
                    a->kind, a->end, e->ep ? (int)weft_ep_get_state(e->ep) : 0, (double)a->posted_at * 1e-6);
    }
}

static bool all_ended(void *user)
{
    (void)user;
    for (int i = 0; i < m.n_ends; i++) {
        const end_t *e = &m.ends[i];
        if (sim_node_runs(&m.net.nodes[e->node]) && (e->ep ? !e->drained : e->live > 0))
            return false;
    }
    return true;
}

/* Close one end of each link, let the other receive what is left, then close that too. */
static void part(void)
{
    life_depth = 1; /* callbacks begin nothing new */
    for (int i = 0; i < m.n_links; i++)
        for (int k = m.n_ends - 1; k >= 0; k--) {
            end_t *e = &m.ends[k];
            if (e->link == i && e->ep && sim_node_runs(&m.net.nodes[e->node]) && (CHANCE(50) || e->side == 0)) {
                if (!e->drain)
                    life_close(e, false);
                break;
            }
        }
    for (int i = 0; i < m.n_ends; i++) /* those whose other end was closed, is dead, or never was */
        m.ends[i].drain = true;
    uint64_t limit = sim_now(&m.net) + m.close_ns + 2 * m.heartbeat_ns + m.reconnect_ns + m.connect_ns + 100 * WEFT_MILLISECOND;
    for (int again = 0; again < 4; again++) {
        sim_net_run_until(&m.net, limit, all_ended, NULL);
        if (again == 3)
            break;
        for (int i = 0; i < m.n_ends; i++) {
            end_t *e = &m.ends[i];
            if (e->ep && sim_node_runs(&m.net.nodes[e->node]) && (e->drained || again))
                life_close(e, false);
        }
        limit += m.close_ns + 100 * WEFT_MILLISECOND;
    }
    if (!all_ended(NULL))
        sim_bad(&m.net, "endpoints do not end");
    if (m.peace && program->parted)
        program->parted();
}

uint64_t life_run(uint64_t seed, const life_program_t *of)
{
    program = of;
    set_up(seed);
    if (program->set_up)
        program->set_up();
    live_on();
    mend();
    if (program->rest)
        program->rest();
    if (CHANCE(70))
        part();
    model_check_bounds(&m);
    for (int i = 0; i < m.n_links; i++)
        if (m.links[i].listener && sim_node_runs(&m.net.nodes[m.links[i].node[1]]) && CHANCE(50)) {
            weft_listener_close(m.links[i].listener, NULL);
            m.links[i].listener = NULL;
        }
    life_depth = 1; /* callbacks of a runtime that closes post nothing */
    if (program->end)
        program->end();
    for (int i = 0; i < m.net.n; i++) {
        weft_token_drop(m.tokens[i]);
        sim_net_close(&m.net, i);
    }
    bool devices = m.devices;
    uint64_t hash = model_finish(&m);
    if (devices) {
        fakedev_fail_copies(UINT64_MAX);
        fakedev_remove();
    }
    return hash;
}
