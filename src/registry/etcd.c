/* registry/etcd.c - etcd://HOST[:PORT][,HOST...]: a registry in etcd, over its JSON gateway.
 *
 * All our entries are under one lease, which is kept alive at a third of its time; they disappear together when this process
 * has been gone for that long. The lease says whose an entry is: we make one if the key is not there, and change or remove it
 * if it is under our lease; otherwise it is another's. All three are transactions, so a request whose answer was lost may be
 * sent again.
 *
 *     no lease --granted--> lease --etcd does not know it any more--> no lease: our entries are entered again
 *
 * With each keep-alive we ask which keys are under the lease, and put back what someone deleted. An entry that could not be
 * removed because etcd was out of reach is owed: it is removed when etcd is back, or goes with the lease.
 *
 * When no host answers, nothing is tried for a while, 50 ms at first and a second in the end, so that neither a thousand entries
 * nor a close wait a thousand times. Watches keep what they know (etcd_watch.c).
 *
 * Promise: every call returns within seconds, whatever etcd does. tests/wire/registry_etcd.c, tests/fault/registry_etcd.c,
 * tests/fault/registry_etcd_hostile.c. */
#include "registry/etcd.h"

#include <assert.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/clock.h"

#define QUIET_NS (2 * WEFT_SECOND)
#define ASK_NS (3 * WEFT_SECOND)
#define LIST_NS (5 * WEFT_SECOND)
#define PART_NS WEFT_SECOND
#define PAUSE_MIN_NS (50 * WEFT_MILLISECOND)
#define PAUSE_MAX_NS WEFT_SECOND
enum { TRIES = 4, PAGE = 512, DEFAULT_PORT = 2379 };
/* gRPC's numbers */
enum { CODE_NOTFOUND = 5, CODE_DENIED = 7, CODE_EXHAUSTED = 8, CODE_OUT_OF_RANGE = 11, CODE_UNAUTHENTICATED = 16 };

const char wefti_etcd_path_range[] = "/v3/kv/range";
static const char path_txn[] = "/v3/kv/txn", path_grant[] = "/v3/lease/grant", path_keep[] = "/v3/lease/keepalive",
                  path_revoke[] = "/v3/lease/revoke", path_under[] = "/v3/lease/timetolive";

/* --- asking ------------------------------------------------------------------------------------------------------------ */

/* Log a trouble, rarely; and, later, that requests of that kind succeed again. Gives st. */
static weft_status_t trouble(etcd_t *e, weft_status_t st, const char *path, const char *why)
{
    wefti_reg_complain(e->registry, why);
    snprintf(e->why, sizeof e->why, "%s", why);
    e->bad_path = path;
    return st;
}

/* No host answers. */
static weft_status_t is_down(etcd_t *e, weft_status_t st, const char *path, const char *why)
{
    wefti_reg_pause(&e->pause, &e->rng, PAUSE_MIN_NS, PAUSE_MAX_NS);
    e->down = st;
    wefti_reg_http_stream_end(e->http); /* it is of no use either */
    e->doubt = true;
    return trouble(e, st, path, why);
}

/* The status of an answer that is a refusal. */
static weft_status_t refusal(etcd_t *e, const char *path, const reg_http_reply_t *got, const etcd_reply_t *r, bool readable)
{
    char why[sizeof e->why];
    if (readable && r->code == CODE_NOTFOUND)
        return WEFT_ERR_NOTFOUND;
    if (readable && r->code == CODE_OUT_OF_RANGE)
        return WEFT_ERR_STALE;
    if (readable && r->code == CODE_EXHAUSTED && strstr(r->message, "larger than max"))
        return WEFT_ERR_TRUNCATED;
    bool denied = readable && (r->code == CODE_DENIED || r->code == CODE_UNAUTHENTICATED);
    snprintf(why, sizeof why, "%s %s (%ld%s%s)", e->hosts[e->at], denied ? "may not be used" : "refuses", got->code,
             readable && *r->message ? ": " : "", readable ? r->message : "");
    if (readable && (denied || r->code == CODE_EXHAUSTED)) { /* it works, but not for this kind of request */
        weft_status_t st = denied ? WEFT_ERR_UNREACHABLE : WEFT_ERR_LIMIT;
        if (path == path_txn || path == path_grant) {
            e->full_until = wefti_clock_ns() + PAUSE_MAX_NS;
            e->full = st;
        }
        return trouble(e, st, path, why);
    }
    return is_down(e, WEFT_ERR_UNREACHABLE, path, why);
}

