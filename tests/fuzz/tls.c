/* tests/fuzz/tls.c - any bytes at a port with TLS, of wires or of lanes, are an error with a sentence, or not enough yet; also as
 * the identity by which a lane is found.
 *
 * The first byte says which port, the second how many bytes come at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/config.h>

#include "fabric/fabric.h"
#include "fabric/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static bool find(void *user, uint64_t id, uint8_t secret[WEFTI_SECRET_SIZE])
{
    (void)user;
    memset(secret, 7, WEFTI_SECRET_SIZE);
    return id == UINT64_C(0x0706050403020100);
}

static wefti_guard_t *guard(void)
{
    static wefti_guard_t *g;
    static const uint8_t key[32] = {1, 2, 3};
    if (!g) {
        wefti_config_t config = {.tls_cert = NULL};
        weft_log_set_level(WEFT_LOG_NONE);
        must((g = wefti_guard_new(&config)) != NULL);
        wefti_keys_t *keys = wefti_keys_new(1);
        must(keys != NULL);
        wefti_keys_add(keys, key, "", 0);
        must(!wefti_guard_keys(g, keys));
        wefti_keys_free(keys);
        if (wefti_guard_ready(g) == WEFT_ERR_UNSUPPORTED)
            exit(0); /* there is no OpenSSL */
        must(!wefti_guard_ready_for_lanes(g));
    }
    return g;
}

static weft_status_t step(wefti_stream_t *s, int fd)
{
    weft_status_t st = wefti_stream_shake(s, fd);
    must(!st || st == WEFT_ERR_AGAIN || st == WEFT_ERR_AUTH || st == WEFT_ERR_PROTOCOL || st == WEFT_ERR_PEER);
    must(!st || st == WEFT_ERR_AGAIN || *weft_last_error());
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_stream_t *s;
    int fds[2];
    if (size < 2)
        return 0;
    bool lane = data[0] & 1;
    size_t most = data[1] ? data[1] : size;
    wefti_guard_t *g = guard();
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
    must(!(lane ? wefti_stream_dialled(g, find, NULL, &s) : wefti_stream_wire(g, WEFTI_SIDE_LISTENER, NULL, 0, &s)));
    weft_status_t st = WEFT_ERR_AGAIN;
    for (size_t at = 2; at < size && st == WEFT_ERR_AGAIN;) {
        size_t n = size - at < most ? size - at : most;
        ssize_t sent = send(fds[0], data + at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            break;
        at += (size_t)sent;
        st = step(s, fds[1]);
    }
    must(st != WEFT_OK); /* nobody has the key by chance */
    if (st == WEFT_ERR_AGAIN) {
        shutdown(fds[0], SHUT_WR);
        must(step(s, fds[1]) != WEFT_ERR_AGAIN);
    }
    wefti_stream_free(s);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
