/* tests/lib/between.c - see between.h. */
#include "between.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HEAD = 5, RECORD = HEAD + 16384 + 256, FEW = 64, FIRST = 2048 };

typedef struct half {
    uint8_t *in; /* a record that is not whole yet */
    size_t in_n, passed;
    uint8_t *kept; /* the record that its follower goes before */
    size_t kept_n;
    uint8_t *first; /* the first record under a key */
    size_t first_n;
    bool over;
} half_t;

typedef struct conn {
    int fd[2]; /* of the dialler, and of whom it dialled */
    half_t half[2];
    unsigned number;
    uint64_t era;
} conn_t;

static struct {
    pthread_mutex_t lock;
    pthread_mutex_t dials; /* of `to` alone: who dials shall not wait for who passes bytes */
    int fd[2];             /* listens: IPv4, IPv6 */
    uint16_t port[2];
    struct sockaddr_storage to[65536]; /* by the port that a connection comes from */
    between_plan_t plan;
    uint64_t era;
    unsigned conns;
    size_t seen[BETWEEN_CONNS][2];
    bool on, did, ended, harmless, halves;
    void (*fn)(const uint8_t *bytes, size_t n, unsigned from, void *user);
    void *user;
} b = {.lock = PTHREAD_MUTEX_INITIALIZER, .dials = PTHREAD_MUTEX_INITIALIZER};

static conn_t *conns[FEW];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* --- what the process calls ----------------------------------------------------------------------------------------------- */

