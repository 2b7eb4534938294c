/* tests/sim/shards_life.c - a server of several shards, and what comes and goes on it.
 *
 * Two to four shards of one server run step by step, in the order that the seed decides; some get no steps for a while. Peers, of
 * which some have shards too, connect, send messages and active messages that are numbered, and call functions. Listeners and
 * services open, drain and close, functions and handlers come and go, connections break and come back, peers die, memory runs
 * out.
 *
 *   - an operation completes once; a call runs once at most, and once if it was answered;
 *   - what one endpoint sends arrives in its order; in a world at peace, all of it;
 *   - an endpoint has one shard for its life, also after its peer came back, and only that shard has its callbacks;
 *   - what was handed over with a function is handed back once, and not at all if the function was not added;
 *   - when all peers are gone, no shard has an endpoint, a connection, a wire or a lane.
 *
 * ctest: long seeds=1500 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/shards.h"
#include "seeds.h"
#include "world.h"

enum { SERVER, PEERS = 3, LINES = 24, THEIRS = 256, USES = 64, LISTENERS = 3, HANDLER = 9 };
#define ADD "add(id: u64, x: u64) -> u64"
#define LATER "later(id: u64, x: u64) -> u64"
#define ONE "one(id: u64, x: u64) -> u64"
static const char *const signatures[] = {ADD, LATER, ONE}, *const names[] = {"add", "later", "one"};
enum { FUNCTIONS = 3 };
#define PLENTY (20 * WEFT_SECOND)

/* One operation; kept until the runtimes are closed. */
typedef struct act {
    weft_op_t op;
    struct act *next;
    void (*over)(struct act *a);
    bool posted, lasts; /* lasts: it may wait for ever, until its object closes */
    unsigned done, runs;
    int index, what; /* of whatever it belongs to */
    int node;
    uint64_t number;
    char bytes[16];
    weft_reply_t reply;
    weft_value_t args[2];
    weft_request_t *request;
} act_t;

/* An endpoint of a peer. */
typedef struct line {
    weft_ep_t *ep;
    weft_client_t *client;
    weft_method_t *methods[FUNCTIONS];
    int node;
    bool open;
    uint32_t ams, messages; /* sent; numbers begin with 1 */
} line_t;

/* An endpoint of the server. */
typedef struct theirs {
    weft_ep_t *ep;
    weft_ep_id_t id;
    uint32_t shard, line; /* line UINT32_MAX: it has sent nothing yet */
    uint32_t am, message; /* the last that came */
    bool accepted, lost;  /* one that waits to be accepted can speak already; it failed, and was kept for its peer */
    unsigned closed;
} theirs_t;

/* What is handed over with a function. */
typedef struct use {
    int function;
    bool added;
    unsigned released;
} use_t;

static sim_net_t net;
static act_t *acts;
static line_t lines[LINES];
static theirs_t theirs[THEIRS];
static use_t uses[USES];
static weft_listener_t *listeners[LISTENERS];
static weft_service_t *service;
static act_t *calls[4096];
static int n_lines, n_theirs, n_uses, now_used[FUNCTIONS];
static unsigned n_calls;
static unsigned long total_moved, total_back; /* of all seeds: that it happens at all */
static bool peace, poor, acting, handled, server_comes_back;
static uint64_t heartbeat, next_act;

#define BELOW(n) sim_below(&net, n)
#define CHANCE(percent) sim_odds(&net, percent)

static weft_runtime_t *server(void)
{
    return net.nodes[SERVER].rt;
}

/* --- operations ------------------------------------------------------------------------------------------------------------- */

static void on_done(weft_op_t *op, void *user)
{
    act_t *a = user;
    (void)op;
    if (a->done++)
        sim_bad(&net, "an operation of kind %d completes twice", a->what);
    if (a->over)
        a->over(a);
}

static act_t *act_new(int what, int index, void (*over)(act_t *a))
{
    act_t *a = calloc(1, sizeof *a);
    a->op.fn = on_done;
    a->op.user = a;
    a->what = what;
    a->index = index;
    a->over = over;
    a->next = acts;
    acts = a;
    return a;
}

