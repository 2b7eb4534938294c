/* tests/fault/tls_flips.c - somebody between the two changes what goes over connections with TLS: bits, bytes and whole records
 * of wire, lane and bulk connections, in the hello and under messages, active messages, remote memory and calls.
 *
 * Every change is the end of that connection at both ends, and of the endpoint, but for a lane's connection that did not come up
 * and is tried anew, and for bytes of a lane that are missing while nothing follows: those are silence. No byte that arrived is
 * another than the one that was sent, not even in the buffer of an operation that failed.
 *
 * SEED=n chooses the same changes, FLIPS=n says how many (1,500, or as many as fit into SECONDS; tls_flips_all.c makes more),
 * FLIP="what connection side byte n" makes this one only.
 *
 * ctest: long shards openssl timeout=600 */
#ifndef MANY
#define MANY 1500
#define SECONDS 22.0 /* of each test, at most: a busy machine makes fewer changes */
#define TEST_SECONDS 1500
#endif
#include <arpa/inet.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <weft/rma.h>
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "between.h"
#include "certs.h"
#include "test.h"

#define PATIENCE 40.0
enum { SIZES = 5, AMS = 2, FIELD = 100000, MEETING = 98 };
static const size_t sizes[SIZES] = {0, 8, 3000, 70000, 400000}, am_sizes[AMS] = {200, 50000};
static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";
static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_service_t *service;
static weft_region_t *region;
static _Atomic(weft_ep_t *) accepted, here;      /* the last one; the one that this meeting's client is at */
static _Atomic int n_accepted, closed[2], alive; /* in this meeting; endpoints that the server has */
static _Atomic uint64_t meeting;
static wefti_rng_t rng;

/* --- the two -------------------------------------------------------------------------------------------------------------- */

static void accepts(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    atomic_store(&accepted, ep);
    atomic_fetch_add(&n_accepted, 1);
    atomic_fetch_add(&alive, 1);
}

/* A client that gave up may be accepted when the next one is already there: so each says which meeting is its own. */
static void says_which(weft_am_t *am, void *user)
{
    uint64_t number = 0;
    (void)user;
    memcpy(&number, am->header, am->header_len < sizeof number ? am->header_len : sizeof number);
    if (number == atomic_load(&meeting))
        atomic_store(&here, am->ep);
}

static void closes(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep, (void)why;
    atomic_fetch_add(&closed[(int)(intptr_t)user], 1);
    atomic_fetch_sub(&alive, !user);
}

static void twice(weft_request_t *request, void *user)
{
    weft_value_t n = weft_u64(request->args[0].u64 * 2);
    (void)user;
    weft_request_reply(request, &n, 1);
}

static void start(bool certificates)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = closes};
    const char *seed = getenv("SEED");
    rng.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    printf("# SEED=%llu\n", (unsigned long long)rng.state);
    setenv("WEFT_INTERFACES", "lo", 1);
    weft_log_set_level(WEFT_LOG_NONE);
    o.progress = WEFT_PROGRESS_THREAD;
    o.transports = "tcp";
    o.connect_timeout_ns = 700 * WEFT_MILLISECOND; /* a length that was made longer is waited for */
    if (certificates) {
        certs_usual();
        certs_use("node", "ca");
    } else {
        o.key = key;
        o.key_len = sizeof key - 1;
    }
    CHECK_OK(weft_runtime_open(&o, &server));
    CHECK_OK(weft_runtime_open(&o, &client));
    lo.accept = accepts;
    lo.hooks = &hooks;
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", &lo, &listener));
    CHECK_OK(weft_service_open(server, "twice", NULL, &service));
    CHECK_OK(weft_service_add(service, "twice(n: u64) -> u64", twice, NULL, NULL));
    ro.len = FIELD;
    CHECK_OK(weft_region_new(server, &ro, &region));
    CHECK_OK(weft_am_handle(server, MEETING, says_which, NULL, NULL));
}

static void end(void)
{
    CHECK_OK(weft_runtime_close(client));
    CHECK_OK(weft_runtime_close(server));
}

/* --- what travels --------------------------------------------------------------------------------------------------------- */

