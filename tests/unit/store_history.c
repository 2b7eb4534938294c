/* The checker of histories that judges mirrors (tests/lib/history.h): what it lets pass, and what it does not. */
#include "history.h"

#include "test.h"
#include "weft/weft.h"

enum { LEN = 5 * 4096 - 512 };
static uint8_t mem[LEN], buf[LEN];

static history_t *begin(void)
{
    memset(mem, 0, sizeof mem);
    return history_new(7, LEN);
}

static uint32_t put(history_t *h, uint64_t offset, size_t len)
{
    uint32_t w = history_write(h, offset, len, buf);
    memcpy(mem + offset, buf, len);
    return w;
}

#define PASSES(h, r, bytes) \
    do { \
        const char *wrong = history_check((h), (r), (bytes)); \
        if (wrong) \
            FAIL("%s", wrong); \
    } while (0)
#define FAILS(h, r, bytes, says) \
    do { \
        const char *wrong = history_check((h), (r), (bytes)); \
        if (!wrong || !strstr(wrong, says)) \
            FAIL("it said \"%s\", not \"%s\"", wrong ? wrong : "(nothing)", says); \
    } while (0)

TEST(what_was_never_written_is_zero)
{
    history_t *h = begin();
    PASSES(h, history_read(h, 0, LEN), mem);
    mem[1234] = 1;
    FAILS(h, history_read(h, 0, LEN), mem, "torn");
    mem[1234] = 0;
    mem[1024] = 1;
    FAILS(h, history_read(h, 0, LEN), mem, "nobody wrote there");
    history_free(h);
}

TEST(an_acknowledged_write_is_read_and_nothing_before_it)
{
    history_t *h = begin();
    static uint8_t before[LEN];
    uint32_t a = put(h, 512, 8192);
    history_written(h, a);
    PASSES(h, history_read(h, 0, LEN), mem);
    memcpy(before, mem, LEN);
    uint32_t b = put(h, 512, 8192);
    PASSES(h, history_read(h, 0, LEN), before); /* not acknowledged yet */
    PASSES(h, history_read(h, 0, LEN), mem);
    history_read_t *early = history_read(h, 0, LEN);
    history_written(h, b);
    PASSES(h, early, before); /* the read began before that */
    FAILS(h, history_read(h, 0, LEN), before, "acknowledged before the read began");
    PASSES(h, history_read(h, 0, LEN), mem);
    history_free(h);
}

TEST(a_write_that_failed_may_have_happened_and_one_that_was_not_posted_has_not)
{
    history_t *h = begin();
    static uint8_t before[LEN];
    put(h, 0, 4096);
    PASSES(h, history_read(h, 0, LEN), mem);
    memcpy(before, mem, LEN);
    uint32_t b = put(h, 0, 4096);
    history_unwrite(h, b);
    FAILS(h, history_read(h, 0, LEN), mem, "nobody wrote there");
    PASSES(h, history_read(h, 0, LEN), before);
    history_free(h);
}

TEST(a_block_is_of_one_moment)
{
    history_t *h = begin();
    put(h, 0, LEN);
    uint32_t b = history_write(h, 0, LEN, buf);
    memcpy(mem + 4096, buf + 4096, 4096); /* block by block: as it may be */
    PASSES(h, history_read(h, 0, LEN), mem);
    memcpy(mem, buf, 2048);
    FAILS(h, history_read(h, 0, LEN), mem, "block 0 is torn");
    PASSES(h, history_read(h, 0, 2048), mem);
    memcpy(mem, buf, LEN);
    PASSES(h, history_read(h, 0, LEN), mem);
    /* a part of a block over a whole one */
    put(h, 1024, 512);
    PASSES(h, history_read(h, 0, LEN), mem);
    (void)b;
    history_free(h);
}

TEST(a_cell_is_of_one_write_of_this_mirror_in_this_place)
{
    history_t *h = begin(), *other = history_new(8, LEN);
    uint32_t a = put(h, 0, LEN);
    history_written(h, a);
    uint8_t was = mem[700];
    mem[700] ^= 4;
    FAILS(h, history_read(h, 0, LEN), mem, "torn");
    mem[700] = was;
    PASSES(h, history_read(h, 0, LEN), mem);
    history_write(other, 0, LEN, buf);
    memcpy(mem + 512, buf + 512, 512);
    FAILS(h, history_read(h, 0, LEN), mem, "nobody wrote there");
    put(h, 0, LEN);
    memcpy(mem + 512, mem + 1024, 512);
    FAILS(h, history_read(h, 0, LEN), mem, "torn");
    history_free(h);
    history_free(other);
}

TEST(nothing_is_said_of_a_read_that_failed)
{
    history_t *h = begin();
    PASSES(h, history_read(h, 0, LEN), NULL);
    history_free(h);
}
