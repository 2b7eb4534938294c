/* tests/fuzz/tcp_items.c - a peer that has shown its token sends any bytes at all over a lane of the tcp transport.
 *
 * The lane's connection is one end of a socket pair; the input goes in at the other, cut where the input says: pieces of one
 * byte of length and that many bytes, where a length of 0 means 200. The lane has announced two payloads; of what it is
 * offered, it pulls some, refuses some and leaves some. Whatever comes, upcalls are within what fabric.h allows, every transfer
 * is done once, and the lane can be closed. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "fabric/tcp/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAYLOAD = 70000, PULLS = 8 };

static void must(int fact)
{
    if (!fact)
        abort();
}

typedef struct once {
    wefti_xfer_t x;
    unsigned started, done;
} once_t;

static unsigned failed, closed, n_pulls;
static once_t sends[2], pulls[PULLS];
static uint8_t payload[PAYLOAD], into[PULLS][256];
static wefti_pull_t *waiting[64];
static unsigned n_waiting;

static void done(wefti_xfer_t *x, weft_status_t status)
{
    (void)status;
    ((once_t *)(void *)x)->done++;
}

static void record(void *user, const void *rec, size_t n)
{
    must(user == &failed && n && n <= TP_REC_MAX && !((uintptr_t)rec & 7) && !failed && !closed);
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)rec)[i]);
}

static void announced(void *user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    record(user, rec, n);
    must(total != 0);
    uint8_t what = *(const uint8_t *)rec;
    if (what % 4 == 0 && n_pulls < PULLS) {
        uint64_t want = total < 256 ? total : 256;
        weft_iov_t iov[2] = {{into[n_pulls], want / 3}, {into[n_pulls] + want / 3, want - want / 3}};
        once_t *o = &pulls[n_pulls++];
        o->x.done = done;
        o->started = 1;
        must(!p->ops->pull(p, iov, 2, want, &o->x));
    } else if (what % 4 == 1 && n_waiting < 64) {
        p->user = &waiting[n_waiting];
        waiting[n_waiting++] = p;
    } else {
        p->ops->refuse(p, what % 4 == 2);
    }
}

static void withdrawn(wefti_pull_t *p)
{
    must(*(wefti_pull_t **)p->user == p);
    *(wefti_pull_t **)p->user = NULL;
}

static void room(void *user)
{
    must(user == &failed);
}

static void lane_failed(void *user, weft_status_t why)
{
    must(user == &failed && !failed++ && (why == WEFT_ERR_PROTOCOL || why == WEFT_ERR_PEER));
}

static void lane_closed(void *user)
{
    must(user == &failed && !closed++);
}

static const wefti_fabric_up_t up = {
    .record = record,
    .announced = announced,
    .withdrawn = withdrawn,
    .space = room,
    .lane_failed = lane_failed,
    .lane_closed = lane_closed,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_config_t config;
    wefti_fabric_t *f;
    wefti_lane_t *lane;
    static uint8_t addr[WEFTI_LANE_ADDR_MAX], scrap[65536];
    wefti_meeting_t with = {.side = WEFTI_SIDE_LISTENER};
    size_t addr_n;
    int fds[2];
    failed = closed = n_pulls = n_waiting = 0;
    memset(sends, 0, sizeof sends);
    memset(pulls, 0, sizeof pulls);
    weft_log_set_level(WEFT_LOG_NONE);
    must(!wefti_config_parse("fuzz", "", 0, &config));
    config.transports = "tcp";
    must(!wefti_fabric_open_real(&config, &f));
    f->up = &up;
    must(!f->transports[0]->ops->lane_new(f->transports[0], &with, &failed, addr, &addr_n, &lane));
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    tp_conn_t *c = wefti_tp_conn_new(tp_transport(f->transports[0]), fds[0], TP_GREETING);
    must(c != NULL);
    wefti_list_remove(&c->link);
    wefti_tp_lane_up(tp_lane(lane), c);
    weft_iov_t iov = {payload, PAYLOAD};
    for (int i = 0; i < 2; i++) {
        sends[i].x.done = done;
        sends[i].started = 1;
        must(!lane->ops->announce(lane, "offer", 5, &iov, 1, i ? PAYLOAD : 100, &sends[i].x));
    }
    while (size > 1) {
        size_t n = data[0] ? data[0] : 200;
        n = n < size - 1 ? n : size - 1;
        if (send(fds[1], data + 1, n, MSG_NOSIGNAL) != (ssize_t)n)
            break;
        data += 1 + n;
        size -= 1 + n;
        f->ops->progress(f, true);
        while (recv(fds[1], scrap, sizeof scrap, 0) > 0)
            ;
    }
    for (int i = 0; i < 20; i++)
        f->ops->progress(f, true);
    shutdown(fds[1], SHUT_WR);
    for (int i = 0; i < 100 && !failed; i++) {
        f->ops->progress(f, true);
        while (recv(fds[1], scrap, sizeof scrap, 0) > 0)
            ;
    }
    must(failed);
    lane->ops->lane_close(lane);
    for (int i = 0; i < 1000 && !closed; i++)
        f->ops->progress(f, true);
    must(closed);
    for (int i = 0; i < 2; i++)
        must(sends[i].done == 1);
    for (int i = 0; i < PULLS; i++)
        must(pulls[i].done == pulls[i].started);
    for (unsigned i = 0; i < n_waiting; i++)
        must(!waiting[i]);
    close(fds[1]);
    f->ops->close(f);
    wefti_config_free(&config);
    return 0;
}
