/* tests/wire/fabric_shm_guest.c - lanes that share rings: each has its own records, transfers and end, whatever becomes of the
 * others. What a hostile peer does is in fabric_shm_guest_hostile.c. */
#include <stdlib.h>

#include "base/rng.h"
#include "lib/guests.h"
#include "test.h"

/* --- what they share, and what not ---------------------------------------------------------------------------------------- */

TEST(a_guest_costs_no_ring_and_no_descriptor)
{
    guests_open(2, "auto");
    guests_drive();
    unsigned fds = shm_open_fds(), maps = shm_maps();
    for (int i = 2; i < GUESTS_MANY; i++)
        guest_join(&ends_a[i], &ends_b[i]);
    guests_drive();
    CHECK_EQ(shm_open_fds(), fds);
    CHECK_EQ(shm_maps(), maps);
    guests_close(GUESTS_MANY);
}

static uint64_t expected[2][GUESTS_MANY];

static void in_order(shm_end_t *e, const void *rec, size_t n)
{
    uint64_t *next = e->user, got;
    CHECK_EQ(n, sizeof got);
    memcpy(&got, rec, sizeof got);
    CHECK_EQ(got, *next);
    ++*next;
}

TEST(records_arrive_on_the_lane_they_were_sent_on_in_order)
{
    uint64_t sent[2][GUESTS_MANY] = {{0}};
    wefti_rng_t rng = {7};
    guests_open(GUESTS_MANY, "auto");
    memset(expected, 0, sizeof expected);
    for (int i = 0; i < GUESTS_MANY; i++) {
        expected[0][i] = sent[0][i] = (uint64_t)i << 32;
        expected[1][i] = sent[1][i] = (uint64_t)i << 40;
        ends_a[i].on_record = ends_b[i].on_record = in_order;
        ends_a[i].user = &expected[0][i];
        ends_b[i].user = &expected[1][i];
    }
    for (int k = 0; k < 200000; k++) {
        uint64_t r = wefti_rng_next(&rng);
        int i = (int)(r % GUESTS_MANY), way = (int)(r >> 32 & 1);
        if (shm_send(way ? &ends_a[i] : &ends_b[i], &sent[way][i], sizeof sent[way][i]))
            sent[way][i]++;
        if (r >> 40 & 1)
            shm_progress(r >> 41 & 1 ? &side_a : &side_b);
    }
    guests_drive();
    for (int i = 0; i < 2 * GUESTS_MANY; i++)
        SHM_UNTIL2(&side_a, &side_b, expected[i % 2][i / 2] == sent[i % 2][i / 2]);
    guests_close(GUESTS_MANY);
}

/* Each of them may close first, also the one that was there first. */
TEST(lanes_close_in_any_order_and_the_others_go_on)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        wefti_rng_t rng = {seed};
        bool open[2][GUESTS_MANY];
        static char bytes[GUESTS_MANY][20000];
        shm_xfer_t x[GUESTS_MANY];
        int left = 2 * GUESTS_MANY;
        guests_open(GUESTS_MANY, seed % 2 ? "auto" : "ring");
        memset(open, true, sizeof open);
        for (int i = 0; i < GUESTS_MANY; i++) {
            weft_iov_t iov = {bytes[i], sizeof bytes[i]};
            shm_xfer_init(&x[i]);
            if (shm_announce(&ends_a[i], &iov, 1, &x[i]))
                x[i].done = 1;
        }
        while (left) {
            int i = (int)(wefti_rng_next(&rng) % GUESTS_MANY), way = (int)(wefti_rng_next(&rng) % 2);
            shm_end_t *e = way ? &ends_a[i] : &ends_b[i], *f = way ? &ends_b[i] : &ends_a[i];
            if (!open[way][i])
                continue;
            uint64_t before = f->records;
            bool both = open[!way][i], sent = !e->failed && shm_send(e, "last words", 10);
            guest_close(e);
            open[way][i] = false;
            left--;
            CHECK_EQ(e->failed, both ? 0 : 1);
            if (both) { /* it learns of it, behind what was said before */
                SHM_UNTIL2(&side_a, &side_b, f->failed);
                CHECK_EQ(f->why, WEFT_ERR_PEER);
                CHECK_EQ(f->records, before + sent);
            }
            for (int k = 0; k < GUESTS_MANY; k++) /* nobody else does */
                CHECK(!open[0][k] || !open[1][k] || (!ends_a[k].failed && !ends_b[k].failed));
        }
        for (int i = 0; i < GUESTS_MANY; i++) {
            CHECK_EQ(x[i].done, 1);
            CHECK_EQ(ends_b[i].announced, ends_b[i].withdrawn);
        }
        guests_drive();
        guests_sides_close();
    }
}

