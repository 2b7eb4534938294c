/* conn/policy.c - the policy of a runtime: reading and replacing it, and what it says of a peer.
 *
 *     none --WEFT_POLICY, or the program--> in force --the file changed, or the program--> another one
 *                                              \--the file is no policy any more, or gone: a warning--> the same
 *
 * The head has it, for all shards, under a lock that is held for one verdict. Each shard compares the number of the policy with
 * the one that its endpoints were judged by: conn/recheck.c has the timer and ends who may not be connected any more. The rooms
 * above do the same for what they gave out.
 *
 * Promise: nobody becomes an endpoint of a listener whom the policy does not let connect; what cannot be read never takes the
 * place of a policy. tests/wire/policy.c. */
#include "conn/rules.h"

#include <stdio.h>
#include <string.h>

#include "base/changed.h"
#include "base/config_text.h"
#include "conn/ep.h"

enum { ACTIONS = WEFT_MAY_PUBLISH + 1 };

typedef struct wefti_rules {
    pthread_mutex_t lock;    /* of `now` and `path` */
    wefti_policy_t *now;     /* NULL: there is none */
    const char *path;        /* NULL: there is no file, or the program gave a policy that counts in place of it */
    _Atomic uint64_t number; /* see wefti_rules_number() */
    _Atomic bool limits[ACTIONS];
    wefti_changed_t file; /* the head's driver's, as what follows */
    bool bad;             /* what is there now cannot be used */
} rules_t;

/* --- taking one ----------------------------------------------------------------------------------------------------------- */

/* `p` is in force from here on; NULL: there is none. What is from the file does not count if the program gave one. */
static void take(rules_t *r, wefti_policy_t *p, bool from_file)
{
    wefti_policy_t *was = p;
    pthread_mutex_lock(&r->lock);
    if (!from_file || r->path) {
        was = r->now;
        r->now = p;
        r->path = from_file ? r->path : NULL;
        for (int i = 1; i < ACTIONS; i++)
            atomic_store(&r->limits[i], p && wefti_policy_limits(p, (weft_may_t)i));
        atomic_fetch_add(&r->number, 1);
    }
    pthread_mutex_unlock(&r->lock);
    wefti_policy_free(was);
}

static weft_status_t load(rules_t *r, const char *path)
{
    wefti_config_file_t file;
    wefti_policy_t *p;
    const char *why;
    char text[WEFTI_DETAIL_MAX];
    weft_status_t st = wefti_config_file_load(path, &file, &why);
    if (st)
        return wefti_fail(st, "the policy in %s (WEFT_POLICY) cannot be read: %s", path, why);
    st = wefti_policy_parse(file.text, file.n, &p);
    wefti_config_file_free(&file);
    if (!st) {
        take(r, p, true);
        return WEFT_OK;
    }
    snprintf(text, sizeof text, "%s", weft_last_error());
    return wefti_fail(st, "the policy in %s (WEFT_POLICY): %s", path, text);
}

/* --- recheck.h ------------------------------------------------------------------------------------------------------------ */

/* What cannot be read is tried again: there may be descriptors and memory by then. */
static void read_again(rules_t *r, const char *path)
{
    bool another = wefti_changed_look(&r->file, path);
    if (!another && !r->bad)
        return;
    weft_status_t st = load(r, path);
    r->bad = st;
    if (!st)
        wefti_info("the policy in %s was read again", path);
    else if (another)
        wefti_warn("%s; the policy from before stays in force", weft_last_error());
}

static bool changed(void *user)
{
    wefti_conn_t *conn = user;
    rules_t *r = conn->rules;
    if (wefti_head(conn->rt) == conn->rt) {
        pthread_mutex_lock(&r->lock);
        const char *path = r->path; /* of the configuration, which stays */
        pthread_mutex_unlock(&r->lock);
        if (path)
            read_again(r, path);
    }
    uint64_t number = atomic_load(&r->number);
    bool another = conn->rules_seen != number;
    conn->rules_seen = number;
    return another;
}

static weft_status_t welcome(void *user, weft_ep_t *ep)
{
    (void)user;
    return wefti_epx(ep)->dial ? WEFT_OK : wefti_ep_may(ep, WEFT_MAY_CONNECT, "", true, NULL);
}