#define UNTOUCHED 0xee
static uint8_t out[2][SIZES][400000], in[2][SIZES][400000], am_out[AMS][50000], am_in[AMS][50000], field[2][FIELD];

static void fill(uint8_t *at, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t word = wefti_rng_next(&rng);
        memcpy(at + i, &word, 8);
    }
}

/* Where bytes are missing the next ones show it: there shall be some, of either kind of connection. Nobody looks at what comes
 * of them. */
static struct {
    weft_ep_t *ep[2]; /* NULL: there is nobody to send them */
    weft_op_t ops[8][4];
    unsigned n;
    uint8_t into[2][400000];
} more;

static void send_more(void)
{
    if (!more.ep[0] || more.n == sizeof more.ops / sizeof *more.ops)
        return;
    weft_op_t *ops = more.ops[more.n++];
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < 40; i++)
            if (weft_am_send(more.ep[side], 99, NULL, 0, out[0][3], 2000, NULL))
                break;
        ops[side] = ops[side + 2] = (weft_op_t)WEFT_OP_INIT;
        ops[side].user = weft_msg_recv(more.ep[!side], more.into[side], 400000, 77, WEFT_TAG_FULL, &ops[side]) ? NULL : ops;
        ops[side + 2].user = weft_msg_send(more.ep[side], out[side][4], 400000, 77, &ops[side + 2]) ? NULL : ops;
    }
}

/* Where the sender has no credit left nothing more can come, and missing bytes of a lane are but silence: only a deadline, or
 * whoever gives up, ends that. Then all must end. */
static unsigned silences;
static bool gave_up, came_up;

static void give_up(void)
{
    static weft_op_t ops[2];
    silences++;
    gave_up = true;
    for (int i = 0; i < 2; i++) {
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_ep_abort(more.ep[i], &ops[i]));
    }
    more.ep[0] = NULL;
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_op_wait(&ops[i], (uint64_t)PATIENCE * WEFT_SECOND));
}

/* It ends, whatever happens. */
static weft_status_t ends(weft_status_t posted, weft_op_t *op)
{
    double began = test_now(), until = began + PATIENCE;
    if (posted)
        return posted;
    for (; !weft_op_done(op); send_more()) {
        (void)weft_op_wait(op, 3 * WEFT_SECOND);
        if (!weft_op_done(op) && test_now() > began + 10 && more.ep[0] && between_did() && !between_ended())
            give_up();
        if (test_now() > until)
            FAIL("an operation does not end: %s", between_text());
    }
    return weft_op_wait(op, 0);
}

static void no_more(void)
{
    more.ep[0] = NULL;
    for (; more.n; more.n--)
        for (unsigned i = 0; i < 4; i++)
            if (more.ops[more.n - 1][i].user)
                (void)ends(WEFT_OK, &more.ops[more.n - 1][i]);
}

/* What is there is what was sent, or nothing; all of it, if that is what the operation says. */
static void right(const char *what, const uint8_t *got, const uint8_t *sent, size_t n, uint8_t nothing, bool all)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != sent[i] && (all || got[i] != nothing))
            FAIL("byte %zu of %s is %02x, and %02x was sent", i, what, got[i], sent[i]);
}