TEST(the_transfers_of_one_end_without_waiting_for_the_peer)
{
    static char from[2][1 << 20], to[2][1 << 20];
    shm_xfer_t sent[2], pulled;
    guests_open(3, "auto");
    memset(from, 'x', sizeof from);
    for (int i = 0; i < 2; i++) {
        weft_iov_t iov = {from[i], sizeof from[i]};
        shm_xfer_init(&sent[i]);
        CHECK_OK(shm_announce(&ends_a[i + 1], &iov, 1, &sent[i]));
    }
    SHM_UNTIL2(&side_a, &side_b, ends_b[1].announced && ends_b[2].announced);
    ends_a[1].lane->ops->lane_close(ends_a[1].lane);
    SHM_UNTIL(&side_a, ends_a[1].closed); /* b does nothing meanwhile */
    CHECK_EQ(sent[0].done, 1);
    CHECK_EQ(sent[0].status, WEFT_ERR_CANCELLED);
    CHECK(!ends_b[1].lane->ops->peer_open(ends_b[1].lane)); /* and can know, before it reads of it */
    CHECK(ends_b[2].lane->ops->peer_open(ends_b[2].lane));
    /* What it reads now is not the sender's to give any more. */
    weft_iov_t at = {to[0], sizeof to[0]};
    shm_xfer_init(&pulled);
    shm_pull(&ends_b[1], 0, &at, 1, sizeof to[0], &pulled);
    SHM_UNTIL(&side_b, pulled.done);
    CHECK_EQ(pulled.status, WEFT_ERR_PEER);
    SHM_UNTIL(&side_b, ends_b[1].failed);
    at.base = to[1];
    shm_xfer_init(&pulled);
    shm_pull(&ends_b[2], 0, &at, 1, sizeof to[1], &pulled);
    SHM_UNTIL2(&side_a, &side_b, pulled.done && sent[1].done);
    CHECK_OK(pulled.status);
    CHECK_OK(sent[1].status);
    CHECK(!memcmp(from[1], to[1], sizeof to[1]));
    guest_close(&ends_b[1]);
    for (int i = 0; i < 3; i += 2) {
        guest_close(&ends_a[i]);
        guest_close(&ends_b[i]);
    }
    guests_sides_close();
}

/* fabric/shm/relay.c: the sender copies a part, also for a guest, whose bell is the carrier's. */
TEST(long_payloads_of_guests_have_help)
{
    enum { LONG = 24 << 20 };
    char *from = malloc(LONG), *to = malloc(LONG);
    guests_open(3, "auto");
    for (size_t i = 0; i < LONG; i++)
        from[i] = (char)(i * 7 >> 3);
    for (int i = 0; i < 3; i++) {
        shm_xfer_t sent, pulled;
        weft_iov_t out = {from, LONG}, in = {to, LONG};
        memset(to, 0, LONG);
        shm_xfer_init(&sent);
        shm_xfer_init(&pulled);
        CHECK_OK(shm_announce(&ends_a[i], &out, 1, &sent));
        SHM_UNTIL2(&side_a, &side_b, ends_b[i].announced);
        shm_pull(&ends_b[i], 0, &in, 1, LONG, &pulled);
        SHM_UNTIL2(&side_a, &side_b, sent.done && pulled.done);
        CHECK_OK(pulled.status);
        CHECK_OK(sent.status);
        CHECK(!memcmp(from, to, LONG));
        if (guest_lane(&ends_b[i])->helps_us) /* there are two processors */
            CHECK(guest_lane(&ends_b[i])->relay_in && guest_lane(&ends_b[i])->relay_in->taken >= LONG / 8);
    }
    guests_close(3);
    free(from);
    free(to);
}

