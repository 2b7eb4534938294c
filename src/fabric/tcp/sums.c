/* fabric/tcp/sums.c - checksums below a lane's connections.
 *
 * TCP's own checksum has 16 bits, and whoever rewrites packets on the way makes it anew. With WEFT_CHECKSUM=on at either end, all
 * that a lane without TLS sends goes in blocks, on both of its connections, from the moment each is the lane's (what is said
 * before has MACs): u32 bytes, u32 checksum of the head, u32 checksum of the bytes, the bytes. The first is that of the block's
 * number and its length: nothing is waited for because a length was changed, and a block that comes twice, or after one that was
 * lost, is found. The second goes on from the first. Both are CRC-32C (base/crc32c.h).
 *
 * Nothing of a block is handed on, or written where it belongs, before all of it was checked. Both sides work on copies: others
 * may write to memory that is read remotely while it is sent, or beside what arrives.
 *
 * A block that is not what was sent ends its connection, and so the lane, with WEFT_ERR_PROTOCOL. Who changes bytes on purpose
 * makes new checksums: against that there is TLS. tests/wire/fabric_tcp_sums.c, tests/fault/tcp_flips.c. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/crc32c.h"
#include "fabric/addr.h"
#include "fabric/tcp/internal.h"

#define HEAD 12
#define BLOCK 32768 /* bytes of the longest block, without its head */
#define BLOCKS 4    /* of one send() or recv() */
#define KEPT 4      /* unused buffers */

typedef struct buffer {
    _Alignas(16) uint8_t bytes[BLOCKS * (HEAD + BLOCK)];
} buffer_t;

typedef struct sums {
    wefti_stream_t base;
    tp_transport_t *transport;
    uint64_t sent, got; /* blocks */
    buffer_t *out, *in; /* NULL: empty */
    size_t out_at;      /* of `waits` bytes that the socket has not taken */
    size_t in_at, in_n; /* received; up to in_at handed on */
    size_t ready;       /* bytes at in_at that were checked */
    bool bad;           /* and the next block is not what was sent */
} sums_t;

static sums_t *sums_of(const wefti_stream_t *s)
{
    return (sums_t *)(uintptr_t)s;
}

wefti_stream_t *wefti_tp_sums_new(tp_transport_t *r)
{
    sums_t *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->base.sums = true;
    s->transport = r;
    return &s->base;
}

static void give_back(sums_t *s, buffer_t **b)
{
    if (*b)
        wefti_spares_put(&s->transport->buffers, *b, KEPT);
    *b = NULL;
}

static void sums_free(sums_t *s)
{
    give_back(s, &s->out);
    give_back(s, &s->in);
    wefti_free(s);
}

