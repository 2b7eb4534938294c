/* The peer is killed, or stopped, in the middle of active messages: eager streams, payloads being pulled on either side,
 * messages kept, viewed and lent, sends that wait for the window, rejects on their way. Every operation ends within the
 * heartbeat bound with its result or WEFT_ERR_PEER, what was kept stays readable until it is released, nothing is left, and a
 * third peer of the same runtime notices nothing.
 *
 * ctest: tls-long timeout=600 long */
#define TEST_SECONDS 280
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#include "lib/peer.h"
#include "lib/witness.h"
#include "test.h"

enum { BIG = 24 << 20, OFFER = 2 << 20, MIDDLE = 100000, ID = 1, ID_OTHER = 2, ID_POOL = 3, ID_NOBODY = 4, REASON = 77 };
enum { VICTIM, WITNESS, PEERS };

#define BOUND_NS (700 * WEFT_MILLISECOND)
/* One bound on a machine that runs us; a starved process may take itself for the silent one twice (conn/beat.c), and needs time
 * besides. */
#define BOUND_S (0.7 * 2.6 + 2.5)

static const char *const transports[] = {"shm", "tcp"};
static const int signals[] = {SIGKILL, SIGSTOP};
#define EACH_LOSS(t, s) \
    for (unsigned t = 0; t < 2; t++) \
        for (unsigned s = 0; s < 2; s++)

static peer_t peers[PEERS];
static peer_t *const victim = &peers[VICTIM];
static double lost_at;
static int fds_before, maps_before;

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Mappings of memory shared with others; with `at`, of those that address is in. */
static int count_maps(const void *at)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    uintptr_t from, to;
    int n = 0;
    while (f && fgets(line, sizeof line, f)) {
        CHECK(sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2);
        n += strstr(line, "memfd:") && (!at || ((uintptr_t)at >= from && (uintptr_t)at < to));
    }
    if (f)
        fclose(f);
    return n;
}

/* What is sent. Made once, before there are peers: whoever computes for long is silent for as long. */
static uint8_t *big(void)
{
    static uint8_t *bytes;
    if (!bytes) {
        bytes = malloc(BIG);
        CHECK(bytes);
        for (size_t i = 0; i < BIG; i++)
            bytes[i] = (uint8_t)(i * 7 + (i >> 11));
    }
    return bytes;
}
/* Long ones in pieces, so that we are not the silent ones. */
static bool is_big(const void *at, size_t n)
{
    enum { PIECE = 1 << 20 };
    for (size_t i = 0; i < n; i += PIECE) {
        if (memcmp((const uint8_t *)at + i, big() + i, n - i < PIECE ? n - i : PIECE))
            return false;
        if (n > PIECE)
            weft_runtime_progress(victim->rt);
    }
    return true;
}

static void begin(const char *transport, peer_life_t life)
{
    big();
    fds_before = count_fds();
    maps_before = count_maps(NULL);
    lost_at = 0;
    peers_start(peers, PEERS, transport, BOUND_NS, (peer_life_t[]){life, witness_life});
    witness_serve(&peers[WITNESS]);
}

/* From here on everything on the victim's endpoint has to end. */
static void lose(int sig)
{
    peer_signal(victim, sig);
    lost_at = test_now();
}

static weft_status_t ended(weft_op_t *op)
{
    double left = lost_at + BOUND_S - test_now();
    return peer_wait(victim, op, left > 0.05 ? left : 0.05);
}

static void check_lost(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
    char byte;
    CHECK_EQ(weft_ep_get_state(victim->ep), WEFT_EP_FAILED);
    CHECK_OK(weft_am_send(victim->ep, ID, NULL, 0, "x", 1, &op)); /* what became of the peer comes by the operation */
    CHECK_EQ(peer_wait(victim, &op, 5), WEFT_ERR_PEER);
    CHECK_EQ(weft_am_send(victim->ep, ID, NULL, 0, "x", 1, NULL), WEFT_ERR_PEER);
    ro.ep = victim->ep;
    ro.id = ID_NOBODY;
    ro.buf = &byte;
    ro.cap = 1;
    CHECK_OK(weft_am_recv(victim->rt, &ro, &op));
    CHECK_EQ(peer_wait(victim, &op, 5), WEFT_ERR_PEER);
    CHECK_OK(weft_am_take(victim->rt, victim->ep, ID_NOBODY, &op));
    CHECK_EQ(peer_wait(victim, &op, 5), WEFT_ERR_PEER);
}