static weft_status_t messages(weft_ep_t *const ep[2])
{
    static weft_op_t sends[2][SIZES], recvs[2][SIZES], am_sends[AMS], am_recvs[AMS];
    weft_status_t first = WEFT_OK, st;
    memset(in, UNTOUCHED, sizeof in);
    memset(am_in, UNTOUCHED, sizeof am_in);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < SIZES; i++) {
            sends[side][i] = recvs[side][i] = (weft_op_t)WEFT_OP_INIT;
            st = weft_msg_recv(ep[!side], in[side][i], sizes[i], i, WEFT_TAG_FULL, &recvs[side][i]);
            first = first ? first : st;
            recvs[side][i].user = st ? NULL : &recvs[side][i];
            st = weft_msg_send(ep[side], out[side][i], sizes[i], i, &sends[side][i]);
            first = first ? first : st;
            sends[side][i].user = st ? NULL : &sends[side][i];
        }
    for (unsigned i = 0; i < AMS; i++) {
        weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
        am_sends[i] = am_recvs[i] = (weft_op_t)WEFT_OP_INIT;
        ro.ep = ep[0];
        ro.id = 10 + i;
        ro.buf = am_in[i];
        ro.cap = am_sizes[i];
        st = weft_am_recv(server, &ro, &am_recvs[i]);
        first = first ? first : st;
        am_recvs[i].user = st ? NULL : &am_recvs[i];
        st = weft_am_send(ep[1], 10 + i, "head", 4, am_out[i], am_sizes[i], &am_sends[i]);
        first = first ? first : st;
        am_sends[i].user = st ? NULL : &am_sends[i];
    }
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < SIZES; i++) {
            st = sends[side][i].user ? ends(WEFT_OK, &sends[side][i]) : WEFT_ERR_PEER;
            first = first ? first : st;
            st = recvs[side][i].user ? ends(WEFT_OK, &recvs[side][i]) : WEFT_ERR_PEER;
            first = first ? first : st;
            right("a message", in[side][i], out[side][i], sizes[i], UNTOUCHED, !st);
        }
    for (unsigned i = 0; i < AMS; i++) {
        st = am_sends[i].user ? ends(WEFT_OK, &am_sends[i]) : WEFT_ERR_PEER;
        first = first ? first : st;
        st = am_recvs[i].user ? ends(WEFT_OK, &am_recvs[i]) : WEFT_ERR_PEER;
        first = first ? first : st;
        right("an active message", am_in[i], am_out[i], am_sizes[i], UNTOUCHED, !st);
    }
    return first;
}

static weft_status_t memory(weft_ep_t *ep)
{
    uint8_t token[WEFT_REGION_KEY_MAX];
    size_t n = sizeof token;
    weft_op_t attach = WEFT_OP_INIT, op = WEFT_OP_INIT;
    memset(weft_region_base(region), 0, FIELD);
    memset(field[1], UNTOUCHED, FIELD);
    CHECK_OK(weft_region_key(region, NULL, token, &n));
    weft_status_t st = ends(weft_remote_attach(ep, token, n, NULL, &attach), &attach);
    if (st)
        return st;
    weft_remote_t *remote = weft_op_remote(&attach);
    st = ends(weft_rma_write(remote, 0, field[0], FIELD, &op), &op);
    right("remote memory", weft_region_base(region), field[0], FIELD, 0, !st);
    if (!st) {
        st = ends(weft_rma_read(remote, 0, field[1], FIELD, &op), &op);
        right("what was read", field[1], field[0], FIELD, UNTOUCHED, !st);
    }
    weft_remote_drop(remote);
    return st;
}

static weft_status_t calls(weft_ep_t *ep)
{
    weft_client_t *c;
    weft_method_t *m;
    weft_op_t op = WEFT_OP_INIT, over = WEFT_OP_INIT;
    weft_status_t st = weft_client_on(ep, NULL, &c);
    if (st)
        return st;
    CHECK_OK(weft_client_method(c, "twice(n: u64) -> u64", &m));
    for (unsigned i = 0; i < 3 && !st; i++) {
        weft_value_t n = weft_u64(wefti_rng_next(&rng));
        weft_reply_t reply = WEFT_REPLY_INIT;
        st = ends(weft_call(m, &n, 1, &reply, &op), &op);
        if (!st)
            CHECK_EQ(reply.values[0].u64, n.u64 * 2);
        weft_reply_release(&reply);
    }
    CHECK_OK(weft_client_close(c, &over));
    (void)ends(WEFT_OK, &over);
    return st;
}

/* --- one meeting ---------------------------------------------------------------------------------------------------------- */

static bool both_ended(bool met)
{
    return !atomic_load(&alive) && (!met || atomic_load(&closed[1]));
}

static void drop(weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    if (ep)
        CHECK_OK(ends(weft_ep_abort(ep, &op), &op));
}

/* The server's endpoint of this meeting; NULL: the connection ended before it was there. What was kept back on the way comes with
 * what follows it. */
static weft_ep_t *other_end(weft_ep_t *client_ep)
{
    uint64_t number = atomic_load(&meeting);
    for (double until = test_now() + PATIENCE; !atomic_load(&here) && !atomic_load(&closed[1]); usleep(2000)) {
        if (test_now() > until)
            FAIL("%s: %s", between_text(), "nothing comes to the server");
        if (weft_am_send(client_ep, MEETING, &number, sizeof number, NULL, 0, NULL))
            break;
    }
    return atomic_load(&here);
}

