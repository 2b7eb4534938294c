/* Flow control alone: two flows and the lanes between them, driven by hand; every byte and message of a window is somewhere,
 * nothing exceeds a window, and whoever starves is fed. */
#include <string.h>

#include "base/rng.h"
#include "conn/ep.h"
#include "test.h"

enum { REC_MSG = 0x20, REC_CREDIT = 0x21, REC_STARVED = 0x22, QUEUE = 4096 };

/* --- a lane that keeps what is put on it ---------------------------------------------------------------------------------- */

typedef struct item {
    wefti_word_t word;
    uint64_t cost; /* of a message */
} item_t;

typedef struct side {
    wefti_epx_t ep; /* first */
    wefti_conn_t conn;
    weft_runtime_t rt;
    wefti_lane_t lane;
    wefti_flow_t flow;
    bool full; /* no space on the lane */
    wefti_word_t reserved;
    item_t queue[QUEUE]; /* to the other side */
    unsigned first, n;
} side_t;

static side_t sides[2];

static void *lane_reserve(wefti_lane_t *lane, size_t n)
{
    side_t *s = lane->user;
    CHECK_EQ(n, sizeof s->reserved);
    return s->full ? NULL : &s->reserved;
}

static void put(side_t *s, wefti_word_t word, uint64_t cost)
{
    CHECK(s->n < QUEUE);
    s->queue[(s->first + s->n++) % QUEUE] = (item_t){word, cost};
}

static void lane_commit(wefti_lane_t *lane, size_t n)
{
    side_t *s = lane->user;
    CHECK_EQ(n, sizeof s->reserved);
    put(s, s->reserved, 0);
}

static const wefti_transport_ops_t lane_ops = {.reserve = lane_reserve, .commit = lane_commit};

static void side_init(side_t *s, const wefti_flow_kind_t *kind, uint64_t window, uint32_t msgs, uint32_t peer_window)
{
    memset(s, 0, sizeof *s);
    s->rt.room_state[WEFTI_ROOM_CONN] = &s->conn;
    s->lane.ops = &lane_ops;
    s->lane.user = s;
    s->ep.pub.rt = &s->rt;
    s->ep.pub.lane = &s->lane;
    s->ep.pub.peer_window = peer_window;
    wefti_flow_init(&s->flow, kind, window, msgs);
}

static const wefti_flow_kind_t counted = {.rec_credit = REC_CREDIT, .rec_starved = REC_STARVED, .counts_msgs = true};
static const wefti_flow_kind_t plain = {.rec_credit = REC_CREDIT, .rec_starved = REC_STARVED, .in_hello = true};

static weft_ep_t *ep_of(side_t *s)
{
    return &s->ep.pub;
}

/* Take one record off the lane from `from`; messages are held. false: there is none. */
static bool deliver(side_t *from, side_t *to)
{
    if (!from->n)
        return false;
    item_t i = from->queue[from->first];
    from->first = (from->first + 1) % QUEUE;
    from->n--;
    CHECK(wefti_flow_word(ep_of(to), &to->flow, &i.word));
    if (i.word.kind == REC_MSG) {
        CHECK(wefti_flow_admit(ep_of(to), &to->flow, i.cost));
        wefti_flow_hold(&to->flow, i.cost);
    }
    return true;
}

static bool send_one(side_t *s, uint64_t cost, bool deep)
{
    if (!wefti_flow_can(&s->flow, cost, deep))
        return false;
    put(s, wefti_flow_piggyback(&s->flow, REC_MSG), cost);
    wefti_flow_spend(&s->flow, cost);
    return true;
}

static void take_one(side_t *s, uint64_t cost)
{
    wefti_flow_unhold(&s->flow, cost);
    wefti_flow_consumed(ep_of(s), &s->flow, cost);
}

/* The window of `to` is granted, held, owed, and nothing else; what is granted is the sender's credit or on one of the two
 * ways. */
static void check_whole(const side_t *from, const side_t *to)
{
    const wefti_flow_t *f = &to->flow;
    uint64_t credit = from->flow.credit, msgs = from->flow.credit_msgs;
    CHECK_EQ(f->granted + f->held + f->owed, f->window);
    CHECK_EQ(f->granted_msgs + f->held_msgs + f->owed_msgs, f->window_msgs);
    for (unsigned i = 0; i < to->n; i++) {
        credit += to->queue[(to->first + i) % QUEUE].word.bytes;
        msgs += to->queue[(to->first + i) % QUEUE].word.msgs;
    }
    for (unsigned i = 0; i < from->n; i++) {
        const item_t *m = &from->queue[(from->first + i) % QUEUE];
        credit += m->cost;
        msgs += m->word.kind == REC_MSG && f->counts;
    }
    CHECK_EQ(credit, f->granted);
    if (f->counts)
        CHECK_EQ(msgs, f->granted_msgs);
}