static void end(void)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    witness_end(&peers[WITNESS]);
    if (victim->ep) {
        CHECK_OK(weft_ep_abort(victim->ep, &op));
        peer_wait(victim, &op, 10);
        victim->ep = NULL;
    }
    weft_runtime_get_stats(victim->rt, &s);
    CHECK_EQ(s.endpoints, 0);
    CHECK_EQ(s.ops_posted, s.ops_completed);
    CHECK_EQ(s.am_held, 0);
    CHECK_EQ(s.am_held_bytes, 0);
    peers_end(peers, PEERS);
    CHECK_EQ(count_maps(NULL), maps_before);
    CHECK_EQ(count_fds(), fds_before);
}

/* A receive that can only end with the endpoint: it tells when the loss was noticed. */
static weft_op_t nobodys;
static char nobodys_byte;
static void post_nobodys(void)
{
    weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
    nobodys = (weft_op_t)WEFT_OP_INIT;
    ro.ep = victim->ep;
    ro.id = ID_NOBODY;
    ro.buf = &nobodys_byte;
    ro.cap = 1;
    CHECK_OK(weft_am_recv(victim->rt, &ro, &nobodys));
}

/* --- lives of the victim -------------------------------------------------------------------------------------------------- */

static void on_drop(weft_am_t *am, void *user)
{
    (void)am, (void)user;
}
static void on_keep(weft_am_t *am, void *user)
{
    (void)user;
    if (!weft_am_keep(am))
        _exit(1);
}
static void on_reject(weft_am_t *am, void *user)
{
    (void)user;
    if (weft_am_reject(am, REASON))
        _exit(1);
}
static void pull_ended(weft_op_t *op, void *user)
{
    (void)user;
    free(op);
}
static void on_pull(weft_am_t *am, void *user)
{
    static uint8_t into[BIG];
    weft_op_t *op = calloc(1, sizeof *op);
    (void)user;
    op->fn = pull_ended;
    if (weft_am_pull(am, into, sizeof into, op))
        _exit(1);
}

static void live_with(weft_runtime_t *rt, weft_am_fn fn)
{
    if (weft_am_handle(rt, ID, fn, NULL, NULL))
        _exit(1);
    peer_live(rt);
}
static void life_drop(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    live_with(rt, on_drop);
}
static void life_keep(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    live_with(rt, on_keep);
}
static void life_reject(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    live_with(rt, on_reject);
}
static void life_pull(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    live_with(rt, on_pull);
}
static void life_idle(weft_runtime_t *rt, weft_ep_t *ep)
{
    (void)ep;
    peer_live(rt);
}

static size_t life_size; /* set before it starts */
static bool life_confirm;
/* Sends numbered messages for ever, several under way. */
static void life_send(weft_runtime_t *rt, weft_ep_t *ep)
{
    enum { N = 8 };
    static weft_op_t ops[N];
    static uint64_t seqs[N];
    for (uint64_t seq = 0;; seq++) {
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        unsigned i = seq % N;
        while (!weft_op_done(&ops[i]))
            weft_runtime_progress(rt);
        seqs[i] = seq;
        o.id = ID;
        o.header = &seqs[i];
        o.header_len = sizeof seqs[i];
        o.buf = big();
        o.len = life_size;
        o.confirm = life_confirm;
        if (weft_am_send_with(ep, &o, &ops[i]))
            _exit(1);
        weft_runtime_progress(rt);
    }
}

/* One small message, two large ones, and two large ones out of a pool. */
static void life_offer(weft_runtime_t *rt, weft_ep_t *ep)
{
    static weft_op_t ops[5];
    weft_pool_t *pool;
    void *lent;
    if (weft_pool_new(rt, NULL, &pool) || weft_pool_get(pool, OFFER, &lent))
        _exit(1);
    memcpy(lent, big(), OFFER);
    if (weft_am_send(ep, ID, "eager", 5, big(), 1000, &ops[0]) || weft_am_send(ep, ID, "rndv", 4, big(), OFFER, &ops[1]) ||
        weft_am_send(ep, ID, "rndv", 4, big(), OFFER, &ops[2]) || weft_am_send(ep, ID_POOL, "pool", 4, lent, OFFER, &ops[3]) ||
        weft_am_send(ep, ID_POOL, "pool", 4, lent, OFFER, &ops[4]))
        _exit(1);
    peer_live(rt);
}

/* --- we send -------------------------------------------------------------------------------------------------------------- */