/* They meet, do something, and part. True: the plan was carried out. */
static bool meets(const between_plan_t *plan, bool traffic)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t once = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep[2] = {NULL, NULL};
    once.no_retry = true;
    once.hooks = (weft_ep_hooks_t){.closed = closes, .user = (void *)(intptr_t)1};
    gave_up = false;
    atomic_store(&n_accepted, 0);
    atomic_store(&accepted, NULL);
    atomic_store(&here, NULL);
    atomic_store(&closed[0], 0);
    atomic_store(&closed[1], 0);
    atomic_fetch_add(&meeting, 1);
    between_plan(plan);
    CHECK_OK(weft_ep_open(client, weft_listener_uri(listener), &once, &op, &ep[1]));
    weft_status_t st = ends(WEFT_OK, &op);
    bool met = !st;
    ep[0] = met ? other_end(ep[1]) : NULL;
    if (met && traffic && ep[0]) {
        more.ep[0] = ep[0];
        more.ep[1] = ep[1];
        st = messages(ep);
        st = st ? st : memory(ep[1]);
        st = st ? st : calls(ep[1]);
    }
    double until = test_now() + PATIENCE;
    while (traffic && !st && ep[0] && between_did() && !between_ended() && !between_harmless()) {
        st = messages(ep);
        if (!st && test_now() > until)
            FAIL("%s: %s", between_text(), "nobody noticed");
    }
    more.ep[0] = NULL;
    bool did = between_stop();
    came_up = !st;
    bool late = !met && (st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_UNREACHABLE); /* the machine is busy, and patience short */
    if (st && !did && !late)
        FAIL("nothing was changed, and it failed: %s", weft_status_name(st));
    if (did && !traffic && met && !between_harmless() && plan->at + 200 < between_seen(0, plan->side))
        FAIL("%s: %s", between_text(), "the connection came up");
    if (gave_up) {
        no_more();
        return did;
    }
    if (st)
        for (until = test_now() + PATIENCE; !both_ended(met); usleep(200))
            if (test_now() > until)
                FAIL("%s: %s", between_text(), "one end goes on");
    drop(ep[1]);
    drop(ep[0] ? ep[0] : atomic_load(&accepted));
    TEST_UNTIL(both_ended(false), PATIENCE);
    no_more();
    return did;
}

/* --- tests ---------------------------------------------------------------------------------------------------------------- */

/* Nothing is changed: then all goes well. */
static void meets_untouched(bool traffic)
{
    for (double until = test_now() + PATIENCE;;) {
        meets(&(between_plan_t){.what = BETWEEN_NOTHING}, traffic);
        if (came_up)
            return;
        if (test_now() > until)
            FAIL("nothing was changed, and it does not come up");
    }
}

static void everywhere(between_what_t what, bool certificates)
{
    start(certificates);
    meets_untouched(false);
    unsigned tries = 0;
    size_t n[2] = {between_seen(0, 0), between_seen(0, 1)};
    for (unsigned side = 0; side < 2; side++) {
        CHECK(n[side] > 300); /* else this is no handshake */
        for (size_t at = 0; at < n[side]; at += at < 64 ? 1 : 11, tries++)
            meets(&(between_plan_t){.what = what, .side = side, .at = at, .n = at}, false);
    }
    printf("# %u changes, of %zu and %zu bytes\n", tries, n[0], n[1]);
    meets_untouched(true); /* and nobody else was hurt */
    end();
}

TEST(a_bit_that_was_changed_in_the_hello_ends_the_connection)
{
    everywhere(BETWEEN_FLIP, false);
}

TEST(a_connection_that_was_cut_off_in_the_hello_ends)
{
    everywhere(BETWEEN_CUT, false);
}

