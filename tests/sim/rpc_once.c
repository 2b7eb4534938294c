/* tests/sim/rpc_once.c - calls between two servers and up to three clients: plain, idempotent and `once`, large ones,
 * streams, functions that answer now, later, ill or never; and everything that can happen to them.
 *
 * Every call has a number, and what its function did is written down where it runs. Checked: a plain call and one made with
 * `once` run at most once, wherever they were sent; an idempotent one at most as often as it was sent; what ended NOT_RUN
 * never ran and never will; what ended RAN ran, and what ended well gave the value of a run of its own. Arguments and
 * results are whole; the deadline travels; every call ends once, in bounded time; functions are told when nobody waits.
 * Servers are killed, stopped, cut off, closed and opened again, their functions taken away and put back; they answer again,
 * late and wrong, which changes nothing.
 *
 * About half of the seeds are at peace (delays only): there nothing fails that was not meant to. ctest: long shards */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "serving.h"

#define PLENTY (60 * WEFT_SECOND)

static bool acting;
static weft_listener_t *listeners[SERVERS];
static client_t clients[CLIENTS];
static int n_clients, n_live;

static uint64_t now(void)
{
    return sim_now(&w.net);
}

/* --- the clients --------------------------------------------------------------------------------------------------- */

static weft_on_failure_t ep_failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why, (void)user;
    return WEFT_RECONNECT;
}

static void ep_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    client_t *c = user;
    (void)ep, (void)why;
    if (c)
        c->ep_lost = true;
}

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)ep, (void)user;
}

static void open_client(client_t *c)
{
    weft_runtime_t *rt = w.net.nodes[c->node].rt;
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    weft_status_t st;
    o.service = CHANCE(80) ? "calc" : NULL;
    c->by_uri = CHANCE(50);
    c->ep_lost = false;
    if (c->by_uri) {
        char uri[300];
        c->both = CHANCE(70);
        snprintf(uri, sizeof uri, "%s%s%s", weft_listener_uri(listeners[0]), c->both ? "," : "",
                 c->both ? weft_listener_uri(listeners[1]) : "");
        o.reconnect_ns = 5 * WEFT_MILLISECOND;
        st = weft_client_open(rt, uri, &o, &c->client);
    } else {
        weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
        eo.hooks = (weft_ep_hooks_t){CHANCE(80) ? ep_failed : NULL, ep_closed, c};
        eo.reconnect_first_ns = 5 * WEFT_MILLISECOND;
        st = weft_ep_open(rt, weft_listener_uri(listeners[BELOW(SERVERS)]), &eo, NULL, &c->ep);
        if (!st && (st = weft_client_on(c->ep, &o, &c->client))) {
            weft_ep_abort(c->ep, NULL);
            c->ep = NULL;
        }
    }
    for (int k = 0; k < KINDS && !st; k++) {
        c->methods[k] = NULL;
        if (weft_client_method(c->client, serving_signatures[k], &c->methods[k]) && !w.poor)
            sim_bad(&w.net, "no method: %s", weft_last_error());
    }
    if (st) {
        c->client = NULL;
        if (!w.poor)
            sim_bad(&w.net, "no client: %s", weft_last_error());
    }
}

static void client_closed(weft_op_t *op, void *user)
{
    client_t *c = user;
    (void)op;
    if (c->live)
        sim_bad(&w.net, "client %d is closed, and %d of its calls are not complete", c->node, c->live);
    c->client = NULL;
    c->closing = false;
    if (c->ep)
        weft_ep_abort(c->ep, NULL);
    c->ep = NULL;
}

static void close_client(client_t *c)
{
    c->close.fn = client_closed;
    c->close.user = c;
    c->closing = !weft_client_close(c->client, &c->close);
    if (!c->closing && !w.poor)
        sim_bad(&w.net, "a client cannot be closed: %s", weft_last_error());
}

