/* fabric/tcp/out.c - records and chunks of payloads to the socket.
 *
 * A lane has at most one open frame. The first record since the last progress leaves at once, with one send(); later ones are
 * gathered and leave when the frame is full or with the next progress. What the socket does not take waits in the queue, in
 * order; TP_QUEUE frames of that and reserve() says there is no space. Where the socket was full the lane is `stuck`: progress
 * tries it again, and a sleep waits for space.
 *
 * Payloads that were pulled go between records, one chunk of at most TP_CHUNK bytes at a time, straight from where they lie: a
 * chunk begins when no record waits, and once begun it goes on before anything else.
 *
 * A lane whose socket has failed is `mute`: what it has to send is dropped. Reading goes on, since the peer's last records may
 * still be there; the lane ends when they end. tests/wire/fabric_lanes.c, tests/wire/fabric_tcp.c. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "fabric/tcp/internal.h"

#define ROUNDS 16 /* system calls of one lane in a row */
#define FLAGS (MSG_NOSIGNAL | MSG_DONTWAIT)

bool wefti_tp_out_empty(const tp_lane_t *l)
{
    return !l->frame && !l->chunk && wefti_list_empty(&l->queue) && !tp_waits(l->stream);
}

void wefti_tp_out_drop(tp_lane_t *l)
{
    wefti_list_t *it;
    while ((it = wefti_list_pop(&l->queue)))
        tp_frame_free(l->transport, wefti_container_of(it, tp_frame_t, link));
    l->queued = 0;
    if (l->frame)
        tp_frame_free(l->transport, l->frame);
    l->frame = NULL;
    l->chunk = NULL;
}

/* The open frame joins the queue, of which `at` bytes are sent already. */
static void enqueue(tp_lane_t *l, uint32_t at)
{
    tp_frame_t *f = l->frame;
    f->at = at;
    f->n = l->used;
    l->frame = NULL;
    l->queued++;
    wefti_list_push_back(&l->queue, &f->link);
}

static void stick(tp_lane_t *l)
{
    if (!wefti_list_linked(&l->stuck_link))
        wefti_list_push_back(&l->transport->stuck, &l->stuck_link);
}

/* The socket did not take it. True: it was only full. */
static bool only_full(tp_lane_t *l)
{
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM) {
        stick(l);
        return true;
    }
    wefti_debug("tcp: a lane's socket takes no more: %s", strerror(errno));
    l->mute = true;
    wefti_tp_heat(l);
    return false;
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

/* Begin the next chunk of the payloads that were pulled; false: there is none. */
static bool begin_chunk(tp_lane_t *l)
{
    wefti_list_t *it = wefti_list_first(&l->half.sending);
    if (!it || l->state != TP_LANE_UP)
        return false;
    wefti_outgoing_t *s = wefti_container_of(it, wefti_outgoing_t, job.link);
    uint32_t n = s->want - s->sent < TP_CHUNK ? (uint32_t)(s->want - s->sent) : TP_CHUNK;
    l->chunk_head[0] = (uint64_t)TP_DATA << 32 | n;
    l->chunk_head[1] = s->slot;
    l->chunk_head_at = 0;
    l->chunk_left = n;
    l->chunk_pad = tp_round8(n) - n;
    l->chunk = s;
    return true;
}

static unsigned chunk_pieces(const tp_lane_t *l, struct iovec *v)
{
    static uint8_t zeroes[8];
    unsigned n = 0;
    if (l->chunk_head_at < sizeof l->chunk_head)
        v[n++] = (struct iovec){(uint8_t *)(uintptr_t)l->chunk_head + l->chunk_head_at, sizeof l->chunk_head - l->chunk_head_at};
    uint64_t all = wefti_cursor_pieces(l->chunk->from, l->chunk_left, v, TP_PIECES, &n);
    if (all == l->chunk_left && l->chunk_pad && n < TP_PIECES)
        v[n++] = (struct iovec){zeroes, l->chunk_pad};
    return n;
}

static void chunk_sent(tp_lane_t *l, size_t n)
{
    wefti_outgoing_t *s = l->chunk;
    size_t part = sizeof l->chunk_head - l->chunk_head_at;
    part = n < part ? n : part;
    l->chunk_head_at += (uint32_t)part;
    n -= part;
    part = n < l->chunk_left ? n : l->chunk_left;
    wefti_cursor_advance(&s->from, part);
    s->sent += part;
    l->chunk_left -= (uint32_t)part;
    l->chunk_pad -= (uint32_t)(n - part);
    if (l->chunk_left || l->chunk_pad || l->chunk_head_at < sizeof l->chunk_head)
        return;
    l->chunk = NULL;
    if (s->sent == s->want)
        wefti_outgoing_left(s);
}

/* --- flushing ----------------------------------------------------------------------------------------------------- */

static unsigned queue_pieces(const tp_lane_t *l, struct iovec *v)
{
    unsigned n = 0;
    wefti_list_each(it, &l->queue) {
        tp_frame_t *f = wefti_container_of(it, tp_frame_t, link);
        if (n == TP_PIECES)
            break;
        v[n++] = (struct iovec){f->bytes + f->at, f->n - f->at};
    }
    return n;
}