weft_status_t wefti_rules_open(wefti_conn_t *conn)
{
    weft_runtime_t *rt = conn->rt;
    const char *path = rt->config.policy && *rt->config.policy ? rt->config.policy : NULL;
    if (wefti_head(rt) == rt) {
        rules_t *r = wefti_calloc(1, sizeof *r);
        if (!r)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory for the policy of a runtime");
        pthread_mutex_init(&r->lock, NULL);
        conn->rules = r;
        r->path = path;
        if (path)
            (void)wefti_changed_look(&r->file, path); /* before it is read: what changes meanwhile is read again */
        weft_status_t st = path ? load(r, path) : WEFT_OK;
        if (st)
            return st;
    }
    conn->rules = wefti_conn_of(wefti_head(rt))->rules;
    conn->rules_seen = atomic_load(&conn->rules->number);
    return wefti_recheck_add(rt, &(wefti_recheck_t){.changed = path ? changed : NULL, .welcome = welcome, .user = conn});
}

void wefti_rules_close(wefti_conn_t *conn)
{
    rules_t *r = conn->rules;
    conn->rules = NULL;
    if (!r || wefti_head(conn->rt) != conn->rt)
        return;
    wefti_policy_free(r->now);
    wefti_free(r);
}

/* --- verdicts ------------------------------------------------------------------------------------------------------------- */

static const char *const verbs[ACTIONS] = {"",
                                           "to connect",
                                           "to call",
                                           "to allocate the block",
                                           "to read the block",
                                           "to write or remove the block",
                                           "to publish the service"};

static weft_status_t ask(wefti_conn_t *conn, const char *identity, weft_may_t action, const char *name, bool count,
                         uint64_t *limit_out)
{
    rules_t *r = conn->rules;
    weft_verdict_t v = {.allowed = true, .limit = UINT64_MAX};
    pthread_mutex_lock(&r->lock);
    if (r->now)
        wefti_policy_ask(r->now, identity, action, name, &v);
    pthread_mutex_unlock(&r->lock);
    if (v.allowed) {
        if (limit_out)
            *limit_out = v.limit;
        return WEFT_OK;
    }
    if (count)
        atomic_fetch_add_explicit(&conn->refused, 1, memory_order_relaxed);
    bool named = action != WEFT_MAY_CONNECT;
    return wefti_fail(WEFT_ERR_PERMISSION, "the policy (line %u) does not allow \"%.80s\" %s%s%.128s%s", v.line,
                      wefti_identity_word(identity), verbs[action], named ? " \"" : "", named ? name : "", named ? "\"" : "");
}

bool wefti_rules_newcomer(wefti_link_t *link)
{
    char text[WEFTI_DETAIL_MAX];
    weft_status_t st = ask(link->conn, wefti_link_identity(link), WEFT_MAY_CONNECT, "", true, NULL);
    if (!st)
        return true;
    snprintf(text, sizeof text, "%s", weft_last_error());
    wefti_link_lost(link, st, text);
    return false;
}

uint64_t wefti_rules_number(const weft_runtime_t *rt)
{
    return atomic_load(&wefti_conn_of((weft_runtime_t *)(uintptr_t)rt)->rules->number);
}

bool wefti_rules_limit(const weft_runtime_t *rt, weft_may_t action)
{
    return atomic_load(&wefti_conn_of((weft_runtime_t *)(uintptr_t)rt)->rules->limits[action]);
}

weft_status_t wefti_ep_may(weft_ep_t *ep, weft_may_t action, const char *name, bool count, uint64_t *limit_out)
{
    const wefti_peer_t *peer = atomic_load(&wefti_epx(ep)->peer);
    return ask(wefti_conn_of(ep->rt), peer ? peer->identity : "", action, name, count, limit_out);
}

