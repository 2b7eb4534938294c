/* wire/msg_ahead.c - ten thousand receives, each of its own tag: the fabric tells of records before it delivers them, so that
 * the memory of their receives can be fetched. Each message finds its receive, whatever happens in between.
 *
 * ctest: tls */
#define TEST_SECONDS 60
#include "base/rng.h"
#include "lib/pair.h"
#include "msg/state.h"
#include "test.h"

enum { N = 10000, FEW = 1000, GONE = 50 };

static weft_op_t recvs[N], sends[N];
static uint64_t in[N];
static uint32_t order[N];

static const wefti_fabric_up_t *up; /* conn's */
static wefti_ahead_t told[WEFTI_AHEAD_MAX];
static unsigned n_told, n_calls, n_wrong, at;

static void on_ahead(void *lane_user, const wefti_ahead_t *recs, unsigned n)
{
    n_calls++;
    n_wrong += n < 2 || n > WEFTI_AHEAD_MAX;
    memcpy(told, recs, n * sizeof *recs);
    n_told = n;
    at = 0;
    up->ahead(lane_user, recs, n);
}

static void on_record(void *lane_user, const void *rec, size_t n)
{
    if (at < n_told) {
        n_wrong += told[at].rec != rec || told[at].n != n;
        at++;
    }
    up->record(lane_user, rec, n);
}

static void listen_in(weft_runtime_t *rt)
{
    static wefti_fabric_up_t mine;
    up = rt->fabric->up;
    mine = *up;
    mine.ahead = on_ahead;
    mine.record = on_record;
    rt->fabric->up = &mine;
    n_told = n_calls = n_wrong = at = 0;
}

static void shuffle(wefti_rng_t *rng)
{
    for (uint32_t i = 0; i < N; i++)
        order[i] = i;
    for (uint32_t i = N - 1; i; i--) {
        uint32_t k = (uint32_t)wefti_rng_below(rng, i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
}

static void post(const pair_t *pair, unsigned n)
{
    memset(in, 0, sizeof in);
    for (unsigned i = 0; i < n; i++)
        CHECK_OK(weft_msg_recv(pair->ep[0], &in[i], sizeof in[i], i, WEFT_TAG_FULL, &recvs[i]));
}

static void send_all(const pair_t *pair, unsigned n)
{
    static uint64_t values[N];
    for (unsigned i = 0; i < N; i++) {
        if (order[i] >= n)
            continue;
        values[i] = order[i] * UINT64_C(3) + 1;
        CHECK_OK(weft_msg_send(pair->ep[1], &values[i], sizeof values[i], order[i], &sends[i]));
    }
}

TEST(many_receives_in_any_order_are_told_of_ahead_and_each_gets_its_message)
{
    wefti_rng_t rng = {5};
    each_way(way) {
        pair_t pair;
        pair_open(&pair, way, NULL);
        bool shm = !strcmp(way->transports, "shm"), caller = way->mode == WEFT_PROGRESS_CALLER;
        if (caller)
            listen_in(pair.rt[0]);
        for (unsigned round = 0; round < 3; round++) {
            unsigned n = round == 0 ? FEW : N; /* a few need no help */
            shuffle(&rng);
            post(&pair, n);
            for (unsigned i = 0; round == 2 && i < n; i += GONE) /* what nobody takes then fits into the window */
                weft_op_cancel(&recvs[i]);
            send_all(&pair, n);
            for (unsigned i = 0; i < n; i++) {
                weft_status_t st = pair_wait(&pair, &recvs[i], 30);
                bool cancelled = round == 2 && i % GONE == 0 && st;
                CHECK_EQ(st, cancelled ? WEFT_ERR_CANCELLED : WEFT_OK);
                CHECK_EQ(in[i], cancelled ? 0 : i * UINT64_C(3) + 1);
            }
            if (caller)
                CHECK(n_wrong == 0 && (n_calls > 0) == (shm && n == N));
        }
        pair_close(&pair);
    }
}

TEST(receives_end_with_their_peer_when_records_were_told_of)
{
    each_way(way) {
        wefti_rng_t rng = {6};
        pair_t pair;
        weft_op_t abort_op = WEFT_OP_INIT;
        if (way->mode != WEFT_PROGRESS_CALLER)
            continue;
        memset(recvs, 0, sizeof recvs);
        memset(sends, 0, sizeof sends);
        pair_open(&pair, way, NULL);
        shuffle(&rng);
        post(&pair, N);
        send_all(&pair, 100);
        weft_runtime_progress(pair.rt[1]);
        CHECK_OK(weft_ep_abort(pair.ep[1], &abort_op));
        pair.ep[1] = NULL;
        for (unsigned i = 0; i < N; i++) {
            weft_status_t st = pair_wait(&pair, &recvs[i], 30);
            CHECK(st == WEFT_ERR_PEER || (!st && in[i] == i * UINT64_C(3) + 1));
        }
        pair_close(&pair);
    }
}