/* What may be said to a program that does nothing wrong: its object is closed or lost, or there is no memory. */
static bool posted(act_t *a, weft_status_t st)
{
    if (st == WEFT_ERR_INVALID || st == WEFT_ERR_UNSUPPORTED || st == WEFT_ERR_PROTOCOL || (st == WEFT_ERR_NOMEM && peace))
        sim_bad(&net, "an operation of kind %d is refused: %s (%s)", a->what, weft_status_name(st), weft_last_error());
    a->posted = !st;
    return !st;
}

enum { AM, MESSAGE, RECEIVE, CALL, CONNECT, CLOSE, ACCEPT, HANDLE, REMOVE, DRAIN, CLOSE_SERVICE, CLOSE_LISTENER, WAIT };

/* --- the server's endpoints ------------------------------------------------------------------------------------------------- */

static theirs_t *their(weft_ep_t *ep)
{
    for (int i = n_theirs; i-- > 0;)
        if (theirs[i].ep == ep && theirs[i].id == weft_ep_id(ep) && !theirs[i].closed)
            return &theirs[i];
    return NULL;
}

static theirs_t *their_new(weft_ep_t *ep)
{
    uint32_t shard = (uint32_t)(weft_ep_id(ep) >> 24) & 0xff; /* as ids are made */
    if (shard >= wefti_n_shards(server()))
        sim_bad(&net, "an endpoint is of shard %u", shard);
    if (n_theirs == THEIRS)
        return NULL;
    theirs[n_theirs] = (theirs_t){.ep = ep, .id = weft_ep_id(ep), .shard = shard, .line = UINT32_MAX};
    return &theirs[n_theirs++];
}

/* This is a callback about it: on its own shard, whatever happened to the endpoint. */
static theirs_t *here(weft_ep_t *ep, const char *what)
{
    uint32_t shard = weft_runtime_shard(server());
    theirs_t *t = their(ep);
    t = t ? t : their_new(ep);
    if (shard == UINT32_MAX)
        sim_bad(&net, "%s of an endpoint of the server runs on no shard of it", what);
    if (t && t->shard != shard)
        sim_bad(&net, "%s of an endpoint of shard %u runs on shard %u", what, t->shard, shard);
    return t;
}

/* The number of a line is in all it sends. */
static void belongs(theirs_t *t, uint32_t line)
{
    if (line >= (uint32_t)n_lines || (t->line != UINT32_MAX && t->line != line))
        sim_bad(&net, "line %u speaks over the endpoint of line %u", line, t->line);
    t->line = line;
    total_back += t->lost && t->shard;
    t->lost = false;
}

static void in_order(theirs_t *t, uint32_t *last, uint32_t number, const char *what)
{
    if (number <= *last || (peace && number != *last + 1))
        sim_bad(&net, "%s %u of line %u comes after %u", what, number, t->line, *last);
    *last = number;
}

static void on_am(weft_am_t *am, void *user)
{
    uint32_t words[2];
    theirs_t *t = here(am->ep, "an active message");
    if (user != theirs || am->header_len != sizeof words)
        sim_bad(&net, "the handler gets what is another's");
    if (!t)
        return;
    memcpy(words, am->header, sizeof words);
    belongs(t, words[0]);
    in_order(t, &t->am, words[1], "active message");
}

static void receive(theirs_t *t);

static void received(act_t *a)
{
    uint32_t words[2];
    theirs_t *t = &theirs[a->index];
    if (a->op.status)
        return;
    if (weft_runtime_shard(server()) != t->shard)
        sim_bad(&net, "a receive of an endpoint of shard %u completes on shard %u", t->shard, weft_runtime_shard(server()));
    memcpy(words, a->bytes, sizeof words);
    belongs(t, words[0]);
    in_order(t, &t->message, words[1], "message");
    if (!t->closed) /* what came before the end may complete after it was told */
        receive(t);
}

static void receive(theirs_t *t)
{
    act_t *a = act_new(RECEIVE, (int)(t - theirs), received);
    a->lasts = true;
    posted(a, weft_msg_recv(t->ep, a->bytes, 8, 1, WEFT_TAG_FULL, &a->op));
}

