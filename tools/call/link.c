/* tools/call/link.c - the runtime of a call, the registry, and the client.
 *
 * A server at an address is connected to first, so that a refusal, a wrong key or an unknown name is reported at once and in
 * its own words. With --wait, and for weft://, the library's client finds the servers. Without --wait the command does not
 * wait for a service that is not in the registry. It never waits for servers that refuse its key or version, although the
 * library's client would try again. tests/tools/tools_call.py checks it. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define IDENTITY "identity "
#define CLOSING (3 * WEFT_SECOND)
#define PATIENCE (300 * WEFT_MILLISECOND) /* to connect to a server of the registry, before its problem is looked for */
#define PROBING (2 * WEFT_SECOND)
#define PROBED 4 /* instances */

const char *call_registry_name(const call_opts_t *opts, char *buf, size_t cap)
{
    char *configured = opts->registry ? NULL : tool_configured("WEFT_REGISTRY");
    snprintf(buf, cap, "%s", opts->registry ? opts->registry : configured ? configured : "dir://");
    free(configured);
    return buf;
}

/* --- entries of a registry ----------------------------------------------------------------------------------- */

size_t call_identity_of(const weft_entry_t *entry, const char **at_out)
{
    const char *data = entry->data_len ? entry->data : "", *end = data + entry->data_len;
    while (end > data && end[-1] == '\n')
        end--;
    const char *at = end;
    while (at > data && at[-1] != '\n')
        at--;
    bool is = (size_t)(end - at) > strlen(IDENTITY) && !memcmp(at, IDENTITY, strlen(IDENTITY));
    *at_out = is ? at + strlen(IDENTITY) : end;
    return is ? (size_t)(end - *at_out) : 0;
}

static void entry_found(const weft_entry_t *entry, void *user)
{
    call_entries_t *e = user;
    if (e->n == e->cap) {
        size_t cap = e->cap ? 2 * e->cap : 16;
        call_entry_t *more = reallocarray(e->at, cap, sizeof *more);
        if (!more) {
            e->no_memory = true;
            return;
        }
        e->at = more;
        e->cap = cap;
    }
    const char *data = entry->data_len ? entry->data : "", *who;
    size_t name = call_identity_of(entry, &who);
    call_entry_t *to = &e->at[e->n];
    *to = (call_entry_t){.service = strdup(entry->service),
                         .instance = strdup(entry->instance),
                         .address = strdup(entry->address),
                         .functions = strndup(data, name ? (size_t)(who - data) - strlen(IDENTITY) : entry->data_len),
                         .identity = strndup(who, name),
                         .load = entry->load};
    e->n++;
    e->no_memory = e->no_memory || !to->service || !to->instance || !to->address || !to->functions || !to->identity;
}

static int by_name(const void *a, const void *b)
{
    const call_entry_t *x = a, *y = b;
    int order = strcmp(x->service, y->service);
    return order ? order : strcmp(x->instance, y->instance);
}

void call_entries_free(call_entries_t *e)
{
    for (size_t i = 0; i < e->n; i++) {
        free(e->at[i].service);
        free(e->at[i].instance);
        free(e->at[i].address);
        free(e->at[i].functions);
        free(e->at[i].identity);
    }
    free(e->at);
    *e = (call_entries_t){0};
}

int call_entries_find(call_link_t *l, const char *service, call_entries_t *entries_out)
{
    weft_op_t op = WEFT_OP_INIT;
    char name[256];
    weft_status_t st;
    *entries_out = (call_entries_t){0};
    op.timeout_ns = call_timeout(l->opts);
    st = tool_do(weft_registry_find(l->registry, service, entry_found, entries_out, &op), &op);
    if (!st && entries_out->no_memory)
        st = WEFT_ERR_NOMEM;
    if (!st) {
        if (entries_out->n)
            qsort(entries_out->at, entries_out->n, sizeof *entries_out->at, by_name);
        return TOOL_OK;
    }
    call_entries_free(entries_out);
    if (tool_signal())
        return 128 + tool_signal();
    tool_error("the registry %s cannot be asked: %s", call_registry_name(l->opts, name, sizeof name), weft_status_text(st));
    return st == WEFT_ERR_NOMEM ? TOOL_FAILED : CALL_NO_SERVER;
}

