/* Servers of a service that are stopped, killed, or behind a registry that is taken away: calls go on with the others, and every
 * call ends.
 * ctest: timeout=300 shards */
#include <fcntl.h>

#include "crew.h"
#include "test.h"

static crew_t crew;
#define HEARTBEAT (400 * WEFT_MILLISECOND)

/* Idempotent calls all succeed, of the others those fail that may have run at the one that was lost, and none waits for its
 * deadline. */
static void nothing_but_that_was_lost(void)
{
    crew_rest(&crew);
    CHECK_EQ(crew.asked.not_run + crew.asked.may_have_run + crew.asked.ran, 0);
    CHECK_EQ(crew.done.not_run + crew.done.ran, 0);
    CHECK_EQ(crew.asked.late + crew.done.late, 0);
    CHECK(crew.done.may_have_run <= CREW_FLIGHT);
}

static void one_of_two_is_stopped(const char *transports)
{
    crew_start(&crew, 2, transports, HEARTBEAT, 0);
    crew_go(&crew, 0);
    crew_go(&crew, 1);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 100 && crew_ok(&crew, 1) > 100, 20);
    crew_rest(&crew);
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 10, 20);
    crew_signal(&crew, 0, SIGSTOP);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 1, 20);
    CHECK_EQ(crew_stats(&crew).instances, 2); /* it is in the registry, for it has not died */
    unsigned long before = crew_ok(&crew, 1);
    CREW_UNTIL(&crew, crew_ok(&crew, 1) > before + 1000, 20);
    nothing_but_that_was_lost();
    CHECK(crew.done.may_have_run > 0);
    /* it comes back and has its part again */
    crew_signal(&crew, 0, SIGCONT);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 2, 30);
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 100 && crew_ok(&crew, 1) > 100, 30);
    crew_end(&crew);
}

TEST(one_of_two_servers_is_stopped_and_the_other_goes_on_shm)
{
    one_of_two_is_stopped("shm");
}

TEST(one_of_two_servers_is_stopped_and_the_other_goes_on_tcp)
{
    one_of_two_is_stopped("tcp");
}

/* One connection at a time: when its server is lost the next instance is taken. */
TEST(the_only_connection_is_lost_and_the_next_instance_is_taken)
{
    crew_start(&crew, 3, "shm", HEARTBEAT, 1);
    for (int i = 0; i < 3; i++)
        crew_go(&crew, i);
    CREW_UNTIL(&crew, crew_stats(&crew).instances == 3, 20);
    for (int left = 3; left > 1; left--) {
        crew_rest(&crew);
        crew_forget(&crew);
        CREW_UNTIL(&crew, crew.asked.ended > 200, 20);
        int who = -1;
        for (int i = 0; i < 3; i++)
            if (crew_ok(&crew, i)) {
                CHECK_EQ(who, -1); /* only one */
                who = i;
            }
        CHECK(who >= 0);
        CHECK_EQ(crew_stats(&crew).connected, 1);
        crew_signal(&crew, who, SIGKILL);
        unsigned long before = crew.asked.ended;
        CREW_UNTIL(&crew, crew.asked.ended > before + 500, 20);
        nothing_but_that_was_lost();
        CREW_UNTIL(&crew, (int)crew_stats(&crew).instances == left - 1, 20);
    }
    crew_end(&crew);
}

/* A registry that cannot be used any more costs nothing that runs. */
TEST(the_registry_is_taken_away_and_calls_go_on)
{
    static char hidden[sizeof crew.place + 8];
    crew_start(&crew, 2, "shm", HEARTBEAT, 0);
    crew_go(&crew, 0);
    crew_go(&crew, 1);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 100 && crew_ok(&crew, 1) > 100, 20);
    snprintf(hidden, sizeof hidden, "%.*s.hidden", (int)sizeof crew.place - 8, crew.place + 6);
    FILE *f = fopen(hidden, "w");
    CHECK(f);
    fclose(f);
    /* a file takes its place at once: servers make the directory again where there is none */
    CHECK(!renameat2(AT_FDCWD, crew.place + 6, AT_FDCWD, hidden, RENAME_EXCHANGE));
    CREW_UNTIL(&crew, weft_registry_state(crew.registry) != WEFT_OK, 20);
    crew_rest(&crew);
    crew_forget(&crew);
    CREW_UNTIL(&crew, crew_ok(&crew, 0) > 1000 && crew_ok(&crew, 1) > 1000, 20);
    crew_signal(&crew, 0, SIGKILL); /* nobody says so but its endpoint */
    unsigned long before = crew_ok(&crew, 1);
    CREW_UNTIL(&crew, crew_ok(&crew, 1) > before + 1000, 20);
    nothing_but_that_was_lost();
    CHECK(!unlink(crew.place + 6));
    CHECK(!rename(hidden, crew.place + 6));
    CREW_UNTIL(&crew, crew_stats(&crew).instances == 1, 20);
    CHECK_EQ(weft_registry_state(crew.registry), WEFT_OK);
    crew_end(&crew);
}