/* Send until the loss is noticed: every send ends with WEFT_OK, with WEFT_ERR_PEER, or with `other`. How many were WEFT_OK. */
static uint64_t stream_to_victim(int sig, size_t len, bool confirm, uint64_t lose_after, weft_status_t other)
{
    enum { N = 64 };
    static weft_op_t ops[N];
    static uint64_t heads[N];
    uint64_t ok = 0, n = 0, refused = 0;
    weft_status_t st = WEFT_OK;
    memset(ops, 0, sizeof ops);
    for (; !st && n < 50000000; n++) {
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        weft_op_t *op = &ops[n % N];
        if (n == lose_after)
            lose(sig);
        if (n >= N) {
            st = lost_at > 0 ? ended(op) : peer_wait(victim, op, 20);
            CHECK(st == WEFT_OK || st == WEFT_ERR_PEER || st == other);
            if (st == other && other)
                CHECK_EQ(op->reason, REASON);
            ok += !st;
            refused += st && st == other;
            if (st == other)
                st = WEFT_OK;
        }
        if (st)
            break;
        heads[n % N] = n;
        o.id = ID;
        o.header = &heads[n % N];
        o.header_len = sizeof n;
        o.buf = big();
        o.len = len;
        o.confirm = confirm;
        memset(op, 0, sizeof *op);
        st = weft_am_send_with(victim->ep, &o, op);
        CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
        if (n % 16 == 0)
            weft_runtime_progress(victim->rt);
        if (n < lose_after)
            continue;
        CHECK(test_now() < lost_at + BOUND_S);
    }
    CHECK_EQ(st, WEFT_ERR_PEER);
    for (unsigned i = 0; i < N; i++) {
        st = ended(&ops[i]);
        CHECK(st == WEFT_OK || st == WEFT_ERR_PEER || st == other);
    }
    CHECK(!other || refused > 0);
    check_lost();
    return ok;
}

TEST(an_eager_stream_to_a_lost_peer_ends)
{
    static const size_t sizes[] = {0, 64, 3000};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 3; k++) {
            begin(transports[t], life_drop);
            stream_to_victim(signals[s], sizes[k], false, 3000 + 500 * k, WEFT_OK);
            end();
        }
    }
}

TEST(confirmed_sends_to_a_lost_peer_end_and_none_claims_that_it_was_received)
{
    EACH_LOSS(t, s)
    {
        begin(transports[t], life_drop);
        stream_to_victim(signals[s], 100, true, 1000, WEFT_OK);
        end();

        enum { N = 8 }; /* and where the receiver keeps them, none is confirmed */
        weft_op_t ops[N];
        memset(ops, 0, sizeof ops);
        begin(transports[t], life_keep);
        for (unsigned i = 0; i < N; i++) {
            weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
            o.id = ID;
            o.buf = big();
            o.len = i % 2 ? 100 : MIDDLE;
            o.confirm = true;
            CHECK_OK(weft_am_send_with(victim->ep, &o, &ops[i]));
        }
        witness_goes_on(&peers[WITNESS], 20);
        for (unsigned i = 0; i < N; i++)
            CHECK(!weft_op_done(&ops[i]));
        lose(signals[s]);
        for (unsigned i = 0; i < N; i++)
            CHECK_EQ(ended(&ops[i]), WEFT_ERR_PEER);
        check_lost();
        end();
    }
}

TEST(payloads_a_lost_peer_was_pulling_end)
{
    enum { N = 6 };
    EACH_LOSS(t, s)
    {
        for (unsigned kept = 0; kept < 2; kept++) {
            weft_op_t ops[N];
            unsigned ok = 0;
            memset(ops, 0, sizeof ops);
            begin(transports[t], kept ? life_keep : life_pull);
            for (unsigned i = 0; i < N; i++)
                CHECK_OK(weft_am_send(victim->ep, ID, "head", 4, big(), BIG, &ops[i]));
            if (kept)
                peer_run(victim, 0.05);
            else /* the first is done: the others are being pulled or wait for it */
                CHECK_OK(peer_wait(victim, &ops[0], 20));
            lose(signals[s]);
            for (unsigned i = 0; i < N; i++) {
                weft_status_t st = ended(&ops[i]);
                CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
                ok += !st;
            }
            CHECK(kept ? ok == 0 : ok >= 1);
            if (weft_ep_get_state(victim->ep) == WEFT_EP_UP) { /* all were done: the loss is found on another account */
                post_nobodys();
                CHECK_EQ(ended(&nobodys), WEFT_ERR_PEER);
            }
            check_lost();
            end();
        }
    }
}

