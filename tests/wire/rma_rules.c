/* wire/rma_rules.c - who may do what with remote memory, and when no more: rights, ranges, parts, keys, names, revoking,
 * freeing, extending, expiring; the same on every path. ctest: tls-long timeout=600 */
#define TEST_SECONDS 280
#include "lib/far.h"
#include "test.h"

enum { KB = 1024, MB = 1024 * KB, LEN = 3 * MB };

static uint8_t buf[LEN + 64], all[LEN + 64];

/* --- ranges and rights ------------------------------------------------------------------------------------------------------ */

TEST(what_is_outside_is_refused_and_nothing_is_touched)
{
    static const struct {
        uint64_t offset, len;
    } bad[] = {
        {LEN, 1},
        {LEN + 1, 1},
        {LEN - 1, 2},
        {LEN - 7, 8},
        {0, LEN + 1},
        {1, LEN},
        {LEN - 5000, 5001},
        {LEN - 9000, 9001},
        {LEN - MB, MB + 1},
        {UINT64_MAX, 1},
        {UINT64_MAX, 2},
        {UINT64_MAX - 7, 8},
        {UINT64_MAX - 7, 16},
        {UINT64_MAX - 4095, 8192},
        {UINT64_MAX / 2, 8},
        {UINT64_C(1) << 63, 1},
        {UINT64_MAX - LEN, LEN},
        {0, SIZE_MAX},
        {1, SIZE_MAX},
        {LEN, SIZE_MAX - LEN + 1},
    };
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        uint8_t *base = weft_region_base(region);
        pattern_fill(base, LEN, 8);
        memset(buf, 0xaa, sizeof buf);
        for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
            weft_op_t op = WEFT_OP_INIT;
            weft_rma_item_t item = {
                .remote = r, .what = WEFT_RMA_DO_WRITE, .offset = bad[i].offset, .buf = buf, .len = bad[i].len};
            CHECK_EQ(far_read(r, bad[i].offset, buf, bad[i].len), WEFT_ERR_RANGE);
            CHECK_EQ(far_write(r, bad[i].offset, buf, bad[i].len), WEFT_ERR_RANGE);
            CHECK_EQ(far_end(weft_rma_write_notify(r, bad[i].offset, buf, bad[i].len, 1, &op), &op), WEFT_ERR_RANGE);
            CHECK_EQ(far_end(weft_rma_batch(&item, 1, &op), &op), WEFT_ERR_RANGE);
            CHECK_EQ(item.status, WEFT_ERR_RANGE);
        }
        CHECK_EQ(pattern_check(base, LEN, 8), LEN);
        for (size_t i = 0; i < sizeof buf; i++)
            CHECK_EQ(buf[i], 0xaa);
        CHECK_OK(far_info(r).state); /* a mistake is not the end of it */
        CHECK_OK(far_read(r, LEN - 1, buf, 1));
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(each_right_gives_what_it_says_and_nothing_else)
{
    static const size_t lens[] = {1, 8, 5000, 20000, 2 * MB};
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        uint8_t *base = weft_region_base(region);
        for (uint32_t rights = 1; rights <= WEFT_RMA_ALL; rights++) {
            weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
            o.rights = rights;
            weft_remote_t *r = far_attach(region, &o);
            CHECK_EQ(far_info(r).rights, rights);
            weft_status_t reads = rights & WEFT_RMA_READ ? WEFT_OK : WEFT_ERR_RIGHTS;
            weft_status_t writes = rights & WEFT_RMA_WRITE ? WEFT_OK : WEFT_ERR_RIGHTS;
            weft_status_t atomics = rights & WEFT_RMA_ATOMIC ? WEFT_OK : WEFT_ERR_RIGHTS;
            for (unsigned i = 0; i < 5; i++) {
                weft_op_t op = WEFT_OP_INIT;
                memset(base, 0x31, lens[i]);
                memset(buf, 0x42, lens[i]);
                CHECK_EQ(far_read(r, 0, buf, lens[i]), reads);
                CHECK_EQ(buf[0], reads ? 0x42 : 0x31);
                CHECK_EQ(buf[lens[i] - 1], reads ? 0x42 : 0x31);
                memset(buf, 0x53, lens[i]);
                CHECK_EQ(far_write(r, 0, buf, lens[i]), writes);
                CHECK_EQ(base[0], writes ? 0x31 : 0x53);
                CHECK_EQ(base[lens[i] - 1], writes ? 0x31 : 0x53);
                memset(buf, 0x64, lens[i]);
                CHECK_EQ(far_end(weft_rma_write_notify(r, 0, buf, lens[i], 3, &op), &op), writes);
                CHECK_EQ(base[lens[i] - 1], writes ? 0x31 : 0x64);
            }
            memset(base, 0, 16);
            CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 8, 8, 5, 0), atomics);
            CHECK_EQ(base[8], atomics ? 0 : 5);
            CHECK_EQ(far_atomic(r, WEFT_RMA_CAS, 8, 4, 6, 5), atomics);
            CHECK_EQ(base[8], atomics ? 0 : 6);
            weft_remote_drop(r);
        }
        far_free(region);
        far_close();
    }
}