static void call_bad(const call_t *c, const char *what)
{
    sim_bad(&w.net, "call %d of %s (%s%s, function %d): %s: status %s, code %s, ran %d, run %u times, tried %u times: \"%s\"",
            c->index, serving_names[c->kind], c->once ? "once" : "", c->fresh ? "fresh" : "", (int)c->how, what,
            weft_status_name(c->op.status), weft_code_name(c->reply.code), (int)c->reply.ran, c->runs, c->reply.tries,
            c->reply.message ? c->reply.message : "NULL");
}

static void check_result(const call_t *c)
{
    const weft_reply_t *r = &c->reply;
    if (c->kind == TELL || c->kind == COUNT) {
        if (r->n)
            call_bad(c, "it has results");
        return;
    }
    if (r->n != 1)
        call_bad(c, "it has no result");
    unsigned run = 0;
    if (c->kind == PLAIN || c->kind == AGAIN)
        run = (unsigned)(r->values[0].u64 - serving_value(c, 0));
    else if (c->kind == TOTAL)
        run = r->values[0].u64 == c->x;
    else
        for (unsigned i = 1; i <= c->runs && !run; i++) {
            bool same = r->values[0].view.n == c->result_len;
            const uint8_t *at = r->values[0].view.data;
            for (uint32_t b = 0; b < c->result_len && same; b++)
                same = at[b] == serving_byte(c, i, b);
            run = same ? i : 0;
        }
    if (!run || run > c->runs)
        call_bad(c, "its result is not its own");
}

static bool said_so(const call_t *c)
{
    switch (c->how) {
    case FAILS:
        return c->reply.code == WEFT_CODE_ABORTED && c->reply.category == WEFT_CATEGORY_USER + 7 && c->reply.value == c->index &&
               c->reply.ran == WEFT_RAN;
    case SILENT:
    case LETS_GO:
        return c->reply.code == WEFT_CODE_INTERNAL && c->reply.ran == WEFT_RAN;
    default:
        return false;
    }
}

static void check_status(const call_t *c)
{
    const weft_reply_t *r = &c->reply;
    bool ok = false;
    switch (c->op.status) {
    case WEFT_OK:
        ok = c->how == NOW || c->how == LATER || c->how == TWICE || c->kind >= TELL;
        break;
    case WEFT_ERR_TIMEOUT:
        ok = c->op.timeout_ns && r->code == WEFT_CODE_DEADLINE_EXCEEDED;
        ok = ok || (!w.peace && !c->op.timeout_ns && !c->c->by_uri); /* the connection */
        break;
    case WEFT_ERR_CANCELLED:
        ok = (c->cancelled || c->parted || !w.peace) && r->code == WEFT_CODE_CANCELLED;
        break;
    case WEFT_ERR_CALL:
        ok = said_so(c) || (w.forgets && c->once && r->code == WEFT_CODE_ABORTED && r->ran == WEFT_MAY_HAVE_RUN) ||
             (!w.peace &&
              (r->code == WEFT_CODE_UNAVAILABLE || r->code == WEFT_CODE_ABORTED || r->code == WEFT_CODE_UNIMPLEMENTED ||
               (w.poor && (r->code == WEFT_CODE_RESOURCE_EXHAUSTED || r->code == WEFT_CODE_INTERNAL))));
        break;
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_PEER:
    case WEFT_ERR_REFUSED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_SYSTEM:
        ok = (!w.peace || c->c->closing || !c->c->client) && r->code == WEFT_CODE_UNAVAILABLE;
        break;
    case WEFT_ERR_NOMEM:
        ok = !w.peace; /* nor may there be any for a lane */
        break;
    case WEFT_ERR_PROTOCOL:
    case WEFT_ERR_LIMIT:
        ok = w.poor;
        break;
    case WEFT_ERR_REJECTED: /* of one that nobody waits for: the server had none of it */
        ok = c->kind == TELL && !w.peace;
        break;
    default:
        break;
    }
    if (!ok)
        call_bad(c, "it must not end so");
    if (!c->op.status != !r->code || !r->message)
        call_bad(c, "status and code do not agree");
}

