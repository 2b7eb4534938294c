/* The matching of messages and receives, against a list that is scanned from the front. */
#include "msg/state.h"
#include "test.h"

#define EPS 3
#define OPS 400
#define MSGS 400

/* The model: everything that waits, in order. */
typedef struct model {
    weft_op_t *posted[OPS];
    unsigned n_posted;
    weft_msg_t *held[MSGS];
    unsigned n_held;
} model_t;

static wefti_fabric_t fabric;
static weft_runtime_t rt;
static msg_state_t ms;
static weft_ep_t eps[EPS];
static msg_ep_t ep_states[EPS];

static void set_up(void)
{
    fabric.look_ahead = false;
    rt.fabric = &fabric;
    ms.rt = &rt;
    wefti_list_init(&ms.claimed);
    CHECK_OK(wefti_msg_match_init(&ms));
    for (unsigned i = 0; i < EPS; i++) {
        eps[i].rt = &rt;
        eps[i].id = (UINT64_C(7) << 32) + i + 1;
        eps[i].traffic[WEFTI_TRAFFIC_MSG] = &ep_states[i];
        wefti_list_init(&ep_states[i].posted);
        wefti_list_init(&ep_states[i].masked);
        wefti_list_init(&ep_states[i].arrived);
        wefti_list_init(&ep_states[i].claimed);
    }
}

static bool matches(weft_op_t *op, weft_msg_t *msg)
{
    msg_recv_t *r = msg_recv(op);
    return (!r->ep || r->ep == msg->ep) && !((op->tag ^ msg->tag) & r->mask);
}

static void remove_at(void **array, unsigned *n, unsigned at)
{
    memmove(&array[at], &array[at + 1], (--*n - at) * sizeof *array);
}

static uint64_t random_mask(wefti_rng_t *rng)
{
    static const uint64_t masks[] = {WEFT_TAG_FULL, WEFT_TAG_FULL, WEFT_TAG_FULL, WEFT_TAG_ANY, 1, 6, UINT64_MAX << 1};
    return masks[wefti_rng_below(rng, sizeof masks / sizeof *masks)];
}

static void post_or_take(wefti_rng_t *rng, model_t *model)
{
    weft_op_t *op = (weft_op_t *)calloc(1, sizeof *op);
    msg_recv_t *r = msg_recv(op);
    uint64_t ep = wefti_rng_below(rng, EPS + 1);
    r->ep = ep == EPS ? NULL : &eps[ep];
    r->mask = random_mask(rng);
    op->tag = wefti_rng_below(rng, 8);
    weft_msg_t *want = NULL;
    unsigned at = 0;
    for (; at < model->n_held && !want; at++) {
        if (matches(op, model->held[at]))
            want = model->held[at];
    }
    weft_msg_t *got = wefti_msg_find_held(&ms, r->ep, op->tag, r->mask);
    CHECK(got == want);
    if (got) {
        wefti_msg_unhold(&ms, got);
        remove_at((void **)model->held, &model->n_held, at - 1);
        free(got);
        free(op);
    } else {
        wefti_msg_post(&ms, op);
        model->posted[model->n_posted++] = op;
    }
}

static void arrive_or_hold(wefti_rng_t *rng, model_t *model)
{
    weft_msg_t *msg = (weft_msg_t *)calloc(1, sizeof *msg);
    msg->ep = &eps[wefti_rng_below(rng, EPS)];
    msg->from = msg->ep->id;
    msg->ms = &ms;
    msg->tag = wefti_rng_below(rng, 8);
    weft_op_t *want = NULL;
    unsigned at = 0;
    for (; at < model->n_posted && !want; at++) {
        if (matches(model->posted[at], msg))
            want = model->posted[at];
    }
    weft_op_t *got = wefti_msg_take_posted(&ms, msg->ep, msg->tag);
    CHECK(got == want);
    if (got) {
        remove_at((void **)model->posted, &model->n_posted, at - 1);
        free(got);
        free(msg);
    } else {
        wefti_msg_hold(&ms, msg);
        model->held[model->n_held++] = msg;
    }
}

static void cancel_one(wefti_rng_t *rng, model_t *model)
{
    if (!model->n_posted)
        return;
    unsigned at = (unsigned)wefti_rng_below(rng, model->n_posted);
    wefti_msg_unpost(&ms, model->posted[at]);
    free(model->posted[at]);
    remove_at((void **)model->posted, &model->n_posted, at);
}

TEST(every_match_is_the_one_a_scan_from_the_front_finds)
{
    set_up();
    for (uint64_t seed = 1; seed <= 300; seed++) {
        wefti_rng_t rng = {seed};
        model_t model = {.n_posted = 0};
        uint64_t bias = wefti_rng_below(&rng, 100);
        for (unsigned i = 0; i < 1500; i++) {
            uint64_t dice = wefti_rng_below(&rng, 100);
            if (dice < 3)
                cancel_one(&rng, &model);
            else if ((dice < bias && model.n_posted < OPS) || model.n_held == MSGS)
                post_or_take(&rng, &model);
            else if (model.n_posted < OPS || model.n_held < MSGS)
                arrive_or_hold(&rng, &model);
        }
        while (model.n_posted)
            cancel_one(&rng, &model);
        while (model.n_held) {
            wefti_msg_unhold(&ms, model.held[--model.n_held]);
            free(model.held[model.n_held]);
        }
        CHECK_EQ(ms.exact.n, 0);
        CHECK_EQ(ms.exact_of_any, 0);
        CHECK_EQ(ms.arrived_of_ep.n, 0);
        CHECK(wefti_list_empty(&ms.arrived) && wefti_list_empty(&ms.of_any) && wefti_list_empty(&ms.masked_of_any));
    }
    wefti_msg_match_free(&ms);
}