TEST(a_region_gives_no_more_than_it_has)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        uint8_t bytes[WEFT_REGION_KEY_MAX];
        size_t len = sizeof bytes;
        ro.len = LEN;
        ro.rights = WEFT_RMA_READ;
        weft_region_t *region = far_region_with(&ro);
        weft_remote_t *r = far_attach(region, NULL);
        CHECK_EQ(far_info(r).rights, WEFT_RMA_READ);
        CHECK_EQ(far_write(r, 0, buf, 8), WEFT_ERR_RIGHTS);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0), WEFT_ERR_RIGHTS);
        weft_remote_drop(r);
        o.rights = WEFT_RMA_ALL;
        CHECK_EQ(weft_region_key(region, &o, bytes, &len), WEFT_ERR_RIGHTS);
        o.rights = 0x80000000u;
        CHECK(weft_region_key(region, &o, bytes, &len) != WEFT_OK);
        o.rights = 0;
        static const uint64_t parts[][2] = {{LEN + 1, 0},         {LEN, 1},           {0, LEN + 1}, {LEN - 1, 2}, {UINT64_MAX, 2},
                                            {UINT64_MAX - 7, 16}, {8, UINT64_MAX - 4}};
        for (unsigned i = 0; i < 7; i++) {
            o.offset = parts[i][0];
            o.len = parts[i][1];
            CHECK_EQ(weft_region_key(region, &o, bytes, &len), WEFT_ERR_RANGE);
        }
        far_free(region);
        static const uint32_t wrong[] = {8, 0x80000000u};
        for (unsigned i = 0; i < 2; i++) {
            ro.rights = wrong[i];
            CHECK_EQ(weft_region_new(far.pair.rt[0], &ro, &region), WEFT_ERR_INVALID);
        }
        ro.rights = 0;
        ro.len = 0;
        CHECK_EQ(weft_region_new(far.pair.rt[0], &ro, &region), WEFT_ERR_INVALID);
        ro.len = 100;
        ro.max_len = 99;
        CHECK_EQ(weft_region_new(far.pair.rt[0], &ro, &region), WEFT_ERR_INVALID);
        ro.max_len = 0;
        ro.len = UINT64_MAX;
        CHECK(weft_region_new(far.pair.rt[0], &ro, &region) != WEFT_OK);
        ro.len = UINT64_MAX - 4095;
        CHECK(weft_region_new(far.pair.rt[0], &ro, &region) != WEFT_OK);
        far_close();
    }
}

