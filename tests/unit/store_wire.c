/* Requests and replies as bytes: what is written is read again, and whatever else comes is refused without being looked at past
 * its end. */
#include "base/rng.h"
#include "store/wire.h"
#include "test.h"

static void fill(void *p, size_t n, wefti_rng_t *rng)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)wefti_rng_next(rng);
}

static wefti_replica_t some_rec(wefti_rng_t *rng)
{
    wefti_replica_t rec = {.epoch = wefti_rng_next(rng), .len = wefti_rng_next(rng), .lease_ns = WEFT_SECOND, .n_members = 2};
    rec.flags = (uint32_t)wefti_rng_below(rng, 16);
    fill(rec.members, 2 * WEFT_STORE_ID, rng);
    fill(rec.writer, sizeof rec.writer, rng);
    return rec;
}

static store_request_t some_request(uint8_t kind, wefti_rng_t *rng)
{
    store_request_t q = {.id = wefti_rng_next(rng), .kind = kind, .flags = kind == STORE_ALLOC ? STORE_SHARED : 0};
    fill(q.client, sizeof q.client, rng);
    fill(q.writer, sizeof q.writer, rng);
    q.lease_ns = wefti_rng_next(rng);
    q.block = wefti_rng_next(rng);
    q.len = wefti_rng_next(rng);
    q.max_len = wefti_rng_next(rng);
    q.epoch = wefti_rng_next(rng);
    q.stamp = wefti_rng_next(rng);
    q.name = "a name";
    q.name_len = (uint8_t)wefti_rng_below(rng, 7);
    q.after = "another";
    q.after_len = (uint8_t)wefti_rng_below(rng, 8);
    q.rec = some_rec(rng);
    return q;
}

TEST(every_request_is_read_as_it_was_written)
{
    wefti_rng_t rng = {1};
    for (uint8_t kind = 1; kind < STORE_KINDS; kind++) {
        uint8_t bytes[STORE_REQUEST_MAX], again[STORE_REQUEST_MAX];
        store_request_t q = some_request(kind, &rng), got;
        size_t n = wefti_store_put_request(&q, bytes, sizeof bytes);
        CHECK(n > 0);
        CHECK(wefti_store_get_request(bytes, n, &got));
        CHECK_EQ(got.id, q.id);
        CHECK_EQ(got.kind, kind);
        CHECK(!memcmp(got.client, q.client, sizeof q.client));
        CHECK_EQ(wefti_store_put_request(&got, again, sizeof again), n);
        CHECK(!memcmp(bytes, again, n));
        /* every field that is there was read */
        for (size_t i = 10; i < n; i++) {
            store_request_t other;
            uint8_t flipped[STORE_REQUEST_MAX];
            memcpy(flipped, bytes, n);
            flipped[i] ^= 1;
            if (wefti_store_get_request(flipped, n, &other)) {
                CHECK_EQ(wefti_store_put_request(&other, again, sizeof again), n);
                CHECK(!memcmp(flipped, again, n));
            }
        }
    }
}

TEST(a_request_that_is_cut_or_too_long_is_none)
{
    wefti_rng_t rng = {2};
    for (uint8_t kind = 1; kind < STORE_KINDS; kind++) {
        uint8_t bytes[STORE_REQUEST_MAX + 1];
        store_request_t q = some_request(kind, &rng), got;
        size_t n = wefti_store_put_request(&q, bytes, sizeof bytes);
        for (size_t cut = 0; cut < n; cut++) {
            uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees who reads past it */
            memcpy(exact, bytes, cut);
            CHECK(!wefti_store_get_request(exact, cut, &got));
            free(exact);
            CHECK_EQ(wefti_store_put_request(&q, bytes, cut), 0);
            n = wefti_store_put_request(&q, bytes, sizeof bytes);
        }
        bytes[n] = 0;
        CHECK(!wefti_store_get_request(bytes, n + 1, &got));
        bytes[9] = 0x80; /* a flag nobody has */
        CHECK(!wefti_store_get_request(bytes, n, &got));
    }
    store_request_t q = {.kind = 0}, got;
    uint8_t bytes[64] = {0};
    CHECK_EQ(wefti_store_put_request(&q, bytes, sizeof bytes), 0);
    CHECK(!wefti_store_get_request(bytes, sizeof bytes, &got)); /* kind 0 */
    bytes[8] = 200;                                             /* one from the future: it can be told apart, and answered */
    CHECK(wefti_store_get_request(bytes, sizeof bytes, &got));
    CHECK_EQ(got.kind, 200);
}