TEST(tables_grow_with_what_waits_and_chains_stay_short)
{
    set_up();
    enum { N = 100000 };
    weft_op_t *ops = (weft_op_t *)calloc(N, sizeof *ops);
    for (unsigned i = 0; i < N; i++) {
        ops[i].tag = (uint64_t)i << 32; /* tags that differ in their upper half only */
        msg_recv(&ops[i])->ep = &eps[i % EPS];
        msg_recv(&ops[i])->mask = WEFT_TAG_FULL;
        wefti_msg_post(&ms, &ops[i]);
    }
    CHECK(ms.exact.cap >= N / 2);
    unsigned longest = 0;
    for (uint32_t b = 0; b < ms.exact.cap; b++) {
        unsigned n = 0;
        wefti_list_each(l, &ms.exact.buckets[b])
            n++;
        longest = n > longest ? n : longest;
    }
    CHECK(longest < 32);
    for (unsigned i = N; i-- > 0;)
        CHECK(wefti_msg_take_posted(&ms, &eps[i % EPS], (uint64_t)i << 32) == &ops[i]);
    free(ops);
    wefti_msg_match_free(&ms);
}

/* Tags as programs make them: numbers with a step, and fields side by side. How many receives are looked at for a message. */
TEST(tags_that_programs_use_are_spread_well)
{
    enum { N = 60000 };
    static const struct {
        uint64_t step;
        unsigned field; /* bits of a lower field with 16 values; 0: none */
    } ways[] = {{1, 0},
                {2, 0},
                {3, 0},
                {7, 0},
                {8, 0},
                {10, 0},
                {17, 0},
                {64, 0},
                {100, 0},
                {255, 0},
                {256, 0},
                {257, 0},
                {999, 0},
                {1000, 0},
                {4096, 0},
                {65536, 0},
                {1 << 20, 0},
                {UINT64_C(1) << 32, 0},
                {UINT64_C(1) << 40, 0},
                {1, 8},
                {1, 16},
                {1, 32}};
    weft_op_t *ops = (weft_op_t *)calloc(N, sizeof *ops);
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        set_up();
        for (unsigned i = 0; i < N; i++) {
            ops[i].tag = ways[way].field ? (uint64_t)(i / 16) << ways[way].field | i % 16 : i * ways[way].step;
            msg_recv(&ops[i])->ep = &eps[0];
            msg_recv(&ops[i])->mask = WEFT_TAG_FULL;
            wefti_msg_post(&ms, &ops[i]);
        }
        uint64_t looks = 0;
        for (uint32_t b = 0; b < ms.exact.cap; b++) {
            unsigned n = 0;
            wefti_list_each(l, &ms.exact.buckets[b])
                looks += ++n;
        }
        if (looks > 5 * N / 2)
            FAIL("a step of %llu, a field of %u bits: %.2f looks at each message", (unsigned long long)ways[way].step,
                 ways[way].field, (double)looks / N);
        for (unsigned i = 0; i < N; i++)
            wefti_msg_unpost(&ms, &ops[i]);
        wefti_msg_match_free(&ms);
    }
    free(ops);
}

/* What is fetched for messages that are told of changes nothing, whatever their tags are and whoever waits. */
TEST(messages_that_are_told_of_ahead_find_the_same_receives)
{
    enum { N = 10000 };
    weft_op_t *ops = (weft_op_t *)calloc(N, sizeof *ops);
    wefti_rng_t rng = {77};
    for (unsigned any = 0; any < 2; any++) {
        set_up();
        for (unsigned i = 0; i < N; i++) {
            ops[i].tag = i / 4; /* some chains have several of a tag */
            msg_recv(&ops[i])->ep = any ? NULL : &eps[0];
            msg_recv(&ops[i])->mask = WEFT_TAG_FULL;
            wefti_msg_post(&ms, &ops[i]);
            CHECK_EQ(fabric.look_ahead, i >= 4096);
        }
        for (unsigned i = 0, first = 0; i < N; i++) {
            uint64_t tags[WEFTI_AHEAD_MAX];
            for (unsigned k = 0; k < WEFTI_AHEAD_MAX; k++)
                tags[k] = wefti_rng_below(&rng, N / 2); /* half of them are nobody's */
            wefti_msg_fetch_posted(&ms, &eps[i % EPS], tags, i % (WEFTI_AHEAD_MAX + 1));
            CHECK(wefti_msg_take_posted(&ms, &eps[0], i / 4) == &ops[first++]);
        }
        CHECK_EQ(ms.exact.n, 0);
        CHECK(wefti_list_empty(&ep_states[0].posted) && wefti_list_empty(&ms.of_any));
        wefti_msg_match_free(&ms);
    }
    free(ops);
}

static int fail_all(size_t n)
{
    (void)n;
    return 1;
}

TEST(a_table_that_cannot_grow_still_matches)
{
    set_up();
    enum { N = 3000 };
    weft_op_t *ops = (weft_op_t *)calloc(N, sizeof *ops);
    wefti_alloc_fails = fail_all;
    for (unsigned i = 0; i < N; i++) {
        ops[i].tag = i;
        msg_recv(&ops[i])->mask = WEFT_TAG_FULL;
        wefti_msg_post(&ms, &ops[i]);
    }
    for (unsigned i = 0; i < N; i++)
        CHECK(wefti_msg_take_posted(&ms, &eps[0], i) == &ops[i]);
    wefti_alloc_fails = NULL;
    free(ops);
    wefti_msg_match_free(&ms);
}