static bool local_port(int fd, uint16_t *port)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (void *)&a, &n))
        return false;
    *port = ntohs(((struct sockaddr_in *)(void *)&a)->sin_port); /* where it is in IPv6's as well */
    return true;
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *a, socklen_t n)
{
    uint16_t port;
    if (a->sa_family != AF_INET && a->sa_family != AF_INET6)
        return (int)syscall(SYS_connect, fd, a, n);
    bool v6 = a->sa_family == AF_INET6;
    pthread_mutex_lock(&b.dials);
    if (!b.port[v6]) {
        pthread_mutex_unlock(&b.dials);
        return (int)syscall(SYS_connect, fd, a, n);
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(b.port[0]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(b.port[1]), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int rc = v6 ? (int)syscall(SYS_connect, fd, &to6, sizeof to6) : (int)syscall(SYS_connect, fd, &to, sizeof to);
    int err = errno;
    if ((!rc || err == EINPROGRESS) && local_port(fd, &port))
        memcpy(&b.to[port], a, n < sizeof *b.to ? n : sizeof *b.to);
    pthread_mutex_unlock(&b.dials);
    errno = err;
    return rc;
}

/* --- changes -------------------------------------------------------------------------------------------------------------- */

/* Of HALVES: the plan's connection for another one, and that one for it. NULL: this is neither, or there is none. */
static conn_t *in_place_of(const conn_t *c)
{
    unsigned other = b.plan.conn ? 0 : 1, wanted = c->number == other ? b.plan.conn : other;
    if (c->era != b.era || (c->number != b.plan.conn && c->number != other))
        return NULL;
    for (unsigned i = 0; i < FEW; i++)
        if (conns[i] && conns[i]->era == b.era && conns[i]->number == wanted)
            return conns[i];
    return NULL;
}

static void emit(conn_t *c, unsigned side, const uint8_t *at, size_t n)
{
    conn_t *to = b.halves ? in_place_of(c) : NULL;
    to = to ? to : c;
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(to->fd[!side], at + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0) {
            c->half[side].over = true;
            return;
        }
        done += (size_t)sent;
    }
}

static bool tells_nothing(const uint8_t *r, size_t at)
{
    size_t n = b.plan.n;
    switch (b.plan.what) {
    case BETWEEN_FLIP:
        return r[0] != 0x17 && (at == 1 || at == 2);
    case BETWEEN_TURN: /* of two bytes that are the same, or of the version alone */
        for (size_t i = 0; i < n / 2; i++)
            if (r[at + i] != r[at + n - 1 - i])
                return r[0] != 0x17 && at >= 1 && at + n <= 3;
        return true;
    case BETWEEN_DROP: /* all of it is a record */
        return r[0] == 0x14 && !at && n == HEAD + 1;
    case BETWEEN_RECORD_DROP:
    case BETWEEN_RECORD_REPEAT:
    case BETWEEN_RECORD_SWAP:
    case BETWEEN_RECORD_OLD:
    case BETWEEN_RECORD_OTHER:
    case BETWEEN_RECORD_BACK:
    case BETWEEN_REPEAT:
        return r[0] == 0x14;
    default:
        return false;
    }
}

static const half_t *another(const conn_t *c, unsigned side)
{
    for (unsigned i = 0; i < FEW; i++)
        if (conns[i] && conns[i] != c && conns[i]->era == b.era && conns[i]->half[side].first_n)
            return &conns[i]->half[side];
    return NULL;
}

/* False: this plan cannot be carried out here. */
static bool change(conn_t *c, unsigned side, uint8_t *r, size_t n, size_t at)
{
    static const uint8_t junk[16] = {0x17, 3, 3, 0, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    half_t *h = &c->half[side];
    const half_t *from;
    size_t few = b.plan.n < n - at ? b.plan.n : n - at;
    b.plan.n = few;
    b.harmless = tells_nothing(r, at);
    switch (b.plan.what) {
    case BETWEEN_FLIP:
        r[at] ^= (uint8_t)(1u << (b.plan.n % 8));
        break;
    case BETWEEN_DROP:
        emit(c, side, r, at);
        emit(c, side, r + at + few, n - at - few);
        return true;
    case BETWEEN_REPEAT:
        emit(c, side, r, at + few);
        emit(c, side, r + at, n - at);
        return true;
    case BETWEEN_TURN:
        for (size_t i = 0; i < few / 2; i++) {
            uint8_t t = r[at + i];
            r[at + i] = r[at + few - 1 - i];
            r[at + few - 1 - i] = t;
        }
        break;
    case BETWEEN_INSERT:
        emit(c, side, r, at);
        emit(c, side, junk, few < sizeof junk ? few : sizeof junk);
        emit(c, side, r + at, n - at);
        return true;
    case BETWEEN_CUT:
        emit(c, side, r, at);
        h->over = true;
        return true;
    case BETWEEN_RECORD_DROP:
        return true;
    case BETWEEN_RECORD_REPEAT:
        emit(c, side, r, n);
        break;
    case BETWEEN_RECORD_SWAP:
        h->kept = malloc(n);
        memcpy(h->kept, r, n);
        h->kept_n = n;
        return true;
    case BETWEEN_RECORD_SHORT:
        if (n < HEAD + 4)
            return false;
        n -= 1 + b.plan.n % 3;
        r[3] = (uint8_t)((n - HEAD) >> 8);
        r[4] = (uint8_t)(n - HEAD);
        break;
    case BETWEEN_RECORD_OLD:
        if (!h->first_n || h->passed < h->first_n)
            return false;
        emit(c, side, h->first, h->first_n);
        return true;
    case BETWEEN_RECORD_BACK:
        emit(c, !side, r, n);
        break;
    case BETWEEN_RECORD_OTHER:
        from = another(c, side);
        if (!from)
            return false;
        emit(c, side, from->first, from->first_n);
        return true;
    case BETWEEN_HALVES:
        if (!in_place_of(c))
            return false;
        b.halves = true;
        break;
    default:
        break;
    }
    emit(c, side, r, n);
    return true;
}

/* A record, or what there was of the last. */
static void passes(conn_t *c, unsigned side, uint8_t *r, size_t n)
{
    half_t *h = &c->half[side];
    bool counted = c->era == b.era && c->number < BETWEEN_CONNS;
    bool mine = counted && b.on && !b.did && b.plan.what && c->number == b.plan.conn && side == b.plan.side &&
                b.plan.at >= h->passed && b.plan.at < h->passed + n;
    if (mine && change(c, side, r, n, b.plan.at - h->passed))
        b.did = true;
    else
        emit(c, side, r, n);
    if (h->kept_n && !(mine && b.plan.what == BETWEEN_RECORD_SWAP)) {
        emit(c, side, h->kept, h->kept_n);
        b.harmless = b.harmless || r[0] == 0x14;
        h->kept_n = 0;
        free(h->kept);
        h->kept = NULL;
    }
    if (!h->first_n && n > HEAD && r[0] == 0x17 && n <= FIRST) {
        h->first = malloc(n);
        memcpy(h->first, r, n);
        h->first_n = n;
    }
    h->passed += n;
    if (counted)
        b.seen[c->number][side] = h->passed;
}

/* --- the thread ----------------------------------------------------------------------------------------------------------- */

static void came(conn_t *c, unsigned side)
{
    half_t *h = &c->half[side];
    ssize_t got = recv(c->fd[side], h->in + h->in_n, RECORD - h->in_n, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0 && b.fn) { /* it may be no TLS: nothing waits for a record to be whole */
        b.fn(h->in + h->in_n, (size_t)got, c->number * 2 + side, b.user);
        emit(c, side, h->in, h->in_n + (size_t)got);
        h->in_n = 0;
        return;
    }
    if (got > 0)
        h->in_n += (size_t)got;
    for (size_t n; h->in_n >= HEAD && !h->over; h->in_n -= n) {
        n = HEAD + (size_t)(h->in[3] << 8 | h->in[4]);
        if (n > RECORD)
            n = h->in_n; /* no record */
        if (h->in_n < n)
            break;
        uint8_t record[RECORD];
        memcpy(record, h->in, n);
        memmove(h->in, h->in + n, h->in_n - n);
        passes(c, side, record, n);
    }
    if (got <= 0) {
        if (h->in_n)
            emit(c, side, h->in, h->in_n);
        h->over = true;
    }
}

static void forget(unsigned i)
{
    conn_t *c = conns[i];
    b.ended = b.ended || (b.did && c->era == b.era && c->number == b.plan.conn);
    for (int side = 0; side < 2; side++) {
        close(c->fd[side]);
        free(c->half[side].in);
        free(c->half[side].kept);
        free(c->half[side].first);
    }
    free(c);
    conns[i] = NULL;
}

static void arrived(int v6)
{
    struct sockaddr_storage from, to;
    socklen_t n = sizeof from;
    int fd = accept4(b.fd[v6], (void *)&from, &n, SOCK_CLOEXEC);
    unsigned i = 0;
    if (fd < 0)
        return;
    pthread_mutex_lock(&b.dials);
    to = b.to[ntohs(((struct sockaddr_in *)(void *)&from)->sin_port)];
    pthread_mutex_unlock(&b.dials);
    int on = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (i < FEW && conns[i])
        i++;
    if (on < 0 || i == FEW ||
        syscall(SYS_connect, on, &to, to.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in))) {
        close(on);
        close(fd);
        return;
    }
    int now = 1; /* and not when the last was acknowledged */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
    setsockopt(on, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
    conn_t *c = calloc(1, sizeof *c);
    *c = (conn_t){.fd = {fd, on}, .number = b.conns++, .era = b.era};
    for (int side = 0; side < 2; side++)
        c->half[side].in = malloc(RECORD);
    conns[i] = c;
}

static void *between(void *arg)
{
    (void)arg;
    for (;;) {
        struct pollfd p[2 * FEW + 3] = {{b.fd[0], POLLIN, 0}, {b.fd[1], POLLIN, 0}};
        unsigned of[2 * FEW + 3], n = 2;
        for (unsigned i = 0; i < FEW; i++)
            for (unsigned side = 0; conns[i] && side < 2; side++) {
                of[n] = i * 2 + side;
                p[n++] = (struct pollfd){conns[i]->fd[side], POLLIN, 0};
            }
        if (poll(p, n, -1) < 0)
            continue;
        pthread_mutex_lock(&b.lock);
        for (int v6 = 0; v6 < 2; v6++)
            if (p[v6].revents)
                arrived(v6);
        for (unsigned k = 2; k < n; k++)
            if (p[k].revents)
                came(conns[of[k] / 2], of[k] % 2);
        for (unsigned i = 0; i < FEW; i++)
            if (conns[i] && (conns[i]->half[0].over || conns[i]->half[1].over))
                forget(i);
        pthread_mutex_unlock(&b.lock);
    }
    return NULL;
}

static void begin(void)
{
    pthread_t t;
    for (int v6 = 0; v6 < 2; v6++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        b.fd[v6] = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (b.fd[v6] >= 0 && !bind(b.fd[v6], v6 ? (void *)&a6 : (void *)&a, v6 ? sizeof a6 : sizeof a) && !listen(b.fd[v6], 64))
            local_port(b.fd[v6], &b.port[v6]);
        else if (!v6)
            die("a port for who is between");
    }
    if (pthread_create(&t, NULL, between, NULL))
        die("a thread for who is between");
}

/* --- for tests ------------------------------------------------------------------------------------------------------------ */

void between_plan(const between_plan_t *plan)
{
    pthread_mutex_lock(&b.lock);
    if (!b.port[0])
        begin();
    b.plan = *plan;
    b.era++;
    b.conns = 0;
    memset(b.seen, 0, sizeof b.seen);
    b.on = true;
    b.did = b.ended = b.harmless = b.halves = false;
    pthread_mutex_unlock(&b.lock);
}

static bool under_lock(const bool *what)
{
    pthread_mutex_lock(&b.lock);
    bool is = *what;
    pthread_mutex_unlock(&b.lock);
    return is;
}

bool between_stop(void)
{
    pthread_mutex_lock(&b.lock);
    b.on = false;
    pthread_mutex_unlock(&b.lock);
    return between_did();
}

bool between_did(void)
{
    return under_lock(&b.did);
}

bool between_ended(void)
{
    return under_lock(&b.ended);
}

bool between_harmless(void)
{
    return under_lock(&b.harmless);
}

unsigned between_conns(void)
{
    pthread_mutex_lock(&b.lock);
    unsigned n = b.conns;
    pthread_mutex_unlock(&b.lock);
    return n < BETWEEN_CONNS ? n : BETWEEN_CONNS;
}

size_t between_seen(unsigned conn, unsigned side)
{
    pthread_mutex_lock(&b.lock);
    size_t n = b.seen[conn][side];
    pthread_mutex_unlock(&b.lock);
    return n;
}

const char *between_name(between_what_t what)
{
    static const char *const names[BETWEEN_WHATS] = {"nothing",
                                                     "a flipped bit",
                                                     "dropped bytes",
                                                     "repeated bytes",
                                                     "bytes in another order",
                                                     "more bytes",
                                                     "an end",
                                                     "a dropped record",
                                                     "a repeated record",
                                                     "two records in another order",
                                                     "a shorter record",
                                                     "an old record",
                                                     "a record that comes back",
                                                     "a record of another connection",
                                                     "halves of two connections"};
    return names[what];
}

const char *between_text(void)
{
    static char text[1000];
    pthread_mutex_lock(&b.lock);
    int n = snprintf(text, sizeof text, "%s, %zu at byte %zu of side %u of connection %u%s%s", between_name(b.plan.what),
                     b.plan.n, b.plan.at, b.plan.side, b.plan.conn, b.did ? "" : ", not yet", b.ended ? ", which is over" : "");
    for (unsigned i = 0; i < FEW; i++) /* what passed of those that are there, and parts of records that wait for the rest */
        if (conns[i] && conns[i]->era == b.era && (size_t)n < sizeof text)
            n += snprintf(text + n, sizeof text - (size_t)n, "; connection %u: %zu (%zu) and %zu (%zu)", conns[i]->number,
                          conns[i]->half[0].passed, conns[i]->half[0].in_n, conns[i]->half[1].passed, conns[i]->half[1].in_n);
    pthread_mutex_unlock(&b.lock);
    return text;
}

void between_listen(void (*fn)(const uint8_t *bytes, size_t n, unsigned from, void *user), void *user)
{
    pthread_mutex_lock(&b.lock);
    b.fn = fn;
    b.user = user;
    pthread_mutex_unlock(&b.lock);
}
