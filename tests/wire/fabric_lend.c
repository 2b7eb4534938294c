/* tests/wire/fabric_lend.c - payloads lent where they lie, and what becomes of shared memory when its owner dies or takes it
 * back.
 *
 * Held here: what is lent stays readable until it is given back, whatever becomes of lane, peer and unshare(); the sender does
 * not get it back before; bytes that were taken back are never reported as good. */
#include "test.h"
#include "lib/ranges.h"

/* --- lending ------------------------------------------------------------------------------------------------------------ */

static const uint8_t *lend(scene_t *s, unsigned i, void **lent_out)
{
    const void *ptr = NULL;
    CHECK_OK(s->eb.offer[i]->ops->lend(s->eb.offer[i], &ptr, lent_out));
    return ptr;
}

TEST(a_payload_is_lent_where_it_lies)
{
    scene_t s;
    range_t r;
    shm_xfer_t x;
    void *lent;
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 20);
    weft_iov_t iov = {r.at + 123, MB - 123};
    unsigned i = offer(&s, &iov, 1, &x);
    const uint8_t *ptr = lend(&s, i, &lent);
    CHECK(ptr != iov.base && !memcmp(ptr, iov.base, iov.len));
    CHECK_EQ(transport_of(&s.b)->mapped_copies, 0);
    /* The sender does not get it back before we are done with it. */
    for (int k = 0; k < 100; k++) {
        shm_progress(&s.a);
        shm_progress(&s.b);
    }
    CHECK_EQ(x.done, 0);
    CHECK_EQ(s.eb.withdrawn, 0);
    s.eb.offer[i]->ops->refuse(s.eb.offer[i], true);
    SHM_UNTIL2(&s.a, &s.b, x.done);
    CHECK_OK(x.status);
    /* It may be looked at until it is given back, though its owner may write to it. */
    r.at[123] ^= 0xff;
    CHECK_EQ(ptr[0], r.at[123]);
    s.b.transport->ops->unlend(s.b.transport, lent);

    /* Lent, and pulled as well. */
    i = offer(&s, &iov, 1, &x);
    ptr = lend(&s, i, &lent);
    shm_xfer_t got;
    weft_iov_t to = {malloc(MB), MB};
    shm_pull(&s.eb, i, &to, 1, iov.len, &got);
    SHM_UNTIL2(&s.a, &s.b, x.done && got.done);
    CHECK_OK(x.status);
    CHECK(!memcmp(to.base, ptr, iov.len));
    s.b.transport->ops->unlend(s.b.transport, lent);
    free(to.base);
    range_free(&s.a, &r);
    scene_close(&s);
}

TEST(what_is_not_one_piece_of_shared_memory_is_not_lent)
{
    scene_t s;
    range_t r, q;
    shm_xfer_t x;
    const void *ptr;
    void *lent;
    static uint8_t plain[MB];
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 21);
    range_new(&s.a, &q, MB, 22);
    weft_iov_t two[3] = {{r.at, MB / 2}, {r.at + MB / 2, MB / 2}, {q.at, MB}};
    weft_iov_t out[2] = {{plain, MB}, {r.at, MB}};
    weft_iov_t empties[4] = {{NULL, 0}, {r.at, MB}, {plain, 0}, {q.at, 0}};
    struct {
        const weft_iov_t *iov;
        size_t n;
        bool lent;
    } cases[] = {{two, 3, false}, {two, 2, false}, {out, 1, false}, {out, 2, false}, {out + 1, 1, true}, {empties, 4, true}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        unsigned i = offer(&s, cases[c].iov, cases[c].n, &x);
        weft_status_t st = s.eb.offer[i]->ops->lend(s.eb.offer[i], &ptr, &lent);
        if (st != (cases[c].lent ? WEFT_OK : WEFT_ERR_UNSUPPORTED))
            FAIL("case %zu: %s", c, weft_status_name(st));
        if (!st)
            s.b.transport->ops->unlend(s.b.transport, lent);
        s.eb.offer[i]->ops->refuse(s.eb.offer[i], true);
        SHM_UNTIL2(&s.a, &s.b, x.done);
    }
    range_free(&s.a, &r);
    range_free(&s.a, &q);
    scene_close(&s);
}

