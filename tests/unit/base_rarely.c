/* tests/unit/base_rarely.c - a warning of one kind: once, then at most once a minute, with how many were left out. */
#include "test.h"

#include <weft/weft.h>

#include "base/rarely.h"

#define MINUTE (60 * WEFT_SECOND)

TEST(the_first_of_a_kind_is_said_and_then_one_a_minute_with_a_count)
{
    wefti_rarely_t r = {0};
    uint64_t left = 99, now = 5 * MINUTE;
    CHECK(wefti_rarely_may(&r, 7, now, &left));
    CHECK_EQ(left, 0);
    for (int i = 0; i < 1000; i++)
        CHECK(!wefti_rarely_may(&r, 7, now + (uint64_t)i * WEFT_MILLISECOND, &left));
    CHECK(!wefti_rarely_may(&r, 7, now + MINUTE - 1, &left));
    CHECK(wefti_rarely_may(&r, 7, now + MINUTE, &left));
    CHECK_EQ(left, 1001);
    CHECK(!wefti_rarely_may(&r, 7, now + MINUTE + 1, &left));
    CHECK(wefti_rarely_may(&r, 7, now + 3 * MINUTE, &left));
    CHECK_EQ(left, 1);
}

TEST(kinds_do_not_hold_each_other_back)
{
    wefti_rarely_t r = {0};
    uint64_t left;
    CHECK(wefti_rarely_may(&r, 0, 0, &left)); /* 0 is a kind too, and a time */
    CHECK(!wefti_rarely_may(&r, 0, 1, &left));
    for (uint64_t kind = 1; kind < WEFTI_RARELY_KINDS; kind++)
        CHECK(wefti_rarely_may(&r, kind, kind, &left));
    for (uint64_t kind = 0; kind < WEFTI_RARELY_KINDS; kind++)
        CHECK(!wefti_rarely_may(&r, kind, 10, &left));
}

TEST(more_kinds_than_fit_push_out_the_one_that_was_not_asked_for_longest)
{
    wefti_rarely_t r = {0};
    uint64_t left;
    for (uint64_t kind = 0; kind < WEFTI_RARELY_KINDS; kind++)
        CHECK(wefti_rarely_may(&r, kind, 1, &left));
    CHECK(!wefti_rarely_may(&r, 0, 2, &left)); /* so 1 is the one to go */
    CHECK(wefti_rarely_may(&r, 100, 3, &left));
    CHECK(!wefti_rarely_may(&r, 0, 4, &left));
    CHECK(!wefti_rarely_may(&r, 2, 4, &left));
    CHECK(!wefti_rarely_may(&r, 100, 4, &left));
    CHECK(wefti_rarely_may(&r, 1, 5, &left));
}

TEST(texts_that_differ_in_numbers_only_are_of_one_kind)
{
    CHECK(wefti_rarely_text("after 12 ms: no answer") == wefti_rarely_text("after 130 ms: no answer"));
    CHECK(wefti_rarely_text("after 12 ms: no answer") != wefti_rarely_text("after 12 ms: refused"));
}

static char said[4][256];
static int n_said;

static void note_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    CHECK_EQ(level, WEFT_LOG_WARN);
    if (n_said < 4)
        snprintf(said[n_said], sizeof said[0], "%s", line);
    n_said++;
}

TEST(the_line_says_how_many_were_left_out)
{
    wefti_rarely_t r = {0};
    weft_log_set_sink(note_line, NULL);
    weft_log_set_level(WEFT_LOG_WARN);
    for (int i = 0; i < 5; i++)
        wefti_warn_rarely(&r, wefti_rarely_text("full"), "the disk %s is full", "/d");
    wefti_warn_rarely(&r, wefti_rarely_text("gone"), "it is gone");
    CHECK_EQ(n_said, 2);
    CHECK_STR(said[0], "the disk /d is full");
    CHECK_STR(said[1], "it is gone");
    r.of[0].said_at -= 2 * MINUTE; /* as if it were long ago */
    wefti_warn_rarely(&r, wefti_rarely_text("full"), "the disk %s is full", "/d");
    CHECK_EQ(n_said, 3);
    CHECK_STR(said[2], "the disk /d is full (and 4 times more since the last such line)");
    weft_log_set_level(WEFT_LOG_ERROR);
    wefti_warn_rarely(&r, 1, "%s", "nobody wants to hear this");
    CHECK_EQ(n_said, 3);
}