static void took(weft_ep_t *ep)
{
    theirs_t *t = their(ep);
    t = t ? t : their_new(ep);
    if (!t) {
        (void)weft_ep_abort(ep, NULL);
        return;
    }
    if (t->accepted)
        sim_bad(&net, "an endpoint of shard %u is accepted twice", t->shard);
    t->accepted = true;
    total_moved += t->shard > 0;
    receive(t);
}

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)user;
    (void)l;
    took(ep);
    here(ep, "the accept callback");
}

static void accept_next(int l);
static void accepted(act_t *a)
{
    if (a->op.status)
        return;
    took(weft_op_ep(&a->op));
    accept_next(a->index);
}

static void accept_next(int l)
{
    act_t *a = act_new(ACCEPT, l, accepted);
    a->lasts = true;
    if (listeners[l])
        posted(a, weft_listener_accept(listeners[l], &a->op));
}

static weft_on_failure_t server_lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    theirs_t *t = here(ep, "the failed hook");
    if (t)
        t->lost = true;
    return server_comes_back ? WEFT_RECONNECT : WEFT_GIVE_UP;
}

static void server_closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    theirs_t *t = here(ep, "the closed hook");
    if (!t)
        return;
    t->closed++;
    if (weft_ep_get_state(ep) == WEFT_EP_PEER_CLOSED || weft_ep_get_state(ep) == WEFT_EP_FAILED) {
        act_t *a = act_new(CLOSE, -1, NULL);
        posted(a, weft_ep_close(ep, &a->op));
    }
}

static void listen_again(int l)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {server_lost, server_closed, NULL};
    bool calls_back = CHANCE(50);
    lo.accept = calls_back ? on_accept : NULL;
    lo.hooks = &hooks;
    lo.reconnect_ns = 5 * WEFT_SECOND;
    if (weft_listen(server(), "tcp://h0:0", &lo, &listeners[l])) {
        listeners[l] = NULL;
        if (!poor)
            sim_bad(&net, "no listener: %s", weft_last_error());
        return;
    }
    for (int i = 0; i < 3 && !calls_back; i++)
        accept_next(l);
}

static void close_listener(int l)
{
    act_t *a = act_new(CLOSE_LISTENER, l, NULL);
    if (listeners[l] && posted(a, weft_listener_close(listeners[l], &a->op)))
        listeners[l] = NULL;
}

/* --- functions -------------------------------------------------------------------------------------------------------------- */

static act_t *called(weft_request_t *request, void *user, int function)
{
    uint64_t id = request->args[0].u64;
    const use_t *u = user;
    if (id >= n_calls || request->args[1].u64 != id * 3 + 1 || calls[id]->runs++ || calls[id]->index != function)
        sim_bad(&net, "call %llu comes to %s wrong, or twice", (unsigned long long)id, names[function]);
    if (u->function != function || !u->added || u->released)
        sim_bad(&net, "%s runs with what is not its own, or was handed back", names[function]);
    uint32_t on = weft_runtime_shard(server());
    if (function == 2 ? on != 0 : on != request->shard)
        sim_bad(&net, "%s of a request of shard %u runs on shard %u", names[function], request->shard, on);
    return calls[id];
}

static void answer(weft_request_t *request, const act_t *call)
{
    weft_value_t v = weft_u64(call->number * 7);
    weft_status_t st = weft_request_reply(request, &v, 1);
    if (st && st != WEFT_ERR_CANCELLED && !(st == WEFT_ERR_NOMEM && poor))
        sim_bad(&net, "call %llu cannot be answered: %s", (unsigned long long)call->number, weft_status_name(st));
}

static void at_once(weft_request_t *request, void *user)
{
    answer(request, called(request, user, 0));
}

static void in_line(weft_request_t *request, void *user)
{
    answer(request, called(request, user, 2));
}

static void now_answer(act_t *a) /* on the head, whichever shard has the request */
{
    if (!a->op.status)
        answer(a->request, calls[a->number]);
    weft_request_release(a->request);
}