static weft_status_t may(weft_ep_t *ep, weft_may_t action, const char *name, bool count, uint64_t *limit_out)
{
    if (!ep)
        return wefti_fail(WEFT_ERR_INVALID, "there is no endpoint to ask about: ep is NULL");
    if (!wefti_may_known((int)action))
        return wefti_fail(WEFT_ERR_INVALID, "%d is no action", (int)action);
    weft_runtime_t *rt = ep->rt;
    weft_status_t st = wefti_join(rt);
    if (st)
        return st;
    wefti_conn_t *conn = wefti_conn_of(rt);
    pthread_mutex_lock(&conn->lock); /* it is not freed meanwhile */
    st = wefti_ep_check(ep);
    if (!st)
        st = wefti_ep_may(ep, action, name ? name : "", count, limit_out);
    pthread_mutex_unlock(&conn->lock);
    wefti_part(rt);
    return st;
}

weft_status_t weft_ep_may(weft_ep_t *ep, weft_may_t action, const char *name, uint64_t *limit_out)
{
    return may(ep, action, name, true, limit_out);
}

bool weft_ep_allowed(weft_ep_t *ep, weft_may_t action, const char *name)
{
    return !may(ep, action, name, false, NULL);
}

/* --- the calls ------------------------------------------------------------------------------------------------------------ */

/* On its way to a shard, which then looks at its endpoints. */
typedef struct news {
    wefti_call_t call;
    weft_runtime_t *rt;
    struct news *next;
} news_t;

static void look(wefti_call_t *call)
{
    news_t *n = wefti_container_of(call, news_t, call);
    wefti_conn_t *conn = wefti_conn_of(n->rt);
    conn->rules_seen = atomic_load(&conn->rules->number);
    wefti_recheck_now(n->rt);
    wefti_free(n);
}

static weft_status_t set(weft_runtime_t *head, wefti_policy_t *p)
{
    news_t *first = NULL;
    for (uint32_t k = wefti_n_shards(head); k-- > 0;) {
        news_t *n = wefti_calloc(1, sizeof *n);
        if (!n) {
            while ((n = first)) {
                first = n->next;
                wefti_free(n);
            }
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to tell %u shards of a policy", wefti_n_shards(head));
        }
        *n = (news_t){.call = {.fn = look}, .rt = wefti_shard(head, k), .next = first};
        first = n;
    }
    take(wefti_conn_of(head)->rules, p, false);
    for (news_t *n = first, *next; n; n = next) {
        next = n->next;
        if (!wefti_call_on_driver(n->rt, &n->call))
            wefti_free(n); /* the shard is closed */
    }
    return WEFT_OK;
}

weft_status_t weft_runtime_set_policy(weft_runtime_t *rt, const char *text, size_t len)
{
    wefti_policy_t *p = NULL;
    if (!rt)
        return wefti_fail(WEFT_ERR_INVALID, "there is no runtime to set the policy of: it is NULL");
    if (!text && len)
        return wefti_fail(WEFT_ERR_INVALID, "the policy is NULL, but its length %zu", len);
    weft_runtime_t *head = wefti_head(rt);
    weft_status_t st = wefti_join(head);
    if (st)
        return st;
    if (text)
        st = wefti_policy_parse(text, len, &p);
    if (!st)
        st = set(head, p);
    if (st)
        wefti_policy_free(p);
    wefti_part(head);
    return st;
}

weft_status_t weft_policy_check(const char *text, size_t len, const char *identity, weft_may_t action, const char *name,
                                weft_verdict_t *verdict_out)
{
    wefti_policy_t *p;
    weft_verdict_t v = WEFT_VERDICT_INIT;
    if (!text)
        return wefti_fail(WEFT_ERR_INVALID, "there is no text of a policy: it is NULL");
    if (action && !wefti_may_known((int)action))
        return wefti_fail(WEFT_ERR_INVALID, "%d is no action", (int)action);
    if (action && (!verdict_out || verdict_out->size < sizeof v))
        return wefti_fail(WEFT_ERR_INVALID, "weft_verdict_t.size is not set: use WEFT_VERDICT_INIT");
    weft_status_t st = wefti_policy_parse(text, len, &p);
    if (st)
        return st;
    if (action) {
        wefti_policy_ask(p, identity, action, name, &v);
        wefti_opts_write(verdict_out, &v, sizeof v);
    }
    wefti_policy_free(p);
    return WEFT_OK;
}

const char *weft_may_name(weft_may_t action)
{
    return wefti_may_name(action);
}