weft_status_t wefti_etcd_ask(etcd_t *e, const char *path, size_t n, uint64_t ns, etcd_kv_fn fn, void *user,
                             etcd_reply_t *reply_out)
{
    char url[320], why[sizeof e->why];
    reg_http_reply_t got = {0, NULL, 0, false};
    uint64_t now = wefti_clock_ns();
    reg_http_limits_t limits = {QUIET_NS < ns ? QUIET_NS : ns, now + ns, ETCD_REPLY_MAX};
    weft_status_t st = WEFT_ERR_UNREACHABLE;
    assert(e->n_hosts);
    if (now < e->pause.until)
        return e->down;
    for (unsigned tries = 0; tries < e->n_hosts && st != WEFT_OK && wefti_clock_ns() < limits.end; tries++) {
        if (tries)
            e->at = (e->at + 1) % e->n_hosts;
        snprintf(url, sizeof url, "%s%s", e->hosts[e->at], path);
        st = wefti_reg_http_post(e->http, url, e->body, n, &limits, &got);
        if (st == WEFT_ERR_NOMEM || st == WEFT_ERR_TRUNCATED)
            return st;
    }
    if (st) {
        snprintf(why, sizeof why, "cannot ask %s: %s", e->hosts[e->at], wefti_reg_http_why(e->http));
        e->at = (e->at + 1) % e->n_hosts;
        return is_down(e, st == WEFT_ERR_LIMIT ? st : WEFT_ERR_UNREACHABLE, path, why);
    }
    st = wefti_etcd_read(got.body, got.n, got.code == 200 ? fn : NULL, user, reply_out);
    reply_out->fresh = got.fresh;
    if (got.code != 200 || (!st && reply_out->failed))
        return refusal(e, path, &got, reply_out, !st);
    if (st == WEFT_ERR_PROTOCOL) {
        snprintf(why, sizeof why, "%s gives an answer that is none of etcd's", e->hosts[e->at]);
        e->at = (e->at + 1) % e->n_hosts;
        return is_down(e, WEFT_ERR_UNREACHABLE, path, why);
    }
    e->pause.ns = 0;
    e->heard = now;
    if (e->bad_path == path && *e->why) {
        wefti_info("the registry %s is well again", e->registry->uri);
        *e->why = 0;
    }
    return st;
}

/* For requests that cannot be answered by "not found": such an answer makes no sense. */
static weft_status_t odd(etcd_t *e, weft_status_t st, const char *path)
{
    bool is = st == WEFT_ERR_NOTFOUND || st == WEFT_ERR_STALE || st == WEFT_ERR_TRUNCATED || st == WEFT_ERR_PROTOCOL;
    return is ? is_down(e, WEFT_ERR_UNREACHABLE, path, "it gives an answer that makes no sense") : st;
}

/* --- the lease --------------------------------------------------------------------------------------------------------- */

static void forget_owed(etcd_t *e)
{
    for (wefti_list_t *l; (l = wefti_list_pop(&e->owed));)
        wefti_reg_own_free(wefti_container_of(l, reg_own_t, link));
}

/* All that is under the lease is lost with it. */
static void lost(etcd_t *e)
{
    e->lease = 0;
    wefti_list_each(l, &e->registry->ours) {
        reg_own_t *own = wefti_container_of(l, reg_own_t, link);
        own->held = NULL;
        own->sure = false;
    }
    forget_owed(e);
}

static weft_status_t see_key(const etcd_kv_t *kv, void *user)
{
    etcd_t *e = (etcd_t *)user;
    reg_own_t *own = kv->service ? wefti_reg_own_find(&e->registry->ours, kv->service, kv->instance) : NULL;
    if (own && own->held)
        own->sure = true;
    return WEFT_OK;
}