static unsigned released;
static void on_release(void *buf, void *user)
{
    (void)user;
    CHECK(buf);
    released++;
    free(buf);
}

TEST(sends_that_wait_for_the_window_of_a_lost_peer_end)
{
    enum { N = 8192, EACH = 1000 };
    static weft_op_t ops[N];
    EACH_LOSS(t, s)
    {
        unsigned waiting = 0, owned = 0, forgotten = 0;
        weft_status_t st = WEFT_OK;
        memset(ops, 0, sizeof ops);
        released = 0;
        begin(transports[t], life_idle); /* nobody receives id 1 there: it waits, and the window fills */
        for (unsigned i = 0; i < N; i++) {
            CHECK_OK(weft_am_send(victim->ep, ID, "head", 4, big(), EACH, &ops[i]));
            weft_runtime_progress(victim->rt);
        }
        witness_goes_on(&peers[WITNESS], 20); /* its own window is another */
        for (unsigned i = 0; i < N; i++)
            waiting += !weft_op_done(&ops[i]);
        CHECK(waiting > 0);
        weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT;
        o.id = ID;
        o.buf = big();
        o.len = EACH;
        o.no_wait = true;
        CHECK_EQ(weft_am_send_with(victim->ep, &o, &op), WEFT_ERR_AGAIN);
        for (; owned < 16; owned++) { /* memory the library owns, */
            weft_am_send_opts_t w = WEFT_AM_SEND_OPTS_INIT;
            w.id = ID;
            w.buf = malloc(MIDDLE);
            w.len = owned % 2 ? EACH : MIDDLE;
            w.release = on_release;
            CHECK_OK(weft_am_send_with(victim->ep, &w, NULL));
        }
        for (; forgotten < 100000 && !st; forgotten++) /* and copies of its own, as many as it takes */
            st = weft_am_send(victim->ep, ID, "head", 4, big(), EACH, NULL);
        CHECK_EQ(st, WEFT_ERR_AGAIN);
        CHECK_EQ(released, 0);
        lose(signals[s]);
        for (unsigned i = 0; i < N; i++) {
            st = ended(&ops[i]);
            CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
            CHECK(st == WEFT_OK || i >= N - waiting); /* in order */
        }
        CHECK_EQ(ops[N - 1].status, WEFT_ERR_PEER);
        CHECK_EQ(released, owned);
        check_lost();
        end();
    }
}

TEST(rejects_of_a_lost_peer_arrive_or_do_not)
{
    EACH_LOSS(t, s)
    {
        begin(transports[t], life_reject);
        CHECK_EQ(stream_to_victim(signals[s], MIDDLE, false, 300, WEFT_ERR_REJECTED), 0);
        end();
        begin(transports[t], life_reject);
        CHECK_EQ(stream_to_victim(signals[s], 100, true, 300, WEFT_ERR_REJECTED), 0);
        end();
    }
}

/* --- we receive ----------------------------------------------------------------------------------------------------------- */

static uint64_t n_came, lose_at;
static int lose_by;

/* Numbered messages, in order; the victim is lost in the middle of one. */
static void on_numbered(weft_am_t *am, void *user)
{
    uint64_t seq;
    (void)user;
    CHECK_EQ(am->header_len, sizeof seq);
    memcpy(&seq, am->header, sizeof seq);
    CHECK_EQ(seq, n_came);
    CHECK_EQ(am->len, life_size);
    if (am->data)
        CHECK(is_big(am->data, life_size));
    if (++n_came == lose_at)
        lose(lose_by);
}

TEST(an_eager_stream_from_a_lost_peer_ends_in_order)
{
    static const size_t sizes[] = {0, 64, 3000};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 3; k++) {
            life_size = sizes[k];
            life_confirm = k == 1;
            n_came = 0;
            lose_at = 2000;
            lose_by = signals[s];
            begin(transports[t], life_send);
            post_nobodys();
            CHECK_OK(weft_am_handle(victim->rt, ID, on_numbered, NULL, NULL));
            for (double until = test_now() + 30; lost_at == 0 && test_now() < until;)
                weft_runtime_progress(victim->rt);
            CHECK(lost_at > 0);
            CHECK_EQ(ended(&nobodys), WEFT_ERR_PEER);
            check_lost();
            uint64_t came = n_came;
            end();
            CHECK_EQ(n_came, came);
        }
    }
    life_confirm = false;
}