static void part(call_t *c)
{
    if (c->live || c->sop_live || !c->stream)
        return;
    weft_stream_release(c->stream);
    c->stream = NULL;
}

static void call_done(weft_op_t *op, void *user)
{
    call_t *c = user;
    if (!c->live)
        call_bad(c, "it completes twice");
    c->live = false;
    c->c->live--;
    n_live--;
    wefti_sim_note(w.net.w, c->c->node, "call is done, status", (uint64_t)c->index, (uint64_t)-op->status);
    if (!w.net.nodes[c->c->node].dead) {
        c->status = op->status;
        c->ran = c->reply.ran;
        c->tries = c->reply.tries;
        check_status(c);
        if (!c->ran && c->runs)
            call_bad(c, "it ran, and its caller is told that it did not");
        if (c->ran == WEFT_RAN && !c->runs)
            call_bad(c, "it did not run, and its caller is told that it did");
        if (!op->status && c->kind != TELL && c->ran != WEFT_RAN)
            call_bad(c, "it is well, and did not run");
        if (!op->status && c->once && c->runs != 1)
            call_bad(c, "it is well, and did not run once");
        if (!op->status)
            check_result(c);
        uint64_t took = now() - c->posted - (sim_net_stopped(&w.net, c->c->node) - c->stopped_before);
        if (c->bound && took > c->bound)
            call_bad(c, "it took too long");
        c->over = true;
    }
    weft_reply_release(&c->reply);
    /* what was borrowed is ours again */
    if (c->data)
        memset(c->data, 0xdd, c->len);
    part(c);
}

static void stream_done(weft_op_t *op, void *user);

static void stream_go_on(call_t *c)
{
    weft_status_t st;
    if (c->kind == COUNT) {
        st = weft_stream_recv(c->stream, &c->item, &c->sop);
    } else if (c->at < c->n) {
        weft_value_t v = weft_u64(c->at * 3 + 1);
        st = weft_stream_send(c->stream, &v, &c->sop);
        c->at++;
    } else {
        st = weft_stream_end(c->stream, &c->sop);
        c->at++;
    }
    c->sop_live = !st;
    if (st) {
        c->stream_over = true;
        c->stream_status = st;
    }
}

/* What was not sent or received for lack of memory is asked for once more, now that there is some. A stream that cannot go on is
 * given up: its function may wait for it. */
static void stream_again(call_t *c)
{
    if (!c->live || !c->stream_status || !c->stream || c->parted || w.net.nodes[c->c->node].dead)
        return;
    c->stream_status = WEFT_OK;
    c->stream_over = false;
    c->at -= c->kind == TOTAL;
    stream_go_on(c);
    if (!c->stream_over)
        return;
    c->cancelled = true;
    weft_op_cancel(&c->op);
}

static void stream_done(weft_op_t *op, void *user)
{
    call_t *c = user;
    c->sop_live = false;
    bool more = !op->status;
    if (c->kind == COUNT && !op->status && op->len) {
        if (c->item.value.u64 != ((uint64_t)c->index ^ c->at))
            call_bad(c, "a value of its stream is not the next");
        c->at++;
        weft_item_release(&c->item);
    } else if (c->kind == COUNT) {
        more = false;
        if (!op->status && !w.net.nodes[c->c->node].dead && c->at != c->n)
            call_bad(c, "its stream ends early");
    } else {
        more = more && c->at <= c->n;
    }
    if (more && c->stream && !c->parted) {
        stream_go_on(c);
    } else {
        c->stream_over = true;
        c->stream_status = op->status;
    }
    part(c);
}

