/* tests/wire/fabric_shm_relay_hostile.c - a peer that lies about help with long payloads: in chunks, in requests, or in both.
 *
 * Promise held here: its own lane fails with WEFT_ERR_PROTOCOL, every transfer is done once, and no byte is written but into the
 * payload's own place (run it under asan). */
#include "test.h"
#include "lib/relayed.h"

typedef struct chunk {
    uint64_t id, off;
    uint8_t bytes[100];
} chunk_t;

static void put_chunk(shm_end_t *e, uint64_t id, uint64_t off, size_t n, uint32_t type)
{
    wefti_ring_tx_t *tx = &lane_of(e)->relay_out->tx;
    chunk_t *c = wefti_ring_reserve(tx, n);
    CHECK(c);
    memset(c, 0x77, n);
    c->id = id;
    c->off = off;
    wefti_ring_commit(tx, n, type);
}

/* b was asked to help with 1 MiB, and does not; its id. */
static uint64_t asked(pair_t *s, weft_iov_t *from, weft_iov_t *to, shm_xfer_t *out, shm_xfer_t *in)
{
    pair_open(s, "auto");
    *from = (weft_iov_t){marked(1 << 20), 1 << 20};
    *to = (weft_iov_t){memory(1 << 20), 1 << 20};
    CHECK_OK(shm_announce(&s->eb, from, 1, out));
    SHM_UNTIL2(&s->a, &s->b, s->ea.announced);
    shm_pull(&s->ea, 0, to, 1, 1 << 20, in);
    wefti_shm_lane_t *lane = lane_of(&s->eb);
    uint64_t id = wefti_container_of(lane->sends.prev, wefti_shm_send_t, link)->id;
    wefti_ring_page_t *page = lane_of(&s->ea)->relay_in->rx.page;
    atomic_store(&page->front_id, id);
    atomic_store(&page->front, UINT64_MAX); /* so there is nothing to help with */
    SHM_UNTIL(&s->b, lane->relay_out);
    SHM_UNTIL(&s->b, wefti_container_of(lane->sends.prev, wefti_shm_send_t, link)->helped && wefti_list_empty(&lane->helps));
    return id;
}

TEST(chunks_that_make_no_sense_fail_the_lane_and_touch_nothing)
{
    enum { TOO_HIGH, TOO_LOW, WRAPS, EMPTY, ODD_TYPE, SHORT, N_LIES };
    needs_two_processors();
    for (int lie = 0; lie < N_LIES; lie++) {
        pair_t s;
        shm_xfer_t out, in;
        weft_iov_t from, to;
        uint64_t id = asked(&s, &from, &to, &out, &in);
        uint64_t back = lie == WRAPS ? UINT64_MAX - 50 : lie == TOO_HIGH ? 1 << 20 : 100;
        size_t n = lie == EMPTY ? 16 : lie == SHORT ? 8 : 116;
        put_chunk(&s.eb, id, back, n, lie == ODD_TYPE ? WEFTI_SHM_RTS : WEFTI_SHM_DATA);
        SHM_UNTIL(&s.a, s.ea.failed && in.done);
        CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
        CHECK_EQ(in.done, 1);
        CHECK_EQ(in.status, WEFT_ERR_PEER);
        for (uint64_t i = 0; i < 1 << 20; i++) {
            uint8_t b = ((uint8_t *)to.base)[i];
            CHECK(b == 0 || b == mark(i));
        }
        pair_close(&s);
    }
}

TEST(chunks_of_nobodys_payload_are_dropped)
{
    pair_t s;
    shm_xfer_t out, in;
    weft_iov_t from, to;
    needs_two_processors();
    uint64_t id = asked(&s, &from, &to, &out, &in);
    for (int i = 0; i < 100; i++)
        put_chunk(&s.eb, id + 1 + (uint64_t)i, 5, 116, WEFTI_SHM_DATA);
    SHM_UNTIL2(&s.a, &s.b, in.done && out.done);
    CHECK_OK(in.status);
    check_marks(to.base, 1 << 20);
    put_chunk(&s.eb, id, (1 << 20) - 100, 116, WEFTI_SHM_DATA); /* it is over */
    move(&s, 1 << 20);
    pair_close(&s);
}