/* Are all of ours there? keep() enters those again that are not. */
static weft_status_t check_keys(etcd_t *e)
{
    etcd_reply_t r;
    size_t sure = 0;
    wefti_list_each(l, &e->registry->ours)
        sure += wefti_container_of(l, reg_own_t, link)->sure;
    if (!sure)
        return WEFT_OK;
    weft_status_t st = wefti_etcd_ask(e, path_under, wefti_etcd_lease(e->body, e->lease, true), ASK_NS, NULL, NULL, &r);
    if (st || (r.keys == sure && wefti_list_empty(&e->owed)))
        return st;
    wefti_list_each(l, &e->registry->ours)
        wefti_container_of(l, reg_own_t, link)->sure = false;
    return wefti_etcd_ask(e, path_under, wefti_etcd_lease(e->body, e->lease, true), ASK_NS, see_key, e, &r);
}

static weft_status_t take_away(etcd_t *e, const reg_own_t *own)
{
    etcd_reply_t r;
    size_t n = wefti_etcd_delete(e->body, own->entry->service, own->entry->instance, e->lease);
    weft_status_t st = wefti_etcd_ask(e, path_txn, n, ASK_NS, NULL, NULL, &r);
    return st == WEFT_ERR_NOTFOUND ? WEFT_OK : st;
}

static void take_away_owed(etcd_t *e)
{
    while (!wefti_list_empty(&e->owed)) {
        reg_own_t *own = wefti_container_of(e->owed.next, reg_own_t, link);
        if (take_away(e, own))
            return;
        wefti_list_remove(&own->link);
        wefti_reg_own_free(own);
    }
}

/* Make sure that there is a lease, and that it does not end soon. */
static weft_status_t upkeep(etcd_t *e)
{
    etcd_reply_t r;
    uint64_t now = wefti_clock_ns();
    weft_status_t st;
    if (e->lease && now - e->kept < e->ttl_ns / 3)
        return WEFT_OK;
    if (e->lease) {
        st = wefti_etcd_ask(e, path_keep, wefti_etcd_lease(e->body, e->lease, false), ASK_NS, NULL, NULL, &r);
        if (!st && r.ttl > 0) {
            e->kept = now;
            st = odd(e, check_keys(e), path_under);
            if (!st)
                take_away_owed(e);
            return st;
        }
        if (st && st != WEFT_ERR_NOTFOUND)
            return odd(e, st, path_keep);
        lost(e);
    }
    if (now < e->full_until)
        return e->full;
    st = wefti_etcd_ask(e, path_grant, wefti_etcd_grant(e->body, e->lease_s), ASK_NS, NULL, NULL, &r);
    if (!st && (r.id <= 0 || r.ttl <= 0))
        st = WEFT_ERR_PROTOCOL;
    if (st)
        return odd(e, st, path_grant);
    e->lease = r.id;
    e->ttl_ns = (uint64_t)(r.ttl > 86400 ? 86400 : r.ttl) * WEFT_SECOND;
    e->kept = now;
    return WEFT_OK;
}

/* --- entries ----------------------------------------------------------------------------------------------------------- */

/* It is wanted again before it was taken away. */
static void take_back(etcd_t *e, reg_own_t *own)
{
    reg_own_t *owed = wefti_reg_own_find(&e->owed, own->entry->service, own->entry->instance);
    if (!owed)
        return;
    own->held = owed->held;
    own->sure = owed->sure;
    wefti_list_remove(&owed->link);
    wefti_reg_own_free(owed);
}

static weft_status_t etcd_enter(void *backend, reg_own_t *own)
{
    etcd_t *e = (etcd_t *)backend;
    bool mine = false;
    take_back(e, own);
    for (int tries = 0; tries < TRIES; tries++) {
        etcd_reply_t r;
        weft_status_t st = upkeep(e);
        if (st)
            return st;
        if (wefti_clock_ns() < e->full_until)
            return e->full;
        if (!tries)
            mine = own->sure;
        size_t n = wefti_etcd_put(e->body, own->entry, e->lease, mine);
        if (!n)
            return WEFT_ERR_NOMEM;
        own->held = own; /* from here on it may be there, even if the answer is lost */
        st = wefti_etcd_ask(e, path_txn, n, ASK_NS, NULL, NULL, &r);
        if (st == WEFT_ERR_NOTFOUND) { /* there is no such lease */
            lost(e);
            mine = false;
            continue;
        }
        if (st)
            return odd(e, st, path_txn);
        if (r.succeeded) {
            own->sure = true;
            return WEFT_OK;
        }
        own->sure = false;
        mine = r.keys != 0;
        if (mine && r.lease != e->lease)
            return WEFT_ERR_STATE;
    }
    return is_down(e, WEFT_ERR_UNREACHABLE, path_txn, "an entry is neither taken nor refused");
}

