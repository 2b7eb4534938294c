/* fabric/tls/resume.c - those who have met before by their certificates meet faster: without signatures, and without the
 * certificates on the way.
 *
 * After a handshake the listener gives the dialler a ticket: the name of a secret that both keep, in memory alone. The dialler
 * shows it the next time, and new keys are agreed on as ever (ECDHE). A ticket is good for an hour after the certificates were
 * shown, as often as it is wanted; a meeting by a ticket gives no other. So nobody lives on tickets: an hour later the private
 * key is proved again.
 *
 * What each knows of the other is the certificate from then, which is judged anew before a ticket is shown and before it is
 * taken: by the host that is dialled, by the time, by the lists of revoked ones. One that is not believed is forgotten, and the
 * handshake is a whole one. When a file of ours changes, all are forgotten.
 *
 * A guard keeps the latest MOST of both kinds, dialled and come: so much of its memory can a peer take who comes again and again.
 *
 * Promise: a ticket saves work, and changes no verdict. tests/wire/tls_resume.c. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/fabric.h"
#include "fabric/tls/internal.h"

#define LASTS (3600 * WEFT_SECOND)
enum { MOST = 1024 };

typedef struct met {
    wefti_list_t link;
    SSL_SESSION *session;
    tls_peer_t peer;
    uint64_t since;
    int side;
    size_t n;
    uint8_t by[]; /* what it is found by: "host:port" for who dials, the ticket for who listens */
} met_t;

static void forget(wefti_guard_t *g, met_t *m)
{
    wefti_list_remove(&m->link);
    g->n_met--;
    wefti_ssl.SSL_SESSION_free(m->session);
    wefti_tls_peer_free(&m->peer);
    wefti_free(m);
}

void wefti_tls_forget(wefti_guard_t *g)
{
    while (!wefti_list_empty(&g->met))
        forget(g, wefti_container_of(wefti_list_first(&g->met), met_t, link));
}

static met_t *find(wefti_guard_t *g, int side, const void *by, size_t n)
{
    wefti_list_each_safe(it, &g->met) {
        met_t *m = wefti_container_of(it, met_t, link);
        if (m->side != side || m->n != n || memcmp(m->by, by, n))
            continue;
        if (wefti_clock_ns() - m->since < LASTS)
            return m;
        forget(g, m);
    }
    return NULL;
}

/* The files have changed since its handshake began. */
static bool is_of_earlier_files(const wefti_guard_t *g, const SSL *ssl)
{
    return wefti_ssl.SSL_get_SSL_CTX(ssl) != g->wires;
}

/* What is kept is a copy, and so is what is used: OpenSSL spoils a session whose connection is lost, or gets another ticket. */
static void keep(tls_stream_t *s, SSL *ssl, SSL_SESSION *session, const void *by, size_t n)
{
    wefti_guard_t *g = s->guard;
    met_t *m = wefti_calloc(1, sizeof *m + n), *old;
    if (!m)
        return;
    m->session = wefti_ssl.SSL_SESSION_dup(session);
    if (!m->session || !wefti_tls_peer(ssl, &m->peer)) {
        wefti_ssl.SSL_SESSION_free(m->session); /* NULL is allowed */
        wefti_free(m);
        return;
    }
    m->since = wefti_clock_ns();
    m->side = s->side;
    m->n = n;
    memcpy(m->by, by, n);
    pthread_mutex_lock(&g->lock);
    if ((old = find(g, m->side, by, n)))
        forget(g, old);
    if (g->n_met == MOST)
        forget(g, wefti_container_of(g->met.prev, met_t, link));
    wefti_list_push_front(&g->met, &m->link);
    g->n_met++;
    if (is_of_earlier_files(g, ssl))
        forget(g, m);
    pthread_mutex_unlock(&g->lock);
}

/* OpenSSL: there is a ticket, made here or given to us. */
static int ticket(SSL *ssl, SSL_SESSION *session)
{
    tls_stream_t *s = tls_stream_of(ssl);
    unsigned n = 0;
    const unsigned char *id = wefti_ssl.SSL_SESSION_get_id(session, &n);
    if (wefti_ssl.SSL_session_reused(ssl))
        return 0;
    if (s->side == WEFTI_SIDE_LISTENER)
        keep(s, ssl, session, id, n);
    else if (s->whom)
        keep(s, ssl, session, s->whom, strlen(s->whom));
    tls_left_nothing(); /* OpenSSL is in the middle of something else, of which it would seem to be an error */
    return 0;           /* OpenSSL's share of it stays OpenSSL's */
}

/* A copy of the session, if who is meant is still believed. */
static SSL_SESSION *again(tls_stream_t *s, SSL *ssl, const void *by, size_t n)
{
    wefti_guard_t *g = s->guard;
    SSL_SESSION *session = NULL;
    pthread_mutex_lock(&g->lock);
    met_t *m = is_of_earlier_files(g, ssl) ? NULL : find(g, s->side, by, n);
    if (m && wefti_tls_believe(&m->peer, g->wires, s->side, ssl)) {
        wefti_info("tls: who was met before shows a certificate again: %s", weft_last_error());
        forget(g, m);
        m = NULL;
    }
    if (m) {
        session = wefti_ssl.SSL_SESSION_dup(m->session);
        wefti_list_remove(&m->link);
        wefti_list_push_front(&g->met, &m->link);
    }
    pthread_mutex_unlock(&g->lock);
    tls_left_nothing(); /* as in ticket() */
    return session;
}

/* OpenSSL: somebody shows a ticket. */
static SSL_SESSION *shown(SSL *ssl, const unsigned char *id, int n, int *copy)
{
    tls_stream_t *s = tls_stream_of(ssl);
    SSL_SESSION *session = s->side == WEFTI_SIDE_LISTENER && n > 0 ? again(s, ssl, id, (size_t)n) : NULL;
    if (session)
        wefti_ssl.SSL_set_num_tickets(ssl, 0);
    *copy = 0;
    return session;
}

void wefti_tls_resume(tls_stream_t *s, const char *host, uint16_t port)
{
    size_t cap = strlen(host) + sizeof ":65535";
    s->whom = wefti_malloc(cap);
    if (!s->whom)
        return; /* they meet as if for the first time */
    snprintf(s->whom, cap, "%s:%u", host, port);
    SSL_SESSION *session = again(s, s->ssl, s->whom, strlen(s->whom));
    if (!session)
        return;
    (void)wefti_ssl.SSL_set_session(s->ssl, session);
    wefti_ssl.SSL_SESSION_free(session);
}

void wefti_tls_resumable(SSL_CTX *c)
{
    wefti_ssl.SSL_CTX_ctrl(c, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_BOTH | SSL_SESS_CACHE_NO_INTERNAL, NULL);
    wefti_ssl.SSL_CTX_set_timeout(c, (long)(LASTS / WEFT_SECOND));
    wefti_ssl.SSL_CTX_set_num_tickets(c, 1);
    wefti_ssl.SSL_CTX_sess_set_new_cb(c, ticket);
    wefti_ssl.SSL_CTX_sess_set_get_cb(c, shown);
}
