/* unit/base_hands_thread.c - each part of an offer is done once, by its maker or by a hand; nobody is inside when it is over,
 * whenever it is stopped; a hand that does not get on delays nobody; where there is one processor there are none.
 * ctest: timeout=120 */
#include "base/hands.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

enum { PARTS = 200, ROUNDS = 500 };

static _Atomic uint32_t times[PARTS];
static _Atomic uint32_t inside;
static _Atomic bool gate; /* parts wait until it is open */
static pthread_t maker;

static void count(void *arg, uint32_t part)
{
    CHECK(arg == times && part < PARTS);
    atomic_fetch_add(&inside, 1);
    atomic_fetch_add(&times[part], 1);
    atomic_fetch_sub(&inside, 1);
}

/* Hands stay in their part until the gate is open. The maker does not. */
static void stay(void *arg, uint32_t part)
{
    atomic_fetch_add(&inside, 1);
    if (!pthread_equal(pthread_self(), maker))
        while (!atomic_load(&gate))
            sched_yield();
    atomic_fetch_sub(&inside, 1);
    atomic_fetch_add(&((_Atomic uint32_t *)arg)[part], 1);
}

static wefti_hands_user_t user;

static void start(uint32_t processors)
{
    wefti_hands_processors = processors;
    wefti_hands_patient = true;
    maker = pthread_self();
    wefti_hands_begin(&user, false);
}

static void forget(void)
{
    for (int i = 0; i < PARTS; i++)
        atomic_store(&times[i], 0);
}

static void check_once(void)
{
    for (int i = 0; i < PARTS; i++)
        CHECK_EQ(atomic_load(&times[i]), 1);
}

static void finish(wefti_offer_t *o)
{
    while (wefti_hands_work(o))
        ;
    while (!wefti_hands_over(o))
        sched_yield();
}

static void rounds(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        wefti_offer_t o = {0};
        forget();
        CHECK(wefti_hands_offer(&o, count, times, PARTS, 3));
        finish(&o);
        CHECK_EQ(atomic_load(&inside), 0);
        check_once();
    }
}

TEST(each_part_is_done_once)
{
    start(4);
    rounds();
    CHECK_EQ(wefti_hands_n(), 3);
    wefti_hands_end(&user);
    CHECK_EQ(wefti_hands_n(), 0); /* the last one dismisses them */
    start(4);
    rounds();
    wefti_hands_end(&user);
}

TEST(hands_do_some_of_it)
{
    wefti_offer_t o = {0};
    start(3);
    uint64_t before = wefti_hands_did();
    forget();
    CHECK(wefti_hands_offer(&o, count, times, PARTS, 2));
    while (!wefti_hands_over(&o)) /* the maker takes none */
        sched_yield();
    CHECK_EQ(wefti_hands_did() - before, PARTS);
    check_once();
    wefti_hands_end(&user);
}

TEST(when_an_offer_was_stopped_no_part_is_begun_and_nobody_is_inside)
{
    start(4);
    for (int i = 0; i < ROUNDS; i++) {
        wefti_offer_t o = {0};
        forget();
        CHECK(wefti_hands_offer(&o, count, times, PARTS, 3));
        for (int k = 0; k < i % 7; k++)
            (void)wefti_hands_work(&o);
        wefti_hands_stop(&o);
        CHECK_EQ(atomic_load(&inside), 0);
        uint32_t did = 0;
        for (int k = 0; k < PARTS; k++)
            did += atomic_load(&times[k]);
        sched_yield();
        for (int k = 0; k < PARTS; k++)
            did -= atomic_load(&times[k]);
        CHECK_EQ(did, 0);
        CHECK(wefti_hands_over(&o) && !wefti_hands_work(&o));
        wefti_hands_stop(&o);
    }
    wefti_hands_end(&user);
}