TEST(a_part_is_all_that_its_key_shows)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        uint8_t *base = weft_region_base(region);
        static const uint64_t parts[][2] = {{0, 1}, {1, 100}, {4096, 8192}, {5000, 100000}, {LEN - 1, 1}, {7, MB}};
        pattern_fill(base, LEN, 2);
        for (unsigned i = 0; i < 6; i++) {
            weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
            uint64_t at = o.offset = parts[i][0], n = o.len = parts[i][1];
            weft_remote_t *r = far_attach(region, &o);
            weft_remote_info_t info = far_info(r);
            CHECK_EQ(info.len, n);
            CHECK_OK(far_read(r, 0, buf, n));
            CHECK_EQ(memcmp(buf, base + at, n), 0);
            CHECK_EQ(far_read(r, 0, buf, n + 1), WEFT_ERR_RANGE);
            CHECK_EQ(far_read(r, n, buf, 1), WEFT_ERR_RANGE);
            CHECK_EQ(far_read(r, UINT64_MAX, buf, 1), WEFT_ERR_RANGE); /* the byte before it */
            if (at)                                                    /* byte 0 of the region, if it wraps */
                CHECK_EQ(far_write(r, UINT64_MAX - at + 1, buf, 1), WEFT_ERR_RANGE);
            CHECK_EQ(far_write(r, n, buf, 1), WEFT_ERR_RANGE);
            memcpy(all, base, LEN);
            memset(buf, 0x77, n);
            memset(all + at, 0x77, n);
            CHECK_OK(far_write(r, 0, buf, n));
            CHECK_EQ(memcmp(base, all, LEN), 0);
            weft_remote_drop(r);
        }
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        o.offset = 100; /* the rest of it */
        weft_remote_t *r = far_attach(region, &o);
        CHECK_EQ(far_info(r).len, LEN - 100);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

/* --- keys ------------------------------------------------------------------------------------------------------------------- */

TEST(a_key_says_what_it_is_for_and_where)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        o.offset = 8;
        o.len = 16;
        o.rights = WEFT_RMA_READ | WEFT_RMA_ATOMIC;
        far_key_t t = far_key(region, &o);
        weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
        CHECK(t.len > 32 && t.len <= WEFT_REGION_KEY_MAX);
        CHECK_OK(weft_region_key_read(t.bytes, t.len, &info));
        CHECK_EQ(info.offset, 8);
        CHECK_EQ(info.len, 16);
        CHECK_EQ(info.rights, WEFT_RMA_READ | WEFT_RMA_ATOMIC);
        CHECK_EQ(info.generation, 1);
        CHECK(strstr(info.owner, weft_listener_uri(far.pair.listener)));
        for (size_t n = 0; n < t.len; n++) { /* too short, and the room needed is told */
            uint8_t small[WEFT_REGION_KEY_MAX];
            size_t room = n;
            memset(small, 0xdd, sizeof small);
            CHECK_EQ(weft_region_key(region, &o, small, &room), WEFT_ERR_LIMIT);
            CHECK_EQ(room, t.len);
            CHECK_EQ(small[n], 0xdd);
            CHECK_EQ(weft_region_key_read(t.bytes, n, &info), WEFT_ERR_INVALID);
        }
        CHECK_EQ(weft_region_key_read(NULL, 0, &info), WEFT_ERR_INVALID);
        CHECK_EQ(weft_region_key_read(buf, 1000, &info), WEFT_ERR_INVALID);
        /* the runtime that connected does not listen */
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_t *deaf;
        ro.len = 8;
        CHECK_OK(weft_region_new(far.pair.rt[1], &ro, &deaf));
        t = far_key(deaf, NULL);
        CHECK_OK(weft_region_key_read(t.bytes, t.len, &info));
        CHECK_STR(info.owner, "");
        far_free(deaf);
        far_free(region);
        far_close();
    }
}

