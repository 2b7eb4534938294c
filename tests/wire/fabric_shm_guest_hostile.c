/* tests/wire/fabric_shm_guest_hostile.c - lanes that share rings, and a peer that writes what does not keep to the rules: what
 * concerns the rings fails all of their lanes, what concerns one lane fails that, and nobody else becomes a guest. */
#include "base/rng.h"
#include "lib/guests.h"
#include "test.h"

/* --- a peer that does not keep to the rules --------------------------------------------------------------------------------- */

/* b writes a record of this type to a, with this number. */
static void put(uint32_t type, uint32_t number, const void *bytes, size_t n)
{
    wefti_shm_lane_t *c = guest_lane(&ends_b[0])->carrier;
    void *at = wefti_shm_lane_reserve(c, n);
    CHECK(at);
    memcpy(at, bytes, n);
    wefti_shm_ring_commit(c, n, type | number << 8);
}

static void all_fail(int n)
{
    for (int i = 0; i < n; i++) {
        SHM_UNTIL2(&side_a, &side_b, ends_a[i].failed);
        CHECK_EQ(ends_a[i].why, WEFT_ERR_PROTOCOL);
    }
    guests_close(n);
}

TEST(a_channel_that_never_was_fails_the_rings)
{
    uint32_t numbers[] = {3, 3 + WEFTI_SHM_SEATS, 1023 + 5 * WEFTI_SHM_SEATS, WEFTI_SHM_SEATS, 0xffffff, 0xfffc00};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        guests_open(3, "auto");
        put(WEFTI_SHM_REC, numbers[i], "x", 1);
        all_fail(3);
    }
}

TEST(a_record_of_an_earlier_generation_is_passed_over)
{
    guests_open(3, "auto");
    uint32_t number = guest_lane(&ends_a[1])->rx_number;
    guest_close(&ends_a[1]);
    put(WEFTI_SHM_REC, number, "x", 1);
    put(WEFTI_SHM_RTS, number, "nonsense", 8);
    put(WEFTI_SHM_REC, number + 9 * WEFTI_SHM_SEATS, "x", 1);
    CHECK(shm_send(&ends_b[2], "here", 4));
    SHM_UNTIL2(&side_a, &side_b, ends_a[2].records == 1);
    CHECK(!ends_a[0].failed && !ends_a[2].failed && !ends_a[1].records);
    guest_close(&ends_b[1]);
    guest_close(&ends_a[0]);
    guest_close(&ends_b[0]);
    guest_close(&ends_a[2]);
    guest_close(&ends_b[2]);
    guests_sides_close();
}

TEST(what_follows_an_end_or_precedes_the_join_fails_the_rings)
{
    uint8_t zero[16] = {0};
    for (int twice = 0; twice < 2; twice++) {
        guests_open(3, "auto");
        put(WEFTI_SHM_END, guest_lane(&ends_a[1])->rx_number, zero, sizeof zero);
        SHM_UNTIL2(&side_a, &side_b, ends_a[1].failed);
        CHECK_EQ(ends_a[1].why, WEFT_ERR_PEER);
        CHECK(!ends_a[2].failed);
        put(twice ? WEFTI_SHM_END : WEFTI_SHM_REC, guest_lane(&ends_a[1])->rx_number, zero, sizeof zero);
        ends_a[1].failed = 0;
        SHM_UNTIL2(&side_a, &side_b, ends_a[0].failed && ends_a[2].failed);
        CHECK_EQ(ends_a[2].why, WEFT_ERR_PROTOCOL);
        guests_close(3);
    }
    guests_open(2, "auto");
    CHECK_OK(guest_half(&side_a, &ends_a[2], &side_b, NULL, false));
    put(WEFTI_SHM_REC, guest_lane(&ends_a[2])->rx_number, "early", 5);
    SHM_UNTIL2(&side_a, &side_b, ends_a[2].failed && ends_a[1].failed);
    CHECK_EQ(ends_a[2].why, WEFT_ERR_PROTOCOL);
    guest_close(&ends_a[2]);
    guests_close(2);
}

