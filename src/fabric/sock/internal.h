/* fabric/sock/internal.h - what the files of sock share.
 *
 *   sock.c    the whole: opening, closing, what is told and freed between batches
 *   dial.c    a wire's way to being connected
 *   tls.c     TLS below the messages of a wire
 *   wire.c    messages on a connected wire
 *   beat.c    heartbeats on a connected wire, and the thread that sends and reads them
 *   acceptor.c listening and accepting */
#ifndef WEFTI_SOCK_INTERNAL_H
#define WEFTI_SOCK_INTERNAL_H

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/list.h"
#include "fabric/addr.h"
#include "fabric/pulse.h"
#include "fabric/sock/sock.h"

#define SOCK_MAGIC 0x31544657u       /* "WFT1", as a little-endian number */
#define SOCK_HEAD 8
#define SOCK_BEAT 'B'                /* a heartbeat: one byte where a message could begin */
#define SOCK_OUT_MAX (1u << 20)      /* bytes a peer may leave unread before it is given up */

typedef enum wire_state { WIRE_RESOLVING, WIRE_CONNECTING, WIRE_SECURING, WIRE_OPEN, WIRE_DEAD } wire_state_t;

typedef struct sock_wire {
    wefti_wire_t base;
    wefti_watch_t watch;
    wefti_sock_t *sock;
    wefti_list_t link;      /* sock->wires, or sock->dead */
    wefti_list_t todo_link; /* sock->todo */
    wire_state_t state;
    int fd;                 /* -1: none */
    uint32_t events;        /* what epoll watches for */
    weft_status_t end;      /* not OK: the wire is over, and sweep will say so */
    bool retry;             /* a Unix listener's queue was full: sweep tries again */
    uint64_t retry_until;

    /* dialling */
    wefti_lookup_t *job;
    wefti_addrs_t addrs;
    size_t next_addr;
    wefti_addr_t source;
    bool has_source;
    bool dialled;
    bool tls;               /* the one who answers must speak TLS, and be `host` */
    bool unasked;           /* it has TLS since the guard wants it; its address did not say so */
    bool either;            /* accepted: it speaks TLS or not, as its first byte says */
    char *host;
    uint16_t port;
    weft_status_t last;     /* what became of the address before */

    /* TLS (tls.c). Under the lock of beat.c where a wire beats */
    wefti_guard_t *guard;   /* what it proves with, its share; NULL: the runtime's */
    wefti_stream_t *stream; /* NULL: it has none; base.stream is the same, once the handshake is done */
    char *said;             /* why it failed */

    /* messages */
    uint8_t *in;            /* a message that has arrived in part, head included */
    size_t in_n, in_cap;
    uint8_t *out;           /* bytes the socket has not taken yet */
    size_t out_at, out_n, out_cap;

    /* heartbeats: under the lock of beat.c from wefti_sock_wire_beat() on, as are fd, in_n and out_n from then on */
    wefti_list_t beat_link; /* of all wires that beat */
    wefti_pulse_t pulse;
    bool beats;             /* it is, or was, on that list */
    bool by_hand;           /* the thread does not send */
    bool reading;           /* the driver is delivering what it read */
    bool heard;             /* the driver read something since the last tick */
    bool quiet;             /* the peer beats: the thread reads it, and the driver waits for its end only */
    weft_status_t verdict;  /* why the thread shut the socket down, or the driver ended the wire */
} sock_wire_t;

/* One bound address of an acceptor. */
typedef struct sock_listener {
    wefti_watch_t watch;
    wefti_acceptor_t *acceptor;    /* NULL: closed */
    int fd;
    wefti_list_t link;     /* the acceptor's, or sock->dead_listeners */
    bool paused;
} sock_listener_t;