TEST(a_key_with_any_bit_changed_is_refused)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(4096);
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        o.rights = WEFT_RMA_READ;
        o.len = 100;
        far_key_t t = far_key(region, &o);
        weft_remote_t *r = NULL;
        unsigned step = way == far_ways ? 1 : 5;
        for (size_t bit = 0; bit < t.len * 8; bit += step) {
            uint8_t forged[WEFT_REGION_KEY_MAX];
            memcpy(forged, t.bytes, t.len);
            forged[bit / 8] ^= (uint8_t)(1 << bit % 8);
            weft_status_t st = far_try(far.pair.ep[1], forged, t.len, WEFT_RMA_ANY, &r);
            if (st != WEFT_ERR_AUTH && st != WEFT_ERR_INVALID && st != WEFT_ERR_STALE)
                FAIL("bit %zu of byte %zu changed: %s", bit % 8, bit / 8, weft_status_name(st));
        }
        for (size_t n = 0; n < WEFT_REGION_KEY_MAX + 2; n += n < t.len + 2 && n + 2 > t.len ? 1 : 3) { /* cut, and with a tail */
            uint8_t cut[WEFT_REGION_KEY_MAX + 2] = {0};
            if (n == t.len)
                continue;
            memcpy(cut, t.bytes, n < t.len ? n : t.len);
            weft_status_t st = far_try(far.pair.ep[1], cut, n, WEFT_RMA_ANY, &r);
            if (st != WEFT_ERR_AUTH && st != WEFT_ERR_INVALID && st != WEFT_ERR_LIMIT)
                FAIL("%zu bytes of %zu: %s", n, t.len, weft_status_name(st));
        }
        CHECK_EQ(weft_ep_get_state(far.pair.ep[1]), WEFT_EP_UP);
        CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r));
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

TEST(a_key_is_for_its_owner_alone)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_t *mine = far_region(100), *theirs;
        weft_remote_t *r = NULL;
        ro.len = 100;
        CHECK_OK(weft_region_new(far.pair.rt[1], &ro, &theirs));
        far_key_t of_mine = far_key(mine, NULL), of_theirs = far_key(theirs, NULL);
        /* both directions of one connection, and neither key the wrong way */
        CHECK_OK(far_try(far.pair.ep[1], of_mine.bytes, of_mine.len, far.way->path, &r));
        weft_remote_drop(r);
        CHECK_OK(far_try(far.pair.ep[0], of_theirs.bytes, of_theirs.len, far.way->path, &r));
        CHECK_OK(far_write(r, 0, "back", 4));
        CHECK_EQ(memcmp(weft_region_base(theirs), "back", 4), 0);
        weft_remote_drop(r);
        weft_status_t st = far_try(far.pair.ep[1], of_theirs.bytes, of_theirs.len, WEFT_RMA_ANY, &r);
        CHECK(st == WEFT_ERR_STALE || st == WEFT_ERR_AUTH);
        st = far_try(far.pair.ep[0], of_mine.bytes, of_mine.len, WEFT_RMA_ANY, &r);
        CHECK(st == WEFT_ERR_STALE || st == WEFT_ERR_AUTH);
        far_free(mine);
        far_free(theirs);
        far_close();
    }
}

TEST(a_key_ends_with_its_time)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        uint8_t *base = weft_region_base(region);
        weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
        o.lifetime_ns = 300 * WEFT_MILLISECOND; /* a busy machine has to attach it meanwhile */
        double made = test_now();
        far_key_t t = far_key(region, &o);
        weft_remote_t *r = NULL, *late = NULL, *other = far_attach(region, NULL);
        CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, far.way->path, &r));
        weft_status_t st = WEFT_OK;
        while (!st && test_now() < made + 10) { /* it ends, and not before its time; its owner runs */
            pair_drive(&far.pair);
            st = far_write(r, 0, buf, 8);
        }
        CHECK_EQ(st, WEFT_ERR_STALE);
        CHECK(test_now() - made > 0.28);
        memset(base, 0x21, LEN);
        memset(buf, 0x32, LEN);
        CHECK_EQ(far_write(r, 0, buf, 8), WEFT_ERR_STALE);
        CHECK_EQ(far_read(r, 0, buf, 8), WEFT_ERR_STALE);
        CHECK_EQ(far_write(r, 0, buf, LEN), WEFT_ERR_STALE);
        CHECK_EQ(far_read(r, 0, buf, LEN), WEFT_ERR_STALE);
        CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0), WEFT_ERR_STALE);
        CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &late), WEFT_ERR_STALE);
        CHECK(base[0] == 0x21 && base[LEN - 1] == 0x21 && buf[0] == 0x32);
        CHECK_OK(far_write(other, 0, buf, 8)); /* others are as they were */
        CHECK_EQ(far_region_info(region).generation, 1);
        weft_remote_drop(r);
        weft_remote_drop(other);
        far_free(region);
        far_close();
    }
}