int call_nobody(call_link_t *l)
{
    const call_target_t *t = l->target;
    const char *names[256], *near = NULL;
    char registry[256];
    call_entries_t all;
    size_t n = 0;
    bool service = false, came = false;
    int rc = call_entries_find(l, NULL, &all);
    if (rc)
        return rc;
    call_registry_name(l->opts, registry, sizeof registry);
    for (size_t i = 0; i < all.n; i++) {
        bool named = !strcmp(all.at[i].service, t->service);
        service = service || named;
        came = came || (named && (!*t->instance || !strcmp(all.at[i].instance, t->instance)));
    }
    if (came) { /* between the two looks */
        call_entries_free(&all);
        return TOOL_OK;
    }
    for (size_t i = 0; i < all.n && n < sizeof names / sizeof *names; i++)
        if (!service || !strcmp(all.at[i].service, t->service))
            names[n++] = service ? all.at[i].instance : all.at[i].service;
    near = tool_nearest(service ? t->instance : t->service, names, n);
    if (service)
        tool_error("the service \"%s\" has no instance \"%s\" in the registry %s%s%s%s; weft call --list weft://%s shows all",
                   t->service, t->instance, registry, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "",
                   t->service);
    else
        tool_error("nobody offers a service \"%s\" in the registry %s%s%s%s; weft call --list shows all, --wait waits for it",
                   t->service, registry, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    call_entries_free(&all);
    return CALL_NO_SERVER;
}

/* --- opening -------------------------------------------------------------------------------------------------- */

int call_link_registry(call_link_t *l, const call_opts_t *opts, const call_target_t *target)
{
    weft_status_t st;
    int rc;
    *l = (call_link_t){.opts = opts, .target = target};
    rc = tool_runtime_open(opts->repeat ? WEFT_PROGRESS_CALLER : WEFT_PROGRESS_THREAD, &opts->net, &l->rt);
    if (rc)
        return rc;
    tool_handle_signals();
    if (opts->uri && !target->by_registry)
        return TOOL_OK;
    st = weft_registry_open(l->rt, opts->registry, NULL, &l->registry);
    if (!st)
        return TOOL_OK;
    l->registry = NULL;
    tool_error_status(st, "the registry%s%s cannot be used", opts->registry ? " " : "", opts->registry ? opts->registry : "");
    call_link_close(l);
    return st == WEFT_ERR_INVALID || st == WEFT_ERR_UNSUPPORTED ? TOOL_USAGE : TOOL_FAILED;
}

static const char *advice(weft_status_t st)
{
    return st == WEFT_ERR_REFUSED ? "; is somebody listening there? weft serve is a service to try" : tool_advice(st);
}

static int connect_failed(const call_link_t *l, weft_status_t st)
{
    if (tool_signal())
        return 128 + tool_signal();
    if (st == WEFT_ERR_INVALID) {
        tool_error_status(st, "%s", l->target->where);
        return TOOL_USAGE;
    }
    bool answers = st == WEFT_ERR_AUTH || st == WEFT_ERR_VERSION || st == WEFT_ERR_PERMISSION || st == WEFT_ERR_NOMEM;
    tool_error("%s %s: %s%s", answers ? "cannot connect to" : "no server answers at", l->target->where, weft_status_text(st),
               advice(st));
    return st == WEFT_ERR_AUTH || st == WEFT_ERR_VERSION || st == WEFT_ERR_NOMEM ? TOOL_FAILED : CALL_NO_SERVER;
}

/* Is anybody there? */
static int look(call_link_t *l)
{
    call_entries_t found;
    bool some = false;
    int rc = call_entries_find(l, l->target->service, &found);
    if (rc)
        return rc;
    for (size_t i = 0; i < found.n; i++)
        some = some || !*l->target->instance || !strcmp(found.at[i].instance, l->target->instance);
    call_entries_free(&found);
    return some ? TOOL_OK : call_nobody(l);
}

static int open_client(call_link_t *l)
{
    const call_target_t *t = l->target;
    weft_client_opts_t co = WEFT_CLIENT_OPTS_INIT;
    weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    int rc;
    eo.no_retry = true; /* --wait is the way to wait */
    co.service = *t->service && !t->by_registry ? t->service : NULL;
    co.instance = *t->instance && !t->by_registry ? t->instance : NULL;
    co.registry = l->registry;
    if (t->by_registry && !l->opts->wait && (rc = look(l)))
        return rc;
    if (t->by_registry || l->opts->wait) {
        st = weft_client_open(l->rt, t->where, &co, &l->client);
    } else {
        op.timeout_ns = call_timeout(l->opts);
        st = tool_do(weft_ep_open(l->rt, t->where, &eo, &op, &l->ep), &op);
        if (!st)
            st = weft_client_on(l->ep, &co, &l->client);
    }
    return st ? connect_failed(l, st) : TOOL_OK;
}

int call_link_open(call_link_t *l, const call_opts_t *opts, const call_target_t *target)
{
    int rc = call_link_registry(l, opts, target);
    if (rc)
        return rc;
    rc = open_client(l);
    if (rc)
        call_link_close(l);
    return rc;
}

void call_link_close(call_link_t *l)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = CLOSING;
    /* what was sent has to arrive: a call of a oneway function is complete when it was sent */
    if (l->client && !weft_client_close(l->client, &op))
        tool_wait_through(&op);
    if (l->ep && !weft_ep_close(l->ep, &op))
        tool_wait_through(&op);
    if (l->registry && !weft_registry_close(l->registry, &op))
        tool_wait_through(&op);
    weft_runtime_close(l->rt);
    *l = (call_link_t){0};
}

