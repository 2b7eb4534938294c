/* tests/sim/lib/serving.c - see serving.h. */
#include "serving.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/serve.h"

serving_t w;
const char *const serving_signatures[KINDS] = {
    "plain(id: u64, x: u64) -> u64",         "again(id: u64, x: u64) -> u64 idempotent",
    "big(id: u64, data: [u8]) -> [u8]",      "big_again(id: u64, data: [u8]) -> [u8] idempotent",
    "tell(id: u64, x: u64) -> void oneway",  "count(id: u64, n: u64) -> stream u64",
    "total(id: u64, xs: stream u64) -> u64",
};
const char *const serving_names[KINDS] = {"plain", "again", "big", "big_again", "tell", "count", "total"};

uint64_t serving_value(const call_t *c, unsigned run)
{
    return (uint64_t)c->index * 1000003 + run;
}

uint8_t serving_byte(const call_t *c, unsigned run, uint32_t i)
{
    return (uint8_t)(((uint32_t)c->index * 31u + run) * 2654435761u + i * 7u);
}

static bool is_idempotent(const call_t *c)
{
    return c->kind == AGAIN || c->kind == BIG_AGAIN;
}

static void remember(const weft_request_t *request, int life)
{
    const rpc_request_t *r = rpc_request(request);
    if (r->call && weft_sig_oneway(request->sig) == false)
        w.spoken[w.n_spoken++ % SPOKEN] = (spoken_t){w.lives[life].node, request->from, r->call};
}

/* A function was called: by whom, and may it be? */
static call_t *began(weft_request_t *request, int life, int kind)
{
    uint64_t id = request->n ? request->args[0].u64 : 0;
    if (id >= (uint64_t)w.n_calls || !w.calls[id])
        sim_bad(&w.net, "a function is called for call %llu, which there is not", (unsigned long long)id);
    call_t *c = w.calls[id];
    wefti_sim_note(w.net.w, w.lives[life].node, "runs call, life", id, (uint64_t)life);
    if (c->kind != kind)
        sim_bad(&w.net, "call %llu of %s came to %s", (unsigned long long)id, serving_names[c->kind], serving_names[kind]);
    if ((kind == PLAIN || kind == AGAIN || kind == TELL) && request->args[1].u64 != c->x)
        sim_bad(&w.net, "call %llu came with another argument", (unsigned long long)id);
    if (kind == BIG || kind == BIG_AGAIN) {
        const weft_value_t *v = &request->args[1];
        if (v->view.n != c->len || (c->len && !c->over && memcmp(v->view.data, c->data, c->len) != 0))
            sim_bad(&w.net, "call %llu came with %zu bytes that are not its own", (unsigned long long)id, (size_t)v->view.n);
    }
    if (c->over && !c->ran)
        sim_bad(&w.net, "call %llu runs, and its caller was told that it did not", (unsigned long long)id);
    unsigned most = is_idempotent(c) && !c->once && !c->fresh ? 3 : 1;
    if (c->runs >= most)
        sim_bad(&w.net, "call %llu of %s%s runs a %uth time", (unsigned long long)id, serving_names[kind],
                c->once ? ", once," : "", c->runs + 1);
    if (request->once != c->once)
        sim_bad(&w.net, "call %llu came %s `once`", (unsigned long long)id, c->once ? "without" : "with");
    if ((request->left_ns == UINT64_MAX) != !c->op.timeout_ns || (c->op.timeout_ns && request->left_ns > c->op.timeout_ns + 1))
        sim_bad(&w.net, "call %llu came with %llu ns left of %llu", (unsigned long long)id, (unsigned long long)request->left_ns,
                (unsigned long long)c->op.timeout_ns);
    c->runs++;
    return c;
}