TEST(every_reply_is_read_as_it_was_written)
{
    wefti_rng_t rng = {3};
    uint8_t key[300], entries[500];
    fill(key, sizeof key, &rng);
    fill(entries, sizeof entries, &rng);
    for (uint8_t kind = 1; kind < STORE_KINDS; kind++) {
        uint8_t bytes[STORE_REPLY_MAX], again[STORE_REPLY_MAX];
        store_reply_t p = {.id = wefti_rng_next(&rng), .kind = kind, .flags = STORE_BODY}, got;
        p.lease_ns = 7;
        p.block = wefti_rng_next(&rng);
        p.len = 3;
        p.max_len = 9;
        p.stamp = 11;
        p.rec = some_rec(&rng);
        p.key = key;
        p.key_len = sizeof key;
        p.entries = entries;
        p.entries_len = sizeof entries;
        fill(p.stats, sizeof p.stats, &rng);
        size_t n = wefti_store_put_reply(&p, bytes, sizeof bytes);
        CHECK(n > 0);
        CHECK(wefti_store_get_reply(bytes, n, &got));
        CHECK_EQ(wefti_store_put_reply(&got, again, sizeof again), n);
        CHECK(!memcmp(bytes, again, n));
        bool open_ended = kind == STORE_LIST; /* the entries are looked at later */
        for (size_t cut = 0; cut < n && !open_ended; cut++)
            CHECK(!wefti_store_get_reply(bytes, cut, &got));
        /* an error has no body */
        p.flags = STORE_LEASE_OVER;
        p.status = WEFT_ERR_STALE;
        n = wefti_store_put_reply(&p, bytes, sizeof bytes);
        CHECK_EQ(n, 12);
        CHECK(wefti_store_get_reply(bytes, n, &got));
        CHECK_EQ(got.status, WEFT_ERR_STALE);
        int16_t newer = -300; /* a failure that only a newer server knows */
        memcpy(bytes + 10, &newer, sizeof newer);
        CHECK(wefti_store_get_reply(bytes, n, &got));
        CHECK_EQ(got.status, WEFT_ERR_REJECTED);
        CHECK_EQ(got.reason, 300);
        bytes[10] = 1; /* a status that is none: 1 */
        bytes[11] = 0;
        CHECK(!wefti_store_get_reply(bytes, n, &got));
        bytes[10] = 0; /* success without what it promises */
        CHECK(!wefti_store_get_reply(bytes, n, &got));
    }
}

TEST(a_key_of_a_reply_is_no_longer_than_keys_are)
{
    uint8_t bytes[STORE_REPLY_MAX], key[WEFT_REGION_KEY_MAX + 1] = {0};
    store_reply_t p = {.kind = STORE_FIND, .flags = STORE_BODY, .key = key, .key_len = WEFT_REGION_KEY_MAX}, got;
    size_t n = wefti_store_put_reply(&p, bytes, sizeof bytes);
    CHECK(wefti_store_get_reply(bytes, n, &got));
    p.key_len++;
    n = wefti_store_put_reply(&p, bytes, sizeof bytes);
    CHECK(!wefti_store_get_reply(bytes, n, &got));
}

TEST(entries_of_a_list_are_read_up_to_the_first_that_is_none)
{
    uint8_t bytes[1000];
    wefti_writer_t w = wefti_writer(bytes, sizeof bytes);
    store_entry_t e = {.name = "abc", .name_len = 3, .flags = STORE_E_SHARED, .len = 1, .max_len = 2, .age_ns = 3, .attached = 4},
                  got;
    wefti_store_put_entry(&w, &e);
    e.name = "b\n";
    e.name_len = 2;
    wefti_store_put_entry(&w, &e);
    wefti_reader_t r = wefti_reader(bytes, (size_t)(w.at - bytes));
    CHECK(wefti_store_get_entry(&r, &got));
    CHECK_EQ(got.name_len, 3);
    CHECK_EQ(got.attached, 4);
    CHECK(!wefti_store_get_entry(&r, &got));
    CHECK(r.bad);
    r = wefti_reader(bytes, 0);
    CHECK(!wefti_store_get_entry(&r, &got) && !r.bad);
}

TEST(records_of_mirrors_are_checked)
{
    wefti_rng_t rng = {4};
    wefti_replica_t good = some_rec(&rng), rec;
    CHECK(wefti_replica_ok(&good));
    rec = good, rec.n_members = 4;
    CHECK(!wefti_replica_ok(&rec));
    rec = good, rec.n_members = 1; /* one more than it says */
    CHECK(!wefti_replica_ok(&rec));
    rec = good, rec.flags = 16;
    CHECK(!wefti_replica_ok(&rec));
    rec = good, rec.lease_ns = 0;
    CHECK(!wefti_replica_ok(&rec));
    rec = good, rec.lease_ns = UINT64_MAX;
    CHECK(!wefti_replica_ok(&rec));
}

TEST(names_are_utf8_without_control_characters)
{
    static const char *const good[] = {
        "a", "with space", "\xc2\xa0", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xee\x80\x80"};
    static const char *const bad[] = {"\x01",
                                      "a\tb",
                                      "\x7f",
                                      "\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2",
                                      "\xc2\x85",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "a\xe2\x82"};
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(wefti_store_name_ok(good[i], strlen(good[i])));
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        if (wefti_store_name_ok(bad[i], strlen(bad[i])))
            FAIL("bad name %u passes", i);
    CHECK(!wefti_store_name_ok("", 0));
    CHECK(!wefti_store_name_ok("a\0b", 3));
    char longest[256];
    memset(longest, 'x', sizeof longest);
    CHECK(wefti_store_name_ok(longest, 255));
    CHECK(!wefti_store_name_ok(longest, 256));
}
