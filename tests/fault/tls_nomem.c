/* tests/fault/tls_nomem.c - OpenSSL's memory runs out, at one allocation after another of a connection's life: files that are
 * read, handshakes, messages, files that are read again. Each time everything ends with a status, nobody is let in who may not
 * come, and nobody under another name; afterwards the same runtimes meet. Our own allocations fail in conn_nomem.c.
 *
 * ctest: openssl timeout=300 */
#define TEST_SECONDS 240
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <weft/weft.h>

#include "certs.h"
#include "test.h"

enum { LONG = 30, TRIES = 25 };
static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_ep_t *came[64];
static unsigned n_came;

/* --- OpenSSL's memory ----------------------------------------------------------------------------------------------------- */

static bool counts;
static long made, fails_at, fails_to; /* those with these numbers fail */

static bool fails(void)
{
    return counts && ++made >= fails_at && made < fails_to;
}

static void *get(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return fails() ? NULL : malloc(n);
}

static void *get_more(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return fails() ? NULL : realloc(p, n);
}

static void give(void *p, const char *file, int line)
{
    (void)file, (void)line;
    free(p);
}

__attribute__((constructor)) static void take_over(void)
{
    if (!CRYPTO_set_mem_functions(get, get_more, give))
        abort();
}

/* From now on; times 0: none fails, and they are counted. */
static void fail_at(long at, long times)
{
    made = 0;
    fails_at = times ? at : LONG_MAX;
    fails_to = times ? at + times : LONG_MAX;
    counts = true;
}

static long counted(void)
{
    counts = false;
    return made;
}

/* --- a life --------------------------------------------------------------------------------------------------------------- */

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    (void)l, (void)user;
    CHECK_OK(weft_ep_get_info(ep, &info));
    CHECK_STR(info.identity, "desk.example");
    CHECK(info.authenticated);
    CHECK(n_came < sizeof came / sizeof *came);
    came[n_came++] = ep;
}

static void drive(void)
{
    if (server)
        weft_runtime_progress(server);
    if (client)
        weft_runtime_progress(client);
    if (ERR_peek_error())
        FAIL("an error of ours is left to the program: %s", ERR_error_string(ERR_peek_error(), NULL));
}

#define UNTIL(cond) TEST_UNTIL((drive(), cond), LONG)

static weft_runtime_t *opens(const char *name)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    o.connect_timeout_ns = 2 * WEFT_SECOND;
    o.close_timeout_ns = WEFT_SECOND / 2;
    certs_use(name, "ca");
    CHECK_OK(weft_runtime_open(&o, &rt)); /* reads no file yet */
    return rt;
}

static weft_status_t serve(void)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    server = opens("node");
    lo.accept = accepted;
    return weft_listen(server, "tls://127.0.0.1:0", &lo, &listener);
}

/* The client closes; the server has no endpoint left, and none on its way. */
static void gone(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    counts = false;
    if (client)
        CHECK_OK(weft_runtime_close(client));
    client = NULL;
    do {
        while (n_came)
            CHECK_OK(weft_ep_close(came[--n_came], NULL));
        UNTIL(n_came || (!weft_runtime_get_stats(server, &s) && !s.endpoints));
    } while (n_came);
}

/* A client comes, says something by each kind of connection, and goes. */
static weft_status_t meet(weft_runtime_t *rt)
{
    static uint8_t out[600 << 10], in[sizeof out];
    weft_op_t op = WEFT_OP_INIT, sent = WEFT_OP_INIT, got = WEFT_OP_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_ep_t *ep;
    client = rt;
    o.no_retry = true;
    weft_status_t st = weft_ep_open(client, weft_listener_uri(listener), &o, &op, &ep);
    if (st)
        return st;
    UNTIL(weft_op_done(&op));
    if (op.status)
        return op.status;
    CHECK_OK(weft_ep_get_info(ep, &info));
    CHECK_STR(info.identity, "node.example");
    UNTIL(n_came || weft_ep_get_info(ep, &info) || info.state != WEFT_EP_UP);
    if (!n_came)
        return WEFT_ERR_PEER;
    memset(out, made & 255, sizeof out);
    st = weft_msg_recv(came[0], in, sizeof in, 1, WEFT_TAG_FULL, &got);
    if (st)
        return st;
    st = weft_msg_send(ep, out, sizeof out, 1, &sent);
    if (!st)
        UNTIL(weft_op_done(&sent));
    st = st ? st : sent.status;
    if (st)
        weft_op_cancel(&got);
    UNTIL(weft_op_done(&got));
    if (!got.status)
        CHECK(got.count == sizeof out && !memcmp(in, out, sizeof out));
    return st ? st : got.status;
}