static void answer(weft_request_t *request, const call_t *c, unsigned run, int life)
{
    static uint8_t bytes[BIG_MAX];
    weft_value_t v = weft_u64(serving_value(c, run));
    size_t n = c->kind != COUNT;
    if (c->kind == TOTAL)
        v = weft_u64(c->x);
    if (c->kind == BIG || c->kind == BIG_AGAIN) {
        for (uint32_t i = 0; i < c->result_len; i++)
            bytes[i] = serving_byte(c, run, i);
        v = weft_vector(WEFT_T_U8, bytes, c->result_len);
    }
    remember(request, life);
    weft_status_t st;
    if (c->how == FAILS) {
        char text[40];
        snprintf(text, sizeof text, "no %d", c->index);
        st = weft_request_fail_with(request, WEFT_CODE_ABORTED, WEFT_CATEGORY_USER + 7, c->index, text);
    } else {
        st = weft_request_reply(request, &v, c->kind == TELL ? 0 : n);
    }
    if (st && st != WEFT_ERR_CANCELLED && !(st == WEFT_ERR_NOMEM && w.poor))
        sim_bad(&w.net, "call %d cannot be answered: %s", c->index, weft_status_name(st));
    if (c->how == TWICE && (st = weft_request_reply(request, &v, n)) != WEFT_ERR_STATE && st != WEFT_ERR_CANCELLED)
        sim_bad(&w.net, "call %d can be answered twice: %s", c->index, weft_status_name(st));
}

void serving_let_go(held_t *h)
{
    weft_request_t *request = h->request;
    h->request = NULL;
    if (request)
        weft_request_release(request);
}

static void on_cancel(weft_request_t *request, void *user)
{
    held_t *h = user;
    if (h->told)
        sim_bad(&w.net, "the function of call %d is told twice that nobody waits", h->call->index);
    if (!h->request || &rpc_request(h->request)->pub != request || !weft_request_cancelled(request))
        sim_bad(&w.net, "the function of call %d is told of a request that it has not, or that is not cancelled", h->call->index);
    h->told = true;
    remember(request, h->life);
    if (!h->waits && h->call->how == NEVER)
        serving_let_go(h);
}

static held_t *hold(weft_request_t *request, call_t *c, int life)
{
    weft_request_t *kept = weft_request_keep(request);
    if (!kept) {
        if (!w.poor)
            sim_bad(&w.net, "the request of call %d cannot be kept", c->index);
        return NULL;
    }
    held_t *h = calloc(1, sizeof *h);
    h->request = kept;
    h->call = c;
    h->life = life;
    h->run = c->runs;
    h->next = w.helds;
    w.helds = h;
    weft_request_on_cancel(kept, on_cancel, h);
    return h;
}

static void later(weft_op_t *op, void *user)
{
    held_t *h = user;
    h->waits = false;
    if (op->status || !h->request) /* the runtime closes */
        return;
    bool told = weft_request_cancelled(h->request);
    if (told != h->told)
        sim_bad(&w.net, "the request of call %d is%s cancelled, and its function was%s told", h->call->index, told ? "" : " not",
                h->told ? "" : " not");
    if (h->call->how != NEVER && h->call->how != LETS_GO)
        answer(h->request, h->call, h->run, h->life);
    if (h->call->how != NEVER || told)
        serving_let_go(h);
}

static void serve(weft_request_t *request, void *user, int kind)
{
    int life = (int)((life_t *)user - w.lives);
    call_t *c = began(request, life, kind);
    if (c->how == SILENT) {
        remember(request, life);
        return;
    }
    if ((c->how == NOW || c->how == TWICE || c->how == FAILS) && !c->delay) {
        answer(request, c, c->runs, life);
        return;
    }
    held_t *h = hold(request, c, life);
    if (!h || c->how == NEVER)
        return;
    h->op.fn = later;
    h->op.user = h;
    if (weft_timer_start(w.net.nodes[w.lives[life].node].rt, c->delay, &h->op))
        serving_let_go(h);
    else
        h->waits = true;
}