static bool etcd_leave(void *backend, reg_own_t *own)
{
    etcd_t *e = (etcd_t *)backend;
    if (!e->lease || !own->held || !take_away(e, own) || !own->held) /* a lease that was lost meanwhile took it along */
        return true;
    wefti_list_push_back(&e->owed, &own->link);
    return false;
}

static weft_status_t etcd_renew(void *backend, wefti_list_t *ours)
{
    (void)ours;
    return upkeep((etcd_t *)backend);
}

static weft_status_t etcd_keep(void *backend, reg_own_t *own)
{
    return own->sure ? WEFT_OK : etcd_enter(backend, own);
}

/* Revoking the lease removes all of ours at once. */
static void etcd_leave_all(void *backend, wefti_list_t *ours)
{
    etcd_t *e = (etcd_t *)backend;
    etcd_reply_t r;
    if (e->lease && (!wefti_list_empty(ours) || !wefti_list_empty(&e->owed)) &&
        wefti_etcd_ask(e, path_revoke, wefti_etcd_lease(e->body, e->lease, false), PART_NS, NULL, NULL, &r))
        wefti_debug("the registry %s: our entries stay until their lease is over", e->registry->uri);
    lost(e);
}

/* --- all there is ------------------------------------------------------------------------------------------------------ */

typedef struct gathered {
    reg_found_t *found;
    size_t bytes;
} gathered_t;

static void trim(gathered_t *g, size_t n, size_t bytes)
{
    while (g->found->n > n)
        wefti_reg_entry_unref(g->found->at[--g->found->n]);
    g->bytes = bytes;
}

static weft_status_t gather(const etcd_kv_t *kv, void *user)
{
    gathered_t *g = (gathered_t *)user;
    if (!kv->entry)
        return WEFT_OK;
    g->bytes += kv->bytes;
    if (g->found->n >= ETCD_ENTRIES_MAX || g->bytes > ETCD_ALL_MAX)
        return WEFT_ERR_LIMIT;
    return wefti_reg_found_add(g->found, wefti_reg_entry_ref(kv->entry));
}

weft_status_t wefti_etcd_all(etcd_t *e, reg_found_t *found, int64_t *revision_out)
{
    gathered_t g = {found, 0};
    etcd_reply_t r = {.start = ETCD_PREFIX, .start_len = sizeof ETCD_PREFIX - 1};
    const char *path = wefti_etcd_path_range;
    unsigned limit = PAGE, again = 0;
    int64_t revision = 0;
    uint64_t end = wefti_clock_ns() + LIST_NS;
    for (;;) {
        size_t had = found->n, had_bytes = g.bytes;
        etcd_reply_t next;
        uint64_t now = wefti_clock_ns();
        if (now >= end)
            return is_down(e, WEFT_ERR_UNREACHABLE, path, "it takes too long to say what there is");
        size_t n = wefti_etcd_range(e->body, r.start, r.start_len, limit, revision);
        weft_status_t st = wefti_etcd_ask(e, path, n, end - now, gather, &g, &next);
        if (st == WEFT_ERR_TRUNCATED && limit > 1) {
            trim(&g, had, had_bytes);
            limit /= 8;
            continue;
        }
        if (st == WEFT_ERR_STALE && again++ < TRIES) { /* etcd has compacted the revision that we read */
            trim(&g, 0, 0);
            revision = 0;
            r.start_len = sizeof ETCD_PREFIX - 1;
            memcpy(r.start, ETCD_PREFIX, r.start_len);
            continue;
        }
        if (st == WEFT_ERR_TRUNCATED)
            return trouble(e, WEFT_ERR_LIMIT, path, "it has a value under " ETCD_PREFIX " that is longer than 3 MB; remove it");
        if (st == WEFT_ERR_LIMIT && (found->n >= ETCD_ENTRIES_MAX || g.bytes > ETCD_ALL_MAX))
            return trouble(e, st, path, "it has more entries than a registry may have");
        if (st)
            return odd(e, st, path);
        if (!revision)
            revision = next.revision;
        if (!next.more || !next.start_len || revision <= 0)
            break;
        r = next;
    }
    if (revision <= 0)
        return is_down(e, WEFT_ERR_UNREACHABLE, path, "it does not say as of when its answer is");
    *revision_out = revision;
    return WEFT_OK;
}