static void begin(void)
{
    weft_log_set_level(WEFT_LOG_NONE);
    setenv("WEFT_INTERFACES", "lo", 1);
    certs_usual();
    certs_make(&(cert_t){.name = "desk", .by = "ca", .san = "DNS:desk.example"});
    certs_make(&(cert_t){.name = "other", .ca = true});
    certs_make(&(cert_t){.name = "stranger", .by = "other", .san = "DNS:desk.example"});
}

/* Of `all` allocations some, spread over them, another choice with each `times`. */
static long next(long at, long all, long times)
{
    long step = all / TRIES + 1;
    return at + step + (at * 7 + times) % (step + 1) - step / 2;
}

TEST(a_handshake_and_what_follows_end_wherever_memory_runs_out)
{
    long all, tries = 0, met = 0;
    begin();
    CHECK_OK(serve());
    CHECK_OK(meet(opens("desk")));
    gone();
    fail_at(0, 0);
    CHECK_OK(meet(opens("desk")));
    all = counted();
    gone();
    for (long times = 1; times <= 5; times += 4) {
        for (long at = 1; at < all; at = next(at, all, times), tries++) {
            fail_at(at, times);
            met += !meet(opens("desk"));
            gone();
        }
    }
    CHECK_OK(meet(opens("desk")));
    printf("# %ld allocations, %ld of them failed, and %ld met all the same\n", all, tries, met);
    gone();
    CHECK_OK(weft_runtime_close(server));
}

TEST(who_may_not_come_does_not_come_when_memory_runs_out)
{
    long all = 0;
    begin();
    CHECK_OK(serve());
    CHECK_OK(meet(opens("desk")));
    gone();
    fail_at(0, 0);
    CHECK(meet(opens("stranger")) != WEFT_OK);
    all = counted();
    gone();
    for (long at = 1; at < all; at = next(at, all, 3)) {
        fail_at(at, 3);
        CHECK(meet(opens("stranger")) != WEFT_OK);
        gone();
    }
    CHECK_OK(weft_runtime_close(server));
}

TEST(files_are_read_or_refused_wherever_memory_runs_out)
{
    long all;
    begin();
    fail_at(0, 0);
    CHECK_OK(serve());
    all = counted();
    CHECK_OK(weft_runtime_close(server));
    for (long at = 1; at < all; at = next(at, all, 2)) {
        fail_at(at, 2);
        weft_status_t st = serve();
        counts = false;
        CHECK(!st || st == WEFT_ERR_NOMEM || st == WEFT_ERR_INVALID);
        if (!st && at % 5 == 0) { /* then it has all of them */
            if (meet(opens("desk")))
                FAIL("after allocation %ld: %s", at, weft_last_error());
            gone();
            CHECK(meet(opens("stranger")) != WEFT_OK);
            gone();
        }
        CHECK_OK(weft_runtime_close(server));
    }
    server = NULL;
}

TEST(files_that_changed_while_memory_ran_out_are_read_later)
{
    char fresh[128], path[128], text[8192];
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    begin();
    snprintf(fresh, sizeof fresh, "%s/fresh", certs_folder());
    CHECK_OK(serve());
    CHECK_OK(meet(opens("desk")));
    snprintf(path, sizeof path, "%s/ca.crt", certs_folder());
    int fd = open(certs_file("other", "crt"), O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    CHECK(n > 0);
    close(fd);
    CHECK((fd = open(fresh, O_CREAT | O_WRONLY, 0600)) >= 0 && write(fd, text, (size_t)n) == n);
    close(fd);
    fail_at(1, LONG_MAX / 2);
    CHECK(!rename(fresh, path));
    for (double end = test_now() + 1.5; test_now() < end;)
        drive();
    bool lost = n_came && (weft_ep_get_info(came[0], &info) || info.state != WEFT_EP_UP); /* there was no memory to judge it */
    counts = false;
    UNTIL(lost || weft_ep_get_info(came[0], &info) || info.state != WEFT_EP_UP);
    gone();
    CHECK(meet(opens("desk")) != WEFT_OK); /* its authority is not one any more */
    gone();
    CHECK_OK(weft_runtime_close(server));
}