TEST(what_is_lent_outlives_unshare_and_both_ends_of_the_lane)
{
    scene_t s;
    range_t r;
    shm_xfer_t x, y;
    void *lent, *lent2;
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 23);
    uint8_t *same = malloc(MB);
    memcpy(same, r.at, MB);
    weft_iov_t iov = {r.at, MB};
    unsigned i = offer(&s, &iov, 1, &x), j = offer(&s, &iov, 1, &y);
    const uint8_t *ptr = lend(&s, i, &lent), *ptr2 = lend(&s, j, &lent2);
    CHECK(ptr == ptr2);
    s.eb.offer[i]->ops->refuse(s.eb.offer[i], true);
    SHM_UNTIL2(&s.a, &s.b, x.done);
    s.eb.offer[j]->ops->refuse(s.eb.offer[j], true);
    SHM_UNTIL2(&s.a, &s.b, y.done);
    range_free(&s.a, &r);
    for (int k = 0; k < 100; k++) {
        shm_progress(&s.a);
        shm_progress(&s.b);
    }
    CHECK_EQ(known(&s), 0);
    CHECK(!memcmp(ptr, same, MB));
    s.b.transport->ops->unlend(s.b.transport, lent);
    CHECK(!memcmp(ptr2, same, MB));
    shm_end_close(&s.ea);
    shm_end_close(&s.eb);
    shm_side_close(&s.a);
    CHECK(!memcmp(ptr2, same, MB));
    CHECK_EQ(transport_of(&s.b)->n_mapped, 1);
    s.b.transport->ops->unlend(s.b.transport, lent2);
    CHECK_EQ(transport_of(&s.b)->n_mapped, 0);
    shm_side_close(&s.b);
    CHECK_EQ(shm_maps(), 0);
    free(same);
}

TEST(a_closed_lane_withdraws_what_it_lent_and_the_memory_stays)
{
    scene_t s;
    range_t r;
    shm_xfer_t x;
    void *lent;
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 24);
    weft_iov_t iov = {r.at, MB};
    const uint8_t *ptr = lend(&s, offer(&s, &iov, 1, &x), &lent);
    shm_end_close(&s.eb);
    CHECK_EQ(s.eb.withdrawn, 1);
    SHM_UNTIL(&s.a, s.ea.failed);
    shm_end_close(&s.ea);
    CHECK_EQ(x.status, WEFT_ERR_CANCELLED);
    CHECK(!memcmp(ptr, r.at, MB));
    range_free(&s.a, &r);
    shm_side_close(&s.a);
    shm_side_close(&s.b); /* even that; the last one to give it back unmaps it */
    CHECK_EQ(shm_maps(), 1);
    fill(r.at = malloc(MB), MB, 24);
    CHECK(!memcmp(ptr, r.at, MB));
    free(r.at);
    wefti_shm_ops.unlend(NULL, lent);
    CHECK_EQ(shm_maps(), 0);
}

/* --- peers that die ----------------------------------------------------------------------------------------------------- */

#define BIG (64 * MB)

static void sharing_child(int fd, void *arg)
{
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    range_t r;
    (void)arg;
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    range_new(&s, &r, BIG, 30);
    weft_iov_t iov = {r.at, BIG};
    CHECK_OK(shm_announce(&e, &iov, 1, &x));
    shm_hear(fd); /* "close", or killed here */
    shm_end_close(&e);
    memset(r.at, 0, BIG);
    shm_tell(fd);
    shm_hear(fd);
}