/* count: values one after the other; total: until there are no more. */
static void stream_step(weft_op_t *op, void *user)
{
    held_t *h = user;
    call_t *c = h->call;
    h->waits = false;
    weft_status_t st = op->status;
    if (!h->request || st == WEFT_ERR_CLOSED) {
        if (h->request && c->kind == TOTAL)
            weft_item_release(&h->item);
        return;
    }
    bool done = c->kind == COUNT && h->at == c->n;
    if (!st && c->kind == TOTAL && h->at) {
        done = !op->len;
        if (op->len) {
            h->sum += h->item.value.u64;
            weft_item_release(&h->item);
        }
    }
    if (!st && !done) {
        weft_value_t v = weft_u64((uint64_t)c->index ^ h->at);
        h->at++;
        st = c->kind == COUNT ? weft_stream_send(h->request->stream, &v, &h->op)
                              : weft_stream_recv(h->request->stream, &h->item, &h->op);
        h->waits = !st;
        if (!st)
            return;
    }
    if (!st && c->kind == TOTAL && h->sum != c->x)
        sim_bad(&w.net, "the values of call %d are %llu and not %llu", c->index, (unsigned long long)h->sum,
                (unsigned long long)c->x);
    if (st)
        (void)weft_request_fail(h->request, WEFT_CODE_CANCELLED, "its stream ended");
    else if (c->how != NEVER)
        answer(h->request, c, h->run, h->life);
    if (st || c->how != NEVER)
        serving_let_go(h);
}

static void serve_stream(weft_request_t *request, void *user, int kind)
{
    int life = (int)((life_t *)user - w.lives);
    call_t *c = began(request, life, kind);
    held_t *h = hold(request, c, life);
    if (!h)
        return;
    h->op.fn = stream_step;
    h->op.user = h;
    weft_op_t first = {.status = WEFT_OK};
    stream_step(&first, h);
}

#define FUNCTION(name, kind, serve) \
    static void name(weft_request_t *request, void *user) \
    { \
        serve(request, user, kind); \
    }
FUNCTION(fn_plain, PLAIN, serve)
FUNCTION(fn_again, AGAIN, serve)
FUNCTION(fn_big, BIG, serve)
FUNCTION(fn_big_again, BIG_AGAIN, serve)
FUNCTION(fn_tell, TELL, serve)
FUNCTION(fn_count, COUNT, serve_stream)
FUNCTION(fn_total, TOTAL, serve_stream)
static const weft_function_fn functions[KINDS] = {fn_plain, fn_again, fn_big, fn_big_again, fn_tell, fn_count, fn_total};

void serving_open(int server)
{
    weft_service_opts_t o = WEFT_SERVICE_OPTS_INIT;
    char instance[16];
    if (w.n_lives == LIVES)
        return;
    uint32_t ppm = w.net.alloc_fails_ppm;
    w.net.alloc_fails_ppm = 0;
    life_t *l = &w.lives[w.n_lives];
    *l = (life_t){.node = server};
    snprintf(instance, sizeof instance, "i%d", w.n_lives);
    o.instance = instance;
    if (CHANCE(20)) {
        o.remember_ns = (1 + BELOW(2000)) * WEFT_MILLISECOND;
        w.forgets = true;
    }
    weft_status_t st = weft_service_open(w.net.nodes[server].rt, "calc", &o, &l->service);
    for (int k = 0; k < KINDS && !st; k++)
        st = weft_service_add(l->service, serving_signatures[(k + w.n_lives) % KINDS], functions[(k + w.n_lives) % KINDS], l,
                              NULL);
    if (st)
        sim_bad(&w.net, "no service: %s", weft_last_error());
    w.now_open[server] = w.n_lives++;
    w.net.alloc_fails_ppm = ppm;
}

static void service_closed(weft_op_t *op, void *user)
{
    life_t *l = user;
    l->service = NULL;
    for (held_t *h = w.helds; h; h = h->next)
        if (&w.lives[h->life] == l && h->request && !op->status)
            sim_bad(&w.net, "the service closed while the function of call %d had its request", h->call->index);
}

void serving_close(int server)
{
    life_t *l = &w.lives[w.now_open[server]];
    l->close.fn = service_closed;
    l->close.user = l;
    w.now_open[server] = -1;
    if (!weft_service_close(l->service, &l->close))
        l->closing = true;
    else if (!w.poor)
        sim_bad(&w.net, "a service cannot be closed: %s", weft_last_error());
}