struct wefti_sock {
    wefti_fabric_t *fabric;
    wefti_guard_t *guard;
    int epoll_fd;
    bool *look_now;         /* the fabric's: there will soon be an event */
    pid_t pid;              /* who opened it */
    int spare_fd;           /* closed to accept and turn away a newcomer when there are no descriptors left */
    uint64_t spare_said;    /* when that was last logged */
    wefti_list_t wires, acceptors;
    wefti_list_t todo;      /* wires with an end or a retry */
    wefti_list_t dead, dead_listeners; /* to free after the batch */
    uint64_t paused_until;  /* 0: no listener is paused (acceptor.c) */
    wefti_watch_t pause_watch;
    int pause_fd;           /* a timer that ends a sleep when the pause is over; -1: there was no acceptor yet */
    bool beats;             /* it holds the thread of beat.c */
    uint8_t scratch[SOCK_HEAD + WEFTI_WIRE_MAX];
};

/* sock.c */
sock_wire_t *wefti_wire_new(wefti_sock_t *s);
/* Told and freed by sweep. */
void wefti_wire_end(sock_wire_t *w, weft_status_t why);
/* Let go of everything at once; freed by sweep. */
void wefti_wire_kill(sock_wire_t *w);
weft_status_t wefti_sock_watch(wefti_sock_t *s, int fd, wefti_watch_t *w, uint32_t events);
void wefti_sock_unwatch(wefti_sock_t *s, int fd);
void wefti_sock_close_fd(wefti_sock_t *s, int fd);
void wefti_wire_want(sock_wire_t *w, uint32_t events);

/* tls.c */
#define SOCK_TLS_ALERT 21     /* the first byte of a connection that speaks TLS; none of ours */
#define SOCK_TLS_HANDSHAKE 22
/* What an accepted wire speaks: an event of one in WIRE_SECURING. True: it is open now. */
bool wefti_wire_answer(sock_wire_t *w);
/* Nobody asked for TLS: does the wire, which was dialled and is connected, have to have it? */
bool wefti_wire_must_secure(const sock_wire_t *w);
/* Is who was met over a Unix socket nobody that we could believe? Then the sentence says who, and what to do. */
bool wefti_wire_is_strange(int fd, const wefti_guard_t *g);
/* The same of a newcomer, who is told, and whose socket is closed then. */
bool wefti_wire_turn_away(int fd, const wefti_guard_t *g);
/* The other side speaks TLS and we do not, or we do and it does not. */
void wefti_wire_not_tls(sock_wire_t *w);
static inline wefti_guard_t *wefti_wire_guard(const sock_wire_t *w) { return w->guard ? w->guard : w->sock->guard; }
/* The socket is connected: the handshake begins. False: it could not, and the wire is over. */
bool wefti_wire_secure(sock_wire_t *w, int side);
/* The wire is over, and the last sentence says why. */
void wefti_wire_over(sock_wire_t *w, weft_status_t why);
/* An event of a wire in WIRE_SECURING. True: it is open now. */
bool wefti_wire_shake(sock_wire_t *w);
/* As send() and recv() do, through TLS where the wire has it. */
ssize_t wefti_wire_write(sock_wire_t *w, const void *bytes, size_t n);
ssize_t wefti_wire_take(sock_wire_t *w, void *buf, size_t n);
ssize_t wefti_wire_peek(sock_wire_t *w, void *buf, size_t n);

/* dial.c */
void wefti_dial_event(sock_wire_t *w);
void wefti_dial_next(sock_wire_t *w);

/* beat.c */
/* Heartbeats of this runtime's wires end: the last one joins the thread. */
void wefti_beats_drop(wefti_sock_t *s);
/* Around what the driver does to the socket or to the buffers of a wire that beats; free for others. */
void wefti_beat_lock(sock_wire_t *w);
void wefti_beat_unlock(sock_wire_t *w);
void wefti_beat_stop(sock_wire_t *w);
/* The driver read something, n beats of it. Under the lock. */
void wefti_beat_heard(sock_wire_t *w, size_t n);
/* What epoll should watch for on a wire that has nothing to write. */
uint32_t wefti_beat_events(const sock_wire_t *w);

/* wire.c */
void wefti_wire_event(wefti_watch_t *watch, uint32_t events);
void wefti_wire_socket_options(int fd, int family);
void wefti_wire_flush(sock_wire_t *w);

/* acceptor.c */
void wefti_acceptor_resume(wefti_sock_t *s);
wefti_acceptor_t *wefti_acceptor_of_link(wefti_list_t *link);

#endif
