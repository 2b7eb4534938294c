/* tests/wire/lib/lanes.c - see lanes.h. */
#include "lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double lanes_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void lanes_die(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: still not true: %s (%s)\n", file, line, what, weft_last_error());
    exit(1);
}

static void die(const char *what, weft_status_t st)
{
    fprintf(stderr, "lanes: %s: %s (%s)\n", what, weft_status_name(st), weft_last_error());
    exit(1);
}

static void need_progress(const lanes_side_t *s, const char *upcall)
{
    if (!s->in_progress || s->closed) {
        fprintf(stderr, "lanes: %s came %s\n", upcall, s->closed ? "after lane_closed" : "outside progress");
        exit(1);
    }
}

static void up_record(void *user, const void *rec, size_t n)
{
    lanes_side_t *s = user;
    need_progress(s, "record");
    s->records++;
    s->record_bytes += n;
    s->last_n = n;
    memcpy(s->last, rec, n < sizeof s->last ? n : sizeof s->last);
    if (s->on_record)
        s->on_record(s, rec, n);
}

static void up_announced(void *user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    lanes_side_t *s = user;
    need_progress(s, "announced");
    p->user = s;
    s->announced++;
    if (s->on_announced) {
        s->on_announced(s, rec, n, total, p);
        return;
    }
    lanes_offer_t *o = &s->offers[(s->announced - 1) % LANES_PULLS];
    if (o->p) {
        fprintf(stderr, "lanes: more than %d offers wait\n", LANES_PULLS);
        exit(1);
    }
    o->p = p;
    o->total = total;
    o->n = n;
    memcpy(o->rec, rec, n < sizeof o->rec ? n : sizeof o->rec);
}

static void up_withdrawn(wefti_pull_t *p)
{
    lanes_side_t *s = p->user;
    need_progress(s, "withdrawn");
    s->withdrawn++;
    if (s->on_withdrawn) {
        s->on_withdrawn(s, p);
        return;
    }
    for (unsigned i = 0; i < LANES_PULLS; i++) {
        if (s->offers[i].p == p) {
            s->offers[i].p = NULL;
            return;
        }
    }
    fprintf(stderr, "lanes: withdrawn: an offer we do not have\n");
    exit(1);
}

static void up_room(void *user)
{
    lanes_side_t *s = user;
    need_progress(s, "room");
    s->rooms++;
    if (s->on_room)
        s->on_room(s);
}

static void up_failed(void *user, weft_status_t why)
{
    lanes_side_t *s = user;
    need_progress(s, "lane_failed");
    s->failed++;
    s->why = why;
    if (s->failed > 1) {
        fprintf(stderr, "lanes: lane_failed twice\n");
        exit(1);
    }
}

static void up_closed(void *user)
{
    lanes_side_t *s = user;
    need_progress(s, "lane_closed");
    s->closed++;
}

static const wefti_fabric_up_t lanes_up = {
    .record = up_record,
    .announced = up_announced,
    .withdrawn = up_withdrawn,
    .space = up_room,
    .lane_failed = up_failed,
    .lane_closed = up_closed,
};

static void xfer_done(wefti_xfer_t *x, weft_status_t status)
{
    lanes_xfer_t *l = (lanes_xfer_t *)(void *)x;
    if (l->done++) {
        fprintf(stderr, "lanes: a transfer was done twice\n");
        exit(1);
    }
    l->status = status;
}

void lanes_xfer_init(lanes_xfer_t *x)
{
    memset(x, 0, sizeof *x);
    x->x.done = xfer_done;
}

void lanes_side_open(lanes_side_t *s, const char *transport, const char *transports)
{
    memset(s, 0, sizeof *s);
    weft_status_t st = wefti_config_read(&s->config);
    if (st)
        die("config", st);
    s->config.transports = transports ? transports : strcmp(transport, "ucx") ? transport : "ucx_tcp";
    st = wefti_fabric_open_real(&s->config, &s->fabric);
    if (st)
        die("open", st);
    s->fabric->up = &lanes_up;
    for (unsigned i = 0; i < s->fabric->n_transports; i++) {
        if (!strcmp(s->fabric->transports[i]->name, transport))
            s->transport = s->fabric->transports[i];
    }
    if (!s->transport) {
        fprintf(stderr, "lanes: the fabric has no transport %s\n", transport);
        exit(1);
    }
}

static void new_half(lanes_side_t *s, int side, const void *caps, size_t caps_n)
{
    wefti_meeting_t with = {.side = (uint8_t)side, .binding = "met", .caps = caps, .caps_n = caps_n};
    memcpy(with.secret, s->secret, sizeof with.secret);
    weft_status_t st = s->transport->ops->lane_new(s->transport, &with, s, s->addr, &s->addr_n, &s->lane);
    if (st)
        die("lane_new", st);
}

void lanes_side_new(lanes_side_t *s)
{
    new_half(s, WEFTI_SIDE_LISTENER, NULL, 0);
}

void lanes_new(lanes_side_t *dialler, lanes_side_t *listener)
{
    uint8_t caps[WEFTI_CAPS_MAX];
    size_t n = listener->transport->ops->caps(listener->transport, WEFTI_SIDE_LISTENER, caps);
    new_half(dialler, WEFTI_SIDE_DIALLER, caps, n);
    new_half(listener, WEFTI_SIDE_LISTENER, NULL, 0);
}