TEST(a_head_that_makes_no_sense_in_the_relay_fails_the_lane)
{
    pair_t s;
    shm_xfer_t out, in;
    weft_iov_t from, to;
    needs_two_processors();
    asked(&s, &from, &to, &out, &in);
    wefti_ring_tx_t *tx = &lane_of(&s.eb)->relay_out->tx;
    atomic_store(wefti_ring_head(tx->base, tx->tail & (tx->size - 1)), UINT64_C(0x0000000500000000) | (3u << 20));
    SHM_UNTIL(&s.a, s.ea.failed && in.done);
    CHECK_EQ(s.ea.why, WEFT_ERR_PROTOCOL);
    pair_close(&s);
}

static void put(shm_end_t *e, uint32_t type, const void *bytes, size_t n)
{
    void *at = wefti_shm_lane_reserve(lane_of(e), n);
    CHECK(at);
    memcpy(at, bytes, n);
    wefti_shm_lane_commit(lane_of(e), n, type);
}

TEST(requests_for_help_that_make_no_sense_fail_the_lane)
{
    enum {
        UNKNOWN,
        TWICE,
        TOO_MUCH,
        NOTHING,
        LONG,
        RELAY_AGAIN,
        RELAY_ODD,
        RELAY_NO_FD,
        BEFORE_RELAY,
        PULL_TOO,
        BAD_CONSUMED,
        N_LIES
    };
    needs_two_processors();
    for (int lie = 0; lie < N_LIES; lie++) {
        pair_t s;
        shm_xfer_t out, in;
        weft_iov_t from, to;
        /* a lies */
        uint64_t id = 0;
        if (lie == BEFORE_RELAY || lie == RELAY_ODD || lie == RELAY_NO_FD) {
            pair_open(&s, "auto");
            from = (weft_iov_t){marked(1 << 20), 1 << 20};
            CHECK_OK(shm_announce(&s.eb, &from, 1, &out));
            id = wefti_container_of(lane_of(&s.eb)->sends.prev, wefti_shm_send_t, link)->id;
        } else {
            id = asked(&s, &from, &to, &out, &in);
        }
        uint64_t words[3] = {id, 1 << 20, 0};
        struct {
            uint64_t ino;
            int32_t fd;
            uint32_t bytes;
        } relay = {1, 3, lie == RELAY_ODD ? 3u << 20 : 1u << 20};
        if (lie == RELAY_NO_FD)
            relay.fd = -1;
        words[0] += lie == UNKNOWN;
        words[1] = lie == TOO_MUCH ? (1 << 20) + 1 : lie == NOTHING ? 0 : 1 << 20;
        if (lie == BAD_CONSUMED) {
            wefti_shm_lane_t *lane = lane_of(&s.eb);
            atomic_store(&lane_of(&s.ea)->relay_in->rx.page->consumed, UINT64_C(1) << 40);
            wefti_shm_send_t *send = wefti_container_of(lane->sends.prev, wefti_shm_send_t, link);
            atomic_store(&lane->relay_out->tx.page->front_id, UINT64_MAX);
            for (int i = 0; i < 64; i++) { /* until the relay looks full */
                if (!wefti_list_linked(&send->help_link))
                    wefti_list_push_back(&lane->helps, &send->help_link);
                send->left = UINT64_C(1) << 20;
                wefti_shm_work(lane);
                shm_progress(&s.b);
            }
        } else if (lie == RELAY_AGAIN || lie == RELAY_ODD || lie == RELAY_NO_FD) {
            put(&s.ea, WEFTI_SHM_RELAY, &relay, sizeof relay);
        } else {
            put(&s.ea, lie == PULL_TOO ? WEFTI_SHM_PULL : WEFTI_SHM_HELP, words, lie == LONG ? 24 : 16);
        }
        SHM_UNTIL(&s.b, s.eb.failed);
        CHECK_EQ(s.eb.why, WEFT_ERR_PROTOCOL);
        pair_close(&s);
        CHECK_EQ(out.done, 1);
    }
}

TEST(a_relay_that_cannot_be_mapped_is_done_without)
{
    pair_t s;
    needs_two_processors();
    pair_open(&s, "auto");
    struct {
        uint64_t ino;
        int32_t fd;
        uint32_t bytes;
    } relay = {1, 0, 1u << 20}; /* not a region of ours */
    put(&s.ea, WEFTI_SHM_RELAY, &relay, sizeof relay);
    shm_progress(&s.b);
    shm_progress(&s.b);
    CHECK(!s.eb.failed);
    CHECK(!lane_of(&s.eb)->relay_out);
    pair_close(&s);
}