/* One-shot receives: what had arrived before the loss is received, in order, and then the endpoint's error. */
TEST(receives_from_a_lost_peer_get_what_arrived_and_then_end)
{
    static const size_t sizes[] = {64, 3000, MIDDLE};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 3; k++) {
            uint8_t *into = malloc(MIDDLE);
            life_size = sizes[k];
            begin(transports[t], life_send);
            weft_op_t any = WEFT_OP_INIT;
            CHECK_OK(weft_am_take(victim->rt, NULL, ID_NOBODY, &any));
            for (uint64_t i = 0;; i++) {
                weft_op_t op = WEFT_OP_INIT;
                weft_am_recv_opts_t ro = WEFT_AM_RECV_OPTS_INIT;
                uint64_t seq = 0;
                ro.ep = victim->ep;
                ro.id = ID;
                ro.header = &seq;
                ro.header_cap = sizeof seq;
                ro.buf = into;
                ro.cap = MIDDLE;
                if (i == 300)
                    lose(signals[s]);
                weft_status_t st = weft_am_recv(victim->rt, &ro, &op);
                if (!st)
                    st = lost_at > 0 ? ended(&op) : peer_wait(victim, &op, 20);
                if (st) {
                    CHECK_EQ(st, WEFT_ERR_PEER);
                    break;
                }
                CHECK_EQ(seq, i);
                CHECK_EQ(op.len, life_size);
                CHECK_EQ(op.header_len, sizeof seq);
                CHECK_EQ(op.from, weft_ep_id(victim->ep));
                CHECK(is_big(into, life_size));
                CHECK(lost_at == 0 || test_now() < lost_at + BOUND_S);
            }
            CHECK(lost_at > 0);
            check_lost();
            CHECK(!weft_op_done(&any)); /* others may still send */
            weft_op_cancel(&any);
            CHECK_EQ(peer_wait(victim, &any, 2), WEFT_ERR_CANCELLED);
            end();
            free(into);
        }
    }
}

static weft_op_t pulls[4];
static unsigned n_pulls, lose_at_pull;
static uint8_t *pull_into[4];
static bool pull_allocates;
static void on_pull_and_lose(weft_am_t *am, void *user)
{
    (void)user;
    CHECK_EQ(am->len, BIG);
    CHECK(!am->data);
    if (n_pulls == 4)
        return; /* not taken */
    weft_am_pull_opts_t o = WEFT_AM_PULL_OPTS_INIT;
    if (!pull_allocates) {
        o.buf = pull_into[n_pulls];
        o.cap = BIG;
    }
    CHECK_OK(weft_am_pull_with(am, &o, &pulls[n_pulls]));
    if (++n_pulls == lose_at_pull)
        lose(lose_by);
}

TEST(pulls_from_a_lost_peer_end_whole_or_not_at_all)
{
    life_size = BIG;
    for (unsigned i = 0; i < 4; i++)
        pull_into[i] = malloc(BIG);
    EACH_LOSS(t, s)
    {
        for (lose_at_pull = 1; lose_at_pull <= 4; lose_at_pull += 3) {
            pull_allocates = lose_at_pull == 4;
            memset(pulls, 0, sizeof pulls);
            n_pulls = 0;
            lose_by = signals[s];
            begin(transports[t], life_send);
            post_nobodys();
            CHECK_OK(weft_am_handle(victim->rt, ID, on_pull_and_lose, NULL, NULL));
            for (double until = test_now() + 30; lost_at == 0 && test_now() < until;)
                weft_runtime_progress(victim->rt);
            CHECK(lost_at > 0);
            CHECK_EQ(ended(&nobodys), WEFT_ERR_PEER);
            unsigned ok = 0;
            for (unsigned i = 0; i < n_pulls; i++) {
                weft_status_t st = ended(&pulls[i]);
                CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
                if (!st) {
                    CHECK_EQ(pulls[i].len, BIG);
                    CHECK(is_big(pull_allocates ? pulls[i].buf : pull_into[i], BIG));
                    if (pull_allocates)
                        weft_mem_free(NULL, pulls[i].buf, BIG);
                }
                ok += !st;
            }
            printf("# %s, signal %d: %u of %u pulls came through\n", transports[t], signals[s], ok, n_pulls);
            check_lost();
            end();
        }
    }
    for (unsigned i = 0; i < 4; i++)
        free(pull_into[i]);
}