static void later(weft_request_t *request, void *user)
{
    const act_t *call = called(request, user, 1);
    act_t *a = act_new(WAIT, 0, now_answer);
    a->number = call->number;
    a->request = weft_request_keep(request);
    if (!a->request) {
        if (!poor)
            sim_bad(&net, "a request cannot be kept: %s", weft_last_error());
        return;
    }
    if (!posted(a, weft_timer_start(server(), BELOW(3 * WEFT_MILLISECOND), &a->op)))
        weft_request_release(a->request);
}

static void released(void *buf, void *user)
{
    use_t *u = buf;
    (void)user;
    if (!u->added || u->released++)
        sim_bad(&net, "%s is handed back %s", names[u->function], u->added ? "twice" : "though it was not added");
}

static void add_function(int k)
{
    static const weft_function_fn functions[FUNCTIONS] = {at_once, later, in_line};
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    if (n_uses == USES || now_used[k] >= 0)
        return;
    use_t *u = &uses[n_uses++];
    *u = (use_t){.function = k, .added = true};
    fo.release = released;
    fo.serial = k == 2;
    weft_status_t st = weft_service_add(service, signatures[k], functions[k], u, &fo);
    u->added = !st;
    if (st && st != WEFT_ERR_CLOSED && !poor && !(st == WEFT_ERR_STATE))
        sim_bad(&net, "%s cannot be added: %s", names[k], weft_last_error());
    if (!st)
        now_used[k] = n_uses - 1;
}

static void removed(act_t *a)
{
    if (!a->op.status && uses[a->index].released != 1)
        sim_bad(&net, "%s was removed, and not handed back", names[uses[a->index].function]);
}

static void remove_function(int k)
{
    if (now_used[k] < 0)
        return;
    act_t *a = act_new(REMOVE, now_used[k], removed);
    if (posted(a, weft_service_remove(service, names[k], &a->op)))
        now_used[k] = -1;
}

static void open_service(void)
{
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_status_t st = weft_service_open(server(), "calc", &so, &service);
    if (st) {
        service = NULL;
        if (st != WEFT_ERR_NOMEM || !poor)
            sim_bad(&net, "no service: %s", weft_last_error());
        return;
    }
    for (int k = 0; k < FUNCTIONS; k++)
        add_function(k);
}

static void close_service(void)
{
    act_t *a = act_new(CLOSE_SERVICE, 0, NULL);
    if (CHANCE(50)) {
        act_t *drain = act_new(DRAIN, 0, NULL);
        posted(drain, weft_service_drain(service, &drain->op));
    }
    if (!posted(a, weft_service_close(service, &a->op)))
        return;
    service = NULL;
    memset(now_used, -1, sizeof now_used);
}

/* --- the peers -------------------------------------------------------------------------------------------------------------- */

static weft_on_failure_t line_lost(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep;
    (void)why;
    return ((line_t *)user - lines) % 4 ? WEFT_RECONNECT : WEFT_GIVE_UP;
}

static void open_line(void)
{
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    int l = (int)BELOW(LISTENERS), node = 1 + (int)BELOW((uint64_t)net.n - 1);
    if (n_lines == LINES || !listeners[l] || !sim_node_runs(&net.nodes[node]))
        return;
    line_t *line = &lines[n_lines];
    act_t *a = act_new(CONNECT, n_lines, NULL);
    a->node = node;
    *line = (line_t){.node = node};
    eo.hooks = (weft_ep_hooks_t){line_lost, NULL, line};
    eo.reconnect_ns = 5 * WEFT_SECOND;
    eo.reconnect_first_ns = 5 * WEFT_MILLISECOND;
    if (!posted(a, weft_ep_open(net.nodes[node].rt, weft_listener_uri(listeners[l]), &eo, &a->op, &line->ep)))
        return;
    line->open = true;
    n_lines++;
    co.service = "calc";
    if (weft_client_on(line->ep, &co, &line->client))
        line->client = NULL;
    for (int k = 0; k < FUNCTIONS && line->client; k++)
        if (weft_client_method(line->client, signatures[k], &line->methods[k]))
            line->methods[k] = NULL;
}

