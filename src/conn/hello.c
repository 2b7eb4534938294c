/* conn/hello.c - the codec of the handshake's messages. See hello.h; docs/design/wire.md has the bytes.
 *
 * Promise: a decoder reads nothing past the n bytes it is given, accepts exactly what the encoder can write (no trailing bytes,
 * no values out of range), and sets its output only when it accepts. Text from a peer reaches logs, so whatever is not
 * printable ASCII becomes '?' here. tests/unit/conn_hello.c and tests/fuzz/hello.c. */
#include "conn/hello.h"

#include "base/bytes.h"
#include "base/status.h"

#define HEARTBEAT_LEAST UINT64_C(100000000)     /* 100 ms, as in base/config.h: less would let a peer set our rate */
#define HEARTBEAT_MOST UINT64_C(86400000000000) /* a day */
#define WINDOW_LEAST UINT64_C(1024)
#define WINDOW_MOST UINT64_C(0xffffffff)

static void copy_text(char *out, const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7f ? (char)text[i] : '?';
    out[n] = 0;
}

static void take(wefti_reader_t *r, void *out, size_t n)
{
    const void *p = wefti_get_bytes(r, n);
    if (p)
        memcpy(out, p, n);
}

static weft_status_t bad(const char **what_out, const char *what)
{
    *what_out = what;
    return WEFT_ERR_PROTOCOL;
}

/* A status that a peer may tell us: a failure we know. Anything else is a plain refusal. */
static weft_status_t told_status(uint32_t raw)
{
    int32_t status = (int32_t)raw;
    return status < 0 && wefti_status_known(status) ? (weft_status_t)status : WEFT_ERR_REFUSED;
}

static size_t written(const wefti_writer_t *w, const void *buf)
{
    return w->bad ? 0 : (size_t)(w->at - (const uint8_t *)buf);
}

/* The listener proves the same key, and need not say so. */
static bool has_hint(const wefti_hello_t *h, uint8_t type)
{
    return type == WEFTI_SHAKE_HELLO && h->flags & WEFTI_HELLO_KEYED;
}

size_t wefti_hello_encode(const wefti_hello_t *h, uint8_t type, void *buf, size_t cap)
{
    wefti_writer_t w = wefti_writer(buf, cap);
    wefti_put_u8(&w, type);
    wefti_put_u8(&w, 0);
    wefti_put_u16(&w, h->flags);
    wefti_put_u32(&w, WEFTI_HELLO_MAGIC);
    wefti_put_u16(&w, h->min_version);
    wefti_put_u16(&w, h->max_version);
    wefti_put_bytes(&w, h->nonce, sizeof h->nonce);
    wefti_put_bytes(&w, h->uuid, sizeof h->uuid);
    wefti_put_bytes(&w, h->host, sizeof h->host);
    wefti_put_u64(&w, h->capabilities);
    wefti_put_u64(&w, h->heartbeat_ns);
    wefti_put_u64(&w, h->recv_window);
    wefti_put_u64(&w, h->resume_id);
    wefti_put_bytes(&w, h->cookie, sizeof h->cookie);
    wefti_put_u8(&w, h->name_len);
    wefti_put_bytes(&w, h->name, h->name_len);
    wefti_put_u8(&w, h->n_transports);
    for (unsigned i = 0; i < h->n_transports; i++) {
        wefti_put_u8(&w, h->transports[i].kind);
        wefti_put_u8(&w, h->transports[i].caps_len);
        wefti_put_bytes(&w, h->transports[i].caps, h->transports[i].caps_len);
    }
    if (has_hint(h, type))
        wefti_put_bytes(&w, h->hint, sizeof h->hint);
    return written(&w, buf);
}

weft_status_t wefti_hello_decode(const void *bytes, size_t n, uint8_t type, wefti_hello_t *h_out, const char **what_out)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    wefti_hello_t h;
    memset(&h, 0, sizeof h);
    uint8_t got = wefti_get_u8(&r), zero = wefti_get_u8(&r);
    h.flags = wefti_get_u16(&r);
    uint32_t magic = wefti_get_u32(&r);
    h.min_version = wefti_get_u16(&r);
    h.max_version = wefti_get_u16(&r);
    if (r.bad)
        return bad(what_out, "a hello shorter than its head");
    if (got != type || magic != WEFTI_HELLO_MAGIC)
        return bad(what_out, "the first message is no hello");
    if (h.min_version > h.max_version || h.max_version == 0)
        return bad(what_out, "a hello with an empty range of versions");
    if (h.min_version > WEFTI_PROTOCOL_MAX || h.max_version < WEFTI_PROTOCOL_MIN) {
        h_out->min_version = h.min_version;
        h_out->max_version = h.max_version;
        return WEFT_ERR_VERSION;
    }
    take(&r, h.nonce, sizeof h.nonce);
    take(&r, h.uuid, sizeof h.uuid);
    take(&r, h.host, sizeof h.host);
    h.capabilities = wefti_get_u64(&r);
    h.heartbeat_ns = wefti_get_u64(&r);
    h.recv_window = wefti_get_u64(&r);
    h.resume_id = wefti_get_u64(&r);
    take(&r, h.cookie, sizeof h.cookie);
    h.name_len = wefti_get_u8(&r);
    if (h.name_len > WEFTI_NAME_MAX)
        return bad(what_out, "a hello with a name longer than 127 bytes");
    const uint8_t *name = wefti_get_bytes(&r, h.name_len);
    if (name)
        copy_text(h.name, name, h.name_len);
    h.n_transports = wefti_get_u8(&r);
    if (h.n_transports > WEFTI_HELLO_TRANSPORTS_MAX)
        return bad(what_out, "a hello with more than 8 transports");
    for (unsigned i = 0; i < h.n_transports; i++) {
        wefti_hello_transport_t *transport = &h.transports[i];
        transport->kind = wefti_get_u8(&r);
        transport->caps_len = wefti_get_u8(&r);
        if (transport->caps_len > WEFTI_CAPS_MAX)
            return bad(what_out, "a hello with capabilities longer than 128 bytes");
        take(&r, transport->caps, transport->caps_len);
    }
    if (has_hint(&h, type))
        take(&r, h.hint, sizeof h.hint);
    if (r.bad)
        return bad(what_out, "a hello that ends in the middle");
    if (wefti_reader_left(&r))
        return bad(what_out, "a hello with bytes after its end");
    if (zero || (h.flags & ~(WEFTI_HELLO_KEYED | WEFTI_HELLO_RESUME)))
        return bad(what_out, "a hello with flags that mean nothing");
    if (h.heartbeat_ns < HEARTBEAT_LEAST || h.heartbeat_ns > HEARTBEAT_MOST)
        return bad(what_out, "a hello whose heartbeat bound is not between 100 ms and a day");
    if (h.recv_window < WINDOW_LEAST || h.recv_window > WINDOW_MOST)
        return bad(what_out, "a hello whose window is not between 1 KiB and 4 GiB");
    *h_out = h;
    return WEFT_OK;
}