void lanes_side_connect(lanes_side_t *s, const void *addr, size_t n)
{
    weft_status_t st = s->lane->ops->lane_connect(s->lane, addr, n);
    if (st)
        die("lane_connect", st);
}

static void move_all(ssize_t (*io)(int, void *, size_t), int fd, void *buf, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = io(fd, (char *)buf + at, n - at);
        if (r <= 0) {
            perror("lanes: the other process");
            exit(1);
        }
        at += (size_t)r;
    }
}

static ssize_t write_some(int fd, void *buf, size_t n)
{
    return write(fd, buf, n);
}

void lanes_side_meet(lanes_side_t *s, int fd)
{
    static uint8_t theirs[WEFTI_LANE_ADDR_MAX];
    uint8_t own[8 + WEFTI_CAPS_MAX] = {0}, caps[8 + WEFTI_CAPS_MAX];
    size_t n, caps_n = s->transport->ops->caps(s->transport, WEFTI_SIDE_LISTENER, own + 8);
    pid_t pid = getpid(); /* not every caps tells one process from another */
    memcpy(own, &pid, sizeof pid);
    move_all(write_some, fd, &caps_n, sizeof caps_n);
    move_all(write_some, fd, own, 8 + caps_n);
    move_all(read, fd, &caps_n, sizeof caps_n);
    move_all(read, fd, caps, 8 + caps_n);
    if (!s->transport->ops->match(s->transport, caps + 8, caps_n))
        die("the caps do not match", WEFT_ERR_UNREACHABLE);
    new_half(s, memcmp(own, caps, 8) < 0 ? WEFTI_SIDE_DIALLER : WEFTI_SIDE_LISTENER, caps + 8, caps_n);
    move_all(write_some, fd, &s->addr_n, sizeof s->addr_n);
    move_all(write_some, fd, s->addr, s->addr_n);
    move_all(read, fd, &n, sizeof n);
    move_all(read, fd, theirs, n);
    lanes_side_connect(s, theirs, n);
}

unsigned lanes_side_progress(lanes_side_t *s)
{
    if (!s->fabric)
        return 0;
    s->in_progress = true;
    unsigned n = s->fabric->ops->progress(s->fabric, true);
    s->in_progress = false;
    return n;
}

void lanes_side_close_lane(lanes_side_t *s)
{
    if (!s->lane)
        return;
    s->lane->ops->lane_close(s->lane);
    LANES_SIDE_UNTIL(s, s->closed);
    s->lane = NULL;
    for (unsigned i = 0; i < LANES_PULLS; i++) {
        if (s->offers[i].p) {
            fprintf(stderr, "lanes: offer %u was not withdrawn before lane_closed\n", i);
            exit(1);
        }
    }
}

void lanes_side_close(lanes_side_t *s)
{
    lanes_side_close_lane(s);
    if (s->fabric)
        s->fabric->ops->close(s->fabric);
    s->fabric = NULL;
    wefti_config_free(&s->config);
}

void lanes_open(lanes_t *l, const char *transport)
{
    lanes_side_open(&l->a, transport, NULL);
    lanes_side_open(&l->b, transport, NULL);
    lanes_new(&l->a, &l->b);
    lanes_side_connect(&l->a, l->b.addr, l->b.addr_n);
    lanes_side_connect(&l->b, l->a.addr, l->a.addr_n);
}

unsigned lanes_progress(lanes_t *l)
{
    return lanes_side_progress(&l->a) + lanes_side_progress(&l->b);
}

void lanes_close(lanes_t *l)
{
    /* Both lanes first: a transport may need its peer's fabric for the last word. */
    lanes_side_t *sides[2] = {&l->a, &l->b};
    for (int i = 0; i < 2; i++) {
        if (sides[i]->lane && !sides[i]->closed)
            sides[i]->lane->ops->lane_close(sides[i]->lane);
    }
    for (int i = 0; i < 2; i++) {
        if (sides[i]->lane)
            LANES_UNTIL(l, sides[i]->closed);
        sides[i]->lane = NULL;
    }
    lanes_side_close(&l->a);
    lanes_side_close(&l->b);
}

bool lanes_try_send(lanes_side_t *s, const void *rec, size_t n)
{
    void *p = s->lane->ops->reserve(s->lane, n);
    if (!p)
        return false;
    if ((uintptr_t)p % 8) {
        fprintf(stderr, "lanes: reserve gave %p, not aligned to 8\n", p);
        exit(1);
    }
    memcpy(p, rec, n);
    s->lane->ops->commit(s->lane, n);
    return true;
}

void lanes_send(lanes_t *l, lanes_side_t *s, const void *rec, size_t n)
{
    LANES_UNTIL(l, lanes_try_send(s, rec, n));
}

void lanes_pull(lanes_side_t *s, unsigned i, void *buf, uint64_t want, lanes_xfer_t *x)
{
    weft_iov_t iov = {buf, want};
    lanes_xfer_init(x);
    weft_status_t st = s->offers[i].p->ops->pull(s->offers[i].p, &iov, 1, want, &x->x);
    if (st)
        die("pull", st);
    s->offers[i].p = NULL;
}

void lanes_refuse(lanes_side_t *s, unsigned i, bool taken)
{
    wefti_pull_t *p = s->offers[i].p;
    s->offers[i].p = NULL;
    p->ops->refuse(p, taken);
}
