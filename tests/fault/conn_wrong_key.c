/* Peers with another key, with none, and with tricks: nobody gets an endpoint, and no hook runs for them. */
#include <sys/prctl.h>

#include "core/core.h"
#include "lib/raw.h"
#include "ports.h"
#include "test.h"

static int n_admit, n_accept;

static weft_status_t admit(const char *name, const char *address, void *user)
{
    (void)name, (void)address, (void)user;
    n_admit++;
    return WEFT_OK;
}

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)ep, (void)user;
    n_accept++;
}

static weft_runtime_t *open_keyed(const char *key, weft_listener_t **l)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_runtime_t *rt;
    weft_log_set_level(WEFT_LOG_ERROR);
    o.key = key;
    o.key_len = key ? strlen(key) : 0;
    CHECK_OK(weft_runtime_open(&o, &rt));
    lo.admit = admit;
    lo.accept = accepted;
    if (l)
        CHECK_OK(weft_listen(rt, ports_tcp(), &lo, l));
    return rt;
}

TEST(processes_with_other_keys_or_none_are_refused_and_one_with_the_key_is_not)
{
    static const char *keys[] = {"the right key, long enough", "the wrong key, long enough", NULL};
    static const weft_status_t expected[] = {WEFT_OK, WEFT_ERR_AUTH, WEFT_ERR_AUTH};
    char uri[256] = "";
    int fds[2], go[2]; /* who is connected stays until it is told to go: the listener may be late to take it */
    pid_t kids[3];
    CHECK(!pipe(fds) && !pipe(go));
    for (int i = 0; i < 3; i++) {
        kids[i] = fork();
        if (kids[i] == 0) {
            weft_op_t op = WEFT_OP_INIT;
            weft_ep_t *ep;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CHECK(read(fds[0], uri, sizeof uri) == sizeof uri);
            weft_runtime_t *mine = open_keyed(keys[i], NULL);
            CHECK_OK(weft_ep_open(mine, uri, NULL, &op, &ep));
            weft_status_t st = weft_op_wait(&op, 10 * WEFT_SECOND);
            CHECK(st || read(go[0], uri, 1) == 1);
            _exit(st == expected[i] ? 0 : 1);
        }
    }
    weft_listener_t *l;
    weft_runtime_t *rt = open_keyed(keys[0], &l);
    snprintf(uri, sizeof uri, "%s", weft_listener_uri(l));
    for (int i = 0; i < 3; i++)
        CHECK(write(fds[1], uri, sizeof uri) == sizeof uri);
    double end = test_now() + 10;
    while (!n_accept && test_now() < end)
        weft_runtime_progress(rt);
    CHECK(write(go[1], "", 1) == 1);
    for (int i = 0; i < 3; i++) {
        int status = 1;
        while (waitpid(kids[i], &status, WNOHANG) == 0)
            weft_runtime_progress(rt);
        CHECK_EQ(status, 0);
    }
    raw_run(rt, 0.05);
    CHECK_EQ(n_accept, 1);
    CHECK_EQ(n_admit, 1);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_stranger_who_claims_a_key_and_cannot_prove_it_gets_nowhere)
{
    weft_listener_t *l;
    weft_runtime_t *rt = open_keyed("the right key, long enough", &l);
    uint8_t buf[WEFTI_WIRE_MAX], hello[WEFTI_HELLO_MAX];
    const char *what;
    for (int trick = -1; trick < 4; trick++) {
        int fd = raw_connect(weft_listener_port(l));
        wefti_hello_t h = raw_hello(), w;
        h.flags = WEFTI_HELLO_KEYED;
        h.n_transports = 1;
        h.transports[0].kind = 1;
        if (trick >= 0) /* a hint that was overheard */
            wefti_key_hint(rt->keys->at, WEFTI_HELLO_HINT, h.nonce, sizeof h.nonce, h.hint);
        raw_send(fd, hello, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, hello, sizeof hello));
        long n = raw_recv(fd, buf, sizeof buf, 2, rt);
        if (trick < 0) { /* it is told nothing that is made of the key */
            CHECK(n > 0 && buf[0] == WEFTI_SHAKE_REFUSE);
            close(fd);
            continue;
        }
        CHECK(n > WEFTI_MAC_SIZE);
        CHECK_OK(wefti_hello_decode(buf, (size_t)n - WEFTI_MAC_SIZE, WEFTI_SHAKE_WELCOME, &w, &what));
        uint8_t addr[64] = {0}, join[256] = {0};
        wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN, .attempt = 1, .kind = 1, .addr = addr, .addr_len = sizeof addr};
        size_t len = wefti_lane_msg_encode(&j, join, sizeof join);
        if (trick == 0)
            raw_send(fd, join, len); /* without proof */
        else if (trick == 1)
            raw_send(fd, join, len + WEFTI_MAC_SIZE); /* with zeroes for proof */
        else if (trick == 2) {
            memcpy(join + len, buf + n - WEFTI_MAC_SIZE, WEFTI_MAC_SIZE); /* with the listener's own */
            raw_send(fd, join, len + WEFTI_MAC_SIZE);
        } else {
            raw_send(fd, buf, (size_t)n); /* its welcome, reflected */
        }
        n = raw_recv(fd, buf, sizeof buf, 2, rt);
        CHECK(n == 0 || (n > 0 && buf[0] == WEFTI_SHAKE_REFUSE));
        if (n > 0)
            CHECK_EQ(raw_recv(fd, buf, sizeof buf, 2, rt), 0);
        close(fd);
    }
    CHECK_EQ(n_admit + n_accept, 0);
    CHECK_OK(weft_runtime_close(rt));
}