TEST(every_byte_and_message_of_a_window_is_somewhere_whatever_happens)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        wefti_rng_t rng = {seed};
        bool counts = seed & 1;
        uint64_t window = 1024 + wefti_rng_below(&rng, 100000);
        uint32_t msgs = 1 + (uint32_t)wefti_rng_below(&rng, 200);
        for (int i = 0; i < 2; i++) {
            side_init(&sides[i], counts ? &counted : &plain, window, msgs, (uint32_t)window);
            sides[i].flow.cost_max = wefti_rng_below(&rng, 2) ? 500 : 0;
        }
        wefti_flow_up(ep_of(&sides[0]), &sides[0].flow);
        wefti_flow_up(ep_of(&sides[1]), &sides[1].flow);
        static uint64_t held[2][QUEUE];
        unsigned n_held[2] = {0, 0};
        for (int step = 0; step < 2000; step++) {
            unsigned k = (unsigned)wefti_rng_below(&rng, 2);
            side_t *s = &sides[k], *o = &sides[1 - k];
            uint64_t cost = 1 + wefti_rng_below(&rng, 500);
            switch (wefti_rng_below(&rng, 8)) {
            case 0:
            case 1:
            case 2:
                if (!send_one(s, cost, wefti_rng_below(&rng, 10) == 0) && wefti_rng_below(&rng, 2))
                    wefti_flow_starved(ep_of(s), &s->flow);
                break;
            case 3:
            case 4:
                if (s->n && s->queue[s->first].word.kind == REC_MSG)
                    held[1 - k][n_held[1 - k]++] = s->queue[s->first].cost;
                deliver(s, o);
                break;
            case 5:
                if (n_held[k])
                    take_one(s, held[k][--n_held[k]]);
                break;
            case 6:
                s->full = !s->full;
                if (!s->full)
                    wefti_flow_space(ep_of(s), &s->flow);
                break;
            default:
                wefti_flow_waits(ep_of(s), &s->flow);
            }
            check_whole(&sides[0], &sides[1]);
            check_whole(&sides[1], &sides[0]);
            CHECK(wefti_flow_n_starving(&s->rt) == s->flow.peer_starving);
        }
    }
}

TEST(little_credit_waits_until_there_is_more_or_the_peer_starves)
{
    side_t *s = &sides[0], *o = &sides[1];
    side_init(s, &counted, 32000, 1600, 32000);
    side_init(o, &counted, 32000, 1600, 32000);
    for (int i = 0; i < 2; i++)
        wefti_flow_up(ep_of(&sides[i]), &sides[i].flow);
    CHECK(deliver(o, s) && deliver(s, o));
    for (int taken = 1; taken <= 2; taken++) { /* 1,000 bytes are a thirty-second */
        CHECK(send_one(s, 600, false) && deliver(s, o));
        take_one(o, 600);
        CHECK_EQ(wefti_flow_piggyback(&o->flow, REC_MSG).bytes, taken == 1 ? 0 : 1200);
    }
    CHECK(send_one(s, 600, false) && deliver(s, o));
    take_one(o, 600);
    CHECK(wefti_flow_starved(ep_of(s), &s->flow) && deliver(s, o));
    CHECK(o->n == 1 && o->queue[o->first].word.kind == REC_CREDIT && o->queue[o->first].word.bytes == 600);
    CHECK_EQ(o->flow.owed, 0);
}

/* Send as long as it goes, with nobody receiving; then the receiver takes all, and everything gets through in the end. */
static void outrun(const wefti_flow_kind_t *kind, uint64_t window, uint32_t msgs, uint64_t cost)
{
    side_t *s = &sides[0], *o = &sides[1];
    side_init(s, kind, window, msgs, (uint32_t)window);
    side_init(o, kind, window, msgs, (uint32_t)window);
    s->flow.cost_max = o->flow.cost_max = cost;
    wefti_flow_up(ep_of(o), &o->flow);
    while (deliver(o, s))
        ;
    unsigned sent = 0, held = 0;
    for (unsigned goal = 1000, rounds = 0; sent < goal || held; rounds++) {
        CHECK(rounds < 5000);
        while (sent < goal && send_one(s, cost, false))
            sent++, held++;
        if (sent < goal)
            CHECK(wefti_flow_starved(ep_of(s), &s->flow));
        while (deliver(s, o))
            ;
        CHECK(o->flow.held <= window && o->flow.held_msgs <= msgs);
        CHECK(held > 0);
        take_one(o, cost); /* one is enough: it starves, so that is returned at once */
        held--;
        while (deliver(o, s))
            ;
    }
    CHECK_EQ(sent, 1000);
}

TEST(a_sender_that_outruns_waits_and_is_fed)
{
    outrun(&plain, 65536, 0, 200);
    outrun(&counted, 65536, 100, 1);   /* out of messages first */
    outrun(&counted, 4096, 60000, 99); /* out of bytes first */
    outrun(&counted, 4096, 1, 99);     /* one at a time */
}

