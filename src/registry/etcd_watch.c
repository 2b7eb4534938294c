/* registry/etcd_watch.c - what watches know of etcd: a list, and then the changes that etcd tells.
 *
 *     nothing --a list--> doubted --a stream from the list's revision on--> mirrored --change--> mirrored ...
 *     mirrored --the stream ended, was compacted away, made no sense; etcd is down or another--> doubted --a list--> ...
 *
 * Events up to the revision of the list are in the list already, and are left out. Without a stream, a look every second lists
 * everything. With one that is silent for three seconds, a small request finds out whether etcd is alive, and still the same: an
 * answer over a new connection, or of an earlier revision, comes from one that was restarted, maybe without its data.
 *
 * An etcd that comes back without its data shows nothing until all living processes have put their entries back. So what was
 * known before is kept for a few seconds, unless etcd says that it was deleted. When nobody has watched for a while the stream
 * ends.
 *
 * Promise: what is known is what etcd had at some revision, never an earlier one than before unless etcd itself went back.
 * tests/wire/registry_etcd.c, tests/fault/registry_etcd.c. */
#include <stdio.h>

#include "base/clock.h"
#include "registry/etcd.h"

#define PROBE_NS (3 * WEFT_SECOND)
#define BEFORE_NS (5 * WEFT_SECOND)
#define UNWATCHED_NS (3 * WEFT_SECOND)
#define STREAM_NS (3 * WEFT_SECOND)
#define PAUSE_MIN_NS (100 * WEFT_MILLISECOND)
#define PAUSE_MAX_NS (5 * WEFT_SECOND)

/* --- the mirror -------------------------------------------------------------------------------------------------------- */

