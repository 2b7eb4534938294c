/* tests/unit/base_status.c - every status has a name and a sentence, and the version is the header's. */
#include <weft/config.h>
#include <weft/status.h>

#include "../test.h"
#include "base/status.h"

static const weft_status_t all[] = {
#define ITEM(name, value, text) name,
    WEFT_STATUS_LIST(ITEM)
#undef ITEM
};
enum { N = sizeof all / sizeof all[0] };

TEST(success_is_zero_and_every_failure_is_negative_and_numbered_without_gaps)
{
    for (int i = 0; i < N; i++)
        CHECK_EQ(all[i], -i);
}

TEST(names_are_those_of_the_enum)
{
    CHECK_STR(weft_status_name(WEFT_OK), "WEFT_OK");
    CHECK_STR(weft_status_name(WEFT_ERR_PEER), "WEFT_ERR_PEER");
    CHECK_STR(weft_status_name(WEFT_ERR_SYSTEM), "WEFT_ERR_SYSTEM");
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++)
            CHECK(strcmp(weft_status_name(all[i]), weft_status_name(all[j])));
}

TEST(every_status_has_a_sentence_of_its_own)
{
    CHECK_STR(weft_status_text(WEFT_ERR_NOMEM), "out of memory");
    for (int i = 0; i < N; i++) {
        CHECK(strlen(weft_status_text(all[i])) > 0);
        CHECK(strcmp(weft_status_text(all[i]), "unknown status"));
        for (int j = 0; j < i; j++)
            CHECK(strcmp(weft_status_text(all[i]), weft_status_text(all[j])));
    }
}

TEST(a_failure_below_the_library_may_be_of_the_system_of_cuda_or_of_ucx)
{
    CHECK_STR(weft_status_text(WEFT_ERR_SYSTEM), "the operating system, CUDA or UCX failed; the log has its words");
}

TEST(a_number_that_is_no_status_gets_the_words_for_unknown)
{
    static const int none[] = {1, 2, -N, -1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        CHECK_STR(weft_status_name((weft_status_t)none[i]), "WEFT_ERR_?");
        CHECK_STR(weft_status_text((weft_status_t)none[i]), "unknown status");
    }
}

TEST(what_a_peer_tells_is_a_status_of_ours_or_a_plain_rejection_with_its_number)
{
    uint32_t reason = 7;
    weft_log_set_level(WEFT_LOG_NONE);
    for (int i = 0; i < N; i++)
        CHECK_EQ(wefti_status_told(all[i], "the test", &reason), all[i]);
    CHECK_EQ(reason, 7);
    static const int32_t newer[] = {-N, -1000, INT32_MIN};
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(wefti_status_told(newer[i], "the test", &reason), WEFT_ERR_REJECTED);
        CHECK_EQ(reason, (uint32_t)0 - (uint32_t)newer[i]);
    }
}

TEST(the_version_at_run_time_is_that_of_the_header_and_of_its_numbers)
{
    char numbers[32];
    snprintf(numbers, sizeof numbers, "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    CHECK_STR(weft_version(), WEFT_VERSION_STRING);
    CHECK_STR(weft_version(), numbers);
}