/* What is kept, taken or viewed outlives the peer, and the endpoint; the memory a pool of the peer lent too. */
TEST(kept_viewed_and_lent_messages_of_a_lost_peer_stay_readable_until_they_are_released)
{
    enum { EAGER, PULL, VIEW, LENT, LATE, N };
    static const uint32_t ids[N] = {ID, ID, ID, ID_POOL, ID_POOL};
    EACH_LOSS(t, s)
    {
        for (unsigned aborted = 0; aborted < 2; aborted++) {
            weft_am_t *am[N];
            weft_op_t op = WEFT_OP_INIT, eager_view = WEFT_OP_INIT, lent_view = WEFT_OP_INIT;
            uint8_t *into = malloc(OFFER);
            begin(transports[t], life_offer);
            post_nobodys();
            for (unsigned i = 0; i < N; i++) {
                memset(&op, 0, sizeof op);
                CHECK_OK(weft_am_take(victim->rt, victim->ep, ids[i], &op));
                CHECK_OK(peer_wait(victim, &op, 20));
                am[i] = op.buf;
                CHECK_EQ(am[i]->len, i == EAGER ? 1000 : OFFER);
                CHECK((am[i]->data != NULL) == (i == EAGER));
            }
            CHECK_OK(weft_am_view(am[EAGER], &eager_view));
            CHECK_OK(weft_am_view(am[LENT], &lent_view));
            CHECK_OK(peer_wait(victim, &eager_view, 20));
            CHECK_OK(peer_wait(victim, &lent_view, 20)); /* lent over shm, pulled over tcp */
            CHECK_EQ(count_maps(lent_view.buf), t == 0);
            CHECK_EQ(lent_view.len, OFFER);
            lose(signals[s]);
            CHECK_EQ(ended(&nobodys), WEFT_ERR_PEER);
            check_lost();
            if (aborted) {
                memset(&op, 0, sizeof op);
                CHECK_OK(weft_ep_abort(victim->ep, &op));
                peer_wait(victim, &op, 10);
                victim->ep = NULL;
            }
            CHECK(is_big(am[EAGER]->data, 1000));
            CHECK(!memcmp(am[EAGER]->header, "eager", 5));
            CHECK(is_big(eager_view.buf, 1000));
            CHECK(!memcmp(am[PULL]->header, "rndv", 4));
            CHECK(!memcmp(am[LENT]->header, "pool", 4));
            CHECK(is_big(lent_view.buf, OFFER));
            /* what had not come cannot come any more */
            weft_status_t st, want = aborted ? WEFT_ERR_CANCELLED : WEFT_ERR_PEER;
            memset(&op, 0, sizeof op);
            st = weft_am_pull(am[PULL], into, OFFER, &op);
            if (!st)
                st = peer_wait(victim, &op, 2);
            CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == want);
            memset(&op, 0, sizeof op);
            st = weft_am_view(am[VIEW], &op);
            if (!st)
                st = peer_wait(victim, &op, 2);
            CHECK(st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == want);
            weft_am_reject(am[LATE], REASON); /* nobody hears it */
            witness_goes_on(&peers[WITNESS], 20);
            CHECK(is_big(lent_view.buf, OFFER));
            for (unsigned i = 0; i < N; i++)
                weft_am_release(am[i]);
            end();
            free(into);
        }
    }
}

static void on_reject_and_lose(weft_am_t *am, void *user)
{
    (void)user;
    CHECK_OK(weft_am_reject(am, REASON));
    if (++n_came == lose_at)
        lose(lose_by);
}

TEST(a_reject_to_a_peer_that_was_just_lost_leaves_nothing)
{
    static const size_t sizes[] = {100, MIDDLE};
    EACH_LOSS(t, s)
    {
        for (unsigned k = 0; k < 2; k++) {
            life_size = sizes[k];
            life_confirm = true;
            n_came = 0;
            lose_at = 50;
            lose_by = signals[s];
            begin(transports[t], life_send);
            post_nobodys();
            CHECK_OK(weft_am_handle(victim->rt, ID, on_reject_and_lose, NULL, NULL));
            for (double until = test_now() + 30; lost_at == 0 && test_now() < until;)
                weft_runtime_progress(victim->rt);
            CHECK(lost_at > 0);
            CHECK_EQ(ended(&nobodys), WEFT_ERR_PEER);
            check_lost();
            end();
        }
    }
    life_confirm = false;
}