/* --- names ---------------------------------------------------------------------------------------------------------------- */

TEST(a_named_region_is_found_with_the_rights_of_its_name)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_region_t *named, *second;
        weft_remote_t *r = NULL;
        char longest[WEFT_RMA_NAME_MAX + 2];
        ro.len = 4096;
        ro.name = "the table";
        ro.name_rights = WEFT_RMA_READ;
        named = far_region_with(&ro);
        memcpy(weft_region_base(named), "seen", 4);
        CHECK_EQ(weft_region_new(far.pair.rt[0], &ro, &second), WEFT_ERR_STATE);
        CHECK_OK(far_find("the table", far.way->path, &r));
        CHECK_EQ(far_info(r).rights, WEFT_RMA_READ);
        CHECK_EQ(far_info(r).len, 4096);
        CHECK_OK(far_read(r, 0, buf, 4));
        CHECK_EQ(memcmp(buf, "seen", 4), 0);
        CHECK_EQ(far_write(r, 0, buf, 4), WEFT_ERR_RIGHTS);
        weft_remote_drop(r);
        r = far_attach(named, NULL); /* a key may give more */
        CHECK_OK(far_write(r, 0, buf, 4));
        weft_remote_drop(r);
        static const char *const none[] = {"the tabl", "the table ", "The table", "x"};
        for (unsigned i = 0; i < 4; i++)
            CHECK_EQ(far_find(none[i], WEFT_RMA_ANY, &r), WEFT_ERR_NOTFOUND);
        weft_status_t st = far_find("", WEFT_RMA_ANY, &r);
        CHECK(st == WEFT_ERR_NOTFOUND || st == WEFT_ERR_INVALID);
        memset(longest, 'n', sizeof longest);
        longest[WEFT_RMA_NAME_MAX + 1] = 0;
        CHECK(far_find(longest, WEFT_RMA_ANY, &r) != WEFT_OK);
        ro.name = longest;
        CHECK_EQ(weft_region_new(far.pair.rt[0], &ro, &second), WEFT_ERR_INVALID);
        longest[WEFT_RMA_NAME_MAX] = 0;
        second = far_region_with(&ro);
        CHECK_OK(far_find(longest, far.way->path, &r));
        weft_remote_drop(r);
        far_free(second);
        CHECK_EQ(far_find(longest, WEFT_RMA_ANY, &r), WEFT_ERR_NOTFOUND);
        far_free(named); /* its name is free again */
        ro.name = "the table";
        ro.name_rights = 0;
        named = far_region_with(&ro);
        CHECK_OK(far_find("the table", far.way->path, &r));
        CHECK_EQ(far_info(r).rights, WEFT_RMA_ALL);
        CHECK_OK(far_read(r, 0, buf, 4));
        CHECK_EQ(memcmp(buf, "\0\0\0\0", 4), 0);
        weft_remote_drop(r);
        far_free(named);
        far_close();
    }
}

/* --- revoking, freeing, extending ----------------------------------------------------------------------------------------- */

static void all_stale(weft_remote_t *r)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_iov_t iov = {buf, 100};
    weft_rma_item_t item = {.remote = r, .what = WEFT_RMA_DO_READ, .buf = buf, .len = 8};
    CHECK_EQ(far_read(r, 0, buf, 8), WEFT_ERR_STALE);
    CHECK_EQ(far_write(r, 0, buf, 8), WEFT_ERR_STALE);
    CHECK_EQ(far_read(r, 0, buf, 2 * MB), WEFT_ERR_STALE);
    CHECK_EQ(far_write(r, 0, buf, 2 * MB), WEFT_ERR_STALE);
    CHECK_EQ(far_end(weft_rma_writev(r, 0, &iov, 1, &op), &op), WEFT_ERR_STALE);
    CHECK_EQ(far_end(weft_rma_write_notify(r, 0, buf, 8, 1, &op), &op), WEFT_ERR_STALE);
    CHECK_EQ(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0), WEFT_ERR_STALE);
    CHECK_EQ(far_end(weft_rma_batch(&item, 1, &op), &op), WEFT_ERR_STALE);
    CHECK_EQ(item.status, WEFT_ERR_STALE);
    CHECK_OK(far_flush(r));
}