/* Where it is, or would be. */
static size_t place_of(const reg_found_t *f, const char *service, const char *instance, bool *is_out)
{
    size_t low = 0, high = f->n;
    *is_out = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(f->at[mid]->service, service);
        if (!order)
            order = strcmp(f->at[mid]->instance, instance);
        if (!order) {
            *is_out = true;
            return mid;
        }
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void remove_at(reg_found_t *f, size_t at)
{
    wefti_reg_entry_unref(f->at[at]);
    memmove(f->at + at, f->at + at + 1, (--f->n - at) * sizeof *f->at);
}

static size_t size_of(const reg_entry_t *entry)
{
    return sizeof *entry + entry->data_len;
}

static size_t size_of_all(const reg_found_t *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += size_of(f->at[i]);
    return n;
}

static weft_status_t apply(const etcd_kv_t *kv, void *user)
{
    etcd_t *e = (etcd_t *)user;
    reg_found_t *f = e->mirror;
    bool is;
    if (kv->revision > e->line_revision)
        e->line_revision = kv->revision;
    if (!kv->service || kv->revision <= e->revision)
        return WEFT_OK;
    if (!kv->entry && e->before) {
        size_t was = place_of(e->before, kv->service, kv->instance, &is);
        if (is) { /* it was deleted, not just lost */
            remove_at(e->before, was);
            e->news = true;
        }
    }
    size_t at = place_of(f, kv->service, kv->instance, &is);
    if (!is && !kv->entry)
        return WEFT_OK;
    e->news = true;
    if (is)
        e->mirror_bytes -= size_of(f->at[at]);
    if (!kv->entry) {
        remove_at(f, at);
        return WEFT_OK;
    }
    e->mirror_bytes += size_of(kv->entry);
    if (f->n >= ETCD_ENTRIES_MAX || e->mirror_bytes > ETCD_ALL_MAX)
        return WEFT_ERR_LIMIT;
    if (is) {
        wefti_reg_entry_unref(f->at[at]);
        f->at[at] = wefti_reg_entry_ref(kv->entry);
        return WEFT_OK;
    }
    weft_status_t st = wefti_reg_found_add(f, wefti_reg_entry_ref(kv->entry));
    if (st)
        return st;
    reg_entry_t *last = f->at[f->n - 1];
    memmove(f->at + at + 1, f->at + at, (f->n - 1 - at) * sizeof *f->at);
    f->at[at] = last;
    return WEFT_OK;
}

/* --- the stream -------------------------------------------------------------------------------------------------------- */

/* False: list it all again. */
static bool take_line(etcd_t *e, char *line, size_t n)
{
    etcd_reply_t r;
    e->line_revision = 0;
    if (wefti_etcd_read(line, n, apply, e, &r) || r.failed || r.canceled || r.compacted)
        return false;
    if (e->line_revision > e->revision)
        e->revision = e->line_revision;
    return true;
}

/* Add bytes to the line. */
static bool add_to_line(etcd_t *e, const char *bytes, size_t n)
{
    if (n > ETCD_REPLY_MAX - e->line_n || !wefti_grow(&e->line, &e->line_cap, e->line_n + n, 1))
        return false;
    if (n)
        memcpy(e->line + e->line_n, bytes, n);
    e->line_n += n;
    return true;
}

static bool take_bytes(const char *bytes, size_t n, void *user)
{
    etcd_t *e = (etcd_t *)user;
    bool good = true;
    e->heard = wefti_clock_ns();
    while (n && good) {
        const char *end = (const char *)memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        good = add_to_line(e, bytes, part);
        if (end && good) {
            size_t whole = e->line_n;
            e->line_n = 0;
            good = !whole || take_line(e, e->line, whole);
        }
        bytes += part + (end != NULL);
        n -= part + (end != NULL);
    }
    if (!good)
        e->doubt = true;
    return good;
}

static void drop_line(etcd_t *e)
{
    wefti_free(e->line);
    e->line = NULL;
    e->line_n = e->line_cap = 0;
}

static void stream_end(etcd_t *e)
{
    wefti_reg_http_stream_end(e->http);
    drop_line(e);
    e->streams = false;
    e->doubt = true;
}

/* The stream is over, and not because we ended it. */
static void stream_over(etcd_t *e)
{
    uint64_t now = wefti_clock_ns();
    stream_end(e);
    /* one that ends soon after it has begun is not begun again at once */
    if (now - e->stream_began > STREAM_NS)
        e->stream_pause = (reg_pause_t){0, 0};
    else
        wefti_reg_pause(&e->stream_pause, &e->rng, PAUSE_MIN_NS, PAUSE_MAX_NS);
}

static void stream_begin(etcd_t *e)
{
    char url[320];
    uint64_t now = wefti_clock_ns();
    if (now < e->stream_pause.until)
        return;
    wefti_etcd_watch(e->body, e->revision + 1);
    snprintf(url, sizeof url, "%s/v3/watch", e->hosts[e->at]);
    drop_line(e);
    e->stream_began = now;
    e->streams = !wefti_reg_http_stream(e->http, url, e->body, take_bytes, e);
}

static void forget_before(etcd_t *e)
{
    wefti_reg_found_unref(e->before);
    e->before = NULL;
}

void wefti_etcd_watch_end(etcd_t *e)
{
    if (e->http)
        stream_end(e);
    wefti_reg_found_unref(e->mirror);
    e->mirror = NULL;
    forget_before(e);
}

/* --- for the thread ---------------------------------------------------------------------------------------------------- */

static weft_status_t renew(etcd_t *e)
{
    int64_t revision;
    reg_found_t *f = wefti_reg_found_new();
    if (!f)
        return WEFT_ERR_NOMEM;
    wefti_reg_http_stream_end(e->http);
    e->streams = false;
    weft_status_t st = wefti_etcd_all(e, f, &revision);
    if (st) {
        wefti_reg_found_unref(f);
        return st;
    }
    wefti_reg_found_sort(f);
    forget_before(e); /* the etcd that answers now may have lost everything */
    e->before = e->mirror;
    e->before_until = wefti_clock_ns() + BEFORE_NS;
    e->mirror = f;
    e->mirror_bytes = size_of_all(f);
    e->revision = revision;
    e->doubt = false;
    stream_begin(e);
    return WEFT_OK;
}

/* Is etcd alive, and the one we know? */
static weft_status_t probe(etcd_t *e)
{
    etcd_reply_t r;
    weft_status_t st = wefti_etcd_ask(e, wefti_etcd_path_range, wefti_etcd_count(e->body), 2 * WEFT_SECOND, NULL, NULL, &r);
    if (!st && (r.fresh || r.revision < e->revision))
        e->doubt = true;
    return st;
}

weft_status_t wefti_etcd_known(void *backend, reg_found_t *found)
{
    etcd_t *e = (etcd_t *)backend;
    weft_status_t st = WEFT_OK;
    e->asked = wefti_clock_ns();
    if (e->streams && !wefti_reg_http_streaming(e->http))
        stream_over(e);
    if (e->mirror && !e->doubt && e->streams && e->asked - e->heard > PROBE_NS)
        st = probe(e);
    if (!st && (!e->mirror || e->doubt || !e->streams))
        st = renew(e);
    e->news = false;
    if (!st)
        st = wefti_reg_found_add_all(found, e->mirror);
    if (e->before && e->asked >= e->before_until)
        forget_before(e);
    for (size_t i = 0; !st && e->before && i < e->before->n; i++) {
        reg_entry_t *old = e->before->at[i];
        bool is;
        place_of(e->mirror, old->service, old->instance, &is);
        if (!is)
            st = wefti_reg_found_add(found, wefti_reg_entry_ref(old));
    }
    return st;
}

bool wefti_etcd_wait(void *backend, uint64_t ns)
{
    etcd_t *e = (etcd_t *)backend;
    uint64_t now = wefti_clock_ns();
    if (e->mirror && now - e->asked > UNWATCHED_NS)
        wefti_etcd_watch_end(e);
    if (e->mirror && ns > UNWATCHED_NS)
        ns = UNWATCHED_NS + 1; /* to see whether anyone still watches */
    if (!e->news && !(e->streams && !wefti_reg_http_streaming(e->http)))
        wefti_reg_http_wait(e->http, e->registry->wake_fd, wefti_reg_ms(ns));
    if (e->streams && !wefti_reg_http_streaming(e->http)) {
        stream_over(e);
        return true;
    }
    bool news = e->news;
    e->news = false; /* say it once: without a watch there is no known() to clear it */
    return news;
}
