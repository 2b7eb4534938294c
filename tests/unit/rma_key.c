/* tests/unit/rma_key.c - keys of regions: what is made is opened, whatever was changed in it is refused, and each refusal says
 * what it is. */
#include "test.h"

#include "base/uri.h"
#include "owner.h"

static size_t make(weft_region_t *region, const weft_region_key_opts_t *opts, uint8_t *key)
{
    size_t n = WEFT_REGION_KEY_MAX;
    CHECK_OK(weft_region_key(region, opts, key, &n));
    CHECK(n > 0 && n <= WEFT_REGION_KEY_MAX);
    return n;
}

TEST(what_is_made_is_opened_and_read)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_region_t *region = owner_region(rt, 1000, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX];
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    rma_claim_t c;
    owner_reach(rt, "tcp://10.0.0.1:7000,unix://@somewhere");
    size_t n = make(region, NULL, key);
    CHECK_OK(wefti_rma_key_open(rma_state(rt), key, n, &c));
    CHECK(c.region == region->id && c.generation == 1 && c.offset == 0 && c.len == 1000 && c.rights == WEFT_RMA_ALL &&
          !c.expires);
    CHECK_OK(weft_region_key_read(key, n, &info));
    CHECK(info.region == region->id && info.generation == 1 && info.offset == 0 && info.len == 1000 &&
          info.rights == WEFT_RMA_ALL);
    CHECK_STR(info.owner, "tcp://10.0.0.1:7000,unix://@somewhere");
    o.offset = 10;
    o.len = 90;
    o.rights = WEFT_RMA_READ;
    o.lifetime_ns = 5 * WEFT_SECOND;
    n = make(region, &o, key);
    CHECK_OK(wefti_rma_key_open(rma_state(rt), key, n, &c));
    CHECK(c.offset == 10 && c.len == 90 && c.rights == WEFT_RMA_READ && c.expires == weft_now(rt) + 5 * WEFT_SECOND);
    o.len = 0; /* the rest */
    o.lifetime_ns = UINT64_MAX;
    n = make(region, &o, key);
    CHECK_OK(wefti_rma_key_open(rma_state(rt), key, n, &c));
    CHECK(c.offset == 10 && c.len == 990 && !c.expires);
    CHECK_OK(weft_region_revoke(region, NULL));
    n = make(region, NULL, key);
    CHECK_OK(weft_region_key_read(key, n, &info));
    CHECK_EQ(info.generation, 2);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_longest_addresses_fit_and_none_are_fine)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_region_t *region = owner_region(rt, 1, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX];
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    char all[WEFTI_REACH_MAX] = "";
    rma_claim_t c;
    size_t n = make(region, NULL, key);
    CHECK_OK(weft_region_key_read(key, n, &info));
    CHECK_STR(info.owner, "");
    static const char more[] = ",tcp://10.20.30.40:65000";
    while (strlen(all) + sizeof more <= sizeof all)
        strcat(all, *all ? more : more + 1);
    CHECK(strlen(all) > sizeof all - 30);
    owner_reach(rt, all);
    n = make(region, NULL, key);
    CHECK_OK(weft_region_key_read(key, n, &info));
    CHECK_STR(info.owner, all);
    CHECK_OK(wefti_rma_key_open(rma_state(rt), key, n, &c));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(every_changed_bit_is_refused)
{
    weft_runtime_t *rt = owner_open_virtual();
    rma_state_t *rs = rma_state(rt);
    weft_region_t *region = owner_region(rt, 4096, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX], was[WEFT_REGION_KEY_MAX];
    unsigned by_status[32] = {0};
    rma_claim_t c = {.region = 77};
    owner_reach(rt, "tcp://127.0.0.1:7000");
    size_t n = make(region, NULL, key);
    memcpy(was, key, n);
    for (size_t at = 0; at < n; at++)
        for (int value = 0; value < 256; value++) {
            if (value == was[at])
                continue;
            key[at] = (uint8_t)value;
            weft_status_t st = wefti_rma_key_open(rs, key, n, &c), want = WEFT_ERR_AUTH;
            if (at < 8) /* magic, version, length of the addresses */
                want = WEFT_ERR_INVALID;
            else if (at < 24)
                want = WEFT_ERR_STALE;
            if (st != want && !(st == WEFT_ERR_INVALID && at >= 24 && at < n - 32))
                FAIL("byte %zu as %d: %s", at, value, weft_status_name(st));
            CHECK(c.region == 77 && *weft_last_error());
            by_status[-st]++;
            key[at] = was[at];
        }
    CHECK_EQ(by_status[-WEFT_ERR_INVALID] + by_status[-WEFT_ERR_STALE] + by_status[-WEFT_ERR_AUTH], 255 * n);
    CHECK(by_status[-WEFT_ERR_AUTH] > 255 * 32);
    CHECK_OK(wefti_rma_key_open(rs, key, n, &c));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(every_other_length_is_refused)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_region_t *region = owner_region(rt, 4096, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX] = {0};
    weft_region_key_info_t info = WEFT_REGION_KEY_INFO_INIT;
    rma_claim_t c;
    owner_reach(rt, "tcp://127.0.0.1:7000");
    size_t n = make(region, NULL, key);
    for (size_t cut = 0; cut <= sizeof key; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that a sanitizer sees a step too far */
        CHECK(exact);
        memcpy(exact, key, cut);
        CHECK_EQ(wefti_rma_key_open(rma_state(rt), exact, cut, &c), cut == n ? WEFT_OK : WEFT_ERR_INVALID);
        CHECK_EQ(weft_region_key_read(exact, cut, &info), cut == n ? WEFT_OK : WEFT_ERR_INVALID);
        free(exact);
    }
    CHECK_EQ(weft_region_key_read(NULL, 10, &info), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_key_read(key, n, NULL), WEFT_ERR_INVALID);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(another_runtimes_key_is_stale_and_one_under_another_secret_is_not_genuine)
{
    weft_runtime_t *rt = owner_open_virtual();
    rma_state_t *rs = rma_state(rt), other = *rs;
    weft_region_t *region = owner_region(rt, 4096, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX];
    rma_claim_t c;
    size_t n = make(region, NULL, key);
    other.instance[15] ^= 1;
    CHECK_EQ(wefti_rma_key_open(&other, key, n, &c), WEFT_ERR_STALE);
    other.secret[31] ^= 1;
    CHECK_EQ(wefti_rma_key_open(&other, key, n, &c), WEFT_ERR_STALE);
    other.instance[15] ^= 1;
    CHECK_EQ(wefti_rma_key_open(&other, key, n, &c), WEFT_ERR_AUTH);
    other.secret[31] ^= 1;
    CHECK_OK(wefti_rma_key_open(&other, key, n, &c));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_the_region_cannot_give_is_refused)
{
    weft_runtime_t *rt = owner_open_virtual();
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    weft_region_t *region;
    uint8_t key[WEFT_REGION_KEY_MAX];
    ro.len = 100;
    ro.max_len = 200;
    ro.rights = WEFT_RMA_READ | WEFT_RMA_ATOMIC;
    CHECK_OK(weft_region_new(rt, &ro, &region));
    size_t n = sizeof key;
    struct {
        uint64_t offset, len;
        weft_status_t st;
    } parts[] = {{0, 100, 0},
                 {99, 1, 0},
                 {0, 101, WEFT_ERR_RANGE},
                 {100, 0, WEFT_ERR_RANGE},
                 {100, 1, WEFT_ERR_RANGE},
                 {99, 2, WEFT_ERR_RANGE},
                 {1, UINT64_MAX, WEFT_ERR_RANGE},
                 {UINT64_MAX, 1, WEFT_ERR_RANGE},
                 {UINT64_MAX, UINT64_MAX, WEFT_ERR_RANGE}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        o.offset = parts[i].offset;
        o.len = parts[i].len;
        n = sizeof key;
        CHECK_EQ(weft_region_key(region, &o, key, &n), parts[i].st);
    }
    o.offset = 100;
    o.len = 100;
    CHECK_OK(weft_region_extend(region, 200));
    CHECK_OK(weft_region_key(region, &o, key, &n));
    o.rights = WEFT_RMA_WRITE;
    CHECK_EQ(weft_region_key(region, &o, key, &n), WEFT_ERR_RIGHTS);
    o.rights = WEFT_RMA_ATOMIC;
    CHECK_OK(weft_region_key(region, &o, key, &n));
    o.rights = 8;
    CHECK_EQ(weft_region_key(region, &o, key, &n), WEFT_ERR_RIGHTS);
    size_t need = n, room = n - 1;
    memset(key, 0xee, sizeof key);
    CHECK_EQ(weft_region_key(region, NULL, key, &room), WEFT_ERR_LIMIT);
    CHECK_EQ(room, need);
    CHECK_EQ(key[0], 0xee);
    room = 0;
    CHECK_EQ(weft_region_key(region, NULL, NULL, &room), WEFT_ERR_LIMIT);
    CHECK_EQ(room, need);
    CHECK_EQ(weft_region_key(region, NULL, NULL, &room), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_key(region, NULL, key, NULL), WEFT_ERR_INVALID);
    CHECK_EQ(weft_region_key(NULL, NULL, key, &n), WEFT_ERR_INVALID);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(the_bytes_of_a_key_do_not_change_by_accident)
{
    weft_runtime_t *rt = owner_open_virtual();
    rma_state_t *rs = rma_state(rt);
    weft_region_t *region = owner_region(rt, 0x1234, NULL);
    uint8_t key[WEFT_REGION_KEY_MAX];
    static const uint8_t head[] = {'W',  'F',  'T', 'K', 1,  0,  12, 0,
                                   42,   42,   42,  42,  42, 42, 42, 42, /* magic, version, text */
                                   42,   42,   42,  42,  42, 42, 42, 42, /* instance */
                                   0,    0,    0,   0,   1,  0,  0,  0,  /* region */
                                   1,    0,    0,   0,   0,  0,  0,  0,  /* generation */
                                   2,    0,    0,   0,   0,  0,  0,  0,  /* offset */
                                   0x32, 0x12, 0,   0,   0,  0,  0,  0,  /* len */
                                   0,    0,    0,   0,   0,  0,  0,  0,  /* expires */
                                   3,    0,    0,   0,   0,  0,  0,  0}; /* rights, zero */
    weft_region_key_opts_t o = WEFT_REGION_KEY_OPTS_INIT;
    o.offset = 2;
    o.rights = WEFT_RMA_READ | WEFT_RMA_WRITE;
    for (size_t i = 0; i < sizeof rs->instance; i++)
        CHECK_EQ(rs->instance[i], 42); /* what the fake fabric calls random */
    owner_reach(rt, "unix://@abcd");
    size_t n = make(region, &o, key);
    CHECK_EQ(n, 72 + 12 + 32);
    CHECK(!memcmp(key, head, sizeof head) && !memcmp(key + 72, "unix://@abcd", 12));
    CHECK_OK(weft_runtime_close(rt));
}