/* --- who answered ----------------------------------------------------------------------------------------------- */

/* In progress, where an endpoint stays as long as the function runs. */
static void answered(weft_op_t *op, void *user)
{
    call_known_t *k = user;
    call_link_t *l = k->link;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *ep = op->from ? weft_ep_find(l->rt, op->from) : NULL;
    if (ep && !weft_ep_get_info(ep, &info)) {
        snprintf(l->server, sizeof l->server, "%s at %s", info.peer_name, info.peer_address);
        snprintf(l->transport, sizeof l->transport, "%s", info.transport);
        snprintf(l->cipher, sizeof l->cipher, "%s", info.cipher);
        snprintf(l->identity, sizeof l->identity, "%s", info.identity);
    }
    atomic_store(&k->told, true);
}

void call_known_init(call_known_t *k, call_link_t *l, uint64_t timeout_ns)
{
    memset(k, 0, sizeof *k);
    k->link = l;
    k->op.fn = answered;
    k->op.user = k;
    k->op.timeout_ns = timeout_ns;
}

void call_known_told(call_known_t *k)
{
    while (!atomic_load(&k->told)) { /* complete, and its function is about to run */
        weft_runtime_progress(k->link->rt);
        sched_yield();
    }
}

/* Do all servers in the registry refuse us, because of the key or the version? Any other failure may pass. */
static weft_status_t shut_out(call_link_t *l)
{
    call_entries_t found;
    weft_status_t why = WEFT_OK;
    if (call_entries_find(l, l->target->service, &found))
        return WEFT_OK;
    for (size_t i = 0; i < found.n && i < PROBED; i++) {
        weft_ep_opts_t eo = WEFT_EP_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        weft_status_t st;
        eo.no_retry = true;
        if (*l->target->instance && strcmp(found.at[i].instance, l->target->instance) != 0)
            continue;
        op.timeout_ns = PROBING;
        if (weft_ep_open(l->rt, found.at[i].address, &eo, &op, &ep))
            continue;
        st = tool_wait(&op);
        weft_ep_abort(ep, NULL);
        why = st;
        if (st != WEFT_ERR_AUTH && st != WEFT_ERR_VERSION)
            break;
    }
    call_entries_free(&found);
    return why == WEFT_ERR_AUTH || why == WEFT_ERR_VERSION ? why : WEFT_OK;
}

weft_status_t call_known_first(call_known_t *k)
{
    call_link_t *l = k->link;
    weft_status_t why;
    if (!l->target->by_registry || l->opts->wait)
        return call_known_wait(k);
    why = weft_op_wait(&k->op, PATIENCE);
    if (weft_op_done(&k->op) || tool_signal() || !(why = shut_out(l)))
        return call_known_wait(k);
    weft_op_cancel(&k->op);
    call_known_wait(k);
    return why;
}

weft_status_t call_known_wait(call_known_t *k)
{
    weft_status_t st = tool_wait(&k->op);
    call_known_told(k);
    return st;
}