static void post(client_t *cl)
{
    if (w.n_calls == CALLS)
        return;
    call_t *c = calloc(1, sizeof *c);
    c->c = cl;
    c->index = w.n_calls;
    c->kind = (int)BELOW(KINDS);
    if (c->kind >= BIG && CHANCE(40))
        c->kind = (int)BELOW(2);
    weft_method_t *m = cl->methods[c->kind];
    c->how = CHANCE(40) ? NOW : (how_t)BELOW(HOWS);
    c->delay =
        c->how == LATER || c->how == LETS_GO || CHANCE(25) ? 1 + BELOW(CHANCE(80) ? 5 * WEFT_MILLISECOND : w.heartbeat * 2) : 0;
    c->x = wefti_rng_next(&w.net.rng);
    c->opts = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
    c->opts.once = c->once = c->kind < TELL && CHANCE(40);
    c->opts.fresh = c->fresh = CHANCE(10);
    c->args[0] = weft_u64((uint64_t)c->index);
    c->args[1] = weft_u64(c->x);
    if (c->kind == BIG || c->kind == BIG_AGAIN) {
        c->len = (uint32_t)BELOW(CHANCE(50) ? 3000 : BIG_MAX);
        c->result_len = (uint32_t)BELOW(CHANCE(50) ? 3000 : BIG_MAX);
        c->data = malloc(c->len + 1);
        for (uint32_t i = 0; i < c->len; i++)
            c->data[i] = serving_byte(c, 0, i);
        c->args[1] = weft_vector(WEFT_T_U8, c->data, c->len);
    } else if (c->kind == COUNT || c->kind == TOTAL) {
        c->how = CHANCE(80) ? NOW : CHANCE(50) ? FAILS : NEVER;
        c->n = BELOW(CHANCE(80) ? 10 : 150);
        c->args[1] = weft_u64(c->n);
        c->x = 0;
        for (uint64_t i = 0; i < c->n; i++)
            c->x += i * 3 + 1;
    } else if (c->kind == TELL) {
        c->how = CHANCE(70) ? NOW : LATER;
    }
    if (CHANCE(40))
        c->op.timeout_ns = 1 + BELOW(CHANCE(70) ? 20 * WEFT_MILLISECOND : 3 * w.heartbeat);
    /* bytes that are on their way end it: those of a peer that is lost when that is noticed */
    if (c->op.timeout_ns)
        c->bound = c->op.timeout_ns + 5 * WEFT_MILLISECOND + (c->kind >= BIG && c->kind <= BIG_AGAIN ? 2 * w.heartbeat : 0);
    c->op.fn = call_done;
    c->sop.fn = stream_done;
    c->op.user = c->sop.user = c;
    c->posted = now();
    c->stopped_before = sim_net_stopped(&w.net, cl->node);
    w.calls[w.n_calls++] = c; /* it may run before we know that it was posted */
    const weft_call_opts_t *opts = c->once || c->fresh || CHANCE(50) ? &c->opts : NULL;
    weft_status_t st = WEFT_ERR_NOMEM;
    bool streams = c->kind == COUNT || c->kind == TOTAL;
    wefti_sim_note(w.net.w, cl->node, "posts call, kind", (uint64_t)c->index, (uint64_t)(c->kind + 100 * c->once));
    if (m)
        st = streams ? weft_call_stream(m, c->args, c->kind == COUNT ? 2 : 1, opts, &c->reply, &c->op, &c->stream)
                     : weft_call_with(m, c->args, 2, opts, &c->reply, &c->op);
    c->live = !st;
    if (!st) {
        n_live++;
        cl->live++;
        if (streams && CHANCE(95))
            stream_go_on(c);
        else
            c->parted = streams;
        return;
    }
    if (c->runs || (w.peace && !w.poor) ||
        !(st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == WEFT_ERR_UNREACHABLE || st == WEFT_ERR_REFUSED ||
          st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_SYSTEM || st == WEFT_ERR_NOMEM ||
          (w.poor && (st == WEFT_ERR_LIMIT || st == WEFT_ERR_PROTOCOL))))
        sim_bad(&w.net, "call %d of %s cannot be posted: %s (%s)", c->index, serving_names[c->kind], weft_status_name(st),
                weft_last_error());
    c->over = true;
}