static void close_line(line_t *line)
{
    act_t *a = act_new(CLOSE, (int)(line - lines), NULL);
    a->node = line->node;
    bool abort = CHANCE(40);
    if (line->client)
        (void)weft_client_close(line->client, NULL);
    line->client = NULL;
    line->open = !posted(a, abort ? weft_ep_abort(line->ep, &a->op) : weft_ep_close(line->ep, &a->op));
}

static void say(line_t *line, int what)
{
    act_t *a = act_new(what, (int)(line - lines), NULL);
    a->node = line->node;
    uint32_t *count = what == AM ? &line->ams : &line->messages, words[2] = {(uint32_t)(line - lines), *count + 1};
    memcpy(a->bytes, words, sizeof words);
    if (posted(a, what == AM ? weft_am_send(line->ep, HANDLER, a->bytes, sizeof words, NULL, 0, &a->op)
                             : weft_msg_send(line->ep, a->bytes, sizeof words, 1, &a->op)))
        ++*count;
}

static void answered(act_t *a)
{
    if (!a->op.status && a->reply.code == WEFT_CODE_OK && (a->runs != 1 || a->reply.values[0].u64 != a->number * 7))
        sim_bad(&net, "call %llu is answered, and ran %u times", (unsigned long long)a->number, a->runs);
    weft_reply_release(&a->reply);
}

static void call(line_t *line)
{
    int k = (int)BELOW(FUNCTIONS);
    if (!line->client || !line->methods[k] || n_calls == sizeof calls / sizeof *calls)
        return;
    act_t *a = act_new(CALL, k, answered);
    a->node = line->node;
    a->number = n_calls;
    calls[n_calls++] = a;
    a->args[0] = weft_u64(a->number);
    a->args[1] = weft_u64(a->number * 3 + 1);
    a->op.timeout_ns = CHANCE(20) ? 1 + BELOW(5 * WEFT_MILLISECOND) : 0;
    posted(a, weft_call(line->methods[k], a->args, 2, &a->reply, &a->op));
}

/* --- what happens ----------------------------------------------------------------------------------------------------------- */

static void change_handler(void)
{
    act_t *a = act_new(HANDLE, 0, NULL);
    if (posted(a, weft_am_handle(server(), HANDLER, handled ? NULL : on_am, handled ? NULL : theirs, &a->op)))
        handled = !handled;
}

static void calamity(void)
{
    int peer = 1 + (int)BELOW((uint64_t)net.n - 1);
    wefti_fabric_t *a = net.nodes[SERVER].f, *b = net.nodes[peer].f;
    switch (BELOW(8)) {
    case 0:
        if (peer == net.n - 1 && net.n > 2)
            sim_net_kill(&net, peer);
        break;
    case 1:
        wefti_sim_partition(a, b);
        break;
    case 2:
        wefti_sim_heal(a, b);
        break;
    case 3:
        wefti_sim_break_lanes(a, b, WEFT_ERR_PEER);
        break;
    default:
        wefti_sim_break_wires(a, b);
    }
}

static void each_round(void *user)
{
    (void)user;
    if (!acting || sim_now(&net) < next_act)
        return;
    next_act = sim_now(&net) + BELOW(100 * WEFT_MICROSECOND);
    line_t *line = n_lines ? &lines[BELOW((uint64_t)n_lines)] : NULL;
    bool can = line && line->open && sim_node_runs(&net.nodes[line->node]);
    uint64_t what = BELOW(100);
    if (what < 15)
        open_line();
    else if (what < 80 && can)
        what < 40 ? say(line, AM) : what < 60 ? say(line, MESSAGE) : call(line);
    else if (what < 83 && can)
        close_line(line);
    else if (what < 86 && !peace)
        calamity();
    else if (what < 88)
        listeners[what % LISTENERS] ? close_listener((int)(what % LISTENERS)) : listen_again((int)(what % LISTENERS));
    else if (what < 93 && service)
        CHANCE(50) ? add_function((int)BELOW(FUNCTIONS)) : remove_function((int)BELOW(FUNCTIONS));
    else if (what < 95)
        service ? close_service() : open_service();
    else if (what < 96 && !peace)
        change_handler();
    else if (what < 97 && CHANCE(30))
        sim_net_stall(&net, SERVER, (uint32_t)BELOW(net.nodes[SERVER].n_shards), sim_now(&net) + BELOW(2 * heartbeat));
}

