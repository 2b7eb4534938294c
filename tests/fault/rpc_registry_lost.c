/* A registry that is killed under running calls, comes back, and comes back without what it knew: calls go on, whoever is lost
 * meanwhile is left, whoever came is found when it is there again. With a real etcd and a real Redis.
 * ctest: timeout=300 */
#include "crew.h"
#include "etcds.h"
#include "redis_server.h"
#include "test.h"

static crew_t crew;
static etcd_server_t etcd;
static redis_server_t redis;

static void calls_go_on(unsigned long n)
{
    unsigned long before = crew.asked.ended;
    CREW_UNTIL(&crew, crew.asked.ended > before + n, 30);
}

static void none_failed(void)
{
    crew_rest(&crew);
    CHECK_EQ(crew.asked.not_run + crew.asked.may_have_run + crew.asked.ran, 0);
    CHECK_EQ(crew.done.not_run + crew.done.may_have_run + crew.done.ran, 0);
    crew_forget(&crew);
}

/* The registry as the test has it. */
typedef struct keeper {
    void (*kill)(void), (*start)(void);
} keeper_t;

static void etcd_dies(void)
{
    etcd_kill(&etcd);
}

static void etcd_lives(void)
{
    etcd_start(&etcd);
}

static void redis_dies(void)
{
    redis_server_kill(&redis);
}

static void redis_lives(void)
{
    redis_server_again(&redis);
}

static void killed_and_restarted(const char *uri, keeper_t keeper)
{
    crew_start_at(&crew, uri, 3, "shm", 2 * WEFT_SECOND, 0);
    crew_go(&crew, 0);
    crew_go(&crew, 1);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 2, 30);
    calls_go_on(500);
    none_failed();

    keeper.kill();
    CREW_UNTIL(&crew, weft_registry_state(crew.registry) != WEFT_OK, 30);
    calls_go_on(1000);
    CHECK_EQ(crew_stats(&crew).instances, 2);
    CHECK_EQ(crew_stats(&crew).connected, 2);
    none_failed();
    crew_go(&crew, 2); /* it cannot be found now */
    calls_go_on(500);
    CHECK_EQ(crew_ok(&crew, 2), 0);
    none_failed();

    keeper.start();
    CREW_UNTIL(&crew, crew_ok(&crew, 2) > 100, 60);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 3, 60);
    none_failed();

    /* and once more, with a death while nobody keeps the books */
    keeper.kill();
    CREW_UNTIL(&crew, weft_registry_state(crew.registry) != WEFT_OK, 30);
    crew_signal(&crew, 0, SIGKILL);
    calls_go_on(1000);
    crew_rest(&crew);
    CHECK_EQ(crew.asked.not_run + crew.asked.may_have_run + crew.asked.ran, 0);
    CHECK_EQ(crew.done.not_run + crew.done.ran, 0);
    crew_forget(&crew);
    CHECK_EQ(crew_stats(&crew).connected, 2);
    keeper.start();
    CREW_UNTIL(&crew, crew_stats(&crew).instances == 2, 60);
    none_failed();
    crew_end(&crew);
}

TEST(etcd_is_killed_and_restarted_under_running_calls)
{
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    killed_and_restarted(etcd.uri, (keeper_t){etcd_dies, etcd_lives});
    etcd_end(&etcd);
}

/* It comes back empty. */
TEST(redis_is_killed_and_restarted_under_running_calls)
{
    if (!redis_server_here())
        SKIP("there is no redis-server here; Debian: apt-get install redis-server");
    redis_server_start(&redis, NULL, NULL);
    killed_and_restarted(redis.tcp, (keeper_t){redis_dies, redis_lives});
    redis_server_end(&redis);
}

TEST(etcd_forgets_everything_and_is_told_again)
{
    ETCD_OR_SKIP();
    etcd_new(&etcd);
    crew_start_at(&crew, etcd.uri, 2, "shm", 2 * WEFT_SECOND, 0);
    crew_go(&crew, 0);
    crew_go(&crew, 1);
    CREW_UNTIL(&crew, crew_stats(&crew).connected == 2, 30);
    calls_go_on(200);
    none_failed();
    etcd_kill(&etcd);
    etcd_forget(&etcd);
    CREW_UNTIL(&crew, weft_registry_state(crew.registry) != WEFT_OK, 30);
    etcd_start(&etcd);
    CREW_UNTIL(&crew, weft_registry_state(crew.registry) == WEFT_OK, 60);
    CREW_UNTIL(&crew, crew_stats(&crew).instances == 2 && crew_stats(&crew).connected == 2, 60);
    calls_go_on(500);
    none_failed(); /* whatever the registry said in between: the servers were there all the time */
    crew_end(&crew);
    etcd_end(&etcd);
}
