/* fabric/tls/renew.c - files with certificates that change while a runtime is open, and peers that are not believed any more.
 *
 * Every guard that has files is on one list of the process, and whoever asks looks at all of them: a guard may be several
 * shards'. A guard looks at its files as well when it is about to meet somebody. New files make a new context of OpenSSL's; who
 * has the old one keeps it. Files that cannot be used are tried again at each look, for somebody may be writing them, or there
 * may be descriptors and memory by then; at the second look a sentence goes to the log, once for each change.
 *
 * A peer that was believed is judged again if there is a new context, by its certificate and those that it sent with it, but not
 * by their time: a connection may outlive a certificate that has expired, and whose peer has a new one by now.
 *
 * Promise: what cannot be used changes nothing. tests/wire/tls_renew.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include "fabric/tls/internal.h"

#define LOOK_EVERY (200 * WEFT_MILLISECOND)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* before that of a guard */
static wefti_list_t guards = {&guards, &guards};
static uint64_t changes;

/* A thread that is not here may have held the lock. The guards are those of runtimes that the child has not. */
static void in_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    wefti_list_init(&guards);
}

static void begin(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void wefti_tls_seen(wefti_guard_t *g)
{
    for (int i = 0; i < TLS_FILES; i++)
        if (g->file[i])
            (void)wefti_changed_look(&g->seen[i], g->file[i]);
    g->looked = wefti_clock_ns();
}

void wefti_tls_watch(wefti_guard_t *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!tls_has_files(g))
        return;
    (void)pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    wefti_list_push_back(&guards, &g->all);
    pthread_mutex_unlock(&lock);
}

void wefti_tls_unwatch(wefti_guard_t *g)
{
    pthread_mutex_lock(&lock);
    if (wefti_list_linked(&g->all))
        wefti_list_remove(&g->all);
    pthread_mutex_unlock(&lock);
}

/* Under the lock of g. True: it has something new. */
static bool look(wefti_guard_t *g)
{
    bool any = false;
    uint64_t now = wefti_clock_ns();
    if (now - g->looked < LOOK_EVERY)
        return false;
    g->looked = now;
    for (int i = 0; i < TLS_FILES; i++)
        any = (g->file[i] && wefti_changed_look(&g->seen[i], g->file[i])) || any;
    if (!any && !g->bad)
        return false;
    SSL_CTX *fresh;
    weft_status_t st = wefti_tls_read(g, &fresh);
    bool warns = st && g->bad && !any && !g->warned;
    g->warned = warns || (g->warned && !any);
    g->bad = st;
    if (st) {
        if (warns)
            wefti_warn("tls: the files with certificates have changed, and what was read before is still used: %s",
                       weft_last_error());
        return false;
    }
    wefti_ssl.SSL_CTX_free(g->wires);
    tls_left_nothing();
    g->wires = fresh;
    wefti_tls_forget(g); /* they met by what we were, and by what we believed then */
    wefti_info("tls: the files with certificates have changed: \"%s\" is used from now on", g->file[TLS_CERT]);
    return true;
}

void wefti_tls_look(wefti_guard_t *g)
{
    if (!tls_has_files(g))
        return;
    pthread_mutex_lock(&g->lock);
    bool news = look(g);
    pthread_mutex_unlock(&g->lock);
    if (!news)
        return;
    pthread_mutex_lock(&lock);
    changes++;
    pthread_mutex_unlock(&lock);
}

uint64_t wefti_guards_look(void)
{
    pthread_mutex_lock(&lock);
    wefti_list_each(it, &guards) {
        wefti_guard_t *g = wefti_container_of(it, wefti_guard_t, all);
        pthread_mutex_lock(&g->lock);
        changes += look(g);
        pthread_mutex_unlock(&g->lock);
    }
    uint64_t n = changes;
    pthread_mutex_unlock(&lock);
    return n;
}

weft_status_t wefti_stream_welcome(const wefti_stream_t *stream)
{
    const tls_stream_t *s = (const tls_stream_t *)(const void *)stream;
    if (!s->peer.cert)
        return WEFT_OK;
    SSL_CTX *wires = wefti_tls_wires(s->guard);
    /* what these very files say, they have said in the handshake */
    bool judged = wefti_ssl.SSL_get_SSL_CTX(s->ssl) == wires;
    weft_status_t st = judged ? WEFT_OK : wefti_tls_believe(&s->peer, wires, s->side, NULL);
    wefti_ssl.SSL_CTX_free(wires);
    tls_left_nothing();
    return st;
}