/* A program does something new now and then, whether anything happened or not. */
static uint64_t due(void *user)
{
    (void)user;
    return acting ? next_act : UINT64_MAX;
}

/* --- a run ------------------------------------------------------------------------------------------------------------------ */

static bool all_over(void *user)
{
    (void)user;
    for (const act_t *a = acts; a; a = a->next)
        if (a->posted && !a->done && !a->lasts && !net.nodes[a->node].dead)
            return false;
    return true;
}

static bool nobody_there(void *user)
{
    (void)user;
    for (uint32_t k = 0; k < net.nodes[SERVER].n_shards; k++) {
        wefti_sim_counts_t c;
        wefti_sim_count(net.nodes[SERVER].shards[k].f, &c);
        if (c.wires || c.lanes || atomic_load(&net.nodes[SERVER].shards[k].rt->connections))
            return false;
    }
    return true;
}

static void say_what_is_there(void)
{
    for (uint32_t k = 0; k < net.nodes[SERVER].n_shards; k++) {
        wefti_sim_counts_t c;
        wefti_sim_count(net.nodes[SERVER].shards[k].f, &c);
        unsigned connections = atomic_load(&net.nodes[SERVER].shards[k].rt->connections);
        if (c.wires || c.lanes || connections)
            sim_bad(&net, "all peers are gone, and shard %u has %u connections, %u wires and %u lanes", k, connections, c.wires,
                    c.lanes);
    }
}

static void set_up(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    heartbeat = (100 + BELOW(200)) * WEFT_MILLISECOND;
    o.progress = WEFT_PROGRESS_CALLER;
    o.heartbeat_ns = heartbeat;
    o.connect_timeout_ns = 200 * WEFT_MILLISECOND;
    for (int i = 0; i < net.n; i++)
        sim_net_open_shards(&net, i, &o, i == SERVER ? 2 + (uint32_t)BELOW(SIM_SHARDS_MAX - 1) : CHANCE(50) ? 1 : 2);
    server_comes_back = CHANCE(70);
    memset(now_used, -1, sizeof now_used);
    change_handler();
    for (int l = 0; l < LISTENERS; l++)
        listen_again(l);
    open_service();
}

static void run_faults(void)
{
    wefti_sim_faults_t *f = wefti_sim_faults(net.w);
    net.stalls_ppm = CHANCE(50) ? 5000 : 0;
    net.stall_ns = 1 + BELOW(5 * WEFT_MILLISECOND);
    f->no_space = CHANCE(50) ? 0 : 50000;
    if (peace)
        return;
    f->lane_breaks = CHANCE(30) ? (uint32_t)BELOW(3000) : 0;
    f->wire_breaks = CHANCE(30) ? (uint32_t)BELOW(20000) : 0;
    f->adopt_fails = CHANCE(30) ? (uint32_t)BELOW(200000) : 0;
    f->release_fails = CHANCE(30) ? (uint32_t)BELOW(500000) : 0;
    f->lane_connect_fails = CHANCE(20) ? (uint32_t)BELOW(100000) : 0;
    poor = CHANCE(40);
    net.alloc_fails_ppm = poor ? 1 + (uint32_t)BELOW(20000) : 0;
}

static void end_faults(void)
{
    wefti_sim_style_t style = wefti_sim_faults(net.w)->style;
    acting = false;
    net.alloc_fails_ppm = net.stalls_ppm = 0;
    memset(wefti_sim_faults(net.w), 0, sizeof(wefti_sim_faults_t));
    wefti_sim_faults(net.w)->style = style;
    for (int i = 1; i < net.n; i++)
        wefti_sim_heal(net.nodes[SERVER].f, net.nodes[i].f);
    if (!handled)
        change_handler();
}