static void give_up_some(client_t *cl)
{
    for (int tries = 0; tries < 10 && w.n_calls; tries++) {
        call_t *c = w.calls[BELOW((uint64_t)w.n_calls)];
        if (c->c != cl || !(c->live || c->sop_live))
            continue;
        if (c->stream && CHANCE(40) && c->live) {
            weft_stream_t *s = c->stream;
            c->parted = true;
            c->stream = NULL;
            weft_stream_release(s);
        } else if (c->live) {
            c->cancelled = true;
            weft_op_cancel(&c->op);
        }
        return;
    }
}

/* --- what happens -------------------------------------------------------------------------------------------------- */

static void act(client_t *c)
{
    if (!c->client) {
        open_client(c);
    } else if (!c->closing && ((c->ep_lost && CHANCE(50)) || (!w.peace && BELOW(300) == 0))) {
        close_client(c);
    } else if (!c->closing) {
        if (CHANCE(12))
            give_up_some(c);
        else
            for (uint64_t n = 1 + (CHANCE(10) ? BELOW(30) : 0); n && !c->closing; n--)
                post(c);
    }
}

static void mend(void)
{
    for (int i = 0; i < w.net.n; i++)
        sim_net_resume(&w.net, i);
    for (int i = 0; i < w.net.n; i++)
        for (int k = 0; k < i; k++)
            wefti_sim_heal(w.net.nodes[i].f, w.net.nodes[k].f);
}

static void calamity(void)
{
    int node = (int)BELOW((uint64_t)w.net.n), server = (int)BELOW(SERVERS), client = SERVERS + (int)BELOW((uint64_t)n_clients);
    bool serves = sim_node_runs(&w.net.nodes[server]) && w.now_open[server] >= 0;
    wefti_fabric_t *a = w.net.nodes[server].f, *b = w.net.nodes[client].f;
    switch (BELOW(10)) {
    case 0:
        if (CHANCE(20) && !(node < SERVERS && w.net.nodes[!node].dead)) {
            sim_net_kill(&w.net, node);
            if (node < SERVERS)
                w.now_open[node] = -1;
        }
        break;
    case 1:
        sim_net_pause(&w.net, node);
        break;
    case 2:
        wefti_sim_partition(a, b);
        break;
    case 3:
        wefti_sim_cut(CHANCE(50) ? a : b, CHANCE(50) ? a : b, true);
        break;
    case 4:
    case 5:
        wefti_sim_break_lanes(a, b, WEFT_ERR_PEER);
        break;
    case 6:
        if (serves && CHANCE(40)) {
            serving_close(server);
            serving_open(server);
        }
        break;
    case 7:
        if (serves)
            serving_replace(server);
        break;
    default:
        mend();
    }
}

static void each_round(void *user)
{
    (void)user;
    if (!acting)
        return;
    for (int i = 0; i < n_clients; i++)
        if (sim_node_runs(&w.net.nodes[clients[i].node]) && CHANCE(8)) {
            act(&clients[i]);
            weft_runtime_progress(w.net.nodes[clients[i].node].rt); /* before time passes: what is complete is to be told */
        }
    if (CHANCE(5))
        serving_say_again();
    if (!w.peace && CHANCE(1) && CHANCE(40))
        calamity();
}

/* It has no end of its own: its function does not answer, or waits for a stream that nobody reads or writes; or it waits for a
 * server, and the only one is dead. */
static bool may_last(const call_t *c)
{
    return c->how == NEVER || c->parted || (c->c->by_uri && !c->c->both && w.net.nodes[0].dead);
}

static void say_what_lasts(void)
{
    for (int i = 0; i < w.n_calls; i++)
        if (w.calls[i]->live && !may_last(w.calls[i]) && !w.net.nodes[w.calls[i]->c->node].dead)
            call_bad(w.calls[i], "it does not end");
}