static uint32_t head_sum(uint64_t number, uint32_t n)
{
    uint64_t both[2] = {number, n};
    return wefti_crc32c(0, both, sizeof both);
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

static bool sums_flush(sums_t *s, int fd)
{
    while (s->base.waits) {
        ssize_t n = send(fd, s->out->bytes + s->out_at, s->base.waits, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        s->out_at += (size_t)n;
        s->base.waits -= (size_t)n;
    }
    give_back(s, &s->out);
    return true;
}

/* The block is complete: `n` bytes after its head. */
static void seal(sums_t *s, uint8_t *block, size_t n)
{
    uint32_t head[3] = {(uint32_t)n, head_sum(s->sent++, (uint32_t)n), 0};
    head[2] = wefti_crc32c(head[1], block + HEAD, n);
    memcpy(block, head, HEAD);
    s->base.waits += HEAD + n;
}

ssize_t wefti_tp_sums_send(wefti_stream_t *stream, int fd, const struct iovec *v, unsigned n)
{
    sums_t *s = sums_of(stream);
    size_t all = 0, in_block = 0;
    if (s->base.waits && !sums_flush(s, fd))
        return -1;
    s->out = wefti_spares_get(&s->transport->buffers, sizeof *s->out);
    if (!s->out) {
        errno = ENOMEM;
        return -1;
    }
    s->out_at = 0;
    uint8_t *block = s->out->bytes, *end = block + sizeof s->out->bytes;
    for (unsigned i = 0; i < n && block < end; i++) {
        for (size_t at = 0, part; at < v[i].iov_len && block < end; at += part, all += part) {
            part = v[i].iov_len - at < BLOCK - in_block ? v[i].iov_len - at : BLOCK - in_block;
            memcpy(block + HEAD + in_block, (const uint8_t *)v[i].iov_base + at, part);
            in_block += part;
            if (in_block < BLOCK)
                continue;
            seal(s, block, in_block);
            block += HEAD + in_block;
            in_block = 0;
        }
    }
    if (in_block)
        seal(s, block, in_block);
    (void)sums_flush(s, fd); /* what it does not take waits, and an error is the next call's */
    return (ssize_t)all;
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void was_changed(sums_t *s, int fd)
{
    wefti_addr_t a = {.n = sizeof a.ss};
    char from[WEFTI_ADDR_TEXT] = "a peer that is gone";
    if (!getpeername(fd, (void *)&a.ss, &a.n))
        wefti_addr_text(&a, from, sizeof from);
    s->bad = true;
    s->transport->base.fabric->changed++;
    wefti_warn_rarely(&s->transport->rarely, 0,
                      "tcp: bytes were changed on the way from %s: a checksum does not match, and the connection ends", from);
}

/* Is there something to hand on? Looks at the next block if there is not. */
static bool checked(sums_t *s, int fd)
{
    uint32_t head[3];
    size_t have = s->in_n - s->in_at;
    if (s->ready || s->bad || have < HEAD)
        return s->ready;
    const uint8_t *block = s->in->bytes + s->in_at;
    memcpy(head, block, HEAD);
    if (!head[0] || head[0] > BLOCK || head[1] != head_sum(s->got, head[0])) {
        was_changed(s, fd);
    } else if (have >= HEAD + head[0]) {
        if (head[2] == wefti_crc32c(head[1], block + HEAD, head[0])) {
            s->got++;
            s->in_at += HEAD;
            s->ready = head[0];
        } else {
            was_changed(s, fd);
        }
    }
    return s->ready;
}

/* One recv() after what is there. */
static ssize_t fill(sums_t *s, int fd, bool *dry_out)
{
    if (!s->in)
        s->in = wefti_spares_get(&s->transport->buffers, sizeof *s->in);
    if (!s->in) {
        errno = EAGAIN; /* there may be memory the next time */
        return -1;
    }
    if (s->in_at)
        memmove(s->in->bytes, s->in->bytes + s->in_at, s->in_n - s->in_at); /* less than a block */
    s->in_n -= s->in_at;
    s->in_at = 0;
    size_t most = sizeof s->in->bytes - s->in_n;
    ssize_t got = recv(fd, s->in->bytes + s->in_n, most, MSG_DONTWAIT);
    s->in_n += got > 0 ? (size_t)got : 0;
    *dry_out = got < (ssize_t)most;
    return got;
}

/* What was checked goes where it belongs; bytes. */
static size_t hand_on(sums_t *s, int fd, const struct iovec *v, unsigned n, unsigned *i, size_t *at)
{
    size_t all = 0;
    while (*i < n && checked(s, fd)) {
        size_t part = v[*i].iov_len - *at < s->ready ? v[*i].iov_len - *at : s->ready;
        memcpy((uint8_t *)v[*i].iov_base + *at, s->in->bytes + s->in_at, part);
        s->in_at += part;
        s->ready -= part;
        all += part;
        *at += part;
        if (*at < v[*i].iov_len)
            continue;
        *at = 0;
        ++*i;
    }
    return all;
}

ssize_t wefti_tp_sums_recv(wefti_stream_t *stream, int fd, const struct iovec *v, unsigned n)
{
    sums_t *s = sums_of(stream);
    size_t all = 0, at = 0;
    unsigned i = 0;
    ssize_t got = 1;
    for (bool dry = false;;) {
        all += hand_on(s, fd, v, n, &i, &at);
        if (i == n || s->bad || dry)
            break;
        got = fill(s, fd, &dry);
        if (got <= 0)
            break;
    }
    (void)checked(s, fd); /* what is there and comes next is known now: no event tells of it */
    if (s->in_at == s->in_n) {
        s->in_at = s->in_n = 0;
        give_back(s, &s->in);
    }
    if (all)
        return (ssize_t)all;
    if (s->bad)
        errno = EBADMSG;
    else if (got > 0)
        errno = EAGAIN;
    else
        return got;
    return -1;
}

/* --- a stream, whichever it is ------------------------------------------------------------------------------------ */

bool wefti_tp_stream_has(const wefti_stream_t *s)
{
    return s->sums ? sums_of(s)->ready || sums_of(s)->bad : wefti_stream_has(s);
}

bool wefti_tp_stream_flush(wefti_stream_t *s, int fd)
{
    return s->sums ? sums_flush(sums_of(s), fd) : wefti_stream_flush(s, fd);
}

void wefti_tp_stream_end(wefti_stream_t *s, int fd)
{
    if (!s->sums)
        wefti_stream_end(s, fd);
}

void wefti_tp_stream_free(wefti_stream_t *s)
{
    if (s && s->sums)
        sums_free(sums_of(s));
    else
        wefti_stream_free(s);
}

const char *wefti_tp_stream_bad(const wefti_stream_t *s)
{
    if (s && s->sums)
        return "bytes were changed on the way: a checksum does not match";
    return "what came over TLS is not what the peer sent";
}