TEST(revoking_ends_everything_that_was_given_out_and_new_keys_are_good)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        ro.len = LEN;
        ro.name = "again";
        weft_region_t *region = far_region_with(&ro);
        uint8_t *base = weft_region_base(region);
        for (unsigned round = 1; round <= 3; round++) {
            weft_remote_t *r = far_attach(region, NULL), *by_name = NULL, *late = NULL;
            far_key_t t = far_key(region, NULL);
            CHECK_OK(far_find("again", far.way->path, &by_name));
            CHECK_EQ(far_info(r).generation, round);
            CHECK_EQ(far_region_info(region).attached, 2);
            memset(buf, (int)round, LEN);
            CHECK_OK(far_write(r, 0, buf, LEN));
            far_revoke(region);
            CHECK_EQ(far_region_info(region).generation, round + 1);
            CHECK(weft_region_base(region) == base); /* memory stays, and what is in it */
            CHECK(base[0] == round && base[LEN - 1] == round);
            memset(buf, 0xee, LEN);
            all_stale(r);
            all_stale(by_name);
            CHECK_EQ(base[0], round);
            CHECK_EQ(base[LEN / 2], round);
            CHECK_EQ(buf[0], 0xee);
            CHECK_EQ(far_info(r).state, WEFT_ERR_STALE);
            CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &late), WEFT_ERR_STALE);
            weft_remote_drop(r);
            weft_remote_drop(by_name);
            pair_run(&far.pair, 0.002);
        }
        weft_remote_t *r = far_attach(region, NULL);
        CHECK_OK(far_read(r, 0, buf, LEN));
        CHECK(buf[0] == 3 && buf[LEN - 1] == 3);
        CHECK_OK(weft_region_revoke(region, NULL)); /* nobody needs to wait for it */
        double end = test_now() + 5;
        while (far_write(r, 0, buf, 8) != WEFT_ERR_STALE)
            CHECK(test_now() < end);
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}

enum { OPS = 300 };
static weft_op_t ops[OPS];
static weft_status_t posted[OPS];

/* Reads and writes of every size, all over the region. */
static void post_many(weft_remote_t *r)
{
    static const size_t lens[] = {8, 100, 5000, 9000, 70000, 1100000};
    memset(ops, 0, sizeof ops);
    memset(buf, 0x5b, LEN);
    for (unsigned i = 0; i < OPS; i++) {
        size_t n = lens[i % 6], at = (size_t)i * 6151 % (LEN - n);
        posted[i] = i % 5 == 4   ? weft_rma_atomic(r, WEFT_RMA_ADD, at & ~(size_t)7, 8, 1, 0, &ops[i])
                    : i % 3 == 2 ? weft_rma_read(r, at, all, n, &ops[i])
                                 : weft_rma_write(r, at, buf, n, &ops[i]);
        if (i == OPS / 2)
            pair_drive(&far.pair);
    }
}

/* They have ended, each with success or `why`. */
static unsigned end_many(weft_status_t why, weft_status_t or)
{
    unsigned well = 0;
    for (unsigned i = 0; i < OPS; i++) {
        weft_status_t st = far_end(posted[i], &ops[i]);
        if (st && st != why && st != or)
            FAIL("operation %u ended with %s", i, weft_status_name(st));
        well += !st;
    }
    return well;
}

TEST(revoking_while_accesses_are_under_way_ends_them_and_nothing_comes_after_it)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        uint8_t *base = weft_region_base(region);
        unsigned well = 0, tries = 0;
        for (unsigned round = 0; round < 8; round++) {
            weft_remote_t *r = far_attach(region, NULL);
            weft_op_t revoke = WEFT_OP_INIT;
            post_many(r);
            for (unsigned i = 0; i < round * 4; i++)
                pair_drive(&far.pair);
            CHECK_OK(weft_region_revoke(region, &revoke));
            CHECK_OK(far_end(WEFT_OK, &revoke));
            pattern_fill(base, LEN, round); /* it is ours alone now */
            well += end_many(WEFT_ERR_STALE, WEFT_ERR_STALE);
            tries += OPS;
            pair_run(&far.pair, 0.002);
            CHECK_EQ(pattern_check(base, LEN, round), LEN);
            CHECK_EQ(far_write(r, 0, buf, 8), WEFT_ERR_STALE);
            weft_remote_drop(r);
        }
        printf("# %s, %s: %u of %u succeeded\n", way->pair->transports, weft_rma_path_name(way->path), well, tries);
        CHECK_EQ(far_region_info(region).generation, 9);
        far_free(region);
        far_close();
    }
}