static weft_status_t etcd_list(void *backend, reg_found_t *found)
{
    int64_t revision;
    return wefti_etcd_all((etcd_t *)backend, found, &revision);
}

/* --- opening and closing ----------------------------------------------------------------------------------------------- */

static void etcd_close(void *backend)
{
    etcd_t *e = (etcd_t *)backend;
    wefti_etcd_watch_end(e);
    forget_owed(e);
    wefti_reg_http_free(e->http);
    for (unsigned i = 0; i < e->n_hosts; i++)
        wefti_free(e->hosts[i]);
    wefti_free(e);
}

/* "host", "host:port", "[v6]", "[v6]:port" to "http://host:port". */
static weft_status_t add_host(etcd_t *e, const char *scheme, const char *part, size_t n)
{
    char host[600], name[300];
    wefti_uri_t uri;
    if (e->n_hosts == ETCD_HOSTS_MAX)
        return wefti_fail(WEFT_ERR_INVALID, "at most %d hosts of etcd can be named", ETCD_HOSTS_MAX);
    weft_status_t st = wefti_reg_host(part, n, DEFAULT_PORT, &uri);
    if (st)
        return st;
    const char *zone = strchr(uri.host, '%');
    if (zone)
        snprintf(name, sizeof name, "[%.*s%%25%s]", (int)(zone - uri.host), uri.host, zone + 1);
    else
        snprintf(name, sizeof name, strchr(uri.host, ':') ? "[%s]" : "%s", uri.host);
    snprintf(host, sizeof host, "%s://%s:%u", scheme, name, (unsigned)uri.port);
    e->hosts[e->n_hosts] = wefti_strdup(host);
    if (!e->hosts[e->n_hosts])
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    e->n_hosts++;
    return WEFT_OK;
}

static weft_status_t etcd_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    bool https = registry->ops == &wefti_reg_etcds;
    const char *ca = registry->rt->config.registry_ca;
    weft_status_t st = WEFT_OK;
    if (!*rest)
        return wefti_fail(WEFT_ERR_INVALID, "write etcd://HOST[:PORT], or several hosts of one etcd with commas between them");
    etcd_t *e = (etcd_t *)wefti_calloc(1, sizeof *e);
    if (!e)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    e->registry = registry;
    e->lease_s = (registry->lease_ns + WEFT_SECOND - 1) / WEFT_SECOND;
    wefti_list_init(&e->owed);
    if (getrandom(&e->rng, sizeof e->rng, 0) != (ssize_t)sizeof e->rng)
        e->rng.state = wefti_clock_ns();
    for (const char *part = rest; !st && part;) {
        size_t n = strcspn(part, ",");
        st = add_host(e, https ? "https" : "http", part, n);
        part = part[n] ? part + n + 1 : NULL;
    }
    if (!st)
        st = wefti_reg_http_new(https && ca && *ca ? ca : NULL, &e->http);
    if (st) {
        etcd_close(e);
        return st;
    }
    e->at = (unsigned)wefti_rng_below(&e->rng, e->n_hosts); /* spread the clients over the hosts */
    *backend_out = e;
    return WEFT_OK;
}

#define BACKEND \
    .open = etcd_open, .enter = etcd_enter, .leave = etcd_leave, .renew = etcd_renew, .keep = etcd_keep, .list = etcd_list, \
    .wait = wefti_etcd_wait, .close = etcd_close, .known = wefti_etcd_known, .leave_all = etcd_leave_all

const reg_backend_t wefti_reg_etcd = {.scheme = "etcd", BACKEND};
const reg_backend_t wefti_reg_etcds = {.scheme = "etcd+https", BACKEND};