static bool all_done(void *user)
{
    bool all = user;
    for (int i = 0; i < w.n_calls; i++) {
        const call_t *c = w.calls[i];
        if (c->live && !w.net.nodes[c->c->node].dead && (all || !may_last(c)))
            return false;
    }
    return true;
}

static bool clients_closed(void *user)
{
    (void)user;
    for (int i = 0; i < n_clients; i++)
        if (clients[i].client && !w.net.nodes[clients[i].node].dead)
            return false;
    return true;
}

static bool services_closed(void *user)
{
    (void)user;
    for (int i = 0; i < w.n_lives; i++)
        if (w.lives[i].service && !w.net.nodes[w.lives[i].node].dead)
            return false;
    return true;
}

static void set_up(void)
{
    wefti_sim_link_t slow = {1000, (1 + BELOW(500)) * WEFT_MICROSECOND, (uint32_t)BELOW(20000), BELOW(10 * WEFT_MILLISECOND)};
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {CHANCE(70) ? ep_failed : NULL, NULL, NULL};
    w.heartbeat = (100 + BELOW(200)) * WEFT_MILLISECOND;
    o.progress = WEFT_PROGRESS_CALLER;
    o.heartbeat_ns = w.heartbeat;
    o.connect_timeout_ns = 100 * WEFT_MILLISECOND;
    if (CHANCE(30)) { /* so little that requests and replies wait */
        o.am_window = 65536 + BELOW(20000);
        o.am_messages = 16 + (uint32_t)BELOW(20);
    }
    for (int i = 0; i < w.net.n; i++) {
        sim_net_open(&w.net, i, &o);
        for (int k = 0; k < w.net.n; k++)
            if (k != i)
                wefti_sim_link(w.net.nodes[i].f, w.net.nodes[k].f, &slow);
    }
    lo.accept = on_accept;
    lo.hooks = &hooks;
    for (int i = 0; i < SERVERS; i++) {
        char uri[32];
        snprintf(uri, sizeof uri, "tcp://h%d:0", i);
        if (weft_listen(w.net.nodes[i].rt, uri, &lo, &listeners[i]))
            sim_bad(&w.net, "no server: %s", weft_last_error());
        serving_open(i);
    }
    for (int i = 0; i < n_clients; i++)
        clients[i] = (client_t){.node = SERVERS + i};
}

static void run_faults(void)
{
    wefti_sim_faults_t *f = wefti_sim_faults(w.net.w);
    f->no_space = CHANCE(50) ? 0 : 50000; /* more, and heartbeats do not come through */
    f->pull_slow = CHANCE(50) ? (uint32_t)BELOW(300000) : 0;
    f->pull_slow_ns = BELOW(10 * WEFT_MILLISECOND);
    if (w.peace)
        return;
    f->lane_breaks = CHANCE(30) ? (uint32_t)BELOW(3000) : 0;
    f->wire_breaks = CHANCE(30) ? (uint32_t)BELOW(10000) : 0;
    f->refuse = CHANCE(30) ? (uint32_t)BELOW(200000) : 0;
    f->lane_connect_fails = CHANCE(20) ? (uint32_t)BELOW(100000) : 0;
    w.poor = CHANCE(25);
    w.net.alloc_fails_ppm = w.poor ? 1 + (uint32_t)BELOW(3000) : 0;
}

static void end_faults(void)
{
    wefti_sim_style_t style = wefti_sim_faults(w.net.w)->style;
    acting = false;
    w.net.alloc_fails_ppm = 0;
    memset(wefti_sim_faults(w.net.w), 0, sizeof(wefti_sim_faults_t));
    wefti_sim_faults(w.net.w)->style = style;
    mend();
    for (int i = 0; i < SERVERS; i++)
        if (!w.net.nodes[i].dead && w.now_open[i] < 0)
            serving_open(i);
    for (int i = 0; i < w.n_calls; i++)
        stream_again(w.calls[i]);
}