TEST(freeing_while_accesses_are_under_way_gives_the_program_its_memory_back)
{
    each_far(way) {
        far_open(way, NULL);
        for (unsigned round = 0; round < 6; round++) {
            weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
            uint8_t *own = (uint8_t *)malloc(LEN);
            weft_remote_t *r = NULL;
            weft_op_t op = WEFT_OP_INIT;
            ro.len = LEN;
            ro.buf = way->path == WEFT_RMA_CHECKED ? own : NULL; /* what the program has is not mapped */
            weft_region_t *region = far_region_with(&ro);
            far_key_t t = far_key(region, NULL);
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, far.way->path, &r));
            post_many(r);
            for (unsigned i = 0; i < round * 5; i++)
                pair_drive(&far.pair);
            CHECK_OK(weft_region_free(region, &op));
            CHECK_OK(far_end(WEFT_OK, &op));
            pattern_fill(own, LEN, round);
            end_many(WEFT_ERR_STALE, WEFT_ERR_STALE);
            all_stale(r);
            CHECK_EQ(pattern_check(own, LEN, round), LEN);
            CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &(weft_remote_t *){NULL}), WEFT_ERR_STALE);
            weft_remote_drop(r);
            free(own);
        }
        /* nobody waits for it; and one that is left goes with its runtime */
        CHECK_OK(weft_region_free(far_region(LEN), NULL));
        weft_region_t *left = far_region(LEN);
        weft_remote_t *r = far_attach(left, NULL);
        CHECK_OK(far_write(r, 0, buf, 8));
        weft_remote_drop(r);
        far_close();
    }
}

TEST(a_longer_region_is_for_new_keys_and_its_new_bytes_are_zero)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        ro.len = 5000;
        ro.max_len = LEN;
        weft_region_t *region = far_region_with(&ro);
        uint8_t *base = weft_region_base(region);
        weft_remote_t *old = far_attach(region, NULL);
        CHECK_EQ(far_region_info(region).max_len, LEN);
        memset(buf, 0x66, LEN);
        CHECK_OK(far_write(old, 0, buf, 5000));
        static const uint64_t lens[] = {5001, 8192, 100000, LEN};
        for (unsigned i = 0; i < 4; i++) {
            CHECK_OK(weft_region_extend(region, lens[i]));
            CHECK(weft_region_base(region) == base);
            CHECK_EQ(far_region_info(region).len, lens[i]);
            CHECK_EQ(far_write(old, 5000, buf, 1), WEFT_ERR_RANGE);
            weft_remote_t *r = far_attach(region, NULL);
            CHECK_EQ(far_info(r).len, lens[i]);
            memset(all, 0xff, lens[i]);
            CHECK_OK(far_read(r, 0, all, lens[i]));
            for (uint64_t k = 0; k < lens[i]; k++)
                CHECK_EQ(all[k], k < 5000 ? 0x66 : 0);
            CHECK_EQ(far_read(r, lens[i], all, 1), WEFT_ERR_RANGE);
            CHECK_OK(far_write(r, lens[i] - 1, buf, 1));
            CHECK_EQ(base[lens[i] - 1], 0x66);
            base[lens[i] - 1] = 0;
            weft_remote_drop(r);
            CHECK_OK(far_read(old, 0, all, 5000));
        }
        CHECK_EQ(weft_region_extend(region, LEN + 1), WEFT_ERR_RANGE);
        CHECK_EQ(weft_region_extend(region, LEN - 1), WEFT_ERR_RANGE);
        CHECK_EQ(weft_region_extend(region, 0), WEFT_ERR_RANGE);
        CHECK_EQ(weft_region_extend(region, UINT64_MAX), WEFT_ERR_RANGE);
        CHECK_OK(weft_region_extend(region, LEN));
        CHECK_EQ(far_region_info(region).len, LEN);
        weft_remote_drop(old);
        far_free(region);
        far_close();
    }
}