TEST(a_hand_that_does_not_get_on_keeps_its_part_and_nothing_else)
{
    wefti_offer_t o = {0}, other = {0};
    start(2);
    forget();
    CHECK(wefti_hands_offer(&o, stay, times, PARTS, 1));
    while (!atomic_load(&inside)) /* until it has begun one */
        sched_yield();
    while (wefti_hands_work(&o))
        ;
    uint32_t did = 0;
    for (int i = 0; i < PARTS; i++)
        did += atomic_load(&times[i]);
    CHECK_EQ(did, PARTS - 1);
    CHECK(!wefti_hands_over(&o)); /* it says so at once */
    static _Atomic uint32_t others[PARTS];
    CHECK(wefti_hands_offer(&other, stay, others, PARTS, 1));
    finish(&other); /* all of it here */
    atomic_store(&gate, true);
    while (!wefti_hands_over(&o))
        sched_yield();
    check_once();
    wefti_hands_end(&user);
}

TEST(after_a_hand_that_was_late_nobody_is_asked_for_a_while)
{
    wefti_offer_t o = {0};
    start(2);
    CHECK(wefti_hands_offer(&o, stay, times, PARTS, 1));
    while (!atomic_load(&inside))
        sched_yield();
    wefti_hands_patient = false;
    while (wefti_hands_work(&o))
        ;
    CHECK(!wefti_hands_over(&o));
    usleep(30000);
    atomic_store(&gate, true);
    while (!wefti_hands_over(&o))
        sched_yield();
    CHECK(!wefti_hands_offer(&o, stay, times, PARTS, 1)); /* for a second */
    CHECK(!o.stand);
    wefti_hands_end(&user);
}

TEST(one_processor_or_none_allowed_is_no_hands)
{
    wefti_offer_t o = {0};
    wefti_hands_user_t more;
    start(1);
    CHECK_EQ(wefti_hands_free(3), 0);
    wefti_hands_processors = 4;
    CHECK_EQ(wefti_hands_free(0), 0);
    CHECK_EQ(wefti_hands_free(2), 2);
    CHECK_EQ(wefti_hands_free(16), 3); /* the program drives with one */
    wefti_hands_begin(&more, true);
    CHECK_EQ(wefti_hands_free(16), 3);
    wefti_hands_end(&more);
    wefti_hands_user_t threads[4];
    for (int i = 0; i < 4; i++)
        wefti_hands_begin(&threads[i], true);
    CHECK_EQ(wefti_hands_free(16), 0);
    CHECK(!wefti_hands_offer(&o, count, times, PARTS, wefti_hands_free(16)));
    CHECK_EQ(wefti_hands_n(), 0);
    for (int i = 0; i < 4; i++)
        wefti_hands_end(&threads[i]);
    wefti_hands_end(&user);
}

TEST(more_offers_than_there_is_place_for_are_not_out)
{
    wefti_offer_t o[64] = {{0}};
    unsigned n = 0;
    start(2);
    while (n < 64 && wefti_hands_offer(&o[n], count, times, PARTS, 1))
        n++;
    CHECK(n >= 2 && n < 64);
    CHECK(!o[n].stand);
    for (unsigned i = 0; i < n; i++)
        wefti_hands_stop(&o[i]);
    CHECK(wefti_hands_offer(&o[0], count, times, PARTS, 1));
    wefti_hands_stop(&o[0]);
    CHECK(!wefti_hands_offer(&o[0], count, times, WEFTI_PARTS_MOST + 1, 1));
    wefti_hands_end(&user);
}

TEST(a_forked_child_has_no_hands_and_may_have_its_own)
{
#ifdef __SANITIZE_THREAD__
    SKIP("the thread sanitizer allows no threads in a child of a process with threads");
#endif
    wefti_offer_t o = {0};
    start(3);
    rounds();
    CHECK(wefti_hands_offer(&o, count, times, PARTS, 2));
    pid_t pid = fork();
    if (!pid) {
        bool none = !wefti_hands_n();
        wefti_hands_end(&user); /* the parent's: nothing */
        wefti_hands_user_t mine;
        wefti_hands_begin(&mine, false);
        wefti_offer_t own = {0};
        forget();
        bool out = wefti_hands_offer(&own, count, times, PARTS, 2);
        finish(&own);
        for (int i = 0; i < PARTS; i++)
            out = out && atomic_load(&times[i]) == 1;
        wefti_hands_end(&mine);
        _exit(none && out ? 0 : 1);
    }
    int status = -1;
    wefti_hands_stop(&o);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    rounds();
    wefti_hands_end(&user);
}