/* The function goes and comes back, under another slot or check. */
void serving_replace(int server)
{
    life_t *l = &w.lives[w.now_open[server]];
    int k = (int)BELOW(KINDS);
    weft_status_t st = weft_service_remove(l->service, serving_names[k], NULL);
    if (!st)
        st = weft_service_add(l->service, serving_signatures[k], functions[k], l, NULL);
    if (st && !w.poor)
        sim_bad(&w.net, "%s cannot be replaced: %s", serving_names[k], weft_last_error());
    if (st) { /* without memory it is gone: the service with it */
        serving_close(server);
        serving_open(server);
    }
}

/* Say again what was said, late and wrong. */
void serving_say_again(void)
{
    _Alignas(8) uint8_t header[sizeof(rpc_head_t) + sizeof(rpc_ext_t) + sizeof(rpc_failure_t)];
    if (!w.n_spoken)
        return;
    const spoken_t *s = &w.spoken[BELOW(w.n_spoken < SPOKEN ? w.n_spoken : SPOKEN)];
    if (!sim_node_runs(&w.net.nodes[s->node]))
        return;
    weft_ep_t *ep = weft_ep_find(w.net.nodes[s->node].rt, s->ep);
    if (!ep || weft_ep_get_state(ep) != WEFT_EP_UP)
        return;
    size_t n = sizeof(rpc_head_t);
    memset(header, 0, sizeof header);
    unsigned what = (unsigned)BELOW(6);
    static const unsigned kinds[6] = {RPC_REPLY, RPC_REPLY_EXT, RPC_REPLY_EXT, RPC_END, RPC_CREDIT, RPC_ITEM};
    rpc_head_t head = rpc_head(kinds[what], s->call);
    memcpy(header, &head, n);
    if (what == 1 || what == 2) {
        rpc_ext_t ext = {.flags = (uint16_t)(RPC_F_FAILED | RPC_F_NOT_RUN | (what == 2 ? RPC_F_UNBOUND : 0u))};
        rpc_failure_t f = {.code = WEFT_CODE_UNAVAILABLE};
        memcpy(header + n, &ext, sizeof ext);
        memcpy(header + n + sizeof ext, &f, sizeof f);
        n += sizeof ext + sizeof f;
    } else if (what != 3) {
        n += 16; /* a value, credit, or an item */
    }
    wefti_sim_note(w.net.w, s->node, "says again", s->call, what);
    weft_status_t st = weft_am_send(ep, RPC_AM_TO_CLIENT, header, n, NULL, 0, NULL);
    if (st && w.peace && st != WEFT_ERR_AGAIN)
        sim_bad(&w.net, "nothing can be said again: %s", weft_status_name(st));
}

void serving_check_told(void)
{
    for (held_t *h = w.helds; h; h = h->next) {
        const call_t *c = h->call;
        bool alive = !w.net.nodes[w.lives[h->life].node].dead && !w.lives[h->life].closing;
        if (alive && h->request && !h->told && c->over && !c->once && c->kind != TELL && c->how == NEVER)
            sim_bad(&w.net, "call %d is over, and its function was not told", c->index);
    }
}

/* Nobody calls any more: functions that still have requests know it, and the services have nothing else. */
void serving_check(void)
{
    for (int i = 0; i < w.n_lives; i++) {
        weft_service_stats_t s = WEFT_SERVICE_STATS_INIT;
        uint64_t held = 0;
        if (!w.lives[i].service || w.lives[i].closing || w.net.nodes[w.lives[i].node].dead)
            continue;
        for (held_t *h = w.helds; h; h = h->next) {
            held += h->life == i && h->request;
            if (h->life == i && h->request && !h->told && !h->call->once && h->call->kind != TELL && h->call->how == NEVER)
                sim_bad(&w.net, "nobody waits for call %d, and its function was not told", h->call->index);
        }
        weft_service_get_stats(w.lives[i].service, &s);
        if (s.under_way != held)
            sim_bad(&w.net, "service %d has %llu requests, and its functions %llu", i, (unsigned long long)s.under_way,
                    (unsigned long long)held);
    }
}