size_t wefti_lane_msg_encode(const wefti_lane_msg_t *h, void *buf, size_t cap)
{
    wefti_writer_t w = wefti_writer(buf, cap);
    bool lane = h->type == WEFTI_SHAKE_LANE;
    wefti_put_u8(&w, h->type);
    wefti_put_u8(&w, h->attempt);
    wefti_put_u8(&w, lane ? h->resumed : h->kind);
    wefti_put_u8(&w, 0);
    wefti_put_u32(&w, (uint32_t)h->addr_len);
    if (lane) {
        wefti_put_u64(&w, h->id);
        wefti_put_bytes(&w, h->cookie, sizeof h->cookie);
    }
    wefti_put_bytes(&w, h->addr, h->addr_len);
    return written(&w, buf);
}

weft_status_t wefti_lane_msg_decode(const void *bytes, size_t n, uint8_t type, wefti_lane_msg_t *h_out, const char **what_out)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    bool lane = type == WEFTI_SHAKE_LANE;
    uint8_t got = wefti_get_u8(&r);
    wefti_lane_msg_t h = {.type = type, .attempt = wefti_get_u8(&r)};
    uint8_t kind = wefti_get_u8(&r), zero = wefti_get_u8(&r);
    h.addr_len = wefti_get_u32(&r);
    if (lane) {
        h.id = wefti_get_u64(&r);
        take(&r, h.cookie, sizeof h.cookie);
    }
    if (r.bad || got != type || zero || (lane && kind > 1))
        return bad(what_out, lane ? "a lane message with a malformed head" : "a join with a malformed head");
    if (h.addr_len > WEFTI_LANE_ADDR_MAX || h.addr_len != wefti_reader_left(&r))
        return bad(what_out, lane ? "a lane message whose address has not the length it claims"
                                  : "a join whose lane address has not the length it claims");
    h.kind = lane ? 0 : kind;
    h.resumed = lane && kind;
    h.addr = r.at;
    *h_out = h;
    return WEFT_OK;
}

size_t wefti_refuse_encode(uint8_t attempt, weft_status_t status, const char *text, void *buf, size_t cap)
{
    wefti_writer_t w = wefti_writer(buf, cap);
    size_t len = strnlen(text, WEFTI_REFUSE_TEXT_MAX);
    wefti_put_u8(&w, attempt ? WEFTI_SHAKE_RETRY : WEFTI_SHAKE_REFUSE);
    wefti_put_u8(&w, attempt);
    wefti_put_u16(&w, (uint16_t)len);
    wefti_put_u32(&w, (uint32_t)(int32_t)status);
    wefti_put_bytes(&w, text, len);
    return written(&w, buf);
}

weft_status_t wefti_refuse_decode(const void *bytes, size_t n, uint8_t type, wefti_refuse_t *r_out, const char **what_out)
{
    wefti_reader_t r = wefti_reader(bytes, n);
    bool retry = type == WEFTI_SHAKE_RETRY;
    uint8_t got = wefti_get_u8(&r), attempt = wefti_get_u8(&r);
    uint16_t len = wefti_get_u16(&r);
    uint32_t status = wefti_get_u32(&r);
    if (retry && (r.bad || got != type || n != WEFTI_RETRY_SIZE || len))
        return bad(what_out, "a retry that is not 8 bytes of the right kind");
    if (r.bad || got != type || (attempt && !retry))
        return bad(what_out, "a refusal with a malformed head");
    if (len > WEFTI_REFUSE_TEXT_MAX || len != wefti_reader_left(&r))
        return bad(what_out, "a refusal whose sentence has not the length it claims");
    r_out->attempt = attempt;
    r_out->status = told_status(status);
    copy_text(r_out->text, r.at, len);
    return WEFT_OK;
}