TEST(a_transfer_that_makes_no_sense_fails_its_own_lane_alone)
{
    uint64_t nonsense[2] = {77, 1};
    guests_open(3, "auto");
    put(WEFTI_SHM_DONE, guest_lane(&ends_a[1])->rx_number, nonsense, sizeof nonsense);
    SHM_UNTIL2(&side_a, &side_b, ends_a[1].failed);
    CHECK_EQ(ends_a[1].why, WEFT_ERR_PROTOCOL);
    put(WEFTI_SHM_DONE, guest_lane(&ends_a[1])->rx_number, nonsense, sizeof nonsense); /* it does not know yet */
    CHECK(shm_send(&ends_b[1], "nor here", 8));
    CHECK(shm_send(&ends_b[2], "well", 4));
    SHM_UNTIL2(&side_a, &side_b, ends_a[2].records == 1);
    CHECK(!ends_a[2].failed && !ends_a[0].failed && !ends_a[1].records);
    guests_close(3);
}

TEST(random_heads_in_shared_rings_harm_nobody_else)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        wefti_rng_t rng = {seed};
        uint8_t bytes[256];
        guests_open(5, seed % 2 ? "auto" : "ring");
        for (int k = 0; k < 30 && guest_lane(&ends_b[0])->carrier->state == WEFTI_SHM_LANE_UP; k++) {
            uint64_t r = wefti_rng_next(&rng);
            size_t n = 1 + r % sizeof bytes;
            for (size_t i = 0; i < n; i++)
                bytes[i] = (uint8_t)(wefti_rng_next(&rng) >> 20);
            if (r >> 60 < 8) /* something that could be an id */
                memset(bytes, 0, n < 12 ? n : 12);
            uint32_t number = guest_lane(&ends_a[(r >> 8) % 5])->rx_number;
            if ((r >> 16) % 16 == 0)
                number = (uint32_t)(r >> 20) & 0xffffff;
            put(2 + (uint32_t)((r >> 48) % 10), number, bytes, n);
            shm_progress(&side_a);
        }
        guests_drive();
        for (int i = 0; i < 5; i++)
            CHECK(!ends_a[i].failed || ends_a[i].why == WEFT_ERR_PROTOCOL || ends_a[i].why == WEFT_ERR_PEER);
        guests_close(5);
    }
}

TEST(only_the_other_end_can_become_a_guest)
{
    guests_open(2, "auto");
    shm_end_t x, y;
    for (int k = 0; k < 5; k++) {
        wefti_shm_addr_t addr;
        CHECK_OK(guest_half(&side_a, &x, &side_b, NULL, false));
        memcpy(&addr, x.addr, sizeof addr);
        if (k == 0)
            x.addr[x.addr_n - 1] ^= 1; /* signed by somebody else */
        if (k == 1)
            addr.ring_ino = 1 << 20; /* no such lane */
        if (k == 2)
            addr.ring_ino = wefti_shm_lane_index(guest_lane(&ends_b[1])); /* a guest itself */
        if (k == 3)
            addr.peer.nonce ^= 1; /* of another process */
        if (k == 4)
            addr.flags = 0; /* no guest at all, and no ring */
        memcpy(x.addr, &addr, sizeof addr);
        if (k)
            shm_end_sign(&x, x.addr);
        weft_status_t st = guest_half(&side_b, &y, NULL, &x, false);
        CHECK_EQ(st, k == 4 ? WEFT_OK : WEFT_ERR_UNREACHABLE);
        if (!st) {
            CHECK(y.lane->ops->lane_connect(y.lane, x.addr, x.addr_n));
            guest_close(&y);
        }
        guest_close(&x);
    }
    uint32_t bad[] = {0, 5, WEFTI_SHM_SEATS, WEFTI_SHM_SEATS * WEFTI_SHM_GENERATIONS + 1};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) { /* numbers that nobody gives */
        wefti_shm_addr_t addr;
        CHECK_OK(guest_half(&side_a, &x, &side_b, NULL, false));
        memcpy(&addr, x.addr, sizeof addr);
        addr.index = bad[k];
        memcpy(x.addr, &addr, sizeof addr);
        shm_end_sign(&x, x.addr);
        CHECK_OK(guest_half(&side_b, &y, NULL, &x, false));
        CHECK_EQ(y.lane->ops->lane_connect(y.lane, x.addr, x.addr_n), WEFT_ERR_PROTOCOL);
        guest_close(&y);
        guest_close(&x);
    }
    CHECK(shm_send(&ends_b[1], "well", 4));
    SHM_UNTIL2(&side_a, &side_b, ends_a[1].records == 1);
    guests_close(2);
}
