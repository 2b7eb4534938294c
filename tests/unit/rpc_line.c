/* The line in which requests wait for a thread: order, what is spilled, what is taken back, and takers that meet all of it.
 * ctest: timeout=120 label=thread */
#include <pthread.h>
#include <stdlib.h>

#include "rpc/line.h"
#include "rpc/serve.h"
#include "test.h"

enum { MANY = 3 * RPC_LINE };

static rpc_line_t line;
static rpc_request_t *requests;

static void begin(size_t n)
{
    wefti_line_init(&line, NULL);
    requests = (rpc_request_t *)calloc(n, sizeof *requests);
    CHECK(requests != NULL);
}

static void end(void)
{
    CHECK(!wefti_line_waits(&line));
    CHECK_EQ(wefti_line_waiting(&line), 0);
    CHECK(wefti_line_take(&line) == NULL);
    wefti_line_fini(&line);
    free(requests);
}

TEST(they_come_out_in_their_order_however_many_there_are)
{
    begin(MANY);
    for (unsigned round = 0; round < 5; round++) {
        unsigned put = 0, taken = 0;
        /* it fills up beyond the ring, is half emptied, and filled again */
        for (; put < MANY - 100; put++)
            wefti_line_put(&line, &requests[put]);
        CHECK_EQ(wefti_line_waiting(&line), MANY - 100);
        for (; taken < MANY / 2 + round * 31; taken++)
            CHECK(wefti_line_take(&line) == &requests[taken]);
        for (; put < MANY; put++)
            wefti_line_put(&line, &requests[put]);
        CHECK_EQ(wefti_line_waiting(&line), MANY - taken);
        for (; taken < MANY; taken++)
            CHECK(wefti_line_take(&line) == &requests[taken]);
    }
    end();
}

TEST(what_is_taken_back_makes_room_at_once_and_never_comes_out)
{
    begin(MANY);
    for (unsigned i = 0; i < MANY; i++)
        wefti_line_put(&line, &requests[i]);
    unsigned left = MANY;
    for (unsigned i = 0; i < MANY; i++)
        if (i % 3) {
            CHECK(wefti_line_take_back(&line, &requests[i]));
            CHECK(!wefti_line_take_back(&line, &requests[i]));
            CHECK_EQ(wefti_line_waiting(&line), --left);
        }
    for (unsigned i = 0; i < MANY; i += 3)
        CHECK(wefti_line_take(&line) == &requests[i]);
    for (unsigned i = 0; i < MANY; i++)
        CHECK(!wefti_line_take_back(&line, &requests[i]));
    end();
}

/* A peer that calls and cancels while all threads are held up: the line holds nothing of what was taken back. */
TEST(calls_that_are_cancelled_for_ever_take_no_space)
{
    begin(1);
    for (unsigned i = 0; i < 10 * RPC_LINE; i++) {
        wefti_line_put(&line, requests);
        CHECK_EQ(wefti_line_waiting(&line), 1);
        CHECK(wefti_line_take_back(&line, requests));
        CHECK_EQ(wefti_line_waiting(&line), 0);
    }
    wefti_line_put(&line, requests);
    CHECK(wefti_line_take(&line) == requests);
    end();
}

/* --- takers that meet ------------------------------------------------------------------------------------------------------ */

enum { TAKERS = 3, AT_ONCE = 60000 };
static _Atomic bool over;
static _Atomic uint8_t came[AT_ONCE];

static void *takes(void *arg)
{
    size_t last = 0, *in_order = (size_t *)arg;
    while (!atomic_load(&over) || wefti_line_waits(&line)) {
        rpc_request_t *r = wefti_line_take(&line);
        if (!r)
            continue;
        size_t i = (size_t)(r - requests);
        atomic_fetch_add(&came[i], 1);
        *in_order += i >= last;
        last = i;
    }
    return NULL;
}

TEST(each_comes_to_one_of_many_takers_or_back)
{
    pthread_t threads[TAKERS];
    size_t in_order[TAKERS] = {0}, taken = 0;
    unsigned seed = 5, back = 0;
    begin(AT_ONCE);
    for (int i = 0; i < TAKERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, takes, &in_order[i]), 0);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        wefti_line_put(&line, &requests[i]);
        unsigned one = i - (unsigned)rand_r(&seed) % (i < 400 ? i + 1 : 400);
        if (rand_r(&seed) % 4 == 0 && wefti_line_take_back(&line, &requests[one])) {
            atomic_fetch_add(&came[one], 1);
            back++;
        }
    }
    atomic_store(&over, true);
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(threads[i], NULL);
        taken += in_order[i];
    }
    for (unsigned i = 0; i < AT_ONCE; i++)
        CHECK_EQ(atomic_load(&came[i]), 1);
    CHECK_EQ(taken, AT_ONCE - back); /* what one thread takes comes in order */
    end();
}
