/* A resolver that does not answer: names that nobody can look up cost a few threads and no more, however many are asked for;
 * who waits for one is told at his own deadline; and when it answers again, so do we.
 *
 * The program has a getaddrinfo() of its own: names that end in ".slow" are looked up when the test says so.
 * ctest: label=thread no-tsan (UCX hooks madvise(), which a thread calls when the sanitizer has let go of it) */
#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>

#include <weft/weft.h>

#include "fabric/fabric.h"
#include "test.h"

enum { MANY = 200, FEW_THREADS = 16 };

typedef int getaddrinfo_fn(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool answers;
static int asked; /* ever */

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    getaddrinfo_fn *real = (getaddrinfo_fn *)(uintptr_t)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *end = host ? strrchr(host, '.') : NULL;
    if (!end || strcmp(end, ".slow") || (hints && hints->ai_flags & AI_NUMERICHOST)) /* the latter asks nobody */
        return real(host, service, hints, out);
    pthread_mutex_lock(&lock);
    asked++;
    pthread_cond_broadcast(&changed);
    while (!answers)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return real("127.0.0.1", service, NULL, out);
}

static int asked_so_far(void)
{
    pthread_mutex_lock(&lock);
    int n = asked;
    pthread_mutex_unlock(&lock);
    return n;
}

static void answer(void)
{
    pthread_mutex_lock(&lock);
    answers = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int threads(void)
{
    int n = -2; /* . and .. */
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static bool is_done(wefti_lookup_t *l)
{
    const struct addrinfo *found;
    return wefti_lookup_result(l, &found) != WEFT_ERR_AGAIN;
}

TEST(calls_to_names_that_nobody_can_look_up_end_in_time_and_cost_few_threads)
{
    static weft_op_t ops[MANY];
    static weft_ep_t *eps[MANY];
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *l;
    char uri[64];
    weft_log_set_level(WEFT_LOG_ERROR);
    o.connect_timeout_ns = 500 * WEFT_MILLISECOND;
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &l));
    int before = threads();
    for (int i = 0; i < MANY; i++) {
        snprintf(uri, sizeof uri, "tcp://host%d.slow:%u", i, weft_listener_port(l));
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_ep_open(rt, uri, NULL, &ops[i], &eps[i]));
        CHECK(threads() - before <= FEW_THREADS);
    }
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(weft_op_wait(&ops[i], 30 * WEFT_SECOND), WEFT_ERR_TIMEOUT);
        CHECK(threads() - before <= FEW_THREADS);
        CHECK_OK(weft_ep_close(eps[i], NULL));
    }
    CHECK(asked_so_far() <= FEW_THREADS);
    /* those that waited have left the queue: the resolver is asked for none of them, and for who asks now */
    int were = asked_so_far();
    answer();
    snprintf(uri, sizeof uri, "tcp://again.slow:%u", weft_listener_port(l));
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_OK(weft_op_wait(&op, 30 * WEFT_SECOND));
    CHECK_EQ(asked_so_far(), were + 1);
    TEST_UNTIL(threads() <= before + 1, 30); /* nobody stays when there is nothing to do but the one that beats */
    CHECK_OK(weft_runtime_close(rt));
}

TEST(one_name_is_looked_up_once_for_all_who_ask_at_one_time)
{
    static wefti_lookup_t *all[MANY];
    int before = threads();
    for (int i = 0; i < MANY; i++)
        CHECK_OK(wefti_lookup_start("same.slow", &all[i]));
    TEST_UNTIL(asked_so_far() == 1, 30);
    for (int i = 0; i < MANY; i += 2)
        wefti_lookup_drop(all[i]);
    for (int i = 1; i < MANY; i += 2)
        CHECK(!is_done(all[i]));
    answer();
    for (int i = 1; i < MANY; i += 2) {
        const struct addrinfo *found = NULL;
        TEST_UNTIL(wefti_lookup_result(all[i], &found) == WEFT_OK, 30);
        CHECK(found && found->ai_family == AF_INET);
        wefti_lookup_drop(all[i]);
    }
    CHECK_EQ(asked_so_far(), 1);
    TEST_UNTIL(threads() == before, 30);
}

TEST(those_who_wait_in_the_queue_get_their_answer)
{
    static wefti_lookup_t *all[MANY];
    char host[64];
    for (int i = 0; i < MANY; i++) {
        snprintf(host, sizeof host, "host%d.slow", i);
        CHECK_OK(wefti_lookup_start(host, &all[i]));
    }
    answer();
    for (int i = 0; i < MANY; i++) {
        TEST_UNTIL(is_done(all[i]), 30);
        wefti_lookup_drop(all[i]);
    }
    CHECK_EQ(asked_so_far(), MANY);
}

TEST(a_forked_child_asks_anew)
{
    static wefti_lookup_t *all[MANY];
    char host[64];
    int status;
    for (int i = 0; i < MANY; i++) {
        snprintf(host, sizeof host, "host%d.slow", i % (MANY / 2));
        CHECK_OK(wefti_lookup_start(host, &all[i]));
    }
    TEST_UNTIL(asked_so_far() >= 8, 30);
    wefti_lookup_drop(all[0]);        /* running, and */
    wefti_lookup_drop(all[MANY / 2]); /* nobody's now */
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        wefti_lookup_t *own;
        pthread_mutex_init(&lock, NULL); /* a thread that did not come along may have held or waited for them */
        pthread_cond_init(&changed, NULL);
        answers = true;
        CHECK_OK(wefti_lookup_start("host1.slow", &own));
        TEST_UNTIL(is_done(own), 30);
        wefti_lookup_drop(own);
        for (int i = 1; i < MANY; i++)
            if (i != MANY / 2)
                wefti_lookup_drop(all[i]);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    answer();
    for (int i = 1; i < MANY; i++) {
        if (i == MANY / 2)
            continue;
        TEST_UNTIL(is_done(all[i]), 30);
        wefti_lookup_drop(all[i]);
    }
}
