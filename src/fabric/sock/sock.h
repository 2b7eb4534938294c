/* fabric/sock/sock.h - wires and acceptors over TCP and Unix sockets, for fabric/real.c only.
 *
 * The caller owns one epoll instance; every fd in it carries a wefti_watch_t as its data, and the caller calls watch->fn for
 * each event, then wefti_sock_sweep() once after each batch: what was closed during a batch is freed there, since a later event
 * of the same batch may still name it. */
#ifndef WEFTI_SOCK_H
#define WEFTI_SOCK_H

#include "fabric/fabric.h"
#include "fabric/tls.h"

typedef struct wefti_watch wefti_watch_t;
struct wefti_watch {
    void (*fn)(wefti_watch_t *w, uint32_t events);
};

typedef struct wefti_sock wefti_sock_t;

/* *look_now is set where there will soon be an event. `guard` is for tls://. WEFT_ERR_NOMEM, _LIMIT. */
weft_status_t wefti_sock_open(wefti_fabric_t *f, int epoll_fd, bool *look_now, wefti_guard_t *guard, wefti_sock_t **sock_out);
/* Closes what is still open, silently. */
void wefti_sock_close(wefti_sock_t *s);
/* Tell what no event will tell (a dial that failed at once), then free what was closed. Number of upcalls. */
unsigned wefti_sock_sweep(wefti_sock_t *s);
/* Would sweep have something to do? */
bool wefti_sock_pending(const wefti_sock_t *s);

/* The functions of fabric.h. */
weft_status_t wefti_sock_acceptor_open(wefti_sock_t *s, const wefti_uri_t *uri, wefti_guard_t *guard, unsigned backlog,
                                       void *user, wefti_acceptor_t **acceptor_out);
const char *wefti_sock_acceptor_uri(wefti_acceptor_t *acceptor);
void wefti_sock_acceptor_close(wefti_acceptor_t *acceptor);
weft_status_t wefti_sock_wire_dial(wefti_sock_t *s, const wefti_uri_t *uri, wefti_guard_t *guard, const char *source,
                                   void *user, wefti_wire_t **wire_out);
weft_status_t wefti_sock_wire_adopt(wefti_sock_t *s, const wefti_loose_t *loose, uint64_t source, wefti_wire_t **wire_out);
bool wefti_sock_wire_release(wefti_wire_t *wire, wefti_loose_t *loose_out);
void wefti_sock_wire_drop(const wefti_loose_t *loose);
weft_status_t wefti_sock_wire_send(wefti_wire_t *wire, const void *bytes, size_t n);
void wefti_sock_wire_close(wefti_wire_t *wire);
weft_status_t wefti_sock_wire_beat(wefti_wire_t *wire, uint64_t every_ns, bool by_hand);
void wefti_sock_wire_watch(wefti_wire_t *wire, uint64_t bound_ns);
void wefti_sock_wire_beat_once(wefti_wire_t *wire);

#endif