TEST(who_waits_for_something_else_lets_a_starving_peer_use_its_reserve)
{
    side_t *s = &sides[0], *o = &sides[1];
    side_init(s, &counted, 65536, 100, 0);
    side_init(o, &counted, 65536, 100, 0);
    s->flow.cost_max = o->flow.cost_max = 1000;
    wefti_flow_up(ep_of(o), &o->flow);
    while (deliver(o, s))
        ;
    CHECK_EQ(s->flow.reserve, 65536 / 4);
    CHECK_EQ(s->flow.reserve_msgs, 25);
    unsigned sent = 0;
    while (send_one(s, 1000, false))
        sent++;
    CHECK_EQ(sent, (65536 - 65536 / 4) / 1000);
    CHECK(wefti_flow_starved(ep_of(s), &s->flow));
    CHECK(wefti_flow_starved(ep_of(s), &s->flow)); /* asks once */
    CHECK_EQ(s->n, sent + 1);
    while (deliver(s, o))
        ;
    CHECK(o->flow.peer_starving);
    CHECK_EQ(wefti_flow_n_starving(&o->rt), 1);
    CHECK_EQ(o->n, 0); /* nothing to return, and nobody waits there */
    o->full = true;
    wefti_flow_waits(ep_of(o), &o->flow);
    CHECK_EQ(o->n, 0);
    o->full = false;
    wefti_flow_space(ep_of(o), &o->flow);
    wefti_flow_waits(ep_of(o), &o->flow); /* told already */
    CHECK_EQ(o->n, 1);
    CHECK(!s->flow.held_up);
    deliver(o, s);
    CHECK(s->flow.held_up);
    CHECK(wefti_flow_can(&s->flow, 200, true) && !wefti_flow_can(&s->flow, 200, false));
    for (unsigned i = 0; i < sent; i++)
        take_one(o, 1000);
    while (deliver(o, s))
        ;
    CHECK(!s->flow.held_up && !s->flow.starving);
    CHECK_EQ(wefti_flow_n_starving(&o->rt), 0);
}

TEST(after_a_reconnect_the_window_is_granted_less_what_is_held)
{
    side_t *s = &sides[0], *o = &sides[1];
    side_init(s, &counted, 65536, 100, 0);
    side_init(o, &counted, 65536, 100, 0);
    wefti_flow_up(ep_of(o), &o->flow);
    while (deliver(o, s))
        ;
    for (int i = 0; i < 10; i++)
        CHECK(send_one(s, 4000, false));
    while (deliver(s, o))
        ;
    wefti_flow_down(ep_of(s), &s->flow);
    wefti_flow_down(ep_of(o), &o->flow);
    s->n = o->n = 0;
    wefti_flow_up(ep_of(s), &s->flow);
    wefti_flow_up(ep_of(o), &o->flow);
    while (deliver(o, s))
        ;
    while (deliver(s, o))
        ;
    CHECK_EQ(s->flow.credit, 65536 - 40000);
    CHECK_EQ(s->flow.credit_msgs, 90);
    CHECK_EQ(s->flow.reserve, (65536 - 40000) / 4);
    for (int i = 0; i < 10; i++)
        take_one(o, 4000);
    while (deliver(o, s))
        ;
    CHECK(s->flow.credit > 65536 - 40000);
    CHECK_EQ(s->flow.credit + o->flow.owed, 65536);
    CHECK_EQ(s->flow.reserve, s->flow.credit / 4); /* the reserve of the whole window, as far as it is known */
}

TEST(more_than_was_granted_and_more_credit_than_there_can_be_break_the_protocol)
{
    side_t *s = &sides[0];
    wefti_word_t word = {.kind = REC_CREDIT, .bytes = UINT32_MAX};
    side_init(s, &counted, 1000, 10, 0);
    CHECK(!wefti_flow_admit(ep_of(s), &s->flow, 1)); /* nothing is granted before flow_up */
    wefti_flow_up(ep_of(s), &s->flow);
    CHECK(!wefti_flow_admit(ep_of(s), &s->flow, 1001));
    for (int i = 0; i < 10; i++)
        CHECK(wefti_flow_admit(ep_of(s), &s->flow, 1));
    CHECK(!wefti_flow_admit(ep_of(s), &s->flow, 1));
    CHECK_EQ(s->flow.granted, 990);
    CHECK(wefti_flow_word(ep_of(s), &s->flow, &word));
    word.bytes = 1;
    CHECK(!wefti_flow_word(ep_of(s), &s->flow, &word));
    side_init(s, &counted, 1000, 10, 0);
    word = (wefti_word_t){.kind = REC_MSG, .msgs = UINT16_MAX};
    CHECK(wefti_flow_word(ep_of(s), &s->flow, &word));
    CHECK(!wefti_flow_word(ep_of(s), &s->flow, &word));
    side_init(s, &plain, 1000, 0, 5000);
    word = (wefti_word_t){.kind = REC_MSG, .bytes = 5000};
    CHECK(wefti_flow_word(ep_of(s), &s->flow, &word));
    word.bytes = 1;
    CHECK(!wefti_flow_word(ep_of(s), &s->flow, &word));
}