/* --- which path ----------------------------------------------------------------------------------------------------------- */

TEST(the_path_is_the_fastest_there_is_and_a_path_that_is_not_there_is_refused)
{
    each_way(way) {
        bool shm = !strcmp(way->transports, "shm");
        pair_open(&far.pair, way, NULL);
        weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
        weft_remote_t *r = NULL;
        static uint8_t own[100];
        ro.len = 100;
        for (unsigned i = 0; i < 3; i++) { /* the library's memory, the same unmapped, the program's */
            ro.unmapped = i == 1;
            ro.buf = i == 2 ? own : NULL;
            bool can = shm && i == 0;
            weft_region_t *region = far_region_with(&ro);
            far_key_t t = far_key(region, NULL);
            CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_MAPPED, &r), can ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
            if (can) {
                CHECK_EQ(far_info(r).path, WEFT_RMA_MAPPED);
                CHECK_EQ(far_region_info(region).mapped, 1);
                weft_remote_drop(r);
            }
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_CHECKED, &r));
            CHECK_EQ(far_info(r).path, WEFT_RMA_CHECKED);
            weft_remote_drop(r);
            CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_NATIVE, &r), WEFT_ERR_UNSUPPORTED);
            CHECK_EQ(far_try(far.pair.ep[1], t.bytes, t.len, (weft_rma_path_t)77, &r), WEFT_ERR_INVALID);
            CHECK_OK(far_try(far.pair.ep[1], t.bytes, t.len, WEFT_RMA_ANY, &r));
            weft_remote_info_t info = far_info(r);
            CHECK_EQ(info.path, can ? WEFT_RMA_MAPPED : WEFT_RMA_CHECKED);
            CHECK_EQ(info.owner, weft_ep_id(far.pair.ep[1]));
            CHECK_STR(weft_rma_path_name(info.path), can ? "mapped" : "checked");
            weft_remote_drop(r);
            PAIR_UNTIL(&far.pair, far_region_info(region).attached == 0, 5);
            CHECK_EQ(far_region_info(region).mapped, 0);
            far_free(region);
        }
        pair_close(&far.pair);
    }
}

TEST(what_was_done_is_counted)
{
    each_far(way) {
        far_open(way, NULL);
        weft_region_t *region = far_region(LEN);
        weft_remote_t *r = far_attach(region, NULL);
        for (unsigned i = 0; i < 3; i++)
            CHECK_OK(far_write(r, 0, buf, 1000));
        CHECK_OK(far_write(r, 0, buf, 2 * MB));
        CHECK_OK(far_read(r, 0, buf, 10));
        CHECK_OK(far_read(r, 0, buf, 70000));
        CHECK_OK(far_atomic(r, WEFT_RMA_ADD, 0, 8, 1, 0));
        weft_remote_info_t info = far_info(r);
        CHECK(info.writes == 4 && info.reads == 2 && info.atomics == 1);
        CHECK(info.bytes_written == 3000 + 2 * MB && info.bytes_read == 70010);
        weft_region_info_t there = far_region_info(region);
        CHECK_EQ(there.attached, 1);
        CHECK_EQ(there.mapped, way->path == WEFT_RMA_MAPPED);
        if (way->path == WEFT_RMA_CHECKED) {
            CHECK(there.writes == 4 && there.reads == 2 && there.atomics == 1);
            CHECK(there.bytes_written == 3000 + 2 * MB && there.bytes_read == 70010);
        } else {
            CHECK_EQ(there.writes + there.reads, 0);
            CHECK_EQ(there.atomics, way->path == WEFT_RMA_NATIVE); /* there the owner carries them out */
        }
        weft_remote_drop(r);
        far_free(region);
        far_close();
    }
}