static void queue_sent(tp_lane_t *l, size_t n)
{
    while (n) {
        tp_frame_t *f = wefti_container_of(wefti_list_first(&l->queue), tp_frame_t, link);
        size_t left = f->n - f->at;
        if (n < left) {
            f->at += (uint32_t)n;
            return;
        }
        n -= left;
        wefti_list_remove(&f->link);
        l->queued--;
        tp_frame_free(l->transport, f);
    }
    if (l->half.want_space && l->queued < TP_QUEUE)
        wefti_half_event(&l->half, WEFTI_EV_SPACE);
}

void wefti_tp_flush(tp_lane_t *l)
{
    struct iovec v[TP_PIECES];
    if (l->fd < 0 || l->half.failed || l->mute)
        return;
    if (tp_waits(l->stream) && !wefti_tp_stream_flush(l->stream, l->fd)) {
        if (!only_full(l))
            wefti_tp_out_drop(l);
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (l->frame && !l->chunk && wefti_list_empty(&l->queue))
            enqueue(l, 0); /* and not before: while others wait, it goes on being filled */
        bool chunk = l->chunk || (wefti_list_empty(&l->queue) && begin_chunk(l));
        unsigned pieces = chunk ? chunk_pieces(l, v) : queue_pieces(l, v);
        if (!pieces)
            break;
        ssize_t n = wefti_tp_send(l->fd, l->stream, v, pieces);
        if (n < 0) {
            if (!only_full(l))
                wefti_tp_out_drop(l);
            return;
        }
        tp_sent(l->conn);
        if (chunk)
            chunk_sent(l, (size_t)n);
        else
            queue_sent(l, (size_t)n);
        if (i == ROUNDS - 1)
            wefti_half_later(&l->half);
    }
    if (tp_waits(l->stream))
        stick(l);
}

/* Could the open frame leave now? */
static inline bool may_send(const tp_lane_t *l)
{
    return __builtin_expect(l->fd >= 0 && !l->mute && !l->chunk && wefti_list_empty(&l->queue), 1);
}

static void send_frame(tp_lane_t *l)
{
    ssize_t n;
    if (__builtin_expect(l->stream != NULL, 0)) {
        n = wefti_tp_send(l->fd, l->stream, &(struct iovec){l->frame->bytes, l->used}, 1);
        if (l->stream->waits)
            stick(l);
    } else {
        n = send(l->fd, l->frame->bytes, l->used, FLAGS);
    }
    if (n > 0)
        tp_sent(l->conn);
    if (__builtin_expect(n == (ssize_t)l->used, 1)) {
        tp_frame_free(l->transport, l->frame);
        l->frame = NULL;
    } else if (n >= 0 || only_full(l)) {
        enqueue(l, n > 0 ? (uint32_t)n : 0);
        stick(l);
    } else {
        wefti_tp_out_drop(l);
    }
}

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Where an item of n bytes goes; NULL when enough of this lane's waits (unless forced) or there is no memory. */
uint8_t *wefti_tp_make_space(tp_lane_t *l, size_t n, bool force)
{
    uint32_t need = TP_HEAD + tp_round8((uint32_t)n);
    if (__builtin_expect(l->frame && l->used + need > TP_FRAME, 0)) {
        if (may_send(l))
            send_frame(l);
        else
            enqueue(l, 0);
    }
    if (!l->frame) {
        if (l->queued < (force ? TP_QUEUE_FORCED : TP_QUEUE))
            l->frame = tp_frame_get(l->transport);
        if (!l->frame)
            return wefti_half_no_space(&l->half, l->queued < TP_QUEUE);
        l->used = 0;
    }
    return l->frame->bytes + l->used + TP_HEAD;
}

static void put_item(tp_lane_t *l, uint32_t kind, size_t n)
{
    uint64_t head = (uint64_t)kind << 32 | (uint32_t)n;
    uint8_t *at = l->frame->bytes + l->used;
    uint32_t whole = TP_HEAD + tp_round8((uint32_t)n);
    memcpy(at, &head, sizeof head);
    /* The padding must not be what was in memory before. */
    for (uint8_t *p = at + TP_HEAD + n; p < at + whole; p++)
        *p = 0;
    l->used += whole;
}

void *wefti_tp_reserve(wefti_lane_t *lane, size_t n)
{
    tp_lane_t *l = tp_lane(lane);
    if (__builtin_expect(l->half.failed || l->mute, 0))
        return NULL; /* for good: the failure is told instead of space */
    return wefti_tp_make_space(l, n, false);
}

/* The first item since the last progress leaves now, the others together. */
void wefti_tp_put(tp_lane_t *l, uint32_t kind, size_t n)
{
    put_item(l, kind, n);
    if (!may_send(l))
        return; /* it leaves with what waits already */
    if (wefti_half_leaves(&l->half))
        send_frame(l);
}

void wefti_tp_commit(wefti_lane_t *lane, size_t n)
{
    wefti_tp_put(tp_lane(lane), TP_USER, n);
}

void wefti_tp_control(tp_lane_t *l, uint32_t kind, const void *bytes, size_t n)
{
    if (l->half.failed || l->mute || l->state >= TP_LANE_CLOSING)
        return;
    uint8_t *at = wefti_tp_make_space(l, n, true);
    if (!at) {
        if (l->queued >= TP_QUEUE_FORCED)
            wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "it reads nothing of what it asks for");
        else
            wefti_tp_fail(l, WEFT_ERR_NOMEM, "no memory for a control record");
        return;
    }
    memcpy(at, bytes, n);
    wefti_tp_put(l, kind, n);
}

void wefti_tp_control_id(tp_lane_t *l, uint32_t kind, uint64_t id)
{
    wefti_tp_control(l, kind, &id, sizeof id);
}