static void anywhere(bool certificates)
{
    const char *text = getenv("FLIPS"), *one = getenv("FLIP");
    unsigned many = text ? (unsigned)atoi(text) : MANY / 2, did = 0, harmless = 0, of[BETWEEN_WHATS] = {0}, tried = 0;
    size_t n[BETWEEN_CONNS][2];
    start(certificates);
    fill(&out[0][0][0], sizeof out);
    fill(&am_out[0][0], sizeof am_out);
    fill(field[0], FIELD);
    meets_untouched(true);
    unsigned conns = between_conns();
    CHECK(conns >= 2); /* a wire, a lane, and perhaps more of them */
    for (unsigned c = 0; c < conns; c++)
        for (unsigned side = 0; side < 2; side++)
            n[c][side] = between_seen(c, side);
    double began = test_now();
    for (; did < many; tried++) {
#ifdef SECONDS
        if (test_now() > began + SECONDS && !text)
            break;
#endif
        between_plan_t p = {.what = (between_what_t)(1 + wefti_rng_below(&rng, BETWEEN_WHATS - 1)),
                            .conn = (unsigned)wefti_rng_below(&rng, conns),
                            .side = (unsigned)wefti_rng_below(&rng, 2),
                            .n = 1 + wefti_rng_below(&rng, wefti_rng_below(&rng, 4) ? 8 : 2000)};
        size_t all = n[p.conn][p.side], first = all < 3000 || wefti_rng_below(&rng, 2) ? all : 3000;
        if (!all)
            continue;
        p.at = wefti_rng_below(&rng, first);
        unsigned what;
        if (one && sscanf(one, "%u %u %u %zu %zu", &what, &p.conn, &p.side, &p.at, &p.n) == 5)
            p.what = (between_what_t)what;
        if (p.what == BETWEEN_TURN && p.n < 2)
            p.n = 2;
        if (!meets(&p, true))
            continue; /* it went another way this time */
        did++;
        of[p.what]++;
        harmless += between_harmless();
    }
    printf("# %u changes of %u tries in %.0f s, on %u connections; %u of what says nothing, %u silences:", did, tried,
           test_now() - began, conns, harmless, silences);
    for (unsigned i = 1; i < BETWEEN_WHATS; i++)
        printf(" %u %s%s", of[i], between_name((between_what_t)i), i + 1 < BETWEEN_WHATS ? "," : "\n");
    CHECK(did > 20 || one);
    CHECK(silences * 20 <= did + 20); /* they are few */
    meets_untouched(true);
    end();
}

/* Its acceptor may send payloads with its answer: who does not understand the answer must not wait for them. */
TEST(a_second_connection_that_breaks_while_it_greets_leaves_nothing_waiting)
{
    start(false);
    meets_untouched(true);
    CHECK(between_conns() == 3);
    for (unsigned at = 200, n = 0; at < 460; at += 20, n++)
        meets(&(between_plan_t){.what = BETWEEN_FLIP, .conn = 2, .side = 1, .at = at, .n = n}, true);
    end();
}

TEST(whatever_is_changed_is_an_error_at_both_ends_by_the_key)
{
    anywhere(false);
}

TEST(whatever_is_changed_is_an_error_at_both_ends_by_certificates)
{
    anywhere(true);
}

/* --- strangers ------------------------------------------------------------------------------------------------------------ */

static int dial(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (void *)&a, sizeof a));
    return fd;
}

/* Who speaks something else gets nothing, and keeps nobody out. */
TEST(strangers_that_do_not_speak_tls_get_nothing)
{
    static const char *const words[] = {"GET / HTTP/1.1\r\n\r\n", "WFT1\x10\0\0\0abcdefghijklmnop",
                                        "\x16\x03\x01\x02\0\x01\0\1\xfc\x03\x03", ""};
    start(false);
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        char c[256];
        struct timeval patience = {15, 0};
        int fd = dial(weft_listener_port(listener));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        size_t n = i == 1 ? 24 : i == 2 ? 11 : strlen(words[i]);
        CHECK_EQ(send(fd, words[i], n, MSG_NOSIGNAL), n);
        if (i < 2) {
            ssize_t got;
            while ((got = recv(fd, c, sizeof c, 0)) > 0)
                CHECK(c[0] == 0x15); /* an alert of TLS, and then the end */
            CHECK(got == 0 || errno == ECONNRESET);
        }
        meets_untouched(false);
        close(fd);
    }
    end();
}