TEST(a_seat_is_used_again_and_an_end_that_comes_late_is_not_the_next_ones)
{
    guests_open(2, "auto");
    for (int i = 0; i < 3000; i++) {
        shm_end_t old = ends_b[1]; /* the listener's half lives on: it has not looked */
        wefti_lane_t *old_lane = ends_b[1].lane;
        ends_a[1].lane->ops->lane_close(ends_a[1].lane);
        SHM_UNTIL(&side_a, ends_a[1].closed);
        guest_join(&ends_a[1], &ends_b[2]);
        CHECK_EQ(guest_lane(&ends_a[1])->rx_number % WEFTI_SHM_SEATS, 1);
        old_lane->user = &old;
        old_lane->ops->lane_close(old_lane); /* both ends of one seat, in the wrong order */
        CHECK(ends_a[1].lane->ops->peer_open(ends_a[1].lane));
        CHECK(shm_send(&ends_b[2], "new", 3));
        SHM_UNTIL2(&side_a, &side_b, ends_a[1].records == 1 && old.closed);
        CHECK(!ends_a[1].failed && !old.failed);
        ends_b[1] = ends_b[2];
        ends_b[1].lane->user = &ends_b[1];
    }
    guests_close(2);
}

TEST(more_lanes_than_a_ring_has_seats_get_rings_of_their_own)
{
    static shm_end_t xa[WEFTI_SHM_SEATS + 1], xb[WEFTI_SHM_SEATS + 1];
    guests_sides("auto");
    guest_join(&xa[0], &xb[0]);
    xa[0].lane->ops->lane_offer(xa[0].lane, guests_peer);
    for (unsigned i = 1; i <= WEFTI_SHM_SEATS; i++) {
        guest_join(&xa[i], &xb[i]);
        CHECK_EQ(!xa[i].lane->carrier, i == WEFTI_SHM_SEATS);
    }
    xa[WEFTI_SHM_SEATS].lane->ops->lane_offer(xa[WEFTI_SHM_SEATS].lane, guests_peer); /* the next one to be shared */
    guest_join(&ends_a[0], &ends_b[0]);
    CHECK(ends_a[0].lane->carrier && ends_a[0].lane->carrier == xa[WEFTI_SHM_SEATS].lane->carrier);
    CHECK(shm_send(&ends_a[0], "there", 5));
    SHM_UNTIL2(&side_a, &side_b, ends_b[0].records == 1);
    guests_sides_close();
}

/* --- no space -------------------------------------------------------------------------------------------------------------- */

static uint64_t served[GUESTS_MANY];

static void fill(shm_end_t *e)
{
    char rec[1000] = "";
    while (shm_send(e, rec, sizeof rec))
        served[e - ends_a]++;
}

TEST(everybody_gets_space_in_turn)
{
    guests_open(GUESTS_MANY, "auto");
    memset(served, 0, sizeof served);
    for (int i = 0; i < GUESTS_MANY; i++) {
        ends_a[i].on_room = fill;
        fill(&ends_a[i]);
    }
    for (int k = 0; k < 100000 && served[GUESTS_MANY - 1] < 100; k++) {
        shm_progress(&side_a);
        shm_progress(&side_b);
    }
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = 0; i < GUESTS_MANY; i++) {
        least = served[i] < least ? served[i] : least;
        most = served[i] > most ? served[i] : most;
    }
    printf("# %llu to %llu records each\n", (unsigned long long)least, (unsigned long long)most);
    CHECK(least * 2 + 32 >= most);
    for (int i = 0; i < GUESTS_MANY; i++)
        ends_a[i].on_room = NULL;
    guests_close(GUESTS_MANY);
}

