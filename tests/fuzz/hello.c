/* tests/fuzz/hello.c - any bytes are refused with words, or are a message that comes back from its own bytes.
 *
 * The message is copied to exactly its length, so that a sanitizer sees the first byte read past its end. */
#include "conn/hello.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static void must_say(weft_status_t st, const char *what)
{
    must(st == WEFT_ERR_VERSION || (st == WEFT_ERR_PROTOCOL && what && *what));
}

static void try_hello(const uint8_t *in, size_t n, uint8_t type)
{
    wefti_hello_t h, again;
    uint8_t out[WEFTI_HELLO_MAX];
    const char *what = NULL;
    weft_status_t st = wefti_hello_decode(in, n, type, &h, &what);
    if (st) {
        must_say(st, what);
        return;
    }
    must(h.name_len <= WEFTI_NAME_MAX && h.name[h.name_len] == 0 && h.n_transports <= WEFTI_HELLO_TRANSPORTS_MAX);
    must(h.recv_window <= UINT32_MAX && h.heartbeat_ns >= 100000000);
    size_t len = wefti_hello_encode(&h, type, out, sizeof out);
    must(len == n && !wefti_hello_decode(out, len, type, &again, &what) && !memcmp(&h, &again, sizeof h));
}

static void try_join(const uint8_t *in, size_t n)
{
    wefti_lane_msg_t j;
    const char *what = NULL;
    weft_status_t st = wefti_lane_msg_decode(in, n, WEFTI_SHAKE_JOIN, &j, &what);
    if (st) {
        must_say(st, what);
        return;
    }
    must(j.addr_len <= WEFTI_LANE_ADDR_MAX && j.addr + j.addr_len == in + n);
    uint8_t *out = malloc(n);
    must(out && wefti_lane_msg_encode(&j, out, n) == n && !memcmp(in, out, n));
    free(out);
}

static void try_lane(const uint8_t *in, size_t n)
{
    wefti_lane_msg_t l;
    const char *what = NULL;
    weft_status_t st = wefti_lane_msg_decode(in, n, WEFTI_SHAKE_LANE, &l, &what);
    if (st) {
        must_say(st, what);
        return;
    }
    must(l.addr_len <= WEFTI_LANE_ADDR_MAX && l.addr + l.addr_len == in + n);
    uint8_t *out = malloc(n);
    must(out && wefti_lane_msg_encode(&l, out, n) == n && !memcmp(in, out, n));
    free(out);
}

static void try_rest(const uint8_t *in, size_t n)
{
    wefti_refuse_t r, t;
    const char *what = NULL;
    weft_status_t st = wefti_refuse_decode(in, n, WEFTI_SHAKE_REFUSE, &r, &what);
    if (st)
        must_say(st, what);
    else
        must(r.status < 0 && strlen(r.text) <= WEFTI_REFUSE_TEXT_MAX);
    what = NULL;
    st = wefti_refuse_decode(in, n, WEFTI_SHAKE_RETRY, &t, &what);
    if (st)
        must_say(st, what);
    else
        must(t.status < 0 && n == WEFTI_RETRY_SIZE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *in = malloc(size ? size : 1);
    must(in != NULL);
    if (size)
        memcpy(in, data, size);
    try_hello(in, size, WEFTI_SHAKE_HELLO);
    try_hello(in, size, WEFTI_SHAKE_WELCOME);
    try_join(in, size);
    try_lane(in, size);
    try_rest(in, size);
    free(in);
    return 0;
}