/* In a world at peace all that was sent has come. */
static void check_all_came(void)
{
    for (int i = 0; i < n_theirs; i++) {
        const theirs_t *t = &theirs[i];
        if (t->closed || !t->accepted || t->line == UINT32_MAX || !lines[t->line].open)
            continue;
        if (weft_ep_find(server(), t->id) != t->ep)
            sim_bad(&net, "an endpoint of shard %u is not found by its id", t->shard);
        if (t->am != lines[t->line].ams || t->message != lines[t->line].messages)
            sim_bad(&net, "line %u sent %u and %u, and %u and %u came", t->line, lines[t->line].ams, lines[t->line].messages,
                    t->am, t->message);
    }
}

static void leave_quietly(void)
{
    weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
    if (!sim_net_run_until(&net, sim_now(&net) + PLENTY, all_over, NULL))
        for (const act_t *a = acts; a; a = a->next)
            if (a->posted && !a->done && !a->lasts && !net.nodes[a->node].dead)
                sim_bad(&net, "an operation of kind %d does not end", a->what);
    sim_net_run(&net, sim_now(&net) + 2 * heartbeat + 100 * WEFT_MILLISECOND); /* no shard stalls any more */
    if (peace)
        check_all_came();
    for (int i = 0; i < n_lines; i++)
        if (lines[i].open && !net.nodes[lines[i].node].dead)
            close_line(&lines[i]);
    for (int l = 0; l < LISTENERS; l++)
        close_listener(l);
    if (!sim_net_run_until(&net, sim_now(&net) + PLENTY, nobody_there, NULL))
        say_what_is_there();
    if (!sim_net_run_until(&net, sim_now(&net) + PLENTY, all_over, NULL))
        sim_bad(&net, "a close does not end");
    if (weft_runtime_get_stats(server(), &stats) || stats.connections || stats.shards != net.nodes[SERVER].n_shards)
        sim_bad(&net, "the server counts %llu connections and %llu endpoints", (unsigned long long)stats.connections,
                (unsigned long long)stats.endpoints);
}

static uint64_t scenario(uint64_t seed)
{
    n_lines = n_theirs = n_uses = 0;
    n_calls = 0;
    next_act = 0;
    service = NULL;
    handled = poor = acting = false;
    memset(listeners, 0, sizeof listeners);
    sim_net_init(&net, seed, 2 + (int)(seed % PEERS));
    peace = CHANCE(40);
    set_up();
    run_faults();
    net.each_round = each_round;
    net.due = due;
    acting = true;
    sim_net_run(&net, sim_now(&net) + 5 * WEFT_MILLISECOND + BELOW(CHANCE(20) ? 4 * heartbeat : 20 * WEFT_MILLISECOND));
    if (CHANCE(70)) {
        end_faults();
        leave_quietly();
    }
    acting = false; /* else it closes in the middle of everything */
    net.alloc_fails_ppm = 0;
    int first = (int)BELOW((uint64_t)net.n);
    for (int i = 0; i < net.n; i++)
        sim_net_close(&net, (first + i) % net.n);
    for (act_t *a; (a = acts);) {
        if (a->posted != (a->done == 1))
            sim_bad(&net, "an operation of kind %d was%s posted, and completed %u times", a->what, a->posted ? "" : " not",
                    a->done);
        acts = a->next;
        free(a);
    }
    for (int i = 0; i < n_uses; i++)
        if (uses[i].released != uses[i].added)
            sim_bad(&net, "%s was%s added, and handed back %u times", names[uses[i].function], uses[i].added ? "" : " not",
                    uses[i].released);
    return sim_net_free(&net);
}

int main(int argc, char **argv)
{
    int rc = sim_seeds_main(argc, argv, 6000, scenario);
    if (!rc && argc == 1 && (!total_moved || !total_back)) {
        fprintf(stderr, "no connection went to another shard, or none came back to one: this shows nothing\n");
        return 1;
    }
    if (sim_tell)
        printf("%lu connections on further shards, %lu came back there\n", total_moved, total_back);
    return rc;
}