TEST(what_is_lent_outlives_the_process_it_came_from)
{
    shm_side_t s;
    shm_end_t e;
    const void *ptr;
    void *lent;
    int fd;
    pid_t pid = shm_child(sharing_child, NULL, &fd);
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    SHM_UNTIL(&s, e.announced);
    CHECK_OK(e.offer[0]->ops->lend(e.offer[0], &ptr, &lent));
    kill_now(pid);
    uint8_t *same = malloc(BIG);
    fill(same, BIG, 30);
    CHECK(!memcmp(ptr, same, BIG));
    e.offer[0]->ops->refuse(e.offer[0], true);
    shm_end_close(&e);
    CHECK(!memcmp(ptr, same, BIG));
    s.transport->ops->unlend(s.transport, lent);
    CHECK_EQ(transport_of(&s)->n_mapped, 0);
    shm_side_close(&s);
    CHECK_EQ(shm_maps(), 0);
    free(same);
}

TEST(a_sender_killed_in_the_middle_of_a_copy_does_not_take_its_bytes_along)
{
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    int fd;
    weft_iov_t iov = {malloc(BIG), BIG};
    pid_t pid = shm_child(sharing_child, NULL, &fd);
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    SHM_UNTIL(&s, e.announced);
    shm_pull(&e, 0, &iov, 1, BIG, &x);
    for (int i = 0; i < 3; i++)
        shm_progress(&s);
    CHECK(!x.done && transport_of(&s)->mapped_copies);
    kill_now(pid);
    SHM_UNTIL(&s, x.done);
    CHECK_OK(x.status);
    uint8_t *same = malloc(BIG);
    fill(same, BIG, 30);
    CHECK(!memcmp(iov.base, same, BIG));
    shm_end_close(&e);
    shm_side_close(&s);
    free(same);
    free(iov.base);
    CHECK_EQ(shm_maps(), 0);
}

TEST(a_sender_that_closes_in_the_middle_of_a_copy_ends_it_with_peer_error)
{
    shm_side_t s;
    shm_end_t e;
    shm_xfer_t x;
    int fd;
    weft_iov_t iov = {malloc(BIG), BIG};
    pid_t pid = shm_child(sharing_child, NULL, &fd);
    shm_side_open(&s, RING, "auto");
    shm_meet(&s, &e, fd);
    SHM_UNTIL(&s, e.announced);
    shm_pull(&e, 0, &iov, 1, BIG, &x);
    for (int i = 0; i < 3; i++)
        shm_progress(&s);
    shm_tell(fd);
    shm_hear(fd); /* it has overwritten the payload */
    SHM_UNTIL(&s, x.done && e.failed);
    CHECK_EQ(x.status, WEFT_ERR_PEER);
    shm_end_close(&e);
    shm_side_close(&s);
    kill_now(pid);
    free(iov.base);
}

TEST(a_payload_that_was_taken_back_while_it_was_copied_is_not_reported_as_good)
{
    scene_t s;
    range_t r;
    shm_xfer_t x, got;
    scene_open(&s, "kernel");
    range_new(&s.a, &r, MB, 31);
    weft_iov_t iov = {r.at, MB}, to = {malloc(MB), MB};
    unsigned i = offer(&s, &iov, 1, &x);
    shm_pull(&s.eb, i, &to, 1, MB, &got);
    shm_end_close(&s.ea);
    memset(r.at, 0, MB);
    transport_of(&s.b)->bell_rest = 10; /* it copies before it hears of the end */
    for (unsigned n = 0; n < MB / WEFTI_SHM_COPY_BUDGET; n++)
        shm_progress(&s.b);
    CHECK_EQ(transport_of(&s.b)->mapped_copies, MB);
    SHM_UNTIL(&s.b, got.done);
    CHECK_EQ(got.status, WEFT_ERR_PEER);
    shm_end_close(&s.eb);
    range_free(&s.a, &r);
    shm_side_close(&s.a);
    shm_side_close(&s.b);
    free(to.base);
}
