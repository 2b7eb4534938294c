/* tests/unit/mem_stage.c - stages: each to one owner at a time, so many and no more, and no memory is said.
 * ctest: timeout=60 */
#include "test.h"

#include "base/alloc.h"
#include "fake_fabric.h"
#include "mem/mem.h"

static int fails_always(size_t n)
{
    (void)n;
    return 1;
}

TEST(so_many_stages_are_out_and_no_more)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    void *s[WEFTI_STAGING_MAX];
    CHECK_OK(wefti_mem_attach(rt));
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++) {
            s[i] = wefti_staging_get(rt);
            CHECK(s[i]);
            CHECK_EQ((uintptr_t)s[i] % 4096, 0);
            memset(s[i], (int)i, WEFTI_STAGING_BYTES);
        }
        CHECK(!wefti_staging_get(rt));
        for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++) /* none lies in another */
            CHECK(*(uint8_t *)s[i] == i && ((uint8_t *)s[i])[WEFTI_STAGING_BYTES - 1] == i);
        wefti_staging_put(rt, s[7]);
        CHECK(wefti_staging_get(rt) == s[7]);
        for (unsigned i = 0; i < WEFTI_STAGING_MAX; i++)
            wefti_staging_put(rt, s[i]);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(no_memory_for_a_stage_is_none_now_and_one_later)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    void *first = wefti_staging_get(rt);
    CHECK(first);
    wefti_alloc_fails = fails_always;
    CHECK(!wefti_staging_get(rt));
    wefti_staging_put(rt, first);
    CHECK(wefti_staging_get(rt) == first);
    wefti_alloc_fails = NULL;
    void *second = wefti_staging_get(rt);
    CHECK(second && second != first);
    wefti_staging_put(rt, first);
    wefti_staging_put(rt, second);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_runtime_without_memory_for_the_room_says_so)
{
    weft_runtime_t *rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    wefti_alloc_fails = fails_always;
    weft_status_t st = wefti_mem_attach(rt);
    wefti_alloc_fails = NULL;
    CHECK_EQ(st, WEFT_ERR_NOMEM);
    CHECK_OK(weft_runtime_close(rt));
}