static uint64_t scenario(uint64_t seed)
{
    n_live = 0;
    memset(&w, 0, sizeof w);
    sim_net_init(&w.net, seed, SERVERS + 1 + (int)(seed % CLIENTS));
    n_clients = w.net.n - SERVERS;
    w.peace = CHANCE(50);
    set_up();
    run_faults();
    w.net.each_round = each_round;
    acting = true;
    sim_net_run(&w.net, now() + 30 * WEFT_MILLISECOND + BELOW(5 * w.heartbeat));

    /* Everyone can reach everyone again, and nobody does anything: all of it ends, but what waits for an answer that never
     * comes. */
    end_faults();
    if (!sim_net_run_until(&w.net, now() + PLENTY, all_done, NULL))
        say_what_lasts();
    for (int i = 0; i < w.n_calls; i++)
        if (w.calls[i]->live) {
            w.calls[i]->cancelled = true;
            weft_op_cancel(&w.calls[i]->op);
        }
    if (!sim_net_run_until(&w.net, now() + 2 * w.heartbeat + WEFT_SECOND, all_done, &w.net))
        sim_bad(&w.net, "%d calls were cancelled and do not end", n_live);
    sim_net_run(&w.net, now() + 2 * w.heartbeat + WEFT_SECOND);
    serving_check_told();
    for (int i = 0; i < n_clients; i++) {
        client_t *c = &clients[i];
        if (c->client && !c->closing && !w.net.nodes[c->node].dead)
            close_client(c);
    }
    if (!sim_net_run_until(&w.net, now() + 2 * w.heartbeat + WEFT_SECOND, clients_closed, NULL))
        sim_bad(&w.net, "a client does not close");
    sim_net_run(&w.net, now() + 4 * w.heartbeat + WEFT_SECOND);
    serving_check();
    for (held_t *h = w.helds; h; h = h->next)
        if (h->request && !h->waits && !w.net.nodes[w.lives[h->life].node].dead)
            serving_let_go(h);
    for (int i = 0; i < SERVERS; i++)
        if (w.now_open[i] >= 0 && !w.net.nodes[i].dead && CHANCE(80))
            serving_close(i);
    sim_net_run_until(&w.net, now() + 4 * w.heartbeat + WEFT_SECOND, services_closed, NULL);
    for (int i = 0; i < w.n_lives; i++)
        if (w.lives[i].closing && w.lives[i].service && !w.net.nodes[w.lives[i].node].dead)
            sim_bad(&w.net, "service %d does not close", i);
    for (int i = 0; i < w.n_calls; i++)
        if (w.calls[i]->stream) {
            weft_stream_t *s = w.calls[i]->stream;
            w.calls[i]->stream = NULL;
            weft_stream_release(s);
        }
    for (int i = 0; i < w.net.n; i++)
        sim_net_close(&w.net, i);
    for (int i = 0; i < w.n_calls; i++) {
        if (w.calls[i]->live)
            sim_bad(&w.net, "call %d is not complete, though its runtime is closed", i);
        free(w.calls[i]->data);
        free(w.calls[i]);
    }
    for (held_t *h; (h = w.helds);) {
        w.helds = h->next;
        serving_let_go(h); /* a request may be held longer than there is a runtime */
        free(h);
    }
    return sim_net_free(&w.net);
}

int main(int argc, char **argv)
{
    static const uint64_t failed[] = {
        20051809, /* a reply waited for the window, and there was no memory when its turn came: its caller heard nothing */
        20410514, /* there was no memory to say that a call was cancelled: its function waited for nobody */
        40005287, /* there was no memory to dial a client's address: its calls waited for ever */
    };
    sim_seeds_once_failed(failed, sizeof failed / sizeof *failed);
    return sim_seeds_main(argc, argv, 10000, scenario);
}
