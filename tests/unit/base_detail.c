/* tests/unit/base_detail.c - sentences by number: the last ones are there, whole, whoever writes meanwhile. ctest:
 * label=thread */
#include "test.h"

#include <pthread.h>

#include "base/detail.h"

TEST(a_sentence_is_found_by_its_number_until_many_others_came)
{
    char text[WEFTI_DETAIL_MAX];
    uint64_t first = wefti_detail_put("the first"), second = wefti_detail_format("number %d", 2);
    CHECK(first && second && first != second);
    CHECK(wefti_detail_get(first, text));
    CHECK_STR(text, "the first");
    CHECK(wefti_detail_get(second, text));
    CHECK_STR(text, "number 2");
    for (unsigned i = 0; i < WEFTI_DETAILS; i++)
        wefti_detail_put("another");
    CHECK(!wefti_detail_get(first, text));
    CHECK(!wefti_detail_get(0, text));
}

TEST(a_long_sentence_is_cut)
{
    char text[WEFTI_DETAIL_MAX], lang[1000];
    memset(lang, 'x', sizeof lang - 1);
    lang[sizeof lang - 1] = 0;
    CHECK(wefti_detail_get(wefti_detail_put(lang), text));
    CHECK_EQ(strlen(text), WEFTI_DETAIL_MAX - 1);
}

enum { THREADS = 4, EACH = 20000 };

static void *write_and_read(void *arg)
{
    char want[WEFTI_DETAIL_MAX], text[WEFTI_DETAIL_MAX];
    for (int i = 0; i < EACH; i++) {
        snprintf(want, sizeof want, "thread %d says %d, and says it at some length: %d %d %d %d %d", (int)(intptr_t)arg, i, i, i,
                 i, i, i);
        uint64_t number = wefti_detail_put(want);
        for (uint64_t n = number > 5 ? number - 5 : 1; n <= number; n++)
            if (wefti_detail_get(n, text)) { /* of any thread: whole */
                int thread, says, same[5];
                CHECK_EQ(sscanf(text, "thread %d says %d, and says it at some length: %d %d %d %d %d", &thread, &says, &same[0],
                                &same[1], &same[2], &same[3], &same[4]),
                         7);
                for (int k = 0; k < 5; k++)
                    CHECK_EQ(same[k], says);
            }
        if (wefti_detail_get(number, text))
            CHECK_STR(text, want);
    }
    return NULL;
}

TEST(what_is_read_is_whole_whoever_writes_meanwhile)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, write_and_read, (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
