/* fabric/tcp/in.c - what comes from a lane's socket: the one place that reads what a peer wrote.
 *
 * One recv() takes whatever is there into the transport's buffer, and every whole item of it is told at once. The beginning of
 * an item whose end has not come waits in the lane's `carry`, and goes before the next bytes; so a silent lane has no buffer of
 * its own. The bytes of a payload's chunk are received straight into the receiver's pieces as far as they had not come with the
 * items before it.
 *
 * Items are multiples of 8 bytes, and the buffer begins with one: so what the rooms above are given is aligned.
 *
 * Promise: no length is used before it is checked, and nothing is read of a lane after it failed or was closed. Bytes that make
 * no sense fail the lane with WEFT_ERR_PROTOCOL. tests/wire/fabric_tcp_hostile.c, tests/fuzz/tcp_items.c. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "fabric/tcp/internal.h"

static bool over(const tp_lane_t *l)
{
    return l->half.failed || l->state != TP_LANE_UP;
}

static void keep(tp_lane_t *l, const uint8_t *bytes, size_t n)
{
    if (!l->carry)
        l->carry = tp_frame_get(l->transport);
    if (!l->carry) {
        wefti_tp_fail(l, WEFT_ERR_NOMEM, "no memory for half a record");
        return;
    }
    memcpy(l->carry->bytes, bytes, n);
    l->carry_n = (uint32_t)n;
}

/* n bytes of the chunk that comes in have arrived where they belong. */
static void chunk_came(tp_lane_t *l, size_t n)
{
    l->rx_left -= (uint32_t)n;
    tp_pull_t *p = l->rx_pull;
    if (!l->rx_left)
        l->rx_pull = NULL;
    wefti_tp_pull_came(p, n);
}

void wefti_tp_parse(tp_lane_t *l, const uint8_t *at, size_t left)
{
    const wefti_fabric_up_t *up = l->transport->base.fabric->up;
    while (left && !over(l)) {
        if (__builtin_expect(l->rx_left || l->rx_pad, 0)) {
            size_t n = left < l->rx_left ? left : l->rx_left;
            if (n) {
                wefti_cursor_scatter(&l->rx_pull->in.to, at, n);
                chunk_came(l, n);
            }
            size_t pad = left - n < l->rx_pad ? left - n : l->rx_pad;
            l->rx_pad -= (uint32_t)pad;
            at += n + pad;
            left -= n + pad;
            continue;
        }
        uint32_t head[2];
        if (left < TP_HEAD) {
            keep(l, at, left);
            return;
        }
        memcpy(head, at, sizeof head);
        if (__builtin_expect(head[1] == TP_DATA, 0)) {
            uint64_t slot;
            if (left < TP_HEAD + sizeof slot) {
                keep(l, at, left);
                return;
            }
            memcpy(&slot, at + TP_HEAD, sizeof slot);
            at += TP_HEAD + sizeof slot;
            left -= TP_HEAD + sizeof slot;
            l->rx_pull = wefti_tp_chunk_begins(l, slot, head[0]);
            if (!l->rx_pull)
                return;
            l->rx_left = head[0];
            l->rx_pad = tp_round8(head[0]) - head[0];
            continue;
        }
        if (__builtin_expect(!head[0] || head[0] > TP_REC_MAX, 0)) {
            wefti_tp_fail(l, WEFT_ERR_PROTOCOL, "a record of a length that cannot be");
            return;
        }
        size_t whole = TP_HEAD + tp_round8(head[0]);
        if (left < whole) {
            keep(l, at, left);
            return;
        }
        if (__builtin_expect(head[1] == TP_USER, 1))
            up->record(l->half.base.user, at + TP_HEAD, head[0]);
        else
            wefti_tp_item(l, head[1], at + TP_HEAD, head[0]);
        at += whole;
        left -= whole;
    }
}

/* In the middle of a chunk: straight into its pieces, and what follows it into the transport's buffer. */
static ssize_t recv_chunk(tp_lane_t *l)
{
    uint8_t pad[8];
    struct iovec v[TP_PIECES];
    unsigned n = 0;
    uint64_t all = l->rx_left ? wefti_cursor_pieces(l->rx_pull->in.to, l->rx_left, v, TP_PIECES, &n) : 0;
    if (all == l->rx_left && n + 2 <= TP_PIECES) {
        if (l->rx_pad)
            v[n++] = (struct iovec){pad, l->rx_pad};
        v[n++] = (struct iovec){l->transport->in, TP_IN};
    }
    ssize_t got = wefti_tp_recv(l->fd, l->stream, v, n);
    if (got <= 0)
        return got;
    size_t left = (size_t)got, part = left < l->rx_left ? left : l->rx_left;
    if (part) {
        wefti_cursor_advance(&l->rx_pull->in.to, part);
        chunk_came(l, part);
    }
    left -= part;
    part = left < l->rx_pad ? left : l->rx_pad;
    l->rx_pad -= (uint32_t)part;
    left -= part;
    if (left)
        wefti_tp_parse(l, l->transport->in, left);
    return got;
}

static ssize_t recv_items(tp_lane_t *l)
{
    uint8_t *in = l->transport->in;
    size_t have = l->carry_n;
    ssize_t got;
    if (__builtin_expect(l->stream != NULL, 0))
        got = wefti_tp_recv(l->fd, l->stream, &(struct iovec){in + have, TP_IN - have}, 1);
    else
        got = recv(l->fd, in + have, TP_IN - have, MSG_DONTWAIT);
    if (got <= 0)
        return got;
    if (have) {
        memcpy(in, l->carry->bytes, have);
        l->carry_n = 0;
    }
    wefti_tp_parse(l, in, have + (size_t)got);
    if (l->carry && !l->carry_n) {
        tp_frame_free(l->transport, l->carry);
        l->carry = NULL;
    }
    return got;
}

size_t wefti_tp_read(tp_lane_t *l)
{
    if (over(l))
        return 0;
    ssize_t got = l->rx_left || l->rx_pad ? recv_chunk(l) : recv_items(l);
    if (__builtin_expect(l->stream != NULL, 0))
        wefti_tp_note_more(l);
    if (__builtin_expect(got > 0, 1))
        return (size_t)got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got && errno == EBADMSG)
        wefti_tp_fail(l, WEFT_ERR_PROTOCOL, wefti_tp_stream_bad(l->stream));
    else
        wefti_tp_fail(l, WEFT_ERR_PEER, got ? strerror(errno) : "the peer's end of the connection is closed");
    return 1;
}