TEST(an_end_that_finds_no_space_comes_later_and_a_closed_lane_wants_none)
{
    guests_open(4, "auto");
    fill(&ends_a[1]);
    while (shm_send(&ends_a[1], "x", 1))
        ;
    CHECK(!shm_send(&ends_a[2], "x", 1));
    for (int i = 2; i < 4; i++) {
        ends_a[i].lane->ops->lane_close(ends_a[i].lane);
        SHM_UNTIL(&side_a, ends_a[i].closed); /* b does nothing meanwhile */
    }
    CHECK(!wefti_list_empty(&guest_lane(&ends_a[0])->carrier->guests->ends));
    SHM_UNTIL2(&side_a, &side_b, ends_b[2].failed && ends_b[3].failed);
    CHECK_EQ(ends_b[2].why, WEFT_ERR_PEER);
    SHM_UNTIL2(&side_a, &side_b, ends_a[1].rooms);
    CHECK_EQ(ends_a[2].rooms + ends_a[3].rooms, 0);
    guests_drive();
    fill(&ends_a[1]);
    while (shm_send(&ends_a[1], "x", 1))
        ;
    ends_a[0].lane->ops->lane_close(ends_a[0].lane); /* and one that is never sent: the rings go first */
    ends_a[1].lane->ops->lane_close(ends_a[1].lane);
    guests_drive();
    for (int i = 0; i < 4; i++)
        guest_close(&ends_b[i]);
    guests_sides_close();
}

TEST(a_first_lane_that_closes_while_the_second_is_being_made_is_no_harm)
{
    shm_end_t x, y;
    guests_sides("auto");
    guest_join(&ends_a[0], &ends_b[0]);
    ends_a[0].lane->ops->lane_offer(ends_a[0].lane, guests_peer);
    CHECK_OK(guest_half(&side_a, &x, &side_b, NULL, false)); /* a shares already, b does not know of it */
    guest_close(&ends_a[0]);
    SHM_UNTIL2(&side_a, &side_b, ends_b[0].failed);
    guest_close(&ends_b[0]);
    SHM_UNTIL2(&side_a, &side_b, x.failed); /* there are no rings to join any more */
    CHECK_EQ(guest_half(&side_b, &y, NULL, &x, false), WEFT_ERR_UNREACHABLE);
    guest_close(&x);
    CHECK_OK(guest_half(&side_a, &x, &side_b, NULL, true));
    CHECK(!x.lane->carrier);
    guest_close(&x);
    guests_sides_close();
}

TEST(a_listeners_half_that_closes_before_the_dialler_has_joined_ends_that_lane_alone)
{
    guests_open(2, "auto");
    CHECK_OK(guest_half(&side_a, &ends_a[2], &side_b, NULL, false));
    CHECK_OK(guest_half(&side_b, &ends_b[2], NULL, &ends_a[2], false));
    CHECK_OK(ends_b[2].lane->ops->lane_connect(ends_b[2].lane, ends_a[2].addr, ends_a[2].addr_n));
    guest_close(&ends_b[2]);
    SHM_UNTIL2(&side_a, &side_b, ends_a[2].failed);
    CHECK_EQ(ends_a[2].why, WEFT_ERR_PEER);
    CHECK_EQ(ends_a[2].lane->ops->lane_connect(ends_a[2].lane, ends_b[2].addr, ends_b[2].addr_n), WEFT_ERR_UNREACHABLE);
    guest_close(&ends_a[2]);
    CHECK(shm_send(&ends_b[1], "here", 4));
    SHM_UNTIL2(&side_a, &side_b, ends_a[1].records == 1);
    CHECK(!ends_a[0].failed && !ends_a[1].failed);
    guests_close(2);
}
